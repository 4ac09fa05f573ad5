"""Training steps per second of twelve more networks, with the optimizers that their authors use.

Usage: python bench/train_more.py [--ferroflow PATH] [--seconds 2] [--only resnet] [--keep DIR]

Residual and inverted residual blocks with batch normalization, a U-Net, an autoencoder, a GRU and a decoder over tokens,
word2vec, a recommender, dilated convolutions with dropout, a generator with its discriminator, a perceptron with layer
normalization, a linear regression. TensorFlow's Session and Ferroflow, alternating; the best median counts.
"""

import common
from train import measured, saved


class Layers:
    """Makes variables and the layers that read them."""

    def __init__(self, tf):
        self.tf, self.made = tf, 0

    def variable(self, value):
        self.made += 1
        return self.tf.compat.v1.get_variable(f"w{self.made}", initializer=value, use_resource=True)

    def weights(self, *shape, scale=None):
        """Random numbers, as large as He's; zeros for vectors."""
        fan = 1
        for size in shape[:-1]:
            fan *= size
        scale = scale or ((2 / fan) ** 0.5 if len(shape) > 1 else 0.0)
        numbers = self.tf.random.stateless_uniform(shape, [self.made, 5], -1.0, 1.0)
        return self.variable(numbers * (scale * 3**0.5))

    def ones(self, n):
        return self.variable(self.tf.ones([n]))

    def dense(self, x, n):
        return self.tf.nn.bias_add(self.tf.matmul(x, self.weights(x.shape[-1], n)), self.weights(n))

    def conv(self, x, n, size=3, stride=1, bias=True):
        y = self.tf.nn.conv2d(x, self.weights(size, size, x.shape[-1], n), stride, "SAME")
        return self.tf.nn.bias_add(y, self.weights(n)) if bias else y

    def normalized_conv(self, x, n, size=3, stride=1):
        return self.batch_norm(self.conv(x, n, size, stride, bias=False))

    def depthwise(self, x, stride):
        filters = self.weights(3, 3, x.shape[-1], 1, scale=0.5)
        return self.tf.nn.depthwise_conv2d(x, filters, [1, stride, stride, 1], "SAME")

    def batch_norm(self, x):
        channels = x.shape[-1]
        args = (self.ones(channels), self.weights(channels))
        return self.tf.compat.v1.nn.fused_batch_norm(x, *args, is_training=True)[0]

    def layer_norm(self, x):
        mean, variance = self.tf.nn.moments(x, [-1], keepdims=True)
        scaled = (x - mean) * self.tf.math.rsqrt(variance + 1e-6) * self.ones(x.shape[-1])
        return scaled + self.weights(x.shape[-1])

    def embedding(self, ids, count, width, scale=0.05):
        return self.tf.nn.embedding_lookup(self.weights(count, width, scale=scale), ids)

    def loss(self, logits, labels):
        losses = self.tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return self.tf.reduce_mean(losses)


def resnet(tf, layers, x, y):
    h = tf.nn.relu(layers.normalized_conv(x, 16))
    for channels, first_stride in ((16, 1), (32, 2), (64, 2)):
        for stride in (first_stride, 1):
            is_same = stride == 1 and h.shape[-1] == channels
            beside = h if is_same else layers.normalized_conv(h, channels, 1, stride)
            inner = tf.nn.relu(layers.normalized_conv(h, channels, 3, stride))
            h = tf.nn.relu(layers.normalized_conv(inner, channels) + beside)
    return layers.loss(layers.dense(tf.reduce_mean(h, [1, 2]), 10), y)


def mobilenet(tf, layers, x, y):
    h = tf.nn.relu6(layers.normalized_conv(x, 16, 3, 2))
    for channels, stride in ((24, 2), (24, 1), (40, 2), (40, 1), (80, 1)):
        inner = tf.nn.relu6(layers.normalized_conv(h, h.shape[-1] * 4, 1))
        inner = tf.nn.relu6(layers.batch_norm(layers.depthwise(inner, stride)))
        inner = layers.normalized_conv(inner, channels, 1)
        h = inner + h if stride == 1 and h.shape[-1] == channels else inner
    return layers.loss(layers.dense(tf.reduce_mean(h, [1, 2]), 10), y)


def unet(tf, layers, x, y):
    h, beside = x, []
    for channels in (16, 32):
        h = tf.nn.relu(layers.conv(tf.nn.relu(layers.conv(h, channels)), channels))
        beside.append(h)
        h = tf.nn.max_pool2d(h, 2, 2, "SAME")
    h = tf.nn.relu(layers.conv(h, 64))
    for channels, skip in zip((32, 16), reversed(beside)):
        size = [tf.shape(skip)[0], *skip.shape[1:3], channels]
        h = tf.nn.conv2d_transpose(h, layers.weights(2, 2, channels, h.shape[-1], scale=0.1), size, 2)
        h = tf.nn.relu(layers.conv(tf.concat([h, skip], 3), channels))
    return layers.loss(layers.conv(h, 4, 1), y)


