"""Loops that build sequences: TensorArray (v1) and TensorList (v2), map_fn, scan, foldl, RNNs."""

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from graphkit import case, v1

BOTH = ("v1", "v2")


@case(*BOTH)
def array_written_in_loop(b):
    n = b.feed(tf.int32)
    ta = tf.TensorArray(tf.float32, size=n, element_shape=[2])

    def body(i, ta):
        return [i + 1, ta.write(i, tf.cast(tf.stack([i, i * i]), tf.float32))]

    _, ta = tf.while_loop(lambda i, _: i < n, body, [0, ta])
    y = ta.stack()
    b.step(y, {n: 4})
    b.step(tf.shape(y), {n: 0})


@case(*BOTH)
def array_read_and_written(b):
    x = b.feed(tf.int32, [None, 2])
    n = tf.shape(x)[0]
    source = tf.TensorArray(tf.int32, size=n, element_shape=[2]).unstack(x)
    sink = tf.TensorArray(tf.int32, size=n, element_shape=[2])

    def body(i, last, sink):
        now = source.read(i) + last
        return [i + 1, now, sink.write(n - 1 - i, now)]

    _, last, sink = tf.while_loop(lambda i, *_: i < n, body, [0, tf.zeros([2], tf.int32), sink])
    b.step([last, sink.stack()], {x: [[1, 2], [3, 4], [5, 6]]})


@case(*BOTH)
def array_dynamic_size(b):
    n = b.feed(tf.int32)
    ta = tf.TensorArray(tf.int32, size=0, dynamic_size=True, element_shape=[])
    _, ta = tf.while_loop(lambda i, _: i < n, lambda i, ta: [i + 1, ta.write(i, i * i)], [0, ta])
    b.step([ta.stack(), ta.size()], {n: 5})
    b.step(ta.concat() if b.form == "none" else ta.size(), {n: 1})


@case(*BOTH)
def array_concat_and_split(b):
    x, lengths = b.feed(tf.float32, [None, 2]), b.feed(tf.int32, [None])
    n = tf.size(lengths)
    ta = tf.TensorArray(tf.float32, size=n, infer_shape=False).split(x, lengths)
    back = ta.concat()
    b.step(back, {x: [[1, 2], [3, 4], [5, 6]], lengths: [1, 2]})
    b.step(back, {x: [[1, 2], [3, 4], [5, 6]], lengths: [0, 3]})


@case(*BOTH)
def array_scatter_and_gather(b):
    x, at, wanted = b.feed(tf.float32, [None, 2]), b.feed(tf.int32, [None]), b.feed(tf.int32, [None])
    ta = tf.TensorArray(tf.float32, size=4, element_shape=[2], clear_after_read=False).scatter(at, x)
    b.step(ta.gather(wanted), {x: [[1, 2], [3, 4], [5, 6]], at: [2, 0, 3], wanted: [0, 3]})
    b.step(ta.gather(wanted), {x: [[1, 2]], at: [1], wanted: [1, 1]})


@case(*BOTH)
def array_in_cond(b):
    p, x = b.feed(tf.bool), b.feed(tf.float32)
    ta = tf.TensorArray(tf.float32, size=2, element_shape=[]).write(0, x)
    flow = tf.cond(p, lambda: ta.write(1, x * 2.0).stack(), lambda: ta.write(1, -x).stack())
    b.step(flow, {p: True, x: 3})
    b.step(flow, {p: False, x: 3})


@case(*BOTH)
def array_unwritten_is_zero(b):
    x = b.feed(tf.float32, [2])
    ta = tf.TensorArray(tf.float32, size=3, element_shape=[2]).write(1, x)
    b.step(ta.stack(), {x: [1, 2]})


