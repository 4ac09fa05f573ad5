"""Writes the results of TensorFlow's optimizers, clipping and learning rates: crates/train/tests/training/rules.json.

Usage: python oracle/training_rules.py

Under `rules` a case has a rule of `train::Rule` with its numbers, a rate, how gradients are clipped, and steps: the
gradient of the variable `dense` (2 x 3), the rows of `table` (4 x 2) and their gradients, and what both
variables are after the step. Under `rates` a case has a rate and its values at some steps. A string stands
for a number that JSON has no form for.
"""

import json
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

OUT = Path(__file__).resolve().parent.parent / "crates/train/tests/training/rules.json"
v1 = tf.compat.v1
raw = tf.raw_ops
STEPS = 5
ROWS = [[1, 3, 1], [0, 0, 2], [3, 1, 0], [2, 2, 2], [1, 0, 3]]


def numbers(values):
    out = [float(x) for x in np.asarray(values, np.float32).ravel()]
    return [x if np.isfinite(x) else str(x) for x in out]


class AdagradV2:
    """Calls an op that none of TensorFlow's optimizers uses."""

    def __init__(self, rate, initial, epsilon):
        self.rate, self.initial, self.epsilon = rate, initial, epsilon

    def apply_gradients(self, pairs):
        done = []
        for gradient, var in pairs:
            accum = v1.get_variable(f"{var.op.name}/acc", initializer=np.full(var.shape, self.initial, np.float32),
                                    use_resource=True)
            if isinstance(gradient, tf.IndexedSlices):
                rows, place = tf.unique(gradient.indices)
                values = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(rows))
                done.append(raw.ResourceSparseApplyAdagradV2(var=var.handle, accum=accum.handle, lr=self.rate,
                                                             epsilon=self.epsilon, grad=values, indices=rows))
            else:
                done.append(raw.ResourceApplyAdagradV2(var=var.handle, accum=accum.handle, lr=self.rate,
                                                       epsilon=self.epsilon, grad=gradient))
        return tf.group(done)


class AdaMax:
    """Applies the dense op, and Keras's composition over rows."""

    def __init__(self, rate, beta1, beta2, epsilon):
        self.rate, self.beta1, self.beta2, self.epsilon = rate, beta1, beta2, epsilon

    def apply_gradients(self, pairs):
        power = v1.get_variable("power", initializer=np.float32(self.beta1), use_resource=True)
        done = []
        for gradient, var in pairs:
            m, v = (v1.get_variable(f"{var.op.name}/{s}", initializer=np.zeros(var.shape, np.float32),
                                    use_resource=True) for s in "mv")
            if isinstance(gradient, tf.IndexedSlices):
                rows, place = tf.unique(gradient.indices)
                g = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(rows))
                mt = tf.gather(m, rows) * self.beta1 + g * (1 - np.float32(self.beta1))
                vt = tf.maximum(tf.gather(v, rows) * self.beta2, tf.abs(g))
                step = self.rate / (1.0 - power) * (mt / (vt + self.epsilon))
                with tf.control_dependencies([mt, vt]):
                    done += [raw.ResourceScatterUpdate(resource=m.handle, indices=rows, updates=mt),
                             raw.ResourceScatterUpdate(resource=v.handle, indices=rows, updates=vt),
                             raw.ResourceScatterSub(resource=var.handle, indices=rows, updates=step)]
            else:
                done.append(raw.ResourceApplyAdaMax(
                    var=var.handle, m=m.handle, v=v.handle, beta1_power=power, lr=self.rate, beta1=self.beta1,
                    beta2=self.beta2, epsilon=self.epsilon, grad=gradient))
        with tf.control_dependencies(done):
            return power.assign(power * self.beta1)


