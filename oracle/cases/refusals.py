"""Inputs with several faults: which check of TensorFlow comes first, and its words. And what it accepts."""

import numpy as np
import tensorflow as tf

from casekit import NUMPY, a, case, empty, i32, i64


def f(*shape, dtype="float"):
    """Numbers that do not matter."""
    return np.ones(shape, NUMPY[dtype])


def n(*shape):
    return f(*shape, dtype="int32")


def s(*shape):
    return np.full(shape, b"x", object)


def cases():
    for group in (joins, indices, matrices, random, segments, records, images, decoders,
                  neural, quantized, sparse_and_ragged, numbers):
        for op, inputs, attrs in group():
            yield case(op, *inputs, fails=True, **attrs)
    for op, inputs, attrs in accepted():
        yield case(op, *inputs, **attrs)


def accepted():
    yield "UnravelIndex", [i32(-1, -7, 5), i32(2, 3)], {}
    yield "UnravelIndex", [i32(0), empty("int32", 0)], {}
    yield "Reverse", [f(), f(1, 2, dtype="bool")], {}
    for op in ("Sum", "Mean", "SqrtN"):
        for grad in ("Grad", "GradV2"):
            yield f"SparseSegment{op}{grad}", [f(3, 1), i32(0, 1, 1), i32(2, 0, 1), np.int32(2)], {}
            yield f"SparseSegment{op}{grad}", [f(3, 1), i32(5), i32(0), np.int32(0)], {}
    yield "QuantizeAndDequantizeV4Grad", [f(2), f(2), f() * 2, f()], {}
    yield "MaxPoolGrad", [f(1, 1, 1, 1)] * 3, {
        "ksize": [1] * 4, "strides": [1] * 4, "padding": "SAME", "explicit_paddings": [1] * 8}
    png = tf.io.encode_png(np.full((1, 2, 4), 9, np.uint8)).numpy()
    yield "DecodeJpeg", [np.array(png, object)], {"channels": 4}


def joins():
    yield "Concat", [n(3, 3), [f(2), f(2)]], {}
    yield "ConcatV2", [[f(2), f(2)], n(2)], {}
    yield "ConcatOffset", [n(1), [n(), n()]], {}
    yield "Pack", [[f(3, 3), f(2, 3)]], {"axis": 3}
    yield "Split", [n(1), f(1)], {"num_split": 3}
    yield "SplitV", [f(3), i64(1, 2).reshape(1, 2), i32(0, 1)], {"num_split": 2}
    yield "SplitV", [f(3), i64(1, 2).reshape(1, 2), np.int32(5)], {"num_split": 2}
    yield "SplitV", [f(3), i64(5, -2), np.int32(0)], {"num_split": 2}
    yield "SplitV", [f(3), i64(2), np.int32(0)], {"num_split": 1}
    yield "Fill", [i32(-7), f(3)], {}
    yield "BroadcastTo", [f(), np.int32(2)], {}
    yield "BatchToSpace", [f(3), empty("int32", 0)], {"block_size": 2}
    yield "SpaceToBatch", [f(1, 2, 2, 1), n(1, 4)], {"block_size": 2}
    yield "Reverse", [f(0, 2), f(1, dtype="bool")], {}
    yield "Roll", [f(3), n(1, 2), n(1)], {}
    yield "ReverseSequence", [f(2, 3), n()], {"seq_dim": 1, "batch_dim": 0}
    yield "ReverseSequence", [f(2, 2), n(2)], {"seq_dim": 2, "batch_dim": 3}
    for op in ("UniqueV2", "UniqueWithCountsV2"):
        yield op, [f(3), n()], {}
    for op in ("DynamicStitch", "ParallelDynamicStitch"):
        yield op, [[i32(0), i32(1, -1)], [f(), f(3)]], {}


