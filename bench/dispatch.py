"""The overhead of a node: nanoseconds per node on graphs of scalar Add and Mul.

Usage: python bench/dispatch.py [--ferroflow PATH] [--nodes 1000 10000] [--seconds 3] [--rival-only]

Both engines run the graph as it is written (no graph optimizations), on one thread.
"""

import tempfile
from pathlib import Path

import common


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rival-only", action="store_true", help="do not run Ferroflow")
    options = parser.parse_args()
    import graphs

    rows = []
    for kind, make in graphs.KINDS.items():
        for dtype in ("float", "int32"):
            for count in options.nodes:
                with tempfile.TemporaryDirectory() as folder:
                    model = Path(folder) / "graph.pb"
                    model.write_bytes(make(dtype, count).SerializeToString())
                    with common.Feeds(graphs.feeds(dtype)) as path:
                        args = (model, path, ["y:0"], 1, options.seconds, "--no-optimize")
                        theirs = common.rival_bench(*args)["median_s"] / count * 1e9
                        row = [kind, dtype, count, f"{theirs:.0f}", "", ""]
                        if not options.rival_only:
                            ours = common.ferroflow_bench(options.ferroflow, *args)["median_s"]
                            ours = ours / count * 1e9
                            row[4:] = [f"{ours:.0f}", f"{theirs / ours:.1f}"]
                rows.append(row)
    print(f"{common.heading()}; nanoseconds a node, median, one thread, graph not optimized\n")
    print(common.table(["graph", "dtype", "nodes", "TensorFlow", "Ferroflow", "ratio"], rows))


if __name__ == "__main__":
    main()
