"""Functions: calls, multiple outputs, recursion, control outputs, functional If/While/Case as
in a tf.function's graph, and the same graphs lowered to Switch and Merge."""

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from graphkit import case, v1


def traced(fn, *specs):
    """The graph of a tf.function."""
    return tf.function(fn, autograph=fn is autographed).get_concrete_function(*specs)


def spec(dtype, *shape):
    return tf.TensorSpec(shape, dtype)


@case("v1")
def no_function_at_all(b):
    x, i = b.feed(tf.float32, [None]), b.feed(tf.int32)
    y = tf.gather(x * 2.0, i)
    b.step([y, i], {x: [1, 2, 3], i: 2})
    b.step(y, {x: [1, 2, 3], i: 3}, error="indices = 3 is not in [0, 3)")
    b.step(y, {x: [4], i: 0}, targets=[y.op.name])


@case("v2")
def call_with_many_outputs(b):
    x = b.feed(tf.float32, [None])
    f = tf.function(lambda x: (x + 1.0, tf.reduce_sum(x), x), autograph=False)
    y, s, same = f(x)
    b.step([y, s, same], {x: [1, 2]})
    b.step([s], {x: []})


@case("v2")
def call_of_call(b):
    x = b.feed(tf.float32)
    g = tf.function(lambda x: x * x)
    f = tf.function(lambda x: g(x) + g(x + 1.0))
    b.step(f(f(x)), {x: 2})


@case("v2")
def call_without_inputs(b):
    f = tf.function(lambda: (tf.constant([1, 2]), tf.constant(3.5)))
    a, c = f()
    b.step([a, c])


@case("v2")
def call_captures(b):
    x, w = b.feed(tf.float32, [2]), b.feed(tf.float32, [2])
    k = w * 2.0
    f = tf.function(lambda x: x + k)
    b.step(f(x), {x: [1, 2], w: [10, 20]})


@case("v2")
def error_in_function(b):
    i = b.feed(tf.int32)
    f = tf.function(lambda i: tf.gather([1, 2, 3], i))
    y = f(i)
    b.step(y, {i: 1})
    b.step(y, {i: 3}, error="indices = 3 is not in [0, 3)")


@case("v2")
def noinline_call(b):
    x = b.feed(tf.float32)
    f = tf.function(lambda x: x * 3.0, experimental_implements="triple",
                    experimental_attributes={"_noinline": True})
    b.step(f(x) + f(x), {x: 2})


AUTOGRAPH = [(0, 1.0), (1, 1.0), (7, -2.0), (12, 0.5)]


def autographed(n, x):
    total = x
    i = 0
    while i < n:
        if i % 2 == 0:
            total += tf.cast(i, tf.float32)
        else:
            total *= 0.5
        for j in tf.range(i % 3):
            total += tf.cast(j, tf.float32)
            if total > 20.0:
                break
        i += 1
    return total, i


@case("v2")
def autograph_called(b):
    n, x = b.feed(tf.int32), b.feed(tf.float32)
    total, i = tf.function(autographed)(n, x)
    for nv, xv in AUTOGRAPH:
        b.step([total, i], {n: nv, x: xv})


def frozen(lower):
    def build(b):
        f = traced(autographed, spec(tf.int32), spec(tf.float32))
        f = convert_variables_to_constants_v2(f, lower_control_flow=lower)
        b.graph_def = f.graph.as_graph_def()
        (n, x), out = f.inputs, f.outputs
        for nv, xv in AUTOGRAPH:
            b.step([o.name for o in out], {n.name: nv, x.name: xv})

    return build


case("v2", name="autograph_frozen_functional")(frozen(False))
case("v2", name="autograph_frozen_lowered")(frozen(True))


@case("v2")
def while_v2_raw(b):
    # Not lowered, cond and body by name, with int32 and string loop variables.
    n, s = b.feed(tf.int32), b.feed(tf.string, [None])
    cond = traced(lambda i, n, s: i < n, spec(tf.int32), spec(tf.int32), spec(tf.string, None))
    body = traced(lambda i, n, s: (i + 1, n, tf.concat([s, ["x"]], 0)),
                  spec(tf.int32), spec(tf.int32), spec(tf.string, None))
    for op in (tf.raw_ops.StatelessWhile, tf.raw_ops.While):
        out = op(input=[tf.constant(0), n, s], cond=cond, body=body, parallel_iterations=1)
        b.step([out[0], out[2]], {n: 0, s: ["a"]})
        b.step([out[0], out[2]], {n: 3, s: ["a"]})


@case("v2")
def case_raw(b):
    k, x = b.feed(tf.int32), b.feed(tf.float32, [2])
    branches = [traced(fn, spec(tf.float32, 2)) for fn in
                (lambda x: x, lambda x: x * 10.0, lambda x: tf.reverse(x, [0]))]
    for op in (tf.raw_ops.StatelessCase, tf.raw_ops.Case):
        y = op(branch_index=k, input=[x], Tout=[tf.float32], branches=branches)
        for value in (-1, 0, 1, 2, 3):
            b.step(y[0], {k: value, x: [1, 2]})


