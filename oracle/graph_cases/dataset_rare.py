"""Datasets that few programs use: global shuffles, branches that compete, chunks of distributed snapshots, fingerprints;
queries of databases; and RecordInput."""

import os
import sqlite3

import tensorflow as tf
from tensorflow.python.framework import function

from datasetkit import END, L, NUMBERS, S, fails, file, iterate, numbers, plain, records, refused, said, walk
from graphkit import case, raw

PAIRS = said([L], [[None]])
LINES = file("lines.txt", b"one\r\ntwo\n\nfour")
EMPTY = file("empty.txt", b"")
RECORDS = records("records.tfrecord", [b"one", b"", b"three"])
RECORDS_ZLIB = records("records.zlib", [b"four", b"five"], "ZLIB")


def shuffled(dataset, seed, seed2, spec=NUMBERS, **more):
    return raw.GlobalShuffleDataset(input_dataset=dataset, seed=seed, seed2=seed2, seed_generator=raw.DummySeedGenerator(),
                                    **spec, **more)


@case("v1")
def dataset_global_shuffle(b):
    for n, seeds in ((1, (1, 2)), (2, (3, 4)), (7, (5, 6)), (40, (42, 42))):
        for again in (True, False):
            iterate(b, shuffled(numbers(0, n, 1), *seeds, reshuffle_each_iteration=again), n)
    pairs = raw.BatchDatasetV2(input_dataset=numbers(0, 9, 1), batch_size=2, drop_remainder=True, **PAIRS)
    iterate(b, plain(shuffled(pairs, 1, 1, PAIRS), L, [[None]]), 4, (L,), ((None,),))
    sliced = raw.TensorSliceDataset(components=[tf.constant([[1, 2], [3, 4], [5, 6]], L)], output_shapes=[[2]])
    iterate(b, shuffled(sliced, 8, 9, said([L], [[2]])), 3, (L,), ((2,),))
    part = raw.AutoShardDataset(input_dataset=numbers(0, 40, 1), num_workers=3, index=1, **NUMBERS)
    iterate(b, shuffled(part, 10, 11), 13)
    lines = raw.TextLineDataset(filenames=LINES, compression_type="", buffer_size=0)
    refused(b, shuffled(lines, 1, 2, said([S], [[]])),
            "`global_shuffle` requires all upstream transformations be compatible with random access. Got: ")
    refused(b, shuffled(numbers(0, 0, 1), 1, 2), "`global_shuffle` requires the input dataset to have a non-empty finite "
                                                 "cardinality. Got cardinality 0 for dataset ")


@function.Defun(L)
def twice(x):
    return x * 2


@function.Defun(L)
def added(x):
    return x + x


@function.Defun(tf.variant)
def by_product(dataset):
    return raw.MapDataset(input_dataset=dataset, other_arguments=[], f=twice, **NUMBERS)


@function.Defun(tf.variant, L)
def by_sum(dataset, unused):
    return raw.MapDataset(input_dataset=dataset, other_arguments=[], f=added, **NUMBERS)


@function.Defun(tf.variant)
def in_pairs(dataset):
    return raw.BatchDatasetV2(input_dataset=dataset, batch_size=2, drop_remainder=False, **PAIRS)


@function.Defun(tf.variant)
def repeated(dataset):
    return raw.RepeatDataset(input_dataset=dataset, count=2, **NUMBERS)


def competing(dataset, branches, lengths, arguments=(), ratio=(1, 1), each=2, spec=NUMBERS):
    return raw.ChooseFastestBranchDataset(
        input_dataset=dataset, ratio_numerator=ratio[0], ratio_denominator=ratio[1], other_arguments=list(arguments),
        num_elements_per_branch=each, branches=branches, other_arguments_lengths=lengths, **spec)


@case("v1")
def dataset_fastest_branch(b):
    for n in (0, 1, 3, 4, 11):
        three = competing(numbers(0, n, 1), [by_product, by_sum, by_product], [0, 1, 0], [tf.constant(3, L)])
        iterate(b, plain(three, L, [[]]), n)
    pairs = competing(numbers(0, 9, 1), [in_pairs, in_pairs], [0, 0], ratio=(2, 1), spec=PAIRS)
    iterate(b, plain(pairs, L, [[None]]), 5, (L,), ((None,),))
    single = competing(numbers(0, 5, 1), [by_product], [0], each=1)
    iterate(b, plain(single, L, [[]]), 5)
    fails(b, plain(competing(numbers(0, 3, 1), [repeated, repeated], [0, 0], each=9), L, [[]]),
          "Cannot create more than one WrapperIterator per WrapperDataset.", after=3)
    for ratio, each, error in (((0, 1), 2, "`ratio_numerator` must be greater than zero."),
                               ((1, -1), 2, "`ratio_denominator` must be greater than zero."),
                               ((1, 2), 3, "`num_elements_per_branch` must be divisible by `ratio_denominator`.")):
        refused(b, competing(numbers(0, 3, 1), [by_product], [0], ratio=ratio, each=each), error)
    refused(b, competing(numbers(0, 3, 1), [by_product], [0, 0]), "branches and other_arguments_lengths must have the same length.")


