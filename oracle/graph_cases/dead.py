"""Hand-written Switch, Merge and loops: dead values, control edges, fetches of dead values."""

import tensorflow as tf
from google.protobuf import text_format

from graphkit import case, raw


DEAD = "does not have value"


@case("v1")
def fetch_of_dead_tensor(b):
    p, x = b.feed(tf.bool), b.feed(tf.float32)
    off, on = raw.Switch(data=x, pred=p)
    y, z = on * 2.0, off + 1.0
    b.step(y, {p: True, x: 3})
    b.step(z, {p: False, x: 3})
    b.step(y, {p: False, x: 3}, error=DEAD)
    b.step([y, z], {p: True, x: 3}, error=DEAD)
    b.step(off, {p: True, x: 3}, error=DEAD)
    b.step(on, {p: True, x: 3})


@case("v1")
def merge_of_switch(b):
    p, x = b.feed(tf.bool), b.feed(tf.float32, [2])
    off, on = raw.Switch(data=x, pred=p)
    y, index = raw.Merge(inputs=[off - 1.0, on * 10.0])
    for value in (True, False):
        b.step([y, index], {p: value, x: [1, 2]})
        b.step(index, {p: value, x: [1, 2]})


@case("v1")
def merge_of_only_dead(b):
    p, x = b.feed(tf.bool), b.feed(tf.float32)
    _, on = raw.Switch(data=x, pred=p)
    y, index = raw.Merge(inputs=[on * 2.0, on + 1.0])
    b.step([y, index], {p: False, x: 1}, error=DEAD)
    b.step(b.steps[0].targets or [], {p: False, x: 1}, targets=y.op.name)


@case("v1")
def merge_of_one(b):
    p, x = b.feed(tf.bool), b.feed(tf.float32)
    off, on = raw.Switch(data=x, pred=p)
    y, index = raw.Merge(inputs=[on])
    b.step([y, index], {p: True, x: 1})
    b.step([y, index], {p: False, x: 1}, error=DEAD)


@case("v1")
def merge_of_three(b):
    k, x = b.feed(tf.int32), b.feed(tf.int32)
    rest, first = raw.Switch(data=x, pred=tf.equal(k, 0))
    k_rest, _ = raw.Switch(data=k, pred=tf.equal(k, 0))
    last, second = raw.Switch(data=rest, pred=tf.equal(k_rest, 1))
    y, index = raw.Merge(inputs=[first + 100, second + 200, last + 300])
    for value in (0, 1, 2):
        b.step([y, index], {k: value, x: 7})


@case("v1")
def merge_of_merge(b):
    p, q, x = b.feed(tf.bool), b.feed(tf.bool), b.feed(tf.int32)
    off, on = raw.Switch(data=x, pred=p)
    q_on = raw.Switch(data=q, pred=p)[1]
    on_off, on_on = raw.Switch(data=on, pred=q_on)
    inner, i = raw.Merge(inputs=[on_off * 2, on_on * 3])
    outer, o = raw.Merge(inputs=[off, inner])
    for pv in (True, False):
        for qv in (True, False):
            b.step([outer, o], {p: pv, q: qv, x: 5})
    b.step([outer, i], {p: True, q: False, x: 5})
    b.step([i], {p: False, q: False, x: 5}, error=DEAD)


@case("v1")
def dead_predicate(b):
    # A dead predicate kills both outputs.
    p, q, x = b.feed(tf.bool), b.feed(tf.bool), b.feed(tf.int32)
    q_on = raw.Switch(data=q, pred=p)[1]
    off, on = raw.Switch(data=x, pred=q_on)
    y, i = raw.Merge(inputs=[off + 1, on + 2])
    z, j = raw.Merge(inputs=[y, raw.Switch(data=x, pred=p)[0]])
    b.step([z, j], {p: True, q: True, x: 5})
    b.step([z, j], {p: True, q: False, x: 5})
    b.step([z, j], {p: False, q: True, x: 5})
    b.step([i], {p: False, q: True, x: 5}, error=DEAD)


@case("v1")
def dead_control_edge(b):
    # A node whose control input is dead is dead, although its data is alive.
    p, x = b.feed(tf.bool), b.feed(tf.int32)
    off, on = raw.Switch(data=x, pred=p)
    with tf.control_dependencies([tf.identity(on)]):
        y = x * 2
    with tf.control_dependencies([tf.identity(off)]):
        z = x * 3
    m, i = raw.Merge(inputs=[y, z])
    b.step([m, i], {p: True, x: 4})
    b.step([m, i], {p: False, x: 4})
    b.step(y, {p: True, x: 4})
    b.step(y, {p: False, x: 4}, error=DEAD)
    b.step([], {p: False, x: 4}, targets=y.op.name)


@case("v1")
def control_edge_into_merge(b):
    # A merge waits for its control inputs, which may be dead.
    p, x = b.feed(tf.bool), b.feed(tf.int32)
    off, on = raw.Switch(data=x, pred=p)
    less, more = off - 1, on + 1
    with tf.control_dependencies([tf.identity(on, name="sometimes")]):
        m, i = raw.Merge(inputs=[less, more])
    b.step([m, i], {p: True, x: 4})
    b.step([m, i], {p: False, x: 4})


