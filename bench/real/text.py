"""Text: tables, ragged tensors, n-grams, Unicode, hashing, parsing."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

from real.kit import integers, model, session, words

T = tf.strings
SENTENCES = words("The quick brown fox", "jumps over the lazy dog", "", "Ünïcödé  strings, 日本語 and emoji 🙂!", "a a a b")


@model
def vectorization():
    layer = keras.layers.TextVectorization(vocabulary=["the", "quick", "dog", "a"], output_sequence_length=6)
    counts = keras.layers.TextVectorization(vocabulary=["the", "quick", "dog", "a"], output_mode="count", ngrams=None)
    hot = keras.layers.TextVectorization(vocabulary=["the quick", "the", "a a"], output_mode="multi_hot", ngrams=2)
    idf = keras.layers.TextVectorization(vocabulary=["the", "dog", "a"], idf_weights=[0.4, 0.7, 1.1], output_mode="tf_idf")
    chars = keras.layers.TextVectorization(vocabulary=list("abcdefgh"), split="character", standardize="lower", output_sequence_length=9)
    layers = [layer, counts, hot, idf, chars]

    def program(text):
        return [each(text) for each in layers]

    tables = [each._lookup_layer.lookup_table for each in layers]
    return program, [{"text": SENTENCES}, {"text": words("dog")}, {"text": words("a", "")}], tables


@model
def string_lookup():
    layers = [keras.layers.StringLookup(vocabulary=["red", "green", "blue"]), keras.layers.StringLookup(vocabulary=["red", "green"], num_oov_indices=3),
              keras.layers.StringLookup(vocabulary=["red", "green"], output_mode="multi_hot"), keras.layers.StringLookup(vocabulary=["red", "x"], mask_token="")]
    back = keras.layers.StringLookup(vocabulary=["red", "green", "blue"], invert=True)
    hashed = keras.layers.Hashing(17)

    def program(x):
        return [each(x) for each in layers] + [back(layers[0](x)), hashed(x), keras.layers.Hashing(5, salt=[3, 9])(x)]

    return program, [{"x": words("red", "violet", "", "blue").reshape(shape)} for shape in ((4, 1), (2, 2))], [x.lookup_table for x in [*layers, back]]


@model
def vocabulary_tables():
    keys, values = tf.constant(["a", "b", "c"]), tf.constant([10, 20, 30], tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1)
    names = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(values, keys), "?")
    buckets = tf.lookup.StaticVocabularyTable(tf.lookup.KeyValueTensorInitializer(keys, tf.constant([0, 1, 2], tf.int64)), 4)
    dense = tf.lookup.experimental.DenseHashTable(tf.string, tf.int64, -1, "$", "%")
    mutable = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, [0.0, 1.0])

    def program(x):
        dense.insert(x, tf.range(tf.size(x, out_type=tf.int64)))
        mutable.insert(x[:2], [[1.0, 2.0], [3.0, 4.0]])
        found = table.lookup(x)
        mutable.remove(x[:1])
        return [found, names.lookup(found), buckets.lookup(x), table.size(), dense.lookup(x), dense.size(), mutable.lookup(x), mutable.size()]

    return program, [{"x": words("a", "b", "zz", "c")}, {"x": words("q", "a")}], [table, names, buckets, dense, mutable]


@model
def splitting_and_joining():
    def program(x):
        tokens = T.split(x)
        comma = T.split(x, ",", maxsplit=1)
        return [tokens, comma, T.reduce_join(tokens, -1, separator="_"), T.ngrams(tokens, [1, 2], separator="|"), T.ngrams(tokens, 3, pad_values=("<s>", "</s>")),
                T.length(tokens.flat_values), tokens.row_lengths(), tokens.to_tensor("#"), T.join([x, x], "/"), T.bytes_split(x), T.substr(T.join([x, "abcdef"]), 1, 4),
                T.upper(x), T.lower(x, encoding="utf-8"), T.strip(T.join([" ", x, "\n"])), T.regex_replace(x, "[aeiou]+", r"<\0>"), T.regex_full_match(x, ".*fox.*"),
                T.to_hash_bucket_fast(x, 1000), T.to_hash_bucket_strong(x, 99, [1, 2]), T.to_hash_bucket(x, 77), T.format("{} {}", (x[:1], 3))]

    return program, [{"x": SENTENCES}, {"x": words("one,two,three", "x")}, {"x": words("")}]


@model
def unicode_text():
    def program(x):
        points = T.unicode_decode(x, "UTF-8")
        chars, offsets = T.unicode_split_with_offsets(x, "UTF-8")
        return [points, chars, offsets, T.unicode_encode(points, "UTF-16-BE"), T.unicode_script(points.flat_values), T.unicode_transcode(x, "UTF-8", "UTF-32-BE"),
                T.length(x, unit="UTF8_CHAR"), T.substr(T.join([x, "éèê"]), 0, 2, unit="UTF8_CHAR"), T.unicode_decode(x, "UTF-8", errors="ignore").row_lengths()]

    return program, [{"x": SENTENCES}, {"x": words(b"bad \xff\xfe bytes", "ok")}, {"x": np.array([], object)}]


@model
def numbers_and_codes():
    def program(f, i, s):
        encoded = tf.io.encode_base64(s, pad=True)
        return [T.as_string(f, precision=3), T.as_string(f, scientific=True), T.as_string(i, width=6, fill="0"), T.to_number(T.as_string(i), tf.int64), T.to_number(T.as_string(f)),
                encoded, tf.io.decode_base64(encoded), tf.io.decode_raw(T.as_string(i, width=12), tf.uint8),
                tf.fingerprint(s[:, None]), T.as_string(i > 0), T.unsorted_segment_join(s, tf.abs(i) % 3, 3, ","), tf.io.decode_compressed(s)]

    return program, [{"f": np.array(f, "float32"), "i": np.array(i, "int32"), "s": words(*s)} for f, i, s in (
        ([1.5, -2e10, 0.1], [7, -12, 300], ["a", "bc", ""]), ([np.nan], [0], ["zz"]), ([np.inf, 1e-9], [2147483647, -1], ["", "~~"]))]


@model
def ragged_reductions():
    def program(values, lengths):
        r = tf.RaggedTensor.from_row_lengths(values, lengths)
        return [tf.reduce_sum(r, 1), tf.reduce_mean(r, 1), tf.reduce_max(r, 1), tf.argmax(tf.cast(r.to_tensor(-1), tf.int64), 1), r + 1, tf.concat([r, r * 2], 1), tf.concat([r, r], 0),
                tf.reverse(r, [1]), tf.sort(r.to_tensor(), 1), r[:, :2], r[1:], tf.gather(r, [0, 0]), tf.ragged.boolean_mask(r, r > 2), r.to_sparse(), tf.tile(r, [1, 2]), tf.stack([r, r]),
                tf.ragged.range(r.row_lengths()), r.value_rowids(), tf.expand_dims(r, -1), tf.where(r > 3, r, -r), tf.math.bincount(r, minlength=3, axis=-1), tf.math.segment_sum(values, r.value_rowids()),
                r.merge_dims(0, 1), tf.nn.softmax(tf.cast(r, tf.float32)), tf.ragged.map_flat_values(tf.square, r), tf.ragged.cross([r, tf.strings.as_string(r)])]

    return program, [{"values": integers(0, 9, sum(n)), "lengths": np.array(n, "int64")} for n in ([3, 0, 2, 1], [4], [1, 1])]


@model
def word_piece_greedy():
    """Longest match first, in loops over a table."""
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["un", "##aff", "##able", "run", "##ning", "##s"], tf.range(6, dtype=tf.int64)), -1)

    def program(word):
        n = T.length(word)
        ids = tf.TensorArray(tf.int64, 0, dynamic_size=True, element_shape=[])
        begin = tf.constant(0)
        while begin < n:
            end = n
            found = tf.constant(-1, tf.int64)
            while end > begin and found < 0:
                piece = T.substr(word, begin, end - begin)
                found = table.lookup(T.join(["##", piece]) if begin > 0 else piece)
                end -= 1
            ids = ids.write(ids.size(), found)
            begin = end + 1 if found >= 0 else n
        return ids.stack()

    return program, [{"word": np.array(w, object)} for w in ("unaffable", "runnings", "xyz", "")], [table]


@model
def skip_grams_and_counts():
    def program(x):
        tokens = T.split(x)
        unique, index, count = tf.unique_with_counts(tokens.flat_values)
        order = tf.argsort(count, stable=True, direction="DESCENDING")
        pairs = tf.ragged.cross([tokens, tokens])
        hashed = tf.ragged.cross_hashed([tokens, tokens], 50, hash_key=7)
        sparse = tf.sparse.bincount(tf.RaggedTensor.from_row_splits(index, tokens.row_splits), axis=-1)
        return unique, index, count, order, pairs, hashed, sparse, tf.sets.intersection(tokens[:1].to_sparse(), tokens[1:2].to_sparse()), tf.sets.size(tokens.to_sparse())

    return program, [{"x": words("a b a c", "b b d a")}, {"x": words("x", "x y")}]


@model
def parse_examples():
    spec = {"age": tf.io.FixedLenFeature([], tf.int64, 7), "tags": tf.io.VarLenFeature(tf.string), "score": tf.io.FixedLenFeature([2], tf.float32),
            "seq": tf.io.RaggedFeature(tf.int64), "point": tf.io.SparseFeature(["ix"], "val", tf.float32, [10])}

    def program(x):
        return tf.io.parse_example(x, spec)

    def example(score, tags, **more):
        feature = {"score": tf.train.Feature(float_list=tf.train.FloatList(value=score)), "tags": tf.train.Feature(bytes_list=tf.train.BytesList(value=tags)),
                   "ix": tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 5])), "val": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, 2]))}
        feature |= {k: tf.train.Feature(int64_list=tf.train.Int64List(value=v)) for k, v in more.items()}
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(deterministic=True)

    return program, [{"x": words(example([1, 2], [b"a", b"b"], age=[3], seq=[1, 2, 3]), example([0, 0], [], seq=[]))}, {"x": words(example([5, 6], [b"q"]))},
                     {"x": words(example([5], [b"q"]))}, {"x": words(b"garbage")}]


@model
def parse_sequences_and_tables():
    def program(x, csv):
        context, sequence = tf.io.parse_single_sequence_example(x, {"id": tf.io.FixedLenFeature([], tf.string)}, {"steps": tf.io.FixedLenSequenceFeature([2], tf.float32), "marks": tf.io.VarLenFeature(tf.int64)})
        columns = tf.io.decode_csv(csv, [[0], ["none"], [1.5], tf.constant([], tf.int64)], select_cols=[0, 1, 2, 4])
        return context, sequence, columns

    lists = tf.train.FeatureLists(feature_list={
        "steps": tf.train.FeatureList(feature=[tf.train.Feature(float_list=tf.train.FloatList(value=[i, i + 1])) for i in range(3)]),
        "marks": tf.train.FeatureList(feature=[tf.train.Feature(int64_list=tf.train.Int64List(value=[1] * i)) for i in range(3)])})
    x = tf.train.SequenceExample(context=tf.train.Features(feature={"id": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"me"]))}), feature_lists=lists).SerializeToString(deterministic=True)
    return program, [{"x": np.array(x, object), "csv": words('1,"a ""q""",,x,5', "2,,3.25,y,6")}, {"x": np.array(x, object), "csv": words("1,2,3,4,")}]


@session
def old_tables_and_joins():
    v1 = tf.compat.v1
    x = v1.placeholder(tf.string, [None])
    raw = tf.raw_ops
    table = raw.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name="words")
    fill = raw.InitializeTableV2(table_handle=table, keys=["a", "b"], values=tf.constant([1, 2], tf.int64))
    found = raw.LookupTableFindV2(table_handle=table, keys=x, default_value=tf.constant(-1, tf.int64))
    split = v1.string_split(x, " ")
    joined = v1.reduce_join(x, 0, separator="+")
    return [(fill, {}), ([found, raw.LookupTableSizeV2(table_handle=table)], {x: words("b", "z")}), ([split.indices, split.values, split.dense_shape, joined], {x: words("a b", "", "c")})]
