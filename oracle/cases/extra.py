"""Rare ops: strings, sparse tensors, positions, simulated quantization, summaries."""

import numpy as np
import tensorflow as tf

from casekit import ALL, FLOATS, Rand, a, case, empty, i32, i64
from cases.input import strings

EVERY = ALL + ["string"]


def texts():
    words = strings(b"", b"aBc", "Größe Ää ß".encode(), b"\xff\x00Z", b" x\ty\r\n ", "日本".encode())
    for op in ("StringUpper", "StringLower"):
        yield case(op, words)
        yield case(op, words[:3].reshape(3, 1), encoding="utf-8")
        yield case(op, words, encoding="utf-16", fails=True)
    yield case("StringStrip", words)
    yield case("StringStrip", strings(b"   ", b"\x0b\x0ca b\x0b"))
    for unit in ("BYTE", "UTF8_CHAR"):
        yield case("StringLength", words, unit=unit)
    yield case("StringLength", strings(b"abc").reshape(()))
    one = strings(b"-").reshape(())
    yield case("StringJoin", [words, words])
    yield case("StringJoin", [words, one, words[::-1]], separator=", ")
    yield case("StringJoin", [one, one])
    yield case("StringJoin", [words.reshape(2, 3), one])
    yield case("StringJoin", [words, words[:2]], fails=True)


def places():
    for dtype in ("int32", "int64"):
        t = (lambda *v: a(dtype, v))
        yield case("UnravelIndex", t(0, 3, 23, 11), t(2, 3, 4))
        yield case("UnravelIndex", t(22)[0], t(7, 6))
        yield case("UnravelIndex", empty(dtype, 0), t(7, 6), fails=True)
        yield case("UnravelIndex", t(24), t(2, 3, 4), fails=True)
        yield case("UnravelIndex", t(0), t(2, 0, 4), fails=True)
        yield case("UnravelIndex", t(0, 1).reshape(1, 2), t(2, 4), fails=True)
        yield case("UnravelIndex", t(0, 1), t(2, 4).reshape(1, 2), fails=True)
    yield case("UnravelIndex", i32(5), i32(100000, 100000), fails=True)


def assigned_slices():
    """TensorStridedSliceUpdate, with the value broadcast to the slice."""
    r = Rand("TensorStridedSliceUpdate")
    at = dict(begin=i32(1, 0), end=i32(3, 4), strides=i32(1, 2))

    def update(x, value, begin, end, strides, **how):
        return case("TensorStridedSliceUpdate", x, begin, end, strides, value, **how)

    for dtype in EVERY:
        yield update(r(dtype, (4, 5)), r(dtype, (2, 2)), **at)
    x = r("float", (4, 5))
    for shape in ((), (1,), (2,), (1, 2), (2, 1), (1, 1, 2, 1)):
        yield update(x, r("float", shape), **at)
        yield update(x, r("float", shape), i64(-1, -1), i64(-3, -9), i64(-1, -3))
    for shape in ((3,), (2, 3), (2, 1, 2), (0,)):
        yield update(x, r("float", shape), **at, fails=True)
    yield update(x, r("float", (3,)), i32(2, 0), i32(2, 4), i32(1, 1))
    yield update(x, r("float", (5,)), i32(2), i32(3), i32(1), shrink_axis_mask=1)
    yield update(x, r("float", (1, 5)), i32(2), i32(3), i32(1), shrink_axis_mask=1)
    yield update(x, np.float32(3), i32(2), i32(3), i32(1), shrink_axis_mask=1)
    yield update(x, r("float", (4, 1)), i32(0, 0, 1), i32(0, 0, 3), i32(1, 1, 1),
                 ellipsis_mask=1, new_axis_mask=2)


def numerics():
    r = Rand("CheckNumerics")
    nan, inf = np.nan, np.inf
    for op in ("CheckNumerics", "CheckNumericsV2"):
        for dtype in FLOATS:
            for shape in ((), (0,), (2, 3), (70,)):
                yield case(op, r(dtype, shape), message="seen")
            for bad in ([nan], [1, inf], [-inf, 2], [inf, nan, 0], [-inf, inf], [nan, -inf, inf]):
                yield case(op, a(dtype, bad), message="seen", fails=True)


