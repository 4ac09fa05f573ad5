"""Graphs of scalars and small tensors without loops: schedules, decision trees, hashes, conditionals.

Usage: python bench/small_graphs.py [--ferroflow PATH] [--seconds 1]

Microseconds of a step at one thread: TensorFlow's Session, Ferroflow, and Ferroflow without machine code (`--jit off`).
The first row is a graph of one Identity: what a step costs by itself.
"""

import tempfile
from pathlib import Path

import common
from loops import with_style


def schedule(tf, x):
    """A learning rate with warm-up and cosine, and Adam's corrections."""
    step = tf.cast(x, tf.float32)
    cosine = 0.05 * (1 + tf.cos(3.14159 * tf.minimum((step - 1000.0) / 9000.0, 1.0)))
    rate = tf.where(step < 1000.0, step / 1000.0 * 0.1, cosine)
    first, second = (1 - tf.pow(beta, step + 1) for beta in (0.9, 0.999))
    return rate * tf.sqrt(second) / first


def tree(tf, x, numbers, depth=7):
    """A decision tree: a comparison in each of its inner nodes."""
    if depth == 0:
        return tf.constant(numbers.standard_normal(), tf.float32)
    feature, bound = numbers.integers(4), numbers.standard_normal()
    return tf.where(x[feature] < bound, tree(tf, x, numbers, depth - 1), tree(tf, x, numbers, depth - 1))


def hashed(tf, x, n):
    for i in range(n):
        x = (x * 7 + i) % 1009
    return x


def vectors(tf, x):
    for _ in range(20):
        x = tf.stack([x[1] * 0.5 - x[2], x[0] + 0.1, tf.maximum(x[2], x[0]) - 0.3])
    return x


def conditionals(tf, x, functional):
    with_style(tf, functional)
    for i in range(6):
        x = tf.compat.v1.cond(x > 0.0, lambda: x * 0.5 - 1.0, lambda: -x + 0.25 * i)
    return x


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=1)
    options = parser.parse_args()
    import numpy as np
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    number, vector = np.float32(1.5), np.array([0.1, 0.2, -0.3, 0.5], np.float32)
    cases = [
        ("one Identity", number, lambda x: x),
        ("schedule of a learning rate", np.int64(700), lambda x: schedule(tf, x)),
        ("decision tree, 127 comparisons", vector, lambda x: tree(tf, x, np.random.default_rng(0))),
        ("hash, 15 ops", np.int32(7), lambda x: hashed(tf, x, 5)),
        ("hash, 120 ops", np.int32(7), lambda x: hashed(tf, x, 40)),
        ("vectors of three, 20 steps", vector[:3], lambda x: vectors(tf, x)),
        ("six conditionals, V1", number, lambda x: conditionals(tf, x, False)),
        ("six conditionals, functional", number, lambda x: conditionals(tf, x, True)),
    ]
    rows = []
    for name, value, build in cases:
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(value.dtype, value.shape, name="x")
            tf.identity(build(x), name="y")
        with tempfile.TemporaryDirectory() as folder, common.Feeds({"x:0": value}) as path:
            model = Path(folder) / "graph.pb"
            model.write_bytes(graph.as_graph_def().SerializeToString())
            args = (model, path, ["y:0"], 1, options.seconds)
            theirs = common.rival_bench(*args)["median_s"]
            plain = common.ferroflow_bench(options.ferroflow, *args, "--jit", "off")["median_s"]
            ours = common.ferroflow_bench(options.ferroflow, *args)["median_s"]
            rows.append([name, *(f"{t * 1e6:.2f}" for t in (theirs, plain, ours)), f"{theirs / ours:.0f}"])
    print(f"{common.heading()}; microseconds, median\n")
    print(common.table(["graph", "TensorFlow", "Ferroflow, --jit off", "Ferroflow", "ratio"], rows))


if __name__ == "__main__":
    main()
