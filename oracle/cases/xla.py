"""XLA's ops as TensorFlow's CPU runs them."""

import numpy as np
from tensorflow.compiler.xla import xla_data_pb2 as xla

from casekit import ALL, COMPLEX, FLOATS, INTS, NUMBERS, NUMPY, SPECIAL, Rand, a, case, empty, i32, i64


def cases():
    r = Rand("XLA ops")
    yield from dynamic_slices(r)
    yield from identities(r)
    yield from precisions(r)
    yield from pads(r)
    yield from broadcasts(r)
    yield from einsums(r)
    yield from dots(r)
    yield from gathers(r)
    yield from sorts(r)
    yield from convolutions(r)
    yield from random_bits()
    yield from dequantized(r)
    yield from bad_decompositions(r)


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


def identities(r):
    for dtype in ALL:
        x = r(dtype, (2, 3))
        yield case("XlaSharding", x, sharding="")
        yield case("XlaOptimizationBarrier", [x])
    yield case("XlaSharding", np.float32(1), unspecified_dims=[0])
    yield case("XlaOptimizationBarrier", [np.float32(1), i32(1, 2), empty("float", 0, 2)])


def precisions(r):
    for dtype in FLOATS:
        x = a(dtype, SPECIAL + [1.1, 65504.0, 65520.0, 1e-7, -3.7e-5, 6.1e-5, 2**-14, 2**-15, 5.9e-8, 255.5, -3.1415926])
        for exponent, mantissa in ((5, 10), (8, 7), (4, 3), (5, 2), (1, 0), (2, 1), (8, 23), (11, 52), (70, 2**40)):
            yield case("XlaReducePrecision", x, exponent_bits=exponent, mantissa_bits=mantissa,
                       tol=None if dtype == "double" else 0.0)
        yield case("XlaReducePrecision", r(dtype, (3, 4), -100, 100), exponent_bits=5, mantissa_bits=3, tol=0.0)
        yield case("XlaReducePrecision", empty(dtype, 0, 2), exponent_bits=5, mantissa_bits=3)
    for bits in ((0, 3), (-1, 3), (3, -1)):
        yield case("XlaReducePrecision", x, exponent_bits=bits[0], mantissa_bits=bits[1], fails=True)


def pads(r):
    for dtype in ALL:
        x, value = r(dtype, (2, 3)), r(dtype)
        yield case("XlaPad", x, value, i32(1, -1), i32(-1, 2), i32(2, 1))
    x, value = r("float", (4, 5)), np.float32(9)
    for low, high, interior in (((0, 0), (0, 0), (0, 0)), ((0, 2), (1, 0), (0, 3)), ((-1, -2), (-1, -1), (0, 0)),
                                ((-3, -4), (-4, 2), (2, 1)), ((-5, 0), (3, 1), (1, 1)), ((3, 1), (-9, -2), (2, 0)),
                                ((-4, 0), (0, 0), (0, 0)), ((-20, 30), (20, -29), (1, 0)), ((10, 0), (-12, 1), (0, 0))):
        yield case("XlaPad", x, value, i32(*low), i32(*high), i32(*interior))
        yield case("XlaPad", x, value, i64(*low), i64(*high), i64(*interior))
    yield case("XlaPad", np.float32(3), value, i32(), i32(), i32())
    yield case("XlaPad", empty("float", 0, 2), value, i32(1, 1), i32(1, 2), i32(3, 1))
    yield case("XlaPad", r("float", (2, 3, 2, 2)), value, i32(1, 0, 0, 1), i32(0, 0, 0, 0), i32(0, 2, 0, 1))
    for low, high, interior in (((-1, -1), (-4, 2), (0, 1)), ((1, 1), (1, 2), (-1, 1)), ((1,), (1, 2), (1, 1)),
                                ((1, 1), (1,), (1, 1)), ((1, 1), (1, 1), (1, 1, 1))):
        yield case("XlaPad", x, value, i32(*low), i32(*high), i32(*interior), fails=True)
    yield case("XlaPad", x, r("float", (1,)), i32(1, 1), i32(1, 1), i32(1, 1), fails=True)


def broadcasts(r):
    for dtype in NUMBERS + COMPLEX:
        yield case("XlaBroadcastHelper", r(dtype, (2, 3)), r(dtype, (3,)), i32(1))
    x, y = r("float", (2, 3, 4)), r("float", (2, 4))
    yield case("XlaBroadcastHelper", x, y, i32(0, 2))
    yield case("XlaBroadcastHelper", y, x, i64(0, 2))
    yield case("XlaBroadcastHelper", x, x, i32())
    yield case("XlaBroadcastHelper", x, x, i32(0, 1, 2))
    yield case("XlaBroadcastHelper", x, np.float32(1), i32())
    yield case("XlaBroadcastHelper", np.float32(1), x, i32())
    for dims in ((), (0,), (1, 0), (1, 1), (0, 3), (-1, 2)):
        yield case("XlaBroadcastHelper", x, y, i32(*dims), fails=True)


