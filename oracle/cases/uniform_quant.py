"""Uniform quantization: codes with scales and zero points."""

import numpy as np

from casekit import Rand, a, case, i32, q, s32

f32 = np.float32
LIMITS = {"qint8": (-128, 127), "quint8": (0, 255), "qint32": (-2**31, 2**31 - 1)}


def bounds(prefix, dtype, narrow=False):
    low, high = LIMITS[dtype]
    return {f"{prefix}quantization_min_val": low + narrow, f"{prefix}quantization_max_val": high}


def codes(r, dtype, shape, most=None):
    low, high = LIMITS[dtype] if most is None else (-most, most)
    return q(dtype, r.rng.integers(low, high, shape, endpoint=True))


def conversions():
    r = Rand("UniformQuantize")
    x = r("float", (2, 3, 4), -5, 5)
    for dtype in LIMITS:
        for narrow in (False, True):
            yield case("UniformQuantize", x, f32(0.05), s32(3), Tout=dtype, **bounds("", dtype, narrow))
        for axis in (0, 1, 2):
            n = x.shape[axis]
            scales, zeros = r("float", (n,), 0.01, 0.5), r("int32", (n,), -20, 20)
            how = {"quantization_axis": axis, **bounds("", dtype)}
            yield case("UniformQuantize", x, scales, zeros, Tout=dtype, **how)
            c = codes(r, dtype, x.shape, 10**6 if dtype == "qint32" else None)
            yield case("UniformDequantize", c, scales, zeros, Tout="float", **how)
        yield case("UniformDequantize", c, f32(0.3), s32(-4), Tout="float", **bounds("", dtype))
        yield case("UniformDequantize", c[:0], f32(0.3), s32(-4), Tout="float", **bounds("", dtype))
    halves = a("float", np.arange(-9, 10) / 2)
    yield case("UniformQuantize", halves, f32(1), s32(0), Tout="qint8", **bounds("", "qint8"))
    for dtype in ("qint8", "qint32"):
        c = codes(r, dtype, x.shape, 100 if dtype == "qint8" else 10**6)
        how = {"Tout": "qint8", **bounds("input_", dtype), **bounds("output_", "qint8")}
        yield case("UniformRequantize", c, f32(0.01), s32(2), f32(7.5), s32(-5), **how)
        yield case("UniformRequantize", c, f32(1.5), s32(2), f32(0.01), s32(-5), **how)
        for axis in (0, 2):
            n = x.shape[axis]
            scales, zeros = r("float", (n,), 0.01, 0.5), r("int32", (n,), -20, 20)
            others, more = r("float", (n,), 1, 50), r("int32", (n,), -20, 20)
            yield case("UniformRequantize", c, scales, zeros, f32(7.5), s32(-5), input_quantization_axis=axis, **how)
            yield case("UniformRequantize", c, f32(0.1), s32(-5), scales, zeros, output_quantization_axis=axis, **how)
            yield case("UniformRequantize", c, scales, zeros, others, more, input_quantization_axis=axis,
                       output_quantization_axis=axis, **how)
        if dtype == "qint32":
            low, high = q(dtype, -50), q(dtype, 1000)
            yield case("UniformQuantizedClipByValue", c, low, high, f32(1), s32(0), **bounds("", dtype))
            lows, highs = codes(r, dtype, (4,), 10**5), q(dtype, [1, 10**5, 5, 10**6])
            yield case("UniformQuantizedClipByValue", c, lows, highs, a("float", [1, 1, 1, 1]), i32(0, 0, 0, 0),
                       quantization_axis=2, **bounds("", dtype))


