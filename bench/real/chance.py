"""Probability: sampling with seeds, densities, chains."""

import numpy as np
import tensorflow as tf

from real.kit import integers, model, normal, session, uniform

R = tf.random


@model
def stateless_samples():
    def program(seed, rate):
        outs = [R.stateless_uniform([7], seed), R.stateless_uniform([5], seed, 0, 9, tf.int32), R.stateless_uniform([3], seed, None, None, tf.uint64), R.stateless_normal([2, 3], seed, dtype=tf.float64),
                R.stateless_truncated_normal([6], seed), R.stateless_gamma([4], seed, alpha=rate[0] + 0.3), R.stateless_poisson([5], seed, rate[0] * 9), R.stateless_binomial([6], seed, 20.0, rate[0]),
                R.stateless_categorical(tf.math.log([[0.2, 0.5, 0.3]]), 9, seed), R.stateless_parameterized_truncated_normal([4], seed, 1.0, 2.0, 0.0, 3.0), R.experimental.stateless_shuffle(tf.range(9), seed),
                R.split(seed, 3), R.fold_in(seed, 5), R.stateless_normal([4], seed, alg="philox", dtype=tf.bfloat16), R.stateless_uniform([3], seed, dtype=tf.half)]
        return outs

    return program, [{"seed": np.array(s, "int32"), "rate": uniform(1, seed=abs(s[0]))} for s in ([1, 2], [0, 0], [-5, 77])]


@session
def seeded_samples():
    v1 = tf.compat.v1
    v1.set_random_seed(5)
    n = v1.placeholder(tf.int32, [])
    outs = [R.uniform([n], seed=1), R.normal([n, 2], seed=2), R.truncated_normal([n], seed=3), R.uniform([n], 0, 50, tf.int32, seed=4), R.gamma([n], [0.5, 3.0], seed=6), R.poisson([n], [1.0, 20.0], seed=7),
            R.shuffle(tf.range(n), seed=8), R.categorical([[0.1, 1.0, 2.0]], n, seed=9), v1.multinomial([[0.1, 1.0]], n, seed=10), tf.nn.dropout(tf.ones([n]), 0.4, seed=11), tf.image.random_flip_left_right(tf.reshape(tf.range(12.0), [2, 3, 2]), seed=12)]
    return [(outs, {n: 6}), (outs, {n: 3}), (outs, {n: 0})]


@model
def generator_state():
    g = R.Generator.from_seed(42)

    def program(n):
        a = g.normal([n])
        g.skip(3)
        return a, g.uniform([n], 0, 10, tf.int64), g.binomial([n], 9.0, 0.4), g.truncated_normal([2]), g.uniform_full_int([n], tf.uint32), g.make_seeds(2), g.state

    return program, [{"n": np.int32(k)} for k in (4, 1, 0)], [g]


@model
def densities():
    def program(x, p):
        normal_log = -0.5 * tf.square(x) - 0.5 * np.log(2 * np.pi)
        gamma = (p * 5) * tf.math.log(p) + (p * 5 - 1) * tf.math.log(tf.abs(x) + 0.1) - tf.math.lgamma(p * 5)
        m = tf.math
        return [normal_log, gamma, m.betainc(p + 0.5, p + 1.0, p), m.igamma(p * 3, tf.abs(x)), m.igammac(p * 3, tf.abs(x)), m.lbeta(tf.stack([p, p + 1], -1)), m.digamma(p), m.polygamma(tf.round(p * 3), p + 1), m.zeta(p + 1.5, p),
                m.erfinv(p * 1.8 - 0.9), m.ndtri(p), m.erfcinv(p * 1.8 + 0.1), m.xlogy(p, tf.abs(x)), m.xlog1py(p, tf.abs(x)), m.special.dawsn(x), m.special.expint(tf.abs(x) + 0.1), m.special.fresnel_sin(x), m.special.spence(p), m.bessel_i0e(x),
                m.special.bessel_k1(tf.abs(x) + 0.1), m.special.bessel_j1(x), m.special.bessel_y0(tf.abs(x) + 0.1), m.reduce_logsumexp(x, -1), m.cumulative_logsumexp(x, -1), m.log_sigmoid(x), m.nextafter(x, x + 1), m.multiply_no_nan(x, tf.floor(p * 2))]

    return program, [{"x": normal(n, 5, dtype=t), "p": uniform(n, 5, dtype=t) * 0.98 + 0.01} for n in (3, 1) for t in ("float32",)] + [{"x": normal(0, 5), "p": uniform(0, 5)}]


