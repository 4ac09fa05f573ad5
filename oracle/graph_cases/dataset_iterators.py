"""Datasets: iterators, their handles and their saved states, caches, datasets that pass elements on."""

import tensorflow as tf
from tensorflow.python.framework import function

from datasetkit import (END, F, I, L, NUMBERS, S, api, fails, iterate, numbers, plain, refused, said,
                        saved, walk)
from graphkit import case, raw

D = tf.data.Dataset


def following(iterator):
    return list(raw.IteratorGetNext(iterator=iterator, **NUMBERS))


@case("v1")
def dataset_handles(b):
    b.placed = "a handle names the device of its iterator"
    iterators = [raw.IteratorV2(shared_name=f"i{i}", container="", **NUMBERS) for i in range(2)]
    for i, iterator in enumerate(iterators):
        b.step(targets=raw.MakeIterator(dataset=numbers(10 * i, 10 * i + 3, 1), iterator=iterator).name)
    texts = [raw.IteratorToStringHandle(resource_handle=it) for it in iterators]
    which = b.feed(tf.bool, name="which")
    text = tf.where(which, texts[0], texts[1])
    for op in (raw.IteratorFromStringHandle, raw.IteratorFromStringHandleV2):
        again = op(string_handle=text, **NUMBERS)
        got = following(again)
        b.step(got, {which: True})
        b.step(got, {which: False})
    untyped = raw.IteratorFromStringHandleV2(string_handle=texts[1])
    b.step(following(untyped))
    b.step(following(untyped), error=END)
    wrong = raw.IteratorFromStringHandleV2(string_handle=texts[1], **said([F], [[]]))
    b.step(following(wrong), error="Data type mismatch")
    bad = raw.IteratorFromStringHandleV2(string_handle="nothing", **NUMBERS)
    b.step(following(bad), error="Could not parse string_handle as a valid ResourceHandle")


@case("v1")
def dataset_anonymous(b):
    for op in (raw.AnonymousIterator, raw.AnonymousIteratorV2, raw.AnonymousIteratorV3):
        made = op(**NUMBERS)
        handle = made.handle if hasattr(made, "handle") else made
        start = raw.MakeIterator(dataset=numbers(4, 6, 1), iterator=handle)
        with tf.control_dependencies([start]):
            first = following(handle)[0]
        with tf.control_dependencies([first]):
            second = following(handle)[0]
        b.step([first, second])
    made = raw.AnonymousIteratorV2(**NUMBERS)
    b.step(targets=raw.DeleteIterator(handle=made.handle, deleter=made.deleter).name)
    cache = raw.AnonymousMemoryCache()
    b.step(targets=raw.DeleteMemoryCache(handle=cache.handle, deleter=cache.deleter).name,
           error="Cannot delete an unowned Resource")


@case("v1")
def dataset_copied_to_devices(b):
    from tensorflow.python.data.experimental.ops import prefetching_ops
    for made in (prefetching_ops.copy_to_device, prefetching_ops.prefetch_to_device):
        api(b, D.range(4).apply(made("/job:localhost/replica:0/task:0/device:CPU:0")), 4)


