"""Times a signature call on a tiny model, an eager op and the import of the package.

    target/python-venv/bin/python bench/python_calls.py
"""

import pathlib
import subprocess
import sys
import time

import numpy as np

import ferroflow

ROOT = pathlib.Path(__file__).resolve().parents[1]


def best(f, n=2000, rounds=40):
    """The least time of a call over many rounds, in microseconds: other programs only add to it."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(n):
            f()
        times.append((time.perf_counter() - begin) / n * 1e6)
    return min(times)


def import_ms():
    """The least time that `import ferroflow` adds to a new Python, in milliseconds."""
    code = "import time; t = time.perf_counter(); import ferroflow; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(15)]
    return min(float(r.stdout) for r in runs) * 1e3


def main():
    graph = """
        node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
        node { name: 'y' op: 'AddV2' input: 'x' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }"""
    mlp = ferroflow.load(ROOT / "crates/runtime/tests/saved_models/keras_mlp")
    signature = mlp["serving_default"]
    features = np.ones((1, 4), np.float32)
    x = np.ones(4, np.float32)
    session = ferroflow.Session(graph)
    step = session.make_callable("y:0", ["x:0"])
    print(f"import ferroflow               {import_ms():8.1f} ms")
    print(f"signature of a perceptron      {best(lambda: signature(features=features)):8.2f} us")
    print(f"Session.make_callable of x + x {best(lambda: step(x)):8.2f} us")
    print(f"Session.run of x + x           {best(lambda: session.run('y:0', {'x:0': x})):8.2f} us")
    print(f"ops.AddV2                      {best(lambda: ferroflow.ops.AddV2(x, x)):8.2f} us")


if __name__ == "__main__":
    main()
