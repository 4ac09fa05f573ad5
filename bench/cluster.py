"""Times clusters of stock TensorFlow servers and of Ferroflow's, in turn, in the same run.

Usage: python bench/cluster.py [--ferroflow target/release/ferroflow] [--rounds N] [PART…]

All tasks are processes of this machine; a stock TensorFlow client drives both. The parts:

crossing    a step whose scalar crosses two workers once
push_pull   100 MB assigned from a worker to a parameter server's variable, and read back there
all_reduce  25 million floats over two and four tasks
training    asynchronous training of a 784-100-10 perceptron on a parameter server, by two workers
eager       an op on another task, and the fetch of its result

Prints medians of all rounds as a Markdown table.
"""

import os
import socket
import statistics
import subprocess
import sys
import threading
import time

import common

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", TF_ENABLE_ONEDNN_OPTS="0")
STOCK = """
import sys, tensorflow as tf
jobs = {job: tasks.split(",") for job, tasks in (a.split("=") for a in sys.argv[3:])}
config = tf.compat.v1.ConfigProto()
config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
tf.distribute.Server(jobs, job_name=sys.argv[1], task_index=int(sys.argv[2]), config=config).join()
"""


class Cluster:
    """Servers of one kind, `stock` or a binary, for jobs with numbers of tasks."""

    def __init__(self, kind, jobs):
        self.kind, self.processes = kind, []
        sockets = {job: [socket.socket() for _ in range(n)] for job, n in jobs.items()}
        for s in sum(sockets.values(), []):
            s.bind(("127.0.0.1", 0))
        self.addresses = {job: [f"127.0.0.1:{s.getsockname()[1]}" for s in of_job]
                          for job, of_job in sockets.items()}
        for s in sum(sockets.values(), []):
            s.close()

    def __enter__(self):
        import tensorflow as tf

        jobs = [f"{job}={','.join(tasks)}" for job, tasks in self.addresses.items()]
        config = tf.compat.v1.ConfigProto()
        config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
        self.config = common.tempfile.NamedTemporaryFile(suffix=".config")
        self.config.write(config.SerializeToString())
        self.config.flush()
        for job, tasks in self.addresses.items():
            for i in range(len(tasks)):
                command = [sys.executable, "-c", STOCK, job, str(i), *jobs]
                if self.kind != "stock":
                    command = [self.kind, "server", "--job-name", job, "--task-index", str(i),
                               "--session-config", self.config.name, "--cluster", ";".join(jobs)]
                self.processes.append(subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for address in sum(self.addresses.values(), []):
            wait_for(address)
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        self.config.close()

    def target(self, i=0):
        return "grpc://" + self.addresses["worker"][i]


def wait_for(address, seconds=60):
    host, port = address.split(":")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            return socket.create_connection((host, int(port)), 1).close()
        except OSError:
            time.sleep(0.05)
    sys.exit(f"no server at {address}")


def timed(step, n, warm=3):
    """Returns the median seconds of a step."""
    times = []
    for _ in range(n + warm):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times[warm:])


def crossing(kind):
    import tensorflow.compat.v1 as tf

    with Cluster(kind, {"worker": 2}) as cluster, tf.Graph().as_default() as graph:
        with tf.device("/job:worker/task:0"):
            x = tf.placeholder(tf.float32, [])
        with tf.device("/job:worker/task:1"):
            y = x + 1.0
        with tf.Session(cluster.target(), graph=graph) as s:
            step = s.make_callable(y.op, [x])
            return {"a step that crosses two workers once, µs": timed(lambda: step(1.0), 300, 50) * 1e6}


def push_pull(kind):
    import tensorflow.compat.v1 as tf

    n = 25_000_000
    with Cluster(kind, {"worker": 1, "ps": 1}) as cluster, tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:0"):
            v = tf.get_variable("v", [n], tf.float32, tf.zeros_initializer(), use_resource=False)
        with tf.device("/job:worker/task:0"):
            w = tf.get_variable("w", [n], tf.float32, tf.ones_initializer(), use_resource=False)
            pulled = tf.slice(tf.identity(v), [0], [1])
        pushed = tf.assign(v, w)
        with tf.Session(cluster.target(), graph=graph) as s:
            s.run(tf.global_variables_initializer())
            push, pull = s.make_callable(pushed.op), s.make_callable(pulled)
            mb = 4 * n / 1e6
            return {"100 MB pushed, MB/s": mb / timed(push, 9), "100 MB pulled, MB/s": mb / timed(pull, 9)}


def all_reduce(kind):
    return {**all_reduce_of(kind, 2), **all_reduce_of(kind, 4)}


