"""Values of every kind as inputs and results."""

import array
import gc
import unittest
import weakref

import numpy as np

import ferroflow
from common import SQUARE, identity
from ferroflow import errors, ops

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

PLAIN = {
    "DT_FLOAT": np.float32,
    "DT_DOUBLE": np.float64,
    "DT_HALF": np.float16,
    "DT_INT8": np.int8,
    "DT_INT16": np.int16,
    "DT_INT32": np.int32,
    "DT_INT64": np.int64,
    "DT_UINT8": np.uint8,
    "DT_UINT16": np.uint16,
    "DT_UINT32": np.uint32,
    "DT_UINT64": np.uint64,
    "DT_BOOL": np.bool_,
    "DT_COMPLEX64": np.complex64,
    "DT_COMPLEX128": np.complex128,
}


def same(value, dtype):
    """Runs a value through a session."""
    return ferroflow.Session(identity(dtype)).run("y:0", {"x:0": value})


class Arrays(unittest.TestCase):
    def test_every_dtype_and_layout(self):
        for name, dtype in PLAIN.items():
            base = np.arange(24).reshape(2, 3, 4).astype(dtype)
            fortran = np.asfortranarray(base)
            readonly = base.copy()
            readonly.flags.writeable = False
            layouts = [base, fortran, base[:, ::-1, ::2], base.T, readonly, base[:0], base[0, 0, 0]]
            layouts += [np.array(7, dtype), np.zeros((0, 3), dtype), np.zeros((1000, 5), dtype)]
            if base.dtype.itemsize > 1:
                layouts.append(base.astype(base.dtype.newbyteorder(">")))
            session = ferroflow.Session(identity(name))
            for value in layouts:
                with self.subTest(dtype=name, shape=np.shape(value)):
                    got = session.run("y:0", {"x:0": value})
                    self.assertEqual(got.dtype, dtype)
                    np.testing.assert_array_equal(got, value)

    def test_bfloat16_and_small_floats(self):
        if ml_dtypes is None:
            self.skipTest("ml_dtypes is not installed")
        for tf_name, dtype in [
            ("DT_BFLOAT16", ml_dtypes.bfloat16),
            ("DT_FLOAT8_E5M2", ml_dtypes.float8_e5m2),
            ("DT_FLOAT8_E4M3FN", ml_dtypes.float8_e4m3fn),
        ]:
            value = np.array([[0.5, -2.0, 3.0], [1.0, 0.0, -0.25]], dtype)
            for v in value, value.T, value[:0], value[0, 0]:
                got = same(v, tf_name)
                self.assertEqual(got.dtype, dtype)
                np.testing.assert_array_equal(got.astype(np.float32), v.astype(np.float32))
        total = ops.AddV2(np.ones(3, ml_dtypes.bfloat16), [1.0, 2.0, 3.0])
        self.assertEqual(total.dtype, ml_dtypes.bfloat16)
        np.testing.assert_array_equal(total.astype(np.float32), [2, 3, 4])

    def test_large_arrays_are_shared(self):
        x = np.random.default_rng(1).random((512, 512), np.float32)
        y = ops.Square(x)
        self.assertTrue(y.flags.writeable)
        self.assertFalse(y.flags.owndata)
        np.testing.assert_array_equal(y, x * x)
        y += 1  # The memory is the array's own.
        np.testing.assert_allclose(y, x * x + 1, rtol=1e-6)

    def test_results_never_alias_inputs(self):
        x = np.ones((100, 100), np.float32)
        y = same(x, "DT_FLOAT")
        x[:] = 2
        self.assertEqual(y[0, 0], 1)
        y = ops.Reshape(x, [-1])
        x[:] = 3
        self.assertEqual(y[0], 2)

    def test_variables_keep_no_memory_of_inputs(self):
        x = np.ones(5000, np.float32)
        v = ops.VarHandleOp(dtype="float32", shape=[5000], shared_name="kept")
        ops.AssignVariableOp(v, x)
        x[:] = 9
        value = ops.ReadVariableOp(v, dtype=np.float32)
        self.assertEqual(value[0], 1)
        # A result that the engine uses too is read-only, and a snapshot.
        ops.AssignAddVariableOp(v, np.ones(5000, np.float32))
        self.assertEqual(value[0], 1)

    def test_inputs_are_released(self):
        class Owner(np.ndarray):
            pass

        x = np.ones((200, 200), np.float32).view(Owner)
        alive = weakref.ref(x)
        ops.Square(x)
        del x
        gc.collect()
        self.assertIsNone(alive())

    def test_results_outlive_everything(self):
        session = ferroflow.Session(SQUARE)
        y = session.run("y:0", {"x:0": np.full((1000, 3), 3, np.float32)})
        del session
        gc.collect()
        self.assertEqual(float(y.sum()), 27000)

    def test_scalars_and_lists(self):
        self.assertEqual(same(2.5, "DT_FLOAT"), np.float32(2.5))
        self.assertEqual(same(2, "DT_DOUBLE"), 2.0)
        self.assertEqual(same(True, "DT_BOOL"), True)
        self.assertEqual(same(np.float16(1.5), "DT_HALF"), 1.5)
        np.testing.assert_array_equal(same([[1, 2], [3, 4]], "DT_INT64"), [[1, 2], [3, 4]])
        np.testing.assert_array_equal(same((1, 2.5), "DT_FLOAT"), [1, 2.5])
        self.assertEqual(same([], "DT_FLOAT").shape, (0,))
        self.assertEqual(same([[], []], "DT_INT32").shape, (2, 0))
        self.assertEqual(ops.Identity(1).dtype, np.int32)
        self.assertEqual(ops.Identity(2**40).dtype, np.int64)
        self.assertEqual(ops.Identity([1.0, 2]).dtype, np.float32)
        self.assertEqual(ops.Identity([True]).dtype, np.bool_)
        self.assertEqual(ops.Identity([np.float64(1)]).dtype, np.float64)
        self.assertEqual(ops.Identity(1j).dtype, np.complex128)

    def test_other_buffers(self):
        np.testing.assert_array_equal(same(array.array("f", [1, 2]), "DT_FLOAT"), [1, 2])
        view = memoryview(np.arange(6, dtype=np.int32)).cast("B").cast("i", (2, 3))
        np.testing.assert_array_equal(same(view, "DT_INT32"), [[0, 1, 2], [3, 4, 5]])
        np.testing.assert_array_equal(ops.Identity(bytearray(b"ab")), [97, 98])

    def test_dlpack(self):
        class Other:
            """An array of another library."""

            def __init__(self, value):
                self.value = value

            def __dlpack__(self, **kwargs):
                return self.value.__dlpack__(**kwargs)

            def __dlpack_device__(self):
                return self.value.__dlpack_device__()

        x = np.arange(6000, dtype=np.float32)
        np.testing.assert_array_equal(ops.Square(Other(x)), x * x)
        np.testing.assert_array_equal(np.from_dlpack(ops.Square(x)), x * x)

    def test_tensor(self):
        tensor = ferroflow.tensor([[1, 2], [3, 4]], "int64")
        array = tensor.numpy()
        np.testing.assert_array_equal(array, [[1, 2], [3, 4]])
        self.assertFalse(array.flags.writeable)
        self.assertTrue(np.shares_memory(np.asarray(tensor), array))
        self.assertEqual(np.asarray(tensor, np.float32).dtype, np.float32)
        self.assertTrue(np.array(tensor, copy=True).flags.writeable)
        np.testing.assert_array_equal(np.from_dlpack(tensor), array)
        self.assertEqual(ferroflow.tensor("ab").numpy(), b"ab")
        handle = ops.VarHandleOp(dtype="float32", shape=[])
        with self.assertRaises(TypeError):
            np.asarray(handle)


