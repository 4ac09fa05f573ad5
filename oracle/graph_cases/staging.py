"""Staging areas and staging maps."""

import tensorflow as tf

from graphkit import case, raw

F, I, L = tf.float32, tf.int32, tf.int64


def run(b, op, feeds=None, **more):
    b.step([], feeds, targets=op.name, **more)


@case("v1")
def staging_area(b):
    x, y, i = b.feed(F, None), b.feed(I, None), b.feed(I, None)
    at = {"dtypes": [F, I], "shared_name": "area", "capacity": 3}
    put = raw.Stage(values=[x, y], **{k: v for k, v in at.items() if k != "dtypes"})
    get, peek, size = list(raw.Unstage(**at)), list(raw.StagePeek(index=i, **at)), raw.StageSize(**at)
    clear = raw.StageClear(**at)
    b.step(size)
    run(b, put, {x: [1, 2], y: 3})
    run(b, put, {x: 5, y: [[4]]})
    b.step(size)
    b.step(peek, {i: 1})
    b.step(peek, {i: 0})
    b.step(get)
    b.step(size)
    run(b, put, {x: 6, y: 6})
    run(b, put, {x: 7, y: 7})
    run(b, put, {x: 8, y: 8}, background=True)
    b.step(get)
    b.step(get)
    b.step(get)
    b.step(get)
    b.step(size)
    run(b, put, {x: 9, y: 9})
    run(b, clear)
    b.step(size)
    b.step(get, background=True)
    run(b, put, {x: 10, y: 10})
    run(b, put, {x: 11, y: 11})
    b.step(peek, {i: [0]}, error="index must be scalar")
    only = raw.Unstage(dtypes=[F], shared_name="area")
    b.step(only, error="Mismatch stage/unstage: 2 vs. 1")


@case("v1")
def staging_memory(b):
    x = b.feed(F, None)
    at = {"shared_name": "small", "memory_limit": 32}
    put, get = raw.Stage(values=[x], **at), list(raw.Unstage(dtypes=[F], **at))
    run(b, put, {x: [1] * 9}, error="Attempted to insert tensors with combined size of '36' bytes into Staging Area with a memory limit of '32'.")
    run(b, put, {x: [1] * 5})
    run(b, put, {x: [2] * 4}, background=True)
    b.step(get)
    b.step(get)
    b.step(raw.StageSize(dtypes=[F], **at))


def map_case(prefix):
    def op(name):
        return getattr(raw, prefix + name)

    def fn(b):
        k, i, x, y = b.feed(L, None), b.feed(I, [None]), b.feed(F, None), b.feed(I, None)
        at = {"dtypes": [F, I], "shared_name": "map" + prefix, "capacity": 2}
        put = op("Stage")(key=k, indices=i, values=[x, y], **at)
        part = op("Stage")(key=k, indices=i, values=[x], **at)
        part_y = op("Stage")(key=k, indices=i, values=[y], **at)
        get, peek = list(op("Unstage")(key=k, indices=i, **at)), list(op("Peek")(key=k, indices=i, **at))
        sizes = [op("Size")(**at), op("IncompleteSize")(**at)]
        b.step(sizes)
        run(b, put, {k: 3, i: [0, 1], x: [1, 2], y: 3})
        run(b, part, {k: 1, i: [0], x: 7})
        b.step(sizes)
        run(b, part, {k: 1, i: [0], x: 7}, error="The tensor for index '0' for key '1' was already initialized '2'.")
        run(b, part, {k: 1, i: [2], x: 7}, error="Index '2' for key '1' was out of bounds '2'.")
        run(b, part_y, {k: 1, i: [1], y: [4]})
        b.step(sizes)
        b.step(peek, {k: 1, i: [0, 1]})
        run(b, put, {k: 9, i: [0, 1], x: [1, 2], y: 3}, background=True)
        one = op("Unstage")(key=k, indices=i, dtypes=[I], shared_name="map" + prefix, capacity=2)
        b.step(list(one), {k: 3, i: [1]})
        b.step(list(one), {k: 3, i: [1]}, error="Tensor at index '1' for key '3' has already been removed.")
        b.step(get, {k: 1, i: [0, 1]})
        b.step(get, {k: 9, i: [0, 1]})
        b.step(sizes)
        rest = op("UnstageNoKey")(indices=i, dtypes=[F], shared_name="map" + prefix, capacity=2)
        b.step([rest.key, *rest.values], {i: [0]})
        b.step(sizes)
        b.step(get, {k: 4, i: [0, 1]}, background=True)
        run(b, put, {k: 4, i: [0, 1], x: 5, y: 6})
        run(b, part, {k: 5, i: [0], x: 7})
        run(b, op("Clear")(**at))
        b.step(sizes)
        run(b, put, {k: 4, i: [1, 0], x: 5, y: 6}, error="Indices are not strictly ordered")
        run(b, put, {k: 4, i: [], x: 5, y: 6}, error="Indices are empty")
        run(b, put, {k: [], i: [0, 1], x: 5, y: 6}, error="key must not be empty")
        run(b, put, {k: [1, 2], i: [0, 1], x: 5, y: 6}, error="key must be an int64 scalar, got tensor with shape: [2]")
        b.step(get, {k: [1], i: [0, 1]}, error="key must be an int64 scalar: [1]")
        b.step(peek, {k: [1], i: [0, 1]}, error="key must be an int64 scalar: [1]")
        small = {"dtypes": [F, I], "shared_name": "tiny" + prefix, "memory_limit": 16}
        run(b, op("Stage")(key=k, indices=i, values=[x, y], **small), {k: 4, i: [0, 1], x: 6, y: [1, 2, 3, 4, 5]},
            error="Attempted to insert tensors with combined size of '20' bytes into Staging Area with a memory limit of '16'.")

    return fn


case("v1", name="staging_map")(map_case("Map"))
case("v1", name="ordered_staging_map")(map_case("OrderedMap"))


@case("v1")
def ordered_map_order(b):
    k, x = b.feed(L), b.feed(F)
    at = {"dtypes": [F], "shared_name": "ordered"}
    put = raw.OrderedMapStage(key=k, indices=[0], values=[x], **at)
    get = raw.OrderedMapUnstageNoKey(indices=[0], **at)
    for key in (5, -2, 9, 3):
        run(b, put, {k: key, x: key * 10})
    for _ in range(4):
        b.step([get.key, *get.values])
