"""Linear models by dual coordinate ascent. TensorFlow visits the examples in random order, so they share no features."""

import numpy as np

from casekit import Rand, a, case, empty, i64

LOSSES = ["logistic_loss", "squared_loss", "hinge_loss", "smooth_hinge_loss", "poisson_loss"]


def words():
    yield a("string", [b"", b"a", b"abc", b"abcd", b"abcdefgh"])
    yield a("string", [bytes(range(n)) for n in (9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 100, 127, 128, 143, 144, 145)])
    yield a("string", [bytes(i * 7 % 256 for i in range(n)) for n in (160, 176, 191, 200, 255, 256, 272, 300, 399, 400, 1000)])
    yield empty("string", 0)


def optimizer(op, loss, sparse, values, dense, weights, labels, known, sparse_weights, dense_weights, state, **how):
    rows, features = ([x for x, _ in sparse], [y for _, y in sparse])
    how = {"loss_type": loss, "l1": 0.1, "l2": 0.7, "num_loss_partitions": 1, "num_inner_iterations": 1, **how}
    return case(op, rows, features, values, dense, weights, labels, known, sparse_weights, dense_weights, state, **how)


def cases():
    for given in words():
        yield case("SdcaFprint", given)
    yield case("SdcaFprint", a("string", [[b"a"]]), fails=True)
    r = Rand("sdca")
    f = np.float32
    for op, adaptive in (("SdcaOptimizer", "adaptative"), ("SdcaOptimizerV2", "adaptive")):
        for loss in LOSSES:
            n = 3
            groups = [(i64(0, 0, 1, 2), i64(7, 3, 5, 9)), (i64(1, 2, 2), i64(0, 1, 2))]
            known = [i64(9, 7, 5, 3), i64(2, 0, 1)]
            weights, labels = r("float", (n,), 0.5, 2), a("float", [1, 0, 1])
            state = r("float", (n, 4), 0, 0.3)
            sparse_weights = [r("float", (4,)), r("float", (3,))]
            for partitions in (1, 3):
                yield optimizer(op, loss, groups, [r("float", (4,))], [], weights, labels, known, sparse_weights, [],
                                state, num_loss_partitions=partitions)
            yield optimizer(op, loss, groups, [], [], weights, labels, known, sparse_weights, [], state, l1=0.0)
            # One example, which sampling finds as well.
            one = [r("float", (1, 3)), r("float", (1, 2))]
            heavy = [r("float", (3,)), r("float", (2,))]
            for flag in (False, True):
                yield optimizer(op, loss, [(i64(0, 0), i64(4, 2))], [], one, f([1.5]), f([1]), [i64(2, 4)],
                                [r("float", (2,))], heavy, r("float", (1, 4), 0, 0.3), **{adaptive: flag})
    yield from refused(r)


def refused(r):
    groups, known = [(i64(0, 1), i64(7, 3))], [i64(3, 7)]
    good = dict(sparse=groups, values=[], dense=[r("float", (2, 2))], weights=r("float", (2,), 1, 2),
                labels=a("float", [0, 1]), known=known, sparse_weights=[r("float", (2,))],
                dense_weights=[r("float", (2,))], state=r("float", (2, 4)))
    for changes in ({"labels": a("float", [0, 1, 1])}, {"state": r("float", (2, 3))}, {"state": r("float", (8,))},
                    {"dense": [r("float", (4,))]}, {"dense": [r("float", (2, 3))]}, {"sparse": [(i64(0, 1), i64(7, 4))]},
                    {"sparse": [(i64(0, 0), i64(7, 7))]}, {"labels": a("float", [0.5, 0.5])},
                    {"sparse": [(i64(0), i64(7, 3))]}):
        yield optimizer("SdcaOptimizer", "logistic_loss", **{**good, **changes}, fails=True)
    yield optimizer("SdcaOptimizerV2", "poisson_loss", **{**good, "labels": a("float", [-1, -1])}, fails=True)
    yield optimizer("SdcaOptimizerV2", "squared_loss", **{**good, "sparse": [], "dense": [], "known": [],
                                                          "sparse_weights": [], "dense_weights": []}, fails=True)
