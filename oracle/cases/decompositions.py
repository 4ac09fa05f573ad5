"""Decompositions of matrices and solvers of structured systems."""

import numpy as np

from casekit import NUMPY, Rand, a, case, empty, i32

KINDS = (("float", 1e-4), ("double", 1e-9), ("complex64", 1e-4), ("complex128", 1e-9))
SHAPES = ((1, 1), (3, 3), (6, 6), (5, 3), (3, 5), (1, 4), (4, 1), (2, 4, 2), (2, 1, 2, 4))


def qr():
    r = Rand("Qr")
    for dtype, tol in KINDS + (("half", 4e-3),):
        for full in (False, True):
            for shape in SHAPES:
                yield case("Qr", r(dtype, shape), full_matrices=full, tol=tol)
        yield case("Qr", np.zeros((3, 2), NUMPY[dtype]), full_matrices=True, tol=tol)
    for full in (False, True):
        for shape in ((0, 3), (3, 0), (0, 0), (0, 2, 3)):
            yield case("Qr", empty("float", *shape), full_matrices=full)
    yield case("Qr", r("float", (3,)), fails=True)


def lu():
    r = Rand("Lu")
    for dtype, tol in KINDS:
        for shape in ((1, 1), (3, 3), (6, 6), (2, 4, 4), (0, 0), (0, 3, 3)):
            for index in ("int32", "int64"):
                yield case("Lu", r(dtype, shape), output_idx_type=index, tol=tol)
    yield case("Lu", a("float", [[1, 2], [2, 4]]), fails=True)
    yield case("Lu", r("float", (2, 3)), fails=True)
    yield case("Lu", r("float", (2,)), fails=True)


def svd():
    r = Rand("Svd")
    for dtype, tol in KINDS:
        for full in (False, True):
            for shape in SHAPES:
                # Vectors are only defined up to a phase: tests/linalg.rs checks the products.
                yield case("Svd", r(dtype, shape), full_matrices=full, tol=tol, unchecked=(1, 2))
        yield case("Svd", r(dtype, (2, 4, 3)), compute_uv=False, tol=tol, unchecked=(1, 2))
        yield case("Svd", np.ones((4, 3), NUMPY[dtype]), compute_uv=False, tol=tol, unchecked=(1, 2))
        yield case("Svd", np.zeros((3, 4), NUMPY[dtype]), compute_uv=False, tol=tol, unchecked=(1, 2))
    for full in (False, True):
        for shape in ((0, 3), (3, 0), (0, 0), (0, 2, 3)):
            unchecked = (1, 2) if shape == (0, 0) else ()
            yield case("Svd", empty("float", *shape), full_matrices=full, unchecked=unchecked)
    yield case("Svd", r("float", (3,)), fails=True)


def self_adjoint():
    r = Rand("SelfAdjointEigV2")
    for dtype, tol in KINDS:
        for shape in ((1, 1), (3, 3), (6, 6), (2, 4, 4), (1, 2, 2, 2)):
            x = r(dtype, shape)
            yield case("SelfAdjointEigV2", x, tol=tol, unchecked=(1,))
            yield case("SelfAdjointEigV2", x, compute_v=False, tol=tol, unchecked=(1,))
        yield case("SelfAdjointEigV2", np.ones((3, 3), NUMPY[dtype]), compute_v=False, tol=tol, unchecked=(1,))
    yield case("SelfAdjointEigV2", empty("float", 0, 0))
    yield case("SelfAdjointEigV2", empty("float", 0, 2, 2))
    yield case("SelfAdjointEigV2", r("float", (2, 3)), fails=True)
    yield case("SelfAdjointEigV2", r("float", (2,)), fails=True)


