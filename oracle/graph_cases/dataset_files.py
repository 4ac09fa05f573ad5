"""Datasets: records of files, in crates/runtime/tests/dataset_files, which this script writes."""

import gzip
import zlib
from pathlib import Path

import tensorflow as tf
from tensorflow.python.framework import function

from datasetkit import (END, FOLDER, F, I, L, NUMBERS, S, api, fails, file, iterate, numbers, plain, records, refused,
                        said, saved, walk)
from graphkit import case, raw

D = tf.data.Dataset
TEXT = (S,), ((),)
STRINGS = said([S], [[]])

LINES = file("lines.txt", b"one\r\ntwo\n\nfour")
MORE = file("more.txt", b"five\n")
ZIPPED = file("lines.gz", gzip.compress(b"a\nb\nc\n", mtime=0))
DEFLATED = file("lines.zlib", zlib.compress(b"d\ne\n"))
EMPTY = file("empty.txt", b"")
FIXED = file("fixed.bin", b"HHabcdefghiF")
FIXED_ZIPPED = file("fixed.gz", gzip.compress(b"HHabcdefghiF", mtime=0))


RECORDS = records("records.tfrecord", [b"one", b"", b"three"])
RECORDS_ZLIB = records("records.zlib", [b"four", b"five"], "ZLIB")
whole = Path(RECORDS).read_bytes()
DAMAGED = file("damaged.tfrecord", whole[:20] + b"\xff" + whole[21:])


@case("v1")
def dataset_text_lines(b):
    def lines(names, compression="", size=0):
        return raw.TextLineDataset(filenames=names, compression_type=compression, buffer_size=size)

    iterate(b, lines([LINES, EMPTY, MORE]), 5, *TEXT)
    iterate(b, lines(LINES, size=2), 4, *TEXT)
    iterate(b, lines(ZIPPED, "GZIP"), 3, *TEXT)
    iterate(b, lines([DEFLATED], "ZLIB"), 2, *TEXT)
    iterate(b, lines(tf.constant([], S)), 0, *TEXT)
    names = b.feed(S, None)
    b.step(targets=lines(names).op.name, feeds={names: [["a"]]},
           error="`filenames` must be a scalar or a vector.")
    refused(b, lines(LINES, "LZ"), "Unsupported compression_type.")
    refused(b, lines(LINES, size=-1), "`buffer_size` must be >= 0 (0 == default)")
    fails(b, lines([MORE, FOLDER + "/missing.txt"]), "No such file or directory", *TEXT, after=1)
    api(b, tf.data.TextLineDataset([LINES, MORE]).skip(1).map(tf.strings.upper).batch(3), 2)
    b.step(raw.DatasetCardinality(input_dataset=lines(LINES)))


@case("v1")
def dataset_tf_records(b):
    def read(names, compression="", size=0):
        return raw.TFRecordDataset(filenames=names, compression_type=compression, buffer_size=size)

    iterate(b, read([RECORDS, RECORDS]), 6, *TEXT)
    iterate(b, read(RECORDS_ZLIB, "ZLIB", 5), 2, *TEXT)
    names = b.feed(S, None)
    b.step(targets=read(names).op.name, feeds={names: [["a"]]},
           error="`filenames` must be a scalar or a vector.")
    got, start = walk(read([DAMAGED, RECORDS]), *TEXT)
    b.step(targets=start)
    b.step(got)
    b.step(got, error="")
    for _ in range(3):
        b.step(got)
    b.step(got, error=END)
    fails(b, read(FOLDER + "/missing.tfrecord"), "No such file or directory", *TEXT)
    for offsets in ([0, 0], [19, 35]):
        second = raw.TFRecordDatasetV2(filenames=[RECORDS, RECORDS], compression_type="",
                                       buffer_size=0, byte_offsets=tf.constant(offsets, L))
        iterate(b, plain(second, S, [[]]), 6 if offsets == [0, 0] else 3, *TEXT)
    api(b, tf.data.TFRecordDataset([RECORDS, RECORDS], num_parallel_reads=2), 6)
    for op in (raw.DatasetToTFRecord, raw.ExperimentalDatasetToTFRecord):
        b.step(targets=op(input_dataset=read(RECORDS), filename="/tmp/ferroflow-dataset-case.tfrecord",
                          compression_type="").name)


