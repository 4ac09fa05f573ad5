"""TensorList ops, with their errors; and stacks."""

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from graphkit import case, raw

F, I = tf.float32, tf.int32


def reserved(n, shape=-1, dtype=F):
    return raw.TensorListReserve(element_shape=tf.constant(shape, tf.int32), num_elements=n,
                                 element_dtype=dtype)


def empty(shape=-1, dtype=F, most=-1):
    return raw.EmptyTensorList(element_shape=tf.constant(shape, tf.int32), max_num_elements=most,
                               element_dtype=dtype)


def get(handle, index, shape=-1, dtype=F):
    return raw.TensorListGetItem(input_handle=handle, index=index,
                                 element_shape=tf.constant(shape, tf.int32), element_dtype=dtype)


def put(handle, index, item, **attrs):
    return raw.TensorListSetItem(input_handle=handle, index=index, item=item, **attrs)


def push(handle, item):
    return raw.TensorListPushBack(input_handle=handle, tensor=item)


def pop(handle, shape=-1, dtype=F):
    return raw.TensorListPopBack(input_handle=handle, element_shape=tf.constant(shape, tf.int32),
                                 element_dtype=dtype)


def stack(handle, shape=-1, dtype=F, n=-1):
    return raw.TensorListStack(input_handle=handle, element_shape=tf.constant(shape, tf.int32),
                               element_dtype=dtype, num_elements=n)


def blurred(handle):
    """Returns the same list with an unknown shape."""
    return tf.compat.v1.placeholder_with_default(handle, [])


def length(handle):
    return raw.TensorListLength(input_handle=handle)


@case("v2")
def list_items(b):
    x, i = b.feed(F, [None]), b.feed(I)
    a = put(reserved(3), 1, x)
    c = put(a, i, x * 2.0)
    fetches = [get(a, 1), get(c, i), length(a), length(c)]
    b.step(fetches, {x: [1, 2], i: 0})
    b.step(fetches, {x: [1, 2], i: 1})
    # Lists derived from the first do not change it.
    b.step([stack(a), stack(c)], {x: [1, 2, 3], i: 1})
    b.step(get(a, i), {x: [1, 2], i: 0})
    b.step(get(a, i), {x: [1, 2], i: 3}, error="Trying to access element 3 in a list with 3 elements.")
    b.step(length(c), {x: [1, 2], i: 3}, error="Trying to modify element 3 in a list with 3 elements.")


@case("v2")
def list_item_resizes(b):
    x, i = b.feed(F, [None]), b.feed(I)
    a = put(reserved(1), i, x, resize_if_index_out_of_bounds=True)
    for value in (0, 1, 4):
        b.step([length(a), get(a, i), stack(a)], {x: [1, 2], i: value})


@case("v2")
def list_unwritten(b):
    x, i = b.feed(F, [None]), b.feed(I)
    known, part, none = reserved(2, [3]), reserved(2, [-1, 3]), reserved(2)
    b.step(get(known, i), {i: 1})
    b.step(get(part, i, [2, -1]), {i: 1})
    b.step(get(part, i), {i: 1}, error="Trying to read an uninitialized tensor but element_shape is "
           "not fully defined: [?,3] and no list element is set.")
    b.step(get(none, i, [2]), {i: 0})
    b.step(get(blurred(known), i, [2]), {i: 0}, error="Incompatible shapes during merge: [2] vs. [3]")
    b.step(get(put(none, 0, x), i), {i: 1, x: [5, 6]})
    b.step(stack(put(none, 0, x)), {x: [5, 6]})
    b.step(stack(none), error="Tried to stack list which only contains uninitialized tensors and has a "
           "non-fully-defined element_shape: <unknown>")
    b.step([stack(known), stack(none, [2])])
    b.step(pop(known)[1])
    b.step(pop(none)[1], error="Trying to read an uninitialized tensor but element_shape is not fully "
           "defined.<unknown>")


def pop_outputs(handle):
    out, item = pop(handle)
    return [item, length(out)]


