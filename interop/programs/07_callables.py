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
