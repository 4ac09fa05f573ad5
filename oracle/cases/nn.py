"""Convolutions, pooling, normalization, softmax and resizing."""

import numpy as np

from casekit import FLOATS, NUMBERS, Rand, a, case, empty, i32

SCALED = [(1, 1), (2, 1), (2, 3)]


def convolutions():
    r = Rand("Conv2D")
    # input, filter
    shapes = [((1, 5, 6, 2), (3, 3, 2, 4)), ((2, 4, 5, 3), (1, 1, 3, 5)), ((1, 7, 3, 1), (2, 3, 1, 1)),
              ((1, 6, 6, 4), (5, 2, 4, 3)), ((1, 1, 1, 3), (1, 1, 3, 2)), ((1, 5, 5, 4), (3, 3, 2, 6))]
    for image, kernel in shapes:
        for padding in ("SAME", "VALID"):
            if padding == "VALID" and (kernel[0] > image[1] or kernel[1] > image[2]):
                continue
            for high, wide in SCALED:
                how = {"strides": [1, high, wide, 1], "padding": padding}
                yield case("Conv2D", r("float", image), r("float", kernel), **how)
    for high, wide in ((2, 2), (1, 3), (3, 1)):
        for padding in ("SAME", "VALID"):
            yield case("Conv2D", r("float", (1, 8, 8, 2)), r("float", (3, 3, 2, 3)),
                       strides=[1, 1, 1, 1], dilations=[1, high, wide, 1], padding=padding)
    for pads in ([0, 0, 1, 2, 0, 1, 0, 0], [0, 0, 3, 0, 0, 0, 0, 0], [0] * 8):
        for high, wide in SCALED[:2]:
            how = {"strides": [1, high, wide, 1], "padding": "EXPLICIT", "explicit_paddings": pads}
            yield case("Conv2D", r("float", (1, 4, 5, 2)), r("float", (3, 2, 2, 3)), **how)
            yield case("Conv2D", r("float", (1, 4, 5, 2)), r("float", (3, 2, 2, 3)),
                       nchw=((0,), (0,)), **how)
    for padding in ("SAME", "VALID"):
        for high, wide in SCALED:
            yield case("Conv2D", r("float", (2, 5, 4, 3)), r("float", (3, 2, 3, 2)), nchw=((0,), (0,)),
                       strides=[1, high, wide, 1], padding=padding)
    one = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    for dtype in FLOATS + ["int32"]:
        yield case("Conv2D", r(dtype, (1, 4, 4, 2)), r(dtype, (3, 3, 2, 3)), **one)
    yield case("Conv2D", empty("float", 0, 4, 4, 2), r("float", (3, 3, 2, 3)), **one)
    yield case("Conv2D", r("float", (1, 11, 9, 3)), r("float", (3, 3, 3, 9)), strides=[1, 2, 2, 1],
               padding="SAME")
    yield case("Conv2D", r("float", (1, 3, 3, 2)), r("float", (5, 5, 2, 1)), padding="VALID",
               strides=[1, 1, 1, 1], fails=True)
    yield case("Conv2D", r("float", (1, 3, 3, 3)), r("float", (1, 1, 2, 2)), fails=True, **one)
    yield case("Conv2D", r("float", (1, 3, 3)), r("float", (1, 1, 3, 2)), fails=True, **one)
    yield case("Conv2D", r("float", (1, 3, 3, 2)), r("float", (1, 1, 2, 2)), padding="SAME",
               strides=[2, 1, 1, 1], fails=True)
    r = Rand("Conv3D")
    for padding in ("SAME", "VALID"):
        for strides in ([1, 1, 1, 1, 1], [1, 2, 1, 2, 1]):
            yield case("Conv3D", r("float", (1, 3, 4, 5, 2)), r("float", (2, 3, 2, 2, 3)),
                       strides=strides, padding=padding)
            yield case("Conv3D", r("float", (1, 3, 4, 3, 2)), r("float", (2, 2, 2, 2, 2)),
                       strides=strides, padding=padding, nchw=((0,), (0,)))
    for dtype in FLOATS:
        yield case("Conv3D", r(dtype, (1, 2, 3, 2, 2)), r(dtype, (1, 2, 2, 2, 2)),
                   strides=[1] * 5, padding="SAME")
    yield case("Conv3D", r("float", (1, 4, 5, 4, 1)), r("float", (2, 2, 2, 1, 2)), padding="VALID",
               strides=[1] * 5)