def general_convolutions():
    r = Rand("Conv")
    flat, deep = dict(strides=[1, 2, 1, 1]), dict(strides=[1, 1, 2, 1, 1])
    for padding in ("SAME", "VALID"):
        yield case("Conv", r("float", (2, 6, 5, 3)), r("float", (3, 2, 3, 4)), padding=padding, **flat)
        yield case("Conv", r("double", (1, 5, 4, 4)), r("double", (2, 2, 4, 3)), padding=padding,
                   dilations=[1, 2, 1, 1], strides=[1, 1, 1, 1])
        yield case("Conv", r("float", (1, 4, 5, 3, 2)), r("float", (2, 3, 2, 2, 3)), padding=padding,
                   **deep)
    yield case("Conv", r("float", (1, 5, 4, 2)), r("float", (3, 2, 2, 3)), padding="EXPLICIT",
               explicit_paddings=[0, 0, 1, 2, 0, 1, 0, 0], **flat)
    yield case("Conv", r("float", (1, 5, 4, 4)), r("float", (3, 2, 2, 6)), padding="SAME",
               groups=2, **flat)
    yield case("Conv", r("float", (5, 4, 2)), r("float", (3, 2, 2)), padding="SAME",
               strides=[1, 1, 1], fails=True)


def sparse():
    r = Rand("sparse")
    for dtype in EVERY:
        one = r(dtype, (1,))[0] if dtype != "string" else np.array(b"x", object)
        yield case("SparseToDense", i32(0, 2, 3), i32(5), r(dtype, (3,)), one)
    at = a("int64", [[0, 1], [1, 0], [1, 2]])
    one = np.float32(-1)
    yield case("SparseToDense", at, i64(2, 3), r("float", (3,)), one)
    yield case("SparseToDense", at, i64(2, 3), np.float32(7), one)
    yield case("SparseToDense", np.int32(2), i32(4), np.float32(7), one)
    yield case("SparseToDense", empty("int64", 0, 2), i64(2, 3), empty("float", 0), one)
    for bad in (at[::-1], at[[0, 1, 1]], at + 1, at - 1):
        yield case("SparseToDense", bad, i64(2, 3), r("float", (3,)), one, fails=True)
    yield case("SparseToDense", at[[1, 0, 1]], i64(2, 3), r("float", (3,)), one,
               validate_indices=False)
    yield case("SparseToDense", at + 1, i64(2, 3), r("float", (3,)), one, validate_indices=False,
               fails=True)
    yield case("SparseToDense", at, i64(2, 3, 4), r("float", (3,)), one, fails=True)
    yield case("SparseToDense", at, i64(2, 3), r("float", (2,)), one, fails=True)
    yield case("SparseToDense", at, i64(2, 3), r("float", (3,)), r("float", (1,)), fails=True)
    yield case("SparseToDense", at, i64(2, 3).reshape(1, 2), r("float", (3,)), one, fails=True)
    yield case("SparseToDense", at.reshape(3, 2, 1), i64(2, 3), r("float", (3,)), one, fails=True)

    def written(at, values, shape):
        tensors = (np.asarray(at, np.int64).reshape(len(values), len(shape)), values, np.asarray(shape, np.int64))
        return [tf.io.serialize_tensor(tf.constant(t)).numpy() for t in tensors]

    for dtype in ("float", "int32", "double", "bool", "int64"):
        yield case("SerializeSparse", at, r(dtype, (3,)), i64(2, 3))
        yield case("SerializeManySparse", at, r(dtype, (3,)), i64(2, 3))
        yield case("DeserializeSparse", strings(*written(at, r(dtype, (3,)), (2, 3))), dtype=dtype)
    first = written([[0, 1], [1, 0]], a("float", [1, 2]), (2, 3))
    second = written([[3, 0]], a("float", [5]), (4, 2))
    none = written([], empty("float", 0), (1, 9))
    other = written([[3]], a("float", [5]), (4,))
    both = strings(*first, *none, *second).reshape(3, 3)
    yield case("DeserializeSparse", both, dtype="float")
    yield case("DeserializeManySparse", both, dtype="float")
    yield case("DeserializeSparse", strings(*first, *none, *second, *first).reshape(2, 2, 3), dtype="float")
    number = written([[]], a("float", [5]), ())
    yield case("DeserializeSparse", strings(*number, *number).reshape(2, 3), dtype="float")
    yield case("DeserializeSparse", both, dtype="int32", fails=True)
    yield case("DeserializeSparse", strings(*first, *other).reshape(2, 3), dtype="float", fails=True)
    yield case("DeserializeSparse", strings(b"x", b"y", b"z"), dtype="float", fails=True)
    yield case("DeserializeSparse", strings(*first)[:2], dtype="float", fails=True)
    yield case("SerializeManySparse", at[:, :1], r("float", (3,)), i64(2), fails=True)


