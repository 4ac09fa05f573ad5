"""Box suppression, colors, transforms and drawing."""

import numpy as np

from casekit import Rand, a, case, empty, i32, i64, s32

f32 = np.float32


def boxes_of(r, dtype, n):
    """Boxes in a few clusters, some with exchanged corners, one without area."""
    centers = r("float", (n, 2), 0, 1).round(1)
    sizes = r("float", (n, 2), 0.1, 0.5)
    boxes = np.concatenate([centers, centers + sizes], 1)
    boxes[::3] = boxes[::3, [2, 3, 0, 1]]
    if n > 4:
        boxes[4, 2:] = boxes[4, :2]
    return a(dtype, boxes)


def scores_of(r, dtype, n):
    scores = r("float", (n,), -0.2, 1).round(1)
    return a(dtype, scores)


def suppressions():
    r = Rand("NonMaxSuppression")
    for n, size in ((0, 3), (1, 3), (9, 4), (16, 20)):
        boxes, scores = boxes_of(r, "float", n), scores_of(r, "float", n)
        for threshold in (0.0, 0.4, 1.0):
            yield case("NonMaxSuppression", boxes, scores, s32(size), iou_threshold=threshold)
            yield case("NonMaxSuppressionWithOverlaps", r("float", (n, n), 0, 1), scores, s32(size), f32(threshold),
                       f32(0.2))
            for dtype in ("float", "half"):
                b, s = boxes.astype(np.dtype(a(dtype, 0).dtype)), scores.astype(a(dtype, 0).dtype)
                for limit in ("float", "half"):
                    t, low = a(limit, threshold), a(limit, 0.2)
                    yield case("NonMaxSuppressionV2", b, s, s32(size), t)
                    yield case("NonMaxSuppressionV3", b, s, s32(size), t, low)
                    for pad in (False, True):
                        yield case("NonMaxSuppressionV4", b, s, s32(size), t, low, pad_to_max_output_size=pad)
                for pad in (False, True):
                    for sigma in (0.0, 0.5):
                        yield case("NonMaxSuppressionV5", b, s, s32(size), a(dtype, threshold), a(dtype, 0.1),
                                   a(dtype, sigma), pad_to_max_output_size=pad)


def bad_suppressions():
    r = Rand("bad boxes")
    boxes, scores, n, half = boxes_of(r, "float", 3), scores_of(r, "float", 3), s32(2), f32(0.5)
    low = f32(0.0)
    wrong = [(boxes[0], scores, n, half, low), (boxes[:, :3], scores, n, half, low), (boxes, scores[:2], n, half, low),
             (boxes, boxes, n, half, low), (boxes, scores, i32(2), half, low), (boxes, scores, n, a("float", [1]), low),
             (boxes, scores, n, half, a("float", [1])), (boxes, scores, s32(-1), half, low),
             (boxes, scores, n, f32(1.5), low), (boxes, scores, n, f32(-0.1), low), (boxes, scores, n, f32(np.nan), low)]
    for i, inputs in enumerate(wrong):
        yield case("NonMaxSuppressionV3", *inputs, fails=True)
        yield case("NonMaxSuppressionV4", *inputs, fails=True)
        yield case("NonMaxSuppressionV5", *inputs, f32(0.0), fails=True)
        if i != 6:
            yield case("NonMaxSuppressionV2", *inputs[:4], fails=True)
        if i in (0, 1, 2, 3, 4, 7):
            yield case("NonMaxSuppression", *inputs[:3], fails=True)
    yield case("NonMaxSuppression", boxes, scores, n, iou_threshold=2.0, fails=True)
    yield case("NonMaxSuppressionV5", boxes, scores, n, half, low, f32(-1), fails=True)
    square = r("float", (3, 3))
    for inputs in ((square[0], scores, n, half, low), (square[:2], scores, n, half, low),
                   (square, scores[:2], n, half, low), (square, scores, s32(-1), half, low),
                   (square, scores, n, a("float", [1]), low)):
        yield case("NonMaxSuppressionWithOverlaps", *inputs, fails=True)