def einsums(r):
    for dtype in ("float", "bfloat16", "complex64"):
        yield case("XlaEinsum", r(dtype, (2, 3)), r(dtype, (3, 4)), equation="ab,bc->ac")
        yield case("XlaEinsum", r(dtype, (2, 3, 4)), r(dtype, (2, 4, 3)), equation="abc,acd->dba")
    for equation, x, y in (("ab,ab->ab", (2, 3), (2, 3)), ("ab,cd->dabc", (2, 3), (2, 2)), ("ab,b->a", (2, 3), (3,)),
                           ("...ab,...bc->...ac", (2, 2, 3), (2, 3, 2)), ("a,a->", (5,), (5,)), ("ab,bc->c", (2, 3), (3, 4))):
        yield case("XlaEinsum", r("float", x), r("float", y), equation=equation)
    yield case("XlaEinsum", empty("float", 2, 0), empty("float", 0, 3), equation="ab,bc->ac")
    yield case("XlaEinsum", r("float", (2, 3)), r("float", (3,)), equation="ab->ab", fails=True)


def dot_numbers(lhs=(), rhs=(), lhs_batch=(), rhs_batch=()):
    return xla.DotDimensionNumbers(
        lhs_contracting_dimensions=lhs, rhs_contracting_dimensions=rhs, lhs_batch_dimensions=lhs_batch,
        rhs_batch_dimensions=rhs_batch).SerializeToString()


def dots(r):
    matrix = dot_numbers([1], [0])
    for dtype in NUMBERS + COMPLEX:
        yield case("XlaDot", r(dtype, (2, 3), -3, 3), r(dtype, (3, 4), -3, 3), dimension_numbers=matrix, precision_config=b"")
    for numbers, x, y in ((([1], [1]), (2, 3), (4, 3)), (([0], [1]), (3, 2), (4, 3)), (((), ()), (2, 3), (2,)),
                          (([2], [1], [0], [0]), (2, 3, 4), (2, 4, 5)), (([0, 2], [1, 0]), (2, 3, 4), (4, 2, 5)),
                          (([1], [2], [2], [0]), (3, 4, 2), (2, 5, 4)), (([0], [0]), (5,), (5,)), (((), ()), (), (3,)),
                          (((), (), [0, 1], [0, 1]), (2, 3), (2, 3)), (([1], [0]), (2, 1), (1, 3))):
        yield case("XlaDot", r("float", x), r("float", y), dimension_numbers=dot_numbers(*numbers), precision_config=b"")
    yield case("XlaDot", empty("float", 2, 0), empty("float", 0, 3), dimension_numbers=matrix, precision_config=b"")
    yield case("XlaDot", empty("float", 0, 2), r("float", (2, 3)), dimension_numbers=matrix, precision_config=b"")
    for lhs, rhs, out in (("int8", "int8", "int32"), ("bfloat16", "bfloat16", "float"), ("half", "half", "float"),
                          ("int8", "uint8", "int32"), ("float", "float", "bfloat16"), ("float", "bfloat16", "float"),
                          ("int32", "int32", "int64"), ("int32", "float", "float"), ("uint8", "uint8", "int32"),
                          ("double", "double", "float"), ("int32", "int32", "int8"), ("complex64", "complex64", "complex64"),
                          ("float", "float", "double"), ("int16", "int16", "int64")):
        yield case("XlaDotV2", r(lhs, (2, 3)), r(rhs, (3, 4)), dimension_numbers=matrix, precision_config=b"",
                   preferred_element_type=out)
    yield case("XlaDotV2", a("float", [[0.5, 0.5, 1.25]]), a("float", [[1], [1], [1]]), dimension_numbers=matrix,
               precision_config=b"", preferred_element_type="int32")


def gather_numbers(offset=(), collapsed=(), index_map=(), vector_dim=0, operand_batch=(), indices_batch=()):
    return xla.GatherDimensionNumbers(
        offset_dims=offset, collapsed_slice_dims=collapsed, start_index_map=index_map, index_vector_dim=vector_dim,
        operand_batching_dims=operand_batch, start_indices_batching_dims=indices_batch).SerializeToString()


def gather(x, indices, sizes, numbers, **more):
    sizes = np.array(sizes, np.asarray(indices).dtype)
    return case("XlaGather", x, indices, sizes, dimension_numbers=gather_numbers(*numbers), indices_are_sorted=False, **more)


