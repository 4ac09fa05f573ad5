"""Mixed clients that connect, run, fail and disconnect for a given time; the server's memory must stay flat.

Usage: python interop/soak.py --server target/release/ferroflow [--minutes 30] [--clients 3]

Prints the server's resident memory each minute. Ends with 1 when it grew by more than a tenth (and more than
16 MB) after the first fifth of the time, or when a client saw an error that it did not cause.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time

QUIET = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")


def client(target, seed):
    """Runs until it is killed; unexpected failures end it with an error."""
    import numpy as np
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    pick = random.Random(seed)

    def train():
        with tf.Graph().as_default():
            x = tf.placeholder(tf.float32, [None, 8])
            w = tf.get_variable("w", [8, 4], use_resource=pick.random() < 0.5)
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
            step = tf.train.AdamOptimizer(0.01).minimize(loss)
            with tf.Session(target, config=tf.ConfigProto(isolate_session_state=True)) as s:
                s.run(tf.global_variables_initializer())
                for _ in range(50):
                    s.run([step, loss], {x: np.ones([16, 8])})

    def loops():
        with tf.Graph().as_default(), tf.Session(target) as s:
            n = tf.placeholder(tf.int32)
            total = tf.while_loop(lambda i, t: i < n, lambda i, t: (i + 1, t + i), [0, 0])[1]
            half = tf.cond(n > 5, lambda: n // 2, lambda: n * 2)
            for count in (3, 10, 100):
                assert s.run([total, half], {n: count})[0] == count * (count - 1) // 2

    def large():
        with tf.Graph().as_default(), tf.Session(target) as s:
            x = tf.placeholder(tf.float32)
            got = s.run(x * 2, {x: np.ones([1 << 20])})
            assert got[-1] == 2.0

    def errors():
        with tf.Graph().as_default(), tf.Session(target) as s:
            x = tf.placeholder(tf.float32)
            bad = tf.check_numerics(tf.log(x), "bad")
            queue = tf.FIFOQueue(1, tf.float32)
            for f in (lambda: s.run(bad, {x: -1.0}), lambda: s.run(tf.reshape(x, [3]), {x: [1.0, 2.0]})):
                try:
                    f()
                    raise AssertionError("no error")
                except tf.errors.InvalidArgumentError:
                    pass
            try:
                s.run(queue.dequeue(), options=tf.RunOptions(timeout_in_ms=20))
                raise AssertionError("no timeout")
            except tf.errors.DeadlineExceededError:
                pass

    def partial():
        with tf.Graph().as_default(), tf.Session(target) as s:
            a, b = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
            c = a + b
            handle = s.partial_run_setup([c], [a, b])
            if pick.random() < 0.5:
                s.partial_run(handle, [], {a: 1.0})
            else:
                assert s.partial_run(handle, c, {a: 1.0, b: 2.0}) == 3.0

    def left_open():
        graph = tf.Graph()
        with graph.as_default():
            one = tf.constant(1.0) + 1.0
        # Stays open if the client is killed now.
        session = tf.Session(target, graph=graph)
        session.run(one)
        time.sleep(pick.random() * 0.2)
        session.close()

    while True:
        pick.choice([train, loops, large, errors, partial, left_open])()
        time.sleep(pick.random() * 0.2)


def resident_mb(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", help="the ferroflow binary")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--client", nargs=2, metavar=("TARGET", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        client(args.client[0], int(args.client[1]))
    server = subprocess.Popen(
        [args.server, "server", "--port", "0", "--session-gc-seconds", "30"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    target = next(line.split()[1] for line in server.stdout if line.startswith("TARGET"))
    pick, seeds, clients, failures = random.Random(1), iter(range(10**9)), [], 0

    def start():
        command = [sys.executable, __file__, "--client", target, str(next(seeds))]
        clients.append((subprocess.Popen(command, env=QUIET, stderr=subprocess.PIPE, text=True),
                        time.time() + pick.uniform(20, 90)))

    begin, memory, minute = time.time(), [], 0
    while time.time() < begin + 60 * args.minutes and server.poll() is None:
        while len(clients) < args.clients:
            start()
        time.sleep(1)
        for entry in list(clients):
            process, until = entry
            if process.poll() is not None:
                failures += 1
                print("a client failed:", process.stderr.read()[-2000:], flush=True)
                clients.remove(entry)
            elif time.time() > until:
                process.send_signal(signal.SIGKILL)
                process.wait()
                clients.remove(entry)
        memory.append(resident_mb(server.pid))
        if time.time() > begin + 60 * minute:
            print(f"minute {minute}: {memory[-1]:.1f} MB", flush=True)
            minute += 1
    alive = server.poll() is None
    for process, _ in clients:
        process.kill()
    server.terminate()
    server.wait()
    fifth = len(memory) // 5
    early, late = max(memory[fifth : 2 * fifth]), max(memory[-fifth:])
    flat = late < 1.1 * early or late < early + 16
    print(f"{next(seeds)} clients, {failures} failed; memory {early:.1f} MB then {late:.1f} MB; "
          f"server {'lives' if alive else 'died'}")
    sys.exit(not (alive and flat and failures == 0))


if __name__ == "__main__":
    main()
