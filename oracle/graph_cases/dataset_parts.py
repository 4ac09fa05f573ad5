"""Datasets: parts, combinations, batches, windows."""

import tensorflow as tf

from datasetkit import (END, F, I, L, NUMBERS, S, api, fails, file, iterate, numbers, plain, refused, said,
                        walk)
from graphkit import case, raw

D = tf.data.Dataset


def above_two(x):
    return x > 2


def one_more(x):
    return x + 1


@case("v1")
def dataset_sources(b):
    spec = said([L, I], [[2], []])
    elements = [tf.constant([1, 2], L), tf.constant(3), tf.constant([4, 5], L), tf.constant(6)]
    iterate(b, raw.ListDataset(tensors=elements, **spec), 2, (L, I), ((2,), ()))
    window = raw.WindowOp(inputs=[tf.constant(1, L), tf.constant(2, L)], **NUMBERS)
    iterate(b, window, 2)
    types, shapes = (L, F, L), ((None, 1), (None,), (1,))

    def rows(indices, values=(1.0, 2.0, 3.0), dense=(5, 4)):
        return raw.SparseTensorSliceDataset(indices=tf.constant(indices, L), values=list(values),
                                            dense_shape=tf.constant(dense, L))

    iterate(b, rows([[0, 1], [2, 0], [2, 3]]), 5, types, shapes)
    iterate(b, rows([[4, 1], [4, 2], [4, 3]]), 5, types, shapes)
    refused(b, rows([[0, 1], [2, 0]]), "Number of values must match first dimension of indices.")
    refused(b, rows([[0, 1, 0]] * 3), "Number of dimensions must match second dimension of indices.")
    refused(b, rows([[2, 1], [0, 0], [2, 3]]), "must be ordered in the batch dimension")


@case("v1")
def dataset_shards(b):
    def shard(n, index, dataset=None, **more):
        dataset = numbers(0, 7, 1) if dataset is None else dataset
        return raw.ShardDataset(input_dataset=dataset, num_shards=n, index=index, **NUMBERS, **more)

    iterate(b, shard(3, 0), 3)
    iterate(b, shard(3, 2), 2)
    iterate(b, shard(9, 8), 0)
    iterate(b, shard(7, 6, require_non_empty=True), 1)
    fails(b, shard(9, 6, require_non_empty=True), "the dataset only has 7 file(s)")
    refused(b, shard(0, 0), "Number of shards must be greater than zero (currently num_shards = 0).")
    refused(b, shard(3, 3), "Index must be between 0 and 2 (currently index = 3).")
    b.step(targets=walk(shard(-1, 0))[1], error="can only be used in")
    iterate(b, raw.AutoShardDataset(input_dataset=numbers(0, 7, 1), num_workers=3, index=1,
                                    auto_shard_policy=2, **NUMBERS), 2)
    iterate(b, raw.ExperimentalAutoShardDataset(input_dataset=numbers(0, 3, 1), num_workers=2,
                                                index=1, auto_shard_policy=-1, **NUMBERS), 3)
    refused(b, raw.AutoShardDataset(input_dataset=numbers(0, 7, 1), num_workers=3, index=3,
                                    **NUMBERS), "index must be between 0 and 2")


