"""Collectives among the devices of one session."""

import tensorflow as tf

from graphkit import case, raw, v1

F, I = tf.float32, tf.int32


def members(b, n, make):
    """`make(i)` for each of n devices."""
    b.n_devices, b.placed = max(n, 2), "the devices rank the members of a group"
    out = []
    for i in range(n):
        with tf.device(f"/CPU:{i}"):
            out.append(make(i))
    return out


def reduce(x, n, merge="Add", final="Id", group=1, instance=1):
    return raw.CollectiveReduce(input=x, group_size=n, group_key=group, instance_key=instance,
                                merge_op=merge, final_op=final, subdiv_offsets=[0])


@case("v1")
def collective_reduce(b):
    xs = [b.feed(F, [4]) for _ in range(3)]
    feeds = dict(zip(xs, ([1, 2, 3, 4], [10, -20, 30, 40], [5, 5, 5, 5.5])))
    instance = 0
    for merge in ("Add", "Mul", "Min", "Max"):
        for final in ("Id", "Div") if merge == "Add" else ("Id",):
            instance += 1
            b.step(members(b, 3, lambda i: reduce(xs[i], 3, merge, final, instance=instance)), feeds)


@case("v1")
def collective_reduce_of_dtypes(b):
    for instance, t in enumerate((tf.float16, tf.bfloat16, tf.float64, I, tf.int64)):
        xs = [b.feed(t, [3]), b.feed(t, [3])]
        feeds = dict(zip(xs, ([1, 2, 7], [2, 4, 4])))
        final = "Id" if t.is_integer else "Div"
        b.step(members(b, 2, lambda i: reduce(xs[i], 2, "Add", final, instance=instance)), feeds)


@case("v1")
def collective_reduce_scalars(b):
    x = b.feed(F, [])
    got = members(b, 2, lambda i: reduce(x * (i + 1), 2, final="Div"))
    again = members(b, 2, lambda i: reduce(got[i] + i, 2, instance=2))
    for value in (2, 3):
        b.step(again, {x: value})


@case("v1")
def collective_broadcast(b):
    x = b.feed(F, [2, 2])

    def make(i):
        keys = {"group_size": 3, "group_key": 1, "instance_key": 1, "shape": [2, 2]}
        if i == 1:
            return raw.CollectiveBcastSend(input=x, **keys)
        return raw.CollectiveBcastRecv(T=F, **keys)

    b.step(members(b, 3, make), {x: [[1, 2], [3, 4]]})


@case("v1")
def collective_gather(b):
    xs = [b.feed(I, [2, 2]), b.feed(I, [2, 2])]
    got = members(b, 2, lambda i: raw.CollectiveGather(
        input=xs[i], group_size=2, group_key=1, instance_key=1, shape=[4, 2]))
    b.step(got, dict(zip(xs, ([[1, 2], [3, 4]], [[5, 6], [7, 8]]))))


@case("v1")
def collective_second_versions(b):
    x, size, group, key = b.feed(F, [2]), b.feed(I, []), b.feed(I, []), b.feed(I, [])
    feeds = {x: [1, 2], size: 2, group: 3, key: 4}
    keys = {"group_size": size, "group_key": group}
    b.step(members(b, 2, lambda i: raw.CollectiveReduceV2(
        input=x + i, instance_key=key, merge_op="Add", final_op="Div", ordering_token=[], **keys)), feeds)
    b.step(members(b, 2, lambda i: raw.CollectiveGatherV2(
        input=x + i, instance_key=key + 1, ordering_token=[], **keys)), feeds)
    b.step(members(b, 2, lambda i: raw.CollectiveBcastSendV2(
        input=x, instance_key=key + 2, **keys) if i == 0 else raw.CollectiveBcastRecvV2(
        instance_key=key + 2, shape=[2], T=F, **keys)), feeds)


@case("v1")
def collective_mismatches(b):
    x, y = b.feed(F, [None]), b.feed(F, [None])
    b.n_devices = 2
    with tf.device("/CPU:0"):
        one = raw.CollectiveGather(input=x, group_size=2, group_key=1, instance_key=1, shape=None)
    with tf.device("/CPU:1"):
        two = raw.CollectiveGather(input=y, group_size=2, group_key=1, instance_key=1, shape=None)
    b.step([one, two], {x: [1, 2], y: [1]}, error="Shape mismatch in the collective instance 1.")


