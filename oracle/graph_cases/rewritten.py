"""Ops into which TensorFlow's optimizers and oneDNN's layout pass rewrite parts of a graph.

The case's graph holds the op; TensorFlow answers the graph that it stands for."""

import numpy as np
import tensorflow as tf

from graphkit import case, v1

F = tf.float32
CONV = {"strides": [1, 1, 1, 1], "padding": b"VALID"}


def node(graph_def, op, inputs, name="y", **attrs):
    """Adds a node; attrs are types, lists of ints or strings, or what a NodeDef says itself."""
    made = graph_def.node.add(name=name, op=op, input=inputs)
    for key, value in attrs.items():
        attr = made.attr[key]
        if isinstance(value, tf.DType):
            attr.type = value.as_datatype_enum
        elif isinstance(value, bool):
            attr.b = value
        elif isinstance(value, int):
            attr.i = value
        elif isinstance(value, float):
            attr.f = value
        elif isinstance(value, bytes):
            attr.s = value
        elif isinstance(value, tf.TensorShape):
            attr.shape.CopyFrom(value.as_proto())
        elif value and isinstance(value[0], tf.DType):
            attr.list.type.extend(v.as_datatype_enum for v in value)
        elif value and isinstance(value[0], int):
            attr.list.i.extend(value)
        else:
            attr.list.s.extend(value)


def values(*shape, dtype=F):
    """A constant that is neither even nor symmetric."""
    x = np.sin(np.arange(np.prod(shape)) * 1.7) * 0.8
    return tf.constant(x.reshape(shape), F if dtype == F else dtype)


def answer(b, fn, shapes, rewrite, dtype=F, fetches=("y:0",), given=(), tol=None):
    """Feeds x0, x1, … of these shapes; `fn` makes y (and z) of them, `rewrite` the node of the case's graph."""
    feeds, at = {}, 0
    xs = [b.feed(dtype, shape, name=f"x{i}") for i, shape in enumerate(shapes)]
    b.graph_def = tf.compat.v1.get_default_graph().as_graph_def()
    for i, x in enumerate(xs):
        size = int(np.prod(shapes[i]))
        value = np.sin(np.arange(at, at + size) * 1.7) * 0.8
        if i in given:
            value = np.abs(value) + 0.1
        feeds[x] = value.reshape(shapes[i]).astype(dtype.as_numpy_dtype)
        at += size
    rewrite(b.graph_def)
    results = fn(*xs)
    results = results if isinstance(results, (list, tuple)) else [results]
    for name, result in zip("yzuv", results):
        tf.identity(result, name=name)
    b.asked = tf.compat.v1.get_default_graph().as_graph_def()
    b.step(list(fetches), feeds, tol=tol)


@case("v1")
def unary_ops_composition(b):
    ops = [b"Exp", b"Tanh", b"Neg", b"Sigmoid"]
    answer(b, lambda x: tf.sigmoid(-tf.tanh(tf.exp(x))), [[3, 5]],
           lambda g: node(g, "_UnaryOpsComposition", ["x0"], T=F, op_names=ops))


@case("v1")
def unary_op_unknown(b):
    b.feed(F, [2], name="x0")
    b.graph_def = v1.get_default_graph().as_graph_def()
    node(b.graph_def, "_UnaryOpsComposition", ["x0"], T=F, op_names=[b"Exp", b"Cumsum"])
    b.asked = b.graph_def
    b.step("y:0", {"x0:0": [1, 2]}, error="Do not have a compute function registered for op: Cumsum")


@case("v1")
def tensor_to_hash_bucket(b):
    for dtype in (tf.int64, tf.uint8):
        x = b.feed(dtype, [4], name=f"x_{dtype.name}")
        text = tf.strings.as_string(x)
        tf.identity(tf.strings.to_hash_bucket_fast(text, 1000), name=f"y_{dtype.name}")
    b.asked = v1.get_default_graph().as_graph_def()
    with tf.Graph().as_default() as graph:
        for dtype in (tf.int64, tf.uint8):
            b.feed(dtype, [4], name=f"x_{dtype.name}")
        b.graph_def = graph.as_graph_def()
    for dtype in (tf.int64, tf.uint8):
        node(b.graph_def, "_TensorToHashBucketFast", [f"x_{dtype.name}"], name=f"y_{dtype.name}", T=dtype,
             num_buckets=1000)
    b.step(["y_int64:0", "y_uint8:0"], {"x_int64:0": [0, -7, 1 << 40, 12], "x_uint8:0": [0, 7, 255, 12]})


def batch_norm(x, scale, offset, mean, variance, training=False):
    return v1.nn.fused_batch_norm(x, scale, offset, None if training else mean,
                                  None if training else variance, is_training=training)


