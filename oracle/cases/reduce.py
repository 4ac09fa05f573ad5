"""Reductions, scans, top-k, counting and segments."""

import numpy as np

from casekit import (COMPLEX, FLOATS, NUMBERS, NUMPY, Rand, a, case, empty, i32, i64, s32)

REDUCTIONS = ["Sum", "Mean", "Prod", "Max", "Min", "EuclideanNorm"]
# shape and the axes to reduce
PLANS = [((), []), ((5,), [0]), ((5,), []), ((3, 4), [0]), ((3, 4), [1]), ((3, 4), [-1]),
         ((3, 4), [0, 1]), ((2, 3, 4), [0]), ((2, 3, 4), [1]), ((2, 3, 4), [2]), ((2, 3, 4), [0, 2]),
         ((2, 3, 4), [1, 2]), ((2, 3, 4), [2, 0, 1]), ((2, 3, 2, 3), [1, 2]), ((2, 3, 2, 3), [0, 3]),
         ((2, 3, 2, 3), [-3, -1]), ((1, 3, 1), [0, 2]), ((2, 1, 2, 1, 2), [0, 2, 4]), ((1, 67), [1]),
         ((67, 2), [0]), ((0, 3), [0]), ((0, 3), [1]), ((3, 0), [1]), ((0,), [0]), ((2, 0, 3), [0, 2])]


def reductions():
    for op in REDUCTIONS:
        r = Rand(op)
        for shape, axes in PLANS:
            for keep in (False, True):
                yield case(op, r("float", shape), i32(*axes), keep_dims=keep)
        for dtype in NUMBERS + COMPLEX:
            hi = 2 if op == "Prod" else 4
            yield case(op, r(dtype, (3, 5), -hi, hi), i32(1))
            yield case(op, r(dtype, (3, 5), -hi, hi), i64(0, 1))
            yield case(op, empty(dtype, 0, 2), i32(0))
        for dtype in FLOATS:
            odd = a(dtype, [[np.nan, 1, 2], [np.inf, -np.inf, 1], [np.inf, 1, 2], [-np.inf, 1, 0]])
            yield case(op, odd, i32(1))
            yield case(op, odd, i32(0))
        yield from axis_manners(op, r("float", (2, 3)))
    for op in ("All", "Any"):
        r = Rand(op)
        for shape, axes in PLANS:
            for keep in (False, True):
                yield case(op, r("bool", shape), i32(*axes), keep_dims=keep)
        yield from axis_manners(op, r("bool", (2, 3)))
    yield case("Mean", np.full((300,), 0.1, np.float32), i32(0))
    yield case("Sum", np.full((300,), 0.1, NUMPY["half"]), i32(0), tol=1e-2)
    yield case("Sum", a("uint8", [200, 100]), i32(0))
    yield case("Mean", a("int32", [-7, 2, 0]), i32(0))
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32"):
        top = np.iinfo(dtype).max
        yield case("Mean", a(dtype, [[top, top - 5, top], [3, top, top]]), i32(1))
        yield case("Mean", np.full((3, 70), top, dtype), i32(0, 1))
        yield case("Mean", np.full((5, 3), top, dtype), i32(0))


def axis_manners(op, x):
    yield case(op, x, s32(1))
    yield case(op, x, np.int64(-2), keep_dims=True)
    yield case(op, x, i32(2), fails=True)
    yield case(op, x, i32(-3), fails=True)
    yield case(op, x, i32(0, 0), fails=True)


