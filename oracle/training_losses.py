"""Trains the networks of bench/train.py with TensorFlow and writes crates/runtime/tests/training.

Usage: python oracle/training_losses.py [mlp] [cnn] [small_mlp] [small_cnn]

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


NETWORKS = {"mlp": (train.perceptron, 128), "cnn": (train.convolutional, 64),
            "small_mlp": (small_perceptron, 32), "small_cnn": (small_convolutional, 16)}
# The benchmark's learning rate is so high that losses depend on rounding.
RATES = {"cnn": 0.0005}


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
