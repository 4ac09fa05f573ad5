"""Trains a small convolutional network on handwritten digits and freezes it.

Usage: python examples/digits/train.py      (needs bench/requirements.txt)

Writes digits.pb (the frozen GraphDef) and digits.npz (the data set with its split) next to itself.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

HERE = Path(__file__).resolve().parent
EPOCHS = 60
BATCH = 32


def network():
    layers = tf.keras.layers
    return tf.keras.Sequential([
        tf.keras.Input((8, 8, 1)),
        layers.Conv2D(24, 3, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Conv2D(32, 3, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.Conv2D(48, 3, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.4),
        layers.Dense(48, activation="relu"),
        layers.Dense(10),
    ])


def shifted(images, rng):
    """Each image moved by up to one pixel, so that the network does not learn places by heart."""
    out = np.zeros_like(images)
    for i, (down, right) in enumerate(rng.integers(-1, 2, (len(images), 2))):
        out[i] = np.roll(images[i], (down, right), (0, 1))
        if down:
            out[i, 0 if down > 0 else -1] = 0
        if right:
            out[i, :, 0 if right > 0 else -1] = 0
    return out


def train(images, labels, rng):
    model = network()
    rate = tf.keras.optimizers.schedules.CosineDecay(2e-3, EPOCHS * (len(images) // BATCH))
    model.compile(tf.keras.optimizers.Adam(rate),
                  tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for _ in range(EPOCHS):
        model.fit(shifted(images, rng), labels, batch_size=BATCH, verbose=0)
    return model


def freeze(model):
    """A GraphDef from the placeholder `images` to `logits` and `probabilities`."""

    @tf.function(input_signature=[tf.TensorSpec((None, 8, 8, 1), tf.float32, name="images")])
    def answer(images):
        logits = tf.identity(model(images, training=False), name="logits")
        return logits, tf.nn.softmax(logits, name="probabilities")

    frozen = convert_variables_to_constants_v2(answer.get_concrete_function())
    graph = frozen.graph.as_graph_def()
    keep = [tensor.op.name for tensor in frozen.graph.get_operation_by_name("probabilities").outputs]
    return tf.compat.v1.graph_util.extract_sub_graph(graph, keep)


def accuracy(graph, images, labels):
    """Of the frozen graph itself."""
    with tf.Graph().as_default():
        tf.import_graph_def(graph, name="")
        with tf.compat.v1.Session() as session:
            chosen = session.run("probabilities:0", {"images:0": images}).argmax(1)
    return (chosen == labels).mean()


def main():
    tf.keras.utils.set_random_seed(7)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rng = np.random.default_rng(7)
    data = load_digits()
    pixels, labels = data.images.astype(np.uint8), data.target.astype(np.uint8)
    images = (pixels / 16).astype(np.float32)[..., np.newaxis]
    order = rng.permutation(len(images))
    test, learn = np.sort(order[:360]), order[360:]
    graph = freeze(train(images[learn], labels[learn], rng))
    right = accuracy(graph, images[test], labels[test])
    (HERE / "digits.pb").write_bytes(graph.SerializeToString(deterministic=True))
    np.savez_compressed(HERE / "digits.npz", images=pixels, labels=labels, test=test.astype(np.int32))
    print(f"held-out accuracy {right:.4f}; {len(graph.node)} nodes")
    assert right >= 0.985, "train again with another seed"


if __name__ == "__main__":
    main()
