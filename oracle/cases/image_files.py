"""Files of images, resampling, random crops and glimpses."""

import io
import struct

import numpy as np
from PIL import Image

from casekit import Rand, a, case, i32, i64, s32

f32 = np.float32


def bmp(pixels, top_down=False):
    """A BMP file of pixels as they are stored, without a palette."""
    height, width, channels = pixels.shape
    rows = pixels if top_down else pixels[::-1]
    pad = -(width * channels) % 4
    data = b"".join(row.tobytes() + b"\0" * pad for row in rows)
    header = b"BM" + struct.pack("<IHHI", 54 + len(data), 0, 0, 54)
    header += struct.pack("<IiiHHIIiiII", 40, width, -height if top_down else height, 1, channels * 8, 0, len(data), 0,
                          0, 0, 0)
    return header + data


def saved(images, **how):
    out = io.BytesIO()
    images[0].save(out, save_all=len(images) > 1, append_images=images[1:], **how)
    return out.getvalue()


def contents():
    r = Rand("BMP")
    for channels in (1, 3, 4):
        for top_down in (False, True):
            data = bmp(r("uint8", (3, 5, channels), 0, 255), top_down)
            for wanted in (0, 3, 4):
                yield case("DecodeBmp", data, channels=wanted)
            for dtype in ("uint8", "uint16", "float"):
                if top_down and dtype != "uint8":
                    continue
                yield case("DecodeImage", data, dtype=dtype)
    data = bmp(r("uint8", (3, 5, 3), 0, 255))
    yield case("DecodeBmp", data, channels=1, fails=True)
    yield case("DecodeBmp", data[:20], fails=True)
    yield case("DecodeBmp", data[:-4], fails=True)
    yield case("DecodeBmp", data[:28] + b"\x10\x00" + data[30:], fails=True)
    yield case("DecodeBmp", data[:18] + b"\0\0\0\0" + data[22:], fails=True)
    yield case("DecodeBmp", data[:22] + b"\0\0\0\0" + data[26:], fails=True)
    yield case("DecodePng", data, fails=True)
    yield case("DecodeBmp", b"", fails=True)
    r = Rand("GIF")
    frames = [Image.fromarray(r("uint8", (6, 7), 0, 255), "L").convert("P") for _ in range(3)]
    colored = [Image.fromarray(r("uint8", (5, 4, 3), 0, 255), "RGB").quantize(16) for _ in range(2)]
    for images in (frames[:1], frames, colored):
        for how in ({}, {"interlace": False}, {"transparency": 3, "disposal": 1}):
            data = saved(images, format="GIF", **how)
            yield case("DecodeGif", data)
            for dtype in ("uint8", "uint16", "float"):
                yield case("DecodeImage", data, dtype=dtype)
                yield case("DecodeImage", data, dtype=dtype, expand_animations=False)
            if len(images) == 1:
                yield case("DecodePng", data)
    yield case("DecodePng", data, fails=True)
    yield case("DecodeImage", data, channels=1, fails=True)
    yield case("DecodeBmp", data, channels=3, fails=True)
    data = saved(colored[:1], format="PNG")
    yield case("DecodeGif", data)
    yield case("DecodeBmp", data, fails=True)
    r = Rand("WebP")
    for mode, channels in (("RGB", 3), ("RGBA", 4)):
        images = [Image.fromarray(r("uint8", (6, 9, channels), 0, 255), mode) for _ in range(2)]
        for image in images:
            if channels == 4:
                image.putalpha(Image.fromarray(r("uint8", (6, 9), 1, 254), "L"))
        data = saved(images[:1], format="WEBP", lossless=True, exact=True)
        for wanted in (0, channels):
            yield case("DecodeWebP", data, channels=wanted)
        yield case("DecodeImage", data, expand_animations=False)
        smooth = Image.fromarray(np.tile(np.arange(24, dtype=np.uint8)[:, None, None] * 9, (1, 32, 3)), "RGB")
        yield case("DecodeWebP", saved([smooth], format="WEBP", quality=90), tol=0.02)
    # Frames without alpha overrun TensorFlow's buffer.
    data = saved(images, format="WEBP", lossless=True, exact=True)
    yield case("DecodeWebP", data)
    yield case("DecodeImage", data, expand_animations=False)
    yield case("DecodeWebP", data, channels=3, fails=True)
    yield case("DecodeWebP", data, channels=1, fails=True)
    yield case("DecodeWebP", data[:14], fails=True)
    # Files of JPEG XL are decoded in the tests of the feature `jxl`.
    for wanted in (2, 5):
        yield case("DecodeJxl", data, channels=wanted, fails=True)


