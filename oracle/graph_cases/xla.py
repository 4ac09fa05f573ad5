"""XLA's ops with functions: reductions, scatters, sorts, conditionals and loops; decompositions up to signs."""

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops as ops
from tensorflow.compiler.xla import xla_data_pb2 as xla
from tensorflow.python.framework import function

from graphkit import case, raw

F, I, B = tf.float32, tf.int32, tf.bool


def binary(dtype, f):
    """A function of two scalars."""
    return function.Defun(dtype, dtype)(lambda a, c: f(a, c))


def feed(b, dtype=tf.float32):
    return b.feed(dtype, None)


KNOWN = {"add": tf.add, "mul": tf.multiply, "max": tf.maximum, "min": tf.minimum}


def data(shape, dtype=np.float32, seed=1):
    values = np.random.default_rng(seed).uniform(-3, 3, shape).round(3)
    return values.astype(dtype)


@case("v1")
def xla_reduce(b):
    x, init = feed(b, F), feed(b, F)
    fetches = []
    for dims in ([0], [1], [0, 2], [0, 1, 2], []):
        for f in KNOWN.values():
            fetches.append(ops.xla_reduce(x, init, dims, binary(F, f)))
        fetches.append(ops.xla_reduce(x, init, dims, binary(F, lambda a, c: a * 0.5 + c)))
    b.step(fetches, {x: data((3, 2, 4)), init: 0.5}, tol=1e-5)
    b.step(fetches, {x: data((2, 0, 3)), init: 0.5}, tol=1e-5)


@case("v1")
def xla_reduce_types(b):
    for dtype in (tf.float64, tf.half, tf.bfloat16, tf.int8, tf.int32, tf.int64, tf.uint8, tf.uint32, tf.complex64):
        x = tf.cast(tf.constant(abs(data((3, 4))) if dtype.is_unsigned else data((3, 4))), dtype)
        names = ("add", "mul") if dtype.is_complex else KNOWN
        fetches = [ops.xla_reduce(x, tf.cast(tf.constant(1), dtype), [1], binary(dtype, KNOWN[n]))
                   for n in names]
        b.step([f if dtype != tf.bfloat16 else tf.cast(f, F) for f in fetches], tol=2e-2)
    x = feed(b, B)
    both = [ops.xla_reduce(x, tf.constant(True), [1], binary(B, tf.logical_and)),
            ops.xla_reduce(x, tf.constant(False), [1], binary(B, tf.logical_or))]
    b.step(both, {x: [[True, True], [True, False], [False, False]]})


def arg_max(dtype, index):
    @function.Defun(dtype, index, dtype, index)
    def larger(a, i, c, j):
        keeps = tf.logical_or(a > c, tf.logical_and(tf.equal(a, c), i < j))
        return tf.where(keeps, a, c), tf.where(keeps, i, j)
    return larger


@case("v1")
def xla_variadic_reduce(b):
    x, y = feed(b, F), feed(b, F)

    @function.Defun(F, F, F, F)
    def both(a, c, d, e):
        return a + d, c * e

    @function.Defun(F, F, F, F)
    def crossed(a, c, d, e):
        return tf.maximum(a, e), c

    fetches = []
    for f in (both, crossed):
        for dims in ([0], [1], [0, 1]):
            fetches += ops.xla_variadic_reduce([x, y], [tf.constant(0.0), tf.constant(2.0)], dims, f)
    b.step(fetches, {x: data((3, 4)), y: data((3, 4), seed=2)}, tol=1e-5)


@case("v1")
def xla_variadic_reduce_v2(b):
    x, i = feed(b, F), feed(b, I)
    fetches = []
    for dims in ([0], [1], [0, 1]):
        fetches += ops.xla_variadic_reduce_v2([x, i], [tf.constant(-np.inf, F), tf.constant(0)], dims, arg_max(F, I))
    index = np.arange(12, dtype=np.int32).reshape(3, 4)
    b.step(fetches, {x: data((3, 4)), i: index})
    b.step(fetches, {x: np.float32([[1, 2, 2, 1], [2, 2, 1, 0], [0, 0, 0, 2]]), i: index})


