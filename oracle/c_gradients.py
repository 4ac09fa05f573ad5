"""Writes crates/capi/rows/gradients.txt: the nodes that TF_AddGradients of TensorFlow's own library adds to graphs.

    python oracle/c_gradients.py

A row is a title `== name`, the graph as GraphDef text, the arguments `dy / dx`, and, after `--`, the new nodes in the
order in which they were added and the gradients, or the error.
"""

import ctypes
import os
import pathlib

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import node_def_pb2, types_pb2

OUT = pathlib.Path(__file__).parent.parent / "crates/capi/rows/gradients.txt"
raw = tf.raw_ops
v1 = tf.compat.v1
CASES = {}


class Output(ctypes.Structure):
    _fields_ = [("oper", ctypes.c_void_p), ("index", ctypes.c_int)]


class Buffer(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("free", ctypes.c_void_p)]


C = ctypes.CDLL(os.path.join(tf.sysconfig.get_lib(), "libtensorflow_cc.so.2"))
FRAMEWORK = ctypes.CDLL(os.path.join(tf.sysconfig.get_lib(), "libtensorflow_framework.so.2"))


def call(name, *args, returns=None):
    library = C if hasattr(C, name) else FRAMEWORK
    function = getattr(library, name)
    function.restype = returns
    return function(*args)


def pointer(name, *args):
    return ctypes.c_void_p(call(name, *args, returns=ctypes.c_void_p))


def case(name, ys, xs, dys=()):
    """Enters the default graph, which has these tensors."""
    graph = v1.get_default_graph().as_graph_def(add_shapes=False)
    for node in graph.node:
        node.attr.pop("_output_shapes", None)
    as_list = lambda v: list(v) if isinstance(v, (list, tuple)) else [v]
    names = [[t.name for t in as_list(v)] for v in (ys, xs, dys)]
    assert name not in CASES, name
    CASES[name] = (graph, *names)


def tensor_text(proto):
    array = tf.make_ndarray(proto)
    kind = types_pb2.DataType.Name(proto.dtype)[3:].lower()
    values = ", ".join(repr(v) for v in array.flatten().tolist())
    return f"{kind}[{','.join(map(str, array.shape))}] {values}"


def value_text(value):
    kind = value.WhichOneof("value")
    if kind == "type":
        return types_pb2.DataType.Name(value.type)[3:].lower()
    if kind == "i":
        return str(value.i)
    if kind == "b":
        return str(value.b).lower()
    if kind == "f":
        return np.format_float_positional(np.float32(value.f), trim="0")
    if kind == "s":
        return f'"{value.s.decode()}"'
    if kind == "tensor":
        return tensor_text(value.tensor)
    if kind == "func":
        return value.func.name + attrs_text(value.func.attr)
    items = value.list
    parts = [str(i) for i in items.i]
    parts += [types_pb2.DataType.Name(t)[3:].lower() for t in items.type]
    parts += [f'"{s.decode()}"' for s in items.s]
    return f"[{', '.join(parts)}]"


def attrs_text(attrs):
    return "{" + ", ".join(f"{k}={value_text(attrs[k])}" for k in sorted(attrs)) + "}"


def node_text(node):
    data = [i for i in node.input if not i.startswith("^")]
    control = [" " + i for i in node.input if i.startswith("^")]
    device = f" on {node.device}" if node.device else ""
    return f"{node.name} = {node.op}{attrs_text(node.attr)}({', '.join(data)}){''.join(control)}{device}"


