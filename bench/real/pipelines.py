"""tf.data pipelines inside graphs."""

import numpy as np
import tensorflow as tf

from real.kit import integers, model, normal, session, uniform, words

D = tf.data.Dataset


def collect(dataset, dtype, shape=()):
    """Concatenates what a dataset yields."""
    def add(state, x):
        return tf.concat([state, tf.reshape(tf.cast(x, dtype), [-1, *shape])], 0)

    return dataset.reduce(tf.zeros([0, *shape], dtype), add) if dtype != tf.string else dataset.reduce(
        tf.constant([], tf.string), lambda s, x: tf.concat([s, tf.reshape(x, [-1])], 0))


@model
def map_filter_batch():
    def program(n, x):
        a = D.range(n).map(lambda v: v * v).filter(lambda v: v % 3 != 1).batch(4)
        b = D.from_tensor_slices(x).map(lambda v: tf.sqrt(tf.abs(v)), num_parallel_calls=2).prefetch(2).batch(3, drop_remainder=True)
        c = D.zip((D.range(n), D.range(n, 2 * n))).map(lambda p, q: p * q).skip(1).take(5).repeat(2)
        d = D.range(n).concatenate(D.range(3)).shard(2, 1).enumerate().map(lambda i, v: i * 100 + v)
        return collect(a, tf.int64), collect(b, tf.float32), collect(c, tf.int64), collect(d, tf.int64), a.cardinality(), c.cardinality()

    return program, [{"n": np.int64(n), "x": normal(k)} for n, k in ((12, 7), (1, 3), (0, 0))]


@model
def shuffle_order():
    def program(n, seed):
        a = D.range(n).shuffle(5, seed=seed, reshuffle_each_iteration=False).repeat(2)
        b = D.range(n).shuffle(100, seed=seed + 1)
        c = D.random(seed=4).take(5)
        return collect(a, tf.int64), collect(b, tf.int64), collect(c, tf.int64)

    return program, [{"n": np.int64(n), "seed": np.int64(s)} for n, s in ((20, 3), (7, 0), (0, 9))]


@model
def interleave_and_windows():
    def program(n):
        a = D.range(n).interleave(lambda v: D.from_tensors(v).repeat(3), cycle_length=2, block_length=2)
        b = D.range(n).flat_map(lambda v: D.range(v))
        c = D.range(n).window(3, shift=2, drop_remainder=False).flat_map(lambda w: w.batch(3)).map(tf.reduce_sum)
        d = D.range(n).interleave(lambda v: D.range(v, v + 4), num_parallel_calls=2, deterministic=True)
        e = D.range(n).group_by_window(lambda v: v % 2, lambda key, w: w.batch(3), window_size=3).map(lambda v: tf.reduce_sum(v))
        f = D.range(n).scan(tf.constant(0, tf.int64), lambda s, v: (s + v, s * v)).take_while(lambda v: v < 200)
        return [collect(x, tf.int64) for x in (a, b, c, d, e, f)]

    return program, [{"n": np.int64(n)} for n in (7, 1, 0, 16)]


@model
def padded_and_bucketed():
    def program(lengths):
        data = D.from_tensor_slices(lengths).map(lambda n: tf.range(n))
        a = data.padded_batch(3, padded_shapes=[None], padding_values=-1).map(lambda v: tf.reduce_sum(v, 1))
        b = data.bucket_by_sequence_length(lambda v: tf.size(v), [3, 6], [2, 2, 2]).map(lambda v: tf.reduce_sum(v, 1))
        c = data.ragged_batch(2).map(lambda r: r.to_tensor(-7)[:, :1])
        d = D.from_tensor_slices(lengths).unique().batch(2).unbatch()
        return [collect(x, tf.int32) for x in (a, b, c, d)]

    return program, [{"lengths": np.array(v, "int32")} for v in ([3, 1, 4, 1, 5, 9, 2], [6], [2, 2])]


