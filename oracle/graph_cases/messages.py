"""Examples as datasets, composite tensors, debugging identities."""

import tensorflow as tf
from tensorflow.python.saved_model import nested_structure_coder

from datasetkit import END, fails, said, walk
from graphkit import case, raw


def example(**features):
    def feature(value):
        if isinstance(value[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
        if isinstance(value[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=value))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=value))

    features = {name: feature(value) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


ROWS = [
    [example(a=[1, 2], b=[1.5], c=[b"x"]), example(a=[3, 4], c=[b"y", b"z"])],
    [example(a=[5, 6], b=[2.5], d=[7, 8, 9])],
]


def batches():
    """Two batches of serialized examples."""
    first, second = [raw.TensorDataset(components=[tf.constant([row])], output_shapes=[[1, None]]) for row in ROWS]
    kinds = dict(output_types=[tf.string], output_shapes=[[None]])
    flat = [raw.UnbatchDataset(input_dataset=d, **kinds) for d in (first, second)]
    return raw.ConcatenateDataset(input_dataset=flat[0], another_dataset=flat[1], **kinds)


@case("v1")
def example_datasets(b):
    common = dict(
        num_parallel_calls=tf.constant(2, tf.int64), dense_defaults=[tf.constant([], tf.int64), tf.constant([-1.])],
        sparse_keys=["c", "d"], dense_keys=["a", "b"], sparse_types=[tf.string, tf.int64], dense_shapes=[[2], [1]])
    # The components are in the order of their keys.
    kinds = [tf.int64, tf.float32, tf.variant, tf.variant], [[None, 2], [None, 1], [None], [None]]
    ops = raw.ParseExampleDataset, raw.ParseExampleDatasetV2, raw.ExperimentalParseExampleDataset
    for op in ops:
        (x, y, c, d), start = walk(op(input_dataset=batches(), **common, **said(*kinds)), *kinds)
        c = raw.DeserializeSparse(serialized_sparse=c, dtype=tf.string)
        d = raw.DeserializeSparse(serialized_sparse=d, dtype=tf.int64)
        b.step(targets=start)
        for _ in ROWS:
            b.step([x, y, *c, *d])
        b.step(x, error=END)
    bad = raw.TensorDataset(components=[tf.constant([b"\x0a\x05a"])], output_shapes=[[1]])
    fails(b, raw.ParseExampleDatasetV2(input_dataset=bad, **common, **said(*kinds)), "Could not parse", *kinds)


@case("v1")
def composite_tensors(b):
    x = b.feed(tf.float32, [2])
    parts = [tf.constant([[0], [2]], tf.int64), x, tf.constant([4], tf.int64)]
    types = [p.dtype for p in parts]
    spec = tf.SparseTensorSpec([4], tf.float32)
    metadata = nested_structure_coder.encode_structure(spec).type_spec_value.SerializeToString()
    variant = raw.CompositeTensorVariantFromComponents(components=parts, metadata=metadata)
    back = raw.CompositeTensorVariantToComponents(encoded=variant, metadata=metadata, Tcomponents=types)
    b.step(list(back), {x: [1.5, -2.]})
    b.step(list(raw.CompositeTensorVariantToComponents(encoded=variant, metadata=metadata, Tcomponents=types[:2])),
           {x: [1.5, -2.]}, error="components")


@case("v1")
def debugging_identities(b):
    x = b.feed(tf.float32, [2])
    y = raw.DebugIdentityV2(input=x, tfdbg_context_id="c", op_name="n", output_slot=0, tensor_debug_mode=2, debug_urls=[],
                            tfdbg_run_id="")
    b.step(raw.Neg(x=y), {x: [1., 2.]})
    v = tf.compat.v1.Variable([1., 2.], use_resource=False)
    b.step(targets=v.initializer.name)
    b.step(raw.Neg(x=raw.DebugGradientRefIdentity(input=v._ref())))
