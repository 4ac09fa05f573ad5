"""Gathering and scattering, filling, diagonals, and sets of values."""

import numpy as np

from casekit import ALL, FLOATS, NUMBERS, NUMPY, PLAIN, Rand, a, case, empty, i32, i64, s32

EVERY = ALL + ["string"]


def gathering():
    r = Rand("Gather")
    for dtype in EVERY:
        yield case("Gather", r(dtype, (4, 2)), i32(3, 0, 3))
        yield case("GatherV2", r(dtype, (2, 4)), i32(3, 0, 3), s32(1))
        yield case("GatherNd", r(dtype, (3, 4)), a("int32", [[2, 1], [0, 3]]))
    x = r("float", (2, 3, 4))
    for make in (i32, i64):
        yield case("Gather", x, make(1, 0, 1))
        yield case("Gather", x, make(1)[0])
        for axis in (-1, 0, 1, 2, -3):
            yield case("GatherV2", x, make(1, 0), s32(axis))
            yield case("GatherV2", x, make(1)[0], np.int64(axis))
            yield case("GatherV2", x, make(0, 1, 1, 0).reshape(2, 2), s32(axis))
            yield case("GatherV2", x, make(), s32(axis))
    yield case("Gather", r("float", (5,)), a("int32", [[1, 2], [4, 0]]))
    yield case("Gather", empty("float", 0, 3), i32())
    yield case("Gather", r("float", (3, 0)), i32(1, 1))
    for batch, axis, shape in ((1, 1, (2, 2)), (1, 2, (2, 3)), (1, -1, (2,)), (2, 2, (2, 3, 2)),
                               (-1, 2, (2, 3, 1)), (1, 1, (2, 2, 2)), (0, 1, (2,))):
        yield case("GatherV2", x, r("int32", shape, 0, 1), s32(axis), batch_dims=batch)
        yield case("GatherV2", x, r("int64", shape, 0, 1), s32(axis), batch_dims=batch)
    yield case("GatherV2", r("int32", (3, 5)), r("int32", (3, 2), 0, 4), s32(1), batch_dims=1)
    for bad in (i32(4), i32(-1), i64(0, 7)):
        yield case("Gather", r("float", (4, 2)), bad, fails=True)
        yield case("GatherV2", r("float", (4, 2)), bad, s32(0), fails=True)
    yield case("GatherV2", x, i32(0), s32(3), fails=True)
    yield case("GatherV2", x, i32(0), s32(-4), fails=True)
    yield case("GatherV2", x, a("int32", [[0]]), s32(0), batch_dims=1, fails=True)
    for indices in ([[0], [1]], [[1, 2]], [[1, 2, 3], [0, 0, 0]], [[[0, 1]], [[1, 1]]], [0, 1], [[]],
                    [[], []]):
        for kind in ("int32", "int64"):
            yield case("GatherNd", x, a(kind, indices))
    yield case("GatherNd", x, empty("int32", 0, 2))
    for bad in ([[2, 0]], [[0, -1]], [[0, 0, 0, 0]]):
        yield case("GatherNd", x, a("int32", bad), fails=True)


