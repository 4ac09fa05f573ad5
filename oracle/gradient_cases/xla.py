"""XLA's ops that TensorFlow differentiates."""

import tensorflow as tf
from gradients import case
from tensorflow.compiler.tf2xla.ops import gen_xla_ops as ops
from tensorflow.compiler.tf2xla.python import xla  # noqa: F401: registers gradients


@case
def xla_sharding(b):
    x = b.x([2, 3])
    return ops.xla_sharding(x * x) * 3.0


@case(numeric=False, tol=1e-5)
def xla_einsum(b):
    x, y = tf.cast(b.x([2, 3]), tf.float32), tf.cast(b.x([3, 4]), tf.float32)
    product = ops.xla_einsum(x, y, "ab,bc->ac")
    return tf.cast(product, tf.float64)
