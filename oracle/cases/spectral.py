"""Fourier transforms."""

import numpy as np

from casekit import Rand, case, empty, i32

# Sizes of the inner dimensions, by rank: powers of two, primes, products, and sizes of one.
SIZES = {
    1: [(1,), (2,), (3,), (8,), (30,), (64,), (7,), (31,)],
    2: [(1, 1), (2, 3), (5, 4), (1, 7), (7, 1), (8, 4), (5, 11)],
    3: [(1, 1, 1), (2, 3, 4), (3, 1, 5), (4, 5, 7)],
}
PAIRS = [("float", "complex64"), ("double", "complex128")]


def name(op, rank):
    return op if rank == 1 else f"{op}{rank}D"


def complexes(r, rank):
    for op in (name("FFT", rank), name("IFFT", rank)):
        for dtype in ("complex64", "complex128"):
            for size in SIZES[rank]:
                yield case(op, r(dtype, size))
            size = SIZES[rank][-2]
            for outer in ((3,), (1,), (2, 3)):
                yield case(op, r(dtype, (*outer, *size)))
            yield case(op, empty(dtype, 0, *size))
            yield case(op, empty(dtype, 2, *size[:-1], 0))
        yield case(op, r("complex64", SIZES[rank][-1][1:]), fails=True)


def reals(r, rank):
    forward, inverse = name("RFFT", rank), name("IRFFT", rank)
    for real, cplx in PAIRS:
        for op, dtype, attrs in ((forward, real, {"Tcomplex": cplx}), (inverse, cplx, {"Treal": real})):
            def dims(size, op=op):
                return size if op == forward else (*size[:-1], size[-1] // 2 + 1)

            for size in SIZES[rank]:
                yield case(op, r(dtype, dims(size)), i32(*size), **attrs)
            size = SIZES[rank][-2]
            more = tuple(n + 2 for n in dims(size))
            yield case(op, r(dtype, (2, 3, *dims(size))), i32(*size), **attrs)
            # What is beyond the length is not used.
            yield case(op, r(dtype, (2, *more)), i32(*size), **attrs)
            yield case(op, empty(dtype, 0, *dims(size)), i32(*size), **attrs)
            yield case(op, empty(dtype, 2, *dims(size)[:-1], 0), i32(*size[:-1], 0), **attrs)
            larger = i32(*size[:-1], 2 * size[-1] + 3)
            yield case(op, r(dtype, (2, *dims(size))), larger, fails=True, **attrs)
            yield case(op, r(dtype, dims(size)), i32(*size, 1), fails=True, **attrs)
            yield case(op, r(dtype, dims(size)), i32(*[-1] * rank), fails=True, **attrs)
            yield case(op, r(dtype, dims(size)), np.int32(4), fails=True, **attrs)
            yield case(op, r(dtype, dims(size)[1:]), i32(*size), fails=True, **attrs)
    yield case(forward, r("float", SIZES[rank][1]), i32(*SIZES[rank][1]), Tcomplex="complex128", fails=True)
    yield case(inverse, r("complex64", SIZES[rank][1]), i32(*SIZES[rank][1]), Treal="double", fails=True)


def cases():
    for rank in (1, 2, 3):
        r = Rand(f"FFT{rank}")
        yield from complexes(r, rank)
        yield from reals(r, rank)