def autoencoder(tf, layers, x):
    h = tf.nn.relu(layers.dense(x, 400))
    mean, log_variance = layers.dense(h, 20), layers.dense(h, 20)
    code = mean + tf.exp(0.5 * log_variance) * tf.random.normal(tf.shape(mean), seed=3)
    again = layers.dense(tf.nn.relu(layers.dense(code, 400)), 784)
    error = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=x, logits=again), 1)
    return tf.reduce_mean(error - 0.5 * tf.reduce_sum(1 + log_variance - mean * mean - tf.exp(log_variance), 1))


def gru(tf, layers, x, y):
    units, steps, width = 128, x.shape[1], 64
    words = tf.transpose(layers.embedding(x, 5000, width), [1, 0, 2])
    inputs = tf.TensorArray(tf.float32, steps, element_shape=[None, width]).unstack(words)
    gates = layers.weights(width + units, 2 * units), layers.weights(2 * units)
    new = layers.weights(width + units, units), layers.weights(units)

    def layer(parts, of):
        return tf.nn.bias_add(tf.matmul(tf.concat(parts, 1), of[0]), of[1])

    def step(i, h):
        word = inputs.read(i)
        reset, update = tf.split(tf.sigmoid(layer([word, h], gates)), 2, 1)
        candidate = tf.tanh(layer([word, reset * h], new))
        return i + 1, tf.ensure_shape(update * h + (1 - update) * candidate, [None, units])

    start = [tf.constant(0), tf.ensure_shape(tf.zeros([tf.shape(x)[0], units]), [None, units])]
    _, h = tf.while_loop(lambda i, h: i < steps, step, start)
    return layers.loss(layers.dense(h, 2), y)


def decoder(tf, layers, x):
    width, heads, words, n = 128, 4, 1000, x.shape[1] - 1
    embedding = layers.weights(words, width, scale=0.05)
    h = tf.gather(embedding, x[:, :-1]) + layers.weights(n, width, scale=0.05)
    mask = tf.linalg.band_part(tf.ones([n, n]), -1, 0)

    def rows(x):
        return tf.reshape(x, [-1, width])

    for _ in range(2):
        parts = tf.reshape(layers.dense(rows(layers.layer_norm(h)), 3 * width), [-1, n, 3, heads, width // heads])
        q, k, v = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]), num=3)
        scores = tf.matmul(q, k, transpose_b=True) * (width // heads) ** -0.5
        shares = tf.nn.softmax(tf.where(mask > 0, scores, tf.fill(tf.shape(scores), -1e9)))
        y = layers.dense(rows(tf.transpose(tf.matmul(shares, v), [0, 2, 1, 3])), width)
        h = h + tf.reshape(y, [-1, n, width])
        inner = tf.nn.gelu(layers.dense(rows(layers.layer_norm(h)), 4 * width), approximate=True)
        h = h + tf.reshape(layers.dense(inner, width), [-1, n, width])
    logits = tf.matmul(rows(layers.layer_norm(h)), embedding, transpose_b=True)
    return layers.loss(logits, tf.reshape(x[:, 1:], [-1]))


def word2vec(tf, layers, x, y):
    words = 20000
    embedded = layers.embedding(x, words, 128, scale=0.5)
    table = layers.weights(words, 128, scale=0.05)
    return tf.reduce_mean(tf.nn.nce_loss(table, layers.weights(words), y, embedded, 64, words))


def recommender(tf, layers, x, d, y):
    parts = [layers.embedding(x[:, i], 1000, 16) for i in range(26)]
    h = tf.nn.relu(layers.dense(d, 16))
    parts = tf.stack([*parts, h], 1)
    h = tf.concat([h, tf.reshape(tf.matmul(parts, parts, transpose_b=True), [-1, 27 * 27])], 1)
    for width in (128, 64):
        h = tf.nn.relu(layers.dense(h, width))
    logits = tf.squeeze(layers.dense(h, 1), 1)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits))


def dilated(tf, layers, x, y):
    h = x
    for dilation in (1, 2, 4, 8):
        h = tf.pad(h, [[0, 0], [2 * dilation, 0], [0, 0]])
        h = tf.nn.conv1d(h, layers.weights(3, h.shape[-1], 32), 1, "VALID", dilations=dilation)
        h = tf.nn.dropout(tf.nn.relu(tf.nn.bias_add(h, layers.weights(32))), rate=0.1, seed=4)
    return layers.loss(layers.dense(tf.reduce_max(h, 1), 5), y)