def files():
    for one in contents():
        # As objects, because NumPy's own strings lose trailing zeros.
        one.inputs[0] = np.array(one.inputs[0], dtype=object)
        yield one


def resampling():
    r = Rand("ScaleAndTranslate")
    kernels = ["lanczos1", "lanczos3", "lanczos5", "gaussian", "box", "triangle", "keyscubic", "mitchellcubic"]
    for kind in kernels:
        for antialias in (False, True):
            for scale, shift in (([1.5, 0.7], [0, 0]), ([0.3, 2.0], [1.5, -3.0]), ([1, 1], [0.25, 40])):
                x = r("float", (2, 5, 8, 3), -2, 2)
                how = {"kernel_type": kind, "antialias": antialias}
                scale, shift = a("float", scale), a("float", shift)
                yield case("ScaleAndTranslate", x, i32(7, 4), scale, shift, **how)
                yield case("ScaleAndTranslateGrad", r("float", (2, 7, 4, 3)), x, scale, shift, **how)
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "int64", "bfloat16", "half", "double"):
        yield case("ScaleAndTranslate", r(dtype, (1, 4, 4, 2), 0, 9), i32(3, 6), scale, shift)
    yield case("ScaleAndTranslate", r("float", (0, 4, 4, 2)), i32(3, 6), scale, shift)
    good = [x, i32(3, 3), scale, shift]
    for i, value in ((0, x[0]), (1, i32(3)), (1, np.int32([[3, 3]])), (1, i32(0, 3)), (2, a("float", [1])),
                     (2, a("float", [[1, 1]])), (2, a("float", [0, 1])), (3, a("float", [1])), (0, x[:, :0]),
                     (0, x[..., :0])):
        yield case("ScaleAndTranslate", *good[:i], value, *good[i + 1:], fails=True)
    yield case("ScaleAndTranslate", *good, kernel_type="nearest", fails=True)


def crops():
    r = Rand("boxes")
    boxes = a("float", [[[0.1, 0.2, 0.6, 0.9], [0.3, 0.3, 0.8, 0.5]]])
    for size in ([30, 40, 3], [7, 5, 1], [100, 20, 3]):
        for seed in range(6):
            how = {"seed": seed + 1, "seed2": 7 * seed, "max_attempts": 10}
            yield case("SampleDistortedBoundingBoxV2", i32(*size), boxes, f32(0.3), **how)
            yield case("SampleDistortedBoundingBox", i32(*size), boxes, min_object_covered=0.6, **how)
            for kind in (i32, i64):
                yield case("StatelessSampleDistortedBoundingBox", i32(*size), boxes, f32(0.1), kind(seed, 3),
                           aspect_ratio_range=[0.5, 2.0], area_range=[0.2, 0.9])
    for dtype in ("uint8", "int8", "int16", "int64"):
        yield case("StatelessSampleDistortedBoundingBox", a(dtype, [30, 40, 3]), boxes, f32(0.1), i32(3, 4))
    whole = {"use_image_if_no_bounding_boxes": True}
    op = "StatelessSampleDistortedBoundingBox"
    yield case(op, i32(9, 9, 3), boxes[:, :0], f32(0.1), i32(3, 4), **whole)
    good = [i32(9, 9, 3), boxes, f32(0.1), i32(3, 4)]
    for i, value in ((0, i32(9, 9)), (0, np.int32([[9, 9, 3]])), (0, i32(-1, 9, 3)), (0, i32(9, -1, 3)), (1, boxes[0]),
                     (1, boxes[..., :3]), (1, boxes * 2), (1, boxes[:, :0]), (2, a("float", [1])), (2, f32(-1)),
                     (3, i32(1))):
        yield case(op, *good[:i], value, *good[i + 1:], fails=True)
    for name, value in (("aspect_ratio_range", [1.0]), ("aspect_ratio_range", [-1.0, 1.0]), ("area_range", [1.0]),
                        ("area_range", [0.0, 1.0]), ("area_range", [0.5, 1.5]), ("max_attempts", 0)):
        yield case(op, *good, **{name: value}, fails=True)