def products():
    r = Rand("UniformQuantizedDot")
    sides = {**bounds("lhs_", "qint8"), **bounds("rhs_", "qint8"), **bounds("output_", "qint32")}
    for m, k, n in ((1, 1, 1), (3, 5, 2), (6, 20, 17), (2, 0, 3)):
        lhs, rhs = codes(r, "qint8", (m, k)), codes(r, "qint8", (k, n))
        yield case("UniformQuantizedDot", lhs, rhs, f32(0.1), s32(3), f32(0.2), s32(-7), f32(0.01), s32(4), Tout="qint32",
                   **sides)
        scales, zeros = r("float", (n,), 0.1, 1), r("int32", (n,), -20, 20)
        others, more = r("float", (n,), 0.1, 1), r("int32", (n,), -20, 20)
        yield case("UniformQuantizedDot", lhs, rhs, f32(0.1), s32(3), scales, zeros, f32(0.01), s32(4), Tout="qint32",
                   rhs_quantization_axis=1, **sides)
        yield case("UniformQuantizedDot", lhs, rhs, f32(0.1), s32(3), scales, zeros, others, more, Tout="qint32",
                   rhs_quantization_axis=1, output_quantization_axis=1, **sides)
        x = r("float", (m, k), -3, 5)
        for inputs in ((f32(0.2), s32(-7)), (scales, zeros)):
            yield case("UniformQuantizedDotHybrid", x, rhs, *inputs, Tout="float", **bounds("rhs_", "qint8"),
                       rhs_quantization_axis=1 if len(np.shape(inputs[0])) else -1)
        yield case("UniformQuantizedDotHybrid", x * 0, rhs, f32(0.2), s32(1), Tout="float", **bounds("rhs_", "qint8"))
    lhs, rhs = codes(r, "qint8", (2, 5)), codes(r, "qint8", (5, 3))
    good = [lhs, rhs, f32(1), s32(0), f32(1), s32(0), f32(1), s32(0)]
    how = {"Tout": "qint32", "fails": True, **sides}
    one = a("float", [1])
    for i, value in ((0, lhs[0]), (1, rhs[0]), (0, codes(r, "qint8", (2, 4))), (2, f32(-1)), (4, f32(0)), (6, f32(-1)),
                     (2, one), (4, one), (6, one)):
        yield case("UniformQuantizedDot", *good[:i], value, *good[i + 1:], **how)
    three = a("float", [1, 1, 1])
    yield case("UniformQuantizedDot", *good[:6], three, i32(0, 0, 0), **how)
    for side, axis in (("lhs", 1), ("rhs", 0), ("output", 0)):
        yield case("UniformQuantizedDot", *good, **{f"{side}_quantization_axis": axis}, **how)
    yield case("UniformQuantizedDotHybrid", r("float", (2, 5)), rhs, f32(-1), s32(0), Tout="float", **bounds("rhs_", "qint8"), fails=True)


def sums():
    r = Rand("UniformQuantizedAdd")
    sides = {**bounds("lhs_", "qint32"), **bounds("rhs_", "qint32"), **bounds("output_", "qint32")}
    for x, y in (((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((), (2, 3)), ((3, 1), (1, 4)), ((0, 3), (3,))):
        lhs, rhs = codes(r, "qint32", x, 10**5), codes(r, "qint32", y, 10**5)
        yield case("UniformQuantizedAdd", lhs, rhs, f32(0.1), s32(5), f32(0.3), s32(-9), f32(0.05), s32(2), **sides)
    lhs, rhs = codes(r, "qint32", (2, 3, 4), 10**5), codes(r, "qint32", (4,), 10**5)

    def per_channel():
        return [r("float", (4,), 0.1, 1), r("int32", (4,), -20, 20)]

    axes = {"lhs_quantization_axis": 2, "rhs_quantization_axis": 0, "output_quantization_axis": 2}
    yield case("UniformQuantizedAdd", lhs, rhs, *per_channel(), *per_channel(), *per_channel(), **axes, **sides)
    yield case("UniformQuantizedAdd", lhs, rhs, *per_channel(), *per_channel(), f32(0.2), s32(1),
               **{**axes, "output_quantization_axis": -1}, **sides)
    good = [lhs, rhs, f32(0.1), s32(5), f32(0.3), s32(-9), f32(0.05), s32(2)]
    for i, value in ((1, codes(r, "qint32", (3,), 9)), (2, f32(-1)), (2, a("float", [1])), (5, i32(1))):
        yield case("UniformQuantizedAdd", *good[:i], value, *good[i + 1:], **sides, fails=True)
    yield case("UniformQuantizedAdd", *good, **sides, lhs_quantization_axis=-2, fails=True)


def refused():
    r = Rand("bad scales")
    x = r("float", (2, 3))
    how = {"Tout": "qint8", "fails": True, **bounds("", "qint8")}
    three, zeros = a("float", [1, 1, 1]), i32(0, 0, 0)
    for inputs, axis in (((f32(1), i32(0)), -1), ((three, zeros), -1), ((three, zeros), 0), ((three, zeros), 2),
                         ((f32(1), s32(0)), 1), ((f32(1), s32(0)), -2)):
        yield case("UniformQuantize", x, *inputs, quantization_axis=axis, **how)
    c = codes(r, "qint8", (2, 3))
    yield case("UniformDequantize", c, f32(0), s32(0), Tout="float", fails=True, **bounds("", "qint8"))
    how = {"Tout": "qint8", "fails": True, **bounds("input_", "qint8"), **bounds("output_", "qint8")}
    yield case("UniformRequantize", c, f32(-1), s32(0), f32(1), s32(0), **how)
    for name, axis in (("input", -2), ("output", -3)):
        yield case("UniformRequantize", c, f32(1), s32(0), f32(1), s32(0), **{f"{name}_quantization_axis": axis}, **how)
    yield case("UniformRequantize", c, f32(1), s32(0), f32(1), s32(0), input_quantization_axis=0,
               output_quantization_axis=1, **how)
    c = codes(r, "qint32", (2, 3))
    for i in (1, 2):
        inputs = [c, q("qint32", 1), q("qint32", 2), f32(1), s32(0)]
        inputs[i] = q("qint32", [1])
        yield case("UniformQuantizedClipByValue", *inputs, **bounds("", "qint32"), fails=True)


def cases():
    yield from conversions()
    yield from products()
    yield from sums()
    yield from refused()
