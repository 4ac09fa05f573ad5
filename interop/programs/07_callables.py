from common import *

x, y = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
z = x * y
v = tf.Variable(1.0)
grow = v.assign_add(x)
with session() as s:
    s.run(tf.global_variables_initializer())
    product = s.make_callable(z, [x, y])
    print(product(2, 3), product(4, 5))
    step = s.make_callable(grow.op, [x])
    print(step(2), step(3), s.run(v))
    metadata = tf.RunMetadata()
    traced = s.make_callable([z, x], [x, y], accept_options=True)
    print(traced(2, 8, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata))
    print(len(metadata.step_stats.dev_stats) > 0)
    from tensorflow.core.protobuf import config_pb2

    options = config_pb2.CallableOptions(feed=[x.name, y.name], fetch=[z.name], target=[grow.op.name])
    made = s._make_callable_from_options(options)
    print(made(np.float32(3), np.float32(7)), s.run(v))
    del made
    for i in range(20):
        s.make_callable(z, [x, y])(i, i)

    def connected(feed, fetch, *pairs):
        connections = [config_pb2.TensorConnection(from_tensor=a, to_tensor=b) for a, b in pairs]
        return s._make_callable_from_options(
            config_pb2.CallableOptions(feed=feed, fetch=fetch, tensor_connection=connections))

    more = tf.add(y, 1.0)
    print(connected([y.name], [z.name], (more.name, x.name))(np.float32(5)))
    half = tf.constant(0.5)
    print(connected([], [z.name], (half.name, x.name), (half.name, y.name))())
    show("fed", lambda: connected([x.name, y.name], [z.name], (more.name, x.name)))
    show("fetched", lambda: connected([y.name], [x.name], (more.name, x.name)))
    show("twice", lambda: connected([], [z.name], (more.name, x.name), (z.name, x.name)))
    show("from nowhere", lambda: connected([y.name], [z.name], ("nowhere:0", x.name)))
    show("to nowhere", lambda: connected([y.name], [z.name], (more.name, "nowhere:0")))