def indices():
    yield "GatherV2", [f(3), n(2), n(1)], {}
    yield "GatherV2", [f(3), n(2), np.int64(2)], {}
    yield "GatherNd", [empty("float", 2, 0, 3), n(0)], {}
    yield "GatherNd", [empty("float", 2, 0), n(1, 1)], {}
    yield "GatherNd", [f(2, 2), a("int32", [[0, 5], [1, 1], [7, 0]])], {}
    yield "ScatterNd", [n(), n(2), n(1, 2)], {}
    yield "ScatterNd", [n(2), n(), n(1, 2)], {}
    yield "ScatterNd", [n(2, 3), f(3), n(1, 4)], {}
    yield "ScatterNd", [n(2, 1), f(2), n(1, 1) * 4], {}
    yield "ScatterNd", [i32(1), f(3), i32(2, 3)], {}
    bad = a("int32", [[9], [1], [7]])
    yield "ScatterNd", [bad, f(3), i32(4)], {}
    yield "ScatterNd", [bad, f(3), i32(4)], {"bad_indices_policy": "x"}
    for op in ("TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub", "TensorScatterMax",
               "TensorScatterMin"):
        yield op, [f(2, 3), n(), f()], {}
        yield op, [empty("float", 0, 3), n(2, 1), f(2, 3)], {}
        yield op, [f(2, 3), n(2, 1), f(3, 3)], {}
        yield op, [f(2, 3), n(2, 3), f(2, 1)], {}
        yield op, [empty("int32", 2, 0, 3), empty("int64", 0), empty("int32", 2, 0, 3)], {}
        yield op, [f(4), bad, f(3)], {}
    copies = "ScatterNdNonAliasingAdd"
    yield copies, [f(), n(2), f(2)], {}
    yield copies, [empty("float", 0), n(2), f(2)], {}
    yield copies, [f(2, 3), n(2), f(3)], {}
    yield copies, [f(2, 3), n(2, 2, 1), f(2)], {}
    yield copies, [f(2, 3), n(2, 1), f(2, 2)], {}
    both = {"ellipsis_mask": 3}
    yield "StridedSlice", [f(2, 3), n(), n(), n()], both
    yield "StridedSlice", [f(2, 3), n(2), n(2), n(2)], both
    yield "StridedSlice", [f(2, 3), i32(-4), n(1), n(1)], {"shrink_axis_mask": 1}
    yield "StridedSliceGrad", [n(), n(), n(), n(), f()], both
    yield "TensorStridedSliceUpdate", [f(3), n(2), n(1), n(1), f()], both
    for op in ("LowerBound", "UpperBound"):
        yield op, [f(2), f(2, 2)], {}
        yield op, [f(2, 2), f(2)], {}
    yield "UnravelIndex", [empty("int32", 0), n(2, 2)], {}
    yield "UnravelIndex", [i32(9), i32(2, -1)], {}
    yield "InTopKV2", [f(1), n(2), n(3)], {}


def matrices():
    yield "MatrixBandPart", [f(3), np.int64(0), i64(0)], {}
    for op in ("MatrixDiagPartV2", "MatrixDiagPartV3"):
        yield op, [f(3), n(1, 1), f(2)], {}
        yield op, [f(3), empty("int32", 0), f(2)], {}
        yield op, [f(3), i32(2, 1), f(2)], {}
        yield op, [f(2, 2), i32(1, 0), f()], {}
        yield op, [f(2, 2), i32(0, 9), f()], {}
    for op in ("MatrixDiagV2", "MatrixDiagV3"):
        yield op, [f(), n(), n(1), n(1), f(1)], {}
        yield op, [f(), n(), n(), n(1), f(1)], {}
        yield op, [f(), n(), n(), n(), f(1)], {}
        yield op, [f(), i32(2, 1), n(), n(), f()], {}
    for op in ("MatrixSetDiagV2", "MatrixSetDiagV3"):
        yield op, [f(3), f(), empty("int32", 0)], {}
        yield op, [f(3), f(), i32(2, 1)], {}
        yield op, [f(2, 2), f(), i32(5)], {}
        yield op, [f(2, 2), f(2), i32(5, 1)], {}
        yield op, [f(2, 2), f(2, 3), i32(0, 1)], {}
    yield "DiagPart", [f(2, 2, 2)], {}
    yield "MatrixSolve", [f(2), f(2)], {}
    yield "MatrixSolve", [f(2, 3), f(2)], {}
    yield "MatrixSolve", [f(1, 2, 3), f(2, 2, 3)], {}
    yield "MatrixSolve", [f(2, 3), f(4, 1)], {}
    yield "MatrixSolve", [f(2, 2), f(4, 1)], {}
    yield "MatrixTriangularSolve", [f(2), f()], {}
    yield "MatrixTriangularSolve", [f(2, 3), f(2)], {}
    yield "MatrixTriangularSolve", [f(2, 2, 3), f(3, 1, 1)], {}
    yield "MatrixTriangularSolve", [f(2, 2, 2), f(3, 1, 1)], {}
    yield "MatrixTriangularSolve", [f(2, 2), f(1, 1)], {"lower": False, "adjoint": True}
    x, y = f(1, 2, 2, dtype="double"), f(2, 3, dtype="double")
    yield "BatchMatMul", [x, y], {}
    yield "BatchMatMul", [f(2, dtype="double"), f(3, dtype="double")], {}
    yield "BatchMatMul", [x, f(3, 2, 2, dtype="double")], {}
    yield "Cross", [f(), f()], {}


