"""Gradient ops, separately; and ops whose newer forms are in the other families."""

import numpy as np

from casekit import COMPLEX, FLOATS, Rand, a, case, empty, i32, i64

BY_INPUT = ["ReluGrad", "Relu6Grad", "SoftplusGrad", "SoftsignGrad"]
BY_OUTPUT = ["EluGrad", "SeluGrad"]
OF_OUTPUT = ["SigmoidGrad", "TanhGrad", "SqrtGrad", "RsqrtGrad", "ReciprocalGrad", "InvGrad"]


def activations():
    for op in BY_INPUT + BY_OUTPUT + ["LeakyReluGrad"]:
        r = Rand(op)
        for dtype in FLOATS:
            yield case(op, r(dtype, (3, 7), -4, 4), r(dtype, (3, 7), -4, 8))
        yield case(op, a("float", [1, 2, 3]), a("float", [0.0, -0.0, 6.0]))
        yield case(op, empty("float", 0, 3), empty("float", 0, 3))
        yield case(op, r("float", (2,)), r("float", (3,)), fails=True)
        yield case(op, r("float", (3,)), r("float", (1,)), fails=True)
    yield case("LeakyReluGrad", r("float", (5,)), r("float", (5,)), alpha=0.01)
    for op in OF_OUTPUT:
        r = Rand(op)
        for dtype in FLOATS + COMPLEX:
            yield case(op, r(dtype, (3, 7), 0.2, 2), r(dtype, (3, 7)))
        yield case(op, empty("float", 0, 3), empty("float", 0, 3))
        yield case(op, empty("float", 0, 3), empty("float", 0))
        yield case(op, r("float", (2, 3)), r("float", (6,)))
        yield case(op, r("float", (3,)), r("float", (1,)), fails=True)


def slices():
    r = Rand("StridedSliceGrad")
    for dtype in FLOATS + ["int32", "string", "bool", "complex64"]:
        yield case("StridedSliceGrad", i32(4, 5), i32(1, 0), i32(3, 5), i32(1, 2), r(dtype, (2, 3)))
    yield case("StridedSliceGrad", i64(4, 5), i64(3, 0), i64(0, 5), i64(-1, 1), r("float", (3, 5)))
    yield case("StridedSliceGrad", i32(4, 5), i32(1), i32(2), i32(1), r("float", (5,)),
               shrink_axis_mask=1)
    yield case("StridedSliceGrad", i32(4, 5), i32(1), i32(2), i32(1), r("float", (4,)),
               shrink_axis_mask=1, fails=True)
    for mode, size in (("REFLECT", 7), ("SYMMETRIC", 7)):
        for dtype in FLOATS + ["complex64", "int32"]:
            yield case("MirrorPadGrad", r(dtype, (size, 5)), i32(1, 2, 0, 1).reshape(2, 2), mode=mode)
        yield case("MirrorPadGrad", r("float", (3, 5)), i32(3, 2, 0, 1).reshape(2, 2), mode=mode,
                   fails=True)


def special():
    for op in ("Zeta", "Polygamma"):
        for dtype, tol in (("float", 1e-4), ("double", 1e-9)):
            order = a(dtype, [1, 2, 3, 5]) if op == "Polygamma" else a(dtype, [1.5, 2, 3, 9.25])
            yield case(op, order, a(dtype, [0.5, 1, 2.25, 10]), tol=tol)


def convolutions():
    r = Rand("Conv3DBackpropFilterV2")
    for dtype in ("float", "double"):
        for strides in ((1, 1, 1), (2, 1, 2)):
            out = [-(-n // s) for n, s in zip((3, 4, 5), strides)]
            yield case("Conv3DBackpropFilterV2", r(dtype, (1, 3, 4, 5, 2)), i32(2, 2, 2, 2, 3),
                       r(dtype, (1, *out, 3)), strides=[1, *strides, 1], padding="SAME")


def segments():
    for kind in ("Sum", "Mean", "SqrtN"):
        r = Rand(kind)
        op = f"SparseSegment{kind}WithNumSegments"
        for dtype in FLOATS:
            for index in (i32, i64):
                yield case(op, r(dtype, (4, 2)), index(3, 0, 3, 1), index(0, 0, 1, 3), index(5)[0])
        yield case(op, r("float", (4, 2)), i32(3, 0), i32(0, 3), np.int32(3), fails=True)


def diagonals():
    r = Rand("MatrixDiagV2")
    for dtype in FLOATS + ["int32", "bool", "complex64"]:
        pad = r(dtype, ())
        yield case("MatrixDiagV2", r(dtype, (2, 3)), np.int32(1), np.int32(-1), np.int32(-1), pad)
        yield case("MatrixDiagPartV2", r(dtype, (2, 3, 4)), i32(-1, 1), pad)
        yield case("MatrixSetDiagV2", r(dtype, (2, 3, 4)), r(dtype, (2, 3)), np.int32(1))


def more():
    r = Rand("BatchNormWithGlobalNormalizationGrad")
    t, c = (2, 3, 3, 4), (4,)
    yield case("BatchNormWithGlobalNormalizationGrad", r("float", t), r("float", c),
               r("float", c, 0.5, 2), r("float", c), r("float", t), variance_epsilon=0.01,
               scale_after_normalization=True)
    yield case("NonDeterministicInts", i32(2, 3), dtype="int64", unchecked=(0,))
    yield case("NonDeterministicInts", i64(2, -3), dtype="int64", fails=True)


def cases():
    yield from activations()
    yield from slices()
    yield from special()
    yield from convolutions()
    yield from segments()
    yield from diagonals()
    yield from more()
