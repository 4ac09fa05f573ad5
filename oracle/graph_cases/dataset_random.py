"""Datasets: shuffling and other random choices, whose order is TensorFlow's for a seed."""

import tensorflow as tf

from datasetkit import END, F, L, NUMBERS, api, fails, iterate, numbers, plain, refused, said, walk
from graphkit import case, raw

D = tf.data.Dataset


def many(b, dataset, n, rounds=1, dtypes=(L,), shapes=((),)):
    """Takes elements of a dataset without end."""
    got, start = walk(dataset, dtypes, shapes)
    for _ in range(rounds):
        b.step(targets=start)
        for _ in range(n):
            b.step(got)


@case("v1")
def dataset_shuffles(b):
    def shuffled(dataset, size, seeds=(1, 2), reshuffle=True):
        return raw.ShuffleDataset(input_dataset=dataset, buffer_size=size, seed=seeds[0],
                                  seed2=seeds[1], reshuffle_each_iteration=reshuffle, **NUMBERS)

    seven = numbers(0, 7, 1)
    for size in (1, 2, 4, 7, 20):
        for reshuffle in (False, True):
            iterate(b, shuffled(seven, size, (size, 5), reshuffle), 7, rounds=1)
    for reshuffle in (False, True):
        again = raw.RepeatDataset(input_dataset=shuffled(seven, 4, (7, 0), reshuffle), count=3,
                                  **NUMBERS)
        iterate(b, again, 21, rounds=1)
    iterate(b, shuffled(shuffled(seven, 3), 4, (3, 4)), 7)
    iterate(b, shuffled(numbers(0, 0, 1), 3), 0)
    iterate(b, shuffled(seven, -2), 7, rounds=1)
    many(b, shuffled(raw.RepeatDataset(input_dataset=numbers(0, 3, 1), count=-1, **NUMBERS), 5), 20)
    refused(b, shuffled(seven, 0), "buffer_size must be greater than zero or UNKNOWN_CARDINALITY")


@case("v1")
def dataset_shuffles_and_repeats(b):
    def both(size, count, n=5, reshuffle=True, start=0):
        return raw.ShuffleAndRepeatDataset(
            input_dataset=numbers(0, n, 1), buffer_size=size, seed=3, seed2=4, count=count,
            reshuffle_each_iteration=reshuffle, **NUMBERS)

    for size in (1, 3, 5, 12, 100):
        for count in (1, 2, 5):
            iterate(b, both(size, count), 5 * count, rounds=1)
        iterate(b, both(size, 3, reshuffle=False), 15, rounds=1)
        many(b, both(size, -1), 30)
    iterate(b, both(3, -1, n=0), 0)
    refused(b, both(3, 0), "count must be greater than zero or equal to -1.")
    dummy = raw.DummySeedGenerator()
    second = raw.ShuffleAndRepeatDatasetV2(
        input_dataset=numbers(0, 5, 1), buffer_size=3, seed=9, seed2=8, count=2,
        seed_generator=dummy, **NUMBERS)
    iterate(b, second, 10, rounds=1)


@case("v1")
def dataset_shuffles_with_a_generator(b):
    def third(generator, seeds=(1, 2), **more):
        return raw.ShuffleDatasetV3(input_dataset=numbers(0, 6, 1), buffer_size=4, seed=seeds[0],
                                    seed2=seeds[1], seed_generator=generator, **more, **NUMBERS)

    for reshuffle in (False, True):
        iterate(b, third(raw.DummySeedGenerator(), (5, 6), reshuffle_each_iteration=reshuffle), 6,
                rounds=1)
        own = raw.AnonymousSeedGenerator(seed=11, seed2=12, reshuffle=reshuffle)
        iterate(b, third(own.handle), 6, rounds=1)
        twice = raw.RepeatDataset(input_dataset=third(own.handle), count=3, **NUMBERS)
        iterate(b, twice, 18, rounds=1)
        second = raw.ShuffleDatasetV2(input_dataset=numbers(0, 6, 1), buffer_size=3,
                                      seed_generator=own.handle, **NUMBERS)
        iterate(b, second, 6, rounds=1)
    old = raw.AnonymousRandomSeedGenerator(seed=11, seed2=12)
    b.step(targets=old.handle.op.name, error="Unknown input name: reshuffle")
    for op in (raw.DeleteRandomSeedGenerator, raw.DeleteSeedGenerator):
        new = raw.AnonymousSeedGenerator(seed=11, seed2=12, reshuffle=False)
        end = op(handle=new.handle, deleter=new.deleter)
        b.step(targets=end.name, error="Cannot delete an unowned Resource")


@case("v1")
def dataset_shuffled_by_the_api(b):
    api(b, D.range(10).shuffle(4, seed=7), 10, rounds=1)
    api(b, D.range(5).shuffle(5, seed=7).repeat(2).batch(3), 4, rounds=1)
    api(b, D.range(12).map(lambda x: (x, tf.sqrt(tf.cast(x, F)))).shuffle(6, seed=1).batch(4), 3,
        rounds=1, tol=1e-6)


@case("v1")
def dataset_random_numbers(b):
    many(b, raw.RandomDataset(seed=1, seed2=2, **NUMBERS), 9, rounds=2)
    many(b, plain(raw.ExperimentalRandomDataset(seed=-1, seed2=2, **NUMBERS), L, [[]]), 3)
    dummy = raw.DummySeedGenerator()
    for again in (False, True):
        many(b, raw.RandomDatasetV2(seed=1, seed2=2, seed_generator=dummy,
                                    rerandomize_each_iteration=again, **NUMBERS), 5)
    for rate in (0.0, 0.3, 1.0):
        kept = raw.SamplingDataset(input_dataset=numbers(0, 20, 1), rate=rate, seed=3, seed2=4,
                                   **NUMBERS)
        summed = raw.BatchDatasetV2(input_dataset=kept, batch_size=30, drop_remainder=False,
                                    **said([L], [[None]]))
        iterate(b, summed, int(rate > 0), shapes=((None,),))


@case("v1")
def dataset_directed(b):
    def chosen(order, datasets, **more):
        selector = D.from_tensor_slices(tf.constant(order, L))._variant_tensor
        return raw.DirectedInterleaveDataset(selector_input_dataset=selector,
                                             data_input_datasets=datasets, **more, **NUMBERS)

    three = [numbers(0, 2, 1), numbers(10, 15, 1), numbers(20, 21, 1)]
    order = [0, 1, 2, 2, 1, 0, 0, 1]
    iterate(b, chosen(order, three), 6)
    iterate(b, chosen(order, three, stop_on_empty_dataset=True), 3)
    iterate(b, chosen([0, 0, 0, 0], three[:1]), 2)
    fails(b, chosen([0, 3], three), "Selector index out of range: 3 >= 3", after=1)
    refused(b, raw.DirectedInterleaveDataset(selector_input_dataset=numbers(0, 3, 1, **said([F], [[]])),
                                             data_input_datasets=three, **NUMBERS),
            "The selector input must be a dataset of scalar int64 elements.")
    selector = D.from_tensor_slices(tf.constant([1, 0], L))._variant_tensor
    iterate(b, raw.ExperimentalDirectedInterleaveDataset(
        selector_input_dataset=selector, data_input_datasets=three, **NUMBERS), 2)
    api(b, D.choose_from_datasets([D.range(3), D.range(5, 9)], D.range(2).repeat(3)), 6)
    weighted = D.sample_from_datasets([D.range(3), D.range(5, 9)], [0.3, 0.7], seed=5)
    api(b, weighted, 7, rounds=1)
