"""Stateful random ops, whose stream continues from step to step."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw, v1

FLOATS = [tf.float32, tf.float64, tf.float16, tf.bfloat16]


@case("v1")
def random_floats(b):
    for op in (raw.RandomUniform, raw.RandomStandardNormal, raw.TruncatedNormal):
        outs = [op(shape=[2, 3], dtype=dtype, seed=3, seed2=i) for i, dtype in enumerate(FLOATS)]
        outs.append(op(shape=tf.constant([5], tf.int64), dtype=tf.float32, seed=0, seed2=9))
        for _ in range(3):
            # The bits are TensorFlow's; reading the rows loses the last bit of a double.
            b.step(outs, tol=1e-15)
        b.step(outs[0], tol=0)
        b.step([outs[0], outs[-1]], tol=0)


@case("v1")
def random_integers(b):
    shape = b.feed(tf.int32, [None])
    out = raw.RandomUniformInt(shape=shape, minval=-4, maxval=9, seed=1, seed2=2)
    wide = raw.RandomUniformInt(shape=shape, minval=tf.constant(-2**62, tf.int64),
                                maxval=tf.constant(2**62, tf.int64), seed=-1, seed2=2)
    wrong = raw.RandomUniformInt(shape=shape, minval=4, maxval=4, seed=1, seed2=2)
    for dims in ([7], [0], [2, 2], []):
        b.step([out, wide], {shape: dims})
    b.step(wrong, {shape: [1]}, error="Need minval < maxval, got 4 >= 4")
    b.step(wrong, {shape: [0]})
    b.step(out, {shape: [-1]}, error="")


@case("v1")
def shuffles(b):
    x = b.feed(tf.float32, None)
    out = raw.RandomShuffle(value=x, seed=5, seed2=6)
    words = raw.RandomShuffle(value=tf.constant(list("abcdefghij")), seed=5, seed2=6)
    for value in (np.arange(10), np.arange(12).reshape(6, 2), [1.0], 3.0, np.zeros((3, 0)),
                  np.arange(5)):
        b.step([out, words], {x: value})


@case("v1")
def draws(b):
    logits = b.feed(tf.float32, None)
    out = raw.Multinomial(logits=logits, num_samples=6, seed=7, seed2=8)
    for value in ([[0.0, 1.0, 2.0]], [[0.0, -1.0], [5.0, 5.0]], [[-1e9, 0.0, 0.0]] * 3):
        b.step(out, {logits: value})
    b.step(out, {logits: [1.0]}, error="logits should be a matrix, got shape [1]")


@case("v1")
def gammas(b):
    for dtype in (tf.float32, tf.float64, tf.float16):
        alpha = b.feed(dtype, None)
        out = raw.RandomGamma(shape=[2, 3], alpha=alpha, seed=9, seed2=10)
        for _ in range(2):
            b.step(out, {alpha: [0.3, 1.0, 2.5, 40.0]}, tol=1e-14)
        b.step(out, {alpha: 1.5}, tol=1e-14)


@case("v1", "v2")
def random_loop(b):
    """Iterations of a loop continue the stream."""

    def body(i, total):
        return i + 1, total + raw.RandomUniform(shape=[2], dtype=tf.float32, seed=1, seed2=2)

    n = b.feed(tf.int32)
    out = tf.while_loop(lambda i, _: i < n, body, [0, tf.zeros([2])], parallel_iterations=1)
    for steps in (3, 1, 2):
        b.step(out[1], {n: steps})


@case("v1")
def dropout(b):
    x = b.feed(tf.float32, None)
    kept = raw.GreaterEqual(
        x=raw.RandomUniform(shape=tf.shape(x), dtype=tf.float32, seed=4, seed2=5), y=0.4)
    out = x * (1 / 0.6) * tf.cast(kept, tf.float32)
    for _ in range(2):
        b.step(out, {x: np.ones((4, 4))})


@case("v1")
def poissons(b):
    for dtype in (tf.float32, tf.float64, tf.float16):
        rate = b.feed(dtype, None)
        same = raw.RandomPoissonV2(shape=[2, 3], rate=rate, seed=9, seed2=10, dtype=dtype)
        new = raw.RandomPoissonV2(shape=tf.constant([5], tf.int64), rate=rate, seed=3, seed2=1,
                                  dtype=tf.int32)
        for _ in range(2):
            b.step([same, new], {rate: [0.3, 1.0, 25.0, 400.0]}, tol=0)
        b.step(same, {rate: 1.5}, tol=0)


@case("v1")
def cut_normals(b):
    for dtype, tol in ((tf.float32, 1e-6), (tf.float64, 1e-13), (tf.float16, 1e-3)):
        means, low, high = b.feed(dtype, None), b.feed(dtype, None), b.feed(dtype, None)
        out = raw.ParameterizedTruncatedNormal(shape=[4, 5], means=means, stdevs=tf.cast(2, dtype),
                                               minvals=low, maxvals=high, seed=4, seed2=7)
        for bounds in ((0, -1, 1), (0, 4, 9), (0, -np.inf, 1), (1, 30, np.inf), (0, 0.1, 0.2)):
            b.step(out, dict(zip((means, low, high), bounds)), tol=tol)
        b.step(out, {means: [1, 2, 3, 4], low: [-3], high: [2, 20, 3, 30]}, tol=tol)
        b.step(out, {means: [0], low: 1, high: 0}, error="Invalid parameters")
        b.step(out, {means: [0, 1, 2], low: 0, high: 1}, error="length 1 or shape")
        b.step(out, {means: [[0]], low: 0, high: 1}, error="scalar or vector")
    wide = raw.ParameterizedTruncatedNormal(shape=[150], means=0.0, stdevs=1.0, minvals=-0.5,
                                            maxvals=3.0, seed=4, seed2=7)
    b.step(wide[:100], tol=1e-6)


@case("v1")
def generators(b):
    """The state is a variable: a counter of two words and a key."""
    state = v1.get_variable("state", initializer=tf.constant([5, 2, -77], tf.int64),
                            use_resource=True)
    b.step(targets=state.initializer)
    alg, shape = tf.constant(1, tf.int64), tf.constant([3], tf.int32)
    given = dict(resource=state.handle, algorithm=alg, shape=shape)
    for dtype in FLOATS:
        for op in (raw.StatefulStandardNormalV2, raw.StatefulUniform, raw.StatefulTruncatedNormal):
            b.step(op(**given, dtype=dtype), tol=1e-15)
    b.step(state.read_value())
    for dtype in (tf.int32, tf.int64, tf.uint32, tf.uint64):
        b.step(raw.StatefulUniformFullInt(**given, dtype=dtype))
        if dtype in (tf.int32, tf.int64):
            bounds = tf.cast(3, dtype), tf.cast(90, dtype)
            b.step(raw.StatefulUniformInt(**given, minval=bounds[0], maxval=bounds[1]))
    n = tf.constant([[7.0], [300.0]])
    b.step(raw.StatefulRandomBinomial(resource=state.handle, algorithm=alg, shape=[4, 2, 2],
                                      counts=n, probs=[0.2, 0.7], dtype=tf.int32))
    b.step(state.read_value())
    b.step(targets=raw.RngSkip(resource=state.handle, algorithm=alg, delta=tf.constant(3, tf.int64)))
    b.step(raw.RngReadAndSkip(resource=state.handle, alg=1, delta=tf.constant(9, tf.uint64)))
    b.step(state.read_value())
    given["algorithm"] = tf.constant(3, tf.int64)
    b.step(raw.StatefulUniform(**given), tol=0)
    for delta in (2**62, 2**55):
        b.step(targets=raw.RngSkip(resource=state.handle, algorithm=alg, delta=tf.constant(delta, tf.int64)))
        b.step(state.read_value())
    b.step(raw.StatefulUniform(**given | {"shape": tf.constant([2**50], tf.int64)}), error="")
    b.step(state.read_value())
    given["algorithm"] = tf.constant(2, tf.int64)
    b.step(raw.StatefulUniform(**given), error="Non-XLA devices don't support the ThreeFry algorithm.")
    given["algorithm"] = tf.constant(7, tf.int64)
    b.step(raw.StatefulUniform(**given), error="Unsupported algorithm id: 7")
    short = v1.get_variable("short", initializer=tf.constant([5, 2], tf.int64), use_resource=True)
    other = v1.get_variable("other", initializer=[5.0, 2.0, 1.0], use_resource=True)
    b.step(targets=[short.initializer, other.initializer])
    given["algorithm"] = alg
    b.step(raw.StatefulUniform(**given | {"resource": short.handle}), error="must be at least 3; got 2")
    b.step(raw.StatefulUniform(**given | {"resource": other.handle}), error="must be int64")


@case("v1")
def candidates(b):
    classes = b.feed(tf.int64, [None, 2])
    given = dict(true_classes=classes, num_true=2, seed=11, seed2=4)
    outs = []
    for unique in (True, False):
        for op in (raw.UniformCandidateSampler, raw.LogUniformCandidateSampler,
                   raw.LearnedUnigramCandidateSampler, raw.ThreadUnsafeUnigramCandidateSampler):
            outs += op(**given, num_sampled=6, unique=unique, range_max=40)
        outs += raw.AllCandidateSampler(**given, num_sampled=40, unique=unique)
        outs += raw.FixedUnigramCandidateSampler(
            **given, num_sampled=5, unique=unique, range_max=40, distortion=0.75,
            unigrams=[float(i % 7 + 1) for i in range(40)])
        outs += raw.FixedUnigramCandidateSampler(
            **given, num_sampled=4, unique=unique, range_max=40, num_reserved_ids=3, num_shards=2,
            shard=1, unigrams=[float(i % 5) for i in range(77)])
    sharded = [raw.FixedUnigramCandidateSampler(
        true_classes=classes, num_true=2, seed=11, seed2=4, num_sampled=4, unique=False, range_max=size, num_shards=2,
        shard=shard, num_reserved_ids=reserved, unigrams=[float(i + 1) for i in range(n)])
        for n, reserved, shard, size in ((4, 2, 1, 3), (3, 3, 0, 4), (5, 1, 1, 2))]
    b.step([x for s in sharded for x in s], {classes: [[1, 0]]}, tol=1e-6)
    wrong = raw.FixedUnigramCandidateSampler(**given, num_sampled=1, unique=True, range_max=1, unigrams=[1.0, 2.0, 3.0])
    b.step(wrong, {classes: [[0, 0]]}, error="range is 1 must be equal to weights size  3")
    for _ in range(3):
        b.step(outs, {classes: [[3, 1], [0, 39]]}, tol=1e-6)
    b.step(outs, {classes: np.zeros((0, 2))}, tol=1e-6)
    for value in ([[3, 40]], [[-1, 0]]):
        b.step(outs[0], {classes: value}, error="out of range [0, 40)")
    b.step(raw.UniformCandidateSampler(**given, num_sampled=9, unique=True, range_max=8)[0],
           {classes: [[3, 1]]}, error="Sampler's range is too small.")
    for wrong in (dict(), dict(unigrams=[1.0], vocab_file="/absent"), dict(unigrams=[1.0, 2.0])):
        b.step(raw.FixedUnigramCandidateSampler(**given, num_sampled=1, unique=True, range_max=1,
                                                **wrong)[0], {classes: [[0, 0]]}, error="")


@case("v1")
def sampled_losses(b):
    """Candidate sampling, as in training of word embeddings."""
    rng = np.random.default_rng(3)
    weights, biases = rng.normal(size=(50, 8)), rng.normal(size=50)
    inputs, labels = b.feed(tf.float32, [None, 8]), b.feed(tf.int64, [None, 1])
    given = dict(weights=tf.constant(weights, tf.float32), biases=tf.constant(biases, tf.float32),
                 labels=labels, inputs=inputs, num_sampled=7, num_classes=50)
    values = v1.nn.log_uniform_candidate_sampler(labels, 1, 7, True, 50, seed=5)
    nce = v1.nn.nce_loss(**given, sampled_values=values)
    softmax = v1.nn.sampled_softmax_loss(**given, sampled_values=values, remove_accidental_hits=True)
    for _ in range(2):
        b.step([nce, softmax, *tf.gradients(softmax, inputs)],
               {inputs: rng.normal(size=(5, 8)), labels: [[0], [1], [2], [30], [49]]}, tol=1e-5)


@case("v1")
def generator_with_algorithm(b):
    """The first op on generators, whose state begins with the algorithm; only in graphs of old producers."""
    state = v1.get_variable("state", initializer=tf.constant([1, 5, 2, -77], tf.int64), use_resource=True)
    b.step(targets=state.initializer)

    def normal(shape, dtype, handle=state.handle):
        graph = v1.GraphDef()
        graph.versions.producer = 28
        for name, kind in (("r", tf.resource), ("s", tf.int64)):
            graph.node.add(name=name, op="Placeholder").attr["dtype"].type = kind.as_datatype_enum
        node = graph.node.add(name="op", op="StatefulStandardNormal", input=["r", "s"])
        node.attr["dtype"].type, node.attr["shape_dtype"].type = dtype.as_datatype_enum, tf.int64.as_datatype_enum
        inputs = {"r": handle, "s": tf.constant(shape, tf.int64)}
        return tf.graph_util.import_graph_def(graph, inputs, ["op:0"], name="")[0]

    for dtype in FLOATS:
        b.step(normal([2, 3], dtype), tol=1e-15)
    b.step(state.read_value())
    for i, (value, error) in enumerate((([1, 5, 2], "size of state must be at least 4; got 3"),
                                        ([7, 5, 2, 3], "Unsupported algorithm id: 7"))):
        other = v1.get_variable(f"other{i}", initializer=tf.constant(value, tf.int64), use_resource=True)
        b.step(targets=other.initializer)
        b.step(normal([2], tf.float32, other.handle), error=error)
