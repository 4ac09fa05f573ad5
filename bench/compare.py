"""Compares the speed of TensorFlow and Ferroflow on the networks of a zoo.

Usage: python bench/compare.py DIR [NAME...] [--ferroflow PATH] [--threads 1 2] [--batch 1]
           [--seconds 5] [--rounds 2] [--rival-only]

Each engine runs in its own process, in turn (A B A B), so that a slow spell of the machine hits
both; an engine's time is the best median of its rounds. TensorFlow runs with its defaults (oneDNN
on), once as a Session and once as a ConcreteFunction, and the faster of the two counts. ONNX Runtime
joins when tf2onnx can be imported. Ends with 1 when an answer is wrong.
"""

import importlib.util
import sys
from pathlib import Path

import common

TOLERANCE = 1e-4


def faster_engine(model, feeds, fetches, threads):
    """Returns the faster of TensorFlow's ways to run this network."""
    medians = {}
    for engine in ("session", "function"):
        found = common.rival_bench(model, feeds, fetches, threads, 1, "--engine", engine)
        medians[engine] = found["median_s"]
    return min(medians, key=medians.get)


def contest(options, name, threads):
    """Returns one row of the table, and whether the results agree."""
    model, feeds, expected = common.zoo_case(options.directory, name, options.batch)
    fetches = list(expected)
    with common.Feeds(feeds) as path:
        engine = faster_engine(model, path, fetches, threads)
        theirs, ours, onnx = [], [], []
        for _ in range(options.rounds):
            theirs.append(common.rival_bench(model, path, fetches, threads, options.seconds,
                                             "--engine", engine)["median_s"])
            if not options.rival_only:
                ours.append(common.ferroflow_bench(options.ferroflow, model, path, fetches, threads,
                                                   options.seconds)["median_s"])
        if importlib.util.find_spec("tf2onnx"):
            try:
                onnx.append(common.rival_bench(model, path, fetches, threads, options.seconds,
                                               "--engine", "ort")["median_s"])
            except RuntimeError as error:
                print(f"{name}: ONNX Runtime: {str(error).splitlines()[-1]}", file=sys.stderr)
        gap, right = "", True
        if not options.rival_only:
            answers = common.ferroflow_run(options.ferroflow, model, path, fetches, threads)
            worst = common.difference(answers, expected)
            gap, right = f"{worst:.1e}", worst <= TOLERANCE
    row = [name, threads, f"{min(theirs) * 1e3:.2f}", engine]
    row += [f"{min(ours) * 1e3:.2f}", f"{min(theirs) / min(ours):.2f}"] if ours else ["", ""]
    row += [f"{min(onnx) * 1e3:.2f}" if onnx else "", gap if right else f"WRONG {gap}"]
    return row, right


def main():
    parser = common.parser(__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rival-only", action="store_true", help="do not run Ferroflow")
    options = parser.parse_args()
    rows, all_right = [], True
    for name in common.zoo_names(options.directory, options.names):
        for threads in options.threads:
            try:
                row, right = contest(options, name, threads)
            except RuntimeError as error:
                row, right = [name, threads, "", "", "failed", "", "", ""], False
                print(f"{name}: {error}", file=sys.stderr)
            rows.append(row)
            all_right &= right
            print(" ".join(str(x) for x in row), file=sys.stderr, flush=True)
    print(f"{common.heading()}; batch {options.batch}; milliseconds, best median of "
          f"{options.rounds} rounds; ratio above 1: Ferroflow is faster\n")
    print(common.table(["network", "threads", "TensorFlow", "as", "Ferroflow", "ratio",
                        "ONNX Runtime", "difference"], rows))
    sys.exit(not all_right)


if __name__ == "__main__":
    main()
