"""Runs the tasks of a cluster as Ray actors, and starts a task again when it fails.

    python ray_cluster.py --server target/release/ferroflow --workers 2 --ps 1 [--seconds 60]
"""

import argparse
import json
import os
import socket
import subprocess
import time

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)
class Task:
    """A task at a port of the machine that Ray has chosen."""

    def __init__(self, server):
        self.server, self.process = server, None

    def address(self):
        with socket.socket() as s:
            s.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{s.getsockname()[1]}"

    def start(self, cluster, job, index):
        """Starts the task unless it runs; returns the number of its process."""
        if self.process is None or self.process.poll() is not None:
            config = {"cluster": cluster, "task": {"type": job, "index": index}}
            self.process = subprocess.Popen(
                [self.server, "server", "--host", "0.0.0.0"],
                env=dict(os.environ, TF_CONFIG=json.dumps(config)),
                stdout=subprocess.PIPE,
                text=True,
            )
            if "TARGET" not in self.process.stdout.readline():
                raise RuntimeError(f"/job:{job}/task:{index} did not start")
        return self.process.pid

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def start_cluster(server, n_workers, n_ps):
    """Starts the tasks; returns the cluster, and the actors by job and index."""
    group = placement_group([{"CPU": 1}] * (n_workers + n_ps), strategy="SPREAD")
    ray.get(group.ready(), timeout=60)
    strategy = PlacementGroupSchedulingStrategy(group)
    names = [("worker", i) for i in range(n_workers)] + [("ps", i) for i in range(n_ps)]
    actors = {name: Task.options(scheduling_strategy=strategy).remote(server) for name in names}
    cluster = {}
    for (job, _), actor in actors.items():
        cluster.setdefault(job, []).append(ray.get(actor.address.remote()))
    watch(cluster, actors)
    return cluster, actors


def watch(cluster, actors):
    """Starts the tasks that do not run; returns the processes. An actor that was restarted starts its task, too."""
    begun = {name: actor.start.remote(cluster, *name) for name, actor in actors.items()}
    return {name: ray.get(pid) for name, pid in begun.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="the ferroflow binary")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop the cluster after this time")
    args = parser.parse_args()
    ray.init(address=os.environ.get("RAY_ADDRESS"), num_cpus=None if "RAY_ADDRESS" in os.environ else 8)
    end = time.time() + args.seconds
    cluster, actors = start_cluster(os.path.abspath(args.server), args.workers, args.ps)
    print("CLUSTER", json.dumps(cluster), flush=True)
    pids = watch(cluster, actors)
    print("TASKS", *pids.values(), flush=True)
    while time.time() < end:
        time.sleep(0.5)
        now = watch(cluster, actors)
        for (job, index), pid in now.items():
            if pid != pids[job, index]:
                print(f"RESTARTED /job:{job}/task:{index}", flush=True)
        pids = now
    ray.get([actor.stop.remote() for actor in actors.values()])


if __name__ == "__main__":
    main()
