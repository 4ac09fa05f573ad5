"""Conditionals and loops."""

import numpy as np
import tensorflow as tf
from gradients import case

v1 = tf.compat.v1
raw = tf.raw_ops
BOTH = ("v1", "v2")


def while_loop(cond, body, loop_vars, **kw):
    return v1.while_loop(cond, body, loop_vars, **kw)


for taken in [True, False]:
    @case(name=f"cond_{taken}", forms=BOTH)
    def cond(b, taken=taken):
        x, y, p = b.x([3]), b.x([3]), b.feed(np.array(taken))
        return v1.cond(p, lambda: tf.sin(x) * y, lambda: x + 2.0) * x

    @case(name=f"cond_of_cond_{taken}", forms=BOTH)
    def cond_of_cond(b, taken=taken):
        x, p, q = b.x([2]), b.feed(np.array(taken)), b.feed(np.array(True))
        return v1.cond(p, lambda: v1.cond(q, lambda: x * x, lambda: tf.exp(x)) * 2.0,
                       lambda: v1.cond(q, lambda: x * x * x, lambda: x))

    @case(name=f"cond_of_several_{taken}", forms=BOTH)
    def cond_of_several(b, taken=taken):
        x, y, p = b.x([2]), b.x([2]), b.feed(np.array(taken))
        u, w = v1.cond(p, lambda: (x * y, y), lambda: (x, x + y))
        return [u * w, w]


@case(forms=BOTH)
def switch_case(b):
    x, i = b.x([2]), b.feed(np.int32(1))
    return tf.switch_case(i, [lambda: x * 2.0, lambda: x * x, lambda: tf.exp(x)])


@case(forms=BOTH)
def powers(b):
    x, n = b.x([3]), b.feed(np.int32(4))
    return while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * x), (0, x))[1]


@case(forms=BOTH)
def no_iteration(b):
    x, n = b.x([3]), b.feed(np.int32(0))
    return while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * x), (0, x))[1] * x


@case(forms=BOTH)
def two_variables(b):
    x, y = b.x([2, 2]), b.x([2, 2])
    r = while_loop(lambda i, u, w: i < 3, lambda i, u, w: (i + 1, tf.matmul(u, y), tf.tanh(u + w)), (0, x, y))
    return [r[1], r[2]]


@case(forms=BOTH)
def one_of_two_variables(b):
    x, y = b.x([2]), b.x([2])
    r = while_loop(lambda i, u, w: i < 3, lambda i, u, w: (i + 1, u * w, w + x), (0, x, y))
    return r[1]


@case(forms=BOTH)
def cond_in_loop(b):
    x, y = b.x([3]), b.x([3])
    def body(i, u):
        return i + 1, v1.cond(tf.equal(i % 2, 0), lambda: u * tf.sin(y), lambda: u + x * y)
    return while_loop(lambda i, u: i < 5, body, (0, x))[1]


@case(forms=BOTH)
def nested_cond_in_loop(b):
    x = b.x([3])
    def body(i, u):
        v = u * x
        inner = lambda: v1.cond(tf.equal(i, 1), lambda: tf.exp(v * 0.1) * u, lambda: v * v * 0.1)
        return i + 1, v1.cond(tf.less(i, 3), inner, lambda: v - u * u * 0.01)
    return while_loop(lambda i, u: i < 5, body, (0, x))[1]


@case(forms=BOTH)
def loop_in_loop(b):
    x, y = b.x([2]), b.x([2])
    def body(i, u):
        inner = while_loop(lambda j, w: j < i + 1, lambda j, w: (j + 1, tf.sin(w * y) + x), (0, u))
        return i + 1, inner[1] * u
    return while_loop(lambda i, u: i < 3, body, (0, x))[1]


@case(forms=BOTH)
def loop_in_cond_in_loop(b):
    x = b.x([2])
    def body(i, u):
        inner = lambda: while_loop(lambda j, w: j < 2, lambda j, w: (j + 1, tf.sin(w) * u), (0, x))[1]
        return i + 1, v1.cond(tf.equal(i, 1), inner, lambda: u * x)
    return while_loop(lambda i, u: i < 3, body, (0, x))[1]


