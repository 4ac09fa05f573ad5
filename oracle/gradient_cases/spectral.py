"""Fourier transforms."""

import tensorflow as tf
from gradients import case

raw = tf.raw_ops


def parts(z):
    return [tf.math.real(z), tf.math.imag(z)]


def named(op, rank):
    return getattr(raw, op if rank == 1 else f"{op}{rank}D")


SIZES = {1: ([6], [2, 7]), 2: ([4, 6], [2, 3, 5]), 3: ([2, 3, 4],)}

for rank, sizes in SIZES.items():
    for size in sizes:
        label = "x".join(map(str, size))
        for op in ("FFT", "IFFT"):
            @case(name=f"{op}_{rank}d_{label}")
            def of_complex(b, op=op, rank=rank, size=size):
                z = raw.Complex(real=b.x(size), imag=b.x(size), Tout=tf.complex128)
                return parts(named(op, rank)(input=z))
        if rank == 3:
            continue

        @case(name=f"RFFT_{rank}d_{label}")
        def of_real(b, rank=rank, size=size):
            x = b.x(size)
            return parts(named("RFFT", rank)(input=x * x, fft_length=size[-rank:], Tcomplex=tf.complex128))

        @case(name=f"IRFFT_{rank}d_{label}")
        def to_real(b, rank=rank, size=size):
            half = [*size[:-1], size[-1] // 2 + 1]
            z = raw.Complex(real=b.x(half), imag=b.x(half), Tout=tf.complex128)
            return named("IRFFT", rank)(input=z, fft_length=size[-rank:], Treal=tf.float64)