@case("v1")
def fused_batch_norm_ex(b):
    shapes = [[2, 3, 3, 4], [4], [4], [4], [4], [2, 3, 3, 4]]
    inputs = [f"x{i}" for i in range(6)]
    answer(b, lambda x, s, o, m, v, side: tf.nn.relu(batch_norm(x, s, o, m, v)[0] + side), shapes,
           lambda g: node(g, "_FusedBatchNormEx", inputs, T=F, U=F, epsilon=0.001, num_side_inputs=1,
                          activation_mode=b"Relu", is_training=False), given=[4])


@case("v1")
def native_fused_batch_norm_ex(b):
    """In training, with the statistics that readers of other outputs see."""

    def fn(x, s, o, m, v):
        y, mean, variance = batch_norm(x, s, o, m, v, training=True)
        return tf.nn.relu(y), mean, variance

    def rewrite(g):
        node(g, "_MklNativeFusedBatchNormEx", ["x0", "x1", "x2", "empty", "empty"], name="bn", T=F, U=F,
             epsilon=0.001, activation_mode=b"Relu", is_training=True, _kernel=b"MklNameChangeOp")
        for slot, name in enumerate("yzu"):
            node(g, "Identity", ["bn" if slot == 0 else f"bn:{slot}"], name=name, T=F)

    v1.constant([], F, name="empty")
    answer(b, fn, [[2, 3, 3, 4], [4], [4], [4], [4]], rewrite, fetches=["y:0", "z:0", "u:0"])


@case("v1")
def fused_batch_norm_grad_ex(b):
    """The gradient of a normalization, a sum and Relu: of the image, of scale and offset, and of what was added."""

    def fn(dy, x, scale, mean, variance, offset, y):
        dy = tf.raw_ops.ReluGrad(gradients=dy, features=y)
        grads = tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=dy, x=x, scale=scale, reserve_space_1=mean, reserve_space_2=variance,
            reserve_space_3=tf.constant([], F), epsilon=0.001)
        return grads[0], grads[1], grads[2], dy

    def rewrite(g):
        inputs = ["x0", "x1", "x2", "x3", "x4", "empty", "x5", "x6"]
        node(g, "_FusedBatchNormGradEx", inputs, name="bn", T=F, U=F, epsilon=0.001, num_side_inputs=1,
             activation_mode=b"Relu", is_training=True)
        for slot, name in zip([0, 1, 2, 5], "yzuv"):
            node(g, "Identity", ["bn" if slot == 0 else f"bn:{slot}"], name=name, T=F)

    v1.constant([], F, name="empty")
    image = [2, 3, 3, 4]
    answer(b, fn, [image, image, [4], [4], [4], [4], image], rewrite, fetches=["y:0", "z:0", "u:0", "v:0"], given=[4])


def conv(x, w, padding="VALID"):
    return tf.nn.conv2d(x, w, 1, padding)


@case("v1")
def native_conv(b):
    answer(b, conv, [[2, 5, 4, 3], [3, 2, 3, 4]],
           lambda g: node(g, "_MklNativeConv2D", ["x0", "x1"], T=F, is_filter_const=True,
                          _kernel=b"MklNameChangeOp", **CONV))


@case("v1")
def native_conv_with_bias(b):
    answer(b, lambda x, w, c: tf.nn.bias_add(conv(x, w), c), [[2, 5, 4, 3], [3, 2, 3, 4], [4]],
           lambda g: node(g, "_MklNativeConv2DWithBias", ["x0", "x1", "x2"], T=F, **CONV))


def fused_conv(op, fn, ops, args, extra_inputs=(), **attrs):
    """A case of a fused convolution of these ops with args of these shapes."""

    def run(b):
        shapes = [[2, 5, 4, 3], [3, 2, 3, 4], *args]
        inputs = [f"x{i}" for i in range(len(shapes))] + list(extra_inputs)
        v1.constant([[0, 0], [1, 2], [2, 1], [0, 0]], name="paddings")
        types = {"TArgs": [F] * len(args)} if "Pad" not in op else {}
        answer(b, fn, shapes,
               lambda g: node(g, op, inputs, T=F, num_args=len(args), fused_ops=ops, _kernel=b"MklNameChangeOp",
                              **types, **CONV, **attrs))

    return run


def pad(x):
    return tf.pad(x, [[0, 0], [1, 2], [2, 1], [0, 0]])


case("v1", name="native_fused_conv")(fused_conv(
    "_MklNativeFusedConv2D", lambda x, w, c: tf.nn.relu(tf.nn.bias_add(conv(x, w), c)), [b"BiasAdd", b"Relu"],
    [[4]]))
