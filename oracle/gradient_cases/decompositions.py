"""Decompositions of matrices and solvers of structured systems."""

import numpy as np
import tensorflow as tf
from gradients import case

raw = tf.raw_ops


def of_both(b, shape, kind):
    """A real or complex matrix."""
    x = b.x(shape)
    return x if kind == "real" else raw.Complex(real=x, imag=b.x(shape), Tout=tf.complex128)


def parts(z):
    return [tf.math.real(z), tf.math.imag(z)] if z.dtype.is_complex else [z]


for kind in ("real", "complex"):
    for shape in ([3, 3], [4, 2], [2, 4], [2, 3, 2]):
        label = f"{kind}_{'x'.join(map(str, shape))}"

        @case(name=f"qr_{label}", dynamic=False, tol=1e-8, numeric=kind == "real")
        def qr(b, shape=shape, kind=kind):
            q, r = raw.Qr(input=of_both(b, shape, kind))
            return [*parts(q), *parts(r)]

        @case(name=f"svd_{label}", dynamic=False, tol=1e-8, numeric=kind == "real")
        def svd(b, shape=shape, kind=kind):
            s, u, v = raw.Svd(input=of_both(b, shape, kind), compute_uv=True)
            s = tf.math.real(s) if kind == "complex" else s
            # Values that do not depend on the phase of the vectors.
            return [s, tf.abs(u) ** 2, tf.abs(v) ** 2]

    @case(name=f"svd_values_{kind}", tol=1e-8)
    def svd_values(b, kind=kind):
        return tf.math.real(raw.Svd(input=of_both(b, [2, 4, 3], kind), compute_uv=False).s)

    @case(name=f"svd_full_{kind}", dynamic=False, tol=1e-8, numeric=False)
    def svd_full(b, kind=kind):
        s, u, v = raw.Svd(input=of_both(b, [3, 4], kind), full_matrices=True)
        return [tf.math.real(s), tf.abs(u) ** 2, tf.abs(v) ** 2]

    @case(name=f"self_adjoint_eig_{kind}", tol=1e-8, numeric=False)
    def self_adjoint_eig(b, kind=kind):
        x = of_both(b, [2, 3, 3], kind)
        e, v = raw.SelfAdjointEigV2(input=x + tf.linalg.adjoint(x))
        return [tf.math.real(e), tf.abs(v) ** 2]

    @case(name=f"self_adjoint_eig_values_{kind}", tol=1e-8, numeric=False)
    def self_adjoint_eig_values(b, kind=kind):
        x = of_both(b, [3, 3], kind)
        return tf.math.real(raw.SelfAdjointEigV2(input=x + tf.linalg.adjoint(x), compute_v=False).e)

    for fast_shape in ([4, 2], [2, 4], [2, 3, 3]):
        @case(name=f"matrix_solve_ls_{kind}_{'x'.join(map(str, fast_shape))}", dynamic=False, tol=1e-7,
              numeric=kind == "real")
        def matrix_solve_ls(b, shape=fast_shape, kind=kind):
            a, rhs = of_both(b, shape, kind), of_both(b, [*shape[:-1], 2], kind)
            return parts(raw.MatrixSolveLs(matrix=a, rhs=rhs, l2_regularizer=0.2))

    @case(name=f"tridiagonal_mat_mul_{kind}", numeric=kind == "real")
    def tridiagonal_mat_mul(b, kind=kind):
        above, main, below = (of_both(b, [2, 1, 4], kind) for _ in range(3))
        return parts(raw.TridiagonalMatMul(superdiag=above, maindiag=main, subdiag=below,
                                           rhs=of_both(b, [2, 4, 3], kind)))

    @case(name=f"tridiagonal_solve_{kind}", tol=1e-8, numeric=kind == "real")
    def tridiagonal_solve(b, kind=kind):
        diagonals = of_both(b, [2, 3, 4], kind) + np.float64([[0], [5], [0]])
        return parts(raw.TridiagonalSolve(diagonals=diagonals, rhs=of_both(b, [2, 4, 3], kind)))

    for lower in (False, True):
        for adjoint in (False, True):
            @case(name=f"banded_{kind}_{lower}_{adjoint}", tol=1e-8, numeric=False)
            def banded(b, kind=kind, lower=lower, adjoint=adjoint):
                matrix = of_both(b, [2, 2, 4], kind) + 3.0
                rhs = of_both(b, [3, 1, 4, 2], kind)
                return parts(raw.BandedTriangularSolve(matrix=matrix, rhs=rhs, lower=lower, adjoint=adjoint))
