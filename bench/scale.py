"""Time of loading and of the first run by the size of the graph: 1,000 to 100,000 nodes.

Usage: python bench/scale.py [--ferroflow PATH] [--nodes 1000 3000 ...] [--rival-only]

Random layered graphs of scalar Add and Mul, in a fresh process each, with each engine's default
optimizations. "load" is from the file to a session, "first" is the first run, which for TensorFlow
holds the graph optimizations.
"""

import tempfile
from pathlib import Path

import common


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 3000, 10000, 30000, 100000])
    parser.add_argument("--rival-only", action="store_true", help="do not run Ferroflow")
    options = parser.parse_args()
    import graphs

    rows = []
    for count in options.nodes:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "graph.pb"
            model.write_bytes(graphs.layers("float", count).SerializeToString())
            with common.Feeds(graphs.feeds("float")) as path:
                found = [common.rival_bench(model, path, ["y:0"], 1, 0.2, "--once")]
                if not options.rival_only:
                    found.append(common.ferroflow_bench(options.ferroflow, model, path, ["y:0"], 1, 0.2))
        cells = [f"{f[key] * 1e3:.1f}" for key in ("load_s", "first_s") for f in found]
        rows.append([count, *cells] if len(found) == 2 else [count, cells[0], "", cells[1], ""])
    print(f"{common.heading()}; milliseconds, one thread\n")
    print(common.table(["nodes", "load: TensorFlow", "Ferroflow", "first run: TensorFlow", "Ferroflow"],
                       rows))


if __name__ == "__main__":
    main()
