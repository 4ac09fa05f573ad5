"""Input ops of training: raw bytes, lines of text, tf.Example messages, images."""

import zlib

import numpy as np
import tensorflow as tf

from casekit import Rand, a, case, empty, i32, i64


def strings(*values):
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def raw():
    r = Rand("raw")
    data = bytes(r.rng.integers(0, 256, 32, dtype=np.uint8))
    for dtype in ("half", "float", "double", "int32", "uint16", "uint8", "int16", "int8", "int64",
                  "complex64", "bool", "bfloat16"):
        text = data if dtype not in ("bool", "half", "float", "double", "bfloat16", "complex64") \
            else bytes(b % 2 for b in data)
        for little in (True, False):
            yield case("DecodeRaw", strings(text, text[::-1]), out_type=dtype, little_endian=little)
            if dtype not in ("complex64", "bool"):
                yield case("DecodePaddedRaw", strings(text[:5], text, b""), np.int32(16),
                           out_type=dtype, little_endian=little)
    yield case("DecodeRaw", strings(), out_type="int32")
    yield case("DecodeRaw", strings(b"", b""), out_type="int32")
    yield case("DecodeRaw", strings(b"abcd").reshape(()), out_type="uint8")
    yield case("DecodeRaw", strings(b"abc"), out_type="int32", fails=True)
    yield case("DecodeRaw", strings(b"abcd", b"a"), out_type="uint8", fails=True)
    yield case("DecodePaddedRaw", strings(b"abc"), np.int32(3), out_type="int32", fails=True)
    yield case("DecodePaddedRaw", strings(b"abc"), np.int32(-4), out_type="int32", fails=True)


def csv():
    one, two = np.array([7], np.int32), strings(b"none")
    types = [one, np.array([1.5], np.float32), two]
    yield case("DecodeCSV", strings(b"1,2.5,x", b"-3, 4 ,\"a,\"\"b\"\"\"", b",,"), types)
    yield case("DecodeCSV", strings(b"1,2.5,x").reshape(()), types)
    yield case("DecodeCSV", strings(b"1;NA;\"x", b"NA;3;y"), types, field_delim=";", na_value="NA",
               use_quote_delim=False)
    yield case("DecodeCSV", strings(b"0,1,2,x,4"), types, select_cols=[1, 2, 3])
    yield case("DecodeCSV", strings(b"1,2", b"3,4"),
               [empty("int64", 0), np.array(2.0, np.float64)])
    for bad in (b"1,2", b"1,2,3,4", b"x,1,2", b"1,2,a\"b", b"1,2,\"ab", b"1,2,\"a\"b", b"1.5,1,x"):
        yield case("DecodeCSV", strings(bad), types, fails=True)
    yield case("DecodeCSV", strings(b",2"), [empty("int32", 0), one], fails=True)


def feature(*values):
    if not values or isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def example(**features):
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(
        deterministic=True)


