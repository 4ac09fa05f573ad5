"""Writes the results of TensorFlow's readers and V1 checkpoints: crates/runtime/tests/readers.json.

Usage: python oracle/readers.py

A case of `readers` has files (hex), a reader's op and attrs, the names that its queue gets before it is closed, at
most how many records a read asks for (null: one), and for each read its keys and values (hex), and how many
records and files were counted then; after the last one the queue is closed. `state` is what a reader that
can be serialized was then. A case of `checkpoints` has files and what Restore and RestoreSlice answer for a
pattern, a name and a slice: a tensor or the code of an error.
"""

import json
import os
import tempfile
import zlib
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import rows
import tensorflow as tf

OUT = Path(__file__).resolve().parent.parent / "crates/runtime/tests/readers.json"
v1, raw = tf.compat.v1, tf.raw_ops
BYTES = bytes(range(23))


def records(*values):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "r")
        with tf.io.TFRecordWriter(path) as writer:
            for value in values:
                writer.write(value)
        return Path(path).read_bytes()


RECORDS = records(b"one", b"", b"three", b"\1" * 300)
FILES = {"a.txt": b"a\nbb\r\nccc", "b.txt": b"h\nd\n\ne\n", "empty": b"", "bytes": BYTES, "bytes.z": zlib.compress(BYTES),
         "records": RECORDS, "more": records(b"x"), "records.z": zlib.compress(RECORDS)}
READERS = [
    ("WholeFileReader", {}, ["a.txt", "b.txt", "empty"], None),
    ("WholeFileReader", {}, ["a.txt", "b.txt"], 5),
    ("IdentityReader", {}, ["a.txt", "nowhere"], None),
    ("IdentityReader", {}, ["x", "y", "z"], 2),
    ("TextLineReader", {}, ["a.txt", "empty", "b.txt"], None),
    ("TextLineReader", {"skip_header_lines": 1}, ["a.txt", "b.txt"], None),
    ("TextLineReader", {"skip_header_lines": 9}, ["a.txt"], None),
    ("TextLineReader", {}, ["a.txt", "empty", "b.txt"], 3),
    ("FixedLengthRecordReader", {"record_bytes": 5}, ["bytes", "a.txt"], None),
    ("FixedLengthRecordReader", {"record_bytes": 5, "header_bytes": 3, "footer_bytes": 2}, ["bytes"], None),
    ("FixedLengthRecordReader", {"record_bytes": 5, "header_bytes": 3, "footer_bytes": 2, "hop_bytes": 2}, ["bytes"], None),
    ("FixedLengthRecordReader", {"record_bytes": 5, "hop_bytes": 7}, ["bytes"], 2),
    ("FixedLengthRecordReader", {"record_bytes": 4, "encoding": "ZLIB"}, ["bytes.z"], None),
    ("TFRecordReader", {}, ["records", "more", "empty"], None),
    ("TFRecordReader", {}, ["records", "more"], 3),
    ("TFRecordReader", {"compression_type": "ZLIB"}, ["records.z"], None),
]


def reader(op, attrs, names, up_to):
    with tf.Graph().as_default(), v1.Session() as session:
        queue = v1.FIFOQueue(20, tf.string, shapes=[[]])
        handle = getattr(raw, op + "V2")(**attrs)
        if up_to:
            read = raw.ReaderReadUpToV2(reader_handle=handle, queue_handle=queue.queue_ref, num_records=up_to)
        else:
            read = raw.ReaderReadV2(reader_handle=handle, queue_handle=queue.queue_ref)
        counts = [raw.ReaderNumRecordsProducedV2(reader_handle=handle),
                  raw.ReaderNumWorkUnitsCompletedV2(reader_handle=handle)]
        session.run(queue.enqueue_many([names]))
        session.run(queue.close())
        reads = []
        while True:
            try:
                both = session.run(list(read))
            except tf.errors.OutOfRangeError:
                break
            keys, values = ([x.hex() for x in np.atleast_1d(np.array(part, object))] for part in both)
            reads.append([keys, values, *map(int, session.run(counts))])
        last = list(map(int, session.run(counts)))
        try:
            state = session.run(raw.ReaderSerializeStateV2(reader_handle=handle)).hex()
        except tf.errors.UnimplementedError:
            state = None
    return {"op": op, "attrs": attrs, "names": names, "up_to": up_to, "reads": reads, "last": last, "state": state}


def checkpoints():
    random = np.random.RandomState(3)
    values = {"f": random.randn(4, 3).astype(np.float32), "d": random.randn(2), "i": np.int32([-3, 7]),
              "l": np.int64([[1 << 40, -1]]), "b": np.array([True, False]), "u8": np.uint8([3, 200]),
              "i8": np.int8([-3]), "i16": np.int16([-300]), "h": np.float16([1.5, -2]), "c": np.complex64([1 + 2j]),
              "s": np.array([b"x", b"", b"yy"], object), "scalar": np.float32(2.5), "none": np.zeros([0, 3], np.float32)}
    with tf.Graph().as_default(), v1.Session() as session:
        session.run(raw.Save(filename="all", tensor_names=list(values), data=[tf.constant(v) for v in values.values()]))
        f = values["f"]
        session.run(raw.SaveSlices(filename="part-0", tensor_names=["f", "i"], shapes_and_slices=["4 3 0,2:-", ""],
                                   data=[f[:2], values["i"]]))
        session.run(raw.SaveSlices(filename="part-1", tensor_names=["f", "f"],
                                   shapes_and_slices=["4 3 2,2:0,1", "4 3 2,2:1,2"], data=[f[2:, :1], f[2:, 1:]]))
        asks = [("all", name, None, v.dtype) for name, v in values.items()]
        parts = "part-?"
        asks += [(parts, "f", None, np.float32), (parts, "f", "4 3 1,2:-", np.float32), (parts, "f", "4 3 1,2:1,1", np.float32),
                 ("all", "f", "4 3 -:2,1", np.float32), (parts, "f", "", np.float32), (parts, "i", None, np.int32),
                 ("all", "f", None, np.int32), ("all", "nothing", None, np.float32), ("nowhere", "f", None, np.float32),
                 ("a.txt", "f", None, np.float32), (parts, "f", "4 2 1,2:-", np.float32),
                 ("part-0", "f", None, np.float32)]
        cases = []
        for pattern, name, spec, dtype in asks:
            dtype = tf.as_dtype("string" if dtype == object else dtype)
            try:
                if spec is None:
                    got = raw.Restore(file_pattern=pattern, tensor_name=name, dt=dtype)
                else:
                    got = raw.RestoreSlice(file_pattern=pattern, tensor_name=name, shape_and_slice=spec, dt=dtype)
                answer = {"value": rows.tensor_json(session.run(got))}
            except tf.errors.OpError as error:
                answer = {"error": error.error_code}
            cases.append({"pattern": pattern, "name": name, "spec": spec, "dtype": dtype.as_datatype_enum, **answer})
    files = {n: Path(n).read_bytes().hex() for n in ("all", "part-0", "part-1")}
    return {"files": files, "asks": cases}


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, content in FILES.items():
            Path(name).write_bytes(content)
        out = {"tensorflow": tf.__version__, "files": {n: c.hex() for n, c in FILES.items()},
               "readers": [reader(*r) for r in READERS], "checkpoints": checkpoints()}
        os.chdir("/")
    text = json.dumps(out, separators=(",", ":")).replace('{"op":', '\n{"op":').replace('{"pattern":', '\n{"pattern":')
    OUT.write_text(text + "\n")
    print(f"{len(READERS)} readers, {len(out['checkpoints']['asks'])} asks, {OUT.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