@case("v1")
def array_errors(b):
    i, x = b.feed(tf.int32), b.feed(tf.float32, [None])
    once = tf.TensorArray(tf.float32, size=2, clear_after_read=True, infer_shape=False)
    once = once.write(0, x).write(1, x)
    first = once.read(0)
    with tf.control_dependencies([first]):
        second = once.read(0)
    b.step(first, {x: [1, 2]})
    b.step([first, second], {x: [1, 2]}, error="Could not read index 0 twice because it was cleared "
           "after a previous read (perhaps try setting clear_after_read = false?).")
    b.step(once.read(i), {i: 2, x: [1]}, error="Tried to read from index 2 but array size is: 2")
    fixed = tf.TensorArray(tf.float32, size=2, infer_shape=False)
    b.step(fixed.write(i, x).flow, {i: 2, x: [1]},
           error="Tried to write to index 2 but array is not resizeable and size is: 2")
    b.step(fixed.write(i, x).flow, {i: -1, x: [1]}, error="index")
    b.step(fixed.write(0, x).write(0, x).flow, {x: [1]}, error="it has already been written to")
    b.step(fixed.read(i), {i: 1}, error="Could not read")
    shaped = tf.TensorArray(tf.float32, size=2, element_shape=[2], infer_shape=False)
    b.step(shaped.write(0, x).flow, {x: [1, 2, 3]}, error="Could not write to TensorArray index 0")


@case(*BOTH)
def map_of_vectors(b):
    x = b.feed(tf.float32, [None, 3])
    b.step(tf.map_fn(lambda v: tf.reduce_sum(v) * v, x), {x: [[1, 2, 3], [4, 5, 6]]})


@case(*BOTH)
def map_of_pairs(b):
    x, y = b.feed(tf.int32, [None]), b.feed(tf.float32, [None, 2])
    f = lambda t: (t[0] * 2, tf.cast(t[0], tf.float32) * t[1], t[1][0] > 2.0)
    out = tf.map_fn(f, (x, y), fn_output_signature=(tf.int32, tf.float32, tf.bool), parallel_iterations=2)
    b.step(list(out), {x: [1, 2, 3], y: [[1, 2], [3, 4], [5, 6]]})


@case(*BOTH)
def scan_and_fold(b):
    x = b.feed(tf.float32, [None])
    scanned = tf.scan(lambda a, v: a * 0.5 + v, x)
    backwards = tf.scan(lambda a, v: a - v, x, initializer=10.0, reverse=True)
    left, right = tf.foldl(lambda a, v: a * 2.0 + v, x), tf.foldr(lambda a, v: a * 2.0 + v, x)
    b.step([scanned, backwards, left, right], {x: [1, 2, 3, 4, 5]})
    b.step([scanned, left], {x: [7]})


@case(*BOTH)
def map_in_map(b):
    x = b.feed(tf.int32, [None, None])
    y = tf.map_fn(lambda row: tf.map_fn(lambda v: v * v + tf.reduce_max(row), row), x)
    b.step(y, {x: [[1, 2, 3], [6, 5, 4]]})


@case(*BOTH)
def rnn_by_hand(b):
    # Like dynamic_rnn: per-step masks, state passed through for finished sequences.
    x, lengths = b.feed(tf.float32, [4, 2, 3]), b.feed(tf.int32, [2])
    w = tf.constant([[0.1, -0.2], [0.3, 0.05], [-0.4, 0.25]])
    u = tf.constant([[0.5, 0.1], [-0.3, 0.2]])
    source = tf.TensorArray(tf.float32, size=4, element_shape=[2, 3]).unstack(x)
    sink = tf.TensorArray(tf.float32, size=4, element_shape=[2, 2])
    longest = tf.reduce_max(lengths)

    def body(t, h, sink):
        new = tf.tanh(source.read(t) @ w + h @ u)
        done = (t >= lengths)[:, None]
        h2 = tf.where(done, h, new)
        return [t + 1, h2, sink.write(t, tf.where(done, tf.zeros_like(new), new))]

    _, h, sink = tf.while_loop(lambda t, *_: t < longest, body, [0, tf.zeros([2, 2]), sink])
    values = [[[0.1 * (i + j + k) for k in range(3)] for j in range(2)] for i in range(4)]
    b.step([h, sink.stack()], {x: values, lengths: [4, 2]})
    b.step(h, {x: values, lengths: [0, 1]})


def frozen_lstm(lower):
    tf.keras.utils.set_random_seed(3)
    model = tf.keras.Sequential([
        tf.keras.Input((5, 3)),
        tf.keras.layers.LSTM(4, return_sequences=True, use_cudnn=False),
        tf.keras.layers.LSTM(3, use_cudnn=False),
        tf.keras.layers.Dense(2),
    ])
    f = tf.function(lambda x: model(x)).get_concrete_function(tf.TensorSpec([None, 5, 3], tf.float32))
    return convert_variables_to_constants_v2(f, lower_control_flow=lower)


