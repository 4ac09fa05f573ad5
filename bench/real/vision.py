"""Images: decoding, resizing, colors, augmentation, classic filters."""

import io

import numpy as np
import tensorflow as tf
from tensorflow import keras

from real.kit import integers, model, normal, uniform, words

I = tf.image


def photo(height, width, channels=3, seed=0):
    """Returns a smooth picture with an edge."""
    y, x = np.mgrid[:height, :width]
    waves = [127 + 90 * np.sin(x / (3 + c) + seed) * np.cos(y / (5 - c)) + 30 * (x > width // 2) for c in range(channels)]
    return np.clip(np.stack(waves, -1), 0, 255).astype("uint8")


@model
def colors():
    def program(x):
        yield_ = [I.rgb_to_hsv(x), I.hsv_to_rgb(x), I.rgb_to_yiq(x), I.rgb_to_yuv(x), I.yuv_to_rgb(x), I.rgb_to_grayscale(x),
                  I.adjust_hue(x, 0.17), I.adjust_saturation(x, 1.7), I.adjust_contrast(x, 0.6), I.adjust_brightness(x, -0.1),
                  I.adjust_gamma(x, 0.8, 1.2), I.per_image_standardization(x), I.grayscale_to_rgb(I.rgb_to_grayscale(x))]
        return yield_

    return program, [{"x": uniform(n, 9, 7, 3)} for n in (1, 4)] + [{"x": uniform(0, 9, 7, 3)}]


@model
def resizing_methods():
    def program(x):
        outs = []
        for method in ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic"):
            outs += [I.resize(x, (5, 11), method), I.resize(x, (19, 3), method, antialias=True),
                     I.resize(x, (8, 30), method, preserve_aspect_ratio=True)]
        return outs

    return program, [{"x": uniform(1, 12, 9, 2)}, {"x": uniform(3, 7, 16, 2)}]


@model
def resizing_integers():
    v1 = tf.compat.v1.image

    def program(x):
        return [I.resize(x, (6, 6)), v1.resize_bilinear(x, (9, 4), align_corners=True), v1.resize_nearest_neighbor(x, (7, 7), half_pixel_centers=True),
                v1.resize_bicubic(x, (5, 5), half_pixel_centers=True), v1.resize_area(x, (3, 4)), I.resize_with_pad(x, 10, 6),
                I.resize_with_crop_or_pad(x, 5, 14), I.central_crop(x, 0.5), I.crop_to_bounding_box(x, 1, 2, 4, 3),
                I.pad_to_bounding_box(x, 2, 1, 12, 13)]

    return program, [{"x": integers(0, 256, n, 8, 10, 3, dtype="uint8")} for n in (2, 1)]


@model
def decode_and_encode():
    def program(png, jpeg, gif, bmp):
        a, b, c, d = I.decode_png(png), I.decode_jpeg(jpeg, dct_method="INTEGER_ACCURATE"), I.decode_gif(gif), I.decode_bmp(bmp)
        return [a, b, c, d, I.decode_png(I.encode_png(b)), I.decode_image(png, channels=3, expand_animations=False), I.decode_image(bmp),
                I.decode_jpeg(jpeg, channels=1), I.decode_jpeg(jpeg, ratio=2), I.decode_and_crop_jpeg(jpeg, [2, 3, 8, 9]),
                I.extract_jpeg_shape(jpeg), I.decode_png(png, dtype=tf.uint16), I.is_jpeg(jpeg), I.is_jpeg(png)]

    feeds = []
    for height, width in ((16, 20), (9, 13)):
        pixels = photo(height, width)
        gif = (b"GIF89a" + bytes([2, 0, 2, 0, 0x91, 0, 0]) + bytes([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
               + b"\x2c" + bytes([0, 0, 0, 0, 2, 0, 2, 0, 0]) + bytes([2, 3, 0x44, 0x02, 0x05, 0]) + b"\x3b")
        row = -(-width * 3 // 4) * 4
        data = b"".join(pixels[y, :, ::-1].tobytes().ljust(row, b"\0") for y in reversed(range(height)))
        head = b"BM" + (54 + len(data)).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
        head += b"".join(v.to_bytes(n, "little") for v, n in ((40, 4), (width, 4), (height, 4), (1, 2), (24, 2), (0, 4), (len(data), 4), (0, 16)))
        feeds.append({"png": np.array(I.encode_png(pixels).numpy(), object), "jpeg": np.array(I.encode_jpeg(pixels, quality=90).numpy(), object),
                      "gif": np.array(gif, object), "bmp": np.array(head + data, object)})
    feeds.append({**feeds[0], "png": np.array(feeds[0]["png"].item()[:40], object)})
    return program, feeds


@model
def stateless_augmentation():
    def program(x, seed):
        outs = [I.stateless_random_flip_left_right(x, seed), I.stateless_random_flip_up_down(x, seed), I.stateless_random_brightness(x, 0.3, seed),
                I.stateless_random_contrast(x, 0.4, 1.6, seed), I.stateless_random_hue(x, 0.2, seed), I.stateless_random_saturation(x, 0.5, 1.5, seed),
                I.stateless_random_crop(x, (5, 6, 3), seed), tf.image.rot90(x, 3), I.transpose(x), I.flip_left_right(x)]
        begin, size, box = I.stateless_sample_distorted_bounding_box(
            tf.shape(x), tf.constant([[[0.1, 0.2, 0.8, 0.9]]]), seed, min_object_covered=0.3, area_range=(0.2, 1.0))
        return outs + [begin, size, box, I.draw_bounding_boxes(x[None], box, [[1.0, 0, 0]])]

    return program, [{"x": uniform(9, 8, 3), "seed": np.array([1, s], "int32")} for s in range(4)]


@model
def jpeg_quality_and_patches():
    def program(x, f):
        return [I.extract_patches(f, (1, 3, 3, 1), (1, 2, 2, 1), (1, 1, 1, 1), "VALID"), tf.extract_volume_patches(f[:, None], [1, 1, 2, 2, 1], [1, 1, 2, 1, 1], "SAME"),
                I.extract_glimpse(f, (4, 5), tf.zeros([tf.shape(f)[0], 2]), noise="zero"), I.image_gradients(f), I.sobel_edges(f), I.total_variation(f),
                I.ssim(f, f * 0.9, 1.0, filter_size=3), I.psnr(f, f * 0.8, 1.0), tf.cast(tf.shape(I.encode_jpeg(x, quality=30)), tf.int32)]

    return program, [{"x": photo(12, 10), "f": uniform(n, 12, 14, 2)} for n in (1, 3)]


@model
def projective_transforms():
    def program(x, transforms):
        raw = tf.raw_ops.ImageProjectiveTransformV3
        outs = []
        for fill in ("CONSTANT", "REFLECT", "WRAP", "NEAREST"):
            for how in ("NEAREST", "BILINEAR"):
                outs.append(raw(images=x, transforms=transforms, output_shape=[7, 9], fill_value=0.5, interpolation=how, fill_mode=fill))
        outs.append(tf.raw_ops.ScaleAndTranslate(images=tf.cast(x, tf.float32), size=[6, 11], scale=[0.7, 1.3], translation=[0.5, -1.0], kernel_type="keyscubic", antialias=True))
        return outs

    t = np.array([[0.9, 0.2, -1, -0.1, 1.1, 0.5, 0.001, -0.002], [1, 0, 2, 0, 1, -1, 0, 0]], "float32")
    return program, [{"x": uniform(2, 8, 6, 3), "transforms": t}, {"x": uniform(2, 5, 9, 1), "transforms": t[:1]},
                     {"x": integers(0, 255, 1, 8, 6, 3).astype("float32"), "transforms": t[1:]}]


@model
def morphology_and_local_responses():
    k = tf.constant(normal(3, 2, 4))

    def program(x):
        return [tf.nn.dilation2d(x, k, [1, 2, 1, 1], "SAME", "NHWC", [1, 1, 2, 1]), tf.nn.erosion2d(x, k, [1, 1, 1, 1], "VALID", "NHWC", [1, 1, 1, 1]),
                tf.nn.local_response_normalization(x, 2, 1.0, 0.5, 0.6), tf.nn.max_pool_with_argmax(x, 3, 2, "SAME"), tf.nn.space_to_depth(x, 2),
                tf.nn.depth_to_space(x, 2), tf.nn.fractional_max_pool(x, [1.0, 1.4, 1.7, 1.0], True, True, seed=5).output, tf.nn.lrn(x),
                tf.nn.fractional_avg_pool(x, [1.0, 1.4, 1.7, 1.0], True, True, seed=3).row_pooling_sequence, tf.space_to_batch(x, [2, 2], [[0, 0], [2, 0]])]

    return program, [{"x": normal(n, 10, 8, 4)} for n in (1, 2)]


@model
def keras_random_layers_with_seed():
    layers = [keras.layers.RandomRotation(0.2, seed=3), keras.layers.RandomZoom(0.3, seed=4), keras.layers.RandomTranslation(0.2, 0.3, seed=5)]
    seeds = [v.value for layer in layers for v in layer.variables]

    def program(x):
        for layer in layers:
            x = layer(x, training=True)
        return x

    return program, [{"x": uniform(n, 12, 10, 3)} for n in (1, 3)], seeds


@model
def style_of_filters():
    def program(x):
        gauss = tf.exp(-tf.square(tf.range(-3.0, 4.0)) / 4)
        gauss /= tf.reduce_sum(gauss)
        blurred = tf.nn.depthwise_conv2d(tf.pad(x, [[0, 0], [3, 3], [3, 3], [0, 0]], "REFLECT"), tf.tile((gauss[:, None] * gauss)[:, :, None, None], [1, 1, 3, 1]), [1] * 4, "VALID")
        gram = tf.einsum("bhwc,bhwd->bcd", blurred, x) / tf.cast(tf.size(x[0, ..., 0]), tf.float32)
        quantized = tf.cast(tf.clip_by_value(blurred * 255, 0, 255), tf.uint8)
        histogram = tf.map_fn(lambda v: tf.histogram_fixed_width(tf.cast(v, tf.int32), [0, 255], 16), quantized, fn_output_signature=tf.int32)
        equalized = tf.gather(tf.cumsum(histogram, axis=1), tf.cast(quantized, tf.int32) // 16, axis=1, batch_dims=1)
        return blurred, gram, histogram, equalized

    return program, [{"x": uniform(n, 15, 11, 3)} for n in (2, 1)]
