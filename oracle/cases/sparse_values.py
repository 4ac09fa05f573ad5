"""Sparse tensors: reductions, slices, sums, concatenation, softmax and element-wise ops."""

import numpy as np

from casekit import ALL, COMPLEX, NUMBERS, Rand, a, case, empty, i32, i64, s32

AT = np.array([[0, 0, 1], [0, 2, 3], [1, 0, 0], [1, 0, 2], [1, 1, 3], [1, 2, 0]], np.int64)
SHAPE = i64(2, 3, 4)
FLAT = np.array([[0, 1], [0, 3], [1, 2], [2, 0], [2, 1]], np.int64)
OTHER = np.array([[0, 0], [0, 3], [1, 1], [2, 1]], np.int64)
EVERY = ALL + ["string"]
SUMMED = ["float", "double", "int64", "int32", "int16", "int8", "complex64", "complex128"]
REAL = {"complex64": "float", "complex128": "double"}


def cases():
    r = Rand("sparse values")
    yield from reductions(r)
    yield from slices(r)
    yield from sums(r)
    yield from dense_sums(r)
    yield from concats(r)
    yield from splits(r)
    yield from softmaxes(r)
    yield from unions(r)
    yield from with_dense(r)
    yield from products(r)


def reductions(r):
    for op in ("SparseReduceSum", "SparseReduceMax", "SparseReduceSumSparse", "SparseReduceMaxSparse"):
        for dtype in NUMBERS + (COMPLEX if "Sum" in op else []):
            yield case(op, AT, r(dtype, (6,)), SHAPE, i32(1))
        for axes in (i32(), i32(0), i32(-1), i32(0, 2), i32(2, -3), i32(0, 1, 2), s32(1), i32(1, 1)):
            for keep_dims in (False, True):
                yield case(op, AT, r("float", (6,)), SHAPE, axes, keep_dims=keep_dims)
        yield case(op, AT[[4, 1, 5, 0]], r("float", (4,)), SHAPE, i32(1))
        yield case(op, AT[[4, 1, 4, 0]], r("float", (4,)), SHAPE, i32(0))
        yield case(op, empty("int64", 0, 3), empty("float", 0), SHAPE, i32(1))
        yield case(op, empty("int64", 0, 2), empty("float", 0), i64(0, 4), i32(1))
        yield case(op, AT[:, 2:], r("float", (6,)), i64(4), i32(0))
        x = r("float", (6,))
        yield case(op, AT, x, SHAPE, i32(3), fails=True)
        yield case(op, AT, x, SHAPE, i32(-4), fails=True)
        yield case(op, AT, x, SHAPE, i32([[1]]), fails=True)
        yield case(op, AT, x, np.array([[2, 3, 4]]), i32(1), fails=True)
        yield case(op, AT, x[:4], SHAPE, i32(1), fails=True)
        yield case(op, AT, x[:, None], SHAPE, i32(1), fails=True)
        yield case(op, AT, x, SHAPE[:2], i32(1), fails=True)
        yield case(op, AT[0], x[:3], SHAPE, i32(1), fails=True)
        yield case(op, AT, x, i64(2, -3, 4), i32(1), fails=True)
        if "Sparse" not in op[6:]:
            yield case(op, AT, x, i64(1, 3, 4), i32(1), fails=True)


