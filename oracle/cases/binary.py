"""Element-wise ops of two and more inputs."""

import numpy as np

from casekit import (ALL, COMPLEX, FLOATS, INTS, NUMBERS, NUMPY, SIGNED, Rand, a, case, empty)

ARITHMETIC = ["Add", "AddV2", "Sub", "Mul", "Maximum", "Minimum", "SquaredDifference"]
DIVIDING = ["Div", "RealDiv", "FloorDiv", "TruncateDiv", "DivNoNan", "Mod", "FloorMod",
            "TruncateMod"]
FLOATING = ["MulNoNan", "Atan2", "Xdivy", "Xlogy", "Xlog1py", "NextAfter"]
COMPARING = ["Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"]
SHAPES = [((3, 5), (3, 5)), ((3, 5), (5,)), ((3, 1), (1, 5)), ((), (2, 3)), ((2, 3), ()), ((), ()),
          ((2, 1, 3), (4, 1)), ((0, 3), (3,)), ((0, 3), (1, 1)), ((1, 67), (67,)), ((7, 1), (7, 9)),
          ((2, 3, 1, 2), (3, 4, 1))]
TABLE = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.0]


def broadcasting(op, r, lo=None, hi=None, dtypes=("float", "int32"), tol=None):
    """Every pair of shapes, and a pair that does not fit."""
    for dtype in dtypes:
        for left, right in SHAPES:
            yield case(op, r(dtype, left, lo, hi), r(dtype, right, lo, hi), tol=tol)
        yield case(op, r(dtype, (2, 3), lo, hi), r(dtype, (2,), lo, hi), fails=True)
        yield case(op, r(dtype, (2, 3), lo, hi), r(dtype, (3, 3), lo, hi), fails=True)


def table(op, dtype, tol=None):
    """All pairs of special values."""
    values = a(dtype, TABLE)
    return case(op, values.reshape(-1, 1), values.reshape(1, -1), tol=tol)


def arithmetic():
    for op in ARITHMETIC:
        r = Rand(op)
        yield from broadcasting(op, r)
        for dtype in NUMBERS + COMPLEX:
            yield case(op, r(dtype, (3, 5)), r(dtype, (3, 5)))
            yield case(op, r(dtype, (2, 1)), r(dtype, (3,)))
        for dtype in FLOATS:
            yield table(op, dtype)
        for dtype in INTS:
            info = np.iinfo(NUMPY[dtype])
            yield case(op, a(dtype, [info.max, info.min, info.max]), a(dtype, [1, 1, 2]))
    for op in ("Add", "AddV2"):
        yield case(op, a("string", [b"a", b"b"]), a("string", [b"x", b""]))
        yield case(op, a("string", [b"a", b"b"]), np.array(b"!", dtype=object))


def dividing():
    for dtype in ("half", "bfloat16"):
        yield case("FloorDiv", a(dtype, [3, 30, -4.2, 2.1, 3]), a(dtype, [0.3, 0.3, 0.1, 0.7, 0.1]))
    for op in DIVIDING:
        r = Rand(op)
        yield from broadcasting(op, r, 1, 9)
        for dtype in NUMBERS + COMPLEX:
            yield case(op, r(dtype, (3, 5)), r(dtype, (3, 5), 1, 4))
        for dtype in SIGNED + FLOATS:
            signed = a(dtype, [7, -7, 7, -7, 6, -6, 0])
            yield case(op, signed, a(dtype, [2, 2, -2, -2, 3, 3, -5]))
        for dtype in FLOATS:
            yield table(op, dtype)
        for dtype in COMPLEX:
            yield case(op, a(dtype, [1 + 2j, 0, 3]), a(dtype, [2 - 1j, 1j, -2]))
        if op not in ("RealDiv", "DivNoNan"):
            for dtype in ("int32", "int64", "uint8", "int8"):
                yield case(op, a(dtype, [3, 4]), a(dtype, [1, 0]), fails=True)
            yield case(op, r("int32", (2, 3)), np.int32(0), fails=True)
    yield case("DivNoNan", a("float", [1, -1, 0, 5]), a("float", [0, 0, 0, 2]))


