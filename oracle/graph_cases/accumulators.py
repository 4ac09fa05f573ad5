"""Conditional accumulators, barriers, priority queues and mutexes."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw

F, I, L, S = tf.float32, tf.int32, tf.int64, tf.string


def run(b, op, feeds=None, **more):
    b.step([], feeds, targets=op.name, **more)


def dense(kind, dtype=F, shape=(None,), reduction_type="MEAN", **attrs):
    make = raw.ConditionalAccumulator if kind == "ref" else raw.ResourceConditionalAccumulator
    return make(dtype=dtype, shape=list(shape), reduction_type=reduction_type, **attrs)


def ops(kind):
    names = ("ApplyGradient", "TakeGradient", "NumAccumulated", "SetGlobalStep")
    prefix = "Accumulator" if kind == "ref" else "ResourceAccumulator"
    return [getattr(raw, prefix + name) for name in names]


def dense_case(kind):
    def fn(b):
        apply, take, count, set_step = ops(kind)
        for dtype in (F, tf.float64, tf.half):
            for reduction in ("MEAN", "SUM"):
                x, step, n = b.feed(dtype, None), b.feed(L), b.feed(I)
                a = dense(kind, dtype, [2], reduction)
                put = apply(handle=a, local_step=step, gradient=x)
                got = take(handle=a, num_required=n, dtype=dtype)
                run(b, put, {x: [1, 2], step: 0})
                run(b, put, {x: [0.1, 7], step: 0})
                run(b, put, {x: [3, 1.5], step: 5})
                b.step(count(handle=a))
                b.step(got, {n: 2})
                b.step(count(handle=a))
                run(b, put, {x: [3, 1.5], step: 0})
                b.step(count(handle=a))
                run(b, put, {x: [4, 2], step: 1})
                b.step(got, {n: 1})
                run(b, set_step(handle=a, new_global_step=step), {step: 10})
                run(b, put, {x: [3, 1.5], step: 9})
                b.step(count(handle=a))
                run(b, put, {x: [4, 2, 3], step: 10}, error="Shape mismatch: expected [2], got [3]")
                b.step(got, {n: 0}, error="Argument num_required must be positive, but was 0")
                b.step(got, {n: -1}, error="Argument num_required must be positive, but was -1")
    return fn


def waiting_case(kind):
    def fn(b):
        apply, take, count, _ = ops(kind)
        x, step, n = b.feed(F, None), b.feed(L), b.feed(I)
        a = dense(kind, F, [None])
        put = apply(handle=a, local_step=step, gradient=x)
        b.step(take(handle=a, num_required=n, dtype=F), {n: 2}, background=True)
        run(b, put, {x: [1, 2, 3], step: 0})
        run(b, put, {x: [3, 2, 1], step: 0})
        run(b, put, {x: [3, 2], step: 1})
        run(b, put, {x: [3, 2, 1], step: 1}, error="Shape mismatch: expected [2], got [3]")
        b.step(take(handle=a, num_required=n, dtype=F), {n: 2}, timeout_ms=300, error="Timed out waiting for")
        b.step(count(handle=a))
    return fn


for kind in ("ref", "resource"):
    case("v1", name=f"accumulator_{kind}")(dense_case(kind))
    case("v1", name=f"accumulator_waits_{kind}")(waiting_case(kind))


@case("v1")
def sparse_accumulator(b):
    for dtype, reduction in ((F, "MEAN"), (tf.float64, "SUM"), (tf.half, "MEAN")):
        idx, val, shape, step = b.feed(L, None), b.feed(dtype, None), b.feed(L, None), b.feed(L)
        a = raw.SparseConditionalAccumulator(dtype=dtype, shape=[4, None], reduction_type=reduction)
        put = [raw.SparseAccumulatorApplyGradient(
            handle=a, local_step=step, gradient_indices=idx, gradient_values=val,
            gradient_shape=shape, has_known_shape=known) for known in (True, False)]
        got = list(raw.SparseAccumulatorTakeGradient(handle=a, num_required=1, dtype=dtype))

        def add(i, v, s=(4, 2), known=True, at=0, **more):
            run(b, put[0 if known else 1], {idx: i, val: v, shape: s, step: at}, **more)

        add([0, 2], [[1, 2], [3, 4]])
        add([0, 1, 2, 3], [[1, 1], [5, 6], [7, 8], [9, 10]])
        add([3], [[0.5, 0.25]], known=False)
        b.step(raw.AccumulatorNumAccumulated(handle=a))
        b.step(got)
        add([0, 2], [[1, 2], [3, 4]])
        add([1], [[1, 2, 3]], at=1, s=(4, 3))
        b.step(got)
        add([1], [[1, 2, 3]], at=2, s=(4,), error="Shape mismatch: expected shape rank at least 2, got 1")
        add([1], [[1, 2, 3]], at=2, s=(5, 3), error="Shape mismatch: expected shape dim 0 to be 4, got 5")
        add([4], [[1, 2, 3]], at=2, s=(4, 3), error="Shape mismatch: index of slice 0 exceeded limits of shape; index is 4 exceeded 4")
        add([1], [1], at=2, s=(4, 3), error="Shape mismatch: expected values rank at least 2, got 1")
        add([1, 2], [[1, 2]], at=2, error="Expected 2 non-empty input values, got 1")
        add([[1]], [[1, 2]], at=2, error="Input indices should be vector but received shape: [1,1]")
        add([1], 1, at=2, error="Values cannot be 0-dimensional.")
        add([1], [[1, 2]], at=2)
        add([1], [[1, 2, 3]], at=2, known=False, error="Shape mismatch: expected values dim 1 to be 2, got 3")
        add([1], [[[1, 2]]], at=2, known=False, error="Shape mismatch: expected values rank 2, got 3")
    free = raw.SparseConditionalAccumulator(dtype=F, shape=None)
    run(b, raw.SparseAccumulatorApplyGradient(handle=free, local_step=tf.constant(0, L), gradient_indices=tf.constant([7], L),
                                              gradient_values=tf.constant([2.5]), gradient_shape=tf.zeros([0], L), has_known_shape=False))
    b.step(list(raw.SparseAccumulatorTakeGradient(handle=free, num_required=1, dtype=F)))


def insert(h, keys, values, component=0):
    return raw.BarrierInsertMany(handle=h, keys=keys, values=values, component_index=component)


def take(h, n, *types, small=False):
    out = raw.BarrierTakeMany(handle=h, num_elements=n, component_types=list(types or (F,)), allow_small_batch=small)
    return [out.indices, out.keys, *out.values]


@case("v1")
def barrier_of_pairs(b):
    keys, x, y, n = b.feed(S, [None]), b.feed(F, [None]), b.feed(I, [None, 2]), b.feed(I)
    h = raw.Barrier(component_types=[F, I], shapes=[[], [2]], shared_name="B")
    first, second = insert(h, keys, x), insert(h, keys, y, 1)
    sizes = [raw.BarrierReadySize(handle=h), raw.BarrierIncompleteSize(handle=h)]
    run(b, first, {keys: [b"a", b"b", b"c"], x: [1, 2, 3]})
    b.step(sizes)
    run(b, second, {keys: [b"c", b"a"], y: [[1, 2], [3, 4]]})
    b.step(sizes)
    run(b, first, {keys: [b"d"], x: [4]})
    run(b, second, {keys: [b"d", b"b"], y: [[5, 6], [7, 8]]})
    b.step(sizes)
    b.step(take(h, n, F, I), {n: 2})
    b.step(take(h, n, F, I), {n: 2})
    run(b, first, {keys: [b"a"], x: [4]})
    run(b, first, {keys: [b"a"], x: [4]}, error="Key a already has a value for component 0 in barrier B")
    run(b, second, {keys: [b"e"], y: np.zeros((0, 2))}, error="")
    run(b, insert(h, keys, x, 1), {keys: [b"e"], x: [1]}, error="Signature mismatch, have: string_ref, string, float-> expected: string_ref, string, int32->")
    run(b, insert(h, keys, x, 2), {keys: [b"e"], x: [1]}, error="The component ID is out of range 2 > num_components (= 2)")
    b.step(take(h, n, F, F), {n: 1}, error="Signature mismatch, have: ")
    b.step(take(h, n, F, I), {n: 0})


@case("v1")
def barrier_order(b):
    keys, x, n = b.feed(S, [None]), b.feed(F, [None]), b.feed(I)
    h = raw.Barrier(component_types=[F], shapes=[[]])
    put = insert(h, keys, x)
    for start in (0, 7, 9, 23):
        run(b, put, {keys: [b"k%d" % (start + i) for i in range(start % 5 + 3)], x: [float(i) for i in range(start % 5 + 3)]})
    b.step(take(h, n), {n: 5})
    b.step(take(h, n), {n: 3})
    b.step(take(h, n), {n: 6})


@case("v1")
def barrier_closed(b):
    keys, x, y, n = b.feed(S, [None]), b.feed(F, [None]), b.feed(F, [None]), b.feed(I)
    h = raw.Barrier(component_types=[F, F], shapes=[[], []], shared_name="C")
    first, second = insert(h, keys, x), insert(h, keys, x, 1)
    some = take(h, n, F, F, small=True)
    run(b, first, {keys: [b"a", b"b"], x: [1, 2]})
    run(b, second, {keys: [b"a"], x: [3]})
    run(b, raw.BarrierClose(handle=h))
    run(b, raw.BarrierClose(handle=h), error="Barrier 'C' is already closed.")
    run(b, first, {keys: [b"z"], x: [4]}, error="Barrier C is closed, but attempted to insert a brand new key: z.  Pending enqueues cancelled: 0.  Insertion index: 0.  Number of incomplete keys: 1.")
    b.step(take(h, n, F, F), {n: 3}, error="Barrier 'C' is closed and has insufficient elements (requested 3, total size 2)")
    b.step(some, {n: 5})
    run(b, second, {keys: [b"b"], x: [4]})
    b.step(some, {n: 5})
    b.step(some, {n: 5}, error="Barrier 'C' is closed and has insufficient elements (requested 0, total size 0)")
    run(b, second, {keys: [b"b"], x: [4]}, error="Barrier C is closed.  Pending enqueues cancelled: 0.  Number of new insertions: 1.  Number of incomplete keys: 0.")
    g = raw.Barrier(component_types=[F, F], shapes=[[], []], shared_name="G")
    run(b, insert(g, keys, x), {keys: [b"a", b"b"], x: [1, 2]})
    run(b, raw.BarrierClose(handle=g, cancel_pending_enqueues=True))
    b.step(raw.BarrierIncompleteSize(handle=g))
    run(b, insert(g, keys, x, 1), {keys: [b"a", b"b"], x: [1, 2]}, error="Barrier G is closed.  Pending enqueues cancelled: 1.  Number of new insertions: 2.  Number of incomplete keys: 0.")


@case("v1")
def barrier_waits(b):
    keys, x, n = b.feed(S, [None]), b.feed(F, [None]), b.feed(I)
    h = raw.Barrier(component_types=[F], shapes=[[]])
    b.step(take(h, n), {n: 2}, timeout_ms=300, error="Timed out waiting for")
    b.step(take(h, n), {n: 3}, background=True)
    run(b, insert(h, keys, x), {keys: [b"a"], x: [1]})
    run(b, insert(h, keys, x), {keys: [b"b", b"c"], x: [2, 3]})
    b.step(raw.BarrierReadySize(handle=h))
    other = raw.Barrier(component_types=[F], shapes=[[]], shared_name="D")
    b.step(take(other, n), {n: 1}, background=True, error="PriorityQueue 'D_queue' is closed and has insufficient elements (requested 1, current size 0)")
    run(b, raw.BarrierClose(handle=other))


@case("v1")
def barrier_checks(b):
    b.step(raw.BarrierReadySize(handle=raw.Barrier(component_types=[F], shapes=[])), error="All of the component shapes must be specified")
    b.step(raw.BarrierReadySize(handle=raw.Barrier(component_types=[F], shapes=[[]], capacity=3)), error="Barrier only accepts capacity=-1.")
    h = raw.Barrier(component_types=[F], shapes=[[]], shared_name="same")
    b.step(raw.BarrierReadySize(handle=h))
    b.step(raw.BarrierReadySize(handle=raw.Barrier(component_types=[I], shapes=[[]], shared_name="same")), error="Shared barrier 'same' has component types float but requested component types were int32")
    b.step(raw.BarrierReadySize(handle=raw.Barrier(component_types=[F], shapes=[[2]], shared_name="same")), error="Shared barrier 'same' has component shapes [[]] but requested component shapes were [[2]]")
    run(b, insert(h, tf.constant([b"x"]), tf.constant([[1.0]])), error="Shape mismatch in tuple component 2. Expected [], got [1]")


@case("v1")
def priority_queue(b):
    p, s, n = b.feed(L, [None]), b.feed(S, [None]), b.feed(I)
    for make, put, get, many, up_to, size, close in (
        (raw.PriorityQueueV2, raw.QueueEnqueueManyV2, raw.QueueDequeueV2, raw.QueueDequeueManyV2, raw.QueueDequeueUpToV2, raw.QueueSizeV2, raw.QueueCloseV2),
        (raw.PriorityQueue, raw.QueueEnqueueMany, raw.QueueDequeue, raw.QueueDequeueMany, raw.QueueDequeueUpTo, raw.QueueSize, raw.QueueClose),
    ):
        q = make(component_types=[S], shapes=[[]], capacity=20)
        run(b, put(handle=q, components=[p, s]), {p: [5, 3, 9, 3, 1, 3, 5], s: [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]})
        b.step(size(handle=q))
        b.step(list(get(handle=q, component_types=[L, S])))
        b.step(list(many(handle=q, n=n, component_types=[L, S])), {n: 3})
        run(b, put(handle=q, components=[p, s]), {p: [4, -7, 5], s: [b"h", b"i", b"j"]})
        b.step(list(many(handle=q, n=n, component_types=[L, S])), {n: 2})
        run(b, close(handle=q))
        b.step(list(up_to(handle=q, n=n, component_types=[L, S])), {n: 4})
        b.step(list(get(handle=q, component_types=[L, S])), error="is closed and has insufficient elements (requested 1, current size 0)")


@case("v1")
def fake_queue(b):
    x = b.feed(F, [None])
    q = raw.FIFOQueueV2(component_types=[F], shapes=[[]])
    old = raw.FakeQueue(resource=q)
    run(b, raw.QueueEnqueueManyV2(handle=q, components=[x]), {x: [1, 2, 3]})
    b.step([raw.QueueSizeV2(handle=q)])


@case("v1")
def critical_sections(b):
    x = b.feed(F)
    m = raw.MutexV2(shared_name="m")
    v = tf.compat.v1.get_variable("v", initializer=0.0, use_resource=True)
    run(b, v.initializer)
    total = []
    for _ in range(4):
        lock = raw.MutexLock(mutex=m)
        with tf.control_dependencies([lock]):
            new = v.read_value() + x
            with tf.control_dependencies([v.assign(new)]):
                read = tf.identity(v.read_value())
        with tf.control_dependencies([read]):
            used = raw.ConsumeMutexLock(mutex_lock=lock)
        total.append(used)
    run(b, tf.group(*total), {x: 2})
    b.step(v.read_value())
    run(b, tf.group(*total), {x: 3})
    b.step(v.read_value())
    run(b, raw.ConsumeMutexLock(mutex_lock=raw.EmptyTensorList(element_shape=tf.constant(-1), max_num_elements=tf.constant(1), element_dtype=F)),
        error="Expected input to contain a SharedLockReleaser object, but saw variant: '")
