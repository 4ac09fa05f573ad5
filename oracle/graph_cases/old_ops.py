"""Ops of old graphs: temporary variables, stacks and arrays with string handles, references
that go through control flow; optional values; slices of variables."""

import tensorflow as tf
from tensorflow.python.framework import op_def_library
from tensorflow.python.ops import gen_data_flow_ops
from tensorflow.python.ops import gen_state_ops as state

from graphkit import case, raw, v1

F, I = tf.float32, tf.int32


def op(name, **inputs):
    return op_def_library.apply_op(name, **inputs)


@case("v1")
def temporary_variable(b):
    x = b.feed(F, [2])
    var = state.temporary_variable(shape=[2], dtype=F, var_name="t")
    start = v1.assign(var, x)
    more = v1.assign_add(start, [10.0, 20.0])
    done = state.destroy_temporary_variable(more, var_name="t")
    b.step(done, {x: [1, 2]})
    b.step(done, {x: [3, 4]})


@case("v1")
def temporary_variable_of_sums(b):
    parts = [b.feed(F, [2]), b.feed(F, [2]), b.feed(F, [2])]
    var = state.temporary_variable(shape=[2], dtype=F, var_name="sum")
    zero = v1.assign(var, tf.zeros([2]))
    sums = [v1.assign_add(zero, p, use_locking=True) for p in parts]
    with tf.control_dependencies(sums):
        total = state.destroy_temporary_variable(zero, var_name="sum", name="total")
    b.step(total * 2.0, dict(zip(parts, ([1, 2], [3, 4], [5, 6]))))


@case("v1")
def reference_identity(b):
    x = b.feed(F, [])
    var = v1.get_variable("v", initializer=1.0, use_resource=False)
    same = raw.RefIdentity(input=var._variable if hasattr(var, "_variable") else var._ref())
    changed = v1.assign(same, x)
    b.step(targets=var.initializer.name)
    b.step(tf.identity(same) + 1.0)
    b.step(changed, {x: 5})
    b.step(same)


@case("v1")
def string_stack(b):
    x, n = b.feed(F, [2]), b.feed(I, [])
    handle = op("Stack", elem_type=F, stack_name="s")
    with tf.control_dependencies([gen_data_flow_ops.stack_push(handle, x)]):
        with tf.control_dependencies([gen_data_flow_ops.stack_push(handle, x * 2.0)]):
            first = op("StackPop", handle=handle, elem_type=F)
    with tf.control_dependencies([first]):
        second = op("StackPop", handle=handle, elem_type=F)
    with tf.control_dependencies([second]):
        third = op("StackPop", handle=handle, elem_type=F)
        close = op("StackClose", handle=handle)
    b.step([first, second], {x: [1, 2]})
    b.step([first, second], {x: [1, 2]}, targets=close.name)
    b.step(third, {x: [1, 2]}, error="is empty when calling Pop().")
    with tf.control_dependencies([close]):
        b.step(gen_data_flow_ops.stack_push(handle, x), {x: [1, 2]}, error="has already been closed.")
    wrong = gen_data_flow_ops.stack_push(handle, n)
    b.step(wrong, {n: 1}, error="Must have type")


@case("v1")
def string_stack_in_loop(b):
    n = b.feed(I, [])
    handle = op("Stack", elem_type=I, stack_name="loop")

    def body(i, s):
        with tf.control_dependencies([gen_data_flow_ops.stack_push(handle, i * i)]):
            return i + 1, s + i

    _, total = v1.while_loop(lambda i, s: i < n, body, [0, 0], parallel_iterations=1)
    with tf.control_dependencies([total]):
        b.step([total, op("StackPop", handle=handle, elem_type=I)], {n: 4})


