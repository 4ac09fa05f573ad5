"""Uniform quantized convolutions."""

import numpy as np
from tensorflow.core.util.quantization import uniform_quant_ops_attr_pb2 as attrs

from casekit import Rand, a, case, i32, s32
from cases.uniform_quant import bounds, codes

f32 = np.float32
SIDES = {**bounds("lhs_", "qint8"), **bounds("rhs_", "qint8"), **bounds("output_", "qint32")}
RHS = bounds("rhs_", "qint8")


def numbers(lhs, rhs, out):
    message = attrs.UniformQuantizedConvolutionDimensionNumbersAttr(
        input_batch_dimension=lhs[0], input_feature_dimension=lhs[1], input_spatial_dimensions=lhs[2:],
        kernel_output_feature_dimension=rhs[0], kernel_input_feature_dimension=rhs[1], kernel_spatial_dimensions=rhs[2:],
        output_batch_dimension=out[0], output_feature_dimension=out[1], output_spatial_dimensions=out[2:])
    return message.SerializeToString()


NHWC = numbers([0, 3, 1, 2], [3, 2, 0, 1], [0, 3, 1, 2])

# Shapes of both sides and attrs.
SIZES = [
    ((2, 3, 5, 4), (4, 3, 2, 3), {"padding": "VALID"}),
    ((2, 3, 5, 4), (4, 3, 2, 3), {"padding": "SAME", "window_strides": [2, 3]}),
    ((1, 4, 7), (6, 2, 3), {"padding": "SAME", "feature_group_count": 2}),
    ((4, 2, 6), (6, 2, 2), {"padding": "VALID", "batch_group_count": 2}),
    ((1, 2, 4, 5), (2, 2, 2, 2), {"padding": "SAME", "lhs_dilation": [2, 1], "rhs_dilation": [1, 2]}),
    ((1, 2, 4, 5), (2, 2, 2, 2), {"padding": "EXPLICIT", "explicit_padding": [1, 2, 0, 3]}),
    ((2, 1, 3, 2, 3), (2, 1, 2, 1, 2), {"padding": "SAME"}),
    ((0, 3, 5), (4, 3, 2), {"padding": "VALID"}),
    ((2, 3, 5), (0, 3, 2), {"padding": "SAME"}),
    ((2, 3, 0), (4, 3, 2), {"padding": "SAME"}),
    ((1, 3, 1), (4, 3, 2), {"padding": "VALID"}),
    ((1, 1, 1), (1, 1, 1), {"padding": "VALID"}),
    ((2, 5, 4, 3), (2, 3, 3, 4), {"padding": "SAME", "dimension_numbers": NHWC}),
    ((3, 5, 4, 4), (2, 2, 2, 6), {"padding": "VALID", "dimension_numbers": NHWC, "feature_group_count": 2}),
]


def cases():
    r = Rand("UniformQuantizedConvolution")
    for left, right, how in SIZES:
        lhs, rhs = codes(r, "qint8", left), codes(r, "qint8", right)
        axis, out_axis = (3, 3) if "dimension_numbers" in how else (0, 1)
        n = right[axis]
        scales, zeros = r("float", (n,), 0.1, 1), r("int32", (n,), -20, 20)
        others, more = r("float", (n,), 0.1, 1), r("int32", (n,), -20, 20)
        tail = {"Tout": "qint32", **how, **SIDES}
        one = (f32(0.1), s32(3))
        yield case("UniformQuantizedConvolution", lhs, rhs, *one, f32(0.2), s32(-7), f32(0.01), s32(4), **tail)
        yield case("UniformQuantizedConvolution", lhs, rhs, *one, scales, zeros, f32(0.01), s32(4),
                   rhs_quantization_axis=axis, **tail)
        yield case("UniformQuantizedConvolution", lhs, rhs, *one, scales, zeros, others, more,
                   rhs_quantization_axis=axis, output_quantization_axis=out_axis, **tail)
        x = r("float", left, -3, 5)
        yield case("UniformQuantizedConvolutionHybrid", x, rhs, f32(0.2), s32(-7), Tout="float", **how, **RHS)
        yield case("UniformQuantizedConvolutionHybrid", x, rhs, scales, zeros, Tout="float",
                   rhs_quantization_axis=axis, **how, **RHS)
    yield from refused(r)


def refused(r):
    lhs, rhs = codes(r, "qint8", (2, 3, 5)), codes(r, "qint8", (4, 3, 2))
    good = [lhs, rhs, f32(1), s32(0), f32(1), s32(0), f32(1), s32(0)]
    tail = {"Tout": "qint32", "fails": True, **SIDES}
    ones = a("float", [1] * 4)
    for i, value in ((0, lhs[0]), (0, lhs[:, :2]), (1, rhs[:, :2]), (2, f32(-1)), (4, f32(0)), (6, f32(-1)), (2, ones[:1]),
                     (4, ones), (6, ones)):
        yield case("UniformQuantizedConvolution", *good[:i], value, *good[i + 1:], padding="VALID", **tail)
    flat = [lhs[0], rhs[0], *good[2:]]
    yield case("UniformQuantizedConvolution", *flat, padding="VALID", **tail)
    per_out = [*good[:6], ones, i32(0, 0, 0, 0)]
    yield case("UniformQuantizedConvolution", *per_out, padding="VALID", output_quantization_axis=1, **tail)
    for how in ({"padding": "FULL"}, {"padding": "SAME", "explicit_padding": [1, 1]}, {"padding": "EXPLICIT"},
                {"padding": "EXPLICIT", "explicit_padding": [1, -1]}, {"padding": "SAME", "window_strides": [1, 1]},
                {"padding": "SAME", "window_strides": [0]}, {"padding": "SAME", "lhs_dilation": [0]},
                {"padding": "SAME", "rhs_dilation": [1, 1]}, {"padding": "SAME", "feature_group_count": 0},
                {"padding": "SAME", "feature_group_count": 2}, {"padding": "SAME", "batch_group_count": 0},
                {"padding": "SAME", "batch_group_count": 3}, {"padding": "SAME", "lhs_quantization_axis": 0},
                {"padding": "SAME", "rhs_quantization_axis": 1}, {"padding": "SAME", "output_quantization_axis": 0},
                {"padding": "SAME", "dimension_numbers": "x"}, {"padding": "SAME", "dimension_numbers": NHWC},
                {"padding": "SAME", "dimension_numbers": numbers([0, 3, 1], [0, 1, 2], [0, 1, 2])}):
        yield case("UniformQuantizedConvolution", *good, **how, **tail)
    x = r("float", (2, 3, 5))
    yield case("UniformQuantizedConvolutionHybrid", x, rhs, f32(-1), s32(0), Tout="float", padding="SAME", **RHS, fails=True)
    yield case("UniformQuantizedConvolutionHybrid", x, rhs, f32(1), s32(0), Tout="float", padding="SAME", **RHS,
               rhs_quantization_axis=1, fails=True)