@case("v1")
def dataset_fixed_length(b):
    def read(names, header=2, record=3, footer=1, compression=None, size=0):
        spec = dict(filenames=names, header_bytes=header, record_bytes=record, footer_bytes=footer,
                    buffer_size=size)
        if compression is None:
            return plain(raw.FixedLengthRecordDataset(**spec), S, [[]])
        return raw.FixedLengthRecordDatasetV2(**spec, compression_type=compression)

    iterate(b, read([FIXED, FIXED]), 6, *TEXT)
    iterate(b, read(FIXED, 0, 12, 0), 1, *TEXT)
    iterate(b, read(FIXED, compression=""), 3, *TEXT)
    iterate(b, read(FIXED_ZIPPED, compression="GZIP"), 3, *TEXT)
    fails(b, read(FIXED, 1, compression=""), "has body length 10 bytes, which is not an exact multiple "
          "of the record length (3 bytes).", *TEXT)
    refused(b, read(FIXED, -1, compression=""), "`header_bytes` must be >= 0")
    refused(b, read(FIXED, record=0, compression=""), "`record_bytes` must be > 0")
    refused(b, read(FIXED, footer=-1, compression=""), "`footer_bytes` must be >= 0")
    refused(b, read(FIXED, compression="", size=-1), "`buffer_size` must be >= 0")


@case("v1")
def dataset_matching_files(b):
    for op in (raw.MatchingFilesDataset, raw.ExperimentalMatchingFilesDataset):
        iterate(b, plain(op(patterns=FOLDER + "/*.txt"), S, [[]]), 3, *TEXT)
    several = raw.MatchingFilesDataset(patterns=[FOLDER + "/l*", "tests/dataset_f*/more.txt"])
    iterate(b, several, 4, *TEXT)
    fails(b, raw.MatchingFilesDataset(patterns=FOLDER + "/*.none"), "Don't find any matched files",
          *TEXT)


SIMPLE = file("simple.csv", b"a,b,c\n1,2.5,x\n,-1,\"y, \"\"z\"\"\"\r\n3,,\n")
SPACED = file("spaced.csv", b" 1|NA|x\"\n 2 |4|\n")
BROKEN = file("broken.csv", b"1,x\nz,y\n2\n3,\"a\"b\"\n4,a\"b\n5,6,7\n8,\"last")


@case("v1")
def dataset_csv(b):
    def rows(names, defaults, header=True, delim=",", quotes=True, absent="", only=(), without=None,
             compression="", op=None, size=1 << 10, shapes=None):
        spec = dict(filenames=names, compression_type=compression, buffer_size=size, header=header,
                    field_delim=delim, use_quote_delim=quotes, na_value=absent,
                    select_cols=tf.constant(list(only), L), record_defaults=defaults,
                    output_shapes=shapes or [[]] * len(defaults))
        if op is raw.CSVDatasetV2:
            spec["exclude_cols"] = tf.constant(list(without or ()), L)
        return (op or raw.CSVDataset)(**spec)

    three = [tf.constant([7], L), tf.constant([0.5], F), tf.constant([""], S)]
    types = ((L, F, S), ((), (), ()))
    for op in (raw.CSVDataset, raw.ExperimentalCSVDataset, raw.CSVDatasetV2):
        made = rows([SIMPLE, SIMPLE], three, op=op)
        made = raw.NonSerializableDataset(input_dataset=made, **said(*types))
        iterate(b, made, 6, *types)
    iterate(b, rows([SIMPLE], three, size=3, op=raw.CSVDatasetV2), 3, *types)
    iterate(b, rows([SIMPLE], three[:1] + three[2:], only=(0, 2), op=raw.CSVDatasetV2), 3, (L, S),
            ((), ()))
    iterate(b, rows([SIMPLE], three[1:], without=(0,), op=raw.CSVDatasetV2), 3, (F, S), ((), ()))
    spaced = rows([SPACED], [tf.constant([1]), tf.constant([9], tf.float64), tf.constant(["?"], S)],
                  False, "|", False, "NA", op=raw.CSVDatasetV2)
    iterate(b, spaced, 2, (I, tf.float64, S), ((), (), ()))
    got, start = walk(rows([BROKEN], [tf.constant([], I), tf.constant([], S)], False,
                           op=raw.CSVDatasetV2), (I, S), ((), ()))
    b.step(targets=start)
    b.step(got)
    b.step(got, error="Field 0 in record is not a valid int32: z")
    b.step(got, error="Expect 2 fields but have 1 in record")
    b.step(got, error="Quote inside a string has to be escaped by another quote")
    b.step(got, error="Unquoted fields cannot have quotes inside")
    b.step(got, error="Expect 2 fields but have more in record")
    b.step(got, error="Reached end of file without closing quoted field in record")
    fails(b, rows([SIMPLE], [tf.constant([], L)] + three[1:], op=raw.CSVDatasetV2),
          "Field 0 is required but missing in record!", *types, after=1)
    fails(b, rows([EMPTY], three, op=raw.CSVDatasetV2), "Can't read header of file", *types)
    for error, wrong in (("field_delim should be only 1 char", dict(delim=",,")),
                         ("buffer_size should be positive", dict(size=0)),
                         ("select_cols should match output size", dict(only=(0,))),
                         ("select_cols should be strictly increasing indices", dict(only=(0, 2, 1))),
                         ("select_cols should be non-negative indices", dict(only=(-1, 0, 1))),
                         ("Either select_cols or exclude_cols should be empty",
                          dict(only=(0, 1, 2), without=(3,))),
                         ("Unsupported compression_type: LZ.", dict(compression="LZ"))):
        refused(b, rows([SIMPLE], three, op=raw.CSVDatasetV2, **wrong), error)


