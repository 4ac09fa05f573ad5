"""Random numbers that follow from a seed alone."""

import numpy as np

from casekit import FLOATS, Rand, a, case, i32, i64

SEEDS = [i64(0, 0), i64(1, 2), i64(-3, 2**40), i32(7, -9)]


def key(value):
    return np.array([value], np.uint64)


def cases():
    r = Rand("random")
    for op in ("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"):
        for dtype in FLOATS:
            # Bits are TensorFlow's; the last bit of a double is lost by the reader of the rows.
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
