"""Shared by the case files: the Case record and seeded test data."""

import zlib
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

NUMPY = {
    "float": np.float32,
    "double": np.float64,
    "half": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "bool": np.bool_,
    "complex64": np.complex64,
    "complex128": np.complex128,
    "string": np.object_,
    # Quantized numbers are records of one integer, as in TensorFlow.
    "qint8": np.dtype([("qint8", np.int8)]),
    "quint8": np.dtype([("quint8", np.uint8)]),
    "qint16": np.dtype([("qint16", np.int16)]),
    "quint16": np.dtype([("quint16", np.uint16)]),
    "qint32": np.dtype([("qint32", np.int32)]),
}

FLOATS = ["float", "double", "half", "bfloat16"]
SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
INTS = SIGNED + UNSIGNED
COMPLEX = ["complex64", "complex128"]
NUMBERS = FLOATS + INTS
ALL = NUMBERS + ["bool"] + COMPLEX
PLAIN = ["float", "double", "half", "bfloat16", "int32", "int64", "uint8", "bool"]

# Special values of math functions.
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-3, 88.0]


@dataclass
class Case:
    """One op, its attributes and inputs; TensorFlow's result becomes the row.

    inputs: arrays in the op's order; a tuple or list of arrays feeds a list argument.
    fails: True when TensorFlow has to refuse the case, and the refusal is the row.
    unchecked: the outputs TensorFlow leaves with values of no meaning; the row holds zeros.
    nchw: (inputs, outputs) to be turned from channels-last to channels-first in the row, for
        layouts the CPU build has no kernel for.
    """

    op: str
    inputs: list
    attrs: dict = field(default_factory=dict)
    tol: float | None = None
    fails: bool = False
    unchecked: tuple = ()
    nchw: tuple | None = None


def case(op, *inputs, tol=None, fails=False, unchecked=(), nchw=None, **attrs):
    """Creates a Case, like a call: case("Add", x, y)."""
    return Case(op, list(inputs), attrs, tol, fails, unchecked, nchw)


class Rand:
    """Returns a generator of deterministic data, seeded by a name: r(dtype, shape, lo, hi)."""

    def __init__(self, name):
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))

    def __call__(self, dtype, shape=(), lo=None, hi=None):
        rng = self.rng
        if dtype == "bool":
            return rng.random(shape) < 0.5 if shape != () else np.bool_(rng.random() < 0.5)
        if dtype == "string":
            words = [b"", b"a", b"bc", b"\xff\x00z", "größe".encode(), b"tensor"]
            flat = [words[i] for i in rng.integers(0, len(words), int(np.prod(shape)))]
            out = np.empty(len(flat), dtype=object)
            out[:] = flat
            return out.reshape(shape)
        if dtype in COMPLEX:
            lo, hi = (-2.0 if lo is None else lo), (2.0 if hi is None else hi)
            re, im = rng.uniform(lo, hi, shape).round(4), rng.uniform(lo, hi, shape).round(4)
            return np.asarray(re + 1j * im, dtype=NUMPY[dtype])
        if dtype in INTS:
            lo = (0 if dtype in UNSIGNED else -9) if lo is None else int(np.ceil(lo))
            hi = 9 if hi is None else int(np.floor(hi))
            if dtype in UNSIGNED:
                lo = max(lo, 0)
            return np.asarray(rng.integers(lo, max(hi, lo), shape, endpoint=True), NUMPY[dtype])
        lo, hi = (-2.0 if lo is None else lo), (2.0 if hi is None else hi)
        # Four decimals keep the rows short and still fill the mantissa.
        return np.asarray(np.round(rng.uniform(lo, hi, shape), 4), dtype=NUMPY[dtype])


def a(dtype, values):
    """An array of a named dtype from Python values."""
    if dtype == "string":
        flat = np.array(values, dtype=object)
        return flat
    return np.asarray(np.asarray(values), dtype=NUMPY[dtype])


def q(dtype, values):
    """An array of a quantized dtype from its stored integers."""
    dtype = NUMPY[dtype]
    return np.ascontiguousarray(np.asarray(values, dtype=dtype[0])).view(dtype).reshape(np.shape(values))


def i32(*values):
    """An int32 vector."""
    return np.array(values, dtype=np.int32)


def i64(*values):
    """An int64 vector."""
    return np.array(values, dtype=np.int64)


def s32(value):
    """An int32 scalar."""
    return np.int32(value)


def empty(dtype, *shape):
    """A tensor with a zero in its shape."""
    return np.zeros(shape, dtype=NUMPY[dtype])
