"""Training graphs from TensorFlow: losses of the first steps, and the weights after them."""

import numpy as np
import tensorflow as tf

from graphkit import case, v1

COMPRESSED = True


def initial(rng, *shape):
    return tf.constant(rng.normal(0, 0.3, shape).round(3).astype(np.float32))


def weights(rng, name, *shape, use_resource=True):
    return v1.get_variable(name, initializer=initial(rng, *shape), use_resource=use_resource)


def train(b, loss, optimizer, feeds, n=5, watch=(), extra=()):
    """Runs n steps on feeds(step), fetching the loss before each update."""
    step = v1.train.get_or_create_global_step()
    update = optimizer.minimize(loss, global_step=step)
    with tf.control_dependencies(list(extra)):
        update = tf.group(update)
    b.step(targets=v1.global_variables_initializer().name)
    for i in range(n):
        b.step(loss, feeds(i), targets=update.name, tol=1e-4)
    b.step([*(v1.convert_to_tensor(w) for w in watch), v1.convert_to_tensor(step)], tol=1e-3)


OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
    "nesterov": lambda: v1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adam": lambda: v1.train.AdamOptimizer(0.01),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adadelta": lambda: v1.train.AdadeltaOptimizer(1.0),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001),
}


def perceptron(b, name, use_resource):
    rng = np.random.default_rng(1)
    x, y = b.feed(tf.float32, [None, 6], "x"), b.feed(tf.int32, [None], "y")
    w = [weights(rng, f"w{i}", *s, use_resource=use_resource) for i, s in enumerate([(6, 8), (8, 4)])]
    c = [weights(rng, f"b{i}", n, use_resource=use_resource) for i, n in enumerate([8, 4])]
    h = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w[0]), c[0]))
    logits = tf.nn.bias_add(tf.matmul(h, w[1]), c[1])
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    loss += 0.01 * tf.add_n([tf.nn.l2_loss(v1.convert_to_tensor(v)) for v in w])
    data = lambda i: {x: rng.normal(size=(5, 6)).round(3), y: rng.integers(0, 4, 5)}
    train(b, loss, OPTIMIZERS[name](), data, watch=w)


for _name in OPTIMIZERS:
    for _kind in (True, False):
        case("v1", name=f"perceptron_{_name}_{'handle' if _kind else 'ref'}")(
            lambda b, n=_name, k=_kind: perceptron(b, n, k))


@case("v1")
def convolutional(b):
    rng = np.random.default_rng(2)
    x, y = b.feed(tf.float32, [None, 12, 12, 1], "x"), b.feed(tf.int32, [None], "y")
    f1, f2 = weights(rng, "f1", 5, 5, 1, 4), weights(rng, "f2", 3, 3, 4, 6)
    b1, b2 = weights(rng, "b1", 4), weights(rng, "b2", 6)
    d = weights(rng, "d", 3 * 3 * 6, 5)
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, f1, 1, "SAME"), b1))
    h = tf.nn.max_pool2d(h, 2, 2, "SAME")
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(h, f2, 1, "SAME"), b2))
    h = tf.nn.max_pool2d(h, 2, 2, "SAME")
    logits = tf.matmul(tf.reshape(h, [-1, 3 * 3 * 6]), d)
    loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(
        labels=tf.one_hot(y, 5), logits=logits))
    data = lambda i: {x: rng.normal(size=(3, 12, 12, 1)).round(2), y: rng.integers(0, 5, 3)}
    train(b, loss, OPTIMIZERS["momentum"](), data, watch=[f1, b1, f2])


