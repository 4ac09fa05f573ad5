"""Programs of JAX, as jax2tf puts them into graphs: XlaCallModule. Made with jax and jaxlib 0.10.2."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax
from jax.experimental import jax2tf

from tensorflow.compiler.tf2xla.python import xla

from graphkit import case

COMPRESSED = True

# Files must not contain the paths of this machine.
jax.config.update("jax_traceback_in_locations_limit", 0)

rng = np.random.default_rng(7)
NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")


def f(*shape):
    return rng.normal(size=shape).astype(np.float32)


def ints(n, *shape):
    return rng.integers(0, n, shape).astype(np.int32)


def enter(name, fn, *args, poly=None, tol=2e-6):
    """Enters a function of arrays; `poly` names the open dimensions of each, as jax2tf takes them."""

    def shape(arg, spec):
        dims = (spec or "").split(",")
        is_open = [spec and d.strip().isalpha() for d in dims]
        return [None if o else n for n, o in zip(np.shape(arg), is_open + [False] * np.ndim(arg))]

    def build(b):
        specs = poly or [None] * len(args)
        feeds = [b.feed(np.asarray(a).dtype, shape(a, s), name=f"x{i}") for i, (a, s) in enumerate(zip(args, specs))]
        program = jax2tf.convert(fn, polymorphic_shapes=poly, with_gradient=False)
        results = [tf.identity(y) for y in tf.nest.flatten(program(*feeds))]
        b.step(results, dict(zip(feeds, args)), tol=tol)

    case("v2", name=f"stablehlo_{name}")(build)


def conv(x, k, strides=(1, 1), numbers=NHWC, **options):
    return lax.conv_general_dilated(x, k, strides, "SAME", dimension_numbers=numbers, **options)


def elements():
    enter("mlp", lambda x, w, b: jax.nn.gelu(x @ w + b, approximate=False), f(2, 3), f(3, 4), f(4))
    enter("softmax", lambda x: jax.nn.softmax(x), f(2, 3))
    enter("where", lambda x: (jnp.where(x > 0, x, -1.0), jnp.clip(x, -0.5, 0.5), jnp.nan_to_num(x / 0)), f(4, 4))
    halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.3], np.float32)
    enter("rounds", lambda x: (jnp.round(x), lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), jnp.trunc(x)), halves)
    enter("casts", lambda x: (x.astype(jnp.int32), x.astype(jnp.bool_), x.astype(jnp.bfloat16).astype(jnp.float32),
                              x.astype(jnp.int8)), f(6) * 3)
    wide = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 1e20, -1.5, 300.7, -300.7], np.float32)
    enter("saturated", lambda x: [x.astype(t) for t in (jnp.int8, jnp.int16, jnp.int32, jnp.uint8, jnp.uint16, jnp.uint32)], wide)
    enter("leading_zeros", lambda x: lax.clz(x), np.array([0, 1, -1, 77, 1 << 20], np.int32))
    enter("complex", lambda x: (lambda z: (z * z.conj()).real + jnp.abs(z) + jnp.imag(jnp.exp(z)))(x + 1j * x[::-1]), f(5))
    for dtype in (np.int8, np.int32, np.uint8, np.uint16, np.uint32):
        low = 0 if np.dtype(dtype).kind == "u" else -9
        a, b = rng.integers(low, 18, 12).astype(dtype), rng.integers(min(low, 0) // 3, 5, 12).astype(dtype)
        if low:
            a[:2], b[:2] = np.iinfo(dtype).min, [-1, 0]
        enter(f"numbers_{np.dtype(dtype).name}", lambda x, y: (
            lax.div(x, y), lax.rem(x, y), -x, jnp.sign(x), jnp.abs(x), x ^ y, ~x, lax.population_count(x), x < y,
            lax.shift_left(x, jnp.abs(y) * 3), lax.shift_right_logical(x, jnp.abs(y) * 3),
            lax.shift_right_arithmetic(x, jnp.abs(y) * 3)), a, b)


def products():
    enter("conv", lambda x, k: conv(x, k, (2, 2)), f(1, 8, 8, 3), f(3, 3, 3, 4))
    enter("conv_nchw", lambda x, k: conv(x, k, numbers=NCHW), f(1, 3, 8, 8), f(4, 3, 3, 3))
    enter("conv_groups", lambda x, k: conv(x, k, feature_group_count=2), f(1, 8, 8, 4), f(3, 3, 2, 6))
    enter("conv_transpose", lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"), f(1, 4, 4, 3), f(3, 3, 3, 4))
    enter("conv1d", lambda x, k: lax.conv_general_dilated(x, k, (1,), [(2, 0)], rhs_dilation=(2,),
                                                          dimension_numbers=("NHC", "HIO", "NHC")), f(2, 9, 3), f(2, 3, 4))
    enter("conv3d", lambda x, k: conv(x, k, (1, 1, 1), ("NDHWC", "DHWIO", "NDHWC")), f(1, 4, 4, 4, 2), f(3, 3, 3, 2, 3))
    enter("conv_grad", lambda x, k: jax.grad(lambda k, x: jnp.sum(jax.nn.relu(conv(x, k, (2, 2))) ** 2), (0, 1))(k, x),
          f(1, 8, 8, 3), f(3, 3, 3, 4))
    enter("bf16", lambda x, w: jnp.dot(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16),
                                       preferred_element_type=jnp.float32), f(4, 8), f(8, 3))
    enter("int8", lambda x, w: lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32),
          ints(5, 3, 4).astype(np.int8), ints(5, 4, 2).astype(np.int8))
    enter("einsum", lambda a, b: (jnp.einsum("bqhd,bkhd->bhqk", a, b), jnp.einsum("bhd,hde->bhe", a[:, 0], jnp.ones((2, 3, 4)))),
          f(2, 4, 2, 3), f(2, 5, 2, 3))
    enter("attention", lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), *[f(2, 6, 2, 8) for _ in range(3)])
    enter("fft", lambda x: (jnp.fft.rfft(x).real, jnp.fft.irfft(jnp.fft.rfft(x)), jnp.abs(jnp.fft.fft2(x))), f(2, 8))


def reductions():
    window, steps = (1, 3, 3, 1), (1, 2, 2, 1)
    enter("pools", lambda x: [lax.reduce_window(x, init, by, window, steps, pad) for init, by in
                              [(-jnp.inf, lax.max), (0.0, lax.add), (jnp.inf, lax.min)] for pad in ("SAME", "VALID")], f(1, 8, 7, 3))
    enter("pool_grad", lambda x: jax.grad(lambda x: jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, steps, steps, "VALID") ** 2))(x),
          f(1, 8, 8, 3))
    enter("other_pools", lambda x: [lax.reduce_window(x, init, by, w, s, "SAME") for init, by in [(-jnp.inf, lax.max), (
        0.0, lax.add), (jnp.inf, lax.min)] for w, s in [((1, 1, 2, 3), (1, 1, 2, 2)), ((1, 3, 1, 1), (1, 2, 1, 1)), (
            (2, 2, 3, 1), (1, 2, 2, 1)), ((1, 1, 1, 3), (1, 1, 1, 1))]], f(3, 4, 6, 5))
    enter("other_pool_grad", lambda x: jax.grad(lambda x: jnp.sum(lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") ** 2))(x), f(2, 3, 8, 8))
    nan = f(4, 5)
    nan[1, 3] = np.nan
    for name, x in [("floats", f(4, 5)), ("nan", nan), ("ints", ints(3, 4, 5))]:
        enter(f"args_{name}", lambda x: (jnp.argmax(x, -1), jnp.argmin(x, 0)), x)
    enter("reduces", lambda x: (jnp.all(x > 0), jnp.any(x > 1, 0), jnp.prod(x), jnp.max(x, 0), jnp.min(x), jnp.std(x),
                                lax.reduce(x, np.float32(3), lax.max, (1,)), jax.nn.logsumexp(x, 0)), f(2, 3))
    enter("cumulative", lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cumsum(x, 1, reverse=True), lax.cummax(x, 1),
                                   lax.associative_scan(jnp.add, x)), f(3, 5))
    odd = f(3, 7)
    odd[0, 2], odd[1, 1], odd[1, 5] = np.nan, -0.0, 0.0
    enter("sorts", lambda x: (jnp.sort(x), jnp.argsort(x), jnp.sort(x, 0)), odd)
    enter("sort_ints", lambda x: (jnp.sort(x), jnp.argsort(x), -jnp.sort(-x), jnp.unique(x, size=6, fill_value=-1)), ints(5, 9))
    enter("sort_keys", lambda x, y, z: (lax.sort((x, z), num_keys=1), lax.sort((x, y, z), num_keys=2), jnp.lexsort((x, y))),
          ints(3, 9), ints(3, 9), f(9))


def indices():
    enter("rows", lambda x, i: (jnp.take(x, i, axis=0), x[i, 1], x.at[i].add(1.0), x.at[i, 2].set(7.0), x.at[i].max(0.5),
                                x.at[i].mul(2.0)), f(5, 3), ints(5, 2))
    enter("along", lambda x, i: jnp.take_along_axis(x, i, 1), f(5, 3), ints(3, 5, 2))
    enter("embedding", lambda t, i: (t[i], jax.nn.one_hot(i, 7)), f(11, 4), ints(11, 2, 3))
    enter("pads", lambda x: (jnp.pad(x, 1), lax.pad(x, np.float32(0.5), ((1, 2, 1), (0, -1, 0))), jnp.pad(x, 1, mode="reflect"),
                             jnp.roll(x, 2, 1), jnp.flip(x, 0)), f(4, 5))
    enter("dynamic_slices", lambda x, i: (lax.dynamic_slice(x, (i, 1), (2, 2)),
                                          lax.dynamic_update_slice(x, jnp.ones((2, 2)), (i, 0))), f(4, 5), np.int32(3))
    enter("segments", lambda x, i: (jax.ops.segment_sum(x, i, 4), jnp.bincount(i, length=6)), f(6, 2), ints(4, 6))
    enter("searches", lambda x, y: (jnp.searchsorted(jnp.sort(x), y), jnp.histogram(x, 5)[0]), f(9), f(4))
    enter("resize", lambda x: jax.image.resize(x, (1, 8, 8, 2), "bilinear"), f(1, 4, 4, 2))


def control():
    enter("scan", lambda x: lax.scan(lambda c, y: (c * 0.9 + y, c * 2), jnp.zeros(3), x), f(5, 3))
    enter("fori", lambda x: lax.fori_loop(0, 7, lambda i, c: c * 0.5 + i, x), f(3))
    enter("while", lambda x, y: lax.while_loop(lambda c: jnp.sum(c) < jnp.sum(y) + 50, lambda c: c + jnp.abs(y) + 1, x), f(3), f(3))
    for p in (0, 1):
        enter(f"cond_{p}", lambda p, x: lax.cond(p > 0, lambda y: y + 1, lambda y: y * 2, x), np.int32(p), f(3))
    for p in (-1, 1, 5):
        enter(f"switch_{p}", lambda p, x: lax.switch(p, [lambda y: y + 1, lambda y: y * 2, lambda y: y - x], x), np.int32(p), f(3))
    enter("gradient", lambda x, w: jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w), f(4, 3), f(3, 2))
    nested = lambda x: lax.cond(x[0] > 0, lambda x: lax.cond(x[1] > 0, lambda x: x * 2, lambda x: x * 3, x), lambda x: -x, x)
    for i, x in enumerate(([1, 1, 2], [1, -1, 2], [-1, 1, 2])):
        enter(f"nested_{i}", nested, np.array(x, np.float32))
    enter("loops_of_regions", lambda x: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, lax.sort((c[1], c[2]), num_keys=2)[1], c[1].at[jnp.array([1])].apply(
            lambda v: v * 2 + 0.25)), (0, x, x[::-1])), f(5))
    bits = np.array([3, 9, 1, 7], np.uint32)
    for name, algorithm in [("philox", lax.RandomAlgorithm.RNG_PHILOX), ("default", lax.RandomAlgorithm.RNG_DEFAULT)]:
        enter(f"bits_{name}", lambda k: lax.rng_bit_generator(k, (2, 6), algorithm=algorithm), bits)
    key = np.array([3, 9], np.uint32)
    wrapped = jax.random.wrap_key_data
    enter("random", lambda k: (jax.random.normal(wrapped(k), (3,)), jax.random.uniform(wrapped(k), (2, 2)),
                               jax.random.randint(wrapped(k), (4,), 0, 10), jax.random.permutation(wrapped(k), 10)), key)


def open_shapes():
    enter("open_mlp", lambda x, w: jax.nn.softmax((x @ w).reshape(x.shape[0], 2, -1)).mean(0), f(5, 3), f(3, 4), poly=["b, _", None])
    enter("open_moves", lambda x: (jnp.concatenate([x, x], 0), jnp.arange(x.shape[0]), x + jnp.ones_like(x), jnp.sum(x, 0),
                                   x[::-1], jnp.argmax(x, 0)), f(5, 3), poly=["b, _"])
    enter("open_attention", lambda q: jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, q) + jnp.where(
        jnp.tril(jnp.ones((q.shape[1], q.shape[1]))) > 0, 0, -1e9)) @ q, f(2, 5, 4), poly=["b, t, _"])
    enter("open_sums", lambda x: (jnp.cumsum(x, 0), jnp.sort(x, 0)), f(5, 3), poly=["b, _"])
    enter("open_sizes", lambda x, k: conv(x, k, (2, 2)), f(2, 7, 8, 3), f(3, 3, 3, 4), poly=["_, h, w, _", None])
    enter("open_conv", lambda x, k: conv(x, k, (2, 2)), f(3, 8, 8, 3), f(3, 3, 3, 4), poly=["b, _, _, _", None])
    enter("open_embedding", lambda t, i: t[i].sum(1), f(11, 4), ints(11, 3, 5), poly=[None, "b, s"])


def platforms():
    x = f(3)
    for order in (("cpu", "tpu"), ("tpu", "cpu")):

        def build(b, order=order):
            feed = b.feed(np.float32, (3,), name="x")
            program = jax2tf.convert(lambda x: lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x * 2),
                                     native_serialization_platforms=order, with_gradient=False)
            b.step([tf.identity(program(feed))], {feed: x})

        case("v2", name=f"stablehlo_platforms_{'_'.join(order)}")(build)
    module = jax.export.export(jax.jit(lambda x: x + 1))(x).mlir_module_serialized

    def enter_error(name, error, module=module, inputs=1, **attrs):
        def build(b):
            feeds = [b.feed(np.float32, (3,), name=f"x{i}") for i in range(inputs)]
            attrs.setdefault("platforms", ["CPU"])
            y = xla.call_module(feeds, version=9, module=module, Sout=[[3]], Tout=[tf.float32], **attrs)
            b.step(y, dict.fromkeys(feeds, x), error=error)

        case("v2", name=f"stablehlo_{name}")(build)

    enter_error("other_platform", "The current platform CPU is not among the platforms required by the module: [TPU]",
                platforms=["TPU"])
    enter_error("more_arguments", "ncorrect number of arguments passed to XlaCallModule", inputs=2)
    enter_error("no_program", "", module=b"no module")


def enter_all():
    for group in (elements, products, reductions, indices, control, open_shapes, platforms):
        group()
