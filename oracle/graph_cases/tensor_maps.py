"""Maps from tensors to tensors: EmptyTensorMap and its family."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw

F = tf.float32


def insert(handle, key, value):
    return raw.TensorMapInsert(input_handle=handle, key=key, value=value)


def size(handle):
    return raw.TensorMapSize(input_handle=handle)


@case("v1")
def inserted_and_found(b):
    key, value = b.feed(tf.int32, [2]), b.feed(F, [3])
    empty = raw.EmptyTensorMap()
    one = insert(empty, key, value)
    two = insert(one, tf.constant("k"), tf.constant([7, 8], tf.int64))
    again = insert(two, key, value * 2.0)
    less = raw.TensorMapErase(input_handle=again, key=key, value_dtype=F)
    found = [raw.TensorMapLookup(input_handle=m, key=key, value_dtype=F) for m in (one, two, again)]
    word = raw.TensorMapLookup(input_handle=less, key=tf.constant("k"), value_dtype=tf.int64)
    has = [raw.TensorMapHasKey(input_handle=m, key=key) for m in (empty, one, again, less)]
    b.step(found + [word] + has + [size(m) for m in (empty, one, two, again, less)],
           {key: np.int32([1, 2]), value: np.float32([1, 2, 3])})


@case("v1")
def keys_together(b):
    one = insert(raw.EmptyTensorMap(), tf.constant([3, 4]), tf.constant(1.0))
    b.step(raw.TensorMapStackKeys(input_handle=one, key_dtype=tf.int32))
    b.step(raw.TensorMapStackKeys(input_handle=raw.EmptyTensorMap(), key_dtype=tf.int32),
           error="TensorMapStackKeys cannot be called on empty map.")
    b.step(raw.TensorMapStackKeys(input_handle=one, key_dtype=F), error="Key does not match requested dtype.")
    mixed = insert(one, tf.constant([3]), tf.constant(1.0))
    b.step(raw.TensorMapStackKeys(input_handle=mixed, key_dtype=tf.int32),
           error="Keys must all have the same shape.")


@case("v1")
def missing_keys(b):
    one = insert(raw.EmptyTensorMap(), tf.constant([3, 4]), tf.constant(1.0))
    b.step(raw.TensorMapLookup(input_handle=one, key=tf.constant([3, 5]), value_dtype=F),
           error='Trying to lookup non-existent key. Could not find key "3 5".')
    erased = raw.TensorMapErase(input_handle=one, key=tf.constant([3.0, 4.0]), value_dtype=F)
    b.step(size(erased), error='Trying to erase non-existent item. Could not find key')
