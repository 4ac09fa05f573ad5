"""Array ops: joining, cutting, moving, gathering, scattering, segments, diagonals, scans."""

import numpy as np
import tensorflow as tf
from gradients import case

raw = tf.raw_ops
I32 = np.int32


@case
def concat(b):
    x, y, z = b.x([2, 3]), b.x([2, 1]), b.x([2, 4])
    return [tf.concat([x, y, z], 1), tf.concat([x, x], -1), tf.concat([y], 0),
            raw.Concat(concat_dim=0, values=[x, x])]


@case
def concat_by_a_fed_axis(b):
    return tf.concat([b.x([2, 3]), b.x([2, 1])], b.feed(I32(1)))


@case
def split(b):
    x = b.x([4, 6])
    p, q, r = tf.split(x, 3, 1)
    s, t = tf.split(x, [1, 3], 0)
    return [p * q, r, t, tf.unstack(x, 6, axis=1)[2], tf.unstack(x, 4)[1]]


@case
def pack(b):
    x, y = b.x([2, 3]), b.x([2, 3])
    return [tf.stack([x, y, x]), tf.stack([x, y], axis=-1), tf.stack([x, y], axis=1)]


@case
def slices(b):
    x = b.x([4, 5, 3])
    return [tf.slice(x, [1, 0, 2], [2, 3, 1]), x[1:3, ::2], x[..., -1], x[:, tf.newaxis, 3::-1],
            x[0], x[-2:, 1]]


@case
def slice_at_fed_places(b):
    x, begin = b.x([6]), b.feed(np.array([2], np.int64))
    return [tf.slice(x, begin, [3]), x[begin[0]:]]


@case
def slice_of_slice(b):
    x = b.x([5, 4])
    return tf.gradients(x[1:4] * x[1:4] * x[:3], x)[0]


@case
def strided_update(b):
    x, y = b.x([4, 5]), b.x([2, 5])
    return raw.TensorStridedSliceUpdate(input=x, begin=[1], end=[3], strides=[1], value=y)


@case
def reverse(b):
    x = b.x([3, 4])
    return [tf.reverse(x, [1]), raw.Reverse(tensor=x, dims=[True, False]), tf.roll(x, [1, -2], [0, 1]),
            tf.reverse_sequence(x, [1, 4, 2], seq_axis=1, batch_axis=0)]


@case
def pads(b):
    x = b.x([2, 3])
    return [tf.pad(x, [[1, 0], [2, 1]]), raw.PadV2(input=x, paddings=[[0, 2], [1, 1]],
            constant_values=tf.constant(3.0, tf.float64)), tf.pad(x, [[1, 1], [2, 0]], "REFLECT"),
            tf.pad(x, [[1, 2], [0, 3]], "SYMMETRIC")]


@case
def pads_twice(b):
    x = b.x([3, 3])
    y = tf.pad(x, [[1, 1], [2, 0]], "REFLECT")
    return tf.gradients(y * y * y, x)[0]


@case
def transposes(b):
    x = b.x([2, 3, 4])
    return [tf.transpose(x, [2, 0, 1]), tf.transpose(x), tf.tile(x, [2, 1, 3]), tf.tile(x, [1, 1, 1]),
            tf.broadcast_to(x, [5, 2, 3, 4])]


@case
def broadcast(b):
    return [tf.broadcast_to(b.x([2, 1]), [3, 2, 4]), tf.broadcast_to(b.x(1.5), [2])]


@case
def space(b):
    x = b.x([2, 4, 4, 4])
    return [tf.nn.space_to_depth(x, 2), tf.nn.depth_to_space(x, 2),
            tf.space_to_batch_nd(x, [2, 2], [[0, 0], [2, 0]]), tf.batch_to_space(x, [1, 2], [[0, 0], [1, 0]]),
            raw.SpaceToBatch(input=x, paddings=[[1, 1], [0, 0]], block_size=2),
            raw.BatchToSpace(input=tf.tile(x, [2, 1, 1, 1]), crops=[[0, 1], [1, 0]], block_size=2)]