def random():
    key, counter = f(1, dtype="uint64"), f(2, dtype="uint64")
    for alg in (n(1), np.int32(7)):
        for bad_key in (f(dtype="uint64"), f(2, dtype="uint64"), key):
            yield "StatelessShuffle", [f(), bad_key, counter, alg], {}
            yield "StatelessRandomUniformV2", [n(), bad_key, counter, alg], {}
    yield "StatelessShuffle", [f(), key, counter, np.int32(2)], {}
    yield "StatelessRandomNormalV2", [n(), key, counter, np.int32(1)], {}
    shape = n(2, 2)
    yield "ParameterizedTruncatedNormal", [shape] + [f(2, 2)] * 4, {}
    yield "ParameterizedTruncatedNormal", [empty("int32", 0)] + [f()] * 4, {}
    for seed in (n(3), n(2)):
        yield "StatelessParameterizedTruncatedNormal", [shape, seed, f(2), f(3), f(2), f(2)], {}
        yield "StatelessParameterizedTruncatedNormal", [shape, seed] + [f(2)] * 4, {}


def segments():
    for op in ("SegmentSum", "SegmentMin", "SegmentProd"):
        yield op, [f(), n()], {}
    for op in ("UnsortedSegmentSum", "UnsortedSegmentMin"):
        yield op, [f(2), n(3), n(1)], {}
    for op in ("Sum", "Mean", "SqrtN"):
        yield f"SparseSegment{op}WithNumSegments", [f(), n(), n(), n(1)], {}
        yield f"SparseSegment{op}WithNumSegments", [f(), n(), n(), np.int32(-1)], {}
        yield f"SparseSegment{op}WithNumSegments", [f(), n(2), n(2), n()], {}
        for grad in ("Grad", "GradV2"):
            yield f"SparseSegment{op}{grad}", [f(), n(), n(), n(1)], {}
            yield f"SparseSegment{op}{grad}", [f(), n(1), n(2), n(1)], {}
            yield f"SparseSegment{op}{grad}", [f(2), n(2), i32(1, 2), np.int32(2)], {}
            yield f"SparseSegment{op}{grad}", [f(2), n(2), i32(-5, 1), np.int32(2)], {}


def records():
    yield "AudioMicrofrontend", [f(1, 2, dtype="int16")], {"window_size": 2, "window_step": 10}
    yield "DecodePaddedRaw", [s(1), np.int32(-3)], {"out_type": "float"}
    yield "DecodeCSV", [s(1), [s(2, 2)]], {}
    yield "DecodeCSV", [s(1), [s(1)]], {"select_cols": [2, 1]}
    yield "DecodeCSV", [s(1), [s(1)]], {"select_cols": [-1]}
    yield "DecodeCSV", [np.array([b"a", b""], object), [s(1)]], {}
    yield "DecodeCSV", [np.array([b"1,2", b"3,x", b"y,1", b""], object), [n(1), n(1)]], {}
    yield "ScalarSummary", [s(1), f(3)], {}
    yield "GenerateVocabRemapping", [s(1), s(1)], {"new_vocab_offset": 0, "num_new_vocab": 1}
    yield "TensorArrayConcatV2", [s(3), f()], {"dtype": "float"}