def generator(tf, layers, x, y):
    n = tf.shape(x)[0]
    h = tf.reshape(tf.nn.relu(layers.dense(x, 7 * 7 * 32)), [-1, 7, 7, 32])
    h = tf.nn.conv2d_transpose(h, layers.weights(4, 4, 16, 32, scale=0.05), [n, 14, 14, 16], 2)
    h = tf.nn.relu(layers.batch_norm(h))
    fake = tf.tanh(tf.nn.conv2d_transpose(h, layers.weights(4, 4, 1, 16, scale=0.05), [n, 28, 28, 1], 2))
    filters, last = [layers.weights(4, 4, 1, 16), layers.weights(4, 4, 16, 32)], layers.weights(7 * 7 * 32, 1)

    def judged(h):
        for of in filters:
            h = tf.nn.leaky_relu(tf.nn.conv2d(h, of, 2, "SAME"))
        return tf.matmul(tf.reshape(h, [-1, 7 * 7 * 32]), last)

    return tf.reduce_mean(tf.nn.softplus(-judged(y)) + tf.nn.softplus(judged(fake)))


def normalized_perceptron(tf, layers, x, y):
    h = x
    for _ in range(4):
        h = tf.nn.elu(layers.layer_norm(layers.dense(h, 128)))
    return tf.reduce_mean(tf.square(layers.dense(h, 1) - y))


def regression(tf, layers, x, y):
    return tf.reduce_mean(tf.square(layers.dense(x, 1) - y))


# The network, its optimizer, and its inputs: shape with the batch, and the number of integers or None for floats.
NETWORKS = {
    "resnet": (resnet, "momentum", {"x": ([32, 32, 32, 3], None), "y": ([32], 10)}),
    "mobilenet": (mobilenet, "rmsprop", {"x": ([16, 64, 64, 3], None), "y": ([16], 10)}),
    "unet": (unet, "adam", {"x": ([8, 64, 64, 1], None), "y": ([8, 64, 64], 4)}),
    "autoencoder": (autoencoder, "adam", {"x": ([128, 784], None)}),
    "gru": (gru, "adam", {"x": ([32, 40], 5000), "y": ([32], 2)}),
    "decoder": (decoder, "adam", {"x": ([8, 65], 1000)}),
    "word2vec": (word2vec, "descent", {"x": ([128], 20000), "y": ([128, 1], 20000)}),
    "recommender": (recommender, "adagrad", {"x": ([128, 26], 1000), "d": ([128, 13], None), "y": ([128], None)}),
    "dilated": (dilated, "adam", {"x": ([32, 256, 16], None), "y": ([32], 5)}),
    "generator": (generator, "adam", {"x": ([32, 32], None), "y": ([32, 28, 28, 1], None)}),
    "normalized": (normalized_perceptron, "adam", {"x": ([256, 64], None), "y": ([256, 1], None)}),
    "regression": (regression, "descent", {"x": ([32, 10], None), "y": ([32, 1], None)}),
}


def optimizer(tf, name):
    train = tf.compat.v1.train
    return {
        "adagrad": lambda: train.AdagradOptimizer(0.02),
        "adam": lambda: train.AdamOptimizer(1e-3),
        "descent": lambda: train.GradientDescentOptimizer(0.05),
        "momentum": lambda: train.MomentumOptimizer(0.01, 0.9),
        "rmsprop": lambda: train.RMSPropOptimizer(1e-3),
    }[name]()


def graph_of(tf, name):
    network, rule, inputs = NETWORKS[name]
    tf.compat.v1.enable_control_flow_v2()
    with tf.Graph().as_default() as graph:
        fed = {key: tf.compat.v1.placeholder(tf.float32 if count is None else tf.int32, [None, *shape[1:]], name=key)
               for key, (shape, count) in inputs.items()}
        loss = network(tf, Layers(tf), **fed)
        tf.group(optimizer(tf, rule).minimize(loss), name="train")
        tf.identity(loss, name="loss")
        tf.group(tf.compat.v1.global_variables_initializer(), name="init")
    return graph.as_graph_def().SerializeToString()


def feeds_of(np, name):
    random = np.random.default_rng(0)
    return {f"{key}:0": random.random(shape, "float32") if count is None
            else random.integers(0, count, shape).astype("int32")
            for key, (shape, count) in NETWORKS[name][2].items()}


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--only", choices=NETWORKS, action="append")
    parser.add_argument("--keep", type=common.Path, help="leave the graphs and feeds there, run nothing")
    options = parser.parse_args()
    import numpy as np
    import tensorflow as tf

    rows = []
    for name in options.only or NETWORKS:
        graph, feeds = graph_of(tf, name), feeds_of(np, name)
        if options.keep:
            saved(options.keep, name, graph, feeds)
        else:
            rows += measured(options, name, graph, feeds)
    if rows:
        print(f"{common.heading()}; steps a second\n")
        print(common.table(["network", "threads", "TensorFlow", "Ferroflow", "ratio"], rows))


if __name__ == "__main__":
    main()
