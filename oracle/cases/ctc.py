"""Connectionist temporal classification: loss and decoders."""

import numpy as np

from casekit import NUMPY, Rand, a, case, empty, i32, i64


def cases():
    r = Rand("ctc rows")
    yield from greedy(r)
    yield from beams(r)
    yield from losses(r)
    yield from ties(Rand("ctc ties"))


def greedy(r):
    op = "CTCGreedyDecoder"
    for dtype in ("float", "double"):
        for merge_repeated in (False, True):
            yield case(op, r(dtype, (7, 3, 4)), i32(7, 4, 0), merge_repeated=merge_repeated)
    x = r("float", (9, 2, 3))
    for blank in (0, 1, 2, -1, -3):
        yield case(op, x, i32(9, 8), blank_index=blank, merge_repeated=True)
    yield case(op, np.zeros((3, 2, 4), np.float32), i32(3, 3))
    yield case(op, x, i32(-1, 5))
    for blank in (3, -4):
        yield case(op, x, i32(9, 8), blank_index=blank, fails=True)
    for inputs, lengths in ((x[0], i32(9, 8)), (x[:0], i32(0, 0)), (x, np.int32(3)), (x, i32(9)), (x, i32(9, 10))):
        yield case(op, inputs, lengths, fails=True)
        yield case("CTCBeamSearchDecoder", inputs, lengths, beam_width=2, top_paths=1, fails=True)


def beams(r):
    op = "CTCBeamSearchDecoder"
    for dtype in ("float", "double"):
        for merge_repeated in (False, True):
            yield case(op, r(dtype, (7, 3, 4)), i32(7, 4, 1), beam_width=5, top_paths=1,
                       merge_repeated=merge_repeated)
            yield case(op, r(dtype, (7, 3, 4), -5, 5), i32(7, 4, 2), beam_width=20, top_paths=3,
                       merge_repeated=merge_repeated)
    yield case(op, r("float", (30, 2, 12), -6, 6), i32(30, 25), beam_width=100, top_paths=4)
    yield case(op, r("float", (5, 1, 2)), i32(5), beam_width=1, top_paths=1)
    yield case(op, r("float", (4, 2, 1)), i32(4, 0), beam_width=3, top_paths=1)
    yield case(op, r("float", (5, 1, 3)), i32(5), beam_width=2, top_paths=3, fails=True)
    yield case(op, r("float", (1, 1, 2)), i32(1), beam_width=9, top_paths=5, fails=True)


def losses(r):
    op = "CTCLoss"
    at = np.array([[0, 0], [0, 1], [0, 2], [1, 0], [2, 0], [2, 1]], np.int64)
    labels = i32(0, 1, 1, 2, 0, 3)
    for dtype in ("float", "double"):
        x = r(dtype, (8, 3, 5))
        tol = 1e-5
        for options in ({}, {"preprocess_collapse_repeated": True}, {"ctc_merge_repeated": False}):
            yield case(op, x, at, labels, i32(8, 5, 2), tol=tol, **options)
        yield case(op, x, at, labels, i32(2, 0, 2), ignore_longer_outputs_than_inputs=True, tol=tol)
    x = r("float", (8, 3, 5), -9, 9)
    yield case(op, x, at, labels, i32(3, 1, 2), tol=1e-5)
    yield case(op, x, at, i32(0, 1, 4, 2, 0, 4), i32(8, 7, 6), tol=1e-5)
    yield case(op, r("float", (40, 1, 30)), np.array([[0, t] for t in range(17)], np.int64),
               r("int32", (17,), 0, 28), i32(40), tol=1e-5)
    # Nothing but blanks.
    for dtype in ("float", "double"):
        for x1, length in ((np.zeros((2, 1, 4), NUMPY[dtype]), 2), (r(dtype, (6, 1, 4)), 6), (r(dtype, (6, 1, 4)), 3)):
            for merge in (True, False):
                yield case(op, x1, at[:1], i32(3), i32(length), ctc_merge_repeated=merge, tol=1e-5)
        yield case(op, r(dtype, (6, 3, 4)), at, i32(3, 3, 4, 1, 7, 7), i32(6, 5, 2), tol=1e-5)
    good = (x, at, labels, i32(8, 5, 2))

    def with_(i, value):
        return (*good[:i], value, *good[i + 1:])

    for args in (with_(0, x[0]), with_(0, x[:0]), with_(3, np.int32(8)), with_(3, i32(8, 5)), with_(3, i32(9, 5, 2)),
                 with_(3, i32(2, 5, 2)), with_(3, i32(8, 5, -2)), with_(1, at[0]), with_(1, at[:, :1]),
                 with_(1, at[::-1].copy()), with_(1, at[:4]), with_(1, at + i64(1, 0)), with_(2, labels[:, None]),
                 with_(2, labels - 1), with_(2, i32(0, 4, 1, 2, 0, 3)), with_(1, np.pad(at, ((0, 0), (0, 1)))),
                 (x, at[:4], labels[:4], i32(8, 5, 2)), (x[:, :0], at[:0], labels[:0], i32())):
        yield case(op, *args, fails=True)


def ties(r):
    "Equal probabilities, of which a heap keeps some."
    op = "CTCBeamSearchDecoder"
    for time, classes, width, paths in ((3, 5, 10, 3), (6, 3, 4, 4), (10, 12, 20, 5), (8, 6, 100, 40), (5, 30, 17, 2)):
        yield case(op, np.zeros((time, 1, classes), np.float32), i32(time), beam_width=width, top_paths=paths)
    steps = np.round(r("float", (12, 3, 7), -2, 2))
    for width, paths in ((3, 1), (16, 16), (40, 7), (200, 50)):
        yield case(op, steps, i32(12, 9, 5), beam_width=width, top_paths=paths, merge_repeated=width == 16)
