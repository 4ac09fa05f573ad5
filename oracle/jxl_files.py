"""Writes the pixels that TensorFlow decodes from the files in crates/ops/image/tests/jxl.

Usage: python oracle/jxl_files.py

The files were written by libjxl: `imagecodecs.jpegxl_encode` of 27 x 20 pixels, without loss or at a distance of 1
or 2. `<name>.raw` holds the bytes of the pixels, row by row.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

for path in sorted((Path(__file__).resolve().parent.parent / "crates/ops/image/tests/jxl").glob("*.jxl")):
    pixels = tf.raw_ops.DecodeJxl(contents=path.read_bytes()).numpy()
    path.with_suffix(".raw").write_bytes(pixels.tobytes())
    print(path.stem, pixels.shape)