def floating():
    for op in FLOATING:
        r = Rand(op)
        yield from broadcasting(op, r, 0.2, 3, dtypes=("float",))
        for dtype in FLOATS + COMPLEX:
            yield case(op, r(dtype, (3, 5), 0.2, 3), r(dtype, (3, 5), 0.2, 3))
        for dtype in FLOATS:
            yield table(op, dtype)
    yield case("NextAfter", a("float", [0.0, 1.0, 1.0, -1.0]), a("float", [1.0, 2.0, 0.0, -2.0]),
               tol=0.0)
    r = Rand("Igamma")
    for op in ("Igamma", "Igammac"):
        for dtype, tol in (("float", 1e-4), ("double", 1e-9)):
            yield case(op, r(dtype, (3, 5), 0.2, 6), r(dtype, (3, 5), 0.1, 9), tol=tol)
            yield case(op, r(dtype, (3, 1), 0.2, 6), r(dtype, (5,), 0.1, 9), tol=tol)
            yield table(op, dtype, tol=tol)
        yield case(op, empty("float", 0, 2), r("float", (2,)))
    for op in ("IgammaGradA", "RandomGammaGrad"):
        for dtype, tol in (("float", 1e-4), ("double", 1e-9)):
            yield case(op, r(dtype, (3, 5), 0.2, 6), r(dtype, (3, 5), 0.1, 9), tol=tol)
            yield case(op, r(dtype, (3, 1), 0.2, 6), r(dtype, (5,), 0.1, 9), tol=tol)
            yield case(op, a(dtype, [1, -1, 2, 0, np.nan]), a(dtype, [0, 1, -1, 1, 1]), tol=tol)
            yield case(op, a(dtype, [20, 60, 150]), a(dtype, [25, 50, 151]), tol=tol)
    for dtype, tol in (("float", 1e-4), ("double", 1e-9)):
        values = [r(dtype, (3, 4), lo, hi) for lo, hi in ((0.5, 5), (0.5, 5), (0.05, 0.95))]
        yield case("Betainc", *values, tol=tol)
        yield case("Betainc", values[0], NUMPY[dtype](1.5), NUMPY[dtype](0.25), tol=tol)
        yield case("Betainc", NUMPY[dtype](2), NUMPY[dtype](1.5), values[2], tol=tol)
        edge = a(dtype, [0, 1, 0.5, -0.5, 2])
        yield case("Betainc", np.full_like(edge, 2), np.full_like(edge, 3), edge, tol=tol)
    yield case("Betainc", r("float", (2,)), r("float", (3,)), r("float", (2,)), fails=True)


def power():
    r = Rand("Pow")
    yield from broadcasting("Pow", r, 0.2, 3, dtypes=("float",))
    for dtype in FLOATS + COMPLEX:
        yield case("Pow", r(dtype, (3, 5), 0.2, 3), r(dtype, (3, 5), -2, 3))
    for dtype in INTS:
        yield case("Pow", r(dtype, (3, 5), -3, 3), r(dtype, (3, 5), 0, 4))
        yield case("Pow", r(dtype, (5,), 1, 3), NUMPY[dtype](2))
    for dtype in FLOATS:
        yield table("Pow", dtype)
        for exponent in (2, 3, 0.5, -0.5, -1, 0, 1):
            yield case("Pow", r(dtype, (5,), 0.3, 3), NUMPY[dtype](exponent))
    for dtype in ("int32", "int64"):
        yield case("Pow", a(dtype, [2, 3]), a(dtype, [1, -1]), fails=True)
    yield case("Pow", empty("float", 0, 2), np.float32(2))


def comparing():
    for op in COMPARING:
        r = Rand(op)
        yield from broadcasting(op, r, -2, 2)
        for dtype in NUMBERS + COMPLEX + ["bool", "string"]:
            if dtype == "string" and op not in ("Equal", "NotEqual"):
                continue
            yield case(op, r(dtype, (3, 5), -1, 1), r(dtype, (3, 5), -1, 1))
            yield case(op, r(dtype, (3, 1), -1, 1), r(dtype, (3,), -1, 1))
        for dtype in FLOATS:
            yield table(op, dtype)
    for op in ("Equal", "NotEqual"):
        for shapes in (((2, 3), (2,)), ((3,), (2,)), ((3,), (3,)), ((0,), (2,))):
            yield case(op, Rand(op)("float", shapes[0]), Rand(op)("float", shapes[1]),
                       incompatible_shape_error=False)
    r = Rand("ApproximateEqual")
    for dtype in NUMBERS + COMPLEX:
        x = r(dtype, (3, 5), 0, 4)
        y = np.where(r("bool", (3, 5)), x, x + x.dtype.type(1))
        yield case("ApproximateEqual", x, y.astype(x.dtype))
        yield case("ApproximateEqual", x, y.astype(x.dtype), tolerance=1.5)
    yield table_same("ApproximateEqual")
    yield case("ApproximateEqual", r("float", (2,)), r("float", (3,)), fails=True)
    yield case("ApproximateEqual", empty("float", 0), empty("float", 0))


def table_same(op):
    values = a("float", TABLE)
    return case(op, np.repeat(values, len(TABLE)), np.tile(values, len(TABLE)))


def logic():
    for op in ("LogicalAnd", "LogicalOr"):
        yield from broadcasting(op, Rand(op), dtypes=("bool",))
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        r = Rand(op)
        yield from broadcasting(op, r, dtypes=("int32",))
        for dtype in INTS:
            yield case(op, r(dtype, (3, 5)), r(dtype, (3, 5)))
    for op in ("LeftShift", "RightShift"):
        r = Rand(op)
        yield from broadcasting(op, r, 0, 7, dtypes=("int32",))
        for dtype in INTS:
            bits = np.iinfo(NUMPY[dtype]).bits
            yield case(op, r(dtype, (3, 5), -9, 9), r(dtype, (3, 5), 0, 7))
            yield case(op, r(dtype, (4,), -9, 9), a(dtype, [0, bits - 1, bits, bits + 3]))
        for dtype in SIGNED:
            yield case(op, r(dtype, (4,), -9, 9), a(dtype, [-1, -5, -2, 0]))


