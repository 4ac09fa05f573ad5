"""Eigenvalues of general matrices; square roots, logarithms and exponentials of matrices."""

import numpy as np

from casekit import COMPLEX, NUMPY, Rand, case


def good(r, dtype, shape):
    """Matrices whose eigenvalues are not near the negative axis."""
    n = shape[-1]
    x = r(dtype, shape, -1, 1)
    return (x + 2 * np.eye(n)).astype(NUMPY[dtype])


def cases():
    r = Rand("matrix functions")
    for dtype in ["float", "double"] + COMPLEX:
        tol = 2e-5 if dtype in ("float", "complex64") else 1e-11
        out = {"float": "complex64", "double": "complex128"}.get(dtype, dtype)
        for shape in ((1, 1), (2, 2), (4, 4), (2, 3, 3), (7, 7)):
            x = r(dtype, shape)
            yield case("Eig", x, Tout=out, tol=tol, unchecked=(1,))
            yield case("Eig", x, Tout=out, compute_v=False, tol=tol, unchecked=(1,))
            for op in ("MatrixSquareRoot", "MatrixLogarithm", "MatrixExponential"):
                if op != "MatrixLogarithm" or dtype in COMPLEX:
                    yield case(op, good(r, dtype, shape), tol=tol * 5)
        yield case("MatrixExponential", r(dtype, (3, 3), -9, 9), tol=tol * 20)
        yield case("MatrixExponential", np.zeros((3, 3), NUMPY[dtype]))
        yield case("MatrixSquareRoot", np.eye(3, dtype=NUMPY[dtype]))
        # Real matrices have no root if an eigenvalue is negative.
        for values in ([[-1, 0], [0, 4]], [[0, -1], [1, 0]], [[4, 1, 0], [0, 9, 0], [0, 0, -1]]):
            yield case("MatrixSquareRoot", np.array(values, NUMPY[dtype]), tol=tol)
        diagonal = np.diag([1, 2, 3]).astype(NUMPY[dtype])
        yield case("Eig", diagonal, Tout=out, tol=tol, unchecked=(1,))
        for op in ("Eig", "MatrixSquareRoot", "MatrixExponential"):
            more = {"Tout": out} if op == "Eig" else {}
            yield case(op, np.zeros((0, 2, 2), NUMPY[dtype]), **more)
            yield case(op, np.zeros((0, 0), NUMPY[dtype]), **more)
            yield case(op, r(dtype, (2, 3)), fails=True, **more)
            yield case(op, r(dtype, (2,)), fails=True, **more)
    yield case("MatrixLogarithm", np.zeros((0, 0), np.complex64))
    yield case("MatrixLogarithm", np.eye(3, dtype=np.complex128))
    yield case("MatrixLogarithm", r("complex64", (2, 3)), fails=True)