@model
def mixtures():
    def program(n, seed):
        parts = [D.range(n), D.range(100, 100 + n), D.range(200, 200 + n)]
        a = D.sample_from_datasets(parts, [0.5, 0.3, 0.2], seed=7)
        b = D.choose_from_datasets(parts, D.from_tensor_slices(tf.constant([2, 0, 1, 1, 2], tf.int64)))
        c = D.range(n).rejection_resample(lambda v: tf.cast(v % 2, tf.int32), [0.2, 0.8], [0.5, 0.5], seed=3).map(lambda _, v: v)
        d = D.range(n).batch(4).rebatch([1, 2])
        return collect(a, tf.int64), collect(b, tf.int64), collect(c, tf.int64), collect(d, tf.int64)

    return program, [{"n": np.int64(n), "seed": np.int64(1)} for n in (9, 2)]


@model
def text_pipeline():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["the", "fox"], tf.constant([1, 2], tf.int64)), 0)

    def program(lines):
        tokens = D.from_tensor_slices(lines).map(tf.strings.lower).filter(lambda s: tf.strings.length(s) > 0).map(lambda s: tf.strings.split(s))
        ids = tokens.map(table.lookup).padded_batch(2, padding_values=tf.constant(-1, tf.int64)).map(lambda v: tf.reshape(v, [-1]))
        flat = tokens.unbatch()
        return collect(ids, tf.int64), collect(flat, tf.string), collect(flat.cache().repeat(2), tf.string)

    return program, [{"lines": words("The fox", "", "a b c the", "dog")}, {"lines": words("x")}], [table]


@model
def image_pipeline():
    def program(x, labels, seed):
        def augment(image, label, s):
            image = tf.image.stateless_random_flip_left_right(image, s)
            image = tf.image.resize(tf.image.stateless_random_crop(image, [5, 5, 3], s), [4, 4])
            return image, tf.one_hot(label, 4)

        seeds = D.range(100).map(lambda i: tf.stack([tf.cast(i, tf.int32), seed]))
        data = D.zip((D.from_tensor_slices((x, labels)), seeds)).map(lambda pair, s: augment(*pair, s), num_parallel_calls=tf.data.AUTOTUNE).batch(2).prefetch(1)
        return data.reduce((tf.zeros([4, 4, 3]), tf.zeros([4])), lambda s, v: (s[0] + tf.reduce_sum(v[0], 0), s[1] + tf.reduce_sum(v[1], 0)))

    return program, [{"x": uniform(n, 8, 7, 3), "labels": integers(0, 4, n), "seed": np.int32(n)} for n in (5, 1)]


@model
def sparse_and_optional():
    def program(x):
        sparse = D.from_tensor_slices(x).map(lambda v: tf.sparse.from_dense(v)).batch(2).map(lambda s: tf.sparse.reduce_sum(s, 1))
        it = iter(D.range(3))
        first = it.get_next_as_optional()
        it.get_next()
        it.get_next()
        last = it.get_next_as_optional()
        single = D.from_tensors(x).get_single_element()
        return collect(sparse, tf.float32), first.get_value(), last.has_value(), single, D.range(5).batch(2).bucket_by_sequence_length(lambda v: tf.size(v), [2], [1, 1]).cardinality()

    return program, [{"x": np.round(normal(n, 4))} for n in (3, 1)]


@session
def one_shot_and_initializable():
    v1 = tf.compat.v1
    n = v1.placeholder(tf.int64, [])
    it = v1.data.make_initializable_iterator(v1.data.Dataset.range(n).map(lambda v: v + 10).batch(2))
    once = v1.data.make_one_shot_iterator(v1.data.Dataset.from_tensor_slices([5, 6, 7]))
    following, single = it.get_next(), once.get_next()
    return [(it.initializer, {n: 5}), (following, {}), (following, {}), (single, {}), (following, {}), (it.initializer, {n: 1}), (following, {}), (single, {})]


@model
def iterator_loops():
    w = tf.Variable(tf.zeros([2]))

    def program(x, y):
        w.assign([0.0, 0.0])
        total = tf.constant(0.0)
        for a, b in D.from_tensor_slices((x, y)).shuffle(8, seed=1, reshuffle_each_iteration=False).repeat(2).batch(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.linalg.matvec(a, w) - b))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            total += loss
        return total, w.read_value()

    return program, [{"x": normal(n, 2), "y": normal(n)} for n in (5, 1, 0)], [w]
