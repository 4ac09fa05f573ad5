from common import *

x = tf.placeholder(tf.float32, [2, None], name="x")
y = tf.matmul(x, tf.constant([[1.0, 2.0], [3.0, 4.0]]), name="y")
mixed = [tf.constant(v) for v in (1, 2.5, True, b"text", 3 + 4j, [[1, 2], [3, 4]])]
typed = [
    tf.cast(tf.constant([0, 1, 100]), t)
    for t in (tf.float16, tf.bfloat16, tf.float64, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int64,
              tf.uint32, tf.uint64, tf.bool, tf.complex64, tf.complex128)
]
with session() as s:
    names = [d.name for d in s.list_devices()]
    print(len(names), sorted(names))
    print(s.run(y, {x: [[1, 1], [2, 2]]}).tolist())
    print(s.run({"y": y, "list": [y, y[0]]}, {x: [[1, 1], [2, 2]]}))
    for v in s.run(mixed):
        print(repr(v.tolist() if hasattr(v, "tolist") else v))
    for v in s.run(typed):
        print(v.dtype, v.tolist())
    print(s.run(tf.constant([b"", b"\0\xff", b"a" * 300])).tolist()[:2])
    strings = tf.placeholder(tf.string, [None])
    print(s.run(tf.string_join([strings, strings], "-"), {strings: [b"a", b"", b"\0b"]}).tolist())
    print(s.run(tf.zeros([0, 3])).shape, s.run(tf.no_op()))
    # Any tensor can be fed.
    print(s.run(y * 2.0, {y: [[1.0, 1.0], [1.0, 1.0]]}).tolist())
    big = np.arange(1 << 20, dtype=np.float64)
    wide = tf.placeholder(tf.float64, [None])
    print(np.array_equal(s.run(wide + 1.0, {wide: big}), big + 1))
    for i in range(5):
        print(s.run(tf.add(i, 1, name=f"extended_{i}")))
