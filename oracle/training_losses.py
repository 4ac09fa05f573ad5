"""Trains the networks of bench/train.py with TensorFlow and writes crates/runtime/tests/training.

Usage: python oracle/training_losses.py [mlp] [cnn] [small_mlp] [small_cnn] [small_norm] [small_attention] [small_lstm]

<name>.json has the graph and the loss before each of 200 steps. Initial values and batches come from
stateless random ops in the graph: a batch is that of the number that is fed as `step`. A picture is
the template of its digit, with noise, around zero, and the rate is one with
which TensorFlow's own losses do not depend on its number of threads. What is small is for tests without optimisation.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "bench")]

import graphkit
import tensorflow as tf
import train

OUT = HERE.parent / "crates/runtime/tests/training"
STEPS = 200
v1 = tf.compat.v1


def small_perceptron(tf, x, weights):
    h = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weights("w0", 784, 32)), weights("b0", 32)))
    return tf.nn.bias_add(tf.matmul(h, weights("w1", 32, 10)), weights("b1", 10))


def small_convolutional(tf, x, weights):
    h = tf.nn.bias_add(tf.nn.conv2d(x, weights("f0", 5, 5, 1, 4), 2, "SAME"), weights("c0", 4))
    h = tf.nn.max_pool2d(tf.nn.relu(h), 2, 2, "SAME")
    h = tf.nn.bias_add(tf.nn.conv2d(h, weights("f1", 3, 3, 4, 8), 1, "SAME"), weights("c1", 8))
    h = tf.reshape(tf.nn.relu(h), [-1, 7 * 7 * 8])
    return tf.nn.bias_add(tf.matmul(h, weights("w0", 7 * 7 * 8, 10)), weights("b0", 10))


def small_normalized(tf, x, weights):
    """A convolution, a depthwise one and average pooling, each normalized by the statistics of the batch."""
    h = tf.nn.conv2d(x, weights("f0", 3, 3, 1, 6), 2, "SAME")
    for i, depthwise in enumerate([False, True]):
        h = tf.nn.depthwise_conv2d(h, weights("d0", 3, 3, 6, 1), [1, 1, 1, 1], "SAME") if depthwise else h
        scale, offset = 1 + weights(f"s{i}", 6), weights(f"o{i}", 6)
        h = v1.nn.fused_batch_norm(h, scale, offset, epsilon=1e-3, is_training=True)[0]
        h = tf.nn.avg_pool2d(tf.nn.leaky_relu(h), 2, 2, "SAME")
    h = tf.reshape(h, [-1, 4 * 4 * 6])
    return tf.nn.bias_add(tf.matmul(h, weights("w0", 4 * 4 * 6, 10)), weights("b0", 10))


def small_attention(tf, x, weights):
    """The rows of a picture attend to each other, with two heads and dropout."""
    def dense(h, name, n, m):
        return tf.tensordot(h, weights(f"w{name}", n, m), 1) + weights(f"b{name}", m)

    h = tf.tanh(dense(x[..., 0], "in", 28, 16))
    heads = [tf.transpose(tf.reshape(dense(h, n, 16, 16), [-1, 28, 2, 8]), [0, 2, 1, 3]) for n in "qkv"]
    mixed = tf.matmul(tf.nn.softmax(tf.matmul(heads[0], heads[1], transpose_b=True) / 8**0.5), heads[2])
    mixed = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, 28, 16])
    keep = tf.random.stateless_uniform(tf.shape(mixed), [3, 4]) >= 0.1
    h += tf.where(keep, mixed / 0.9, tf.zeros_like(mixed))
    mean, variance = tf.nn.moments(h, [-1], keepdims=True)
    h = (h - mean) * tf.math.rsqrt(variance + 1e-6) * (1 + weights("scale", 16)) + weights("offset", 16)
    h = 0.5 * h * (1 + tf.math.erf(h / 2**0.5))
    return dense(tf.reduce_mean(h, 1), "out", 16, 10)


def small_lstm(tf, x, weights):
    """An LSTM over the rows of a picture: a While with lists of tensors."""
    batch, n = x.shape[0], 8
    w, b = weights("w", 28 + n, 4 * n), weights("b", 4 * n)
    rows = tf.TensorArray(tf.float32, 28).unstack(tf.transpose(x[..., 0], [1, 0, 2]))

    def body(i, c, h, seen):
        f, k, o, g = tf.split(tf.nn.bias_add(tf.matmul(tf.concat([rows.read(i), h], 1), w), b), 4, 1)
        c = tf.sigmoid(f + 1) * c + tf.sigmoid(k) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        return i + 1, c, h, seen.write(i, h)

    zeros = tf.zeros([batch, n])
    seen = tf.TensorArray(tf.float32, 28, element_shape=[batch, n])
    seen = tf.while_loop(lambda i, *_: i < 28, body, (0, zeros, zeros, seen))[3]
    h = tf.reduce_max(seen.stack(), 0)
    return tf.nn.bias_add(tf.matmul(h, weights("w1", n, 10)), weights("b1", 10))


NETWORKS = {"mlp": (train.perceptron, 128), "cnn": (train.convolutional, 64),
            "small_mlp": (small_perceptron, 32), "small_cnn": (small_convolutional, 16),
            "small_norm": (small_normalized, 16), "small_attention": (small_attention, 16),
            "small_lstm": (small_lstm, 16)}
# The benchmark's learning rate is so high that losses depend on rounding.
RATES = {"cnn": 0.0005, "small_norm": 0.002}


def graph_of(name):
    with tf.Graph().as_default() as graph:
        step = v1.placeholder(tf.int32, [], name="step")
        network, batch = NETWORKS[name]
        shape = [784] if "mlp" in name else [28, 28, 1]
        y = tf.random.stateless_uniform([batch], [step, 1], 0, 10, tf.int32)
        noise = tf.random.stateless_uniform([batch, *shape], [step, 2])
        templates = tf.random.stateless_uniform([10, *shape], [7, 3])
        x = 0.3 * tf.gather(templates, y) + 0.7 * noise - 0.5
        loss, update = train.minimized(tf, network, x, y, RATES.get(name, 0.02))
        tf.identity(loss, name="loss")
        tf.group(update, name="train")
        tf.group(v1.global_variables_initializer(), name="init")
    return graph


def main():
    v1.enable_control_flow_v2()
    OUT.mkdir(exist_ok=True)
    for name in sys.argv[1:] or NETWORKS:
        graph = graph_of(name)
        with v1.Session(graph=graph) as session:
            session.run("init")
            losses = [float(session.run(["loss:0", "train"], {"step:0": i})[0]) for i in range(STEPS)]
        out = {"tensorflow": tf.__version__, "losses": losses,
               **graphkit.graph_field(graphkit.cleaned(graph.as_graph_def()), True)}
        (OUT / f"{name}.json").write_text(json.dumps(out) + "\n")
        print(name, losses[:2], losses[-2:])


if __name__ == "__main__":
    main()