def gathers(r):
    rows = ((1,), (0,), (0,), 1)
    for dtype in ALL:
        yield gather(r(dtype, (5, 3)), i32(4, 0, 2, 9, -7), (1, 3), rows)
    x, cube = r("float", (4, 5)), r("float", (4, 3, 5))
    for indices, sizes, numbers in (
            (i64(1, 2**40, -2**62), (1, 5), rows), (np.array([[0, 3], [2, 1]], np.int32), (1, 5), ((2,), (0,), (0,), 2)),
            (np.array([[0, 3], [9, 9], [2, -1]], np.int32), (2, 3), ((1, 2), (), (0, 1), 1)),
            (np.array([[0, 3, 2], [3, 1, 0]], np.int32), (1, 1), ((), (0, 1), (1, 0), 0)),
            (np.array([[0, 3], [2, 1]], np.int32), (2, 1), ((0,), (1,), (0, 1), 1)),
            (i32(1, 2), (2, 2), ((0, 1), (), (0, 1), 0)), (np.int32(2), (1, 5), ((0,), (0,), (0,), 0)),
            (i32(3, 1), (4, 1), ((0,), (1,), (1,), 1)), (empty("int32", 0, 2), (1, 2), ((1, 2), (), (0, 1), 1)),
            (i32(1, 2), (2, 0), ((1, 2), (), (0,), 1))):
        yield gather(x, indices, sizes, numbers)
    yield gather(cube, i32(0, 1, 2, 0), (1, 1, 5), ((1,), (1,), (1,), 1, (0,), (0,)))
    yield gather(cube, np.array([[1, 0], [2, 2]], np.int32), (1, 2, 5), ((1, 2), (0,), (0, 1), 1))
    for indices, sizes, numbers in (
            (i32(1), (1,), rows), (i32(1), (1, 6), rows), (i32(1), (-1, 5), rows), (i32(1), (2, 5), rows),
            (i32(1), (1, 5), ((1,), (0,), (0,), 3)), (i32(1), (1, 5), ((1,), (0,), (0, 1), 1)),
            (i32(1), (1, 5), ((1,), (0,), (7,), 1)), (i32(1), (1, 5), ((5,), (0,), (0,), 1)),
            (i32(1), (1, 5), ((1,), (), (0,), 1)), (i32(1), (1, 1), ((), (1, 0), (0,), 1))):
        yield gather(x, indices, sizes, numbers, fails=True)


def sorts(r):
    for dtype in NUMBERS + ["bool"]:
        yield case("XlaSort", r(dtype, (3, 7)))
    for dtype in FLOATS:
        yield case("XlaSort", a(dtype, SPECIAL + [3.0, -0.0]))
        yield case("XlaKeyValueSort", a(dtype, SPECIAL), np.arange(len(SPECIAL), dtype=np.int32))
    yield case("XlaSort", empty("float", 0, 3))
    yield case("XlaSort", empty("float", 3, 0))
    yield case("XlaSort", r("int32", (2, 3, 40), -5, 5))
    for dtype in NUMBERS:
        yield case("XlaKeyValueSort", r(dtype, (2, 9), -3, 3), np.arange(18, dtype=np.float32).reshape(2, 9))
    for dtype in ALL:
        yield case("XlaKeyValueSort", r("int32", (3, 5), -2, 2), r(dtype, (3, 5)))
    yield case("XlaKeyValueSort", empty("int32", 0, 5), empty("int32", 0, 5))
    yield case("XlaKeyValueSort", i32(1, 2, 3), i32(1, 2), fails=True)
    yield case("XlaSort", np.float32(3), fails=True)
    yield case("XlaSort", r("complex64", (3,)), fails=True)


def conv_numbers(lhs, rhs, out):
    """Dimension numbers from layouts, such as NHWC, HWIO and NHWC."""
    def spatial(layout):
        return [layout.index(c) for c in "DHW" if c in layout]
    return xla.ConvolutionDimensionNumbers(
        input_batch_dimension=lhs.index("N"), input_feature_dimension=lhs.index("C"), input_spatial_dimensions=spatial(lhs),
        kernel_input_feature_dimension=rhs.index("I"), kernel_output_feature_dimension=rhs.index("O"),
        kernel_spatial_dimensions=spatial(rhs), output_batch_dimension=out.index("N"),
        output_feature_dimension=out.index("C"), output_spatial_dimensions=spatial(out)).SerializeToString()


