"""Compares Ferroflow's results with TensorFlow's on small models of every kind.

Usage: python bench/real_graphs.py [NAME...] [--package DIR] [--keep DIR] [--list]

The models are in the package `real`, a family per file. Each is saved as a SavedModel, or as a GraphDef
for sessions of TensorFlow 1, run by both with the same feeds, and compared: floating-point numbers
within 1e-4 of an output's largest magnitude, everything else exactly. Feeds that TensorFlow refuses
must be refused with the same code. Needs TensorFlow and the package `ferroflow` (`cargo xtask python`).
Prints a table and ends with 1 when a model differs.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# With oneDNN, quantization rounds otherwise than in TensorFlow's own kernels.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import numpy as np
import tensorflow as tf

import common
from real import kit

TOLERANCE = 1e-4


def specs(feeds):
    """Returns the signature that accepts all feeds: dimensions in which they differ are free."""
    out = {}
    for name in feeds[0]:
        arrays = [np.asarray(feed[name]) for feed in feeds]
        shape = None
        if len({x.ndim for x in arrays}) == 1:
            shape = [dims[0] if len(set(dims)) == 1 else None for dims in zip(*[x.shape for x in arrays])]
        dtype = tf.string if arrays[0].dtype.kind in "OSU" else tf.as_dtype(arrays[0].dtype)
        out[name] = tf.TensorSpec(shape, dtype, name=name)
    return out


def save(case, folder):
    """Writes the SavedModel of a case."""
    program = case.program
    holder = tf.Module()
    holder.tracked = [*case.tracked, *getattr(program, "variables", [])]

    def flat(**inputs):
        parts = tf.nest.flatten(program(**inputs), expand_composites=True)
        return {f"out_{i:02}": tf.convert_to_tensor(part) for i, part in enumerate(parts)}

    concrete = tf.function(flat).get_concrete_function(**specs(case.feeds))
    tf.saved_model.save(holder, folder, signatures={"serving_default": concrete})


def outcome(run):
    """Returns (outputs, None), or (None, the name of the error's class)."""
    try:
        return run(), None
    except Exception as error:
        known = isinstance(error, tf.errors.OpError) or type(error).__module__.startswith("ferroflow")
        return None, (type(error).__name__ if known else f"{type(error).__name__}: {error}", str(error))


def tensorflow_saved(folder, feed):
    loaded = tf.saved_model.load(folder)
    inputs = {name: tf.constant(x) for name, x in feed.items()}
    return {name: x.numpy() for name, x in loaded.signatures["serving_default"](**inputs).items()}


def ferroflow_saved(ferroflow, folder, feed):
    return ferroflow.load(folder)(**feed)


def tensorflow_session(case):
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(case.graph, name="")
    with tf.compat.v1.Session(graph=graph) as session:
        return [session.run(fetches, feeds) for fetches, feeds in case.steps]


def ferroflow_session(ferroflow, case):
    with ferroflow.Session(case.graph.SerializeToString()) as session:
        return [session.run(fetches, feeds) for fetches, feeds in case.steps]


def gap(name, ours, theirs):
    """Returns the difference of two arrays relative to the largest magnitude; fails unless they match."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if theirs.dtype.kind in "OSU":
        same = ours.shape == theirs.shape and [as_bytes(x) for x in ours.flat] == [as_bytes(x) for x in theirs.flat]
        if not same:
            raise ValueError(f"{name}: {ours}, not {theirs}")
        return 0.0
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise ValueError(f"{name}: {ours.dtype}{ours.shape}, not {theirs.dtype}{theirs.shape}")
    if theirs.dtype.kind in "biu":
        if not np.array_equal(ours, theirs):
            raise ValueError(f"{name}: {ours}, not {theirs}")
        return 0.0
    wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
    a, b = ours.astype(wide), theirs.astype(wide)
    finite = np.isfinite(b)
    if not (np.array_equal(np.isfinite(a), finite) and np.array_equal(a[~finite], b[~finite], equal_nan=True)):
        raise ValueError(f"{name}: {ours}, not {theirs}")
    peak = np.abs(b[finite]).max(initial=0) or 1.0
    found = float(np.abs(a[finite] - b[finite]).max(initial=0) / peak)
    if found > max(TOLERANCE, {2: 4e-3}.get(theirs.dtype.itemsize, 0) if theirs.dtype.kind != "c" else 0):
        raise ValueError(f"{name}: off by {found:.1e} of {peak:.3g}: {ours}, not {theirs}")
    return found


def as_bytes(x):
    return x.encode() if isinstance(x, str) else bytes(x)


def compare(ours, theirs):
    """Returns the largest difference of two outcomes; fails unless they agree."""
    (values, error), (expected, refusal) = ours, theirs
    if refusal:
        if not error:
            raise ValueError(f"answers where TensorFlow says {refusal[1][:300]}")
        if error[0] != refusal[0]:
            raise ValueError(f"{error[1][:300]} where TensorFlow says {refusal[0]}: {refusal[1][:300]}")
        return 0.0
    if error:
        raise ValueError(error[1][:900])
    if isinstance(expected, dict):
        if sorted(values) != sorted(expected):
            raise ValueError(f"outputs {sorted(values)}, not {sorted(expected)}")
        return max((gap(name, values[name], expected[name]) for name in expected), default=0.0)
    pairs = [(f"step {i}", a, b) for i, (some, more) in enumerate(zip(values, expected, strict=True))
             for a, b in zip(flatten(some), flatten(more), strict=True)]
    return max((gap(*pair) for pair in pairs), default=0.0)


def flatten(values):
    return [x for x in (values if isinstance(values, (list, tuple)) else [values]) if x is not None]


def check(ferroflow, case, folder):
    """Returns (number of runs, number of refusals, largest difference)."""
    if case.graph is not None:
        (folder / "graph.pb").write_bytes(case.graph.SerializeToString())
        theirs = outcome(lambda: tensorflow_session(case))
        ours = outcome(lambda: ferroflow_session(ferroflow, case))
        return len(case.steps), int(theirs[1] is not None), compare(ours, theirs)
    save(case, str(folder))
    worst, refused = 0.0, 0
    for feed in case.feeds:
        theirs = outcome(lambda: tensorflow_saved(str(folder), feed))
        ours = outcome(lambda: ferroflow_saved(ferroflow, str(folder), feed))
        refused += theirs[1] is not None
        worst = max(worst, compare(ours, theirs))
    return len(case.feeds), refused, worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="names, or parts of names, of models; all by default")
    parser.add_argument("--package", type=Path, help="folder that holds the package `ferroflow`")
    parser.add_argument("--keep", type=Path, help="folder that keeps the models")
    parser.add_argument("--list", action="store_true", help="prints the names and ends")
    options = parser.parse_args()
    wanted = [name for name in kit.names() if not options.names or any(part in name for part in options.names)]
    if options.list:
        print("\n".join(wanted))
        return
    if options.package:
        sys.path.insert(0, str(options.package))
    import ferroflow

    rows, wrong = [], 0
    for name in wanted:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as scratch:
            folder = (options.keep or Path(scratch)) / name.replace("/", "_")
            folder.mkdir(parents=True, exist_ok=True)
            try:
                tf.keras.utils.set_random_seed(7)
                runs, refused, worst = check(ferroflow, kit.make(name), folder)
                said = f"{worst:.1e}"
            except Exception as error:
                runs, refused, said = 0, 0, "WRONG"
                wrong += 1
                if not isinstance(error, ValueError):
                    traceback.print_exc()
                print(f"{name}: {error}", file=sys.stderr, flush=True)
        rows.append([name, runs, refused, said])
        print(*rows[-1], f"{time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    print(common.table(["model", "runs", "refused by both", "largest difference"], rows))
    print(f"\n{len(rows)} models, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
