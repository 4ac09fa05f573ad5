"""Models: loading, calling, training, compiling, inspecting."""

import base64
import json
import pathlib
import pickle
import tempfile
import threading
import unittest

import numpy as np

import ferroflow
from common import DATA, DIGITS, SAVED, SQUARE, identity
from ferroflow import errors, ops

try:
    import tensorflow as tf
except ImportError:
    tf = None


def tensor(stored):
    """A tensor as the Rust tests store it."""
    if stored["dtype"] == "string":
        data = [base64.b64decode(d["b64"]) for d in stored["data"]]
        return np.array(data + [None], object)[:-1].reshape(stored["shape"])
    dtype = {"float": "float32", "double": "float64"}.get(stored["dtype"], stored["dtype"])
    return np.array(stored["data"], dtype).reshape(stored["shape"])


class SavedModels(unittest.TestCase):
    def test_expected_results(self):
        for folder in sorted(SAVED.iterdir()):
            model = ferroflow.load(folder)
            for step in json.loads((folder / "expected.json").read_text())[1:]:
                inputs = {key: tensor(value) for key, value in step["inputs"].items()}
                got = model[step["signature"]](**inputs)
                self.assertEqual(sorted(got), sorted(step["outputs"]))
                for key, wanted in step["outputs"].items():
                    wanted = tensor(wanted)
                    with self.subTest(model=folder.name, key=key):
                        self.assertEqual(np.shape(got[key]), wanted.shape)
                        if wanted.dtype == object:
                            np.testing.assert_array_equal(got[key], wanted)
                        else:
                            self.assertEqual(got[key].dtype, wanted.dtype)
                            np.testing.assert_allclose(got[key], wanted, atol=step["tol"], rtol=1e-5)

    def test_signature(self):
        model = ferroflow.load(SAVED / "keras_mlp")
        self.assertEqual(model.kind, "SavedModel")
        signature = model["serving_default"]
        spec = signature.inputs["features"]
        self.assertEqual((spec.dtype, spec.shape), (np.float32, (None, 4)))
        self.assertIn("features: float32[?,4]", repr(signature))
        x = np.ones((2, 4), np.float32)
        np.testing.assert_array_equal(model(x)["output_0"], model(features=x)["output_0"])
        with self.assertRaisesRegex(errors.InvalidArgumentError, "no input 'y'; it has: features"):
            model(features=x, y=x)
        with self.assertRaisesRegex(errors.InvalidArgumentError, "'features' of the signature is not fed"):
            model()
        with self.assertRaisesRegex(TypeError, "twice"):
            model(x, features=x)
        with self.assertRaisesRegex(TypeError, "2 positional"):
            model(x, x)
        with self.assertRaisesRegex(errors.InvalidArgumentError, "expected dtype float, got double"):
            model(features=x.astype(np.float64))
        with self.assertRaisesRegex(errors.InvalidArgumentError, "Cannot feed value of shape"):
            model(features=x[:, :3])
        with self.assertRaises(errors.NotFoundError):
            model["other"]
        with self.assertRaises(errors.NotFoundError):
            ferroflow.load(SAVED / "keras_mlp", tags=["train"])

    def test_number_of_threads(self):
        x = np.ones((2, 4), np.float32)
        one = ferroflow.load(SAVED / "keras_mlp", threads=1)(x)["output_0"]
        plain = ferroflow.load(SAVED / "keras_mlp", optimize=False)(x)["output_0"]
        np.testing.assert_allclose(one, plain, rtol=1e-6)
        with self.assertRaises(errors.InvalidArgumentError):
            ferroflow.load(SAVED / "keras_mlp", threads=5000)

    def test_failing_callback(self):
        def progress(stage, seconds, done):
            raise KeyError(stage)

        with self.assertRaises(KeyError):
            ferroflow.load(SAVED / "keras_mlp", progress=progress)

    def test_threads(self):
        model = ferroflow.load(SAVED / "keras_mlp")
        x = np.random.default_rng(0).random((64, 4), np.float32)
        wanted = model(features=x)["output_0"]
        failures = []

        def work():
            for _ in range(100):
                if not np.array_equal(model(features=x)["output_0"], wanted):
                    failures.append(1)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_other_threads_run_during_a_step(self):
        graph = """
            node { name: 'q' op: 'FIFOQueueV2' attr { key: 'component_types' value { list { type: DT_FLOAT } } } }
            node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
            node { name: 'put' op: 'QueueEnqueueV2' input: 'q' input: 'x'
              attr { key: 'Tcomponents' value { list { type: DT_FLOAT } } } }
            node { name: 'get' op: 'QueueDequeueV2' input: 'q'
              attr { key: 'component_types' value { list { type: DT_FLOAT } } } }"""
        session = ferroflow.Session(graph)
        got = []
        # The step waits until another Python thread puts something into the queue.
        reader = threading.Thread(target=lambda: got.append(session.run("get:0", timeout=60)))
        reader.start()
        session.run("put", {"x:0": 4.0})
        reader.join()
        self.assertEqual(got, [4])


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_frozen_graph_and_compiled_model(self):
        data = np.load(DIGITS / "digits.npz")
        rows = data["test"]
        images = (data["images"][rows][..., None] / 16).astype(np.float32)
        graph = ferroflow.load(DIGITS / "digits.pb")
        self.assertEqual(graph.kind, "graph")
        wanted = graph(images=images)
        accuracy = (wanted["probabilities"].argmax(1) == data["labels"][rows]).mean()
        self.assertGreater(accuracy, 0.98)
        stages = []
        out = self.folder / "digits.bef"
        ferroflow.compile(DIGITS / "digits.pb", out, progress=lambda *args: stages.append(args))
        self.assertEqual([s[0] for s in stages if s[2]], ["loading", "compiling"])
        compiled = ferroflow.load(out)
        self.assertEqual(compiled.kind, "compiled model")
        got = list(compiled(images).values())
        self.assertTrue(any(np.allclose(g, wanted["probabilities"], atol=1e-6) for g in got))
        self.assertEqual(ferroflow.inspect(out).kind, "compiled model")
        with self.assertRaises(errors.InvalidArgumentError):
            ferroflow.compile(out, self.folder / "again.bef")

    def test_compile_a_signature(self):
        model = ferroflow.load(SAVED / "keras_mlp")
        out = self.folder / "mlp.bef"
        ferroflow.compile(model, out, signature="serving_default")
        x = np.ones((2, 4), np.float32)
        got = ferroflow.load(out)(features=x)["output_0"]
        np.testing.assert_allclose(got, model(features=x)["output_0"], rtol=1e-6)

    def test_checkpoint(self):
        prefix = SAVED / "keras_mlp/variables/variables"
        checkpoint = ferroflow.load(prefix)
        self.assertEqual(len(checkpoint), len(list(checkpoint)))
        for name, value in checkpoint.items():
            self.assertEqual(checkpoint.spec(name).shape, np.shape(value))
        with self.assertRaises(KeyError):
            checkpoint["missing"]
        self.assertEqual(ferroflow.inspect(prefix).kind, "checkpoint")

    def test_inspect(self):
        info = ferroflow.inspect(SAVED / "keras_mlp")
        self.assertEqual(info.kind, "SavedModel")
        self.assertGreater(info.parameters, 10)
        self.assertIn("signature serving_default:", str(info))
        info = ferroflow.inspect(DIGITS / "digits.pb")
        self.assertEqual(info.unsupported, {})
        self.assertIn("Conv2D", info.ops)
        (self.folder / "odd.pbtxt").write_text("node { name: 'x' op: 'NoSuchOp' }")
        self.assertEqual(ferroflow.inspect(self.folder / "odd.pbtxt").unsupported, {"NoSuchOp": 1})

    def test_bad_files(self):
        with self.assertRaises(errors.NotFoundError):
            ferroflow.load(self.folder / "missing.pb")
        with self.assertRaises(errors.NotFoundError):
            ferroflow.load(self.folder)
        (self.folder / "odd.pb").write_bytes(b"\xff\x00garbage")
        with self.assertRaises(errors.OpError):
            ferroflow.load(self.folder / "odd.pb")


