"""Datasets: functions of elements."""

import tensorflow as tf
from tensorflow.python.framework import function

from datasetkit import (F, I, L, NUMBERS, S, api, fails, iterate, numbers, plain, refused, said, v1, walk)
from graphkit import case, raw

D = tf.data.Dataset
OUT_OF_RANGE = "there is no more"


@function.Defun(L)
def twice(x):
    return x * 2


@function.Defun(L, L)
def plus(x, captured):
    return x + captured


@function.Defun(L)
def divides(x):
    return 100 // (2 - x)


@function.Defun(L)
def is_odd(x):
    return tf.equal(x % 2, 1)


@function.Defun(L)
def not_bool(x):
    return x


@function.Defun(L)
def small(x):
    return x < 3


@function.Defun(L)
def ends_at_two(x):
    file = raw.ReadFile(filename=tf.where(x < 2, "/dev/null", "/dev/null"))
    with tf.control_dependencies([file]):
        return raw.EnsureShape(input=x, shape=[])


@case("v1")
def dataset_parallel_map(b):
    for calls in (1, 2, 5, -1):
        mapped = raw.ParallelMapDatasetV2(input_dataset=numbers(0, 6, 1),
                                          other_arguments=[tf.constant(7, L)], f=plus,
                                          num_parallel_calls=calls, **NUMBERS)
        iterate(b, mapped, 6)
    mapped = raw.ParallelMapDataset(input_dataset=numbers(0, 6, 1), other_arguments=[], f=twice,
                                    num_parallel_calls=3, **NUMBERS)
    iterate(b, mapped, 6)
    for calls in (1, 3):
        mapped = raw.ParallelMapDatasetV2(input_dataset=numbers(1, 5, 1), other_arguments=[],
                                          f=divides, num_parallel_calls=calls, **NUMBERS)
        got, start = walk(mapped)
        b.step(targets=start)
        b.step(got)
        b.step(got, error="Integer division by zero")
        b.step(got)
        b.step(got)
        b.step(got, error="End of sequence")
    refused(b, raw.ParallelMapDatasetV2(input_dataset=numbers(0, 6, 1), other_arguments=[], f=twice,
                                        num_parallel_calls=0, **NUMBERS),
            "num_parallel_calls must be greater than zero.")
    api(b, D.range(9).map(lambda x: (x, tf.strings.as_string(x)), num_parallel_calls=4,
                          deterministic=True), 9)
    nested = D.range(4).map(lambda x: D.range(x).reduce(tf.constant(0, L), lambda s, y: s + y * x),
                            num_parallel_calls=2)
    api(b, nested, 4)


@case("v1")
def dataset_map_and_batch(b):
    for op in (raw.MapAndBatchDataset, raw.ExperimentalMapAndBatchDataset):
        for drop in (False, True):
            both = op(input_dataset=numbers(0, 7, 1), other_arguments=[tf.constant(7, L)],
                      batch_size=3, num_parallel_calls=2, drop_remainder=drop, f=plus,
                      **said([L], [[None]]))
            iterate(b, both, 2 if drop else 3, shapes=((None,),))
    wrong = dict(other_arguments=[], f=twice, drop_remainder=False, **said([L], [[None]]))
    refused(b, raw.MapAndBatchDataset(input_dataset=numbers(0, 7, 1), batch_size=0,
                                      num_parallel_calls=2, **wrong),
            "batch_size must be greater than zero.")


@case("v1")
def dataset_filters(b):
    def kept(f, **more):
        return raw.FilterDataset(input_dataset=numbers(0, 7, 1), other_arguments=[], predicate=f,
                                 **NUMBERS)

    iterate(b, kept(is_odd), 3)
    fails(b, kept(not_bool), "Filter predicate `f` must return a scalar bool.")
    for calls in (1, 3, -1):
        parallel = raw.ParallelFilterDataset(input_dataset=numbers(0, 7, 1), other_arguments=[],
                                             num_parallel_calls=calls, predicate=is_odd, **NUMBERS)
        iterate(b, plain(parallel, L, [[]]), 3)
    for op in (raw.TakeWhileDataset, raw.ExperimentalTakeWhileDataset):
        iterate(b, op(input_dataset=numbers(0, 7, 1), other_arguments=[], predicate=small,
                      **NUMBERS), 3)
    fails(b, raw.TakeWhileDataset(input_dataset=numbers(0, 7, 1), other_arguments=[],
                                  predicate=not_bool, **NUMBERS),
          "`predicate` must returns a scalar bool tensor.")
    least = tf.constant(4, L)
    api(b, D.range(7).filter(lambda x: x > least), 2)


