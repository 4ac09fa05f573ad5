"""Convolutions as Keras writes them: dilations spelled with SpaceToBatchND, groups in functions of their own, volumes."""

import numpy as np
import tensorflow as tf

from graphkit import case


def numbers(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def normalized(x, seed):
    """A batch normalization with known statistics, as Keras spells it, and an activation."""
    n = int(x.shape[-1])
    scale = tf.constant(1 + 0.1 * numbers(seed, n))
    return tf.nn.relu(x * scale + tf.constant(numbers(seed + 1, n)))


@case("v1")
def dilated(g):
    x = g.feed(tf.float32, [None, 9, 8, 32])
    y = tf.nn.convolution(x, numbers(1, 3, 3, 32, 32), padding="SAME", dilations=[2, 3])
    y = normalized(y, 2)
    z = tf.nn.convolution(y, numbers(3, 3, 3, 32, 4), padding="VALID", dilations=[2, 2])
    z = tf.nn.bias_add(z, numbers(4, 4))
    g.step([z], {x: numbers(5, 2, 9, 8, 32)}, tol=1e-4)
    g.step([z], {x: numbers(6, 1, 9, 8, 32)}, tol=1e-4)


@case("v1")
def dilated_along_one_dimension(g):
    x = g.feed(tf.float32, [None, 16, 4])
    padded = tf.pad(x, [[0, 0], [4, 0], [0, 0]])
    a = tf.nn.conv1d(padded, numbers(1, 2, 4, 8), 1, "VALID", dilations=4)
    b = tf.nn.conv1d(padded, numbers(2, 2, 4, 8), 1, "VALID", dilations=4)
    c = tf.nn.conv1d(x, numbers(3, 3, 4, 8), 1, "SAME", dilations=5)
    g.step([tf.tanh(a + numbers(4, 8)) * tf.sigmoid(b), c], {x: numbers(5, 2, 16, 4)}, tol=1e-4)


@case("v1")
def dilated_by_channel(g):
    x = g.feed(tf.float32, [None, 7, 9, 4])
    y = tf.nn.depthwise_conv2d(x, numbers(1, 3, 3, 4, 2), [1, 1, 1, 1], "SAME", dilations=[3, 3])
    g.step([normalized(y, 2)], {x: numbers(3, 1, 7, 9, 4)}, tol=1e-4)


@case("v2")
def groups_in_a_function(g):
    @tf.function(jit_compile=True)
    def convolution(x, filter):
        return tf.nn.convolution(x, filter, padding="SAME")

    x = g.feed(tf.float32, [None, 3, 28, 16])
    for seed, groups in enumerate((2, 4)):
        y = convolution(x, tf.constant(numbers(seed, 3, 3, 16 // groups, 24)))
        y.set_shape([None, 3, 28, 24])
        y = normalized(y, seed)
        shuffled = tf.reshape(y, [-1, 3, 28, 3, 8])
        shuffled = tf.reshape(tf.transpose(shuffled, [0, 1, 2, 4, 3]), [-1, 3, 28, 24])
        g.step([tf.reduce_max(shuffled, [1])], {x: numbers(7, 1, 3, 28, 16)}, tol=1e-4)


@case("v1")
def volumes(g):
    x = g.feed(tf.float32, [None, 4, 5, 16, 1])
    y = normalized(tf.nn.conv3d(x, numbers(1, 3, 3, 3, 1, 16), [1] * 5, "SAME"), 2)
    z = tf.nn.conv3d(y, numbers(3, 2, 3, 3, 16, 5), [1, 2, 1, 1, 1], "VALID")
    z = tf.nn.bias_add(z, numbers(4, 5))
    g.step([z], {x: numbers(5, 1, 4, 5, 16, 1)}, tol=1e-4)