def scattering():
    r = Rand("Scatter")
    for dtype in EVERY:
        yield case("ScatterNd", i32(4, 1, 3)[:, None] * 0 + i32(2, 0, 1)[:, None], r(dtype, (3, 2)),
                   i32(4, 2))
        yield case("TensorScatterUpdate", r(dtype, (4, 2)), i32(2, 0)[:, None], r(dtype, (2, 2)))
        for kind in ("Add", "Sub", "Max", "Min"):
            if dtype not in ("string", "bool"):
                yield case(f"TensorScatter{kind}", r(dtype, (4, 2)), i32(2, 0)[:, None],
                           r(dtype, (2, 2)))
    repeated = a("int64", [[1, 1], [0, 2], [1, 1]])
    yield case("ScatterNd", repeated, r("float", (3,)), i64(2, 3))
    yield case("ScatterNd", repeated, r("float", (3, 2)), i64(2, 3, 2))
    yield case("ScatterNd", a("int32", [[[0], [1]]]), r("float", (1, 2, 3)), i32(3, 3))
    yield case("ScatterNd", empty("int32", 0, 1), empty("float", 0, 2), i32(3, 2))
    yield case("ScatterNd", a("int32", [[3]]), r("float", (1,)), i32(3), fails=True)
    yield case("ScatterNd", a("int32", [[-1]]), r("float", (1,)), i32(3), fails=True)
    yield case("ScatterNd", a("int32", [[0]]), r("float", (2,)), i32(3), fails=True)
    for kind in ("Update", "Add", "Sub", "Max", "Min"):
        op = f"TensorScatter{kind}"
        last = a("int32", [[1, 1], [0, 2]]) if kind == "Update" else repeated
        yield case(op, r("float", (2, 3)), last, r("float", (len(last),)))
        yield case(op, r("float", (2, 3, 2)), last, r("float", (len(last), 2)))
        yield case(op, r("int32", (2, 3)), a("int32", [[1]]), r("int32", (1, 3)))
        yield case(op, r("float", (2, 3)), empty("int32", 0, 1), empty("float", 0, 3))
        yield case(op, r("float", (2, 3)), a("int32", [[2]]), r("float", (1, 3)), fails=True)
        yield case(op, r("float", (2, 3)), a("int32", [[0]]), r("float", (1, 2)), fails=True)


def filling():
    r = Rand("Fill")
    for dtype in EVERY:
        one = r(dtype, (1,)).reshape(())
        yield case("Fill", i32(2, 3), one)
        yield case("Const", value=r(dtype, (2, 3)), dtype=dtype)
        yield case("Empty", i32(2, 3), dtype=dtype, unchecked=(0,))
        yield case("Empty", i32(2, 3), dtype=dtype, init=True)
        yield case("IdentityN", [r(dtype, (2,)), r("float", ()), r("int32", (0, 2))])
        yield case("OneHot", i32(1, 0, 3), s32(3), r(dtype, (1,)).reshape(()), one)
    for dims in ((), (0, 2), (1,), (2, 1, 3)):
        yield case("Fill", i32(*dims), np.float32(-2.5))
        yield case("Fill", i64(*dims), np.int32(7))
    yield case("Fill", i32(2, -1), np.float32(0), fails=True)
    yield case("Fill", i32(2), r("float", (1,)))
    yield case("Const", value=np.float32(1.5), dtype="float")
    yield case("Const", value=empty("float", 0, 2), dtype="float")
    for dtype in FLOATS + ["int32", "int64", "int16", "uint8", "uint32", "uint64", "int8", "uint16"]:
        for start, limit, delta in ((0, 5, 1), (2, 9, 3), (1, 1, 1), (3, 10, 4)):
            yield case("Range", *[NUMPY[dtype](v) for v in (start, limit, delta)])
    for start, limit, delta in ((5, 0, -1), (7, -4, -3), (0, -0, -1)):
        for dtype in ("float", "int32", "int64"):
            yield case("Range", *[NUMPY[dtype](v) for v in (start, limit, delta)])
    yield case("Range", np.float32(0), np.float32(1), np.float32(0.1))
    yield case("Range", np.float64(-0.5), np.float64(0.75), np.float64(0.25))
    yield case("Range", s32(0), s32(5), s32(0), fails=True)
    yield case("Range", s32(0), s32(5), s32(-1), fails=True)
    yield case("Range", s32(5), s32(0), s32(1), fails=True)
    yield case("Range", i32(0), s32(5), s32(1))
    for dtype in FLOATS:
        for start, stop, num in ((0, 1, 5), (-2, 3, 1), (1, -1, 4), (2, 2, 3), (0, 10, 2)):
            yield case("LinSpace", NUMPY[dtype](start), NUMPY[dtype](stop), s32(num))
    yield case("LinSpace", np.float32(0), np.float32(1), np.int64(7))
    yield case("LinSpace", np.float32(0), np.float32(1), s32(0), fails=True)
    for axis in (-1, 0, 1, 2):
        for kind in ("int32", "int64", "uint8"):
            ids = a(kind, [[0, 2, 1], [3, 1, 5]])
            yield case("OneHot", ids, s32(4), np.float32(1), np.float32(0), axis=axis)
    yield case("OneHot", s32(1), s32(3), np.float32(2), np.float32(-1))
    yield case("OneHot", i32(-1, 1), s32(3), np.float32(1), np.float32(0))
    yield case("OneHot", i32(0, 1), s32(0), np.float32(1), np.float32(0))
    yield case("OneHot", empty("int32", 0), s32(3), np.float32(1), np.float32(0))
    yield case("OneHot", i32(0), s32(-1), np.float32(1), np.float32(0), fails=True)
    yield case("OneHot", i32(0), s32(2), np.float32(1), np.float32(0), axis=2, fails=True)
    yield case("Empty", i32(0, 2), dtype="float", unchecked=(0,))
    yield case("Empty", i32(-1), dtype="float", fails=True)