def examples():
    # Each key is used once: TensorFlow loses values of keys used twice.
    records = strings(
        example(f=feature(1.0, 2.0), i=feature(3), s=feature(b"ab", b"c"), j=feature(1),
                r=feature(5), w=feature(b"", b"q")),
        example(f=feature(3.0, 4.0), s=feature(b"xyz"), j=feature(2, 3), r=feature(6, 7, 8)),
        example(f=feature(5.0, 6.0), i=feature(-1, 7, 8), t=tf.train.Feature(), w=feature(b"z")))
    sparse, none = [b"i", b"s", b"nothing"], strings()
    key = lambda k: np.array(k, dtype=object)
    f2 = a("float", [9.0, 9.0])
    v1 = {"sparse_types": ["int64", "string", "float"], "dense_shapes": [[2], [-1]]}
    yield case("ParseExample", records, none, [key(k) for k in sparse], [key(b"f"), key(b"j")],
               [empty("float", 0), np.array(-5, np.int64)], **v1)
    yield case("ParseExample", records, strings(b"x", b"y", b"z"), [], [key(b"f"), key(b"absent")],
               [f2, f2], sparse_types=[], dense_shapes=[[2], [2]])
    v2 = v1 | {"num_sparse": 3, "ragged_value_types": ["int64", "string"],
               "ragged_split_types": ["int32", "int64"]}
    for serialized in (records, records[:0], records[2:]):
        yield case("ParseExampleV2", serialized, none, strings(*sparse), strings(b"f", b"j"),
                   strings(b"r", b"w"), [empty("float", 0), np.array(-5, np.int64)], **v2)
    no_ragged = v2 | {"ragged_value_types": [], "ragged_split_types": []}
    yield case("ParseExampleV2", records[0:1].reshape(()), none, strings(*sparse),
               strings(b"f", b"j"), none, [empty("float", 0), np.array(-5, np.int64)], **no_ragged)
    words = {"sparse_types": [], "dense_shapes": [[-1], [-1, 2]], "num_sparse": 0,
             "ragged_value_types": [], "ragged_split_types": []}
    yield case("ParseExampleV2", records, none, none, strings(b"s", b"f"), none,
               [strings(b"pad").reshape(()), np.array(0, np.float32)], **words)
    single = {"sparse_keys": ["i", "s"], "sparse_types": ["int64", "string"], "num_sparse": 2,
              "dense_keys": ["f", "absent", "j"], "dense_shapes": [[2], [], [-1]]}
    for record in records:
        yield case("ParseSingleExample", key(record),
                   [empty("float", 0), np.array(3, np.int64), np.array(0, np.int64)], **single)

    def fails(record, shape=(2,), default=empty("float", 0), key_name=b"f", dtype=None):
        return case("ParseExampleV2", strings(record), none, none, strings(key_name), none,
                    [default], sparse_types=[], dense_shapes=[list(shape)], num_sparse=0,
                    ragged_value_types=[], ragged_split_types=[], fails=True)

    yield fails(b"\xff\xff\xff")
    yield fails(example(f=feature(1.0)))
    yield fails(example(f=feature(1)))
    yield fails(example(g=feature(1)))
    yield fails(example(f=feature(1.0, 2.0, 3.0)), (-1, 2), a("float", [0.0]))


def with_transparent_color(png, key):
    """Returns a gray or RGB image whose pixels of the color `key`, two bytes per sample, are transparent."""
    chunk = b"tRNS" + key
    chunk = len(key).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    at = png.index(b"IDAT") - 4
    return png[:at] + chunk + png[at:]


