"""Gradients of ops that the other files lack."""

import numpy as np
import tensorflow as tf
from gradients import case

raw = tf.raw_ops
F, D = np.float32, tf.float64


def slope(y, x):
    return tf.gradients(y, x)[0]


@case(numeric=False)
def divisions_in_whole_numbers(b):
    x, y = b.x([3]), b.x(np.array([0.7, -1.3, 2.0]))
    return [tf.math.floordiv(x, y) + x * y, raw.TruncateDiv(x=x, y=y) * x]


@case(numeric=False)
def rounded_to_steps(b):
    x = b.x(np.array([[-2.0, 0.5], [3.0, -0.5]], F))
    low, high = b.x(np.array([-1.0, -1.0], F)), b.x(np.array([1.0, 0.25], F))
    least, most = b.x(np.array(-0.5, F)), b.x(np.array(2.0, F))
    return [raw.FakeQuantWithMinMaxArgs(inputs=x, min=-1.0, max=1.0, num_bits=4),
            raw.FakeQuantWithMinMaxVars(inputs=x, min=least, max=most, narrow_range=True),
            raw.FakeQuantWithMinMaxVarsPerChannel(inputs=x, min=low, max=high)]


@case
def sums_of_several(b):
    x, y = b.x([3]), b.x([3])
    return raw.AccumulateNV2(inputs=[x, y, x * y], shape=[3])


@case
def old_products(b):
    x, y = b.x([2, 2, 3]), b.x([2, 3, 4])
    return [raw.BatchMatMul(x=x, y=y), raw.BatchMatMul(x=y, y=x, adj_x=True, adj_y=True)]


@case
def numbers_that_are_checked(b):
    x = b.x([3])
    return [raw.CheckNumerics(tensor=x * x, message="m"), raw.CheckNumericsV2(tensor=tf.sin(x), message="m")]


@case(numeric=False)
def conjugate_transpose(b):
    x = b.x((b.random.randn(2, 3) + 1j * b.random.randn(2, 3)).astype(np.complex128))
    return raw.ConjugateTranspose(x=x, perm=[1, 0])


@case
def several_identities(b):
    x, y = b.x([2]), b.x([3])
    p, q = tf.identity_n([x * x, y])
    return [p * x, tf.sin(q)]


@case
def defaults_of_placeholders(b):
    x = b.x([2])
    return tf.compat.v1.placeholder_with_default(x * x, [2]) * x


@case(numeric=False)
def next_numbers(b):
    x, y = b.x([2]), b.x([2])
    return tf.math.nextafter(x, y) * x


@case
def slopes_of_slopes(b):
    x = b.x([4])
    y = b.x([4])
    return [slope(tf.nn.softplus(x), x), slope(tf.math.reciprocal(x) * x * x * x, x),
            raw.SoftplusGrad(gradients=y, features=x), raw.InvGrad(y=x, dy=y)]


@case
def products_of_volumes(b):
    x, w = b.x([1, 4, 4, 4, 2]), b.x([2, 2, 2, 2, 3])
    y = tf.nn.conv3d(x, w, [1, 1, 1, 1, 1], "VALID")
    return tf.gradients(y * y, [x, w])


def volume(b):
    return b.x(b.random.uniform(-2, 2, (1, 4, 4, 4, 2)).astype(F))


@case(numeric=False)
def means_of_volumes(b):
    x = volume(b)
    return [tf.nn.avg_pool3d(x * x, 2, 2, "VALID"), slope(tf.nn.avg_pool3d(x, 2, 2, "VALID") ** 2, x)]


# Small steps do not change the position of the maximum.
@case(numeric=False)
def largest_of_volumes(b):
    x = volume(b)
    first = slope(tf.nn.max_pool3d(x, 2, 2, "VALID") ** 3, x)
    return [first, slope(first, x)]


@case(numeric=False)
def largest_of_pictures(b):
    x = b.x([1, 4, 4, 2])
    first = slope(tf.nn.max_pool2d(x, 2, 2, "VALID") ** 3, x)
    second = slope(first * first, x)
    return [first, second]


@case(second=True)
def channel_by_channel(b):
    x, w = b.x([1, 5, 5, 2]), b.x([3, 3, 2, 2])
    y = tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME")
    dx, dw = tf.gradients(y * y, [x, w])
    return [dx, dw]


