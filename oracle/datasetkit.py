"""Shared by the cases of datasets: element types, numbers to start from, and steps over an iterator."""

import os
from pathlib import Path

import tensorflow as tf

from graphkit import raw

F, I, L, S = tf.float32, tf.int32, tf.int64, tf.string
END = "End of sequence"
v1 = tf.compat.v1
FOLDER = "tests/dataset_files"


def file(name, content):
    """Writes a file for the tests; returns its name as the tests in crates/runtime see it."""
    os.chdir(Path(__file__).resolve().parents[1] / "crates/runtime")
    path = Path(FOLDER, name)
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)
    return str(path)


def records(name, content, options=""):
    """Writes a file of records, as file()."""
    path = file(name, b"")
    with tf.io.TFRecordWriter(path, options) as writer:
        for record in content:
            writer.write(record)
    return path


def said(dtypes, shapes):
    return {"output_types": list(dtypes),
            "output_shapes": [None if s is None else list(s) for s in shapes]}


NUMBERS = said([L], [[]])


def numbers(*bounds, **more):
    return raw.RangeDataset(start=bounds[0], stop=bounds[1], step=bounds[2], **(more or NUMBERS))


def plain(dataset, dtype, shapes):
    """Keeps TensorFlow from rewriting the dataset, which it cannot for ops of an old version."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    types = dtype if isinstance(dtype, tuple) else (dtype,)
    return raw.OptionsDataset(input_dataset=dataset, output_types=list(types), output_shapes=shapes,
                              serialized_options=options._to_proto().SerializeToString())


def iterate(b, dataset, n, dtypes=(L,), shapes=((),), rounds=2, **feeds):
    """Takes n elements, and then reaches the end, unless n is that of an endless dataset."""
    got, start = walk(dataset, dtypes, shapes)
    for _ in range(rounds):
        b.step(targets=start)
        for _ in range(n):
            b.step(got)
        b.step(got, error=END)


def walk(dataset, dtypes=(L,), shapes=((),)):
    """Returns the next element of an iterator, and the node that starts it."""
    spec = said(dtypes, shapes)
    iterator = raw.IteratorV2(shared_name="", container="", **spec)
    start = raw.MakeIterator(dataset=dataset, iterator=iterator)
    return list(raw.IteratorGetNext(iterator=iterator, **spec)), start.name


def saved(b, dataset, before, after, dtypes=(L,), shapes=((),), written=False):
    """Takes elements, saves the position, continues to the end, and from the saved position again; then saves the end.

    `written` states pass through bytes, as those that checkpoints keep.
    """
    spec = said(dtypes, shapes)
    iterator = raw.IteratorV2(shared_name="", container="", **spec)
    got = list(raw.IteratorGetNext(iterator=iterator, **spec))
    state = raw.SerializeIterator(resource_handle=iterator)
    if written:
        state = raw.ParseTensor(serialized=raw.SerializeTensor(tensor=state), out_type=tf.variant)
    start = raw.MakeIterator(dataset=dataset, iterator=iterator)
    other = raw.IteratorV2(shared_name="", container="", **spec)
    begin = raw.MakeIterator(dataset=dataset, iterator=other)
    move = raw.DeserializeIterator(resource_handle=other, serialized=state)
    again = list(raw.IteratorGetNext(iterator=other, **spec))
    b.step(targets=[start.name, begin.name])
    for _ in range(before):
        b.step(got)
    b.step(targets=move.name)
    for _ in range(after):
        b.step(again)
    b.step(again, error=END)
    for _ in range(after):
        b.step(got)
    b.step(got, error=END)
    b.step(targets=move.name)
    b.step(again, error=END)


def fails(b, dataset, error, dtypes=(L,), shapes=((),), after=0):
    """Takes some elements; then the error comes."""
    got, start = walk(dataset, dtypes, shapes)
    b.step(targets=start)
    for _ in range(after):
        b.step(got)
    b.step(got, error=error)


def refused(b, dataset, error):
    """The dataset cannot be made."""
    b.step(targets=dataset.op.name, error=error)


def api(b, dataset, n, rounds=2, ends=True, tol=None):
    """Iterates over a dataset of the Python API."""
    iterator = v1.data.make_initializable_iterator(dataset)
    got = tf.nest.flatten(iterator.get_next(), expand_composites=True)
    for _ in range(rounds):
        b.step(targets=iterator.initializer.name)
        for _ in range(n):
            b.step(got, tol=tol)
        if ends:
            b.step(got, error=END)
