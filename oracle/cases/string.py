"""String ops: formatting, hashing, splitting, joining, n-grams, Unicode."""

import numpy as np

from casekit import COMPLEX, FLOATS, INTS, Rand, a, case, empty, i32, i64


def strings(*values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


def one(value):
    return np.array(value, object)


TEXTS = strings(b"", b"a", b"hello", "größe".encode(), "日本語テキスト".encode(), b"\xff\x00z", b"a b  c",
                "🎉 party".encode())


def cases():
    r = Rand("string rows")
    yield from as_string(r)
    yield from base64()
    yield from hashes(r)
    yield from splits()
    yield from joins(r)
    yield from substrings()
    yield from ngrams()
    yield from unicode()
    yield from formats()


def as_string(r):
    op = "AsString"
    for dtype in INTS:
        for shape in ((), (0,), (2, 3)):
            yield case(op, r(dtype, shape, -100, 100))
        for fill in ("", " ", "+", "-", "0", "#"):
            yield case(op, r(dtype, (5,), -100, 100), width=6, fill=fill)
        yield case(op, r(dtype, (3,)), precision=2, fails=True)
        yield case(op, r(dtype, (3,)), scientific=True, fails=True)
        yield case(op, r(dtype, (3,)), shortest=True, fails=True)
    yield case(op, a("int64", [-2**63, 2**63 - 1]))
    yield case(op, a("uint64", [2**64 - 1]))
    yield case(op, a("bool", [True, False]), width=8)
    yield case(op, a("bool", [True]), precision=1, fails=True)
    values = [0.0, -0.0, 1.0, -1.5, 0.5, 2.5, 0.125, 1e-3, 1e-5, 123456.0, 1234567.0, 65504.0, np.inf, -np.inf, np.nan]
    for dtype in FLOATS:
        x = a(dtype, values)
        for how in ({}, {"scientific": True}, {"shortest": True}):
            yield case(op, x, **how)
            for precision in (0, 1, 3, 9):
                yield case(op, x, precision=precision, **how)
            for fill in ("", " ", "+", "-", "0", "#"):
                yield case(op, x, width=12, fill=fill, **how)
                yield case(op, x, precision=0, width=3, fill=fill, **how)
    wide = a("double", [1e308, 1e-300, np.pi, -2.0 / 3.0, 1e22, 0.1, 999999.5, 99999.95])
    for how in ({}, {"scientific": True}, {"shortest": True}):
        for precision in (-1, 0, 17, 40):
            yield case(op, wide, precision=precision, **how)
        yield case(op, wide, precision=30, fill="#", **how)
    yield case(op, wide[-1:], precision=1200)
    extremes = [5e-324, -5e-324, 2.2e-308, 2.3e-308, 1.1e-38, 1.2e-38]
    for dtype, more in (("double", [1.7976931348623157e308, -1e16, 1e17]), ("float", [1e-45, -1e-45]), ("bfloat16", [1e-40])):
        x = a(dtype, extremes + more)
        for how in ({}, {"scientific": True}, {"shortest": True}, {"shortest": True, "precision": 17}, {"fill": "+"}):
            yield case(op, x, **how)
    yield case(op, a("complex128", [5e-324 - 5e-324j]), shortest=True)
    yield case(op, a("complex64", [1e-45 - 1e-45j]), shortest=True)
    for dtype in COMPLEX:
        for how in ({}, {"precision": 2, "width": 7}, {"scientific": True}, {"shortest": True, "fill": "+"}):
            yield case(op, r(dtype, (3,)), **how)
    yield case(op, TEXTS)
    yield case(op, TEXTS, precision=2)
    for fill in ("", " ", "-", "#", "+"):
        yield case(op, TEXTS, width=4, fill=fill)
        yield case(op, TEXTS, width=4, precision=1, fill=fill)
    x = r("float", (2,))
    for bad in ({"fill": "x"}, {"fill": "00"}, {"scientific": True, "shortest": True}, {"precision": 2**40},
                {"width": -2**40}):
        yield case(op, x, fails=True, **bad)


def base64():
    for pad in (False, True):
        for n in range(9):
            yield case("EncodeBase64", strings(bytes(range(250, 250 + min(n, 6))) + b"ab" * max(0, n - 6)), pad=pad)
        yield case("EncodeBase64", one(b"\x00\xff"), pad=pad)
        yield case("EncodeBase64", empty("string", 0), pad=pad)
    yield case("DecodeBase64", strings(b"", b"AA", b"AA==", b"AAA", b"AAA=", b"AAAA", b"-_-_", b"AB", b"ABC", b"QUJDRA",
                                       b"__79_w"))
    yield case("DecodeBase64", one(b"aGVsbG8"))
    yield case("DecodeBase64", empty("string", 0, 2))
    for bad in (b"A", b"AAAAA", b"AA+A", b"AA/A", b"A A", b"====", b"A===", b"AA=A", b"A=AA", b"AA=", b"AAA==", b"AAAA=",
                b"=", b"==", b"\xff\xff", b"AAA\n", b"AA==AAAA", b"A$AAA"):
        yield case("DecodeBase64", strings(bad), fails=True)


def hashes(r):
    rng = np.random.default_rng(7)
    long = strings(*[bytes(rng.integers(0, 256, n, dtype=np.uint8)) for n in
                     list(range(0, 140)) + [191, 192, 193, 255, 256, 257, 511, 1000, 4096]])
    for n in (1, 7, 1000, 2**63 - 1):
        yield case("StringToHashBucketFast", long, num_buckets=n)
        yield case("StringToHashBucket", long, num_buckets=n)
        yield case("StringToHashBucketStrong", long, num_buckets=n, key=[123, -456])
    yield case("StringToHashBucketStrong", TEXTS, num_buckets=2**63 - 1, key=[0, 0])
    for op in ("StringToHashBucketFast", "StringToHashBucket"):
        yield case(op, one(b"x"), num_buckets=10)
        yield case(op, empty("string", 2, 0), num_buckets=10)
        yield case(op, r("string", (3, 5)), num_buckets=10)
        yield case(op, TEXTS, num_buckets=0, fails=True)
    for key in ([], [1], [1, 2, 3]):
        yield case("StringToHashBucketStrong", TEXTS, num_buckets=5, key=key, fails=True)


def splits():
    texts = strings(b"a b c", b"", b" a  b ", b"abc", b"a,b;c", b",,", b"a<>b<><>c", b"<>", b"\ta\nb\x0bc\r", b"x <> y <>")
    for sep in (b"", b" ", b",", b"<>", b"abc", b"\x00", b"longer than all of the strings"):
        for n in (-1, 0, 1, 2, 3, -5):
            yield case("StringSplitV2", texts, one(sep), maxsplit=n)
    for sep in (b"", b" ", b",", b",;", b"<>", b"abc", b" \t\n"):
        for skip in (True, False):
            yield case("StringSplit", texts, one(sep), skip_empty=skip)
    for op in ("StringSplit", "StringSplitV2"):
        yield case(op, empty("string", 0), one(b" "))
        yield case(op, strings(b"", b""), one(b" "))
        yield case(op, one(b"a b"), one(b" "), fails=True)
        yield case(op, texts.reshape(5, 2), one(b" "), fails=True)
        yield case(op, texts, strings(b" "), fails=True)


def joins(r):
    x = strings(*[f"{i}{j}{k}".encode() for i in range(2) for j in range(3) for k in range(4)]).reshape(2, 3, 4)
    for axes in ([0], [1], [2], [-1], [0, 1], [1, 0], [0, 2], [2, 0, 1], [-1, -3], []):
        for keep in (False, True):
            yield case("ReduceJoin", x, np.array(axes, np.int32), keep_dims=keep, separator="-")
    yield case("ReduceJoin", x, np.int32(1))
    yield case("ReduceJoin", one(b"a"), empty("int32", 0))
    for shape in ((0, 3), (3, 0), (0,), (0, 0)):
        for axis in range(len(shape)):
            yield case("ReduceJoin", empty("string", *shape), i32(axis), separator=",")
    for bad in ([3], [-4], [0, 0], [1, -2]):
        yield case("ReduceJoin", x, np.array(bad, np.int32), fails=True)
    yield case("ReduceJoin", one(b"a"), i32(0), fails=True)

    op = "UnsortedSegmentJoin"
    flat = strings(b"a", b"", b"b", b"c", b"", b"d")
    for ids in (i32(0, 1, 0, 1, 2, 2), i64(4, 4, 4, 0, 0, 0)):
        for n in (np.int32(5), np.int64(6)):
            for separator in ("", ", ", "\0x", "a\0b"):
                yield case(op, flat, ids, n, separator=separator)
    yield case(op, x, i32(1, 0), np.int32(2), separator=":")
    yield case(op, x, i32(1, 0, 1, 1, 0, 3).reshape(2, 3), np.int32(4), separator=":")
    yield case(op, x, (np.arange(24) % 5).astype(np.int32).reshape(2, 3, 4), np.int32(5), separator=":")
    yield case(op, empty("string", 0), empty("int32", 0), np.int32(3))
    yield case(op, empty("string", 0), empty("int32", 0), np.int32(0))
    yield case(op, x, i32(1, 0), i32(2), fails=True)
    yield case(op, x, i32(1, 0), empty("int32", 0), fails=True)
    yield case(op, x, i32(1, 0), np.int32(-1), fails=True)
    yield case(op, x, i32(1, 2), np.int32(2), fails=True)
    yield case(op, x, i32(-1, 1), np.int32(2), fails=True)
    yield case(op, x, np.int32(1), np.int32(2), fails=True)
    yield case(op, x, i32(1, 0, 1), np.int32(2), fails=True)
    yield case(op, flat, np.zeros((6, 1), np.int32), np.int32(2), fails=True)


def substrings():
    words = strings("thirteen".encode(), "größe über".encode(), "日本語テキスト".encode(), "🎉 party🎉".encode())
    for make in (i32, i64):
        scalar = lambda v: make(v)[0]
        for unit in ("BYTE", "UTF8_CHAR"):
            for pos, n in ((0, 3), (1, 2), (2, 100), (-3, 2), (-5, 5), (-4, 100), (3, 0), (3, -1), (-3, -1), (0, 0)):
                yield case("Substr", words, scalar(pos), scalar(n), unit=unit,
                           fails=(unit, pos, n) == ("UTF8_CHAR", -3, -1))
            yield case("Substr", words, make(0, 1, 2, 3), make(1, 2, 3, 4), unit=unit)
            yield case("Substr", words.reshape(2, 2), make(0, 1, 2, -3).reshape(2, 2), make(1, 2, 3, 4).reshape(2, 2),
                       unit=unit)
            yield case("Substr", words.reshape(4, 1), make(0, 1, -2), make(1, 2, 3), unit=unit)
            yield case("Substr", words.reshape(2, 2), make(1, 2), make(3, 1), unit=unit)
            yield case("Substr", words[:1], make(1, 2, 3), make(3, 1, 0), unit=unit)
            yield case("Substr", one(b"abcdef"), make(1, 2, 3), make(3, 1, 0), unit=unit)
            yield case("Substr", one(b"abcdef"), scalar(1), scalar(3), unit=unit)
            yield case("Substr", strings(b"", b""), scalar(0), scalar(3), unit=unit)
            yield case("Substr", empty("string", 0), scalar(5), scalar(3), unit=unit)
            yield case("Substr", strings(b"\x80\x80a\x80", b"a\x80\x80"), scalar(1), scalar(1), unit=unit)
            for pos in (20, -30):
                yield case("Substr", words[:2], scalar(pos), scalar(1), unit=unit, fails=True)
                yield case("Substr", words[:2], make(0, pos), make(1, 1), unit=unit, fails=True)
                yield case("Substr", strings(b"abc", b"def").reshape(2, 1), make(0, pos), make(1, 1), unit=unit, fails=True)
                yield case("Substr", one(b"abc"), make(0, pos), make(1, 1), unit=unit, fails=True)
            yield case("Substr", words, make(1), scalar(1), unit=unit, fails=True)
            yield case("Substr", words, make(1, 2, 3), make(1, 1, 1), unit=unit, fails=True)
            yield case("Substr", words.reshape(2, 2, 1), make(1, 2), make(1, 1), unit=unit, fails=True)


def ngrams():
    words = strings(b"aa", b"bb", b"cc", b"dd", b"e", b"f")
    base = dict(separator="|", left_pad="L", right_pad="RR")
    for splits in (i64(0, 4, 6), i32(0, 4, 6), i64(0, 0, 1, 6, 6)):
        for widths in ([1], [2], [3], [2, 3], [1, 2, 5], [7], []):
            for pad in (-1, 0, 1, 2, 10):
                for keep in (False, True):
                    if keep and pad < 0:
                        continue
                    yield case("StringNGrams", words, splits, ngram_widths=widths, pad_width=pad,
                               preserve_short_sequences=keep, **base)
    how = dict(ngram_widths=[2], pad_width=1, preserve_short_sequences=False)
    for data, splits in ((empty("string", 0), i64(0)), (empty("string", 0), i64(0, 0, 0)), (empty("string", 0), empty("int64", 0)),
                         (words, empty("int64", 0))):
        yield case("StringNGrams", data, splits, **how, **base)
    for splits in (i64(1, 6), i64(0, 4), i64(0, 7), i64(0, 4, 3, 6), i64(0, -1, 6), i64(-1, 6)):
        yield case("StringNGrams", words, splits, fails=True, **how, **base)
    for bad in (dict(ngram_widths=[0]), dict(ngram_widths=[2, -1]), dict(pad_width=2**30, ngram_widths=[2**31 - 1]),
                dict(pad_width=2**31), dict(ngram_widths=[], pad_width=-1, preserve_short_sequences=True)):
        yield case("StringNGrams", words, i64(0, 6), fails=True, **{**how, **base, **bad})


BROKEN = strings(b"ok", b"\xffa", b"a\xe2\x82", b"\xe2\x82\xacx\xed\xa0\x80y", b"\xf0\x90A", b"\xc0\x80\xc3", b"\xf5\x80\x80\x80",
                 b"\x00\x1f\x20\x7f", b"", b"\xef\xbb\xbfbom", "größe 🎉".encode())
WIDE = strings(b"", b"\x00a\x00b", b"\xd8\x3c\xdf\x89\x00x", b"\xd8\x3c\x00x", b"\xdf\x89\x00x", b"\x00a\x00", b"\xd8\x3c",
               b"\xd8\x3c\xdf", b"\xfe\xff\x00a", b"\xff\xfea\x00", b"\x00\x00\x00a\x00\x01\xf3\x89", b"\x00\x11\x00\x00",
               b"\x00\x00\xd8\x00\x00\x00\x00b", b"\x00\x00\x00a\x00\x00")
EIGHT = strings(bytes(range(0, 128)), *[bytes(range(i, i + 16)) for i in range(128, 256, 16)])
SINGLE = ["latin-1", "ISO-8859-1", "us-ascii", "ASCII", "iso-8859-2", "iso-8859-5", "iso-8859-7", "iso-8859-9", "ISO_8859-15",
          "windows-1250", "windows-1251", "windows-1252", "cp1252", "windows-1253", "windows-1254", "windows-1256", "windows-1257", "windows-1258", "windows-874", "koi8-r", "koi8-u",
          "ibm866", "macintosh", "x-mac-cyrillic", "tis-620", "iso-8859-3", "iso-8859-4", "iso-8859-6", "iso-8859-8",
          "iso-8859-10", "iso-8859-13", "iso-8859-14",
          "cp437", "IBM-850", "cp00852", "cp864", "cp869", "IBM037", "ibm-1047", "ibm-1140", "ebcdic-xml-us", "hp-roman8",
          "x-mac-greek", "iso-8859-11"]
# Seven bits, with escapes: whole, cut off and damaged.
SHIFTED = {
    "UTF-7": ["naïve 你好 𝄞 a+b".encode("utf-7"), b"+AOk", b"+AOkx.a+-b", b"+", b"+AO", b"+AOk~", b"+2DTdHg-x", b"~\\\x80",
              b"+AO\x80k-", b"+AOk.AOk+AOk-", b"+//8-\t", b"+!x+-"],
    "HZ": ["汉字 abc 测试".encode("hz"), b"~~a~{VPND~}b", b"~", b"~x", b"~{V", b"~\nabc", b"~{!!~}", b"~{VP\x80~}"],
    "SCSU": [bytes.fromhex("129cbec1bad1b2b0"), bytes.fromhex("d66c20666c6965df74"), b"\x0f\x4e\x00\xe0a", b"\x0f\xd8\x34\xdd\x1e\xf0\x30\x42\xe2\xb0",
             b"\x0b\x00\x01\x80\xff\x08\x00\x02\xe9\x18\x69\xd0\x1f\xfb\x91", b"\x01"],
    "ISO-2022-JP": ["日本語 abc".encode("iso-2022-jp"), b"\x1b(J\\~\x1b(Ba", b"\x80a"],
}


def unicode():
    for op in ("UnicodeDecode", "UnicodeDecodeWithOffsets", "UnicodeTranscode"):
        out = [{}] if op != "UnicodeTranscode" else [{"output_encoding": e} for e in ("UTF-8", "UTF-16-BE", "UTF-32-BE")]
        for extra in out:
            for how in ({}, {"errors": "ignore"}, {"replacement_char": 32}, {"replace_control_characters": True},
                        {"errors": "ignore", "replace_control_characters": True}):
                yield case(op, BROKEN, input_encoding="UTF-8", **how, **extra)
                for each in WIDE:
                    for name in ("UTF-16", "UTF-16-BE", "utf-16le", "UTF-32", "UTF-32-BE", "utf32-le"):
                        if how == {} or name == "UTF-16-BE" and op == "UnicodeTranscode":
                            yield case(op, strings(each), input_encoding=name, **how, **extra)
            for name in SINGLE if extra in ({}, out[0]) else ():
                yield case(op, EIGHT, input_encoding=name, **extra)
            for name, codec in (("shift_jis", "cp932"), ("EUC-JP", "euc_jp"), ("GBK", "gbk"), ("GB18030", "gb18030"),
                                ("Big5", "big5"), ("EUC-KR", "euc_kr")):
                text = "漢字 abc" if name not in ("GBK", "GB18030") else "汉字 abc"
                yield case(op, strings(text.encode(codec)), input_encoding=name, **extra)
            for name in ("EUC-JP", "EUC-KR", "gb2312"):
                yield case(op, strings(b"a\xe9\x82\xa0b\x80", b"\xb0\xa1\xb0", b"\xff\x9f"), input_encoding=name, **extra)
            yield case(op, strings(b"\x1a\x1c\x7f\xb1"), input_encoding="shift_jis", **extra)
            for name, texts in SHIFTED.items():
                yield case(op, strings(*texts), input_encoding=name, **extra)
            yield case(op, one(b"abc"), input_encoding="UTF-8", **extra)
            yield case(op, TEXTS[:4].reshape(2, 2), input_encoding="UTF8", **extra)
            yield case(op, empty("string", 0), input_encoding="UTF-8", **extra)
            yield case(op, BROKEN[[0, 7, 8, 10]], input_encoding="UTF-8", errors="strict", **extra)
            for i in (1, 2, 3):
                yield case(op, BROKEN[i:i + 1], input_encoding="UTF-8", errors="strict", fails=True, **extra)
            yield case(op, BROKEN, input_encoding="no such encoding", fails=True, **extra)
            for char in (-1, 0x110000):
                yield case(op, BROKEN, input_encoding="UTF-8", replacement_char=char, fails=True, **extra)
    yield case("UnicodeTranscode", strings(b"a\x01b"), input_encoding="UTF-8", output_encoding="UTF-8", errors="strict",
               replace_control_characters=True, fails=True)
    for surrogate in (0xd800, 0xdfff, 0xfffe, 0x10ffff):
        for target in ("UTF-8", "UTF-16-BE", "UTF-32-BE"):
            yield case("UnicodeTranscode", BROKEN, input_encoding="UTF-8", output_encoding=target, replacement_char=surrogate)
    yield case("UnicodeDecode", BROKEN, input_encoding="UTF-8", Tsplits="int32")

    points = i32(0x61, 0xe9, 0x20ac, 0x1f389, -1, 0xd800, 0x110000, 0, 0x10ffff)
    for target in ("UTF-8", "UTF-16-BE", "UTF-32-BE"):
        for how in ({}, {"errors": "ignore"}, {"replacement_char": 0x2603}):
            yield case("UnicodeEncode", points, i64(0, 2, 2, 5, 9), output_encoding=target, **how)
            yield case("UnicodeEncode", points, i32(0, 9), output_encoding=target, **how)
        yield case("UnicodeEncode", points[:4], i64(0, 1, 4), output_encoding=target, errors="strict")
        yield case("UnicodeEncode", points, i64(0, 9), output_encoding=target, errors="strict", fails=True)
        yield case("UnicodeEncode", empty("int32", 0), i64(0), output_encoding=target)
        yield case("UnicodeEncode", empty("int32", 0), i64(0, 0), output_encoding=target)
    for splits in (i64(1, 9), i64(0, 8), i64(0, 10), i64(0, 5, 3, 9), i64(0, -1, 9), i64(0, 12, 9), empty("int64", 0),
                   np.zeros((1, 2), np.int64)):
        yield case("UnicodeEncode", points, splits, output_encoding="UTF-8", fails=True)

    known = [*range(-2, 0x558), *range(0x591, 0x5c8), *range(0x600, 0x61d), 0x4e00, 0x3042, 0x30a2, 0xac00, 0x1f389, 0x10a00, 0x10ffff, 0xd800, 0x110000, 2**31 - 1, -2**31]
    yield case("UnicodeScript", i32(*known))
    yield case("UnicodeScript", i32(*range(0x900, 0xb50, 3), *range(0xd00, 0xec0, 3), *range(0xf00, 0x1400, 3), *range(0x10000, 0x10400, 3)))
    yield case("UnicodeScript", np.int32(0x416))
    yield case("UnicodeScript", empty("int32", 0, 3))


def formats():
    """Bytes that are not UTF-8 and denormal numbers."""
    op = "StringFormat"
    raw = [b"\xff", b"\0", b"a\0b", "\u00e9\u4f60".encode(), b"\xc3", b"\n\t\r\v", b"\"'\\", b"\x7f\x80", b"\xffA1", b"\x001", b""]
    yield case(op, [np.array(raw, object)], template="<{}>", placeholder="{}", summarize=-1)
    for x in raw:
        yield case(op, [np.array(x, object)], template="<{}>", placeholder="{}")
        yield case(op, [np.array(x, object)], template=b"\xff<\xfe>\0\xfc", placeholder=b"\xfe")
    yield case(op, [np.array(b"a", object), np.array([b"b"], object)], template=b"x\0\0y\0\0z\0", placeholder=b"\0\0")
    for dtype, values in (("float", [1e-45, -1e-45, 1.2e-38]), ("double", [5e-324, -5e-324, 2.3e-308]),
                          ("half", [6e-8, -6e-8]), ("bfloat16", [1e-40, -1e-40, 1.2e-38])):
        yield case(op, [a(dtype, values)], template="{}", placeholder="{}", summarize=-1)
