"""Quantized numbers: conversions, arithmetic, products, convolutions, pooling."""

import numpy as np

from casekit import Rand, a, case, i32, q, s32

f32 = np.float32
CODES = ["qint8", "quint8", "qint16", "quint16", "qint32"]
LIMITS = {"qint8": (-128, 127), "quint8": (0, 255), "qint16": (-32768, 32767), "quint16": (0, 65535),
          "qint32": (-2**31, 2**31 - 1)}


def codes(r, dtype, shape):
    low, high = LIMITS[dtype]
    values = r.rng.integers(low, high, shape, endpoint=True)
    if values.size > 1:
        values.reshape(-1)[:2] = low, high
    return q(dtype, values)


def conversions():
    r = Rand("QuantizeV2")
    ranges = [(-1, 3), (0, 6), (-2.5, 0), (1, 4), (-5, -2), (0, 0)]
    for dtype in CODES:
        # At the ends of 32-bit codes TensorFlow's conversion overflows.
        spread = 0.9 if dtype == "qint32" else 1.2
        for low, high in ranges:
            x = r("float", (3, 7), low * spread - (0.5 if spread > 1 else 0), high * spread + (0.5 if spread > 1 else 0))
            x.reshape(-1)[:3] = 0.0, low * 0.5, high * 0.5
            for mode in ("MIN_COMBINED", "MIN_FIRST", "SCALED"):
                yield case("QuantizeV2", x, f32(low), f32(high), T=dtype, mode=mode)
            yield case("QuantizeV2", x, f32(low), f32(high), T=dtype, mode="SCALED", round_mode="HALF_TO_EVEN")
            yield case("QuantizeV2", x, f32(low), f32(high), T=dtype, mode="SCALED", narrow_range=True,
                       ensure_minimum_range=0.5)
        halves = a("float", np.arange(-12, 13) / 2)
        for mode in ("HALF_TO_EVEN", "HALF_AWAY_FROM_ZERO"):
            top = float(LIMITS[dtype][1])
            yield case("QuantizeV2", halves, f32(-top), f32(top), T=dtype, mode="SCALED", round_mode=mode)
        x = r("float", (2, 3, 4), -3, 3)
        for axis in (0, 1, 2):
            n = x.shape[axis]
            low, high = r("float", (n,), -3, -1), r("float", (n,), 4, 5)
            for mode in ("MIN_COMBINED", "SCALED"):
                for narrow in (False, True):
                    yield case("QuantizeV2", x, low, high, T=dtype, mode=mode, axis=axis, narrow_range=narrow)
        yield case("QuantizeV2", x[:, :1], a("float", [-4]), a("float", [4]), T=dtype, axis=1)
        yield case("QuantizeV2", x[:, :0], f32(-4), f32(4), T=dtype)
        for low, high in ranges:
            c = codes(r, dtype, (4, 5))
            for mode in ("MIN_COMBINED", "MIN_FIRST", "SCALED"):
                yield case("Dequantize", c, f32(low), f32(high), mode=mode)
            yield case("Dequantize", c, f32(low), f32(high), mode="SCALED", narrow_range=True)
            yield case("Dequantize", c, f32(low), f32(high), dtype="bfloat16")
        c = codes(r, dtype, (2, 3, 4))
        for axis in (0, 1, 2):
            n = c.shape[axis]
            low, high = r("float", (n,), -3, -1), r("float", (n,), 1, 3)
            yield case("Dequantize", c, low, high, axis=axis)
            yield case("Dequantize", c, low, high, axis=axis, mode="SCALED", narrow_range=True)
            yield case("Dequantize", c, low, high, axis=axis, dtype="bfloat16")
        yield case("Dequantize", c[:0], f32(-1), f32(1))