@case("v1")
def dataset_auto_shards(b):
    """By file (1), by data (2), by hint (3), or by file where that is possible (0); not at all (-1)."""
    files = [file(f"auto_shard.{i}", b"%d\n%d\n" % (2 * i, 2 * i + 1)) for i in range(3)]
    words = said([S], [[]])

    def lines():
        return raw.TextLineDataset(filenames=tf.constant(files), compression_type="", buffer_size=0)

    def shard(dataset, policy, index, n=2, spec=words):
        return raw.AutoShardDataset(input_dataset=dataset, num_workers=n, index=index, auto_shard_policy=policy, **spec)

    def batch(dataset):
        return raw.BatchDatasetV2(input_dataset=dataset, batch_size=2, drop_remainder=False, **said([S], [[None]]))

    def opened():
        return D.from_tensor_slices(files).flat_map(tf.data.TextLineDataset)._variant_tensor

    for policy in (0, 1):
        iterate(b, shard(opened(), policy, 0), 4, (S,))
        iterate(b, shard(opened(), policy, 1), 2, (S,))
        iterate(b, shard(batch(opened()), policy, 1, spec=said([S], [[None]])), 1, (S,), ((None,),))
    for policy in (0, 2):
        iterate(b, shard(lines(), policy, 1), 3, (S,))
    refused(b, shard(lines(), 1, 1), "Unable to shard this input. You may need to wrap the inputs to your reader dataset in a "
                                     "TensorSliceDataset.")
    iterate(b, shard(batch(lines()), 2, 0, spec=said([S], [[None]])), 2, (S,), ((None,),))
    iterate(b, shard(lines(), -1, 1), 6, (S,))
    for n in (1, 2):
        nested = D.from_tensor_slices([tf.data.TextLineDataset(files)] * n).flat_map(lambda dataset: dataset)
        iterate(b, shard(nested._variant_tensor, 2, 1), 3 * n, (S,))
    hinted = raw.ShardDataset(input_dataset=lines(), num_shards=-1, index=0, **words)
    iterate(b, shard(hinted, 3, 1, n=4), 2, (S,))
    for policy in (0, 2):
        iterate(b, shard(numbers(0, 7, 1), policy, 1, spec=NUMBERS), 3)
    b.step(targets=shard(numbers(0, 7, 1), 1, 1, spec=NUMBERS).op.name, error="")


@case("v1")
def dataset_cardinalities(b):
    def n_of(dataset):
        b.step(raw.DatasetCardinality(input_dataset=dataset))

    def count(dataset, op, n):
        return getattr(raw, op)(input_dataset=dataset, count=n, **NUMBERS)

    seven = numbers(0, 7, 1)
    forever = count(seven, "RepeatDataset", -1)
    for dataset in (seven, numbers(7, 0, -2), numbers(7, 0, 1), forever,
                    count(seven, "RepeatDataset", 3), count(seven, "RepeatDataset", 0),
                    count(numbers(0, 0, 1), "RepeatDataset", -1),
                    count(seven, "TakeDataset", 3), count(seven, "TakeDataset", -1),
                    count(forever, "TakeDataset", 3), count(seven, "TakeDataset", 9),
                    count(seven, "SkipDataset", 3), count(seven, "SkipDataset", 9),
                    count(seven, "SkipDataset", -1), count(forever, "SkipDataset", 2)):
        n_of(dataset)
    n_of(raw.ZipDataset(input_datasets=[seven, forever], **said([L, L], [[], []])))
    n_of(raw.ZipDataset(input_datasets=[seven, numbers(0, 2, 1)], **said([L, L], [[], []])))
    n_of(raw.ConcatenateDataset(input_dataset=seven, another_dataset=seven, **NUMBERS))
    n_of(raw.ConcatenateDataset(input_dataset=seven, another_dataset=forever, **NUMBERS))
    n_of(raw.ShardDataset(input_dataset=seven, num_shards=3, index=0, **NUMBERS))
    n_of(raw.ShardDataset(input_dataset=seven, num_shards=3, index=1, **NUMBERS))
    for drop in (False, True):
        n_of(raw.BatchDatasetV2(input_dataset=seven, batch_size=3, drop_remainder=drop,
                                **said([L], [[None]])))
        n_of(raw.WindowDataset(input_dataset=seven, size=3, shift=2, stride=2,
                               drop_remainder=drop, **said([tf.variant], [[]])))
    b.step(raw.ExperimentalDatasetCardinality(input_dataset=seven))
    for api_dataset in (D.range(7).filter(above_two), D.range(7).map(one_more),
                        D.range(7).flat_map(D.range), D.range(7).shuffle(2).repeat(2),
                        D.range(7).batch(2).unbatch(), D.range(7).cache().prefetch(1),
                        D.range(7).interleave(D.range), D.range(7).batch(2).rebatch(3),
                        D.range(7).batch(2, drop_remainder=True).unbatch(), D.random(seed=1)):
        n_of(api_dataset._variant_tensor)
    for some in (D.range(7), D.range(7).repeat()):
        for api_dataset in (some.group_by_window(lambda x: x % 2, lambda key, group: group, 3), some.filter(above_two),
                            some.flat_map(D.range), some.interleave(D.range, num_parallel_calls=2), some.window(2),
                            some.shuffle(2), some.batch(2).rebatch(3), some.batch(2).unbatch(),
                            some.take_while(above_two), some.unique(), some.padded_batch(2), some.enumerate(),
                            some.enumerate(start=3)):
            n_of(api_dataset._variant_tensor)
    for bounds in ((0, 2**63 - 1, 1), (5, 2**63 - 1, -1), (0, 2**63 - 2, 1), (-2, 5, 3)):
        n_of(numbers(*bounds))