def proto(values, dtype):
    return tf.make_tensor_proto(values, dtype).SerializeToString(deterministic=True)


SNAPSHOT, FAILED = "tests/dataset_files/snapshot", "tests/dataset_files/failed_snapshot"


def write_snapshots():
    for folder in (f"{SNAPSHOT}/chunks", FAILED):
        tf.io.gfile.makedirs(folder)
    for stream, chunk in ((0, 0), (1, 0), (0, 1), (0, 10), (1, 2)):
        content = [proto(10 * chunk + stream, L), proto([b"s"] * chunk, S)]
        records(f"snapshot/chunks/chunk_{stream}_{chunk}_1", content)
    records("snapshot/chunks/chunk_5_5_1.tmp", [b"damaged"])
    records("chunk.gz", [proto(1, L), proto(2, L)], "GZIP")
    file("snapshot/DONE", b"")
    file("failed_snapshot/ERROR", b"code: ABORTED\nmessage: \"too far\"\n")


write_snapshots()


@case("v1")
def dataset_snapshot_chunks(b):
    names = said([S], [[]])
    iterate(b, raw.ListSnapshotChunksDataset(snapshot_path=SNAPSHOT, **names), 5, (S,), ((),))
    fails(b, raw.ListSnapshotChunksDataset(snapshot_path=FAILED, **names), "too far", (S,), ((),))
    path = b.feed(S)

    def chunk(name, n, dtypes, shapes, error=END, **more):
        made = raw.SnapshotChunkDataset(chunk_file=path, **more, **said(dtypes, shapes))
        got, start = walk(plain(made, dtypes, [list(s) for s in shapes]), dtypes, shapes)
        b.step(targets=start, feeds={path: name})
        for _ in range(n):
            b.step(got)
        b.step(got, error=error)

    for name in ("0_0", "1_2"):
        chunk(f"{SNAPSHOT}/chunks/chunk_{name}_1", 1, (L, S), ((), (None,)))
    chunk("tests/dataset_files/chunk.gz", 2, (L,), ((),), compression="GZIP")
    chunk(EMPTY, 0, (L,), ((),))


@case("v1")
def dataset_fingerprints(b):
    def of(dataset):
        return raw.DatasetFingerprint(input_dataset=dataset)

    five = of(numbers(0, 5, 1))
    doubled = raw.MapDataset(input_dataset=numbers(0, 5, 1), other_arguments=[], f=twice, **NUMBERS)
    b.step([tf.equal(five, of(numbers(0, 5, 1))), tf.equal(five, of(numbers(0, 6, 1))), tf.equal(five, of(doubled))])

    @function.Defun(L, func_name="twice_again")
    def twice_again(x):
        return tf.multiply(x, tf.constant(2, L, name="two"), name="product")

    @function.Defun(L, func_name="thrice")
    def thrice(x):
        return tf.multiply(x, tf.constant(3, L, name="two"), name="product")

    for f in (twice, twice_again, thrice):
        again = raw.MapDataset(input_dataset=numbers(0, 5, 1), other_arguments=[], f=f, **NUMBERS)
        b.step(tf.equal(of(doubled), of(again)))


@case("v1")
def record_input(b):
    for seed, pattern, n in ((301, RECORDS, 3), (7, RECORDS, 2), (301, "tests/dataset_files/records.tfrec*", 3)):
        b.step(raw.RecordInput(file_pattern=pattern, file_random_seed=seed, file_parallelism=1, batch_size=n))
    for seed in (1, 2, 3, 4):
        for shift in (0.0, 0.5):
            many = ",".join(records(f"many_{i}.tfrecord", [b"%d.%d" % (i, k) for k in range(i)]) for i in (1, 2, 3, 20))
            b.step(raw.RecordInput(file_pattern=many, file_random_seed=seed, file_parallelism=1, batch_size=26,
                                   file_shuffle_shift_ratio=shift))
    b.step(raw.RecordInput(file_pattern=RECORDS_ZLIB, file_parallelism=1, batch_size=2, compression_type="ZLIB"))
    b.step(raw.RecordInput(file_pattern=RECORDS, batch_size=0, file_parallelism=1))
    b.step(raw.RecordInput(file_pattern="tests/none*", batch_size=1, file_parallelism=1), error="Found no files at tests/none*")
    for attrs, error in (({"file_parallelism": -1}, "file_parallelism should >= 0, got -1"),
                         ({"batch_size": -1}, "batch_size must be non-negative but got -1")):
        b.step(raw.RecordInput(**{"file_pattern": RECORDS, **attrs}), error=error)


