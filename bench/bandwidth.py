"""Elementwise programs and reductions of 4 M floats, compared with a copy of as many, and of 1,000 floats.

Usage: python bench/bandwidth.py [--ferroflow PATH] [--seconds 1] [--rounds 3] [--threads 1 2]

The share is that of the bytes a second that NumPy copies between two arrays of 4 M floats in the same round: what a
program must read and write, by the time of a step. Adam reads four arrays and writes three. The last columns are
microseconds of a step with 1,000 floats. TensorFlow runs the same graph.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import common

N, SMALL, ROW = 1 << 22, 1000, 1024

COPY = f"""
import time, numpy as np
x = np.ones({N}, np.float32); y = np.empty_like(x); times = []
for _ in range(200):
    start = time.perf_counter(); np.copyto(y, x); times.append(time.perf_counter() - start)
print(sorted(times)[len(times) // 2])
"""


def chain(tf, x):
    """Twelve ops."""
    y = tf.maximum(x * 1.5 - 0.25, -2.0)
    y = tf.minimum(y, 3.0) * x + 0.5
    y = tf.square(y) - x * 0.125
    return tf.nn.relu(y * 0.75 + x) - 1.0


def layer_norm(tf, x):
    """As Keras writes it."""
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    scale, offset = (tf.constant(np.linspace(low, 1.5, x.shape[-1]), tf.float32) for low in (0.5, -0.5))
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-5)


PROGRAMS = {
    "gelu (tanh)": lambda tf, x: tf.nn.gelu(x, approximate=True),
    "gelu (erf)": lambda tf, x: tf.nn.gelu(x),
    "swish": lambda tf, x: tf.nn.swish(x),
    "softmax": lambda tf, x: tf.nn.softmax(x),
    "layer norm": layer_norm,
    "twelve ops": chain,
}


def program(tf, make, n):
    tf.compat.v1.reset_default_graph()
    row = min(n, ROW)
    x = tf.compat.v1.placeholder(tf.float32, [n // row, row], name="x")
    tf.identity(make(tf, x), name="y")
    return tf.compat.v1.get_default_graph().as_graph_def()


def adam(tf, n):
    tf.compat.v1.reset_default_graph()
    gradient = tf.compat.v1.placeholder(tf.float32, [n], name="x")
    names = ("var", "m", "v")
    state = [tf.compat.v1.get_variable(s, [n], tf.float32, tf.zeros_initializer(), use_resource=True) for s in names]
    tf.group(*(s.initializer for s in state), name="init")
    rates = dict(beta1_power=0.9, beta2_power=0.999, lr=0.001, beta1=0.9, beta2=0.999, epsilon=1e-7)
    update = tf.raw_ops.ResourceApplyAdam(**{s: v.handle for s, v in zip(names, state)}, **rates, grad=gradient)
    tf.group(update, name="update")
    return tf.compat.v1.get_default_graph().as_graph_def()


def measure(options, folder, graph, n, threads, *more):
    model = Path(folder) / "graph.pb"
    model.write_bytes(graph.SerializeToString())
    row = min(n, ROW)
    shape = [n] if more else [n // row, row]
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    with common.Feeds({"x:0": x}) as feeds:
        fetches = [] if more else ["y:0"]
        ours = common.ferroflow_bench(options.ferroflow, model, feeds, fetches, threads, options.seconds, *more)
        theirs = None if more else common.rival_bench(model, feeds, fetches, threads, options.seconds)["median_s"]
    return ours["median_s"], theirs


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    options = parser.parse_args()
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    print(common.heading() + "; median of the rounds' medians\n")
    print("| program | threads | TensorFlow, ms | Ferroflow, ms | share of the copy | 1,000: TensorFlow, us | Ferroflow, us |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for threads in options.threads:
        for name in (*PROGRAMS, "Adam"):
            rounds = []
            with tempfile.TemporaryDirectory() as folder:
                for _ in range(options.rounds):
                    copy = float(subprocess.run([sys.executable, "-c", COPY], capture_output=True, text=True).stdout)
                    if name == "Adam":
                        flags, moved = ("--init", "init", "--target", "update"), 7
                        large, small = (measure(options, folder, adam(tf, n), n, threads, *flags) for n in (N, SMALL))
                    else:
                        moved = 2
                        graphs = ((program(tf, PROGRAMS[name], n), n) for n in (N, SMALL))
                        large, small = (measure(options, folder, g, n, threads) for g, n in graphs)
                    rounds.append((large[1], large[0], copy / 2 * moved / large[0], small[1], small[0]))
            them, us, share, them_small, us_small = (
                None if None in column else statistics.median(column) for column in zip(*rounds))
            show = lambda x, scale: "" if x is None else f"{x * scale:.2f}"
            print(f"| {name} | {threads} | {show(them, 1e3)} | {show(us, 1e3)} | {share * 100:.0f} % | "
                  f"{show(them_small, 1e6)} | {show(us_small, 1e6)} |", flush=True)


if __name__ == "__main__":
    main()
