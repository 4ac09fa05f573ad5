"""Writes into rows, patches of volumes, old names of batched ops, positions in permutations, padded planes."""

import numpy as np

from casekit import ALL, COMPLEX, NUMBERS, NUMPY, Rand, a, case, empty, i32, i64


def cases():
    r = Rand("more array rows")
    yield from inplace(r)
    yield from concats(r)
    yield from volumes(r)
    yield from scatters(r)
    yield from constants(r)
    yield from old_names(r)
    yield from shuffles()
    yield from padded_planes(r)


def inplace(r):
    for op in ("InplaceUpdate", "InplaceAdd", "InplaceSub"):
        for dtype in NUMBERS + COMPLEX + (["bool", "string"] if op == "InplaceUpdate" else []):
            yield case(op, r(dtype, (4, 3)), i32(2, 0), r(dtype, (2, 3)))
        x = r("float", (4, 2, 3))
        for i in (i32(0, 1, 1), i32(-1, 4, -7), i32()):
            yield case(op, x, i, r("float", (len(i), 2, 3)))
        yield case(op, empty("float", 0, 3), i32(), empty("float", 0, 3))
        yield case(op, r("float", (5,)), i32(3), r("float", (1,)))
        v = r("float", (2, 2, 3))
        for args in ((x, i32([[0, 1]]), v), (x, i32(0, 1), v[0]), (x, i32(0, 1), v[:, :1]), (x, i32(0), v)):
            yield case(op, *args, fails=True)
    yield case("InplaceAdd", r("bool", (2,)), i32(1), r("bool", (1,)), fails=True)
    for dtype in NUMBERS + COMPLEX + ["bool", "string"]:
        yield case("DeepCopy", r(dtype, (2, 3)))
    yield case("DeepCopy", empty("float", 0, 3))


def concats(r):
    for dtype in ALL + ["string"]:
        yield case("ParallelConcat", [r(dtype, (1, 3)) for _ in range(3)], shape=[3, 3])
    yield case("ParallelConcat", [r("float", (1,))], shape=[1])
    yield case("ParallelConcat", [r("float", (1, 2, 0))] * 2, shape=[2, 2, 0])


def volumes(r):
    op = "ExtractVolumePatches"
    for dtype in NUMBERS:
        yield case(op, r(dtype, (1, 3, 4, 5, 2)), ksizes=[1, 2, 2, 3, 1], strides=[1, 1, 2, 2, 1], padding="VALID")
    x = r("float", (2, 4, 5, 6, 1))
    for padding in ("SAME", "VALID"):
        for size in (1, 2, 3):
            for step in (1, 2, 3):
                yield case(op, x, ksizes=[1, size, 2, 3, 1], strides=[1, step, step, 1, 1], padding=padding)
    yield case(op, empty("float", 0, 3, 3, 3, 1), ksizes=[1, 2, 2, 2, 1], strides=[1, 1, 1, 1, 1], padding="SAME")
    for attrs in ({"ksizes": [2, 1, 1, 1, 1]}, {"strides": [1, 1, 1, 1, 2]}, {"ksizes": [1, 0, 1, 1, 1]},
                  {"strides": [1, 1, 0, 1, 1]}):
        yield case(op, x, fails=True, **{"ksizes": [1] * 5, "strides": [1] * 5, "padding": "SAME", **attrs})
    yield case(op, x[0], ksizes=[1] * 5, strides=[1] * 5, padding="SAME", fails=True)


def scatters(r):
    op = "ScatterNdNonAliasingAdd"
    for dtype in NUMBERS + COMPLEX + ["bool"]:
        yield case(op, r(dtype, (4, 3)), i32([[2], [0], [2]]).reshape(3, 1), r(dtype, (3, 3)))
    x = r("float", (4, 3))
    yield case(op, x, i64([[2, 1], [0, 0]]).reshape(2, 2), r("float", (2,)))
    yield case(op, x, i32([[4]]).reshape(1, 1), r("float", (1, 3)), fails=True)
    yield case(op, x, i32([[2]]).reshape(1, 1), r("float", (1, 2)), fails=True)


def constants(r):
    for dtype in ("float", "int32", "string"):
        value = r(dtype, (2, 2))
        yield case("HostConst", value=value, dtype=dtype)
        yield case("DebugGradientIdentity", value)
    yield case("FakeParam", dtype="float", shape=[2, 3], unchecked=(0,))
    yield case("Timestamp", unchecked=(0,))