@case
def diagonals(b):
    x, v = b.x([2, 3, 4]), b.x([2, 3])
    a = {"align": "RIGHT_LEFT"}
    zero = tf.constant(0.0, tf.float64)
    return [raw.MatrixDiag(diagonal=v), raw.MatrixDiagPart(input=x), raw.MatrixSetDiag(input=x, diagonal=v),
            tf.linalg.band_part(x, 1, 0), raw.MatrixDiagPartV3(input=x, k=[-1, 1], padding_value=zero, **a),
            raw.MatrixDiagPartV2(input=x, k=1, padding_value=zero),
            raw.MatrixDiagV3(diagonal=v, k=1, num_rows=-1, num_cols=-1, padding_value=zero, **a),
            raw.MatrixDiagV2(diagonal=v, k=-1, num_rows=4, num_cols=3, padding_value=zero),
            raw.MatrixSetDiagV3(input=x, diagonal=v, k=1, **a),
            raw.MatrixSetDiagV2(input=x, diagonal=v, k=1)]


@case
def vector_diagonals(b):
    return [tf.linalg.tensor_diag(b.x([3])), tf.linalg.tensor_diag_part(b.x([3, 3]))]


@case
def gather(b):
    x = b.x([5, 3])
    i = b.feed(np.array([[0, 4], [4, 2]]))
    return [tf.gather(x, i), tf.gather(x, [0, 2, 2], axis=1), raw.Gather(params=x, indices=i),
            tf.gather(x, i[0]) * 2.0]


@case
def gather_in_batches(b):
    x = b.x([2, 3, 4])
    i = b.feed(np.array([[0, 2, 2, 1], [1, 1, 0, 2]], I32))
    return [tf.gather(x, i, axis=1, batch_dims=1), tf.gather(x, i, axis=2, batch_dims=1),
            tf.gather(x, [[0, 1], [3, 3]], axis=-1)]


@case
def gathered_and_used(b):
    x = b.x([4, 2])
    return [tf.gather(x, [1, 1, 3]), x * 2.0]


@case
def gather_nd(b):
    x = b.x([3, 4, 2])
    return [tf.gather_nd(x, [[0, 1], [2, 3], [0, 1]]), tf.gather_nd(x, [[0], [2]]),
            tf.gather_nd(x, b.feed(np.array([[[0, 1, 1]], [[2, 2, 0]]])))]


@case
def scatter(b):
    u, t = b.x([3, 2]), b.x([5, 2])
    i = b.feed(np.array([[0], [3], [4]]))
    return [tf.scatter_nd(i, u, [5, 2]), tf.tensor_scatter_nd_update(t, i, u),
            tf.tensor_scatter_nd_add(t, i, u), tf.tensor_scatter_nd_sub(t, i, u),
            tf.tensor_scatter_nd_max(t, i, u), tf.tensor_scatter_nd_min(t, i, u)]


@case
def scans(b):
    x = b.x([3, 4])
    out = []
    for exclusive in [False, True]:
        for reverse in [False, True]:
            out.append(tf.cumsum(x, 1, exclusive, reverse))
            out.append(tf.math.cumprod(x, -1, exclusive, reverse))
    return out


@case
def cumulative_logsumexp(b):
    x = b.x([3, 4])
    out = []
    for exclusive in [False, True]:
        for reverse in [False, True]:
            y = tf.raw_ops.CumulativeLogsumexp(x=x, axis=1, exclusive=exclusive, reverse=reverse)
            # The logsumexp of no elements is minus infinity for any x.
            out.append((y[:, :-1] if reverse else y[:, 1:]) if exclusive else y)
    return out


@case
def segments(b):
    x, ids = b.x([5, 2]), b.feed(np.array([0, 0, 1, 3, 3]))
    return [tf.math.segment_sum(x, ids), tf.math.segment_mean(x, ids), tf.math.segment_max(x, ids),
            tf.math.segment_min(x, ids)]


@case
def segment_products(b):
    return tf.math.segment_prod(b.x([4, 2]), [0, 0, 1, 1])


# An empty segment has the largest number, which swallows finite differences.
@case(numeric=False)
def unsorted_segments(b):
    x, ids = b.x([5, 2]), b.feed(np.array([3, 0, -1, 3, 1]))
    return [f(x, ids, 4) for f in [tf.math.unsorted_segment_sum, tf.math.unsorted_segment_max,
                                   tf.math.unsorted_segment_min]]


