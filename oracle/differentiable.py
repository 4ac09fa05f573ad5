"""Writes which ops TensorFlow differentiates: crates/ops/rows/gradients.txt.

After a line with the version, a line is an op and `function` (it has a gradient) or `none` (its
inputs get none, NotDifferentiable); ops that are not listed cannot be differentiated.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from tensorflow.python.framework import op_def_registry, ops

OUT = Path(__file__).resolve().parent.parent / "crates/ops/rows/gradients.txt"


def main():
    rules = ops.gradient_registry._registry
    known = sorted(name for name in rules if op_def_registry.get(name))
    lines = [f"{n} {'none' if rules[n]['type'] is None else 'function'}" for n in known]
    OUT.write_text("\n".join([f"# TensorFlow {tf.__version__}", *lines]) + "\n")
    print(len(lines), "ops")


if __name__ == "__main__":
    main()
