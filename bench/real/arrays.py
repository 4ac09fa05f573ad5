"""Array and dtype work that models do between layers."""

import numpy as np
import tensorflow as tf

from real.kit import integers, model, normal, uniform, words


@model
def slices_and_shapes():
    def program(x):
        return [x[..., -1], x[:, ::2, tf.newaxis], x[-1:, 1:3], tf.strided_slice(x, [0, 3, 0], [2, 0, 4], [1, -1, 2]), tf.roll(x, [1, -2], [0, 2]), tf.tile(x, [1, 2, 1]), tf.repeat(x, [1, 2, 0, 1, 3], axis=1), tf.transpose(x, [2, 0, 1]), tf.reverse(x, [0, 2]), tf.split(x, [1, 3, 1], 1),
                tf.unstack(x, axis=1), tf.stack([x, x], -1), tf.concat([x, x[:, :1]], 1), tf.pad(x, [[0, 1], [2, 0], [1, 1]], "REFLECT"), tf.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"), tf.broadcast_to(x[:, :1], tf.shape(x)), tf.squeeze(x[:, :1]), tf.reshape(x, [tf.shape(x)[0], -1]),
                tf.gather_nd(x, [[0, 1], [0, 4]]), tf.gather(x, [[0, 4], [2, 2]], axis=1), tf.batch_to_space(tf.space_to_batch(x[..., None], [1, 2], [[0, 0], [0, 0]]), [1, 2], [[0, 0], [0, 0]]), tf.boolean_mask(x, x > 0), tf.where(x > 0), tf.sequence_mask(tf.cast(tf.abs(x[0, 0]) * 2, tf.int32), 4), tf.one_hot(tf.cast(x[0, 0], tf.int32), 3, 2.0, -1.0),
                tf.shape(x), tf.size(x), tf.rank(x), tf.zeros_like(x), tf.linspace(0.0, 1.0, 5), tf.range(3.0, 0.0, -0.7), tf.eye(2, batch_shape=[2]), tf.argmin(x, 1), tf.argsort(x, 1), tf.math.top_k(x, 2), tf.math.invert_permutation([2, 0, 1])]

    return program, [{"x": normal(n, 5, 4)} for n in (2, 3)]


@model
def every_dtype():
    def program(i8, u16, i64, f16, f64, c64, b):
        return [i8 + i8, u16 // 3, i64 % 7, tf.cast(f16, tf.float32) * 2, f16 * f16, tf.reduce_sum(f64), c64 * c64, tf.reduce_any(b), tf.math.logical_xor(b, b[::-1]), tf.cast(i64, tf.uint8), tf.bitcast(f16, tf.int16), tf.cast(f64, tf.bfloat16), tf.cast(b, tf.int8), tf.cast(c64, tf.float32), tf.math.cumsum(u16), tf.reduce_max(i8),
                tf.sort(f16), tf.matmul(i64[None], i64[:, None]), tf.math.floormod(f64, 0.7), tf.math.abs(c64), tf.gather(u16, [0, 1]), tf.unique(i8).y, tf.where(b, f64, 0.0), tf.clip_by_value(i8, -3, 3), tf.bitwise.bitwise_and(u16, tf.constant(7, tf.uint16)), tf.math.pow(i64, 2)]

    def feed(n):
        return {"i8": integers(-50, 50, n, dtype="int8"), "u16": integers(0, 999, n, dtype="uint16"), "i64": integers(-9, 99, n, dtype="int64"), "f16": normal(n, dtype="float16"), "f64": normal(n, dtype="float64"), "c64": (normal(n) + 1j).astype("complex64"), "b": integers(0, 2, n).astype(bool)}

    return program, [feed(4), feed(2), feed(9)]