def bad_conversions():
    x, low, high = a("float", [[1, 2, 3]]), f32(-1), f32(1)
    two, three = a("float", [-1, -2]), a("float", [-1, -2, -3])
    kind = {"T": "quint8"}
    yield case("QuantizeV2", x, high, low, **kind, fails=True)
    yield case("QuantizeV2", x, two, high, **kind, fails=True)
    yield case("QuantizeV2", x, low, two, **kind, fails=True)
    yield case("QuantizeV2", x, low, high, axis=1, **kind, fails=True)
    yield case("QuantizeV2", x, three, high, axis=1, **kind, fails=True)
    yield case("QuantizeV2", x, two, three, axis=1, **kind, fails=True)
    yield case("QuantizeV2", x, three, two, axis=1, **kind, fails=True)
    yield case("QuantizeV2", x, three, three, axis=2, **kind, fails=True)
    yield case("QuantizeV2", x, three, -three, axis=1, mode="MIN_FIRST", **kind, fails=True)
    yield case("QuantizeV2", x, low, high, round_mode="HALF_TO_EVEN", **kind, fails=True)
    yield case("QuantizeV2", x, -three, three, axis=1, **kind, fails=True)
    c = q("qint8", [[1, 2, 3]])
    yield case("Dequantize", c, two, three, axis=1, fails=True)
    yield case("Dequantize", c, three, three, axis=1, mode="MIN_FIRST", fails=True)
    yield case("Dequantize", c, low, high, mode="SCALED", dtype="bfloat16", fails=True)


def arrays():
    r = Rand("quantized arrays")
    for dtype in ("quint8", "qint32"):
        for axis, shapes in ((0, [(2, 3), (1, 3)]), (1, [(2, 3), (2, 1), (2, 4)]), (2, [(1, 2, 3), (1, 2, 2)]),
                             (0, [(5,), (4,)])):
            parts = [codes(r, dtype, shape) for shape in shapes]
            for lows, highs in (([-1] * 3, [2] * 3), ([-1, 0, 1], [2, 6, 3]), ([1, 2, 1], [3, 3, 3])):
                n = len(shapes)
                lows, highs = [f32(x) for x in lows[:n]], [f32(x) for x in highs[:n]]
                yield case("QuantizedConcat", s32(axis), parts, lows, highs)
        c = codes(r, dtype, (2, 6))
        for sizes in ((3, 4), (-1,), (2, -1, 3)):
            yield case("QuantizedReshape", c, i32(*sizes), f32(-1), f32(2))
        yield case("QuantizedReshape", c, i32(12), a("float", [-1, 2]), f32(2), fails=True)
        yield case("QuantizedReshape", c, i32(12), f32(2), a("float", [[-1]]), fails=True)
        yield case("QuantizedReshape", c, i32(5), f32(-1), f32(2), fails=True)
    c, d, ends = codes(r, "quint8", (2, 3)), codes(r, "quint8", (3, 2)), [f32(0), f32(1)]
    for dim in (s32(2), s32(-1), i32(0)):
        yield case("QuantizedConcat", dim, [c, c], ends, ends, fails=True)
    yield case("QuantizedConcat", s32(0), [c, d], ends, ends, fails=True)
    yield case("QuantizedConcat", s32(0), [c, c[0]], ends, ends, fails=True)
    yield case("QuantizedConcat", s32(0), [c, c], [ends[0], a("float", [1, 2])], ends, fails=True)
    yield case("QuantizedConcat", s32(0), [c, c], ends, [ends[0], a("float", [1, 2])], fails=True)
    for shape in ((1, 4, 5, 3), (2, 3, 3, 16), (1, 2, 2, 1)):
        c = codes(r, "quint8", shape)
        for low, high in ((-1, 2), (0, 6)):
            yield case("QuantizedInstanceNorm", c, f32(low), f32(high))
            yield case("QuantizedInstanceNorm", c, f32(low), f32(high), output_range_given=True, given_y_min=-1.5,
                       given_y_max=1.0)
            yield case("QuantizedInstanceNorm", c, f32(low), f32(high), variance_epsilon=0.1, min_separation=30.0)
    yield case("QuantizedInstanceNorm", c, f32(1), f32(1), fails=True)
    yield case("QuantizedInstanceNorm", c, a("float", [1]), f32(2), fails=True)
    yield case("QuantizedInstanceNorm", c, f32(1), a("float", [2]), fails=True)
    yield case("QuantizedInstanceNorm", c, f32(0), f32(1), output_range_given=True, given_y_min=1.0, given_y_max=0.0,
               fails=True)


def bounds(*values):
    return [f32(v) for v in values]


