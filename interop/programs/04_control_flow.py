from common import *

for v2 in (False, True):
    (tf.enable_control_flow_v2 if v2 else tf.disable_control_flow_v2)()
    graph = tf.Graph()
    with graph.as_default(), session(graph) as s:
        n = tf.placeholder(tf.int32, [])
        x = tf.placeholder(tf.float32, [])
        branch = tf.cond(n > 2, lambda: x * 2.0, lambda: x - 1.0)
        loop = tf.while_loop(lambda i, a: i < n, lambda i, a: (i + 1, a * x), (0, 1.0))
        nested = tf.while_loop(
            lambda i, a: i < n,
            lambda i, a: (i + 1, a + tf.while_loop(lambda j, b: j < i, lambda j, b: (j + 1, b + x), (0, 0.0))[1]),
            (0, 0.0),
        )
        in_loop = tf.while_loop(
            lambda i, a: i < n,
            lambda i, a: (i + 1, tf.cond(tf.equal(i % 2, 0), lambda: a + x, lambda: a * 0.5)),
            (0, 0.0),
        )
        case = tf.case([(n < 1, lambda: tf.constant("none")), (n < 3, lambda: tf.constant("few"))],
                       default=lambda: tf.constant("many"))
        switch = tf.switch_case(n, [lambda: x, lambda: -x, lambda: x * x])
        array = tf.TensorArray(tf.float32, 4)
        array = tf.while_loop(lambda i, t: i < 4, lambda i, t: (i + 1, t.write(i, tf.cast(i, tf.float32) * x)), (0, array))[1]
        grads = [tf.gradients(v, x)[0] for v in (branch, loop[1], nested[1], in_loop[1])]
        # TensorFlow does not differentiate V1 loops twice.
        second = tf.gradients(tf.gradients(loop[1] if v2 else branch, x)[0] * x, x)[0]
        scan = tf.scan(lambda a, b: a + b, tf.range(5))
        mapped = tf.map_fn(lambda v: v * v, tf.range(4))
        for value in (0, 2, 5):
            feed = {n: value, x: 1.5}
            print(v2, value, s.run([branch, loop, nested, in_loop, case, switch], feed))
            print(v2, value, ["%.4f" % g for g in s.run(grads, feed)], "%.4f" % s.run(second, feed))
        print(s.run(array.stack(), {x: 2.0}).tolist(), s.run([scan, mapped]))
        last = tf.placeholder(tf.int32, [])
        endless = tf.while_loop(lambda i: i < last, lambda i: tf.minimum(i + 1, 5), [0])
        print(s.run(endless, {last: 3}))  # Once, so that the timeout is not the compiler's.
        show("endless", lambda: s.run(
            endless, {last: 9}, options=tf.RunOptions(timeout_in_ms=300)))

# A reference may be passed on before the variable has a value.
from tensorflow.python.ops import control_flow_ops, gen_array_ops, gen_state_ops

graph = tf.Graph()
with graph.as_default():
    v = gen_state_ops.variable(shape=[1], dtype=tf.float32, name="v", container="", shared_name="")
    without, with_value = control_flow_ops.ref_switch(v, tf.is_variable_initialized(v))
    without, with_value = gen_array_ops.ref_identity(without), gen_array_ops.ref_identity(with_value)
    with tf.control_dependencies([without]):
        first = tf.assign(v, [1.0])
    with tf.control_dependencies([with_value]):
        again = tf.identity(v)
    value = control_flow_ops.merge([first, again]).output
    same = gen_array_ops.ref_identity(v)
    more = tf.assign_add(same, [2.0])
with session(graph) as s:
    print(s.run(value), s.run(value), s.run(more), s.run(same))