def run(graph_def, ys, xs, dys):
    """The new nodes and the gradients, or the error."""
    status, graph = pointer("TF_NewStatus"), pointer("TF_NewGraph")
    data = graph_def.SerializeToString()
    buffer = pointer("TF_NewBufferFromString", data, ctypes.c_size_t(len(data)))
    options = pointer("TF_NewImportGraphDefOptions")
    call("TF_GraphImportGraphDef", graph, buffer, options, status)
    code = lambda: call("TF_GetCode", status, returns=ctypes.c_int)
    message = lambda: call("TF_Message", status, returns=ctypes.c_char_p).decode()
    assert code() == 0, message()

    def outputs(names):
        array = (Output * max(len(names), 1))()
        for i, name in enumerate(names):
            node, slot = name.split(":")
            oper = call("TF_GraphOperationByName", graph, node.encode(), returns=ctypes.c_void_p)
            array[i] = Output(oper, int(slot))
        return array

    results = (Output * len(xs))()
    given = outputs(dys) if dys else None
    call("TF_AddGradients", graph, outputs(ys), len(ys), outputs(xs), len(xs), given, status, results)
    if code():
        return [f"{code()}: {message()}"]
    lines = []
    position = ctypes.c_size_t(0)
    while True:
        oper = pointer("TF_GraphNextOperation", graph, ctypes.byref(position))
        if not oper.value:
            break
        out = pointer("TF_NewBuffer")
        call("TF_OperationToNodeDef", oper, out, status)
        held = ctypes.cast(out, ctypes.POINTER(Buffer)).contents
        node = node_def_pb2.NodeDef.FromString(ctypes.string_at(held.data, held.length))
        if node.name not in {n.name for n in graph_def.node}:
            lines.append(node_text(node))
    name = lambda o: call("TF_OperationName", ctypes.c_void_p(o.oper), returns=ctypes.c_char_p).decode()
    found = [f"{name(o)}:{o.index}" if o.oper else "none" for o in results]
    return lines + ["return " + ", ".join(found)]


def x(name="x", dtype=tf.float32, shape=None):
    return v1.placeholder(dtype, shape, name)


def const(value, name, dtype=tf.int32):
    return tf.constant(value, dtype, name=name)


def unary():
    ops = """Abs Neg Inv Reciprocal Square Sqrt Rsqrt Exp Expm1 Log Log1p Sinh Cosh Tanh Asinh Acosh Atanh Sigmoid Sign
    Sin Cos Asin Acos Tan Atan Erf Erfinv Ndtri Lgamma Relu Relu6 Elu Selu Softplus Softsign Softmax LogSoftmax L2Loss
    Identity Diag DiagPart MatrixDiag Squeeze StopGradient ZerosLike Floor Shape LRN Conj Real Imag Angle
    Ceil Round Digamma OnesLike Erfc Cholesky""".split()
    for name in ops:
        complex_only = name in ("Conj", "Real", "Imag", "Angle")
        with tf.Graph().as_default():
            i = x(dtype=tf.complex64 if complex_only else tf.float32)
            args = {next(iter(raw.__dict__[name].__signature__.parameters)): i}
            case(name, getattr(raw, name)(**args, name="y"), i)
    for name, dtype in [("Square", "complex64"), ("Tanh", "complex128"), ("Exp", "complex64"), ("Erf", "float64"),
                        ("Atan", "float16"), ("Acos", "bfloat16"), ("Abs", "int32")]:
        with tf.Graph().as_default():
            i = x(dtype=tf.as_dtype(dtype))
            case(f"{name} of {dtype}", getattr(raw, name)(x=i, name="y"), i)


def binary():
    ops = """Add AddV2 Sub Mul Div RealDiv DivNoNan SquaredDifference Pow Maximum Minimum Atan2 MatMul BatchMatMul
    BatchMatMulV2 BatchMatMulV3 BiasAdd Less FloorDiv FloorMod Xlogy Igamma MulNoNan""".split()
    for name in ops:
        with tf.Graph().as_default():
            a, b = x("a"), x("b")
            names = list(raw.__dict__[name].__signature__.parameters)
            more = {"Tout": tf.float32} if name == "BatchMatMulV3" else {}
            y = getattr(raw, name)(**{names[0]: a, names[1]: b}, **more, name="y")
            case(name, y, [a, b])
    for flags in [(True, False), (False, True), (True, True)]:
        for name in ["MatMul", "BatchMatMulV2"]:
            with tf.Graph().as_default():
                a, b = x("a"), x("b")
                if name == "MatMul":
                    y = raw.MatMul(a=a, b=b, transpose_a=flags[0], transpose_b=flags[1], name="y")
                else:
                    y = raw.BatchMatMulV2(x=a, y=b, adj_x=flags[0], adj_y=flags[1], name="y")
                case(f"{name} {flags}", y, [a, b])
    for name in ["Mul", "RealDiv", "Pow"]:
        with tf.Graph().as_default():
            a, b = x("a", tf.complex64), x("b", tf.complex64)
            case(f"{name} of complex64", getattr(raw, name)(x=a, y=b, name="y"), [a, b])
    with tf.Graph().as_default():
        a, b = x("a"), x("b")
        case("Complex", raw.Complex(real=a, imag=b, name="y"), [a, b])
    with tf.Graph().as_default():
        a, b = x("a"), x("b")
        y = raw.SoftmaxCrossEntropyWithLogits(features=a, labels=b, name="y")
        case("SoftmaxCrossEntropyWithLogits", y[0], [a, b])
        case("SoftmaxCrossEntropyWithLogits, second order", [y[0], y[1]], [a, b])