@case("v1")
def control_trigger_revives(b):
    p, x = b.feed(tf.bool), b.feed(tf.int32)
    _, on = raw.Switch(data=x, pred=p)
    with tf.control_dependencies([tf.identity(on)]):
        raw.ControlTrigger(name="trigger")
    with tf.control_dependencies([tf.compat.v1.get_default_graph().get_operation_by_name("trigger")]):
        y = x + 1
    b.step(y, {p: True, x: 4})
    b.step(y, {p: False, x: 4})


@case("v1")
def dead_through_many(b):
    # Deadness propagates through a long chain and a wide fan, and stops at one merge.
    p, x = b.feed(tf.bool), b.feed(tf.float32, [2])
    off, on = raw.Switch(data=x, pred=p)
    chain = on
    for i in range(20):
        chain = chain + float(i)
    fan = tf.add_n([tf.sin(chain * float(i)) for i in range(6)])
    y, _ = raw.Merge(inputs=[fan, off])
    b.step(y, {p: False, x: [1, 2]})
    b.step(y, {p: True, x: [0.25, 0.5]}, tol=1e-4)


@case("v1")
def constant_behind_dead_control(b):
    # A constant with a control edge from a branch is alive or dead with it.
    p = b.feed(tf.bool)
    off, on = raw.Switch(data=p, pred=p)
    with tf.control_dependencies([tf.identity(on)]):
        a = tf.constant([1.0, 2.0])
    with tf.control_dependencies([tf.identity(off)]):
        c = tf.constant([3.0])
    y, i = raw.Merge(inputs=[a * 2.0, c + 1.0])
    b.step([y, i], {p: True})
    b.step([y, i], {p: False})


@case("v1")
def loop_by_hand(b):
    n = b.feed(tf.int32)
    frame = {"frame_name": "loop", "parallel_iterations": 10}
    start = raw.Enter(data=tf.constant(0), is_constant=False, **frame)
    limit = raw.Enter(data=n, is_constant=True, **frame)
    graph = tf.compat.v1.get_default_graph()
    merged, _ = raw.Merge(inputs=[start, start])
    go = raw.LoopCond(input=merged < limit)
    off, on = raw.Switch(data=merged, pred=go)
    with tf.control_dependencies([tf.identity(on)]):
        one = tf.constant(1)
    back = raw.NextIteration(data=on + one)
    merged.op._update_input(1, back)
    out = raw.Exit(data=off)
    assert graph is out.graph
    for value in (0, 1, 5, 100):
        b.step(out, {n: value})
        b.step(out * 2, {n: value})


@case("v1")
def loop_value_fetched_inside(b):
    # Values inside a frame cannot be fetched, which is an error in TensorFlow.
    n = b.feed(tf.int32)
    inside = []

    def body(i):
        inside.append(i + 1)
        return [inside[0]]

    out = tf.while_loop(lambda i: i < n, body, [0])
    b.step(out, {n: 3})
    b.step(inside[0], {n: 3}, error="")


SWITCH_N = """
node { name: 'k' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } } }
node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } } }
node { name: 'switch' op: '_SwitchN' input: 'x' input: 'k' attr { key: 'T' value { type: DT_INT32 } }
       attr { key: 'num_outs' value { i: 3 } } }
node { name: 'a' op: 'Neg' input: 'switch' attr { key: 'T' value { type: DT_INT32 } } }
node { name: 'b' op: 'Square' input: 'switch:1' attr { key: 'T' value { type: DT_INT32 } } }
node { name: 'c' op: 'AddV2' input: 'switch:2' input: 'switch:2' attr { key: 'T' value { type: DT_INT32 } } }
node { name: 'merge' op: 'Merge' input: 'a' input: 'b' input: 'c' attr { key: 'T' value { type: DT_INT32 } }
       attr { key: 'N' value { i: 3 } } }
versions { producer: 2000 }
"""


@case("v1")
def switch_n(b):
    b.graph_def = text_format.Parse(SWITCH_N, tf.compat.v1.GraphDef())
    for value in (0, 1, 2, 3, -1):
        b.step(["merge:0", "merge:1"], {"k:0": value, "x:0": 7})


@case("v1")
def abort_in_dead_branch(b):
    p, x = b.feed(tf.bool), b.feed(tf.int32)
    off, on = raw.Switch(data=x, pred=p)
    with tf.control_dependencies([tf.identity(on)]):
        abort = raw.Abort(error_msg="given up", exit_without_error=True, name="stop")
    del abort
    with tf.control_dependencies([tf.compat.v1.get_default_graph().get_operation_by_name("stop")]):
        y = off + 0
    b.step(off, {p: False, x: 4})
    b.step([], {p: False, x: 4}, targets="stop")
    b.step(y, {p: False, x: 4}, error=DEAD)


@case("v1")
def dead_loop(b):
    # A loop all of whose inputs are dead yields dead exits.
    p, n = b.feed(tf.bool), b.feed(tf.int32)
    off, on = raw.Switch(data=n, pred=p)
    frame = {"frame_name": "loop", "parallel_iterations": 2}
    start = raw.Enter(data=on * 0, is_constant=False, **frame)
    limit = raw.Enter(data=on, is_constant=True, **frame)
    merged, _ = raw.Merge(inputs=[start, start])
    go = raw.LoopCond(input=merged < limit)
    left, kept = raw.Switch(data=merged, pred=go)
    merged.op._update_input(1, raw.NextIteration(data=kept + limit))
    out = raw.Exit(data=left)
    y, i = raw.Merge(inputs=[off - 100, out])
    b.step([y, i], {p: True, n: 5})
    b.step([y, i], {p: False, n: 5})
    b.step([out], {p: False, n: 5}, error=DEAD)
