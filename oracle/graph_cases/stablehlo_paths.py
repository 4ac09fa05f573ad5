"""Programs of JAX that have paths of their own: cumulative windows, sorts by several keys, gradients of convolutions, random
words. Made with jax and jaxlib 0.10.2."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graph_cases.stablehlo import NCHW, NHWC, enter

COMPRESSED = True

rng = np.random.default_rng(11)


def f(*shape):
    return rng.normal(size=shape).astype(np.float32)


def ints(n, *shape, dtype=np.int32):
    return rng.integers(0, n, shape).astype(dtype)


def with_nan(x, *places):
    x.ravel()[list(places)] = np.nan
    return x


def cumulative():
    x = f(3, 37, 2)
    for axis in range(3):
        enter(f"cummax_{axis}", lambda x, axis=axis: (lax.cummax(x, axis), lax.cummin(x, axis, reverse=True)), x)
    enter("cumulative_ints", lambda x: (lax.cummax(x, 1), lax.cummin(x, 0), lax.cumprod(x, 1), lax.cumsum(x, 0)),
          ints(200, 7, 6, dtype=np.uint8) - np.uint8(100))
    enter("cumulative_bits", lambda x, y: (lax.cummax(x, 0), lax.cumsum(y, 0), lax.cummin(y, 0)),
          ints(2**31, 33).astype(np.uint32) * np.uint32(2), ints(255, 33, dtype=np.int8))
    enter("cumlogsumexp", lambda x: (lax.cumlogsumexp(x, 1), lax.cumlogsumexp(x, 0, reverse=True)), f(6, 45) * 3,
          tol=1e-5)
    enter("cumlogsumexp_64", lambda x: lax.cumlogsumexp(x, 0), f(64), tol=1e-5)


def windows():
    x, n = f(2, 9, 8, 3), ints(200, 2, 9, 8, 3) - 100

    def pool(x, init, op, sizes, strides, pads="SAME", **options):
        return lax.reduce_window(x, np.array(init, x.dtype), op, sizes, strides, pads, **options)

    least = np.iinfo(np.int32).min
    enter("int_pools", lambda x: (pool(x, least, lax.max, (1, 3, 3, 1), (1, 2, 2, 1)),
                                  pool(x, 7, lax.min, (1, 2, 3, 1), (1, 1, 1, 1), "VALID"),
                                  pool(x, 0, lax.add, (2, 2, 1, 3), (1, 1, 2, 1)),
                                  pool(x, 3, lax.max, (1, 9, 8, 1), (1, 1, 1, 1), "VALID")), n)
    enter("dilated_pools", lambda x: (pool(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID",
                                           window_dilation=(1, 3, 2, 1)),
                                      pool(x, 0, lax.add, (1, 3, 2, 1), (1, 2, 1, 1), ((0, 0), (1, 2), (0, 1), (0, 0)),
                                           base_dilation=(1, 2, 3, 1)),
                                      pool(x, 1, lax.mul, (1, 2, 2, 1), (1, 2, 2, 1))), x, tol=1e-5)
    # Without NaN, which TensorFlow's fast comparisons forget.
    enter("float_pools", lambda x: (pool(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1)),
                                    pool(x, jnp.inf, lax.min, (1, 3, 1, 1), (1, 2, 1, 1), "VALID"),
                                    pool(jnp.moveaxis(x, 3, 1), -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")), x)


def reductions():
    for dtype in (np.int8, np.uint8, np.int32, np.uint32):
        x = ints(250, 6, 17).astype(dtype)
        enter(f"bit_reductions_{np.dtype(dtype).name}",
              lambda x: (lax.reduce_xor(x, (1,)), lax.reduce_and(x | 3, (0,)), lax.reduce_or(x, (0, 1)),
                         jnp.argmax(x, 1), jnp.argmin(x, 0), lax.reduce(x, np.array(5, x.dtype), lax.bitwise_xor, (0,))), x)
    enter("arg_of_equal", lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 1), jnp.argmax(x), jnp.argmin(x)),
          np.array([[0, 0, 0], [255, 255, 0], [7, 9, 9]], np.uint8))
    enter("scattered_rows", lambda x, i: (jax.ops.segment_max(x, i, 5), jax.ops.segment_min(x, i, 5),
                                          jax.ops.segment_prod(x, i, 5), jax.ops.segment_sum(x[:, 0], i, 5),
                                          jax.ops.segment_max(x[:, 1], i, 5)), f(30, 9), ints(6, 30), tol=1e-5)


def sorts():
    a, b, x = ints(3, 4, 40), ints(3, 4, 40), np.round(f(4, 40))
    enter("two_keys", lambda a, x, b: lax.sort((a, x, b), num_keys=2), a, x, ints(99, 4, 40))
    enter("two_keys_along_0", lambda a, b: lax.sort((a, b, jnp.arange(160).reshape(4, 40)), 0, num_keys=2), a, b)
    odd = with_nan(np.round(f(60)), 3, 9, 30)
    odd[[4, 5, 6]] = [-0.0, np.inf, -np.inf]
    enter("three_keys", lambda a, x, b: lax.sort((a, x, b, jnp.arange(60)), num_keys=3), ints(2, 60), odd, ints(2, 60))
    enter("lexsorts", lambda a, x: (jnp.lexsort((a, x)), jnp.lexsort((x, a))), ints(5, 60).astype(np.uint8), odd)


def convolutions():
    x = f(2, 7, 6, 3)
    for name, k, strides, pads in (("same", f(3, 3, 3, 4), (2, 2), "SAME"), ("valid", f(2, 3, 3, 4), (2, 3), "VALID"),
                                   ("even", f(4, 4, 3, 2), (2, 2), "SAME"), ("explicit", f(3, 3, 3, 4), (2, 2), ((1, 2), (2, 1))),
                                   ("wide", f(3, 3, 3, 4), (2, 2), ((4, 3), (3, 2))), ("cut", f(3, 3, 3, 4), (2, 2), ((-1, 1), (0, 0)))):
        enter(f"transposed_{name}", lambda x, k, s=strides, p=pads: (
            lax.conv_transpose(x, k, s, p),
            lax.conv_transpose(x, jnp.swapaxes(k, 2, 3), s, p, transpose_kernel=True)), x, k, tol=1e-5)
    enter("transposed_row", lambda x, k: lax.conv_transpose(x, k, (3,), "SAME"), f(2, 7, 3), f(4, 3, 5), tol=1e-5)
    enter("transposed_nchw", lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME", dimension_numbers=NCHW), f(2, 3, 7, 6),
          f(4, 3, 3, 3), tol=1e-5)
    enter("transposed_batch", lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"), f(2, 7, 6, 3), f(3, 3, 3, 4),
          poly=["b, _, _, _", None], tol=1e-5)
    for name, x, k, strides, pads, numbers in (
            ("same", f(2, 9, 8, 3), f(3, 3, 3, 4), (2, 2), "SAME", NHWC), ("valid", f(2, 9, 8, 3), f(2, 3, 3, 4), (2, 3), "VALID", NHWC),
            ("whole", f(2, 9, 8, 3), f(3, 3, 3, 4), (1, 1), "SAME", NHWC), ("point", f(2, 9, 8, 3), f(1, 1, 3, 4), (2, 2), "SAME", NHWC),
            ("nchw", f(2, 3, 9, 8), f(4, 3, 3, 3), (2, 1), "SAME", NCHW), ("row", f(2, 19, 3), f(5, 3, 4), (3,), "SAME", ("NHC", "HIO", "NHC")),
            ("left", f(2, 9, 8, 3), f(4, 2, 3, 4), (3, 2), ((3, 0), (1, 0)), NHWC)):
        enter(f"gradients_{name}", lambda x, k, s=strides, p=pads, n=numbers: jax.grad(
            lambda x, k: jnp.sum(lax.conv_general_dilated(x, k, s, p, dimension_numbers=n)**2), (0, 1))(x, k), x, k, tol=2e-5)


def randoms():
    key = np.array([3, 0xFFFFFFF0], np.uint32)

    def with_key(fn):
        return lambda k, *args: fn(jax.random.wrap_key_data(k), *args)

    enter("random_words", with_key(lambda k: (jax.random.bits(k, (5, 7)), jax.random.key_data(jax.random.split(k, 3)),
                                              jax.random.bits(jax.random.fold_in(k, 9), (4,), jnp.uint8))), key)
    enter("random_keys", with_key(lambda k: jax.vmap(lambda k: jax.random.uniform(k, (3,)))(jax.random.split(k, 4))), key)
    enter("random_loop", with_key(lambda k: lax.fori_loop(0, 5, lambda i, s: s + jax.random.normal(jax.random.fold_in(k, i), (3,)),
                                                          jnp.zeros(3))), key, tol=1e-5)
    enter("random_batch", lambda k, x: jax.random.uniform(jax.random.wrap_key_data(k), x.shape), key, f(3, 5),
          poly=[None, "b, _"])


def enter_all():
    for group in (cumulative, windows, reductions, sorts, convolutions, randoms):
        group()
