"""Element-wise ops of one input, and Cast."""

import numpy as np

from casekit import (ALL, COMPLEX, FLOATS, INTS, NUMBERS, NUMPY, SPECIAL, Rand, a, case,
                     empty)

# op: (lo, hi) where it is well-conditioned, and dtypes to try.
MATHS = {
    "Sqrt": (0.01, 9), "Rsqrt": (0.01, 9), "Exp": (-6, 4), "Expm1": (-3, 3),
    "Log": (0.01, 9), "Log1p": (-0.9, 6), "Sin": (-9, 9), "Cos": (-9, 9), "Tan": (-1.4, 1.4),
    "Asin": (-0.99, 0.99), "Acos": (-0.99, 0.99), "Atan": (-9, 9), "Sinh": (-4, 4),
    "Cosh": (-4, 4), "Tanh": (-9, 9), "Asinh": (-9, 9), "Acosh": (1.01, 9),
    "Atanh": (-0.95, 0.95), "Sigmoid": (-9, 9), "Erf": (-4, 4), "Erfc": (-4, 4),
    "Erfinv": (-0.95, 0.95), "Ndtri": (0.02, 0.98), "Lgamma": (0.1, 9), "Digamma": (0.3, 9),
    "Reciprocal": (0.2, 5), "Inv": (0.2, 5), "Floor": (-5, 5), "Ceil": (-5, 5),
    "Rint": (-5, 5),
}
BESSEL = {
    "BesselI0": (-20, 20), "BesselI0e": (-20, 20), "BesselI1": (-20, 20), "BesselI1e": (-20, 20),
    "BesselJ0": (-20, 20), "BesselJ1": (-20, 20), "BesselK0": (0.1, 12), "BesselK0e": (0.1, 12),
    "BesselK1": (0.1, 12), "BesselK1e": (0.1, 12), "BesselY0": (0.1, 20), "BesselY1": (0.1, 20),
    "Dawsn": (-9, 9), "Expint": (0.1, 60), "FresnelCos": (-9, 9), "FresnelSin": (-9, 9),
    "Spence": (0, 9),
}
LOOSE = {"Lgamma": 1e-4, "Digamma": 1e-4, "Erfinv": 1e-4, "Ndtri": 1e-4}
ARITHMETIC = ["Abs", "Neg", "Sign", "Square", "Round"]
ACTIVATIONS = ["Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign"]
PASSING = ["Identity", "StopGradient", "PreventGradient", "Snapshot", "ZerosLike", "OnesLike"]


def loose(op, dtype):
    if dtype in ("float", "complex64"):
        return LOOSE.get(op)
    return {"double": 1e-9}.get(dtype) if op in LOOSE else None


def maths():
    for op, (lo, hi) in MATHS.items():
        r = Rand(op)
        for dtype in FLOATS + COMPLEX:
            tol = loose(op, dtype)
            yield case(op, r(dtype, (3, 7), lo, hi), tol=tol)
        yield case(op, np.linspace(lo, hi, 131, dtype=np.float32), tol=loose(op, "float"))
        yield case(op, np.linspace(lo, hi, 19, dtype=np.float64), tol=loose(op, "double"))
        yield case(op, r("float", (), lo, hi), tol=loose(op, "float"))
        yield case(op, empty("float", 0, 3))
        for dtype in FLOATS:
            tol = {"float": 1e-4, "double": 1e-9}.get(dtype)
            yield case(op, a(dtype, SPECIAL), tol=tol)
        for dtype in ("int32", "int64"):
            yield case(op, a(dtype, [1, 2, 3, 4, 5, 9]))
    # On both sides of the branch cuts.
    yield case("Tan", a("complex64", [1.5738 + 0j, 1.57 + 0j, 0.3 - 2j]))
    yield case("Atanh", a("float", [-0.99999994, -0.999999, -0.999, 0.999, 0.999999]))
    yield case("Atanh", a("double", [-0.9999999, -0.999999, 0.999999]))
    for op in ("Asinh", "Acosh"):
        yield case(op, a("float", [3e38, 1.5, 2e19]))
    for op in ("Asin", "Acos", "Atanh", "Asinh", "Acosh", "Atan", "Sqrt", "Log"):
        for dtype in COMPLEX:
            cuts = [complex(x, y) for x in (-2.0, 2.0, -0.5, 0.5) for y in (0.0, -0.0)]
            yield case(op, np.array([*cuts, 2j, -2j, 0.5 + 0.5j, 3 + 4j], NUMPY[dtype]))


