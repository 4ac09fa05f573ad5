from common import *

x = tf.placeholder(tf.float32, [None])
tf.summary.scalar("mean", tf.reduce_mean(x))
tf.summary.histogram("values", x)
merged = tf.summary.merge_all()
with session() as s:
    summary = tf.Summary.FromString(s.run(merged, {x: [1.0, 2.0, 4.0]}))
    for value in summary.value:
        kind = value.WhichOneof("value")
        print(value.tag, kind, "%.4f" % (value.simple_value if kind == "simple_value" else value.histo.sum))
    writer = tf.summary.FileWriter(SCRATCH, s.graph)
    writer.add_summary(s.run(merged, {x: [3.0]}), 1)
    writer.close()
    files = os.listdir(SCRATCH)
    events = list(tf.train.summary_iterator(os.path.join(SCRATCH, files[0])))
    print(len(files), [e.WhichOneof("what") for e in events])
