"""Stateless random ops."""

import numpy as np

from casekit import FLOATS, Rand, a, case, i32, i64

SEEDS = [i64(0, 0), i64(1, 2), i64(-3, 2**40), i32(7, -9)]


def key(value):
    return np.array([value], np.uint64)


def cases():
    r = Rand("random")
    for op in ("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"):
        for dtype in FLOATS:
            # The bits are TensorFlow's; reading the rows loses the last bit of a double.
            tol = 1e-15 if dtype == "double" else 0
            for shape, seed in zip((i32(7), i64(2, 3, 4), i32(), i32(0, 3)), SEEDS):
                yield case(op, shape, seed, dtype=dtype, tol=tol)
            yield case(op + "V2", i32(5, 2), key(2**63 + 11), np.array([2**64 - 2, 5], np.uint64),
                       np.int32(1), dtype=dtype, tol=tol)
            yield case(op + "V2", i64(3), key(5), np.array([1, 2], np.uint64), np.int32(3),
                       dtype=dtype, tol=tol)
        yield case(op, i32(300), i64(3, 4), tol=0)
        yield case(op, i32(-1), i64(3, 4), fails=True)
        yield case(op, i32(2), i64(3, 4, 5), fails=True)
        yield case(op, np.int32(2), i64(3, 4), fails=True)
        yield case(op + "V2", i32(2), key(1), np.array([1], np.uint64), np.int32(1), fails=True)
        yield case(op + "V2", i32(2), key(1), np.array([1, 2], np.uint64), np.int32(9), fails=True)
    for dtype, low, high in (("int32", -5, 7), ("int32", -2**31, 2**31 - 1), ("int64", 0, 10),
                             ("int64", -2**63, 2**63 - 1), ("int64", 5, 6)):
        bounds = a(dtype, low), a(dtype, high)
        for seed in SEEDS:
            yield case("StatelessRandomUniformInt", i32(3, 3), seed, *bounds)
        yield case("StatelessRandomUniformIntV2", i32(9), key(4), np.array([1, 2], np.uint64),
                   np.int32(1), *bounds)
        yield case("StatelessRandomUniformInt", i32(3), i64(1, 2), *bounds[::-1], fails=True)
    for dtype in ("uint32", "uint64"):
        yield case("StatelessRandomUniformIntV2", i32(9), key(4), np.array([1, 2], np.uint64),
                   np.int32(1), a(dtype, 3), a(dtype, 2**31 + 5))
    for dtype in ("int32", "int64", "uint32", "uint64"):
        yield case("StatelessRandomUniformFullInt", i32(7), i64(8, 9), dtype=dtype)
        yield case("StatelessRandomUniformFullInt", i32(2), i32(8, -1), dtype=dtype)
        yield case("StatelessRandomUniformFullIntV2", i32(7), key(4), np.array([1, 2], np.uint64),
                   np.int32(1), dtype=dtype)
    yield from parameters()
    yield from shuffles()
    yield from hits()
    for seed in SEEDS:
        yield case("StatelessRandomGetKeyCounter", seed)
        yield case("StatelessRandomGetKeyCounterAlg", seed)
    yield case("StatelessRandomGetAlg")
    for dtype in ("float", "double", "half", "bfloat16", "int32"):
        for n in (1, 5, 8):
            yield case("StatelessMultinomial", r(dtype, (3, 4), -3, 3), np.int32(n), i64(4, n))
    strange = a("float", [[1.0, np.inf, 2.0, -np.inf], [np.nan, 1.0, 1.0, 0.0]])
    yield case("StatelessMultinomial", strange, np.int32(9), i64(4, 5), output_dtype="int32")
    yield case("StatelessMultinomial", r("float", (3,)), np.int32(1), i64(4, 5), fails=True)
    yield case("StatelessMultinomial", r("float", (3, 0)), np.int32(1), i64(4, 5), fails=True)
    yield case("StatelessMultinomial", r("float", (3, 2)), np.int32(-1), i64(4, 5), fails=True)
    yield case("StatelessMultinomial", r("float", (3, 2)), np.int32(0), i64(4, 5))


