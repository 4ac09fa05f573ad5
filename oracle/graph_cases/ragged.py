"""Ragged and sparse tensors as variants."""

import tensorflow as tf

from graphkit import case, raw

F, I, L = tf.float32, tf.int32, tf.int64


def to_variant(splits, values, batched=True):
    return raw.RaggedTensorToVariant(rt_nested_splits=splits, rt_dense_values=values,
                                     batched_input=batched)


def from_variant(encoded, input_rank, output_rank, dtype=F):
    got = raw.RaggedTensorFromVariant(encoded_ragged=encoded, input_ragged_rank=input_rank,
                                      output_ragged_rank=output_rank, Tvalues=dtype, Tsplits=L)
    return [*got.output_nested_splits, got.output_dense_values]


@case("v1")
def ragged_variants(b):
    s, x = b.feed(L, [None]), b.feed(F, [None, 2])
    feeds = {s: [0, 2, 2, 3], x: [[1, 2], [3, 4], [5, 6]]}
    rows = to_variant([s], x)
    b.step(from_variant(rows, 0, 1), feeds)
    b.step(from_variant(rows[0], 0, 0), feeds)
    b.step(from_variant(tf.stack([rows[2], rows[0]]), 0, 1), feeds)
    b.step(from_variant(rows, -1, 1), feeds)
    b.step(from_variant(to_variant([s], x, False), 1, 1), feeds)
    b.step(from_variant(tf.reshape(tf.stack([rows[2], rows[0], rows[1], rows[0]]), [2, 2]), 0, 2), feeds)
    b.step(from_variant(to_variant([], x), 0, 1), feeds)
    b.step(from_variant(rows, 1, 2)[0], feeds, error="Expected ragged_rank=1")
    b.step(from_variant(rows, 0, 1, I)[1], feeds, error="Expected values Tensor dtype: int32, found: float")


@case("v1")
def ragged_variants_nested(b):
    outer, inner, x = b.feed(L, [None]), b.feed(L, [None]), b.feed(F, [None])
    feeds = {outer: [0, 2, 3], inner: [0, 1, 3, 6], x: [1, 2, 3, 4, 5, 6]}
    rows = to_variant([outer, inner], x)
    b.step(from_variant(rows, 1, 2), feeds)
    b.step(from_variant(rows[1], 1, 1), feeds)
    b.step(from_variant(tf.stack([rows[1], rows[0], rows[1]]), 1, 2), feeds)
    b.step(from_variant(rows, 1, 2)[0], feeds | {inner: [0, 3, 1, 6]}, error="")


@case("v1")
def ragged_map(b):
    x = b.feed(I, [4])
    ragged = tf.RaggedTensor.from_row_lengths(x, [1, 0, 3])
    doubled = tf.map_fn(lambda r: r * 2, ragged)
    b.step([doubled.values, doubled.row_splits], {x: [1, 2, 3, 4]})


@case("v1")
def sparse_variants(b):
    at, x = b.feed(L, [None, 2]), b.feed(I, [None])
    feeds = {at: [[0, 1], [2, 0], [2, 3]], x: [5, 6, 7]}
    parts = dict(sparse_indices=at, sparse_values=x, sparse_shape=tf.constant([3, 4], L))
    one = raw.SerializeSparse(out_type=tf.variant, **parts)
    many = raw.SerializeManySparse(out_type=tf.variant, **parts)
    b.step(list(raw.DeserializeSparse(serialized_sparse=one, dtype=I)), feeds)
    b.step(list(raw.DeserializeSparse(serialized_sparse=many, dtype=I)), feeds)
    b.step(list(raw.DeserializeSparse(serialized_sparse=many[1], dtype=I)), feeds)
    b.step(list(raw.DeserializeSparse(serialized_sparse=tf.stack([one, one]), dtype=I)), feeds)


@case("v1")
def sparse_map(b):
    x = b.feed(I, [3])
    sparse = tf.SparseTensor([[0, 1], [2, 0], [2, 3]], x, [3, 4])
    got = tf.map_fn(lambda s: tf.sparse.map_values(tf.multiply, s, 3), sparse)
    b.step([got.indices, got.values, got.dense_shape], {x: [1, 2, 3]})