def quantized():
    r = Rand("quantized")
    zero = {t: a(t, 0) for t in FLOATS}
    own = Rand("QuantizeAndDequantize")
    for dtype in ("double", "float"):
        x = own(dtype, (4, 6), -3, 3)
        for bits in (1, 2, 5, 8):
            for signed in (True, False):
                how = {"num_bits": bits, "signed_input": signed}
                yield case("QuantizeAndDequantize", x, **how)
                yield case("QuantizeAndDequantize", x, range_given=True, input_min=-2, input_max=1.5, **how)
                yield case("QuantizeAndDequantize", x, range_given=True, input_min=0.25, input_max=0.25, **how)
        yield case("QuantizeAndDequantize", x[:0])
    yield case("QuantizeAndDequantize", x, range_given=True, input_min=2, input_max=1.5, fails=True)
    yield case("QuantizeAndDequantize", x, num_bits=63, fails=True)
    for dtype in ("float", "double"):
        x = r(dtype, (4, 6), -3, 3)
        lo, hi = a(dtype, -2), a(dtype, 1.5)
        for op in ("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV4"):
            for bits in (2, 5, 8):
                for mode in ("HALF_TO_EVEN", "HALF_UP"):
                    yield case(op, x, lo, hi, num_bits=bits, range_given=True, round_mode=mode)
                yield case(op, x, zero[dtype], zero[dtype], num_bits=bits)
                yield case(op, x, lo, hi, num_bits=bits, narrow_range=True, range_given=True)
                yield case(op, np.abs(x), zero[dtype], hi, num_bits=bits, signed_input=False,
                           range_given=True)
                yield case(op, np.abs(x), zero[dtype], zero[dtype], num_bits=bits, signed_input=False)
            yield case(op, x, empty(dtype, 6) , empty(dtype, 6), axis=1)
            yield case(op, x, hi, lo, range_given=True, fails=True)
            yield case(op, x, lo, hi, num_bits=63, range_given=True, fails=True)
            yield case(op, x, lo, hi, num_bits=1, range_given=True)
        yield case("QuantizeAndDequantizeV3", x, lo, hi, np.int32(6))
        yield case("QuantizeAndDequantizeV3", x, r(dtype, (4,), -2, -1), r(dtype, (4,), 1, 2), np.int32(5), axis=0)
        yield case("QuantizeAndDequantizeV3", x, r(dtype, (6,), -2, -1), r(dtype, (6,), 1, 2), np.int32(5), axis=1)
        yield case("QuantizeAndDequantizeV3", x, lo, hi, np.int32(6), range_given=False)
        yield case("QuantizeAndDequantizeV3", x, lo, hi, np.int32(0), fails=True)
        grad = "QuantizeAndDequantizeV4Grad"
        yield case(grad, r(dtype, (4, 6)), x, lo, hi)
        yield case(grad, r(dtype, (4, 6)), x, r(dtype, (6,), -2, -1), r(dtype, (6,), 1, 2), axis=1)
        yield case(grad, r(dtype, (4, 5)), x, lo, hi, fails=True)


def tensor_summaries():
    r = Rand("TensorSummary")
    tag = lambda t: np.array(t, object)
    metadata = tf.compat.v1.SummaryMetadata(summary_description="words").SerializeToString()
    for dtype in ("float", "int64", "string", "bool", "half", "complex64"):
        for shape in ((), (2, 3), (0,)):
            value = r(dtype, shape) if dtype != "string" or shape else tag(b"x")
            yield case("TensorSummary", value, labels=["a"], description="b")
            yield case("TensorSummaryV2", tag(b"t"), value, tag(metadata))
    yield case("TensorSummaryV2", tag(b"t"), value, tag(b""))
    yield case("TensorSummaryV2", strings(b"t"), value, tag(b""), fails=True)
    yield case("TensorSummaryV2", tag(b"t"), value, strings(b""), fails=True)


