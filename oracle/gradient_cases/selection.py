"""Gradients of selection, isotonic regression and fractional pooling."""

import numpy as np
import tensorflow as tf
from gradients import case

raw = tf.raw_ops
F = np.float32


@case
def nth_element(b):
    x = b.x(np.array([[0.3, -1.2, 2.5, 0.9], [1.5, 0.25, -0.75, 3.0]]))
    return [raw.NthElement(input=x, n=1) * 2.0, raw.NthElement(input=x, n=0, reverse=True)]


@case(dynamic=False)
def isotonic_regression(b):
    x = b.x(np.array([[3.0, 3.5, 2.25, 2.0, 5.0, 1.0], [1.0, 2.0, 3.5, 3.0, 0.5, 6.0]]))
    y = raw.IsotonicRegression(input=x, output_dtype=tf.float64).output
    return y * tf.constant(np.arange(12.0).reshape(2, 6))


@case(dynamic=False, numeric=False, tol=1e-5)
def approx_top_k(b):
    x = b.x(np.array([[0.3, -1.2, 2.5, 0.9], [1.5, 0.25, -0.75, 3.0]], F))
    y = raw.ApproxTopK(input=x, k=2).values
    return y * y


for overlapping in (False, True):
    @case(name=f"fractional_max_pool_{overlapping}")
    def fractional_max_pool(b, overlapping=overlapping):
        y = raw.FractionalMaxPool(value=b.x([2, 7, 9, 2]), pooling_ratio=[1.0, 1.4, 1.7, 1.0], deterministic=True,
                                  seed=3, seed2=5, overlapping=overlapping).output
        return y * y

    @case(name=f"fractional_avg_pool_{overlapping}", dynamic=False)
    def fractional_avg_pool(b, overlapping=overlapping):
        y = raw.FractionalAvgPool(value=b.x([2, 7, 9, 2]), pooling_ratio=[1.0, 1.4, 1.7, 1.0], deterministic=True,
                                  seed=3, seed2=5, overlapping=overlapping).output
        return y * y
