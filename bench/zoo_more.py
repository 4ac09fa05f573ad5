"""The zoo's networks for other tasks: decoders with a cache, recurrent ones, detection, segmentation, speech, recommenders,
grouped and dilated convolutions, volumes, mixers."""

import zlib

import numpy as np
import tensorflow as tf

from zoo_extra import plain, randomize

keras = tf.keras
layers = keras.layers


def network(build, *shape):
    """A network of one float input: `build` maps its tensor to the output."""
    def make(rng):
        x = keras.Input(shape)
        return plain(keras.Model(x, build(x)), rng, shape)
    return make


def several(build, *inputs):
    """A network of several inputs, each (shape, number of ids, or None for floats)."""
    def make(rng):
        xs = [keras.Input(shape, dtype="int32" if ids else "float32") for shape, ids in inputs]
        model = keras.Model(xs, build(*xs))
        randomize(model, rng)
        spec = [tf.TensorSpec((None, *shape), tf.int32 if ids else tf.float32, name=f"x{i}")
                for i, (shape, ids) in enumerate(inputs)]

        def feeds(count):
            return [rng.integers(0, ids, (count, *shape)).astype(np.int32) if ids
                    else rng.normal(0, 1, (count, *shape)).astype(np.float32) for shape, ids in inputs]

        return (lambda *xs: {"output": model(list(xs), training=False)}), spec, feeds
    return make


def dense(*widths, last=None):
    return lambda x: keras.Sequential([*(layers.Dense(w, "relu") for w in widths), layers.Dense(last or 10)])(x)


