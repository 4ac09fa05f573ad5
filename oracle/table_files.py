"""Writes the contents of TensorFlow's tables that are initialized from text files.

Usage: python oracle/table_files.py

Writes crates/runtime/tests/table_files.jsonl: for each file its lines as `content`, the `key` and
`value` dtypes and attrs of the table, the `keys` that are looked up, and the `outputs` or the
`error` ("PATH" stands for the name of the file).
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import tensorflow as tf

from rows import refusal, tensor_json

OUT = Path(__file__).resolve().parent.parent / "crates/runtime/tests/table_files.jsonl"
raw, v1 = tf.raw_ops, tf.compat.v1
WHOLE, LINE = -2, -1
PLAIN = "a 1\nb 2\nc 3\n"
NUMBERS = "1.5 x\n2.5 y\n"

# content, key dtype, value dtype, keys to look up, attrs
CASES = [
    (PLAIN, "string", "int64", ["a 1", "c 3", "b"], dict(key_index=WHOLE, value_index=LINE)),
    (PLAIN, "string", "int64", ["a", "c", "d"], dict(key_index=0, value_index=1, delimiter=" ")),
    (PLAIN, "string", "int32", ["a", "c", "d"], dict(key_index=0, value_index=1, delimiter=" ")),
    (PLAIN, "string", "float32", ["a", "c", "d"], dict(key_index=0, value_index=1, delimiter=" ")),
    (PLAIN, "int64", "string", [1, 3, 4], dict(key_index=1, value_index=0, delimiter=" ")),
    (PLAIN, "int64", "string", [0, 2, 3], dict(key_index=LINE, value_index=WHOLE)),
    (PLAIN, "int64", "int64", [0, 2, 3], dict(key_index=LINE, value_index=LINE)),
    (PLAIN, "int32", "string", [2, 9], dict(key_index=1, value_index=0, delimiter=" ")),
    (NUMBERS, "string", "float32", ["x", "y", "z"], dict(key_index=1, value_index=0, delimiter=" ")),
    (NUMBERS, "string", "float64", ["x", "y", "z"], dict(key_index=1, value_index=0, delimiter=" ")),
    ("k\t5\n", "string", "int64", ["k"], dict(key_index=0, value_index=1)),
    ("k;;5\n;;6", "string", "int64", ["k", ""], dict(key_index=0, value_index=2, delimiter=";")),
    ("a 1\r\nb 2\r\n", "string", "int64", ["a", "b"],
     dict(key_index=0, value_index=1, delimiter=" ")),
    ("no\nnewline", "string", "int64", ["newline"], dict(key_index=WHOLE, value_index=LINE)),
    (PLAIN, "string", "int64", ["a 1", "c 3"], dict(key_index=WHOLE, value_index=LINE, vocab_size=2)),
    (PLAIN, "string", "int64", ["a 1", "c 3"], dict(key_index=WHOLE, value_index=LINE, offset=10)),
    (PLAIN, "int64", "string", [0, 11], dict(key_index=LINE, value_index=WHOLE, offset=10)),
    (PLAIN, "string", "int64", ["a"], dict(key_index=WHOLE, value_index=LINE, vocab_size=5)),
    (PLAIN, "string", "int64", ["a"], dict(key_index=WHOLE, value_index=LINE, vocab_size=0)),
    ("", "string", "int64", ["a"], dict(key_index=WHOLE, value_index=LINE)),
    ("a\n\nb\n", "string", "int64", ["a"], dict(key_index=WHOLE, value_index=LINE)),
    (PLAIN, "string", "int64", ["a"], dict(key_index=0, value_index=1)),
    (PLAIN, "string", "int64", ["a"], dict(key_index=0, value_index=5, delimiter=" ")),
    (PLAIN, "string", "int64", ["a"], dict(key_index=1, value_index=0, delimiter=" ")),
    (PLAIN, "string", "int64", ["a"], dict(key_index=0, value_index=1, delimiter="::")),
    (PLAIN, "string", "int64", ["a"], dict(key_index=0, value_index=1, delimiter="")),
    (PLAIN, "string", "string", ["a"], dict(key_index=LINE, value_index=WHOLE)),
    (PLAIN, "string", "float32", ["a"], dict(key_index=WHOLE, value_index=LINE)),
    ("a 1\na 2\n", "string", "int64", ["a"], dict(key_index=0, value_index=1, delimiter=" ")),
    ("a 1\na 1\n", "string", "int64", ["a"], dict(key_index=0, value_index=1, delimiter=" ")),
    ("a true\n", "string", "bool", ["a"], dict(key_index=0, value_index=1, delimiter=" ")),
    ("a 99999999999\n", "string", "int32", ["a"], dict(key_index=0, value_index=1, delimiter=" ")),
    ("a -7\n", "string", "int32", ["a"], dict(key_index=0, value_index=1, delimiter=" ")),
    (None, "string", "int64", ["a"], dict(key_index=WHOLE, value_index=LINE)),
]


def answer(path, key, value, keys, attrs):
    key, value = tf.as_dtype(key), tf.as_dtype(value)
    with tf.Graph().as_default() as graph:
        name = v1.placeholder(tf.string, [])
        table = raw.HashTableV2(key_dtype=key, value_dtype=value)
        init = raw.InitializeTableFromTextFileV2(
            table_handle=table, filename=name, name="op", **attrs)
        default = tf.constant({tf.string: "?", tf.bool: False}.get(value, -1), value)
        found = raw.LookupTableFindV2(table_handle=table, keys=tf.constant(keys, key),
                                      default_value=default)
        with v1.Session(graph=graph) as session:
            try:
                session.run(init, {name: path})
                return {"outputs": [tensor_json(session.run(found))]}
            except tf.errors.OpError as error:
                told = refusal(error.error_code, error.message)
                return {"error": told | {"contains": told["contains"].replace(path, "PATH")}}


def main():
    lines = [json.dumps({"tensorflow": tf.__version__})]
    for content, key, value, keys, attrs in CASES:
        with tempfile.TemporaryDirectory() as tmp:
            path = f"{tmp}/file.txt"
            if content is not None:
                Path(path).write_bytes(content.encode())
            told = answer(path, key, value, keys, attrs)
        as_key = {"string": object}.get(key, key)
        given = np.array([k.encode() if key == "string" else k for k in keys], as_key)
        lines.append(json.dumps({"content": content, "key": key, "value": value, "attrs": attrs,
                                 "keys": tensor_json(given), **told}, separators=(",", ":")))
    OUT.write_text("\n".join(lines) + "\n")
    print(f"{len(lines) - 1} files")


if __name__ == "__main__":
    main()