def glimpses():
    r = Rand("ExtractGlimpse")
    x = r("float", (3, 6, 7, 2))
    inside = {"uniform_noise": False, "noise": "zero"}
    offsets = {(True, True): [[0, 0], [0.2, -0.3], [0.9, 0.8]], (True, False): [[0.5, 0.5], [0.1, 0.6], [0, 0]],
               (False, True): [[0, 0], [1, -2], [-8, 5]], (False, False): [[3, 3], [1, 2], [5, 30]]}
    for (normalized, centered), values in offsets.items():
        for size in ((2, 3), (4, 9), (0, 3)):
            for op in ("ExtractGlimpse", "ExtractGlimpseV2"):
                yield case(op, x, i32(*size), a("float", values), normalized=normalized, centered=centered, **inside)
    yield case("ExtractGlimpseV2", x, i32(2, 2), a("float", [[1, 1]] * 3), normalized=False, centered=False)
    good = [x, i32(2, 2), a("float", [[1, 1]] * 3)]
    for i, value in ((0, x[0]), (1, i32(2)), (2, a("float", [1, 1])), (2, a("float", [[1, 1]])),
                     (2, a("float", [[1], [1], [1]]))):
        yield case("ExtractGlimpseV2", *good[:i], value, *good[i + 1:], fails=True)
    yield case("ExtractGlimpseV2", *good, uniform_noise=True, noise="zero", fails=True)
    yield case("ExtractGlimpseV2", *good, uniform_noise=False, noise="pink", fails=True)


def encoding():
    r = Rand("EncodeJpegVariableQuality")
    x = r("uint8", (8, 8, 3), 0, 255)
    yield case("EncodeJpegVariableQuality", x[0], s32(50), fails=True)
    yield case("EncodeJpegVariableQuality", x, i32(50), fails=True)
    yield case("EncodeJpegVariableQuality", x, s32(101), fails=True)
    yield case("EncodeJpegVariableQuality", x[..., :2], s32(50), fails=True)
    yield from jpegs(r)


def jpegs(r):
    """Files are TensorFlow's, byte by byte: sizes around those of blocks and units, smooth and not."""
    y, xs = np.mgrid[0:40, 0:40]
    waves = np.stack([np.sin(xs * a + y * b) for a, b in ((0.11, 0.07), (0.05, -0.13), (-0.08, 0.04))], -1) * 90 + 128
    smooth = np.clip(waves + r("float", waves.shape, -4, 4), 0, 255).astype(np.uint8)
    noise = r("uint8", (24, 24, 3), 0, 255)
    options = [{"progressive": p, "optimize_size": o, "chroma_downsampling": c}
               for p in (False, True) for o in (False, True) for c in (False, True)]
    for how in options:
        yield case("EncodeJpeg", smooth[:17, :23], **how)
        yield case("EncodeJpeg", noise[:9, :8], quality=100, **how)
        yield case("EncodeJpeg", noise[:16, :17], quality=75, **how)
        yield case("EncodeJpeg", smooth[:23, :9, :1], quality=60, **how)
    for quality in (0, 1, 20, 50, 90, 100):
        yield case("EncodeJpeg", smooth[:18, :15], quality=quality)
        yield case("EncodeJpegVariableQuality", smooth[:15, :18], s32(quality))
    for height, width in ((1, 1), (1, 17), (16, 1), (8, 8), (24, 24), (25, 7)):
        yield case("EncodeJpeg", smooth[:height, :width])
        yield case("EncodeJpeg", smooth[:height, :width, 1:2], progressive=True)
    # Runs of empty blocks and of zeros; bytes of ones.
    dots = np.zeros((40, 48, 3), np.uint8)
    dots[5, 7], dots[30, 40] = 255, (255, 0, 0)
    for how in options:
        yield case("EncodeJpeg", dots, **how)
    yield case("EncodeJpeg", noise, quality=5, progressive=True)
    yield case("EncodeJpeg", smooth[:8, :8], format="rgb", density_unit="cm", x_density=7, y_density=70000)
    yield case("EncodeJpeg", smooth[:8, :8, :1], format="grayscale", xmp_metadata="<x:xmpmeta/>")


def cases():
    yield from files()
    yield from resampling()
    yield from crops()
    yield from glimpses()
    yield from encoding()
