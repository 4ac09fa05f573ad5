"""Convolutions, pooling, normalization, resizing."""

import numpy as np
import tensorflow as tf
from gradients import case

raw = tf.raw_ops
SPACES = [((2, 5, 6, 3), (3, 2, 3, 4), [1, 1, 1, 1], "SAME", [1, 1, 1, 1]),
          ((1, 7, 5, 2), (3, 3, 2, 3), [1, 2, 2, 1], "VALID", [1, 1, 1, 1]),
          ((2, 4, 4, 1), (2, 2, 1, 2), [1, 3, 2, 1], "SAME", [1, 1, 1, 1])]

for i, (x, f, strides, padding, dilations) in enumerate(SPACES):
    @case(name=f"conv2d_{i}")
    def conv(b, x=x, f=f, strides=strides, padding=padding, dilations=dilations):
        return raw.Conv2D(input=b.x(x), filter=b.x(f), strides=strides, padding=padding,
                          dilations=dilations)

    if strides[1] == strides[2]:
        @case(name=f"depthwise_{i}")
        def depthwise(b, x=x, f=f, strides=strides, padding=padding, dilations=dilations):
            return raw.DepthwiseConv2dNative(input=b.x(x), filter=b.x(f), strides=strides,
                                             padding=padding, dilations=dilations)


@case
def conv2d_explicit(b):
    return raw.Conv2D(input=b.x([1, 5, 5, 2]), filter=b.x([3, 3, 2, 2]), strides=[1, 2, 2, 1],
                      padding="EXPLICIT", explicit_paddings=[0, 0, 1, 2, 0, 1, 0, 0])


@case
def conv2d_twice(b):
    x, f = b.x([1, 4, 4, 2]), b.x([2, 2, 2, 3])
    y = tf.nn.conv2d(x, f, 1, "SAME")
    dx, df = tf.gradients(y * y, [x, f])
    return [dx, df]


@case
def conv1d(b):
    return tf.nn.conv1d(b.x([2, 7, 3]), b.x([3, 3, 2]), 2, "SAME")


@case
def conv3d(b):
    return tf.nn.conv3d(b.x([1, 3, 4, 4, 2]), b.x([2, 2, 3, 2, 2]), [1, 1, 2, 1, 1], "SAME")


@case
def conv_transposed(b):
    return tf.nn.conv2d_transpose(b.x([1, 3, 3, 2]), b.x([3, 3, 4, 2]), [1, 6, 6, 4], 2, "SAME")


@case
def pools(b):
    x = b.x([2, 6, 5, 3])
    return [tf.nn.max_pool2d(x, 2, 2, "VALID"), tf.nn.max_pool2d(x, 3, 2, "SAME"),
            tf.nn.avg_pool2d(x, 2, 2, "VALID"), tf.nn.avg_pool2d(x, [2, 3], [1, 2], "SAME"),
            raw.MaxPoolV2(input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 1, 1], padding="SAME")]


@case
def pools_twice(b):
    x = b.x([1, 5, 6, 2])
    y, z = tf.nn.max_pool2d(x, 3, 2, "SAME"), tf.nn.avg_pool2d(x, 2, 2, "VALID")
    return tf.gradients([y * y * y, z * z * z], x)[0]


@case
def pools_3d(b):
    x = b.x(b.random.uniform(-1, 1, (1, 4, 4, 5, 2)).astype(np.float32))
    return [tf.nn.max_pool3d(x, 2, 2, "SAME"), tf.nn.avg_pool3d(x, 2, 2, "VALID")]


@case
def pool_with_argmax(b):
    x = b.x(b.random.uniform(-1, 1, (2, 4, 4, 2)))
    return tf.nn.max_pool_with_argmax(x, 2, 2, "VALID", include_batch_in_index=True)[0]