@case("v2")
def list_push_and_pop(b):
    x = b.feed(F, [None])
    a = push(push(empty(), x), x * 2.0)
    rest, last = pop(a)
    rest2, first = pop(rest)
    b.step([last, first, length(a), length(rest), length(rest2)], {x: [1, 2]})
    b.step([stack(a), stack(push(rest, x * 3.0))], {x: [1, 2]})
    b.step(pop(rest2)[1], {x: [1]}, error="Trying to pop from an empty list.")
    full = push(push(empty(most=1), x), x)
    b.step(length(full), {x: [1]}, error="Tried to push item into a full list list size: 1 "
           "max_num_elements: 1")
    shaped = push(empty([2]), x)
    b.step(length(shaped), {x: [1, 2]})
    b.step(length(shaped), {x: [1]}, error="Tried to append a tensor with incompatible shape to a list. "
           "Op element shape: [1] list shape: [2]")
    b.step(length(put(reserved(1, [2]), 0, x)), {x: [1]},
           error="Tried to set a tensor with incompatible shape at a list index. "
           "Item element shape: [1] list shape: [2]")


@case("v2")
def list_of_dtypes(b):
    for dtype, values in ((tf.float32, [1.5, 2.5]), (tf.int64, [1, 1 << 40]), (tf.bool, [True, False]),
                          (tf.string, [b"a", b"bc"]), (tf.complex64, [1 + 2j, 3j]), (tf.uint8, [1, 255]),
                          (tf.float64, [0.1, -0.0]), (tf.bfloat16, [1.5, -2.0])):
        x = tf.constant(values, dtype)
        a = raw.TensorListFromTensor(tensor=x, element_shape=tf.constant([], tf.int32))
        b.step([get(a, 1, [], dtype), stack(a, [], dtype), stack(put(a, 0, x[1]), [], dtype),
                stack(reserved(2, [2], dtype), -1, dtype)])


@case("v2")
def list_wrong_dtype(b):
    x = b.feed(F, [2])
    a = blurred(push(empty(), x))
    b.step(get(a, 0, -1, I), {x: [1, 2]}, error="Invalid data types; op elements int32 but list elements float")
    b.step(stack(a, -1, I), {x: [1, 2]}, error="Invalid data types; op elements int32 but list elements float")
    b.step(length(push(a, tf.constant(1))), {x: [1, 2]}, error="Invalid data types; op elements int32 but list elements float")
    b.step(length(put(a, 0, tf.constant(1))), {x: [1, 2]}, error="Invalid data types; op elements int32 but list elements float")
    b.step(pop(a, -1, I)[1], {x: [1, 2]}, error="Invalid data types; op elements int32 but list elements float")


@case("v2")
def list_from_tensor(b):
    x, shape = b.feed(F, None), b.feed(I, None)
    a = raw.TensorListFromTensor(tensor=x, element_shape=shape)
    b.step([length(a), stack(a), get(a, 0)], {x: np.arange(24).reshape(2, 3, 4), shape: [3, 4]})
    b.step([length(a), stack(a)], {x: np.arange(24).reshape(2, 3, 4), shape: [-1, 4]})
    b.step([length(a), stack(a)], {x: [1, 2, 3], shape: -1})
    b.step([length(a), stack(a, [2])], {x: np.zeros((0, 2)), shape: [2]})
    b.step(length(a), {x: 1, shape: -1}, error="Tensor must be at least a vector, but saw shape: []")
    b.step(length(a), {x: [[1, 2]], shape: [3]},
           error="Specified a list with shape [3] from a tensor with shape [2]")
    b.step(length(a), {x: [[1, 2]], shape: [[3]]}, error="element_shape must be at most rank 1 but has "
           "the shape of [1,1]")
    b.step(length(a), {x: [[1, 2]], shape: 5}, error="The only valid scalar shape tensor is the fully "
           "unknown shape specified as -1.")


@case("v2")
def list_stack_checks(b):
    x, y = b.feed(F, [None]), b.feed(F, [None])
    a = push(push(empty(), x), y)
    b.step(stack(a, n=2), {x: [1, 2], y: [3, 4]})
    b.step(stack(a, n=3), {x: [1, 2], y: [3, 4]},
           error="Operation expected a list with 3 elements but got a list with 2 elements.")
    b.step(stack(a), {x: [1, 2], y: [3]}, error="Incompatible shapes during merge")
    b.step(stack(a, [3]), {x: [1, 2], y: [3, 4]}, error="Incompatible shapes during merge: [3] vs. [2]")
    b.step(stack(empty()), error="Tried to stack elements of an empty list with non-fully-defined "
           "element_shape: <unknown>")
    b.step(stack(empty([-1, 2])), error="non-fully-defined element_shape: [?,2]")
    b.step(stack(empty([3, 2])))


