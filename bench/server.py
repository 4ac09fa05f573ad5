"""Times a stock TensorFlow client against TensorFlow's server and Ferroflow's, in turn, in the same run.

Usage: python bench/server.py target/release/ferroflow [--rounds N]

Prints medians: a step that adds two scalars, steps per second of 16 clients and what the server computes for each,
100 MB fed and fetched (and the server's resident memory after it), steps per second of a LeNet-like network trained
with fed batches.
Python clients take most of the processors themselves; where `cargo build --release --example clients` was run,
16 clients that take little are measured as well.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
STOCK = """
import tensorflow as tf
server = tf.distribute.Server({"localhost": ["127.0.0.1:0"]})
print("TARGET", server.target.decode() if isinstance(server.target, bytes) else server.target, flush=True)
server.join()
"""


def start(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout:
        if line.startswith("TARGET"):
            return process, line.split()[1]
    sys.exit(f"no server: {command}")


def add_graph(tf):
    a, b = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    return a, b, a + b


def latency(target, n=1000):
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default(), tf.Session(target) as s:
        a, b, c = add_graph(tf)
        step = s.make_callable(c, [a, b])
        times = []
        for i in range(n + 100):
            began = time.perf_counter()
            step(1.0, 2.0)
            times.append(time.perf_counter() - began)
    return statistics.median(times[100:]) * 1e6


def client(target, seconds, ready, go, counts):
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    with tf.Graph().as_default(), tf.Session(target) as s:
        a, b, c = add_graph(tf)
        step = s.make_callable(c, [a, b])
        step(1.0, 2.0)
        ready.release()
        go.wait()
        n, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            step(1.0, 2.0)
            n += 1
        counts.put(n)


def processor_time(pid):
    """Returns the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def clients(target, pid, n=16, seconds=4.0):
    """Returns steps per second, and CPU microseconds of the server per step."""
    spawn = multiprocessing.get_context("spawn")
    ready, go, counts = spawn.Semaphore(0), spawn.Event(), spawn.Queue()
    workers = [spawn.Process(target=client, args=(target, seconds, ready, go, counts)) for _ in range(n)]
    for w in workers:
        w.start()
    for _ in workers:
        ready.acquire()
    before = processor_time(pid)
    go.set()
    total = sum(counts.get() for _ in workers)
    took = processor_time(pid) - before
    for w in workers:
        w.join()
    return total / seconds, took / total * 1e6


def light_clients(program, target):
    """Returns steps per second; reports and repeats a run that the server ends with an error."""
    address = target.removeprefix("grpc://")
    for _ in range(3):
        run = subprocess.run([program, address], capture_output=True, text=True)
        if run.returncode == 0:
            return float(run.stdout.split()[0])
        print(f"{target}: {run.stderr.strip()[:300]}", file=sys.stderr)
    return float("nan")


def bulk(target, pid, n=5):
    import numpy as np
    import tensorflow.compat.v1 as tf

    data = np.ones(25_000_000, np.float32)
    with tf.Graph().as_default(), tf.Session(target) as s:
        x = tf.placeholder(tf.float32, [None])
        feed, echo = s.make_callable(tf.shape(x), [x]), s.make_callable(tf.identity(x), [x])
        times = [[], []]
        for _ in range(n + 1):
            for f, t in zip((feed, echo), times):
                began = time.perf_counter()
                f(data)
                t.append(time.perf_counter() - began)
    status = open(f"/proc/{pid}/status").read()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    feeding, both = (statistics.median(t[1:]) for t in times)
    return 100 / feeding, 200 / both, peak


def lenet(target, n=40):
    import numpy as np
    import tensorflow.compat.v1 as tf

    tf.disable_resource_variables()
    rng = np.random.RandomState(0)
    images, labels = rng.rand(64, 28, 28, 1).astype(np.float32), rng.randint(0, 10, 64)
    config = tf.ConfigProto(isolate_session_state=True)
    with tf.Graph().as_default(), tf.Session(target, config=config) as s:
        tf.set_random_seed(1)
        x, y = tf.placeholder(tf.float32, [None, 28, 28, 1]), tf.placeholder(tf.int64, [None])

        def weights(*shape):
            return tf.Variable(tf.truncated_normal(shape, stddev=0.1)), tf.Variable(tf.zeros(shape[-1:]))

        h = x
        for i, o in ((1, 32), (32, 64)):
            w, b = weights(5, 5, i, o)
            h = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(h, w, 1, "SAME") + b), 2, 2, "SAME")
        h = tf.reshape(h, [-1, 7 * 7 * 64])
        for i, o in ((7 * 7 * 64, 512), (512, 10)):
            w, b = weights(i, o)
            h = tf.matmul(h, w) + b
            h = tf.nn.relu(h) if o != 10 else h
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h))
        train = tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
        s.run(tf.global_variables_initializer())
        feed = {x: images, y: labels}
        for _ in range(5):
            s.run([train, loss], feed)
        began = time.perf_counter()
        for _ in range(n):
            s.run([train, loss], feed)
        return n / (time.perf_counter() - began)


def main():
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    stock, stock_target = start([sys.executable, "-c", STOCK])
    ours, our_target = start([args.server, "server", "--port", "0"])
    both = [(stock_target, stock.pid), (our_target, ours.pid)]
    try:
        light = Path(args.server).resolve().parent / "examples" / "clients"
        rows = [
            ("add two scalars, us", lambda t, p: latency(t)),
            ("16 clients: steps/s, server's us a step", clients),
            ("16 light clients, steps/s", lambda t, p: light_clients(light, t)),
            ("LeNet, steps/s", lambda t, p: lenet(t)),
            ("100 MB: fed MB/s, fed and fetched MB/s, peak MB", bulk),
        ]
        if not light.exists():
            rows = [row for row in rows if "light" not in row[0]]
        for name, measure in rows:
            seen = [[], []]
            for _ in range(args.rounds):
                for (target, pid), out in zip(both, seen):
                    out.append(measure(target, pid))
            for side, out in zip(("TensorFlow", "Ferroflow"), seen):
                columns = zip(*out) if isinstance(out[0], tuple) else [out]
                print(f"{name:50} {side:10}", *("%.1f" % statistics.median(c) for c in columns), flush=True)
    finally:
        stock.kill()
        ours.kill()


if __name__ == "__main__":
    main()