T = v1.train
RULES = [
    ("GradientDescent", {}, lambda r: T.GradientDescentOptimizer(r)),
    ("Momentum", {"momentum": 0.9}, lambda r, momentum: T.MomentumOptimizer(r, momentum)),
    ("Momentum", {"momentum": 0.8, "nesterov": 1},
     lambda r, momentum, nesterov: T.MomentumOptimizer(r, momentum, use_nesterov=True)),
    ("Adagrad", {"initial": 0.1}, lambda r, initial: T.AdagradOptimizer(r, initial)),
    ("AdagradV2", {"initial": 0.2, "epsilon": 0.01}, AdagradV2),
    ("Adadelta", {"rho": 0.9, "epsilon": 1e-3}, lambda r, rho, epsilon: T.AdadeltaOptimizer(r, rho, epsilon)),
    ("RmsProp", {"rho": 0.9, "momentum": 0.5, "epsilon": 1e-4},
     lambda r, rho, momentum, epsilon: T.RMSPropOptimizer(r, rho, momentum, epsilon)),
    ("RmsProp", {"rho": 0.8, "momentum": 0.0, "epsilon": 1e-2, "centered": 1},
     lambda r, rho, momentum, epsilon, centered: T.RMSPropOptimizer(r, rho, momentum, epsilon, centered=True)),
    ("Adam", {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-5},
     lambda r, beta1, beta2, epsilon: T.AdamOptimizer(r, beta1, beta2, epsilon)),
    ("AdaMax", {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-5}, AdaMax),
    ("Ftrl", {"initial": 0.1, "l1": 0.0, "l2": 0.0, "l2_shrinkage": 0.0, "power": -0.5},
     lambda r, **k: ftrl(r, **k)),
    ("Ftrl", {"initial": 0.2, "l1": 0.05, "l2": 0.3, "l2_shrinkage": 0.0, "power": -0.7},
     lambda r, **k: ftrl(r, **k)),
    ("Ftrl", {"initial": 0.2, "l1": 0.01, "l2": 0.1, "l2_shrinkage": 0.4, "power": -0.5},
     lambda r, **k: ftrl(r, **k)),
]


def ftrl(rate, initial, l1, l2, l2_shrinkage, power):
    return T.FtrlOptimizer(rate, power, initial, l1, l2, l2_shrinkage_regularization_strength=l2_shrinkage)


def clipped(clip, gradients):
    if clip is None:
        return gradients
    how, limit = clip
    if how == "GlobalNorm":
        return tf.clip_by_global_norm(gradients, limit)[0]
    def one(g):
        of = (lambda x: tf.clip_by_value(x, -limit, limit)) if how == "Value" else (lambda x: tf.clip_by_norm(x, limit))
        if isinstance(g, tf.IndexedSlices):
            return tf.IndexedSlices(of(g.values), g.indices, g.dense_shape)
        return of(g)
    return [one(g) for g in gradients]


def rule(name, args, make, rate, clip, special=None):
    random = np.random.RandomState(len(name) + len(args))
    with tf.Graph().as_default(), v1.Session() as session:
        start = [random.uniform(-1, 1, s).astype(np.float32) for s in ((2, 3), (4, 2))]
        dense, table = (v1.get_variable(n, initializer=v, use_resource=True)
                        for n, v in zip(("dense", "table"), start))
        gd, gt = v1.placeholder(tf.float32, [2, 3]), v1.placeholder(tf.float32, [3, 2])
        rows = v1.placeholder(tf.int32, [3])
        gradients = [gd, tf.IndexedSlices(gt, rows, tf.constant([4, 2]))]
        train = make(rate, **args).apply_gradients(list(zip(clipped(clip, gradients), [dense, table])))
        session.run(v1.global_variables_initializer())
        steps = []
        for i in range(STEPS if special is None else 1):
            feeds = {gd: random.uniform(-1, 1, (2, 3)), gt: random.uniform(-1, 1, (3, 2)), rows: ROWS[i]}
            if special is not None:
                feeds[gd][0, 0] = special
            session.run(train, feeds)
            after = session.run([dense, table])
            steps.append({"dense_gradient": numbers(feeds[gd]), "rows": ROWS[i], "table_gradient": numbers(feeds[gt]),
                          "dense": numbers(after[0]), "table": numbers(after[1])})
        return {"rule": name, "numbers": args, "rate": rate, "clip": clip,
                "start": [numbers(v) for v in start], "steps": steps}


