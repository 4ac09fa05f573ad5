"""Loops of dataflow control flow that are raised to While nodes, and some that must not be."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw, v1


@case("v1")
def a_counter_and_a_sum(b):
    n = b.feed(tf.int32, ())
    loop = v1.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s * 0.5 + tf.cast(i, tf.float32)),
                         [tf.constant(0), tf.constant(1.0)])
    for times in [0, 1, 5]:
        b.step(list(loop), {n: np.int32(times)})


@case("v1")
def three_loops_inside_each_other(b):
    n = b.feed(tf.int32, ())

    def innermost(j, k, s):
        return k + 1, s + j * k

    def inner(i, j, s):
        return j + 1, v1.while_loop(lambda k, s: k < j, lambda k, s: innermost(j, k, s), [tf.constant(0), s])[1] - i

    def outer(i, s):
        return i + 1, v1.while_loop(lambda j, s: j < i, lambda j, s: inner(i, j, s), [tf.constant(0), s])[1]

    loop = v1.while_loop(lambda i, s: i < n, outer, [tf.constant(0), n])
    for times in [0, 1, 6]:
        b.step(list(loop), {n: np.int32(times)})


@case("v1")
def conditionals_in_the_body(b):
    n = b.feed(tf.int64, ())

    def body(i, steps):
        half = tf.equal(i % 2, 0)
        return v1.cond(half, lambda: i // 2, lambda: 3 * i + 1), steps + v1.cond(half, lambda: 1, lambda: 100)

    loop = v1.while_loop(lambda i, s: i > 1, body, [n, tf.constant(0)])
    for start in [1, 6, 27]:
        b.step(list(loop), {n: np.int64(start)})


@case("v1")
def a_conditional_in_the_condition(b):
    n, p = b.feed(tf.int32, ()), b.feed(tf.bool, ())
    loop = v1.while_loop(lambda i: v1.cond(p, lambda: i < n, lambda: i * i < n), lambda i: i + 1, [tf.constant(0)])
    for up in [True, False]:
        b.step(loop, {n: np.int32(10), p: np.bool_(up)})


@case("v1")
def a_condition_that_the_body_shares(b):
    """The body reads what the condition has computed, as after common subexpressions are merged."""
    n = b.feed(tf.int32, ())
    box = []

    def cond(i, s):
        box.append(i * i + 1)
        return box[0] < n

    loop = v1.while_loop(cond, lambda i, s: (i + 1, s + (i * i + 1)), [tf.constant(0), tf.constant(0)])
    b.step(list(loop), {n: np.int32(90)})


@case("v1")
def variables_change_places(b):
    n = b.feed(tf.int32, ())
    loop = v1.while_loop(lambda i, x, y, z: i < n, lambda i, x, y, z: (i + 1, y, z + x, x),
                         [tf.constant(0), tf.constant(1), tf.constant(2), tf.constant(3)])
    for times in [0, 1, 2, 7]:
        b.step(list(loop), {n: np.int32(times)})


@case("v1")
def arrays_are_read_and_written(b):
    x = b.feed(tf.float32, (None, 2))
    b.step([v1.scan(lambda s, e: s * 0.5 + e, x), tf.map_fn(lambda e: e * tf.reduce_sum(e), x),
            v1.foldl(lambda s, e: s - e, x), v1.foldr(lambda s, e: s * 2 + e, x)],
           {x: np.arange(8, dtype=np.float32).reshape(4, 2)})


@case("v1")
def an_array_of_scalars(b):
    x = b.feed(tf.float32, (None,))
    y = v1.scan(lambda s, e: s * 0.5 + e, x)
    b.step([y, *tf.gradients(y, [x])], {x: np.arange(5, dtype=np.float32)})


@case("v1")
def an_array_is_read_twice(b):
    """Elements are cleared when they are read."""
    n = b.feed(tf.int32, ())
    array = tf.TensorArray(tf.int32, size=n, element_shape=[], clear_after_read=True)
    filled = v1.while_loop(lambda i, a: i < n, lambda i, a: (i + 1, a.write(i, i * i)), [tf.constant(0), array])[1]
    twice = filled.gather([1, 1])
    b.step(filled.gather([2, 0]), {n: np.int32(3)})
    b.step(twice, {n: np.int32(3)}, error="Could not read index 1 twice")


@case("v1")
def gradients_of_loops(b):
    """The loop of the gradient pops what the other one has pushed."""
    n, x = b.feed(tf.int32, ()), b.feed(tf.float32, (3,))
    loop = v1.while_loop(lambda i, s, t: i < n, lambda i, s, t: (i + 1, tf.sin(s) * x, t + s * s),
                         [tf.constant(0), x, tf.zeros(3)])
    dx = tf.gradients([loop[1], loop[2]], [x])
    for times in [0, 1, 4]:
        b.step([loop[2], *dx], {n: np.int32(times), x: np.float32([0.5, -1, 2])})


@case("v1")
def an_assertion_in_the_body(b):
    n = b.feed(tf.int32, ())

    def body(i, s):
        with tf.control_dependencies([v1.Assert(i < 3, ["too many", i])]):
            return i + 1, s + i

    loop = v1.while_loop(lambda i, s: i < n, body, [tf.constant(0), tf.constant(0)])
    b.step(list(loop), {n: np.int32(3)})
    b.step(list(loop), {n: np.int32(9)}, error="too many")


@case("v1")
def variables_of_the_session(b):
    """Assignments run once for each iteration, in the order of control edges."""
    v = v1.get_variable("v", [], tf.float32, v1.constant_initializer(1.0), use_resource=True)
    n = b.feed(tf.int32, ())

    def body(i, s):
        with tf.control_dependencies([raw.AssignVariableOp(resource=v.handle, value=v.read_value() * 2 + s)]):
            return i + 1, v.read_value() + 0

    loop = v1.while_loop(lambda i, s: i < n, body, [tf.constant(0), tf.constant(0.0)], parallel_iterations=1)
    b.step([], targets=[v.initializer])
    for times in [0, 1, 3]:
        b.step(list(loop), {n: np.int32(times)})
        b.step([v.value()])


@case("v1")
def a_loop_in_a_branch(b):
    """It does not run in the other branch."""
    n, p = b.feed(tf.int32, ()), b.feed(tf.bool, ())
    y = v1.cond(p, lambda: v1.while_loop(lambda i: i < n, lambda i: i + 2, [n - 7]), lambda: n * 100)
    for taken in [True, False]:
        b.step(y, {n: np.int32(10), p: np.bool_(taken)})


@case("v1")
def a_loop_over_what_a_branch_returns(b):
    n, p = b.feed(tf.int32, ()), b.feed(tf.bool, ())
    first = v1.cond(p, lambda: n - 3, lambda: n * 2)
    y = v1.while_loop(lambda i: i < n + 10, lambda i: i + 4, [first])
    for taken in [True, False]:
        b.step(y, {n: np.int32(1), p: np.bool_(taken)})


@case("v1")
def a_loop_inside_one_with_products(b):
    n, x = b.feed(tf.int32, ()), b.feed(tf.float32, (2, 2))

    def body(i, s):
        k = v1.while_loop(lambda j: j < i, lambda j: j + 3, [tf.constant(0)])
        return i + 1, tf.matmul(s, x) * tf.cast(k, tf.float32) + x

    loop = v1.while_loop(lambda i, s: i < n, body, [tf.constant(0), x])
    b.step(list(loop), {n: np.int32(4), x: np.float32([[1, 0.5], [-0.5, 1]])})


@case("v1")
def loops_after_loops(b):
    n = b.feed(tf.int32, ())
    first = v1.while_loop(lambda i: i < n, lambda i: i + 2, [tf.constant(0)])
    second = v1.while_loop(lambda i, s: i < first, lambda i, s: (i + 1, s - i), [tf.constant(0), first])
    third = v1.while_loop(lambda i: i > second[1], lambda i: i - first, [first])
    b.step([first, *second, third], {n: np.int32(7)})


@case("v1")
def shapes_that_grow(b):
    n = b.feed(tf.int32, ())
    loop = v1.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, tf.concat([s, s * 2], 0)),
                         [tf.constant(0), tf.constant([1.0])],
                         shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])])
    for times in [0, 1, 3]:
        b.step([loop[1], tf.size(loop[1])], {n: np.int32(times)})


@case("v1")
def random_numbers_in_the_body(b):
    """As many are drawn as iterations run."""
    n = b.feed(tf.int32, ())
    loop = v1.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s + v1.random_uniform([], seed=3)),
                         [tf.constant(0), tf.constant(0.0)])
    for times in [1, 2, 3]:
        b.step(list(loop), {n: np.int32(times)})


@case("v2")
def a_variable_that_a_loop_captures(b):
    """The body knows the shape of what it reads."""
    v = v1.get_variable("v", [2], tf.float32, v1.constant_initializer([1.0, 2.0]), use_resource=True)
    n = b.feed(tf.int32, ())
    loop = tf.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, tf.nn.relu(s * v - tf.reduce_sum(v)) + 4),
                         [tf.constant(0), tf.constant([1.0, 1.0])])
    b.step([], targets=[v.initializer])
    for times in [0, 3]:
        b.step(list(loop), {n: np.int32(times)})


@case("v1")
def a_constant_ends_a_value(b):
    """What the body returns depends on an iteration only by a control edge into its shape."""
    x = b.feed(tf.float32, ())
    box = []

    def cond(i, s):
        box.append(tf.broadcast_to(x, [3]))
        return i < 2

    b.step(v1.while_loop(cond, lambda i, s: (i + 1, box[0]), [tf.constant(0), tf.zeros([3])])[1], {x: np.float32(2)})


@case("v1")
def the_body_reads_what_fails_at_the_end(b):
    """It runs in the iteration in which the condition is false, too."""
    n = b.feed(tf.int32, ())
    box = []

    def cond(i, s):
        box.append(12 // (n - i))
        return i < n

    loop = v1.while_loop(cond, lambda i, s: (i + 1, s + box[0]), [tf.constant(0), tf.constant(0)])
    b.step(loop[1], {n: np.int32(4)}, error="Integer division by zero")


def counted(n, frame):
    """The counter of a loop by hand, its condition, and what leaves it and is in its body."""
    merge = raw.Merge(inputs=[raw.Enter(data=tf.constant(0), frame_name=frame)] * 2).output
    cond = raw.LoopCond(input=raw.Less(x=merge, y=raw.Enter(data=n, frame_name=frame, is_constant=True)))
    off, on = raw.Switch(data=merge, pred=cond)
    return merge, cond, off, tf.identity(on)


def counts(merge, on, after=()):
    with tf.control_dependencies([on]):
        one = tf.constant(1)
    repeats(merge, raw.AddV2(x=on, y=one), after)


def repeats(merge, value, after=()):
    with tf.control_dependencies(after):
        merge.op._update_input(1, raw.NextIteration(data=value))


@case("v1")
def a_variable_that_dies_in_the_loop(b):
    """Its next value is that of a branch which is not always taken."""
    b.placed = "parts of a loop on other devices wait for the next value"
    n = b.feed(tf.int32, ())
    merge, cond, off, on = counted(n, "f")
    counts(merge, on)
    x = raw.Exit(data=off)
    other = raw.Merge(inputs=[raw.Enter(data=tf.constant(7), frame_name="f")] * 2).output
    other_off, other_on = raw.Switch(data=other, pred=cond)
    with tf.control_dependencies([on]):
        two = tf.constant(2)
    repeats(other, raw.Switch(data=other_on, pred=raw.Less(x=on, y=two))[1])
    value, index = raw.Merge(inputs=[raw.Exit(data=other_off), x])
    for times in [5, 0]:
        b.step([x, value, index] if times else x, {n: np.int32(times)})


@case("v1")
def a_trigger_in_the_body(b):
    """What follows it runs although the condition is false."""
    n = b.feed(tf.int32, ())
    merge, _, off, on = counted(n, "f")
    limit = raw.Enter(data=n, frame_name="f", is_constant=True)
    with tf.control_dependencies([on]):
        trigger = raw.ControlTrigger()
    with tf.control_dependencies([trigger]):
        differs = tf.identity(tf.not_equal(merge, limit))
    check = raw.Assert(condition=differs, data=[merge])
    counts(merge, on, [check])
    b.step(raw.Exit(data=off), {n: np.int32(5)}, error="assertion failed: [5]")


@case("v1")
def a_merge_of_the_body_and_of_what_stays_alive(b):
    n = b.feed(tf.int32, ())
    merge, _, off, on = counted(n, "f")
    limit = raw.Enter(data=n, frame_name="f", is_constant=True)
    no = raw.Enter(data=tf.constant(False), frame_name="f", is_constant=True)
    either = raw.Merge(inputs=[raw.Switch(data=on, pred=no)[1], raw.Switch(data=merge, pred=no)[0]]).output
    check = raw.Assert(condition=tf.not_equal(either, limit), data=[either])
    counts(merge, on, [check])
    b.step(raw.Exit(data=off), {n: np.int32(5)}, error="assertion failed: [5]")
