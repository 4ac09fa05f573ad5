"""Gradients of eigenvalues of general matrices and of square roots of matrices."""

import numpy as np
import tensorflow as tf
from gradients import case

raw = tf.raw_ops


for shape in ([3, 3], [2, 3, 3]):
    @case(name=f"matrix_square_root_{len(shape)}", tol=1e-8)
    def matrix_square_root(b, shape=shape):
        return raw.MatrixSquareRoot(input=b.x(shape) * 0.3 + 2 * tf.eye(3, dtype=tf.float64))

    @case(name=f"eig_{len(shape)}", numeric=False, tol=1e-7)
    def eig(b, shape=shape):
        x = b.x(shape) + np.diag([1.0, 3.0, 6.0])
        e, v = raw.Eig(input=x, Tout=tf.complex128)
        # Values that depend neither on the order nor on the phase of the vectors.
        parts = tf.reduce_sum(tf.abs(v) ** 4, [-1, -2])
        return [tf.math.real(tf.reduce_sum(e * e * e, -1)), parts]

    @case(name=f"eig_values_{len(shape)}", tol=1e-7, numeric=False)
    def eig_values(b, shape=shape):
        x = b.x(shape) + np.diag([1.0, 3.0, 6.0])
        e = raw.Eig(input=x, Tout=tf.complex128, compute_v=False).e
        return tf.math.real(tf.reduce_sum(e * e * e, -1))