def arg_ops():
    for op in ("ArgMax", "ArgMin"):
        r = Rand(op)
        for dtype in NUMBERS + ["bool"]:
            yield case(op, r(dtype, (3, 5), -3, 3), s32(1))
        for shape in ((5,), (3, 4), (2, 3, 4), (2, 3, 2, 3), (1, 67)):
            for axis in range(-1, len(shape)):
                for out in ("int32", "int64"):
                    yield case(op, r("float", shape, -3, 3), s32(axis), output_type=out)
        yield case(op, r("float", (3, 4)), np.int64(0))
        yield case(op, r("float", (3, 300)), s32(1), output_type="uint16" if op == "ArgMax" else "int32")
        yield case(op, a("float", [[1, 3, 3], [2, 2, 1], [0, -0.0, 0]]), s32(1))
        for dtype in ("float", "half", "double"):
            yield case(op, a(dtype, [[np.nan, 1, 2], [np.nan, np.inf, -np.inf], [np.nan, -np.inf, np.nan]]), s32(1))
            yield case(op, a(dtype, [[np.nan, 1, np.nan], [1, np.nan, np.nan]]), s32(0))
            yield case(op, a(dtype, [[np.nan] * 3 + [0, 5, 5] * 23]), s32(1))
        yield case(op, empty("float", 0, 3), s32(1))
        yield case(op, empty("float", 0, 3), s32(0), fails=True)
        yield case(op, r("float", (2, 3)), s32(2), fails=True)
        yield case(op, r("float", (2, 3)), i32(0), fails=True)


def scans():
    for op in ("Cumsum", "Cumprod"):
        r = Rand(op)
        for exclusive in (False, True):
            for reverse in (False, True):
                how = {"exclusive": exclusive, "reverse": reverse}
                for shape in ((5,), (3, 4), (2, 3, 4), (2, 2, 3, 2)):
                    for axis in range(-1, len(shape)):
                        yield case(op, r("float", shape), s32(axis), **how)
                for dtype in NUMBERS + COMPLEX:
                    yield case(op, r(dtype, (2, 4), -2, 2), s32(1), **how)
                yield case(op, empty("float", 0, 3), s32(0), **how)
        yield case(op, r("int32", (2, 3)), np.int64(0))
        yield case(op, r("float", (2, 3)), s32(2), fails=True)
        yield case(op, r("float", (2, 3)), s32(-3), fails=True)
    op = "CumulativeLogsumexp"
    r = Rand(op)
    for exclusive in (False, True):
        for reverse in (False, True):
            how = {"exclusive": exclusive, "reverse": reverse}
            for axis in range(-1, 3):
                yield case(op, r("float", (2, 3, 4), -30, 30), s32(axis), **how)
            for dtype in FLOATS:
                yield case(op, r(dtype, (2, 4), -2, 2), s32(1), **how)
            yield case(op, a("float", [-np.inf, -np.inf, 2, 90, 90, np.inf, np.inf]), s32(0), **how)
            yield case(op, empty("float", 0, 3), s32(0), **how)
    yield case(op, r("double", (2, 3)), np.int64(-3), fails=True)


def top_k():
    r = Rand("TopKV2")
    for dtype in NUMBERS:
        yield case("TopKV2", r(dtype, (3, 7), -4, 4), s32(3))
    for shape, k in (((5,), 5), ((5,), 1), ((5,), 0), ((2, 3, 4), 2), ((2, 67), 11), ((0, 3), 2),
                     ((3, 1), 1)):
        yield case("TopKV2", r("float", shape), s32(k))
    yield case("TopKV2", a("float", [1, 3, 3, 2, 3, 1]), s32(4))
    yield case("TopKV2", a("int32", [1, 3, 3, 2, 3, 1]), s32(6), sorted=True)
    yield case("TopKV2", r("float", (2, 5)), np.int64(2), index_type="int32")
    yield case("TopKV2", r("float", (2, 5)), np.int16(2), index_type="int64")
    yield case("TopKV2", r("float", (2, 3)), s32(4), fails=True)
    yield case("TopKV2", r("float", (2, 3)), s32(-1), fails=True)
    yield case("TopKV2", np.float32(1), s32(1), fails=True)
    # The order of a heap.
    for n, k in ((7, 1), (7, 2), (7, 3), (7, 6), (7, 7), (40, 20), (200, 5), (200, 17), (300, 100), (90, 89)):
        yield case("TopKV2", r("float", (2, n)), s32(k), sorted=False)
        yield case("TopKV2", r("int32", (2, n), -9, 9), s32(k), sorted=False)
    yield case("TopKV2", a("float", range(64)), s32(20), sorted=False)
    yield case("TopK", r("double", (100,)), k=30, sorted=False)
    yield case("TopKV2", r("float", (2, 3)), i32(1, 1), fails=True)
    predictions = r("float", (5, 6))
    predictions[3, 2] = np.inf
    predictions[4, 1] = np.nan
    for targets in (i32(0, 5, 2, 1, 1), i64(3, 4, 0, 2, 0), i32(7, -1, 2, 3, 1)):
        for k in (1, 3, 6):
            yield case("InTopKV2", predictions, targets, targets.dtype.type(k))
            yield case("InTopK", predictions, targets, k=k)
    yield case("InTopKV2", a("float", [[1, 2, 2, 1]] * 2), i32(1, 3), s32(1))
    yield case("InTopK", r("float", (3, 4)), i32(0, 1), k=1, fails=True)
    yield case("InTopK", r("float", (4,)), i32(0), k=1, fails=True)