def slices(r):
    for dtype in EVERY:
        yield case("SparseSlice", FLAT, r(dtype, (5,)), i64(3, 4), i64(1, 0), i64(2, 2))
    x = r("float", (5,))
    for start, size in ((i64(0, 0), i64(3, 4)), (i64(0, 1), i64(9, 9)), (i64(2, 2), i64(1, 1)), (i64(5, 0), i64(2, 2)),
                        (i64(0, 0), i64(0, 4)), (i64(-1, 0), i64(3, 4))):
        yield case("SparseSlice", FLAT, x, i64(3, 4), start, size)
    yield case("SparseSlice", empty("int64", 0, 2), x[:0], i64(3, 4), i64(0, 0), i64(2, 2))
    yield case("SparseSlice", FLAT[:, :1][[0, 2, 3]], x[:3], i64(3), i64(1), i64(2))
    for at, values, shape, start, size in (
            (FLAT, x, i64(3, 4), i64(1), i64(2, 2)), (FLAT, x, i64(3, 4), i64(1, 0), i64(2)),
            (FLAT, x, i64(3, 4), np.int64(1), i64(2, 2)), (FLAT, x, i64(3, 4), i64(0, 0), np.int64(1)),
            (FLAT, x[:4], i64(3, 4), i64(0, 0), i64(1, 1)), (FLAT, x, i64(3, 4, 5), i64(0, 0), i64(1, 1)),
            (FLAT[0], x, i64(3, 4), i64(0, 0), i64(1, 1)), (FLAT, x[:, None], i64(3, 4), i64(0, 0), i64(1, 1)),
            (FLAT, x, i64(3, -4), i64(0, 0), i64(1, 1)), (FLAT, x, i64(3, 4), i64(0, 0), i64(-1, 1))):
        yield case("SparseSlice", at, values, shape, start, size, fails=True)
    part = np.array([[0, 2], [1, 0], [1, 1]], np.int64)
    for dtype in NUMBERS + COMPLEX:
        yield case("SparseSliceGrad", r(dtype, (3,)), FLAT, i64(1, 0), part)
    yield case("SparseSliceGrad", x[:0], FLAT, i64(1, 0), part[:0])
    yield case("SparseSliceGrad", x[:0], empty("int64", 0, 2), i64(1, 0), empty("int64", 0, 2))
    for dy, at, start, sliced in ((x[:2], FLAT, i64(1, 0), part), (x[:3], FLAT, i64(1), part),
                                  (x[:3], FLAT, i64(0, 0), part), (x[:3], FLAT, i64(1, 0), part[:, :1]),
                                  (x[:3], FLAT[:2], i64(1, 0), part), (x[:3], FLAT[0], i64(1, 0), part),
                                  (x[:3, None], FLAT, i64(1, 0), part), (x[:3], FLAT, np.int64(1), part)):
        yield case("SparseSliceGrad", dy, at, start, sliced, fails=True)


def sums(r):
    s = i64(3, 4)
    for dtype in SUMMED:
        zero = a(REAL.get(dtype, dtype), 0)
        b = r(dtype, (4,))
        x = r(dtype, (5,))
        yield case("SparseAdd", FLAT, x, s, OTHER, b, s, zero)
        b[1] = -x[1]
        yield case("SparseAdd", FLAT, x, s, OTHER, b, s, a(REAL.get(dtype, dtype), 1))
        yield case("SparseAddGrad", r(dtype, (7,)), FLAT, OTHER, np.unique(np.concatenate([FLAT, OTHER]), axis=0))
        yield case("SparseAddGrad", r(dtype, (6,)), FLAT, OTHER,
                   np.delete(np.unique(np.concatenate([FLAT, OTHER]), axis=0), 2, axis=0))
    x, y, zero = r("float", (5,)), r("float", (4,)), np.float32(0)
    none, nothing = empty("int64", 0, 2), empty("float", 0)
    yield case("SparseAdd", none, nothing, s, OTHER, y, s, zero)
    yield case("SparseAdd", FLAT, x, s, none, nothing, s, zero)
    yield case("SparseAdd", none, nothing, s, none, nothing, s, zero)
    for args in ((FLAT[0], x, s, OTHER, y, s, zero), (FLAT, x, s, OTHER[:, :1], y, s, zero),
                 (FLAT, x[:, None], s, OTHER, y, s, zero), (FLAT, x[:4], s, OTHER, y, s, zero),
                 (FLAT, x, np.int64(3), OTHER, y, s, zero), (FLAT, x, i64(3), OTHER, y, i64(3), zero),
                 (FLAT, x, s, OTHER, y, i64(3), zero), (FLAT, x, s, OTHER, y, i64(3, 5), zero),
                 (FLAT, x, s, OTHER, y, s, x), (empty("int64", 5, 0), x, i64(), empty("int64", 4, 0), y, i64(), zero)):
        yield case("SparseAdd", *args, fails=True)
    for args in ((x, FLAT[0], OTHER, FLAT), (x[:, None], FLAT, OTHER, FLAT), (x, FLAT[:, :1], OTHER, FLAT),
                 (x[:3], FLAT, OTHER, FLAT)):
        yield case("SparseAddGrad", *args, fails=True)