for training in [True, False]:
    @case(name=f"batch_norm_{training}", tol=2e-4)
    def batch_norm(b, training=training):
        f32 = lambda *shape: b.random.uniform(0.5, 1.5, shape).astype(np.float32)
        x = b.x(b.random.uniform(-2, 2, (3, 4, 4, 2)).astype(np.float32))
        mean, variance = (f32(0), f32(0)) if training else (f32(2), f32(2))
        return raw.FusedBatchNormV3(x=x, scale=b.x(f32(2)), offset=b.x(f32(2)), mean=mean,
                                    variance=variance, is_training=training, epsilon=0.01)[0]


@case(tol=1e-4)
def local_response(b):
    x = b.x(b.random.uniform(-2, 2, (1, 2, 3, 7)).astype(np.float32))
    return tf.nn.lrn(x, 2, 1.0, 0.5, 0.75)


@case
def resizes(b):
    x = b.x(b.random.uniform(-2, 2, (1, 4, 5, 2)).astype(np.float32))
    return [raw.ResizeBilinear(images=x, size=[7, 3]), raw.ResizeBilinear(images=x, size=[8, 10], half_pixel_centers=True),
            raw.ResizeNearestNeighbor(images=x, size=[7, 8]), raw.ResizeBicubic(images=x, size=[6, 4], align_corners=True)]


@case(tol=1e-4)
def small_network(b):
    x = b.feed(b.random.uniform(-1, 1, (3, 8, 8, 1)).astype(np.float32))
    var = lambda *s: b.x(b.random.uniform(-0.4, 0.4, s).astype(np.float32))
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, var(3, 3, 1, 4), 1, "SAME"), var(4)))
    h = tf.nn.max_pool2d(h, 2, 2, "SAME")
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(h, var(3, 3, 4, 6), 1, "SAME"), var(6)))
    h = tf.reshape(tf.nn.max_pool2d(h, 2, 2, "SAME"), [3, 24])
    logits = tf.matmul(h, var(24, 5)) + var(5)
    labels = b.feed(np.array([0, 3, 4], np.int64))
    return tf.reduce_mean(raw.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=labels)[0])


for training in [True, False]:
    @case(name=f"batch_norm_twice_{training}", tol=2e-3, dynamic=False)
    def batch_norm_twice(b, training=training):
        f32 = lambda *shape: b.random.uniform(0.5, 1.5, shape).astype(np.float32)
        x = b.x(b.random.uniform(-2, 2, (3, 4, 4, 2)).astype(np.float32))
        mean, variance = (f32(0), f32(0)) if training else (f32(2), f32(2))
        scale, offset = b.x(f32(2)), b.x(f32(2))
        y = raw.FusedBatchNormV3(x=x, scale=scale, offset=offset, mean=mean, variance=variance,
                                 is_training=training, epsilon=0.01)[0]
        return tf.gradients(y * y * f32(3, 4, 4, 2), [x, scale, offset])


for scaled in [True, False]:
    @case(name=f"batch_norm_global_{scaled}")
    def batch_norm_global(b, scaled=scaled):
        """TensorFlow runs the op in old graphs only."""
        t, m, v, beta, gamma = [b.x(s) for s in [(2, 3, 3, 4), (4,), np.array([0.5, 1, 2, 3]), (4,), (4,)]]
        def stand_in(graph_def):
            kept = [n for n in graph_def.node if n.op == "Placeholder" or n.name.startswith("gy")]
            out = tf.compat.v1.GraphDef(versions=graph_def.versions, node=kept)
            node = out.node.add(name="y", op="BatchNormWithGlobalNormalization", input=[n.name[:-2] for n in b.xs])
            node.attr["T"].type = tf.float64.as_datatype_enum
            node.attr["variance_epsilon"].f = 0.01
            node.attr["scale_after_normalization"].b = scaled
            return out
        b.stand_in = stand_in
        epsilon = tf.constant(np.float64(np.float32(0.01)))
        y = (t - m) * tf.math.rsqrt(v + epsilon)
        return tf.identity((y * gamma if scaled else y + gamma * 0.0) + beta, name="y")


@case
def pools_by_inputs_twice(b):
    x = b.x([1, 4, 5, 2])
    y = raw.MaxPoolV2(input=x, ksize=[1, 2, 2, 1], strides=[1, 1, 2, 1], padding="SAME")
    return tf.gradients(y * y * y, x)[0]
