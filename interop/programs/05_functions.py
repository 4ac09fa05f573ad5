from common import *
from tensorflow.python.framework import function
from tensorflow.python.ops import functional_ops


@function.Defun(tf.float32, tf.float32)
def affine(a, b):
    return a * b + 1.0, a - b


@function.Defun(tf.int32)
def factorial_cond(n):
    return n > 0


@function.Defun(tf.float32, tf.float32)
def positive(n, x):
    return n > 0.0


@function.Defun(tf.float32, tf.float32)
def body(n, x):
    return n - 1.0, x + n


@tf.function
def traced(x):
    for _ in tf.range(3):
        x = x * 2.0
    return x


with session() as s:
    x = tf.placeholder(tf.float32, [])
    y = affine(x, 3.0)
    print(s.run(y, {x: 2.0}), s.run(tf.gradients(y[0], x), {x: 2.0}))
    print(s.run(functional_ops.While([x, 0.0], positive, body), {x: 4.0}))
    print(s.run(traced(x), {x: 1.5}))
    print(s.run(tf.gradients(traced(x), x), {x: 1.5}))

    @tf.custom_gradient
    def clipped(v):
        return tf.identity(v), lambda g: tf.clip_by_value(g, -1.0, 1.0)

    print(s.run(tf.gradients(clipped(x) * 10.0, x), {x: 1.0}))
    print(s.run(tf.map_fn(traced, tf.constant([1.0, 2.0]))).tolist())

    @function.Defun(tf.int32, tf.float32)
    def times(i, v):
        return tf.cast(i, tf.float32) * v

    for start, limit, delta in [(1, 5, 1), (4, 0, -2), (3, 3, 0), (0, 9, -1), (0, 9, 0), (9, 0, 1), ([0], 9, 1)]:
        looped = functional_ops.For(start, limit, delta, [2.0], times)
        show(f"for {start} {limit} {delta}", lambda: s.run(looped))
