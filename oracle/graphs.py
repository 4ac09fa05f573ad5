"""Runs whole graphs in TensorFlow and writes crates/runtime/tests/graphs.

Usage: python oracle/graphs.py [FAMILY...]     (default: all of oracle/graph_cases)

Each case of oracle/graph_cases/<family>.py becomes one line of
crates/runtime/tests/graphs/<family>.jsonl, or .jsonl.z; oracle/README.md describes the format.
"""

import importlib
import json
import sys
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import graphkit
import tensorflow as tf

GRAPHS = HERE.parent / "crates/runtime/tests/graphs"


def main():
    args = sys.argv[1:]
    wanted = args or sorted(p.stem for p in (HERE / "graph_cases").glob("[a-z]*.py"))
    GRAPHS.mkdir(parents=True, exist_ok=True)
    troubled = False
    for family in wanted:
        graphkit.CASES.clear()
        module = importlib.import_module(f"graph_cases.{family}")
        if hasattr(module, "enter_all"):
            module.enter_all()
        whole = getattr(module, "COMPRESSED", False)
        lines = [json.dumps({"tensorflow": tf.__version__})]
        for name, form, fn in graphkit.CASES:
            try:
                lines.append(graphkit.line_of(name, form, fn, whole))
            except Exception as error:
                print(f"  {name}: {type(error).__name__}: {str(error)[:1500]}")
                troubled = True
        text = "\n".join(lines) + "\n"
        path, data = GRAPHS / f"{family}.jsonl", text.encode()
        if whole:
            path, data = GRAPHS / f"{family}.jsonl.z", zlib.compress(data, 9)
        path.write_bytes(data)
        print(f"{family}: {len(lines) - 1} cases, {len(data) // 1024} KiB")
    sys.exit(troubled)


if __name__ == "__main__":
    main()
