"""Fused LSTM and GRU cells and layers."""

import numpy as np

from casekit import Rand, case, empty


def cases():
    r = Rand("rnn rows")
    yield from lstm_cells(r)
    yield from lstm_layers(r)
    yield from gru_cells(r)


def weights(r, dtype, n_in, n):
    return [r(dtype, (n_in + n, 4 * n), -0.7, 0.7), *(r(dtype, (n,)) for _ in range(3)), r(dtype, (4 * n,))]


def replaced(args, i, value):
    return [*args[:i], value, *args[i + 1:]]


def tol(dtype):
    return 1e-5 if dtype == "float" else 1e-2


def lstm_cells(r):
    for dtype in ("float", "half"):
        for batch, n_in, n in ((2, 3, 4), (5, 7, 9), (1, 1, 1), (6, 9, 17)):
            for use_peephole in (False, True):
                x, cs, h = r(dtype, (batch, n_in)), r(dtype, (batch, n)), r(dtype, (batch, n))
                args = [x, cs, h, *weights(r, dtype, n_in, n)]
                yield case("LSTMBlockCell", *args, use_peephole=use_peephole, tol=tol(dtype))
                if n > 16:
                    continue
                yield case("LSTMBlockCell", *args, use_peephole=use_peephole, forget_bias=0.5, cell_clip=0.3,
                           tol=tol(dtype))
                values = [r(dtype, (batch, n), 0.1, 0.9) for _ in range(8)]
                yield case("LSTMBlockCellGrad", *args, *values, use_peephole=use_peephole, tol=tol(dtype))
    f = "float"
    args = [r(f, (2, 3)), r(f, (2, 4)), r(f, (2, 4)), *weights(r, f, 3, 4)]
    yield case("LSTMBlockCell", *args, cell_clip=-1.0)
    yield case("LSTMBlockCell", *args, cell_clip=0.0)
    values = [r(f, (2, 4)) for _ in range(8)]
    bad = [(1, r(f, (3, 4))), (2, r(f, (3, 4))), (2, r(f, (2, 5))), (3, r(f, (6, 16))), (3, r(f, (7, 15))),
           (7, r(f, (15,)))]
    for i, value in bad:
        yield case("LSTMBlockCell", *replaced(args, i, value), fails=True)
        yield case("LSTMBlockCellGrad", *replaced(args, i, value), *values, use_peephole=False, fails=True)
    for i in (4, 5, 6):
        yield case("LSTMBlockCell", *replaced(args, i, r(f, (1, 4))), fails=True)
    for i in range(8):
        yield case("LSTMBlockCellGrad", *args, *replaced(values, i, r(f, (3, 4))), use_peephole=False, fails=True)
        yield case("LSTMBlockCellGrad", *args, *replaced(values, i, r(f, (2, 5))), use_peephole=False, fails=True)
    yield case("LSTMBlockCell", empty(f, 0, 3), empty(f, 0, 4), empty(f, 0, 4), *args[3:], fails=True)


def lstm_layers(r):
    for op in ("BlockLSTM", "BlockLSTMV2"):
        grad = op.replace("LSTM", "LSTMGrad")
        for dtype in ("float", "half"):
            for time, batch, n_in, n in ((3, 2, 3, 4), (5, 3, 5, 7), (1, 1, 1, 1), (6, 2, 9, 8)):
                for use_peephole in (False, True):
                    x = r(dtype, (time, batch, n_in))
                    args = [np.int64(time), x, r(dtype, (batch, n)), r(dtype, (batch, n)), *weights(r, dtype, n_in, n)]
                    yield case(op, *args, use_peephole=use_peephole, tol=tol(dtype))
                    values = [r(dtype, (time, batch, n), 0.1, 0.9) for _ in range(9)]
                    yield case(grad, *args, *values, use_peephole=use_peephole, tol=tol(dtype))
        f = "float"
        x = r(f, (4, 2, 3))
        args = [np.int64(4), x, r(f, (2, 5)), r(f, (2, 5)), *weights(r, f, 3, 5)]
        values = [r(f, (4, 2, 5)) for _ in range(9)]
        yield case(op, *args, cell_clip=0.2)
        if op == "BlockLSTM":
            yield case(op, *args, forget_bias=-0.5)
        for n in (0, 2):
            yield case(op, np.int64(n), *args[1:], unchecked=(0, 2, 3, 4, 5))
            yield case(grad, np.int64(n), *args[1:], *values, use_peephole=True)
        for i, value in ((0, np.int64([4])), (1, x[0]), (2, r(f, (5,))), (2, r(f, (3, 5))), (3, r(f, (2, 5, 1))),
                         (3, r(f, (3, 5))), (3, r(f, (2, 4))), (4, r(f, (7, 20))), (4, r(f, (8, 24))),
                         (4, r(f, (160,))), (5, r(f, (6,))), (6, r(f, (6,))), (7, r(f, (6,))), (5, r(f, (5, 1))),
                         (6, r(f, (5, 1))), (7, r(f, (5, 1))), (8, r(f, (24,))), (8, r(f, (20, 1)))):
            yield case(op, *replaced(args, i, value), fails=True)
        for i, value in ((0, np.int64([4])), (1, x[0]), (2, r(f, (5,))), (3, r(f, (2, 5, 1))), (4, r(f, (7, 20))),
                         (4, r(f, (160,))), (5, r(f, (5, 1))), (6, r(f, (5, 1))), (7, r(f, (5, 1))),
                         (8, r(f, (24,))), (8, r(f, (20, 1)))):
            yield case(grad, *replaced(args, i, value), *values, use_peephole=False, fails=True)


def gru_cells(r):
    f = "float"
    for batch, n_in, n in ((2, 3, 4), (5, 7, 9), (1, 1, 1), (6, 9, 17), (0, 3, 4)):
        args = [r(f, (batch, n_in)), r(f, (batch, n)), r(f, (n_in + n, 2 * n), -0.7, 0.7),
                r(f, (n_in + n, n), -0.7, 0.7), r(f, (2 * n,)), r(f, (n,))]
        values = [r(f, (batch, n), 0.1, 0.9) for _ in range(4)]
        yield case("GRUBlockCell", *args)
        yield case("GRUBlockCellGrad", *args, *values)
    args = [r(f, (2, 3)), r(f, (2, 4)), r(f, (7, 8)), r(f, (7, 4)), r(f, (8,)), r(f, (4,))]
    values = [r(f, (2, 4)) for _ in range(4)]
    for i, value in ((0, r(f, (2,))), (1, r(f, (2,))), (1, r(f, (3, 4))), (2, r(f, (2,))), (2, r(f, (6, 8))),
                     (2, r(f, (7, 7))), (3, r(f, (2,))), (3, r(f, (6, 4))), (3, r(f, (7, 3))), (4, r(f, (8, 1))),
                     (4, r(f, (7,))), (5, r(f, (4, 1))), (5, r(f, (3,)))):
        yield case("GRUBlockCell", *replaced(args, i, value), fails=True)
        yield case("GRUBlockCellGrad", *replaced(args, i, value), *values, fails=True)
    for i in range(4):
        for shape in ((2,), (3, 4), (2, 5)):
            yield case("GRUBlockCellGrad", *args, *replaced(values, i, r(f, shape)), fails=True)
