"""Gradients of sparse tensors' ops: by the values, and by dense operands."""

import numpy as np
import tensorflow as tf
from gradients import case

raw = tf.raw_ops
SHAPE = np.array([3, 4], np.int64)


def at():
    return tf.constant([[0, 1], [0, 3], [1, 2], [2, 0], [2, 1]], tf.int64)


def other():
    return tf.constant([[0, 0], [0, 3], [1, 1], [2, 1]], tf.int64)


for axes in ([0], [1], [-1], [0, 1], 1):
    for keep_dims in (False, True):
        label = "_".join(map(str, np.ravel(axes))).replace("-", "m")

        @case(name=f"sparse_reduce_sum_{label}_{np.ndim(axes)}_{keep_dims}")
        def reduce_sum(b, axes=axes, keep_dims=keep_dims):
            y = raw.SparseReduceSum(input_indices=at(), input_values=b.x([5]), input_shape=SHAPE,
                                    reduction_axes=np.int32(axes), keep_dims=keep_dims)
            return y * y


@case
def sparse_sliced(b):
    y = raw.SparseSlice(indices=at(), values=b.x([5]), shape=SHAPE, start=np.int64([1, 0]), size=np.int64([2, 2]))
    return y.output_values * y.output_values


@case
def sparse_added(b):
    y = raw.SparseAdd(a_indices=at(), a_values=b.x([5]), a_shape=SHAPE, b_indices=other(), b_values=b.x([4]),
                      b_shape=SHAPE, thresh=np.float64(0.0))
    return y.sum_values * y.sum_values


@case
def sparse_added_to_dense(b):
    y = raw.SparseTensorDenseAdd(a_indices=at(), a_values=b.x([5]), a_shape=SHAPE, b=b.x([3, 4]))
    return y * y


for shape in ([3, 4], [4], [3, 1]):
    @case(name=f"sparse_times_dense_{'x'.join(map(str, shape))}")
    def times_dense(b, shape=shape):
        x, y = b.x([5]), b.x(shape) + 3.0
        return [raw.SparseDenseCwiseMul(sp_indices=at(), sp_values=x, sp_shape=SHAPE, dense=y),
                raw.SparseDenseCwiseDiv(sp_indices=at(), sp_values=x, sp_shape=SHAPE, dense=y)]


@case
def sparse_softmax(b):
    y = raw.SparseSoftmax(sp_indices=at(), sp_values=b.x([5]), sp_shape=SHAPE)
    return y * tf.constant(np.arange(5.0))


for ta in (False, True):
    for tb in (False, True):
        @case(name=f"sparse_mat_mul_{ta}_{tb}", numeric=False, tol=1e-5)
        def mat_mul(b, ta=ta, tb=tb):
            x = b.x(b.random.randn(*((4, 3) if ta else (3, 4))).astype(np.float32))
            y = b.x(b.random.randn(*((2, 4) if tb else (4, 2))).astype(np.float32))
            return raw.SparseMatMul(a=x, b=y, transpose_a=ta, transpose_b=tb)