def sets():
    r = Rand("Unique")
    for dtype in ALL:
        if dtype == "half":
            continue
        yield case("Where", r(dtype, (3, 4), -1, 1))
    yield case("Where", np.bool_(True), fails=True)
    for shape in ((5,), (2, 2, 3), (0, 3), (2, 1, 2, 1, 2), (67,)):
        yield case("Where", r("bool", shape))
        yield case("Where", r("float", shape, 0, 1) > 2)
    for dtype in NUMBERS + ["bool", "string"]:
        x = r(dtype, (9,), 0, 3)
        x = x if dtype in ("string", "bool") else np.round(x.astype("float64")).astype(x.dtype)
        for out in ("int32", "int64"):
            yield case("Unique", x, out_idx=out)
            yield case("UniqueWithCounts", x, out_idx=out)
        yield case("ListDiff", x, x[:3])
    yield case("Unique", empty("float", 0))
    yield case("Unique", r("float", (2, 2)), fails=True)
    rows = a("int32", [[1, 2, 1], [3, 4, 3], [1, 2, 1]])
    for axis in (i32(), i32(0), i64(1), i32(-1)):
        x = rows.reshape(-1) if not len(axis) else rows
        yield case("UniqueV2", x, axis)
        yield case("UniqueWithCountsV2", x, axis, out_idx="int64")
    yield case("UniqueV2", rows, i32(2), fails=True)
    yield case("ListDiff", i32(5, 1, 2, 5, 3), i32(1, 3, 9), out_idx="int64")
    yield case("ListDiff", empty("int32", 0), i32(1))
    yield case("ListDiff", i32(1, 2), empty("int32", 0))
    yield case("ListDiff", a("int32", [[1]]), i32(1), fails=True)
    for make in (i32, i64):
        yield case("InvertPermutation", make(2, 0, 3, 1))
        yield case("InvertPermutation", make())
        yield case("InvertPermutation", make(0, 0), fails=True)
        yield case("InvertPermutation", make(0, 2), fails=True)
    yield case("InvertPermutation", a("int32", [[0]]), fails=True)
    for op in ("LowerBound", "UpperBound"):
        for dtype in NUMBERS:
            x = np.sort(r(dtype, (2, 6), 0, 5), axis=-1)
            for out in ("int32", "int64"):
                yield case(op, x, r(dtype, (2, 4), 0, 6), out_type=out)
        yield case(op, a("float", [[1, 1, 2, 3, 3]]), a("float", [[0, 1, 2.5, 3, 4, 1.5]]))
        yield case(op, empty("float", 1, 0), a("float", [[1, 2]]))
        yield case(op, r("float", (2, 3)), r("float", (3, 3)), fails=True)


