"""The zoo's networks that are not in tf.keras.applications: BERT, a perceptron, LSTMs, a ResNet-18.

Keras writes batch normalization out as arithmetic; the ResNet-18 here has it as FusedBatchNormV3, as
graphs made by earlier TensorFlow do.
"""

import zlib

import numpy as np
import tensorflow as tf

SEQUENCE = 128


def randomize(model, rng):
    """Draws weights that preserve the magnitude of inputs; offsets and scales are random."""
    for variable in model.weights:
        name, shape = variable.path.split("/")[-1], tuple(variable.shape)
        if name == "embeddings":
            value = rng.normal(0, 0.5, shape)
        elif name == "gamma":
            value = rng.uniform(0.7, 1.3, shape)
        elif name in ("beta", "bias", "moving_mean"):
            value = rng.normal(0, 0.1, shape)
        elif name == "moving_variance":
            value = rng.uniform(0.7, 1.3, shape)
        elif len(shape) > 3 or "conv1d" in variable.path:
            depthwise = "depthwise" in variable.path
            value = rng.normal(0, (1.5 / np.prod(shape[:-2] if depthwise else shape[:-1])) ** 0.5, shape)
        else:
            fan_in = np.prod(shape[:2]) if "attention_output" in variable.path else shape[0]
            value = rng.normal(0, fan_in**-0.5, shape)
        variable.assign(value.astype(np.float32))