@case("v1")
def dataset_asserted_cardinality(b):
    def claim(n, dataset):
        return raw.AssertCardinalityDataset(input_dataset=dataset, cardinality=n, **NUMBERS)

    iterate(b, claim(3, numbers(0, 3, 1)), 3)
    fails(b, claim(3, numbers(0, 2, 1)),
          "Input dataset was expected to contain 3 elements but contained only 2 elements.", after=2)
    fails(b, claim(1, numbers(0, 3, 1)),
          "Input dataset was expected to contain 1 element but contained at least 2 elements.",
          after=1)
    fails(b, claim(-1, numbers(0, 1, 1)), "an infinite number of elements but contained only 1 "
          "element.", after=1)
    b.step(raw.DatasetCardinality(input_dataset=claim(5, numbers(0, 3, 1))))


@case("v1")
def dataset_padded_batches(b):
    def padded(dataset, shape, value, drop=False, size=2, old=False):
        spec = dict(padded_shapes=[tf.constant(shape, L)], padding_values=[tf.constant(value, L)],
                    output_shapes=[[None] + [None if d < 0 else d for d in shape]])
        if old:
            made = raw.PaddedBatchDataset(input_dataset=dataset, batch_size=size, **spec)
            return plain(made, L, spec["output_shapes"])
        return raw.PaddedBatchDatasetV2(input_dataset=dataset, batch_size=size, drop_remainder=drop,
                                        **spec)

    def ramp(dims):
        def fill(x):
            return tf.fill([x] + dims, x)
        return D.range(0, 5).map(fill)._variant_tensor

    iterate(b, padded(ramp([]), [-1], 9), 3, shapes=((None, None),))
    iterate(b, padded(ramp([]), [-1], 9, drop=True), 2, shapes=((None, None),))
    iterate(b, padded(ramp([]), [6], 0, size=5, old=True), 1, shapes=((5, 6),))
    iterate(b, padded(ramp([3]), [-1, 4], 7), 3, shapes=((None, None, 4),))
    iterate(b, padded(ramp([2, 2]), [-1, -1, -1], 7, size=3), 2, shapes=((None,) * 4,))
    iterate(b, padded(numbers(0, 3, 1), [], 7), 2, shapes=((None,),))
    fails(b, padded(ramp([]), [1], 0), "Attempted to pad to a smaller size than the input element.",
          shapes=((None, None),), after=1)
    fails(b, padded(ramp([]), [-1, -1], 0), "must have the same rank as the padded shape",
          shapes=((None, None, None),))
    refused(b, padded(ramp([]), [-1], 0, size=0), "Batch size must be greater than zero.")
    strings = D.from_tensor_slices(["a", "bc de", ""]).map(lambda x: tf.strings.split([x]).values)
    api(b, strings.padded_batch(3, padded_shapes=[None]), 1)
    pairs = D.range(4).map(lambda x: (tf.range(x), tf.fill([x, x], True)))
    api(b, pairs.padded_batch(2, ([5], [None, 4]), (tf.constant(-1, L), True)), 2)
    ragged = D.range(4).map(lambda x: tf.range(x)).ragged_batch(3)
    api(b, ragged, 2)


