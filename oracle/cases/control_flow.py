"""ToBool: the rule for conditions."""

import numpy as np

from casekit import ALL, Rand, a, case, empty


def cases():
    r = Rand("ToBool")
    for dtype in ALL:
        yield case("ToBool", r(dtype, (2, 3)))
        yield case("ToBool", empty(dtype, 0, 2))
        yield case("ToBool", a(dtype, [0]))
    for dtype in ("float", "double", "int32", "int64", "uint8", "int16", "int8", "bool"):
        for value in (0, 1, 3):
            yield case("ToBool", a(dtype, value))
    yield case("ToBool", np.float32("nan"))
    yield case("ToBool", np.float32("-0.0"))
    for text in (b"", b"False", b"\0"):
        yield case("ToBool", np.array(text, dtype=object))
    for dtype in ("half", "bfloat16", "uint16", "uint32", "uint64", "complex64"):
        yield case("ToBool", a(dtype, 1), fails=True)