def bessel():
    for op, (lo, hi) in BESSEL.items():
        r = Rand(op)
        for dtype in FLOATS:
            yield case(op, r(dtype, (3, 7), lo, hi), tol={"float": 1e-4, "double": 1e-9}.get(dtype))
        yield case(op, np.linspace(lo, hi, 67, dtype=np.float32), tol=1e-4)
        yield case(op, np.linspace(lo, hi, 67, dtype=np.float64), tol=1e-9)
        yield case(op, a("double", [-np.inf, -3, -1, 0, 1, 40, 300, np.inf, np.nan]), tol=1e-9)
        yield case(op, empty("float", 0, 3))


def rounding():
    halves = [-3.5, -2.5, -1.5, -0.5, -0.4, 0.0, 0.4, 0.5, 1.5, 2.5, 3.5, 1e6 + 0.5]
    for op in ("Rint", "Round", "Floor", "Ceil"):
        for dtype in FLOATS:
            yield case(op, a(dtype, halves))


def arithmetic():
    for op in ARITHMETIC:
        r = Rand(op)
        for dtype in NUMBERS + COMPLEX:
            yield case(op, r(dtype, (3, 7)))
        for dtype in FLOATS:
            yield case(op, a(dtype, SPECIAL))
        for dtype in INTS:
            info = np.iinfo(NUMPY[dtype])
            values = [info.min, info.min + 1, 0, 1, info.max - 1, info.max]
            # The magnitude of the lowest number of a type is not defined in C++.
            yield case(op, a(dtype, values[1:] if op in ("Abs", "Neg") else values))
        yield case(op, r("float", ()))
        yield case(op, r("int32", ()))
        yield case(op, r("float", (131,)))
        yield case(op, empty("float", 2, 0))
        yield case(op, empty("int64", 0))


def activations():
    for op in ACTIVATIONS:
        r = Rand(op)
        for dtype in FLOATS + INTS:
            yield case(op, r(dtype, (3, 7), -9, 9))
        for dtype in FLOATS:
            yield case(op, a(dtype, SPECIAL))
            yield case(op, a(dtype, [-100.0, -30, -14, -5, -0.1, 0, 0.1, 5, 14, 30, 100]))
        yield case(op, np.linspace(-9, 9, 131, dtype=np.float32))
        yield case(op, r("float", ()))
        yield case(op, empty("float", 0, 3))
    for alpha in (0.0, 0.1, 1.0, 1.5, -0.5):
        for dtype in FLOATS:
            yield case("LeakyRelu", Rand("alpha")(dtype, (2, 5), -4, 4), alpha=alpha)


def tests():
    for op in ("IsNan", "IsInf", "IsFinite"):
        for dtype in FLOATS:
            yield case(op, a(dtype, SPECIAL))
            yield case(op, Rand(op)(dtype, (2, 3)))
            yield case(op, empty(dtype, 0, 3))
        yield case(op, np.float32(np.nan))
    r = Rand("LogicalNot")
    for shape in ((), (3, 7), (0, 2)):
        yield case("LogicalNot", r("bool", shape))
    for dtype in INTS:
        info = np.iinfo(NUMPY[dtype])
        yield case("Invert", a(dtype, [info.min, info.max, 0, 1, 5]))
        yield case("Invert", empty(dtype, 0))
    yield case("Invert", np.int32(-7))
    for dtype in INTS:
        info = np.iinfo(NUMPY[dtype])
        yield case("PopulationCount", a(dtype, [info.min, info.max, 0, 1, 5, 100]))


