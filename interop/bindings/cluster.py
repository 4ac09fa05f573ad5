"""Runs eager ops on the tasks of a cluster through the C API: with TensorFlow's servers, Ferroflow's, and one of each.

    cargo xtask dist target/dist
    python interop/bindings/cluster.py target/dist --server target/release/ferroflow [--stock DIR]

Needs a C compiler and TensorFlow. DIR is the folder of TensorFlow's Python package, which has `libtensorflow_cc.so.2`:
with it, TensorFlow's own client runs on TensorFlow's servers, too, and must print the same lines.
"""

import argparse
import difflib
import os
import socket
import subprocess
import sys
import time

import c
import common

HERE = os.path.dirname(os.path.abspath(__file__))
SERVE = """
import sys, tensorflow as tf
tasks = sys.argv[2:]
tf.distribute.Server({"localhost": tasks}, job_name="localhost", task_index=int(sys.argv[1])).join()
"""
# Words of errors are each library's own; where functions' outputs stay is, too.
SKIPPED = ("unknown device",)


def free_ports(count):
    """Returns ports that are free."""
    sockets = [socket.socket() for _ in range(count)]
    for listener in sockets:
        listener.bind(("127.0.0.1", 0))
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def start(kind, index, addresses, binary):
    """Starts a server of a task."""
    env = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", TF_ENABLE_ONEDNN_OPTS="0")
    if kind == "tensorflow":
        command = [sys.executable, "-c", SERVE, str(index), *addresses]
    else:
        cluster = "localhost=" + ",".join(addresses)
        command = [binary, "server", "--cluster", cluster, "--job-name", "localhost"]
        command += ["--task-index", str(index)]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(addresses):
    """Waits until a server listens at each address."""
    for address in addresses:
        host, port = address.split(":")
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))) == 0:
                    break
            time.sleep(0.1)


def lines(program, kinds, mode, lib, binary):
    """Runs the client with servers of these kinds; returns whether it ended well, and what it printed."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    servers = [start(kind, i + 1, addresses, binary) for i, kind in enumerate(kinds)]
    try:
        wait_for(addresses[1:])
        command = [program, *addresses, *mode]
        env = dict(c.environment(lib), TF_ENABLE_ONEDNN_OPTS="0")
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
        good, output = done.returncode == 0, done.stdout + done.stderr * (done.returncode != 0)
    except subprocess.TimeoutExpired as error:
        good, output = False, f"no end\n{error.stdout}"
    finally:
        for server in servers:
            server.kill()
            server.wait()
    return good, [line for line in output.splitlines() if not line.startswith(SKIPPED)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist")
    parser.add_argument("--server", required=True, metavar="FERROFLOW")
    parser.add_argument("--stock", metavar="DIR")
    options = parser.parse_args()
    dist, lib, work = common.folder(options.dist, "cluster")
    report = common.Report()
    source = os.path.join(HERE, "cluster.c")
    program, output = c.compiled("cluster", source, dist, c.stub(work), work)
    report.line(program, "compiles", output)
    if not program:
        report.end()
    expected = None
    if options.stock:
        stock = c.stock_folder(options.stock, work)
        good, expected = lines(program, ["tensorflow"] * 2, [], stock, options.server)
        report.line(good, "TensorFlow's client", "\n".join(expected))
    for kinds in (["tensorflow"] * 2, ["ferroflow"] * 2, ["tensorflow", "ferroflow"], ["ferroflow", "tensorflow"]):
        for mode in ([], ["async"]):
            good, got = lines(program, kinds, mode, lib, options.server)
            wrong = list(difflib.unified_diff(expected or got, got, "TensorFlow", "Ferroflow", lineterm="", n=0))[2:]
            report.line(good and not wrong, f"{' and '.join(kinds)} {' '.join(mode)}", "\n".join(wrong or got))
    report.end()


if __name__ == "__main__":
    main()
