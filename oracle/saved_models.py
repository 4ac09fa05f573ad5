"""Writes the SavedModels and checkpoints that tests load, with TensorFlow's results.

Usage: python oracle/saved_models.py [NAME...]     (default: all)

Each model becomes crates/runtime/tests/saved_models/<name>/ with its `expected.json`: a list of
steps, run in order on one loaded model:
    {"signature", "inputs": {key: tensor}, "outputs": {key: tensor}, "tol"}
where tensors are in the form of the rows (oracle/README.md). The checkpoint `every` with its
`expected.json` ({tensor name: {"dtype", "shape", "hex"}}) goes to crates/model/tests/bundles/.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(Path(__file__).resolve().parent))

import keras
import numpy as np
import tensorflow as tf

from casekit import NUMPY
from rows import dtype_name, tensor_json

HERE = Path(__file__).resolve().parent
MODELS = HERE.parent / "crates/runtime/tests/saved_models"
BUNDLES = HERE.parent / "crates/model/tests/bundles"
v1 = tf.compat.v1


def as_array(x):
    x = np.asarray(x)
    return x.astype(object) if x.dtype.kind in "SU" else x


def strings(*values):
    return np.array([v.encode() for v in values], dtype=object)


def write(name, steps, tol):
    """Runs the steps with TensorFlow's own loader and writes the results."""
    directory = MODELS / name
    loaded = tf.saved_model.load(str(directory))
    rows = []
    for signature, inputs in steps:
        feeds = {}
        for key, value in inputs.items():
            value = as_array(value)
            feeds[key] = tf.constant(value.tolist() if value.dtype == object else value)
        answers = loaded.signatures[signature](**feeds)
        rows.append({
            "signature": signature,
            "inputs": {k: tensor_json(as_array(v)) for k, v in inputs.items()},
            "outputs": {k: tensor_json(as_array(v.numpy())) for k, v in sorted(answers.items())},
            "tol": tol,
        })
    head = json.dumps({"tensorflow": tf.__version__})
    lines = ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows)
    (directory / "expected.json").write_text(f"[{head},\n{lines}]\n")
    (directory / "fingerprint.pb").unlink(missing_ok=True)
    size = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
    print(f"{name}: {len(rows)} steps, {size} bytes")


def keras_mlp():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([
        keras.Input((4,), name="features"),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(3, activation="softmax"),
    ])
    with tempfile.TemporaryDirectory() as tmp:
        model.export(f"{tmp}/m", verbose=False)
        place("keras_mlp", f"{tmp}/m")
    key = "features"
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    write("keras_mlp", [("serving_default", {key: x}), ("serving_default", {key: x[:1]})], 1e-5)


def place(name, source):
    shutil.rmtree(MODELS / name, ignore_errors=True)
    shutil.copytree(source, MODELS / name)


def simple_save(name, use_resource):
    with tempfile.TemporaryDirectory() as tmp, tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        rng = np.random.default_rng(2)
        w = v1.get_variable("w", initializer=rng.normal(size=(3, 2)).astype(np.float32),
                            use_resource=use_resource)
        b = v1.get_variable("b", initializer=np.array([0.5, -0.25], np.float32),
                            use_resource=use_resource)
        n = v1.get_variable("n", initializer=np.int64(7), use_resource=use_resource)
        y = tf.identity(tf.nn.relu(tf.matmul(x, w) + b), name="y")
        count = tf.identity(n, name="count")
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            v1.saved_model.simple_save(session, f"{tmp}/m", {"x": x}, {"y": y, "count": count})
        place(name, f"{tmp}/m")
    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    write(name, [("serving_default", {"x": x})], 1e-5)


def simple_save_resource():
    simple_save("simple_save_resource", True)


def simple_save_ref():
    simple_save("simple_save_ref", False)