for taken in [True, False]:
    @case(name=f"loop_in_cond_{taken}", forms=BOTH)
    def loop_in_cond(b, taken=taken):
        x, y, p = b.x([2]), b.x([2]), b.feed(np.array(taken))
        loop = lambda: while_loop(lambda i, u: i < 3, lambda i, u: (i + 1, u * y + x), (0, x))[1]
        return v1.cond(p, loop, lambda: x * y)


@case(forms=BOTH, dynamic=False)
def growing(b):
    x = b.x([1, 2])
    r = while_loop(lambda i, u: i < 3, lambda i, u: (i + 1, tf.concat([u, u[:1] * x], 0)), (0, x),
                   shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 2])))
    return r[1] * r[1]


@case(forms=BOTH)
def gather_in_loop(b):
    table = b.x([4, 2])
    ids = b.feed(np.array([1, 3, 1], np.int32))
    r = while_loop(lambda i, u: i < 3, lambda i, u: (i + 1, u * tf.gather(table, ids[i])), (0, table[0]))
    return r[1]


@case(forms=BOTH, dynamic=False)
def recurrent(b):
    xs = b.feed(b.random.uniform(-1, 1, (4, 2, 3)))
    w, u, c = b.x([3, 5]), b.x([5, 5]), b.x([5])
    def body(t, h):
        return t + 1, tf.tanh(tf.matmul(xs[t], w) + tf.matmul(h, u) + c)
    h = while_loop(lambda t, h: t < 4, body, (0, tf.zeros([2, 5], tf.float64)))[1]
    return tf.reduce_mean(h * h)


@case(forms=("v1",))
def second_order(b):
    x, y = b.x([2]), b.x([2])
    r = while_loop(lambda i, u: i < 3, lambda i, u: (i + 1, tf.sin(u * y) + u), (0, x))[1]
    s = v1.cond(r[0] < 0.0, lambda: r * r, lambda: r * x)
    return [s, r]


@case(forms=BOTH)
def arrays(b):
    x = b.x([3, 2])
    def body(i, ta, u):
        u = u * x[i]
        return i + 1, ta.write(i, u), u
    ta = tf.TensorArray(tf.float64, 3, clear_after_read=False)
    r = while_loop(lambda i, ta, u: i < 3, body, (0, ta, x[0]))
    return [r[1].stack(), r[1].read(1), r[2]]


@case(forms=BOTH)
def arrays_read(b):
    x = b.x([4, 2])
    ta = tf.TensorArray(tf.float64, 4, clear_after_read=False).unstack(x)
    out = tf.TensorArray(tf.float64, 4)
    r = while_loop(lambda i, o, u: i < 4, lambda i, o, u: (i + 1, o.write(i, ta.read(i) * u), u + ta.read(0)),
                   (0, out, x[1]))
    return [r[1].stack(), r[2]]


@case(forms=BOTH)
def arrays_gathered(b):
    x = b.x([4, 2])
    ta = tf.TensorArray(tf.float64, 4).unstack(x * x)
    return [ta.gather([2, 0, 3])]


@case(forms=BOTH)
def called(b):
    x, y = b.x([2]), b.x([2])
    @tf.function
    def f(u, w):
        return u * w + tf.sin(u), w
    p, q = f(x, y)
    return [p * x, f(p, q)[0]]