def old_names(r):
    for dtype in ("float", "double"):
        tol = 1e-5 if dtype == "float" else 1e-11
        x = (r(dtype, (2, 3, 3), -1, 1) + 3 * np.eye(3)).astype(NUMPY[dtype])
        positive = (x @ x.transpose(0, 2, 1)).astype(NUMPY[dtype])
        b = r(dtype, (2, 3, 2))
        yield case("BatchCholesky", positive, tol=tol)
        yield case("BatchCholeskyGrad", np.tril(x), r(dtype, (2, 3, 3)), tol=tol * 10)
        yield case("BatchMatrixDeterminant", x, tol=tol)
        for adjoint in (False, True):
            yield case("BatchMatrixInverse", x, adjoint=adjoint, tol=tol)
            yield case("BatchMatrixSolve", x, b, adjoint=adjoint, tol=tol)
            for lower in (False, True):
                yield case("BatchMatrixTriangularSolve", x, b, lower=lower, adjoint=adjoint, tol=tol)
        for fast in (False, True):
            yield case("BatchMatrixSolveLs", r(dtype, (2, 4, 3)), r(dtype, (2, 4, 2)), np.float64(0.1), fast=fast,
                       tol=tol * 10)
        yield case("BatchSelfAdjointEigV2", positive, compute_v=False, tol=tol, unchecked=(1,))
        yield case("BatchSvd", x, compute_uv=False, tol=tol, unchecked=(1, 2))
        for op in ("BatchSelfAdjointEig", "SelfAdjointEig"):
            diagonal = np.diag([3, 1, 2]).astype(NUMPY[dtype])
            yield case(op, diagonal, tol=tol)
            yield case(op, r(dtype, (1, 1)), tol=tol)
            yield case(op, np.zeros((0, 2, 2), NUMPY[dtype]))
            yield case(op, r(dtype, (2, 3)), fails=True)
    for dtype in NUMBERS + COMPLEX:
        x = r(dtype, (2, 3, 4))
        yield case("BatchMatrixBandPart", x, np.int64(1), np.int64(-1))
        yield case("BatchMatrixDiag", x)
        yield case("BatchMatrixDiagPart", x)
        yield case("BatchMatrixSetDiag", x, r(dtype, (2, 3)))


def shuffles():
    op = "RandomIndexShuffle"
    for dtype in ("int32", "uint32", "int64", "uint64"):
        for seeds in ("int32", "uint32", "int64", "uint64"):
            yield case(op, a(dtype, range(10)), a(seeds, [1, 2, 300000]), a(dtype, 9))
    for most in (1, 255, 65536, 70000, 1 << 20, 1 << 33, (1 << 40) + 7, (1 << 62) - 1):
        for rounds in (4, 8):
            yield case(op, i64(0, 1, most // 2, most), i64(7, -8, 9), np.int64(most), rounds=rounds)
    yield case(op, np.int64(3), i32(1, 2, 3), np.int64(100))
    yield case(op, np.int64(3), i32([[1, 2, 3], [4, 5, 6]]).reshape(2, 3), i64(100, 200))
    yield case(op, i64(3, 0), i32(1, 2, 3), i64(100, 0))
    for args in ((i64(3), i32(1, 2), np.int64(9)), (np.int64(10), i32(1, 2, 3), np.int64(9)),
                 (np.int64(-1), i32(1, 2, 3), np.int64(9)), (np.int64(0), i32(1, 2, 3), np.int64(-9)),
                 (i64(3, 4), i32(1, 2, 3), i64(9, 9, 9)), (i64(3, 4, 5), i32(1, 2, 3), i64(9, 9))):
        yield case(op, *args, fails=True)


def padded_planes(r):
    for shape in ((2, 3, 4), (3, 2, 4, 5), (2, 0, 3), (0, 2, 3), (2, 3, 0), (2, 9, 19)):
        for spec in ([[1, 2]] * len(shape), [[0, 0], [2, 0]] + [[0, 1]] * (len(shape) - 2)):
            for dtype in ("float", "int8"):
                yield case("Pad", r(dtype, shape), a("int64", spec))
                yield case("PadV2", r(dtype, shape), a("int32", spec), NUMPY[dtype](3))
