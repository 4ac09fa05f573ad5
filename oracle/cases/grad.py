"""Gradients that are ops of their own: of pooling, normalization, resizing, segments."""

import numpy as np

from casekit import FLOATS, Rand, a, case, empty, i32, i64

# The forward pooling of a case, whose result is fed to the gradient.
import tensorflow as tf


def pooled(x, window, strides, padding):
    """Returns the forward result, in the dtype of x."""
    op = tf.nn.max_pool3d if x.ndim == 5 else tf.nn.max_pool2d
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    return op(wide, window, strides, padding).numpy().astype(x.dtype)


def pools():
    r = Rand("pool_grad")
    shapes = [((2, 5, 6, 3), (2, 2), (2, 2)), ((1, 7, 5, 2), (3, 3), (1, 2)),
              ((2, 4, 4, 1), (3, 2), (3, 1)), ((1, 4, 4, 2), (1, 1), (2, 2))]
    for shape, window, strides in shapes:
        for padding in ("SAME", "VALID"):
            how = {"ksize": [1, *window, 1], "strides": [1, *strides, 1], "padding": padding}
            for dtype in FLOATS + ["int32"]:
                if dtype != "float" and strides != (2, 2):
                    continue
                x = r(dtype, shape)
                y = pooled(x, window, strides, padding)
                dy, dx = r(dtype, y.shape), r(dtype, shape)
                yield case("MaxPoolGrad", x, y, dy, **how)
                # TensorFlow returns zeros for doubles.
                if dtype != "double":
                    yield case("MaxPoolGradGrad", x, y, dx, **how)
                if dtype in FLOATS:
                    yield case("AvgPoolGrad", i32(*shape), dy, **how)
                if dtype != "float":
                    continue
                yield case("MaxPoolGradV2", x, y, dy, i32(1, *window, 1), i32(1, *strides, 1),
                           padding=padding)
                yield case("MaxPoolGradGradV2", x, y, dx, i32(1, *window, 1), i32(1, *strides, 1),
                           padding=padding)
                yield case("MaxPoolGrad", x, y, dy, nchw=((0, 1, 2), (0,)), **how)
                yield case("AvgPoolGrad", i32(*shape), dy, **how)
                for whole in (True, False):
                    at = tf.nn.max_pool_with_argmax(x, window, strides, padding,
                                                    include_batch_in_index=whole)[1].numpy()
                    yield case("MaxPoolGradWithArgmax", x, dy, at, include_batch_in_index=whole,
                               **how)
    # Equal elements: the first gets the whole gradient.
    x = np.ones((1, 4, 4, 1), np.float32)
    how = {"ksize": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "padding": "VALID"}
    yield case("MaxPoolGrad", x, x[:, :3, :3], r("float", (1, 3, 3, 1)), **how)
    yield case("MaxPoolGradGrad", x, x[:, :3, :3], r("float", (1, 4, 4, 1)), **how)
    yield case("MaxPoolGrad", x, x[:, :3, :3], r("float", (1, 3, 2, 1)), fails=True, **how)
    yield case("MaxPoolGrad", x, x[:, :2, :2], r("float", (1, 2, 2, 1)), fails=True, **how)
    # More channels than are computed together, under windows that overlap.
    x = r("float", (2, 6, 5, 19))
    for strides, padding in (((1, 1), "SAME"), ((2, 1), "VALID")):
        how = {"ksize": [1, 3, 3, 1], "strides": [1, *strides, 1], "padding": padding}
        y = pooled(x, (3, 3), strides, padding)
        dy = r("float", y.shape)
        yield case("MaxPoolGrad", x, y, dy, **how)
        yield case("AvgPoolGrad", i32(*x.shape), dy, **how)
    yield case("AvgPoolGrad", i32(1, 4, 4), r("float", (1, 3, 3, 1)), fails=True, **how)
    yield case("MaxPoolGrad", empty("float", 0, 4, 4, 1), empty("float", 0, 3, 3, 1),
               empty("float", 0, 3, 3, 1), **how)
    for padding in ("SAME", "VALID"):
        for strides in ((1, 1, 1), (2, 1, 2)):
            how = {"ksize": [1, 2, 2, 2, 1], "strides": [1, *strides, 1], "padding": padding}
            for dtype in ("float", "half", "bfloat16"):
                x = r(dtype, (2, 3, 4, 3, 2))
                y = pooled(x, (2, 2, 2), strides, padding)
                dy = r(dtype, y.shape)
                yield case("MaxPool3DGrad", x, y, dy, **how)
                yield case("AvgPool3DGrad", i32(*x.shape), dy, **how)
                if dtype == "float":
                    yield case("MaxPool3DGradGrad", x, y, r(dtype, x.shape), **how)


