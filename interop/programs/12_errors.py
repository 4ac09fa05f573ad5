from common import *

x = tf.placeholder(tf.float32, name="x")
i = tf.placeholder(tf.int32, name="i")
with session() as s:
    show("not fed", lambda: s.run(x))
    show("matmul", lambda: s.run(tf.matmul(tf.ones([2, 3]), x, name="mm"), {x: np.ones([2, 3])}))
    show("gather", lambda: s.run(tf.gather([1, 2, 3], i, name="pick"), {i: 7}))
    show("reshape", lambda: s.run(tf.reshape(x, [4], name="shape"), {x: np.ones(3)}))
    show("assert", lambda: s.run(tf.raw_ops.Assert(condition=x > 0.0, data=["no good", x], name="check"), {x: -1.0}))
    show("check", lambda: s.run(tf.debugging.check_numerics(x, "bad number", name="finite"), {x: float("nan")}))
    show("divide", lambda: s.run(tf.floordiv(i, 0, name="zero"), {i: 1}))
    show("read", lambda: s.run(tf.io.read_file(tf.constant("/no/such/file"), name="read")))
    show("variable", lambda: s.run(tf.get_variable("nothing", [], use_resource=True).value()))
    show("ref", lambda: s.run(tf.get_variable("nothing_ref", [], use_resource=False).read_value()))
    show("concat", lambda: s.run(tf.concat([tf.ones([2, 2]), x], 0, name="join"), {x: np.ones([1, 3])}))
    wide = tf.placeholder(tf.int32)
    show("offsets", lambda: s.run(tf.raw_ops.ConcatOffset(concat_dim=0, shape=[wide, wide], name="offsets"), {wide: [[1, 2]]}))
    handle = tf.get_variable("never_constant", [], use_resource=True).handle
    show("guarantee", lambda: s.run(tf.raw_ops.GuaranteeConst(input=handle, name="sure").op))
    array, flow = tf.raw_ops.TensorArrayV3(size=3, dtype=tf.float32, tensor_array_name="sums")
    array, flow = tf.raw_ops.TensorArrayGradV3(handle=array, flow_in=flow, source="grad")
    for value in (1.0, [1.0]):
        flow = tf.raw_ops.TensorArrayWriteV3(handle=array, index=1, value=value, flow_in=flow, name="sum")
    show("array", lambda: s.run(flow))
    show("png", lambda: s.run(tf.io.decode_png(tf.constant(b"nothing"), name="png")))
    ensured = tf.ensure_shape(x, [2], name="ensured")
    show("ensured feed", lambda: s.run(ensured, {x: np.ones(1)}))
    show("ensured", lambda: s.run(tf.ensure_shape(tf.multiply(x, 2.0, name="twice"), [2], name="kept"), {x: np.ones(1)}))
    show("order", lambda: s.run(tf.raw_ops.Transpose(x=x, perm=i, name="turned"), {x: np.ones([2, 2]), i: [1, -1]}))
    unknown = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="unknown", container="nowhere")
    show("destroy", lambda: s.run(tf.raw_ops.DestroyResourceOp(resource=unknown, ignore_lookup_error=False, name="destroy")))
    show("kept value", lambda: s.run(tf.get_session_handle(x, name="handle"), {x: 1.0}))
    deleter = tf.raw_ops.DeleteSessionTensor(handle="nothing", name="delete")
    show("deleted value", lambda: s.run(deleter))
    save = tf.raw_ops.SaveV2(prefix="/no/such/file", tensor_names=["x"], shape_and_slices=[""], tensors=[x], name="save")
    show("no folder", lambda: s.run(save, {x: 1.0}))
    group = tf.group(x, name="group")
    show("target", lambda: s.run(group))
graph = tf.Graph()
with graph.as_default(), session(graph) as s:
    one = tf.constant(1.0)
    with tf.device("/device:CPU:7"):
        far = tf.identity(one, name="far")
    show("no such device", lambda: s.run(far))
graph = tf.Graph()
with graph.as_default(), session(graph, allow_soft_placement=True) as s:
    one = tf.constant(1.0)
    with tf.device("/device:GPU:0"):
        far = tf.identity(one, name="far")
    show("soft placement", lambda: s.run(far))
graph = tf.Graph()
with graph.as_default(), session(graph) as s:
    one = tf.constant(1.0)
    with tf.device("/device:GPU:0"):
        far = tf.identity(one, name="far")
    show("hard placement", lambda: s.run(far))
ref = tf.get_variable("counted", [2], initializer=tf.zeros_initializer(), use_resource=False)
small = tf.get_variable("small", [], dtype=tf.int32, initializer=tf.zeros_initializer(), use_resource=False)
updates = dict(
    add=tf.raw_ops.AssignAdd(ref=ref, value=[1.0, 1.0], name="add"),
    sub=tf.raw_ops.AssignSub(ref=ref, value=[1.0, 1.0], name="sub"),
    scatter=tf.raw_ops.ScatterAdd(ref=ref, indices=[1], updates=[1.0], name="scatter"),
    descend=tf.raw_ops.ApplyGradientDescent(var=ref, alpha=0.5, delta=[1.0, 1.0], name="descend"),
    count=tf.raw_ops.CountUpTo(ref=small, limit=1, name="count"),
)
three = tf.placeholder(tf.float32, name="three")
wrong = dict(
    shape=tf.raw_ops.AssignAdd(ref=ref, value=three, name="wrong_shape"),
    index=tf.raw_ops.ScatterUpdate(ref=ref, indices=i, updates=1.0, name="wrong_index"),
)
with session() as s:
    for name, update in updates.items():
        show("uninitialized " + name, lambda: s.run(update))
    s.run([ref.initializer, small.initializer])
    for name, update in wrong.items():
        show("wrong " + name, lambda: s.run(update, {three: np.ones(3), i: 9}))
    show("counted", lambda: [s.run(updates["count"]), s.run(updates["count"])])