@case("v1")
def dataset_states(b):
    for dataset, before, after in ((numbers(0, 6, 1), 2, 4), (D.range(6).repeat(2), 7, 5),
                                   (D.range(9).skip(2).take(5), 3, 2), (D.range(6).shard(2, 1), 1, 2),
                                   (D.range(3).concatenate(D.range(4)), 4, 3),
                                   (D.range(6).shuffle(3, seed=4, reshuffle_each_iteration=False), 2, 4),
                                   (D.range(6).filter(lambda x: x > 1), 1, 3),
                                   (D.range(6).map(lambda x: x * x), 2, 4),
                                   (D.range(4).flat_map(D.range), 3, 3),
                                   (D.range(5).interleave(D.range, 2, 1), 4, 6),
                                   (D.range(6).take_while(lambda x: x < 4), 1, 3),
                                   (D.range(6).batch(4).unbatch(), 3, 3),
                                   (D.range(6).scan(tf.constant(0, L), lambda s, x: (s + x, s)), 3, 3),
                                   (D.range(6).map(lambda x: x % 3).unique(), 1, 2),
                                   (D.range(6).cache(), 2, 4),
                                   (D.random(seed=3).take(5), 2, 3),
                                   (D.range(6).prefetch(2), 2, 4),
                                   (D.range(6).map(lambda x: x + 1, num_parallel_calls=2), 2, 4)):
        saved(b, getattr(dataset, "_variant_tensor", dataset), before, after)
    batches = D.range(8).batch(3)
    saved(b, batches._variant_tensor, 1, 2, (L,), ((None,),))
    saved(b, D.range(9).batch(3).rebatch(2)._variant_tensor, 2, 3, (L,), ((None,),))
    grouped = D.range(8).group_by_window(lambda x: x % 2, lambda k, w: w.batch(3), 3)
    saved(b, grouped._variant_tensor, 2, 2, (L,), ((None,),))
    zipped = D.zip((D.range(4), D.range(5)))
    saved(b, zipped._variant_tensor, 1, 3, (L, L), ((), ()))
    windows = D.range(6).window(2).flat_map(lambda w: w.batch(2))
    saved(b, windows._variant_tensor, 1, 2, (L,), ((None,),))
    chosen = D.choose_from_datasets([D.range(3), D.range(5, 9)], D.range(2).repeat(3))
    saved(b, chosen._variant_tensor, 2, 4)
    unready = raw.IteratorV2(shared_name="", container="", **NUMBERS)
    b.step(targets=raw.SerializeIterator(resource_handle=unready).op.name,
           error="Save() failed because the iterator has not been initialized.")
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = True
    symbolic = D.range(6).window(2).flat_map(lambda w: w).with_options(options)
    iterator = raw.IteratorV2(shared_name="", container="", **NUMBERS)
    b.step(targets=raw.MakeIterator(dataset=symbolic._variant_tensor, iterator=iterator).name)
    b.step(list(raw.IteratorGetNext(iterator=iterator, **NUMBERS)))
    b.step(targets=raw.SerializeIterator(resource_handle=iterator).op.name,
           error="WindowOp does not support symbolic checkpointing.")
    saved(b, D.range(4).with_options(options)._variant_tensor, 1, 3)


@case("v1")
def dataset_written_states(b):
    for dataset, before, after in ((D.range(6).repeat(2), 7, 5), (D.range(6).filter(lambda x: x > 1), 1, 3),
                                   (D.range(6).shuffle(3, seed=4, reshuffle_each_iteration=False), 2, 4),
                                   (D.range(4).flat_map(D.range), 3, 3), (D.range(5).interleave(D.range, 2, 1), 4, 6),
                                   (D.range(6).batch(4).unbatch(), 3, 3), (D.range(6).prefetch(2), 2, 4),
                                   (D.range(8).window(3).interleave(lambda window: window, 2), 3, 5),
                                   (D.range(6).map(lambda x: x + 1, num_parallel_calls=2), 2, 4)):
        saved(b, dataset._variant_tensor, before, after, written=True)
    grouped = D.range(8).group_by_window(lambda x: x % 2, lambda k, w: w.batch(2), 3)
    saved(b, grouped._variant_tensor, 1, 5, (L,), ((None,),), written=True)
    unready = raw.IteratorV2(shared_name="", container="", **NUMBERS)
    ready = raw.IteratorV2(shared_name="", container="", **NUMBERS)
    b.step(targets=raw.MakeIterator(dataset=numbers(0, 3, 1), iterator=ready).name)
    b.step(targets=raw.DeserializeIterator(resource_handle=unready, serialized=raw.SerializeIterator(resource_handle=ready)).name,
           error="Restore() failed because the iterator has not been initialized.")
    none = D.range(0).filter(lambda x: x > 1).batch(4)
    b.step(raw.DatasetCardinality(input_dataset=none._variant_tensor))


