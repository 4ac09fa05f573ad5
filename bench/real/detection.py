"""Detection and segmentation heads."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

from real.kit import integers, model, normal, uniform

I = tf.image


def boxes(*shape, seed=0):
    corners = uniform(*shape, 4, seed=seed)
    low, high = corners[..., :2] * 0.6, corners[..., 2:] * 0.4 + 0.05
    return np.concatenate([low, low + high], -1).astype("float32")


@model
def suppressions():
    def program(b, s):
        raw = tf.raw_ops
        idx = I.non_max_suppression(b, s, 6, 0.4, 0.1)
        soft, kept = I.non_max_suppression_with_scores(b, s, 8, 0.5, 0.05, 0.5)
        pad, valid = I.non_max_suppression_padded(b, s, 10, 0.5, 0.2, pad_to_max_output_size=True)
        overlaps = I.non_max_suppression_overlaps(tf.matmul(b, b, transpose_b=True), s, 5, 0.8, 0.1)
        old = raw.NonMaxSuppression(boxes=b, scores=s, max_output_size=5, iou_threshold=0.3)
        v4, n4 = raw.NonMaxSuppressionV4(boxes=b, scores=s, max_output_size=7, iou_threshold=0.5, score_threshold=0.3, pad_to_max_output_size=True)
        return idx, soft, kept, pad, valid, overlaps, old, v4, n4, tf.gather(b, idx)

    return program, [{"b": boxes(n), "s": uniform(n)} for n in (20, 1, 0, 64)]


@model
def combined_suppression():
    def program(b, s):
        out = I.combined_non_max_suppression(b, s, 4, 9, 0.5, 0.2, pad_per_class=False, clip_boxes=True)
        return out.nmsed_boxes, out.nmsed_scores, out.nmsed_classes, out.valid_detections

    return program, [{"b": boxes(2, 15, 3), "s": uniform(2, 15, 3)}, {"b": boxes(1, 30, 1), "s": uniform(1, 30, 3)}, {"b": boxes(1, 0, 1), "s": uniform(1, 0, 3)}]


@model
def batched_padded_suppression():
    def program(b, s):
        return I.non_max_suppression_padded(b, s, 5, 0.5, 0.1, pad_to_max_output_size=True, sorted_input=False, canonicalized_coordinates=True)

    return program, [{"b": boxes(3, 12), "s": uniform(3, 12)}, {"b": boxes(1, 40), "s": uniform(1, 40)}]


@model
def single_shot_head():
    """Anchors, decoding of offsets, per class suppression, as in SSD."""
    conv_box, conv_class = tf.Variable(normal(3, 3, 8, 16) * 0.1), tf.Variable(normal(3, 3, 8, 20) * 0.2)

    def program(features):
        rows = tf.shape(features)[1]
        ys, xs = tf.meshgrid(tf.range(rows), tf.range(rows), indexing="ij")
        centers = (tf.cast(tf.stack([ys, xs], -1), tf.float32) + 0.5) / tf.cast(rows, tf.float32)
        sizes = tf.constant([[0.2, 0.2], [0.4, 0.2], [0.2, 0.4], [0.5, 0.5]])
        anchors = tf.reshape(tf.concat([tf.repeat(centers[:, :, None], 4, 2), tf.broadcast_to(sizes, [rows, rows, 4, 2])], -1), [-1, 4])
        deltas = tf.reshape(tf.nn.conv2d(features, conv_box, 1, "SAME"), [tf.shape(features)[0], -1, 4])
        scores = tf.sigmoid(tf.reshape(tf.nn.conv2d(features, conv_class, 1, "SAME"), [tf.shape(features)[0], -1, 5]))
        center = anchors[:, :2] + deltas[..., :2] * anchors[:, 2:] * 0.1
        size = anchors[:, 2:] * tf.exp(deltas[..., 2:] * 0.2)
        found = tf.concat([center - size / 2, center + size / 2], -1)

        def one(args):
            b, s = args
            best = tf.reduce_max(s, -1)
            keep = I.non_max_suppression(b, best, 10, 0.5, 0.4)
            n = tf.shape(keep)[0]
            pad = lambda v: tf.pad(v, [[0, 10 - n]] + [[0, 0]] * (v.shape.rank - 1))
            return pad(tf.gather(b, keep)), pad(tf.gather(best, keep)), pad(tf.gather(tf.argmax(s, -1), keep)), n

        return tf.map_fn(one, (found, scores), fn_output_signature=(tf.float32, tf.float32, tf.int64, tf.int32))

    return program, [{"features": normal(n, k, k, 8)} for n, k in ((2, 5), (1, 3))], [conv_box, conv_class]


@model
def region_crops():
    def program(image, b, which):
        crops = I.crop_and_resize(image, b, which, (4, 5), extrapolation_value=0.3)
        near = I.crop_and_resize(image, b, which, (3, 3), method="nearest")
        pooled = tf.nn.max_pool2d(crops, 2, 2, "VALID")
        return crops, near, pooled

    return program, [{"image": uniform(2, 10, 12, 3), "b": boxes(n) * 1.4 - 0.1, "which": integers(0, 2, n)} for n in (5, 1, 0)] + [
        {"image": uniform(2, 10, 12, 3), "b": boxes(1), "which": np.array([7], "int32")}]


@model
def yolo_head():
    anchors = np.array([[10, 13], [16, 30], [33, 23]], "float32")

    def program(raw):
        n, g = tf.shape(raw)[0], tf.shape(raw)[1]
        x = tf.reshape(raw, [n, g, g, 3, 9])
        xy, wh, conf, probs = tf.split(x, [2, 2, 1, 4], axis=-1)
        grid = tf.cast(tf.expand_dims(tf.stack(tf.meshgrid(tf.range(g), tf.range(g)), -1), 2), tf.float32)
        xy = (tf.sigmoid(xy) + grid) / tf.cast(g, tf.float32)
        wh = tf.exp(wh) * anchors / 416.0
        b = tf.reshape(tf.concat([xy - wh / 2, xy + wh / 2], -1), [n, -1, 1, 4])
        s = tf.reshape(tf.sigmoid(conf) * tf.sigmoid(probs), [n, -1, 4])
        out = I.combined_non_max_suppression(b, s, 5, 20, 0.45, 0.3)
        mask = tf.boolean_mask(b, tf.reduce_max(s, -1) > 0.5)
        return tuple(out) + (mask,)

    return program, [{"raw": normal(n, k, k, 27)} for n, k in ((1, 4), (2, 6))]


@model
def segmentation_upsampler():
    w = tf.Variable(normal(3, 3, 4, 6) * 0.2)

    def program(x):
        y = tf.nn.atrous_conv2d(x, w, 2, "SAME")
        y = I.resize(y, tf.shape(x)[1:3] * 3)
        labels = tf.argmax(y, -1, output_type=tf.int32)
        areas = tf.math.bincount(tf.reshape(labels, [tf.shape(x)[0], -1]), minlength=6, axis=-1)
        iou = tf.math.confusion_matrix(tf.reshape(labels, [-1]), tf.reshape(tf.roll(labels, 1, 1), [-1]), 6)
        return y, labels, areas, iou, tf.one_hot(labels, 6, axis=1)

    return program, [{"x": normal(n, 7, 9, 4)} for n in (1, 2)], [w]


@model
def matching_targets():
    """Overlaps of all pairs, best anchors, encoded targets."""
    def program(anchors, truth, labels):
        tl = tf.maximum(anchors[:, None, :2], truth[None, :, :2])
        br = tf.minimum(anchors[:, None, 2:], truth[None, :, 2:])
        area = lambda v: tf.reduce_prod(v[:, 2:] - v[:, :2], -1)
        inter = tf.reduce_prod(tf.maximum(br - tl, 0), -1)
        iou = tf.math.divide_no_nan(inter, area(anchors)[:, None] + area(truth)[None] - inter)
        best, which = tf.reduce_max(iou, 1), tf.argmax(iou, 1)
        forced = tf.tensor_scatter_nd_update(best, tf.argmax(iou, 0)[:, None], tf.ones([tf.shape(truth)[0]]))
        cls = tf.where(forced > 0.5, tf.gather(labels, which), -1)
        values, order = tf.math.top_k(best, 5, sorted=True)
        return iou, cls, values, order, tf.where(cls >= 0), tf.unique_with_counts(cls)

    return program, [{"anchors": boxes(n), "truth": boxes(m, seed=4), "labels": integers(0, 9, m)} for n, m in ((16, 3), (7, 1))]