def conv(x, w, layouts, strides=None, padding=None, lhs_dilation=None, rhs_dilation=None, groups=1, index=np.int32,
         out=None, batch_groups=None, **more):
    n = np.ndim(x) - 2
    ones, zeros = [1] * n, [[0, 0]] * n
    numbers = [np.array(v if v is not None else d, index).reshape(np.shape(d) if v is None else np.shape(v))
               for v, d in ((strides, ones), (padding, np.array(zeros).reshape(n, 2)), (lhs_dilation, ones), (rhs_dilation, ones), (groups, 1))]
    attrs = dict(dimension_numbers=conv_numbers(*layouts), precision_config=b"", **more)
    if out is None:
        return case("XlaConv", x, w, *numbers, **attrs)
    return case("XlaConvV2", x, w, *numbers, preferred_element_type=out, batch_group_count=batch_groups or 1, **attrs)


def convolutions(r):
    nhwc = ("NHWC", "HWIO", "NHWC")
    for dtype in NUMBERS:
        yield conv(r(dtype, (1, 4, 4, 2), -2, 2), r(dtype, (2, 2, 2, 3), -2, 2), nhwc)
    x, w = r("float", (2, 5, 6, 4)), r("float", (3, 2, 4, 6))
    for more in (dict(strides=(2, 1)), dict(padding=((1, 1), (0, 2))), dict(padding=((-1, 0), (2, -1))),
                 dict(lhs_dilation=(2, 3)), dict(rhs_dilation=(2, 2)), dict(index=np.int64),
                 dict(strides=(2, 3), padding=((2, 1), (1, 3)), lhs_dilation=(2, 1), rhs_dilation=(1, 2)),
                 dict(padding=((-3, -2), (0, 0)))):
        yield conv(x, w, nhwc, **more)
    yield conv(x, r("float", (3, 2, 2, 6)), nhwc, groups=2)
    yield conv(x, r("float", (3, 2, 1, 8)), nhwc, groups=4, padding=((1, 1), (1, 1)))
    yield conv(x.transpose(0, 3, 1, 2).copy(), w.transpose(3, 2, 0, 1).copy(), ("NCHW", "OIHW", "NCHW"))
    yield conv(x.transpose(3, 1, 2, 0).copy(), w, ("CHWN", "HWIO", "HNCW"), strides=(1, 2))
    yield conv(r("float", (2, 7, 3)), r("float", (3, 3, 4)), ("NWC", "WIO", "NWC"), strides=(2,))
    yield conv(r("float", (1, 3, 3, 4, 2)), r("float", (2, 2, 2, 2, 3)), ("NDHWC", "DHWIO", "NDHWC"))
    yield conv(empty("float", 0, 5, 6, 4), w, nhwc)
    yield conv(r("float", (4, 5, 6, 3)), r("float", (3, 2, 3, 6)), nhwc, out="float", batch_groups=2)
    for lhs, rhs, out in (("int8", "int8", "int32"), ("bfloat16", "bfloat16", "float"), ("half", "half", "float"),
                          ("float", "float", "float"), ("int32", "int32", "int64")):
        yield conv(r(lhs, (1, 4, 4, 2), -3, 3), r(rhs, (2, 2, 2, 3), -3, 3), nhwc, out=out)


def random_bits():
    for dtype in ("uint8", "uint32", "uint64"):
        for algorithm, state in ((1, (1, 2, 3)), (1, (2**64 - 1, 7)), (2, (2**40 + 5, 2**64 - 2)), (3, (1, 2)),
                                 (1, (9, 2**64 - 1, 2**64 - 1))):
            for shape in ((5,), (3, 3), (2, 4), (3, 5, 2)):
                yield case("XlaRngBitGenerator", np.int32(algorithm), np.array(state, np.uint64), i32(*shape), dtype=dtype)
    for shape in ((), (7, 3), (3, 7), (5, 5, 3), (1, 1), (4,)):
        for algorithm, state in ((1, (1, 2, 3)), (2, (1, 2))):
            yield case("XlaRngBitGenerator", np.int32(algorithm), np.array(state, np.uint64), i64(*shape), dtype="uint32")


def dequantized(r):
    x = np.array([[0x01020304, 0xff008055], [7, 2**32 - 1]], np.uint32)
    for low, high in ((0.0, 6.0), (-3.0, 6.0), (-1.5, 0.25), (0.1, 0.3)):
        for transposes in (False, True):
            yield case("XlaDequantize", x, min_range=low, max_range=high, mode="MIN_COMBINED", transpose_output=transposes)
    yield case("XlaDequantize", x.reshape(1, 2, 2), min_range=0.0, max_range=6.0, mode="MIN_COMBINED", transpose_output=True)
    yield case("XlaDequantize", x, min_range=0.0, max_range=6.0, mode="SCALED", transpose_output=False, fails=True)


def bad_decompositions(r):
    for x in (r("float", (3,)), r("float", (2, 3)), r("int32", (2, 2))):
        yield case("XlaSelfAdjointEig", x, lower=True, max_iter=100, epsilon=1e-6, fails=True)