@case("v1")
def dataset_caches(b):
    counted = D.range(3).map(lambda x: x * 5)
    api(b, counted.cache(), 3)
    api(b, counted.cache().repeat(3), 9)
    api(b, D.range(0).cache(), 0)
    iterate(b, raw.CacheDataset(input_dataset=numbers(0, 3, 1), filename="", **NUMBERS), 3)
    for handle in (raw.DummyMemoryCache(), raw.AnonymousMemoryCache().handle):
        iterate(b, raw.CacheDatasetV2(input_dataset=numbers(0, 3, 1), filename="", cache=handle,
                                      **NUMBERS), 3)


@case("v1")
def dataset_passes_elements_on(b):
    three = numbers(0, 3, 1)

    def passed(op, **more):
        return getattr(raw, op)(input_dataset=three, **more, **NUMBERS)

    none = tf.constant([], S)
    for buffer in (-1, 0, 1, 2, 9):
        iterate(b, passed("PrefetchDataset", buffer_size=buffer), 3)
    refused(b, passed("PrefetchDataset", buffer_size=-3), "buffer_size must be >= 0 or set")
    options = tf.data.Options()
    options.deterministic = False
    text = options._to_proto().SerializeToString()
    optioned = passed("OptionsDataset", serialized_options=text)
    iterate(b, optioned, 3)
    b.step(raw.GetOptions(input_dataset=optioned))
    iterate(b, passed("ModelDataset"), 3)
    iterate(b, passed("OptimizeDataset", optimizations=none), 3)
    iterate(b, passed("OptimizeDatasetV2", optimizations_enabled=none, optimizations_disabled=none,
                      optimizations_default=none), 3)
    iterate(b, passed("FinalizeDataset"), 3)
    iterate(b, passed("NonSerializableDataset"), 3)
    iterate(b, passed("ExperimentalNonSerializableDataset"), 3)
    for old in ("", "Experimental"):
        iterate(b, passed(old + "MaxIntraOpParallelismDataset", max_intra_op_parallelism=1), 3)
        iterate(b, passed(old + "PrivateThreadPoolDataset", num_threads=2), 3)
        iterate(b, passed(old + "BytesProducedStatsDataset", tag="t"), 3)
        iterate(b, passed(old + "LatencyStatsDataset", tag="t"), 3)
        iterate(b, passed(old + "SleepDataset", sleep_microseconds=10), 3)
        threads = getattr(raw, old + "ThreadPoolHandle")(num_threads=2, display_name="p")
        iterate(b, passed(old + "ThreadPoolDataset", thread_pool=threads), 3)
        stats = getattr(raw, old + "StatsAggregatorHandle")()
        iterate(b, passed(old + "SetStatsAggregatorDataset", stats_aggregator=stats, tag="t",
                          counter_prefix=""), 3)
    refused(b, passed("MaxIntraOpParallelismDataset", max_intra_op_parallelism=-1),
            "`max_intra_op_parallelism` must be >= 0")
    refused(b, passed("PrivateThreadPoolDataset", num_threads=-1), "`num_threads` must be >= 0")


@case("v1")
def dataset_ignores_errors(b):
    @function.Defun(L)
    def divides(x):
        return 100 // (2 - x)

    broken = raw.MapDataset(input_dataset=numbers(0, 5, 1), other_arguments=[], f=divides, **NUMBERS)
    for op in (raw.IgnoreErrorsDataset, raw.ExperimentalIgnoreErrorsDataset):
        iterate(b, op(input_dataset=broken, **NUMBERS), 4)


