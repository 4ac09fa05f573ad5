"""The tasks of `examples/cluster/ray_cluster.py`, under Ray, serve a TensorFlow client, and come back when they are killed.

    python interop/ray_cluster.py --server target/release/ferroflow
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf

tf1 = tf.compat.v1
EXAMPLE = Path(__file__).resolve().parent.parent / "examples/cluster/ray_cluster.py"


def line(process, start):
    """The rest of the next line that begins so."""
    for text in process.stdout:
        if text.startswith(start):
            return text[len(start):].strip()
    sys.exit(f"the cluster ended before a line {start}")


def train(cluster, steps):
    """The value of a variable of the parameter server that both workers have added to; the variable is new."""
    with tf.Graph().as_default():
        with tf1.device("/job:ps/task:0"):
            v = tf1.get_variable("v", initializer=0.0, use_resource=True)
        adds = []
        for i in range(2):
            with tf1.device(f"/job:worker/task:{i}"):
                adds.append(v.assign_add(tf1.placeholder_with_default(float(i + 1), []), read_value=False))
        with tf1.Session(f"grpc://{cluster['worker'][0]}") as session:
            session.run(v.initializer)
            for _ in range(steps):
                session.run(adds)
            return session.run(v)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="the ferroflow binary")
    server = os.path.abspath(parser.parse_args().server)
    command = [sys.executable, str(EXAMPLE), "--server", server, "--workers", "2", "--ps", "1"]
    # A cluster that does not start ends the program.
    signal.alarm(600)
    env = dict(os.environ, RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True)
    try:
        cluster = json.loads(line(process, "CLUSTER"))
        tasks = [int(pid) for pid in line(process, "TASKS").split()]
        assert len(tasks) == 3, tasks
        assert train(cluster, 5) == 15.0
        for pid, task in [(tasks[1], "/job:worker/task:1"), (tasks[2], "/job:ps/task:0")]:
            os.kill(pid, signal.SIGKILL)
            restarted = line(process, "RESTARTED")
            assert restarted == task, restarted
            assert train(cluster, 3) == 9.0
            print("restarted", task)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        subprocess.run([sys.executable, "-m", "ray.scripts.scripts", "stop", "--force"], capture_output=True, check=False)


if __name__ == "__main__":
    main()
