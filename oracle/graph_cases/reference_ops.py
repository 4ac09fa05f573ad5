"""Ops by reference that TensorFlow's Python does not create any more: queues whose handles are
strings, scatters into reference variables; and V1 forms of ops in old graphs."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw, v1

F, I, L = tf.float32, tf.int32, tf.int64


def op(name, **inputs):
    return getattr(raw, name)(**inputs)


def reference(value):
    """Returns a variable by reference, its handle and its initializer."""
    value = np.asarray(value)
    ref = op("VariableV2", shape=value.shape, dtype=tf.as_dtype(value.dtype))
    return ref, v1.assign(ref, value)


def scatter(b, kind, start, updates):
    ref, init = reference(np.array(start, np.float32))
    indices, values = b.feed(I, [2]), b.feed(F, [2, 2])
    out = op(kind, ref=ref, indices=indices, updates=values)
    b.step(targets=init.op.name)
    for at in ([0, 2], [1, 1]):
        b.step(out, {indices: at, values: updates})
    b.step(out, {indices: [0, 3], values: updates}, error="is not in [0, 3)")


START = [[1, 2], [3, 4], [5, 6]]
UPDATES = [[2, -4], [0.5, 8]]


@case("v1")
def scatter_sub(b):
    scatter(b, "ScatterSub", START, UPDATES)


@case("v1")
def scatter_mul(b):
    scatter(b, "ScatterMul", START, UPDATES)


@case("v1")
def scatter_div(b):
    scatter(b, "ScatterDiv", START, UPDATES)


@case("v1")
def scatter_min(b):
    scatter(b, "ScatterMin", START, UPDATES)


@case("v1")
def scatter_max(b):
    scatter(b, "ScatterMax", START, UPDATES)


def scatter_nd(b, kind):
    ref, init = reference(np.array(START, np.float32))
    indices, values = b.feed(I, [2, 2]), b.feed(F, [2])
    out = op(kind, ref=ref, indices=indices, updates=values)
    b.step(targets=init.op.name)
    b.step(out, {indices: [[0, 0], [2, 1]], values: [10, -3]})
    b.step(out, {indices: [[1, 1], [1, 0]], values: [2.5, 0]})
    b.step(out, {indices: [[1, 1], [1, 2]], values: [2.5, 0]}, error="does not index into shape")


@case("v1")
def scatter_nd_add(b):
    scatter_nd(b, "ScatterNdAdd")


@case("v1")
def scatter_nd_sub(b):
    scatter_nd(b, "ScatterNdSub")


@case("v1")
def scatter_nd_min(b):
    scatter_nd(b, "ScatterNdMin")


@case("v1")
def scatter_nd_max(b):
    scatter_nd(b, "ScatterNdMax")


@case("v1")
def readers_that_may_be_dead(b):
    """An average that begins with its first value: nothing may read the variable before."""
    ref, _ = reference(np.zeros(2, np.float32))
    x = b.feed(F, [2])
    no, yes = raw.Switch(data=x, pred=op("IsVariableInitialized", ref=ref))
    moved = op("AssignSub", ref=ref, value=raw.Mul(x=raw.Sub(x=ref, y=yes), y=np.float32(0.5)))
    first = op("Assign", ref=ref, value=no)
    average = raw.Merge(inputs=[moved, first]).output
    b.step(average, {x: [1, 2]})
    b.step(average, {x: [3, 6]})
    b.step(average, {x: [0, 0]})


def queue(b, kind, shapes, **attrs):
    q = op(kind, component_types=[F, I], shapes=shapes, capacity=10, **attrs)
    x, n = b.feed(F, [2]), b.feed(I, [])
    put = op("QueueEnqueue", handle=q, components=[x, n])
    xs, ns = b.feed(F, [3, 2]), b.feed(I, [3])
    put_many = op("QueueEnqueueMany", handle=q, components=[xs, ns])
    take = list(op("QueueDequeue", handle=q, component_types=[F, I]))
    count = b.feed(I, [])
    take_many = list(op("QueueDequeueMany", handle=q, n=count, component_types=[F, I]))
    take_up_to = list(op("QueueDequeueUpTo", handle=q, n=count, component_types=[F, I]))
    size, closed = op("QueueSize", handle=q), op("QueueIsClosed", handle=q)
    close = op("QueueClose", handle=q)
    b.step([size, closed])
    b.step(targets=put.name, feeds={x: [1, 2], n: 3})
    b.step(targets=put_many.name, feeds={xs: [[3, 4], [5, 6], [7, 8]], ns: [4, 5, 6]})
    b.step(size)
    return take, take_many, take_up_to, count, size, closed, close


@case("v1")
def reference_fifo_queue(b):
    take, take_many, take_up_to, n, size, closed, close = queue(b, "FIFOQueue", [[2], []])
    b.step(take)
    b.step(take_many, {n: 2})
    b.step(targets=close.name)
    b.step([size, closed])
    b.step(take_up_to, {n: 5})
    b.step(take, error="is closed and has insufficient elements")


@case("v1")
def reference_padding_queue(b):
    take, take_many, _, n, size, _, _ = queue(b, "PaddingFIFOQueue", [[None], []])
    b.step(take_many, {n: 3})
    b.step(take)
    b.step(size)


@case("v1")
def reference_shuffle_queue(b):
    _, take_many, _, n, size, _, _ = queue(
        b, "RandomShuffleQueue", [[2], []], min_after_dequeue=0, seed=3, seed2=7)
    b.step(take_many, {n: 4})
    b.step(size)


@case("v1")
def passing_on(b):
    x = b.feed(F, [3])
    b.step(op("GuaranteeConst", input=x), {x: [1, 2, 3]})


@case("v1")
def read_after_copy_on_read_is_disabled(b):
    var = raw.VarHandleOp(dtype=F, shape=[2])
    init = raw.AssignVariableOp(resource=var, value=[1.0, 2.0])
    disable = raw.DisableCopyOnRead(resource=var)
    read = raw.ReadVariableOp(resource=var, dtype=F)
    b.step(targets=init.name)
    b.step(targets=disable.name)
    b.step(read)


@case("v1")
def anonymous_tables(b):
    keys, values = b.feed(L, [2]), b.feed(F, [2, 2])
    lists = raw.AnonymousMutableHashTableOfTensors(key_dtype=L, value_dtype=F, value_shape=[2])
    put = raw.LookupTableInsertV2(table_handle=lists, keys=keys, values=values)
    with tf.control_dependencies([put]):
        found = raw.LookupTableFindV2(table_handle=lists, keys=keys, default_value=[0.0, -1.0])
        b.step([found, raw.LookupTableSizeV2(table_handle=lists)],
               {keys: [4, 9], values: [[1, 2], [3, 4]]})
    dense = raw.AnonymousMutableDenseHashTable(
        empty_key=tf.constant(-1, L), deleted_key=tf.constant(-2, L), value_dtype=F,
        value_shape=[2], initial_num_buckets=8, max_load_factor=0.8)
    put = raw.LookupTableInsertV2(table_handle=dense, keys=keys, values=values)
    with tf.control_dependencies([put]):
        found = raw.LookupTableFindV2(table_handle=dense, keys=keys, default_value=[0.0, -1.0])
        b.step(found, {keys: [4, 9], values: [[1, 2], [3, 4]]})


@case("v1")
def iterator_of_the_first_kind(b):
    spec = {"output_types": [L], "output_shapes": [[]]}
    numbers = raw.RangeDataset(start=tf.constant(0, L), stop=tf.constant(2, L),
                               step=tf.constant(1, L), **spec)
    iterator = raw.Iterator(shared_name="numbers", container="", **spec)
    start = raw.MakeIterator(dataset=numbers, iterator=iterator)
    take = raw.IteratorGetNextSync(iterator=iterator, **spec)
    b.step(targets=start.name)
    for _ in range(2):
        b.step(list(take))
    b.step(list(take), error="End of sequence")


@case("v1")
def reference_through_a_loop(b):
    n = b.feed(I, [])
    ref, init = reference(np.float32(1.5))
    frame = {"frame_name": "loop"}
    i = raw.Enter(data=tf.constant(0), **frame)
    limit = raw.Enter(data=n, is_constant=True, **frame)
    entered = raw.RefEnter(data=ref, **frame)
    i_merge, merge = raw.Merge(inputs=[i, i])[0], raw.RefMerge(inputs=[entered, entered])[0]
    go_on = raw.LoopCond(input=raw.Less(x=i_merge, y=limit))
    i_false, i_true = raw.Switch(data=i_merge, pred=go_on)
    ref_false, ref_true = raw.RefSwitch(data=merge, pred=go_on)
    with tf.control_dependencies([i_true]):
        one = tf.constant(1)
    next_i = raw.NextIteration(data=raw.Add(x=i_true, y=one))
    with tf.control_dependencies([i_true]):
        two = tf.constant(2.0)
    next_ref = raw.RefNextIteration(data=raw.AssignAdd(ref=ref_true, value=two))
    i_merge.op._update_input(1, next_i)
    merge.op._update_input(1, next_ref)
    out, count = raw.RefExit(data=ref_false), raw.Exit(data=i_false)
    b.step(targets=init.op.name)
    b.step([tf.identity(out), count], {n: 3})
    b.step([tf.identity(out), count], {n: 0})


@case("v1")
def gradient_arrays(b):
    x = b.feed(F, [2])
    array = raw.TensorArrayV3(size=2, dtype=F, clear_after_read=False, name="array")
    flow = raw.TensorArrayWriteV3(handle=array[0], index=0, value=x, flow_in=array[1])
    grad = raw.TensorArrayGradV3(handle=array[0], flow_in=flow, source="grad")
    once = raw.TensorArrayWriteV3(handle=grad[0], index=0, value=x * 2.0, flow_in=grad[1])
    twice = raw.TensorArrayWriteV3(handle=grad[0], index=0, value=x * 5.0, flow_in=once)
    sums = raw.TensorArrayReadV3(handle=grad[0], index=0, flow_in=twice, dtype=F)
    wide = raw.TensorArrayGradWithShape(handle=array[0], flow_in=flow, source="wide",
                                        shape_to_prepend=[3])
    rows = raw.TensorArrayWriteV3(handle=wide[0], index=1, value=tf.stack([x, x, x]),
                                  flow_in=wide[1])
    row = raw.TensorArrayReadV3(handle=wide[0], index=1, flow_in=rows, dtype=F)
    b.step([sums, row], {x: [1, -2]})


@case("v1")
def gradient_of_ragged_variants(b):
    x = b.feed(F, [5])
    splits = tf.constant([0, 2, 2, 5], L)
    rows = raw.RaggedTensorToVariant(rt_nested_splits=[splits], rt_dense_values=x,
                                     batched_input=True)
    b.step(raw.RaggedTensorToVariantGradient(encoded_ragged_grad=rows, row_splits=splits,
                                             dense_values_shape=[5], Tvalues=F),
           {x: [1, 2, 3, 4, 5]})


@case("v1")
def ref_select(b):
    first, init = reference(np.array(START, np.float32))
    second, init_second = reference(np.array([7, 8], np.float32))
    index = b.feed(I)
    chosen = op("RefSelect", index=index, inputs=[first, second])
    doubled = chosen * 2
    changed = op("Assign", ref=chosen, value=tf.constant([9.0]), validate_shape=False)
    b.step(targets=[init.op.name, init_second.op.name])
    for i in (0, 1):
        b.step([chosen, doubled], {index: i})
    b.step(changed, {index: 1})
    b.step([first, second])
    b.step(chosen, {index: 2}, error="Index must be in the range [0, 2) but got 2")
    b.step(chosen, {index: -1}, error="Index must be in the range [0, 2) but got -1")


@case("v1")
def ref_select_vector(b):
    first, init = reference(np.array(START, np.float32))
    index = b.feed(I, None)
    chosen = op("RefSelect", index=index, inputs=[first])
    b.step(targets=init.op.name)
    b.step(chosen, {index: [0]}, error="Index must be a scalar, but it has shape [1]")


@case("v1")
def sdca_shrink_l1(b):
    first, init = reference(np.array(START, np.float32) - 3)
    second, init_second = reference(np.array([0.5, -0.25, 0, -0.0, np.nan, 1e20], np.float32))
    shrink = op("SdcaShrinkL1", weights=[first, second], l1=0.5, l2=0.8)
    b.step(targets=shrink.name, error="uninitialized value")
    b.step(targets=[init.op.name, init_second.op.name])
    for _ in range(2):
        b.step(targets=shrink.name)
        b.step([first, second])