def counting():
    r = Rand("Bincount")
    data = i32(0, 3, 1, 3, 3, 6)
    for weights in ("int32", "int64", "float", "double"):
        for size in (0, 4, 9):
            yield case("Bincount", data, s32(size), empty(weights, 0))
            yield case("Bincount", data, s32(size), r(weights, (6,)))
    yield case("Bincount", empty("int32", 0), s32(3), empty("float", 0))
    yield case("Bincount", i32(1, -1), s32(3), empty("float", 0), fails=True)
    yield case("Bincount", i32(1, 2), s32(-3), empty("float", 0), fails=True)
    yield case("Bincount", i32(1, 2), s32(3), a("float", [1, 2, 3]), fails=True)
    for dtype in FLOATS:
        for shape in ((), (5,), (2, 3), (67,), (0,)):
            yield case("L2Loss", r(dtype, shape))


def segments():
    for kind in ("Sum", "Mean", "Max", "Min", "Prod"):
        op = f"Segment{kind}"
        r = Rand(op)
        for dtype in NUMBERS + COMPLEX:
            yield case(op, r(dtype, (5, 2), -3, 3), i32(0, 0, 1, 1, 3))
        for shape in ((5,), (5, 1), (5, 3), (5, 2, 2)):
            for ids in ((0, 1, 2, 3, 4), (0, 0, 0, 0, 0), (1, 1, 4, 4, 4)):
                yield case(op, r("float", shape), i64(*ids))
        yield case(op, empty("float", 0, 3), i32())
        yield case(op, r("float", (3,)), i32(1, 0, 2), fails=True)
        yield case(op, r("float", (3,)), i32(0, 1), fails=True)
        yield case(op, r("float", (3,)), i32(-1, 0, 1), fails=True)
    for kind in ("Sum", "Max", "Min", "Prod"):
        op = f"UnsortedSegment{kind}"
        r = Rand(op)
        for dtype in NUMBERS + COMPLEX:
            yield case(op, r(dtype, (5, 2), -3, 3), i32(2, 0, 2, 1, 0), s32(4))
        for shape, ids in (((5,), (4, 3, 2, 1, 0)), ((5, 2), (0, -1, 1, -1, 0)), ((5, 2, 2), (1,) * 5)):
            yield case(op, r("float", shape), i64(*ids), s32(5))
            yield case(op, r("float", shape), i32(*ids), np.int64(5))
        yield case(op, r("float", (2, 3, 2)), a("int32", [[0, 1, 2], [2, 1, 0]]), s32(3))
        yield case(op, r("float", ()), s32(1), s32(3))
        yield case(op, empty("float", 0, 2), i32(), s32(2))
        yield case(op, r("float", (3,)), i32(0, 5, 1), s32(3), fails=True)
        yield case(op, r("float", (3,)), i32(0, 1), s32(3), fails=True)
        yield case(op, r("float", (3,)), i32(0, 1, 1), s32(-3), fails=True)
        yield case(op, r("float", (3,)), i32(0, 1, 1), i32(3), fails=True)
    for op in ("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"):
        x = Rand(op)("float", (4, 3))
        yield case(op, x, i32(0, 3, 1, 1), i32(0, 0, 1, 3))
        yield case(op, x, i64(2, 0), i32(0, 1))
        yield case(op, x, i32(0, 4), i32(0, 1), fails=True)


def cases():
    for part in (reductions, arg_ops, scans, top_k, counting, segments):
        yield from part()