def depthwise():
    r = Rand("DepthwiseConv2dNative")
    op = "DepthwiseConv2dNative"
    for image, kernel in (((1, 5, 6, 3), (3, 3, 3, 1)), ((2, 4, 5, 2), (3, 2, 2, 3)),
                          ((1, 6, 6, 1), (1, 1, 1, 2)), ((1, 7, 7, 9), (5, 5, 9, 1))):
        for padding in ("SAME", "VALID"):
            for step in (1, 2):
                if padding == "VALID" and kernel[0] > image[1]:
                    continue
                how = {"strides": [1, step, step, 1], "padding": padding}
                yield case(op, r("float", image), r("float", kernel), **how)
    yield case(op, r("float", (1, 5, 4, 3)), r("float", (3, 3, 3, 2)), nchw=((0,), (0,)),
               strides=[1, 1, 1, 1], padding="SAME")
    yield case(op, r("float", (1, 5, 5, 3)), r("float", (3, 3, 3, 1)), strides=[1, 1, 1, 1],
               padding="EXPLICIT", explicit_paddings=[0, 0, 1, 2, 0, 1, 0, 0])
    for dtype in FLOATS:
        yield case(op, r(dtype, (1, 4, 4, 2)), r(dtype, (3, 3, 2, 2)), strides=[1, 1, 1, 1],
                   padding="SAME")
    yield case(op, empty("float", 0, 4, 4, 2), r("float", (3, 3, 2, 1)), strides=[1, 1, 1, 1],
               padding="SAME")
    yield case(op, r("float", (1, 4, 4, 2)), r("float", (3, 3, 3, 1)), strides=[1, 1, 1, 1],
               padding="SAME", fails=True)
    yield case(op, r("float", (1, 4, 4, 2)), r("float", (3, 3, 2, 1)), strides=[1, 1, 2, 1],
               padding="SAME", fails=True)


