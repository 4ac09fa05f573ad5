"""Two versions of Ferroflow in turn: what a change made faster or slower.

Usage: python bench/versions.py OLD NEW [--zoo DIR] [--names NAME...] [--seconds 1] [--rounds 5]

OLD and NEW are binaries. Each case runs in its own process, the two versions in turn; the best median of the rounds
counts. Ends with 1 if a case is more than 3 % slower, and marks it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import common

LIMIT = 1.03


def small_graphs(tf, np):
    """Loops, conditionals and chains of scalar nodes: (name, graph, feeds, fetch, flags)."""
    import graphs
    import loops

    tf.compat.v1.disable_eager_execution()
    count, start = {"n:0": np.int32(loops.STEPS)}, {"n:0": np.int64(loops.COLLATZ)}
    for functional in (False, True):
        form = "functional" if functional else "V1"
        yield f"while, {form}", loops.counting(tf, 10, functional), count, "y:0", ()
        yield f"cond in while, {form}", loops.collatz(tf, functional), start, "y:0", ()
    for kind, make in graphs.KINDS.items():
        yield (f"{kind}, 1,000 nodes, not optimized", make("int32", 1000), graphs.feeds("int32"), "y:0",
               ("--no-optimize",))


def training_graphs(tf, np):
    import train

    for name, batch in train.BATCHES.items():
        random = np.random.default_rng(0)
        feeds = {"x:0": random.random((batch, *train.SHAPES[name]), "float32"),
                 "y:0": random.integers(0, 10, batch).astype("int32")}
        yield f"training {name}, batch {batch}", train.graph_of(tf, name), feeds, "loss:0", (
            "--init", "init", "--target", "train")


def in_turn(binaries, rounds, measure):
    """The best of each binary."""
    best = [float("inf")] * len(binaries)
    for _ in range(rounds):
        for i, binary in enumerate(binaries):
            best[i] = min(best[i], measure(binary))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--zoo", type=Path)
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    import numpy as np
    import tensorflow as tf

    binaries, rows, is_slower = [options.old, options.new], [], False

    def add(name, threads, best, unit=1e6):
        nonlocal is_slower
        ratio = best[1] / best[0]
        is_slower |= ratio > LIMIT
        mark = " slower" if ratio > LIMIT else ""
        rows.append([name, threads, *(f"{b * unit:.4g}" for b in best), f"{ratio:.3f}{mark}"])
        print(*rows[-1], file=sys.stderr)

    def bench(name, model, feeds, fetches, flags, all_threads):
        with common.Feeds(feeds) as path:
            for threads in all_threads:
                add(name, threads, in_turn(binaries, options.rounds, lambda b: common.ferroflow_bench(
                    b, model, path, fetches, threads, options.seconds, *flags)["median_s"]))

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "graph.pb"
        for name, graph, feeds, fetch, flags in (*small_graphs(tf, np), *training_graphs(tf, np)):
            model.write_bytes(graph.SerializeToString())
            bench(name, model, feeds, [fetch], flags, [1, 2] if "training" in name else [1])
        digits = Path(__file__).parent.parent / "examples/digits/digits.pb"
        images = {"images:0": np.random.default_rng(0).random((32, 8, 8, 1), "float32")}
        fetches = ["probabilities:0"]
        bench("digits, batch 32", digits, images, fetches, (), [1, 2])
        compiled = {binary: Path(folder) / f"{i}.bef" for i, binary in enumerate(binaries)}
        for binary, file in compiled.items():
            common.call([binary, "compile", digits, "--out", file])
        with common.Feeds(images) as path:
            add("digits, opening the compiled file", 1, in_turn(
                binaries, options.rounds * 4, lambda b: common.ferroflow_bench(
                    b, compiled[b], path, fetches, 1, 0.01)["load_s"]))
        if options.zoo:
            for name in common.zoo_names(options.zoo, options.names):
                model, feeds, expected = common.zoo_case(options.zoo, name, 1)
                bench(name, model, feeds, list(expected), (), [1, 2])
    print(f"{common.cpu()}; microseconds, the best median of {options.rounds} rounds in turn\n")
    print(common.table(["case", "threads", "old", "new", "new/old"], rows))
    sys.exit(int(is_slower))


if __name__ == "__main__":
    main()
