"""XLA's ops as TensorFlow's CPU runs them."""

import numpy as np

from casekit import ALL, Rand, case, empty, i32, i64


def cases():
    r = Rand("XLA ops")
    yield from dynamic_slices(r)


def dynamic_slices(r):
    for dtype in ALL:
        x = r(dtype, (4, 5))
        yield case("XlaDynamicSlice", x, i32(1, 2), i32(2, 3))
        yield case("XlaDynamicUpdateSlice", x, r(dtype, (2, 3)), i32(1, 2))
    x, update = r("float", (4, 5)), r("float", (2, 3))
    # Windows that reach over an edge are moved inside.
    for starts in (i32(0, 0), i32(9, -3), i64(3, 4), i64(-2**62, 2**62), i32(2**31 - 1, -2**31)):
        yield case("XlaDynamicSlice", x, starts, np.array([2, 3], starts.dtype))
        yield case("XlaDynamicUpdateSlice", x, update, starts)
    for sizes in (i32(4, 5), i32(1, 1), i32(4, 1), i32(0, 2)):
        yield case("XlaDynamicSlice", x, i32(1, 1), sizes)
        yield case("XlaDynamicUpdateSlice", x, r("float", tuple(sizes)), i32(1, 1))
    cube = r("float", (3, 2, 4))
    yield case("XlaDynamicSlice", cube, i32(1, 0, 2), i32(2, 1, 2))
    yield case("XlaDynamicUpdateSlice", cube, r("float", (2, 1, 2)), i32(1, 0, 2))
    yield case("XlaDynamicSlice", np.float32(3), i32(), i32())
    yield case("XlaDynamicUpdateSlice", np.float32(3), np.float32(4), i32())
    yield case("XlaDynamicSlice", empty("float", 0, 3), i32(1, 1), i32(0, 2))
    for starts, sizes in ((i32(0, 0), i32(5, 2)), (i32(0, 0), i32(-1, 2)), (i32(0), i32(2, 2)), (i32(0, 0), i32(2))):
        yield case("XlaDynamicSlice", x, starts, sizes, fails=True)
    for update, starts in ((r("float", (5, 2)), i32(0, 0)), (r("float", (2,)), i32(0, 0)),
                           (update, i32(0)), (update, np.int32(0))):
        yield case("XlaDynamicUpdateSlice", x, update, starts, fails=True)
