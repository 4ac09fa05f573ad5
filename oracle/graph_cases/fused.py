"""Elementwise ops that are fused."""

import numpy as np
import tensorflow as tf

from graphkit import case


@case("v2")
def bounds_keep_nan(b):
    """Maximum and Minimum are NaN if either operand is, alone or fused with other ops."""
    data = np.linspace(-2, 3, 40, dtype=np.float32)
    data[[3, 17]] = np.nan
    x, y = b.feed(tf.float32, (40,)), b.feed(tf.float32, (40,))
    results = [
        tf.maximum(0.0, 1 - x), tf.maximum(1 - x, 0.0), tf.minimum(1.0, 2 * x), tf.minimum(x, 2 * y), tf.maximum(2 * y, x),
        tf.minimum(1.0, tf.exp(x)) * y, tf.clip_by_value(x, -1.0, 1.0) * y, tf.reduce_max(tf.maximum(x, y) + 1),
    ]
    b.step(results, {x: data, y: data[::-1].copy()})