for taken in [True, False]:
    @case(name=f"gather_in_cond_{taken}", forms=BOTH)
    def gather_in_cond(b, taken=taken):
        table, p = b.x([4, 2]), b.feed(np.array(taken))
        ids = b.feed(np.array([1, 3, 1]))
        return [v1.cond(p, lambda: tf.gather(table, ids), lambda: tf.zeros([3, 2], tf.float64)),
                v1.cond(p, lambda: tf.gather(table, ids), lambda: tf.gather(table * 2.0, [0, 0, 3])),
                tf.gather(v1.cond(p, lambda: table * 3.0, lambda: table), ids[:2])]

    @case(name=f"gather_in_cond_in_loop_{taken}", forms=BOTH)
    def gather_in_cond_in_loop(b, taken=taken):
        table, p = b.x([4, 2]), b.feed(np.array(taken))
        ids = b.feed(np.array([1, 3, 1, 0], np.int32))
        def body(i, u):
            at = tf.math.logical_xor(p, tf.equal(i % 2, 0))
            return i + 1, v1.cond(at, lambda: u * tf.gather(table, ids[i]), lambda: u + 1.0)
        return while_loop(lambda i, u: i < 4, body, (0, table[0]))[1]


@case(forms=BOTH)
def gather_in_loop_in_loop(b):
    table, n = b.x([4, 2]), b.feed(np.int32(3))
    def body(i, u):
        inner = while_loop(lambda j, w: j < i, lambda j, w: (j + 1, w * tf.gather(table, [j, i])), (0, u))
        return i + 1, inner[1] + tf.gather(table, [i, i])
    return while_loop(lambda i, u: i < n, body, (0, table[:2]))[1]


# With "v1" TensorFlow fails without incoming slices.
@case(forms=("v2",))
def gather_in_no_iteration(b):
    table, n = b.x([4, 2]), b.feed(np.int32(0))
    return while_loop(lambda i, u: i < n, lambda i, u: (i + 1, u * tf.gather(table, i)), (0, table[0]))[1]


@case
def gather_in_loop_twice(b):
    table = b.x([4, 2])
    ids = b.feed(np.array([1, 3, 1], np.int32))
    y = tf.gather(table, [0, 0])
    for i in range(3):
        y = y * tf.gather(table, ids[i])
    return tf.convert_to_tensor(tf.gradients(y, table)[0])


def of_version(version):
    """Converts the graph's TensorArrays to an older version."""
    def stand_in(graph_def):
        out, flows = v1.GraphDef(), set()
        for node in graph_def.node:
            node = out.node.add(name=node.name, op=node.op, input=node.input, attr=node.attr)
            if node.op.startswith("TensorArray"):
                flows |= {node.name} if node.op == "TensorArrayV3" else set()
                node.op = node.op.replace("V3", version)
                node.attr.pop("identical_element_shapes", None)
        for node in out.node:
            node.input[:] = [i[:-2] + "_flow" if i.endswith(":1") and i[:-2] in flows else i for i in node.input]
        with tf.Graph().as_default() as g:
            for name in flows:
                tf.constant(0.0, name=name + "_flow")
            out.node.extend(g.as_graph_def().node)
        out.versions.CopyFrom(graph_def.versions)
        return out
    return stand_in


for version in ["", "V2"]:
    @case(name=f"arrays_of_version_{version[1:] or 1}", dynamic=False)
    def old_arrays(b, version=version):
        b.stand_in = of_version(version)
        x = b.x([4, 2])
        flow, size = tf.constant(0.0), [1, 0, 3]
        def array(n):
            return raw.TensorArrayV3(size=n, dtype=tf.float64, clear_after_read=False)
        one = array(4)
        flow = raw.TensorArrayWriteV3(handle=one.handle, index=1, value=x[0] * x[1], flow_in=one.flow)
        flow = raw.TensorArrayScatterV3(handle=one.handle, indices=[0, 2, 3], value=x[1:] * 3.0, flow_in=flow)
        read = raw.TensorArrayReadV3(handle=one.handle, index=2, flow_in=flow, dtype=tf.float64)
        some = raw.TensorArrayGatherV3(handle=one.handle, indices=[1, 3], flow_in=flow, dtype=tf.float64)
        two = array(3)
        flow = raw.TensorArraySplitV3(handle=two.handle, value=x * x, lengths=[1, 0, 3], flow_in=two.flow)
        whole = raw.TensorArrayConcatV3(handle=two.handle, flow_in=flow, dtype=tf.float64)[0]
        return [read, some, whole]