def pictures():
    r = Rand("pictures")
    # Smooth, as photographs are.
    y, x = np.mgrid[0:19, 0:26]
    smooth = np.stack([128 + 100 * np.sin(x / 5 + c) * np.cos(y / 6 - c) for c in range(4)], -1)
    smooth = smooth.clip(0, 255).astype(np.uint8)
    noise = r.rng.integers(0, 256, (7, 5, 4), dtype=np.uint8)
    noise_large = r.rng.integers(0, 256, (60, 17, 3), dtype=np.uint8)
    for image in (smooth, noise):
        for channels in (1, 2, 3, 4):
            for dtype in (np.uint8, np.uint16):
                part = image[..., :channels].astype(dtype) * (1 if dtype == np.uint8 else 255)
                data = tf.io.encode_png(part).numpy()
                for wanted in {0, channels, 1, 3, 4} - {2}:
                    yield case("DecodePng", np.array(data, object), channels=wanted)
                yield case("DecodePng", np.array(data, object), dtype="uint16")
                yield case("DecodeImage", np.array(data, object), dtype="float")
    for channels in (1, 3):
        for subsampled in (True, False):
            data = tf.io.encode_jpeg(smooth[..., :channels], chroma_downsampling=subsampled).numpy()
            file = np.array(data, object)
            for wanted in (0, 1, 3):
                yield case("DecodeJpeg", file, channels=wanted)
            for attrs in ({"dct_method": "INTEGER_ACCURATE"}, {"fancy_upscaling": False}, {"ratio": 2},
                          {"ratio": 4}, {"ratio": 8}, {"ratio": 2, "fancy_upscaling": False}):
                yield case("DecodeJpeg", file, **attrs)
            for dtype in ("uint8", "uint16", "float"):
                yield case("DecodeImage", file, channels=3, dtype=dtype)
        for attrs in ({"progressive": True}, {"optimize_size": True}, {"quality": 30}):
            data = tf.io.encode_jpeg(smooth[..., :channels], **attrs).numpy()
            yield case("DecodeJpeg", np.array(data, object))
        for cut, fraction in ((0.5, 0.3), (0.8, 0.3), (0.5, 1.0)):
            part = tf.io.encode_jpeg(noise_large[..., :channels], chroma_downsampling=False).numpy()
            part = np.array(part[:int(len(part) * cut)], object)
            yield case("DecodeJpeg", part, acceptable_fraction=fraction, fails=fraction == 1)
        file = np.array(data, object)
        for output_type in ("int32", "int64"):
            yield case("ExtractJpegShape", file, output_type=output_type)
        for window in (i32(3, 4, 10, 17), i32(0, 0, 19, 26), i32(18, 25, 1, 1)):
            yield case("DecodeAndCropJpeg", file, window)
        yield case("DecodeAndCropJpeg", file, i32(2, 3, 6, 7), ratio=2, channels=1)
        for window in (i32(3, 4, 17, 17), i32(0, 26, 1, 1), i32(-1, 0, 2, 2), i32(0, 0, 0, 3), i32(0, 0, 2),
                       i32(1, 1, 2, 2).reshape(2, 2)):
            yield case("DecodeAndCropJpeg", file, window, fails=True)
    for bad in (b"", b"no picture", data[:100], b"\x89PNG\r\n\x1a\n"):
        yield case("DecodePng", np.array(bad, object), fails=True)
        yield case("DecodeJpeg", np.array(bad, object), fails=True)
        yield case("DecodeAndCropJpeg", np.array(bad, object), i32(0, 0, 1, 1), fails=True)
    for bad in (b"", b"no picture", b"\x89PNG\r\n\x1a\n"):
        yield case("ExtractJpegShape", np.array(bad, object), fails=True)
    for size, key in ((1, b"\0\3"), (3, b"\0\1\0\2\0\3")):
        data = tf.io.encode_png(np.arange(18 * size, dtype=np.uint8).reshape(6, 3, size)).numpy()
        data = np.array(with_transparent_color(data, key), object)
        for wanted in (0, 1, 3, 4):
            yield case("DecodePng", data, channels=wanted)
        yield case("DecodePng", data, dtype="uint16")
    yield case("DecodePng", data, channels=2, fails=True)
    data = tf.io.encode_jpeg(np.full((4, 4, 1), 77, np.uint8)).numpy()
    for cut in (1, 2, 9):
        yield case("DecodeJpeg", np.array(data[:-cut], object), fails=True)
    yield case("DecodeJpeg", np.array(data[:-2], object), try_recover_truncated=True)
    yield case("DecodeJpeg", np.array(data, object), channels=4, fails=True)
    yield case("EncodePng", smooth[0], fails=True)
    yield case("EncodePng", np.zeros((2, 2, 5), np.uint8), fails=True)
    yield case("EncodeJpeg", np.zeros((2, 2, 2), np.uint8), fails=True)