def requantizations():
    r = Rand("Requantize")
    for span in (1000, 2**20, 2**31 - 1):
        c = q("qint32", r.rng.integers(-span, span, (3, 5), endpoint=True))
        for low, high in ((-1, 1), (-20, 30), (0, 5)):
            yield case("RequantizationRange", c, *bounds(low, high))
            yield case("QuantizeDownAndShrinkRange", c, *bounds(low, high), out_type="quint8")
            for to in ((-0.5, 0.5), (0, 0.25), (-1e-4, 3e-4), (0, 0)):
                for out in ("quint8", "qint8"):
                    yield case("Requantize", c, *bounds(low, high, *to), out_type=out)
    yield case("RequantizationRange", c[:0], *bounds(-1, 1))
    yield case("QuantizeDownAndShrinkRange", c[:0], *bounds(-1, 1), out_type="quint8")
    yield case("Requantize", c[:0], *bounds(-1, 1, -1, 1), out_type="quint8")
    one, vector = f32(1), a("float", [1])
    for op, n, attrs in (("QuantizeDownAndShrinkRange", 2, {"out_type": "quint8"}),
                         ("Requantize", 4, {"out_type": "quint8"})):
        for i in range(n):
            ends = bounds(-1, 1, -1, 1)[:n]
            ends[i] = vector
            yield case(op, c, *ends, **attrs, fails=True)
    yield case("Requantize", c, *bounds(-1, 1, 0.5, 1), out_type="quint8", fails=True)
    yield case("Requantize", c, *bounds(-1, 1, -1, -2), out_type="quint8", fails=True)
    yield case("RequantizationRange", c, vector[:0], one, fails=True)
    yield case("RequantizationRange", c, one, vector[:0], fails=True)
    for shape in ((1, 2, 3, 4), (2, 1, 1, 3)):
        low, high = r("float", (shape[3],), -3, 0), r("float", (shape[3],), 0, 3)
        for span in (1000, 2**31 - 1):
            c = q("qint32", r.rng.integers(-span, span, shape, endpoint=True))
            positive = q("qint32", r.rng.integers(0, span, shape, endpoint=True))
            for clip in (10.0, 1e-6):
                yield case("RequantizationRangePerChannel", c, low, high, clip_value_max=clip)
                yield case("RequantizationRangePerChannel", positive, low, high, clip_value_max=clip)
            for out in ("quint8", "qint8"):
                yield case("RequantizePerChannel", c, low, high, *bounds(-1, 2), out_type=out)
    yield case("RequantizationRangePerChannel", c, low[:1], high, clip_value_max=1.0, fails=True)
    yield case("RequantizationRangePerChannel", c[:0], low, high, clip_value_max=1.0, fails=True)
    yield case("RequantizationRangePerChannel", c[0], low, high, clip_value_max=1.0, fails=True)
    yield case("RequantizationRangePerChannel", c, low[:2], high[:2], clip_value_max=1.0, fails=True)
    yield case("RequantizePerChannel", c[0], low, high, *bounds(-1, 1), out_type="quint8", fails=True)
    yield case("RequantizePerChannel", c, low, high[:1], *bounds(-1, 1), out_type="quint8", fails=True)
    yield case("RequantizePerChannel", c, low, high, *bounds(1, 1), out_type="qint8", fails=True)


RANGES = [(-1, 3, 0, 2), (0, 255, -128, 127), (-2, -1, 1, 2), (2, 5, -6, 1), (1000, 1001, 0, 1)]


def products():
    r = Rand("QuantizedMatMul")
    for m, k, n in ((1, 1, 1), (3, 5, 2), (7, 20, 17), (0, 3, 2), (4, 2100, 3)):
        for ta in (False, True):
            for tb in (False, True):
                left = codes(r, "quint8", (k, m) if ta else (m, k))
                right = codes(r, "quint8", (n, k) if tb else (k, n))
                for ranges in RANGES[:1] if k > 100 else RANGES:
                    yield case("QuantizedMatMul", left, right, *bounds(*ranges), transpose_a=ta, transpose_b=tb,
                               Toutput="qint32")
    left, right = codes(r, "quint8", (2, 3)), codes(r, "quint8", (3, 2))
    good = bounds(-1, 1, -1, 1)
    for i in range(4):
        yield case("QuantizedMatMul", left, right, *good[:i], a("float", [1, 2]), *good[i + 1:], Toutput="qint32",
                   fails=True)
    yield case("QuantizedMatMul", left, right, *bounds(1, 1, -1, 1), Toutput="qint32", fails=True)
    yield case("QuantizedMatMul", left, right, *bounds(-1, 1, 1, -1), Toutput="qint32", fails=True)
    yield case("QuantizedMatMul", left[0], right, *good, Toutput="qint32", fails=True)
    yield case("QuantizedMatMul", left, right[0], *good, Toutput="qint32", fails=True)
    yield case("QuantizedMatMul", left, left, *good, Toutput="qint32", fails=True)