@case("v1")
def dataset_batches_again(b):
    five = numbers(0, 5, 1)
    vector = said([L], [[None]])
    old = raw.BatchDataset(input_dataset=five, batch_size=2, **vector)
    iterate(b, plain(old, L, [[None]]), 3, shapes=((None,),))
    two = raw.BatchDatasetV2(input_dataset=five, batch_size=2, drop_remainder=False, **vector)
    iterate(b, two, 3, shapes=((None,),))
    for drop in (False, True):
        batched = raw.ParallelBatchDataset(input_dataset=five, batch_size=3, num_parallel_calls=2,
                                           drop_remainder=drop, **vector)
        iterate(b, batched, 1 if drop else 2, shapes=((None,),))
    iterate(b, raw.UnbatchDataset(input_dataset=two, **NUMBERS), 5)
    iterate(b, raw.ExperimentalUnbatchDataset(input_dataset=two, **NUMBERS), 5)
    fails(b, raw.UnbatchDataset(input_dataset=five, **NUMBERS), "must have a non-scalar value")
    uneven = D.from_tensors(([1, 2, 3], [4, 5]))._variant_tensor
    fails(b, raw.UnbatchDataset(input_dataset=uneven, **said([I, I], [[], []])),
          "Component 0 had size 3 but component 1 had size, 2.", (I, I), ((), ()))
    uneven = D.from_tensors([1, 2]).concatenate(D.from_tensors([3])).batch(2)
    fails(b, uneven._variant_tensor, "Cannot batch tensors with different shapes in component 0. "
          "First element had shape [2] and element 1 had shape [1].", (I,), ((None, None),))
    for replicas in (1, 2, 3):
        for op in (raw.RebatchDataset, raw.ExperimentalRebatchDataset):
            split = op(input_dataset=two, num_replicas=replicas, **vector)
            iterate(b, split, 3 * replicas, shapes=((None,),), rounds=1)
    fails(b, raw.RebatchDataset(input_dataset=five, num_replicas=2, **vector),
          "Perhaps your input dataset is not batched? Component 0 is scalar.", shapes=((None,),))
    refused(b, raw.RebatchDataset(input_dataset=five, num_replicas=0, **vector),
            "num_replicas must be greater than zero.")
    for sizes, drop, n in ((3, False, 2), (3, True, 1), ([1, 2], False, 4), ([2, 0, 1], False, 5),
                           ([4, 4], True, 1), ([7], False, 1)):
        again = raw.RebatchDatasetV2(input_dataset=two, batch_sizes=tf.constant(sizes, L),
                                     drop_remainder=drop, **vector)
        iterate(b, again, n, shapes=((None,),), rounds=1)
    refused(b, raw.RebatchDatasetV2(input_dataset=two, batch_sizes=tf.constant([[1]], L),
                                    drop_remainder=False, **vector),
            "`batch_sizes` must be a scalar or a vector.")
    pair = D.from_tensor_slices(([1, 2, 3, 4, 5], ["a", "b", "c", "d", "e"])).batch(2)
    api(b, pair.rebatch(3), 2)
    api(b, pair.unbatch().batch(4, drop_remainder=True), 1)
    for dataset in (two, raw.TakeDataset(input_dataset=two, count=1, **vector), five):
        b.step(raw.ComputeBatchSize(input_dataset=dataset))