def parameters():
    """Distributions whose parameters are tensors."""
    counter = np.array([7, 2**40], np.uint64)
    for dtype in ("float", "double", "half"):
        tol = 1e-15 if dtype == "double" else 0
        for alpha in (0.3, 1.0, 4.5, [0.2, 1.0, 80.0], [[0.7], [2.0]], [np.nan, 3.0], [0.0, 1e-3]):
            alpha = a(dtype, alpha)
            shape = i32(4, *alpha.shape)
            yield case("StatelessRandomGammaV2", shape, i64(3, 4), alpha, tol=tol or 1e-6)
            yield case("StatelessRandomGammaV3", shape, key(9), counter, np.int32(1), alpha,
                       tol=tol or 1e-6)
        yield case("StatelessRandomGammaV2", i64(2, 3), i32(3, 4), a(dtype, [1.0, 2.0]), fails=True)
        yield case("StatelessRandomGammaV2", i64(0, 2), i32(3, 4), a(dtype, [1.0, 2.0]))
    yield case("StatelessRandomGammaV2", i64(2), i64(3), a("float", [1.0, 2.0]), fails=True)
    for rtype in ("float", "double", "half", "int32", "int64"):
        for dtype in ("float", "double", "half", "int32", "int64"):
            rate = a(rtype, [0, 1, 3, 9, 10, 40, 1000])
            yield case("StatelessRandomPoisson", i32(9, 7), i64(5, 6), rate, dtype=dtype, tol=0)
    for rtype in ("float", "double"):
        rate = a(rtype, [[0.1, 2.5], [9.99, 1e6]])
        yield case("StatelessRandomPoisson", i64(20, 2, 2), i32(5, 6), rate, dtype=rtype, tol=0)
        yield case("StatelessRandomPoisson", i64(3), i32(5, 6), a(rtype, -2.0), dtype=rtype, tol=0)
    yield case("StatelessRandomPoisson", i64(3), i32(5, 6), a("float", [1.0, 2.0]), dtype="float",
               fails=True)
    for kind in ("float", "double", "half"):
        counts, probs = a(kind, [[5.0], [60.0], [2000.0]]), a(kind, [0.05, 0.3, 0.5, 0.9, 0.0, 1.0])
        for dtype in ("float", "double", "half", "int32", "int64"):
            yield case("StatelessRandomBinomial", i32(5, 3, 6), i64(1, 8), counts, probs,
                       dtype=dtype, tol=0)
        yield case("StatelessRandomBinomial", i64(7), i32(1, 8), a(kind, 12.0), a(kind, 0.4),
                   dtype="float", tol=0)
        yield case("StatelessRandomBinomial", i32(2, 2), i64(1, 8), a(kind, [-1.0, 4.0]),
                   a(kind, [0.5, np.nan]), dtype="float", tol=0)
    yield case("StatelessRandomBinomial", i32(2), i64(1, 8), a("float", [1.0, 4.0, 2.0]),
               a("float", 0.5), dtype="float", fails=True)
    yield case("StatelessRandomBinomial", i32(2), i64(1, 8), a("float", [1.0, 4.0, 2.0]),
               a("float", [0.5, 0.1]), dtype="float", fails=True)
    name = "StatelessParameterizedTruncatedNormal"
    for dtype in ("float", "double", "half"):
        tol = {"float": 1e-6, "double": 1e-14, "half": 1e-3}[dtype]
        for bounds in ((0.0, 1.0, -1.0, 2.0), (0.0, 1.0, 0.1, 0.4), (0.0, 1.0, 3.0, 9.0),
                       (2.0, 0.5, -np.inf, 0.5), (1.0, 3.0, 5.0, np.inf), (-1.0, 2.0, -9.0, -4.0)):
            yield case(name, i32(11), i64(2, 3), *(a(dtype, x) for x in bounds), tol=tol)
        yield case(name, i64(3, 2, 2), i32(2, 3), a(dtype, [[0.0], [5.0]]), a(dtype, [1.0, 2.0]),
                   a(dtype, -3.0), a(dtype, [[9.0, 8.0]]), tol=tol)
    one = [a("float", x) for x in (0.0, 1.0, 1.0, -1.0)]
    yield case(name, i32(3), i64(2, 3), *one, fails=True)
    yield case(name, i32(3), i64(2, 3), a("float", [1.0, 2.0]), *one[1:], fails=True)


def shuffles():
    counter = np.array([7, 2**40], np.uint64)
    for dtype in ("float", "int64", "bool", "complex128", "string"):
        value = Rand("shuffled")(dtype, (9, 2))
        yield case("StatelessShuffle", value, key(3), counter, np.int32(1))
    for value in (a("float", 3.0), a("float", [1.0]), np.zeros((4, 0), np.float32)):
        yield case("StatelessShuffle", value, key(3), counter, np.int32(3))
    yield case("StatelessShuffle", a("float", [1.0, 2.0]), key(3), counter, np.int32(5), fails=True)


def hits():
    true = i64(*range(12)).reshape(4, 3)
    for sampled in (i64(3, 11, 50, 0), i64(4, 4, 4), i64(77), np.zeros(0, np.int64)):
        yield case("ComputeAccidentalHits", true, sampled, num_true=3)
    yield case("ComputeAccidentalHits", true, i64(1), num_true=2, fails=True)
    yield case("ComputeAccidentalHits", true, true, num_true=3, fails=True)