@case("v1")
def dataset_scans(b):
    @function.Defun(L, L)
    def sums(state, x):
        return state + x, state

    @function.Defun(L, L)
    def changes(state, x):
        return tf.cast(x, F), x

    for op in (raw.ScanDataset, raw.ExperimentalScanDataset):
        iterate(b, op(input_dataset=numbers(1, 5, 1), initial_state=[tf.constant(10, L)],
                      other_arguments=[], f=sums, **NUMBERS), 4)
    fails(b, raw.ScanDataset(input_dataset=numbers(1, 5, 1), initial_state=[tf.constant(10, L)],
                             other_arguments=[], f=changes, **NUMBERS),
          "Got wrong type for scan_func return value 0 (expected int64, got float).")
    fibonacci = D.range(6).scan((1, 1), lambda s, _: ((s[1], s[0] + s[1]), s[0]))
    api(b, fibonacci, 6)


@case("v1")
def dataset_flat_maps(b):
    api(b, D.range(4).flat_map(D.range), 6)
    api(b, D.range(3).flat_map(lambda x: D.from_tensors(x).repeat(x)), 3)
    api(b, D.range(3).flat_map(lambda x: D.range(2).flat_map(lambda y: D.from_tensors(x * y))), 6)

    @function.Defun(L)
    def no_dataset(x):
        return x

    fails(b, raw.FlatMapDataset(input_dataset=numbers(0, 3, 1), other_arguments=[], f=no_dataset,
                                **NUMBERS), "must return a single scalar of dtype DT_VARIANT")
    for cycle, block in ((1, 1), (2, 1), (2, 3), (4, 2), (9, 1)):
        def rows(x):
            return D.from_tensors(x).repeat(x % 4)

        api(b, D.range(7).interleave(rows, cycle, block), 9, rounds=1)
        for calls in (1, cycle):
            api(b, D.range(7).interleave(rows, cycle, block, num_parallel_calls=calls), 9, rounds=1)
    empty = D.range(5).interleave(lambda x: D.range(0), 2)
    api(b, empty, 0)


@function.Defun(L)
def ramp(x):
    return D.range(10 * x, 10 * x + x)._variant_tensor


@case("v1")
def dataset_interleaves(b):
    base = dict(input_dataset=numbers(0, 5, 1), other_arguments=[], f=ramp, **NUMBERS)
    for cycle, block in ((1, 1), (2, 1), (3, 2), (7, 1)):
        shape = dict(cycle_length=cycle, block_length=block)
        iterate(b, raw.InterleaveDataset(**base, **shape), 10, rounds=1)
        iterate(b, raw.ParallelInterleaveDatasetV2(**base, **shape, num_parallel_calls=1), 10,
                rounds=1)
        iterate(b, raw.ParallelInterleaveDatasetV3(**base, **shape, num_parallel_calls=cycle,
                                                   deterministic="true"), 10, rounds=1)
        buffers = dict(buffer_output_elements=2, prefetch_input_elements=1)
        iterate(b, raw.ParallelInterleaveDatasetV4(**base, **shape, **buffers, num_parallel_calls=1,
                                                   deterministic="true"), 10, rounds=1)
        iterate(b, raw.ParallelInterleaveDataset(**base, **shape, **buffers, sloppy=False), 10,
                rounds=1)
        iterate(b, raw.ExperimentalParallelInterleaveDataset(**base, **shape, **buffers,
                                                             sloppy=False), 10, rounds=1)
        iterate(b, raw.LegacyParallelInterleaveDatasetV2(**base, **shape, **buffers,
                                                         deterministic="true"), 10, rounds=1)
    refused(b, raw.InterleaveDataset(**base, cycle_length=0, block_length=1),
            "cycle_length must be greater than zero.")
    refused(b, raw.InterleaveDataset(**base, cycle_length=1, block_length=0),
            "block_length must be greater than zero.")
    refused(b, raw.ParallelInterleaveDatasetV2(**base, cycle_length=0, block_length=1,
                                               num_parallel_calls=1),
            "`cycle_length` must be `tf.data.AUTOTUNE` or greater than 0 but is 0")
    refused(b, raw.ParallelInterleaveDatasetV2(**base, cycle_length=1, block_length=0,
                                               num_parallel_calls=1), "`block_length` must be > 0")
    refused(b, raw.ParallelInterleaveDatasetV2(**base, cycle_length=1, block_length=1,
                                               num_parallel_calls=2),
            "If `cycle_length` is set to a fixed value")
    refused(b, raw.LegacyParallelInterleaveDatasetV2(
        **base, cycle_length=1, block_length=1, buffer_output_elements=0,
        prefetch_input_elements=0), "`buffer_output_elements` must be > 0")


