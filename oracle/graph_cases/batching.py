"""Batches of calls that arrive at about the same time, and SyncDevice."""

import tensorflow as tf
from tensorflow.python.framework import function

from graphkit import case, raw

F, I, L = tf.float32, tf.int32, tf.int64


def batched(f, inputs, types, captured=(), max_batch_size=10, micros=0, **attrs):
    return list(raw.BatchFunction(
        in_tensors=inputs, captured_tensors=list(captured), f=f, num_batch_threads=1,
        max_batch_size=max_batch_size, batch_timeout_micros=micros, Tout=types, **attrs))


@case("v1")
def batch_function(b):
    x, y = b.feed(F, None), b.feed(I, None)

    @function.Defun(F, I, F)
    def f(x, y, scale):
        return x * scale, y + tf.size(y)

    scale = tf.constant(3.0)
    out = batched(f, [x, y], [F, I], [scale], allowed_batch_sizes=[2, 5, 10])
    b.step(out, {x: [1, 2], y: [3, 4]})
    b.step(out, {x: [[1, 2], [3, 4], [5, 6]], y: [3, 4, 5]})
    b.step(out, {x: [], y: []})
    b.step(out, {x: 1, y: [2]}, error="Batching input tensors must have at least one dimension.")
    b.step(out, {x: [1], y: [2, 3]}, error="Batching input tensors supplied in a given op invocation must have equal 0th-dimension size.")
    b.step(out, {x: [1] * 11, y: [2] * 11}, error="Task size 11 is larger than maximum input batch size 10")
    split = batched(f, [x, y], [F, I], [scale], max_batch_size=7, allowed_batch_sizes=[1, 3], enable_large_batch_splitting=True)
    b.step(split[0], {x: [1, 2, 3, 4, 5, 6, 7], y: [1, 2, 3, 4, 5, 6, 7]})


@case("v1")
def batch_function_joins(b):
    x = b.feed(F, None)

    @function.Defun(F)
    def f(x):
        return x + tf.reduce_sum(x)

    out = batched(f, [x], [F], max_batch_size=3, micros=60_000_000)
    b.step(out, {x: [1]}, background=True)
    b.step(out, {x: [10, 100]})
    b.step(out, {x: [5, 6, 7]})
    late = batched(f, [x], [F], max_batch_size=3, micros=1000)
    b.step(late, {x: [1, 2]})


@case("v1")
def batch_function_errors(b):
    x = b.feed(F, None)

    @function.Defun(F)
    def scalar(x):
        return tf.reduce_sum(x)

    @function.Defun(F)
    def short(x):
        return x[1:]

    b.step(batched(scalar, [x], [F]), {x: [1, 2]}, error="Batched output tensor has 0 dimensions")
    b.step(batched(short, [x], [F]), {x: [1, 2]}, error="Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input tensors")
    b.step(batched(short, [x], [F], allowed_batch_sizes=[3, 2]), {x: [1, 2]}, error="allowed_batch_sizes entries must be monotonically increasing")
    b.step(batched(short, [x], [F], allowed_batch_sizes=[2, 3]), {x: [1, 2]}, error="final entry in allowed_batch_sizes must equal max_batch_size")


@case("v1")
def batch_and_unbatch(b):
    x, y = b.feed(F, None), b.feed(I, None)
    tensors, index, key = raw.Batch(in_tensors=[x, y], num_batch_threads=1, max_batch_size=8, batch_timeout_micros=0,
                                    grad_timeout_micros=0, allowed_batch_sizes=[1, 4, 8])
    b.step(list(tensors), {x: [[1, 2], [3, 4]], y: [5, 6]})
    b.step([index[:, 1:]], {x: [[1, 2], [3, 4]], y: [5, 6]})
    back = raw.Unbatch(batched_tensor=tensors[0] * 2, batch_index=index, id=key, timeout_micros=10_000_000)
    b.step(back, {x: [[1, 2], [3, 4], [5, 6]], y: [5, 6, 7]})
    grad = raw.UnbatchGrad(original_input=tensors[0], batch_index=index, grad=back + 1, id=key)
    b.step(grad, {x: [[1, 2], [3, 4], [5, 6], [7, 8]], y: [5, 6, 7, 8]})


@case("v1")
def unbatch_by_hand(b):
    x, index, key = b.feed(F, None), b.feed(L, None), b.feed(L, None)
    out = raw.Unbatch(batched_tensor=x, batch_index=index, id=key, timeout_micros=30_000_000)
    b.step(out, {x: [[1, 2], [3, 4], [5, 6]], index: [[7, 0, 1], [8, 1, 3]], key: 7})
    b.step(out, {x: [[1, 2]], index: [[9, 0, 1]], key: 8}, background=True)
    b.step(out, {x: [[1, 2]], index: [[1, 0, 1], [2, 1, 2]], key: 1},
           error="Wrong shape for index tensor. Expected 0th dimension size to be no greater than 1; Got: 2.")
    b.step(out, {x: [[1, 2]], index: [[1, 0]], key: 1}, error="Wrong shape for index tensor. Expected 1st dimension size to be 3 ; Got: 2.")
    b.step(out, {x: [[1, 2]], index: [[1, 0, 1]], key: [1]}, error="Input id should be scalar; Got: ")
    late = raw.Unbatch(batched_tensor=x, batch_index=index, id=key, timeout_micros=1000)
    b.step(late, {x: [[1, 2]], index: [[3, 0, 1]], key: 4}, error="Batched data did not arrive within timeout window.")
    g = b.feed(F, None)
    grad = raw.UnbatchGrad(original_input=x, batch_index=index, grad=g, id=key)
    b.step(grad, {x: [[1, 2], [3, 4]], index: [[1, 0, 1], [2, 1, 2]], g: [[5, 6]], key: 1}, background=True)
    b.step(grad, {x: [], index: [], g: [[7, 8]], key: 2})
    b.step(grad, {x: [[1, 2]], index: [], g: [[7, 8]], key: 3}, error="batch_index is empty while the tensor isn't.")
    b.step(grad, {x: [[1, 2]], index: [[1, 2]], g: [[7, 8]], key: 5}, error="batch_index should contain 3 elements. Received 2")


@case("v1")
def sync_device(b):
    b.step([], targets=raw.SyncDevice().name)
