"""Quantized products and convolutions with bias, sum, ReLU and requantization, which only oneDNN has."""

import numpy as np

from casekit import Rand, case, q

from cases.quantized import bounds, codes

f32 = np.float32


def convolutions():
    r = Rand("fused convolutions")
    sizes = [((2, 4, 5, 3), (3, 3, 3, 4), 1), ((1, 6, 6, 2), (2, 3, 2, 17), 2)]
    for shape, filter_shape, stride in sizes:
        n = filter_shape[3]
        for padding in ("SAME", "VALID"):
            attrs = {"strides": [1, stride, stride, 1], "padding": padding}
            for signed in (False, True):
                x = codes(r, "qint8" if signed else "quint8", shape)
                w = codes(r, "qint8", filter_shape)
                ends = bounds(-1 if signed else 0, 2, -1.5, 1)
                bias, whole = r("float", (n,), -3, 3), q("qint32", r("int32", (n,), -9000, 9000))
                for b in (bias, whole):
                    frozen = bounds(0, 9)
                    yield case("QuantizedConv2DWithBiasAndReluAndRequantize", x, w, b, *ends, *frozen,
                               out_type="quint8", **attrs)
                    yield case("QuantizedConv2DWithBiasAndRequantize", x, w, b, *ends, *bounds(-8, 5),
                               out_type="qint8", **attrs)
                yield case("QuantizedConv2DWithBias", x, w, bias, *ends, out_type="qint32", **attrs)
                yield case("QuantizedConv2DWithBiasAndRelu", x, w, bias, *ends, out_type="qint32", **attrs)
                if signed:
                    continue
                yield case("QuantizedConv2D", x, w, *ends, out_type="qint32", **attrs)
                yield case("QuantizedConv2DAndRelu", x, w, *ends, out_type="qint32", **attrs)
                yield case("QuantizedConv2DAndReluAndRequantize", x, w, *ends, *bounds(0, 9), out_type="quint8", **attrs)
                yield case("QuantizedConv2DAndRequantize", x, w, *ends, *bounds(-8, 5), out_type="qint8", **attrs)
                low, high = r("float", (n,), -2, -1), r("float", (n,), 0, 1.5)
                yield case("QuantizedConv2DPerChannel", x, w, *ends[:2], low, high, out_type="qint32", **attrs)
                yield case("QuantizedConv2DWithBiasAndReluAndRequantize", x, w, bias, *ends[:2], low, high,
                           *bounds(0, 9), out_type="quint8", **attrs)
    for multiplier in (1, 2):
        for stride in (1, 2):
            x, w = codes(r, "quint8", (2, 5, 6, 3)), codes(r, "qint8", (3, 2, 3, multiplier))
            n = 3 * multiplier
            attrs = {"strides": [1, stride, stride, 1], "padding": "SAME"}
            ends, bias = bounds(0, 2, -1, 1), r("float", (n,), -3, 3)
            yield case("QuantizedDepthwiseConv2D", x, w, *ends, out_type="qint32", **attrs)
            yield case("QuantizedDepthwiseConv2DWithBias", x, w, bias, *ends, out_type="qint32", **attrs)
            yield case("QuantizedDepthwiseConv2DWithBiasAndRelu", x, w, bias, *ends, out_type="qint32", **attrs)
            yield case("QuantizedDepthwiseConv2DWithBiasAndReluAndRequantize", x, w, bias, *ends, *bounds(0, 5),
                       out_type="quint8", **attrs)


def products():
    r = Rand("fused products")
    for m, k, n in ((1, 4, 1), (3, 5, 2), (7, 20, 17)):
        x, w = codes(r, "quint8", (m, k)), codes(r, "qint8", (k, n))
        whole = q("qint32", r("int32", (n,), -9000, 9000))
        for mode, ends in (("SCALED", bounds(0, 2, -1, 0.5)), ("MIN_FIRST", bounds(0, 2, -1, 0.5)),
                           ("MIN_FIRST", bounds(-1, 2, -1, 0.5))):
            attrs = {"input_quant_mode": mode}
            biases = [r("float", (n,), -3, 3), whole]
            for bias in biases:
                yield case("QuantizedMatMulWithBias", x, w, bias, *ends, Toutput="qint32", **attrs)
                yield case("QuantizedMatMulWithBiasAndRequantize", x, w, bias, *ends, *bounds(-8, 9), Toutput="quint8",
                           **attrs)
                yield case("QuantizedMatMulWithBiasAndReluAndRequantize", x, w, bias, *ends, *bounds(0, 9),
                           Toutput="quint8", **attrs)
                yield case("QuantizedMatMulWithBiasAndDequantize", x, w, bias, *ends, *bounds(-8, 9), Toutput="float",
                           tol=1e-4, **attrs)
            yield case("QuantizedMatMulWithBiasAndRelu", x, w, biases[0], *ends, Toutput="qint32", **attrs)


def cases():
    yield from convolutions()
    yield from products()