def with_string_handles(graph, version):
    """Converts the graph's TensorArrays to older versions, whose creation has no flow output."""
    out = v1.GraphDef()
    out.CopyFrom(graph.as_graph_def())
    # Before the versions that removed the old ops.
    out.versions.producer = 0
    flow_of = {}
    for node in list(out.node):
        if node.op == "TensorArrayV3":
            del node.attr["identical_element_shapes"]
            start = out.node.add(name=f"{node.name}/no_flow", op="Const")
            start.attr["dtype"].type = F.as_datatype_enum
            start.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0.0))
            flow_of[f"{node.name}:1"] = start.name
        if node.op == "TensorArrayGradV3":
            flow_of[f"{node.name}:1"] = node.input[1]
    for node in out.node:
        inputs = [flow_of.get(i, i) for i in node.input]
        del node.input[:]
        node.input.extend(inputs)
        if node.op.startswith("TensorArray"):
            node.op = node.op[:-2] + version
        if node.op == "Enter" and node.attr["T"].type == tf.resource.as_datatype_enum:
            node.attr["T"].type = tf.string.as_datatype_enum
    return out


def string_arrays(b, version):
    x = b.feed(F, [3, 2], "x")
    feeds = {x: [[1, 2], [3, 4], [5, 6]]}
    handle, flow = raw.TensorArrayV3(size=3, dtype=F, clear_after_read=False)
    flow = raw.TensorArrayScatterV3(handle=handle, indices=[0, 1, 2], value=x, flow_in=flow)
    item = raw.TensorArrayReadV3(handle=handle, index=1, flow_in=flow, dtype=F)
    some = raw.TensorArrayGatherV3(handle=handle, indices=[2, 0], flow_in=flow, dtype=F)
    whole, lengths = raw.TensorArrayConcatV3(handle=handle, flow_in=flow, dtype=F)
    size = raw.TensorArraySizeV3(handle=handle, flow_in=flow)
    b.step([item, some, size, whole, lengths], feeds)
    other, start = raw.TensorArrayV3(size=2, dtype=F)
    parts = raw.TensorArraySplitV3(handle=other, value=x, lengths=tf.constant([1, 2], tf.int64),
                                   flow_in=start)
    once = raw.TensorArrayReadV3(handle=other, index=1, flow_in=parts, dtype=F)
    with tf.control_dependencies([once]):
        again = raw.TensorArrayReadV3(handle=other, index=1, flow_in=parts, dtype=F)
    b.step(once, feeds)
    b.step(again, feeds, error="because it was cleared")
    back, back_flow = raw.TensorArrayGradV3(handle=handle, flow_in=flow, source="g")
    back_flow = raw.TensorArrayWriteV3(handle=back, index=0, value=[1.0, 1.0], flow_in=back_flow)
    same, same_flow = raw.TensorArrayGradV3(handle=handle, flow_in=back_flow, source="g")
    back_flow = raw.TensorArrayWriteV3(handle=same, index=0, value=[10.0, 20.0], flow_in=same_flow)
    b.step(raw.TensorArrayReadV3(handle=back, index=0, flow_in=back_flow, dtype=F), feeds)
    with tf.control_dependencies([item]):
        stop = raw.TensorArrayCloseV3(handle=handle)
    with tf.control_dependencies([stop]):
        late = raw.TensorArraySizeV3(handle=handle, flow_in=flow)
    b.step(late, feeds, error="has already been closed.")
    b.graph_def = with_string_handles(tf.compat.v1.get_default_graph(), version)


@case("v1")
def string_arrays_v2(b):
    string_arrays(b, "V2")


@case("v1")
def string_arrays_v1(b):
    string_arrays(b, "")


@case("v1")
def string_array_in_loop(b):
    n = b.feed(I, [])
    handle, flow = raw.TensorArrayV3(size=0, dtype=I, dynamic_size=True)

    def body(i, f):
        return i + 1, raw.TensorArrayWriteV3(handle=handle, index=i, value=i * 3, flow_in=f)

    _, f = v1.while_loop(lambda i, f: i < n, body, [0, flow])
    b.step(raw.TensorArrayGatherV3(handle=handle, indices=tf.range(n), flow_in=f, dtype=I), {n: 5})
    b.graph_def = with_string_handles(tf.compat.v1.get_default_graph(), "V2")


