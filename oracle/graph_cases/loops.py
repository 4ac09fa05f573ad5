"""Loops: while_loop in all its shapes."""

import tensorflow as tf

from graphkit import case, raw, v1

BOTH = ("v1", "v2")


def looped(parallel):
    def build(b):
        n, x = b.feed(tf.int32), b.feed(tf.float32, [2])
        i, y = tf.while_loop(lambda i, y: i < n, lambda i, y: [i + 1, y * 1.5 + 1.0], [0, x],
                             parallel_iterations=parallel)
        for value in (0, 1, 2, 25):
            b.step([i, y], {n: value, x: [1, -1]})
        b.step(i, {n: 3, x: [0, 0]})

    return build


case(*BOTH, name="while_parallel_1")(looped(1))
case(*BOTH, name="while_parallel_10")(looped(10))


@case(*BOTH)
def while_counts_far(b):
    n = b.feed(tf.int32)
    i, s = tf.while_loop(lambda i, s: i < n, lambda i, s: [i + 1, s + i % 7], [0, 0])
    b.step([i, s], {n: 2000})


@case(*BOTH)
def while_nested(b):
    n, m = b.feed(tf.int32), b.feed(tf.int32)

    def row(i, s):
        _, s = tf.while_loop(lambda j, _: j < m, lambda j, s: [j + 1, s * 3 % 1009 + i * j], [0, s])
        return [i + 1, s + i]

    i, s = tf.while_loop(lambda i, _: i < n, row, [0, 1])
    for a, c in ((0, 4), (3, 0), (4, 5), (1, 1), (7, 3)):
        b.step([i, s], {n: a, m: c})


@case(*BOTH)
def while_nested_triple(b):
    n = b.feed(tf.int32)

    def inner(i, j, s):
        return tf.while_loop(lambda k, _: k < j, lambda k, s: [k + 1, s + i * 100 + j * 10 + k],
                             [0, s])[1]

    def middle(i, s):
        return tf.while_loop(lambda j, _: j < i, lambda j, s: [j + 1, inner(i, j, s)], [0, s])[1]

    _, s = tf.while_loop(lambda i, _: i < n, lambda i, s: [i + 1, middle(i, s)], [0, 0],
                         parallel_iterations=3)
    for value in (0, 1, 2, 5):
        b.step(s, {n: value})


@case(*BOTH)
def while_inner_depends_on_outer(b):
    # The inner trip count and the inner start differ in each outer iteration.
    n, x = b.feed(tf.int32), b.feed(tf.float32, [3])

    def body(i, x):
        _, x = tf.while_loop(lambda j, _: j < i * i % 5, lambda j, x: [j + 2, x + tf.cast(i, tf.float32)],
                             [i % 2, x])
        return [i + 1, tf.reverse(x, [0])]

    _, y = tf.while_loop(lambda i, _: i < n, body, [0, x])
    for value in (0, 3, 8):
        b.step(y, {n: value, x: [1, 2, 3]})


@case(*BOTH)
def while_two_in_a_row(b):
    n = b.feed(tf.int32)
    i, a = tf.while_loop(lambda i, a: i < n, lambda i, a: [i + 1, a + i], [0, 0])
    j, c = tf.while_loop(lambda j, c: j > 0, lambda j, c: [j - 1, c * 2 + a], [i, a])
    b.step([i, a, j, c], {n: 5})
    b.step([i, a, j, c], {n: 0})


@case(*BOTH)
def while_in_cond(b):
    p, n = b.feed(tf.bool), b.feed(tf.int32)

    def long():
        return tf.while_loop(lambda i, s: i < n, lambda i, s: [i + 1, s + i * i], [0, 0])[1]

    y = tf.cond(p, long, lambda: -n)
    for value in (0, 1, 6):
        b.step(y, {p: True, n: value})
        b.step(y, {p: False, n: value})


