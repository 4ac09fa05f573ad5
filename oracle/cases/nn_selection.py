"""Selection, formats of dimensions, isotonic regression and fractional pooling."""

import numpy as np

from casekit import NUMBERS, Rand, a, case, empty, i32, i64, s32


def cases():
    r = Rand("nn selection rows")
    yield from nth(r)
    yield from top(r)
    yield from formats(r)
    yield from isotonic(r)
    yield from pools(r)
    yield from pool_grads(r)
    yield from old_convolutions(r)


def nth(r):
    for dtype in NUMBERS:
        yield case("NthElement", r(dtype, (3, 7)), s32(2))
    x = r("float", (2, 3, 9))
    for n in (0, 4, 8):
        for reverse in (False, True):
            yield case("NthElement", x, s32(n), reverse=reverse)
    yield case("NthElement", r("int32", (40,), 0, 5), s32(17))
    yield case("NthElement", empty("float", 0, 3), s32(1))
    for args in ((x, s32(9)), (x, s32(-1)), (np.float32(3), s32(0)), (x, i32(1))):
        yield case("NthElement", *args, fails=True)


def top(r):
    for dtype in ("float", "half", "bfloat16"):
        yield case("ApproxTopK", r(dtype, (3, 9)), k=3)
    x = r("float", (2, 3, 20))
    yield case("ApproxTopK", x, k=20, recall_target=0.5)
    yield case("ApproxTopK", x, k=1, reduction_input_size_override=100)
    yield case("ApproxTopK", x, k=0)
    for attrs in ({"k": 21}, {"k": 2, "recall_target": 0.0}, {"k": 2, "recall_target": 1.5}):
        yield case("ApproxTopK", x, fails=True, **attrs)


def formats(r):
    for dtype in ("int32", "int64"):
        yield case("DataFormatDimMap", a(dtype, [0, 1, 2, 3, -1, -2, -3, -4]))
        yield case("DataFormatDimMap", a(dtype, [[0, 4], [-5, 2]]), src_format="NDHWC", dst_format="NCDHW")
        for value in ([1, 2, 3, 4], [[1, 2], [3, 4], [5, 6], [7, 8]], [5, 6], [[1, 2], [3, 4]]):
            yield case("DataFormatVecPermute", a(dtype, value))
            yield case("DataFormatVecPermute", a(dtype, value), src_format="NCHW", dst_format="NHWC")
        for value in ([1, 2, 3, 4, 5], [7, 8, 9]):
            yield case("DataFormatVecPermute", a(dtype, value), src_format="NDHWC", dst_format="NCDHW")
    yield case("DataFormatDimMap", i32(7, -9))
    yield case("DataFormatDimMap", s32(2), src_format="HWNC", dst_format="NCHW")
    yield case("DataFormatDimMap", empty("int32", 0))
    yield case("DataFormatVecPermute", i32(3, 4), src_format="HWNC", dst_format="NCWH")
    for attrs in ({"src_format": "NHW"}, {"dst_format": "NCHWDX"}, {"src_format": "NHWX"}, {"src_format": "NHHW"}):
        for op in ("DataFormatDimMap", "DataFormatVecPermute"):
            yield case(op, i32(1, 2, 3, 0), fails=True, **attrs)
    for value in (i32(1, 2, 3), i32([[1, 2, 3]]).reshape(1, 3), np.zeros((4, 3), np.int32), np.zeros((4, 2, 1), np.int32)):
        yield case("DataFormatVecPermute", value, fails=True)
    yield case("DataFormatVecPermute", i32(1, 2), src_format="NABC", dst_format="ABCN", fails=True)


def isotonic(r):
    for dtype, out in (("float", "float"), ("double", "double"), ("half", "half"), ("bfloat16", "bfloat16"),
                       ("int8", "float"), ("int16", "float"), ("int32", "double"), ("int64", "double")):
        yield case("IsotonicRegression", r(dtype, (3, 8)), output_dtype=out)
    yield case("IsotonicRegression", r("float", (40,)))
    yield case("IsotonicRegression", r("float", (2, 3, 5)))
    yield case("IsotonicRegression", a("float", [[3, 3, 2, 2, 5, 1], [1, 2, 3, 4, 5, 6]]))
    yield case("IsotonicRegression", empty("float", 0, 4))
    yield case("IsotonicRegression", np.float32(3))