def scatter_numbers(window=(), inserted=(), to_operand=(), vector_dim=0, input_batch=(), indices_batch=()):
    return xla.ScatterDimensionNumbers(
        update_window_dims=window, inserted_window_dims=inserted, scatter_dims_to_operand_dims=to_operand,
        index_vector_dim=vector_dim, input_batching_dims=input_batch,
        scatter_indices_batching_dims=indices_batch).SerializeToString()


@case("v1")
def xla_scatter(b):
    x, at, updates = feed(b, F), feed(b, I), feed(b, F)
    functions = [binary(F, f) for f in KNOWN.values()]
    functions += [binary(F, lambda a, c: c), binary(F, lambda a, c: a), binary(F, lambda a, c: a * 2.0 - c)]

    def steps(numbers, indices, shape):
        fetches = [ops.xla_scatter(x, at, updates, f, scatter_numbers(*numbers), False) for f in functions]
        b.step(fetches, {x: data((4, 5)), at: np.array(indices, np.int32), updates: data(shape, seed=3)}, tol=1e-5)

    steps(((1,), (0,), (0,), 1), [3, 0, 3, 9, -1], (5, 5))
    steps(((), (0, 1), (0, 1), 1), [[3, 0], [0, 4], [3, 0], [4, 0], [0, -1]], (5,))
    steps(((1, 2), (), (0, 1), 1), [[1, 1], [3, 0], [0, 3], [2, 2]], (4, 2, 2))
    steps(((0,), (1,), (1,), 0), [[2, 0]], (4, 2))
    steps(((0, 1), (), (), 0), [], (2, 2))
    steps(((1,), (1,), (1,), 1, (), ()), [1, 1], (2, 3))


@case("v1")
def xla_scatter_fails(b):
    x, at, updates = feed(b, F), feed(b, I), feed(b, F)
    y = ops.xla_scatter(x, at, updates, binary(F, tf.add), scatter_numbers((1,), (0,), (0,), 1), False)
    for shape in ((2, 6), (3, 5), (2,)):
        b.step(y, {x: data((4, 5)), at: [1, 2], updates: data(shape)}, error="")


@case("v1")
def xla_variadic_sort(b):
    x, i = feed(b, F), feed(b, I)

    @function.Defun(F, F, I, I)
    def by_first(a, c, j, k):
        return a < c

    @function.Defun(F, F, I, I)
    def by_both(a, c, j, k):
        return tf.logical_or(tf.abs(a) > tf.abs(c), tf.logical_and(tf.equal(tf.abs(a), tf.abs(c)), j > k))

    fetches = []
    for dimension in (0, 1):
        fetches += ops.xla_variadic_sort([x], dimension, binary(F, tf.less), True)
        fetches += ops.xla_variadic_sort([x], dimension, binary(F, tf.greater), True)
        for f in (by_first, by_both):
            fetches += ops.xla_variadic_sort([x, i], dimension, f, True)
    index = np.arange(20, dtype=np.int32).reshape(4, 5)
    b.step(fetches, {x: data((4, 5)).round(0), i: index})


def window(x, init, f, size, strides=None, base=None, dilation=None, padding=None):
    n = len(size)
    ones = [1] * n
    return ops.xla_reduce_window(x, init, size, strides or ones, base or ones, dilation or ones,
                                 padding or [[0, 0]] * n, f)


@case("v1")
def xla_reduce_window(b):
    x, init = feed(b, F), feed(b, F)
    functions = [binary(F, f) for f in KNOWN.values()]
    functions.append(binary(F, lambda a, c: a + c + a * c))
    fetches = []
    for f in functions:
        fetches += [
            window(x, init, f, [2, 3]), window(x, init, f, [2, 2], [2, 3]), window(x, init, f, [1, 1]),
            window(x, init, f, [2, 2], padding=[[1, 2], [0, 1]]), window(x, init, f, [2, 2], base=[2, 3]),
            window(x, init, f, [2, 3], dilation=[3, 2]), window(x, init, f, [3, 2], [2, 1], [3, 2], [2, 3], [[2, 1], [3, 0]]),
            window(x, init, f, [1, 6], padding=[[0, 0], [5, 0]]), window(x, init, f, [2, 2], padding=[[-1, 0], [0, -2]]),
            window(x, init, f, [6, 2])]
    b.step(fetches, {x: data((5, 6)), init: 0.5}, tol=1e-4)