def cholesky_grad():
    r = Rand("CholeskyGrad")
    for dtype, tol in KINDS[:2]:
        for shape in ((1, 1), (3, 3), (7, 7), (40, 40), (2, 4, 4), (0, 0)):
            if shape[-1] == 40 and dtype == "double":
                continue
            l = (np.tril(r(dtype, shape)) * 0.2 + 2 * np.eye(shape[-1])).astype(NUMPY[dtype])
            yield case("CholeskyGrad", l, r(dtype, shape), tol=tol)
    yield case("CholeskyGrad", r("float", (3, 3)), r("float", (2, 2)), fails=True)
    yield case("CholeskyGrad", r("float", (3, 2)), r("float", (3, 2)), fails=True)
    yield case("CholeskyGrad", r("float", (3,)), r("float", (3,)), fails=True)
    yield case("CholeskyGrad", r("float", (2, 3, 3)), r("float", (1, 3, 3)), fails=True)
    yield case("CholeskyGrad", r("float", (2, 3, 3)), r("float", (3, 3)), fails=True)


def least_squares():
    r = Rand("MatrixSolveLs")
    for dtype, tol in KINDS:
        for shape in ((1, 1), (3, 3), (6, 3), (3, 6), (2, 5, 2), (2, 1, 2, 4)):
            rhs = r(dtype, (*shape[:-1], 2))
            for l2 in (0.0, 0.3):
                yield case("MatrixSolveLs", r(dtype, shape), rhs, np.float64(l2), fast=True, tol=tol * 10)
            yield case("MatrixSolveLs", r(dtype, shape), rhs, np.float64(0), fast=False, tol=tol * 10)
        rank_one = np.outer([1, 2, -1, 3, 4], [2, -1, 1]).astype(NUMPY[dtype])
        yield case("MatrixSolveLs", rank_one, r(dtype, (5, 2)), np.float64(0), fast=False, tol=tol * 10)
        yield case("MatrixSolveLs", rank_one.T, r(dtype, (3, 2)), np.float64(0), fast=False, tol=tol * 10)
    for rows, columns, count in ((0, 3, 2), (3, 3, 0)):
        yield case("MatrixSolveLs", empty("float", rows, columns), empty("float", rows, count), np.float64(0),
                   unchecked=(0,))
    x, b = r("float", (4, 3)), r("float", (4, 2))
    for inputs in ((x, b[:3], np.float64(0)), (x[0], b, np.float64(0)), (x, b[0], np.float64(0)),
                   (x, b, np.float64(-1)), (x, b, np.float64([0])), (np.tile(x, (2, 1, 1)), np.tile(b, (3, 1, 1)),
                   np.float64(0)), (np.zeros((3, 3), np.float32), b[:3], np.float64(0))):
        yield case("MatrixSolveLs", *inputs, fast=True, fails=True)


def banded():
    r = Rand("BandedTriangularSolve")
    for dtype, tol in KINDS:
        for lower in (False, True):
            for adjoint in (False, True):
                how = {"lower": lower, "adjoint": adjoint, "tol": tol}
                for bands, n, count in ((1, 1, 1), (1, 3, 2), (2, 4, 2), (3, 3, 1), (3, 6, 2)):
                    x = r(dtype, (bands, n), 0.5, 2)
                    yield case("BandedTriangularSolve", x, r(dtype, (n, count)), **how)
                x = r(dtype, (2, 1, 2, 3), 0.5, 2)
                yield case("BandedTriangularSolve", x, r(dtype, (3, 3, 2)), **how)
                yield case("BandedTriangularSolve", x[0, 0], r(dtype, (2, 3, 1)), **how)
    x, b = r("float", (2, 3), 0.5, 2), r("float", (3, 2))
    for inputs in ((x[0], b), (x, b[0]), (x, b[:2]), (empty("float", 2, 0), b), (x, empty("float", 3, 0)),
                   (x * 0, b), (np.tile(x, (2, 1, 1)), np.tile(b, (3, 1, 1)))):
        yield case("BandedTriangularSolve", *inputs, fails=True)


