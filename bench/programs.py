"""Programs that are not networks: geometry, statistics, filters, graphs, images, text; loops of all kinds.

Usage: python bench/programs.py [--ferroflow PATH] [--threads 1 2] [--seconds 0.7] [--rounds 3] [--only NAME ...]

Milliseconds of TensorFlow's Session and of Ferroflow, in turn; the medians of the rounds' medians count. The largest difference is
relative to the largest number of an output; integers and strings must be equal. The programs are in `program_list.py`; they were
chosen without looking at the kernels.
"""

import statistics
import tempfile
from pathlib import Path

import common
import numpy as np


def dtype_of(tf, array):
    return tf.string if array.dtype.kind in "OS" else tf.as_dtype(array.dtype)


def built(tf, program):
    """Returns the graph of a program, its feeds and fetches by tensor name, and the op that initializes it, if any."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    v1, feeds = tf.compat.v1, program["feeds"]()
    shapes = {name: program["shapes"].get(name, x.shape) for name, x in feeds.items()}
    named = {f"{name}:0": x for name, x in feeds.items()}
    if program["form"] == "function":
        v1.enable_control_flow_v2()
        specs = {name: tf.TensorSpec(shapes[name], dtype_of(tf, x), name) for name, x in feeds.items()}
        concrete = tf.function(program["function"]).get_concrete_function(**specs)
        frozen = convert_variables_to_constants_v2(concrete, lower_control_flow=False)
        return frozen.graph.as_graph_def(), named, [output.name for output in frozen.outputs], None
    (v1.disable_control_flow_v2 if program["form"] == "v1" else v1.enable_control_flow_v2)()
    init = None
    with tf.Graph().as_default() as graph:
        given = {name: v1.placeholder(dtype_of(tf, x), shapes[name], name) for name, x in feeds.items()}
        outputs = program["function"](**given)
        fetches = [tf.identity(x, f"result{i}").name for i, x in enumerate(outputs)]
        if program["init"]:
            init = tf.group(v1.tables_initializer(), v1.global_variables_initializer(), name="initialize").name
    return graph.as_graph_def(), named, fetches, init


def difference(tf, binary, case):
    """Returns the largest difference of the floats; raises if anything else differs."""
    model, feeds, fetches, init = case
    out = model.with_suffix(".out.npz")
    common.call([binary, "run", model, "--feeds", feeds, *common.fetch_flags(fetches), *init, "--out", out])
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(model.read_bytes()), name="")
    with np.load(feeds, allow_pickle=True) as given, np.load(out, allow_pickle=True) as ours:
        with tf.compat.v1.Session(graph=graph) as session:
            if init:
                session.run(init[1])
            theirs = session.run(fetches, {name: given[name] for name in given.files})
        worst = 0.0
        for name, want in zip(fetches, theirs):
            got = ours[name if name in ours.files else name.split(":")[0]]
            if want.shape != got.shape:
                raise RuntimeError(f"{name}: {got.shape}, not {want.shape}")
            if want.dtype.kind in "fc":
                finite = np.isfinite(want)
                if want.dtype != got.dtype or not np.array_equal(got[~finite], want[~finite], equal_nan=True):
                    raise RuntimeError(f"{name}: another dtype, or other places are not finite")
                if not np.isfinite(got[finite]).all():
                    raise RuntimeError(f"{name}: not finite")
                peak = np.abs(want[finite]).max(initial=0) or 1
                worst = max(worst, np.abs(got[finite] - want[finite]).max(initial=0) / peak)
            elif not (want == got.astype(want.dtype)).all():
                raise RuntimeError(f"{name} differs")
    return worst


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.7)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    import tensorflow as tf
    from program_list import PROGRAMS

    rows = []
    for name, program in PROGRAMS.items():
        if options.only and name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            graph_def, feeds, fetches, init = built(tf, program)
            model, arrays = Path(folder) / f"{name}.pb", Path(folder) / "feeds.npz"
            model.write_bytes(graph_def.SerializeToString())
            np.savez(arrays, **{key: x.astype("S") if x.dtype == object else x for key, x in feeds.items()})
            flags = ["--init", init] if init else []
            gap = difference(tf, options.ferroflow, (model, arrays, fetches, flags))
            for threads in options.threads:
                args = (model, arrays, fetches, threads, options.seconds, *flags)
                pairs = [(common.rival_bench(*args)["median_s"], common.ferroflow_bench(options.ferroflow, *args)["median_s"])
                         for _ in range(options.rounds)]
                theirs, ours = (statistics.median(side) * 1e3 for side in zip(*pairs))
                rows.append([name, program["about"], threads, f"{theirs:.3f}", f"{ours:.3f}", f"{theirs / ours:.2f}", f"{gap:.0e}"])
                print(*rows[-1], flush=True)
    print(f"\n{common.heading()}; milliseconds, median\n")
    print(common.table(["program", "", "threads", "TensorFlow", "Ferroflow", "ratio", "difference"], rows))


if __name__ == "__main__":
    main()
