"""Has TensorFlow compute gradients and writes crates/runtime/tests/gradients.

Usage: python oracle/gradients.py [FAMILY...]     (default: all of oracle/gradient_cases)

A case of oracle/gradient_cases/<family>.py is a function that gets an `Ends`, takes inputs from it
and returns what is differentiated. Each becomes two lines of <family>.jsonl, one whose graph knows
the shapes of the inputs and one whose graph does not; oracle/README.md describes the format.
"""

import importlib
import json
import sys
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import graphkit
import numpy as np
import rows
import tensorflow as tf

OUT = HERE.parent / "crates/runtime/tests/gradients"
v1 = tf.compat.v1
CASES = []


def case(fn=None, *, forms=("v1",), numeric=True, tol=None, dynamic=True, second=False, name=None):
    """Registers a case.

    forms: "v1" and "v2" build control flow from Switch and Enter, or from If and While.
    numeric: whether the gradient is also what small steps say.
    second: whether what is differentiated is a gradient.
    """
    def enter(fn):
        CASES.append((name or fn.__name__, fn, forms, numeric, tol, dynamic, second))
        return fn
    return enter(fn) if fn else enter


class Ends:
    """Collects the inputs of a case."""

    def __init__(self, static):
        self.static, self.feeds, self.xs, self.stops = static, {}, [], []
        # Converts the graph that TensorFlow runs to the one that is stored.
        self.stand_in = lambda graph_def: graph_def
        self.random = np.random.RandomState(5)

    def feed(self, value):
        """An input without a gradient."""
        value = np.asarray(value)
        shape = value.shape if self.static else None
        t = v1.placeholder(tf.as_dtype(value.dtype), shape, name=f"in{len(self.feeds)}")
        self.feeds[t.name] = value
        return t

    def x(self, value):
        """Adds an input to differentiate by; a shape stands for random values."""
        if isinstance(value, (list, tuple)) and all(isinstance(d, int) for d in value):
            value = self.random.uniform(-2, 2, size=value)
        value = np.asarray(value)
        if value.dtype == np.int64:
            value = value.astype(np.float64)
        t = self.feed(value)
        self.xs.append(t)
        return t


def line_of(entry, static, form):
    name, fn, _, numeric, tol, _, second = entry
    v1.reset_default_graph()
    (v1.enable_control_flow_v2 if form == "v2" else v1.disable_control_flow_v2)()
    np.random.seed(7)
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(7)
        ends = Ends(static)
        ys = fn(ends)
        ys = list(ys) if isinstance(ys, (list, tuple)) else [ys]
        with v1.Session(graph=graph, config=graphkit.session_config()) as session:
            session.run(v1.global_variables_initializer())
            values = session.run(ys, ends.feeds)
        gys = []
        for i, value in enumerate(values):
            gy = ends.random.uniform(-1, 1, size=value.shape).astype(value.dtype)
            if value.dtype.kind == "c":
                gy = gy + (1j * ends.random.uniform(-1, 1, size=value.shape)).astype(value.dtype)
            gys.append(tf.constant(gy, name=f"gy{i}"))
        graph_def = graphkit.cleaned(ends.stand_in(graph.as_graph_def()))
        gradients = tf.gradients(ys, ends.xs, gys, stop_gradients=ends.stops)
        wanted = [tf.convert_to_tensor(g) for g in gradients if g is not None]
        with v1.Session(graph=graph, config=graphkit.session_config()) as session:
            session.run(v1.global_variables_initializer())
            got = iter(session.run(wanted, ends.feeds))
        answers = [None if g is None else rows.tensor_json(next(got)) for g in gradients]
    if tol is None:
        tol = max([rows.TOL.get(a["dtype"], 0) for a in answers if a], default=0) * 4
    out = {"name": f"{name}/{form}/{'static' if static else 'dynamic'}",
           **graphkit.graph_field(graph_def, True),
           "feeds": {k: rows.tensor_json(v) for k, v in ends.feeds.items()},
           "ys": [y.name for y in ys], "gys": [g.name for g in gys],
           "xs": [x.name for x in ends.xs], "gradients": answers, "tol": tol}
    if ends.stops:
        out["stops"] = [s.name for s in ends.stops]
    if numeric and all(y.dtype == tf.float64 for y in ys):
        out["numeric"] = True
    return json.dumps(out, separators=(",", ":"))


def main():
    wanted = sys.argv[1:] or sorted(p.stem for p in (HERE / "gradient_cases").glob("[a-z]*.py"))
    OUT.mkdir(parents=True, exist_ok=True)
    troubled = False
    for family in wanted:
        CASES.clear()
        sys.modules["gradients"] = sys.modules["__main__"]
        importlib.import_module(f"gradient_cases.{family}")
        lines = [json.dumps({"tensorflow": tf.__version__})]
        for entry in CASES:
            for form in entry[2]:
                for static in ([True, False] if entry[5] else [True]):
                    try:
                        lines.append(line_of(entry, static, form))
                    except Exception as error:
                        print(f"  {entry[0]}: {type(error).__name__}: {str(error)[:600]}")
                        troubled = True
        data = ("\n".join(lines) + "\n").encode()
        (OUT / f"{family}.jsonl.z").write_bytes(zlib.compress(data, 9))
        print(f"{family}: {len(lines) - 1} lines, {len(data) // 1024} KiB")
    sys.exit(troubled)


if __name__ == "__main__":
    main()