@case("v1")
def optionals(b):
    x, y = b.feed(F, [2]), b.feed(I, [])
    some, none = raw.OptionalFromValue(components=[x, y]), raw.OptionalNone()
    feeds = {x: [1, 2], y: 3}

    def get(optional, types=(F, I), shapes=((2,), ())):
        return list(raw.OptionalGetValue(optional=optional, output_types=list(types),
                                         output_shapes=[list(s) for s in shapes]))

    b.step([raw.OptionalHasValue(optional=some), raw.OptionalHasValue(optional=none)], feeds)
    b.step(get(some), feeds)
    b.step(get(none)[0], feeds, error="The given optional does not have a value.")
    b.step(get(some, (F,), ((2,),))[0], feeds, error="The given optional has 2 components, expected 1")
    b.step(get(some, (F, F))[0], feeds, error="does not match the expected type for component 1")
    b.step(get(some, shapes=((3,), ()))[0], feeds,
           error="does not match the expected shape for component 0")
    b.step(get(raw.ZerosLike(x=some)), feeds)
    b.step(raw.OptionalHasValue(optional=raw.ZerosLike(x=none)), feeds)
    b.step(get(raw.AddN(inputs=[some, some, some])), feeds)
    b.step(raw.OptionalHasValue(optional=raw.AddN(inputs=[none, none])), feeds)
    b.step(raw.OptionalHasValue(optional=raw.AddN(inputs=[none, some])), feeds,
           error="Cannot add optionals because one has a value and the other doesn't.")
    nested = raw.OptionalFromValue(components=[some])
    inner = raw.OptionalGetValue(optional=nested, output_types=[tf.variant], output_shapes=[[]])
    b.step(get(inner[0]), feeds)
    listed = raw.EmptyTensorList(element_shape=[2], max_num_elements=5, element_dtype=F)
    b.step(raw.OptionalHasValue(optional=listed), feeds,
           error="must be an OptionalVariant object.")


@case("v1", "v2")
def optional_of_branches(b):
    p, x = b.feed(tf.bool, []), b.feed(F, [])
    got = v1.cond(p, lambda: raw.OptionalFromValue(components=[x * 2.0]),
                  lambda: raw.OptionalNone())
    has = raw.OptionalHasValue(optional=got)
    value = v1.cond(has, lambda: raw.OptionalGetValue(optional=got, output_types=[F],
                                                      output_shapes=[[]])[0], lambda: x)
    b.step([has, value], {p: True, x: 3})
    b.step([has, value], {p: False, x: 3})


@case("v1")
def slices_of_variables(b):
    x = b.feed(F, [None])
    for kind in (True, False):
        var = v1.get_variable(f"v{kind}", initializer=tf.zeros([3, 4]), use_resource=kind)
        b.step(targets=var.initializer.name)
        step = var[1, 0:4:2].assign(x)
        b.step([], {x: [1, 2]}, targets=step.op.name)
        b.step([], {x: [3, 4, 5]}, targets=var[:, 3].assign(x).op.name)
        b.step(var.read_value() if kind else var)
        b.step([], {x: [3, 4]}, targets=var[:, 3].assign(x).op.name, error="")
        b.step([], {x: []}, targets=var[2:2, 0].assign(x).op.name)
        b.step(var.read_value() if kind else var)


