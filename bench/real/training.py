"""Training steps: gradients, optimizers, second derivatives."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

from real.kit import integers, model, normal, uniform

L = keras.layers


def trainer(net, optimizer, loss_of, steps=3):
    """Returns a program that trains for some steps and returns the losses and variables."""
    optimizer.build(net.trainable_variables)
    values = [v.value for v in net.trainable_variables]

    def program(x, y):
        losses = []
        for _ in range(steps):
            with tf.GradientTape() as tape:
                loss = loss_of(y, net(x, training=True))
            optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
            losses.append(loss)
        return losses, [tf.identity(v) for v in values]

    program.variables = [v.value for v in [*net.variables, *optimizer.variables]]
    return program


@model
def classifier_with_adam():
    net = keras.Sequential([keras.Input([6]), L.Dense(8, use_bias=False), L.BatchNormalization(), L.ReLU(), L.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return trainer(net, keras.optimizers.Adam(0.05), loss), [{"x": normal(n, 6), "y": integers(0, 3, n)} for n in (8, 2)]


@model
def convolutional_with_momentum():
    net = keras.Sequential([keras.Input([9, 9, 2]), L.Conv2D(4, 3, activation="relu"), L.MaxPooling2D(), L.DepthwiseConv2D(2), L.Flatten(), L.Dense(2)])
    return trainer(net, keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=1.0), keras.losses.MeanSquaredError()), [{"x": normal(n, 9, 9, 2), "y": normal(n, 2)} for n in (3, 1)]


@model
def recurrent_with_rmsprop():
    net = keras.Sequential([keras.Input([5, 3]), L.LSTM(4, return_sequences=True), L.GRU(3), L.Dense(1)])
    return trainer(net, keras.optimizers.RMSprop(0.01, centered=True), keras.losses.Huber(), 2), [{"x": normal(n, 5, 3), "y": normal(n, 1)} for n in (4, 1)]


@model
def transformer_with_adamw():
    x = keras.Input([6], dtype="int32")
    h = L.Embedding(11, 8)(x)
    h = h + L.MultiHeadAttention(2, 4, use_bias=False)(h, h, use_causal_mask=True)
    h = L.LayerNormalization()(h)
    net = keras.Model(x, L.Dense(11)(L.Dense(8, activation="gelu")(h)))
    return trainer(net, keras.optimizers.AdamW(0.02, weight_decay=0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True), 2), [{"x": integers(0, 11, n, 6), "y": integers(0, 11, n, 6)} for n in (3, 1)]


def each_optimizer(make, name):
    def build():
        net = keras.Sequential([keras.Input([4]), L.Dense(5, activation="tanh"), L.Dense(1)])
        return trainer(net, make(), keras.losses.MeanAbsoluteError()), [{"x": normal(n, 4), "y": normal(n, 1)} for n in (6, 1)]

    build.__name__ = f"optimizer_{name.lower()}"
    build.__module__ = __name__
    return model(build)


for _name in ("Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lion", "Adafactor"):
    each_optimizer(lambda name=_name: getattr(keras.optimizers, name)(0.05), _name)


@model
def second_derivatives():
    w = tf.Variable(normal(4, 3))

    def program(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(tf.nn.softplus(x @ w) ** 2)
            g = inner.gradient(y, x)
            penalty = tf.reduce_sum(tf.square(g))
        h = outer.gradient(penalty, [x, w])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            z = tf.sin(x) @ w
        return g, h, tape.batch_jacobian(z, x), tape.jacobian(z, w)

    return program, [{"x": normal(n, 4)} for n in (3, 1)], [w]


@model
def gradients_of_everything():
    def program(x, p):
        fs = [lambda a: tf.image.resize(a, (7, 5)), lambda a: tf.nn.max_pool2d(a, 2, 2, "SAME"), lambda a: tf.nn.lrn(a), lambda a: tf.signal.rfft(a[..., 0]), lambda a: tf.linalg.matmul(a[0, ..., 0], a[0, ..., 1], transpose_b=True), lambda a: tf.math.cumprod(a, 1),
              lambda a: tf.math.top_k(a, 1)[0], lambda a: tf.reverse(a, [1]), lambda a: tf.sort(a, 2), lambda a: tf.pad(a, [[0, 0], [1, 1], [0, 2], [0, 0]], "SYMMETRIC"), lambda a: tf.math.lgamma(tf.abs(a) + 1), lambda a: tf.math.igamma(p, tf.abs(a)),
              lambda a: tf.linalg.cholesky(tf.matmul(a[0, ..., 0], a[0, ..., 0], transpose_b=True) + 5 * tf.eye(4)), lambda a: tf.linalg.svd(a[0, ..., 0], compute_uv=False), lambda a: tf.reduce_logsumexp(a, 1), lambda a: tf.nn.elu(a),
              lambda a: tf.clip_by_value(a, -0.5, 0.5), lambda a: tf.gather(a, [2, 0, 2], axis=1), lambda a: tf.einsum("bhwc,bhwd->bcd", a, a), lambda a: tf.image.crop_and_resize(a, [[0.1, 0.1, 0.8, 0.7]], [0], (3, 3)), lambda a: tf.linalg.inv(a[0, ..., 0] + 4 * tf.eye(4)),
              lambda a: tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(a), a * 2), lambda a: tf.math.segment_max(a[0, ..., 0], [0, 0, 1, 1]), lambda a: tf.nn.conv2d_transpose(a, tf.ones([2, 2, 3, 2]), [1, 8, 8, 3], 2)]
        outs = []
        for f in fs:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.math.real(f(x)) if f(x).dtype.is_complex else f(x)
                y = tf.reduce_sum(y * tf.cos(tf.reshape(tf.cast(tf.range(tf.size(y)), tf.float32), tf.shape(y))))
            outs.append(tape.gradient(y, x))
        return outs

    return program, [{"x": normal(1, 4, 4, 2), "p": np.float32(1.3)}, {"x": normal(1, 4, 4, 2, seed=8), "p": np.float32(0.4)}]


@model
def adversarial_pair():
    g, d = tf.Variable(normal(3, 4) * 0.5), tf.Variable(normal(4, 1) * 0.5)

    def program(real, noise):
        for _ in tf.range(3):
            with tf.GradientTape(persistent=True) as tape:
                fake = tf.tanh(noise @ g)
                d_loss = tf.reduce_mean(tf.nn.softplus(fake @ d)) + tf.reduce_mean(tf.nn.softplus(-(real @ d)))
                g_loss = tf.reduce_mean(tf.nn.softplus(-(fake @ d)))
            d.assign_sub(0.1 * tape.gradient(d_loss, d))
            g.assign_sub(0.1 * tf.clip_by_norm(tape.gradient(g_loss, g), 0.7))
        return g.read_value(), d.read_value(), g_loss

    return program, [{"real": normal(n, 4), "noise": normal(n, 3)} for n in (5, 1)], [g, d]


@model
def policy_gradient():
    w = tf.Variable(normal(4, 3) * 0.3)

    @tf.custom_gradient
    def clipped(x):
        return x, lambda dy: tf.clip_by_value(dy, -0.1, 0.1)

    def program(states, actions, rewards):
        returns = tf.scan(lambda a, r: r + 0.9 * a, rewards, tf.constant(0.0), reverse=True)
        advantage = tf.stop_gradient((returns - tf.reduce_mean(returns)) / (tf.math.reduce_std(returns) + 1e-6))
        with tf.GradientTape() as tape:
            logits = clipped(states @ w)
            chosen = tf.gather(tf.nn.log_softmax(logits), actions, batch_dims=1)
            entropy = -tf.reduce_sum(tf.nn.softmax(logits) * tf.nn.log_softmax(logits), -1)
            loss = -tf.reduce_mean(chosen * advantage + 0.01 * entropy)
        grad = tape.gradient(loss, w)
        return returns, loss, grad, tf.clip_by_global_norm([grad, w], 0.5)

    return program, [{"states": normal(n, 4), "actions": integers(0, 3, n), "rewards": normal(n)} for n in (6, 1)], [w]