def with_constants():
    def one(name, build, title=None, **of):
        with tf.Graph().as_default():
            i = x(**of)
            y = build(i)
            case(title or name, y, i)

    axes = lambda: const([1], "axes")
    for name in ["Sum", "Mean", "Prod", "Max", "Min"]:
        reduce = getattr(raw, name)
        one(name, lambda i: reduce(input=i, axis=axes(), name="y"))
        one(name, lambda i: reduce(input=i, axis=axes(), keep_dims=True, name="y"), f"{name}, kept")
    one("Sum of int64 axes", lambda i: raw.Sum(input=i, axis=const([0], "axes", tf.int64), name="y"))
    one("Cumsum", lambda i: raw.Cumsum(x=i, axis=const(0, "axis"), exclusive=True, name="y"))
    one("Cumprod", lambda i: raw.Cumprod(x=i, axis=const(0, "axis"), name="y"))
    one("ArgMax", lambda i: raw.ArgMax(input=i, dimension=const(0, "axis"), name="y"))
    one("TopKV2", lambda i: raw.TopKV2(input=i, k=const(1, "k"), name="y")[0])
    one("Cast", lambda i: raw.Cast(x=i, DstT=tf.float64, name="y"))
    one("Cast to int32", lambda i: raw.Cast(x=i, DstT=tf.int32, name="y"))
    one("Reshape", lambda i: raw.Reshape(tensor=i, shape=const([4], "shape"), name="y"))
    one("ExpandDims", lambda i: raw.ExpandDims(input=i, axis=const(0, "axis"), name="y"))
    one("Transpose", lambda i: raw.Transpose(x=i, perm=const([1, 0], "perm"), name="y"))
    one("ReverseV2", lambda i: raw.ReverseV2(tensor=i, axis=axes(), name="y"))
    lengths = lambda: const([1, 2], "lengths")
    one("ReverseSequence", lambda i: raw.ReverseSequence(input=i, seq_lengths=lengths(), seq_dim=1, name="y"))
    one("Fill", lambda i: raw.Fill(dims=const([2, 3], "dims"), value=i, name="y"))
    one("Tile", lambda i: raw.Tile(input=i, multiples=const([2, 1], "multiples"), name="y"))
    one("BroadcastTo", lambda i: raw.BroadcastTo(input=i, shape=const([2, 2], "shape"), name="y"))
    one("Slice", lambda i: raw.Slice(input=i, begin=const([0, 1], "begin"), size=const([1, 1], "size"), name="y"))
    strided = dict(begin_mask=1, end_mask=2, shrink_axis_mask=1)
    one("StridedSlice", lambda i: raw.StridedSlice(
        input=i, begin=const([0, 1], "b"), end=const([1, 2], "e"), strides=const([1, 1], "s"), **strided, name="y"))
    pads = lambda: const([[1, 0], [0, 1]], "paddings")
    one("Pad", lambda i: raw.Pad(input=i, paddings=pads(), name="y"))
    one("PadV2", lambda i: raw.PadV2(input=i, paddings=pads(), constant_values=const(1, "v", tf.float32), name="y"))
    one("MirrorPad", lambda i: raw.MirrorPad(input=i, paddings=pads(), mode="SYMMETRIC", name="y"))
    one("MirrorPadGrad", lambda i: raw.MirrorPadGrad(input=i, paddings=pads(), mode="REFLECT", name="y"))
    one("Split", lambda i: raw.Split(axis=const(0, "axis"), value=i, num_split=2, name="y")[0])
    one("SplitV", lambda i: raw.SplitV(
        value=i, size_splits=const([1, 1], "sizes"), axis=const(0, "axis"), num_split=2, name="y")[1])
    one("Unpack", lambda i: raw.Unpack(value=i, num=2, axis=1, name="y")[1])
    one("Roll", lambda i: raw.Roll(input=i, shift=const([1], "shift"), axis=const([0], "axis"), name="y"))
    one("MatrixBandPart", lambda i: raw.MatrixBandPart(
        input=i, num_lower=const(1, "l", tf.int64), num_upper=const(0, "u", tf.int64), name="y"))
    ids = lambda dtype=tf.int32: const([0, 1], "ids", dtype)
    one("SegmentSum", lambda i: raw.SegmentSum(data=i, segment_ids=ids(), name="y"))
    for name in ["UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd"]:
        segment = getattr(raw, name)
        one(name, lambda i: segment(data=i, segment_ids=ids(), num_segments=const(2, "n"), name="y"))
    one("GatherNd", lambda i: raw.GatherNd(params=i, indices=const([[1]], "ids", tf.int64), name="y"))
    one("Gather", lambda i: raw.Gather(params=i, indices=ids(), name="y"))
    one("GatherV2", lambda i: raw.GatherV2(params=i, indices=ids(), axis=const(1, "axis"), name="y"))
    one("GatherV2 of batches", lambda i: raw.GatherV2(
        params=i, indices=const([[0], [1]], "ids", tf.int64), axis=const(2, "axis"), batch_dims=1, name="y"))
    one("GatherV2 of negative batch_dims", lambda i: raw.GatherV2(
        params=i, indices=ids(), axis=const(0, "axis"), batch_dims=-1, name="y"))
    one("ScatterNd", lambda i: raw.ScatterNd(
        indices=const([[0]], "ids"), updates=i, shape=const([3], "shape"), name="y"))
    one("DynamicPartition", lambda i: raw.DynamicPartition(data=i, partitions=ids(), num_partitions=2, name="y")[0])
    one("CheckNumerics", lambda i: raw.CheckNumerics(tensor=i, message="where", name="y"))
    one("LeakyRelu", lambda i: raw.LeakyRelu(features=i, alpha=0.3, name="y"))
    one("OneHot", lambda i: raw.OneHot(
        indices=raw.Cast(x=i, DstT=tf.int32, name="i"), depth=const(3, "depth"), on_value=const(1, "on", tf.float32),
        off_value=const(0, "off", tf.float32), name="y"))
    one("SpaceToDepth", lambda i: raw.SpaceToDepth(input=i, block_size=2, name="y"))
    one("DepthToSpace", lambda i: raw.DepthToSpace(input=i, block_size=2, name="y"))
    crops = lambda name: const([[0, 0], [0, 0]], name)
    one("SpaceToBatch", lambda i: raw.SpaceToBatch(input=i, paddings=crops("p"), block_size=2, name="y"))
    one("BatchToSpace", lambda i: raw.BatchToSpace(input=i, crops=crops("p"), block_size=2, name="y"))
    block = lambda: const([2, 2], "block")
    one("SpaceToBatchND", lambda i: raw.SpaceToBatchND(
        input=i, block_shape=block(), paddings=crops("p"), name="y"))
    one("BatchToSpaceND", lambda i: raw.BatchToSpaceND(input=i, block_shape=block(), crops=crops("p"), name="y"))