def normalized(b, op):
    random = b.random
    x = b.x(random.uniform(-1, 1, (2, 3, 3, 2)).astype(F))
    scale, offset = b.x(random.uniform(0.5, 2, 2).astype(F)), b.x(random.uniform(-1, 1, 2).astype(F))
    none = tf.constant([], tf.float32)
    y = op(x=x, scale=scale, offset=offset, mean=none, variance=none, is_training=True)[0]
    mean, variance = tf.constant([0.1, -0.2]), tf.constant([0.7, 1.2])
    z = op(x=x, scale=scale, offset=offset, mean=mean, variance=variance, is_training=False)[0]
    return x, scale, y, z


@case(numeric=False, tol=2e-4)
def batch_norm_of_old(b):
    _, _, y, z = normalized(b, raw.FusedBatchNorm)
    return [y * y, z]


@case(numeric=False, tol=2e-4)
def batch_norm_of_v2(b):
    _, _, y, z = normalized(b, raw.FusedBatchNormV2)
    return [y * y, z]


for version in ("", "V2"):
    @case(name=f"batch_norm_twice{version}", numeric=False, tol=2e-3)
    def batch_norm_twice(b, version=version):
        x, scale, y, z = normalized(b, getattr(raw, f"FusedBatchNorm{version}"))
        w = tf.constant(np.linspace(-1, 1, 36).reshape(2, 3, 3, 2).astype(F))
        return [*tf.gradients(y * y * w, [x, scale]), *tf.gradients(z * z * w, [x, scale])]


@case(numeric=False)
def quantized(b):
    x = b.x(b.random.uniform(-2, 2, (6,)).astype(F))
    low, high = b.x(F(-1.0)), b.x(F(1.0))
    return [raw.QuantizeAndDequantizeV2(input=x, input_min=low, input_max=high, range_given=True) * x,
            raw.QuantizeAndDequantizeV3(input=x, input_min=low, input_max=high, num_bits=tf.constant(8), range_given=True) * x,
            raw.QuantizeAndDequantizeV4(input=x, input_min=low, input_max=high, range_given=True) * x]


@case
def sums_of_sparse_segments(b):
    x = b.x([5, 2])
    ids, segments = b.feed(np.int32([4, 0, 2, 0])), b.feed(np.int32([0, 1, 1, 3]))
    return [getattr(raw, f"SparseSegment{how}WithNumSegments")(data=x, indices=ids, segment_ids=segments,
            num_segments=tf.constant(5)) for how in ("Sum", "Mean", "SqrtN")]


@case
def sparse_to_dense(b):
    values, default = b.x([3]), b.x(0.5)
    return raw.SparseToDense(sparse_indices=[[0, 1], [1, 0], [2, 2]], output_shape=[3, 3], sparse_values=values,
                             default_value=default)


@case
def sparse_rows(b):
    values, default, b1, b2 = b.x([5]), b.x(0.5), b.x([4, 2]), b.x([2, 3])
    at, shape = b.feed(np.int64([[2, 1], [0, 3], [2, 0], [0, 1], [1, 2]])), b.feed(np.int64([3, 4]))
    ordered = raw.SparseReorder(input_indices=at, input_values=values, input_shape=shape)
    filled = raw.SparseFillEmptyRows(indices=ordered.output_indices, values=ordered.output_values, dense_shape=[5, 4],
                                     default_value=default)
    product = raw.SparseTensorDenseMatMul(a_indices=at, a_values=values, a_shape=shape, b=b1)
    adjoint = raw.SparseTensorDenseMatMul(a_indices=at, a_values=values, a_shape=shape, b=b2, adjoint_a=True,
                                          adjoint_b=True)
    return [ordered.output_values * [1.0, 2, 3, 4, 5], tf.square(filled.output_values), tf.square(product),
            tf.square(adjoint)]


def of_version_7(graph_def):
    """Converts the graph's TopKV2 to TopK, whose k is an attr."""
    out = tf.compat.v1.GraphDef()
    out.CopyFrom(graph_def)
    for node in out.node:
        if node.op == "TopKV2":
            node.op = "TopK"
            del node.input[1]
            node.attr["k"].i = 2
            for gone in ("Tk", "index_type"):
                node.attr.pop(gone, None)
    return out


@case
def best_of_old(b):
    b.stand_in = of_version_7
    return tf.math.top_k(b.x([2, 5]), 2)[0]


