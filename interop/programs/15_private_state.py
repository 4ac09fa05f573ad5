# State without a shared name belongs to one session, even if its containers are shared.
from common import *


def count():
    """A minimal input pipeline."""
    graph = tf.Graph()
    with graph.as_default(), session(graph, isolate_session_state=False) as s:
        numbers = tf.train.range_input_producer(5, num_epochs=1, shuffle=False).dequeue()
        batch = tf.train.batch([numbers], 1)
        s.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(s, coordinator)
        got = []
        try:
            while True:
                got += s.run(batch).tolist()
        except tf.errors.OutOfRangeError:
            pass
        coordinator.request_stop()
        coordinator.join(threads)
        return got


print("first", count())
print("again", count())

graph = tf.Graph()
with graph.as_default():
    own = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32], name="own")
    shared = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32], shared_name="of_all")
    put = [tf.raw_ops.QueueEnqueueV2(handle=q, components=[1.0]) for q in (own, shared)]
    sizes = [tf.raw_ops.QueueSizeV2(handle=q) for q in (own, shared)]
    table = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64)
    insert = tf.raw_ops.LookupTableInsertV2(
        table_handle=table, keys=tf.constant([1], tf.int64), values=tf.constant([2], tf.int64))
    entries = tf.raw_ops.LookupTableSizeV2(table_handle=table)
with session(graph, isolate_session_state=False) as a:
    a.run([put, insert])
    a.run(put)
    print("own, shared", a.run([sizes, entries]))
    with session(graph, isolate_session_state=False) as b:
        print("another's", b.run([sizes, entries]))
    print("still", a.run([sizes, entries]))
with session(graph, isolate_session_state=False) as c:
    print("later", c.run([sizes, entries]))
