from common import *

a, b, c = (tf.placeholder(tf.float32, [], name=n) for n in "abc")
r1 = tf.add(a, b, name="r1")
r2 = tf.multiply(r1, c, name="r2")
with session() as s:
    h = s.partial_run_setup([r1, r2], [a, b, c])
    print(s.partial_run(h, r1, {a: 1, b: 2}))
    print(s.partial_run(h, r2, {c: 17}))
    h1 = s.partial_run_setup([r1, r2], [a, b, c])
    h2 = s.partial_run_setup([r1, r2], [a, b, c])
    print(s.partial_run(h1, r1, {a: 1, b: 2}), s.partial_run(h2, r1, {a: 5, b: 6}))
    print(s.partial_run(h2, r2, {c: 3}), s.partial_run(h1, r2, {c: 2}))
    h = s.partial_run_setup([r1, r2], [a, b, c])
    print(s.partial_run(h, r1, {a: 1, b: 2}))
    show("fetched twice", lambda: s.partial_run(h, r1))
    show("fed twice, later", lambda: s.partial_run(h, r2, {a: 1}))
    print(s.partial_run(h, r2, {c: 4}))
    h = s.partial_run_setup([r1, r2], [a, b, c])
    show("too early", lambda: s.partial_run(h, r2, {a: 1, b: 2}))
    show("no such step", lambda: s.partial_run("unknown", r1, {a: 1}))
    h = s.partial_run_setup([r1], [a, b])
    s.partial_run(h, [], {a: 1})
    show("fed twice", lambda: s.partial_run(h, [], {a: 1}))
    print(s.partial_run(h, r1, {b: 4}))
    checked = tf.debugging.check_numerics(tf.math.log(a), "bad", name="checked")
    for _ in range(10):
        h = s.partial_run_setup([checked, r1], [a, b])
        try:
            s.partial_run(h, checked, {a: -1})
        except tf.errors.OpError as error:
            print(type(error).__name__, error.op.name if error.op else None)
