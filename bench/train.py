"""Training steps per second, of graphs that TensorFlow built.

Usage: python bench/train.py [--ferroflow PATH] [--seconds 5] [--only mlp] [--keep DIR]

A perceptron 784-512-512-10 (batch 128), a convolutional network in the manner of LeNet (batch 64), an LSTM of 256
units over 64 steps (batch 32) as a loop of V1 and as a While, and a layer of BERT's form (512 wide, 8 heads, batch 8
of 128 tokens); momentum, the same batch fed in every step. TensorFlow's Session and Ferroflow, alternating, three times each; the best
median counts.
"""

import contextlib
import tempfile
from pathlib import Path

import common

BATCHES = {"mlp": 128, "cnn": 64, "lstm": 32, "lstm-while": 32, "bert-layer": 8}
SHAPES = {"mlp": [784], "cnn": [28, 28, 1], "lstm": [64, 64], "lstm-while": [64, 64], "bert-layer": [128, 512]}
ROUNDS = 3


def perceptron(tf, x, weights):
    """784-512-512-10."""
    h = x
    for i, shape in enumerate([(784, 512), (512, 512), (512, 10)]):
        h = tf.nn.bias_add(tf.matmul(h, weights(f"w{i}", *shape)), weights(f"b{i}", shape[1]))
        h = tf.nn.relu(h) if i < 2 else h
    return h


def convolutional(tf, x, weights):
    """Two convolutions with pooling, two dense layers."""
    h = x
    for i, shape in enumerate([(5, 5, 1, 32), (5, 5, 32, 64)]):
        h = tf.nn.conv2d(h, weights(f"f{i}", *shape), 1, "SAME")
        h = tf.nn.relu(tf.nn.bias_add(h, weights(f"c{i}", shape[3])))
        h = tf.nn.max_pool2d(h, 2, 2, "SAME")
    h = tf.reshape(h, [-1, 7 * 7 * 64])
    h = tf.nn.relu(tf.nn.bias_add(tf.matmul(h, weights("w0", 7 * 7 * 64, 512)), weights("b0", 512)))
    return tf.nn.bias_add(tf.matmul(h, weights("w1", 512, 10)), weights("b1", 10))


def recurrent(tf, x, weights):
    """An LSTM over the second axis; a dense layer on its last output."""
    units, steps, width = 256, x.shape[1], x.shape[2]
    w, b = weights("w", width + units, 4 * units), weights("b", 4 * units)
    inputs = tf.TensorArray(tf.float32, steps, element_shape=[None, width]).unstack(tf.transpose(x, [1, 0, 2]))
    zeros = tf.zeros([tf.shape(x)[0], units])

    def step(i, h, c):
        gates = tf.nn.bias_add(tf.matmul(tf.concat([inputs.read(i), h], 1), w), b)
        new, entry, kept, out = tf.split(gates, 4, 1)
        c = tf.sigmoid(kept + 1.0) * c + tf.sigmoid(entry) * tf.tanh(new)
        h = tf.sigmoid(out) * tf.tanh(c)
        return i + 1, tf.ensure_shape(h, [None, units]), tf.ensure_shape(c, [None, units])

    start = [tf.constant(0), tf.ensure_shape(zeros, [None, units]), tf.ensure_shape(zeros, [None, units])]
    _, h, _ = tf.compat.v1.while_loop(lambda i, h, c: i < steps, step, start)
    return tf.nn.bias_add(tf.matmul(h, weights("w1", units, 10)), weights("b1", 10))