@case("v2")
def list_gather(b):
    x, at = b.feed(F, [None, 2]), b.feed(I, [None])
    a = raw.TensorListFromTensor(tensor=x, element_shape=tf.constant([2]))

    def gather(handle, shape=-1):
        return raw.TensorListGather(input_handle=handle, indices=at,
                                    element_shape=tf.constant(shape, tf.int32), element_dtype=F)

    values = [[1, 2], [3, 4], [5, 6]]
    b.step(gather(a), {x: values, at: [2, 0, 0]})
    b.step(gather(a), {x: values, at: []})
    b.step(gather(reserved(3, [2])), {at: [1, 1]})
    b.step(gather(reserved(3)), {at: []}, error="Tried to gather 0-elements from a list with "
           "non-fully-defined shape: <unknown>")
    b.step(gather(reserved(3)), {at: [1]}, error="Tried to gather uninitialized tensors from a list "
           "with non-fully-defined element_shape: <unknown>")
    b.step(gather(reserved(3)), {at: [3]}, error="Trying to gather element 3 in a list with 3 elements.")


@case("v2")
def list_scatter(b):
    x, at, n = b.feed(F, [None, 2]), b.feed(I, [None]), b.feed(I)
    sizes = tf.constant([2])
    a = raw.TensorListScatter(tensor=x, indices=at, element_shape=sizes)
    c = raw.TensorListScatterV2(tensor=x, indices=at, element_shape=sizes, num_elements=n)
    d = raw.TensorListScatterIntoExistingList(input_handle=reserved(4, [2]), tensor=x, indices=at)
    values = [[1, 2], [3, 4]]
    b.step([stack(a), stack(c), stack(d)], {x: values, at: [3, 1], n: 5})
    b.step([stack(a), stack(c), stack(d)], {x: values, at: [1, 0], n: -1})
    b.step(length(c), {x: values, at: [3, 1], n: 3},
           error="TensorListScatter: Trying to scatter at index 3 in list with size 3")
    b.step(length(a), {x: values, at: [-1, 1]}, error="Indices in TensorListScatter must all be non-negative.")
    b.step(length(a), {x: values, at: [1]},
           error="Invalid number of rows in input tensor. Expected: 1 Actual: 2")
    b.step(length(d), {x: values, at: [1]}, error="Expected len(indices) == tensor.shape[0], but saw: 1 vs. 2")


@case("v2")
def list_concat_and_split(b):
    x, lengths = b.feed(F, [None, 2]), b.feed(tf.int64, [None])
    a = raw.TensorListSplit(tensor=x, element_shape=tf.constant([-1, 2]), lengths=lengths)

    def concat(handle, shape=(-1, 2), leading=()):
        return list(raw.TensorListConcatV2(
            input_handle=handle, element_shape=tf.constant(shape, tf.int32),
            leading_dims=tf.constant(leading, tf.int64), element_dtype=F))

    values = np.arange(10).reshape(5, 2)
    b.step([length(a), *concat(a)], {x: values, lengths: [2, 0, 3]})
    b.step([length(a), *concat(a), *raw.TensorListConcat(input_handle=a, element_dtype=F)],
           {x: values, lengths: [1, 1, 1, 1, 1]})
    b.step(concat(put(reserved(3, [-1, 2]), 1, x), leading=[1, 7, 2]), {x: values})
    b.step(concat(reserved(2, [2, 2])), {})
    b.step(concat(reserved(2, [-1, 2])), error="List contains uninitialized tensor at index 0 but "
           "leading_dims has only 0 elements.")
    b.step(concat(empty([-1, 2])))
    b.step(concat(empty(), -1), error="All except the first dimension must be fully defined when "
           "concating an empty tensor list. element_shape: <unknown>")
    b.step(concat(push(empty(), tf.constant(1.0)), -1),
           error="Concat saw a scalar shape at index 0 but requires at least vectors.")
    b.step(concat(a, (2, 2)), {x: values, lengths: [2, 3]}, error="First entry of element_shape input "
           "does not match the first dim of list element at index: 1 Expected: 2 Actual: 3")
    b.step(length(a), {x: values, lengths: [2, 2]},
           error="Unused values in tensor. Length of tensor: 5 Values used: 4")
    b.step(length(a), {x: values, lengths: [2, 4]},
           error="Attempting to slice [2, 6] from tensor with length 5")
    b.step(length(a), {x: values, lengths: [-1, 6]}, error="Invalid value in lengths: -1")