def vocabulary():
    with tempfile.TemporaryDirectory() as tmp:
        path = Path(tmp) / "vocabulary.txt"
        path.write_text("red\ngreen\nblue\n")

        class Model(tf.Module):
            def __init__(self):
                to_id = tf.lookup.TextFileInitializer(
                    str(path), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE,
                    tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER)
                to_word = tf.lookup.TextFileInitializer(
                    str(path), tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER,
                    tf.string, tf.lookup.TextFileIndex.WHOLE_LINE)
                self.ids = tf.lookup.StaticHashTable(to_id, 3)
                self.words = tf.lookup.StaticHashTable(to_word, "?")
                self.table = tf.Variable(np.arange(8, dtype=np.float32).reshape(4, 2) / 4)

            @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "words")])
            def serve(self, words):
                ids = self.ids.lookup(words)
                return {"ids": ids, "vectors": tf.nn.embedding_lookup(self.table, ids),
                        "words": self.words.lookup(ids), "size": self.ids.size()}

        model = Model()
        tf.saved_model.save(model, f"{tmp}/m", signatures=model.serve)
        place("vocabulary", f"{tmp}/m")
    write("vocabulary", [("serving_default", {"words": strings("blue", "pink", "red")})], 0)


def vocabulary_v1():
    """A table filled by the legacy init op, from an asset of the asset collection."""
    with tempfile.TemporaryDirectory() as tmp, tf.Graph().as_default():
        path = Path(tmp) / "pairs.txt"
        path.write_text("one,1\ntwo,2\nthree,3\n")
        initializer = tf.lookup.TextFileInitializer(
            str(path), tf.string, 0, tf.int64, 1, delimiter=",")
        table = tf.lookup.StaticHashTable(initializer, -1)
        words = v1.placeholder(tf.string, [None], name="words")
        ids = table.lookup(words)
        with v1.Session() as session:
            session.run(v1.tables_initializer())
            v1.saved_model.simple_save(session, f"{tmp}/m", {"words": words}, {"ids": ids},
                                       legacy_init_op=v1.tables_initializer())
        place("vocabulary_v1", f"{tmp}/m")
    write("vocabulary_v1", [("serving_default", {"words": strings("two", "ten", "three")})], 0)


def partitioned():
    """Variables in slices, on two devices, so that the checkpoint has two shards."""
    with tempfile.TemporaryDirectory() as tmp, tf.Graph().as_default():
        rng = np.random.default_rng(3)
        x = v1.placeholder(tf.float32, [None, 5], name="x")
        with tf.device("/cpu:0"), v1.variable_scope(
                "a", partitioner=v1.fixed_size_partitioner(3), use_resource=True):
            w = v1.get_variable("w", initializer=tf.constant(
                rng.normal(size=(5, 4)).astype(np.float32)))
        with tf.device("/cpu:1"):
            b = v1.get_variable("b", initializer=rng.normal(size=4).astype(np.float32),
                                use_resource=True)
        y = tf.identity(tf.matmul(x, w) + b, name="y")
        config = v1.ConfigProto(device_count={"CPU": 2})
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            saver = v1.train.Saver(sharded=True)
            builder = v1.saved_model.Builder(f"{tmp}/m")
            signature = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
            builder.add_meta_graph_and_variables(
                session, ["serve"], {"serving_default": signature}, saver=saver,
                clear_devices=True)
            builder.save()
        place("partitioned", f"{tmp}/m")
    x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
    write("partitioned", [("serving_default", {"x": x})], 1e-5)


