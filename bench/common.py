"""Shared by the benchmark scripts: cases of a zoo, running both engines, tables."""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def parser(about):
    """Adds the options of every script."""
    out = argparse.ArgumentParser(description=about.split("\n")[0])
    out.add_argument("--ferroflow", default="target/release/ferroflow", help="the binary")
    return out


def zoo_names(directory, wanted):
    """Returns the selected networks, or all, smallest first."""
    paths = [directory / f"{name}.pb" for name in wanted] or sorted(
        directory.glob("*.pb"), key=lambda path: path.stat().st_size)
    return [path.stem for path in paths]


def zoo_case(directory, name, batch):
    """Returns (model path, feeds by tensor name, expected outputs by tensor name)."""
    with np.load(directory / f"{name}.b{batch}.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}
    expected = {key[4:]: x for key, x in arrays.items() if key.startswith("out/")}
    feeds = {key: x for key, x in arrays.items() if not key.startswith("out/")}
    return directory / f"{name}.pb", feeds, expected


class Feeds:
    """Writes feeds to a file for the duration of the `with`."""

    def __init__(self, feeds):
        self.feeds = feeds

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "feeds.npz"
        np.savez(path, **self.feeds)
        return path

    def __exit__(self, *_):
        self.folder.cleanup()


def fetch_flags(fetches):
    return [word for name in fetches for word in ("--fetch", name)]


def last_json(text):
    """Returns the last line of the text that is a JSON object."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return json.loads(lines[-1] if lines else text[text.index("{"):])


def call(command):
    """Runs a command; returns its standard output, or raises the end of its error output."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip()[-600:])
    return done.stdout


def ferroflow_bench(binary, model, feeds, fetches, threads, seconds, *more):
    """Returns the figures of `ferroflow bench`."""
    return last_json(call([binary, "bench", model, "--feeds", feeds, *fetch_flags(fetches),
                           "--threads", threads, "--seconds", seconds, "--json", *more]))


def rival_bench(model, feeds, fetches, threads, seconds, *more):
    """Returns the same figures for TensorFlow, or with --engine for another engine."""
    return last_json(call([sys.executable, HERE / "rival.py", model, "--feeds", feeds,
                           *fetch_flags(fetches), "--threads", threads, "--seconds", seconds, *more]))


def ferroflow_run(binary, model, feeds, fetches, threads=1):
    """Returns the outputs of `ferroflow run`, by tensor name."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.npz"
        call([binary, "run", model, "--feeds", feeds, *fetch_flags(fetches), "--threads", threads,
              "--out", out])
        with np.load(out) as stored:
            return {key: stored[key] for key in stored.files}


def difference(ours, theirs):
    """Returns the largest difference over all outputs, relative to each output's largest magnitude."""
    worst = 0.0
    for name, x in theirs.items():
        if name not in ours:
            raise RuntimeError(f"no output {name}")
        y = ours[name]
        if y.shape != x.shape or y.dtype != x.dtype:
            raise RuntimeError(f"{name}: {y.dtype}{y.shape}, not {x.dtype}{x.shape}")
        if not np.isfinite(y.astype("float64")).all():
            raise RuntimeError(f"{name}: not finite")
        peak = np.abs(x.astype("float64")).max(initial=0) or 1.0
        gap = np.abs(y.astype("float64") - x.astype("float64")).max(initial=0)
        worst = max(worst, gap / peak)
    return worst


def timed(command):
    """Returns (wall seconds, peak resident MB) of a fresh process."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen([str(word) for word in command], stdout=said, stderr=said)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - begin
        if child.returncode:
            said.seek(0)
            raise RuntimeError(said.read().decode()[-600:])
    return wall, usage.ru_maxrss / 1024


def cpu():
    """Returns the processor's name and the number of usable ones."""
    name = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    return f"{name}, {len(os.sched_getaffinity(0))} CPUs"


def heading():
    """Returns the machine and date of a measurement, as a heading."""
    from importlib.metadata import version

    return f"{cpu()}; TensorFlow {version('tensorflow-cpu')}; {datetime.date.today()}"


def table(head, rows):
    """Formats a Markdown table, with numbers right-aligned."""
    cells = [[str(x) for x in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]

    def line(row):
        out = [row[0].ljust(widths[0])] + [x.rjust(w) for x, w in zip(row[1:], widths[1:])]
        return "| " + " | ".join(out) + " |"

    rule = "|" + "|".join("-" * (w + 1) + (":" if i else "-") for i, w in enumerate(widths)) + "|"
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])