GONE = "LMDB support is removed from TensorFlow."


@case("v1")
def lmdb(b):
    for op in (raw.LMDBDataset, raw.ExperimentalLMDBDataset):
        refused(b, op(filenames="x", **said([S, S], [[], []])), GONE)
    b.step(raw.LMDBReader(), error=GONE)


@case("v1")
def file_system_configuration(b):
    def set_option(scheme, key="k", value="v", error=None):
        b.step(targets=raw.FileSystemSetConfiguration(scheme=scheme, key=key, value=value).name, error=error)

    for scheme in ("", "file", "ram"):
        set_option(scheme, error="SetOption")
    set_option("nowhere", error="File system scheme 'nowhere' not found to set configuration")
    for i, name in enumerate(("scheme", "key", "value")):
        given = [b.feed(S, None) for _ in range(3)]
        node = raw.FileSystemSetConfiguration(scheme=given[0], key=given[1], value=given[2])
        shown = "[1]" if i < 2 else "[]"
        b.step([], {f: ["a"] if k == i else "a" for k, f in enumerate(given)}, targets=node.name,
               error=f"{name} must be scalar, got shape {shown}")


@case("v1")
def stats_writer(b):
    stats = raw.StatsAggregatorHandleV2()
    writer = raw.SummaryWriter(shared_name="w", container="")
    made = raw.CreateSummaryFileWriter(writer=writer, logdir="/tmp/ferroflow_stats", max_queue=1, flush_millis=1,
                                       filename_suffix="")
    with tf.control_dependencies([made]):
        node = raw.StatsAggregatorSetSummaryWriter(stats_aggregator=stats, summary=writer)
    b.step(targets=node.name)


def write_database():
    path = file("table.sqlite", b"")
    os.remove(path)
    with sqlite3.connect(path) as database:
        database.execute("create table t (i, r, s, n, b)")
        database.executemany("insert into t values (?, ?, ?, ?, ?)", [
            (1, 0.5, "one", None, b"x\x00y"), (-300, 1e20, " 12abc", 7, b"3.5e1z"), (2**40, -1e-7, "1e3", 0, b""),
            (0, 123456789012345678.0, "größe", 3.0, b"-9"), ("17", 100.0, "99999999999999999999", "x", b"-99999999999999999999")])
    database.close()
    return path


DATABASE = write_database()


def query(text, types, driver="sqlite", old=False):
    op = raw.ExperimentalSqlDataset if old else raw.SqlDataset
    return op(driver_name=driver, data_source_name=DATABASE, query=text, **said(types, [[]] * len(types)))


@case("v1")
def dataset_sql(b):
    for old in (False, True):
        for types in ((S, S, S, S, S), (L, L, L, L, L), (tf.double,) * 5, (tf.int32, tf.int16, tf.int8, tf.bool, tf.uint8),
                      (tf.uint16, tf.double, S, L, tf.bool)):
            rows = query("select i, r, s, n, b from t", types, old=old)
            iterate(b, rows, 5, types, ((),) * 5)
    iterate(b, query("select i from t where i > 5 order by i desc", (L,)), 2)
    iterate(b, query("select count(*), max(r) from t", (L, S)), 1, (L, S), ((), ()))
    iterate(b, query("select i from t where 0", (L,)), 0)
    iterate(b, query("select 1.5, -0.0, 2.0/3, 1e15, 123456.0, 1e-4, 9e99", (S,) * 7), 1, (S,) * 7, ((),) * 7)
    fails(b, query("select i from missing", (L,)), "Prepare() failed: [1] no such table: missing: select i from missing")
    fails(b, query("select i, r from t", (L,)), "The number of columns in query (2) must match the number of elements in "
                                                "output_types (1).")
    fails(b, query("select abs(-9223372036854775808)", (L,)), "Step() failed: [1] integer overflow: ")
    refused(b, query("select 1", (L,), driver="mysql"),
            "The database type, mysql, is not supported by SqlDataset. The set of supported databases is: {'sqlite'}.")
    refused(b, query("select 1", (tf.float32,)), "Each element of `output_types_` must be one of: DT_STRING")
    refused(b, raw.SqlDataset(driver_name="sqlite", data_source_name=DATABASE, query="select 1", **said([L], [[1]])),
            "Each element of `output_shapes_` must be a scalar.")