@case(dynamic=False)
def arrays_in_parts(b):
    x = b.x([4, 2])
    array = raw.TensorArrayV3(size=3, dtype=D, clear_after_read=False)
    flow = raw.TensorArraySplitV3(handle=array.handle, value=x * x, lengths=np.int64([1, 0, 3]), flow_in=array.flow)
    return raw.TensorArrayConcatV3(handle=array.handle, flow_in=flow, dtype=D).value


@case(dynamic=False)
def lists_by_hand(b):
    x, y = b.x([2]), b.x([2])
    shape = tf.constant([2])
    empty = raw.EmptyTensorList(element_shape=shape, max_num_elements=-1, element_dtype=D)
    both = raw.TensorListPushBack(input_handle=raw.TensorListPushBack(input_handle=empty, tensor=x * x), tensor=y)
    rest, last = raw.TensorListPopBack(input_handle=both, element_shape=shape, element_dtype=D)
    larger = raw.TensorListResize(input_handle=both, size=3)
    return [last * x, raw.TensorListStack(input_handle=rest, element_shape=shape, element_dtype=D),
            raw.TensorListStack(input_handle=larger, element_shape=shape, element_dtype=D)]


@case(dynamic=False)
def lists_in_parts(b):
    x = b.x([4, 2])
    shape, lengths = tf.constant([-1, 2]), tf.constant([1, 3], tf.int64)
    parts = raw.TensorListSplit(tensor=x * x, element_shape=shape, lengths=lengths)
    return [raw.TensorListConcat(input_handle=parts, element_dtype=D).tensor,
            raw.TensorListConcatV2(input_handle=parts, element_shape=shape, leading_dims=tf.constant([], tf.int64),
                                   element_dtype=D).tensor]


@case(dynamic=False)
def lists_of_scattered(b):
    x, y = b.x([2, 2]), b.x([2, 2])
    shape = tf.constant([2])
    stack = lambda l: raw.TensorListStack(input_handle=l, element_shape=shape, element_dtype=D)
    one = raw.TensorListScatter(tensor=x * x, indices=[2, 0], element_shape=shape)
    two = raw.TensorListScatterV2(tensor=x * y, indices=[1, 0], element_shape=shape, num_elements=3)
    into = raw.TensorListScatterIntoExistingList(input_handle=two, tensor=y, indices=[2, 1])
    return [stack(one), stack(two), stack(into)]


@case
def ragged_rows(b):
    x, splits = b.x([6, 2]), np.array([0, 2, 2, 5, 6])
    nested = raw.RaggedGather(params_nested_splits=[np.array([0, 1, 1, 4]), splits], params_dense_values=x,
                              indices=[2, 0, 2], OUTPUT_RAGGED_RANK=2)
    flat = raw.RaggedGather(params_nested_splits=[splits], params_dense_values=x * x, indices=[[3, 0], [2, 2]],
                            OUTPUT_RAGGED_RANK=2)
    return [nested.output_dense_values, tf.sin(flat.output_dense_values)]


@case
def ragged_to_dense(b):
    splits = np.array([0, 2, 2, 5, 6])
    how = dict(row_partition_tensors=[splits], row_partition_types=["ROW_SPLITS"])
    x, y = b.x([6, 2]), b.x([6])
    one, row, column = b.x(np.array(0.5)), b.x([2]), b.x([1])
    return [raw.RaggedTensorToTensor(shape=np.int64(-1), values=x, default_value=row, **how) ** 2,
            raw.RaggedTensorToTensor(shape=[3, 2, 2], values=x * x, default_value=column, **how),
            raw.RaggedTensorToTensor(shape=[-1, -1], values=y, default_value=one, **how),
            raw.RaggedTensorToTensor(shape=[-1, -1, -1], values=y, default_value=one,
                                     row_partition_tensors=[np.array([0, 1, 4]), splits],
                                     row_partition_types=["ROW_SPLITS", "ROW_SPLITS"])]


@case
def ragged_to_sparse(b):
    x = b.x([6, 2])
    got = raw.RaggedTensorToSparse(rt_nested_splits=[np.array([0, 1, 4]), np.array([0, 2, 2, 5, 6])], rt_dense_values=x * x)
    return got.sparse_values * tf.range(12, dtype=D)


@case
def ragged_empty_rows(b):
    x, filler = b.x([4]), b.x(np.array(0.25))
    got = raw.RaggedFillEmptyRows(value_rowids=[0, 0, 2, 5], values=x, nrows=7, default_value=filler)
    return got.output_values ** 2
