from common import *


def cpu(i):
    return tf.device(f"/cpu:{i}")


x = tf.placeholder(tf.float32, [None], name="x")
with cpu(0):
    a = tf.add(x, 1.0, name="a")
    with cpu(1):
        b = tf.multiply(a, 3.0, name="b")
        c = tf.reduce_sum(a, name="c")
    d = tf.subtract(b, c, name="d")
    with cpu(1), tf.control_dependencies([d]):
        e = tf.identity(tf.constant([7, 8]), name="e")
with cpu(1):
    v = tf.get_variable("v", initializer=tf.zeros([2]), use_resource=True)
    r = tf.get_variable("r", initializer=tf.zeros([2]), use_resource=False)
    bad = tf.check_numerics(tf.log(-a), "no logarithm", name="bad")
    loop = tf.while_loop(lambda i, s: i < 5, lambda i, s: (i + 1, s + a), [0, a])[1]
    cond = tf.cond(tf.reduce_sum(a) > 0, lambda: b * 2, lambda: -b)
with cpu(0):
    more = [v.assign_add(d), tf.assign_add(r, b)]
    after_bad = tf.add(bad, a, name="after_bad")
    both = tf.add(loop, cond, name="both")


def short(device):
    return device[-5:]


with session() as s:
    s.run(tf.global_variables_initializer())
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
    for name, fetches in dict(d=d, all=[a, b, c, d], e=e, both=both, variables=more).items():
        metadata = tf.RunMetadata()
        print(name, s.run(fetches, {x: [1, 2]}, options=options, run_metadata=metadata))
        parts = []
        for graph in metadata.partition_graphs:
            kinds = {n.op for n in graph.node}
            devices = sorted({short(n.device) for n in graph.node})
            parts.append((devices, "_Send" in kinds, "_Recv" in kinds))
        print(sorted(parts))
        of = {
            node.node_name: short(device.device)
            for device in metadata.step_stats.dev_stats
            for node in device.node_stats
        }
        if name != "e":  # TensorFlow's optimizer shortens this one.
            print({n: of[n] for n in ["b", "c", "d", "both"] if n in of})
    show("variables", lambda: s.run([v, r]))
    for _ in range(3):
        try:
            s.run(after_bad, {x: [1]})
        except tf.errors.InvalidArgumentError as error:
            # TensorFlow repeats it for each device that it aborted.
            print(error.op.name, "no logarithm : Tensor had NaN values" in error.message)
    show("still there", lambda: s.run(d, {x: [5]}))
graph = tf.Graph()
with graph.as_default(), session(graph) as s:
    with tf.device("/device:CPU:1"):
        first = tf.constant(1.0, name="first")
    with tf.device("/device:CPU:0"):
        second = tf.identity(first, name="second")
    second.op._set_attr("_class", tf.AttrValue(list=tf.AttrValue.ListValue(s=[b"loc:@first"])))
    show("torn between two", lambda: s.run(second))
graph = tf.Graph()
with graph.as_default(), session(graph) as s:
    with tf.device("/device:CPU:7"):
        far = tf.add(tf.placeholder(tf.float32, [], name="given"), 1.0, name="far")
    show("the op is named, not its constant", lambda: s.run(far, {"given:0": 1.0}))
    show("partial run", lambda: s.partial_run_setup([far], [graph.get_tensor_by_name("given:0")]))
