from common import *
from tensorflow.python.framework import test_ops
import threading

shared = dict(isolate_session_state=False)
v = tf.get_variable("interop_shared", initializer=1.0, use_resource=True)
ref = tf.get_variable("interop_ref", initializer=1.0, use_resource=False)
more, more_ref = v.assign_add(1.0), ref.assign_add(2.0)
with session(**shared) as a, session(**shared) as b, session() as alone:
    a.run(tf.global_variables_initializer())
    a.run([more.op, more_ref.op])
    print("seen by another session", b.run([v, ref]))
    show("not by an isolated one", lambda: alone.run(v))
    alone.run(tf.global_variables_initializer())
    print("its own", alone.run(v), b.run(v))

    def work():
        for _ in range(25):
            a.run(more)
            b.run(more)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print("after 200 steps of four threads", b.run(v))
with session(**shared) as late:
    print("it stays", late.run(v))
with tf.container("interop_box"):
    boxed = tf.get_variable("boxed", initializer=5.0, use_resource=True)
with session(**shared) as s:
    s.run(boxed.initializer)
tf.Session.reset(TARGET, ["interop_box"])
with session(**shared) as s:
    show("cleared", lambda: s.run(boxed))
    print("not cleared", s.run(v))
s = session()
s.run(tf.constant(1))
s.close()
try:
    s.run(tf.constant(1))
except RuntimeError as e:
    print(e)
graph = tf.Graph()
with graph.as_default():
    p = tf.placeholder(tf.float32, [])
    q = p * 2.0
sessions = [session(graph) for _ in range(20)]
print([x.run(q, {p: i}) for i, x in enumerate(sessions)])
[x.close() for x in sessions]
with tf.container("interop_box"):
    kept = tf.get_variable("kept", initializer=6.0, use_resource=True)
with session(**shared) as s:
    s.run(kept.initializer)
tf.Session.reset(TARGET)
with session(**shared) as s:
    show("the default container is cleared", lambda: s.run(v))
    print("another one is not", s.run(kept))
compressed = tf.ConfigProto()
compressed.rpc_options.compression_algorithm = "gzip"
with tf.Session(TARGET, graph=graph, config=compressed) as s:
    print("compressed", s.run(q, {p: 4}))
graph = tf.Graph()
with graph.as_default(), session(graph) as s:
    stub = test_ops.stub_resource_handle_op(container="interop_stubs", shared_name="stub")
    steps = [
        ("exists", test_ops.resource_initialized_op(stub)),
        ("use", test_ops.resource_using_op(stub, name="use")),
        ("make", test_ops.resource_create_op(stub, name="make")),
        ("destroy", tf.raw_ops.DestroyResourceOp(resource=stub, ignore_lookup_error=False, name="destroy")),
    ]
    for i in [0, 2, 0, 1, 2, 3, 0, 1, 3]:
        show(steps[i][0], lambda: s.run(steps[i][1]))
# Seeded numbers start anew in every session, even if it shares variables.
graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(5)
    drawn = tf.random.uniform([2]), tf.random.normal([2])
for _ in range(2):
    with session(graph, **shared) as s:
        print("drawn", s.run(drawn), s.run(drawn))