def several():
    with tf.Graph().as_default():
        a, b = x("a"), x("b")
        case("Pack", raw.Pack(values=[a, b], axis=1, name="y"), [a, b])
    with tf.Graph().as_default():
        a, b = x("a"), x("b")
        case("ConcatV2", raw.ConcatV2(values=[a, b], axis=const(1, "axis"), name="y"), [a, b])
    with tf.Graph().as_default():
        a, b = x("a"), x("b")
        case("AddN", raw.AddN(inputs=[a, b], name="y"), [a, b])
    with tf.Graph().as_default():
        a, b = x("a"), x("b")
        ids = [const([0], "i"), const([1], "j")]
        case("DynamicStitch", raw.DynamicStitch(indices=ids, data=[a, b], name="y"), [a, b])
    for name in ["Select", "SelectV2"]:
        with tf.Graph().as_default():
            c, a, b = x("c", tf.bool), x("a"), x("b")
            y = raw.Select(condition=c, x=a, y=b, name="y") if name == "Select" else raw.SelectV2(
                condition=c, t=a, e=b, name="y")
            case(name, y, [a, b])
    with tf.Graph().as_default():
        a, low, high = x("a"), x("low"), x("high")
        case("ClipByValue", raw.ClipByValue(t=a, clip_value_min=low, clip_value_max=high, name="y"), [a, low, high])
    with tf.Graph().as_default():
        a, b = x("a"), x("b")
        ids = const([[0]], "ids")
        y = raw.ScatterNdNonAliasingAdd(input=a, indices=ids, updates=b, name="y")
        case("ScatterNdNonAliasingAdd", y, [a, b])
    for equation in ["ab,bc->ac", "ab->a", "aab->b", "...ab,...bc->...ac", "ab,cd->ad", "a...b,b->a..."]:
        with tf.Graph().as_default():
            n = equation.count(",") + 1
            inputs = [x(f"x{i}") for i in range(n)]
            case(f"Einsum {equation}", raw.Einsum(inputs=inputs, equation=equation, name="y"), inputs)
    for name, low, high in [("QuantizeAndDequantizeV4", True, False)]:
        with tf.Graph().as_default():
            i, a, b = x(), x("a", shape=[]), x("b", shape=[])
            y = raw.QuantizeAndDequantizeV4(input=i, input_min=a, input_max=b, name="y")
            case(name, y, [i, a, b])
    with tf.Graph().as_default():
        i, a, b = x(), x("a", shape=[]), x("b", shape=[])
        y = raw.QuantizeAndDequantizeV3(input=i, input_min=a, input_max=b, num_bits=const(8, "n"), name="y")
        case("QuantizeAndDequantizeV3", y, i)


