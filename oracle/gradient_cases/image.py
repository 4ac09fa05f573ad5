"""Colors and projective transforms."""

import numpy as np
import tensorflow as tf
from gradients import case

raw = tf.raw_ops


@case(dynamic=False)
def rgb_to_hsv(b):
    return raw.RGBToHSV(images=b.x(b.random.uniform(0.1, 1, (5, 4, 3))))


@case(numeric=False, dynamic=False)
def rgb_to_hsv_of_equal_channels(b):
    values = [[x, y, z] for x in (-0.5, 0, 1) for y in (-0.5, 0, 1) for z in (-0.5, 0, 1)]
    return raw.RGBToHSV(images=b.x(np.float64(values)))


for version in (2, 3):
    for interpolation in ("NEAREST", "BILINEAR"):
        @case(numeric=False, dynamic=False, tol=1e-5, name=f"projective_transform_v{version}_{interpolation.lower()}")
        def projective_transform(b, version=version, interpolation=interpolation):
            transforms = tf.constant([[0.8, -0.6, 1.5, 0.6, 0.8, -0.3, 0.01, 0], [1, 0, 1, 0, 1, -1, 0, 0]], tf.float32)
            more = {"fill_value": 1.5} if version == 3 else {}
            op = getattr(raw, f"ImageProjectiveTransformV{version}")
            return op(images=b.x([2, 4, 5, 2]), transforms=transforms, output_shape=[3, 4],
                      interpolation=interpolation, fill_mode="CONSTANT", **more)


for kind in ("lanczos3", "triangle", "keyscubic"):
    for antialias in (False, True):
        @case(numeric=False, dynamic=False, tol=1e-5, name=f"scale_and_translate_{kind}{'_antialias' if antialias else ''}")
        def scale_and_translate(b, kind=kind, antialias=antialias):
            images = np.float32(b.random.uniform(-1, 1, (2, 5, 6, 2)))
            return raw.ScaleAndTranslate(images=b.x(images), size=[4, 9], scale=[0.7, 1.6],
                                         translation=[0.3, -1.2], kernel_type=kind, antialias=antialias)