def summaries():
    r = Rand("summaries")
    tag = lambda t: np.array(t, object)
    for dtype in ("float", "double", "int32", "int64", "uint8", "half", "bfloat16", "int8", "uint16",
                  "int16", "uint32", "uint64"):
        yield case("ScalarSummary", tag(b"loss"), r(dtype, ()))
        yield case("ScalarSummary", strings(b"a", b"b"), r(dtype, (2,)))
        yield case("HistogramSummary", tag(b"h"), r(dtype, (4, 5)))
    # Tags need not be UTF-8, but what summaries are merged from.
    for name in (b"\xff", b"a\0b", b"", "\u00e9".encode(), b"x\xc3"):
        yield case("ScalarSummary", tag(name), a("float", 1.5))
        yield case("ScalarSummary", strings(name, b"b"), a("float", [1.5, 2.0]))
        yield case("HistogramSummary", tag(name), a("float", [1.0]))
        yield case("TensorSummaryV2", tag(name), a("float", 1.5), tag(b""))
        yield case("AudioSummaryV2", tag(name), np.zeros((1, 3), np.float32), np.float32(8))
        yield case("AudioSummaryV2", tag(name), np.zeros((2, 3), np.float32), np.float32(8), max_outputs=1)
        one = tf.raw_ops.ScalarSummary(tags=[name], values=[1.0]).numpy()
        yield case("MergeSummary", [tag(one)], fails=any(b > 127 for b in name) and name != "\u00e9".encode())
    yield case("HistogramSummary", tag(b"h"), a("float", [0.0, 1e-13, -3e5, 1e30, 1.0, 1.1]))
    yield case("HistogramSummary", tag(b"h"), a("float", [1.0, np.nan]), fails=True)
    yield case("HistogramSummary", tag(b"h"), a("float", [1.0, np.inf]), fails=True)
    yield case("HistogramSummary", strings(b"h", b"i"), a("float", [1.0]), fails=True)
    yield case("ScalarSummary", strings(b"a", b"b"), a("float", [1.0]), fails=True)
    one = tf.compat.v1.Summary(value=[tf.compat.v1.Summary.Value(tag="a", simple_value=1.0)])
    two = tf.compat.v1.Summary(value=[tf.compat.v1.Summary.Value(tag="b", simple_value=2.0)])
    one, two = one.SerializeToString(), two.SerializeToString()
    yield case("MergeSummary", [tag(one), strings(two)])
    yield case("MergeSummary", [tag(one), tag(one)], fails=True)
    yield case("MergeSummary", [tag(b"\xff\xff")], fails=True)
    for dtype in ("float", "int64", "string", "bool", "half", "complex64"):
        for shape in ((), (2, 3), (0,)):
            value = r(dtype, shape) if dtype != "string" or shape else tag(b"x")
            message = tf.io.serialize_tensor(tf.constant(value)).numpy()
            yield case("ParseTensor", tag(message), out_type=dtype)
            yield case("SerializeTensor", value)
    yield case("ParseTensor", tag(message), out_type="int32", fails=True)
    yield case("ParseTensor", tag(b"\xff\xff"), out_type="int32", fails=True)
    yield case("ParseTensor", strings(message, message), out_type="int32", fails=True)


def limits():
    r = Rand("limits")
    for dtype in ("complex64", "complex128"):
        x = r(dtype, (3, 4))
        yield case("ClipByValue", x, a(dtype, -0.5 + 0.2j), a(dtype, 1 - 0.3j))
        yield case("ClipByValue", x, r(dtype, (3, 4)), a(dtype, 1 + 1j))


