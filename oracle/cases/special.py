"""Special functions over all magnitudes, in rows of a few each, since tolerances are relative to a row's largest number."""

import numpy as np

from casekit import NUMPY, case

BESSEL = ["BesselI0", "BesselI0e", "BesselI1", "BesselI1e", "BesselJ0", "BesselJ1", "BesselK0", "BesselK0e", "BesselK1",
          "BesselK1e", "BesselY0", "BesselY1"]
OTHERS = ["Expint", "FresnelCos", "FresnelSin", "Spence", "Digamma", "Lgamma", "Erf", "Erfc"]
TOL = {"float": 2e-6, "double": 1e-13}


def edges(dtype):
    "What approximations change at, and numbers beside it."
    at = np.array([0.5, 1, 1.5, 2, 4, 5, 8, 10, 16, 32, 64], NUMPY[dtype])
    return np.concatenate([at, np.nextafter(at, NUMPY[dtype](0)), np.nextafter(at, NUMPY[dtype](99))])


def cases():
    for dtype, tol in TOL.items():
        t = NUMPY[dtype]
        odd = np.array([0, -0.0, np.inf, -np.inf, np.nan, -1, -2.5, -30], t)
        decades = [np.geomspace(10.0**k, 10.0**(k + 1), 9).astype(t) for k in range(-8, 3)]
        for op in BESSEL + OTHERS:
            # Far sines of single precision have other digits in TensorFlow.
            far = {"BesselJ0": 30, "BesselJ1": 30, "BesselY0": 30, "BesselY1": 30, "FresnelCos": 20, "FresnelSin": 20}.get(op, 1e3)
            for x in decades + [edges(dtype)]:
                x = x[x < far]
                if not len(x):
                    continue
                is_positive = op in ("Expint", "Spence") or "K" in op or "Y" in op
                sides = [x] if is_positive or len(x) > 9 else [x, -x[::2]]
                for x in sides:
                    yield case(op, x, tol=tol * (20 if op in ("Digamma", "Lgamma", "FresnelCos", "FresnelSin") or far < 99 else 1))
            # TensorFlow's BesselY1 of 0 is -inf in double and NaN in single precision.
            yield case(op, odd[2:] if op == "BesselY1" else odd, tol=tol * 20)
        for a in (1e-3, 0.3, 1, 7.5, 60, 900):
            x = np.array([1e-6, 0.01, 0.3, 1, 2, 7, 8.4, 8.6, 30, 61, 62, 800, 950], t)
            for op in ("Igamma", "Igammac"):
                yield case(op, t(a), x, tol=1e-3 if dtype == "float" else 1e-11)
            x = np.array([0, 1e-6, 0.01, 0.2, 0.4, 0.5, 0.6, 0.8, 0.99, 1], t)
            for b in (1e-2, 0.7, 3, 55):
                yield case("Betainc", t(a), t(b), x, tol=3e-5 if dtype == "float" else 1e-11)
        for s in (1.01, 1.5, 2, 3, 7.5, 20):
            q = np.array([1e-3, 0.1, 0.5, 1, 2, 9, 11, 13, 100, 1e4], t)
            for part in (q[:2], q[2:5], q[5:]):
                yield case("Zeta", t(s), part, tol=5e-6 if dtype == "float" else 1e-13)
        for n in (0, 1, 2, 5, 18, 19, 25):
            q = np.array([0.1, 0.5, 1, 2, 9, 11, 13, 100], t)
            for part in (q[:1], q[1:4], q[4:]):
                yield case("Polygamma", t(n), part, tol=2e-5 if dtype == "float" else 1e-12)
    x = np.arange(-40, 40, dtype=np.int32)
    for dtype in ("int32", "int64", "int8", "int16"):
        for e in range(5):
            yield case("Pow", x.astype(NUMPY[dtype]), NUMPY[dtype](e))