def backward():
    """Transposed convolutions are these in a graph."""
    r = Rand("Backprop")
    for image, kernel, padding, step in (((1, 5, 6, 2), (3, 3, 2, 4), "SAME", 1),
                                         ((1, 6, 6, 2), (3, 3, 2, 3), "SAME", 2),
                                         ((2, 7, 5, 3), (2, 3, 3, 2), "VALID", 2),
                                         ((1, 4, 4, 1), (1, 1, 1, 2), "VALID", 1)):
        size = [-(-n // step) if padding == "SAME" else (n - k) // step + 1
                for n, k in zip(image[1:3], kernel[:2])]
        how = {"strides": [1, step, step, 1], "padding": padding}
        for dtype in ("float", "double"):
            out = r(dtype, (image[0], *size, kernel[3]))
            yield case("Conv2DBackpropInput", i32(*image), r(dtype, kernel), out, **how)
            yield case("Conv2DBackpropFilter", r(dtype, image), i32(*kernel), out, **how)
            deep = (*kernel[:2], image[3], 2)
            out = r(dtype, (image[0], *size, image[3] * 2))
            yield case("DepthwiseConv2dNativeBackpropInput", i32(*image), r(dtype, deep), out, **how)
            yield case("DepthwiseConv2dNativeBackpropFilter", r(dtype, image), i32(*deep), out, **how)
    yield case("Conv2DBackpropInput", i32(1, 4, 4, 2), r("float", (3, 3, 2, 1)), r("float", (1, 3, 3, 1)),
               strides=[1, 1, 1, 1], padding="SAME", fails=True)
    yield case("Conv2DBackpropInput", i32(2, 3), r("float", (3, 3, 3, 1)), r("float", (1, 2, 3, 1)),
               strides=[1, 2, 1, 1], padding="SAME", fails=True)
    for step, depth in ((1, 3), (2, 4)):
        out = -(-depth // step)
        yield case("Conv3DBackpropInputV2", i32(1, depth, depth, depth, 2), r("float", (2, 3, 2, 2, 3)),
                   r("float", (1, out, out, out, 3)), strides=[1, step, step, step, 1], padding="SAME")


def pooling():
    r = Rand("Pool")
    for op in ("MaxPool", "AvgPool"):
        for shape in ((1, 5, 6, 2), (2, 7, 4, 3)):
            for size, step in (((2, 2), (2, 2)), ((3, 2), (1, 2)), ((3, 3), (2, 2)), ((1, 1), (2, 2)),
                               ((4, 4), (1, 1))):
                for padding in ("SAME", "VALID"):
                    how = {"ksize": [1, *size, 1], "strides": [1, *step, 1], "padding": padding}
                    yield case(op, r("float", shape), **how)
        two = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1]}
        for padding in ("SAME", "VALID"):
            yield case(op, r("float", (1, 5, 4, 3)), padding=padding, nchw=((0,), (0,)), **two)
        for dtype in NUMBERS:
            yield case(op, r(dtype, (1, 3, 4, 2), -5, 5), padding="SAME", **two)
        yield case(op, empty("float", 0, 4, 4, 2), padding="SAME", **two)
        yield case(op, r("float", (1, 3, 4)), padding="SAME", fails=True, **two)
        yield case(op, r("float", (1, 1, 1, 2)), padding="VALID", **two)
    odd = r("float", (1, 4, 4, 1))
    odd[0, 1, 1, 0], odd[0, 3, 2, 0] = np.inf, -np.inf
    for op in ("MaxPool", "AvgPool"):
        yield case(op, odd, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    yield case("MaxPool", r("float", (1, 2, 2, 4)), ksize=[1, 1, 1, 2], strides=[1, 1, 1, 2], padding="VALID")
    yield case("MaxPool", r("float", (1, 4, 5, 2)), ksize=[1, 3, 3, 1], strides=[1, 2, 1, 1],
               padding="EXPLICIT", explicit_paddings=[0, 0, 1, 0, 1, 1, 0, 0])
    for padding in ("SAME", "VALID"):
        yield case("MaxPoolV2", r("float", (1, 5, 4, 2)), i32(1, 3, 2, 1), i32(1, 2, 1, 1), padding=padding)
        for op in ("MaxPool3D", "AvgPool3D"):
            for step in (1, 2):
                how = {"ksize": [1, 2, 3, 2, 1], "strides": [1, step, step, step, 1], "padding": padding}
                yield case(op, r("float", (1, 3, 4, 5, 2)), **how)
                yield case(op, r("float", (1, 3, 4, 3, 2)), nchw=((0,), (0,)), **how)
        for flat in (False, True):
            for out in ("int32", "int64"):
                yield case("MaxPoolWithArgmax", r("float", (2, 3, 4, 2)), ksize=[1, 2, 2, 1],
                           strides=[1, 2, 2, 1], padding=padding, include_batch_in_index=flat, Targmax=out)
    for op in ("MaxPool3D", "AvgPool3D"):
        for dtype in FLOATS:
            yield case(op, r(dtype, (1, 2, 2, 3, 2)), ksize=[1, 2, 2, 2, 1], strides=[1, 1, 1, 1, 1],
                       padding="SAME")


def normalization():
    r = Rand("FusedBatchNorm")

    # The outputs that only training reads are unspecified.
    inference = {"is_training": False, "unchecked": (3, 4)}

    def channel(depth, dtype="float", lo=-1, hi=1):
        return r(dtype, (depth,), lo, hi)

    for op in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"):
        for shape in ((2, 3, 4, 3), (1, 1, 1, 2), (1, 5, 2, 9)):
            depth = shape[-1]
            stats = (channel(depth), channel(depth, lo=0.2, hi=2))
            affine = (channel(depth), channel(depth))
            yield case(op, r("float", shape), *affine, *stats, **inference)
            yield case(op, r("float", shape), *affine, *stats, **inference, epsilon=0.01)
            yield case(op, r("float", shape), *affine, *stats, **inference, nchw=((0,), (0,)))
            if np.prod(shape[:3]) > 1:
                none = (empty("float", 0), empty("float", 0))
                yield case(op, r("float", shape), *affine, *none, is_training=True, tol=1e-4)
                yield case(op, r("float", shape), *affine, *stats, is_training=True, tol=1e-4,
                           exponential_avg_factor=0.25)
        yield case(op, empty("float", 0, 2, 2, 3), channel(3), channel(3), channel(3), channel(3, lo=0.2),
                   **inference)
        yield case(op, r("float", (1, 2, 2, 3)), channel(2), channel(3), channel(3), channel(3),
                   is_training=False, fails=True)
        yield case(op, r("float", (2, 2, 3)), channel(3), channel(3), channel(3), channel(3),
                   is_training=False, fails=True)
    for op in ("FusedBatchNormV2", "FusedBatchNormV3"):
        for dtype in ("half", "bfloat16"):
            yield case(op, r(dtype, (2, 3, 2, 3)), channel(3), channel(3), channel(3), channel(3, lo=0.2),
                       **inference)
    for scale in (True, False):
        for op in ("BatchNormWithGlobalNormalization",):
            for dtype in ("float", "double"):
                yield case(op, r(dtype, (2, 3, 2, 3)), channel(3, dtype), channel(3, dtype, 0.2, 2),
                           channel(3, dtype), channel(3, dtype), variance_epsilon=0.001,
                           scale_after_normalization=scale)
    for radius in (1, 2, 5):
        yield case("LRN", r("float", (1, 2, 3, 7)), depth_radius=radius)
        yield case("LRN", r("float", (1, 2, 1, 7)), depth_radius=radius, bias=2.0, alpha=0.5, beta=0.75)
    for dtype in ("half", "bfloat16"):
        yield case("LRN", r(dtype, (1, 2, 2, 5)), depth_radius=2, alpha=0.1)
    yield case("LRN", r("float", (2, 3)), fails=True)


def softmax():
    r = Rand("Softmax")
    for op in ("Softmax", "LogSoftmax"):
        for dtype in FLOATS:
            yield case(op, r(dtype, (3, 5), -4, 4))
        for shape in ((5,), (1, 1), (2, 3, 4), (2, 1, 2, 3), (2, 67), (0, 3)):
            yield case(op, r("float", shape, -9, 9))
        yield case(op, a("float", [[1000, 1001, 999], [-1000, -1001, -999], [0, 0, 0]]))
        yield case(op, a("float", [[1, np.inf, 0], [1, -np.inf, 0], [np.nan, 0, 1]]))
        yield case(op, np.float32(1), fails=True)
    for dtype in FLOATS:
        yield case("SoftmaxCrossEntropyWithLogits", r(dtype, (3, 5), -4, 4), r(dtype, (3, 5), 0, 1))
        for kind in ("int32", "int64"):
            yield case("SparseSoftmaxCrossEntropyWithLogits", r(dtype, (3, 5), -4, 4), a(kind, [0, 4, 2]))
    yield case("SoftmaxCrossEntropyWithLogits", r("float", (2, 3)), r("float", (1, 3)))
    yield case("SoftmaxCrossEntropyWithLogits", r("float", (2, 3)), r("float", (2, 2)), fails=True)
    yield case("SoftmaxCrossEntropyWithLogits", empty("float", 0, 3), empty("float", 0, 3))
    yield case("SparseSoftmaxCrossEntropyWithLogits", r("float", (2, 3)), i32(0, 3), fails=True)
    yield case("SparseSoftmaxCrossEntropyWithLogits", r("float", (2, 3)), i32(0), fails=True)


def resizing():
    r = Rand("Resize")
    kinds = ("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea")
    modes = [{}, {"align_corners": True}, {"half_pixel_centers": True}]
    for op in kinds:
        for mode in modes[: 2 if op == "ResizeArea" else 3]:
            for shape, size in (((1, 3, 4, 2), (5, 7)), ((2, 5, 6, 1), (3, 2)), ((1, 2, 3, 3), (2, 3)),
                                ((1, 4, 4, 1), (1, 1)), ((1, 1, 1, 2), (3, 2)), ((1, 3, 3, 1), (6, 9))):
                yield case(op, r("float", shape), i32(*size), **mode)
        for dtype in NUMBERS:
            yield case(op, r(dtype, (1, 2, 3, 2), 0, 100), i32(3, 4))
        yield case(op, r("float", (1, 2, 3, 2)), i32(0, 4), fails=True)
        yield case(op, r("float", (2, 3, 2)), i32(3, 4), fails=True)
        yield case(op, r("float", (1, 2, 3, 2)), i32(3, 4, 5), fails=True)
        yield case(op, r("float", (1, 2, 3, 2)), i32(3, -4), fails=True)
    boxes = a("float", [[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [0.8, 0.9, 0.1, 0.2], [-0.5, 0, 1.5, 1.2]])
    for method in ("bilinear", "nearest"):
        for value in (0.0, -3.5):
            for dtype in ("float", "uint8", "double"):
                yield case("CropAndResize", r(dtype, (2, 4, 5, 2), 0, 9), boxes, i32(0, 1, 1, 0), i32(3, 2),
                           method=method, extrapolation_value=value)
    yield case("CropAndResize", r("float", (1, 3, 3, 1)), boxes[:1], i32(0), i32(1, 1))
    yield case("CropAndResize", r("float", (1, 3, 3, 1)), boxes[:0], i32(), i32(2, 2))
    yield case("CropAndResize", r("float", (1, 3, 3, 1)), boxes[:1], i32(1), i32(2, 2), fails=True)
    yield case("CropAndResize", r("float", (1, 3, 3, 1)), boxes[:1], i32(0), i32(0, 2), fails=True)
    for padding in ("SAME", "VALID"):
        for step, rate in ((1, 1), (2, 1), (1, 2)):
            yield case("Dilation2D", r("float", (1, 6, 5, 2)), r("float", (3, 2, 2)), padding=padding,
                       strides=[1, step, step, 1], rates=[1, rate, rate, 1])
    for dtype in NUMBERS:
        yield case("Dilation2D", r(dtype, (1, 3, 3, 1)), r(dtype, (2, 2, 1)), padding="SAME",
                   strides=[1, 1, 1, 1], rates=[1, 1, 1, 1])
    yield case("Dilation2D", r("float", (1, 3, 3, 2)), r("float", (2, 2, 1)), padding="SAME",
               strides=[1, 1, 1, 1], rates=[1, 1, 1, 1], fails=True)


def cases():
    for part in (convolutions, depthwise, backward, pooling, normalization, softmax, resizing):
        yield from part()