case("v1", name="native_fused_conv_swish")(fused_conv(
    "_MklNativeFusedConv2D", lambda x, w, c: tf.nn.silu(tf.nn.bias_add(conv(x, w), c)),
    [b"BiasAdd", b"_MklSwish"], [[4]]))
case("v1", name="native_fused_conv_mish")(fused_conv(
    "_MklNativeFusedConv2D",
    lambda x, w, c: (lambda y: y * tf.tanh(tf.nn.softplus(y)))(tf.nn.bias_add(conv(x, w), c)),
    [b"BiasAdd", b"Mish"], [[4]]))
case("v1", name="native_fused_conv_hard_swish")(fused_conv(
    "_MklNativeFusedConv2D",
    lambda x, w, c: (lambda y: y * tf.nn.relu6(y + 3) / 6)(tf.nn.bias_add(conv(x, w), c)),
    [b"BiasAdd", b"_FusedHardSwish"], [[4]]))
case("v1", name="native_padded_fused_conv_mish")(fused_conv(
    "_MklNativePadWithFusedConv2D",
    lambda x, w, c: (lambda y: y * tf.tanh(tf.nn.softplus(y)))(tf.nn.bias_add(conv(pad(x), w), c)),
    [b"BiasAdd", b"Mish"], [[4]], ["paddings"]))
case("v1", name="native_padded_fused_conv")(fused_conv(
    "_MklNativePadWithFusedConv2D", lambda x, w, c: tf.nn.relu(tf.nn.bias_add(conv(pad(x), w), c)),
    [b"BiasAdd", b"Relu"], [[4]], ["paddings"]))


@case("v1")
def native_padded_conv(b):
    v1.constant([[0, 0], [1, 2], [2, 1], [0, 0]], name="paddings")
    answer(b, lambda x, w: conv(pad(x), w), [[2, 5, 4, 3], [3, 2, 3, 4]],
           lambda g: node(g, "_MklNativePadWithConv2D", ["x0", "x1", "paddings"], T=F, **CONV))


@case("v1")
def native_filter_gradient_with_bias(b):
    v1.constant([3, 2, 3, 4], name="sizes")

    def fn(x, d):
        sizes = tf.constant([3, 2, 3, 4])
        return (tf.raw_ops.Conv2DBackpropFilter(input=x, filter_sizes=sizes, out_backprop=d, strides=[1, 1, 1, 1],
                                                padding="VALID"), tf.reduce_sum(d, [0, 1, 2]))

    def rewrite(g):
        node(g, "_MklNativeConv2DBackpropFilterWithBias", ["x0", "sizes", "x1"], name="d", T=F, **CONV)
        node(g, "Identity", ["d"], T=F)
        node(g, "Identity", ["d:1"], name="z", T=F)

    answer(b, fn, [[2, 5, 4, 3], [2, 3, 3, 4]], rewrite, fetches=["y:0", "z:0"])


@case("v1")
def native_pool_and_gradient(b):
    """The gradient reads the workspace of the pool, which is empty here."""
    pool = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": b"SAME", "T": F, "workspace_enabled": True}

    def fn(x, d):
        y = tf.nn.max_pool2d(x, 2, 2, "SAME")
        return y, v1.gradients(y, x, d)[0]

    def rewrite(g):
        node(g, "_MklNativeMaxPool", ["x0"], **pool)
        node(g, "_MklNativeMaxPoolGrad", ["x0", "y", "x1", "y:1"], name="z", **pool)

    answer(b, fn, [[2, 5, 4, 3], [2, 3, 2, 3]], rewrite, fetches=["y:0", "z:0"])


@case("v1")
def native_pool_in_function(b):
    """The same in the body of a function, whose inputs name outputs."""
    pool = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": b"SAME", "T": F, "workspace_enabled": True}

    def fn(x, d):
        return v1.gradients(tf.nn.max_pool2d(x, 2, 2, "SAME"), x, d)[0]

    def rewrite(g):
        f = g.library.function.add()
        f.signature.name = "f"
        for name in ("x", "d"):
            f.signature.input_arg.add(name=name, type=F.as_datatype_enum)
        f.signature.output_arg.add(name="z", type=F.as_datatype_enum)
        body = v1.GraphDef()
        node(body, "_MklNativeMaxPool", ["x"], name="p", **pool)
        node(body, "_MklNativeMaxPoolGrad", ["x", "p:output:0", "d", "p:workspace:0"], name="q", **pool)
        f.node_def.extend(body.node)
        f.ret["z"] = "q:output:0"
        node(g, "f", ["x0", "x1"])

    answer(b, fn, [[2, 5, 4, 3], [2, 3, 2, 3]], rewrite)