def norms():
    r = Rand("norm_grad")
    for training in (True, False):
        for shape in ((2, 3, 4, 5), (1, 1, 1, 2), (3, 7, 5, 1)):
            x, dy = r("float", shape), r("float", shape)
            c = shape[-1]
            params = r("float", (c,)), r("float", (c,)), r("float", (c,), 0.5, 2)
            how = {"is_training": training, "epsilon": 0.01}
            yield case("FusedBatchNormGrad", dy, x, *params, **how)
            yield case("FusedBatchNormGradV3", dy, x, *params, r("float", (c,)),
                       nchw=((0, 1), (0,)) if training and c == 5 else None, **how)
            for dtype in ("float", "half", "bfloat16"):
                yield case("FusedBatchNormGradV2", dy.astype(a(dtype, 0).dtype),
                           x.astype(a(dtype, 0).dtype), *params, **how)
        x = r("float", (2, 3, 2, 2, 4))
        params = r("float", (4,)), r("float", (4,)), r("float", (4,), 0.5, 2), r("float", (4,))
        yield case("FusedBatchNormGradV3", x, x * 2, *params, is_training=training,
                   data_format="NDHWC")
    x = r("float", (2, 3, 3, 4))
    bad = [r("float", (5,))] * 3
    yield case("FusedBatchNormGrad", x, x, *bad, fails=True)
    yield case("FusedBatchNormGrad", x, x[:1], *[r("float", (4,))] * 3, fails=True)
    for radius, bias, alpha, beta in ((5, 1.0, 1.0, 0.5), (1, 2.0, 0.3, 0.75), (0, 1.0, 0.1, 2.0)):
        how = {"depth_radius": radius, "bias": bias, "alpha": alpha, "beta": beta}
        for dtype, shape in (("float", (1, 2, 2, 7)), ("float", (2, 1, 3, 2)), ("half", (1, 1, 2, 4))):
            x = r(dtype, shape)
            y = tf.nn.lrn(x, radius, bias, alpha, beta).numpy().astype(x.dtype)
            yield case("LRNGrad", r(dtype, shape), x, y, tol=1e-2 if dtype == "half" else None, **how)
    for dtype in FLOATS + ["int32", "int64", "uint8", "complex64"]:
        yield case("BiasAddGrad", r(dtype, (3, 4, 5)))
    for shape in ((2, 3), (4, 2, 3, 5), (2, 3, 4, 2, 2), (0, 3)):
        yield case("BiasAddGrad", r("float", shape))
        if len(shape) > 2:
            yield case("BiasAddGrad", r("float", shape), data_format="NCHW")
    yield case("BiasAddGrad", r("float", (3,)), fails=True)


def resizes():
    r = Rand("resize_grad")
    ways = [{}, {"align_corners": True}, {"half_pixel_centers": True}]
    for small, big in (((3, 4), (7, 5)), ((6, 5), (3, 2)), ((1, 1), (4, 4)), ((4, 4), (4, 4))):
        for how in ways:
            for dtype in FLOATS if how == {} else ["float"]:
                image = r(dtype, (2, *small, 3))
                yield case("ResizeBilinearGrad", r("float", (2, *big, 3)), image, **how)
                if dtype in ("float", "double"):
                    yield case("ResizeBicubicGrad", r("float", (2, *big, 3)), image,
                               tol=1e-5, **how)
            for dtype in FLOATS + ["int32", "uint8", "int8"] if how == {} else ["float"]:
                yield case("ResizeNearestNeighborGrad", r(dtype, (2, *big, 3)), i32(*small), **how)
    image = r("float", (1, 2, 2, 1))
    yield case("ResizeBilinearGrad", r("float", (1, 2, 2)), image, fails=True)
    yield case("ResizeBilinearGrad", image, image, align_corners=True, half_pixel_centers=True,
               fails=True)
    yield case("ResizeNearestNeighborGrad", image, i32(2), fails=True)
    yield case("ResizeNearestNeighborGrad", image, i32(0, 2), fails=True)
    # Without images their size is arbitrary.
    yield case("ResizeNearestNeighborGrad", r("float", (0, 4, 4, 3)), i32(2_000_000_000, 1))


