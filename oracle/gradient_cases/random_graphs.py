"""Graphs of 5 to 30 differentiable ops, drawn from seeds."""

import random

import numpy as np
import tensorflow as tf

from gradients import case

UNARY = [tf.tanh, tf.sigmoid, tf.sin, tf.cos, tf.atan, tf.asinh, tf.math.erf,
         tf.nn.softplus, tf.nn.relu, tf.nn.elu, tf.negative, tf.abs,
         lambda x: tf.exp(tf.tanh(x)), lambda x: tf.sqrt(x * x + 1), lambda x: tf.math.log(x * x + 1),
         lambda x: tf.square(tf.sin(x)), lambda x: tf.math.rsqrt(x * x + 2), tf.nn.softsign,
         lambda x: tf.clip_by_value(x, -1.5, 1.5), lambda x: tf.math.log1p(tf.abs(x))]
BINARY = [tf.add, tf.subtract, lambda x, y: tf.multiply(tf.tanh(x), y), lambda x, y: x / (y * y + 1), tf.maximum,
          tf.minimum, lambda x, y: tf.math.squared_difference(tf.sin(x), tf.sin(y)),
          lambda x, y: tf.atan2(x, y * y + 1), lambda x, y: tf.where(x > y, x, tf.sin(y))]


def rank(x):
    return len(x.sizes)


class Value:
    """A tensor whose sizes are known while the graph is generated, even if the graph loses them."""

    def __init__(self, t, sizes):
        self.t, self.sizes = t, list(sizes)


def reduced(r, v):
    axes = sorted(r.sample(range(rank(v)), r.randint(1, rank(v))))
    keep = r.random() < 0.5
    op = r.choice([tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min, tf.reduce_prod, tf.reduce_logsumexp])
    sizes = [1 if i in axes else s for i, s in enumerate(v.sizes) if keep or i not in axes]
    return Value(op(v.t, axes, keepdims=keep), sizes)


def moved(r, v):
    """Ops that reshape or rearrange elements, or select some of them."""
    kind, n = r.randrange(9), rank(v)
    axis = r.randrange(n)
    if kind == 0:
        order = r.sample(range(n), n)
        return Value(tf.transpose(v.t, order), [v.sizes[i] for i in order])
    if kind == 1:
        count = int(np.prod(v.sizes))
        return Value(tf.reshape(v.t, [count]), [count]) if n > 1 else Value(tf.reshape(v.t, [1, -1]), [1, count])
    if kind == 2:
        begin = [r.randrange(s) for s in v.sizes]
        size = [r.randint(1, s - b) for s, b in zip(v.sizes, begin)]
        return Value(tf.slice(v.t, begin, size), size)
    if kind == 3:
        return Value(tf.reverse(v.t, [axis]), v.sizes)
    if kind == 4:
        times = [r.randint(1, 2) for _ in v.sizes]
        return Value(tf.tile(v.t, times), [s * t for s, t in zip(v.sizes, times)])
    if kind == 5:
        around = [[r.randint(0, 1), r.randint(0, 1)] for _ in v.sizes]
        return Value(tf.pad(v.t, around), [s + a + b for s, (a, b) in zip(v.sizes, around)])
    if kind == 6:
        ids = [r.randrange(v.sizes[axis]) for _ in range(r.randint(1, 4))]
        sizes = [len(ids) if i == axis else s for i, s in enumerate(v.sizes)]
        return Value(tf.gather(v.t, ids, axis=axis), sizes)
    if kind == 7:
        return Value(tf.cumsum(v.t, axis, exclusive=r.random() < 0.5, reverse=r.random() < 0.5), v.sizes)
    return Value(tf.expand_dims(v.t, axis), v.sizes[:axis] + [1] + v.sizes[axis:])


def joined(r, v):
    """Combines the value with another one derived from it."""
    axis, other = r.randrange(rank(v)), tf.sin(v.t)
    if r.random() < 0.5:
        sizes = [2 * s if i == axis else s for i, s in enumerate(v.sizes)]
        return Value(tf.concat([v.t, other], axis), sizes)
    return Value(tf.reduce_sum(tf.stack([v.t, other * 0.5], axis), axis), v.sizes)


def multiplied(r, v, more):
    """A matrix product with one of the values if the sizes fit, else with itself."""
    if rank(v) < 2:
        return Value(tf.nn.softmax(v.t), v.sizes)
    fits = [m for m in more if rank(m) == rank(v) and m.sizes[:-2] == v.sizes[:-2] and m.sizes[-2] == v.sizes[-1]]
    if fits and r.random() < 0.7:
        other = r.choice(fits)
        return Value(tf.matmul(v.t, tf.tanh(other.t)), v.sizes[:-1] + other.sizes[-1:])
    return Value(tf.matmul(v.t, tf.tanh(v.t), transpose_b=True), v.sizes[:-1] + [v.sizes[-2]])


def alike(a, b):
    return rank(a) == rank(b) and all(x == y or 1 in (x, y) for x, y in zip(a.sizes, b.sizes))


def graph(ends, seed):
    r = random.Random(seed)
    values = []
    for _ in range(r.randint(1, 3)):
        sizes = [r.randint(1, 4) for _ in range(r.randint(1, 3))]
        values.append(Value(ends.x(sizes), sizes))
    for _ in range(r.randint(5, 30)):
        v = r.choice(values[-4:])
        kind = r.random()
        fits = [m for m in values if alike(v, m)]
        if kind < 0.3 or rank(v) == 0:
            new = Value(r.choice(UNARY)(v.t), v.sizes)
        elif kind < 0.55 and fits:
            m = r.choice(fits)
            new = Value(r.choice(BINARY)(v.t, m.t), [max(a, b) for a, b in zip(v.sizes, m.sizes)])
        elif kind < 0.75:
            new = moved(r, v)
        elif kind < 0.85:
            new = reduced(r, v)
        elif kind < 0.92:
            new = joined(r, v)
        else:
            new = multiplied(r, v, values)
        if rank(new) <= 4 and np.prod(new.sizes) <= 200:
            # Keeps values at a magnitude where finite differences are accurate.
            values.append(Value(new.t if r.random() < 0.5 else tf.tanh(new.t) * 2, new.sizes))
    return [values[-1].t, *([values[-2].t] if r.random() < 0.3 else [])]


for _seed in range(50):
    case(lambda ends, seed=_seed: graph(ends, seed), name=f"random_{_seed}", tol=1e-9)
