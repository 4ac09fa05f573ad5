"""Sparse tensors, CSR matrices, graph networks, sets."""

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.linalg.sparse import sparse_csr_matrix_ops as csr

from real.kit import integers, model, normal, session, uniform, words

S = tf.sparse


def adjacency(n, seed=0):
    a = (uniform(n, n, seed=seed) < 0.4).astype("float32")
    return np.maximum(a, a.T)


@model
def graph_convolution():
    w, v = tf.Variable(normal(5, 6) * 0.4), tf.Variable(normal(6, 3) * 0.4)

    def program(a, x):
        with_loops = tf.linalg.set_diag(a, tf.ones([tf.shape(a)[0]]))
        scale = tf.math.rsqrt(tf.reduce_sum(with_loops, 1))
        norm = S.from_dense(with_loops * scale[:, None] * scale)
        with tf.GradientTape() as tape:
            h = tf.nn.relu(S.sparse_dense_matmul(norm, x @ w))
            logits = S.sparse_dense_matmul(norm, h @ v)
            loss = tf.reduce_mean(tf.nn.log_softmax(logits)[:, 0])
        return logits, tape.gradient(loss, [w, v])

    return program, [{"a": adjacency(n), "x": normal(n, 5)} for n in (7, 1)], [w, v]


@model
def compressed_rows():
    def program(a, x):
        sp = S.from_dense(a)
        m = csr.CSRSparseMatrix(sp)
        twice = csr.matmul(m, m)
        spd = tf.matmul(a, a, transpose_b=True) + 4 * tf.eye(tf.shape(a)[0])
        outs = [csr.matmul(m, x), csr.matmul(m, x, transpose_a=True), twice.to_dense(), csr.CSRSparseMatrix(S.from_dense(spd)).to_dense(),
                csr.sparse_matrix_nnz(m._matrix), tf.reduce_sum(a)]
        back = twice.to_sparse_tensor()
        order = csr.sparse_matrix_ordering_amd(csr.CSRSparseMatrix(S.from_dense(spd))._matrix)
        chol = csr.sparse_matrix_sparse_cholesky(csr.CSRSparseMatrix(S.from_dense(spd))._matrix, tf.range(tf.shape(a)[0]), tf.float32)
        return outs + [back, tf.sort(order), tf.raw_ops.CSRSparseMatrixToDense(sparse_input=chol, type=tf.float32), m.transpose().to_dense(),
                       tf.raw_ops.SparseMatrixMatMul(a=m._matrix, b=x, transpose_a=True)]

    return program, [{"a": adjacency(n) * uniform(n, n, seed=3), "x": normal(n, 2)} for n in (6, 2)]


@model
def message_passing():
    def program(nodes, sources, targets, edges):
        n = tf.shape(nodes)[0]
        messages = tf.tanh(tf.concat([tf.gather(nodes, sources), edges], 1))
        scores = tf.reduce_sum(tf.gather(nodes, sources) * tf.gather(nodes, targets), 1)
        top = tf.math.unsorted_segment_max(scores, targets, n)
        weights = tf.exp(scores - tf.gather(top, targets))
        total = tf.math.unsorted_segment_sum(weights, targets, n)
        pooled = tf.math.unsorted_segment_sum(messages * weights[:, None], targets, n)
        order = tf.argsort(targets, stable=True)
        return [tf.math.divide_no_nan(pooled, total[:, None]), tf.math.unsorted_segment_mean(messages, targets, n), tf.math.unsorted_segment_min(messages, targets, n), tf.math.unsorted_segment_prod(edges, targets, n), tf.math.unsorted_segment_sqrt_n(edges, targets, n),
                tf.math.segment_mean(tf.gather(messages, order), tf.gather(targets, order)), S.segment_sum(nodes, sources, tf.sort(targets), num_segments=n), S.segment_mean(nodes, sources, tf.sort(targets)), S.segment_sqrt_n(nodes, sources, tf.sort(targets)),
                tf.scatter_nd(targets[:, None], edges, [n, 2]), tf.tensor_scatter_nd_add(nodes, targets[:, None], tf.gather(nodes, sources)), tf.tensor_scatter_nd_max(nodes, targets[:, None], tf.gather(nodes, sources))]

    return program, [{"nodes": normal(n, 3), "sources": integers(0, n, e), "targets": integers(0, n, e, seed=1), "edges": normal(e, 2)} for n, e in ((5, 9), (2, 1))]


@model
def sparse_arithmetic():
    def program(a, b):
        x, y = S.from_dense(a), S.from_dense(b)
        filled, empty = S.fill_empty_rows(x, 7.0)
        return [S.add(x, y), S.add(x, y, threshold=0.5), S.concat(1, [x, y]), S.split(x, 2, axis=1), S.slice(x, [0, 1], [2, 3]), S.transpose(x), S.reshape(x, [-1, 2]), S.reduce_sum(x, 1), S.reduce_max(x, 0), S.softmax(x), S.maximum(x, y), S.minimum(x, y), x * 2.0, x / (tf.abs(b) + 1),
                filled, empty, S.to_dense(S.reduce_sum(x, 0, output_is_sparse=True, keepdims=True)), S.retain(x, x.values > 0), S.reset_shape(x, [9, 9]), S.expand_dims(x, 1), S.eye(3, 4), S.sparse_dense_matmul(x, b, adjoint_b=True), S.to_dense(x), S.map_values(tf.square, x)]

    return program, [{"a": np.round(normal(n, 4)), "b": np.round(normal(n, 4, seed=1))} for n in (3, 2)] + [{"a": np.zeros((2, 4), "float32"), "b": np.zeros((2, 4), "float32")}]


@model
def sets_and_serialization():
    def program(a, b):
        x, y = S.from_dense(a), S.from_dense(b)
        many = tf.io.serialize_many_sparse(S.from_dense(a))
        back = tf.io.deserialize_many_sparse(many, tf.int64)
        tensor = tf.io.serialize_tensor(a)
        return [tf.sets.union(x, y), tf.sets.intersection(a, b), tf.sets.difference(a, y), tf.sets.size(x), back, tf.io.parse_tensor(tensor, tf.int64), tf.sets.difference(x, y, aminusb=False),
                tf.strings.length(tensor), tf.math.bincount(tf.cast(a, tf.int32), axis=-1, minlength=4), S.bincount(x, axis=-1), tf.unique(tf.reshape(a, [-1])), tf.raw_ops.UniqueV2(x=a, axis=[1]), tf.raw_ops.ListDiff(x=a[0], y=b[0])]

    return program, [{"a": integers(0, 6, n, 5, dtype="int64"), "b": integers(0, 6, n, 5, seed=1, dtype="int64")} for n in (3, 1)]


@session
def old_sparse_placeholders():
    v1 = tf.compat.v1
    x = v1.sparse_placeholder(tf.float32, [3, 4])
    dense = tf.constant(normal(4, 2))
    y = S.sparse_dense_matmul(x, dense)
    z = tf.compat.v1.sparse_reduce_sum(x, 1)
    g = v1.gradients(tf.reduce_sum(tf.square(y)), x.values)[0]
    old = v1.sparse_to_dense([[0, 1], [2, 3]], [3, 4], [1.0, 2.0])
    m = tf.matmul(old, dense, a_is_sparse=True)
    feeds = {x.indices: np.array([[0, 1], [2, 0], [2, 3]]), x.values: np.array([1, 2, 3], "float32"), x.dense_shape: np.array([3, 4])}
    return [([y, z, g, m], feeds)]