def dense_sums(r):
    s = i64(3, 4)
    for dtype in NUMBERS + COMPLEX:
        yield case("SparseTensorDenseAdd", FLAT, r(dtype, (5,)), s, r(dtype, (3, 4)))
    x, b = r("float", (5,)), r("float", (3, 4))
    yield case("SparseTensorDenseAdd", FLAT.astype(np.int32), x, i32(3, 4), b)
    yield case("SparseTensorDenseAdd", FLAT[[0, 1, 0]], x[:3], s, b)
    yield case("SparseTensorDenseAdd", empty("int64", 0, 2), x[:0], s, b)
    yield case("SparseTensorDenseAdd", FLAT[:, :1], x, i64(3), b[:, 0])
    yield case("SparseTensorDenseAdd", np.concatenate([FLAT] * 2 + [FLAT[:, :1]], 1), x, i64(3, 4, 3, 4, 3),
               r("float", (3, 4, 3, 4, 3)))
    for args in ((FLAT[0], x, s, b), (FLAT, x[:, None], s, b), (FLAT, x[:4], s, b), (FLAT, x, i64(3), b),
                 (FLAT, x, s, b[0]), (FLAT, x, i64(3, 5), b), (FLAT + 1, x, s, b), (-FLAT, x, s, b),
                 (empty("int64", 5, 0), x, i64(), np.float32(1)),
                 (np.concatenate([FLAT] * 3, 1), x, i64(3, 4, 3, 4, 3, 4), r("float", (3, 4, 3, 4, 3, 4)))):
        yield case("SparseTensorDenseAdd", *args, fails=True)


def concats(r):
    other = OTHER[:, ::-1]
    for dtype in EVERY:
        yield case("SparseConcat", [FLAT, OTHER], [r(dtype, (5,)), r(dtype, (4,))], [i64(3, 4)] * 2, concat_dim=1)
    x, y = r("float", (5,)), r("float", (4,))
    for dim in (0, 1, -1, -2):
        yield case("SparseConcat", [FLAT, OTHER, FLAT], [x, y, x], [i64(3, 4)] * 3, concat_dim=dim)
    yield case("SparseConcat", [FLAT[::-1], other], [x, y], [i64(3, 4), i64(4, 4)], concat_dim=0)
    none = empty("int64", 0, 2)
    yield case("SparseConcat", [none, none], [x[:0]] * 2, [i64(3, 4)] * 2, concat_dim=0)
    yield case("SparseConcat", [none, OTHER], [x[:0], y], [i64(3, 4)] * 2, concat_dim=0)
    for at, values, shapes, dim in (
            ([FLAT, OTHER], [x, y], [i64(3, 4), i64(3, 5)], 0), ([FLAT, OTHER], [x, y], [i64(3, 4), i64(3, 4, 1)], 0),
            ([FLAT, OTHER], [x, y], [i64(3, 4)] * 2, 2), ([FLAT, OTHER], [x, y], [i64(3, 4)] * 2, -3),
            ([FLAT, i64(1)], [x, y], [i64(3, 4)] * 2, 0), ([FLAT, OTHER], [x, y[:, None]], [i64(3, 4)] * 2, 0),
            ([FLAT, OTHER], [x, y], [i64(3, 4), np.int64(3)], 0), ([FLAT, OTHER], [x, y[:2]], [i64(3, 4)] * 2, 0),
            ([FLAT, OTHER], [x, y], [i64(3, 1 << 40), i64(1 << 40, 1 << 40)], 0)):
        yield case("SparseConcat", at, values, shapes, concat_dim=dim, fails=True)


def splits(r):
    for dtype in EVERY:
        yield case("SparseSplit", np.int64(1), FLAT, r(dtype, (5,)), i64(3, 4), num_split=2)
    x = r("float", (5,))
    for dim, n in ((0, 1), (0, 2), (0, 3), (1, 3), (1, 4), (-1, 2), (-2, 2)):
        yield case("SparseSplit", np.int64(dim), FLAT, x, i64(3, 4), num_split=n)
    yield case("SparseSplit", np.int64(0), empty("int64", 0, 2), x[:0], i64(3, 4), num_split=2)
    for dim, at, values, shape, n in (
            (np.int64(0), FLAT, x, i64(3, 4), 4), (np.int64(2), FLAT, x, i64(3, 4), 1),
            (np.int64(-3), FLAT, x, i64(3, 4), 1), (i64(0), FLAT, x, i64(3, 4), 1),
            (np.int64(0), FLAT[0], x, i64(3, 4), 1), (np.int64(0), FLAT, x[:, None], i64(3, 4), 1),
            (np.int64(0), FLAT, x, np.int64(3), 1), (np.int64(0), FLAT + 1, x, i64(3, 4), 1),
            (np.int64(0), FLAT, x[:3], i64(3, 4), 1), (np.int64(0), FLAT, x, i64(3, 4, 1), 1)):
        yield case("SparseSplit", dim, at, values, shape, num_split=n, fails=True)


