"""Datasets and iterators."""

import tensorflow as tf
from tensorflow.python.framework import function

from graphkit import case, raw

F, I, L = tf.float32, tf.int32, tf.int64
END = "End of sequence"


def said(dtypes, shapes):
    return {"output_types": list(dtypes), "output_shapes": [list(s) for s in shapes]}


NUMBERS = said([L], [[]])


def iterate(b, dataset, n, dtypes=(L,), shapes=((),), **feeds):
    """Takes n elements, and then reaches the end."""
    spec = said(dtypes, shapes)
    iterator = raw.IteratorV2(shared_name="", container="", **spec)
    start = raw.MakeIterator(dataset=dataset, iterator=iterator)
    got = list(raw.IteratorGetNext(iterator=iterator, **spec))
    b.step(got, error="the iterator has not been initialized")
    for _ in range(2):
        b.step(targets=start.name)
        for _ in range(n):
            b.step(got)
        b.step(got, error=END)


def numbers(*bounds, **more):
    return raw.RangeDataset(start=bounds[0], stop=bounds[1], step=bounds[2], **(more or NUMBERS))


@case("v1")
def dataset_of_ranges(b):
    iterate(b, numbers(0, 3, 1), 3)
    iterate(b, numbers(5, 0, -2), 3)
    iterate(b, numbers(5, 5, 1), 0)
    iterate(b, numbers(0, 3, 2, **said([I], [[]])), 2, [I])


@case("v1")
def dataset_of_tensors(b):
    spec = dict(output_shapes=[[2], []])
    iterate(b, raw.TensorDataset(components=[[1.0, 2.0], 3], **spec), 1, (F, I), ((2,), ()))
    slices = raw.TensorSliceDataset(components=[[[1.0, 2.0], [3.0, 4.0]], [5, 6]], **spec)
    iterate(b, slices, 2, (F, I), ((2,), ()))


@case("v1")
def dataset_batches(b):
    spec = said([L], [[None]])
    for drop in (False, True):
        got = raw.BatchDatasetV2(input_dataset=numbers(0, 5, 1), batch_size=2, drop_remainder=drop,
                                 **spec)
        iterate(b, got, 2 if drop else 3, shapes=((None,),))


@case("v1")
def dataset_rounds(b):
    iterate(b, raw.RepeatDataset(input_dataset=numbers(0, 2, 1), count=2, **NUMBERS), 4)
    iterate(b, raw.RepeatDataset(input_dataset=numbers(0, 2, 1), count=0, **NUMBERS), 0)
    iterate(b, raw.RepeatDataset(input_dataset=numbers(0, 0, 1), count=-1, **NUMBERS), 0)
    forever = raw.RepeatDataset(input_dataset=numbers(0, 2, 1), count=-1, **NUMBERS)
    iterate(b, raw.TakeDataset(input_dataset=forever, count=3, **NUMBERS), 3)
    iterate(b, raw.TakeDataset(input_dataset=numbers(0, 2, 1), count=-1, **NUMBERS), 2)
    iterate(b, raw.SkipDataset(input_dataset=numbers(0, 4, 1), count=3, **NUMBERS), 1)
    iterate(b, raw.SkipDataset(input_dataset=numbers(0, 4, 1), count=-1, **NUMBERS), 0)
    both = raw.ZipDataset(input_datasets=[numbers(0, 3, 1), numbers(5, 9, 1)],
                          **said([L, L], [[], []]))
    iterate(b, both, 3, (L, L), ((), ()))
    after = raw.ConcatenateDataset(input_dataset=numbers(0, 1, 1), another_dataset=numbers(7, 9, 1),
                                   **NUMBERS)
    iterate(b, after, 3)


@case("v1")
def dataset_mapped(b):
    @function.Defun(L)
    def twice(x):
        return x * 2

    @function.Defun(L, L)
    def pair(x, captured):
        return x + captured, tf.cast(x, F)

    @function.Defun(L)
    def fails(x):
        return tf.cast(100 // (2 - x), L)

    def mapped(dataset, f, captured=(), **spec):
        return raw.MapDataset(input_dataset=dataset, other_arguments=list(captured), f=f,
                              **(spec or NUMBERS))

    iterate(b, mapped(numbers(0, 3, 1), twice), 3)
    iterate(b, mapped(mapped(numbers(0, 3, 1), twice), twice), 3)
    iterate(b, mapped(numbers(0, 2, 1), pair, [tf.constant(7, L)], **said([L, F], [[], []])), 2,
            (L, F), ((), ()))
    iterator = raw.IteratorV2(shared_name="", container="", **NUMBERS)
    b.step(targets=raw.MakeIterator(dataset=mapped(numbers(1, 4, 1), fails), iterator=iterator).name)
    got = raw.IteratorGetNext(iterator=iterator, **NUMBERS)[0]
    b.step(got)
    b.step(got, error="Integer division by zero")
    b.step(got)
    b.step(got, error=END)


@case("v1")
def dataset_mapped_in_a_factory(b):
    @function.Defun(L)
    def loop(x):
        return tf.while_loop(lambda y: y < 100, lambda y: y * 3, [x + 1])

    @function.Defun()
    def factory():
        return raw.MapDataset(input_dataset=numbers(0, 3, 1), other_arguments=[], f=loop, **NUMBERS)

    iterator = raw.OneShotIterator(dataset_factory=factory, **NUMBERS)
    got = raw.IteratorGetNext(iterator=iterator, **NUMBERS)[0]
    for _ in range(3):
        b.step(got)
    b.step(got, error=END)


@case("v1")
def dataset_one_shot(b):
    @function.Defun()
    def factory():
        return numbers(3, 6, 1)

    iterator = raw.OneShotIterator(dataset_factory=factory, **NUMBERS)
    got = raw.IteratorGetNext(iterator=iterator, **NUMBERS)[0]
    optional = raw.IteratorGetNextAsOptional(iterator=iterator, **NUMBERS)
    b.step(got)
    b.step(got * 2)
    b.step(raw.OptionalHasValue(optional=optional))
    b.step(raw.OptionalHasValue(optional=optional))
    b.step(got, error=END)


@case("v1")
def dataset_mismatches(b):
    iterator = raw.IteratorV2(shared_name="", container="", **said([F], [[]]))
    b.step(targets=raw.MakeIterator(dataset=numbers(0, 3, 1), iterator=iterator).name, error="")
    b.step(targets=raw.BatchDatasetV2(input_dataset=numbers(0, 5, 1), batch_size=0,
                                      drop_remainder=False, **said([L], [[None]])).op.name,
           error="Batch size must be greater than zero.")
    b.step(targets=numbers(0, 5, 0).op.name, error="step must be a non-zero integer.")