@case("v1")
def collective_sizes_mismatch(b):
    x = y = b.feed(F, [None])
    b.n_devices = 2
    with tf.device("/CPU:0"):
        one = reduce(x, 2, group=5, instance=2)
    with tf.device("/CPU:1"):
        two = reduce(y, 3, group=5, instance=2)
    b.step([one, two], {x: [1, 2]}, error="but that group has size")


@case("v1")
def device_index(b):
    b.step([raw.DeviceIndex(device_names=n) for n in (["CPU", "GPU"], ["TPU", "CPU"], ["TPU"])])


@case("v1")
def collective_all_to_all(b):
    for key, t in enumerate((F, tf.float16, tf.bfloat16, tf.float64, I, tf.int64)):
        x = b.feed(t, [2, 3])
        b.step(members(b, 2, lambda i: raw.CollectiveAllToAllV2(
            input=x + i, group_size=2, group_key=20, instance_key=key, ordering_token=[])), {x: [[1, 2, 3], [4, 5, 6]]})
    y = b.feed(F, [None])
    b.step(members(b, 2, lambda i: raw.CollectiveAllToAllV2(
        input=y, group_size=2, group_key=20, instance_key=50, ordering_token=[])), {y: [1, 2, 3]},
        error="input to all-to-all first dimension size (3) must be the same as the group size (2)")


@case("v1")
def collective_communicators(b):
    x = b.feed(F, [3, 2])
    none = tf.zeros([0, 0], I)

    def make(i):
        group = raw.CollectiveInitializeCommunicator(group_key=31, rank=i, group_size=3)
        first = raw.CollectiveReduceV3(input=x * (i + 1), communicator=group, group_assignment=none, reduction="Add")
        with tf.control_dependencies([first]):
            second = raw.CollectiveAllToAllV3(input=x + 10 * i, communicator=group, group_assignment=none)
        with tf.control_dependencies([second]):
            third = raw.CollectiveReduceV3(input=x + i, communicator=group, group_assignment=none, reduction="Max")
        return first, second, third

    b.step([t for got in members(b, 3, make) for t in got], {x: [[1, 2], [3, 4], [5, 6]]})


@case("v1")
def collective_communicator_errors(b):
    b.n_devices = 2
    key, rank, size = b.feed(I, None), b.feed(I, None), b.feed(I, None)
    group = raw.CollectiveInitializeCommunicator(group_key=key, rank=rank, group_size=size)
    for feeds, error in (((41, 0, 0), "group_size must be positive integer but got 0"),
                         ((41, -1, 2), "rank must be non-negative integer but got -1"),
                         ((41, 2, 2), "rank must be less than group size but got 2 >= 2"),
                         (([41], 1, 2), "Unexpected dimensions on input group_key. It shoulbe a scalar, got tensor with shape [1]")):
        b.step([], dict(zip((key, rank, size), feeds)), targets=group.op.name, error=error)


@case("v1")
def collective_reduce_scatter(b):
    # TensorFlow has it on GPUs only; here it computes the same by a reduction of which each member keeps its part.
    def scatter(x, i, key, merge, final):
        return raw.CollectiveReduceScatterV2(input=x + i, group_size=2, group_key=60, instance_key=key, ordering_token=[],
                                             merge_op=merge, final_op=final)

    def part(x, i, key, merge, final):
        whole = raw.CollectiveReduceV2(input=x + i, group_size=2, group_key=60, instance_key=key, ordering_token=[],
                                       merge_op=merge, final_op=final)
        return tf.split(whole, 2)[i]

    def build(make):
        feeds, out = [], []
        for key, (t, merge, final) in enumerate(((F, "Add", "Id"), (F, "Add", "Div"), (tf.int64, "Mul", "Id"), (tf.bfloat16, "Max", "Id"),
                                                 (tf.float64, "Min", "Id"))):
            x = b.feed(t, [None, 3], name=f"x{key}")
            feeds.append(x)
            got = members(b, 2, lambda i: tf.identity(make(x, i, key, merge, final), name=f"y{key}_{i}"))
            out.append(got)
        return feeds, out

    with tf.Graph().as_default() as asked:
        build(part)
        b.asked = asked.as_graph_def()
    feeds, out = build(scatter)
    for x, got in zip(feeds, out):
        b.step(got, {x: [[1, -2, 3], [4, 5, 6], [7, 8, 9], [1, 2, 3]]})
