"""Writes crates/ops/rows/kernels.txt: the dtypes of TensorFlow's CPU kernels.

Usage: python oracle/kernels.py

A line is an op, then the combinations of its attributes, `attr=type` with commas between, `;` between
combinations. Attributes that a kernel does not care about are left out. Ops are those of signatures
that Ferroflow has; ops without constraints are left out.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import kernels

ROOT = Path(__file__).resolve().parent.parent / "crates/ops"


def type_name(number):
    return types_pb2.DataType.Name(number)[3:].lower()


def combinations(op):
    found = set()
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        if kernel.device_type not in ("CPU", "DEFAULT") or kernel.label:
            continue
        parts = [[f"{c.name}={type_name(t)}" for t in c.allowed_values.list.type]
                 for c in kernel.constraint]
        combos = [[]]
        for part in parts:
            combos = [c + [p] for c in combos for p in part]
        found |= {",".join(sorted(c)) for c in combos}
    return sorted(found - {""})


def main():
    known = {line.split(" | ")[0] for line in (ROOT / "rows/opdefs.txt").read_text().splitlines()}
    lines = [f"# TensorFlow {tf.__version__}"]
    for op in sorted(known):
        if found := combinations(op):
            lines.append(f"{op} {';'.join(found)}")
    (ROOT / "rows/kernels.txt").write_text("\n".join(lines) + "\n")
    print(len(lines) - 1, "ops")


if __name__ == "__main__":
    main()