def complexes():
    r = Rand("complex")
    for dtype, out in zip(COMPLEX, ("float", "double")):
        for shape in ((2, 5), (), (0, 3)):
            yield case("Conj", r(dtype, shape))
            for op in ("Real", "Imag", "ComplexAbs", "Angle"):
                yield case(op, r(dtype, shape), Tout=out)


def passing():
    for op in PASSING:
        r = Rand(op)
        for dtype in ALL + ["string"]:
            if dtype == "string" and op == "OnesLike":
                continue
            yield case(op, r(dtype, (2, 3)))
        for shape in ((), (0, 4), (1, 1, 5)):
            yield case(op, r("float", shape))
        yield case(op, a("float", SPECIAL[:5]))
    yield case("PreventGradient", np.float32(1.5), message="no gradient")


def cast():
    r = Rand("Cast")
    for src in ALL:
        for dst in ALL:
            lo = 0 if dst.startswith("u") else -9
            yield case("Cast", r(src, (6,), lo, 9), DstT=dst)
            if dst != src and src in FLOATS and dst in FLOATS:
                yield case("Cast", r(src, (6,), lo, 9), DstT=dst, Truncate=True)
    for dst in FLOATS + ["bool"] + COMPLEX:
        yield case("Cast", a("float", SPECIAL), DstT=dst)
        yield case("Cast", a("double", SPECIAL), DstT=dst)
    awkward = [1 + 2**-8, 1 + 3 * 2**-8, 1.00390625001, 3.0e38, 65519.0, 65520.0, 2049.0, 2051.0]
    for dst in ("half", "bfloat16"):
        yield case("Cast", a("float", awkward), DstT=dst)
        yield case("Cast", a("float", awkward), DstT=dst, Truncate=True)
        yield case("Cast", a("double", awkward), DstT=dst)
    for dst in ("int32", "int64", "int16"):
        yield case("Cast", a("float", [-2.9, -2.5, -0.9, 0.9, 2.5, 2.9, 1e4]), DstT=dst)
    # Out of range: the results of TensorFlow's vectorized loops.
    far = [np.nan, np.inf, -np.inf, 3e38, -3e38, -1.0, 3e9, -3e9,
           5e9, 1e19, 1.5e19, 2.0**31, 2.0**63, -2.0**31, -2.0**63, 7.5]
    for src in ("float", "double"):
        for dst in ("int32", "uint32", "int64", "uint64"):
            yield case("Cast", a(src, far), DstT=dst)
    near = [np.nan, -1.0, 300.0, -300.0, 70000.0, -70000.0, 127.9, 65535.9]
    for dst in ("int8", "uint8", "int16", "uint16"):
        yield case("Cast", a("float", near * 8), DstT=dst)
    for src, dst in (("int64", "int32"), ("int32", "int8"), ("int32", "uint8"),
                     ("int64", "uint16"), ("uint32", "int32"), ("int8", "uint64")):
        info = np.iinfo(NUMPY[src])
        yield case("Cast", a(src, [info.min, info.max, 0, 1, info.max // 3]), DstT=dst)
    yield case("Cast", a("int64", [2**53 + 1, 2**62 + 3, -(2**53) - 1]), DstT="double")
    yield case("Cast", a("int64", [2**24 + 1, 2**40 + 3, -(2**24) - 1]), DstT="float")
    yield case("Cast", np.float32(3.7), DstT="int32")
    yield case("Cast", empty("float", 0, 3), DstT="int32")


def cases():
    for part in (maths, bessel, rounding, arithmetic, activations, tests, complexes, passing, cast):
        yield from part()
