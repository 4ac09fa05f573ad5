"""Parsing of sequence examples; compressed bytes."""

import gzip
import zlib

import numpy as np
import tensorflow as tf

from casekit import case

V1, V2, SINGLE = "ParseSequenceExample", "ParseSequenceExampleV2", "ParseSingleSequenceExample"
NP = {"float": np.float32, "int64": np.int64, "string": object}


def strings(values):
    return np.array([v.encode() if isinstance(v, str) else v for v in values], dtype=object)


def word(value):
    return np.array(value, dtype=object)


def feature(values):
    f = tf.train.Feature()
    if values is None:
        return f
    if values and isinstance(values[0], bytes):
        f.bytes_list.value.extend(values)
    elif values and isinstance(values[0], float):
        f.float_list.value.extend(values)
    else:
        f.int64_list.value.extend(values)
    return f


def message(context, lists):
    out = tf.train.SequenceExample()
    for key, values in context.items():
        out.context.feature[key].CopyFrom(feature(values))
    for key, rows in lists.items():
        out.feature_lists.feature_list[key].feature.extend(feature(row) for row in rows)
    return out.SerializeToString(deterministic=True)


MESSAGES = [
    message({"a": [1, 2], "b": [1.5], "c": [b"x", b"yz"]}, {"d": [[1, 2], [3, 4]], "e": [[b"p"], [b"q", b"r"], None]}),
    message({"a": [3, 4], "c": [b""]}, {"d": [[5, 6]], "e": [], "f": [[0.5], [0.25], [4.0]]}),
    message({"a": [5, 6], "b": [2.5], "z": [1]}, {"d": [], "f": [[1.0]], "e": [[b"long"]]}),
]


class Wanted:
    """What to parse: (key, dtype, shape, default) for dense, (key, dtype) else, with split types for ragged."""

    def __init__(self, cs=(), cd=(), cr=(), ls=(), ld=(), lr=(), missing=()):
        self.cs, self.cd, self.cr, self.ls, self.ld, self.lr, self.missing = cs, cd, cr, ls, ld, lr, missing

    def types(self):
        return {"context_sparse_types": [t for _, t in self.cs], "Ncontext_sparse": len(self.cs),
                "Tcontext_dense": [t for _, t, _, _ in self.cd], "context_dense_shapes": [s for _, _, s, _ in self.cd],
                "feature_list_sparse_types": [t for _, t in self.ls], "Nfeature_list_sparse": len(self.ls),
                "feature_list_dense_types": [t for _, t, _ in self.ld], "Nfeature_list_dense": len(self.ld),
                "feature_list_dense_shapes": [s for _, _, s in self.ld]}

    def defaults(self):
        return [np.array(d, dtype=NP[t]).reshape(s if d != [] else [0]) for _, t, s, d in self.cd]

    def v1(self, data, names=(), **more):
        keys = {"context_sparse_keys": [x[0] for x in self.cs], "context_dense_keys": [x[0] for x in self.cd],
                "feature_list_sparse_keys": [x[0] for x in self.ls], "feature_list_dense_keys": [x[0] for x in self.ld],
                "feature_list_dense_missing_assumed_empty": list(self.missing), "Ncontext_dense": len(self.cd)}
        return case(V1, data, strings(names), self.defaults(), **self.types(), **keys, **more)

    def v2(self, data, names=(), missing=None, **more):
        keys = [strings([x[0] for x in part]) for part in (self.cs, self.cd, self.cr, self.ls, self.ld, self.lr)]
        missing = np.array([x[0] in self.missing for x in self.ld] if missing is None else missing, dtype=bool)
        ragged = {"context_ragged_value_types": [t for _, t, _ in self.cr],
                  "context_ragged_split_types": [s for _, _, s in self.cr],
                  "feature_list_ragged_value_types": [t for _, t, _ in self.lr],
                  "feature_list_ragged_split_types": [s for _, _, s in self.lr]}
        return case(V2, data, strings(names), *keys, missing, self.defaults(), **self.types(), **ragged, **more)

    def single(self, data, name=b"", **more):
        keys = [[word(x[0].encode()) for x in part] for part in (self.cs, self.cd, self.ls, self.ld)]
        counts = {"Ncontext_dense": len(self.cd)}
        return case(SINGLE, data, strings(self.missing), *keys, self.defaults(), word(name), **self.types(), **counts,
                    **more)


