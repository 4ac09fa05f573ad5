"""Writes the StableHLO programs that the tests of crates/stablehlo read.

Usage: python oracle/stablehlo.py [NAME...]     (default: all)

Each program becomes crates/stablehlo/tests/data/<name>.mlirbc, a portable artifact. Made with jax
and jaxlib 0.10.2 and TensorFlow 2.21.0. `BLESS=1 cargo test -p ferroflow-stablehlo` writes the
expected text next to them; compare it with what `--text` prints here.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import export, lax

# Files must not contain the paths of this machine.
jax.config.update("jax_traceback_in_locations_limit", 0)
jax.config.update("jax_enable_x64", True)

DATA = Path(__file__).resolve().parent.parent / "crates/stablehlo/tests/data"
f32, i32 = np.float32, np.int32


def spec(shape, dtype=f32):
    return jax.ShapeDtypeStruct(shape, dtype)


def softmax(x, w):
    return jax.nn.softmax(jnp.tanh(x @ w), -1)


def loop(x, n):
    def body(carry):
        i, y = carry
        return i + 1, lax.cond(i % 2 == 0, lambda y: y + x, lambda y: y * 0.5, y)

    return lax.while_loop(lambda carry: carry[0] < n, body, (i32(0), x))[1]


def constants():
    return (
        np.arange(11) % 3 == 0,
        np.ones(24, bool),
        np.zeros(24, bool),
        np.ones(3, bool),
        np.array(True),
        np.zeros([0, 3], f32),
        np.arange(-2, 2, dtype=np.int8),
        np.array([2**64 - 1, 1], np.uint64),
        np.array([[-(2**63)], [7]]),
        np.array([0.1, -np.inf, np.nan]),
        np.array([0.1, 65504], np.float16),
        np.array([0.1, 3e38], ml_dtypes.bfloat16),
        np.array([1 + 2j, -1j], np.complex64),
        np.array([0.1 + 2j]),
        np.full([2, 5], 1.5, f32),
        np.array([1, -2], ml_dtypes.int4),
        np.array([1, 0.5], ml_dtypes.float8_e5m2),
    )


def indexing(x, i, u):
    rows = x[i]
    order = jnp.argsort(-rows[:, 0])
    return rows[order], x.at[i].add(u), lax.dynamic_slice(x, (i[0], i32(0)), (2, 3))


def convolution(x, k):
    def pooled(x):
        y = lax.conv_general_dilated(
            x, k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return lax.reduce_window(y, -np.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")

    y, gradient = jax.vjp(pooled, x)
    return gradient(y)[0]


def linalg(a, b):
    solved = lax.linalg.triangular_solve(jnp.linalg.cholesky(a), b, left_side=True, lower=True)
    return solved, jnp.fft.rfft(b)


def random(key):
    return jax.random.uniform(key, (3,)), lax.rng_bit_generator(jnp.tile(key, 2), (4,))


def batch(x):
    return x.reshape(-1) + x.shape[0]


def exported(function, *args):
    return export.export(jax.jit(function))(*args)


def artifact(function, *args):
    return exported(function, *args).mlir_module_serialized


def target(version, function, *args):
    """Returns the artifact of an older version of VHLO."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo

    with mlir.make_ir_context():
        module = ir.Module.parse(exported(function, *args).mlir_module())
        return hlo.serialize_portable_artifact(module, version)


def jax2tf_module(function, *args):
    """Returns the attr `module` of the node that jax2tf writes."""
    import tensorflow as tf
    from jax.experimental import jax2tf

    converted = tf.function(jax2tf.convert(function), autograph=False)
    traced = converted.get_concrete_function(*(tf.TensorSpec(a.shape, a.dtype) for a in args))
    library = traced.graph.as_graph_def().library.function
    nodes = [n for f in library for n in f.node_def if n.op == "XlaCallModule"]
    nodes += [n for n in traced.graph.as_graph_def().node if n.op == "XlaCallModule"]
    return nodes[0].attr["module"].s


def small(x):
    return jnp.where(x > 0, x, jnp.sum(x))


def programs():
    matrices = spec((2, 3)), spec((3, 4))
    (b,) = export.symbolic_shape("b")
    return {
        "softmax": lambda: jax2tf_module(softmax, *matrices),
        "loop": lambda: artifact(loop, spec((3,)), spec((), i32)),
        "constants": lambda: artifact(constants),
        "indexing": lambda: artifact(indexing, spec((5, 3)), spec((2,), i32), spec((2, 3))),
        "convolution": lambda: artifact(convolution, spec((1, 6, 5, 2)), spec((3, 3, 2, 1))),
        "linalg": lambda: artifact(linalg, spec((3, 3)), spec((3, 4))),
        "random": lambda: artifact(random, spec((2,), np.uint32)),
        "batch": lambda: artifact(batch, spec((b, 3))),
        # Bytecode of the versions 1, 3 and 4.
        "small_0_9_0": lambda: target("0.9.0", small, spec((4,))),
        "small_0_12_0": lambda: target("0.12.0", small, spec((4,))),
        "small_0_14_0": lambda: target("0.14.0", small, spec((4,))),
    }


def main():
    DATA.mkdir(parents=True, exist_ok=True)
    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    for name, make in programs().items():
        if names and name not in names:
            continue
        data = make()
        (DATA / f"{name}.mlirbc").write_bytes(data)
        print(name, len(data))
        if "--text" in sys.argv:
            from jax._src.interpreters import mlir
            from jax._src.lib.mlir.dialects import hlo

            print(hlo.deserialize_portable_artifact(mlir.make_ir_context(), data))


if __name__ == "__main__":
    main()
