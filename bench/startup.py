"""Startup: a cold process up to its first result, its wall time and peak memory.

Usage: python bench/startup.py DIR [NAME...] [--ferroflow PATH] [--rounds 3] [--rival-only]

Each round starts a process that reads the model and the feeds, answers once and ends. For TensorFlow
that holds Python and the import; the last column is TensorFlow without them (load and first run as
measured inside the process). The best of the rounds counts.
"""

import sys
import tempfile
from pathlib import Path

import common


def main():
    parser = common.parser(__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rival-only", action="store_true", help="do not run Ferroflow")
    options = parser.parse_args()
    rows = []
    for name in options.names or ["ResNet50", "bert_base"]:
        model, feeds, expected = common.zoo_case(options.directory, name, 1)
        fetches = common.fetch_flags(list(expected))
        theirs, inner, ours = [], [], []
        with common.Feeds(feeds) as path, tempfile.TemporaryDirectory() as folder:
            rival = [sys.executable, common.HERE / "rival.py", model, "--feeds", path, *fetches,
                     "--threads", options.threads, "--once"]
            binary = [options.ferroflow, "run", model, "--feeds", path, *fetches,
                      "--threads", options.threads, "--out", Path(folder) / "out.npz"]
            for _ in range(options.rounds):
                theirs.append(common.timed(rival))
                found = common.last_json(common.call(rival))
                inner.append(found["load_s"] + found["first_s"])
                if not options.rival_only:
                    ours.append(common.timed(binary))
        row = [name, f"{min(theirs)[0]:.2f}", f"{min(theirs)[1]:.0f}"]
        row += [f"{min(ours)[0]:.3f}", f"{min(ours)[1]:.0f}"] if ours else ["", ""]
        rows.append([*row, f"{min(inner):.2f}"])
    print(f"{common.heading()}; {options.threads} thread; model file: "
          "from the page cache\n")
    print(common.table(["network", "TensorFlow, s", "MB", "Ferroflow, s", "MB",
                        "TensorFlow after its import, s"], rows))


if __name__ == "__main__":
    main()
