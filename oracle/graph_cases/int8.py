"""Networks whose tensors are rounded to steps, as quantization-aware training leaves them. Ferroflow also
runs them on 8-bit codes (crates/runtime/tests/int8.rs), where a result may be another step."""

import numpy as np
import tensorflow as tf

from graphkit import case

raw = tf.raw_ops


def numbers(seed, *shape, scale=1.0):
    return (np.random.default_rng(seed).normal(0, scale, shape)).astype(np.float32)


def fixed(x, low, high, **attrs):
    return raw.FakeQuantWithMinMaxVars(inputs=x, min=low, max=high, **attrs)


def weights(seed, *shape, scale=0.3):
    """Rounded with one range."""
    return fixed(tf.constant(numbers(seed, *shape, scale=scale)), -1.0, 1.0, narrow_range=True)


def channels(seed, *shape, scale=0.3):
    """Rounded with a range for each channel."""
    values = numbers(seed, *shape, scale=scale)
    most = np.abs(values).max(axis=tuple(range(values.ndim - 1)))
    return raw.FakeQuantWithMinMaxVarsPerChannel(inputs=values, min=-most, max=most, narrow_range=True)


def conv(x, w, stride=1, padding="SAME", bias=None):
    y = raw.Conv2D(input=x, filter=w, strides=[1, stride, stride, 1], padding=padding)
    return y if bias is None else tf.nn.bias_add(y, bias)


@case("none")
def convolutions(b):
    x = b.feed(tf.float32, [None, 9, 8, 5])
    y = fixed(x, -3.0, 3.0)
    y = fixed(tf.nn.relu6(conv(y, weights(1, 3, 3, 5, 16), 2, bias=numbers(2, 16))), 0.0, 6.0)
    y = fixed(conv(y, channels(3, 1, 1, 16, 21), bias=numbers(4, 21)), -8.0, 8.0)
    b.step(y, {x: numbers(5, 2, 9, 8, 5)}, tol=16 / 255 * 1.01)


@case("none")
def residuals_of_channels(b):
    x = b.feed(tf.float32, [None, 10, 10, 19])
    y = fixed(x, -2.0, 3.0)
    d = raw.DepthwiseConv2dNative(input=y, filter=weights(1, 3, 3, 19, 1), strides=[1, 1, 1, 1],
                                  padding="SAME")
    d = fixed(tf.nn.relu(tf.nn.bias_add(d, numbers(2, 19))), 0.0, 4.0)
    d = fixed(conv(d, channels(3, 1, 1, 19, 19), bias=numbers(4, 19)), -5.0, 5.0)
    y = fixed(tf.nn.relu(raw.AddV2(x=d, y=y)), 0.0, 6.0)
    y = fixed(conv(y, channels(6, 3, 3, 19, 4), padding="VALID"), -12.0, 12.0)
    b.step(y, {x: numbers(5, 3, 10, 10, 19)}, tol=24 / 255 * 2.01)


@case("none")
def products(b):
    x = b.feed(tf.float32, [None, 33])
    y = raw.FakeQuantWithMinMaxArgs(inputs=x, min=-4.0, max=4.0)
    y = tf.nn.bias_add(raw.MatMul(a=y, b=channels(1, 33, 70)), numbers(2, 70))
    y = raw.FakeQuantWithMinMaxArgs(inputs=tf.nn.relu(y), min=0.0, max=8.0, num_bits=7)
    y = raw.MatMul(a=y, b=weights(3, 10, 70), transpose_b=True)
    b.step(y, {x: numbers(5, 4, 33)}, tol=0.2)


@case("none")
def pools_joined_and_reshaped(b):
    x = b.feed(tf.float32, [None, 8, 8, 6])
    y = fixed(x, -3.0, 3.0)
    p = raw.MaxPool(input=tf.pad(y, [[0, 0], [1, 1], [1, 1], [0, 0]]), ksize=[1, 3, 3, 1],
                    strides=[1, 2, 2, 1], padding="VALID")
    a = fixed(tf.nn.relu(conv(y, weights(1, 3, 3, 6, 8), 2)), 0.0, 5.0)
    y = fixed(raw.ConcatV2(values=[p, a], axis=-1), -3.0, 5.0)
    y = tf.reshape(y, [-1, 4 * 4 * 14])
    y = fixed(raw.MatMul(a=y, b=weights(2, 224, 9, scale=0.1)), -8.0, 8.0)
    b.step(y, {x: numbers(5, 2, 8, 8, 6)}, tol=16 / 255 * 2.01)


@case("none")
def symmetric_steps(b):
    x = b.feed(tf.float32, [None, 7, 7, 8])

    def rounded(x, low, high, signed):
        return raw.QuantizeAndDequantizeV2(input=x, input_min=low, input_max=high, signed_input=signed,
                                           range_given=True)

    y = rounded(x, -3.0, 3.0, True)
    y = rounded(tf.nn.relu(conv(y, channels(1, 3, 3, 8, 12))), 0.0, 5.0, False)
    y = raw.QuantizeAndDequantizeV3(input=conv(y, weights(2, 1, 1, 12, 6)), input_min=-6.0, input_max=6.0,
                                    num_bits=8, range_given=True)
    b.step(y, {x: numbers(5, 2, 7, 7, 8)}, tol=12 / 254 * 1.01)