def lstm(lower):
    def build(b):
        with context.eager_mode():
            f = frozen_lstm(lower)
        b.graph_def = f.graph.as_graph_def()
        values = [[[((i * 7 + j * 3 + k) % 11) / 11 - 0.5 for k in range(3)] for j in range(5)]
                  for i in range(2)]
        b.step([o.name for o in f.outputs], {f.inputs[0].name: values})
        b.step([o.name for o in f.outputs], {f.inputs[0].name: values[:1]})

    return build


case("v2", name="lstm_frozen_functional")(lstm(False))
case("v2", name="lstm_frozen_lowered")(lstm(True))


@case("v1")
def array_split_and_written_on(b):
    """The gradient of a split has the size of the split value."""
    x = b.feed(tf.float32, [None])
    ta = tf.TensorArray(tf.float32, size=3, dynamic_size=True, infer_shape=False)
    y = ta.split(x, [1, 1, 1]).write(3, [4.0]).concat()
    b.step([y, *tf.gradients(y * y, x)], {x: [1, 2, 3]})
    rows = tf.TensorArray(tf.float32, size=2, dynamic_size=True, element_shape=[])
    z = rows.unstack(x).write(2, 5.0).stack()
    b.step([z, *tf.gradients(z * z, x)], {x: [1, 2]})


@case("v1")
def scalars_in_arrays(b):
    """Loops over TensorArrays of scalars, and what they must not do."""
    x, n = b.feed(tf.float32, [None]), b.feed(tf.int32)

    def loop(body, first, start=0):
        return v1.while_loop(lambda i, _: i < n, lambda i, s: (i + 1, body(i, s)), [start, first])[1]

    def array(dtype=tf.float32, **options):
        return tf.TensorArray(dtype, size=n, **{"element_shape": [], **options})

    numbers = array(tf.int32, clear_after_read=False).write(0, 1).write(1, 1)
    numbers = loop(lambda i, t: t.write(i, t.read(i - 1) + t.read(i - 2)), numbers, 2)
    b.step(numbers.stack(), {n: 10})
    b.step(numbers.stack(), {n: 2})
    b.step(numbers.stack(), {n: 1}, error="Tried to write to index 1 but array is not resizeable and size is: 1")
    given = array().unstack(x)
    total = loop(lambda i, s: s + given.read(i), 0.0)
    b.step(total, {n: 3, x: [1, 2, 4]})
    b.step(total, {n: 3, x: [1, 2]})
    twice = loop(lambda i, s: s + given.read(i // 2), 0.0)
    b.step(twice, {n: 1, x: [5]})
    b.step(twice, {n: 2, x: [5, 6]}, error="Could not read index 0 twice because it was cleared")
    again = loop(lambda i, t: t.write(i // 2, tf.cast(i, tf.float32)), array())
    b.step(again.stack(), {n: 1})
    b.step(again.stack(), {n: 3}, error="it has already been written to")
    gaps = tf.TensorArray(tf.float32, size=n * 2, element_shape=[])
    gaps = loop(lambda i, t: t.write(i * 2, tf.cast(i + 1, tf.float32)), gaps)
    b.step([gaps.stack(), gaps.size()], {n: 3})
    grown = tf.TensorArray(tf.int32, size=1, dynamic_size=True, element_shape=[])
    grown = loop(lambda i, t: t.write(i, i * i), grown)
    b.step([grown.stack(), grown.size()], {n: 4})
    b.step(grown.stack(), {n: 1})
    written = loop(lambda i, t: t.write(i, tf.cast(i, tf.float32) * x[i]), array())
    b.step(written.read(n - 1), {n: 3, x: [1, 2, 3]})
    b.step(written.gather([0, 2]), {n: 3, x: [1, 2, 3]})
    unknown = loop(lambda i, t: t.write(i, 2.0), array(element_shape=None, infer_shape=False))
    b.step(unknown.stack(), {n: 2})
    b.step(unknown.stack(), {n: 0}, error="")
    sums = loop(lambda i, t: t.write(i, given.read(n - 1 - i) * 2.0), array())
    b.step([sums.stack(), sums.size()], {n: 3, x: [1, 2, 3]})
    b.step(sums.stack(), {n: 0, x: []})