def words():
    texts = (b"1", b" 12\t", b"-3", b"1.5", b"1e3", b"nan", b"inf", b"-Infinity", b"0x10", b"-0X1f", b"", b"+5",
             b"99999999999", b"1e400", b"1_0", "\u0663".encode(), b"1.", b".5", b"1e", b"infinit", b"1f", b"1.0e-50",
             b"4294967295", b"-0", b"18446744073709551615", b"- 1", b"--1",
             # Hexadecimal numbers: to the nearest, ties to even, out of range, no digits.
             b"0x1p3", b" -0X1.8P-2\v", b"+0x.8", b"0x1.", b"0x1.8", b"0x", b"0x.", b"0xp1", b"0x1p", b"0x1p+", b"0x1p 3",
             b"0x1.2.3", b"0x1.0000010p0", b"0x1.000001p0", b"0x1.0000030p0", b"0x1.0000011p0", b"0x1.00000000000008p0",
             b"0x1.00000000000018p0", b"0x1.000000000000080000000000000001p0", b"0x1.fffffefp127", b"0x1.ffffffp127",
             b"0x1.fffffffffffff7p1023", b"0x1.fffffffffffff8p1023", b"0x1p-149", b"0x1p-150", b"0x1.8p-150", b"0x1p-1074",
             b"0x1p-1075", b"0x1.8p-1075", b"0x1.8p-1074", b"0x1p99999999999999999999", b"0x1p-99999999999999999999",
             b"0x0p99999999999999999999", b"0x" + b"f" * 40, b"0x" + b"f" * 300, b"0x0." + b"0" * 300 + b"1p1200",
             b"nan(12_aB)", b"NaN()", b"nan(", b"nan)", b"nan(-)", b"-nan", b"+INFINITY", b"infinityx", b"0b1", "1\u00a0".encode())
    for dtype in ("float", "double", "int32", "int64", "uint32", "uint64"):
        parse = tf.raw_ops.StringToNumber
        good = []
        for text in texts:
            try:
                parse(string_tensor=[text], out_type=tf.as_dtype(dtype))
                good.append(text)
            except tf.errors.InvalidArgumentError:
                yield case("StringToNumber", strings(text), out_type=dtype, fails=True)
        yield case("StringToNumber", strings(*good), out_type=dtype)
    yield case("StringToNumber", strings(b"1", b"2", b"3", b"4").reshape(2, 2))
    yield case("StringToNumber", strings())
    some = strings(b"abc", b"ab", b"xabc", b"abc\n", b"", "\u00e9".encode(), b"\xff", b"AbC")
    for pattern in (b"a.*c", b"a|ab", b"", b".", b"(?i)abc", b"^ab$", b"[[:alpha:]]+", b"(?s)a.*"):
        text = np.array(pattern, object)
        yield case("RegexFullMatch", some, text)
        yield case("StaticRegexFullMatch", some.reshape(2, 4), pattern=pattern.decode())
        for rewrite in (b"-", b"[\\0]", b"\\\\x"):
            for every in (True, False):
                yield case("RegexReplace", some[:5], text, np.array(rewrite, object), replace_global=every)
    for rewrite in (b"<\\2\\1>", b"\\3", b"a\\"):
        yield case("StaticRegexReplace", strings(b"k=v, l=w", b"none"), pattern="(\\w)=(\\w)", rewrite=rewrite.decode())
    yield case("StaticRegexFullMatch", some, pattern="a(b", fails=True)
    yield case("RegexFullMatch", some, np.array(b"a(b", object), fails=True)
    yield case("RegexFullMatch", some, strings(b"a", b"b"), fails=True)
    yield case("RegexFullMatch", some, strings(b"a"), fails=True)
    yield case("RegexReplace", some, np.array(b"*", object), np.array(b"", object), fails=True)


def cases():
    yield from words()
    for base, shard, n in ((b"model", 3, 12), (b"a/b", 0, 1), (b"x", 123456, 1234567)):
        yield case("ShardedFilename", np.array(base, object), np.int32(shard), np.int32(n))
        yield case("ShardedFilespec", np.array(base, object), np.int32(n))
    yield from raw()
    yield from csv()
    yield from examples()
    yield from pictures()