class Sessions(unittest.TestCase):
    def test_structures(self):
        session = ferroflow.Session(SQUARE)
        feed = {"x:0": [[1, 2, 3]]}
        got = session.run({"a": ["y:0", "x:0"], "b": ("y:0",), "c": "y"}, feed)
        self.assertEqual(got["a"][0].tolist(), [[1, 4, 9]])
        self.assertEqual(got["b"][0].tolist(), [[1, 4, 9]])
        self.assertIsNone(got["c"])
        self.assertEqual(dict(session.nodes)["y"], "Square")
        step = session.make_callable("y:0", ["x:0"])
        self.assertEqual(step([[2, 2, 2]]).tolist(), [[4, 4, 4]])
        with self.assertRaises(errors.InvalidArgumentError):
            step()
        with self.assertRaises(errors.OpError):
            session.run("z:0")
        with self.assertRaises(errors.InvalidArgumentError):
            session.run(3)
        with session:
            pass
        with self.assertRaises(errors.FailedPreconditionError):
            session.run("y:0", feed)

    def test_graphs_from_bytes(self):
        graph = (DATA / "training.pb").read_bytes()
        for value in graph, DATA / "training.pb", str(DATA / "training.pb"):
            self.assertGreater(len(ferroflow.Session(value).nodes), 10)
        with self.assertRaises(errors.OpError):
            ferroflow.Session(graph[: len(graph) // 2])
        with self.assertRaises(errors.InvalidArgumentError):
            ferroflow.Session(3.5)

    def test_training(self):
        stored = json.loads((DATA / "training.json").read_text())
        session = ferroflow.Session(DATA / "training.pb")
        session.run("init")
        feed = {"x:0": stored["x"], "t:0": np.array(stored["t"])}
        losses = [session.run(["loss:0", "train"], feed)[0] for _ in range(5)]
        with tempfile.TemporaryDirectory() as folder:
            prefix = session.save(f"{folder}/step5")
            again = ferroflow.Session(DATA / "training.pb")
            again.restore(prefix)
            names = sorted(ferroflow.load(prefix))
            self.assertEqual(names, ["b", "b/Momentum", "w", "w/Momentum"])
        losses += [again.run(["loss:0", "train"], feed)[0] for _ in range(5)]
        np.testing.assert_allclose(losses, stored["losses"], rtol=1e-5)
        w = again.run("w/Read/ReadVariableOp:0")
        np.testing.assert_allclose(w, stored["w"], rtol=1e-5)

    def test_timeout(self):
        graph = """
            node { name: 'q' op: 'FIFOQueueV2' attr { key: 'component_types' value { list { type: DT_FLOAT } } } }
            node { name: 'v' op: 'QueueDequeueV2' input: 'q'
              attr { key: 'component_types' value { list { type: DT_FLOAT } } } }"""
        session = ferroflow.Session(graph)
        with self.assertRaises(errors.DeadlineExceededError):
            session.run("v:0", timeout=0.05)
        with self.assertRaises(errors.InvalidArgumentError):
            session.run("v:0", timeout=-1.0)


class Ops(unittest.TestCase):
    def test_attrs_and_results(self):
        a = np.arange(6, dtype=np.float32).reshape(2, 3)
        np.testing.assert_array_equal(ops.MatMul(a, a, transpose_b=True), a @ a.T)
        np.testing.assert_array_equal(ops.MatMul(a=a, b=a.T, name="product"), a @ a.T)
        np.testing.assert_array_equal(ops.ConcatV2([a, [[1, 2, 3]]], 0)[2], [1, 2, 3])
        parts = ops.Split(0, a, num_split=2)
        self.assertEqual([p.shape for p in parts], [(1, 3), (1, 3)])
        values, indices = ops.TopKV2(a, 1)
        self.assertEqual(indices.tolist(), [[2], [2]])
        self.assertEqual(ops.Range(0, 4, 1).tolist(), [0, 1, 2, 3])
        self.assertEqual(ops.Sum(a, 0, keep_dims=True).tolist(), [[3, 5, 7]])
        self.assertEqual(ops.Conv2D(np.ones((1, 4, 4, 1), np.float32), np.ones((2, 2, 1, 1), np.float32),
                                    strides=[1, 1, 1, 1], padding="VALID").shape, (1, 3, 3, 1))
        self.assertIsNone(ops.NoOp())
        self.assertEqual(ops.Empty([2], dtype=np.int64, init=True).tolist(), [0, 0])

    def test_errors(self):
        with self.assertRaises(AttributeError):
            ops.NoSuchOp
        with self.assertRaisesRegex(TypeError, "misses its input 'b'"):
            ops.MatMul([[1.0]])
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'transpose'"):
            ops.MatMul([[1.0]], [[1.0]], transpose=True)
        with self.assertRaisesRegex(TypeError, "Expected bool for argument 'transpose_a'"):
            ops.MatMul([[1.0]], [[1.0]], transpose_a=[1])
        with self.assertRaises(errors.InvalidArgumentError) as caught:
            ops.MatMul(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))
        self.assertEqual((caught.exception.code, caught.exception.node), (3, "MatMul"))
        self.assertIn("Matrix size-incompatible", caught.exception.message)
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(again), str(again)), (type(caught.exception), str(caught.exception)))
        with self.assertRaises(errors.InvalidArgumentError):
            ops.AddV2(np.ones(2, np.float32), np.ones(2, np.int32))

    def test_every_op_has_a_definition(self):
        names = dir(ops)
        self.assertGreater(len(names), 800)
        for name in names:
            self.assertIn(name, getattr(ops, name).definition)

    def test_tensor(self):
        t = ferroflow.tensor([1, 2], "int64")
        self.assertEqual((t.dtype, t.shape), ("int64", (2,)))
        self.assertEqual(ops.AddV2(t, t).tolist(), [2, 4])


@unittest.skipIf(tf is None, "TensorFlow is not installed")
class FromTensorFlow(unittest.TestCase):
    def test_function(self):
        v = tf.Variable([[1.0, 2.0], [3.0, 4.0]])

        @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([2])])
        def affine(x, b):
            return {"y": tf.matmul(x, v) + b, "n": (tf.shape(x)[0],)}

        f = ferroflow.from_tf(affine)
        x, b = np.ones((3, 2), np.float32), np.ones(2, np.float32)
        got = f(x, b)
        np.testing.assert_allclose(got["y"], affine(x, b)["y"].numpy())
        self.assertEqual(got["n"][0], 3)
        np.testing.assert_allclose(f(x, b=b)["y"], got["y"])
        g = ferroflow.from_tf(lambda x: tf.reduce_sum(x * x), tf.TensorSpec([None]))
        self.assertEqual(g([1.0, 2.0]), 5)

    def test_keras_model(self):
        keras = tf.keras
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="relu"), keras.layers.Dense(2)])
        x = np.random.default_rng(0).random((5, 4), np.float32)
        f = ferroflow.from_tf(model)
        np.testing.assert_allclose(f(x), model(x).numpy(), rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    unittest.main()
