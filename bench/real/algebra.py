"""Linear algebra: decompositions, solvers, filters, processes."""

import numpy as np
import tensorflow as tf

from real.kit import integers, model, normal, uniform

A = tf.linalg


@model
def kalman_filter():
    def program(observations, transition):
        q, r = 0.1 * tf.eye(2), tf.constant([[0.5]])
        h = tf.constant([[1.0, 0.0]])

        def step(state, z):
            x, p = state
            x, p = A.matvec(transition, x), transition @ p @ tf.transpose(transition) + q
            s = h @ p @ tf.transpose(h) + r
            gain = p @ tf.transpose(h) @ A.inv(s)
            x = x + A.matvec(gain, z - A.matvec(h, x))
            return x, (tf.eye(2) - gain @ h) @ p

        means, covariances = tf.scan(step, observations, (tf.zeros([2]), tf.eye(2)))
        return means, covariances, A.logdet(covariances)

    return program, [{"observations": normal(n, 1), "transition": np.array([[1, 1], [0, 1]], "float32")} for n in (8, 1)]


@model
def gaussian_process():
    def program(x, y, new, length):
        kernel = lambda a, b: tf.exp(-tf.square(a[:, None] - b[None]) / (2 * length**2))
        with tf.GradientTape() as tape:
            tape.watch(length)
            k = kernel(x, x) + 0.1 * tf.eye(tf.size(x), dtype=x.dtype)
            chol = A.cholesky(k)
            alpha = A.cholesky_solve(chol, y[:, None])
            likelihood = -0.5 * tf.reduce_sum(y[:, None] * alpha) - tf.reduce_sum(tf.math.log(A.diag_part(chol)))
        cross = kernel(x, new)
        mean = tf.matmul(cross, alpha, transpose_a=True)
        v = A.triangular_solve(chol, cross)
        return mean, kernel(new, new) - tf.matmul(v, v, transpose_a=True), likelihood, tape.gradient(likelihood, length)

    return program, [{"x": normal(n, dtype=t), "y": normal(n, seed=1, dtype=t), "new": normal(m, seed=2, dtype=t), "length": np.array(0.8, t)} for t in ("float64",) for n, m in ((7, 4), (1, 2))]


@model
def principal_components():
    def program(x):
        centered = x - tf.reduce_mean(x, 0)
        s, u, v = A.svd(centered)
        values, vectors = A.eigh(tf.matmul(centered, centered, transpose_a=True))
        projector = tf.matmul(v[:, :2], v[:, :2], transpose_b=True)
        return s, values[::-1], tf.abs(centered @ v[:, :2]), projector, tf.abs(vectors), A.pinv(x), A.matrix_rank(x), A.norm(x, 2), tf.matmul(u * s, v, transpose_b=True)

    return program, [{"x": normal(n, 4)} for n in (12, 6)]


@model
def decompositions():
    def program(x, spd):
        q, r = A.qr(x)
        lu, p = A.lu(x)
        sign, log = A.slogdet(x)
        values = tf.sort(tf.abs(A.eigvals(x)), -1)
        return [tf.abs(q), tf.abs(r), lu, p, sign, log, values, A.cholesky(spd), A.det(x), A.inv(x), A.expm(x * 0.2), A.sqrtm(spd), tf.abs(A.qr(x, full_matrices=True)[1]), A.eigvalsh(spd), A.trace(x), A.adjoint(x), A.lu_reconstruct(lu, p),
                A.logm(tf.cast(spd, tf.complex64 if x.dtype == tf.float32 else tf.complex128))]

    def feed(*shape, dtype="float32"):
        x = normal(*shape, shape[-1], dtype=dtype)
        return {"x": x, "spd": x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1], dtype=dtype)}

    return program, [feed(4), feed(1), feed(6)]


@model
def batched_solvers():
    def program(a, b, t):
        lower = A.band_part(a, -1, 0) + 3 * tf.eye(tf.shape(a)[-1], dtype=a.dtype)
        return [A.solve(a, b), A.solve(a, b, adjoint=True), A.lstsq(a, b, l2_regularizer=0.1), A.lstsq(a[:, :, :2], b, fast=False), A.triangular_solve(lower, b), A.triangular_solve(lower, b, adjoint=True),
                A.tridiagonal_solve(t, b), A.tridiagonal_matmul(t, b), A.banded_triangular_solve(t[:, :2], b), A.cholesky_solve(A.cholesky(tf.matmul(a, a, transpose_b=True) + tf.eye(4, dtype=a.dtype)), b),
                A.matvec(a, b[..., 0]), A.einsum("bij,bjk->bik", a, b)]

    return program, [{"a": normal(n, 4, 4) + 3 * np.eye(4, dtype="float32"), "b": normal(n, 4, 2), "t": uniform(n, 3, 4) + np.array([0, 3, 0], "float32")[:, None]} for n in (3, 1, 0)]


