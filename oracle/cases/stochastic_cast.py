"""StochasticCastToInt: which random number rounds which element."""

import numpy as np

from casekit import Rand, a, case, i32, s32

KEY, COUNTER = np.array([123], np.uint64), np.array([5, 7], np.uint64)


def cases():
    r = Rand("StochasticCastToInt")
    for dtype in ("half", "bfloat16", "float", "double"):
        for out in ("int8", "int16", "int32"):
            for shape in ((21,), (3, 8), (0, 4), ()):
                yield case("StochasticCastToInt", r(dtype, shape, -9, 9), KEY, COUNTER, s32(1), Tout=out)
            values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 127.5, -128.5, 300.0, -300.0, 32768.0, 1e10, -1e10, 0.25, -0.25]
            with np.errstate(over="ignore"):
                yield case("StochasticCastToInt", a(dtype, values * 2), KEY, COUNTER, s32(3), Tout=out)
    x = a("float", [1.5])
    yield case("StochasticCastToInt", x, KEY, COUNTER[:1], s32(1), Tout="int8")
    for inputs in ((np.array([1, 2], np.uint64), COUNTER, s32(1)), (KEY, COUNTER[:0], s32(1)), (KEY, COUNTER, s32(2)),
                   (KEY, COUNTER, s32(9)), (KEY, COUNTER, s32(0)), (KEY[0], COUNTER, s32(1)), (KEY, COUNTER[0], s32(1)),
                   (KEY, COUNTER, i32(1))):
        yield case("StochasticCastToInt", x, *inputs, Tout="int8", fails=True)
