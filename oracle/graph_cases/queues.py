"""Queues: order, capacity, waiting, closing, batches, padding."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw

F, I = tf.float32, tf.int32
CLOSED = "is closed and has insufficient elements (requested %d, current size %d)"


def fifo(types=(F,), shapes=((),), capacity=-1, **attrs):
    return raw.FIFOQueueV2(component_types=list(types), shapes=[list(s) for s in shapes],
                           capacity=capacity, **attrs)


def put(q, *values):
    return raw.QueueEnqueueV2(handle=q, components=list(values))


def put_many(q, *values):
    return raw.QueueEnqueueManyV2(handle=q, components=list(values))


def take(q, *types):
    return list(raw.QueueDequeueV2(handle=q, component_types=list(types or (F,))))


def take_many(q, n, *types):
    return list(raw.QueueDequeueManyV2(handle=q, n=n, component_types=list(types or (F,))))


def take_up_to(q, n, *types):
    return list(raw.QueueDequeueUpToV2(handle=q, n=n, component_types=list(types or (F,))))


def size(q):
    return raw.QueueSizeV2(handle=q)


def closed(q):
    return raw.QueueIsClosedV2(handle=q)


def close(q, cancel=False):
    return raw.QueueCloseV2(handle=q, cancel_pending_enqueues=cancel)


def run(b, op, feeds=None, **more):
    b.step([], feeds, targets=op.name, **more)


@case("v1")
def fifo_in_order(b):
    x = b.feed(F)
    q = fifo()
    enqueue, dequeue = put(q, x), take(q)
    n, done = size(q), closed(q)
    b.step([n, done])
    for value in (1, 2, 3):
        run(b, enqueue, {x: value})
    b.step([n, done])
    b.step(dequeue)
    run(b, enqueue, {x: 4})
    for _ in range(3):
        b.step(dequeue)
    b.step(n)


@case("v1")
def fifo_of_tuples(b):
    x, s, y = b.feed(I, [2]), b.feed(tf.string), b.feed(F, [None, 2])
    q = fifo((I, tf.string, F), ())
    enqueue, dequeue = put(q, x, s, y), take(q, I, tf.string, F)
    run(b, enqueue, {x: [1, 2], s: b"a", y: [[1, 2]]})
    run(b, enqueue, {x: [3, 4], s: b"b", y: [[5, 6], [7, 8]]})
    b.step(dequeue)
    b.step(dequeue[1:])
    b.step(take_many(q, 1, I, tf.string, F)[0],
           error="DequeueMany and DequeueUpTo require the components to have specified shapes.")


@case("v1")
def fifo_closed(b):
    x = b.feed(F)
    q = fifo()
    enqueue, dequeue, stop = put(q, x), take(q), close(q)
    run(b, enqueue, {x: 1})
    run(b, enqueue, {x: 2})
    run(b, stop)
    b.step([size(q), closed(q)])
    run(b, enqueue, {x: 3}, error="is closed.")
    b.step(dequeue)
    b.step(dequeue)
    b.step(dequeue, error=CLOSED % (1, 0))
    run(b, stop, error="is already closed.")
    run(b, put_many(q, tf.constant([1.0])), error="is closed.")


@case("v1")
def fifo_batches(b):
    x, n = b.feed(F, [None, 2]), b.feed(I)
    q = fifo(shapes=([2],))
    enqueue, dequeue, some = put_many(q, x), take_many(q, n), take_up_to(q, n)
    run(b, enqueue, {x: [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]})
    run(b, enqueue, {x: np.zeros((0, 2))})
    b.step(size(q))
    b.step(dequeue, {n: 2})
    b.step(dequeue, {n: 0})
    b.step(some, {n: 2})
    b.step(dequeue, {n: -1}, error="DequeueManyOp requested -1 < 0 elements")
    b.step(some, {n: -1}, error="requested -1 < 0 elements")
    run(b, close(q))
    b.step(dequeue, {n: 3}, error=CLOSED % (3, 1))
    b.step(size(q))
    b.step(some, {n: 5})
    b.step(some, {n: 5}, error=CLOSED % (5, 0))
    b.step(dequeue, {n: 0})


@case("v1")
def fifo_shape_checks(b):
    x, y = b.feed(F, None), b.feed(F, None)
    q = fifo((F, F), ([2], []))
    one, many = put(q, x, y), put_many(q, x, y)
    run(b, one, {x: [1, 2, 3], y: 1}, error="Shape mismatch in tuple component 0. Expected [2], got [3]")
    run(b, one, {x: [1, 2], y: [1]}, error="Shape mismatch in tuple component 1. Expected [], got [1]")
    run(b, many, {x: [[1, 2], [3, 4]], y: [1, 2, 3]}, error="Shape mismatch in tuple component 1. Expected [2], got [3]")
    run(b, many, {x: [[1], [3]], y: [1, 2]}, error="Shape mismatch in tuple component 0. Expected [2,2], got [2,1]")
    run(b, many, {x: 1, y: [1, 2]}, error="")
    free = fifo((F, F), ())
    run(b, put_many(free, x, y), {x: [[1, 2]], y: [1, 2]}, error="All input tensors must have the same size in the 0th dimension")
    run(b, many, {x: [[1, 2], [3, 4]], y: [5, 6]})
    b.step(take(q, F, F))
    b.step(take(q, F, F))


@case("v1")
def fifo_type_checks(b):
    q = fifo((F, I), ([], []))
    run(b, put(q, tf.constant(1.0)), error="Signature mismatch, have: resource, float-> expected: resource, float, int32->")
    run(b, put(q, tf.constant(1.0), tf.constant(1.0)), error="Signature mismatch, have: resource, float, float-> expected: resource, float, int32->")
    b.step(take(q, F)[0], error="Signature mismatch, have: resource->float expected: resource->float, int32")
    b.step([size(q)])


@case("v1")
def fifo_capacity(b):
    x = b.feed(F)
    q = fifo(capacity=2)
    enqueue, dequeue = put(q, x), take(q)
    run(b, enqueue, {x: 1})
    run(b, enqueue, {x: 2})
    run(b, enqueue, {x: 3}, timeout_ms=300, error="Timed out waiting for")
    b.step(size(q))
    run(b, enqueue, {x: 4}, background=True)
    b.step(dequeue)
    b.step(dequeue)
    b.step(dequeue)
    b.step(size(q))


@case("v1")
def fifo_waits_for_elements(b):
    x = b.feed(F)
    q = fifo()
    enqueue, dequeue = put(q, x), take(q)
    b.step(dequeue, timeout_ms=300, error="Timed out waiting for")
    b.step(dequeue, background=True)
    run(b, enqueue, {x: 7})
    b.step(take_many(q, 3), background=True)
    run(b, enqueue, {x: 1})
    run(b, enqueue, {x: 2})
    run(b, enqueue, {x: 3})
    b.step(size(q))


@case("v1")
def fifo_close_wakes_waiting(b):
    q = fifo()
    b.step(take(q), background=True, error=CLOSED % (1, 0))
    run(b, close(q))
    b.step(take(q), error=CLOSED % (1, 0))


@case("v1")
def fifo_close_ends_batches(b):
    x = b.feed(F, [None])
    q, r = fifo(), fifo()
    run(b, put_many(q, x), {x: [1, 2]})
    run(b, put_many(r, x), {x: [3, 4]})
    b.step(take_many(q, 3), background=True, error=CLOSED % (1, 0))
    b.step(take_up_to(r, 3), background=True)
    run(b, close(q))
    run(b, close(r))
    b.step([size(q)])
    b.step(take(q))


@case("v1")
def fifo_partial_enqueue_many(b):
    x = b.feed(F, [None])
    q = fifo(capacity=2)
    run(b, put_many(q, x), {x: [1, 2, 3, 4, 5]}, background=True)
    b.step(size(q))
    for _ in range(5):
        b.step(take(q))
    b.step(size(q))


@case("v1")
def fifo_close_cancels_enqueues(b):
    x = b.feed(F)
    q = fifo(capacity=1)
    run(b, put(q, x), {x: 1})
    run(b, put(q, x), {x: 2}, background=True, error="Enqueue operation was cancelled")
    run(b, close(q, cancel=True))
    b.step([size(q), closed(q)])
    b.step(take(q))
    b.step(take(q), error=CLOSED % (1, 0))


@case("v1")
def fifo_shared_name(b):
    x = b.feed(F)
    q, same = fifo(shared_name="shared"), fifo(shared_name="shared")
    run(b, put(q, x), {x: 1})
    b.step([size(same)])
    b.step(take(same))
    b.step([size(fifo(shared_name="shared", capacity=3))], error="but requested capacity was 3")
    b.step([size(fifo((I,), shared_name="shared"))], error="but requested component types were")
    b.step([size(fifo(shapes=([2],), shared_name="shared"))], error="but requested component shapes were")
    other = raw.RandomShuffleQueueV2(component_types=[F], shapes=[[]], shared_name="shared")
    b.step([size(other)], error="Expected FIFOQueue, found RandomShuffleQueueV2")


@case("v1")
def fifo_in_loop(b):
    # A loop that fills a queue and one that empties it.
    n = b.feed(I)
    q = fifo((I,))

    def fill(i):
        with tf.control_dependencies([put(q, i * i)]):
            return [i + 1]

    [i] = tf.while_loop(lambda i: i < n, fill, [0], parallel_iterations=1)
    with tf.control_dependencies([i]):
        start = tf.identity(n)

    def drain(k, s):
        return [k - 1, s * 3 + take(q, I)[0]]

    _, s = tf.while_loop(lambda k, s: k > 0, drain, [start, 0], parallel_iterations=1,
                         shape_invariants=[tf.TensorShape([]), tf.TensorShape(None)])
    for value in (0, 1, 5):
        b.step([i, s], {n: value})


@case("v1")
def padding_queue(b):
    x, y = b.feed(F, [None, None]), b.feed(I, [None])
    q = raw.PaddingFIFOQueueV2(component_types=[F, I], shapes=[[None, None], [None]])
    enqueue = put(q, x, y)
    run(b, enqueue, {x: [[1, 2]], y: [1]})
    run(b, enqueue, {x: [[3], [4]], y: []})
    run(b, enqueue, {x: [[5, 6, 7]], y: [2, 3]})
    run(b, enqueue, {x: [[8]], y: [4]})
    b.step(take(q, F, I))
    b.step(take_many(q, 2, F, I))
    run(b, close(q))
    b.step(take_up_to(q, 4, F, I))


@case("v1")
def padding_queue_checks(b):
    x = b.feed(F, None)
    q = raw.PaddingFIFOQueueV2(component_types=[F], shapes=[[None, 2]])
    run(b, put(q, x), {x: [[1, 2, 3]]}, error="Shape mismatch in tuple component 0. Expected [?,2], got [1,3]")
    run(b, put(q, x), {x: [1]}, error="Shape mismatch in tuple component 0. Expected [?,2], got [1]")
    run(b, put_many(q, x), {x: [[[1, 2]], [[3, 4]]]})
    b.step(take_many(q, 2))
    b.step(take_many(q, 0))


@case("v1")
def shuffle_queue_keeps_some(b):
    x = b.feed(F, [None])
    q = raw.RandomShuffleQueueV2(component_types=[F], shapes=[[]], min_after_dequeue=2, capacity=10,
                                 seed=3, seed2=5)
    run(b, put_many(q, x), {x: [1, 2, 3, 4, 5, 6]})
    b.step([size(q)])
    b.step(take(q))
    b.step(take_many(q, 2))
    b.step(take(q))
    b.step(take_many(q, 2), timeout_ms=300, error="Timed out waiting for")
    run(b, put_many(q, x), {x: [7, 8]})
    b.step(take(q))
    run(b, close(q))
    b.step(take_up_to(q, 9))
    b.step(take(q), error=CLOSED % (1, 0))


@case("v1")
def shuffle_queue_order(b):
    x = b.feed(F, [None])
    for seeds in ((1, 2), (0, 7), (1 << 40, 123456789)):
        q = raw.RandomShuffleQueueV2(component_types=[F], shapes=[[]], seed=seeds[0], seed2=seeds[1])
        run(b, put_many(q, x), {x: list(range(20))})
        b.step(take_many(q, 12))
        for _ in range(3):
            b.step(take(q))


@case("v1")
def shuffle_queue_checks(b):
    q = raw.RandomShuffleQueueV2(component_types=[F], shapes=[[]], min_after_dequeue=3, capacity=2)
    b.step([size(q)], error="min_after_dequeue 3 must be < capacity 2")
    r = raw.RandomShuffleQueueV2(component_types=[F], shapes=[], capacity=2)
    b.step(take_many(r, 1), error="DequeueMany and DequeueUpTo require the components to have specified shapes.")
