"""Conditionals and loops whose outputs are declared with a shape that they do not always have.

TensorFlow declares the shapes of the first branch, or of what the body of a loop returns, where it has taken a gradient.
"""

import numpy as np
import tensorflow as tf

from graphkit import case


@case("v2")
def branches_of_other_sizes(b):
    """Sizes and gradients are those of the branch that runs."""
    p = b.feed(tf.bool, ())
    x, y = b.feed(tf.float32, (1,)), b.feed(tf.float32, (3,))
    o = tf.cond(p, lambda: tf.sin(tf.exp(x) * x), lambda: tf.sin(tf.exp(y) * y))
    results = [o, tf.size(o), tf.shape(o), *tf.gradients(tf.reduce_mean(o * o), [x, y])]
    feeds = {x: np.float32([1]), y: np.float32([1, 2, 3])}
    b.step(results, {p: np.bool_(False), **feeds})
    b.step(results, {p: np.bool_(True), **feeds})


@case("v2")
def a_loop_that_grows_at_once(b):
    """The variable of a loop has its first shape if the body never runs."""
    n = b.feed(tf.int32, ())
    x, y = b.feed(tf.float32, (2,)), b.feed(tf.float32, (4,))
    loop = tf.while_loop(
        lambda i, o: i < n, lambda i, o: (i + 1, tf.sin(y) * tf.reduce_sum(o)), [tf.constant(0), tf.exp(x)],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])])
    o = loop[1]
    results = [o, tf.size(o), tf.shape(o), *tf.gradients(tf.reduce_mean(o * o), [x, y])]
    for times in range(3):
        b.step(results, {n: np.int32(times), x: np.float32([1, -1]), y: np.float32([1, 2, 3, 4])})


@case("v2")
def a_branch_that_does_not_fit(b):
    """A branch that the argument's shape contradicts does not run."""
    p, x = b.feed(tf.bool, ()), b.feed(tf.float32, ())

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32), tf.TensorSpec([], tf.bool)], autograph=False)
    def f(x, p):
        return tf.cond(p, lambda: tf.raw_ops.MatMul(a=x, b=x), lambda: x * 2)

    b.step([f(x, p)], {p: np.bool_(False), x: np.float32(3)})
