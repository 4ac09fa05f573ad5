"""Images that are encoded and decoded again: files need not be the same, pixels nearly."""

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

    def pixels(file):
        return tf.cast(raw.DecodeJpeg(contents=file), tf.float32)

    whole = {"chroma_downsampling": False}
    for attrs in (whole, {**whole, "progressive": True}, {**whole, "optimize_size": True}, {**whole, "quality": 60},
                  {**whole, "format": "rgb"}):
        b.step(pixels(encoded(**attrs)), tol=4 / 160)
    for attrs in ({"quality": 80}, {"format": "grayscale"}, {"progressive": True}):
        b.step(pixels(encoded(gray, **attrs)), tol=4 / 160)
    # The header has the density; metadata follow it.
    for attrs in ({}, {"density_unit": "cm", "x_density": 7, "y_density": 1000}):
        b.step(raw.Substr(input=encoded(**attrs), pos=13, len=5))
    words = "<x:xmpmeta/>"
    b.step(raw.Substr(input=encoded(xmp_metadata=words), pos=20, len=4 + 29 + len(words)))
    # Each of these makes another file, the optimized one a smaller one.
    plain = raw.StringLength(input=encoded())
    for attrs in ({"optimize_size": True}, {"quality": 50}):
        b.step(tf.less(raw.StringLength(input=encoded(**attrs)), plain))
    b.step(tf.less(plain, raw.StringLength(input=encoded(**whole))))
    b.step(encoded(gray, format="rgb"), error="format rgb expects 3 channels, got [16,24,1]")
    b.step(encoded(quality=101), error="quality must be in [0,100], got 101")