def softmaxes(r):
    for dtype in ("half", "float", "double"):
        yield case("SparseSoftmax", AT, r(dtype, (6,)), SHAPE)
    x = r("float", (6,), -90, 90)
    yield case("SparseSoftmax", AT, x, SHAPE)
    yield case("SparseSoftmax", AT[::-1], x, SHAPE)
    yield case("SparseSoftmax", FLAT, x[:5], i64(3, 4))
    yield case("SparseSoftmax", empty("int64", 0, 2), x[:0], i64(3, 4))
    for args in ((FLAT[0], x[:5], i64(3, 4)), (FLAT, x[:5, None], i64(3, 4)), (FLAT, x[:5], np.int64(3)),
                 (FLAT[:, :1], x[:5], i64(3)), (FLAT, x, i64(3, 4)), (FLAT, x[:5], i64(3, 4, 5)),
                 (FLAT, x[:5], i64(3, -4))):
        yield case("SparseSoftmax", *args, fails=True)


def unions(r):
    s = i64(3, 4)
    for op in ("SparseSparseMaximum", "SparseSparseMinimum"):
        for dtype in NUMBERS:
            yield case(op, FLAT, r(dtype, (5,)), s, OTHER, r(dtype, (4,)), s)
        x, y = r("float", (5,)), r("float", (4,))
        yield case(op, FLAT, x, s, empty("int64", 0, 2), y[:0], s)
        yield case(op, empty("int64", 0, 2), y[:0], s, OTHER, y, s)
        for args in ((FLAT, x, s, OTHER, y, i64(3, 5)), (FLAT, x, s, OTHER[:, :1], y, i64(3)),
                     (FLAT + 1, x, s, OTHER, y, s), (FLAT, x, s, -OTHER, y, s), (FLAT, x[:4], s, OTHER, y, s),
                     (FLAT[0], x, s, OTHER, y, s), (FLAT, x, i64(3), OTHER, y, s), (FLAT, x[:, None], s, OTHER, y, s),
                     (empty("int64", 5, 0), x, i64(), empty("int64", 4, 0), y, i64())):
            yield case(op, *args, fails=True)


def with_dense(r):
    for op in ("SparseDenseCwiseAdd", "SparseDenseCwiseMul", "SparseDenseCwiseDiv"):
        for dtype in NUMBERS:
            yield case(op, FLAT, r(dtype, (5,)), i64(3, 4), r(dtype, (3, 4), 1, 9))
        x = r("float", (5,))
        for shape in ((4,), (1,), (), (3, 1), (1, 4), (1, 1)):
            yield case(op, FLAT, x, i64(3, 4), r("float", shape, 1, 2))
        yield case(op, AT, r("float", (6,)), SHAPE, r("float", (3, 1), 1, 2))
        yield case(op, empty("int64", 0, 2), x[:0], i64(3, 4), r("float", (3, 4)))
        b = r("float", (3, 4), 1, 2)
        for args in ((FLAT[0], x, i64(3, 4), b), (FLAT, x[:, None], i64(3, 4), b), (FLAT, x[:3], i64(3, 4), b),
                     (FLAT, x, i64(3), b), (FLAT + 1, x, i64(3, 4), b), (-FLAT, x, i64(3, 4), b),
                     (FLAT, x, i64(3, 4), b.T), (FLAT, x, i64(1, 4), b), (FLAT, x, i64(3, 4), b[None]),
                     (FLAT, x, np.int64(3), b), (empty("int64", 5, 0), x, i64(), np.float32(1)),
                     (np.concatenate([FLAT] * 3, 1), x, i64(3, 4, 3, 4, 3, 4), b)):
            yield case(op, *args, fails=True)
    yield case("SparseDenseCwiseDiv", FLAT, r("int32", (5,)), i64(3, 4), np.zeros((3, 4), np.int32), fails=True)


def products(r):
    for ta in (False, True):
        for tb in (False, True):
            for left in ("float", "bfloat16"):
                for right in ("float", "bfloat16"):
                    x, y = r(left, (5, 7) if not ta else (7, 5)), r(right, (7, 3) if not tb else (3, 7))
                    yield case("SparseMatMul", x * (x > 0), y, transpose_a=ta, transpose_b=tb, a_is_sparse=True)
    yield case("SparseMatMul", r("float", (130, 40)), r("float", (40, 65)), b_is_sparse=True)
    yield case("SparseMatMul", r("float", (3, 4)), r("float", (4, 2)))
    yield case("SparseMatMul", empty("float", 0, 4), r("float", (4, 2)))
    yield case("SparseMatMul", empty("float", 3, 0), empty("float", 0, 2))
    yield case("SparseMatMul", r("float", (3, 4)), r("float", (3, 4)), fails=True)
    yield case("SparseMatMul", r("float", (3,)), r("float", (3, 4)), fails=True)
    yield case("SparseMatMul", r("float", (3, 4)), r("float", (4,)), fails=True)