def diagonals():
    r = Rand("Diag")
    for dtype in ALL:
        yield case("Diag", r(dtype, (3,)))
        yield case("DiagPart", r(dtype, (3, 3)))
        yield case("MatrixDiag", r(dtype, (2, 3)))
        yield case("MatrixDiagPart", r(dtype, (2, 3, 3)))
        yield case("MatrixSetDiag", r(dtype, (2, 3)), r(dtype, (2,)))
        yield case("MatrixBandPart", r(dtype, (3, 4)), s32(1), s32(0))
    for shape in ((2, 2), (1,), (2, 1, 2), (0,)):
        yield case("Diag", r("float", shape))
        yield case("DiagPart", r("float", shape + shape))
    yield case("DiagPart", r("float", (2, 3)), fails=True)
    yield case("DiagPart", r("float", (2,)), fails=True)
    for shape in ((2, 3), (3, 2), (2, 3, 4), (2, 2, 4, 3), (1, 1)):
        batch, least = shape[:-2], min(shape[-2:])
        yield case("MatrixDiagPart", r("float", shape))
        yield case("MatrixSetDiag", r("float", shape), r("float", (*batch, least)))
        yield case("MatrixDiag", r("float", shape))
        for low, high in ((0, 0), (-1, 0), (0, -1), (1, 1), (-1, -1)):
            yield case("MatrixBandPart", r("float", shape), s32(low), s32(high))
            yield case("MatrixBandPart", r("float", shape), np.int64(low), np.int64(high))
    yield case("MatrixBandPart", r("float", (2, 3)), s32(3), s32(0), fails=True)
    yield case("MatrixBandPart", r("float", (2,)), s32(0), s32(0), fails=True)
    yield case("MatrixSetDiag", r("float", (2, 3)), r("float", (3,)), fails=True)
    aligns = ("LEFT_LEFT", "LEFT_RIGHT", "RIGHT_LEFT", "RIGHT_RIGHT")
    for align in aligns:
        for k, count, length in (((0,), 1, 3), ((1,), 1, 3), ((-1, 1), 3, 3), ((-2, 0), 3, 3)):
            x = r("float", (2, 3, 4))
            diagonal = (2, length) if count == 1 else (2, count, length)
            yield case("MatrixDiagPartV3", x, i32(*k), np.float32(9), align=align)
            yield case("MatrixSetDiagV3", x, r("float", diagonal), i32(*k), align=align)
            yield case("MatrixDiagV3", r("float", diagonal), i32(*k), s32(-1), s32(-1),
                       np.float32(9), align=align)
            yield case("MatrixDiagV3", r("int32", diagonal), i32(*k), s32(3), s32(5), s32(-7),
                       align=align)
    for dtype in PLAIN:
        yield case("MatrixDiagPartV3", r(dtype, (3, 3)), s32(0), NUMPY[dtype](1))
        yield case("MatrixDiagV3", r(dtype, (3,)), s32(1), s32(-1), s32(-1), NUMPY[dtype](1))
    yield case("MatrixDiagPartV3", r("float", (3, 3)), i32(2, 1), np.float32(0), fails=True)
    yield case("MatrixDiagPartV3", r("float", (3, 3)), s32(4), np.float32(0), fails=True)
    yield case("MatrixDiagV3", r("float", (3,)), s32(0), s32(2), s32(2), np.float32(0), fails=True)


def bitcasts():
    r = Rand("Bitcast")
    sizes = {name: np.dtype(NUMPY[name]).itemsize for name in NUMBERS + ["complex64"]}
    for src, wide in sizes.items():
        for dst, narrow in sizes.items():
            if wide == narrow:
                yield case("Bitcast", r(src, (2, 2)), type=dst)
            elif wide == 2 * narrow:
                yield case("Bitcast", r(src, (3,), 0, 9), type=dst)
            elif 4 * wide == narrow and dst not in ("float", "double"):
                yield case("Bitcast", r(src, (2, 4), 1, 9), type=dst)
    yield case("Bitcast", np.float32(1), type="uint8")
    yield case("Bitcast", empty("float", 0, 2), type="uint8")
    yield case("Bitcast", r("uint8", (2, 3)), type="int32", fails=True)


def cases():
    for part in (gathering, scattering, filling, sets, diagonals, bitcasts):
        yield from part()