@case(numeric=False)
def unsorted_products(b):
    x = b.x(np.array([[0.0, 2.0], [3.0, 0.0], [0.0, 4.0], [1.5, 2.5]]))
    return tf.math.unsorted_segment_prod(x, [1, 1, 1, 0], 2)


@case
def unsorted_segments_of_matrices(b):
    x = b.x([2, 3, 2])
    return tf.math.unsorted_segment_sum(x, [[0, 1, 0], [2, 2, -1]], 3)


@case
def sparse_segments(b):
    x = b.x([6, 2])
    i, ids = b.feed(np.array([5, 0, 2, 2], I32)), b.feed(np.array([0, 0, 1, 2], I32))
    out = [raw.SparseSegmentSum, raw.SparseSegmentMean, raw.SparseSegmentSqrtN]
    return [f(data=x, indices=i, segment_ids=ids) for f in out]


@case
def top_k(b):
    x = b.x([3, 5])
    return [tf.math.top_k(x, 2)[0], tf.math.top_k(b.x([4]), 3)[0]]


@case
def select(b):
    x, y = b.x([2, 3]), b.x([2, 3])
    c = b.feed(np.array([[True, False, True], [False, False, True]]))
    r = b.feed(np.array([True, False]))
    return [raw.Select(condition=c, x=x, y=y), raw.Select(condition=r, x=x, y=y),
            raw.SelectV2(condition=c, t=x, e=b.x([3])), raw.SelectV2(condition=c[0], t=b.x(1.0), e=y)]


@case
def linear_algebra(b):
    x = tf.constant(np.eye(3) * 4.0) + b.x([2, 3, 3])
    rhs = b.x([2, 3, 2])
    return [tf.linalg.det(x), tf.linalg.inv(x), tf.linalg.inv(x, adjoint=True), tf.linalg.solve(x, rhs),
            tf.linalg.solve(x, rhs, adjoint=True), tf.linalg.slogdet(x)[1]]


@case
def triangular(b):
    x, rhs = tf.constant(np.eye(3) * 4.0) + b.x([2, 3, 3]), b.x([2, 3, 2])
    return [tf.linalg.triangular_solve(x, rhs, lower, adjoint)
            for lower in [False, True] for adjoint in [False, True]]


@case
def cholesky(b):
    x = b.x([2, 3, 3])
    spd = tf.matmul(x, x, transpose_b=True) + tf.constant(np.eye(3), tf.float64)
    return tf.linalg.cholesky(spd)


@case
def cross(b):
    return tf.linalg.cross(b.x([2, 3]), b.x([2, 3]))


for i, (equation, *shapes) in enumerate([
        ("ij,jk->ik", (2, 3), (3, 4)), ("bij,bjk->bik", (2, 2, 3), (2, 3, 4)), ("ij->ji", (2, 3)),
        ("ij,ij->", (2, 3), (2, 3)), ("ij->i", (2, 3)), ("i,j->ij", (2,), (3,)),
        ("...ij,...jk->...ik", (2, 2, 3), (3, 2)), ("abc,cd->abd", (2, 3, 4), (4, 2)),
        ("ijk,j->ik", (2, 3, 4), (3,)), ("b...,b->...", (3, 2, 2), (3,)),
        ("...a,...a->...", (2, 1, 3), (4, 3))]):
    @case(name=f"einsum_{i}")
    def of_equation(b, equation=equation, shapes=shapes):
        return tf.einsum(equation, *[b.x(s) for s in shapes])


@case
def special(b):
    x = b.x(b.random.uniform(0.2, 0.8, (3,)))
    a, c = tf.constant([1.5, 2.0, 3.0], tf.float64), tf.constant(2.5, tf.float64)
    return [tf.math.betainc(a, a + 1.0, x), tf.math.zeta(a + 1.0, x), tf.math.polygamma(c * 0.0 + 1.0, x),
            tf.math.igamma(a, x), tf.math.igammac(a, x)]


