"""Sparse matrices in compressed rows: CSRSparseMatrixToDense and its family."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw

DTYPES = (tf.float32, tf.float64, tf.complex64, tf.complex128)


def numbers(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    x = np.round(rng.uniform(-2, 2, shape), 3)
    if dtype.is_complex:
        x = x + 1j * np.round(rng.uniform(-2, 2, shape), 3)
    return np.asarray(x, dtype.as_numpy_dtype)


def thinned(x, seed=0):
    return np.where(np.random.default_rng(seed).random(x.shape) < 0.5, x, 0)


def matrix_of(dense):
    """The matrix with the elements of a constant that are not zero."""
    return raw.DenseToCSRSparseMatrix(dense_input=dense, indices=np.argwhere(dense))


def parts_of(matrix, dtype):
    return list(raw.CSRSparseMatrixToSparseTensor(sparse_matrix=matrix, type=dtype))


@case("v1")
def conversions(b):
    for dtype in DTYPES:
        for shape in ((3, 4), (2, 3, 4), (4, 1), (2, 0, 3)):
            x = thinned(numbers(dtype, shape))
            m = matrix_of(x)
            b.step([raw.CSRSparseMatrixToDense(sparse_input=m, type=dtype), raw.SparseMatrixNNZ(sparse_matrix=m)]
                   + parts_of(m, dtype))
    x = thinned(numbers(tf.float32, (3, 3, 2)))
    x[1] = 0
    at = np.argwhere(x)
    m = raw.SparseTensorToCSRSparseMatrix(indices=at, values=x[tuple(at.T)], dense_shape=[3, 3, 2])
    for i in range(3):
        b.step(list(raw.CSRSparseMatrixComponents(csr_sparse_matrix=m, index=i, type=tf.float32)))
    b.step(parts_of(m, tf.float32))
    i = b.feed(tf.int32)
    b.step(raw.CSRSparseMatrixComponents(csr_sparse_matrix=m, index=i, type=tf.float32)[0], {i: 3},
           error="index (3) not in [0, 3)")


@case("v1")
def bad_parts(b):
    at = b.feed(tf.int64, [None, 2])
    m = raw.SparseTensorToCSRSparseMatrix(indices=at, values=[1., 2.], dense_shape=[2, 3])
    dense = raw.CSRSparseMatrixToDense(sparse_input=m, type=tf.float32)
    b.step(dense, {at: [[0, 1], [1, 2]]})
    b.step(dense, {at: [[0, 1], [2, 2]]}, error="out of bounds")
    b.step(dense, {at: [[0, 1], [1, -1]]}, error="out of bounds")
    b.step(raw.CSRSparseMatrixToSparseTensor(sparse_matrix=m, type=tf.float64)[0], {at: [[0, 1], [1, 2]]},
           error="Expected a CSRSparseMatrix of type double but saw type: float")
    m = raw.DenseToCSRSparseMatrix(dense_input=np.eye(2, dtype=np.float32), indices=at)
    dense = raw.CSRSparseMatrixToDense(sparse_input=m, type=tf.float32)
    b.step(dense, {at: [[0, 1], [1, 2]]}, error="does not index into")


@case("v1")
def transposes(b):
    for dtype in DTYPES:
        for shape in ((3, 4), (2, 2, 3)):
            m = matrix_of(thinned(numbers(dtype, shape)))
            for conjugate in (False, True):
                b.step(parts_of(raw.SparseMatrixTranspose(input=m, conjugate=conjugate, type=dtype), dtype))


FACTORS = [dict(), dict(transpose_a=True), dict(transpose_b=True), dict(adjoint_a=True), dict(adjoint_b=True),
           dict(adjoint_a=True, transpose_b=True), dict(transpose_a=True, adjoint_b=True)]


def sizes(attrs, batch):
    a, b = (3, 4), (4, 2)
    if attrs.get("transpose_a") or attrs.get("adjoint_a"):
        a = a[::-1]
    if attrs.get("transpose_b") or attrs.get("adjoint_b"):
        b = b[::-1]
    return batch + a, batch + b


@case("v1")
def products_with_dense(b):
    for dtype in DTYPES:
        for batch in ((), (2,)):
            for attrs in FACTORS + [dict(transpose_output=True), dict(transpose_output=True, conjugate_output=True)]:
                left, right = sizes(attrs, batch)
                m = matrix_of(thinned(numbers(dtype, left)))
                b.step(raw.SparseMatrixMatMul(a=m, b=numbers(dtype, right, 1), **attrs))
    m = matrix_of(thinned(numbers(tf.float32, (3, 4))))
    y = b.feed(tf.float32, None)
    product = raw.SparseMatrixMatMul(a=m, b=y)
    b.step(product, {y: np.ones((3, 2))}, error="Inner product dimensions of A and B do not agree")
    b.step(product, {y: np.ones((1, 4, 2))}, error="Ranks of a and b must match, saw: 2 vs. 3.")


@case("v1")
def products_of_sparse(b):
    for dtype in DTYPES:
        for batch in ((), (2,)):
            for attrs in FACTORS:
                left, right = sizes(attrs, batch)
                x, y = matrix_of(thinned(numbers(dtype, left))), matrix_of(thinned(numbers(dtype, right, 1), 1))
                b.step(parts_of(raw.SparseMatrixSparseMatMul(a=x, b=y, type=dtype, **attrs), dtype))
    one, two = (matrix_of(thinned(numbers(tf.float32, (n, 3, 3), n), n)) for n in (1, 2))
    b.step(parts_of(raw.SparseMatrixSparseMatMul(a=one, b=two, type=tf.float32), tf.float32))


def definite(dtype, n, seed=0, share=0.3):
    x = np.tril(thinned(numbers(dtype, (n, n), seed), seed) * (np.random.default_rng(seed + 9).random((n, n)) < share))
    np.fill_diagonal(x, 2)
    return x @ x.conj().T


@case("v1")
def gradients_of_products(b):
    # TensorFlow's gradients conjugate the matrices.
    from tensorflow.python.ops.linalg.sparse import sparse_csr_matrix_ops as csr
    for dtype in DTYPES:
        x, y = thinned(numbers(dtype, (3, 4))), numbers(dtype, (4, 2))
        at = np.argwhere(x)
        values, dense = tf.identity(x[tuple(at.T)]), tf.identity(y)
        m = csr.CSRSparseMatrix(tf.SparseTensor(at, values, x.shape))
        product = csr.matmul(m, dense)
        b.step([product, *tf.gradients(product, [values, dense], grad_ys=product)])
        b.step(parts_of(raw.Conj(input=m._matrix if hasattr(m, "_matrix") else m.csr_matrix), dtype))


@case("v1")
def orderings_and_factors(b):
    for dtype in DTYPES:
        for n in (1, 2, 5, 9, 30):
            m = matrix_of(definite(dtype, n, n))
            order = raw.SparseMatrixOrderingAMD(input=m)
            factor = raw.SparseMatrixSparseCholesky(input=m, permutation=order, type=dtype)
            b.step([order] + parts_of(factor, dtype), tol=1e-4)
    m = matrix_of(np.stack([definite(tf.float64, 6, seed) for seed in (1, 2)]))
    order = raw.SparseMatrixOrderingAMD(input=m)
    factor = raw.SparseMatrixSparseCholesky(input=m, permutation=order, type=tf.float64)
    b.step([order] + parts_of(factor, tf.float64))
    for seed in range(6):
        m = matrix_of(definite(tf.float32, 60, seed, 0.1))
        b.step(raw.SparseMatrixOrderingAMD(input=m))
    m = matrix_of(np.float32([[1, 2], [2, 1]]))
    factor = raw.SparseMatrixSparseCholesky(input=m, permutation=[0, 1], type=tf.float32)
    b.step(parts_of(factor, tf.float32),
           error="Sparse Cholesky factorization failed for batch index 0. The input might not be valid.")
