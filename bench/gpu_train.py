"""Training steps of ResNet50 (batch 64) and a BERT-base encoder (batch 32, 128 tokens), as graphs that TensorFlow builds.

Usage: python bench/gpu_train.py DIR

Writes DIR/resnet50_train.pb and DIR/bert_train.pb, which need no GPU. Their nodes: the feeds `x` and `y`, the targets `init`
and `train`, and `loss`. Weights are random; the losses are those of classes, of images or of whole texts. `bench/gpu.py train`
runs them.
"""

import math
import sys
from pathlib import Path

BLOCKS = [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]
LAYERS, WIDTH, HEADS, TOKENS, VOCABULARY = 12, 768, 12, 128, 30522


class Net:
    """Makes variables with random values, none of which are stored."""

    def __init__(self, tf):
        self.tf, self.count = tf, 0

    def variable(self, *shape, value=None, scale=None, trainable=True):
        tf = self.tf
        self.count += 1
        if value is None:
            fan = math.prod(shape[:-1])
            scale = scale or (2 / fan) ** 0.5
            initial = tf.random.stateless_normal(shape, [self.count, 5]) * scale
        else:
            initial = tf.fill(shape, float(value))
        return tf.compat.v1.get_variable(f"v{self.count}", initializer=initial, use_resource=True, trainable=trainable)

    def dense(self, x, width):
        w, b = self.variable(x.shape[-1], width, scale=0.02), self.variable(width, value=0)
        return self.tf.tensordot(x, w, 1) + b

    def conv(self, x, width, size, stride):
        return self.tf.nn.conv2d(x, self.variable(size, size, x.shape[-1], width), stride, "SAME")

    def batch_norm(self, x):
        tf, n = self.tf, x.shape[-1]
        y, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            x, self.variable(n, value=1), self.variable(n, value=0), epsilon=1e-5, is_training=True)
        for new, first in [(mean, 0), (variance, 1)]:
            running = self.variable(n, value=first, trainable=False)
            tf.compat.v1.add_to_collection("updates", tf.compat.v1.assign_sub(running, (running - new) * 0.1))
        return y

    def layer_norm(self, x):
        tf, n = self.tf, x.shape[-1]
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        normal = (x - mean) * tf.math.rsqrt(variance + 1e-12)
        return normal * self.variable(n, value=1) + self.variable(n, value=0)


def resnet50(tf, net, x):
    x = tf.nn.relu(net.batch_norm(net.conv(x, 64, 7, 2)))
    x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    for width, depth, stride in BLOCKS:
        for i in range(depth):
            step = stride if i == 0 else 1
            y = tf.nn.relu(net.batch_norm(net.conv(x, width, 1, 1)))
            y = tf.nn.relu(net.batch_norm(net.conv(y, width, 3, step)))
            y = net.batch_norm(net.conv(y, 4 * width, 1, 1))
            short = net.batch_norm(net.conv(x, 4 * width, 1, step)) if i == 0 else x
            x = tf.nn.relu(y + short)
    return net.dense(tf.reduce_mean(x, [1, 2]), 1000)


def bert(tf, net, ids):
    x = tf.gather(net.variable(VOCABULARY, WIDTH, scale=0.02), ids) + net.variable(TOKENS, WIDTH, scale=0.02)
    x = net.layer_norm(x)
    for _ in range(LAYERS):
        heads = [tf.transpose(tf.reshape(net.dense(x, WIDTH), [-1, TOKENS, HEADS, WIDTH // HEADS]), [0, 2, 1, 3])
                 for _ in range(3)]
        weights = tf.nn.softmax(tf.matmul(heads[0], heads[1], transpose_b=True) / (WIDTH // HEADS) ** 0.5)
        mixed = tf.reshape(tf.transpose(tf.matmul(weights, heads[2]), [0, 2, 1, 3]), [-1, TOKENS, WIDTH])
        x = net.layer_norm(x + net.dense(mixed, WIDTH))
        h = net.dense(x, 4 * WIDTH)
        h = 0.5 * h * (1 + tf.math.erf(h / 2**0.5))
        x = net.layer_norm(x + net.dense(h, WIDTH))
    return net.dense(tf.tanh(net.dense(x[:, 0], WIDTH)), 2)


def graph(tf, network, dtype, shape, optimizer):
    v1 = tf.compat.v1
    with tf.Graph().as_default() as made:
        x, y = v1.placeholder(dtype, shape, name="x"), v1.placeholder(tf.int32, shape[:1], name="y")
        logits = network(tf, Net(tf), x)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits), name="loss")
        update = optimizer(v1.train).minimize(loss)
        v1.group(update, *v1.get_collection("updates"), name="train")
        v1.group(v1.global_variables_initializer(), name="init")
    return made.as_graph_def().SerializeToString()


def main():
    import tensorflow as tf

    folder = Path(sys.argv[1])
    images, texts = [64, 224, 224, 3], [32, TOKENS]
    (folder / "resnet50_train.pb").write_bytes(
        graph(tf, resnet50, tf.float32, images, lambda train: train.MomentumOptimizer(0.1, 0.9)))
    (folder / "bert_train.pb").write_bytes(graph(tf, bert, tf.int32, texts, lambda train: train.AdamOptimizer(1e-4)))


if __name__ == "__main__":
    main()