@case("v1")
def xla_select_and_scatter(b):
    x, source = feed(b, F), feed(b, F)
    fetches = []
    for select in (tf.greater_equal, tf.less, lambda a, c: tf.abs(a) >= tf.abs(c)):
        for scatter in (tf.add, tf.maximum, lambda a, c: a * 2.0 + c):
            fetches.append(ops.xla_select_and_scatter(
                x, [2, 3], [2, 2], [[0, 1], [1, 0]], source, tf.constant(0.0), binary(F, select), binary(F, scatter)))
    b.step(fetches, {x: data((5, 6)), source: data((3, 3), seed=4)}, tol=1e-5)


@case("v1")
def xla_if(b):
    p, x = b.feed(B, [], name="p"), b.feed(F, [], name="x")

    @function.Defun(F)
    def double(y):
        return y * 2.0, tf.constant(1)

    @function.Defun(F)
    def other(y):
        return y - 1.0, tf.constant(2)

    y = raw.If(cond=p, input=[x], Tout=[F, I], then_branch=double, else_branch=other, name="y")
    # TensorFlow's kernel of XlaIf asks for an attr that the op does not have.
    b.asked = y[0].graph.as_graph_def()
    b.graph_def = y[0].graph.as_graph_def()
    for node in b.graph_def.node:
        if node.op == "If":
            node.op = "XlaIf"
            for name in set(node.attr) - {"Tcond", "Tin", "Tout", "then_branch", "else_branch"}:
                del node.attr[name]
    for value in (True, False):
        b.step(["y:0", "y:1"], {"p:0": value, "x:0": 3.0})


@case("v1")
def xla_while(b):
    n, x = feed(b, I), feed(b, F)

    @function.Defun(I, F)
    def more(i, y):
        return i > 0

    @function.Defun(I, F)
    def body(i, y):
        return i - 1, y * 1.5

    y = ops.xla_while([n, x], more, body)
    for value in (0, 1, 5):
        b.step(y, {n: value, x: [1.0, -2.0]})


@case("v1")
def xla_decompositions(b):
    x = feed(b, F)
    symmetric = x + tf.linalg.matrix_transpose(x)
    fetches = []
    for lower in (True, False):
        # The other triangle is not read.
        w, v = ops.xla_self_adjoint_eig(tf.linalg.band_part(symmetric, -1 if lower else 0, 0 if lower else -1), lower, 100, 1e-6)
        fetches += [w, tf.matmul(v * tf.expand_dims(w, -2), v, transpose_b=True)]
    b.step(fetches, {x: data((2, 4, 4))}, tol=1e-4)
    y = feed(b, F)
    s, u, v = ops.xla_svd(y, 100, 1e-6, "")
    # Both are square, with all vectors.
    restored = tf.matmul(u[..., :3] * tf.expand_dims(s, -2), v[..., :3], transpose_b=True)
    b.step([s, restored, tf.matmul(u, u, transpose_a=True), tf.matmul(v, v, transpose_a=True)], {y: data((2, 5, 3))}, tol=1e-4)
    b.step([s, restored, tf.shape(u), tf.shape(v)], {y: data((3, 4))}, tol=1e-4)


@case("v1")
def xla_barrier_in_graph(b):
    x = b.feed(F, [2, 3])
    y, z = ops.xla_optimization_barrier([x * 2.0, tf.shape(x)])
    d = xla.DotDimensionNumbers(lhs_contracting_dimensions=[1], rhs_contracting_dimensions=[0]).SerializeToString()
    product = ops.xla_dot(ops.xla_sharding(y), tf.constant(data((3, 4))), d, "")
    padded = ops.xla_pad(product, 0.0, [1, 0], [0, -1], [0, 1])
    b.step([product, padded, z], {x: data((2, 3))}, tol=1e-5)