@case("v1")
def dataset_groups(b):
    def sums(key, window):
        return window.batch(9).map(lambda x: tf.stack([key, tf.reduce_sum(x)]))

    grouped = D.range(10).group_by_window(key_func=lambda x: x % 3, reduce_func=sums, window_size=2)
    api(b, grouped, 6)
    sized = D.range(10).group_by_window(key_func=lambda x: x % 2, reduce_func=sums,
                                        window_size_func=lambda key: key + 1)
    api(b, sized, 8)
    buckets = D.range(8).map(lambda x: tf.fill([x], x)).bucket_by_sequence_length(
        element_length_func=lambda x: tf.shape(x)[0], bucket_boundaries=[3, 5],
        bucket_batch_sizes=[2, 2, 2])
    api(b, buckets, 5)

    @function.Defun(L)
    def parity(x):
        return x % 2

    @function.Defun(L)
    def nothing(x):
        return tf.constant(0, L)

    @function.Defun(L, tf.variant)
    def same(key, window):
        return window

    @function.Defun(L)
    def as_float(x):
        return tf.cast(x, F)

    more = dict(key_func_other_arguments=[], reduce_func_other_arguments=[],
                window_size_func_other_arguments=[])
    fails(b, raw.GroupByWindowDataset(input_dataset=numbers(0, 4, 1), key_func=parity,
                                      reduce_func=same, window_size_func=nothing, **more, **NUMBERS),
          "Window size must be greater than zero, but got 0.")
    fails(b, raw.ExperimentalGroupByWindowDataset(
        input_dataset=numbers(0, 4, 1), key_func=as_float, reduce_func=same,
        window_size_func=nothing, **more, **NUMBERS), "`key_func` must return a scalar int64.")

    @function.Defun(L)
    def init(key):
        return key * 100

    @function.Defun(L, L)
    def add(state, x):
        return state + x

    @function.Defun(L)
    def negative(state):
        return -state

    parts = ("key", "init", "reduce", "finalize")
    none = {f"{part}_func_other_arguments": [] for part in parts}
    for op in (raw.GroupByReducerDataset, raw.ExperimentalGroupByReducerDataset):
        iterate(b, op(input_dataset=numbers(0, 7, 1), key_func=parity, init_func=init,
                      reduce_func=add, finalize_func=negative, **none, **NUMBERS), 2)


@case("v1")
def dataset_unique(b):
    for op in (raw.UniqueDataset, raw.ExperimentalUniqueDataset):
        numbers_again = D.range(6).map(lambda x: x % 3)._variant_tensor
        iterate(b, op(input_dataset=numbers_again, **NUMBERS), 3)
    strings = D.from_tensor_slices([["a", "b"], ["a", "c"], ["a", "b"]])
    api(b, strings.unique(), 2)
    refused(b, raw.UniqueDataset(input_dataset=numbers(0, 3, 1, **said([F], [[]])),
                                 **said([F], [[]])), "UniqueDataset only supports inputs with")


