from common import *
import threading

with session() as s:
    q = tf.FIFOQueue(3, [tf.float32, tf.int32], shapes=[[], [2]], shared_name="q", name="q")
    a, b = tf.placeholder(tf.float32, []), tf.placeholder(tf.int32, [2])
    put, take = q.enqueue([a, b]), q.dequeue()
    for i in range(3):
        s.run(put, {a: i, b: [i, -i]})
    print("size", s.run(q.size()))
    show("full", lambda: s.run(put, {a: 9, b: [0, 0]}, options=tf.RunOptions(timeout_in_ms=200)))
    print([v.tolist() for v in s.run(take)], [v.tolist() for v in s.run(q.dequeue_many(2))])
    show("empty", lambda: s.run(take, options=tf.RunOptions(timeout_in_ms=200)))

    got = []
    waiting = threading.Thread(target=lambda: got.append(s.run(take)[0]))
    waiting.start()
    s.run(put, {a: 7, b: [1, 1]})
    waiting.join()
    print("another thread got", got)
    s.run(q.close())
    show("closed for puts", lambda: s.run(put, {a: 1, b: [0, 0]}))
    show("closed and empty", lambda: s.run(take))

    pad = tf.PaddingFIFOQueue(5, tf.int32, shapes=[[None]])
    many = [pad.enqueue(tf.range(n)) for n in (1, 3, 2)]
    for op in many:
        s.run(op)
    print(s.run(pad.dequeue_many(3)).tolist())

    shuffle = tf.RandomShuffleQueue(20, 0, tf.int32, shapes=[[]])
    s.run(shuffle.enqueue_many(tf.range(20)))
    values = s.run(shuffle.dequeue_many(20)).tolist()
    print(sorted(values) == list(range(20)), values != list(range(20)))

graph = tf.Graph()
with graph.as_default(), session(graph) as s:
    numbers = tf.train.range_input_producer(5, num_epochs=2, shuffle=False).dequeue()
    batch = tf.train.batch([numbers], 3, allow_smaller_final_batch=True)
    s.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    stop = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(s, stop)
    seen = []
    try:
        while True:
            seen += s.run(batch).tolist()
    except tf.errors.OutOfRangeError:
        print("pipeline", sorted(seen))
    stop.request_stop()
    stop.join(threads, stop_grace_period_secs=20)
