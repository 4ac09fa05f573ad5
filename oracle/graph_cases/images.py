"""Images that are encoded, and decoded again."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw

WIDTH, HEIGHT = 24, 16


def picture(channels):
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    waves = [np.sin(x * a + y * b) for a, b in ((0.11, 0.07), (0.05, -0.13), (-0.08, 0.04))]
    return np.clip(np.stack(waves, -1)[..., :channels] * 90 + 128, 0, 255).astype(np.uint8)


@case("v1")
def jpeg_attrs(b):
    color, gray = picture(3), picture(1)

    def encoded(image=color, **attrs):
        return raw.EncodeJpeg(image=image, **attrs)

    for attrs in ({}, {"chroma_downsampling": False}, {"progressive": True}, {"optimize_size": True}, {"quality": 60},
                  {"format": "rgb"}, {"density_unit": "cm", "x_density": 7, "y_density": 1000},
                  {"xmp_metadata": "<x:xmpmeta/>"}):
        b.step(encoded(**attrs))
    for attrs in ({"quality": 80}, {"format": "grayscale"}, {"progressive": True}):
        b.step(raw.DecodeJpeg(contents=encoded(gray, **attrs)))
    b.step(encoded(gray, format="rgb"), error="format rgb expects 3 channels, got [16,24,1]")
    b.step(encoded(quality=101), error="quality must be in [0,100], got 101")
