from common import *

for resource in (False, True):
    path = os.path.join(SCRATCH, f"model-{resource}")
    graph = tf.Graph()
    with graph.as_default():
        w = tf.get_variable("w", initializer=tf.constant([[1.0, 2.0], [3.0, 4.0]]), use_resource=resource)
        n = tf.get_variable("n", initializer=tf.constant(7, tf.int64), use_resource=resource)
        change = [w.assign(w * 2.0), n.assign_add(1)]
        saver = tf.train.Saver(max_to_keep=2)
    with session(graph) as s:
        s.run([w.initializer, n.initializer])
        for step in range(3):
            saver.save(s, path, global_step=step)
            s.run(change)
        print(s.run([w, n]))
        print([os.path.basename(p) for p in saver.last_checkpoints])
    with session(graph) as s:
        saver.restore(s, tf.train.latest_checkpoint(SCRATCH))
        print(s.run([w, n]))
        show("missing", lambda: saver.restore(s, path + "-none") if tf.train.checkpoint_exists(path + "-none") else "no file")
    reader = tf.train.load_checkpoint(path + "-2")
    print(sorted(reader.get_variable_to_shape_map().items()), reader.get_tensor("n"))

# Files by URI.
uri = "file://" + os.path.join(SCRATCH, "uri")
graph = tf.Graph()
with graph.as_default():
    v = tf.get_variable("v", initializer=[1.0, 2.0])
    saver = tf.train.Saver()
    written = tf.write_file(uri + ".txt", "text")
    read = tf.read_file(uri + ".txt")
with session(graph) as s:
    s.run(v.initializer)
    saver.save(s, uri, write_meta_graph=False)
    s.run(v.assign([3.0, 4.0]))
    saver.restore(s, uri)
    s.run(written)
    print(s.run([v, read]), os.path.exists(os.path.join(SCRATCH, "uri.index")))
