"""Times single ops in TensorFlow and Ferroflow, in turn, in the forms that `ops.py` leaves out.

Usage: python bench/op_forms.py [WORD...] [--threads 1] [--seconds 0.08] [--ferroflow PATH]

Other dtypes, axes, broadcasts, filters and layouts: some 500 cases of a third of a million elements, a graph of four copies
each. A ratio above 1 means that Ferroflow is faster. WORDs choose the cases whose names contain one of them.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from common import heading, parser
from ops import boxes, f32, i32, ours, rng, spd, theirs, words

N = 300_000
CASES = []


def case(name, op, inputs, **attrs):
    CASES.append((name, op, inputs, attrs))


def ints(*values):
    return np.array(values, np.int32)


def dtypes():
    """Returns, by dtype, a function from a shape to numbers."""
    import tensorflow as tf

    bfloat16 = tf.bfloat16.as_numpy_dtype
    return {
        "float64": lambda *s: rng.uniform(0.1, 1, s),
        "int64": lambda *s: rng.integers(0, 100, s).astype(np.int64),
        "int32": lambda *s: i32(100, *s),
        "uint8": lambda *s: rng.integers(0, 255, s).astype(np.uint8),
        "bfloat16": lambda *s: f32(*s).astype(bfloat16),
        "float16": lambda *s: f32(*s).astype(np.float16),
    }


def of_any_dtype(t, x):
    """Arithmetic, reductions and moves of elements."""
    for op in ("AddV2", "Mul", "Maximum", "Sub", "Less", "Equal"):
        case(f"{op} {t}", op, {"x": x(N), "y": x(N)})
    case(f"AddV2 row {t}", "AddV2", {"x": x(500, 600), "y": x(600)})
    case(f"AddV2 column {t}", "AddV2", {"x": x(500, 600), "y": x(500, 1)})
    for axes in ([0], [1], [0, 1]):
        case(f"Sum {axes} {t}", "Sum", {"input": x(500, 600), "axis": ints(*axes)})
        case(f"Max {axes} {t}", "Max", {"input": x(500, 600), "axis": ints(*axes)})
    case(f"Mean of the middle {t}", "Mean", {"input": x(20, 50, 300), "axis": ints(1)})
    case(f"Transpose {t}", "Transpose", {"x": x(500, 600), "perm": ints(1, 0)})
    case(f"Transpose to NCHW {t}", "Transpose", {"x": x(8, 64, 64, 8), "perm": ints(0, 3, 1, 2)})
    case(f"GatherV2 rows {t}", "GatherV2", {"params": x(1000, 300), "indices": i32(1000, 900), "axis": np.int32(0)})
    case(f"GatherV2 columns {t}", "GatherV2", {"params": x(500, 600), "indices": i32(600, 600), "axis": np.int32(1)})
    case(f"GatherNd {t}", "GatherNd", {"params": x(100, 100, 30), "indices": i32(100, 9000, 2)})
    case(f"ScatterNd {t}", "ScatterNd", {"indices": i32(1000, 5000, 1), "updates": x(5000, 60), "shape": ints(1000, 60)})
    case(f"Pad {t}", "Pad", {"input": x(4, 64, 64, 16), "paddings": ints([0, 0], [1, 1], [1, 1], [0, 0])})
    case(f"MirrorPad {t}", "MirrorPad", {"input": x(300, 300), "paddings": ints([5, 5], [5, 5])}, mode="REFLECT")
    case(f"ConcatV2 {t}", "ConcatV2", {"values": [x(300, 250), x(300, 350), x(300, 400)], "axis": np.int32(1)})
    case(f"Split {t}", "Split", {"axis": np.int32(1), "value": x(300, 900)}, num_split=3)
    case(f"Slice {t}", "Slice", {"input": x(600, 600), "begin": ints(10, 20), "size": ints(500, 500)})
    case(f"StridedSlice {t}", "StridedSlice",
         {"input": x(600, 600), "begin": ints(0, 1), "end": ints(600, 600), "strides": ints(1, 2)})
    case(f"Tile {t}", "Tile", {"input": x(100, 300), "multiples": ints(5, 2)})
    case(f"ReverseV2 {t}", "ReverseV2", {"tensor": x(500, 600), "axis": ints(1)})
    case(f"SelectV2 {t}", "SelectV2", {"condition": f32(N) > 0.5, "t": x(N), "e": x(N)})
    case(f"OneHot {t}", "OneHot", {"indices": i32(100, 3000), "depth": np.int32(100), "on_value": x(), "off_value": x()})
    for axis in (0, 1):
        case(f"ArgMax {axis} {t}", "ArgMax", {"input": x(500, 600), "dimension": np.int32(axis)})
    case(f"TopKV2 {t}", "TopKV2", {"input": x(100, 1000), "k": np.int32(50)})
    case(f"ClipByValue {t}", "ClipByValue", {"t": x(N), "clip_value_min": x(), "clip_value_max": x()})
    case(f"SegmentSum {t}", "SegmentSum", {"data": x(10000, 30), "segment_ids": np.sort(i32(100, 10000))})
    case(f"UnsortedSegmentSum {t}", "UnsortedSegmentSum",
         {"data": x(10000, 30), "segment_ids": i32(100, 10000), "num_segments": np.int32(100)})
    case(f"Cast {t} to float", "Cast", {"x": x(N)}, DstT="float32")
    case(f"Cast float to {t}", "Cast", {"x": f32(N)}, DstT=t)
    case(f"Unique {t}", "Unique", {"x": x(N)})
    if t != "uint8":
        case(f"MatMul {t}", "MatMul", {"a": x(200, 200), "b": x(200, 200)})


def of_floats(t, x):
    """Functions and layers of other floats than `float`."""
    for op in ("Exp", "Tanh", "Sigmoid", "Log", "Sqrt", "Rsqrt", "Erf", "Sin", "Cos", "Log1p", "Atan", "Sinh", "Floor",
               "Round", "Square"):
        case(f"{op} {t}", op, {"x": x(N)})
    case(f"Relu {t}", "Relu", {"features": x(N)})
    case(f"Softplus {t}", "Softplus", {"features": x(N)})
    case(f"Pow {t}", "Pow", {"x": x(N), "y": x(N)})
    case(f"RealDiv {t}", "RealDiv", {"x": x(N), "y": x(N)})
    case(f"Softmax {t}", "Softmax", {"logits": x(500, 600)})
    case(f"LogSoftmax {t}", "LogSoftmax", {"logits": x(500, 600)})
    case(f"BiasAdd {t}", "BiasAdd", {"value": x(500, 600), "bias": x(600)})
    case(f"Conv2D {t}", "Conv2D", {"input": x(2, 28, 28, 32), "filter": x(3, 3, 32, 32)}, strides=[1] * 4, padding="SAME")
    pool = {"ksize": [1, 3, 3, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    case(f"MaxPool {t}", "MaxPool", {"input": x(2, 56, 56, 32)}, **pool)
    case(f"AvgPool {t}", "AvgPool", {"value": x(2, 56, 56, 32)}, **pool)
    case(f"BatchMatMulV2 {t}", "BatchMatMulV2", {"x": x(8, 64, 64), "y": x(8, 64, 64)})


def functions():
    """Elementwise functions of `float` and of integers that `ops.py` leaves out."""
    for op in ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan", "Cos", "Log1p", "Expm1", "Lgamma",
               "Digamma", "Erfc", "Erfinv", "Ndtri", "BesselI0e", "Ceil", "Rint", "IsNan", "IsFinite", "Inv"):
        case(op, op, {"x": f32(N) + (op == "Acosh")})
    for op in ("Selu", "Softsign", "LeakyRelu"):
        case(op, op, {"features": f32(N)})
    for op in ("FloorMod", "FloorDiv", "Xdivy", "Xlogy", "TruncateDiv", "Mod", "DivNoNan", "NotEqual", "LessEqual"):
        case(f"{op} float", op, {"x": f32(N) + 1, "y": f32(N)})
    case("Atan2", "Atan2", {"y": f32(N), "x": f32(N)})
    case("Igamma", "Igamma", {"a": f32(N), "x": f32(N)})
    case("Zeta", "Zeta", {"x": f32(N) + 1, "q": f32(N)})
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift"):
        case(op, op, {"x": i32(100, N), "y": i32(9, N)})
    case("LogicalOr", "LogicalOr", {"x": f32(N) > 0.5, "y": f32(N) > 0.5})
    case("LogicalNot", "LogicalNot", {"x": f32(N) > 0.5})
    for op in ("Prod", "Min", "EuclideanNorm"):
        for axes in ([0], [1], [0, 1]):
            case(f"{op} {axes}", op, {"input": f32(500, 600), "axis": ints(*axes)})
    case("Mean of images", "Mean", {"input": f32(8, 28, 28, 64), "axis": ints(1, 2)})
    case("Sum of both ends", "Sum", {"input": f32(30, 100, 100), "axis": ints(0, 2)})
    for op, key in (("ReluGrad", "features"), ("SigmoidGrad", "y"), ("TanhGrad", "y")):
        dy = "gradients" if op == "ReluGrad" else "dy"
        case(op, op, {key: f32(N), dy: f32(N)})
    case("FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVars", {"inputs": f32(N), "min": np.float32(0), "max": np.float32(1)})
    case("QuantizeV2", "QuantizeV2", {"input": f32(N), "min_range": np.float32(0), "max_range": np.float32(1)}, T="quint8")
    complex64 = f32(N).astype(np.complex64)
    case("Mul complex64", "Mul", {"x": complex64, "y": complex64})
    case("ComplexAbs", "ComplexAbs", {"x": complex64})


def convolutions():
    for name, x, w, stride, more in (
        ("1x1", f32(1, 28, 28, 256), f32(1, 1, 256, 256), 1, {}), ("3x3, batch 8", f32(8, 28, 28, 64), f32(3, 3, 64, 64), 1, {}),
        ("7x7, stride 2", f32(1, 224, 224, 3), f32(7, 7, 3, 64), 2, {}), ("5x5", f32(1, 28, 28, 48), f32(5, 5, 48, 64), 1, {}),
        ("3x3, stride 2", f32(1, 56, 56, 64), f32(3, 3, 64, 128), 2, {}),
        ("dilated", f32(1, 56, 56, 32), f32(3, 3, 32, 32), 1, {"dilations": [1, 2, 2, 1]}),
        ("first layer", f32(1, 224, 224, 3), f32(3, 3, 3, 16), 2, {}), ("digits", f32(32, 28, 28, 1), f32(3, 3, 1, 32), 1, {}),
        ("expanding", f32(1, 112, 112, 16), f32(1, 1, 16, 96), 1, {}), ("last layer", f32(1, 7, 7, 512), f32(3, 3, 512, 512), 1, {}),
        ("11x11, stride 4", f32(1, 224, 224, 3), f32(11, 11, 3, 64), 4, {}), ("1x7", f32(1, 17, 17, 128), f32(1, 7, 128, 128), 1, {}),
        ("grouped", f32(1, 28, 28, 64), f32(3, 3, 16, 64), 1, {}), ("20 channels", f32(1, 56, 56, 20), f32(3, 3, 20, 20), 1, {}),
    ):
        case(f"Conv2D {name}", "Conv2D", {"input": x, "filter": w}, strides=[1, stride, stride, 1], padding="SAME", **more)
    sizes = {"strides": [1] * 4, "padding": "SAME"}
    case("Conv2DBackpropInput", "Conv2DBackpropInput",
         {"input_sizes": ints(8, 28, 28, 32), "filter": f32(3, 3, 32, 64), "out_backprop": f32(8, 28, 28, 64)}, **sizes)
    case("Conv2DBackpropFilter", "Conv2DBackpropFilter",
         {"input": f32(8, 28, 28, 32), "filter_sizes": ints(3, 3, 32, 64), "out_backprop": f32(8, 28, 28, 64)}, **sizes)
    case("Conv3D", "Conv3D", {"input": f32(1, 16, 28, 28, 16), "filter": f32(3, 3, 3, 16, 32)}, strides=[1] * 5, padding="SAME")
    case("DepthwiseConv2dNative 5x5", "DepthwiseConv2dNative", {"input": f32(1, 56, 56, 96), "filter": f32(5, 5, 96, 1)},
         strides=[1, 2, 2, 1], padding="SAME")
    case("LRN", "LRN", {"input": f32(2, 28, 28, 64)})
    for training in (False, True):
        n = 0 if training else 64
        case(f"FusedBatchNormV3 training {training}", "FusedBatchNormV3",
             {"x": f32(4, 28, 28, 64), "scale": f32(64), "offset": f32(64), "mean": f32(n), "variance": f32(n)},
             is_training=training)


def products():
    for name, a, b, more in (
        ("1x512x512", f32(1, 512), f32(512, 512), {}), ("128x768x768", f32(128, 768), f32(768, 768), {}),
        ("transposed right", f32(128, 256), f32(512, 256), {"transpose_b": True}),
        ("transposed left", f32(256, 128), f32(256, 512), {"transpose_a": True}), ("tall", f32(10000, 32), f32(32, 32), {}),
        ("7x7", f32(7, 7), f32(7, 7), {}), ("outer", f32(1000, 1), f32(1, 1000), {}), ("column", f32(1000, 1000), f32(1000, 1), {}),
        ("64x784x10", f32(64, 784), f32(784, 10), {}), ("complex", *[f32(100, 100).astype(np.complex64)] * 2, {}),
    ):
        case(f"MatMul {name}", "MatMul", {"a": a, "b": b}, **more)
    for name, x, y, more in (
        ("scores", f32(12, 128, 64), f32(12, 128, 64), {"adj_y": True}), ("attention", f32(12, 128, 128), f32(12, 128, 64), {}),
        ("8x8", f32(1000, 8, 8), f32(1000, 8, 8), {}), ("broadcast", f32(16, 64, 64), f32(64, 64), {}),
    ):
        case(f"BatchMatMulV2 {name}", "BatchMatMulV2", {"x": x, "y": y}, **more)
    for equation, *inputs in (
        ("bqhd,bkhd->bhqk", f32(2, 128, 8, 64), f32(2, 128, 8, 64)), ("i,j->ij", f32(300), f32(400)),
        ("abc,cde->abde", f32(2, 64, 256), f32(256, 8, 32)), ("ii->", f32(300, 300)),
    ):
        case(f"Einsum {equation}", "Einsum", {"inputs": inputs}, equation=equation)
    case("Cholesky 100", "Cholesky", {"input": spd(100)})
    case("Cholesky, a batch", "Cholesky", {"input": np.stack([spd(8)] * 200)})
    case("MatrixTriangularSolve", "MatrixTriangularSolve", {"matrix": np.tril(spd(200)), "rhs": f32(200, 50)})
    case("Qr tall", "Qr", {"input": f32(500, 50)})
    case("FFT 1009", "FFT", {"input": f32(50, 1009).astype(np.complex64)})
    case("RFFT2D", "RFFT2D", {"input": f32(4, 128, 128), "fft_length": ints(128, 128)})


def others():
    """Images, sparse tensors, strings, random numbers and moves."""
    image, size = f32(1, 128, 128, 3), ints(224, 224)
    for op in ("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea"):
        case(op, op, {"images": image, "size": ints(64, 64) if op == "ResizeArea" else size})
    case("CropAndResize", "CropAndResize", {"image": f32(1, 64, 64, 32), "boxes": boxes(50), "box_ind": np.zeros(50, np.int32),
                                            "crop_size": ints(7, 7)})
    case("RGBToHSV", "RGBToHSV", {"images": f32(1, 200, 200, 3)})
    case("SpaceToDepth", "SpaceToDepth", {"input": f32(1, 64, 64, 32)}, block_size=2)
    rows = np.stack([np.sort(i32(500, 3000)), i32(400, 3000)], 1).astype(np.int64)
    case("SparseTensorDenseMatMul", "SparseTensorDenseMatMul",
         {"a_indices": rows, "a_values": f32(3000), "a_shape": np.int64([500, 400]), "b": f32(400, 64)})
    case("SparseSegmentMean", "SparseSegmentMean",
         {"data": f32(1000, 64), "indices": i32(1000, 4000), "segment_ids": np.sort(i32(300, 4000))})
    case("SparseReorder", "SparseReorder",
         {"input_indices": i32(300, 5000, 2).astype(np.int64), "input_values": f32(5000), "input_shape": np.int64([300, 300])})
    case("SparseToDense", "SparseToDense",
         {"sparse_indices": np.sort(rng.choice(100_000, 5000, replace=False)).astype(np.int64),
          "output_shape": np.int64([100_000]), "sparse_values": f32(5000), "default_value": np.float32(0)})
    case("Bincount", "Bincount", {"arr": i32(1000, N), "size": np.int32(1000), "weights": f32(0)})
    for op in ("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2"):
        case(op, op, {"shape": ints(N), "key": np.uint64([1]), "counter": np.uint64([1, 2]), "alg": np.int32(1)})
    texts = words(3000, 40)
    for op in ("StringLength", "StringUpper", "StringStrip", "EncodeBase64"):
        case(op, op, {"input": texts})
    case("RegexReplace", "RegexReplace",
         {"input": texts, "pattern": np.array("[aeiou]+", object), "rewrite": np.array("_", object)})
    case("RegexFullMatch", "RegexFullMatch", {"input": texts, "pattern": np.array(".*abc.*", object)})
    case("AsString float", "AsString", {"input": f32(3000)})
    case("UnicodeDecodeWithOffsets", "UnicodeDecodeWithOffsets", {"input": texts}, input_encoding="UTF-8")
    case("Unique of texts", "Unique", {"x": words(3000, 3)})
    case("GatherV2 of texts", "GatherV2", {"params": texts, "indices": i32(3000, 3000), "axis": np.int32(0)})
    case("DecodeRaw", "DecodeRaw", {"bytes": np.array([b"x" * 4000] * 100, object)}, out_type="float32")
    case("InTopKV2", "InTopKV2", {"predictions": f32(1000, 100), "targets": i32(100, 1000), "k": np.int32(5)})
    case("Range", "Range", {"start": np.int32(0), "limit": np.int32(N), "delta": np.int32(1)})
    case("LinSpace", "LinSpace", {"start": np.float32(0), "stop": np.float32(9), "num": np.int32(N)})
    case("InvertPermutation", "InvertPermutation", {"x": rng.permutation(N).astype(np.int32)})
    case("Roll", "Roll", {"input": f32(500, 600), "shift": ints(3), "axis": ints(1)})
    case("UpperBound", "UpperBound", {"sorted_inputs": np.sort(f32(1, 10000)), "values": f32(1, 10000)})
    case("Where, few", "Where", {"condition": f32(500, 600) > 0.99})
    case("DynamicPartition", "DynamicPartition", {"data": f32(3000, 100), "partitions": i32(4, 3000)}, num_partitions=4)
    case("TensorScatterAdd", "TensorScatterAdd",
         {"tensor": f32(3000, 100), "indices": i32(3000, 500, 1), "updates": f32(500, 100)})
    case("Pack", "Pack", {"values": [f32(300, 300)] * 4}, axis=1)
    case("Unpack", "Unpack", {"value": f32(300, 8, 100)}, num=8, axis=1)


# Inputs that a graph usually has as constants.
CONSTANTS = {"axis", "perm", "paddings", "begin", "end", "strides", "size", "multiples", "depth", "k", "dimension", "shape",
             "num_segments", "num_split", "input_sizes", "filter_sizes", "fft_length", "crop_size"}
TYPES = {"DstT", "T", "out_type"}


def build(tf, op, inputs, attrs, copies):
    """Returns the graph with the copies of an op and what is fed."""
    graph, feeds = tf.Graph(), {}
    with graph.as_default():
        def given(key, x):
            x = np.asarray(x)
            if key in CONSTANTS:
                return tf.constant(x)
            name = f"in{len(feeds)}"
            feeds[name + ":0"] = x
            return tf.compat.v1.placeholder(tf.string if x.dtype == object else x.dtype, x.shape, name)

        args = {k: [given(k, x) for x in v] if isinstance(v, list) else given(k, v) for k, v in inputs.items()}
        attrs = {k: tf.as_dtype(v) if k in TYPES else v for k, v in attrs.items()}
        made = []
        for _ in range(copies):
            result = getattr(tf.raw_ops, op)(**args, **attrs)
            made.append((result[0] if isinstance(result, (list, tuple)) else result).op)
        tf.group(*made, name="all")
    return graph, feeds


def main():
    options = parser(__doc__)
    options.add_argument("words", nargs="*")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--seconds", type=float, default=0.08)
    options = options.parse_args()
    import tensorflow as tf

    by_dtype = dtypes()
    for t, x in by_dtype.items():
        of_any_dtype(t, x)
    for t in ("float64", "bfloat16", "float16"):
        of_floats(t, by_dtype[t])
    for more in (functions, convolutions, products, others):
        more()
    figures = []
    for name, op, inputs, attrs in CASES:
        if options.words and not any(word in name for word in options.words):
            continue
        try:
            graph, feeds = build(tf, op, inputs, attrs, 4)
            with tempfile.TemporaryDirectory() as folder:
                path, file = Path(folder) / "op.pb", Path(folder) / "feeds.npz"
                path.write_bytes(graph.as_graph_def().SerializeToString())
                np.savez(file, **{k: x.astype("S") if x.dtype == object else x for k, x in feeds.items()})
                a = theirs(tf, graph, feeds, options.threads, options.seconds) / 4
                b = ours(options.ferroflow, path, file, options.threads, options.seconds) / 4
        except Exception as e:  # a case that cannot run is told, the others go on
            print(f"{name}: {str(e)[-200:]}", file=sys.stderr)
            continue
        figures.append((a / b, name))
        print(f"{a / b:6.2f}  {name}: {a * 1e6:.1f} us, ours {b * 1e6:.1f} us", flush=True)
    behind = sorted(figure for figure in figures if figure[0] < 1)
    print(f"\n{heading()}; {len(behind)} of {len(figures)} cases are behind:")
    for ratio, name in behind:
        print(f"  {ratio:.2f} {name}")


if __name__ == "__main__":
    main()