@case("v1")
def slices_of_variables_by_dtype(b):
    for i, t in enumerate((tf.float16, tf.bfloat16, tf.int8, tf.int64, tf.complex64, tf.complex128,
                           tf.bool, tf.uint16, tf.string)):
        value = tf.constant(b"x") if t == tf.string else tf.cast([1, 0, 1, 1], t)
        zeros = tf.fill([4], b"") if t == tf.string else tf.zeros([4], t)
        var = v1.get_variable(f"w{i}", initializer=zeros, use_resource=True)
        b.step(targets=var.initializer.name)
        new = tf.fill([2], value) if t == tf.string else value[:2]
        b.step([], targets=var[1:3].assign(new).op.name)
        b.step(var.read_value())


@case("v1")
def convolutions_that_resize_and_pad(b):
    x, paddings = b.feed(F, [1, 5, 6, 2]), tf.constant([[0, 0], [1, 2], [2, 1], [0, 0]])
    image = [[[[0.1 * (i * 12 + j * 2 + c) - 2.0 for c in range(2)] for j in range(6)] for i in range(5)]]
    taps = tf.reshape(tf.range(36, dtype=F) * 0.05 - 0.7, [3, 3, 2, 2])
    wide = tf.cast(x, tf.float64)
    out = []
    for mode in ("REFLECT", "SYMMETRIC"):
        out.append(raw.FusedPadConv2D(
            input=x, paddings=paddings, filter=taps, mode=mode, strides=[1, 1, 1, 1], padding="VALID"))
        for align in (False, True):
            out.append(raw.FusedResizeAndPadConv2D(
                input=x, size=[7, 8], paddings=paddings, filter=taps, mode=mode, strides=[1, 2, 2, 1],
                padding="SAME", resize_align_corners=align))
    out.append(raw.FusedResizeAndPadConv2D(
        input=wide, size=[4, 9], paddings=paddings, filter=tf.cast(taps, tf.float64), mode="REFLECT",
        strides=[1, 1, 1, 1], padding="VALID"))
    b.step(out, {x: image})


@case("v1")
def accumulate_n(b):
    x, y = b.feed(F, [2]), b.feed(F, [2])
    b.step(op("AccumulateNV2", inputs=[x, y, x], shape=[2]), {x: [1, 2], y: [3, 4]})


@case("v1")
def temporary_variable_names(b):
    """A name is unique in a step until its variable is destroyed."""
    b.placed = "each device has its own temporary variables"

    def variable(name, var_name=""):
        return state.temporary_variable(shape=[2], dtype=F, var_name=var_name, name=name)

    missing = "/N10tensorflow19TemporaryVariableOp6TmpVarE does not exist."
    x = v1.assign(variable("x"), [1.0, 2.0])
    b.step(state.destroy_temporary_variable(x, var_name="x"))
    b.step(state.destroy_temporary_variable(x, var_name="bad"), error=missing)
    twice = [state.destroy_temporary_variable(x, var_name="x") for _ in range(2)]
    b.step(twice[0] + twice[1], error=missing)

    first = v1.assign(variable("first", "dup"), [1.0, 2.0])
    second = v1.assign(variable("second", "dup"), [3.0, 4.0])
    b.step(first)
    b.step(second)
    b.step(first + second, error="/N10tensorflow19TemporaryVariableOp6TmpVarE")
    end = state.destroy_temporary_variable(first, var_name="dup")
    with tf.control_dependencies([end]):
        again = v1.assign(variable("again", "dup"), [5.0, 6.0])
    b.step(end + state.destroy_temporary_variable(again, var_name="dup"))


@case("v1")
def temporary_variable_in_a_loop(b):
    n = b.feed(I)

    def body(i, total):
        with tf.control_dependencies([i]):
            var = state.temporary_variable(shape=[], dtype=F, var_name="t")
        held = v1.assign(var, tf.cast(i, F))
        done = state.destroy_temporary_variable(held, var_name="t")
        with tf.control_dependencies([done]):
            again = state.temporary_variable(shape=[], dtype=F, var_name="t")
        more = v1.assign(again, done * 10.0)
        return i + 1, total + state.destroy_temporary_variable(more, var_name="t")

    b.step(tf.while_loop(lambda i, _: i < n, body, (0, 0.0)), {n: 5})


