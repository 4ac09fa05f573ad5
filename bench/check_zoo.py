"""Compares Ferroflow's results with TensorFlow's over a whole zoo.

Usage: python bench/check_zoo.py DIR [NAME...] [--ferroflow PATH] [--batches 1 3] [--threads N]

Prints a table and ends with 1 when a network fails or differs by more than 1e-4 of the largest
magnitude of an output.
"""

import sys
import time
from pathlib import Path

import common

TOLERANCE = 1e-4


def check(options, name, batch):
    """Returns (text, ok) for one network and batch size."""
    try:
        model, feeds, expected = common.zoo_case(options.directory, name, batch)
        with common.Feeds(feeds) as path:
            answers = common.ferroflow_run(options.ferroflow, model, path, list(expected),
                                           options.threads)
        gap = common.difference(answers, expected)
    except (RuntimeError, OSError) as error:
        print(f"{name}, batch {batch}: {error}", file=sys.stderr)
        return "failed", False
    return (f"{gap:.1e}", True) if gap <= TOLERANCE else (f"WRONG {gap:.1e}", False)


def main():
    parser = common.parser(__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    rows, wrong = [], 0
    for name in common.zoo_names(options.directory, options.names):
        begin = time.perf_counter()
        found = [check(options, name, batch) for batch in options.batches]
        wrong += sum(not ok for _, ok in found)
        rows.append([name, *[text for text, _ in found], f"{time.perf_counter() - begin:.1f}"])
        print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    print(common.table(["network", *[f"batch {b}" for b in options.batches], "seconds"], rows))
    print(f"\n{len(rows)} networks, {wrong} wrong answers; largest difference relative to the "
          "largest magnitude of an output")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
