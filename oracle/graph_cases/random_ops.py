"""Random ops that remember where they are from step to step."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw

FLOATS = [tf.float32, tf.float64, tf.float16, tf.bfloat16]


@case("v1")
def random_floats(b):
    for op in (raw.RandomUniform, raw.RandomStandardNormal, raw.TruncatedNormal):
        outs = [op(shape=[2, 3], dtype=dtype, seed=3, seed2=i) for i, dtype in enumerate(FLOATS)]
        outs.append(op(shape=tf.constant([5], tf.int64), dtype=tf.float32, seed=0, seed2=9))
        for _ in range(3):
            # Bits are TensorFlow's; the last bit of a double is lost by the reader of the rows.
            b.step(outs, tol=1e-15)
        b.step(outs[0], tol=0)
        b.step([outs[0], outs[-1]], tol=0)


@case("v1")
def random_integers(b):
    shape = b.feed(tf.int32, [None])
    out = raw.RandomUniformInt(shape=shape, minval=-4, maxval=9, seed=1, seed2=2)
    wide = raw.RandomUniformInt(shape=shape, minval=tf.constant(-2**62, tf.int64),
                                maxval=tf.constant(2**62, tf.int64), seed=-1, seed2=2)
    wrong = raw.RandomUniformInt(shape=shape, minval=4, maxval=4, seed=1, seed2=2)
    for dims in ([7], [0], [2, 2], []):
        b.step([out, wide], {shape: dims})
    b.step(wrong, {shape: [1]}, error="Need minval < maxval, got 4 >= 4")
    b.step(wrong, {shape: [0]})
    b.step(out, {shape: [-1]}, error="")


@case("v1")
def shuffles(b):
    x = b.feed(tf.float32, None)
    out = raw.RandomShuffle(value=x, seed=5, seed2=6)
    words = raw.RandomShuffle(value=tf.constant(list("abcdefghij")), seed=5, seed2=6)
    for value in (np.arange(10), np.arange(12).reshape(6, 2), [1.0], 3.0, np.zeros((3, 0)),
                  np.arange(5)):
        b.step([out, words], {x: value})


@case("v1")
def draws(b):
    logits = b.feed(tf.float32, None)
    out = raw.Multinomial(logits=logits, num_samples=6, seed=7, seed2=8)
    for value in ([[0.0, 1.0, 2.0]], [[0.0, -1.0], [5.0, 5.0]], [[-1e9, 0.0, 0.0]] * 3):
        b.step(out, {logits: value})
    b.step(out, {logits: [1.0]}, error="logits should be a matrix, got shape [1]")


@case("v1")
def gammas(b):
    for dtype in (tf.float32, tf.float64, tf.float16):
        alpha = b.feed(dtype, None)
        out = raw.RandomGamma(shape=[2, 3], alpha=alpha, seed=9, seed2=10)
        for _ in range(2):
            b.step(out, {alpha: [0.3, 1.0, 2.5, 40.0]}, tol=1e-14)
        b.step(out, {alpha: 1.5}, tol=1e-14)


@case("v1", "v2")
def random_loop(b):
    """The numbers of a loop's iterations follow one another."""

    def body(i, total):
        return i + 1, total + raw.RandomUniform(shape=[2], dtype=tf.float32, seed=1, seed2=2)

    n = b.feed(tf.int32)
    out = tf.while_loop(lambda i, _: i < n, body, [0, tf.zeros([2])], parallel_iterations=1)
    for steps in (3, 1, 2):
        b.step(out[1], {n: steps})


@case("v1")
def dropout(b):
    x = b.feed(tf.float32, None)
    kept = raw.GreaterEqual(
        x=raw.RandomUniform(shape=tf.shape(x), dtype=tf.float32, seed=4, seed2=5), y=0.4)
    out = x * (1 / 0.6) * tf.cast(kept, tf.float32)
    for _ in range(2):
        b.step(out, {x: np.ones((4, 4))})