@case("v2")
def if_predicates(b):
    # Anything but zero, the empty string and the empty tensor is true.
    x = b.feed(tf.float32)
    then_branch = traced(lambda x: x + 1.0, spec(tf.float32))
    else_branch = traced(lambda x: x - 1.0, spec(tf.float32))
    for dtype, shape, values in (
        (tf.bool, (), [True, False]), (tf.int32, (), [0, -3]), (tf.int64, (), [0, 1 << 40]),
        (tf.float32, (), [0.0, 0.25]), (tf.float64, (), [-0.0, 1e-300]), (tf.uint8, (), [0, 255]),
        (tf.int16, (), [0, 2]), (tf.int8, (), [0, -1]),
        (tf.float32, (None,), [[], [0.0], [0.0, 0.0]]), (tf.bool, (1,), [[False], [True]]),
    ):
        c = b.feed(dtype, shape)
        y = tf.raw_ops.StatelessIf(cond=c, input=[x], Tout=[tf.float32],
                                   then_branch=then_branch, else_branch=else_branch)[0]
        for value in values:
            b.step(y, {c: value, x: 10})


@case("v2")
def for_raw(b):
    x, n = b.feed(tf.float32), b.feed(tf.int32)
    body = traced(lambda i, x: x * 2.0 + tf.cast(i, tf.float32), spec(tf.int32), spec(tf.float32))
    y = tf.raw_ops.For(start=tf.constant(0), limit=n, delta=tf.constant(2), input=[x], body=body)[0]
    z = tf.raw_ops.For(start=n, limit=tf.constant(0), delta=tf.constant(-1), input=[x], body=body)[0]
    for value in (0, 1, 5):
        b.step([y, z], {x: 1, n: value})


@case("v2")
def symbolic_partial_outputs(b):
    # Only one output of an If and of a While is fetched.
    p, n = b.feed(tf.bool), b.feed(tf.int32)
    y, z = tf.cond(p, lambda: (n + 1, n * 2), lambda: (n - 1, n))
    _, s = tf.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s + y), [0, 0])
    b.step([z], {p: True, n: 4})
    b.step([s], {p: False, n: 4})


RECURSION = """
node { name: 'n' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } }
       attr { key: 'shape' value { shape { } } } }
node { name: 'call' op: '%(call)s' input: 'n' %(attrs)s }
node { name: 'out' op: 'Identity' input: 'call' attr { key: 'T' value { type: DT_INT32 } } }
library {
  function {
    signature { name: 'fact' input_arg { name: 'n' type: DT_INT32 }
                output_arg { name: 'out' type: DT_INT32 } %(stateful)s } attr { key: '_noinline' value { b: true } }
    node_def { name: 'one' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } }
               attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape { } int_val: 1 } } } }
    node_def { name: 'go' op: 'Greater' input: 'n' input: 'one:output:0'
               attr { key: 'T' value { type: DT_INT32 } } }
    node_def { name: 'if' op: '%(if)s' input: 'go:z:0' input: 'n'
               attr { key: 'Tcond' value { type: DT_BOOL } }
               attr { key: 'Tin' value { list { type: DT_INT32 } } }
               attr { key: 'Tout' value { list { type: DT_INT32 } } }
               attr { key: 'then_branch' value { func { name: 'more' } } }
               attr { key: 'else_branch' value { func { name: 'last' } } } }
    ret { key: 'out' value: 'if:output:0' }
  }
  function {
    signature { name: 'more' input_arg { name: 'n' type: DT_INT32 }
                output_arg { name: 'out' type: DT_INT32 } %(stateful)s } attr { key: '_noinline' value { b: true } }
    node_def { name: 'one' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } }
               attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape { } int_val: 1 } } } }
    node_def { name: 'less' op: 'Sub' input: 'n' input: 'one:output:0'
               attr { key: 'T' value { type: DT_INT32 } } }
    node_def { name: 'again' op: '%(call)s' input: 'less:z:0' %(attrs)s }
    node_def { name: 'product' op: 'Mul' input: 'n' input: 'again:%(port)s:0'
               attr { key: 'T' value { type: DT_INT32 } } }
    ret { key: 'out' value: 'product:z:0' }
  }
  function {
    signature { name: 'last' input_arg { name: 'n' type: DT_INT32 }
                output_arg { name: 'out' type: DT_INT32 } }
    node_def { name: 'one' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } }
               attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape { } int_val: 1 } } } }
    ret { key: 'out' value: 'one:output:0' }
  }
}
versions { producer: 2000 }
"""
CALL_ATTRS = """attr { key: 'Tin' value { list { type: DT_INT32 } } }
                attr { key: 'Tout' value { list { type: DT_INT32 } } }
                attr { key: 'f' value { func { name: 'fact' } } }"""
STATELESS = {"call": "PartitionedCall", "attrs": CALL_ATTRS, "if": "StatelessIf", "stateful": "",
             "port": "output"}