class Strings(unittest.TestCase):
    def test_strings(self):
        session = ferroflow.Session(identity("DT_STRING"))

        def run(value):
            return session.run("y:0", {"x:0": value})

        self.assertEqual(run("ä"), "ä".encode())
        self.assertEqual(run(b"\0a\0"), b"\0a\0")
        self.assertEqual(run([b"a\0", "b"]).tolist(), [b"a\0", b"b"])
        self.assertEqual(run(np.array([["x", "yz"]])).tolist(), [[b"x", b"yz"]])
        self.assertEqual(run(np.array([b"x", b"yz"])).tolist(), [b"x", b"yz"])
        self.assertEqual(run(np.array(["x", b"y"], object)).tolist(), [b"x", b"y"])
        self.assertEqual(run(np.array(b"one")), b"one")
        self.assertEqual(run(np.zeros((0, 2), object)).shape, (0, 2))
        self.assertEqual(run(np.array([["a", "b"], ["c", "d"]])[:, ::-1]).tolist(), [[b"b", b"a"], [b"d", b"c"]])
        self.assertEqual(ops.StringJoin([["a"], ["b"]], separator="-").tolist(), [b"a-b"])
        with self.assertRaises(errors.InvalidArgumentError):
            run(np.array([1, "a"], object))


class WrongValues(unittest.TestCase):
    def test_signature(self):
        with self.assertRaises(TypeError):
            ops.Add([1.5], [2], T="int32")
        with self.assertRaises(errors.InvalidArgumentError):
            ops.Identity([[1], [1, 2]])
        with self.assertRaises(errors.InvalidArgumentError):
            ops.Identity(np.array(["2020-01-01"], "datetime64[D]"))
        with self.assertRaises(TypeError):
            ops.AddV2(np.ones(2, np.int8), [300, 1])

    def test_session(self):
        session = ferroflow.Session(SQUARE)
        with self.assertRaisesRegex(
            errors.InvalidArgumentError,
            r"Cannot feed value of shape \[3,2\] for tensor 'x:0', which has shape \[\?,3\]",
        ):
            session.run("y:0", {"x:0": np.ones((3, 2), np.float32)})
        # As in TensorFlow, a session converts arrays.
        self.assertEqual(session.run("y:0", {"x:0": np.full((1, 3), 2)}).tolist(), [[4, 4, 4]])
        with self.assertRaises(TypeError):
            session.run("y:0", {"x:0": [["a", "b", "c"]]})


if __name__ == "__main__":
    unittest.main()