def stateful():
    """Variables and a table that a signature changes, and an unknown op in another one."""

    class Model(tf.Module):
        def __init__(self):
            self.total = tf.Variable(np.array([1.0, 2.0], np.float32))
            self.seen = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)

        @tf.function(input_signature=[tf.TensorSpec([2], tf.float32, "x")])
        def add(self, x):
            return {"total": self.total.assign_add(x)}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "words")])
        def count(self, words):
            self.seen.insert(words, self.seen.lookup(words) + 1)
            return {"counts": self.seen.lookup(words)}

        @tf.function(input_signature=[tf.TensorSpec([], tf.string, "audio")])
        def decode(self, audio):
            # An op that no CPU has.
            return {"wave": tf.strings.join([audio, tf.raw_ops.TPUCompilationResult()])}

    model = Model()
    model.seen.insert(["old"], [5])
    with tempfile.TemporaryDirectory() as tmp:
        tf.saved_model.save(model, f"{tmp}/m", signatures={
            "add": model.add, "count": model.count, "decode": model.decode})
        place("stateful", f"{tmp}/m")
    x = np.array([0.5, 10.0], np.float32)
    write("stateful", [("add", {"x": x}), ("add", {"x": x}),
                       ("count", {"words": strings("new", "old")}),
                       ("count", {"words": strings("old", "older")})], 0)


def raw_json(array):
    """Encodes a tensor as hexadecimal digits: its bytes, or those of each string."""
    if array.dtype == object:
        data = [x.hex() for x in array.reshape(-1)]
    else:
        data = np.ascontiguousarray(array).tobytes().hex()
    return {"dtype": dtype_name(array), "shape": list(array.shape), "hex": data}


def bundle():
    """A checkpoint with every dtype, strings, an empty tensor, slices and two shards."""
    shutil.rmtree(BUNDLES, ignore_errors=True)
    BUNDLES.mkdir(parents=True)
    rng = np.random.default_rng(4)
    tensors = {"scalar": np.float32(2.5), "empty": np.zeros((0, 3), np.float32),
               "strings": strings("", "a", "x" * 300, "\u00e4"),
               "deep/name/with/a/long/common/prefix/0": np.arange(3),
               "deep/name/with/a/long/common/prefix/1": np.arange(4)}
    for name, kind in NUMPY.items():
        if name != "string":
            values = rng.integers(0, 2 if name == "bool" else 100, size=(2, 3))
            tensors[f"of_{name}"] = values.astype(kind)
    for i in range(40):
        tensors[f"many/{i:03}"] = np.full((2,), i, np.int32)
    whole = rng.normal(size=(5, 4)).astype(np.float32)
    names, specs, values = [], [], []
    for name, value in sorted(tensors.items()):
        names.append(name), specs.append(""), values.append(tf.constant(
            value.tolist() if value.dtype == object else value))
    half = len(names) // 2
    first, second = str(BUNDLES / "part0"), str(BUNDLES / "part1")
    raw = tf.raw_ops
    raw.SaveV2(prefix=first, tensor_names=names[:half] + ["sliced", "sliced"],
               shape_and_slices=specs[:half] + ["5 4 0,2:-", "5 4 2,3:0,1"],
               tensors=values[:half] + [tf.constant(whole[:2]), tf.constant(whole[2:, :1])])
    raw.SaveV2(prefix=second, tensor_names=names[half:] + ["sliced"],
               shape_and_slices=specs[half:] + ["5 4 2,3:1,3"],
               tensors=values[half:] + [tf.constant(whole[2:, 1:])])
    raw.MergeV2Checkpoints(checkpoint_prefixes=[first, second],
                           destination_prefix=str(BUNDLES / "every"))
    tensors["sliced"] = whole
    reader = tf.train.load_checkpoint(str(BUNDLES / "every"))
    expected = {n: raw_json(as_array(reader.get_tensor(n))) for n in sorted(tensors)}
    expected[""] = {"tensorflow": tf.__version__}
    (BUNDLES / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")
    print("bundle:", sorted(p.name for p in BUNDLES.iterdir()))


ALL = [keras_mlp, simple_save_resource, simple_save_ref, vocabulary, vocabulary_v1, partitioned,
       stateful, bundle]


def main():
    wanted = sys.argv[1:]
    for make in ALL:
        if not wanted or make.__name__ in wanted:
            make()


if __name__ == "__main__":
    main()
