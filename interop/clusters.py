"""The tasks of a cluster: processes of Ferroflow and of TensorFlow."""

import socket
import subprocess
import sys

STOCK = """
import sys, tensorflow as tf
cluster = {"worker": sys.argv[2].split(",")}
server = tf.distribute.Server(cluster, job_name="worker", task_index=int(sys.argv[1]))
print("TARGET", flush=True)
server.join()
"""


class Cluster:
    """The tasks of a job `worker`; `kinds` has a letter each: f for Ferroflow, s for TensorFlow."""

    def __init__(self, server, kinds):
        self.server, self.kinds, self.processes = server, kinds, []
        self.start()

    def start(self):
        ports = []
        sockets = [socket.socket() for _ in self.kinds]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
            ports.append(s.getsockname()[1])
        for s in sockets:
            s.close()
        self.addresses = [f"127.0.0.1:{p}" for p in ports]
        tasks = ",".join(self.addresses)
        for i, kind in enumerate(self.kinds):
            command = [sys.executable, "-c", STOCK, str(i), tasks]
            if kind == "f":
                command = [self.server, "server", "--cluster", f"worker={tasks}", "--job-name", "worker"]
                command += ["--task-index", str(i)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.processes.append(process)
        for process in self.processes:
            if "TARGET" not in process.stdout.readline():
                sys.exit(f"a task of {self.kinds} did not start")

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes = []

    def restart(self):
        self.stop()
        self.start()

    def target(self, task):
        return f"grpc://{self.addresses[task]}"
