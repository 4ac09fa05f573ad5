"""What TensorFlow's optimizers make of a graph runs on Ferroflow's tasks.

    python interop/cluster_rewrites.py --server target/release/ferroflow

A TensorFlow master optimizes graphs before it sends the parts to workers, an eager client the functions that span tasks; both
with oneDNN's kernels, as the wheels have them. Each pattern here is one that is rewritten. It runs in this process first, then
in a session of a TensorFlow master on a Ferroflow worker, on a TensorFlow worker of a Ferroflow master, and in a function over
two Ferroflow tasks.
"""

import argparse
import os
import socket
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tensorflow as tf

from clusters import Cluster

tf1, nn = tf.compat.v1, tf.nn
SHAPE = [2, 8, 8, 4]
TIMEOUT_MS = 60_000


def weights(*shape):
    return tf.constant(np.random.RandomState(0).uniform(-0.3, 0.3, shape).astype(np.float32))


def product(x):
    return nn.bias_add(tf.matmul(tf.reshape(x, [16, 32]), weights(32, 8)), weights(8))


def conv(x, padding="SAME"):
    return nn.conv2d(x, weights(3, 3, 4, 5), 1, padding)


def biased(x):
    return nn.bias_add(conv(x), weights(5))


def normalized(x, n, training=False):
    mean, variance = (None, None) if training else (weights(n), tf.abs(weights(n)))
    return tf1.nn.fused_batch_norm(x, weights(n), weights(n), mean, variance, is_training=training)[0]


def centered(x, axes):
    mean, variance = nn.moments(x, axes, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3) * weights(4) + weights(4)


def pool(x):
    return nn.max_pool2d(x, 2, 2, "SAME") + nn.avg_pool2d(x, 2, 2, "SAME")


def bucket(x):
    text = tf.strings.as_string(tf.cast(x * 100, tf.int32))
    return tf.cast(tf.strings.to_hash_bucket_fast(text, 10), tf.float32)


def attention(x):
    q = tf.reshape(x, [2, 4, 8, 8])
    scores = tf.matmul(q, q, transpose_b=True) * 0.125 + weights(2, 1, 8, 8)
    return tf.einsum("bhqk,bhkd->bhqd", nn.softmax(scores), q)


def gradient(of):
    def rule(x):
        if tf.executing_eagerly():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = of(x)
            return tape.gradient(y, x)
        return tf.gradients(of(x), x)[0]

    return rule


PATTERNS = {
    "unary ops": lambda x: tf.sin(tf.exp(tf.tanh(x))),
    "product": product,
    "product and relu": lambda x: nn.relu(product(x)),
    "product and elu": lambda x: nn.elu(product(x)),
    "product and tanh": lambda x: tf.tanh(product(x)),
    "product and sigmoid": lambda x: tf.sigmoid(product(x)),
    "product and leaky relu": lambda x: nn.leaky_relu(product(x)),
    "product and gelu": lambda x: nn.gelu(product(x)),
    "product and tanh's gelu": lambda x: nn.gelu(product(x), True),
    "product and sum": lambda x: product(x) + weights(16, 8),
    "convolution": biased,
    "convolution and relu": lambda x: nn.relu(biased(x)),
    "convolution and leaky relu": lambda x: nn.leaky_relu(biased(x)),
    "convolution and swish": lambda x: nn.silu(biased(x)),
    "convolution and mish": lambda x: (lambda y: y * tf.tanh(nn.softplus(y)))(biased(x)),
    "convolution and hard swish": lambda x: (lambda y: y * nn.relu6(y + 3.0) * 0.16666667)(biased(x)),
    "convolution, sum and relu": lambda x: nn.relu(biased(x) + weights(2, 8, 8, 5)),
    "convolution and normalization": lambda x: nn.relu(normalized(conv(x), 5)),
    "padded convolution": lambda x: nn.bias_add(
        conv(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), "VALID"), weights(5)),
    "convolution per channel": lambda x: nn.relu(
        nn.bias_add(nn.depthwise_conv2d(x, weights(3, 3, 4, 2), [1, 1, 1, 1], "SAME"), weights(8))),
    "convolution of volumes": lambda x: nn.relu(nn.bias_add(
        nn.conv3d(tf.reshape(x, [1, 2, 8, 8, 4]), weights(1, 3, 3, 4, 5), [1] * 5, "SAME"), weights(5))),
    "normalization and relu": lambda x: nn.relu(normalized(x, 4)),
    "normalization in training": lambda x: nn.relu(normalized(x, 4, training=True)),
    "layer normalization": lambda x: centered(x, [-1]),
    "instance normalization": lambda x: nn.relu(centered(x, [1, 2])),
    "attention": attention,
    "swish": lambda x: nn.silu(x),
    "mish": lambda x: x * tf.tanh(nn.softplus(x)),
    "pools": pool,
    "hash of numbers": bucket,
    "parallel stack": lambda x: tf.parallel_stack([x * 2.0, x * 3.0]),
    "accumulation": lambda x: tf.math.accumulate_n([x, x * 2.0, x * 3.0]),
    "transposes": lambda x: tf.transpose(tf.transpose(conv(x), [0, 3, 1, 2]), [0, 2, 3, 1]),
    "gradient of a product": gradient(lambda x: nn.relu(product(x))),
    "gradient of a convolution": gradient(lambda x: nn.relu(biased(x))),
    "gradient of pools": gradient(pool),
    "gradient of a normalization": gradient(lambda x: normalized(x, 4, training=True) ** 2),
    "bfloat16": lambda x: tf.cast(nn.relu(tf.cast(tf.reshape(x, [16, 32]), tf.bfloat16)
                                          @ tf.cast(weights(32, 8), tf.bfloat16)), tf.float32),
    "loop": lambda x: tf.while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, tf.sin(tf.cos(a))), [0, x])[1],
}


