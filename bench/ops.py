"""Times single ops in TensorFlow and Ferroflow, in turn, at three sizes and on one and two threads.

Usage: python bench/ops.py [OP...] [--part I/N] [--threads 1,2] [--sizes small,middle,large] [--seconds S]
                           [--json FILE] [--ferroflow PATH]
       python bench/ops.py --show FILE

The ops are those highest in demand: of models' converters, of public projects and of TensorFlow's own tests. A
graph has 16 copies of the op (4 of large ones), all of which a step runs, without passes that would merge them;
`--seconds` is the time for each figure. A ratio above 1 means that Ferroflow is faster. `--part 1/3` takes every third op;
`--show` makes one table of the figures that several runs added to a file.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np

from common import call, heading, last_json, parser, table

SIZES = {"small": 1_000, "middle": 30_000, "large": 1_000_000}
rng = np.random.default_rng(7)


def f32(*shape):
    return rng.uniform(0.1, 1.0, shape).astype(np.float32)


def i32(top, *shape):
    return rng.integers(0, top, shape).astype(np.int32)


def side(n):
    """The side of a square with n elements."""
    return max(2, int(n ** 0.5))


def words(n, length=12):
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz     ", "S1")
    chosen = letters[rng.integers(0, len(letters), (n, length))]
    return np.array([b"".join(row) for row in chosen], object)


def images(n):
    s = side(n / 3 / 4) + 1
    return f32(4, s, s, 3)


def boxes(n):
    corner = rng.uniform(0, 0.9, (n, 2))
    return np.concatenate([corner, corner + rng.uniform(0.02, 0.1, (n, 2))], 1).astype(np.float32)


def spd(n):
    x = f32(n, n)
    return (x @ x.T + n * np.eye(n)).astype(np.float32)


def cases():
    """Returns, by op, a function of a number of elements: its inputs and attrs. Scalars are constants."""
    out = {}
    for op in ("Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Rsqrt", "Square", "Neg", "Abs", "Floor", "Erf",
               "Softplus", "Elu", "Relu6", "Sign", "Round", "Sin", "Reciprocal", "L2Loss"):
        key = {"L2Loss": "t", "Relu": "features", "Softplus": "features", "Elu": "features", "Relu6": "features"}
        out[op] = lambda n, k=key.get(op, "x"): ({k: f32(n)}, {})
    for op in ("AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "Pow", "SquaredDifference", "Less", "Greater",
               "Equal", "GreaterEqual"):
        out[op] = lambda n: ({"x": f32(n), "y": f32(n)}, {})
    for op in ("FloorMod", "FloorDiv"):
        out[op] = lambda n: ({"x": i32(1000, n), "y": i32(9, n) + 1}, {})
    out["LogicalAnd"] = lambda n: ({"x": f32(n) > 0.5, "y": f32(n) > 0.4}, {})
    out["SelectV2"] = lambda n: ({"condition": f32(n) > 0.5, "t": f32(n), "e": f32(n)}, {})
    out["AddN"] = lambda n: ({"inputs": [f32(n), f32(n), f32(n)]}, {})
    for op in ("Sum", "Mean", "Max", "Prod"):
        out[op] = lambda n: ({"input": f32(side(n), side(n))}, {"axis": [1]})
    out["ArgMax"] = lambda n: ({"input": f32(side(n), side(n))}, {"dimension": 1})
    out["Cumsum"] = lambda n: ({"x": f32(side(n), side(n))}, {"axis": 1})
    out["TopKV2"] = lambda n: ({"input": f32(side(n), side(n))}, {"k": 5})
    out["Softmax"] = out["LogSoftmax"] = lambda n: ({"logits": f32(side(n), side(n))}, {})
    out["SoftmaxCrossEntropyWithLogits"] = lambda n: (
        {"features": f32(side(n), side(n)), "labels": f32(side(n), side(n))}, {})
    out["SparseSoftmaxCrossEntropyWithLogits"] = lambda n: (
        {"features": f32(side(n), side(n)), "labels": i32(side(n), side(n))}, {})
    out["MatMul"] = lambda n: ({"a": f32(side(n), side(n)), "b": f32(side(n), side(n))}, {})
    out["BatchMatMulV2"] = lambda n: ({"x": f32(8, side(n / 8), side(n / 8)), "y": f32(8, side(n / 8), side(n / 8))}, {})
    out["BiasAdd"] = lambda n: ({"value": f32(n // 32, 32), "bias": f32(32)}, {})
    out["Conv2D"] = lambda n: ({"input": f32(1, side(n / 16), side(n / 16), 16), "filter": f32(3, 3, 16, 16)},
                               {"strides": [1, 1, 1, 1], "padding": "SAME"})
    out["DepthwiseConv2dNative"] = lambda n: (
        {"input": f32(1, side(n / 16), side(n / 16), 16), "filter": f32(3, 3, 16, 1)},
        {"strides": [1, 1, 1, 1], "padding": "SAME"})
    out["MaxPool"] = lambda n: ({"input": f32(1, side(n / 16), side(n / 16), 16)},
                                {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"})
    out["AvgPool"] = lambda n: ({"value": f32(1, side(n / 16), side(n / 16), 16)},
                                {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"})
    out["FusedBatchNormV3"] = lambda n: (
        {"x": f32(1, side(n / 16), side(n / 16), 16), "scale": f32(16), "offset": f32(16), "mean": f32(16),
         "variance": f32(16)}, {"is_training": False})
    out["ConcatV2"] = lambda n: ({"values": [f32(side(n), side(n)), f32(side(n), side(n))]}, {"axis": 1})
    out["Pack"] = lambda n: ({"values": [f32(n), f32(n)]}, {"axis": 0})
    out["Unpack"] = lambda n: ({"value": f32(4, n // 4)}, {"num": 4})
    out["Split"] = lambda n: ({"value": f32(side(n), side(n) // 4 * 4)}, {"axis": 1, "num_split": 4})
    out["Slice"] = lambda n: ({"input": f32(side(n), side(n))}, {"begin": [1, 1], "size": [side(n) - 2, side(n) - 2]})
    out["StridedSlice"] = lambda n: ({"input": f32(side(n), side(n))},
                                     {"begin": [0, 1], "end": [side(n), side(n)], "strides": [1, 2]})
    out["Transpose"] = lambda n: ({"x": f32(side(n), side(n))}, {"perm": [1, 0]})
    out["GatherV2"] = lambda n: ({"params": f32(n // 16, 16), "indices": i32(n // 16, n // 16)}, {"axis": 0})
    out["GatherNd"] = lambda n: ({"params": f32(n // 16, 16), "indices": i32(n // 16, n // 16, 1)}, {})
    out["ScatterNd"] = lambda n: ({"indices": i32(n // 16, n // 16, 1), "updates": f32(n // 16, 16)},
                                  {"shape": [n // 16, 16]})
    out["OneHot"] = lambda n: ({"indices": i32(32, n // 32)}, {"depth": 32, "on_value": 1.0, "off_value": 0.0})
    out["Tile"] = lambda n: ({"input": f32(side(n / 4), side(n / 4))}, {"multiples": [2, 2]})
    out["Pad"] = lambda n: ({"input": f32(side(n), side(n))}, {"paddings": [[1, 1], [2, 2]]})
    out["MirrorPad"] = lambda n: ({"input": f32(side(n), side(n))}, {"paddings": [[1, 1], [2, 2]], "mode": "REFLECT"})
    out["ReverseV2"] = lambda n: ({"tensor": f32(side(n), side(n))}, {"axis": [1]})
    out["Where"] = lambda n: ({"condition": f32(n) > 0.5}, {})
    out["Cast"] = lambda n: ({"x": f32(n)}, {"DstT": "int32"})
    out["BroadcastTo"] = lambda n: ({"input": f32(side(n), 1)}, {"shape": [side(n), side(n)]})
    out["Unique"] = lambda n: ({"x": i32(max(2, n // 4), n)}, {})
    out["UnsortedSegmentSum"] = lambda n: ({"data": f32(n // 16, 16), "segment_ids": i32(16, n // 16)},
                                           {"num_segments": 16})
    out["SpaceToBatchND"] = lambda n: ({"input": f32(1, side(n / 16) * 2, side(n / 16) * 2, 4)},
                                       {"block_shape": [2, 2], "paddings": [[0, 0], [0, 0]]})
    out["BatchToSpaceND"] = lambda n: ({"input": f32(4, side(n / 16), side(n / 16), 4)},
                                       {"block_shape": [2, 2], "crops": [[0, 0], [0, 0]]})
    out["Bucketize"] = lambda n: ({"input": f32(n)}, {"boundaries": [0.2, 0.4, 0.6, 0.8]})
    out["DenseBincount"] = lambda n: ({"input": i32(64, n), "weights": f32(0)}, {"size": 64})
    for op in ("ResizeBilinear", "ResizeNearestNeighbor"):
        out[op] = lambda n: ({"images": images(n)}, {"size": [side(n / 12), side(n / 12)]})
    out["AdjustContrastv2"] = lambda n: ({"images": images(n)}, {"contrast_factor": 1.5})
    out["AdjustHue"] = lambda n: ({"images": images(n)}, {"delta": 0.2})
    out["AdjustSaturation"] = lambda n: ({"images": images(n)}, {"scale": 1.5})
    out["RGBToHSV"] = out["HSVToRGB"] = lambda n: ({"images": images(n)}, {})
    out["CropAndResize"] = lambda n: ({"image": images(n), "boxes": boxes(16), "box_ind": i32(4, 16)},
                                      {"crop_size": [side(n / 48), side(n / 48)]})
    nms = {"max_output_size": 100, "iou_threshold": 0.5, "score_threshold": 0.0}
    out["NonMaxSuppressionV3"] = lambda n: ({"boxes": boxes(n // 20), "scores": f32(n // 20)}, nms)
    out["NonMaxSuppressionV5"] = lambda n: ({"boxes": boxes(n // 20), "scores": f32(n // 20)},
                                            {**nms, "soft_nms_sigma": 0.0})
    out["RFFT"] = lambda n: ({"input": f32(n // 500, 512)}, {"fft_length": [512]})
    out["IRFFT"] = lambda n: ({"input": f32(n // 500, 257).astype(np.complex64)}, {"fft_length": [512]})
    out["FFT"] = lambda n: ({"input": f32(n // 500, 480).astype(np.complex64)}, {})
    out["FFT2D"] = lambda n: ({"input": f32(side(n), side(n)).astype(np.complex64)}, {})
    for op in ("Qr", "Svd", "SelfAdjointEigV2", "Cholesky", "MatrixInverse"):
        # Cubic in the side: large is 256.
        of = (lambda s: spd(s)) if op in ("Cholesky", "SelfAdjointEigV2") else (lambda s: f32(s, s) + 3 * np.eye(s, dtype="f"))
        out[op] = lambda n, of=of: ({"input": of(min(256, side(n)))}, {})
    out["MatrixSolve"] = lambda n: ({"matrix": spd(min(256, side(n))), "rhs": f32(min(256, side(n)), 8)}, {})
    out["AsString"] = lambda n: ({"input": i32(10**6, n // 10)}, {})
    out["StringSplitV2"] = lambda n: ({"input": words(n // 10, 40)}, {"sep": " "})
    out["StringToHashBucketFast"] = lambda n: ({"input": words(n // 10)}, {"num_buckets": 1000})
    out["StringToHashBucketStrong"] = lambda n: ({"input": words(n // 10)}, {"num_buckets": 1000, "key": [1, 2]})
    out["ReduceJoin"] = lambda n: ({"inputs": words(n // 10).reshape(-1, 10)}, {"reduction_indices": [1], "separator": "-"})
    out["StringJoin"] = lambda n: ({"inputs": [words(n // 10), words(n // 10)]}, {"separator": "-"})
    out["Substr"] = lambda n: ({"input": words(n // 10)}, {"pos": 1, "len": 5})
    out["StringLower"] = out["StringLength"] = lambda n: ({"input": words(n // 10)}, {})
    out["StaticRegexReplace"] = lambda n: ({"input": words(n // 10)}, {"pattern": "[aeiou]+", "rewrite": "_"})
    out["StringToNumber"] = lambda n: ({"string_tensor": np.array([b"%d.25" % i for i in range(n // 10)], object)}, {})
    out["RandomUniform"] = out["RandomStandardNormal"] = lambda n: ({"shape": np.array([n], np.int32)}, {"dtype": "float32"})
    return out


# Ops that have to be 1.5 times as fast.
MORE = {"RFFT", "IRFFT", "FFT", "FFT2D", "Svd", "Qr", "NonMaxSuppressionV3", "NonMaxSuppressionV5", "StringSplitV2",
        "StringToHashBucketFast", "StringToHashBucketStrong"}


def build(tf, op, inputs, attrs, copies):
    """Returns the graph with the copies of an op and what is fed."""
    graph, feeds = tf.Graph(), {}
    with graph.as_default():
        def fed(x):
            name = f"in{len(feeds)}"
            feeds[name + ":0"] = x
            dtype = tf.string if x.dtype == object else x.dtype
            return tf.compat.v1.placeholder(dtype, x.shape, name)

        args = {k: [fed(x) for x in v] if isinstance(v, list) else fed(v) for k, v in inputs.items()}
        attrs = {("Tout" if False else k): tf.as_dtype(v) if k in ("dtype", "DstT") else v for k, v in attrs.items()}
        made = []
        for _ in range(copies):
            result = getattr(tf.raw_ops, op)(**args, **attrs)
            result = result if isinstance(result, (list, tuple)) else [result]
            made.append(result[0].op)
        tf.group(*made, name="all")
    return graph, feeds


def theirs(tf, graph, feeds, threads, seconds):
    """Returns the median seconds of a step in TensorFlow."""
    off = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    off.graph_options.rewrite_options.disable_meta_optimizer = True
    off.graph_options.optimizer_options.opt_level = -1
    with tf.compat.v1.Session(graph=graph, config=off) as session:
        run = session.make_callable([graph.get_operation_by_name("all")], feed_list=list(feeds))
        values, times = list(feeds.values()), []
        for _ in range(2):
            run(*values)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            begin = time.perf_counter()
            run(*values)
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def ours(binary, path, feeds, threads, seconds):
    done = call([binary, "bench", path, "--feeds", feeds, "--target", "all", "--threads", threads, "--seconds", seconds,
                 "--no-optimize", "--json"])
    return last_json(done)["median_s"]


def main():
    options = parser(__doc__)
    options.add_argument("ops", nargs="*")
    options.add_argument("--threads", default="1,2")
    options.add_argument("--sizes", default=",".join(SIZES))
    options.add_argument("--seconds", type=float, default=0.15)
    options.add_argument("--json", help="a file to add the figures to, one line each")
    options.add_argument("--part", default="1/1", help="I/N: only the ops at I, I + N, …")
    options.add_argument("--show", help="a file of figures to show, instead of running")
    options = options.parse_args()
    if options.show:
        show([json.loads(line) for line in open(options.show)])
        return
    threads = [int(n) for n in options.threads.split(",")]
    if len(threads) > 1:
        # Sessions of one process share their threads: each number has a process of its own.
        with tempfile.TemporaryDirectory() as folder:
            file = options.json or Path(folder) / "figures.jsonl"
            for n in threads:
                command = [sys.executable, __file__, *sys.argv[1:], "--threads", str(n), "--json", str(file)]
                subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            show([json.loads(line) for line in open(file)])
        return
    sizes = options.sizes.split(",")
    import tensorflow as tf

    part, parts = (int(n) for n in options.part.split("/"))
    figures = []
    for op, make in list(cases().items())[part - 1::parts]:
        if options.ops and op not in options.ops:
            continue
        for size in sizes:
            inputs, attrs = make(SIZES[size])
            copies = 4 if size == "large" else 16
            with tempfile.TemporaryDirectory() as folder:
                try:
                    graph, feeds = build(tf, op, inputs, attrs, copies)
                    path, file = Path(folder) / "op.pb", Path(folder) / "feeds.npz"
                    path.write_bytes(graph.as_graph_def().SerializeToString())
                    np.savez(file, **{k: x.astype("S") if x.dtype == object else x for k, x in feeds.items()})
                    for n in threads:
                        a = theirs(tf, graph, feeds, n, options.seconds)
                        b = ours(options.ferroflow, path, file, n, options.seconds)
                        figures.append([op, size, n, a / copies, b / copies])
                        if options.json:
                            with open(options.json, "a") as out:
                                out.write(json.dumps(figures[-1]) + "\n")
                except Exception as e:  # a row that cannot run is a row of the table
                    print(f"{op} {size}: {str(e)[-200:]}", file=sys.stderr)
    show(figures)


def show(figures):
    """Prints the ratios as a table, the last figure of each kind, and those that are behind."""
    last = {(op, f"{size} x{n}"): (a, b) for op, size, n, a, b in figures}
    columns = [f"{size} x{n}" for size in SIZES for n in sorted({n for _, _, n, _, _ in figures})]
    rows, behind = [], []
    for op in cases():
        of = {column: last[op, column] for column in columns if (op, column) in last}
        if not of:
            continue
        rows.append([op, *(f"{of[c][0] / of[c][1]:.2f}" if c in of else "-" for c in columns)])
        wanted = 1.5 if op in MORE else 1.0
        for column, (a, b) in of.items():
            if a / b < wanted:
                behind.append((a / b / wanted, f"{op} {column}: {a * 1e6:.1f} us, ours {b * 1e6:.1f} us"))
    print(heading(), "\n")
    print(table(["op", *columns], rows))
    print(f"\n{len(behind)} figures are behind what is wanted:")
    for _, line in sorted(behind):
        print("  " + line)


if __name__ == "__main__":
    main()
