"""WAV files, spectrograms and cepstral coefficients."""

import struct

import numpy as np

from casekit import Rand, a, case, empty, i32, s32


def wav(samples, channels=1, rate=16000, riff=b"RIFF", kind=b"WAVE", before=b"", fmt=b"fmt ", size=16, code=1, bits=16,
        per_frame=None, per_second=None, after=b"", data=b"data", count=None, end=b""):
    """A WAV file from its fields."""
    per_frame = 2 * channels if per_frame is None else per_frame
    per_second = per_frame * rate if per_second is None else per_second
    body = np.asarray(samples, "<i2").tobytes()
    return (riff + struct.pack("<I", 36 + len(body)) + kind + before + fmt
            + struct.pack("<IHHIIHH", size, code, channels, rate, per_second, per_frame, bits) + after + data
            + struct.pack("<I", len(body) if count is None else count) + body + end)


def scalar(value):
    return np.array(value, dtype=object)


def decoding():
    some = [0, 1, -1, 32767, -32768, 100, -2000, 5]
    for channels in (1, 2, 4):
        for desired in (-1, 0, 1, 3):
            for samples in (-1, 0, 2, 20):
                yield case("DecodeWav", scalar(wav(some, channels)), desired_channels=desired, desired_samples=samples)
    chunk = b"LIST" + struct.pack("<I", 4) + b"abcd"
    junk = b"JUNK" + struct.pack("<I", 4) + b"abcd"
    for file in (wav([]), wav(some, rate=44100), wav(some, before=junk), wav(some, after=chunk), wav(some, end=chunk),
                 wav(some, size=18, after=b"\0\0")):
        yield case("DecodeWav", scalar(file))
    whole = wav(some)
    for file in (b"", whole[:3], whole[:10], whole[:30], whole[:44], whole[:-1], wav(some, riff=b"RIFX"),
                 wav(some, kind=b"WAVX"), wav(some, fmt=b"fmtx"), wav(some, before=b"JUNK" + b"\xff" * 4),
                 wav(some, size=17), wav(some, code=3), wav(some, channels=0, per_frame=2), wav(some, bits=8),
                 wav(some, per_frame=3), wav(some, per_second=7), wav(some, data=b"dat "), wav(some, count=100),
                 wav(some, count=0xFFFFFFFF), wav(some, end=b"data" + struct.pack("<I", 0)), wav(some, end=b"xx"), wav(some, 3)):
        if file != whole[:44]:
            yield case("DecodeWav", scalar(file), fails=True)
    yield case("DecodeWav", np.array([whole], dtype=object), fails=True)
    yield case("DecodeWav", scalar(whole), desired_samples=-2, fails=True)
    yield case("DecodeWav", scalar(whole), desired_channels=-2, fails=True)


def encoding():
    r = Rand("EncodeWav")
    for shape in ((0, 1), (1, 1), (7, 1), (5, 2), (3, 6)):
        yield case("EncodeWav", r("float", shape, -1.2, 1.2), s32(16000))
    yield case("EncodeWav", a("float", [[1], [-1], [0.99999], [2], [-2], [1.5 / 32768], [-1.5 / 32768]]), s32(44100))
    for inputs in ((r("float", (3,)), s32(1)), (r("float", (3, 1)), s32(0)), (r("float", (3, 1)), s32(-1)),
                   (r("float", (3, 1)), i32(1)), (empty("float", 3, 0), s32(1)), (empty("float", 0, 65536), s32(1))):
        yield case("EncodeWav", *inputs, fails=True)


def spectra():
    r = Rand("AudioSpectrogram")
    for samples, channels, window, stride in ((16, 1, 8, 4), (20, 2, 5, 3), (9, 1, 9, 1), (3, 1, 4, 1), (0, 1, 4, 1),
                                              (8, 0, 4, 2), (40, 1, 2, 7), (64, 1, 30, 10)):
        for squared in (False, True):
            yield case("AudioSpectrogram", r("float", (samples, channels)), window_size=window, stride=stride,
                       magnitude_squared=squared)
    for window, stride in ((1, 1), (0, 1), (4, 0), (4, -1)):
        yield case("AudioSpectrogram", r("float", (8, 1)), window_size=window, stride=stride, fails=True)
    yield case("AudioSpectrogram", r("float", (8,)), window_size=4, stride=2, fails=True)


def coefficients():
    r = Rand("Mfcc")
    for shape, rate, more in (((1, 2, 33), 16000, {}), ((2, 1, 129), 8000, {}), ((1, 2, 33), 44100, {}),
                              ((1, 1, 2), 16000, {}), ((1, 0, 33), 16000, {}), ((0, 2, 33), 16000, {}),
                              ((1, 2, 65), 16000, {"upper_frequency_limit": 8000.0, "lower_frequency_limit": 0.0}),
                              ((1, 2, 65), 16000, {"upper_frequency_limit": 9000.0}),
                              ((1, 2, 33), 16000, {"filterbank_channel_count": 5, "dct_coefficient_count": 5}),
                              ((1, 2, 33), 16000, {"filterbank_channel_count": 1, "dct_coefficient_count": 1})):
        yield case("Mfcc", r("float", shape, 0, 5), s32(rate), **more)
    yield case("Mfcc", np.zeros((1, 1, 33), np.float32), s32(16000))
    for shape, rate, more in (((2, 33), 16000, {}), ((1, 2, 1), 16000, {}), ((1, 2, 33), 0, {}), ((1, 2, 33), -5, {}),
                              ((1, 2, 33), 16000, {"filterbank_channel_count": 0}),
                              ((1, 2, 33), 16000, {"filterbank_channel_count": 5}),
                              ((1, 2, 33), 16000, {"dct_coefficient_count": 0}),
                              ((1, 2, 33), 16000, {"lower_frequency_limit": -1.0}),
                              ((1, 2, 33), 16000, {"upper_frequency_limit": 20.0})):
        yield case("Mfcc", r("float", shape, 0, 5), s32(rate), fails=True, **more)
    yield case("Mfcc", r("float", (1, 2, 33), 0, 5), i32(16000), fails=True)


def cases():
    for part in (decoding, encoding, spectra, coefficients):
        yield from part()