@case("v2")
def list_resize_and_join(b):
    x, n = b.feed(F, [None, 2]), b.feed(I)
    a = raw.TensorListFromTensor(tensor=x, element_shape=tf.constant([2]))
    r = raw.TensorListResize(input_handle=a, size=n)
    values = [[1, 2], [3, 4]]
    for size in (0, 1, 2, 4):
        b.step([length(a), length(r), stack(r)], {x: values, n: size})
    b.step(length(r), {x: values, n: -1}, error="TensorListSlice expects size to be non-negative. Got: -1")
    j = raw.TensorListConcatLists(input_a=a, input_b=r, element_dtype=F)
    b.step([length(j), stack(j), stack(a)], {x: values, n: 3})
    other = raw.TensorListConcatLists(input_a=blurred(a), input_b=blurred(reserved(1, [3])), element_dtype=F)
    b.step(length(other), {x: values}, error="element shapes are not identical at index 0")


@case("v2")
def list_push_batch(b):
    x = b.feed(F, [2, None])
    handles = tf.stack([empty([3]), push(empty([3]), tf.zeros([3]))])
    more = raw.TensorListPushBackBatch(input_handles=handles, tensor=x)
    first, second = tf.unstack(more)
    b.step([length(first), stack(first), stack(second)], {x: [[1, 2, 3], [4, 5, 6]]})
    b.step(length(first), {x: [[1, 2], [4, 5]]}, error="Tried to append a tensor with incompatible shape "
           "to a list at index 0. Op element shape: [2] list shape: [3]")


@case("v2")
def list_shapes_and_sizes(b):
    n = b.feed(I, None)
    for shape in (-1, [], [2, -1], [3]):
        b.step(raw.TensorListElementShape(input_handle=reserved(1, shape), shape_type=I))
    b.step(raw.TensorListElementShape(input_handle=empty([2, -1]), shape_type=tf.int64))
    b.step(length(raw.TensorListReserve(element_shape=-1, num_elements=n, element_dtype=F)), {n: 4})
    b.step(length(raw.TensorListReserve(element_shape=-1, num_elements=n, element_dtype=F)), {n: -1},
           error="The num_elements to reserve must be a non negative number, but got -1")


@case("v2")
def list_nested(b):
    x = b.feed(F, [None])
    outer = empty([], tf.variant)
    outer = push(outer, push(empty(), x))
    outer = push(outer, push(push(empty(), x), x + 1.0))
    inner = get(outer, 1, [], tf.variant)
    b.step([length(outer), length(inner), stack(inner)], {x: [1, 2]})


@case("v2")
def no_list(b):
    x = b.feed(F, [None])
    nothing = tf.raw_ops.TensorListGetItem(
        input_handle=push(reserved(1, [], tf.variant), reserved(1, [1])), index=0,
        element_shape=tf.constant([], tf.int32), element_dtype=tf.variant)
    b.step(length(nothing), {}, error="Input handle is not a list. Saw:")
    two = tf.stack([reserved(1), reserved(1)])
    b.step(length(two), {x: [1]}, error="Input list must be a scalar saw: [2]")


@case("v1")
def stack_push_and_pop(b):
    x = b.feed(F, [None])
    handle = raw.StackV2(max_size=-1, elem_type=F)
    one = raw.StackPushV2(handle=handle, elem=x)
    with tf.control_dependencies([one]):
        two = raw.StackPushV2(handle=handle, elem=x * 2.0)
    with tf.control_dependencies([two]):
        last = raw.StackPopV2(handle=handle, elem_type=F)
    with tf.control_dependencies([last]):
        first = raw.StackPopV2(handle=handle, elem_type=F)
    with tf.control_dependencies([first]):
        none = raw.StackPopV2(handle=handle, elem_type=F)
    b.step([one, two, last, first], {x: [1, 2]})
    b.step([one, two, last, first], {x: [3]})
    b.step(none, {x: [1]}, error="is empty when calling Pop().")