def tridiagonal():
    r = Rand("Tridiagonal")
    for dtype, tol in KINDS:
        for shape in ((1,), (2,), (3,), (6,), (2, 4), (2, 1, 3)):
            *batch, n = shape
            rhs = r(dtype, (*batch, n, 2))
            upper, main, below = (r(dtype, (*batch, 1, n)) for _ in range(3))
            yield case("TridiagonalMatMul", upper, main, below, rhs)
            diagonals = np.concatenate([upper, main, below], -2)
            dominant = diagonals + a(dtype, [[0], [4], [0]])
            yield case("TridiagonalSolve", diagonals, rhs, tol=tol * 10)
            yield case("TridiagonalSolve", dominant, rhs, partial_pivoting=False, tol=tol)
            yield case("TridiagonalSolve", diagonals, rhs, perturb_singular=True, tol=tol * 10)
        zeros = np.zeros((3, 3), NUMPY[dtype])
        for pivoting in (False, True):
            yield case("TridiagonalSolve", zeros, r(dtype, (3, 1)), partial_pivoting=pivoting)
            yield case("TridiagonalSolve", zeros[:, :1], r(dtype, (1, 1)), partial_pivoting=pivoting)
    yield case("TridiagonalSolve", empty("float", 3, 0), empty("float", 0, 2))
    x, b = r("float", (3, 4)), r("float", (4, 2))
    for inputs in ((x[:2], b), (x, b[:3]), (x[0], b), (x, b[0]), (np.tile(x, (2, 1, 1)), np.tile(b, (3, 1, 1)))):
        yield case("TridiagonalSolve", *inputs, fails=True)
    yield case("TridiagonalSolve", x, b, partial_pivoting=False, perturb_singular=True, fails=True)
    d = [x[:1], x[1:2], x[2:]]
    for i in range(3):
        wrong = [*d]
        wrong[i] = x[:1, :3]
        yield case("TridiagonalMatMul", *wrong, b, fails=True)
    yield case("TridiagonalMatMul", d[0][0], d[1], d[2], b, fails=True)
    yield case("TridiagonalMatMul", *d, b[:3], fails=True)


def larger():
    """Systems that are computed by blocks, and determinants of infinity and NaN."""
    r = Rand("larger matrices")
    n = 26
    for dtype, tol in (("float", 1e-4), ("double", 1e-9)):
        x = (r(dtype, (n, n)) + 5 * np.eye(n)).astype(NUMPY[dtype])
        spd = (x @ x.T / n + np.eye(n)).astype(NUMPY[dtype])
        singular = x.copy()
        singular[:, n // 2] = 0
        for matrix in (x, singular):
            yield case("MatrixDeterminant", matrix, tol=tol)
            yield case("LogMatrixDeterminant", matrix, tol=tol)
        yield case("MatrixInverse", x, adjoint=True, tol=tol)
        yield case("MatrixSolve", x, r(dtype, (n, 2)), adjoint=False, tol=tol)
        yield case("MatrixSolveLs", x, r(dtype, (n, 1)), np.float64(0.1), fast=True, tol=tol * 10)
        yield case("Cholesky", spd, tol=tol)
        yield case("Lu", x, tol=tol)
        yield case("Qr", x, tol=tol)
        yield case("SelfAdjointEigV2", spd, tol=tol, unchecked=(1,))
        yield case("Svd", x, tol=tol, unchecked=(1, 2))
        for lower in (False, True):
            yield case("MatrixTriangularSolve", x, r(dtype, (n, 2)), lower=lower, adjoint=lower, tol=tol)
            yield case("MatrixTriangularSolve", x, r(dtype, (n, 2)), lower=lower, adjoint=not lower, tol=tol)
    for dtype in ("float", "double"):
        for values, b in (([[0, 1], [1, 1]], [[1], [2]]), ([[1, 0, 0], [2, 0, 0], [3, 4, 5]], [[1], [2], [3]])):
            for lower in (False, True):
                yield case("MatrixTriangularSolve", np.array(values, NUMPY[dtype]), np.array(b, NUMPY[dtype]), lower=lower)
    yield case("MatrixInverse", np.zeros((n, n), np.float32), fails=True)
    yield case("Lu", np.zeros((n, n), np.float32), fails=True)
    for op in ("MatrixDeterminant", "LogMatrixDeterminant"):
        for value in (np.inf, -np.inf, np.nan):
            for size in (1, 3, n):
                x = np.eye(size, dtype=np.float32)
                x[0, 0] = value
                yield case(op, x)


def cases():
    for part in (qr, lu, svd, self_adjoint, cholesky_grad, least_squares, banded, tridiagonal, larger):
        yield from part()