@case("v1")
def dataset_reductions(b):
    @function.Defun(L, L)
    def add(state, x):
        return state + x

    @function.Defun(L, L)
    def two(state, x):
        return state, x

    def reduced(f, dataset, dtype=L, **more):
        return raw.ReduceDataset(input_dataset=dataset, initial_state=[tf.constant(5, L)],
                                 other_arguments=[], f=f, **said([dtype], [[]]))

    b.step(reduced(add, numbers(0, 5, 1)))
    b.step(reduced(add, numbers(0, 0, 1)))
    b.step(reduced(two, numbers(0, 5, 1)), error="The number of components of the initial state")
    b.step(reduced(add, numbers(0, 5, 1), F), error="Data type mismatch at component 0")
    x = b.feed(L, name="n")
    total = D.range(x).reduce((tf.constant(0, L), ""), lambda s, y: (s[0] + y, tf.strings.join(
        [s[1], tf.strings.as_string(y)])))
    b.step(list(total), {x: 4})
    b.step(list(total), {x: 0})

    def single(dataset):
        return raw.DatasetToSingleElement(dataset=dataset, **NUMBERS)

    b.step(single(numbers(3, 4, 1)))
    b.step(single(numbers(3, 3, 1)), error="Dataset was empty.")
    b.step(single(numbers(3, 5, 1)), error="Dataset had more than one element.")

    def at(dataset, i):
        return raw.GetElementAtIndex(dataset=dataset, index=i, **NUMBERS)

    five = numbers(0, 5, 1)
    mapped = raw.MapDataset(input_dataset=five, other_arguments=[], f=twice,
                            preserve_cardinality=True, **NUMBERS)
    skipped = raw.SkipDataset(input_dataset=mapped, count=2, **NUMBERS)
    repeated = raw.RepeatDataset(input_dataset=skipped, count=2, **NUMBERS)
    for dataset, i in ((five, 3), (mapped, 4), (skipped, 1), (repeated, 4)):
        b.step(at(dataset, i))
    b.step(raw.GetElementAtIndex(dataset=raw.BatchDatasetV2(
        input_dataset=five, batch_size=2, drop_remainder=False, **said([L], [[None]])), index=2,
        **said([L], [[None]])))
    b.step(at(five, 5), error="Index out of range [0, 5):5")


@case("v1")
def dataset_map_defun(b):
    @function.Defun(L, F)
    def both(x, y):
        return tf.cast(x, F) + y, tf.fill([2], x)

    @function.Defun(L, L)
    def fill(x, n):
        return tf.fill([x], n)

    got = raw.MapDefun(arguments=[tf.constant([1, 2, 3], L), [0.5, 1.5, 2.5]], captured_inputs=[],
                       output_types=[F, L], output_shapes=[[], [2]], f=both)
    b.step(list(got))
    got = raw.MapDefun(arguments=[tf.constant([2, 2], L)], captured_inputs=[tf.constant(7, L)],
                       output_types=[L], output_shapes=[[None]], f=fill)
    b.step(list(got))
    got = raw.MapDefun(arguments=[tf.constant([1, 2], L)], captured_inputs=[tf.constant(7, L)],
                       output_types=[L], output_shapes=[[None]], f=fill)
    b.step(list(got), error="")
    y = b.feed(F, [None])
    got = raw.MapDefun(arguments=[tf.constant([1, 2, 3], L), y], captured_inputs=[],
                       output_types=[F, L], output_shapes=[[], [2]], f=both)
    b.step(list(got), {y: [0.5, 1.5]}, error="All inputs must have the same dimension 0. Input 1 has leading dimension 2, while ")


@case("v1")
def dataset_indexed_flat_maps(b):
    @function.Defun(L)
    def row(x):
        return tf.stack([x, x * 10])

    @function.Defun(L)
    def place(i):
        return i // 2, i % 2

    @function.Defun(L)
    def outside(i):
        return i, i + 5

    def made(index_map):
        return raw.IndexFlatMapDataset(input_dataset=numbers(0, 3, 1), map_func_other_args=[],
                                       index_map_func_other_args=[], output_cardinality=6,
                                       map_func=row, index_map_func=index_map, **NUMBERS)

    iterate(b, plain(made(place), L, [[]]), 6)
    b.step(raw.DatasetCardinality(input_dataset=made(place)))
    fails(b, plain(made(outside), L, [[]]), "got invalid `index_map_func` which returns offset 5")

    def weighted(*pairs):
        return plain(raw.WeightedFlatMapDataset(
            input_datasets=[d for d, _ in pairs],
            weights=[tf.constant(w, tf.float64) for _, w in pairs], **NUMBERS), L, [[]])

    iterate(b, weighted((numbers(0, 10, 1), 0.2), (numbers(10, 20, 1), 0.3), (numbers(20, 30, 1), 0.5)),
            19, rounds=1)
    refused(b, raw.WeightedFlatMapDataset(
        input_datasets=[numbers(0, 10, 1), numbers(0, 3, 1)],
        weights=[tf.constant(w, tf.float64) for w in (0.2, 0.8)], **NUMBERS),
            "Input 1 needs to have at least 10 elements. It only has 3 elements.")
    refused(b, raw.WeightedFlatMapDataset(
        input_datasets=[numbers(0, 3, 1)] * 2,
        weights=[tf.constant(w, tf.float64) for w in (0.5, 0.0)], **NUMBERS),
            "`weights` must be greater than 0.0. Input 1 has a weight of 0")


