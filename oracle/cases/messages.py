"""Messages of summaries and examples: AudioSummaryV2, DecodeJSONExample."""

import numpy as np

from casekit import Rand, a, case, empty

KEY = '{"features": {"feature": {"k": %s}}}'


def cases():
    r = Rand("messages")
    for shape, most in (((2, 5), 3), ((4, 3, 2), 2), ((2, 4, 1), 1), ((0, 3), 3)):
        yield case("AudioSummaryV2", np.array(b"t", object), r("float", shape, -1.2, 1.2), np.float32(8000.4),
                   max_outputs=most)
        yield case("AudioSummary", np.array(b"t", object), r("float", shape, -1.2, 1.2), sample_rate=0.2,
                   max_outputs=most)
    sound = r("float", (2, 3))
    yield case("AudioSummaryV2", np.array(b"t", object), sound, np.float32(0), fails=True)
    yield case("AudioSummaryV2", np.array([b"t"], object), sound, np.float32(8), fails=True)
    yield case("AudioSummaryV2", np.array(b"t", object), sound[0], np.float32(8), fails=True)
    yield case("ImageSummary", np.array(b"t", object), r("float", (2, 2, 2, 2)), fails=True)
    yield case("ImageSummary", np.array(b"t", object), empty("float", 1, 0, 2, 3), fails=True)
    yield case("ImageSummary", np.array([b"t"], object), r("float", (1, 2, 2, 3)), fails=True)

    good = ["{}", '{"features": {}}', KEY % "{}", KEY % '{"int64List": {"value": [1, "-2", 9007199254740993, 3.0]}}',
            KEY % '{"int64_list": {"value": []}}', KEY % '{"floatList": {"value": [1, -2.5, "NaN", "-Infinity", "1e3"]}}',
            KEY % '{"bytesList": {"value": ["YWJj", "", "_-8=", "YQ"]}}', KEY % "null",
            '{"features": {"feature": {"b": {"int64List": {"value": [300]}}, "a": {"floatList": {"value": [0]}}}}}']
    yield case("DecodeJSONExample", a("string", [text.encode() for text in good]))
    yield case("DecodeJSONExample", a("string", [[good[3].encode()]]))
    yield case("DecodeJSONExample", empty("string", 0, 2))
    for bad in ("", "{", "[]", '{"other": 1}', KEY % '{"int64List": {"value": ["x"]}}',
                KEY % '{"int64List": {"value": [1.5]}}', KEY % '{"bytesList": {"value": ["*"]}}',
                KEY % '{"floatList": {"value": [true]}}'):
        yield case("DecodeJSONExample", a("string", [bad.encode()]), fails=True)