PLAIN = Wanted(cs=[("b", "float"), ("c", "string"), ("nothing", "int64")], cd=[("a", "int64", [2], [])],
               ls=[("d", "int64"), ("e", "string")], ld=[("f", "float", [1])], missing=["f"])
FULL = Wanted(PLAIN.cs[::2], PLAIN.cd, [("c", "string", "int32"), ("z", "int64", "int64")], PLAIN.ls[:1], PLAIN.ld,
              [("e", "string", "int64"), ("g", "int64", "int32")], PLAIN.missing)
DEFAULTS = Wanted(cd=[("b", "float", [], [7.0]), ("g", "string", [2], [b"k", b"l"])], ld=[("d", "int64", [2])])
SQUARE = Wanted(cd=[("a", "int64", [1, 2], [])], ld=[("d", "int64", [2, 1])])


def sequences():
    batch = strings(MESSAGES)
    for wanted in (PLAIN, DEFAULTS, SQUARE, Wanted()):
        for data in (batch, batch[:1], batch[2:0:-1], word(MESSAGES[0]), word(MESSAGES[1])):
            yield wanted.v1(data)
            yield wanted.v2(data)
        for one in MESSAGES:
            yield wanted.single(word(one))
    # Splits of one message have no meaning: their rows are left out.
    ragged = Wanted(cr=[("c", "string", "int32"), ("z", "int64", "int64")], lr=FULL.lr[:1])
    for data in (batch, batch[:1], batch[1:]):
        yield FULL.v2(data)
        yield ragged.v2(data)
    yield ragged.v2(word(MESSAGES[0]), unchecked=(2, 3, 5))
    yield PLAIN.v1(batch, names=["m0", "m1", "m2"])


def refused():
    batch, names = strings(MESSAGES), ["m0", "m1", "m2"]
    bad = [(Wanted(cs=[("a", "float")]), names), (Wanted(cd=[("a", "string", [2], [])]), ()),
           (Wanted(cd=[("a", "int64", [3], [])]), ()), (Wanted(cd=[("b", "float", [1], [])]), ()),
           (Wanted(cd=[("none", "float", [1], [])]), ()), (Wanted(ls=[("d", "string")]), names),
           (Wanted(ld=[("f", "float", [1])]), names), (Wanted(ld=[("d", "int64", [3])]), ()),
           (Wanted(ld=[("d", "int64", [1])]), names)]
    both = [("c", "string", "int32")], [("d", "int64", "int32")]
    yield Wanted(cs=[("c", "string")], cr=both[0]).v2(batch, fails=True)
    yield Wanted(ls=[("d", "int64")], lr=both[1]).v2(batch, fails=True)
    yield Wanted(cs=[("a", "int64")], cd=PLAIN.cd).v2(batch, fails=True)
    yield Wanted(ls=[("f", "float")], ld=PLAIN.ld).v2(batch, fails=True)
    for wanted, named in bad:
        yield wanted.v1(batch, names=named, fails=True)
        yield wanted.v2(batch, names=named, fails=True)
    for op in (PLAIN.v1, PLAIN.v2):
        yield op(strings([b"\xff\xff"]), fails=True)
        yield op(batch, names=["one"], fails=True)
        yield op(batch.reshape(3, 1), fails=True)
    yield PLAIN.v2(batch, missing=[True, False], fails=True)
    yield Wanted(cd=[("b", "float", [2], [1.0, 2.0])]).v1(batch, fails=True)


def compressed():
    text = b"quantized numbers " * 40
    for kind, pack in (("", bytes), ("ZLIB", zlib.compress), ("GZIP", lambda b: gzip.compress(b, mtime=0))):
        values = [pack(text), pack(b"x"), pack(b"")]
        yield case("DecodeCompressed", strings(values), compression_type=kind)
        yield case("DecodeCompressed", strings(values * 2).reshape(2, 3), compression_type=kind)
        yield case("DecodeCompressed", word(values[0]), compression_type=kind)
        yield case("DecodeCompressed", strings([]), compression_type=kind)
    yield case("DecodeCompressed", strings([b"not compressed"]), compression_type="ZLIB", fails=True)
    yield case("DecodeCompressed", strings([b"x"]), compression_type="LZMA", fails=True)


def cases():
    yield from sequences()
    yield from refused()
    yield from compressed()
