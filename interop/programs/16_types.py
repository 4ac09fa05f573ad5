"""Rare types, and errors of missing placeholders, variables and files."""

import os

import numpy as np
import tensorflow.compat.v1 as tf
from common import SCRATCH, TARGET, session, show
from tensorflow.core.framework import attr_value_pb2, tensor_pb2
from tensorflow.python.framework import dtypes

E5M2, E4M3 = dtypes.float8_e5m2, dtypes.float8_e4m3fn


def constant(dtype, values):
    """A constant with listed values, which the client cannot express."""
    proto = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum, int_val=values)
    proto.tensor_shape.dim.add(size=4)
    g = tf.get_default_graph()
    attrs = {
        "value": attr_value_pb2.AttrValue(tensor=proto),
        "dtype": attr_value_pb2.AttrValue(type=dtype.as_datatype_enum),
    }
    return g.create_op("Const", [], [dtype], attrs=attrs).outputs[0]


with tf.Graph().as_default(), session() as s:
    for dtype in [dtypes.int4, dtypes.uint4]:
        for values in [[1, 7, 5], [3]]:
            c = constant(dtype, values)
            show(f"constant {dtype.name}", lambda: s.run(tf.cast(c, tf.int32)))
        for source in [tf.int32, tf.uint8, tf.int64]:
            x = tf.cast(tf.constant([0, 3, 9, 15, 16, 100], source), dtype)
            show(f"{source.name} to {dtype.name}", lambda: s.run(tf.cast(x, tf.int8)))
    floats = np.array([0, 1, -1, 0.3, 1e-3, 1e-9, 447, 465, 1e5, -1e9, np.inf, 2.0625, 2.1875], np.float32)
    for dtype in [E5M2, E4M3]:
        for source in [tf.float32, tf.float64, tf.float16, tf.bfloat16]:
            x = tf.cast(tf.cast(tf.constant(floats), source), dtype)
            show(f"{source.name} to {dtype.name}", lambda: s.run(x).view(np.uint8))
        finite = [b for b in range(256) if b & 0x7F < (0x7C if dtype == E5M2 else 0x7F)]
        every = np.array(finite, np.uint8).view(dtype.as_numpy_dtype)
        x = tf.placeholder(dtype, [None])
        for target in [tf.float32, tf.bfloat16, tf.int32, tf.bool, tf.complex64]:
            y = tf.cast(tf.cast(x, target), tf.complex128)
            show(f"{dtype.name} to {target.name}", lambda: s.run(tf.reduce_sum(y * y), {x: every}))
        other = E4M3 if dtype == E5M2 else E5M2
        y = tf.cast(x, other)
        show(f"{dtype.name} to {other.name}", lambda: s.run(y, {x: every}).view(np.uint8).tolist())

with tf.Graph().as_default(), session() as s:
    for dtype in [tf.complex64, tf.complex128]:
        v = tf.Variable([1 + 2j, 3 - 1j], dtype=dtype, use_resource=True)
        slots = [tf.Variable([0.5 + 0.5j, 0.1j], dtype=dtype, use_resource=True) for _ in range(2)]
        g = tf.constant([0.5 - 1j, 2j], dtype)
        n = [tf.constant(x, dtype) for x in [0.9, 0.99, 0.1 + 0.1j, 0.9, 0.99, 1e-3]]
        raw = tf.raw_ops
        s.run(tf.global_variables_initializer())
        steps = [
            raw.ResourceApplyGradientDescent(var=v.handle, alpha=n[2], delta=g),
            raw.ResourceApplyMomentum(var=v.handle, accum=slots[0].handle, lr=n[2], grad=g, momentum=n[0]),
            raw.ResourceApplyAdam(
                var=v.handle, m=slots[0].handle, v=slots[1].handle, beta1_power=n[0], beta2_power=n[1],
                lr=n[2], beta1=n[3], beta2=n[4], epsilon=n[5], grad=g),
        ]
        for step in steps:
            s.run(step)
            show(f"{step.name} of {dtype.name}", lambda: s.run([v, slots]))
    bits = tf.Variable([True, False, True], use_resource=True)
    s.run(bits.initializer)
    for op in [tf.raw_ops.ResourceScatterNdAdd, tf.raw_ops.ResourceScatterNdSub]:
        step = op(ref=bits.handle, indices=[[0], [1], [2]], updates=[True, True, False])
        s.run(step)
        show("scattered bits", lambda: s.run(bits))

with tf.Graph().as_default(), session() as s:
    for shape in [None, [], [2], [2, None]]:
        x = tf.placeholder(tf.float32, shape, name="x")
        show(f"unfed {shape}", lambda: s.run(tf.identity(x)))
    v = tf.Variable([1.0, 2.0], use_resource=True)
    step = tf.raw_ops.ResourceApplyGradientDescent(var=v.handle, alpha=1.0, delta=[1.0, 1.0], name="step")
    show("no variable", lambda: s.run(step))
    s.run(v.initializer)
    x = tf.placeholder(tf.float32)
    step = tf.raw_ops.ResourceApplyGradientDescent(var=v.handle, alpha=1.0, delta=x, name="shapes")
    show("other shapes", lambda: s.run(step, {x: [1.0, 2.0, 3.0]}))
    os.makedirs(os.path.join(SCRATCH, "folder"), exist_ok=True)
    dims = tf.placeholder(tf.int32)
    show("fill", lambda: s.run(tf.fill(dims, 1.0), {dims: [[1]]}))
    show("diagonal", lambda: s.run(tf.raw_ops.DiagPart(input=x), {x: [[1, 2, 3], [4, 5, 6]]}))
    show("sharded", lambda: s.run(tf.raw_ops.ShardedFilename(basename="a", shard=dims, num_shards=2), {dims: [1, 2]}))
    raw = tf.raw_ops
    a = raw.TensorArrayV3(size=3, dtype=tf.float32, dynamic_size=True, tensor_array_name="a")
    flow = raw.TensorArrayWriteV3(handle=a.handle, index=5, value=1.0, flow_in=a.flow)
    g = raw.TensorArrayGradV3(handle=a.handle, flow_in=flow, source="g")
    last, beyond = [raw.TensorArrayWriteV3(handle=g.grad_handle, index=i, value=1.0, flow_in=g.flow_out) for i in [5, 6]]
    show("gradient of an array", lambda: s.run(last))
    show("gradient beyond an array", lambda: s.run(beyond))

with tf.Graph().as_default():
    x = tf.constant(1.0, name="x")
    config = tf.ConfigProto(isolate_session_state=True)
    config.experimental.disable_output_partition_graphs = True
    with tf.Session(TARGET, config=config) as s:
        options = tf.RunOptions(output_partition_graphs=True)
        show("graphs", lambda: s.run(x, options=options, run_metadata=tf.RunMetadata()))
        show("no graphs", lambda: s.run(x))