@case("v1")
def dataset_generators(b):
    @function.Defun(L)
    def init(x):
        return x

    @function.Defun(L)
    def text(x):
        return tf.strings.as_string(x)

    @function.Defun(L)
    def ends(x):
        rows = raw.TensorSliceDataset(components=[tf.zeros([0], L)], output_shapes=[[]])
        inner = raw.AnonymousIteratorV3(**NUMBERS)
        start = raw.MakeIterator(dataset=rows, iterator=inner)
        with tf.control_dependencies([start]):
            return raw.IteratorGetNext(iterator=inner, **NUMBERS)[0]

    def made(following, **spec):
        return raw.GeneratorDataset(
            init_func_other_args=[tf.constant(7, L)], next_func_other_args=[],
            finalize_func_other_args=[], init_func=init, next_func=following, finalize_func=init,
            **spec)

    iterate(b, plain(made(ends, **NUMBERS), L, [[]]), 0)
    strings = made(text, **said([S], [[]]))
    got, start = walk(raw.TakeDataset(input_dataset=strings, count=2, **said([S], [[]])), (S,))
    b.step(targets=start)
    b.step(got)
    b.step(got)
    b.step(got, error=END)


@case("v1")
def dataset_several_devices(b):
    devices = ["/cpu:0", "/cpu:0"]
    shared = raw.MultiDeviceIterator(devices=devices, shared_name="", container="", **NUMBERS)
    init = raw.MultiDeviceIteratorInit(dataset=numbers(0, 5, 1), multi_device_iterator=shared,
                                       max_buffer_size=1)
    incarnation = b.feed(L, name="incarnation")
    shard = b.feed(I, name="shard")
    got = raw.MultiDeviceIteratorGetNextFromShard(multi_device_iterator=shared, shard_num=shard,
                                                  incarnation_id=incarnation, **NUMBERS)
    b.step(init)
    for i in range(5):
        b.step(list(got), {incarnation: 1, shard: i % 2})
    b.step(list(got), {incarnation: 1, shard: 1}, error=END)
    b.step(list(got), {incarnation: 7, shard: 1}, error="Invalid incarnation id. Provided: 7; "
           "Expected: 1")
    text = raw.MultiDeviceIteratorToStringHandle(multi_device_iterator=shared)
    again = raw.MultiDeviceIteratorFromStringHandle(string_handle=text, **NUMBERS)
    got = raw.MultiDeviceIteratorGetNextFromShard(multi_device_iterator=again, shard_num=0,
                                                  incarnation_id=incarnation, **NUMBERS)
    b.step(init)
    b.step(list(got), {incarnation: 2})
    for op in (raw.AnonymousMultiDeviceIterator, raw.AnonymousMultiDeviceIteratorV3):
        made = op(devices=devices, **NUMBERS)
        handle = made.handle if hasattr(made, "handle") else made
        init = raw.MultiDeviceIteratorInit(dataset=numbers(4, 6, 1), multi_device_iterator=handle,
                                           max_buffer_size=1)
        first = raw.MultiDeviceIteratorGetNextFromShard(
            multi_device_iterator=handle, shard_num=0, incarnation_id=init, **NUMBERS)
        b.step(list(first))
    made = raw.AnonymousMultiDeviceIterator(devices=devices, **NUMBERS)
    b.step(targets=raw.DeleteMultiDeviceIterator(multi_device_iterator=made.handle, iterators=[],
                                                 deleter=made.deleter).name)


@case("v1")
def dataset_odds_and_ends(b):
    b.placed = "the results name devices"
    three = numbers(0, 3, 1)
    for op in (raw.AssertNextDataset, raw.ExperimentalAssertNextDataset):
        made = op(input_dataset=three, transformations=tf.constant([], S), **NUMBERS)
        iterate(b, plain(made, L, [[]]), 3)
    made = raw.AssertPrevDataset(input_dataset=three, transformations=tf.constant([], S), **NUMBERS)
    iterate(b, plain(made, L, [[]]), 3)
    for op in (raw.ChooseFastestDataset, raw.ExperimentalChooseFastestDataset):
        made = op(input_datasets=[three, three], num_experiments=2, **NUMBERS)
        iterate(b, plain(made, L, [[]]), 3)
    b.step(targets=raw.DummyIterationCounter().op.name)
    iterator = raw.IteratorV2(shared_name="", container="", **NUMBERS)
    start = raw.MakeIterator(dataset=plain(three, L, [[]]), iterator=iterator)
    b.step(targets=start.name)
    for op in (raw.IteratorGetDevice, raw.ExperimentalIteratorGetDevice):
        b.step(op(resource=iterator))
    modelled = raw.IteratorGetModelProto(iterator=iterator)
    b.step(modelled, error="Cannot find this iterator's analytical model.")
    stats = raw.StatsAggregatorHandleV2()
    b.step(targets=stats.op.name)
    stats = raw.StatsAggregatorHandle()
    for op in (raw.StatsAggregatorSummary, raw.ExperimentalStatsAggregatorSummary):
        b.step(op(iterator=stats))


