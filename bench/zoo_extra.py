"""The zoo's networks that are not in tf.keras.applications: BERT, a perceptron, an LSTM."""

import zlib

import numpy as np
import tensorflow as tf

SEQUENCE = 128


def randomize(model, rng):
    """Kernels keep the size of their input; offsets and scales are random."""
    for variable in model.weights:
        name, shape = variable.path.split("/")[-1], tuple(variable.shape)
        if name == "embeddings":
            value = rng.normal(0, 0.5, shape)
        elif name == "gamma":
            value = rng.uniform(0.7, 1.3, shape)
        elif name in ("beta", "bias"):
            value = rng.normal(0, 0.1, shape)
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
    """A network of one float input and one output."""
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


def build(name):
    """(function of tensors to named tensors, input specs, maker of feeds)"""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name == "bert_base":
        return bert(rng, layers=12, hidden=768, heads=12, intermediate=3072)
    if name == "bert_tiny":
        return bert(rng, layers=2, hidden=128, heads=2, intermediate=512, vocabulary=3000)
    if name == "mlp":
        return mlp(rng)
    return lstm(rng)
