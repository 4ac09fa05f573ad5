"""The cost of an iteration: loops and conditionals of scalars, and a two-layer LSTM.

Usage: python bench/loops.py [--ferroflow PATH] [--seconds 2]

Nanoseconds per iteration (milliseconds per run for the LSTM), TensorFlow's Session and Ferroflow.
"""

import tempfile
from pathlib import Path

import common

STEPS = 20000
COLLATZ = 837799
COLLATZ_STEPS = 524


def counting(tf, parallel, functional):
    """Sums 0..n in a float next to the counter: a cast and two adds."""
    with_style(tf, functional)
    with tf.Graph().as_default() as graph:
        n = tf.compat.v1.placeholder(tf.int32, [], name="n")
        _, s = tf.compat.v1.while_loop(
            lambda i, s: i < n, lambda i, s: (i + 1, s + tf.cast(i, tf.float32)),
            [tf.constant(0), tf.constant(0.0)], parallel_iterations=parallel)
        tf.identity(s, name="y")
    return graph.as_graph_def()


def collatz(tf, functional):
    """A conditional in a loop."""
    with_style(tf, functional)
    with tf.Graph().as_default() as graph:
        n = tf.compat.v1.placeholder(tf.int64, [], name="n")

        def body(x, k):
            even = tf.equal(x % 2, 0)
            return tf.compat.v1.cond(even, lambda: x // 2, lambda: 3 * x + 1), k + 1

        _, k = tf.compat.v1.while_loop(lambda x, k: x > 1, body, [n, tf.constant(0, tf.int64)])
        tf.identity(k, name="y")
    return graph.as_graph_def()


def newton(tf, functional):
    """A square root, over and over: the tolerance is never met."""
    with_style(tf, functional)
    with tf.Graph().as_default() as graph:
        n = tf.compat.v1.placeholder(tf.int32, [], name="n")
        _, r = tf.compat.v1.while_loop(
            lambda i, r: i < n, lambda i, r: (i + 1, 0.5 * (r + 2.0 / r)),
            [tf.constant(0), tf.constant(1.0, tf.float64)])
        tf.identity(r, name="y")
    return graph.as_graph_def()


def nested(tf, functional):
    """A loop of 100 iterations in a loop."""
    with_style(tf, functional)
    with tf.Graph().as_default() as graph:
        n = tf.compat.v1.placeholder(tf.int32, [], name="n")

        def body(i, s):
            _, s = tf.compat.v1.while_loop(
                lambda j, s: j < 100, lambda j, s: (j + 1, s + i * j), [tf.constant(0), s])
            return i + 1, s

        _, s = tf.compat.v1.while_loop(lambda i, s: i < n, body, [tf.constant(0), tf.constant(0)])
        tf.identity(s, name="y")
    return graph.as_graph_def()


def scan(tf, functional):
    """A running average of a vector."""
    with_style(tf, functional)
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None], name="x")
        tf.identity(tf.scan(lambda a, e: 0.5 * a + e, x), name="y")
    return graph.as_graph_def()


def monte_carlo(tf, functional):
    """The circle's area, by pairs of random numbers."""
    with_style(tf, functional)
    with tf.Graph().as_default() as graph:
        n = tf.compat.v1.placeholder(tf.int32, [], name="n")

        def body(i, hits):
            point = tf.compat.v1.random_uniform([2], seed=7)
            return i + 1, hits + tf.cast(tf.reduce_sum(point * point) < 1.0, tf.int32)

        _, hits = tf.compat.v1.while_loop(lambda i, hits: i < n, body, [0, 0])
        tf.identity(hits, name="y")
    return graph.as_graph_def()


def power(tf, functional):
    """The largest eigenvalue's vector of a 4 x 4 matrix."""
    with_style(tf, functional)
    with tf.Graph().as_default() as graph:
        a = tf.compat.v1.placeholder(tf.float32, [4, 4], name="a")

        def body(i, v):
            w = tf.matmul(a, v)
            return i + 1, w / tf.sqrt(tf.reduce_sum(w * w))

        _, v = tf.compat.v1.while_loop(lambda i, v: i < 1000, body, [0, tf.ones([4, 1])])
        tf.identity(v, name="y")
    return graph.as_graph_def()


def kalman(tf, functional):
    """A filter of two states: seven products of 2 x 2 matrices and vectors."""
    with_style(tf, functional)
    with tf.Graph().as_default() as graph:
        z = tf.compat.v1.placeholder(tf.float32, [2, 1], name="z")
        move, noise = tf.constant([[1.0, 0.1], [0.0, 1.0]]), tf.constant([[0.01, 0.0], [0.0, 0.01]])

        def body(i, x, p):
            x = tf.matmul(move, x)
            p = tf.matmul(tf.matmul(move, p), move, transpose_b=True) + noise
            gain = p / (p + 0.5)
            return i + 1, x + tf.matmul(gain, z - x), p - tf.matmul(gain, p)

        first = [0, tf.zeros([2, 1]), tf.eye(2)]
        _, x, _ = tf.compat.v1.while_loop(lambda i, x, p: i < 1000, body, first)
        tf.identity(x, name="y")
    return graph.as_graph_def()


