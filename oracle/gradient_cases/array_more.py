"""Gradients of patches of volumes and of sums at positions."""

import numpy as np
import tensorflow as tf
from gradients import case

raw = tf.raw_ops


for padding in ("SAME", "VALID"):
    @case(name=f"extract_volume_patches_{padding}", dynamic=False)
    def volume_patches(b, padding=padding):
        y = raw.ExtractVolumePatches(input=b.x([2, 3, 4, 5, 2]), ksizes=[1, 2, 2, 3, 1], strides=[1, 1, 2, 2, 1],
                                     padding=padding)
        return y * y


@case
def scatter_nd_non_aliasing_add(b):
    y = raw.ScatterNdNonAliasingAdd(input=b.x([4, 2]), indices=np.int32([[2], [0], [2]]), updates=b.x([3, 2]))
    return y * y