def combined():
    r = Rand("CombinedNonMaxSuppression")
    for batch, n, classes, per_class, total in ((1, 6, 1, 3, 4), (2, 9, 3, 2, 5), (2, 9, 3, 20, 50), (0, 4, 2, 2, 2),
                                                (1, 0, 2, 2, 3)):
        for q in {1, classes}:
            boxes = np.stack([boxes_of(r, "float", n * q).reshape(n, q, 4) for _ in range(batch)]) if batch \
                else empty("float", 0, n, q, 4)
            boxes = a("float", boxes * 1.4 - 0.2)
            # Distinct scores: the order of equal ones is not defined.
            scores = r.rng.permutation(batch * n * classes).reshape(batch, n, classes) / max(1, batch * n * classes)
            scores = a("float", scores)
            for pad in (False, True):
                for clip in (False, True):
                    yield case("CombinedNonMaxSuppression", boxes, scores, s32(per_class), s32(total), f32(0.4),
                               f32(0.2), pad_per_class=pad, clip_boxes=clip)
    boxes, scores = r("float", (1, 4, 1, 4), 0, 1), r("float", (1, 4, 2), 0, 1)
    good = [boxes, scores, s32(2), s32(3), f32(0.5), f32(0.1)]
    for i, value in ((0, boxes[..., :3]), (0, np.tile(boxes, (2, 1, 1, 1))), (0, np.tile(boxes, (1, 1, 3, 1))),
                     (1, scores[:, :3]), (2, s32(0)), (2, i32(1)), (3, s32(0)), (3, i32(1)), (4, f32(2)),
                     (4, a("float", [1])), (5, a("float", [1]))):
        yield case("CombinedNonMaxSuppression", *good[:i], value, *good[i + 1:], fails=True)


def colors():
    r = Rand("colors")
    corners = np.array([[x, y, z] for x in (0, 0.5, 1) for y in (0, 0.5, 1) for z in (0, 0.5, 1)])
    for dtype in ("float", "double", "half", "bfloat16"):
        for shape in ((3,), (2, 5, 2, 3), (0, 3)):
            yield case("RGBToHSV", r(dtype, shape, 0, 1))
            yield case("HSVToRGB", r(dtype, shape, 0, 1))
        yield case("RGBToHSV", a(dtype, corners))
        yield case("HSVToRGB", a(dtype, corners))
        yield case("RGBToHSV", r(dtype, (9, 3), -1, 255))
        yield case("HSVToRGB", r(dtype, (9, 3), -1, 2))
    for op in ("RGBToHSV", "HSVToRGB"):
        yield case(op, r("float", (4, 2)), fails=True)
        yield case(op, f32(1), fails=True)
    image = a("float", corners.reshape(3, 9, 3))
    for shape in ((4, 5, 3), (2, 7, 3, 3), (1, 1, 3), (0, 2, 2, 3), (2, 0, 4, 3)):
        x = r("float", shape, 0, 1)
        for amount in (0.0, 0.5, 3.0, -0.7):
            for op in ("AdjustContrastv2", "AdjustHue", "AdjustSaturation"):
                yield case(op, x, f32(amount))
    for amount in (0.0, 0.25, -0.9, 2.3):
        for op in ("AdjustHue", "AdjustSaturation"):
            yield case(op, image, f32(amount))
            yield case(op, image * 255, f32(amount))
    yield case("AdjustContrastv2", r("float", (3, 4, 5)), f32(2))
    yield case("AdjustContrastv2", r("float", (16, 21, 1), 0, 255), f32(1.5))
    yield from first_versions()
    for op in ("AdjustContrastv2", "AdjustHue", "AdjustSaturation"):
        yield case(op, r("float", (4, 3)), f32(1), fails=True)
        yield case(op, r("float", (4, 4, 3)), a("float", [1]), fails=True)
    for op in ("AdjustHue", "AdjustSaturation"):
        yield case(op, r("float", (4, 4, 2)), f32(1), fails=True)


TRANSFORMS = [
    [1, 0, 0, 0, 1, 0, 0, 0], [1, 0, 1, 0, 1, -2, 0, 0], [0.8, -0.6, 1.5, 0.6, 0.8, -1.25, 0, 0],
    [1, 0.2, -7.3, -0.1, 1, 9.4, 0, 0], [-1, 0, 3, 0, -1, 2.5, 0, 0], [1, 0, 0, 0, 1, 0, 0.05, -0.02],
    [1, 0, 0, 0, 1, 0, -0.5, 0], [2, 0, -20, 0, 3, 25.5, 0, 0],
]


def first_versions():
    """Ops that TensorFlow only runs in graphs of old producers."""
    r = Rand("first versions")
    for dtype in ("uint8", "int8", "int16", "int32", "int64", "float", "double"):
        x = r(dtype, (2, 5, 4, 3), -100, 100)
        yield case("AdjustContrast", x, f32(1.5), f32(-60), f32(90.5))
        yield case("AdjustContrast", x[0], f32(0), f32(10), f32(0))
        for size in ((2, 3), (5, 4), (0, 1), (5, 2), (1, 4)):
            yield case("RandomCrop", x[0], i64(*size), seed=7, seed2=8)
            yield case("RandomCrop", x[0], i64(*size), seed=1)
    yield case("AdjustContrast", r("float", (0, 3, 2)), f32(2), f32(0), f32(1))
    good = [x, f32(1), f32(0), f32(1)]
    for i, bad in ((0, x[0, 0]), (1, good[1][None]), (2, good[1][None]), (3, good[1][None])):
        yield case("AdjustContrast", *good[:i], bad, *good[i + 1:], fails=True)
    for size in (i64(6, 2), i64(2, 5), i64(2), i64(1)[0]):
        yield case("RandomCrop", x[0], size, seed=1, fails=True)
    yield case("RandomCrop", x, i64(2, 2), seed=1, fails=True)