@case("v1")
def dataset_saved_in_files(b):
    lines = tf.data.TextLineDataset([LINES, MORE])
    fixed = raw.FixedLengthRecordDatasetV2(filenames=[FIXED, FIXED], header_bytes=2, record_bytes=3,
                                           footer_bytes=1, buffer_size=0, compression_type="")
    rows = tf.data.experimental.CsvDataset([SIMPLE], [S, S, S], header=True)
    found = raw.MatchingFilesDataset(patterns=FOLDER + "/l*")
    for dataset, before, after, dtypes in (
            (lines._variant_tensor, 2, 3, (S,)), (fixed, 4, 2, (S,)), (found, 1, 2, (S,)),
            (tf.data.TFRecordDataset([RECORDS, RECORDS])._variant_tensor, 2, 4, (S,)),
            (tf.data.TFRecordDataset([RECORDS_ZLIB], "ZLIB")._variant_tensor, 1, 1, (S,)),
            (rows._variant_tensor, 1, 0, (S, S, S))):
        spec = said(dtypes, [[]] * len(dtypes))
        first, second = (raw.IteratorV2(shared_name="", container="", **spec) for _ in range(2))
        got, again = (list(raw.IteratorGetNext(iterator=i, **spec)) for i in (first, second))
        starts = [raw.MakeIterator(dataset=dataset, iterator=i).name for i in (first, second)]
        state = raw.SerializeIterator(resource_handle=first)
        b.step(targets=starts)
        for _ in range(before):
            b.step(got)
        b.step(targets=raw.DeserializeIterator(resource_handle=second, serialized=state).name)
        for _ in range(after):
            b.step(again)
        if after:
            b.step(again, error=END)


SAVED = f"{FOLDER}/saved"
if not Path(SAVED).exists():
    pairs = D.from_tensor_slices(([1, 2, 3, 4, 5], ["a", "b", "c", "d", "e"]))
    pairs.save(SAVED, compression=None, shard_func=lambda x, y: tf.cast(x % 2, L))
    Path(SAVED, "dataset_spec.pb").unlink()


@function.Defun(tf.variant)
def itself(shard):
    return shard


@function.Defun(tf.variant)
def in_turn(shards):
    return raw.FlatMapDataset(input_dataset=shards, other_arguments=[], f=itself,
                              **said((I, S), ((), ())))


def plain_of(dataset, types):
    return raw.NonSerializableDataset(input_dataset=dataset, **said(*types))


@case("v1")
def dataset_loaded(b):
    types = ((I, S), ((), ()))

    loaded = raw.LoadDataset(path=SAVED, reader_func_other_args=[], compression="", **said(*types),
                             reader_func=in_turn)
    iterate(b, plain_of(loaded, types), 5, *types)
    saved(b, loaded, 3, 2, *types, written=True)
    b.step(raw.DatasetCardinality(input_dataset=loaded))
    b.step(targets=raw.LoadDataset(path=FOLDER, reader_func_other_args=[], **said(*types),
                                   reader_func=in_turn).op.name,
           error="Could not find metadata file")
    shard = str(sorted(Path(SAVED).glob("*/*.shard"))[0])
    for start in (0, 1):
        rows = raw.SnapshotDatasetReader(shard_dir=shard, start_index=tf.constant(start, L), version=2,
                                         **said(*types))
        iterate(b, plain_of(rows, types), 2 - start, *types)