@model
def complex_matrices():
    def program(re, im):
        z = tf.complex(re, im)
        herm = z + A.adjoint(z)
        return [z @ z, A.matmul(z, z, adjoint_b=True), A.inv(z), A.det(z), A.eigvalsh(herm), A.solve(z, z[:, :1]), tf.abs(A.svd(z, compute_uv=False)), A.cholesky(z @ A.adjoint(z) + tf.eye(3, dtype=z.dtype)), tf.math.angle(z), tf.math.conj(z), A.expm(z * 0.1),
                tf.reduce_prod(z, 1), tf.exp(z), tf.sqrt(z), tf.math.log(z), tf.tanh(z), tf.math.reciprocal(z), z**2, tf.transpose(z, conjugate=True)]

    return program, [{"re": normal(3, 3, dtype=t), "im": normal(3, 3, seed=1, dtype=t)} for t in ("float32",)] + [{"re": normal(3, 3, seed=5), "im": np.eye(3, dtype="float32")}]


@model
def band_and_diagonal():
    def program(x):
        d = A.diag(x[..., 0, :], k=1)
        return [A.diag_part(x, k=(-1, 1), align="LEFT_RIGHT"), d, A.set_diag(x, x[..., 0, :3]), A.band_part(x, 1, 0), A.diag(A.diag_part(x, k=(0, 1)), k=(0, 1), num_rows=3, num_cols=5), A.tensor_diag(x[0, 0]), A.tensor_diag_part(tf.einsum("i,j->ij", x[0, 0], x[0, 0])),
                A.cross(x[..., :3], x[..., 1:4]), tf.linalg.normalize(x, axis=-1)[0], tf.linalg.global_norm([x, d]), A.l2_normalize(x, 1), tf.clip_by_norm(x, 1.0, 2), tf.tensordot(x, x, [[0, 2], [0, 2]])]

    return program, [{"x": normal(n, 3, 5)} for n in (2, 1)]


@model
def power_and_conjugate_gradients():
    def program(a, b):
        spd = tf.matmul(a, a, transpose_b=True) + tf.eye(tf.shape(a)[0])
        v = tf.ones_like(b)
        for _ in tf.range(20):
            v = A.matvec(spd, v)
            v /= tf.norm(v)
        x, r = tf.zeros_like(b), b
        p = r
        while tf.norm(r) > 1e-3:
            ap = A.matvec(spd, p)
            alpha = tf.tensordot(r, r, 1) / tf.tensordot(p, ap, 1)
            x, new = x + alpha * p, r - alpha * ap
            p = new + tf.tensordot(new, new, 1) / tf.tensordot(r, r, 1) * p
            r = new
        return v, tf.tensordot(v, A.matvec(spd, v), 1), x

    return program, [{"a": normal(n, n) * 0.4, "b": normal(n)} for n in (5, 2)]


@model
def operators():
    def program(x, d, u):
        ops = [A.LinearOperatorDiag(d), A.LinearOperatorLowRankUpdate(A.LinearOperatorDiag(tf.abs(d) + 1), u), A.LinearOperatorCirculant(tf.cast(tf.abs(d) + 1, tf.complex64), input_output_dtype=tf.complex64), A.LinearOperatorHouseholder(d),
               A.LinearOperatorToeplitz(d, d), A.LinearOperatorKronecker([A.LinearOperatorFullMatrix(tf.eye(2) * 2), A.LinearOperatorDiag(tf.abs(d[:2]) + 1)])]
        outs = []
        for op in ops:
            y = tf.cast(x, op.dtype)
            outs += [op.matmul(y), op.to_dense(), op.solve(y) if op is not ops[4] else y]
        return outs

    return program, [{"x": normal(4, 3), "d": normal(4), "u": normal(4, 2)}, {"x": normal(4, 3, seed=3), "d": normal(4, seed=3), "u": normal(4, 2, seed=3)}]