def boxes():
    r = Rand("boxes_grad")
    places = a("float", [[0.1, 0.2, 0.7, 0.9], [0, 0, 1, 1], [-0.3, 0.4, 0.5, 1.4], [0.8, 0.7, 0.2, 0.1]])
    of = i32(1, 0, 1, 0)
    for crop in ((3, 4), (1, 2), (1, 1)):
        grads = r("float", (4, *crop, 2))
        for dtype in ("float", "double", "half"):
            for method in ("bilinear", "nearest"):
                yield case("CropAndResizeGradImage", grads, places, of, i32(2, 5, 4, 2), T=dtype,
                           tol={"double": 1e-6}.get(dtype), method=method)
        for dtype in ("float", "double", "half", "uint8", "int32"):
            yield case("CropAndResizeGradBoxes", grads, r(dtype, (2, 5, 4, 2)), places, of)
    yield case("CropAndResizeGradImage", grads, places[:2], of, i32(2, 5, 4, 2), T="float", fails=True)
    yield case("CropAndResizeGradImage", grads, places, of, i32(2, 5, 4, 1), T="float", fails=True)
    yield case("CropAndResizeGradBoxes", grads, r("float", (2, 5, 4)), places, of, fails=True)
    for strides, rates in (((1, 1), (1, 1)), ((2, 1), (1, 2))):
        for padding in ("SAME", "VALID"):
            how = {"strides": [1, *strides, 1], "rates": [1, *rates, 1], "padding": padding}
            for dtype in FLOATS + ["int32", "uint8"]:
                x, f = r(dtype, (2, 6, 7, 2)), r(dtype, (3, 2, 2))
                wide = [np.asarray(t, np.float32) for t in (x, f)]
                y = tf.raw_ops.Dilation2D(input=wide[0], filter=wide[1], **how).numpy()
                for to in ("Input", "Filter"):
                    yield case(f"Dilation2DBackprop{to}", x, f, r(dtype, y.shape), **how)
    yield case("Dilation2DBackpropInput", x, f, r(dtype, (2, 1, 1, 2)), fails=True, **how)


def rows():
    r = Rand("dynamic")
    for dtype in FLOATS + ["int32", "string", "bool", "complex64"]:
        yield case("DynamicPartition", r(dtype, (5, 2)), i32(0, 2, 0, 1, 2), num_partitions=4)
        yield case("DynamicStitch", [i32(0, 3), i32(1), i32(2, 4)],
                   [r(dtype, (2, 2)), r(dtype, (1, 2)), r(dtype, (2, 2))])
    yield case("DynamicPartition", r("float", (2, 3, 2)), i32(0, 1, 0, 1, 1, 1).reshape(2, 3),
               num_partitions=2)
    yield case("DynamicPartition", r("float", ()), np.int32(1), num_partitions=2)
    yield case("DynamicPartition", empty("float", 0, 3), i32(), num_partitions=2)
    yield case("DynamicPartition", r("float", (2,)), i32(0, 7), num_partitions=2, fails=True)
    yield case("DynamicPartition", r("float", (2,)), i32(0, -1), num_partitions=2, fails=True)
    yield case("DynamicPartition", r("float", (2,)), i32(0), num_partitions=2, fails=True)
    for op in ("DynamicStitch", "ParallelDynamicStitch"):
        yield case(op, [i32(1, 0).reshape(2, 1), np.int32(2)],
                   [r("float", (2, 1, 3)), r("float", (3,))])
        yield case(op, [i32(), i32()], [empty("float", 0, 2), empty("float", 0, 2)])
        yield case(op, [i32(0), i32(1)], [r("float", (1, 2)), r("float", (1, 3))], fails=True)
        yield case(op, [i32(0, 1)], [r("float", (1, 2))], fails=True)
        yield case(op, [i32(0, -1)], [r("float", (2, 2))], fails=True)
    yield case("DynamicStitch", [i32(0, 1), i32(1, 0)], [r("float", (2, 2)), r("float", (2, 2))])
    for kind in ("Sum", "Mean", "SqrtN"):
        for dtype in FLOATS:
            for index in (i32, i64):
                grad = r(dtype, (3, 2))
                inputs = grad, index(3, 0, 3, 1), index(0, 0, 1, 2)
                yield case(f"SparseSegment{kind}Grad", *inputs, np.int32(5))
                yield case(f"SparseSegment{kind}GradV2", *inputs, np.int32(5))
        op, grad = f"SparseSegment{kind}Grad", r("float", (2, 2))
        yield case(op, grad, i32(), i32(), np.int32(3), unchecked=(0,))
        yield case(op, grad, i32(0, 5), i32(0, 1), np.int32(3), fails=True)
        yield case(op, grad, i32(0, 1), i32(0, 2), np.int32(3), fails=True)
        yield case(op, grad, i32(0, 1), i32(0), np.int32(3), fails=True)
        yield case(op, grad, i32(0, 1), i32(0, 1), np.int32(-3), fails=True)


def cases():
    yield from pools()
    yield from norms()
    yield from resizes()
    yield from boxes()
    yield from rows()