def transforms():
    r = Rand("ImageProjectiveTransform")
    for interpolation in ("NEAREST", "BILINEAR"):
        for mode in ("CONSTANT", "REFLECT", "WRAP", "NEAREST"):
            how = {"interpolation": interpolation, "fill_mode": mode}
            for transform in TRANSFORMS:
                yield case("ImageProjectiveTransformV3", r("float", (1, 4, 5, 1)), a("float", [transform]), i32(5, 6),
                           f32(0.5), **how)
            for shape in ((1, 1, 1, 1), (2, 1, 3, 1), (3, 3, 1, 3)):
                some = a("float", [TRANSFORMS[i % 8] for i in range(1, 1 + shape[0])])
                yield case("ImageProjectiveTransformV3", r("float", shape), some, i32(3, 4), f32(-1), **how)
        how = {"interpolation": interpolation}
        for dtype in ("uint8", "int32", "int64", "half", "bfloat16", "float", "double"):
            images = r(dtype, (2, 5, 4, 3), 0, 9)
            yield case("ImageProjectiveTransformV2", images, a("float", TRANSFORMS[2:4]), i32(4, 5), **how)
            yield case("ImageProjectiveTransformV2", images, a("float", TRANSFORMS[2:3]), i32(1, 1),
                       fill_mode="WRAP", **how)
            yield case("ImageProjectiveTransformV3", images, a("float", TRANSFORMS[3:4]), i32(4, 5), f32(3.7), **how)
        yield case("ImageProjectiveTransformV3", empty("float", 0, 4, 4, 1), a("float", TRANSFORMS[:1]), i32(2, 2),
                   f32(0), **how)
    how = {"interpolation": "NEAREST"}
    images, one = r("float", (2, 3, 3, 1)), a("float", TRANSFORMS[:1])
    for op, more in (("ImageProjectiveTransformV2", ()), ("ImageProjectiveTransformV3", (f32(0),))):
        for inputs in ((images[0], one, i32(2, 2)), (images, one[:, :7], i32(2, 2)), (images, one[0], i32(2, 2)),
                       (images, a("float", TRANSFORMS[:3]), i32(2, 2)), (images, one, i32(2, 2, 1)),
                       (images, one, s32(2)), (images, one, i32(0, 2)), (images, one, i32(2, -1))):
            yield case(op, *inputs, *more, fails=True, **how)
    yield case("ImageProjectiveTransformV3", images, one, i32(2, 2), a("float", [1]), fails=True, **how)


def drawings():
    r = Rand("DrawBoundingBoxes")
    boxes = np.array([[0.1, 0.2, 0.7, 0.9], [-0.5, 0.3, 0.5, 0.6], [0.5, 0.5, 1.5, 2.0], [0.8, 0.1, 0.2, 0.9],
                      [1.2, 0, 1.5, 1], [0, 0, 1, 1], [0.4, 0.4, 0.4, 0.4], [-2, -2, -1, -1], [0.2, 0.6, 0.9, 0.8],
                      [0.3, 0.0, 0.6, 0.1], [0.15, 0.5, 0.95, 0.55]])
    for dtype in ("float", "half"):
        for depth in (1, 3, 4):
            for n in (0, 3, 11):
                some = a("float", [boxes[:n], boxes[::-1][:n]]).reshape(2, n, 4)
                images = r(dtype, (2, 6, 7, depth), 0, 1)
                yield case("DrawBoundingBoxes", images, some)
                for count in (0, 2):
                    yield case("DrawBoundingBoxesV2", images, some, r("float", (count, depth), 0, 1))
    images, some = r("float", (1, 4, 5, 3)), a("float", [boxes[:2]])
    yield case("DrawBoundingBoxes", empty("float", 1, 0, 5, 3), some)
    yield case("DrawBoundingBoxesV2", images, some, r("float", (2, 4)))
    for inputs in ((images[0], some), (images, some[0]), (images, some[:, :, :3]), (images[..., :2], some),
                   (images, np.tile(some, (2, 1, 1)))):
        yield case("DrawBoundingBoxes", *inputs, fails=True)
        yield case("DrawBoundingBoxesV2", *inputs, r("float", (2, 3)), fails=True)
    yield case("DrawBoundingBoxesV2", images, some, r("float", (2, 2)), fails=True)
    yield case("DrawBoundingBoxesV2", images, some, r("float", (3,)), fails=True)


def cases():
    for part in (suppressions, bad_suppressions, combined, colors, transforms, drawings):
        yield from part()
