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
    show("png", lambda: s.run(tf.io.decode_png(tf.constant(b"nothing"), name="png")))
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