def bert_model(layers, hidden, heads, intermediate, vocabulary):
    """BERT's encoder with its pooler, after Devlin et al. 2018."""
    keras = tf.keras
    ids = keras.Input((SEQUENCE,), dtype="int32", name="input_ids")
    types = keras.Input((SEQUENCE,), dtype="int32", name="token_type_ids")
    mask = keras.Input((SEQUENCE,), dtype="int32", name="attention_mask")
    places = keras.layers.Embedding(SEQUENCE, hidden, name="position")
    x = keras.layers.Embedding(vocabulary, hidden, name="word")(ids)
    x = x + keras.layers.Embedding(2, hidden, name="type")(types)
    x = x + places(tf.range(SEQUENCE)[tf.newaxis])
    x = keras.layers.LayerNormalization(epsilon=1e-12, name="norm")(x)
    seen = keras.layers.Reshape((1, SEQUENCE))(mask)
    for i in range(layers):
        attention = keras.layers.MultiHeadAttention(heads, hidden // heads, name=f"attention_{i}")
        y = attention(x, x, attention_mask=seen)
        x = keras.layers.LayerNormalization(epsilon=1e-12, name=f"norm_a_{i}")(x + y)
        y = keras.layers.Dense(intermediate, activation="gelu", name=f"inner_{i}")(x)
        y = keras.layers.Dense(hidden, name=f"outer_{i}")(y)
        x = keras.layers.LayerNormalization(epsilon=1e-12, name=f"norm_b_{i}")(x + y)
    pooled = keras.layers.Dense(hidden, activation="tanh", name="pooler")(x[:, 0])
    return keras.Model([ids, types, mask], [x, pooled])


def bert(rng, vocabulary=30522, **sizes):
    model = bert_model(vocabulary=vocabulary, **sizes)
    randomize(model, rng)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    spec = [tf.TensorSpec((None, SEQUENCE), tf.int32, name=name) for name in names]

    def call(*xs):
        sequence, pooled = model(list(xs), training=False)
        return {"sequence_output": sequence, "pooled_output": pooled}

    def feeds(count):
        length = rng.integers(SEQUENCE // 2, SEQUENCE, (count, 1), endpoint=True)
        place = np.arange(SEQUENCE)
        ids = rng.integers(0, vocabulary, (count, SEQUENCE))
        mask = place < length
        return [(ids * mask).astype(np.int32), (place >= length // 2).astype(np.int32) * mask,
                mask.astype(np.int32)]

    return call, spec, feeds


def plain(model, rng, shape):
    """Returns a network of one float input and one output."""
    randomize(model, rng)
    spec = [tf.TensorSpec((None, *shape), tf.float32, name="x")]

    def feeds(count):
        return [rng.normal(0, 1, (count, *shape)).astype(np.float32)]

    return (lambda x: {"output": model(x, training=False)}), spec, feeds


def mlp(rng):
    layers = tf.keras.layers
    model = tf.keras.Sequential([
        tf.keras.Input((784,)),
        layers.Dense(512, activation="relu"),
        layers.Dense(512, activation="relu"),
        layers.Dense(10, activation="softmax"),
    ])
    return plain(model, rng, (784,))


def lstm(rng):
    layers = tf.keras.layers
    model = tf.keras.Sequential([
        tf.keras.Input((64, 128)),
        layers.LSTM(256, return_sequences=True),
        layers.LSTM(256),
        layers.Dense(16),
    ])
    return plain(model, rng, (64, 128))


class Resnet18:
    """He et al. 2015, in raw ops. The first call sets the statistics of the normalizations."""

    def __init__(self, rng):
        self.rng, self.weights, self.made = rng, {}, 0

    def weight(self, make):
        """Returns the next weight: drawn in the first call, the same in later ones."""
        key = self.made
        self.made += 1
        if key not in self.weights:
            self.weights[key] = np.asarray(make(), np.float32)
        return self.weights[key]

    def conv(self, x, depth, size, stride, relu=True):
        rng = self.rng
        shape = (size, size, x.shape[-1], depth)
        fan_in = np.prod(shape[:3])
        x = tf.nn.conv2d(x, self.weight(lambda: rng.normal(0, (2 / fan_in) ** 0.5, shape)), stride, "SAME")
        before = x
        mean = self.weight(lambda: before.numpy().mean((0, 1, 2)) + rng.normal(0, 0.02, depth))
        variance = self.weight(lambda: before.numpy().var((0, 1, 2)) * rng.uniform(0.9, 1.1, depth))
        scale = self.weight(lambda: rng.uniform(0.7, 1.3, depth))
        offset = self.weight(lambda: rng.normal(0, 0.1, depth))
        x = tf.raw_ops.FusedBatchNormV3(x=x, scale=scale, offset=offset, mean=mean, variance=variance,
                                        epsilon=1e-3, is_training=False).y
        return tf.nn.relu(x) if relu else x

    def block(self, x, depth, stride):
        y = self.conv(self.conv(x, depth, 3, stride), depth, 3, 1, relu=False)
        if stride > 1 or x.shape[-1] != depth:
            x = self.conv(x, depth, 1, stride, relu=False)
        return tf.nn.relu(x + y)

    def __call__(self, x):
        self.made = 0
        x = tf.nn.max_pool2d(self.conv(x, 64, 7, 2), 3, 2, "SAME")
        for depth, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
            x = self.block(x, depth, stride)
        x = tf.reduce_mean(x, [1, 2])
        kernel = self.weight(lambda: self.rng.normal(0, 0.08, (512, 1000)))
        bias = self.weight(lambda: self.rng.normal(0, 0.1, 1000))
        return {"probabilities": tf.nn.softmax(tf.nn.bias_add(tf.matmul(x, kernel), bias))}


def resnet18(rng):
    from zoo import images

    model, shape = Resnet18(rng), (224, 224, 3)
    model(tf.constant(images(rng, 8, shape, -1, 1)))
    spec = [tf.TensorSpec((None, *shape), tf.float32, name="x")]
    return model, spec, lambda count: [images(rng, count, shape, -1, 1)]


def build(name):
    """Returns (function of tensors to named tensors, input specs, generator of feeds)."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name == "bert_base":
        return bert(rng, layers=12, hidden=768, heads=12, intermediate=3072)
    if name == "bert_tiny":
        return bert(rng, layers=2, hidden=128, heads=2, intermediate=512, vocabulary=3000)
    if name == "mlp":
        return mlp(rng)
    if name == "resnet18_fused":
        return resnet18(rng)
    return lstm(rng)
