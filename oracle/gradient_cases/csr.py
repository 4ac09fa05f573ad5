"""Gradients of sparse CSR matrices and of composite tensors."""

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.linalg.sparse import sparse_csr_matrix_grad
from tensorflow.python.saved_model import nested_structure_coder
from gradients import case

assert sparse_csr_matrix_grad
raw = tf.raw_ops
SHAPE = np.array([3, 4], np.int64)


def at():
    return tf.constant([[0, 1], [0, 3], [1, 2], [2, 0], [2, 1]], tf.int64)


def matrix(values):
    return raw.SparseTensorToCSRSparseMatrix(indices=at(), values=values, dense_shape=SHAPE)


for t_a in (False, True):
    for t_b in (False, True):
        @case(name=f"csr_times_dense_{t_a}_{t_b}")
        def times_dense(b, t_a=t_a, t_b=t_b):
            shape = [3 if t_a else 4, 2][::-1 if t_b else 1]
            x, y = b.x([5]), tf.ensure_shape(b.x(shape), shape)
            z = raw.SparseMatrixMatMul(a=matrix(x), b=y, transpose_a=t_a, transpose_b=t_b)
            return z * z


for a in ("", "transpose_a", "adjoint_a"):
    for b_ in ("", "transpose_b", "adjoint_b"):
        @case(name=f"csr_times_csr_{a}_{b_}")
        def times_csr(b, a=a, b_=b_):
            x, y = b.x([5]), b.x([5])
            left = matrix(x)
            right = matrix(y)
            if bool(a) == bool(b_):
                right = raw.SparseMatrixTranspose(input=right, type=x.dtype)
            flags = {name: True for name in (a, b_) if name}
            z = raw.SparseMatrixSparseMatMul(a=left, b=right, type=x.dtype, **flags)
            z = raw.CSRSparseMatrixToDense(sparse_input=z, type=x.dtype)
            return z * z


@case
def csr_from_and_to_dense(b):
    x = tf.ensure_shape(b.x([3, 4]), [3, 4])
    m = raw.SparseMatrixTranspose(input=raw.DenseToCSRSparseMatrix(dense_input=x, indices=at()), type=x.dtype)
    y = raw.CSRSparseMatrixToDense(sparse_input=m, type=x.dtype)
    return y * y


@case
def csr_to_sparse_tensor(b):
    x = b.x([5])
    y = raw.CSRSparseMatrixToSparseTensor(sparse_matrix=matrix(x), type=x.dtype)
    return y.values * y.values


@case
def composite_tensors(b):
    x = b.x([5])
    parts = [at(), x, tf.constant(SHAPE)]
    spec = nested_structure_coder.encode_structure(tf.SparseTensorSpec([3, 4], x.dtype))
    metadata = spec.type_spec_value.SerializeToString()
    variant = raw.CompositeTensorVariantFromComponents(components=parts, metadata=metadata)
    back = raw.CompositeTensorVariantToComponents(encoded=variant, metadata=metadata,
                                                  Tcomponents=[p.dtype for p in parts])
    return back[1] * back[1]
