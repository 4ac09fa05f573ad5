"""Failing assertions, printing, tensors as text."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw, v1

NUMBERS = [0.1, 1e10, 1e-7, 1 / 3, 123456789.0, -0.0, np.inf, np.nan]


@case("v1")
def assertions(b):
    p, x = b.feed(tf.bool, []), b.feed(tf.int32, None)
    name = tf.constant(["a b", "c\n'\"\u00e9"])
    few = raw.Assert(condition=p, data=[x, name], summarize=3).name
    five = raw.Assert(condition=p, data=[x, tf.constant([True, False])], summarize=5).name
    whole = raw.Assert(condition=p, data=[x, tf.zeros([0, 3])], summarize=-1).name
    numbers = [tf.constant(NUMBERS, t) for t in ("float32", "float64", "float16", "bfloat16")]
    wide = raw.Assert(condition=p, data=numbers + [tf.constant([1 + 2j])], summarize=20).name
    for target in (few, five, whole, wide):
        for value in (7, [1, 2, 3, 4, 5], [[1, 2], [3, 4], [5, 6]], [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]):
            b.step(targets=target, feeds={p: False, x: value}, error="assertion failed: ")
        b.step(targets=target, feeds={p: True, x: 1})


@case("v1", "v2")
def assertion_in_branch(b):
    p, x = b.feed(tf.bool, []), b.feed(tf.float32, [])

    def checked():
        with tf.control_dependencies([v1.Assert(x > 0, ["x is", x], name="positive")]):
            return tf.sqrt(x)

    y = tf.cond(p, checked, lambda: -x)
    b.step(y, {p: True, x: 4})
    b.step(y, {p: False, x: -4})
    b.step(y, {p: True, x: -4}, error="assertion failed: [")


@case("v1")
def printed(b):
    x = b.feed(tf.float32, None)
    b.step(v1.Print(x, [x, tf.shape(x)], "x: ", first_n=1) * 2, {x: [1, 2.5]})
    tell = raw.PrintV2(input=raw.StringFormat(inputs=[x], template="{}", placeholder="{}")).name
    b.step(targets=tell, feeds={x: [1, 2.5]})


@case("v1")
def formatted(b):
    x = b.feed(tf.int32, None)
    texts = [raw.StringFormat(inputs=[x], template="<{}>", placeholder="{}", summarize=n)
             for n in (0, 1, 2, 3, -1)]
    for shape in ([], [0], [3], [7], [2, 0], [3, 4], [7, 2], [5, 3, 4], [2, 2, 2, 2]):
        b.step(texts, {x: np.arange(np.prod(shape, dtype=int)).reshape(shape)})
    mixed = [tf.constant("x"), tf.constant(["p", "q"]), tf.constant([True, False])]
    mixed += [tf.constant(NUMBERS, t) for t in ("float32", "float64", "float16", "bfloat16")]
    b.step(raw.StringFormat(inputs=mixed, template="%s|%s|%s|%s %s %s %s", summarize=9))