def old_variable(value, name):
    return v1.get_variable(name, initializer=value, use_resource=False)


@case("v1")
def aliases_after_writes(b):
    """The value of a reference shares the variable's buffer: a later write is visible in it."""
    x = b.feed(F, [2])
    v = old_variable([1.0, 2.0], "v")
    w = old_variable([7.0, 8.0], "w")
    b.step(targets=[v.initializer.name, w.initializer.name])
    before = tf.identity(v)
    write = v1.assign_add(v, x)
    with tf.control_dependencies([before]):
        late_write = v1.assign(v, x)
    with tf.control_dependencies([write]):
        after = tf.negative(before)
        through = tf.identity(tf.identity(before))
        other = before + w
    with tf.control_dependencies([late_write]):
        overwritten = before * 2.0
    b.step(after, {x: [10, 20]})
    b.step(through, {x: [10, 20]})
    b.step(other, {x: [10, 20]})
    b.step(overwritten, {x: [100, 200]})
    # After a write, through a data input.
    b.step(tf.concat([before, v1.assign_sub(v, x)], 0), {x: [1, 2]})
    b.step(tf.concat([v._ref(), v1.scatter_update(v, [1], [x[0]])], 0), {x: [5, 6]})
    # The write itself reads the value before it.
    b.step([v1.assign(v, before * 3.0)])
    # Before the write.
    used = tf.reduce_sum(before)
    with tf.control_dependencies([used]):
        last = v1.assign(v, x)
    with tf.control_dependencies([last]):
        b.step([tf.identity(used), before * 1.0], {x: [0, 1]})


@case("v1")
def aliases_in_branches(b):
    p, x = b.feed(tf.bool), b.feed(F)
    v = old_variable(2.0, "v")
    b.step(targets=v.initializer.name)
    value = tf.identity(v)

    def writes():
        with tf.control_dependencies([v1.assign_add(v, x)]):
            return value * 10.0

    y = tf.cond(p, writes, lambda: value)
    b.step(y, {p: True, x: 3})
    b.step(y, {p: False, x: 3})
    with tf.control_dependencies([v1.assign(v, x)]):
        z = tf.cond(p, lambda: value + 1.0, lambda: value - 1.0)
    b.step(z, {p: True, x: 30})
    b.step(z, {p: False, x: 40})


@case("v1")
def aliases_in_loops(b):
    n = b.feed(I)
    v = old_variable(2.0, "v")
    w = old_variable(1.0, "w")
    i0 = tf.constant(0)

    def squared(i):
        some = tf.cond(tf.constant(True), lambda: v1.assign(v, tf.square(v)), lambda: v)
        with tf.control_dependencies([some]):
            return i + 1

    def added(i):
        with tf.control_dependencies([v1.assign_add(w, 1.0)]):
            with tf.control_dependencies([v1.assign(v, v + w)]):
                return i + 1

    b.step(targets=[v.initializer.name, w.initializer.name])
    for body in (squared, added):
        with tf.control_dependencies([i0]):
            (loop,) = tf.while_loop(lambda i: i < n, body, (i0,), parallel_iterations=1)
        b.step(loop, {n: 3})
        b.step([v, w])
    # After a loop that writes.
    value = tf.identity(v)
    (loop,) = tf.while_loop(lambda i: i < n, squared, (i0,))
    with tf.control_dependencies([loop]):
        b.step(value + 0.0, {n: 1})
    # A nested loop.
    def outer(i):
        with tf.control_dependencies(tf.while_loop(lambda k: k < 2, added, (i * 0,))):
            return i + 1
    b.step(targets=[v.initializer.name, w.initializer.name])
    b.step(tf.while_loop(lambda i: i < n, outer, (i0,), parallel_iterations=1), {n: 3})
    b.step([v, w])
