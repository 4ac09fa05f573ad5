"""Conditionals and loops."""

import numpy as np
import tensorflow as tf
from gradients import case

v1 = tf.compat.v1
BOTH = ("v1", "v2")


def while_loop(cond, body, loop_vars, **kw):
    return v1.while_loop(cond, body, loop_vars, **kw)


for taken in [True, False]:
    @case(name=f"cond_{taken}", forms=BOTH)
    def cond(b, taken=taken):
        x, y, p = b.x([3]), b.x([3]), b.feed(np.array(taken))
        return v1.cond(p, lambda: tf.sin(x) * y, lambda: x + 2.0) * x

    @case(name=f"cond_of_cond_{taken}", forms=BOTH)
    def cond_of_cond(b, taken=taken):
        x, p, q = b.x([2]), b.feed(np.array(taken)), b.feed(np.array(True))
        return v1.cond(p, lambda: v1.cond(q, lambda: x * x, lambda: tf.exp(x)) * 2.0,
                       lambda: v1.cond(q, lambda: x * x * x, lambda: x))

    @case(name=f"cond_of_several_{taken}", forms=BOTH)
    def cond_of_several(b, taken=taken):
        x, y, p = b.x([2]), b.x([2]), b.feed(np.array(taken))
        u, w = v1.cond(p, lambda: (x * y, y), lambda: (x, x + y))
        return [u * w, w]


@case(forms=BOTH)
def switch_case(b):
    x, i = b.x([2]), b.feed(np.int32(1))
    return tf.switch_case(i, [lambda: x * 2.0, lambda: x * x, lambda: tf.exp(x)])


@case(forms=BOTH)
def powers(b):
    x, n = b.x([3]), b.feed(np.int32(4))
    return while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * x), (0, x))[1]


@case(forms=BOTH)
def no_iteration(b):
    x, n = b.x([3]), b.feed(np.int32(0))
    return while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * x), (0, x))[1] * x


@case(forms=BOTH)
def two_variables(b):
    x, y = b.x([2, 2]), b.x([2, 2])
    r = while_loop(lambda i, u, w: i < 3, lambda i, u, w: (i + 1, tf.matmul(u, y), tf.tanh(u + w)), (0, x, y))
    return [r[1], r[2]]


@case(forms=BOTH)
def one_of_two_variables(b):
    x, y = b.x([2]), b.x([2])
    r = while_loop(lambda i, u, w: i < 3, lambda i, u, w: (i + 1, u * w, w + x), (0, x, y))
    return r[1]


@case(forms=BOTH)
def cond_in_loop(b):
    x, y = b.x([3]), b.x([3])
    def body(i, u):
        return i + 1, v1.cond(tf.equal(i % 2, 0), lambda: u * tf.sin(y), lambda: u + x * y)
    return while_loop(lambda i, u: i < 5, body, (0, x))[1]


@case(forms=BOTH)
def nested_cond_in_loop(b):
    x = b.x([3])
    def body(i, u):
        v = u * x
        inner = lambda: v1.cond(tf.equal(i, 1), lambda: tf.exp(v * 0.1) * u, lambda: v * v * 0.1)
        return i + 1, v1.cond(tf.less(i, 3), inner, lambda: v - u * u * 0.01)
    return while_loop(lambda i, u: i < 5, body, (0, x))[1]


@case(forms=BOTH)
def loop_in_loop(b):
    x, y = b.x([2]), b.x([2])
    def body(i, u):
        inner = while_loop(lambda j, w: j < i + 1, lambda j, w: (j + 1, tf.sin(w * y) + x), (0, u))
        return i + 1, inner[1] * u
    return while_loop(lambda i, u: i < 3, body, (0, x))[1]


@case(forms=BOTH)
def loop_in_cond_in_loop(b):
    x = b.x([2])
    def body(i, u):
        inner = lambda: while_loop(lambda j, w: j < 2, lambda j, w: (j + 1, tf.sin(w) * u), (0, x))[1]
        return i + 1, v1.cond(tf.equal(i, 1), inner, lambda: u * x)
    return while_loop(lambda i, u: i < 3, body, (0, x))[1]


for taken in [True, False]:
    @case(name=f"loop_in_cond_{taken}", forms=BOTH)
    def loop_in_cond(b, taken=taken):
        x, y, p = b.x([2]), b.x([2]), b.feed(np.array(taken))
        loop = lambda: while_loop(lambda i, u: i < 3, lambda i, u: (i + 1, u * y + x), (0, x))[1]
        return v1.cond(p, loop, lambda: x * y)


@case(forms=BOTH, dynamic=False)
def growing(b):
    x = b.x([1, 2])
    r = while_loop(lambda i, u: i < 3, lambda i, u: (i + 1, tf.concat([u, u[:1] * x], 0)), (0, x),
                   shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 2])))
    return r[1] * r[1]


@case(forms=BOTH)
def gather_in_loop(b):
    table = b.x([4, 2])
    ids = b.feed(np.array([1, 3, 1], np.int32))
    r = while_loop(lambda i, u: i < 3, lambda i, u: (i + 1, u * tf.gather(table, ids[i])), (0, table[0]))
    return r[1]


@case(forms=BOTH, dynamic=False)
def recurrent(b):
    xs = b.feed(b.random.uniform(-1, 1, (4, 2, 3)))
    w, u, c = b.x([3, 5]), b.x([5, 5]), b.x([5])
    def body(t, h):
        return t + 1, tf.tanh(tf.matmul(xs[t], w) + tf.matmul(h, u) + c)
    h = while_loop(lambda t, h: t < 4, body, (0, tf.zeros([2, 5], tf.float64)))[1]
    return tf.reduce_mean(h * h)


@case(forms=("v1",))
def second_order(b):
    x, y = b.x([2]), b.x([2])
    r = while_loop(lambda i, u: i < 3, lambda i, u: (i + 1, tf.sin(u * y) + u), (0, x))[1]
    s = v1.cond(r[0] < 0.0, lambda: r * r, lambda: r * x)
    return [s, r]


@case(forms=BOTH)
def arrays(b):
    x = b.x([3, 2])
    def body(i, ta, u):
        u = u * x[i]
        return i + 1, ta.write(i, u), u
    ta = tf.TensorArray(tf.float64, 3, clear_after_read=False)
    r = while_loop(lambda i, ta, u: i < 3, body, (0, ta, x[0]))
    return [r[1].stack(), r[1].read(1), r[2]]


@case(forms=BOTH)
def arrays_read(b):
    x = b.x([4, 2])
    ta = tf.TensorArray(tf.float64, 4, clear_after_read=False).unstack(x)
    out = tf.TensorArray(tf.float64, 4)
    r = while_loop(lambda i, o, u: i < 4, lambda i, o, u: (i + 1, o.write(i, ta.read(i) * u), u + ta.read(0)),
                   (0, out, x[1]))
    return [r[1].stack(), r[2]]


@case(forms=BOTH)
def arrays_gathered(b):
    x = b.x([4, 2])
    ta = tf.TensorArray(tf.float64, 4).unstack(x * x)
    return [ta.gather([2, 0, 3])]


@case(forms=BOTH)
def called(b):
    x, y = b.x([2]), b.x([2])
    @tf.function
    def f(u, w):
        return u * w + tf.sin(u), w
    p, q = f(x, y)
    return [p * x, f(p, q)[0]]
