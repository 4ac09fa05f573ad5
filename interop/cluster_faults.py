"""Training survives tasks that are killed, stopped, or cut off.

    python interop/cluster_faults.py --server target/release/ferroflow [--rounds 100]

A ps and two workers, each behind a proxy, train a network in graph mode; the client saves checkpoints. In each round a random
task is killed and started again, stopped (SIGSTOP) for a while, or cut off: its proxy drops what it receives, as a network
without a route does. No call of the client may take longer than 30 s, training continues from the last checkpoint, the losses
are those of an undisturbed run, and at the end nothing is left on the tasks that survived.
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
tf1.disable_eager_execution()

TASKS = [("ps", 0), ("worker", 0), ("worker", 1)]
# The longest that one call of the client may take.
LIMIT = 30.0
STEPS_PER_ROUND = 6
CHECKPOINT_EVERY = 3


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Proxy:
    """Forwards connections to a port; cut off, it accepts and forwards nothing, and closes nothing."""

    def __init__(self, target):
        self.target, self.is_cut = target, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.connect, args=(client,), daemon=True).start()

    def connect(self, client):
        while self.is_cut:
            time.sleep(0.05)
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            server.settimeout(None)
        except OSError:
            client.close()
            return
        for a, b in ((client, server), (server, client)):
            threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    def pump(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                was_cut = self.is_cut
                while self.is_cut:
                    time.sleep(0.05)
                if was_cut:
                    # What was sent meanwhile is lost, and so is the connection.
                    break
                sink.sendall(data)
        except OSError:
            pass
        for s in (source, sink):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Task:
    def __init__(self, server, number, logs):
        self.server, self.number, self.logs = server, number, logs
        self.port, self.monitor = free_port(), free_port()
        self.proxy = Proxy(self.port)
        self.process, self.n_starts = None, 0

    def start(self, tasks):
        jobs = {}
        for task in tasks:
            job, _ = TASKS[task.number]
            # Its own port, and the proxies of the others.
            port = self.port if task is self else task.proxy.port
            jobs.setdefault(job, []).append(f"127.0.0.1:{port}")
        cluster = ";".join(f"{job}={','.join(addresses)}" for job, addresses in jobs.items())
        job, index = TASKS[self.number]
        command = [self.server, "server", "--cluster", cluster, "--job-name", job]
        command += ["--task-index", str(index), "--monitor-port", str(self.monitor)]
        log = open(os.path.join(self.logs, f"{job}{index}.log"), "a")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.n_starts += 1
        if "TARGET" not in self.process.stdout.readline():
            sys.exit(f"{TASKS[self.number]} did not start")

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/metrics", timeout=10) as page:
            lines = [line.split() for line in page.read().decode().splitlines()]
        return {line[0]: float(line[1]) for line in lines if line and not line[0].startswith("#")}


def network():
    graph = tf.Graph()
    with graph.as_default():
        with tf1.device("/job:ps/task:0"):
            start = np.random.RandomState(1).uniform(-0.5, 0.5, [8, 4]).astype(np.float32)
            w = tf1.get_variable("w", initializer=tf.constant(start))
            step = tf1.get_variable("step", initializer=tf.constant(0, tf.int64), use_resource=True)
        x = tf1.placeholder(tf.float32, [16, 8])
        losses, grads = [], []
        for worker in range(2):
            with tf1.device(f"/job:worker/task:{worker}"):
                part = x[8 * worker : 8 * worker + 8]
                loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(part, w)) - part[:, :4]))
                losses.append(loss)
                grads.append(tf1.gradients(loss, [w])[0])
        with tf1.device("/job:ps/task:0"):
            loss = (losses[0] + losses[1]) * 0.5
            with tf.control_dependencies([loss]):
                update = tf1.assign_sub(w, (grads[0] + grads[1]) * 0.25)
            with tf.control_dependencies([update]):
                train = tf1.assign_add(step, 1)
        saver = tf1.train.Saver(max_to_keep=2)
        init = tf1.global_variables_initializer()
    return graph, x, loss, train, step, saver, init


def batch(step):
    return np.random.RandomState(step).uniform(-1, 1, [16, 8]).astype(np.float32)


class Client:
    """Trains, and begins again from the last checkpoint when a step fails."""

    def __init__(self, target, folder):
        self.target, self.folder = target, folder
        self.parts = network()
        self.session, self.losses = None, {}
        self.slowest, self.n_recovered, self.at = 0.0, 0, None
        # Called before each step.
        self.on_step = lambda step: None

    def timed(self, call):
        begun = time.monotonic()
        try:
            return call()
        finally:
            took = time.monotonic() - begun
            self.slowest = max(self.slowest, took)

    def open(self):
        graph, _, _, _, step, saver, init = self.parts
        config = tf1.ConfigProto(operation_timeout_in_ms=15_000)
        self.session = tf1.Session(self.target, graph=graph, config=config)
        self.timed(lambda: self.session.run(init))
        last = tf1.train.latest_checkpoint(self.folder)
        if last:
            self.timed(lambda: saver.restore(self.session, last))
        return int(self.timed(lambda: self.session.run(step)))

    def close(self):
        if self.session is not None:
            session, self.session = self.session, None
            try:
                self.timed(session.close)
            except tf.errors.OpError:
                pass

    def train_until(self, end, deadline):
        _, x, loss, train, _, saver, _ = self.parts
        while True:
            if time.monotonic() > deadline:
                sys.exit("training does not go on")
            try:
                if self.session is None:
                    self.at = self.open()
                while self.at < end:
                    self.on_step(self.at)
                    value, _ = self.timed(lambda: self.session.run([loss, train], {x: batch(self.at)}))
                    self.losses[self.at] = float(value)
                    self.at += 1
                    if self.at % CHECKPOINT_EVERY == 0:
                        self.save(saver)
                return
            except tf.errors.OpError as e:
                self.n_recovered += 1
                if os.environ.get("VERBOSE"):
                    print(f"  at step {self.at}: {type(e).__name__}: {e.message[:160]}", flush=True)
                self.close()
                time.sleep(0.3)

    def save(self, saver):
        path = os.path.join(self.folder, "model")
        self.timed(lambda: saver.save(self.session, path, global_step=self.at, write_meta_graph=False))


def disturb(tasks, task, kind, seconds):
    """Disturbs a task for a while."""
    if kind == "kill":
        task.process.kill()
        task.process.wait()
        time.sleep(seconds)
        task.start(tasks)
    elif kind == "stop":
        task.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        task.process.send_signal(signal.SIGCONT)
    else:
        task.proxy.is_cut = True
        time.sleep(seconds)
        task.proxy.is_cut = False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="the ferroflow binary")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=25.0, help="longest disturbance, seconds")
    args = parser.parse_args()
    r = random.Random(args.seed)
    folder = tempfile.mkdtemp(prefix="ferroflow-faults-")
    tasks = [Task(os.path.abspath(args.server), i, folder) for i in range(len(TASKS))]
    wrong = []
    try:
        for task in tasks:
            task.start(tasks)
        target = f"grpc://127.0.0.1:{tasks[1].proxy.port}"
        calm = Client(target, os.path.join(folder, "calm"))
        n_steps = STEPS_PER_ROUND * args.rounds
        calm.train_until(n_steps, time.monotonic() + 120)
        calm.close()
        client = Client(target, os.path.join(folder, "faults"))
        for i in range(args.rounds):
            kind = ("kill", "stop", "cut")[i % 3]
            task, seconds = r.choice(tasks), r.choice([0.5, 3.0, args.longest])
            ends = []

            def strike(step, i=i, kind=kind, task=task, seconds=seconds, ends=ends):
                if step == STEPS_PER_ROUND * i + 2 and not ends:
                    end = threading.Thread(target=disturb, args=(tasks, task, kind, seconds))
                    ends.append(end)
                    end.start()

            client.on_step = strike
            begun = time.monotonic()
            client.train_until(STEPS_PER_ROUND * (i + 1), begun + seconds + 120)
            for end in ends:
                end.join()
            job, index = TASKS[task.number]
            print(
                f"round {i}: {kind} {job}{index} for {seconds} s: {time.monotonic() - begun:.1f} s, "
                f"slowest call so far {client.slowest:.1f} s",
                flush=True,
            )
        client.close()
        if client.slowest > LIMIT:
            wrong.append(f"a call took {client.slowest:.1f} s")
        for step in range(n_steps):
            if abs(client.losses[step] - calm.losses[step]) > 1e-5:
                wrong.append(f"loss of step {step}: {client.losses[step]} instead of {calm.losses[step]}")
                break
        time.sleep(3)
        for task in tasks:
            found = task.metrics()
            kept = {k: v for k, v in found.items() if k in LEAKS and v}
            if kept and task.n_starts == 1:
                wrong.append(f"{TASKS[task.number]} keeps {kept}")
        print(f"{args.rounds} rounds, recovered {client.n_recovered} times, slowest call {client.slowest:.1f} s")
    finally:
        for task in tasks:
            if task.process is not None:
                task.process.send_signal(signal.SIGCONT)
                task.process.kill()
    print("\n".join(wrong) if wrong else "nothing hung, nothing leaked, the losses are equal")
    sys.exit(1 if wrong else 0)


LEAKS = ("ferroflow_rendezvous", "ferroflow_sessions", "ferroflow_steps_running", "ferroflow_requests_queued")

if __name__ == "__main__":
    main()