def networks():
    image = lambda: x(shape=[None, 8, 8, 2])
    window = dict(ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    for name in ["MaxPool", "AvgPool"]:
        with tf.Graph().as_default():
            i = image()
            value = {"input" if name == "MaxPool" else "value": i}
            case(name, getattr(raw, name)(**value, **window, name="y"), i)
    cube = dict(ksize=[1, 2, 2, 2, 1], strides=[1, 2, 2, 2, 1], padding="VALID")
    for name in ["MaxPool3D", "AvgPool3D"]:
        with tf.Graph().as_default():
            i = x()
            case(name, getattr(raw, name)(input=i, **cube, name="y"), i)
    with tf.Graph().as_default():
        i = image()
        y = raw.MaxPoolV2(input=i, ksize=const([1, 2, 2, 1], "k"), strides=const([1, 2, 2, 1], "s"), padding="VALID",
                          name="y")
        case("MaxPoolV2", y, i)
    with tf.Graph().as_default():
        i, f = image(), x("f")
        case("Conv2D", raw.Conv2D(input=i, filter=f, strides=[1, 1, 1, 1], padding="SAME", name="y"), [i, f])
    with tf.Graph().as_default():
        i, f = image(), x("f")
        y = raw.DepthwiseConv2dNative(input=i, filter=f, strides=[1, 1, 1, 1], padding="SAME", name="y")
        case("DepthwiseConv2dNative", y, [i, f])
    with tf.Graph().as_default():
        i, f = image(), x("f")
        y = raw.Conv2DBackpropInput(input_sizes=const([1, 8, 8, 2], "sizes"), filter=f, out_backprop=i,
                                    strides=[1, 1, 1, 1], padding="SAME", name="y")
        case("Conv2DBackpropInput", y, [f, i])
    for training, layout in [(True, "NHWC"), (False, "NHWC"), (False, "NCHW")]:
        with tf.Graph().as_default():
            i, scale, offset, mean, var = x(), x("scale"), x("offset"), x("mean"), x("var")
            y = raw.FusedBatchNormV3(x=i, scale=scale, offset=offset, mean=mean, variance=var, is_training=training,
                                     data_format=layout, name="y")
            case(f"FusedBatchNormV3 {training} {layout}", y[0], [i, scale, offset])
    for name in ["FractionalAvgPool", "FractionalMaxPool"]:
        with tf.Graph().as_default():
            i = image()
            case(name, getattr(raw, name)(value=i, pooling_ratio=[1.0, 1.4, 1.4, 1.0], name="y")[0], i)
    for name in ["ResizeNearestNeighbor", "ResizeBilinear", "ResizeBicubic"]:
        with tf.Graph().as_default():
            i = image()
            y = getattr(raw, name)(images=i, size=const([4, 4], "size"), half_pixel_centers=True, name="y")
            case(name, y, i)
    with tf.Graph().as_default():
        i, boxes = image(), x("boxes")
        y = raw.CropAndResize(image=i, boxes=boxes, box_ind=const([0], "ind"), crop_size=const([2, 2], "size"),
                              name="y")
        case("CropAndResize", y, [i, boxes])
    with tf.Graph().as_default():
        i = image()
        y = raw.ScaleAndTranslate(images=i, size=const([4, 4], "size"), scale=const([1, 1], "scale", tf.float32),
                                  translation=const([0, 0], "t", tf.float32), name="y")
        case("ScaleAndTranslate", y, i)


def graphs():
    with tf.Graph().as_default():
        i = x()
        case("A value read twice", raw.Mul(x=i, y=i, name="y"), i)
    with tf.Graph().as_default():
        i = x()
        y = raw.Neg(x=raw.Exp(x=i, name="a"), name="b")
        case("A given gradient", y, i, x("dy"))
    with tf.Graph().as_default():
        i = x()
        a = raw.Exp(x=i, name="a")
        b = raw.Sin(x=a, name="b")
        case("A y that another y depends on", [a, b], i)
    with tf.Graph().as_default():
        i = x()
        a = raw.Exp(x=i, name="a")
        b = raw.Sin(x=a, name="b")
        case("An x on the way", b, [i, a])
    with tf.Graph().as_default():
        i = x()
        parts = raw.Unpack(value=i, num=3, name="parts")
        y = raw.Mul(x=parts[0], y=parts[2], name="y")
        case("An output that nothing reads", y, i)
        case("Outputs as xs", y, [parts[0], parts[1]])
    with tf.Graph().as_default():
        i, other = x(), x("other")
        case("Unreachable", raw.Neg(x=i, name="y"), other)
    with tf.Graph().as_default():
        i = x()
        raw.Neg(x=i, name="gradients/Neg")
        case("A name that is taken", raw.Neg(x=i, name="y"), i)
    with tf.Graph().as_default():
        i = x()
        case("Under an op that has none", raw.Neg(x=raw.Digamma(x=i, name="a"), name="y"), i)
    with tf.Graph().as_default():
        p, i = x("p", tf.bool), x()
        switched = raw.Switch(data=i, pred=p, name="s")
        y = raw.Merge(inputs=[switched[0], raw.Neg(x=switched[1], name="n")], name="y")
        case("A conditional", y[0], i)
    with tf.Graph().as_default():
        handle = raw.VarHandleOp(dtype=tf.float32, shape=[], name="v")
        y = raw.Exp(x=raw.ReadVariableOp(resource=handle, dtype=tf.float32, name="r"), name="y")
        case("A variable", y, handle)
    with tf.Graph().as_default():

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
        def double(a):
            return a + a

        i = x(shape=[])
        function = double.get_concrete_function()
        function.add_to_graph(v1.get_default_graph())
        y = raw.PartitionedCall(args=[i], Tout=[tf.float32], f=function, name="y")
        graph = v1.get_default_graph().as_graph_def()
        for node in graph.node:
            name = node.attr["f"].func.name if "f" in node.attr else ""
            if name:
                node.attr["f"].func.name = "double"
        for f in graph.library.function:
            f.signature.name = "double"
            f.attr.clear()
            f.arg_attr.clear()
        del graph.library.function[1:]
        CASES["PartitionedCall"] = (graph, [y[0].name], [i.name], [])


def main():
    unary(), binary(), with_constants(), several(), networks(), graphs()
    lines = [f"# TensorFlow {tf.__version__}; written by oracle/c_gradients.py"]
    for name, (graph, ys, xs, dys) in CASES.items():
        graph.versions.Clear()
        text = text_format.MessageToString(graph, as_one_line=True)
        given = f"; given {' '.join(dys)}" if dys else ""
        lines += [f"== {name}", text, f"{' '.join(ys)} by {' '.join(xs)}{given}", "--", *run(graph, ys, xs, dys)]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")
    print(len(CASES), "cases")


main()