def arithmetic():
    r = Rand("QuantizedAdd")
    for x, y in (((), ()), ((3, 5), ()), ((), (2, 3)), ((1, 1), (3, 4)), ((4, 6), (4, 6)), ((2, 3, 5), (5,)),
                 ((5,), (2, 3, 5)), ((2, 3, 5), (3, 5)), ((2, 3, 5), (1, 1, 5)), ((1, 20), (20,)), ((0,), (0,))):
        for ranges in RANGES[:4]:
            inputs = codes(r, "quint8", x), codes(r, "quint8", y)
            yield case("QuantizedAdd", *inputs, *bounds(*ranges), Toutput="qint32")
            yield case("QuantizedMul", *inputs, *bounds(*ranges), Toutput="qint32")
    x, good = codes(r, "quint8", (2, 3)), bounds(-1, 1, -1, 1)
    for op in ("QuantizedAdd", "QuantizedMul"):
        for i in range(4):
            yield case(op, x, x, *good[:i], a("float", [1]), *good[i + 1:], Toutput="qint32", fails=True)
        yield case(op, x, x, *bounds(1, 1, -1, 1), Toutput="qint32", fails=True)
        yield case(op, x, x, *bounds(-1, 1, 1, 1), Toutput="qint32", fails=True)
        yield case(op, x, codes(r, "quint8", (2, 2)), *good, Toutput="qint32", fails=True)
        yield case(op, codes(r, "quint8", (2, 1, 3)), codes(r, "quint8", (1, 4, 1)), *good, Toutput="qint32",
                   fails=True)
        yield case(op, codes(r, "quint8", (2, 0)), codes(r, "quint8", (0,)), *good, Toutput="qint32", fails=True)
    for low, high in ((-3, 3), (0, 6), (1, 9), (-9, 2), (-3, -1), (2, 2)):
        for dtype in ("quint8", "qint32"):
            c = codes(r, dtype, (3, 7))
            yield case("QuantizedRelu", c, *bounds(low, high), out_type=dtype)
            yield case("QuantizedRelu6", c, *bounds(low, high), out_type=dtype)
    for op in ("QuantizedRelu", "QuantizedRelu6"):
        yield case(op, c, a("float", [1]), f32(1), out_type="qint32", fails=True)
        yield case(op, c, f32(1), a("float", [1]), out_type="qint32", fails=True)
    for dtype in ("quint8", "qint8"):
        for shape in ((3, 4), (2, 3, 2, 17), (0, 3)):
            for ranges in RANGES[:4]:
                yield case("QuantizedBiasAdd", codes(r, dtype, shape), codes(r, dtype, shape[-1:]), *bounds(*ranges),
                           out_type="qint32")
    for i in range(4):
        yield case("QuantizedBiasAdd", x, x[0], *good[:i], a("float", [1]), *good[i + 1:], out_type="qint32", fails=True)
    for left, right in ((x[0], x[0]), (x, x), (x, x[0, :2]), (x[:, :0], x[0, :0])):
        yield case("QuantizedBiasAdd", left, right, *good, out_type="qint32", fails=True)


def normalizations():
    r = Rand("QuantizedBatchNorm")
    names = ["t", "m", "v", "beta", "gamma"]

    def inputs(shapes, **changed):
        out = []
        for name, shape in zip(names, shapes):
            low, high = (0.1, 9) if name == "v" else (-2, 3)
            out += [codes(r, "quint8", shape), f32(low), f32(high)]
        for name, value in changed.items():
            out[int(name[1:])] = value
        return out

    op = "QuantizedBatchNormWithGlobalNormalization"
    for shape in ((1, 2, 3, 2), (2, 2, 2, 5)):
        for scale in (False, True):
            yield case(op, *inputs([shape] + [shape[3:]] * 4), out_type="qint32", variance_epsilon=0.001,
                       scale_after_normalization=scale)
    attrs = {"out_type": "qint32", "variance_epsilon": 0.001, "scale_after_normalization": True, "fails": True}
    good = [(1, 2, 2, 3)] + [(3,)] * 4
    for i in (1, 2, 4, 5, 7, 8, 10, 11, 13, 14):
        yield case(op, *inputs(good, **{f"i{i}": a("float", [1, 2])}), **attrs)
    yield case(op, *inputs([(2, 2, 3)] + good[1:]), **attrs)
    for i in range(1, 5):
        yield case(op, *inputs(good[:i] + [(3, 1)] + good[i + 1:]), **attrs)
        yield case(op, *inputs(good[:i] + [(2,)] + good[i + 1:]), **attrs)