@case("v1")
def stack_refusals(b):
    x, n = b.feed(F, [None]), b.feed(I)
    handle = raw.StackV2(max_size=n, elem_type=F)
    one = raw.StackPushV2(handle=handle, elem=x)
    with tf.control_dependencies([one]):
        two = raw.StackPushV2(handle=handle, elem=x)
    b.step([one, two], {x: [1], n: 2})
    b.step([one, two], {x: [1], n: 1}, error="overflowed its max_size (1)")
    b.step(raw.StackPushV2(handle=handle, elem=tf.constant(1)), {n: 1}, error="Must have type 1 but got 3")
    close = raw.StackCloseV2(handle=handle)
    with tf.control_dependencies([close]):
        late = raw.StackPushV2(handle=handle, elem=x)
    b.step(late, {x: [1], n: 1}, error="has already been closed.")


@case("v1")
def stack_in_loops(b):
    # A loop that pushes and one that pops, like gradients of loops.
    n, x = b.feed(I), b.feed(F)
    handle = raw.StackV2(max_size=n, elem_type=F)

    def forward(i, y):
        return [i + 1, raw.StackPushV2(handle=handle, elem=y * 1.5)]

    i, y = tf.while_loop(lambda i, y: i < n, forward, [0, x])
    with tf.control_dependencies([y]):
        start = tf.identity(i)

    def back(i, s):
        with tf.control_dependencies([s]):
            popped = tf.ensure_shape(raw.StackPopV2(handle=handle, elem_type=F), [])
        return [i - 1, s * 2.0 + popped]

    _, s = tf.while_loop(lambda i, s: i > 0, back, [start, 0.0])
    for value in (0, 1, 6):
        b.step([y, s], {n: value, x: 2})


@case("v1")
def array_more_refusals(b):
    at, x = b.feed(I, [None]), b.feed(F, None)
    def array(size, **attrs):
        return raw.TensorArrayV3(size=size, dtype=F, **attrs)

    def flow(a, op, **inputs):
        return op(handle=a.handle, flow_in=a.flow, **inputs)

    fixed = array(2)
    b.step(flow(fixed, raw.TensorArrayScatterV3, indices=at, value=x), {at: [0, 2], x: [1, 2]},
           error="Max scatter index must be < array size (2 vs. 2)")
    b.step(flow(fixed, raw.TensorArrayScatterV3, indices=at, value=x), {at: [0], x: [1, 2]},
           error="Expected len(indices) == values.shape[0], but saw: 1 vs. 2")
    b.step(flow(fixed, raw.TensorArraySplitV3, value=x, lengths=tf.constant([1, 2], tf.int64)), {x: [1, 2]},
           error="Expected sum of lengths to be equal to values.shape[0], but sum of lengths is 3")
    b.step(flow(array(3), raw.TensorArraySplitV3, value=x, lengths=tf.constant([1, 2], tf.int64)),
           {x: [1, 2, 3]}, error="TensorArray's size is not equal to the size of lengths (3 vs. 2)")
    b.step(flow(array(0), raw.TensorArrayGatherV3, indices=at, dtype=F), {at: []},
           error="TensorArray has size zero, but element shape <unknown> is not fully defined.")
    b.step(flow(array(0), raw.TensorArrayGatherV3, indices=at, dtype=F, element_shape=[2]), {at: []})
    b.step(flow(array(0), raw.TensorArrayConcatV3, dtype=F)[0], {},
           error="TensorArray has size zero, but element_shape_except0 <unknown>")
    b.step(list(flow(array(0), raw.TensorArrayConcatV3, dtype=F, element_shape_except0=[2])), {})
    b.step(flow(fixed, raw.TensorArrayReadV3, index=0, dtype=I), {},
           error="TensorArray dtype is float but Op requested dtype int32.")
    b.step(flow(fixed, raw.TensorArrayWriteV3, index=0, value=tf.constant(1)), {},
           error="TensorArray dtype is float but Op is trying to write dtype int32.")
    closed = array(2)
    with tf.control_dependencies([raw.TensorArrayCloseV3(handle=closed.handle)]):
        late = flow(closed, raw.TensorArraySizeV3)
    b.step(late, error="has already been closed.")
    b.step(flow(array(-1), raw.TensorArraySizeV3), error="")
    mixed = array(2)
    one = flow(mixed, raw.TensorArrayWriteV3, index=0, value=x)
    two = raw.TensorArrayWriteV3(handle=mixed.handle, flow_in=one, index=1, value=tf.constant([1.0]))
    b.step(raw.TensorArrayGatherV3(handle=mixed.handle, flow_in=two, indices=at, dtype=F),
           {at: [0, 1], x: [1, 2]},
           error="TensorArray has inconsistent shapes.  Index 0 has shape: [2] but index 1 has shape: [1]")
    b.step(raw.TensorArrayConcatV3(handle=mixed.handle, flow_in=two, dtype=F)[0], {x: [[1, 2]]},
           error="TensorArray has inconsistent shapes.")
    b.step(list(raw.TensorArrayConcatV3(handle=mixed.handle, flow_in=two, dtype=F)), {x: [5, 6, 7]})
    same = array(2, identical_element_shapes=True)
    one = flow(same, raw.TensorArrayWriteV3, index=0, value=x)
    two = raw.TensorArrayWriteV3(handle=same.handle, flow_in=one, index=1, value=tf.constant([1.0]))
    b.step(two, {x: [1, 2]}, error="because the value shape is [1] which is incompatible with the "
           "TensorArray's inferred element shape: [2]")