def many():
    r = Rand("AddN")
    for dtype in NUMBERS + COMPLEX:
        for count in (1, 2, 3):
            yield case("AddN", [r(dtype, (2, 3)) for _ in range(count)])
    for count in (4, 7, 8, 9, 17):
        yield case("AddN", [r("float", (5,)) for _ in range(count)])
    yield case("AddN", [r("float", ()) for _ in range(3)])
    yield case("AddN", [empty("float", 0, 2)] * 2)
    yield case("AddN", [r("float", (2,)), r("float", (3,))], fails=True)
    r = Rand("BiasAdd")
    for op in ("BiasAdd", "BiasAddV1"):
        for dtype in NUMBERS + COMPLEX:
            yield case(op, r(dtype, (2, 3)), r(dtype, (3,)))
        for shape in ((1, 1), (2, 3, 5), (2, 3, 2, 5), (1, 2, 2, 3, 5), (0, 3), (2, 131), (3, 0)):
            yield case(op, r("float", shape), r("float", shape[-1:]))
        yield case(op, r("float", (3,)), r("float", (3,)), fails=True)
        yield case(op, r("float", (2, 3)), r("float", (2,)), fails=True)
        yield case(op, r("float", (2, 3)), r("float", (1, 3)), fails=True)
    for shape in ((2, 3), (2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 2), (0, 3, 2, 2)):
        for dtype in ("float", "double", "int32"):
            yield case("BiasAdd", r(dtype, shape), r(dtype, (3,)), data_format="NCHW")
    yield case("BiasAdd", r("float", (2, 3, 4)), r("float", (4,)), data_format="NCHW", fails=True)


def selecting():
    r = Rand("Select")
    for dtype in ALL + ["string"]:
        yield case("Select", r("bool", (3, 5)), r(dtype, (3, 5)), r(dtype, (3, 5)))
        yield case("SelectV2", r("bool", (3, 1)), r(dtype, (1, 5)), r(dtype, (3, 5)))
    for dtype in ("float", "int32"):
        yield case("Select", r("bool", (3,)), r(dtype, (3, 4)), r(dtype, (3, 4)))
        yield case("Select", np.bool_(True), r(dtype, (3, 4)), r(dtype, (3, 4)))
        yield case("Select", np.bool_(False), r(dtype, (3, 4)), r(dtype, (3, 4)))
        yield case("Select", empty("bool", 0), empty(dtype, 0, 4), empty(dtype, 0, 4))
        for shapes in (((), (), ()), ((), (2, 3), ()), ((2, 3), (), (3,)), ((3,), (2, 1), (2, 3)),
                       ((4, 1, 1), (1, 3, 1), (1, 1, 2)), ((0, 1), (3,), ()), ((131,), (131,), ())):
            yield case("SelectV2", r("bool", shapes[0]), r(dtype, shapes[1]), r(dtype, shapes[2]))
    yield case("Select", r("bool", (2,)), r("float", (3, 4)), r("float", (3, 4)), fails=True)
    yield case("Select", r("bool", (2,)), r("float", (2, 4)), r("float", (2, 3)), fails=True)
    yield case("SelectV2", r("bool", (2,)), r("float", (3,)), r("float", (3,)), fails=True)
    r = Rand("ClipByValue")
    for dtype in NUMBERS:
        lo, hi = (NUMPY[dtype](2), NUMPY[dtype](5))
        yield case("ClipByValue", r(dtype, (3, 5), -9, 9), lo, hi)
        yield case("ClipByValue", r(dtype, (2, 3), -9, 9), r(dtype, (2, 3), 0, 2),
                   r(dtype, (2, 3), 3, 6))
    for dtype in FLOATS:
        yield case("ClipByValue", a(dtype, TABLE), NUMPY[dtype](-1), NUMPY[dtype](2))
    yield case("ClipByValue", r("float", (131,)), np.float32(-1), np.float32(1))
    yield case("ClipByValue", r("float", (2, 3)), np.float32(-1), r("float", (2, 3), 0, 1))
    yield case("ClipByValue", r("float", (2, 3)), r("float", (2, 3), -1, 0), np.float32(1))
    yield case("ClipByValue", empty("float", 0, 3), np.float32(-1), np.float32(1))
    yield case("ClipByValue", r("float", (2, 3)), r("float", (3,)), np.float32(1), fails=True)
    yield case("Complex", r("float", (2, 3)), r("float", (3,)), Tout="complex64")
    yield case("Complex", r("double", (2, 3)), r("double", ()), Tout="complex128")


def cases():
    for part in (arithmetic, dividing, floating, power, comparing, logic, many, selecting):
        yield from part()