for i, (equation, *shapes) in enumerate([
        ("ii->i", (3, 3)), ("ii->", (3, 3)), ("i->ii", (3,)), ("aab,b->ab", (3, 3, 2), (2,)),
        ("iij->j", (2, 2, 3)), ("...ii->...i", (2, 3, 3)), ("...ij->...", (2, 3, 4)), ("...ij->...j", (2, 3, 4)),
        ("b...i,j->b...", (2, 4, 3), (2,)), ("ii,ij->j", (3, 3), (3, 2)), ("ij->", (2, 3)),
        ("i...->...", (2, 3, 2)), ("...i,ij->...", (2, 1, 3), (3, 2)), ("a...b,...c->...c", (2, 3, 4), (3, 2)),
        ("aij,bjj->ab", (2, 3, 4), (3, 4, 4)), ("...ij,jk->ik", (2, 3), (3, 2)), ("ij...,j...->i...", (2, 3, 4), (3, 1)),
        ("...iij,...j->...i", (2, 3, 3, 2), (1, 2)), ("ab->ba", (2, 3)), ("abc,d->ca", (2, 3, 4), (2,))]):
    @case(name=f"einsum_more_{i}")
    def of_equation_of_any_form(b, equation=equation, shapes=shapes):
        return raw.Einsum(inputs=[b.x(s) for s in shapes], equation=equation)


@case
def einsum_twice(b):
    x, y = b.x([3, 3]), b.x([3])
    z = raw.Einsum(inputs=[x, y], equation="ii,i->i")
    return tf.gradients(z * z, [x, y])


@case
def dealt_out(b):
    x, parts = b.x([5, 2]), b.feed(np.array([1, 0, 2, 1, 1], I32))
    y = b.x([2, 3])
    return [*tf.dynamic_partition(x, parts, 4)[:3],
            tf.dynamic_partition(y, [[0, 1, 1], [1, 0, 0]], 2)[1]]


@case
def stitched(b):
    x, y = b.x([2, 3]), b.x([2, 2, 3])
    i, j = b.feed(np.array([4, 0], I32)), [[1, 3], [2, 5]]
    return [tf.dynamic_stitch([i, j], [x, y]), raw.ParallelDynamicStitch(indices=[i, j], data=[x * x, y])]


@case(dynamic=False)
def patches(b):
    x = b.x([2, 5, 6, 3])
    out = []
    for size, stride, rate, padding in [((2, 3), (1, 2), (1, 1), "VALID"), ((3, 2), (2, 1), (1, 2), "SAME")]:
        out.append(tf.image.extract_patches(x, [1, *size, 1], [1, *stride, 1], [1, *rate, 1], padding))
    return out


@case(tol=1e-4)
def crops(b):
    image = b.x(b.random.uniform(-2, 2, (2, 5, 6, 3)).astype(np.float32))
    boxes = b.x(np.array([[0.1, 0.2, 0.8, 0.9], [-0.1, 0.3, 0.5, 1.2]], np.float32))
    return [tf.image.crop_and_resize(image, boxes, [1, 0], [3, 4]),
            tf.image.crop_and_resize(image, tf.stop_gradient(boxes), [0, 1], [2, 2], "nearest")]


@case
def morphology(b):
    x, f = b.x([2, 5, 6, 2]), b.x([2, 3, 2])
    return [raw.Dilation2D(input=x, filter=f, strides=[1, 1, 2, 1], rates=[1, 2, 1, 1], padding="SAME"),
            raw.Dilation2D(input=x, filter=f, strides=[1, 2, 1, 1], rates=[1, 1, 1, 1], padding="VALID")]


@case(dynamic=False)
def optionals(b):
    x, y = b.x([2, 3]), b.x([4])
    optional = raw.OptionalFromValue(components=[x * x, y])
    got = raw.OptionalGetValue(optional=optional, output_types=[tf.float64] * 2, output_shapes=[[2, 3], [4]])
    again = raw.OptionalGetValue(optional=optional, output_types=[tf.float64] * 2, output_shapes=[[2, 3], [4]])
    return [got[0], got[1] * again[1]]


@case(dynamic=False)
def ragged_variants(b):
    x, splits = b.x([5, 2]), b.feed(np.array([0, 2, 2, 5]))
    out = []
    for batched in [False, True]:
        variant = raw.RaggedTensorToVariant(rt_nested_splits=[splits], rt_dense_values=x * x,
                                            batched_input=batched)
        for _ in range(1 if batched else 2):
            back = raw.RaggedTensorFromVariant(
                encoded_ragged=variant, input_ragged_rank=0 if batched else 1, output_ragged_rank=1,
                Tvalues=tf.float64, Tsplits=tf.int64)
            out.append(back.output_dense_values)
    return out