@case("v1")
def dataset_elements_in_variants(b):
    packed = raw.CompressElement(components=[tf.constant([1, 2]), "text"])
    b.step(list(raw.UncompressElement(compressed=packed, **said([I, S], [[2], []]))))
    b.step(list(raw.UncompressElement(compressed=packed, **said([F, S], [[2], []]))),
           error="Expected a tensor of type float but got a tensor of type int32")
    b.step(list(raw.UncompressElement(compressed=packed, **said([I], [[2]]))),
           error="Expected 1 outputs from uncompress, but got 2")
    wrapped = raw.WrapDatasetVariant(input_handle=numbers(0, 3, 1))
    iterate(b, raw.UnwrapDatasetVariant(input_handle=wrapped), 3)
    b.step(targets=raw.UnwrapDatasetVariant(input_handle=numbers(0, 3, 1)).op.name,
           error="Tensor must be a WrappedDataset variant object.")
    b.step(raw.CheckPinned(tensor=tf.constant(1)), error="to check pinnedness")


@case("v1")
def dataset_tables(b):
    table = raw.HashTableV2(key_dtype=S, value_dtype=L)
    pairs = D.from_tensor_slices((["a", "b", "c"], tf.constant([1, 2, 3], L)))
    b.step(targets=raw.InitializeTableFromDataset(table_handle=table,
                                                  dataset=pairs._variant_tensor).name)
    b.step(raw.LookupTableFindV2(table_handle=table, keys=["c", "x", "a"],
                                 default_value=tf.constant(-1, L)))
    b.step(raw.LookupTableSizeV2(table_handle=table))


@case("v1")
def dataset_graphs(b):
    """Datasets that were written as graphs and made again."""

    def again(dataset, write=raw.DatasetToGraphV2):
        return raw.DatasetFromGraph(graph_def=write(input_dataset=dataset))

    captured = raw.MapDataset(input_dataset=numbers(0, 4, 1), other_arguments=[tf.constant(7, L)], f=plus, **NUMBERS)
    iterate(b, again(captured), 4)
    kept = raw.FilterDataset(input_dataset=captured, other_arguments=[], predicate=is_odd, **NUMBERS)
    iterate(b, again(again(kept), raw.DatasetToGraph), 2)
    both = raw.ConcatenateDataset(input_dataset=kept, another_dataset=captured, **NUMBERS)
    shuffled = raw.ShuffleDataset(input_dataset=both, buffer_size=3, seed=5, seed2=6, reshuffle_each_iteration=False,
                                  **NUMBERS)
    iterate(b, again(shuffled), 6)
    b.step(raw.DatasetFromGraph(graph_def="no graph"), error="Could not parse GraphDef")


@case("v1")
def dataset_graphs_with_tables(b):
    """Tables that a function captures are written with their contents."""
    table = raw.HashTableV2(key_dtype=L, value_dtype=L)
    fill = raw.InitializeTableV2(table_handle=table, keys=tf.constant([0, 1, 2], L), values=tf.constant([5, 6, 7], L))
    found = tf.function(lambda x, t: raw.LookupTableFindV2(table_handle=t, keys=x, default_value=tf.constant(-1, L)))
    found = found.get_concrete_function(tf.TensorSpec([], L), tf.TensorSpec([], tf.resource))
    mapped = raw.MapDataset(input_dataset=numbers(0, 5, 1), other_arguments=[table], f=found, **NUMBERS)
    b.step(targets=fill.name)
    iterate(b, raw.DatasetFromGraph(graph_def=raw.DatasetToGraphV2(input_dataset=mapped)), 5)
