"""Keras layers of every family."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

from real.kit import integers, model, normal, uniform

L = keras.layers


def functional(inputs, outputs):
    """Returns a program that calls a Keras model with its inputs by name."""
    net = keras.Model(inputs, outputs)
    for weight in net.weights:
        if any(part in weight.path for part in ("moving", "gamma", "beta", "bias")):
            weight.assign(weight + 0.1 * uniform(*weight.shape))

    def program(**feeds):
        return net([feeds[x.name] for x in inputs] if len(inputs) > 1 else feeds[inputs[0].name], training=False)

    # The variables themselves: the graph of a SavedModel restores copies of what Keras wraps.
    tables = [layer.lookup_table for layer in net.layers if hasattr(layer, "lookup_table")]
    program.variables = [weight.value for weight in net.variables] + tables
    return program


@model
def dense_activations():
    x = keras.Input([7], name="x")
    ys = [L.Dense(5, activation=a)(x) for a in (
        "relu", "elu", "selu", "gelu", "softplus", "softsign", "tanh", "sigmoid", "hard_sigmoid", "swish", "mish",
        "relu6", "leaky_relu", "exponential", "softmax", "log_softmax", "celu", "hard_silu")]
    ys += [L.PReLU()(x), L.ELU(0.7)(x)]
    return functional([x], ys), [{"x": normal(n, 7)} for n in (1, 4, 0)]


@model
def convolutions_2d():
    x = keras.Input([17, 13, 6], name="x")
    y = L.Conv2D(8, 3, strides=2, padding="same", activation="relu")(x)
    z = L.Conv2D(12, 3, dilation_rate=2, padding="valid", groups=3)(x)
    w = L.DepthwiseConv2D((3, 2), depth_multiplier=2, padding="same")(x)
    s = L.SeparableConv2D(5, 3, strides=(2, 2), padding="same")(x)
    t = L.Conv2DTranspose(4, 3, strides=2, padding="same", output_padding=1)(y)
    return functional([x], [y, z, w, s, t]), [{"x": normal(n, 17, 13, 6)} for n in (1, 3)]


@model
def convolutions_1d_3d():
    a = keras.Input([21, 4], name="a")
    b = keras.Input([5, 6, 7, 2], name="b")
    ys = [L.Conv1D(6, 5, padding="causal", dilation_rate=2)(a), L.Conv1DTranspose(3, 4, strides=3)(a),
          L.SeparableConv1D(6, 3)(a), L.DepthwiseConv1D(3, depth_multiplier=2)(a),
          L.Conv3D(4, 3, padding="same", strides=2)(b), L.Conv3DTranspose(3, 2, strides=2)(b)]
    return functional([a, b], ys), [{"a": normal(n, 21, 4), "b": normal(n, 5, 6, 7, 2)} for n in (2, 5)]


@model
def pooling():
    a = keras.Input([20, 3], name="a")
    b = keras.Input([11, 9, 5], name="b")
    c = keras.Input([6, 7, 8, 2], name="c")
    ys = []
    for x, pool in ((a, "1D"), (b, "2D"), (c, "3D")):
        for kind in ("Max", "Average"):
            ys.append(getattr(L, f"{kind}Pooling{pool}")(3, strides=2, padding="same")(x))
            ys.append(getattr(L, f"{kind}Pooling{pool}")(2)(x))
            ys.append(getattr(L, f"Global{kind}Pooling{pool}")(keepdims=True)(x))
    ys += [L.AdaptiveAveragePooling2D((3, 2))(b)] if hasattr(L, "AdaptiveAveragePooling2D") else []
    return functional([a, b, c], ys), [
        {"a": normal(n, 20, 3), "b": normal(n, 11, 9, 5), "c": normal(n, 6, 7, 8, 2)} for n in (1, 2)]


@model
def normalization():
    x = keras.Input([6, 5, 8], name="x")
    ys = [L.BatchNormalization()(x), L.LayerNormalization(axis=[1, 3])(x), L.GroupNormalization(4)(x),
          L.UnitNormalization(axis=2)(x), L.BatchNormalization(axis=1, scale=False)(x),
          L.LayerNormalization(rms_scaling=False, epsilon=1e-2)(x), L.RMSNormalization()(x)]
    return functional([x], ys), [{"x": normal(n, 6, 5, 8)} for n in (1, 3)]


@model
def reshaping():
    x = keras.Input([6, 4, 3], name="x")
    ys = [L.Flatten()(x), L.Reshape((-1, 6))(x), L.Permute((3, 1, 2))(x), L.RepeatVector(3)(L.Flatten()(x)),
          L.Cropping2D(((1, 2), (0, 1)))(x), L.ZeroPadding2D(((1, 0), (2, 3)))(x),
          L.UpSampling2D((2, 3), interpolation="nearest")(x), L.UpSampling2D(2, interpolation="bilinear")(x),
          L.UpSampling2D(2, interpolation="bicubic")(x), L.Lambda(lambda v: v[..., ::-1])(x)]
    return functional([x], ys), [{"x": normal(n, 6, 4, 3)} for n in (2, 1)]


@model
def merging():
    a, b = keras.Input([4, 6], name="a"), keras.Input([4, 6], name="b")
    ys = [L.Add()([a, b]), L.Subtract()([a, b]), L.Multiply()([a, b]), L.Average()([a, b]), L.Maximum()([a, b]),
          L.Minimum()([a, b]), L.Concatenate(axis=1)([a, b]), L.Dot(axes=(2, 2), normalize=True)([a, b]),
          L.Dot(axes=1)([a, b])]
    return functional([a, b], ys), [{"a": normal(n, 4, 6), "b": normal(n, 4, 6, seed=1)} for n in (3, 1)]


@model
def attention():
    q, v = keras.Input([5, 8], name="q"), keras.Input([9, 8], name="v")
    m = keras.Input([9], dtype="bool", name="m")
    ys = [L.MultiHeadAttention(2, 4)(q, v, attention_mask=m[:, None, :]),
          L.MultiHeadAttention(3, 5, value_dim=2, output_shape=7)(q, q, use_causal_mask=True),
          L.Attention(use_scale=True)([q, v], mask=[None, m]), L.AdditiveAttention()([q, v]),
          L.GroupQueryAttention(4, 4, 2)(q, v)]
    feeds = [{"q": normal(n, 5, 8), "v": normal(n, 9, 8), "m": integers(0, 2, n, 9).astype(bool)} for n in (2, 4)]
    feeds[0]["m"][0] = True
    return functional([q, v, m], ys), feeds


@model
def embeddings_and_masks():
    x = keras.Input([None], dtype="int32", name="x")
    y = L.Embedding(11, 6, mask_zero=True)(x)
    z = L.GlobalAveragePooling1D()(y)
    w = L.Masking(0.0)(y)
    return functional([x], [y, z, w, L.Dropout(0.5)(y), L.SpatialDropout1D(0.2)(y)]), [
        {"x": integers(0, 11, 3, 5)}, {"x": integers(0, 11, 1, 9)}, {"x": integers(0, 11, 2, 1)}]


@model
def preprocessing_numbers():
    x = keras.Input([4], name="x")
    norm = L.Normalization()
    norm.adapt(normal(50, 4) * 3 + 1)
    back = L.Normalization(mean=[1.0, 2, 3, 4], variance=[4.0, 1, 9, 16], invert=True)
    bins = L.Discretization(bin_boundaries=[-1.0, 0.0, 0.5])
    ys = [norm(x), back(x), bins(x), L.Discretization([0.0, 1.0], output_mode="multi_hot")(x),
          L.Rescaling(1 / 127.5, offset=-1)(x)]
    return functional([x], ys), [{"x": normal(n, 4)} for n in (1, 6)]


@model
def category_encoding():
    x = keras.Input([3], dtype="int64", name="x")
    one = keras.Input([1], dtype="int64", name="one")
    ys = [L.CategoryEncoding(7, output_mode="multi_hot")(x), L.CategoryEncoding(7, output_mode="count")(x),
          L.CategoryEncoding(7, output_mode="one_hot")(one), L.IntegerLookup(vocabulary=[2, 4, 5])(x),
          L.IntegerLookup(vocabulary=[2, 4], num_oov_indices=3, output_mode="count")(x)]
    return functional([x, one], ys), [
        {"x": integers(0, 7, n, 3, dtype="int64"), "one": integers(0, 7, n, 1, dtype="int64")} for n in (1, 5)]


@model
def image_preprocessing():
    x = keras.Input([10, 12, 3], name="x")
    ys = [L.Resizing(7, 5)(x), L.Resizing(14, 9, interpolation="bicubic")(x), L.CenterCrop(4, 6)(x),
          L.Resizing(6, 6, interpolation="nearest", crop_to_aspect_ratio=True)(x),
          L.Resizing(8, 8, pad_to_aspect_ratio=True)(x), L.RandomFlip()(x)]
    return functional([x], ys), [{"x": uniform(n, 10, 12, 3) * 255} for n in (2, 1)]


@model
def half_precision_blocks():
    x = keras.Input([6, 6, 4], name="x", dtype="float16")
    y = L.Conv2D(8, 3, padding="same", dtype="float16", activation="relu")(x)
    y = L.LayerNormalization(dtype="float16")(y)
    b = L.Dense(5, dtype="bfloat16")(x)
    d = L.Dense(5, dtype="float64")(x)
    return functional([x], [y, b, d]), [{"x": normal(n, 6, 6, 4, dtype="float16")} for n in (1, 3)]


@model
def residual_network():
    x = keras.Input([32, 32, 3], name="x")
    y = L.Conv2D(8, 3, padding="same", use_bias=False)(x)
    for filters, stride in ((8, 1), (16, 2)):
        z = L.BatchNormalization()(y)
        z = L.ReLU()(z)
        shortcut = L.Conv2D(filters, 1, strides=stride)(z)
        z = L.Conv2D(filters, 3, strides=stride, padding="same")(z)
        z = L.ReLU()(L.BatchNormalization()(z))
        # Squeeze and excitation.
        s = L.GlobalAveragePooling2D(keepdims=True)(z)
        s = L.Conv2D(4, 1, activation="swish")(s)
        s = L.Conv2D(filters, 1, activation="sigmoid")(s)
        y = L.Add()([shortcut, L.Multiply()([z, s])])
    return functional([x], [L.Dense(10, activation="softmax")(L.GlobalMaxPooling2D()(y))]), [
        {"x": normal(n, 32, 32, 3)} for n in (1, 2)]


@model
def vision_transformer():
    x = keras.Input([16, 16, 3], name="x")
    y = L.Conv2D(12, 4, strides=4)(x)
    y = L.Reshape((16, 12))(y)
    y = y + L.Embedding(16, 12)(np.arange(16)[None])
    for _ in range(2):
        z = L.LayerNormalization()(y)
        y = y + L.MultiHeadAttention(3, 4)(z, z)
        z = L.Dense(24, activation="gelu")(L.LayerNormalization()(y))
        y = y + L.Dense(12)(z)
    return functional([x], [L.Dense(4)(L.GlobalAveragePooling1D()(y))]), [{"x": normal(n, 16, 16, 3)} for n in (2, 1)]


@model
def einsum_dense_and_spectral():
    x = keras.Input([6, 8], name="x")
    ys = [L.EinsumDense("abc,cd->abd", output_shape=(None, 5), bias_axes="d")(x),
          L.EinsumDense("abc,bcd->abd", output_shape=(6, 3))(x),
          L.SpectralNormalization(L.Dense(4))(x), L.TimeDistributed(L.Dense(3, activation="tanh"))(x)]
    return functional([x], ys), [{"x": normal(n, 6, 8)} for n in (2, 3)]


@model
def losses_and_metrics():
    k = keras.losses
    each = lambda name, *pair, **more: getattr(k, name)(reduction=None, **more)(*pair)

    def program(labels, logits, target, guess):
        probs = tf.nn.softmax(logits)
        hot = tf.one_hot(labels, 5)
        return [each("SparseCategoricalCrossentropy", labels, logits, from_logits=True), each("CategoricalCrossentropy", hot, probs),
                each("KLDivergence", hot, probs), each("BinaryCrossentropy", target, tf.sigmoid(guess)), each("MeanSquaredError", target, guess),
                each("MeanAbsoluteError", target, guess), each("Huber", target, guess), each("LogCosh", target, guess), each("Hinge", target, guess),
                each("CosineSimilarity", target, guess), each("Poisson", target, tf.exp(guess)), each("BinaryFocalCrossentropy", target, tf.sigmoid(guess)),
                each("MeanAbsolutePercentageError", target, guess), each("CategoricalHinge", hot, probs),
                tf.math.in_top_k(labels, logits, 2), tf.math.confusion_matrix(labels, tf.argmax(logits, -1), 5),
                tf.nn.weighted_cross_entropy_with_logits(target, guess, 2.0), tf.nn.log_poisson_loss(target, guess, True)]

    return program, [{"labels": integers(0, 5, n), "logits": normal(n, 5), "target": uniform(n, 3), "guess": normal(n, 3)}
                     for n in (6, 1)]