STATEFUL = {"call": "StatefulPartitionedCall", "attrs": CALL_ATTRS, "if": "If",
            "stateful": "is_stateful: true", "port": "output"}
BY_NAME = {"call": "fact", "attrs": "", "if": "StatelessIf", "stateful": "", "port": "out"}


def recursion(words):
    def build(b):
        b.graph_def = text_format.Parse(RECURSION % words, v1.GraphDef())
        # TensorFlow's placer runs out of stack on recursive PartitionedCalls; by name they run.
        b.asked = text_format.Parse(RECURSION % BY_NAME, v1.GraphDef())
        for n in (0, 1, 2, 5, 12):
            b.step("out:0", {"n:0": n})

    return build


case("v2", name="recursion")(recursion(STATELESS))
case("v2", name="recursion_stateful")(recursion(STATEFUL))
case("v2", name="recursion_by_name")(recursion(BY_NAME))


BY_NAME_GRAPH = """
node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
node { name: 'call' op: 'swap_scaled' input: 'x' input: 'x'
       attr { key: 'k' value { i: 3 } } }
node { name: 'out0' op: 'Identity' input: 'call' attr { key: 'T' value { type: DT_FLOAT } } }
node { name: 'out1' op: 'Identity' input: 'call:1' attr { key: 'T' value { type: DT_FLOAT } } }
node { name: 'out2' op: 'Identity' input: 'call:2' attr { key: 'T' value { type: DT_FLOAT } } }
node { name: 'after' op: 'Identity' input: 'x' input: '^call' attr { key: 'T' value { type: DT_FLOAT } } }
library {
  function {
    signature { name: 'swap_scaled' input_arg { name: 'a' type: DT_FLOAT } input_arg { name: 'b' type: DT_FLOAT }
                output_arg { name: 'o0' type: DT_FLOAT } output_arg { name: 'o1' type: DT_FLOAT }
                output_arg { name: 'o2' type: DT_FLOAT }
                attr { name: 'k' type: 'int' } }
    node_def { name: 'two' op: 'Const' attr { key: 'dtype' value { type: DT_FLOAT } }
               attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape { } float_val: 2 } } } }
    node_def { name: 'm' op: 'Mul' input: 'a' input: 'two:output:0' attr { key: 'T' value { type: DT_FLOAT } } }
    node_def { name: 's' op: 'Split' input: 'axis:output:0' input: 'm:z:0'
               attr { key: 'T' value { type: DT_FLOAT } } attr { key: 'num_split' value { placeholder: 'k' } } }
    node_def { name: 'axis' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } }
               attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape { } int_val: 0 } } } }
    ret { key: 'o0' value: 's:output:2' } ret { key: 'o1' value: 'b' } ret { key: 'o2' value: 's:output:0' }
  }
}
versions { producer: 2000 }
"""


@case("v1")
def call_by_name(b):
    b.graph_def = text_format.Parse(BY_NAME_GRAPH, v1.GraphDef())
    b.step(["out0:0", "out1:0", "out2:0", "after:0"], {"x:0": np_vector(6)})
    b.step(["out1:0"], {"x:0": np_vector(3)})


def np_vector(n):
    import numpy as np
    return np.arange(n, dtype=np.float32)


CONTROL_OUTPUT = """
node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } } }
node { name: 'call' op: 'StatefulPartitionedCall' input: 'x'
       attr { key: 'Tin' value { list { type: DT_INT32 } } } attr { key: 'Tout' value { list { type: DT_INT32 } } }
       attr { key: 'f' value { func { name: 'f' } } } }
node { name: 'out' op: 'Identity' input: 'call' attr { key: 'T' value { type: DT_INT32 } } }
node { name: 'after' op: 'NoOp' input: '^call' }
library {
  function {
    signature { name: 'f' input_arg { name: 'x' type: DT_INT32 } output_arg { name: 'y' type: DT_INT32 }
                is_stateful: true control_output: 'checked' }
    node_def { name: 'table' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } }
               attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape { dim { size: 2 } } int_val: 7 } } } }
    node_def { name: 'axis' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } }
               attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape { } int_val: 0 } } } }
    node_def { name: 'check' op: 'GatherV2' input: 'table:output:0' input: 'x' input: 'axis:output:0'
               attr { key: 'Tparams' value { type: DT_INT32 } } attr { key: 'Tindices' value { type: DT_INT32 } }
               attr { key: 'Taxis' value { type: DT_INT32 } } }
    ret { key: 'y' value: 'x' } control_ret { key: 'checked' value: 'check' }
  }
}
versions { producer: 2000 }
"""


@case("v2")
def control_outputs(b):
    # The body's check runs because it is a control output, although no value needs it.
    b.graph_def = text_format.Parse(CONTROL_OUTPUT, v1.GraphDef())
    b.step("out:0", {"x:0": 1})
    b.step("out:0", {"x:0": 2}, error="indices = 2 is not in [0, 2)")
    b.step([], {"x:0": 0}, targets="after")
    b.step([], {"x:0": 5}, targets="after", error="indices = 5 is not in [0, 2)")
