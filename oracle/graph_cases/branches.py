"""Conditionals: cond, case, switch_case; nested, with constants and captured tensors."""

import tensorflow as tf

from graphkit import case, v1

BOTH = ("v1", "v2")


@case(*BOTH)
def cond_simple(b):
    x = b.feed(tf.int32)
    y = tf.cond(x > 0, lambda: x * 2, lambda: x - 1)
    for value in (3, 0, -3):
        b.step(y, {x: value})


@case(*BOTH)
def cond_captures(b):
    p, x, w = b.feed(tf.bool), b.feed(tf.float32, [None]), b.feed(tf.float32, [2])
    y, z = tf.cond(p, lambda: (x + w, tf.reduce_sum(x * w)), lambda: (w, tf.constant(7.0)))
    for value in (True, False):
        b.step([y, z], {p: value, x: [1.5, -2], w: [4, 5]})
    # Values captured by a branch must not be pruned.
    b.step([z], {p: False, x: [1.5, -2], w: [4, 5]})


@case(*BOTH)
def cond_constants(b):
    p = b.feed(tf.bool)
    y = tf.cond(p, lambda: tf.constant([1, 2, 3]), lambda: tf.constant([4, 5]))
    s = tf.cond(p, lambda: tf.constant("yes"), lambda: tf.constant("no"))
    b.step([y, s], {p: True})
    b.step([y, s], {p: False})


@case(*BOTH)
def cond_passes_through(b):
    p, x = b.feed(tf.bool), b.feed(tf.float32, [2])
    y = tf.cond(p, lambda: x, lambda: -x)
    z, same = tf.cond(p, lambda: (x, x), lambda: (x, y))
    b.step([y, z, same], {p: True, x: [1, 2]})
    b.step([y, z, same], {p: False, x: [1, 2]})


@case(*BOTH)
def cond_nested(b):
    x, t = b.feed(tf.int32), b.feed(tf.float32, [2, 2])
    y = tf.cond(
        x > 0,
        lambda: tf.cond(x > 10, lambda: t + 1.0, lambda: t @ t),
        lambda: tf.cond(x < -10, lambda: tf.transpose(t),
                        lambda: tf.cond(tf.equal(x, 0), lambda: t * 0.0, lambda: t / 4.0)),
    )
    for value in (20, 5, 0, -5, -20):
        b.step(y, {x: value, t: [[1, 2], [3, 4]]})


@case(*BOTH)
def cond_chain(b):
    x = b.feed(tf.int32)
    y = x
    for i in range(4):
        y = tf.cond(tf.equal(y % (i + 2), 0), lambda y=y: y * 3, lambda y=y, i=i: y + i)
    for value in range(6):
        b.step(y, {x: value})


@case(*BOTH)
def cond_predicate_inside(b):
    x = b.feed(tf.bool)
    y = tf.cond(x, lambda: tf.logical_not(x), lambda: tf.logical_or(x, x))
    b.step(y, {x: True})
    b.step(y, {x: False})


@case("v2")
def cond_number_predicate(b):
    x, c = b.feed(tf.float32), b.feed(tf.float32, [None])
    f = tf.function(lambda: x * 2.0).get_concrete_function()
    g = tf.function(lambda: x + 1.0).get_concrete_function()
    y = tf.raw_ops.If(cond=c, input=f.captured_inputs, Tout=[tf.float32],
                      then_branch=f, else_branch=g)
    b.step(y[0], {x: 5, c: [1, 2]})
    b.step(y[0], {x: 5, c: [0]})
    b.step(y[0], {x: 5, c: []})


@case(*BOTH)
def case_first_true_wins(b):
    x = b.feed(tf.float32)
    y = v1.case([(x > 10.0, lambda: x * 10.0), (x > 5.0, lambda: x * 5.0), (x > 0.0, lambda: -x)],
                default=lambda: tf.constant(99.0))
    for value in (11, 6, 1, -1):
        b.step(y, {x: value})


@case(*BOTH)
def switch_case_of_branches(b):
    i, x = b.feed(tf.int32), b.feed(tf.float32, [3])
    y = tf.switch_case(i, [lambda: x + 1.0, lambda: tf.reverse(x, [0]), lambda: x * x])
    z, n = tf.switch_case(i, {1: lambda: (x, 10), 0: lambda: (-x, 12)},
                          default=lambda: (x * 0.5, 11))
    for value in (0, 1, 2, 3, -1):
        b.step([y, z, n], {i: value, x: [1, 2, 3]})


@case(*BOTH)
def cond_shared_work(b):
    # The same inner tensor is used inside and outside.
    p, x = b.feed(tf.bool), b.feed(tf.float32, [4])
    big = tf.exp(x)
    y = tf.cond(p, lambda: tf.reduce_sum(big), lambda: tf.reduce_max(big))
    b.step([y, big], {p: True, x: [0, 1, 2, 3]})
    b.step([y], {p: False, x: [0, 1, 2, 3]})


@case(*BOTH)
def cond_error_only_in_taken_branch(b):
    p, i = b.feed(tf.bool), b.feed(tf.int32)
    y = tf.cond(p, lambda: tf.gather([1, 2, 3], i), lambda: i)
    b.step(y, {p: False, i: 7})
    b.step(y, {p: True, i: 2})
    b.step(y, {p: True, i: 7}, error="indices = 7 is not in [0, 3)")
    b.step(y, {p: True, i: 0})


@case(*BOTH)
def cond_many_outputs(b):
    p = b.feed(tf.bool)
    ts = [b.feed(tf.float32) for _ in range(8)]
    ys = tf.cond(p, lambda: [t * 2.0 for t in ts], lambda: [t for t in reversed(ts)])
    for value in (True, False):
        b.step(ys, {p: value, **{t: float(i) for i, t in enumerate(ts)}})
        b.step(ys[3], {p: value, **{t: float(i) for i, t in enumerate(ts)}})


@case(*BOTH)
def cond_fed_inside(b):
    # Feeding a predicate or an inner tensor cuts the graph.
    x = b.feed(tf.int32)
    p = tf.greater(x, 3, name="p")
    y = tf.cond(p, lambda: x + 100, lambda: x - 100)
    b.step(y, {x: 5})
    b.step(y, {x: 5, "p:0": False})


@case(*BOTH)
def cond_string(b):
    p = b.feed(tf.bool)
    y = tf.cond(p, lambda: tf.constant(["a", "b"]), lambda: tf.constant(["c"]))
    b.step([y, tf.size(y)], {p: True})
    b.step([y, tf.size(y)], {p: False})