@case("v1")
def dataset_windows(b):
    for drop in (False, True):
        for size, shift, stride in ((3, 3, 1), (2, 1, 2), (3, 2, 2), (2, 5, 1)):
            windows = D.range(7).window(size, shift, stride, drop)
            flat = windows.flat_map(lambda w: w.batch(9))
            n = len(list(range(0, 7, shift)))
            if drop:
                n = len([i for i in range(0, 7, shift) if i + (size - 1) * stride < 7])
            api(b, flat, n)
    two = D.from_tensor_slices(([1, 2, 3], ["a", "b", "c"])).window(2)
    api(b, two.flat_map(lambda x, y: D.zip((x, y))), 3)
    for which in ("size", "shift", "stride"):
        bounds = dict(size=1, shift=1, stride=1) | {which: 0}
        refused(b, raw.WindowDataset(input_dataset=numbers(0, 3, 1), drop_remainder=False, **bounds,
                                     **said([tf.variant], [[]])),
                f"Window {which} must be greater than zero.")
    for op in (raw.SlidingWindowDataset, raw.ExperimentalSlidingWindowDataset):
        for size, shift, stride, n in ((3, 1, 1, 5), (2, 2, 3, 2), (9, 1, 1, 0)):
            sliding = op(input_dataset=numbers(0, 7, 1), window_size=size, window_shift=shift,
                         window_stride=stride, **said([L], [[None]]))
            iterate(b, sliding, n, shapes=((None,),), rounds=1)
    sliding = raw.SlidingWindowDataset(input_dataset=numbers(0, 7, 1), window_size=3, window_shift=3,
                                       window_stride=1, drop_remainder=False, **said([L], [[None]]))
    iterate(b, sliding, 3, shapes=((None,),), rounds=1)


@case("v1")
def dataset_sparse_batches(b):
    def sparse(op, dataset, row):
        made = op(input_dataset=dataset, batch_size=2, row_shape=tf.constant(row, L),
                  **said([L], [[None] * (len(row) + 1)]))
        got, start = walk(made, (tf.variant,), (None,))
        parts = raw.DeserializeSparse(serialized_sparse=got[0], dtype=L)
        return list(parts), start

    rows = D.range(1, 4).map(tf.range)._variant_tensor
    square = D.range(1, 4).map(lambda x: tf.fill([x, 2], x))._variant_tensor
    for op in (raw.DenseToSparseBatchDataset, raw.ExperimentalDenseToSparseBatchDataset):
        for dataset, row in ((rows, [3]), (rows, [-1]), (rows, [5]), (square, [-1, 2])):
            got, start = sparse(op, dataset, row)
            b.step(targets=start)
            b.step(got)
            b.step(got)
            b.step(got, error=END)
    got, start = sparse(raw.DenseToSparseBatchDataset, rows, [1])
    b.step(targets=start)
    b.step(got, error="that is larger than the row shape")


@case("v1")
def dataset_side_by_side(b):
    both = D.zip((D.range(5), D.range(3).map(lambda x: tf.cast(x, F) / 2)))
    api(b, both, 3)
    api(b, D.range(2).concatenate(D.range(5, 7)).concatenate(D.range(1)), 5)
    refused(b, raw.ConcatenateDataset(input_dataset=numbers(0, 3, 1),
                                      another_dataset=numbers(0, 3, 1, **said([I], [[]])),
                                      **NUMBERS), "different output_types")
    api(b, D.range(5).enumerate(3), 5)
    api(b, D.from_tensor_slices({"a": [1, 2], "b": [[1.0], [2.0]]}), 2)
    api(b, D.from_tensors(tf.sparse.from_dense([[1, 0], [0, 2]])), 1)
    api(b, D.from_tensor_slices(tf.sparse.from_dense([[1, 0], [0, 2], [0, 0]])), 3)
    api(b, D.from_tensor_slices(tf.ragged.constant([[1, 2], [], [3]])), 3)
    refused(b, raw.TensorSliceDataset(components=[[1, 2], [1]], output_shapes=[[], []]),
            "All components must have the same size in the 0th dimension")
    strings = raw.TensorSliceDataset(components=[["x", "y"]], output_shapes=[[]])
    iterate(b, strings, 2, (S,), ((),))