def all_reduce_of(kind, tasks, n=25_000_000):
    import tensorflow.compat.v1 as tf
    from tensorflow.python.ops import collective_ops

    with Cluster(kind, {"worker": tasks}) as cluster:
        steps, sessions = [], []
        for i in range(tasks):
            with tf.Graph().as_default() as graph, tf.device(f"/job:worker/task:{i}/cpu:0"):
                x = tf.get_variable("x", [n], tf.float32, tf.ones_initializer(), use_resource=False)
                reduced = collective_ops.all_reduce(x, tasks, 1, 1, "Add", "Id")
                one = tf.slice(reduced, [0], [1])
                config = tf.ConfigProto(device_filters=[f"/job:worker/task:{i}"])
                config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
                s = tf.Session(cluster.target(i), graph=graph, config=config)
                s.run(tf.global_variables_initializer())
                options = tf.RunOptions()
                options.experimental.collective_graph_key = 1
                steps.append(lambda s=s, one=one, options=options: s.run(one, options=options))
                sessions.append(s)

        def together():
            threads = [threading.Thread(target=step) for step in steps]
            for t in threads:
                t.start()
            for t in threads:
                t.join()

        seconds = timed(together, 3, 1)
        for s in sessions:
            s.close()
        return {f"all-reduce of 25 M floats over {tasks} tasks, s": seconds}


def training(kind):
    import numpy as np
    import tensorflow.compat.v1 as tf

    with Cluster(kind, {"worker": 2, "ps": 1}) as cluster:
        counts, go, ready = [0, 0], threading.Event(), threading.Barrier(3)

        def worker(i):
            rng = np.random.RandomState(i)
            images, labels = rng.rand(100, 784).astype("f"), rng.randint(0, 10, 100)
            with tf.Graph().as_default() as graph:
                with tf.device(tf.train.replica_device_setter(
                        worker_device=f"/job:worker/task:{i}", ps_tasks=1)):
                    x, y = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int64, [None])
                    h = x
                    for layer, (m, n) in enumerate([(784, 100), (100, 10)]):
                        k = tf.get_variable(f"k{layer}", [m, n], use_resource=False,
                                            initializer=tf.random_normal_initializer(0, 0.05, seed=1))
                        b = tf.get_variable(f"b{layer}", [n], use_resource=False,
                                            initializer=tf.zeros_initializer())
                        h = tf.matmul(h, k) + b
                        h = tf.nn.relu(h) if layer == 0 else h
                    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h))
                    train = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
                with tf.Session(cluster.target(i), graph=graph) as s:
                    if i == 0:
                        s.run(tf.global_variables_initializer())
                    ready.wait()
                    step = s.make_callable(train, [x, y])
                    for _ in range(20):
                        step(images, labels)
                    ready.wait()
                    go.wait()
                    end = time.perf_counter() + 5
                    while time.perf_counter() < end:
                        step(images, labels)
                        counts[i] += 1

        threads = [threading.Thread(target=worker, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        ready.wait()
        ready.wait()
        go.set()
        for t in threads:
            t.join()
        return {"asynchronous training on a parameter server, steps/s": sum(counts) / 5}


def eager(kind):
    import tensorflow as tf

    with Cluster(kind, {"worker": 1}) as cluster:
        tf.config.experimental_connect_to_host(cluster.addresses["worker"][0])
        with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
            x = tf.constant(1.0)

        def step():
            with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
                return (x + 1.0).numpy()

        return {"an eager op on another task and its fetch, µs": timed(step, 300, 50) * 1e6}


PARTS = {f.__name__: f for f in (crossing, push_pull, all_reduce, training, eager)}
# Ferroflow's figure over TensorFlow's that is asked for: at most for times, at least for rates.
GOALS = {"step that": 0.5, "MB/s": 2.5, "all-reduce": 0.5, "training": 1.5, "eager": 0.6}


def main():
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--one", help="a kind: prints the figures of the parts as JSON")
    options.add_argument("parts", nargs="*")
    args = options.parse_args()
    if args.one:
        for part in args.parts:
            print(common.json.dumps(PARTS[part](args.one)), flush=True)
        os._exit(0)
    figures = {}
    for part in args.parts or PARTS:
        for _ in range(args.rounds):
            for kind in ("stock", args.ferroflow):
                # A client's eager context has one cluster: each measurement is a process.
                text = common.call([sys.executable, __file__, "--one", kind, part])
                for name, figure in common.last_json(text).items():
                    figures.setdefault(name, {}).setdefault(kind, []).append(figure)
    print("| figure | TensorFlow | Ferroflow | ratio | asked |\n|---|---|---|---|---|")
    for name, of_kind in figures.items():
        stock, ours = (statistics.median(of_kind[k]) for k in ("stock", args.ferroflow))
        goal = next(goal for word, goal in GOALS.items() if word in name)
        bound = "≥" if goal > 1 else "≤"
        print(f"| {name} | {stock:.4g} | {ours:.4g} | {ours / stock:.2f} | {bound} {goal} |")


if __name__ == "__main__":
    main()
