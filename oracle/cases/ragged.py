"""Ragged tensors and counts: gather, range, conversions, crosses, bins; Sobol sequences."""

import numpy as np

from casekit import ALL, COMPLEX, NUMBERS, Rand, a, case, empty, i32, i64

EVERY = ALL + ["string"]


def strings(*values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


def one(r, dtype):
    return r(dtype, (1,))[0] if dtype != "string" else np.array(b"x", object)


def cases():
    r = Rand("ragged rows")
    yield from sobol()
    yield from gathers(r)
    yield from ranges()
    yield from to_sparse(r)
    yield from to_tensor(r)
    yield from fills(r)
    yield from crosses()
    yield from bins(r)
    yield from counts(r)


def gathers(r):
    def gather(splits, values, indices, **how):
        rank = len(splits) + np.ndim(indices) - 1
        return case("RaggedGather", splits, values, indices, OUTPUT_RAGGED_RANK=rank, **how)

    splits = i64(0, 3, 3, 5, 9)
    for dtype in EVERY:
        yield gather([splits], r(dtype, (9,)), i32(2, 0, 3, 1, 0))
    x = r("float", (9, 2))
    for indices in (i64(3, 3), i32(0), np.int32(2), np.int64(1), i32(1, 0, 2, 3).reshape(2, 2), empty("int64", 0),
                    empty("int32", 2, 0), i32(*range(4)).reshape(1, 2, 2)):
        yield gather([splits], x, indices)
        yield gather([splits.astype(np.int32)], x, indices)
        yield gather([i64(0, 2, 2, 3, 4), i64(0, 3, 3, 5, 9)], x, indices)
        yield gather([i64(0, 1, 1, 3, 4), i64(0, 2, 2, 3, 4), i64(0, 3, 3, 5, 9)], x, indices)
    yield gather([i64(2, 3, 5)], x, i32(1, 0))
    yield gather([i64(0, 0)], empty("float", 0, 3), i32(0, 0))
    for bad in (i32(4), i32(-1), np.int32(4), i32(0, 1, 2, 7).reshape(2, 2)):
        yield gather([splits], x, bad, fails=True)
    for bad in (i64(0, 3, 2, 5, 9), i64(0, 3, 3, 5, 10), i64(-1, 3, 3, 5, 9)):
        yield gather([bad], x, i32(0), fails=True)
    yield gather([i64(0, 1, 1, 3, 9), splits], x, i32(0), fails=True)


def ranges():
    for dtype in ("int32", "int64", "float", "double"):
        t = lambda *v: a(dtype, list(v))
        s = lambda v: a(dtype, v)
        for splits in ("int32", "int64"):
            yield case("RaggedRange", s(3), s(8), s(2), Tsplits=splits)
            yield case("RaggedRange", t(0, 5, 8), t(3, 5, 2), t(1, 1, -4), Tsplits=splits)
            yield case("RaggedRange", s(0), t(3, 0, -2), s(1), Tsplits=splits)
            yield case("RaggedRange", t(0, 1, 2), s(5), s(3), Tsplits=splits)
            yield case("RaggedRange", s(10), s(0), t(-1, -3, -20), Tsplits=splits)
            yield case("RaggedRange", empty(dtype, 0), empty(dtype, 0), s(1), Tsplits=splits)
        yield case("RaggedRange", s(0), s(3), s(0), fails=True)
        yield case("RaggedRange", t(0, 1), t(1, 2, 3), s(1), fails=True)
        yield case("RaggedRange", t(0, 1).reshape(1, 2), s(3), s(1), fails=True)
        yield case("RaggedRange", s(0), t(0, 1).reshape(1, 2), s(1), fails=True)
        yield case("RaggedRange", s(0), s(0), t(0, 1).reshape(1, 2), fails=True)
    yield case("RaggedRange", a("float", 0), a("float", 1), a("float", 0.1))
    yield case("RaggedRange", a("double", [0.5, -1]), a("double", [2.25, 1]), a("double", [0.25, 0.3]))
    yield case("RaggedRange", i64(0), i64(2**40), np.int64(1), Tsplits="int32", fails=True)
    yield case("RaggedRange", i64(-2**63 + 5), i64(2**62), np.int64(2), Tsplits="int32", fails=True)
    yield case("RaggedRange", i32(0, 0), i32(2**31 - 1, 2**31 - 1), np.int32(1), Tsplits="int32", fails=True)
    yield case("RaggedRange", a("float", 0), a("float", np.inf), a("float", 1), fails=True)
    yield case("RaggedRange", a("float", 0), a("float", np.nan), a("float", 1), fails=True)


def to_sparse(r):
    op = "RaggedTensorToSparse"
    splits = i64(0, 3, 3, 5, 9)
    for dtype in EVERY:
        yield case(op, [splits], r(dtype, (9,)))
    for make in (i64, i32):
        splits = make(0, 3, 3, 5, 9)
        for shape in ((9,), (9, 2), (9, 2, 3), (9, 0)):
            yield case(op, [splits], r("float", shape))
            yield case(op, [make(0, 2, 2, 4), splits], r("float", shape))
        yield case(op, [make(0, 0, 1, 3), make(0, 2, 2, 4), splits], r("float", (9,)))
        yield case(op, [make(0)], empty("float", 0))
        yield case(op, [make(0, 0)], empty("float", 0, 2))
        yield case(op, [make(0, 0), make(0)], empty("float", 0))
        for bad in ([make(0, 3, 9, 5)], [make(1, 9)], [make(0, 8)], [make(0, 10)], [empty("int64", 0).astype(splits.dtype)],
                    [make(0, 3), splits], [make(0, 5), splits]):
            yield case(op, bad, r("float", (9,)), fails=True)


def to_tensor(r):
    op = "RaggedTensorToTensor"

    def dense(shape, values, default, types, *tensors, **how):
        return case(op, shape, values, default, list(tensors), row_partition_types=types, **how)

    splits = i64(0, 3, 3, 5, 9)
    ids = i64(0, 0, 0, 2, 2, 3, 3, 3, 3)
    free = np.int64(-1)
    for dtype in EVERY:
        yield dense(free, r(dtype, (9,)), one(r, dtype), ["ROW_SPLITS"], splits)
    x, y, zero = r("float", (9,)), r("float", (9, 2)), np.float32(-7)
    for shape in (free, i64(-1, -1), i64(4, 4), i64(2, 2), i64(6, 6), i32(-1, 2), i64(5, -1), i64(0, 3), i64(3, 0), i32(1, 5)):
        for make in (np.int32, np.int64):
            yield dense(shape, x, zero, ["ROW_SPLITS"], splits.astype(make))
            yield dense(shape, x, zero, ["FIRST_DIM_SIZE", "VALUE_ROWIDS"], make(4), ids.astype(make))
            yield dense(shape, x, zero, ["FIRST_DIM_SIZE", "VALUE_ROWIDS"], make(7), ids.astype(make))
    yield dense(free, x, zero, ["FIRST_DIM_SIZE", "VALUE_ROWIDS"], i64(4), ids)
    for default in (zero, a("float", [1, 2]), a("float", [3])):
        yield dense(free, y, default, ["ROW_SPLITS"], splits)
        yield dense(i64(-1, 3, -1), y, default, ["ROW_SPLITS"], splits)
        yield dense(i64(3, 2, 2), y, default, ["ROW_SPLITS"], splits)
    for shape in (free, i64(2, 3, 2), i64(-1, 1, 5)):
        yield dense(shape, x, zero, ["ROW_SPLITS", "ROW_SPLITS"], i64(0, 1, 1, 4), splits)
        yield dense(shape, x, zero, ["FIRST_DIM_SIZE", "VALUE_ROWIDS", "VALUE_ROWIDS"], np.int64(3), i64(0, 2, 2, 2), ids)
        yield dense(shape, x, zero, ["ROW_SPLITS", "VALUE_ROWIDS"], i64(0, 1, 1, 4), ids)
        yield dense(shape, x, zero, ["FIRST_DIM_SIZE", "VALUE_ROWIDS", "ROW_SPLITS"], np.int64(3), i64(0, 2, 2, 2), splits)
    z = r("float", (9, 2, 3))
    for default in (zero, r("float", (2, 3)), r("float", (2, 1)), r("float", (1, 3))):
        yield dense(free, z, default, ["ROW_SPLITS"], splits)
    yield dense(free, empty("float", 0), zero, ["ROW_SPLITS"], i64(0))
    yield dense(free, empty("float", 0), zero, ["ROW_SPLITS"], i64(0, 0, 0))
    yield dense(i64(2, 3), empty("float", 0), zero, ["ROW_SPLITS"], i64(0, 0, 0))
    yield dense(i64(2, 3), empty("float", 0), zero, ["FIRST_DIM_SIZE", "VALUE_ROWIDS"], np.int64(0), empty("int64", 0))
    bad = dict(fails=True)
    yield dense(np.int64(3), x, zero, ["ROW_SPLITS"], splits, **bad)
    yield dense(i64(-1), x, zero, ["ROW_SPLITS"], splits, **bad)
    yield dense(i64(-1, -1, 3), y, zero, ["ROW_SPLITS"], splits, **bad)
    yield dense(i64(-1, -1).reshape(1, 2), y, zero, ["ROW_SPLITS"], splits, **bad)
    yield dense(free, x, a("float", [1]), ["ROW_SPLITS"], splits, **bad)
    yield dense(free, y, a("float", [1, 2, 3]), ["ROW_SPLITS"], splits, **bad)
    yield dense(free, z, a("float", [1, 2, 3]), ["ROW_SPLITS"], splits, **bad)
    yield dense(free, x, zero, ["ROW_SPLITS"], empty("int64", 0), **bad)
    yield dense(free, x, zero, ["ROW_SPLITS", "ROW_SPLITS"], i64(0, 1), splits, **bad)
    yield dense(free, x, zero, ["ROW_SPLITS"], i64(0, 3, 1, 9), **bad)
    yield dense(free, x, zero, ["FIRST_DIM_SIZE", "VALUE_ROWIDS"], np.int64(3), ids, **bad)
    yield dense(free, x, zero, ["FIRST_DIM_SIZE", "VALUE_ROWIDS"], np.int64(2), ids, **bad)
    for types in (["VALUE_ROWIDS"], ["NOTHING"], ["ROW_LENGTHS"]):
        yield dense(free, x, zero, types, splits, **bad)
    for types in (["FIRST_DIM_SIZE", "ROW_SPLITS"], ["ROW_SPLITS", "FIRST_DIM_SIZE"]):
        yield dense(free, x, zero, types, splits, splits, **bad)
    yield dense(free, x, zero, ["ROW_SPLITS", "ROW_SPLITS"], splits, **bad)


def fills(r):
    op = "RaggedFillEmptyRows"
    for dtype in EVERY:
        yield case(op, i64(0, 0, 2, 4), r(dtype, (4,)), np.int64(6), one(r, dtype))
    x, zero = r("float", (4,)), np.float32(-1)
    yield case(op, i64(2, 0, 4, 0), x, np.int64(5), zero)
    yield case(op, i64(0, 1, 2, 2), x, np.int64(3), zero)
    yield case(op, empty("int64", 0), empty("float", 0), np.int64(3), zero)
    for rows, values, n, default in ((i64(0, 1, 2, 3), x, np.int64(3), zero), (i64(0, 1, 2, -1), x, np.int64(3), zero),
                                     (i64(0, 1, 2), x, np.int64(3), zero), (i64(0, 1, 2, 2), x, i64(3), zero),
                                     (i64(0, 1, 2, 2), x, np.int64(3), a("float", [1])),
                                     (i64(0, 1, 2, 2).reshape(2, 2), x, np.int64(3), zero),
                                     (i64(0, 1, 2, 2), x.reshape(2, 2), np.int64(3), zero),
                                     (i64(0, 1, 2, 2), x, np.int64(0), zero)):
        yield case(op, rows, values, n, default, fails=True)
    for dtype in NUMBERS + COMPLEX:
        yield case(op + "Grad", i64(2, 0, 3), r(dtype, (5,)))
    yield case(op + "Grad", i64(2, 5), r("float", (5,)), fails=True)
    yield case(op + "Grad", i64(2, -1), r("float", (5,)), fails=True)
    yield case(op + "Grad", i64(2, 1).reshape(1, 2), r("float", (5,)), fails=True)


WORDS = strings(b"a", b"bb", b"ccc", b"d", b"a longer string that does not fit into a small one", b"f")


def crosses():
    op = "RaggedCross"
    types = lambda values: ["string" if v.dtype == object else str(v.dtype) for v in values]

    def crossed(order, ragged=(), sparse=(), dense=(), out="string", splits="int64", **how):
        values, row_splits = [v for v, _ in ragged], [s for _, s in ragged]
        at, sparse_values, shapes = [s[0] for s in sparse], [s[1] for s in sparse], [s[2] for s in sparse]
        attrs = dict(Nsparse=len(sparse), input_order=order, hashed_output=out == "int64", num_buckets=0,
                     hash_key=956888297470, ragged_values_types=types(values), ragged_splits_types=types(row_splits),
                     sparse_values_types=types(sparse_values), dense_types=types(dense), out_values_type=out,
                     out_row_splits_type=splits)
        return case(op, values, row_splits, at, sparse_values, shapes, list(dense), **{**attrs, **how})

    words, numbers = (WORDS, i64(0, 2, 2, 6)), (i64(10, 20, -30, 2**62), i64(0, 1, 1, 4))
    grid = strings(b"x", b"y", b"z", b"w", b"", b"v").reshape(3, 2)
    matrix = i64(1, 2, 3).reshape(3, 1)
    sparse = (i64(0, 0, 0, 1, 2, 5).reshape(3, 2), strings(b"s", b"t", b"u"), i64(3, 9))
    ints = (i64(1, 0, 2, 0).reshape(2, 2), i64(7, 8), i64(3, 1))
    for out in ("string", "int64"):
        for splits in ("int64", "int32"):
            # TensorFlow reads the splits that come in as the type of those that go out.
            narrow = lambda pair: (pair[0], pair[1].astype(splits))
            how = dict(out=out, splits=splits)
            yield crossed("R", [narrow(words)], **how)
            yield crossed("RR", [narrow(words), narrow(numbers)], **how)
            yield crossed("DRS", [narrow(words)], [sparse], [grid], **how)
            yield crossed("SRDSRD", [narrow(words), narrow(numbers)], [sparse, ints], [grid, matrix], **how)
            yield crossed("DD", dense=[grid, matrix], **how)
            yield crossed("S", sparse=[sparse], **how)
            yield crossed("SS", sparse=[sparse, ints], **how)
            yield crossed("D", dense=[empty("int64", 0, 3)], **how)
            yield crossed("D", dense=[empty("string", 3, 0)], **how)
        for key in (0, -1, 2**62):
            for n in (1, 10, 10**12):
                yield crossed("RD", [words], dense=[matrix], out=out, hash_key=key, num_buckets=n)
    bad = dict(fails=True)
    yield crossed("RD", [words], **bad)
    yield crossed("D", [words], **bad)
    yield crossed("X", [words], **bad)
    yield crossed("RD", [words], dense=[grid[:2]], **bad)
    yield crossed("RR", [words, (i64(1, 2), i64(0, 2))], **bad)
    yield crossed("R", [(WORDS, i64(0, 2, 5))], **bad)
    yield crossed("R", [(WORDS, i64(1, 2, 6))], **bad)
    yield crossed("R", [(WORDS, i64(0, 4, 2, 6))], **bad)
    yield crossed("R", [(WORDS, empty("int64", 0))], **bad)
    yield crossed("R", [(WORDS.reshape(2, 3), i64(0, 2, 6))], **bad)
    yield crossed("D", dense=[WORDS], **bad)
    yield crossed("S", sparse=[(i64(0, 1), WORDS[:2], i64(3, 9))], **bad)
    yield crossed("S", sparse=[(sparse[0], sparse[1], i64(3, 9, 9))], **bad)
    yield crossed("SD", sparse=[sparse], dense=[grid[:2]], **bad)


def bins(r):
    weights_of = ("int32", "int64", "float", "double")
    for index in ("int32", "int64"):
        size = a(index, 5)
        x, y = r(index, (12,), 0, 6), r(index, (3, 4), 0, 6)
        for dtype in weights_of:
            for binary in (False, True):
                how = dict(binary_output=binary)
                yield case("DenseBincount", x, size, empty(dtype, 0), **how)
                yield case("DenseBincount", x, size, r(dtype, (12,)), **how)
                yield case("DenseBincount", y, size, empty(dtype, 0), **how)
                yield case("DenseBincount", y, size, r(dtype, (3, 4)), **how)
                at = i64(0, 0, 0, 3, 2, 1, 2, 2).reshape(4, 2)
                yield case("SparseBincount", at, x[:4], i64(3, 4), size, empty(dtype, 0), **how)
                yield case("SparseBincount", at, x[:4], i64(3, 4), size, r(dtype, (4,)), **how)
                yield case("SparseBincount", i64(0, 1, 5).reshape(3, 1), x[:3], i64(9), size, empty(dtype, 0), **how)
                yield case("SparseBincount", i64(0, 1, 5).reshape(3, 1), x[:3], i64(9), size, r(dtype, (3,)), **how)
                yield case("RaggedBincount", i64(0, 3, 3, 12), x, size, empty(dtype, 0), **how)
                yield case("RaggedBincount", i64(0, 3, 3, 12), x, size, r(dtype, (12,)), **how)
        none = empty("float", 0)
        yield case("DenseBincount", a(index, 3), size, none)
        yield case("DenseBincount", empty(index, 0), size, none)
        yield case("DenseBincount", empty(index, 2, 0), size, none)
        yield case("DenseBincount", x, a(index, 0), none)
        yield case("DenseBincount", x - 1, size, none, fails=True)
        yield case("DenseBincount", y - 1, size, none, fails=True)
        yield case("DenseBincount", y.reshape(3, 2, 2), size, none, fails=True)
        yield case("DenseBincount", x, a(index, -1), none, fails=True)
        yield case("DenseBincount", x, a(index, [5]), none, fails=True)
        yield case("DenseBincount", x, size, r("float", (11,)), fails=True)
        at = i64(0, 0, 0, 3, 2, 1, 2, 2).reshape(4, 2)
        yield case("SparseBincount", at, a(index, [0, 1, -1, 9]), i64(3, 4), size, none)
        yield case("SparseBincount", empty("int64", 0, 2), empty(index, 0), i64(3, 4), size, none)
        for at_, values, shape, n in ((at, x[:4], i64(3, 4), a(index, -1)), (at, x[:4], i64(3, 4), a(index, [1])),
                                      (at, x[:3], i64(3, 4), size), (at, x[:4], i64(3, 4, 5), size),
                                      (at + 1, x[:4], i64(3, 4), size), (at[0], x[:2], i64(3), size),
                                      (at, y[:2], i64(3, 4), size), (at, x[:4], i64(3, 4).reshape(1, 2), size)):
            yield case("SparseBincount", at_, values, shape, n, none, fails=True)
        yield case("SparseBincount", i64(0, 1).reshape(2, 1), a(index, [1, -1]), i64(9), size, none, fails=True)
        for splits in (i64(1, 12), i64(0, 11), empty("int64", 0)):
            yield case("RaggedBincount", splits, x, size, none, fails=True)
        yield case("RaggedBincount", i64(0, 12), x - 1, size, none, fails=True)
        yield case("RaggedBincount", i64(0, 12), x, a(index, -1), none, fails=True)
        yield case("RaggedBincount", i64(0, 0, 0), empty(index, 0), size, none)

    for dtype in weights_of:
        x = r(dtype, (3, 5), -4, 12)
        for boundaries in ([], [0.0], [0.0, 3.0, 3.0, 10.0], [-100.0, 100.0]):
            yield case("Bucketize", x, boundaries=boundaries)
        yield case("Bucketize", empty(dtype, 0), boundaries=[1.0])
        yield case("Bucketize", x, boundaries=[2.0, 1.0], fails=True)
        op = "HistogramFixedWidth"
        for out in ("int32", "int64"):
            for n in (1, 2, 5, 100):
                yield case(op, x, a(dtype, [0, 5]), np.int32(n), dtype=out)
            yield case(op, empty(dtype, 0), a(dtype, [0, 5]), np.int32(5), dtype=out)
        yield case(op, x, a(dtype, [5, 5]), np.int32(5), fails=True)
        yield case(op, x, a(dtype, [0, 5]), np.int32(0), fails=True)
        yield case(op, x, a(dtype, [0, 5, 6]), np.int32(5), fails=True)
        yield case(op, x, a(dtype, 3), np.int32(5), fails=True)
        yield case(op, x, a(dtype, [0, 5]), i32(5), fails=True)
    yield case("Bucketize", a("float", [np.nan, np.inf, -np.inf, 1, 0.5]), boundaries=[0.5, 1.0])
    yield case("Bucketize", i64(2**40 + 1, 2**24 + 1), boundaries=[16777216.0, 1099511627776.0])
    yield case("Bucketize", a("double", [0.1, 0.10000000149011612]), boundaries=[0.1])
    yield case("HistogramFixedWidth", a("float", [np.inf, -np.inf, 1]), a("float", [0, 5]), np.int32(5))
    yield case("HistogramFixedWidth", a("float", [np.nan, 1]), a("float", [0, 5]), np.int32(5), fails=True)


def sobol():
    op, s = "SobolSample", np.int32
    for dtype in ("float", "double"):
        for dim, n, skip in ((1, 1, 0), (1, 7, 0), (3, 8, 0), (3, 5, 1), (7, 9, 100), (1111, 2, 0), (1111, 2, 8190), (3000, 1, 8190), (2, 3, 2**20),
                             (40, 3, 2**28)):
            yield case(op, s(dim), s(n), s(skip), dtype=dtype)
    for dim, n, skip in ((0, 1, 0), (21201, 1, 0), (1, 0, 0), (1, 1, -1), (1, 2**30, 2**30), (1000, 2**22, 0), (-1, 1, 0)):
        yield case(op, s(dim), s(n), s(skip), fails=True)
    for i in range(3):
        yield case(op, *(i32(1) if j == i else s(1) for j in range(3)), fails=True)


def counts(r):
    at = i64(0, 0, 0, 3, 2, 1, 2, 2).reshape(4, 2)
    for index in ("int32", "int64"):
        x, y = r(index, (12,), 0, 6), r(index, (3, 4), 0, 6)
        for dtype in ("int32", "int64", "float", "double"):
            for how in ({}, {"minlength": 9}, {"maxlength": 3}, {"minlength": 2, "maxlength": 5}):
                for binary in (False, True):
                    how = {**how, "binary_output": binary}
                    for w in (empty(dtype, 0), None):
                        pick = lambda shape: r(dtype, shape) if w is None else w
                        yield case("DenseCountSparseOutput", x, pick((12,)), **how)
                        yield case("DenseCountSparseOutput", y, pick((3, 4)), **how)
                        yield case("SparseCountSparseOutput", at, x[:4], i64(3, 4), pick((4,)), **how)
                        yield case("RaggedCountSparseOutput", i64(0, 3, 3, 12), x, pick((12,)), **how)
        none, how = empty("float", 0), dict(binary_output=False)
        yield case("SparseCountSparseOutput", i64(0, 1, 5).reshape(3, 1), x[:3], i64(9), none, **how)
        yield case("SparseCountSparseOutput", empty("int64", 0, 2), empty(index, 0), i64(3, 4), none, **how)
        yield case("DenseCountSparseOutput", empty(index, 0), none, **how)
        yield case("DenseCountSparseOutput", empty(index, 2, 0), none, **how)
        yield case("RaggedCountSparseOutput", i64(0, 0, 0), empty(index, 0), none, **how)
        how["fails"] = True
        yield case("DenseCountSparseOutput", a(index, 3), none, **how)
        yield case("DenseCountSparseOutput", y.reshape(3, 2, 2), none, **how)
        yield case("DenseCountSparseOutput", x - 1, none, **how)
        yield case("DenseCountSparseOutput", x, r("float", (11,)), **how)
        yield case("DenseCountSparseOutput", empty(index, 0, 2), none, **how)
        for at_, values, shape in ((at[0], x[:2], i64(3, 4)), (at, y[:2], i64(3, 4)), (at, x[:4], i64(3, 4).reshape(1, 2)),
                                   (at, x[:3], i64(3, 4)), (at, x[:4], i64(3)), (at + 1, x[:4], i64(3, 4)),
                                   (empty("int64", 4, 0), x[:4], empty("int64", 0)), (at, x[:4] - 3, i64(3, 4)),
                                   (empty("int64", 0, 2), empty(index, 0), i64(0, 4))):
            yield case("SparseCountSparseOutput", at_, values, shape, none, **how)
        yield case("SparseCountSparseOutput", at, x[:4], i64(3, 4), r("float", (3,)), **how)
        for splits in (i64(1, 12), i64(0, 11), i64(12), empty("int64", 0)):
            yield case("RaggedCountSparseOutput", splits, x, none, **how)
        yield case("RaggedCountSparseOutput", i64(0, 12), x - 1, none, **how)
        yield case("RaggedCountSparseOutput", i64(0, 12), x, r("float", (3,)), **how)
