"""Random programs of conditionals and loops, each as Switch and Merge nodes and as If and While.

A program is a list of statements over an environment of tensors: arithmetic, cond, switch_case and
while, nested. Some programs also add to a resource variable on the way.
"""

import random

import tensorflow as tf

from graphkit import CASES, v1

COMPRESSED = True
N_PROGRAMS = 250
MAX_DEPTH = 3


class Program:
    """Builds one random program; the same seed makes the same decisions in both forms."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.with_variable = seed % 4 == 3
        self.variable = None
        self.budget = self.rng.randint(4, 9)

    def number(self, env):
        """Returns any int32 scalar of the environment, or a constant."""
        pool = [t for t in env if t.dtype == tf.int32]
        if not pool or self.rng.random() < 0.2:
            return tf.constant(self.rng.randint(-4, 9))
        return self.rng.choice(pool)

    def vector(self, env):
        pool = [t for t in env if t.dtype == tf.float32]
        if not pool or self.rng.random() < 0.15:
            return tf.constant([self.rng.randint(-8, 8) / 4 for _ in range(3)])
        return self.rng.choice(pool)

    def predicate(self, env):
        kind = self.rng.randrange(4)
        if kind == 0:
            return tf.reduce_sum(self.vector(env)) > float(self.rng.randint(-2, 2))
        a, c = self.number(env), self.number(env)
        if kind == 1:
            return a < c
        if kind == 2:
            return tf.equal(tf.math.floormod(a, 2), self.rng.randint(0, 1))
        return tf.logical_not(tf.greater(a, self.rng.randint(-3, 6)))

    def arithmetic(self, env):
        kind = self.rng.randrange(9)
        if kind == 0:
            return self.number(env) + self.number(env)
        if kind == 1:
            return tf.math.floormod(self.number(env) * self.number(env), 101)
        if kind == 2:
            return self.number(env) - self.rng.randint(1, 3)
        if kind == 3:
            return tf.maximum(self.number(env), self.number(env))
        if kind == 4:
            return self.vector(env) * 0.5 + self.vector(env)
        if kind == 5:
            return tf.tanh(self.vector(env))
        if kind == 6:
            return self.vector(env) + tf.cast(tf.math.floormod(self.number(env), 7), tf.float32)
        if kind == 7:
            return tf.concat([self.vector(env)[1:], self.vector(env)[:1]], 0)
        return tf.where(self.predicate(env), self.number(env), self.number(env))

    def effect(self, value):
        """Returns the value, after adding to the variable."""
        with tf.control_dependencies([self.variable.assign_add(tf.math.floormod(value, 5) + 1)]):
            return tf.identity(value)

    def everything_done(self, values):
        """With a variable, each node waits for all earlier ones that may change it."""
        return tf.control_dependencies(values if self.with_variable else [])

    def results(self, env, like):
        """Returns values with the dtypes of `like`, from the end of an environment."""
        rng = self.rng
        return [(self.number(env) if t.dtype == tf.int32 else self.vector(env))
                if rng.random() < 0.5 else
                (self.number(env) + 1 if t.dtype == tf.int32 else self.vector(env) * 0.75)
                for t in like]

    def branch(self, env, like, depth):
        def build():
            inner = self.statements(list(env), depth + 1, self.rng.randint(0, 2))
            out = self.results(inner, like)
            if self.with_variable and self.rng.random() < 0.5:
                out = [self.effect(t) if t.dtype == tf.int32 else t for t in out]
            with self.everything_done(inner[len(env):] + out):
                return [tf.identity(t) for t in out]

        return build

    def picked(self, env):
        return [self.rng.choice(env) for _ in range(self.rng.randint(1, 3))]

    def conditional(self, env, depth):
        like = self.picked(env)
        # A Case that TensorFlow lowers inside a loop of nodes runs what does not vary in the loop
        # once more after the last iteration; that shows in a variable.
        if self.rng.random() < 0.25 and not self.with_variable:
            branches = [self.branch(env, like, depth) for _ in range(self.rng.randint(2, 3))]
            out = tf.switch_case(self.number(env), branches)
        else:
            out = tf.cond(self.predicate(env), self.branch(env, like, depth),
                          self.branch(env, like, depth))
        return list(out) if isinstance(out, (list, tuple)) else [out]

    def loop(self, env, depth):
        carried = self.picked(env)
        count = self.rng.randint(0, 4)
        if self.rng.random() < 0.5:
            limit = tf.math.floormod(self.number(env), 5)
        else:
            limit = tf.constant(count)
        early = self.rng.random() < 0.3
        stop = self.rng.randint(0, 40)

        def cond(i, *values):
            go = i < limit
            if early:
                ints = [t for t in values if t.dtype == tf.int32]
                if ints:
                    go = tf.logical_and(go, ints[0] < stop)
            return go

        def body(i, *values):
            inner = self.statements([*env, i, *values], depth + 1, self.rng.randint(0, 2))
            out = self.results(inner[len(env):], values)
            out = [tf.math.floormod(t, 1009) if t.dtype == tf.int32 else tf.clip_by_value(t, -50, 50)
                   for t in out]
            if self.with_variable and self.rng.random() < 0.6:
                out = [self.effect(t) if t.dtype == tf.int32 else t for t in out]
            with self.everything_done(inner[len(env):] + out):
                i = tf.identity(i)
            return [i + 1, *out]

        out = tf.while_loop(cond, body, [tf.constant(0), *carried],
                            parallel_iterations=self.rng.choice([1, 2, 10]))
        return list(out[1:])

    def statements(self, env, depth, n):
        for _ in range(n):
            self.budget -= 1
            kind = self.rng.random()
            if kind < 0.4 or depth >= MAX_DEPTH or self.budget < 0:
                env.append(self.arithmetic(env))
            elif kind < 0.7:
                env += self.conditional(env, depth)
            else:
                env += self.loop(env, depth)
        return env

    def build(self, b):
        b.short_names = True
        x, y, v = b.feed(tf.int32, name="x"), b.feed(tf.int32, name="y"), b.feed(tf.float32, [3], name="v")
        if self.with_variable:
            self.variable = v1.get_variable("total", initializer=0, use_resource=True)
        env = self.statements([x, y, v], 0, self.rng.randint(2, 4))
        if self.rng.random() < 0.5:
            env += self.loop(env, 0)
        else:
            env += self.conditional(env, 0)
        out = [tf.identity(t, name=f"out{i}") for i, t in enumerate(env[-3:])]
        fetches = list(out)
        if self.with_variable:
            with tf.control_dependencies(env):
                fetches.append(tf.identity(self.variable.read_value(), name="after"))
            b.step([], targets=self.variable.initializer.name)
        for _ in range(3):
            feeds = {x: self.rng.randint(-5, 12), y: self.rng.randint(-5, 12),
                     v: [self.rng.randint(-8, 8) / 4 for _ in range(3)]}
            b.step(fetches, feeds, tol=1e-4)


def enter_all():
    """Builds one program in two forms."""
    for seed in range(N_PROGRAMS):
        for form in ("v1", "v2"):
            CASES.append((f"random_{seed}/{form}", form, lambda b, seed=seed: Program(seed).build(b)))