def images():
    size = n(3)
    yield "CropAndResize", [f(2), f(1), n(), size], {}
    yield "CropAndResize", [f(1, 2, 2, 1), f(1), n(), size], {}
    yield "CropAndResize", [f(1, 2, 2, 1), f(1, 3), n(), size], {}
    yield "CropAndResize", [f(1, 2, 2, 1), f(1, 3), n(2), size], {}
    yield "CropAndResize", [f(1, 2, 2, 1), f(1, 4), n(1), n(2, 2)], {}
    by_image = "CropAndResizeGradImage"
    yield by_image, [f(2), f(1), n(), size], {"T": "float"}
    yield by_image, [f(1, 2, 2, 1), f(1), n(), size], {"T": "float"}
    yield by_image, [f(1, 2, 2, 1), f(2, 4), n(1), size], {"T": "float"}
    yield by_image, [f(3, 2, 2, 1), f(2, 4), n(2), size], {"T": "float"}
    yield by_image, [f(2, 2, 2, 1), f(2, 4), n(2), size], {"T": "float"}
    yield "CropAndResizeGradBoxes", [f(2), f(1), f(1), n()], {}
    yield "CropAndResizeGradBoxes", [f(1, 2, 2, 1), f(1), f(1), n()], {}
    yield "CropAndResizeGradBoxes", [f(1, 2, 2, 1), f(1, 2, 2, 3), f(1), n()], {}
    boxes = "CombinedNonMaxSuppression"
    yield boxes, [f(2), f(1), n(1), n(1), f(), f()], {}
    yield boxes, [f(1), f(1, 1, 1), n(1), n(), f(), f()], {}
    yield boxes, [f(1), f(1, 1, 1), np.int32(1), np.int32(1), f() / 2, f()], {}
    for op, more in (("ImageProjectiveTransformV2", []), ("ImageProjectiveTransformV3", [f(1)])):
        yield op, [f(2), f(2), n(1)] + more, {"interpolation": "x"}
        yield op, [f(1, 2, 2, 1), f(2), n(1)] + more, {"interpolation": "x"}
    yield "ResizeNearestNeighborGrad", [f(2), n(1)], {}
    yield "ResizeNearestNeighborGrad", [f(1, 2, 2, 1), n()], {}
    yield "ResizeNearestNeighborGrad", [f(1, 2, 2, 1), n(3)], {}
    yield "ResizeNearestNeighborGrad", [f(1, 2, 2, 1), i32(1, -1)], {}


def decoders():
    for op in ("DecodePng", "DecodeJpeg", "DecodeImage", "DecodeBmp", "DecodeGif", "DecodeWebP"):
        yield op, [s(1)], {}
    yield "DecodeAndCropJpeg", [s(1, 2), n()], {}
    yield "DecodeAndCropJpeg", [np.array(b"", object), n()], {}
    yield "DecodeAndCropJpeg", [np.array(b"x", object), n(3)], {}
    yield "ExtractJpegShape", [s(1)], {}
    yield "EncodePng", [f(3, 3, dtype="uint8")], {}


def neural():
    d = lambda *shape: f(*shape, dtype="double")
    plane = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    space = {"strides": [1] * 5, "padding": "SAME"}
    yield "Conv2DBackpropInput", [n(1, 4), d(2), d(2)], plane
    yield "Conv2DBackpropInput", [n(1, 4), d(2), d(1, 1, 1, 1)], plane
    yield "Conv2DBackpropFilter", [d(2), n(1, 4), d(2)], plane
    yield "Conv3D", [d(2), d(2)], space
    yield "Conv3DBackpropInputV2", [n(1, 5), d(2), d(2)], space
    yield "Conv3DBackpropFilterV2", [d(2), n(1, 5), d(2)], space
    for sizes in (n(1, 4), i32(1, 1, -1, 1)):
        yield "DepthwiseConv2dNativeBackpropInput", [sizes, d(2), d(2)], plane
        yield "DepthwiseConv2dNativeBackpropFilter", [d(2), sizes, d(2)], plane
    yield "BiasAddGrad", [d(2)], {"data_format": "NCHW"}
    yield "LRNGrad", [f(2), f(2), f(2)], {}
    rates = plane | {"rates": [1, 1, 1, 1]}
    yield "Dilation2DBackpropFilter", [f(2), f(2), f(2)], rates
    yield "Dilation2DBackpropFilter", [f(1, 2, 2, 1), f(1, 1, 1), f(1)], rates
    windows = plane | {"ksize": [1, 1, 1, 1]}
    for shapes in ([2, 1, 1, 1], [2], [2]), ([1, 1, 1, 1], [2], [2]), ([1, 1, 1, 1], [1, 1, 1, 1], [2]):
        tensors = [d(*shape) for shape in shapes]
        yield "MaxPoolGrad", tensors, windows
        yield "MaxPoolGradGrad", tensors, windows
    yield "MaxPoolGradV2", [d(2), d(2), d(2), n(1), n(1)], {"padding": "SAME"}
    cubes = space | {"ksize": [1] * 5}
    yield "MaxPool3DGrad", [f(1, 1, 1, 1, 1), f(2), f(2)], cubes
    yield "FractionalMaxPoolGrad", [f(2), f(2), f(2), i64(1), i64(1)], {}
    image, many = f(1, 1, 1, 1), i64(1, 2)
    yield "FractionalMaxPoolGrad", [image, image, image, many, many], {}
    for op in ("ReluGrad", "Relu6Grad"):
        yield op, [n(2), n(2, 1)], {}
    cell = [f(2, 3), f(2, 3), f(2, 3), f(2, 3), f(1, 1), f(1, 1), f(1, 1), f(3)]
    yield "LSTMBlockCell", cell, {}