def pools(r):
    ratio = [1.0, 1.44, 1.73, 1.0]
    for op in ("FractionalMaxPool", "FractionalAvgPool"):
        for dtype in ("float", "double", "int32", "int64"):
            yield case(op, r(dtype, (2, 9, 10, 3)), pooling_ratio=ratio, deterministic=True, seed=3, seed2=8)
        x = r("float", (1, 13, 17, 2))
        for pseudo_random in (False, True):
            for overlapping in (False, True):
                for seed in (1, 98765):
                    yield case(op, x, pooling_ratio=ratio, deterministic=True, seed=seed, seed2=4,
                               pseudo_random=pseudo_random, overlapping=overlapping)
                yield case(op, x, pooling_ratio=[1.0, 1.0, 1.0, 1.0], pseudo_random=pseudo_random,
                           overlapping=overlapping, deterministic=True, seed=7)
        yield case(op, x[:, :8, :6], pooling_ratio=[1.0, 2.0, 3.0, 1.0])
        for attrs in ({"pooling_ratio": [1.0, 0.5, 1.0, 1.0]}, {"pooling_ratio": [1.5, 1.5, 1.5, 1.0]},
                      {"pooling_ratio": ratio + [1.0]}, {"pooling_ratio": ratio, "seed": 3},
                      {"pooling_ratio": [1.0, 13.5, 1.0, 1.0]}):
            yield case(op, x, fails=True, **attrs)
        yield case(op, x[0], pooling_ratio=ratio, fails=True)


def pool_grads(r):
    rows, cols = i64(0, 2, 3, 5), i64(0, 1, 3, 4, 6)
    for dtype in ("float", "double", "int32", "int64"):
        for overlapping in (False, True):
            x = r(dtype, (2, 5, 6, 3), -50, 50)
            shift = 1 if overlapping else 0
            y = np.stack([np.stack([x[:, s:e + shift, t:f + shift].max((1, 2)) for t, f in zip(cols, cols[1:])], 1)
                          for s, e in zip(rows, rows[1:])], 1)
            dy = r(dtype, y.shape, -9, 9)
            yield case("FractionalMaxPoolGrad", x, y, dy, rows, cols, overlapping=overlapping)
            yield case("FractionalAvgPoolGrad", i64(2, 5, 6, 3), dy, rows, cols, overlapping=overlapping)
    yield case("FractionalMaxPoolGrad", x, y + 1, dy, rows, cols, fails=True)
    yield case("FractionalMaxPoolGrad", x, y, dy, rows[None], cols, fails=True)
    yield case("FractionalMaxPoolGrad", x, y, dy, rows, cols[:, None], fails=True)
    shape = i64(2, 5, 6, 3)
    for args in ((shape[:3], dy, rows, cols), (shape, dy[0], rows, cols), (shape, dy[:0], rows, cols),
                 (shape, dy, rows[:3], cols), (shape, dy, rows, cols[:4]), (shape * i64(0, 1, 1, 1), dy, rows, cols),
                 (shape * i64(1, 0, 1, 1), dy, rows, cols), (shape * i64(1, 1, 1, 0), dy, rows, cols),
                 (shape, dy, rows - 3, cols), (shape, dy, rows, cols - 3)):
        yield case("FractionalAvgPoolGrad", *args, fails=True)


def old_convolutions(r):
    for dtype in ("float", "double", "half"):
        for padding in ("SAME", "VALID"):
            x, f = r(dtype, (1, 4, 5, 4, 2)), r(dtype, (2, 3, 2, 2, 3))
            size = (1, 4, 5, 4, 3) if padding == "SAME" else (1, 3, 3, 3, 3)
            for op in ("Conv3DBackpropInput", "Conv3DBackpropFilter"):
                yield case(op, x, f, r(dtype, size), strides=[1] * 5, padding=padding)
    yield case("Conv3DBackpropInput", x, f, r("half", (1, 3, 2, 2, 3)), strides=[1, 2, 2, 2, 1], padding="VALID",
               fails=True)