@case("v1")
def normalized(b):
    """Batch normalization, depthwise and strided convolutions, average pooling, resizing."""
    rng = np.random.default_rng(3)
    x = b.feed(tf.float32, [None, 8, 8, 2], "x")
    f1, f2, f3 = (weights(rng, "f1", 3, 3, 2, 4), weights(rng, "f2", 3, 3, 4, 1),
                  weights(rng, "f3", 1, 1, 4, 3))
    scale, offset = weights(rng, "scale", 4), weights(rng, "offset", 4)
    h = tf.nn.conv2d(x, f1, 2, "SAME")
    h, mean, var = v1.nn.fused_batch_norm(h, scale, offset, is_training=True)
    h = tf.nn.elu(tf.nn.depthwise_conv2d(h, f2, [1, 1, 1, 1], "SAME"))
    h = tf.nn.avg_pool2d(h, 2, 1, "VALID")
    h = v1.image.resize_bilinear(tf.nn.conv2d(h, f3, 1, "SAME"), [6, 5])
    loss = tf.reduce_mean(tf.square(tf.tanh(h) - 0.3)) + tf.reduce_mean(var) + tf.reduce_sum(mean)
    data = lambda i: {x: rng.normal(size=(2, 8, 8, 2)).round(2)}
    train(b, loss, OPTIMIZERS["adam"](), data, watch=[f1, f2, f3, scale, offset])


@case("v1")
def dropped_out(b):
    """Dropout with TensorFlow's random numbers."""
    rng = np.random.default_rng(4)
    x = b.feed(tf.float32, [None, 6], "x")
    w = weights(rng, "w", 6, 3)
    h = v1.nn.dropout(tf.matmul(x, w), rate=0.4, seed=11)
    noise = tf.random.truncated_normal(tf.shape(h), stddev=0.1, seed=12)
    loss = tf.reduce_mean(tf.square(h + noise - 1.0))
    train(b, loss, OPTIMIZERS["sgd"](), lambda i: {x: rng.normal(size=(4, 6)).round(3)}, watch=[w])


@case("v1")
def embedded(b):
    """An embedding table, of which only the rows that were looked up change."""
    for name, use_resource in (("momentum", True), ("adagrad", False), ("ftrl", True), ("adam", False)):
        with v1.variable_scope(name):
            rng = np.random.default_rng(5)
            words = b.feed(tf.int32, [None, 3], f"words_{name}")
            table = weights(rng, "table", 9, 4, use_resource=use_resource)
            w = weights(rng, "w", 4, 9, use_resource=use_resource)
            h = tf.reduce_sum(tf.nn.embedding_lookup(table, words[:, :2]), 1)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=words[:, 2], logits=tf.matmul(h, w)))
            train(b, loss, OPTIMIZERS[name](), lambda i: {words: rng.integers(0, 9, (4, 3))},
                  n=3, watch=[table])


@case("v1")
def clipped(b):
    """Gradients clipped by their global norm; a decaying learning rate."""
    rng = np.random.default_rng(6)
    x = b.feed(tf.float32, [None, 4], "x")
    w, v = weights(rng, "w", 4, 4), weights(rng, "v", 4)
    loss = tf.reduce_sum(tf.square(tf.sigmoid(tf.matmul(x, w)) * v - 2.0))
    step = v1.train.get_or_create_global_step()
    rate = v1.train.exponential_decay(0.1, step, 2, 0.5, staircase=True)
    grads, norm = tf.clip_by_global_norm(tf.gradients(loss, [w, v]), 1.0)
    update = v1.train.GradientDescentOptimizer(rate).apply_gradients(
        zip(grads, [w, v]), global_step=step)
    b.step(targets=v1.global_variables_initializer().name)
    for _ in range(5):
        b.step([loss, norm, rate], {x: rng.normal(size=(3, 4)).round(3)}, targets=update.name,
               tol=1e-4)


@case("v1", "v2")
def recurrent(b):
    """A while loop over time, and TensorFlow's gradient of it."""
    rng = np.random.default_rng(7)
    x = b.feed(tf.float32, [None, 5, 3], "x")
    w, u = weights(rng, "w", 3, 4), weights(rng, "u", 4, 4)

    def body(t, h):
        return t + 1, tf.tanh(tf.matmul(x[:, t], w) + tf.matmul(h, u))

    start = tf.zeros([tf.shape(x)[0], 4])
    _, h = tf.while_loop(lambda t, h: t < 5, body, [0, start],
                         shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 4])])
    loss = tf.reduce_mean(tf.square(h - 0.5))
    train(b, loss, OPTIMIZERS["momentum"](), lambda i: {x: rng.normal(size=(2, 5, 3)).round(3)},
          watch=[w, u])