@case("v1")
def dataset_assertions(b):
    def asserted(op, dataset, *wanted):
        return op(input_dataset=dataset, transformations=tf.constant(list(wanted), S), **NUMBERS)

    def take(dataset):
        return raw.TakeDataset(input_dataset=dataset, count=2, **NUMBERS)

    def starts(dataset, error=None):
        got, start = walk(dataset)
        b.step(targets=start, error=error)
        if not error:
            b.step(got)

    three, following = numbers(0, 3, 1), raw.AssertNextDataset
    starts(plain(take(take(asserted(following, three, "FiniteTake", "FiniteTake", "Root"))), L, [[]]))
    starts(plain(take(asserted(raw.ExperimentalAssertNextDataset, three, "FiniteTake")), L, [[]]))
    starts(plain(take(asserted(following, three, "Skip")), L, [[]]),
           "Asserted transformation matching Skip at offset 0 but encountered FiniteTake transformation instead.")
    starts(plain(take(asserted(following, three, "FiniteTake", "Tak")), L, [[]]),
           "Asserted transformation matching Tak at offset 1 but encountered Root transformation instead.")
    skipped = raw.SkipDataset(input_dataset=asserted(following, three, "FiniteSkip"), count=1, **NUMBERS)
    starts(plain(skipped, L, [[]]))
    for count, kind in ((2, "FiniteRepeat"), (-1, "ForeverRepeat")):
        repeated = raw.RepeatDataset(input_dataset=asserted(following, three, kind), count=count, **NUMBERS)
        starts(plain(repeated, L, [[]]), f"matching {kind} at offset 0 but encountered {kind}[0] ")
    cached = raw.CacheDataset(input_dataset=asserted(following, three, "MemoryCacheImpl", "Root"), filename="", **NUMBERS)
    starts(plain(cached, L, [[]]))
    starts(plain(asserted(following, three, "Root", "Whoops"), L, [[]]),
           "Asserted next 2 transformations but encountered only 1.")
    starts(take(asserted(following, three, "Whoops")), "Asserted transformation matching Whoops at offset 0")

    def before(*wanted):
        return plain(asserted(raw.AssertPrevDataset, take(three), *wanted), L, [[]])

    split = "name: 'RangeDataset' attr { key: 'replicate_on_split' value { b: %s } }"
    starts(before("name: 'TakeDataset'", "name: 'RangeDataset'"))
    starts(before("name: 'TakeDataset'", split % "false"))
    at = "Failure checking transformations at offset "
    starts(before("name: 'TakeDataset'", split % "true"),
           at + "1: Asserted attribute 'replicate_on_split' having a value of '")
    starts(before("name: 'TakeDataset' attr { key: 'whoops' value { b: true } }"),
           at + "0: Asserted attribute 'whoops' having a value of '")
    starts(before("name: 'TakeDataset'", "name: 'Range'"),
           at + "1: Asserted transformation matching 'Range', but found 'RangeDataset'.")
    starts(before("name: 'TakeDataset'", "name: 'RangeDataset'", "name: 'TakeDataset'"),
           "Asserted previous 3 transformations but encountered only 2.")
    starts(before("nome"), at + "0: Couldn't parse transformation 'nome'.")