def fake_quant():
    r = Rand("fake_quant")
    x, dy = r("float", (4, 5), -9, 9), r("float", (4, 5), -2, 2)
    f = np.float32
    steps = (dict(), dict(min=-1.0, max=3.0), dict(min=0.5, max=2.0), dict(min=-3.0, max=-1.0), dict(num_bits=2),
             dict(num_bits=16, narrow_range=True), dict(num_bits=5, narrow_range=True, min=-2.0, max=9.0))
    for attrs in steps:
        yield case("FakeQuantWithMinMaxArgs", x, **attrs)
        yield case("FakeQuantWithMinMaxArgsGradient", dy, x, **attrs)
    op = "FakeQuantWithMinMaxVars"
    for low, high, attrs in ((-1, 1, {}), (0, 0, {}), (1, 1, {}), (2, 1, {}), (-7.5, 3.25, dict(num_bits=4)),
                             (-2, 5, dict(num_bits=3, narrow_range=True))):
        yield case(op, x, f(low), f(high), tol=0, **attrs)
        yield case(f"{op}Gradient", dy, x, f(low), f(high), **attrs)
    # Limits in the wrong order, denormal limits.
    for low, high in ((1, -1), (5, 1), (1, 0), (-1, -3), (0, 1e-40), (-1e-40, 1), (-1, 1e-40)):
        for attrs in ({}, {"num_bits": 2, "narrow_range": True}):
            yield case(f"{op}Gradient", dy, x, f(low), f(high), **attrs)
            channels = np.full(5, low, f), np.full(5, high, f)
            yield case(f"{op}PerChannelGradient", dy, x, *channels, **attrs)
            yield case(op, x, f(low), f(high), **attrs)
    for low, high in ((np.nan, 1.0), (0.0, np.nan)):
        yield case("FakeQuantWithMinMaxArgs", x, min=low, max=high, fails=True)
        yield case("FakeQuantWithMinMaxArgsGradient", dy, x, min=low, max=high, fails=True)
    odd = np.array([np.nan, np.inf, -np.inf], f)
    yield case(op, odd, f(-1), f(1), tol=0)
    yield case(f"{op}Gradient", dy[0, :3], odd, f(-1), f(1))
    yield case(op, x, np.zeros(2, f), f(1), fails=True)
    yield case(op, x, f(0), f(1), num_bits=17, fails=True)
    yield case("FakeQuantWithMinMaxArgs", x, min=1.0, max=1.0, fails=True)
    yield case(f"{op}Gradient", dy, x[:3], f(0), f(1), fails=True)
    op = "FakeQuantWithMinMaxVarsPerChannel"
    low, high = np.array([-1, -2, 0, 0, -5], f), np.array([1, 2, 0, 3, -1], f)
    for attrs in (dict(), dict(num_bits=4, narrow_range=True)):
        for shape in ((4, 5), (2, 1, 2, 5), (20 // 4,)):
            n = int(np.prod(shape))
            part = [t.ravel()[:n].reshape(shape) for t in (dy, x)]
            yield case(op, part[1], low, high, tol=0, **attrs)
            yield case(f"{op}Gradient", *part, low, high, **attrs)
    none = np.zeros((0, 5), f)
    yield case(op, none, low, high)
    yield case(f"{op}Gradient", none, none, low, high)
    yield case(op, x, low[:1], high, fails=True)


def fake_quant_halves():
    "Numbers halfway between steps, which division and multiplication round differently."
    f = np.float32
    low = np.array([-1, -2.1, 0, -0.37, -5.3, -7, 0], f)
    high = np.array([1, 2.7, 0, 3.1, 0.9, 11, 0.3], f)
    halves = np.arange(0, 256, 3, dtype=f)[:, None] + f(0.5)
    scale = (high - low) / f(255)
    x = (halves - np.round(np.where(scale == 0, 0, -low / np.where(scale == 0, 1, scale)))) * scale
    x = np.concatenate([x, np.nextafter(x, f(9)), np.nextafter(x, f(-9))]).astype(f)
    for attrs in (dict(), dict(num_bits=8, narrow_range=True)):
        yield case("FakeQuantWithMinMaxVarsPerChannel", x, low, high, tol=0, **attrs)
    for i in (0, 1, 3, 4, 5):
        yield case("FakeQuantWithMinMaxVars", x[:, i], low[i], high[i], tol=0)
        yield case("FakeQuantWithMinMaxArgs", x[:, i], min=float(low[i]), max=float(high[i]), tol=0)
    wide = [np.tile(t, 40)[:200] for t in (low, high)]
    yield case("FakeQuantWithMinMaxVarsPerChannel", np.tile(x, (1, 40))[::37, :200], *wide, tol=0)


def cases():
    parts = (fake_quant_halves, fake_quant, limits, texts, places, assigned_slices, general_convolutions, numerics, sparse,
             quantized, summaries, tensor_summaries)
    for part in parts:
        yield from part()
