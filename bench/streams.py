"""What a node costs on a host-stream device: a chain of 1,000 small ops there and on the CPU, in turn.

Usage: python bench/streams.py target/release/ferroflow [--nodes N] [--rounds N]
"""

import argparse
import os
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
import tensorflow as tf

DEVICE = "/device:HOST_STREAM:0"


def chain(nodes, device):
    """Rolls of a vector of 16 floats, which no pass merges."""
    graph = tf.Graph()
    with graph.as_default():
        y = tf.compat.v1.placeholder(tf.float32, [16], name="x")
        for _ in range(nodes):
            y = tf.raw_ops.Roll(input=y, shift=1, axis=0)
        tf.identity(y, name="y")
    out = graph.as_graph_def()
    for node in out.node:
        if node.op == "Roll":
            node.device = device
    return out.SerializeToString()


def median(binary, file, *flags):
    feed = "x=" + str(list(range(16)))
    done = subprocess.run(
        [binary, "bench", str(file), "--feed", feed, "--seconds", "1", *flags], capture_output=True, text=True, check=True
    )
    return float(re.search(r"median\s+([\d.]+) ms", done.stdout)[1]) * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cpu, streams = Path(folder) / "cpu.pb", Path(folder) / "streams.pb"
        cpu.write_bytes(chain(args.nodes, ""))
        streams.write_bytes(chain(args.nodes, DEVICE))
        times = [
            (median(args.binary, cpu), median(args.binary, streams, "--devices", "CPU:1,HOST_STREAM:1"))
            for _ in range(args.rounds)
        ]
    on_cpu, on_stream = (statistics.median(column) / args.nodes for column in zip(*times))
    print(f"{args.nodes} nodes, ns a node: CPU {on_cpu:.0f}, host stream {on_stream:.0f}, difference {on_stream - on_cpu:.0f}")


if __name__ == "__main__":
    main()
