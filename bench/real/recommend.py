"""Recommenders: sparse features, crosses, embeddings, candidate sampling."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

from real.kit import integers, model, normal, session, uniform, words


@model
def wide_and_deep():
    table = tf.Variable(normal(50, 4))
    linear = tf.Variable(normal(100))
    w = tf.Variable(normal(7, 1))

    def program(user, item, age):
        bucket = tf.raw_ops.Bucketize(input=age, boundaries=[18.0, 30.0, 50.0])
        ids = tf.strings.to_hash_bucket_fast(tf.concat([user, item], 1), 50)
        deep = tf.reduce_mean(tf.nn.embedding_lookup(table, ids), 1)
        crossed = tf.sparse.cross_hashed([user, item, tf.strings.as_string(bucket)[:, None]], 100)
        wide = tf.sparse.reduce_sum(tf.SparseTensor(crossed.indices, tf.gather(linear, crossed.values), crossed.dense_shape), 1)
        features = tf.concat([deep, age[:, None], tf.one_hot(bucket, 4)[:, 2:]], 1)
        return tf.sigmoid(wide + tf.squeeze(features @ w, 1)), crossed

    return program, [{"user": words(*["u%d" % i for i in range(n)]).reshape(n, 1), "item": words(*["i%d" % (i % 2) for i in range(n)]).reshape(n, 1),
                      "age": uniform(n) * 80} for n in (4, 1)], [table, linear, w]


@model
def sparse_embedding_bags():
    table = tf.Variable(normal(20, 3))

    def program(ids, rows, weights):
        shape = tf.constant([4, 5], tf.int64)
        index = tf.stack([rows, tf.range(tf.size(rows, out_type=tf.int64)) % 5], 1)
        sp_ids = tf.sparse.reorder(tf.SparseTensor(index, ids, shape))
        sp_weights = tf.sparse.reorder(tf.SparseTensor(index, weights, shape))
        outs = [tf.nn.embedding_lookup_sparse(table, sp_ids, sp_weights, combiner=c) for c in ("sum", "mean", "sqrtn")]
        return outs + [tf.nn.safe_embedding_lookup_sparse(table, sp_ids, None, combiner="mean", default_id=3), tf.sparse.to_indicator(sp_ids, 20)]

    return program, [{"ids": integers(0, 20, n, dtype="int64"), "rows": np.sort(integers(0, 4, n, dtype="int64")), "weights": uniform(n)} for n in (5, 3)], [table]


@model
def factorization_machine():
    v = tf.Variable(normal(30, 5))

    def program(x):
        emb = tf.gather(v, x)
        pair = 0.5 * tf.reduce_sum(tf.square(tf.reduce_sum(emb, 1)) - tf.reduce_sum(tf.square(emb), 1), 1)
        attention = tf.nn.softmax(tf.einsum("bik,bjk->bij", emb, emb) / tf.sqrt(5.0))
        return pair, tf.einsum("bij,bjk->bik", attention, emb), tf.linalg.band_part(attention, 0, -1)

    return program, [{"x": integers(0, 30, n, 6)} for n in (3, 1, 0)], [v]


@model
def retrieval_top_k():
    corpus = tf.Variable(normal(60, 8))

    def program(q, seen):
        scores = tf.matmul(q, corpus, transpose_b=True)
        masked = tf.tensor_scatter_nd_min(scores, tf.stack([tf.repeat(tf.range(tf.shape(q)[0]), tf.shape(seen)[1]), tf.reshape(seen, [-1])], 1),
                                          tf.fill([tf.size(seen)], -1e9))
        values, ids = tf.math.top_k(masked, 7)
        approx, where = tf.math.approx_max_k(scores, 5)
        ranks = tf.argsort(tf.argsort(masked, direction="DESCENDING"))
        gain = 1.0 / tf.math.log1p(1.0 + tf.cast(tf.gather(ranks, seen, batch_dims=1), tf.float32))
        return values, ids, approx, where, gain, tf.nn.in_top_k(tf.argmax(masked, 1), masked, 3)

    return program, [{"q": normal(n, 8), "seen": np.stack([np.random.default_rng(i).permutation(60)[:3] for i in range(n)]).astype("int32")} for n in (4, 1)], [corpus]


@model
def crossed_and_hashed_layers():
    cross, hashed = keras.layers.HashedCrossing(20), keras.layers.HashedCrossing(9, output_mode="one_hot")

    def program(a, b):
        return cross((a, b)), hashed((a, b)), keras.layers.Hashing(8, mask_value="a")(a)

    return program, [{"a": words("a", "b", "c")[:n], "b": integers(0, 9, n)} for n in (3, 1)]


@model
def ragged_sessions():
    table = tf.Variable(normal(15, 4))

    def program(items, splits, target):
        r = tf.RaggedTensor.from_row_splits(items, splits)
        emb = tf.ragged.map_flat_values(tf.nn.embedding_lookup, table, r)
        goal = tf.gather(table, target)
        score = tf.reduce_sum(emb.values * tf.gather(goal, emb.value_rowids()), -1)
        weight = tf.exp(score - tf.gather(tf.math.segment_max(score, emb.value_rowids()), emb.value_rowids()))
        norm = tf.math.unsorted_segment_sum(weight, emb.value_rowids(), emb.nrows())
        pooled = tf.math.unsorted_segment_sum(weight[:, None] * emb.values, emb.value_rowids(), emb.nrows())
        return tf.math.divide_no_nan(pooled, norm[:, None]), emb.to_tensor(), emb.bounding_shape(), tf.reduce_max(r, axis=1)

    return program, [{"items": integers(0, 15, s[-1]), "splits": np.array(s, "int64"), "target": integers(0, 15, len(s) - 1)} for s in ([0, 2, 3, 7], [0, 4], [0, 1, 2, 3])], [table]


@session
def feature_columns():
    v1, fc = tf.compat.v1, tf.feature_column
    age, city, tags = v1.placeholder(tf.float32, [None, 1]), v1.placeholder(tf.string, [None, 1]), v1.placeholder(tf.int64, [None, 3])
    numeric = fc.numeric_column("age")
    bucket = fc.bucketized_column(numeric, [10.0, 20.0])
    vocab = fc.categorical_column_with_vocabulary_list("city", ["rome", "oslo"], num_oov_buckets=2)
    ident = fc.categorical_column_with_identity("tags", 6, default_value=0)
    columns = [numeric, bucket, fc.indicator_column(vocab), fc.embedding_column(ident, 3, initializer=lambda shape, dtype, **_: tf.constant(normal(6, 3))),
               fc.indicator_column(fc.crossed_column([bucket, "city"], 11)),
               fc.embedding_column(fc.categorical_column_with_hash_bucket("town", 5), 2, initializer=lambda shape, dtype, **_: tf.constant(normal(5, 2)))]
    dense = v1.feature_column.input_layer({"age": age, "city": city, "town": city, "tags": tags}, columns)
    linear = v1.feature_column.linear_model({"age": age, "city": city, "town": city, "tags": tags}, [numeric, vocab, ident])
    init = tf.group(v1.global_variables_initializer(), v1.tables_initializer())
    return [(init, {})] + [([dense, linear], {age: uniform(n, 1) * 30, city: words(*["rome", "bonn", "oslo", ""][:n]).reshape(n, 1), tags: integers(0, 8, n, 3, dtype="int64")}) for n in (4, 1)]


@session
def sampled_losses():
    v1 = tf.compat.v1
    x, labels = v1.placeholder(tf.float32, [None, 4]), v1.placeholder(tf.int64, [None, 1])
    w, b = tf.constant(normal(40, 4)), tf.constant(normal(40))
    sampled = tf.random.log_uniform_candidate_sampler(labels, 1, 6, True, 40, seed=11)
    nce = tf.nn.nce_loss(w, b, labels, x, 6, 40, sampled_values=sampled)
    soft = tf.nn.sampled_softmax_loss(w, b, labels, x, 6, 40, sampled_values=sampled, remove_accidental_hits=True)
    return [([nce, soft, sampled[0]], {x: normal(n, 4), labels: integers(0, 40, n, 1, dtype="int64")}) for n in (5, 1)]
