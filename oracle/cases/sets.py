"""Set operations, feature crosses, edit distances and fingerprints."""

import numpy as np

from casekit import ALL, Rand, a, case, empty, i64

EVERY = ALL + ["string"]
TYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "string"]
OPERATIONS = ["a-b", "b-a", "intersection", "union", "A-B", "Union"]


def strings(*values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


def one(value):
    return np.array(value, object)


def cases():
    r = Rand("set rows")
    yield from sets(r)
    yield from crosses()
    yield from distances(r)
    yield from fingerprints(r)


AT = i64(0, 0, 0, 2, 1, 0, 1, 1, 3, 5).reshape(5, 2)
AT2 = i64(0, 1, 2, 0, 2, 3, 3, 0).reshape(4, 2)


def sets(r):
    for dtype in TYPES:
        for operation in OPERATIONS:
            how = dict(set_operation=operation)
            x, y = r(dtype, (4, 5), 0, 6), r(dtype, (4, 3), 0, 6)
            yield case("DenseToDenseSetOperation", x, y, **how)
            yield case("DenseToSparseSetOperation", x, AT, r(dtype, (5,), 0, 6), i64(4, 7), **how)
            yield case("SparseToSparseSetOperation", AT, r(dtype, (5,), 0, 6), i64(4, 7), AT2, r(dtype, (4,), 0, 6),
                       i64(4, 5), **how)
        yield case("SetSize", AT, r(dtype, (5,), 0, 2), i64(4, 7))
    how = dict(set_operation="union")
    x = r("int32", (2, 3, 4), 0, 5)
    yield case("DenseToDenseSetOperation", x, r("int32", (2, 3, 2), 0, 5), **how)
    for shapes in (((0, 3), (0, 2)), ((2, 0), (2, 2)), ((2, 2), (2, 0)), ((2, 0), (2, 0)), ((2, 0, 2), (2, 0, 1))):
        yield case("DenseToDenseSetOperation", *(r("int32", s, 0, 5) for s in shapes), **how)
    deep = i64(0, 0, 1, 0, 2, 0, 1, 2, 3).reshape(3, 3)
    values = a("int32", [4, 5, 4])
    yield case("DenseToSparseSetOperation", x, deep, values, i64(2, 3, 4), **how)
    yield case("SparseToSparseSetOperation", deep, values, i64(2, 3, 4), deep[:1], values[:1], i64(2, 3, 9), **how)
    yield case("SetSize", deep, values, i64(2, 3, 4))
    none, nothing = empty("int64", 0, 2), empty("int32", 0)
    yield case("SetSize", none, nothing, i64(2, 3))
    yield case("SetSize", none, nothing, i64(0, 3))
    yield case("DenseToSparseSetOperation", x[0], none, nothing, i64(3, 2), **how)
    yield case("SparseToSparseSetOperation", none, nothing, i64(3, 2), none, nothing, i64(3, 4), **how)
    yield case("SparseToSparseSetOperation", AT, r("int32", (5,)), i64(4, 7), none, nothing, i64(4, 4), **how)
    v = r("int32", (5,), 0, 5)
    bad = dict(fails=True)
    for at, values, shape in ((AT[::-1], v, i64(4, 7)), (AT[[0, 1, 1, 2, 3]], v, i64(4, 7)), (AT, v, i64(3, 7)),
                              (AT - 1, v, i64(4, 7)), (AT, v[:4], i64(4, 7)), (AT, v, i64(4, 7, 9)), (AT[:, :1], v, i64(4)),
                              (AT, v.reshape(5, 1), i64(4, 7)), (AT, v, i64(4, 7).reshape(1, 2)), (AT, v, i64(-4, 7))):
        yield case("SetSize", at, values, shape, **bad)
        yield case("DenseToSparseSetOperation", r("int32", (4, 2)), at, values, shape, **how, **bad)
        yield case("SparseToSparseSetOperation", at, values, shape, AT2, v[:4], i64(4, 5), **how, **bad)
    yield case("DenseToDenseSetOperation", x, x[0], **how, **bad)
    yield case("DenseToDenseSetOperation", x, x[:1], **how, **bad)
    yield case("DenseToDenseSetOperation", x[0, 0], x[0, 0], **how, **bad)
    yield case("DenseToDenseSetOperation", x, x, set_operation="sum", **bad)
    yield case("DenseToSparseSetOperation", x[0], AT, v, i64(4, 7), **how, **bad)
    yield case("SparseToSparseSetOperation", AT, v, i64(4, 7), AT2, v[:4], i64(5, 5), **how, **bad)
    yield case("SetSize", AT[[1, 0, 2, 3, 4]], v, i64(4, 7), validate_indices=False)


def crosses():
    words = (i64(0, 0, 0, 1, 2, 0).reshape(3, 2), strings(b"s", b"tt", b"a string that is not so short"), i64(3, 2))
    ints = (i64(0, 0, 2, 0, 2, 1).reshape(3, 2), i64(7, -8, 2**40), i64(3, 5))
    grid = strings(b"x", b"y", b"z", b"w", b"", b"v").reshape(3, 2)
    matrix = i64(1, 2, 3).reshape(3, 1)
    types = lambda values: ["string" if v.dtype == object else "int64" for v in values]

    def inputs(sparse, dense):
        columns = [[s[i] for s in sparse] for i in range(3)] + [list(dense)]
        return columns, dict(N=len(sparse), sparse_types=types(columns[1]), dense_types=types(dense))

    def cross(sparse=(), dense=(), out="int64", inner="int64", n=0, key=956888297470, **how):
        columns, attrs = inputs(sparse, dense)
        return case("SparseCross", *columns, hashed_output=out == "int64", num_buckets=n, hash_key=key, out_type=out,
                    internal_type=inner, **attrs, **how)

    def joined(sparse=(), dense=(), sep=b"_Y_", **how):
        columns, attrs = inputs(sparse, dense)
        return case("SparseCrossV2", *columns, one(sep) if isinstance(sep, bytes) else sep, **attrs, **how)

    def hashed(sparse=(), dense=(), n=0, strong=False, salt=(1, 2), **how):
        columns, attrs = inputs(sparse, dense)
        return case("SparseCrossHashed", *columns, np.int64(n), np.bool_(strong), i64(*salt), **attrs, **how)

    mixes = [([words], []), ([words, ints], []), ([ints], [grid]), ([], [grid, matrix]), ([words, ints], [grid, matrix]),
             ([words, words], [grid])]
    for sparse, dense in mixes:
        for n in (0, 1, 1000):
            yield cross(sparse, dense, n=n)
            yield hashed(sparse, dense, n=n)
            if not any(d.dtype == np.int64 for d in dense):  # TensorFlow takes the number for an address
                yield hashed(sparse, dense, n=n, strong=True, salt=(-5, 2**60))
        yield cross(sparse, dense, out="string")
        yield joined(sparse, dense)
        yield joined(sparse, dense, sep=b"")
    for out in ("int64", "string"):
        yield cross([words], [grid], out=out, inner="string", key=-1)
    bad = dict(fails=True)
    for change in (cross, joined, hashed):
        yield change([(words[0][0], words[1][:2], words[2])], **bad)
        yield change([(i64(0, 0, 0).reshape(1, 3), words[1][:1], words[2])], **bad)
        yield change([(words[0], words[1][:2], words[2])], **bad)
        yield change([(words[0], words[1].reshape(3, 1), words[2])], **bad)
        yield change([(words[0], words[1], i64(3, 2, 1))], **bad)
        yield change([(words[0], words[1], i64(3, 2).reshape(1, 2))], **bad)
        yield change([words, (ints[0], ints[1], i64(4, 5))], **bad)
        yield change([words], [grid[:2]], **bad)
        yield change([words], [grid[0]], **bad)
    yield cross([ints], inner="string", **bad)
    yield cross([words], [matrix], inner="string", **bad)
    yield hashed([words], salt=(1, 2, 3), **bad)


def distances(r):
    op = "EditDistance"
    at = i64(0, 0, 0, 1, 0, 2, 1, 0, 3, 0, 3, 1).reshape(6, 2)
    at2 = i64(0, 0, 0, 1, 2, 0, 3, 0, 3, 1, 3, 2).reshape(6, 2)
    for dtype in EVERY:
        for normalize in (True, False):
            yield case(op, at, r(dtype, (6,), 0, 2), i64(4, 3), at2, r(dtype, (6,), 0, 2), i64(4, 3), normalize=normalize)
    x = r("int32", (6,), 0, 3)
    yield case(op, at, x, i64(4, 3), at2, x, i64(5, 9))
    yield case(op, at, x, i64(6, 3), at, x, i64(5, 9))
    yield case(op, at, a("float", [np.nan, 0.0, 1, 2, 3, 4]), i64(4, 3), at, a("float", [np.nan, -0.0, 1, 2, 3, 4]), i64(4, 3))
    none, nothing = empty("int64", 0, 2), empty("int32", 0)
    yield case(op, none, nothing, i64(4, 3), at2, x, i64(4, 3))
    yield case(op, at, x, i64(4, 3), none, nothing, i64(4, 3))
    yield case(op, none, nothing, i64(4, 3), none, nothing, i64(2, 3))
    deep, deep2 = np.concatenate([at[:, :1] % 2, at], 1), np.concatenate([at2[:, :1] % 2, at2], 1)
    order = lambda t: t[np.lexsort(t.T[::-1])]
    yield case(op, order(deep), x, i64(2, 4, 3), order(deep2), x[::-1].copy(), i64(2, 4, 3))
    long = lambda n: np.stack([np.zeros(n, np.int64), np.arange(n)], 1)
    yield case(op, long(40), r("int32", (40,), 0, 3), i64(1, 40), long(33), r("int32", (33,), 0, 3), i64(1, 40))
    ok = (at, x, i64(4, 3))
    for at_, values, shape in ((at[0], x, i64(4, 3)), (at, x.reshape(6, 1), i64(4, 3)), (at, x, i64(4, 3).reshape(1, 2)),
                               (at, x[:5], i64(4, 3)), (at, x, i64(4, 3, 5)), (at[:, :1], x, i64(4)), (at, x, i64(-4, 3)),
                               (at + 9, x, i64(4, 3))):
        yield case(op, at_, values, shape, *ok, fails=True)
        yield case(op, *ok, at_, values, shape, fails=True)
    yield case(op, none, nothing, i64(0, 3), none, nothing, i64(0, 3), fails=True)


def fingerprints(r):
    op, method = "Fingerprint", one(b"farmhash64")
    for dtype in EVERY:
        for shape in ((3,), (3, 4), (2, 3, 5), (0,), (0, 3)):
            yield case(op, r(dtype, shape), method)
        if dtype != "string":
            yield case(op, empty(dtype, 3, 0), method)
    yield case(op, r("int32", (2, 200)), method)
    yield case(op, np.float32(1), method, fails=True)
    yield case(op, r("float", (2,)), one(b"md5"), fails=True)
    yield case(op, r("float", (2,)), strings(b"farmhash64"), fails=True)