def node(name, op, inputs, **attrs):
    """Returns a node of a function's body."""
    made = v1.NodeDef(name=name, op=op, input=inputs)
    for key, value in attrs.items():
        attr = made.attr[key]
        if isinstance(value, str):
            attr.func.name = value
        elif isinstance(value, list):
            attr.list.type.extend(t.as_datatype_enum for t in value)
        elif isinstance(value, tf.DType):
            attr.type = value.as_datatype_enum
        else:
            attr.tensor.CopyFrom(tf.make_tensor_proto(value))
    return made


def recursive(graph_def, step):
    """Returns the graph with `y` from a function that calls itself n times: f(n, x, w) = f(n - 1, step, w) + x."""
    I, D = tf.int32, tf.float64
    args = [("n", I), ("x", D), ("w", D)]
    types = [t for _, t in args]
    def function(name, nodes, result):
        f = out.library.function.add()
        f.signature.name = name
        f.signature.is_stateful = True
        for arg, t in args:
            f.signature.input_arg.add(name=arg, type=t.as_datatype_enum)
        f.signature.output_arg.add(name="y", type=D.as_datatype_enum)
        f.node_def.extend(nodes)
        f.ret["y"] = result
    out = v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    for n in graph_def.node:
        if n.op == "Placeholder" or n.name.startswith("gy"):
            out.node.append(n)
    out.node.append(node("y", "StatefulPartitionedCall", ["in0", "in1", "in2"], Tin=types, Tout=[D], f="f"))
    function("f", [
        node("zero", "Const", [], dtype=I, value=np.int32(0)),
        node("more", "Greater", ["n", "zero:output:0"], T=I),
        node("if", "If", ["more:z:0", "n", "x", "w"], Tcond=tf.bool, Tin=types, Tout=[D], then_branch="again",
             else_branch="end")], "if:output:0")
    function("end", [], "x")
    function("again", [
        node("one", "Const", [], dtype=I, value=np.int32(1)),
        node("less", "Sub", ["n", "one:output:0"], T=I),
        *step,
        node("call", "StatefulPartitionedCall", ["less:z:0", "step:" + ("output" if "Call" in step[-1].op else "z") + ":0", "w"],
             Tin=types, Tout=[D], f="f"),
        node("sum", "AddV2", ["call:output:0", "x"], T=D)], "sum:z:0")
    return out


for depth in [0, 1, 4]:
    @case(name=f"recursion_{depth}", forms=("v2",))
    def recursion(b, depth=depth):
        n, x, w = b.feed(np.int32(depth)), b.x([2]), b.x([2])
        b.stand_in = lambda g: recursive(g, [node("step", "Mul", ["x", "w"], T=tf.float64)])
        def f(n, x):
            return f(n - 1, x * w) + x if n else x
        return tf.identity(f(depth, x) + 0.0 * w, name="y")

    @case(name=f"recursion_with_loop_{depth}", forms=("v2",))
    def recursion_with_loop(b, depth=depth):
        n, x, w = b.feed(np.int32(depth)), b.x([2]), b.x([2])
        @tf.function(autograph=False)
        def loop(x, w):
            return tf.while_loop(lambda i, u: i < 2, lambda i, u: (i + 1, tf.sin(u * w)), (0, x))[1]
        step = loop.get_concrete_function(tf.TensorSpec(None, tf.float64), tf.TensorSpec(None, tf.float64))
        name = step.function_def.signature.name
        call = node("step", "PartitionedCall", ["x", "w"], Tin=[tf.float64] * 2, Tout=[tf.float64], f=name)
        b.stand_in = lambda g: recursive(g, [call])
        step.add_to_graph(tf.compat.v1.get_default_graph())
        def f(n, x):
            return f(n - 1, step(x, w)) + x if n else x
        return tf.identity(f(depth, x) + 0.0 * w, name="y")
