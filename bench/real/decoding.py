"""Transformers and decoding with caches and beams."""

import numpy as np
import tensorflow as tf

from real.kit import integers, model, normal, session

D, H, V = 12, 3, 19


def weights():
    shapes = {"embed": (V, D), "position": (32, D), "q": (D, D), "k": (D, D), "v": (D, D), "o": (D, D), "up": (D, 24), "down": (24, D)}
    return {name: tf.Variable(normal(*shape, seed=i) * 0.4) for i, (name, shape) in enumerate(shapes.items())}


def norm(x):
    mean, var = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(var + 1e-5)


def heads(x):
    return tf.transpose(tf.reshape(x, [tf.shape(x)[0], -1, H, D // H]), [0, 2, 1, 3])


def attend(q, k, v, mask):
    scores = tf.matmul(q, k, transpose_b=True) / (D // H) ** 0.5
    y = tf.matmul(tf.nn.softmax(tf.where(mask, scores, -1e9)), v)
    return tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [tf.shape(q)[0], -1, D])


def block(w, x, position, cache):
    """Runs one layer on a token with a cache of keys and values [2, n, H, length, d]."""
    y = norm(x)
    k, v = heads(y @ w["k"]), heads(y @ w["v"])
    at = tf.one_hot(position, tf.shape(cache)[3], dtype=tf.float32)[:, None]
    cache = cache * (1 - at) + tf.stack([k, v]) * at
    mask = tf.range(tf.shape(cache)[3]) <= position
    x += attend(heads(y @ w["q"]), cache[0], cache[1], mask) @ w["o"]
    return x + tf.nn.gelu(norm(x) @ w["up"]) @ w["down"], cache


@model
def greedy_with_cache():
    w = weights()

    def program(prompt, steps):
        n, length = tf.shape(prompt)[0], tf.shape(prompt)[1] + steps
        cache = tf.zeros([2, n, H, length, D // H])
        tokens = tf.pad(prompt, [[0, 0], [0, steps]])
        for t in tf.range(length - 1):
            token = tokens[:, t]
            x = (tf.gather(w["embed"], token) + w["position"][t])[:, None]
            x, cache = block(w, x, t, cache)
            best = tf.argmax(norm(x)[:, 0] @ tf.transpose(w["embed"]), -1, output_type=tf.int32)
            keep = t + 1 < tf.shape(prompt)[1]
            new = tf.where(keep, tokens[:, t + 1], best)
            tokens = tf.tensor_scatter_nd_update(tokens, tf.stack([tf.range(n), tf.fill([n], t + 1)], 1), new)
        return tokens, cache

    return program, [{"prompt": integers(0, V, n, k), "steps": np.int32(s)} for n, k, s in ((2, 3, 5), (1, 1, 7), (3, 4, 0))], list(w.values())


@model
def beam_search():
    w = tf.Variable(normal(V, V) * 2)
    beams = 3

    def program(start):
        n = tf.shape(start)[0]
        sequences = tf.tile(start[:, None, None], [1, beams, 1])
        scores = tf.tile([[0.0] + [-1e9] * (beams - 1)], [n, 1])
        done = tf.zeros([n, beams], tf.bool)
        for _ in tf.range(5):
            tf.autograph.experimental.set_loop_options(shape_invariants=[(sequences, tf.TensorShape([None, beams, None]))])
            logits = tf.nn.log_softmax(tf.gather(w, sequences[:, :, -1]))
            stop = tf.one_hot(tf.zeros([n, beams], tf.int32), V, 0.0, -1e9)
            total = tf.reshape(scores[..., None] + tf.where(done[..., None], stop, logits), [n, -1])
            scores, flat = tf.math.top_k(total, beams)
            parents, token = flat // V, flat % V
            sequences = tf.concat([tf.gather(sequences, parents, batch_dims=1), token[..., None]], -1)
            done = tf.gather(done, parents, batch_dims=1) | (token == 0)
        lengths = tf.reduce_sum(tf.cast(sequences != 0, tf.float32), -1)
        return sequences, scores, scores / tf.pow((5 + lengths) / 6, 0.6), done

    return program, [{"start": integers(1, V, n)} for n in (2, 1, 4)], [w]


@model
def causal_language_model():
    w = weights()

    def program(tokens):
        n = tf.shape(tokens)[1]
        x = tf.gather(w["embed"], tokens) + w["position"][:n]
        causal = tf.linalg.band_part(tf.ones([n, n], tf.bool), -1, 0) & (tokens != 0)[:, None, None]
        y = norm(x)
        x += attend(heads(y @ w["q"]), heads(y @ w["k"]), heads(y @ w["v"]), causal) @ w["o"]
        x += tf.nn.silu(norm(x) @ w["up"]) @ w["down"]
        logits = tf.einsum("btd,vd->btv", norm(x), w["embed"])
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(tokens[:, 1:], logits[:, :-1])
        return logits, tf.exp(tf.reduce_mean(loss)), tf.math.top_k(logits[:, -1], 3)

    return program, [{"tokens": integers(0, V, n, k)} for n, k in ((2, 7), (1, 2), (3, 16))], list(w.values())


@model
def rotary_grouped_query():
    wq, wk = tf.Variable(normal(16, 16) * 0.3), tf.Variable(normal(16, 8) * 0.3)

    def program(x):
        n, t = tf.shape(x)[0], tf.shape(x)[1]
        q, k = tf.reshape(x @ wq, [n, t, 4, 4]), tf.reshape(x @ wk, [n, t, 2, 4])
        angle = tf.cast(tf.range(t), tf.float32)[:, None] / tf.pow(10000.0, tf.range(0, 4, 2, dtype=tf.float32) / 4.0)
        sin, cos = tf.sin(angle)[:, None], tf.cos(angle)[:, None]

        def rotate(v):
            a, b = v[..., ::2], v[..., 1::2]
            return tf.reshape(tf.stack([a * cos - b * sin, a * sin + b * cos], -1), tf.shape(v))

        scores = tf.einsum("bthd,bshd->bhts", rotate(q), tf.repeat(rotate(k), 2, axis=2))
        bias = -tf.abs(tf.range(t)[:, None] - tf.range(t))[None] * tf.reshape([1, 2, 4, 8], [4, 1, 1])
        return tf.nn.softmax(scores + 0.1 * tf.cast(bias, tf.float32)), tf.cumsum(scores, -1, exclusive=True, reverse=True)

    return program, [{"x": normal(n, t, 16)} for n, t in ((2, 5), (1, 1))], [wq, wk]


@model
def sampling_with_filters():
    def program(logits, seed):
        values, _ = tf.math.top_k(logits, 5)
        kept = tf.where(logits < values[:, -1:], -np.inf, logits)
        order = tf.sort(kept, direction="DESCENDING")
        cumulative = tf.cumsum(tf.nn.softmax(order), -1)
        cut = tf.gather(order, tf.reduce_sum(tf.cast(cumulative < 0.8, tf.int32), -1), batch_dims=1)
        nucleus = tf.where(kept < cut[:, None], -np.inf, kept)
        return tf.random.stateless_categorical(nucleus, 6, seed), nucleus, tf.random.stateless_uniform([3], seed), tf.argmax(kept + tf.random.stateless_normal(tf.shape(kept), seed), -1)

    return program, [{"logits": normal(n, 12), "seed": np.array([n, 7], "int32")} for n in (3, 1)]


@model
def mixture_of_experts():
    gate, experts = tf.Variable(normal(6, 4)), tf.Variable(normal(4, 6, 5))

    def program(x):
        probs = tf.nn.softmax(x @ gate)
        weight, which = tf.math.top_k(probs, 2)
        parts = tf.dynamic_partition(x, which[:, 0], 4)
        spots = tf.dynamic_partition(tf.range(tf.shape(x)[0]), which[:, 0], 4)
        merged = tf.dynamic_stitch(spots, [p @ experts[i] for i, p in enumerate(parts)])
        both = tf.einsum("nk,nkh->nh", weight, tf.einsum("nd,nkdh->nkh", x, tf.gather(experts, which)))
        load = tf.reduce_mean(tf.reduce_max(tf.one_hot(which, 4), 1), 0)
        return merged, both, load, tf.switch_case(which[0, 0], [lambda i=i: tf.constant(i * 3) for i in range(4)])

    return program, [{"x": normal(n, 6)} for n in (7, 1)], [gate, experts]


@session
def attention_loop_of_old():
    """A decoder with attention in tf.while_loop and TensorArrays of TensorFlow 1."""
    v1 = tf.compat.v1
    memory = v1.placeholder(tf.float32, [None, None, 6])
    steps = v1.placeholder(tf.int32, [])
    w = tf.constant(normal(12, 6) * 0.3)

    def body(t, state, out):
        scores = tf.nn.softmax(tf.einsum("btd,bd->bt", memory, state))
        context = tf.einsum("bt,btd->bd", scores, memory)
        state = tf.tanh(tf.concat([context, state], 1) @ w)
        return t + 1, state, out.write(t, scores)

    out = tf.TensorArray(tf.float32, steps, clear_after_read=False)
    _, state, out = v1.while_loop(lambda t, *_: t < steps, body, [0, memory[:, 0], out])
    grad = v1.gradients(tf.reduce_sum(state), memory)[0]
    return [([state, out.stack(), grad], {memory: normal(2, 4, 6), steps: n}) for n in (3, 1)]