def in_session(pattern, target, x):
    """The value of a pattern on task 1, if there is a target."""
    with tf.Graph().as_default() as graph:
        feed = tf1.placeholder(tf.float32, SHAPE)
        with tf1.device("/job:worker/task:1" if target else None):
            y = pattern(feed)
        with tf1.device("/job:worker/task:0" if target else None):
            z = tf.identity(y)
    config = tf1.ConfigProto(operation_timeout_in_ms=TIMEOUT_MS)
    with tf1.Session(target, graph=graph, config=config) as session:
        return session.run(z, {feed: x})


def in_function(pattern, x):
    """The value of a pattern in a function over both tasks."""

    @tf.function
    def function(x):
        with tf.device("/job:worker/replica:0/task:1/device:CPU:0"):
            y = pattern(x)
        with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
            return tf.identity(y)

    return function(tf.constant(x)).numpy()


def difference(want, run):
    """What is wrong with a value, if anything."""
    try:
        got = run()
    except tf.errors.OpError as e:
        return f"{type(e).__name__}: {str(e)[:300]}"
    near = want.shape == got.shape and np.allclose(want, got, rtol=1e-3, atol=1e-4)
    return None if near else f"{want.ravel()[:4]} and {got.ravel()[:4]}"


def connect(cluster):
    """Makes this process the chief of the cluster."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        own = f"127.0.0.1:{s.getsockname()[1]}"
    spec = tf.train.ClusterSpec({"worker": cluster.addresses, "chief": [own]})
    tf.config.experimental_connect_to_cluster(spec, job_name="chief")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="the ferroflow binary")
    server = os.path.abspath(parser.parse_args().server)
    clusters = {kinds: Cluster(server, kinds) for kinds in ("sf", "fs", "ff")}
    wrong = 0
    x = np.linspace(0.1, 1, int(np.prod(SHAPE))).reshape(SHAPE).astype(np.float32)
    try:
        connect(clusters["ff"])
        for name, pattern in PATTERNS.items():
            want = in_session(pattern, "", x)
            trials = {kinds: lambda t=clusters[kinds].target(0): in_session(pattern, t, x) for kinds in ("sf", "fs")}
            trials["function"] = lambda: in_function(pattern, x)
            for trial, run in trials.items():
                text = difference(want, run)
                if text:
                    wrong += 1
                    print(f"{name} ({trial}): {text}", flush=True)
    finally:
        for cluster in clusters.values():
            cluster.stop()
    print(f"{len(PATTERNS)} patterns, {wrong} of {3 * len(PATTERNS)} runs failed")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
