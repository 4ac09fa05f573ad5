"""Graphs of TensorFlow 1: loops, TensorArrays, queues, references, conditionals."""

import numpy as np
import tensorflow as tf

from real.kit import integers, normal, session, words

v1 = tf.compat.v1


@session
def queues_and_counters():
    q = tf.queue.FIFOQueue(5, [tf.float32, tf.int32], [[2], []])
    x = v1.placeholder(tf.float32, [2])
    put, many = q.enqueue([x, 3]), q.enqueue_many([tf.ones([2, 2]), [7, 8]])
    a, b = q.dequeue()
    pri = tf.queue.PriorityQueue(4, [tf.string], [[]])
    low, high = pri.enqueue([tf.constant(9, tf.int64), "low"]), pri.enqueue([tf.constant(1, tf.int64), "high"])
    pad = tf.queue.PaddingFIFOQueue(4, [tf.int32], [[None]])
    filled = tf.group(pad.enqueue([[1, 2, 3]]), pad.enqueue([[4]]))
    return [(put, {x: [1, 2]}), (many, {}), (q.size(), {}), ([a, b], {}), (q.dequeue_many(2), {}), (low, {}), (high, {}), (pri.dequeue(), {}), (filled, {}), (pad.dequeue_many(2), {})]


@session
def reference_variables():
    v1.disable_resource_variables()
    v = v1.get_variable("v", initializer=np.arange(6, dtype="float32").reshape(3, 2))
    v1.enable_resource_variables()
    x = v1.placeholder(tf.float32, [1, 2])
    steps = [v1.assign_add(v, tf.ones_like(v)), v1.scatter_add(v, [1], x), v1.scatter_update(v, [0, 2], tf.zeros([2, 2])), v1.scatter_mul(v, [1], x), v[1:2, :1].assign([[9.0]])]
    return [(v1.global_variables_initializer(), {})] + [(s, {x: normal(1, 2)}) for s in steps] + [(v.value(), {})]


@session
def nested_loops_and_conditions():
    n = v1.placeholder(tf.int32, [])
    outer = v1.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, v1.while_loop(lambda j, t: j < i, lambda j, t: (j + 1, t + j * i), [0, s])[1]), [0, 0])
    c = v1.cond(n > 3, lambda: tf.range(n), lambda: tf.fill([2], n))
    case = v1.case([(n < 2, lambda: tf.constant("small")), (n < 5, lambda: tf.constant("middle"))], default=lambda: tf.constant("big"))
    return [([outer[1], c, case], {n: k}) for k in (0, 1, 4, 9)]


@session
def tensor_arrays_and_gradients():
    x = v1.placeholder(tf.float32, [None, 3])
    w = tf.constant(normal(3, 3) * 0.4)
    ta = tf.TensorArray(tf.float32, v1.shape(x)[0], element_shape=[3]).unstack(x)
    _, state, out = v1.while_loop(lambda t, *_: t < ta.size(), lambda t, s, o: (t + 1, tf.tanh(tf.linalg.matvec(w, s) + ta.read(t)), o.write(t, s)), [0, tf.zeros([3]), tf.TensorArray(tf.float32, ta.size())])
    grads = v1.gradients([tf.reduce_sum(state)], [x])
    parts = tf.TensorArray(tf.float32, 2, infer_shape=False).split(tf.reshape(x, [-1]), [2, v1.size(x) - 2])
    return [([state, out.stack(), grads[0], parts.read(0), parts.concat()], {x: normal(n, 3)}) for n in (5, 1)]


@session
def control_flow_functions():
    x = v1.placeholder(tf.float32, [None])
    mapped = tf.map_fn(lambda v: v * v + 1, x)
    folded = tf.foldl(lambda a, v: a * 0.5 + v, x)
    right = tf.foldr(lambda a, v: a - v, x)
    scanned = tf.scan(lambda a, v: a + v, x, reverse=True)
    vectorized = tf.vectorized_map(lambda v: tf.nn.softmax(tf.stack([v, -v])), x)
    called = tf.grad_pass_through(tf.round)(x)
    return [([mapped, folded, right, scanned, vectorized, called], {x: normal(n)}) for n in (4, 1)]


@session
def accumulators_and_barriers():
    acc = v1.ConditionalAccumulator(tf.float32, [2])
    g = v1.placeholder(tf.float32, [2])
    sparse = v1.SparseConditionalAccumulator(tf.float32, [4, 1])
    put = sparse.apply_indexed_slices_grad(tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([1, 3], tf.int64), tf.constant([4, 1], tf.int64)))
    stage = tf.raw_ops
    insert = stage.Stage(values=[g], shared_name="s")
    size, take = stage.StageSize(dtypes=[tf.float32], shared_name="s"), stage.Unstage(dtypes=[tf.float32], shared_name="s")
    slices = sparse.take_indexed_slices_grad(1)
    return [(acc.apply_grad(g), {g: [1, 2]}), (acc.apply_grad(g), {g: [3, 6]}), (acc.num_accumulated(), {}), (acc.take_grad(2), {}), (put, {}), ([slices.values, slices.indices], {}), (insert, {g: [5, 5]}), (size, {}), (take, {})]


@session
def momentum_training():
    x, y = v1.placeholder(tf.float32, [None, 3]), v1.placeholder(tf.float32, [None, 1])
    w = v1.get_variable("w", initializer=normal(3, 1))
    step = v1.train.get_or_create_global_step()
    rate = v1.train.exponential_decay(0.1, step, 2, 0.5, staircase=True)
    loss = tf.reduce_mean(tf.square(x @ w - y))
    optimizers = [v1.train.MomentumOptimizer(rate, 0.9), v1.train.AdamOptimizer(0.01), v1.train.RMSPropOptimizer(0.01), v1.train.AdagradOptimizer(0.1), v1.train.FtrlOptimizer(0.1), v1.train.AdadeltaOptimizer(0.5), v1.train.ProximalGradientDescentOptimizer(0.05)]
    trains = [o.minimize(loss, step) for o in optimizers]
    feeds = {x: normal(5, 3), y: normal(5, 1)}
    return [(v1.global_variables_initializer(), {})] + [f for t in trains for f in ((t, feeds), ([loss, w.read_value(), rate], feeds))]


@session
def batching_and_assertions():
    x = v1.placeholder(tf.int32, [None])
    with tf.control_dependencies([v1.assert_less(x, 100), v1.assert_rank(x, 1), v1.debugging.assert_all_finite(tf.cast(x, tf.float32), "finite")]):
        y = tf.identity(x) * 2
    printed = v1.Print(y, [y], "values: ", summarize=2)
    merged = v1.summary.merge([v1.summary.scalar("mean", tf.reduce_mean(y)), v1.summary.histogram("h", tf.cast(y, tf.float32))])
    return [([printed, merged], {x: integers(0, 90, n)}) for n in (4, 1)]


@session
def partitioned_lookup():
    ids = v1.placeholder(tf.int64, [None])
    tables = [tf.constant(normal(4, 2, seed=i)) for i in range(3)]
    mod = v1.nn.embedding_lookup(tables, ids, partition_strategy="mod")
    div = v1.nn.embedding_lookup(tables, ids, partition_strategy="div", max_norm=1.0)
    stitched = tf.dynamic_stitch([tf.range(tf.size(ids))], [mod])
    return [([mod, div, stitched], {ids: integers(0, 12, n, dtype="int64")}) for n in (5, 1, 0)]