@model
def metropolis_chain():
    def program(start, seed):
        def step(state, t):
            x, _ = state
            s = R.fold_in(seed, t)
            proposal = x + 0.5 * R.stateless_normal(tf.shape(x), s)
            energy = lambda v: 0.5 * tf.reduce_sum(tf.square(v), -1) + 0.1 * tf.reduce_sum(v**4, -1)
            accept = tf.math.log(R.stateless_uniform(tf.shape(x)[:1], R.fold_in(s, 1))) < energy(x) - energy(proposal)
            return tf.where(accept[:, None], proposal, x), accept

        chain, accepted = tf.scan(step, tf.range(12), (start, tf.zeros(tf.shape(start)[:1], tf.bool)))
        return chain, tf.reduce_mean(tf.cast(accepted, tf.float32)), tf.math.reduce_std(chain, 0)

    return program, [{"start": normal(n, 2), "seed": np.array([3, n], "int32")} for n in (2, 5)]


@model
def variational_encoder():
    w, v = tf.Variable(normal(8, 6) * 0.4), tf.Variable(normal(3, 8) * 0.4)

    def program(x, seed):
        with tf.GradientTape() as tape:
            mean, log_scale = tf.split(x @ w, 2, -1)
            z = mean + tf.exp(log_scale) * R.stateless_normal(tf.shape(mean), seed)
            y = z @ v
            kl = 0.5 * tf.reduce_sum(tf.exp(2 * log_scale) + mean**2 - 1 - 2 * log_scale, -1)
            loss = tf.reduce_mean(kl + tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(tf.sigmoid(x), y), -1))
        return loss, tape.gradient(loss, [w, v]), z

    return program, [{"x": normal(n, 8), "seed": np.array([1, n], "int32")} for n in (4, 1)], [w, v]


@model
def quasi_and_histograms():
    def program(n, x):
        sobol = tf.math.sobol_sample(3, n, skip=2)
        return sobol, tf.histogram_fixed_width(x, [-2.0, 2.0], 7), tf.histogram_fixed_width_bins(x, [-1.0, 1.0], 4), tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 1.0]), tf.searchsorted([-1.0, 0.0, 0.5], x, "right"), \
            tf.math.bincount(tf.cast(tf.abs(x) * 3, tf.int32), weights=x), tf.math.reduce_variance(x), tf.math.count_nonzero(tf.round(x)), tf.raw_ops.NthElement(input=x[None], n=1, reverse=True)

    return program, [{"n": np.int32(k), "x": normal(m)} for k, m in ((5, 20), (1, 3))]


@model
def particle_filter():
    def program(observations, seed):
        particles = R.stateless_normal([30], seed)
        estimates = tf.TensorArray(tf.float32, tf.size(observations))
        for t in tf.range(tf.size(observations)):
            s = R.fold_in(seed, t)
            particles = 0.9 * particles + 0.3 * R.stateless_normal([30], s)
            logw = -2.0 * tf.square(observations[t] - particles)
            weights = tf.nn.softmax(logw)
            estimates = estimates.write(t, tf.reduce_sum(weights * particles))
            positions = (tf.range(30.0) + R.stateless_uniform([], R.fold_in(s, 9))) / 30.0
            particles = tf.gather(particles, tf.minimum(tf.searchsorted(tf.cumsum(weights), positions), 29))
        return estimates.stack()

    return program, [{"observations": normal(n), "seed": np.array([2, 3], "int32")} for n in (6, 1, 0)]
