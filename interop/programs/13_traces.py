from common import *
from tensorflow.python.client import timeline
import json

x = tf.placeholder(tf.float32, [2, 2], name="x")
with tf.device("/cpu:1"):
    y = tf.matmul(x, x, name="product")
z = tf.reduce_sum(y, name="total")
with session() as s:
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
    print(s.run(z, {x: np.eye(2) * 3}, options=options, run_metadata=metadata))
    stats = {d.device: [n.node_name for n in d.node_stats] for d in metadata.step_stats.dev_stats}
    print(sorted(stats))
    print("product" in stats["/job:localhost/replica:0/task:0/device:CPU:1"])
    print("total" in stats["/job:localhost/replica:0/task:0/device:CPU:0"])
    events = json.loads(timeline.Timeline(metadata.step_stats).generate_chrome_trace_format())
    print(len(events["traceEvents"]) > 0)
    product = [n for d in metadata.step_stats.dev_stats for n in d.node_stats if n.node_name == "product"]
    print([(m.total_bytes > 0, m.peak_bytes > 0) for n in product for m in n.memory], product[0].HasField("memory_stats"))
    graphs = metadata.partition_graphs
    # The number of partitions depends on the server.
    print(len(graphs) > 0, sorted({n.device for g in graphs for n in g.node}))
    ops = {n.op for g in graphs for n in g.node}
    print(sorted(ops & {"MatMul", "Sum"}))
    print({name for nodes in stats.values() for name in nodes if name.startswith("_")})
    for level in (tf.RunOptions.SOFTWARE_TRACE, tf.RunOptions.HARDWARE_TRACE):
        metadata = tf.RunMetadata()
        s.run(z, {x: np.eye(2)}, options=tf.RunOptions(trace_level=level), run_metadata=metadata)
        print(level, len(metadata.step_stats.dev_stats))
    metadata = tf.RunMetadata()
    s.run(z, {x: np.eye(2)}, run_metadata=metadata)
    print(len(metadata.step_stats.dev_stats), len(metadata.partition_graphs))
graph_options = tf.GraphOptions(build_cost_model=3, build_cost_model_after=1)
with session(graph_options=graph_options) as s:
    for step in range(9):
        metadata = tf.RunMetadata()
        s.run(z if step % 4 else y, {x: np.eye(2)}, run_metadata=metadata)
        costs = metadata.cost_graph.node
        named = {n.name: n for n in costs}
        product = named.get("product")
        print(step, metadata.HasField("cost_graph"), len(metadata.step_stats.dev_stats), len(metadata.partition_graphs))
        if product:
            print(product.device, [(o.size, o.dtype, [d.size for d in o.shape.dim]) for o in product.output_info])
            print(len(product.input_info), product.compute_cost >= 0, len({n.id for n in costs}) == len(costs))
