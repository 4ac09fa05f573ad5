"""Lookup tables with handles that are strings, as old graphs have them."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw

S, L, F = tf.string, tf.int64, tf.float32


@case("v1")
def static_tables_by_reference(b):
    k, v, d = b.feed(S, None), b.feed(L, None), b.feed(L, None)
    t = raw.HashTable(key_dtype=S, value_dtype=L, shared_name="t")
    init = raw.InitializeTable(table_handle=t, keys=k, values=v).name
    find = raw.LookupTableFind(table_handle=t, keys=k, default_value=d)
    size = raw.LookupTableSize(table_handle=t)
    keys, values = raw.LookupTableExport(table_handle=t, Tkeys=S, Tvalues=L)
    b.step(size)
    b.step(find, {k: ["a"], d: 0}, error="Table not initialized.")
    b.step(targets=init, feeds={k: ["a", "b"], v: [1]}, error="Keys and values must have the same size 2 vs 1")
    b.step(targets=init, feeds={k: ["a", "b", "a"], v: [1, 2, 1]})
    b.step(size)
    b.step(find, {k: [["b", "x"], ["", "a"]], d: -1})
    b.step(find, {k: "b", d: -1})
    b.step(find, {k: ["b", "x"], d: [7, 8, 9]}, error="Expected shape [] or [2] for default value, got [3]")
    b.step([tf.reduce_sum(values), tf.size(keys)])
    b.step(targets=raw.LookupTableInsert(table_handle=t, keys=k, values=v).name, feeds={k: ["z"], v: [1]},
           error="Insert not supported by InitializableLookupTable implementations")
    wrong = raw.LookupTableFind(table_handle=t, keys=tf.constant([1], L), default_value=d)
    b.step(wrong, {d: 0}, error="Signature mismatch")
    again = raw.HashTable(key_dtype=S, value_dtype=L, shared_name="t")
    b.step(raw.LookupTableFind(table_handle=again, keys=k, default_value=d), {k: ["b", "x"], d: -1})


@case("v1")
def mutable_tables_by_reference(b):
    k, v, d = b.feed(L, None), b.feed(F, None), b.feed(F, None)
    t = raw.MutableHashTable(key_dtype=L, value_dtype=F, name="T")
    insert = raw.LookupTableInsert(table_handle=t, keys=k, values=v).name
    imported = raw.LookupTableImport(table_handle=t, keys=k, values=v).name
    find = raw.LookupTableFind(table_handle=t, keys=k, default_value=d)
    size = raw.LookupTableSize(table_handle=t)
    keys, values = raw.LookupTableExport(table_handle=t, Tkeys=L, Tvalues=F)
    b.step(find, {k: [1, 2], d: 0.5})
    b.step(targets=insert, feeds={k: [1, 2, 1], v: [10, 20, 30]})
    b.step([find, size], {k: [1, 2, 3], d: -1})
    b.step([tf.reduce_sum(keys), tf.reduce_sum(values)])
    b.step(targets=insert, feeds={k: [1, 2], v: [10]}, error="Expected shape [2] for value, got [1]")
    b.step(targets=imported, feeds={k: [4], v: [44]})
    b.step([keys, values, size])
    init = raw.InitializeTable(table_handle=t, keys=k, values=v).name
    b.step(targets=init, feeds={k: [1], v: [1]}, error="is not initializable")


@case("v1")
def tables_of_vectors_by_reference(b):
    k, v, d = b.feed(S, None), b.feed(L, None), b.feed(L, None)
    t = raw.MutableHashTableOfTensors(key_dtype=S, value_dtype=L, value_shape=[2], shared_name="t")
    insert = raw.LookupTableInsert(table_handle=t, keys=k, values=v).name
    find = raw.LookupTableFind(table_handle=t, keys=k, default_value=d)
    b.step(targets=insert, feeds={k: ["a", "b"], v: [[1, 2], [3, 4]]})
    b.step([find, raw.LookupTableSize(table_handle=t)], {k: ["b", "x", "a"], d: [8, 9]})
    b.step(targets=insert, feeds={k: ["a"], v: [1]}, error="Expected shape [1,2] for value, got [1]")


@case("v1")
def dense_table_by_reference(b):
    t = raw.MutableDenseHashTable(empty_key=tf.constant(0, L), value_dtype=L)
    b.step(raw.LookupTableSize(table_handle=t), error="deleted_key")