def windows():
    r = Rand("QuantizedPool")
    for dtype in ("quint8", "qint8"):
        for shape, ksize, stride in (((1, 4, 5, 3), (2, 2), (2, 2)), ((2, 7, 6, 1), (3, 2), (2, 1)),
                                     ((1, 3, 3, 17), (3, 3), (1, 1)), ((0, 3, 3, 2), (2, 2), (1, 1))):
            for padding in ("SAME", "VALID"):
                for op in ("QuantizedMaxPool", "QuantizedAvgPool"):
                    yield case(op, codes(r, dtype, shape), *bounds(-1, 2), ksize=[1, *ksize, 1],
                               strides=[1, *stride, 1], padding=padding)
    c = codes(r, "quint8", (1, 3, 3, 2))
    for op in ("QuantizedMaxPool", "QuantizedAvgPool"):
        attrs = {"ksize": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "padding": "SAME"}
        yield case(op, c, a("float", [1]), f32(1), **attrs, fails=True)
        yield case(op, c, f32(1), a("float", [1]), **attrs, fails=True)
        yield case(op, c, *bounds(0, 1), **{**attrs, "ksize": [2, 1, 1, 1]}, fails=True)
    r = Rand("QuantizedConv2D")
    for (h, w, cin), (fh, fw, cout) in (((4, 5, 2), (3, 3, 4)), ((6, 6, 3), (1, 1, 17)), ((8, 7, 1), (1, 2, 1)),
                                        ((9, 9, 5), (5, 3, 3))):
        for stride in (1, 2, 3, 4):
            for padding in ("SAME", "VALID"):
                for ranges in RANGES[:1] if stride > 2 else RANGES + [(3, 4, 0, 1), (-9, -8, 0, 1)]:
                    yield case("QuantizedConv2D", codes(r, "quint8", (2, h, w, cin)),
                               codes(r, "quint8", (fh, fw, cin, cout)), *bounds(*ranges), out_type="qint32",
                               strides=[1, stride, stride, 1], padding=padding)
    x, w, good = codes(r, "quint8", (1, 4, 4, 2)), codes(r, "quint8", (2, 2, 2, 3)), bounds(-1, 1, -1, 1)
    attrs = {"out_type": "qint32", "strides": [1, 1, 1, 1], "padding": "VALID"}
    for i in range(4):
        yield case("QuantizedConv2D", x, w, *good[:i], a("float", [1]), *good[i + 1:], **attrs, fails=True)
    for left, right in ((x[0], w), (x, w[0]), (x[..., :1], w), (x[:0], w)):
        yield case("QuantizedConv2D", left, right, *good, **attrs, fails=True)
    for name, value in (("strides", [1, 1, 2, 1]), ("strides", [1, 1, 1, 2]), ("strides", [1, 1, 1]),
                        ("dilations", [1, 2, 2, 1]), ("dilations", [2, 1, 1, 1]), ("dilations", [1, 1])):
        yield case("QuantizedConv2D", x, w, *good, **{**attrs, name: value}, fails=True)


def resizes():
    r = Rand("QuantizedResizeBilinear")
    for dtype in ("quint8", "qint32", "float"):
        for shape, size in (((1, 3, 4, 1), (5, 9)), ((2, 5, 4, 3), (2, 3)), ((1, 4, 4, 2), (4, 4)), ((1, 1, 6, 17), (3, 4))):
            if dtype == "quint8":
                x = codes(r, dtype, shape)
            else:
                x = r("float", shape, -2, 2) if dtype == "float" else q(dtype, r("int32", shape, -2**30, 2**30))
            for align in (False, True):
                for half in (False, True):
                    yield case("QuantizedResizeBilinear", x, i32(*size), *bounds(-1, 2), align_corners=align,
                               half_pixel_centers=half)
    for changed in ((1, i32(2)), (1, i32(0, 2)), (2, a("float", [1])), (3, a("float", [1])), (0, x[0])):
        inputs = [x, i32(2, 2), *bounds(-1, 1)]
        inputs[changed[0]] = changed[1]
        yield case("QuantizedResizeBilinear", *inputs, fails=True)

def cases():
    yield from conversions()
    yield from bad_conversions()
    yield from arrays()
    yield from requantizations()
    yield from products()
    yield from arithmetic()
    yield from normalizations()
    yield from windows()
    yield from resizes()