@case("v1")
def native_products(b):
    def rewrite(g):
        node(g, "_MklMatMul", ["x0", "x1"], name="m", T=F, _kernel=b"MklNameChangeOp")
        node(g, "_MklSoftmax", ["m"], name="s", T=F, _kernel=b"MklNameChangeOp")
        node(g, "_MklNativeFusedMatMul", ["s", "x2", "x3"], T=F, num_args=1, fused_ops=[b"BiasAdd", b"Tanh"],
             is_filter_const=True, _kernel=b"MklNameChangeOp")

    answer(b, lambda x, w, v, c: tf.tanh(tf.nn.bias_add(tf.nn.softmax(x @ w) @ v, c)),
           [[3, 4], [4, 5], [5, 2], [2]], rewrite)


@case("v1")
def fused_batch_product(b):
    answer(b, lambda x, y, f, c: tf.matmul(x, y, transpose_b=True) * f + c,
           [[2, 3, 4, 5], [2, 3, 6, 5], [], [2, 1, 1, 6]],
           lambda g: node(g, "_MklFusedBatchMatMulV2", ["x0", "x1", "x2", "x3"], T=F, adj_y=True, num_args=2,
                          fused_ops=[b"Mul", b"Add"]))


@case("v1")
def swish_and_mish(b):
    for dtype in (F, tf.bfloat16):
        x = b.feed(dtype, [7], name=f"x_{dtype.name}")
        tf.identity(tf.nn.sigmoid(x) * x, name=f"y_{dtype.name}")
        tf.identity(tf.tanh(tf.nn.softplus(x)) * x, name=f"z_{dtype.name}")
    b.asked = v1.get_default_graph().as_graph_def()
    with tf.Graph().as_default() as graph:
        for dtype in (F, tf.bfloat16):
            b.feed(dtype, [7], name=f"x_{dtype.name}")
        b.graph_def = graph.as_graph_def()
    fetches = []
    for dtype in (F, tf.bfloat16):
        for name, op in (("y", "_MklSwish"), ("z", "_MklFusedMish")):
            node(b.graph_def, op, [f"x_{dtype.name}"], name=f"{name}_{dtype.name}", T=dtype)
            fetches.append(f"{name}_{dtype.name}:0")
    x = np.linspace(-4, 3, 7)
    b.step(fetches, {"x_float32:0": x, "x_bfloat16:0": x})


def normalized(x, axes):
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 0.01)


@case("v1")
def layer_norm(b):
    answer(b, lambda x, s, o: normalized(x, [-1]) * s + o, [[3, 2, 6], [6], [6]],
           lambda g: node(g, "_MklLayerNorm", ["x0", "x1", "x2"], T=F, epsilon=0.01))


@case("v1")
def layer_norm_half(b):
    H = tf.float16

    def fn(x, s, o):
        x, s, o = (tf.cast(t, F) for t in (x, s, o))
        return tf.cast(normalized(x, [-1]) * s + o, H)

    answer(b, fn, [[3, 6], [6], [6]],
           lambda g: node(g, "_MklLayerNorm", ["x0", "x1", "x2"], T=H, epsilon=0.01), dtype=H)


@case("v1")
def instance_norm(b):
    answer(b, lambda x, s, o: tf.nn.leaky_relu(normalized(x, [1, 2]) * s + o, 0.3), [[2, 3, 4, 5], [5], [5]],
           lambda g: node(g, "_MklFusedInstanceNorm", ["x0", "x1", "x2"], T=F, epsilon=0.01,
                          reduction_axes=[1, 2], fused_ops=[b"LeakyRelu"], leakyrelu_alpha=0.3))


@case("v1")
def instance_norm_channels_first(b):
    answer(b, lambda x, s, o: normalized(x, [2, 3]) * tf.reshape(s, [3, 1, 1]) + tf.reshape(o, [3, 1, 1]),
           [[2, 3, 4, 5], [3], [3]],
           lambda g: node(g, "_MklFusedInstanceNorm", ["x0", "x1", "x2"], T=F, epsilon=0.01,
                          reduction_axes=[2, 3]))


@case("v1")
def parallel_concat(b):
    """A buffer, its updates and the reader that waits for them."""

    def rewrite(g):
        node(g, "_ParallelConcatStart", [], name="start", dtype=F, shape=tf.TensorShape([3, 2]))
        for i in range(3):
            node(g, "_ParallelConcatUpdate", ["start", f"x{i}"], name=f"update{i}", T=F, loc=i)
        node(g, "Identity", ["start", "^update0", "^update1", "^update2"], T=F)

    answer(b, lambda *xs: tf.concat(xs, 0), [[1, 2], [1, 2], [1, 2]], rewrite)