@case(*BOTH)
def while_in_both_branches(b):
    p, n = b.feed(tf.bool), b.feed(tf.int32)

    def times(k):
        return lambda: tf.while_loop(lambda i, s: i < n, lambda i, s: [i + 1, s * k + 1], [0, 0])

    i, s = tf.cond(p, times(2), times(3))
    for value in (0, 4):
        b.step([i, s], {p: True, n: value})
        b.step([i, s], {p: False, n: value})


@case(*BOTH)
def collatz(b):
    x = b.feed(tf.int32)

    def body(x, n):
        return [tf.cond(tf.equal(x % 2, 0), lambda: x // 2, lambda: 3 * x + 1), n + 1]

    x_end, n = tf.while_loop(lambda x, n: x > 1, body, [x, 0])
    for value in (1, 2, 7, 27, 97):
        b.step([x_end, n], {x: value})


@case(*BOTH)
def cond_in_while_nested(b):
    n = b.feed(tf.int32)

    def body(i, a, c):
        return tf.cond(
            tf.equal(i % 3, 0),
            lambda: (i + 1, a + c, c),
            lambda: tf.cond(tf.equal(i % 3, 1), lambda: (i + 1, c, a + 1), lambda: (i + 1, a * 2, c + i)),
        )

    out = tf.while_loop(lambda i, a, c: i < n, body, [0, 1, 2])
    for value in (0, 1, 2, 3, 20):
        b.step(list(out), {n: value})


@case(*BOTH)
def while_in_cond_in_while(b):
    n = b.feed(tf.int32)

    def inner(i, s):
        return tf.while_loop(lambda j, s: j < i, lambda j, s: [j + 1, s + j], [0, s])[1]

    def body(i, s):
        return [i + 1, tf.cond(tf.equal(i % 2, 0), lambda: inner(i, s), lambda: s * 2)]

    out = tf.while_loop(lambda i, s: i < n, body, [0, 1])
    for value in (0, 1, 2, 9):
        b.step(list(out), {n: value})


@case(*BOTH)
def while_invariants(b):
    # A loop invariant enters once.
    n, w, x = b.feed(tf.int32), b.feed(tf.float32, [2, 2]), b.feed(tf.float32, [1, 2])
    k = tf.reduce_sum(w)
    out = tf.while_loop(lambda i, x: i < n, lambda i, x: [i + 1, tf.tanh(x @ w + k)], [0, x])
    for value in (0, 1, 10):
        b.step(list(out), {n: value, w: [[0.5, -0.25], [0.125, 0.3]], x: [[1, 2]]})


@case(*BOTH)
def while_constants_in_body(b):
    n = b.feed(tf.int32)

    def body(i, x):
        return [i + 1, x * tf.constant([2.0, 0.5, 1.0]) + tf.ones([3]) + tf.cast(tf.range(3), tf.float32)]

    out = tf.while_loop(lambda i, x: i < n, body, [tf.constant(0), tf.zeros([3])])
    b.step(list(out), {n: 4})
    b.step(list(out), {n: 0})


@case(*BOTH)
def while_several_exits(b):
    n = b.feed(tf.int32)
    i, a, c, d = tf.while_loop(
        lambda i, a, c, d: tf.logical_and(i < n, a < 100),
        lambda i, a, c, d: [i + 1, a + i, a * 2, d + tf.cast(c, tf.float32)],
        [0, 1, 1, 0.0],
    )
    b.step([i, a, c, d], {n: 10})
    b.step([d], {n: 10})
    b.step([a], {n: 1000})
    b.step([c, i], {n: 0})


@case(*BOTH)
def while_swaps(b):
    n = b.feed(tf.int32)
    x, y, z = b.feed(tf.int32), b.feed(tf.int32), b.feed(tf.int32)
    out = tf.while_loop(lambda i, x, y, z: i < n, lambda i, x, y, z: [i + 1, y, z, x], [0, x, y, z])
    for value in range(5):
        b.step(list(out), {n: value, x: 1, y: 2, z: 3})


@case(*BOTH)
def while_growing_shape(b):
    n = b.feed(tf.int32)
    out = tf.while_loop(
        lambda i, x: i < n, lambda i, x: [i + 1, tf.concat([x, [i, i]], 0)], [0, tf.constant([7])],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
    )
    b.step(list(out), {n: 0})
    b.step(list(out), {n: 5})


@case(*BOTH)
def while_maximum_iterations(b):
    n = b.feed(tf.int32)
    out = tf.while_loop(lambda i: i < n, lambda i: [i + 1], [0], maximum_iterations=4)
    b.step(list(out), {n: 3})
    b.step(list(out), {n: 30})


@case(*BOTH)
def while_ignores_variable(b):
    # A loop variable that is never changed and one that is never read.
    n = b.feed(tf.int32)
    x = b.feed(tf.float32, [2])
    out = tf.while_loop(lambda i, x, u: i < n, lambda i, x, u: [i + 1, x, u + 1], [0, x, 5])
    b.step(list(out), {n: 3, x: [1, 2]})
    b.step(out[1], {n: 3, x: [1, 2]})


@case(*BOTH)
def while_error_in_body(b):
    n = b.feed(tf.int32)
    out = tf.while_loop(lambda i, s: i < n, lambda i, s: [i + 1, s + tf.gather([1, 2, 3], i)], [0, 0])
    b.step(list(out), {n: 3})
    b.step(list(out), {n: 4}, error="indices = 3 is not in [0, 3)")
    b.step(list(out), {n: 2})


@case(*BOTH)
def while_matrix_power(b):
    a = b.feed(tf.float32, [3, 3])
    n = b.feed(tf.int32)
    _, y, _ = tf.while_loop(
        lambda n, y, a: n > 0,
        lambda n, y, a: [n // 2, tf.cond(tf.equal(n % 2, 1), lambda: y @ a, lambda: y), a @ a],
        [n, tf.eye(3), a],
    )
    m = [[0.5, 0.25, 0], [0, 0.5, 0.25], [0.1, 0, 0.9]]
    for value in (0, 1, 2, 13):
        b.step(y, {n: value, a: m})


@case(*BOTH)
def while_control_dependency(b):
    n = b.feed(tf.int32)

    def body(i, s):
        with tf.control_dependencies([tf.no_op(), i * 3]):
            return [tf.identity(i) + 1, s + 2]

    i, s = tf.while_loop(lambda i, s: i < n, body, [0, 0])
    with tf.control_dependencies([i]):
        after = tf.identity(n)
    b.step([after, s], {n: 4})
    b.step([after], {n: 0}, targets=[s.op.name])


@case("v1")
def while_exit_unused(b):
    # Only one of two exits is fetched; the other must not block the step.
    n = b.feed(tf.int32)
    i, big = v1.while_loop(lambda i, x: i < n, lambda i, x: [i + 1, tf.tile(x, [1])], [0, tf.zeros([64])])
    b.step(i, {n: 4})
    b.step(tf.reduce_sum(big), {n: 4})


@case("v1")
def next_iteration_read_by_others(b):
    """The output of a NextIteration belongs to the next iteration for all its readers."""
    n = b.feed(tf.int32, [])
    enter = lambda x, **kw: raw.Enter(data=x, frame_name="f", parallel_iterations=2, **kw)
    limit, one = enter(n, is_constant=True), enter(tf.constant(1), is_constant=True)
    i = raw.Merge(inputs=[enter(tf.constant(0)), enter(tf.constant(0))])
    seen = raw.Merge(inputs=[enter(tf.constant(-1)), enter(tf.constant(-1))])
    cond = raw.LoopCond(input=raw.Less(x=i.output, y=limit))
    done, go = raw.Switch(data=i.output, pred=cond)
    last, _ = raw.Switch(data=seen.output, pred=cond)
    on = raw.NextIteration(data=raw.AddV2(x=go, y=one))
    i.output.op._update_input(1, on)
    # Ten times the counter of this iteration, computed from the other's NextIteration.
    seen.output.op._update_input(1, raw.Mul(x=on, y=enter(tf.constant(10), is_constant=True)))
    exits = [raw.Exit(data=done), raw.Exit(data=last)]
    for count in (0, 1, 4):
        b.step(exits, {n: count})
