"""The C API: start of a minimal program, and nanoseconds per call, compared with TensorFlow's wheel.

Usage: python bench/c_api.py DIST [--rounds 5] [--tensorflow FOLDER]

DIST is the folder of `cargo xtask dist`. `c_api.c` is compiled once with Ferroflow's headers and linked with each
library. FOLDER has `libtensorflow_cc.so.2` of TensorFlow's package; it is found if this Python has TensorFlow. The
best of the rounds counts, taken in turn.
"""

import importlib.util
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import common

SOURCE = common.HERE / "c_api.c"


def wheel():
    """Returns the folder of TensorFlow's libraries, if any."""
    found = importlib.util.find_spec("tensorflow")
    return Path(found.origin).parent if found and found.origin else None


def link(work, name, dist, folder, libraries):
    program = Path(work) / name
    command = ["cc", "-std=c11", "-O2", "-Wall", SOURCE, f"-I{dist / 'include'}", "-o", program]
    command += [folder / library for library in libraries] + [f"-Wl,-rpath,{folder}"]
    subprocess.run([str(word) for word in command], check=True)
    return program


def start(program):
    """Returns milliseconds of wall time and of processor time, and MB of peak memory."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    clock = time.perf_counter()
    done = subprocess.run([program, "minimal"], check=True, capture_output=True, text=True)
    wall = time.perf_counter() - clock
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    return wall * 1e3, processor * 1e3, int(done.stdout) / 1e3


def calls(program):
    done = subprocess.run([program, "calls"], check=True, capture_output=True, text=True)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return {name: float(nanos) for name, nanos in lines}


def least(values):
    return [min(column) for column in zip(*values)]


def main():
    parser = common.parser(__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tensorflow", type=Path, default=wheel())
    options = parser.parse_args()
    dist = options.dist.resolve()
    with tempfile.TemporaryDirectory() as work:
        programs = {"Ferroflow": link(work, "ours", dist, dist / "lib", ["libtensorflow.so.2"])}
        if options.tensorflow:
            libraries = ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"]
            programs["TensorFlow"] = link(work, "theirs", dist, options.tensorflow.resolve(), libraries)
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        found = {name: ([], []) for name in programs}
        for _ in range(options.rounds):
            for name, program in programs.items():
                found[name][0].extend(start(program) for _ in range(5))
                found[name][1].append(calls(program))
    rows = []
    starts = {name: least(found[name][0]) for name in programs}
    for i, what in enumerate(["minimal program, ms", "of it processor time, ms", "peak memory, MB"]):
        rows.append([what, *[f"{starts[name][i]:.1f}" for name in programs]])
    for what in found["Ferroflow"][1][0]:
        rows.append([what + ", ns", *[f"{min(c[what] for c in found[name][1]):.0f}" for name in programs]])
    for row in rows:
        if len(programs) == 2:
            row.append(f"{float(row[2]) / float(row[1]):.1f}")
    print(common.heading() + "\n")
    print(common.table(["", *programs, "ratio"][: 2 * len(programs)], rows))


if __name__ == "__main__":
    main()
