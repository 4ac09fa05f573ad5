"""Every network of a zoo in Ferroflow, TensorFlow, OpenVINO and ONNX Runtime, in turn: where Ferroflow is not first.

Usage: python bench/rivals.py DIR [NAME...] [--ferroflow PATH] [--threads 1 2] [--batch 1 8] [--seconds 1]
           [--rounds 3] [--engines tensorflow openvino ort]

`python bench/zoo.py DIR` makes the networks. Each engine runs in a process of its own, one after the other in each
round; the median of the rounds' medians counts. Engines that cannot be imported, or do not take a network, are left out
there. The last columns are the network's floating-point operations and bytes (weights, inputs, outputs) by the time
that the machine needs for them at best, measured in the same run: a product of large matrices, a copy of a large array.
"""

import json
import math
import os
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import common

ENGINES = {"tensorflow": ("tensorflow", "session"), "openvino": ("openvino", "openvino"), "ort": ("tf2onnx", "ort")}

MACHINE = """
import json, time, numpy as np
def best(f):
    times = []
    for _ in range(5):
        start = time.perf_counter(); f(); times.append(time.perf_counter() - start)
    return min(times)
n = 1536
a, b = np.ones((n, n), np.float32), np.ones((n, n), np.float32)
x = np.ones(1 << 26, np.float32); y = np.empty_like(x)
print(json.dumps([2 * n**3 / best(lambda: a @ b), 2 * x.nbytes / best(lambda: np.copyto(y, x))]))
"""


def machine(threads):
    """Operations and copied bytes (read and written) a second; the copy has one thread."""
    limits = {name: str(threads) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", MACHINE], capture_output=True, text=True, env=os.environ | limits)
    return json.loads(done.stdout)


def work(model, feeds, fetches):
    """Operations of the products and convolutions of a graph, and the bytes that it must move."""
    import rival
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        given = {name: tf.compat.v1.placeholder(x.dtype, x.shape) for name, x in feeds.items()}
        tf.graph_util.import_graph_def(rival.read_graph(model), input_map=given, name="")
    size = lambda t: math.prod(d or 1 for d in t.shape) if t.shape.rank is not None else 0
    flops, moved = 0, sum(x.nbytes for x in feeds.values())
    for op in graph.get_operations():
        if op.type == "Const":
            moved += size(op.outputs[0]) * op.outputs[0].dtype.size
        if op.type in ("Conv2D", "Conv3D"):
            flops += 2 * size(op.outputs[0]) * math.prod(op.inputs[1].shape[:-1])
        elif op.type == "DepthwiseConv2dNative":
            flops += 2 * size(op.outputs[0]) * math.prod(op.inputs[1].shape[:2])
        elif op.type == "Conv2DBackpropInput":
            flops += 2 * size(op.inputs[2]) * math.prod(op.inputs[1].shape[:-1])
        elif op.type in ("MatMul", "BatchMatMulV2") and op.inputs[0].shape.rank is not None:
            first = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
            flops += 2 * size(op.outputs[0]) * (op.inputs[0].shape[-2 if first else -1] or 1)
    moved += sum(size(graph.get_tensor_by_name(name)) * 4 for name in fetches)
    return flops, moved


def batch_of(arrays, count):
    """The first axis repeated or cut to `count`; answers differ between rows as before."""
    import numpy as np

    return {name: x[np.arange(count) % len(x)] for name, x in arrays.items()}


def contest(options, name, batch, threads, engines, peaks):
    """The times of all engines, as a row; the first is ours."""
    model, feeds, expected = common.zoo_case(options.directory, name, 1 if batch == 1 else 3)
    feeds, expected = batch_of(feeds, batch), batch_of(expected, batch)
    fetches, times = list(expected), {}
    with common.Feeds(feeds) as path:
        worst = common.difference(common.ferroflow_run(options.ferroflow, model, path, fetches, threads), expected)
        for _ in range(options.rounds):
            found = common.ferroflow_bench(options.ferroflow, model, path, fetches, threads, options.seconds)
            times.setdefault("ferroflow", []).append(found["median_s"])
            for engine in list(engines):
                if times.get(engine) == []:
                    continue
                try:
                    found = common.rival_bench(model, path, fetches, threads, options.seconds, "--engine",
                                               ENGINES[engine][1])
                    times.setdefault(engine, []).append(found["median_s"])
                except RuntimeError as error:
                    times[engine] = []
                    print(f"{name}: {engine}: {str(error).splitlines()[-1]}", file=sys.stderr)
    middle = {engine: statistics.median(all_) for engine, all_ in times.items() if all_}
    ours = middle.pop("ferroflow")
    best = min(middle, key=middle.get) if middle else ""
    flops, moved = work(model, feeds, fetches)
    share = max(flops / peaks[0], moved / peaks[1]) / ours
    return {"name": name, "batch": batch, "threads": threads, "ours": ours, "rivals": middle, "best": best,
            "ratio": middle[best] / ours if best else math.nan, "difference": worst, "gflops": flops / ours / 1e9,
            "gbytes": moved / ours / 1e9, "share": share}


def main():
    parser = common.parser(__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="*", choices=list(ENGINES), default=list(ENGINES))
    options = parser.parse_args()
    engines = [engine for engine in options.engines if find_spec(ENGINES[engine][0])]
    peaks = {threads: machine(threads) for threads in options.threads}
    found, failed = [], []
    for name in common.zoo_names(options.directory, options.names):
        for batch in options.batch:
            for threads in options.threads:
                try:
                    row = contest(options, name, batch, threads, engines, peaks[threads])
                except RuntimeError as error:
                    failed.append(f"{name}, batch {batch}, {threads} threads: {error}")
                    print(failed[-1], file=sys.stderr)
                    continue
                found.append(row)
                print(name, batch, threads, f"{row['ratio']:.2f} {row['best']}", file=sys.stderr, flush=True)
    show(options, engines, peaks, found)
    if failed:
        sys.exit(f"{len(failed)} failed")


def show(options, engines, peaks, found):
    print(f"{common.heading()}; milliseconds, median of {options.rounds} rounds; ratio: the best rival by ours")
    for threads, (flops, bytes_) in peaks.items():
        print(f"{threads} threads: {flops / 1e9:.0f} GFLOP/s in matrix products, {bytes_ / 1e9:.1f} GB/s in copies")
    millis = lambda x: f"{x * 1e3:.3f}" if x else ""
    print("\n" + common.table(
        ["network", "batch", "threads", "Ferroflow", *engines, "ratio", "GFLOP/s", "GB/s", "roofline", "difference"],
        [[r["name"], r["batch"], r["threads"], millis(r["ours"]), *(millis(r["rivals"].get(e)) for e in engines),
          f"{r['ratio']:.2f}", f"{r['gflops']:.1f}", f"{r['gbytes']:.1f}", f"{r['share']:.0%}", f"{r['difference']:.0e}"]
         for r in found]))
    compared = [r for r in found if r["best"]]
    if compared:
        mean = math.exp(statistics.fmean(math.log(r["ratio"]) for r in compared))
        print(f"\nGeometric mean of {len(compared)} ratios: {mean:.2f}")
    behind = sorted((r for r in compared if r["ratio"] < 1), key=lambda r: r["ratio"])
    print(f"Not first in {len(behind)} of {len(compared)}:")
    for r in behind:
        print(f"  {r['name']}, batch {r['batch']}, {r['threads']} threads: {1 / r['ratio']:.2f} x {r['best']}")


if __name__ == "__main__":
    main()