@model
def reductions_of_empties():
    def program(x):
        return [tf.reduce_sum(x, 0), tf.reduce_prod(x, 0), tf.reduce_max(x, 0), tf.reduce_min(x), tf.reduce_mean(x, 1), tf.reduce_all(x > 0, 0), tf.math.reduce_euclidean_norm(x, 1), tf.cumsum(x), x @ tf.ones([3, 2]), tf.concat([x, tf.ones([1, 3])], 0), tf.nn.softmax(x), tf.transpose(x), tf.nn.l2_normalize(x, 1),
                tf.unique(tf.reshape(x, [-1])).y, tf.boolean_mask(x, x[:, 0] > 0), tf.math.bincount(tf.cast(x[:, 0] > 0, tf.int32), minlength=2), tf.math.unsorted_segment_sum(x, tf.zeros([tf.shape(x)[0]], tf.int32), 2), tf.math.reduce_variance(x, 0)]

    return program, [{"x": normal(n, 3)} for n in (0, 1, 5)]


@model
def refused_inputs():
    def program(x, i):
        tf.debugging.assert_less(i, 5, message="too large")
        y = tf.ensure_shape(x, [None, 3])
        return tf.gather(y, i), tf.reshape(y, [-1, 3]), tf.debugging.check_numerics(y, "bad number")

    return program, [{"x": normal(4, 3), "i": np.array([0, 3], "int32")}, {"x": normal(4, 3), "i": np.array([0, 7], "int32")}, {"x": normal(4, 2), "i": np.array([1, 1], "int32")}, {"x": np.full((2, 3), np.nan, "float32"), "i": np.array([0, 0], "int32")}, {"x": normal(2, 3), "i": np.array([4, 4], "int32")}]


@model
def time_series():
    def program(x):
        windows = tf.signal.frame(x, 4, 2, axis=1)
        mean = tf.nn.avg_pool1d(x[..., None], 3, 1, "VALID")
        trend = tf.reduce_mean(windows, -1)
        ema = tf.transpose(tf.scan(lambda a, v: 0.8 * a + 0.2 * v, tf.transpose(x), tf.zeros([tf.shape(x)[0]])))
        acf = tf.math.real(tf.signal.ifft(tf.cast(tf.abs(tf.signal.fft(tf.cast(x, tf.complex64))) ** 2, tf.complex64)))
        peaks = tf.where((x[:, 1:-1] > x[:, :-2]) & (x[:, 1:-1] > x[:, 2:]))
        return windows, mean, trend, ema, acf, peaks, tf.math.segment_mean(tf.transpose(x), tf.range(tf.shape(x)[1]) // 3), tf.nn.conv1d(x[..., None], tf.ones([3, 1, 2]), 1, "SAME", dilations=2), tf.math.cumulative_logsumexp(x, 1, exclusive=True)

    return program, [{"x": normal(n, k)} for n, k in ((2, 12), (1, 7))]


@model
def dynamic_programming():
    def program(a, b):
        """Edit distance by rows, the longest common subsequence, and Viterbi."""
        row = tf.range(tf.size(b) + 1)
        for i in tf.range(tf.size(a)):
            cost = tf.cast(b != a[i], tf.int32)
            change = tf.minimum(row[1:] + 1, row[:-1] + cost)
            out = tf.TensorArray(tf.int32, tf.size(b) + 1, clear_after_read=False).write(0, i + 1)
            for j in tf.range(tf.size(b)):
                out = out.write(j + 1, tf.minimum(change[j], out.read(j) + 1))
            row = out.stack()
        scores = tf.one_hot(a, 5) @ tf.constant(normal(5, 3))
        trans = tf.constant(normal(3, 3, seed=2))
        best, back = scores[0], tf.TensorArray(tf.int32, tf.size(a) - 1, element_shape=[3])
        for t in tf.range(1, tf.size(a)):
            v = best[:, None] + trans
            back = back.write(t - 1, tf.argmax(v, 0, output_type=tf.int32))
            best = scores[t] + tf.reduce_max(v, 0)
        return row[-1], best, back.stack()

    return program, [{"a": integers(0, 5, n), "b": integers(0, 5, m, seed=1)} for n, m in ((6, 5), (3, 1), (1, 4))]
