"""Random graphs over the tasks of a cluster have the results of one session.

    python interop/cluster_graphs.py --server target/release/ferroflow [--graphs 300] [--mixed]

Each graph has arithmetic, matrix products, variables, conditionals, loops, nested loops, gradients and control edges, on
random tasks. It runs in TensorFlow's own session first, then on a cluster of Ferroflow's tasks. With --mixed it also runs on
TensorFlow's servers; a graph that they run is run again with odd tasks Ferroflow's, by a master of either kind.
"""

import argparse
import os
import random
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tensorflow as tf

from clusters import Cluster

tf1 = tf.compat.v1
tf1.disable_eager_execution()

# A step that takes longer hangs.
TIMEOUT_MS = 30_000


class Maker:
    """Makes the graph of a seed, on `n_tasks` tasks or, if that is 0, without devices."""

    def __init__(self, seed, n_tasks, of_tasks):
        self.random = random.Random(seed)
        self.n_tasks, self.of_tasks = n_tasks, of_tasks
        self.last_effect = None

    def device(self):
        task = self.random.randrange(self.of_tasks)
        return tf1.device(f"/job:worker/task:{task}" if self.n_tasks else None)

    def make(self):
        r = self.random
        feed = tf1.placeholder(tf.float32, [3, 3], name="feed")
        values = [feed]
        for _ in range(2):
            with self.device():
                values.append(tf.constant([[r.uniform(-1, 1) for _ in range(3)] for _ in range(3)]))
        self.variables = []
        for i in range(r.randrange(3)):
            with self.device():
                start = [[r.uniform(-1, 1) for _ in range(3)] for _ in range(3)]
                use_resource = r.random() < 0.5
                self.variables.append(
                    tf1.get_variable(f"v{i}", initializer=tf.constant(start), use_resource=use_resource)
                )
        for _ in range(r.randrange(6, 20)):
            values.append(self.value(values, depth=0))
        if r.random() < 0.4:
            loss = tf.reduce_sum(tf.tanh(values[-1]))
            grads = tf1.gradients(loss, [feed])
            if grads[0] is not None:
                values.append(tf.convert_to_tensor(grads[0]))
        fetches = [v for v in values[1:] if r.random() < 0.5] + [values[-1]]
        self.targets = [self.last_effect] if self.last_effect is not None else []
        return feed, fetches

    def value(self, values, depth):
        r = self.random
        kinds = ["unary", "unary", "binary", "binary", "matmul", "reduce", "concat", "control"]
        if depth == 0:
            kinds += ["read", "update"] if self.variables else []
        if depth < 2:
            kinds += ["cond", "while", "while"]
        kind = r.choice(kinds)
        a, b = r.choice(values), r.choice(values)
        with self.device():
            if kind == "unary":
                return r.choice([tf.tanh, tf.negative, tf.sigmoid, tf.abs, tf.identity])(a)
            if kind == "binary":
                return r.choice([tf.add, tf.subtract, tf.maximum, tf.minimum])(a, b)
            if kind == "matmul":
                return tf.tanh(tf.matmul(a, b, transpose_b=r.random() < 0.5))
            if kind == "reduce":
                return a * 0.5 + tf.reduce_mean(b, axis=r.randrange(2), keepdims=True)
            if kind == "concat":
                return tf.concat([a[:1], b[1:]], axis=0)
            if kind == "control":
                with tf.control_dependencies([b]):
                    return tf.identity(a)
            if kind == "read":
                # A copy, since a reference shows later updates, on its own device, since it is sent at once otherwise.
                variable = r.choice(self.variables)
                with tf1.device(variable.device or None):
                    return self.effect(lambda: variable.read_value() * 1.0)
            if kind == "update":
                variable, scale = r.choice(self.variables), r.choice([0.25, -0.5])
                update = r.choice([tf1.assign, tf1.assign_add, tf1.assign_sub])
                return self.effect(lambda: update(variable, tf.tanh(a) * scale) * 1.0)
            if kind == "cond":
                return self.cond(a, b, values, depth)
            return self.loop(a, b, values, depth)

    def effect(self, make):
        """Reads and updates of variables have an order, so that the result is unique."""
        with tf.control_dependencies([self.last_effect] if self.last_effect is not None else []):
            value = make()
        with tf.control_dependencies([value]):
            self.last_effect = tf.no_op()
        return value

    def cond(self, a, b, values, depth):
        r = self.random
        predicate = tf.reduce_sum(a) < r.uniform(-1, 1)
        seeds = [r.random(), r.random()]

        def branch(seed):
            def body():
                state, r_state = r.getstate(), random.Random(seed).getstate()
                r.setstate(r_state)
                known = list(values[-3:]) + [a, b]
                for _ in range(r.randrange(1, 4)):
                    known.append(self.value(known, depth + 1))
                r.setstate(state)
                return known[-1] * 0.5 + a * 0.25

            return body

        return tf1.cond(predicate, branch(seeds[0]), branch(seeds[1]))

    def loop(self, a, b, values, depth):
        r = self.random
        limit = r.randrange(4)
        seed, parallel = r.random(), r.choice([1, 3, 10])
        outer = list(values[-2:]) + [b]

        def body(i, x):
            state = r.getstate()
            r.setstate(random.Random(seed).getstate())
            known = outer + [x]
            for _ in range(r.randrange(1, 4)):
                known.append(self.value(known, depth + 1))
            r.setstate(state)
            return i + 1, tf.reshape(tf.tanh(known[-1] + x * 0.5), [3, 3])

        end = limit + tf.cast(tf.reduce_sum(a) > 0, tf.int32)
        x = tf.reshape(a, [3, 3])
        return tf1.while_loop(lambda i, _: i < end, body, [0, x], parallel_iterations=parallel)[1]