def newton_of_vectors(tf, functional):
    """Square roots of a vector whose length the graph leaves open."""
    with_style(tf, functional)
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None], name="x")
        _, y = tf.compat.v1.while_loop(
            lambda i, y: i < 1000, lambda i, y: (i + 1, 0.5 * (y + x / y)), [0, x])
        tf.identity(y, name="y")
    return graph.as_graph_def()


def with_style(tf, functional):
    if functional:
        tf.compat.v1.enable_control_flow_v2()
    else:
        tf.compat.v1.disable_control_flow_v2()


def lstm(tf, lowered):
    """Two layers of 256 units over 64 steps, frozen."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    tf.keras.utils.set_random_seed(1)
    tf.compat.v1.enable_control_flow_v2()
    inputs = tf.keras.Input([64, 128], batch_size=8)
    hidden = tf.keras.layers.LSTM(256, return_sequences=True)(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.LSTM(256)(hidden))
    call = tf.function(lambda x: model(x)).get_concrete_function(
        tf.TensorSpec([8, 64, 128], tf.float32))
    frozen = convert_variables_to_constants_v2(call, lower_control_flow=lowered)
    return frozen.graph.as_graph_def(), frozen.inputs[0].name, frozen.outputs[0].name


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=2)
    options = parser.parse_args()
    import numpy as np
    import tensorflow as tf

    frozen = {lowered: lstm(tf, lowered) for lowered in (False, True)}
    tf.compat.v1.disable_eager_execution()
    cases = [
        ("while, parallel_iterations 1", counting(tf, 1, False), {"n:0": np.int32(STEPS)}, "y:0", STEPS, [1]),
        ("while, parallel_iterations 10", counting(tf, 10, False), {"n:0": np.int32(STEPS)}, "y:0", STEPS, [1]),
        ("While (functional)", counting(tf, 10, True), {"n:0": np.int32(STEPS)}, "y:0", STEPS, [1]),
        ("cond in while", collatz(tf, False), {"n:0": np.int64(COLLATZ)}, "y:0", COLLATZ_STEPS, [1]),
        ("If in While (functional)", collatz(tf, True), {"n:0": np.int64(COLLATZ)}, "y:0", COLLATZ_STEPS, [1]),
    ]
    vector = np.ones(10000, np.float32)
    for style, functional in (("", False), (" (functional)", True)):
        cases += [
            ("Newton" + style, newton(tf, functional), {"n:0": np.int32(STEPS)}, "y:0", STEPS, [1]),
            ("nested" + style, nested(tf, functional), {"n:0": np.int32(200)}, "y:0", STEPS, [1]),
            ("scan" + style, scan(tf, functional), {"x:0": vector}, "y:0", 10000, [1]),
            ("Monte Carlo" + style, monte_carlo(tf, functional), {"n:0": np.int32(STEPS)}, "y:0", STEPS, [1]),
            ("power iteration" + style, power(tf, functional),
             {"a:0": np.eye(4, dtype="float32") + 0.1}, "y:0", 1000, [1]),
            ("Kalman filter" + style, kalman(tf, functional),
             {"z:0": np.array([[1], [2]], "float32")}, "y:0", 1000, [1]),
            ("Newton, 4 numbers" + style, newton_of_vectors(tf, functional),
             {"x:0": np.arange(1, 5, dtype="float32")}, "y:0", 1000, [1]),
        ]
    x = np.random.default_rng(0).standard_normal((8, 64, 128)).astype("float32")
    for lowered, (graph, fed, fetched) in frozen.items():
        name = "LSTM, " + ("Enter … Exit" if lowered else "While")
        cases.append((name, graph, {fed: x}, fetched, None, [1, 2]))
    rows = []
    for name, graph, feeds, fetch, steps, all_threads in cases:
        with tempfile.TemporaryDirectory() as folder, common.Feeds(feeds) as path:
            model = Path(folder) / "graph.pb"
            model.write_bytes(graph.SerializeToString())
            for threads in all_threads:
                args = (model, path, [fetch], threads, options.seconds)
                theirs = common.rival_bench(*args)["median_s"]
                ours = common.ferroflow_bench(options.ferroflow, *args)["median_s"]
                scale, unit = (1e9 / steps, "ns") if steps else (1e3, "ms")
                rows.append([name, threads, f"{theirs * scale:.3g} {unit}", f"{ours * scale:.3g} {unit}",
                             f"{theirs / ours:.1f}"])
    print(f"{common.heading()}; median\n")
    print(common.table(["loop", "threads", "TensorFlow", "Ferroflow", "ratio"], rows))


if __name__ == "__main__":
    main()