AT = [0, 1, 3, 4, 7, 10, 11, 20, 21, 30, 64, 99]
RATES = [
    ("Exponential", {"initial": 0.5, "steps": 4, "decay": 0.7},
     lambda s, initial, steps, decay: T.exponential_decay(initial, s, steps, decay)),
    ("Exponential", {"initial": 0.5, "steps": 4, "decay": 0.7, "staircase": 1},
     lambda s, initial, steps, decay, staircase: T.exponential_decay(initial, s, steps, decay, True)),
    ("NaturalExp", {"initial": 0.5, "steps": 4, "decay": 0.3},
     lambda s, initial, steps, decay: T.natural_exp_decay(initial, s, steps, decay)),
    ("NaturalExp", {"initial": 0.5, "steps": 4, "decay": 0.3, "staircase": 1},
     lambda s, initial, steps, decay, staircase: T.natural_exp_decay(initial, s, steps, decay, True)),
    ("InverseTime", {"initial": 0.5, "steps": 4, "decay": 0.3},
     lambda s, initial, steps, decay: T.inverse_time_decay(initial, s, steps, decay)),
    ("InverseTime", {"initial": 0.5, "steps": 4, "decay": 0.3, "staircase": 1},
     lambda s, initial, steps, decay, staircase: T.inverse_time_decay(initial, s, steps, decay, True)),
    ("Polynomial", {"initial": 0.5, "end": 0.1, "steps": 10, "power": 1},
     lambda s, initial, end, steps, power: T.polynomial_decay(initial, s, steps, end, power)),
    ("Polynomial", {"initial": 0.5, "end": 0.1, "steps": 10, "power": 2, "cycle": 1},
     lambda s, initial, end, steps, power, cycle: T.polynomial_decay(initial, s, steps, end, power, True)),
    ("Cosine", {"initial": 0.5, "steps": 30, "alpha": 0.1},
     lambda s, initial, steps, alpha: T.cosine_decay(initial, s, steps, alpha)),
    ("CosineRestarts", {"initial": 0.5, "steps": 10, "t_mul": 2, "m_mul": 0.8, "alpha": 0.05},
     lambda s, initial, steps, t_mul, m_mul, alpha: T.cosine_decay_restarts(initial, s, steps, t_mul, m_mul, alpha)),
    ("CosineRestarts", {"initial": 0.5, "steps": 10, "t_mul": 1, "m_mul": 0.9, "alpha": 0},
     lambda s, initial, steps, t_mul, m_mul, alpha: T.cosine_decay_restarts(initial, s, steps, 1.0, m_mul, alpha)),
    ("Piecewise", {"boundaries": [3, 10, 20], "values": [1.0, 0.5, 0.25, 0.1]},
     lambda s, boundaries, values: T.piecewise_constant(s, [np.int64(b) for b in boundaries], values)),
]


def rate(name, args, make):
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.placeholder(tf.int64, [])
        value = make(step, **args)
        value = value() if callable(value) else value
        got = [session.run(value, {step: at}) for at in AT]
        return {"rate": name, "numbers": args, "steps": AT, "values": numbers(got)}


def main():
    rules = [rule(*r, rate=0.1, clip=None) for r in RULES]
    for clip in (["Value", 0.3], ["Norm", 0.4], ["GlobalNorm", 0.5], ["GlobalNorm", 50.0]):
        rules.append(rule(*RULES[1], rate=0.1, clip=clip))
    for special in (np.inf, -np.inf, np.nan):
        for clip in (["Norm", 0.4], ["GlobalNorm", 0.5]):
            rules.append(rule(*RULES[0], rate=0.1, clip=clip, special=special))
    all_of_it = {"tensorflow": tf.__version__, "rules": rules, "rates": [rate(*r) for r in RATES]}
    lines = json.dumps(all_of_it, separators=(",", ":")).replace('{"rule":', '\n{"rule":').replace('{"rate":', '\n{"rate":')
    OUT.write_text(lines + "\n")
    print(f"{len(rules)} rules, {len(RATES)} rates, {OUT.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