def run(seed, target, n_tasks, of_tasks):
    """Returns the fetches of three steps."""
    graph = tf.Graph()
    with graph.as_default():
        # Half of the graphs have functional control flow.
        switch = tf1.enable_control_flow_v2 if seed % 2 else tf1.disable_control_flow_v2
        switch()
        maker = Maker(seed, n_tasks, of_tasks)
        feed, fetches = maker.make()
        init = tf1.global_variables_initializer()
    config = tf1.ConfigProto(operation_timeout_in_ms=TIMEOUT_MS, isolate_session_state=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = seed % 3 == 0
    feeds = np.random.RandomState(seed)
    with tf1.Session(target, graph=graph, config=config) as session:
        session.run(init)
        out = []
        for _ in range(3):
            value = feeds.uniform(-1, 1, [3, 3]).astype(np.float32)
            out += session.run([fetches, maker.targets], {feed: value})[0]
        return out


def compare(want, got):
    for i, (a, b) in enumerate(zip(want, got)):
        if a.shape != b.shape or not np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
            return f"fetch {i}: {a.ravel()[:4]} and {b.ravel()[:4]}"
    return None if len(want) == len(got) else "another number of fetches"


def attempt(seed, cluster, master, of_tasks, want):
    """Returns what is wrong, if anything."""
    try:
        got = run(seed, cluster.target(master), of_tasks, of_tasks)
    except tf.errors.OpError as e:
        return f"{type(e).__name__}: {str(e)[:300]}"
    return compare(want, got)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="the ferroflow binary")
    parser.add_argument("--graphs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no graph after this time")
    args = parser.parse_args()
    begun = time.time()
    server = os.path.abspath(args.server)
    clusters = {"ferroflow": Cluster(server, "ffff")}
    if args.mixed:
        clusters["stock"] = Cluster(server, "ssss")
        clusters["mixed"] = Cluster(server, "sfsf")
    counts = {"graphs": 0, "ferroflow": 0, "stock cannot": 0, "mixed": 0, "failed": 0}
    try:
        for seed in range(args.first, args.first + args.graphs):
            if time.time() - begun > args.seconds:
                break
            counts["graphs"] += 1
            of_tasks = 2 + seed % 3
            want = run(seed, "", 0, of_tasks)
            trials = [("ferroflow", seed % of_tasks)]
            if args.mixed:
                if attempt(seed, clusters["stock"], seed % of_tasks, of_tasks, want) is None:
                    trials += [("mixed", 0), ("mixed", 1)]
                else:
                    counts["stock cannot"] += 1
                    clusters["stock"].restart()
            for name, master in trials:
                wrong = attempt(seed, clusters[name], master, of_tasks, want)
                if wrong is None:
                    counts[name] += 1
                else:
                    counts["failed"] += 1
                    print(f"graph {seed} on {name}, master {master}, {of_tasks} tasks: {wrong}", flush=True)
                    clusters[name].restart()
    finally:
        for cluster in clusters.values():
            cluster.stop()
    print(", ".join(f"{n} {what}" for what, n in counts.items()))
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