def block(x, depth, size=3, stride=1, groups=1, dilation=1, act="relu"):
    x = layers.Conv2D(depth, size, stride, "same", groups=groups, dilation_rate=dilation, use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.Activation(act)(x) if act else x


def head(x, classes=100):
    return layers.Dense(classes, "softmax")(layers.GlobalAveragePooling2D()(x))


def bottlenecks(groups_of, width, stages):
    def build(x):
        x = layers.MaxPooling2D(3, 2, "same")(block(x, 64, 7, 2))
        for stage, count in enumerate(stages):
            inner, outer = width << stage, 256 << stage
            for i in range(count):
                stride = 2 if stage and not i else 1
                y = block(x, inner, 1)
                y = block(y, inner, 3, stride, groups_of(inner))
                y = block(y, outer, 1, act=None)
                if x.shape[-1] != outer or stride > 1:
                    x = block(x, outer, 1, stride, act=None)
                x = layers.Activation("relu")(x + y * 0.25)
        return head(x)
    return build


def shuffle(x, groups):
    _, h, w, c = x.shape
    x = layers.Reshape((h, w, groups, c // groups))(x)
    return layers.Reshape((h, w, c))(layers.Permute((1, 2, 4, 3))(x))


def shufflenet(x):
    x = layers.MaxPooling2D(3, 2, "same")(block(x, 24, 3, 2))
    for depth, count in ((240, 4), (480, 8), (960, 4)):
        for i in range(count):
            add = depth - x.shape[-1] if not i else depth
            y = block(x, depth // 4, 1, groups=1 if x.shape[-1] == 24 else 3)
            y = layers.DepthwiseConv2D(3, 2 if not i else 1, "same")(shuffle(y, 3) if depth // 4 % 3 == 0 else y)
            y = block(y, add, 1, groups=3, act=None)
            x = layers.Concatenate()([layers.AveragePooling2D(3, 2, "same")(x), y]) if not i else x + y
            x = layers.Activation("relu")(x)
    return head(x)


def squeezenet(x):
    x = layers.MaxPooling2D(3, 2)(layers.Conv2D(64, 3, 2, activation="relu")(x))
    for i, depth in enumerate((64, 64, 128, 128, 192, 192, 256, 256)):
        s = layers.Conv2D(depth // 4, 1, activation="relu")(x)
        x = layers.Concatenate()([layers.Conv2D(depth, k, padding="same", activation="relu")(s) for k in (1, 3)])
        x = layers.MaxPooling2D(3, 2)(x) if i in (1, 3) else x
    return head(x)


def unet(x):
    kept = []
    for depth in (16, 32, 64):
        x = block(block(x, depth), depth)
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(block(x, 128), 128)
    for depth in (64, 32, 16):
        x = layers.Conv2DTranspose(depth, 2, 2, activation="relu")(x)
        x = block(layers.Concatenate()([x, kept.pop()]), depth)
    return layers.Conv2D(4, 1)(x)


def deeplab(x):
    for depth, stride, dilation in ((32, 2, 1), (64, 2, 1), (128, 2, 1), (128, 1, 2), (128, 1, 4)):
        x = block(x, depth, 3, stride, dilation=dilation)
    pyramid = [block(x, 64, 1)] + [block(x, 64, 3, dilation=d) for d in (3, 6, 9)]
    x = block(layers.Concatenate()(pyramid), 64, 1)
    return layers.UpSampling2D(8, interpolation="bilinear")(layers.Conv2D(21, 1)(x))


def detector(x):
    maps = []
    for depth in (16, 32, 64, 128, 256):
        x = layers.DepthwiseConv2D(3, 2, "same")(x)
        x = block(block(x, depth, 1), depth, 3)
        maps.append(x)
    top, out = None, []
    for x in reversed(maps[2:]):
        x = block(x, 64, 1)
        top = x if top is None else x + layers.UpSampling2D()(top)
        y = layers.Conv2D(3 * 25, 3, padding="same")(block(top, 64))
        out.append(layers.Reshape((-1, 25))(y))
    return layers.Activation("sigmoid")(layers.Concatenate(axis=1)(out))


def upscaler(x):
    x = layers.Conv2D(64, 5, padding="same", activation="tanh")(x)
    x = layers.Conv2D(32, 3, padding="same", activation="tanh")(x)
    return layers.Lambda(lambda y: tf.nn.depth_to_space(y, 3))(layers.Conv2D(27, 3, padding="same")(x))


def keywords(x):
    x = block(x, 64, (10, 4), 2)
    for _ in range(4):
        x = layers.Activation("relu")(layers.DepthwiseConv2D(3, padding="same")(x))
        x = block(x, 64, 1)
    return head(x, 12)


def temporal(x):
    for i in range(6):
        y = layers.Conv1D(64, 3, padding="causal", dilation_rate=2**i, activation="relu")(x)
        y = layers.Conv1D(64, 1)(y)
        x = layers.Conv1D(64, 1)(x) + y if x.shape[-1] != 64 else x + y
    return layers.Dense(30)(x)


def wavenet(x):
    x, skip = layers.Conv1D(32, 1)(x), 0
    for i in range(8):
        gate = layers.Conv1D(32, 2, padding="causal", dilation_rate=2**i, activation="sigmoid")(x)
        y = layers.Conv1D(32, 2, padding="causal", dilation_rate=2**i, activation="tanh")(x) * gate
        skip = skip + layers.Conv1D(64, 1)(y)
        x = x + layers.Conv1D(32, 1)(y)
    return layers.Conv1D(256, 1)(layers.Activation("relu")(skip))


def attention(x, heads, memory=None, **how):
    memory = x if memory is None else memory
    y = layers.MultiHeadAttention(heads, x.shape[-1] // heads)(x, memory, **how)
    return layers.LayerNormalization()(x + y)


def feed_forward(x, by=4):
    y = layers.Dense(x.shape[-1])(layers.Dense(x.shape[-1] * by, "gelu")(x))
    return layers.LayerNormalization()(x + y)


def conformer(x):
    x = layers.Conv2D(32, 3, 2, "same", activation="relu")(layers.Reshape((*x.shape[1:], 1))(x))
    x = layers.Dense(144)(layers.Reshape((x.shape[1], -1))(x))
    for _ in range(4):
        x = attention(feed_forward(x), 4)
        y = layers.Dense(288)(x)
        y = y[..., :144] * layers.Activation("sigmoid")(y[..., 144:])
        y = layers.DepthwiseConv1D(15, padding="same")(y)
        x = feed_forward(x + layers.Dense(144)(layers.Activation("swish")(y)))
    return layers.Dense(100)(x)


def vision_transformer(x):
    x = layers.Reshape((-1, 192))(layers.Conv2D(192, 16, 16)(x))
    for _ in range(6):
        x = feed_forward(attention(x, 3))
    return layers.Dense(100)(layers.GlobalAveragePooling1D()(x))


def mixer(x):
    x = layers.Reshape((-1, 128))(layers.Conv2D(128, 16, 16)(x))
    for _ in range(6):
        y = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        y = layers.Dense(x.shape[1])(layers.Dense(256, "gelu")(y))
        x = feed_forward(x + layers.Permute((2, 1))(y))
    return layers.Dense(100)(layers.GlobalAveragePooling1D()(x))


def volume(x):
    for depth in (16, 32, 64):
        x = layers.MaxPooling3D()(layers.Conv3D(depth, 3, padding="same", activation="relu")(x))
    return layers.Dense(10)(layers.GlobalAveragePooling3D()(x))


def translator(source, target):
    x = layers.Embedding(2000, 128)(source)
    for _ in range(2):
        x = feed_forward(attention(x, 4))
    y = layers.Embedding(2000, 128)(target)
    for _ in range(2):
        y = feed_forward(attention(attention(y, 4, use_causal_mask=True), 4, x))
    return layers.Dense(2000)(y)


def crossed(ids, numbers):
    vectors = layers.Embedding(20000, 16)(ids)
    below = layers.Dense(16, "relu")(layers.Dense(64, "relu")(numbers))
    every = layers.Concatenate(axis=1)([vectors, layers.Reshape((1, 16))(below)])
    pairs = layers.Flatten()(layers.Dot(axes=2)([every, every]))
    return layers.Dense(1, "sigmoid")(dense(128, 64)(layers.Concatenate()([pairs, below])))


def wide_and_deep(ids, numbers):
    wide = layers.Flatten()(layers.Embedding(20000, 1)(ids))
    deep = layers.Concatenate()([layers.Flatten()(layers.Embedding(20000, 32)(ids)), numbers])
    return layers.Dense(1, "sigmoid")(layers.Concatenate()([wide, dense(256, 128, 64)(deep)]))


def two_towers(user, item):
    def tower(x, n):
        return dense(128, last=64)(layers.Flatten()(layers.Embedding(n, 64)(x)))
    return layers.Dot(axes=1)([tower(user, 5000), tower(item, 5000)])


def session_items(ids):
    x = layers.GRU(100)(layers.Embedding(5000, 64)(ids))
    return layers.Dense(5000)(x)


def decoder(rng, depth=4, width=256, heads=4, cache=512, vocabulary=4000):
    """One token of a GPT-like decoder, with the keys and values of `cache` tokens before it."""
    def weight(*shape):
        return tf.Variable(rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32))

    blocks = [[weight(width, 3 * width), weight(width, width), weight(width, 4 * width), weight(4 * width, width)]
              for _ in range(depth)]
    table, size = weight(vocabulary, width), width // heads

    def norm(x):
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-5)

    def call(token, keys, values):
        x = tf.gather(table, token)
        made = []
        for i, (qkv, out, up, down) in enumerate(blocks):
            q, k, v = (tf.reshape(y, (-1, heads, 1, size)) for y in tf.split(norm(x) @ qkv, 3, -1))
            made.append(k)
            k, v = tf.concat([keys[:, i], k], 2), tf.concat([values[:, i], v], 2)
            seen = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / size**0.5)
            x = x + tf.reshape(seen @ v, (-1, width)) @ out
            x = x + tf.nn.gelu(norm(x) @ up, approximate=True) @ down
        return {"logits": tf.matmul(norm(x), table, transpose_b=True), "keys": tf.stack(made, 1)}

    held = (depth, heads, cache, size)
    spec = [tf.TensorSpec((None,), tf.int32, name="token"), tf.TensorSpec((None, *held), tf.float32, name="keys"),
            tf.TensorSpec((None, *held), tf.float32, name="values")]

    def feeds(count):
        return [rng.integers(0, vocabulary, count).astype(np.int32),
                *(rng.normal(0, 1, (count, *held)).astype(np.float32) for _ in range(2))]

    return call, spec, feeds


def recurrent(layer):
    return lambda x: layers.Dense(16)(layer(128)(layer(128, return_sequences=True)(x)))


def both_ways(x):
    return layers.Dense(20)(layers.Bidirectional(layers.LSTM(96, return_sequences=True))(x))


def autoencoder(x):
    return dense(256, 64, 256, last=784)(x)


MODELS = {
    "autoencoder": network(autoencoder, 784),
    "bilstm_tagger": network(both_ways, 40, 64),
    "conformer": network(conformer, 120, 80),
    "deeplab": network(deeplab, 160, 160, 3),
    "detector": network(detector, 224, 224, 3),
    "dlrm": several(crossed, ((26,), 20000), ((13,), None)),
    "gpt_cache": decoder,
    "gpt_cache_wide": lambda rng: decoder(rng, 6, 512, 8),
    "gru": network(recurrent(layers.GRU), 64, 64),
    "gru4rec": several(session_items, ((20,), 5000)),
    "keywords": network(keywords, 49, 10, 1),
    "lstm_small": network(recurrent(layers.LSTM), 32, 32),
    "mixer": network(mixer, 160, 160, 3),
    "mlp_tiny": network(dense(32, 32), 16),
    "mlp_wide": network(dense(2048, 2048), 1024),
    "regnet": network(bottlenecks(lambda inner: inner // 16, 64, (1, 2, 4, 2)), 224, 224, 3),
    "resnext": network(bottlenecks(lambda inner: 32, 128, (2, 2, 2, 2)), 224, 224, 3),
    "shufflenet": network(shufflenet, 224, 224, 3),
    "squeezenet": network(squeezenet, 224, 224, 3),
    "temporal": network(temporal, 256, 40),
    "translator": several(translator, ((32,), 2000), ((32,), 2000)),
    "two_towers": several(two_towers, ((1,), 5000), ((1,), 5000)),
    "unet": network(unet, 128, 128, 3),
    "upscaler": network(upscaler, 120, 120, 3),
    "vision_transformer": network(vision_transformer, 160, 160, 3),
    "volume": network(volume, 16, 32, 32, 1),
    "wavenet": network(wavenet, 512, 1),
    "wide_and_deep": several(wide_and_deep, ((16,), 20000), ((8,), None)),
}


def build(name):
    """Returns (function of tensors to named tensors, input specs, generator of feeds)."""
    return MODELS[name](np.random.default_rng(zlib.crc32(name.encode())))