def quantized():
    yield "FakeQuantWithMinMaxArgsGradient", [f(3), f(2, 2)], {}
    for op in ("FakeQuantWithMinMaxVarsGradient", "FakeQuantWithMinMaxVarsPerChannelGradient"):
        yield op, [f(3), f(2), f(5, 1), f(5, 1)], {}
    for ends in [f(1), f(1)], [f(), f(1)]:
        yield "QuantizeAndDequantizeV2", [f(3), *ends], {"range_given": True}
    yield "QuantizeAndDequantizeV2", [f(3), f(1), f(1)], {"range_given": True, "axis": 1}
    yield "QuantizeAndDequantizeV3", [f(1), f(), f(), n(1)], {}
    yield "QuantizeAndDequantizeV3", [f(), f(), f(), n(1)], {}
    grad = "QuantizeAndDequantizeV4Grad"
    yield grad, [f(3), f(2), f(1, 1), f(1, 1)], {"axis": 1}
    yield grad, [f(3), f(2), f(1, 1), f(1, 1)], {}
    yield grad, [f(2), f(2), f(1), f(1, 1)], {}
    yield grad, [f(2), f(2), f(1), f(1)], {}
    yield grad, [f(2), f(2), f(), f()], {"axis": 0}
    yield grad, [f(2), f(2), f(3), f(2)], {"axis": 0}


def sparse_and_ragged():
    one = {"hashed_output": True, "num_buckets": 0, "hash_key": 1, "internal_type": "string",
           "out_type": "int64", "sparse_types": ["string"], "dense_types": [], "N": 2}
    two = [i64(1), i64(1)]
    yield "SparseCross", [two, [s(1)], two, []], one
    yield "SparseCross", [[f(1, 2, dtype="int64")] * 2, [s(1)], two, []], one
    yield "SparseFillEmptyRows", [f(1, dtype="int64"), f(1, 1), i64(1).reshape(1, 1), f(1)], {}
    yield "SparseFillEmptyRows", [f(1, 2, dtype="int64"), f(2), i64(1), f(1)], {}
    yield "SparseFillEmptyRows", [f(1, 1, dtype="int64"), f(1), i64(1), f(1)], {}
    for shape in (), (2,), (0, 3):
        yield "DeserializeSparse", [s(*shape)], {"dtype": "float"}
    dense = {"row_partition_types": ["ROW_SPLITS"]}
    yield "RaggedTensorToTensor", [i32(-1, -2), f(3), f(), [i64(0, 2, 3)]], dense
    yield "RaggedRange", [f(2), f(3), f(1, 1)], {}
    yield "RaggedTensorToSparse", [[i64(1)], f()], {}
    count = {"binary_output": False}
    yield "RaggedCountSparseOutput", [i64(1, 2), i64(-1, 2), f(1)], count
    yield "RaggedCountSparseOutput", [i64(1, 2), i64(-1, 2), empty("float", 0)], count


def numbers():
    for op in ("ArgMax", "ArgMin"):
        yield op, [f(), np.int32(3)], {}
    for op in ("Cumsum", "Cumprod"):
        yield op, [f(), np.int32(3)], {}
    yield "Select", [f(0, dtype="bool"), f(2, 3), f(3)], {}
    yield "Select", [f(2, dtype="bool"), f(2, 3), f(3)], {}
    yield "RegexFullMatch", [s(2), s(1)], {}