@case("v1")
def list_refusals(b):
    s1, s2, n1, n2 = b.feed(I, None), b.feed(I, None), b.feed(I), b.feed(I)

    def sum_of(dtype):
        one = raw.TensorListReserve(element_shape=s1, num_elements=n1, element_dtype=F)
        two = raw.TensorListReserve(element_shape=s2, num_elements=n2, element_dtype=dtype)
        return raw.TensorListLength(input_handle=raw.AddN(inputs=[one, two]))

    n = sum_of(F)
    b.step(n, {s1: [-1], s2: [2], n1: 3, n2: 3})
    b.step(n, {s1: [], s2: [2], n1: 3, n2: 3},
           error="Trying to add two lists of tensors with incompatible element shapes. "
                 "One is [] and the other is [2]")
    b.step(n, {s1: [2], s2: [2], n1: 3, n2: 4},
           error="Trying to add two lists of tensors with different lengths. One is 3 and the other is 4")

    x, y = b.feed(F, None), b.feed(F, None)
    lists = [raw.TensorListFromTensor(tensor=t, element_shape=-1) for t in (x, y)]
    b.step(raw.TensorListLength(input_handle=raw.AddN(inputs=lists)), {x: [[1, 2]], y: [[1, 2, 3]]},
           error="incompatible element shapes. One is [2] and the other is [3]")
    for shape in ([], [2], None):
        error = "element_shape must not be empty" if shape == [] else None
        joined = raw.TensorListConcat(input_handle=lists[0], element_dtype=F, element_shape=shape)
        b.step(joined[0], {x: [[1, 2]]}, error=error)


@case("v1")
def plain_variants(b):
    values = {b"int": np.int32(7), b"float": np.float32(1.5), b"double": np.float64(2.5), b"bool": np.True_}
    constants = [variant(name, value.tobytes()) for name, value in values.items()]
    for x in constants:
        b.step(targets=[raw.ZerosLike(x=x).op, raw.AddN(inputs=[x, x]).op])
    list_of = raw.TensorListPushBack(
        input_handle=raw.EmptyTensorList(element_shape=-1, max_num_elements=-1, element_dtype=tf.variant),
        tensor=constants[0])
    b.step(raw.TensorListLength(input_handle=raw.ZerosLike(x=list_of)))
    b.step(targets=raw.AddN(inputs=constants[:2]).op, error="")
    b.step(targets=raw.ZerosLike(x=variant(b"some::Type", b"")).op, error="")


def variant(name, data):
    proto = tensor_pb2.TensorProto(
        dtype=tf.variant.as_datatype_enum, tensor_shape=tf.TensorShape([]).as_proto(),
        variant_val=[tensor_pb2.VariantTensorDataProto(type_name=name, metadata=data)])
    return tf.constant(proto)
