"""Sparse tensors kept between steps: AddSparseToTensorsMap and its family."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw

AT = np.array([[0, 1], [0, 3], [2, 0], [2, 1]], np.int64)


def add_many(values, shape=(3, 4), at=AT, **attrs):
    return raw.AddManySparseToTensorsMap(sparse_indices=at, sparse_values=values,
                                         sparse_shape=np.int64(shape), **attrs)


@case("v1")
def rows_of_a_matrix(b):
    values = b.feed(tf.float32, [4])
    handles = add_many(values, shared_name="m")
    chosen = b.feed(tf.int64, [None])
    taken = raw.TakeManySparseFromTensorsMap(sparse_handles=chosen, dtype=tf.float32, shared_name="m")
    b.step(handles, {values: np.float32([1, 2, 3, 4])})
    b.step(handles, {values: np.float32([5, 6, 7, 8])})
    b.step(list(taken), {chosen: np.int64([2, 1, 3])})
    b.step(list(taken), {chosen: np.int64([2])}, error="Unable to find SparseTensor: 2 in map: m")
    b.step(list(taken), {chosen: np.int64([])}, error="Must have at least 1 serialized SparseTensor")


@case("v1")
def several_shapes_and_types(b):
    chosen = b.feed(tf.int64, [None])
    first = raw.AddSparseToTensorsMap(sparse_indices=AT, sparse_values=[b"a", b"b", b"c", b"d"],
                                      sparse_shape=np.int64([3, 4]), shared_name="s")
    second = raw.AddSparseToTensorsMap(sparse_indices=AT[:2], sparse_values=[b"e", b"f"],
                                       sparse_shape=np.int64([2, 9]), shared_name="s")
    other = raw.AddSparseToTensorsMap(sparse_indices=AT[:, :1], sparse_values=[b"e"] * 4,
                                      sparse_shape=np.int64([2]), shared_name="s")
    number = raw.AddSparseToTensorsMap(sparse_indices=AT[:2], sparse_values=[1, 2], sparse_shape=np.int64([2, 9]),
                                       shared_name="s")
    taken = raw.TakeManySparseFromTensorsMap(sparse_handles=chosen, dtype=tf.string, shared_name="s")
    for handle in (first, second, other, number):
        b.step(handle)
    b.step(list(taken), {chosen: np.int64([1, 0])})
    b.step(list(taken), {chosen: np.int64([3])}, error="Requested SparseTensor of type string")
    b.step(first)
    b.step(list(taken), {chosen: np.int64([4, 2])}, error="Inconsistent rank across SparseTensors")


@case("v1")
def bad_parts(b):
    for shape, at, error in (((3,), AT[:, :1], "Rank of input SparseTensor should be > 1, but saw rank: 1"),
                             ((2, 4), AT, "is out of bounds: need 0 <= index < [2,4]"),
                             ((3, 4), AT[::-1], "is out of order"),
                             ((3, 4), AT[:3], "Number of values must match first dimension of indices"),
                             ((3, 4, 5), AT, "Number of dimensions must match second dimension of indices")):
        place = b.feed(tf.int64, None)
        handles = add_many(np.float32([1, 2, 3, 4]), shape, place)
        b.step(handles, {place: at}, error=error)