def encoder(tf, x, weights):
    """A layer of BERT: attention and two dense layers, each with its residual sum and normalization."""
    tokens, width, heads = x.shape[1], x.shape[2], 8

    def dense(h, name, columns):
        rows = h.shape[-1]
        y = tf.nn.bias_add(tf.matmul(tf.reshape(h, [-1, rows]), weights(f"{name}w", rows, columns)),
                           weights(f"{name}b", columns))
        return tf.reshape(y, [-1, tokens, columns])

    def normalized(h, name):
        mean, variance = tf.nn.moments(h, [-1], keepdims=True)
        return (h - mean) * tf.math.rsqrt(variance + 1e-6) * (1.0 + weights(f"{name}g", width)) + weights(f"{name}o", width)

    def split(h):
        return tf.transpose(tf.reshape(h, [-1, tokens, heads, width // heads]), [0, 2, 1, 3])

    q, k, v = (split(dense(x, name, width)) for name in "qkv")
    share = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * (width // heads) ** -0.5)
    y = tf.reshape(tf.transpose(tf.matmul(share, v), [0, 2, 1, 3]), [-1, tokens, width])
    x = normalized(x + dense(y, "a", width), "n")
    x = normalized(x + dense(tf.nn.gelu(dense(x, "f", 4 * width), approximate=True), "p", width), "m")
    h = tf.reduce_mean(x, 1)
    return tf.nn.bias_add(tf.matmul(h, weights("w1", width, 10)), weights("b1", 10))


NETWORKS = {"mlp": perceptron, "cnn": convolutional, "lstm": recurrent, "lstm-while": recurrent, "bert-layer": encoder}


def minimized(tf, network, x, y, rate=0.02):
    """Returns (loss, the op that minimizes it)."""
    v1 = tf.compat.v1
    count = iter(range(100))

    def weights(name, *shape):
        seed = [next(count), 5]
        fan = 1
        for size in shape[:-1]:
            fan *= size
        scale = (2 / fan) ** 0.5 if len(shape) > 1 else 0.0
        value = tf.random.stateless_uniform(shape, seed, -1.0, 1.0) * (scale * 3**0.5)
        return v1.get_variable(name, initializer=value, use_resource=True)

    logits = network(tf, x, weights)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    return loss, v1.train.MomentumOptimizer(rate, 0.9).minimize(loss)


def graph_of(tf, name):
    v1 = tf.compat.v1
    (v1.disable_control_flow_v2 if name == "lstm" else v1.enable_control_flow_v2)()
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, *SHAPES[name]], name="x")
        y = v1.placeholder(tf.int32, [None], name="y")
        loss, update = minimized(tf, NETWORKS[name], x, y)
        tf.identity(loss, name="loss")
        tf.group(update, name="train")
        tf.group(v1.global_variables_initializer(), name="init")
    return graph.as_graph_def()


def saved(folder, name, graph, feeds):
    """Writes a graph and its feeds."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.pb").write_bytes(graph)
    np.savez(folder / f"{name}.npz", **feeds)


def measured(options, name, graph, feeds):
    """Returns the rows of the table for a graph: steps a second with one thread and two."""
    rows = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = stack.enter_context(common.Feeds(feeds))
        model = Path(folder) / "graph.pb"
        model.write_bytes(graph)
        for threads in [1, 2]:
            args = (model, path, ["loss:0"], threads, options.seconds, "--init", "init", "--target", "train")
            theirs, ours = [], []
            for _ in range(ROUNDS):
                theirs.append(1 / common.rival_bench(*args)["median_s"])
                ours.append(1 / common.ferroflow_bench(options.ferroflow, *args)["median_s"])
            rows.append([name, threads, f"{max(theirs):.1f}", f"{max(ours):.1f}", f"{max(ours) / max(theirs):.2f}"])
    return rows


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--only", choices=BATCHES, action="append")
    parser.add_argument("--keep", type=Path, help="leave the graphs and feeds there, run nothing")
    options = parser.parse_args()
    import numpy as np
    import tensorflow as tf

    rows = []
    for name in options.only or BATCHES:
        random, batch = np.random.default_rng(0), BATCHES[name]
        feeds = {"x:0": random.random((batch, *SHAPES[name]), "float32"),
                 "y:0": random.integers(0, 10, batch).astype("int32")}
        graph = graph_of(tf, name).SerializeToString()
        if options.keep:
            saved(options.keep, name, graph, feeds)
        else:
            rows += measured(options, f"{name}, batch {batch}", graph, feeds)
    if rows:
        print(f"{common.heading()}; steps a second\n")
        print(common.table(["network", "threads", "TensorFlow", "Ferroflow", "ratio"], rows))


if __name__ == "__main__":
    main()
