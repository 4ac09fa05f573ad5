"""Quantized networks."""

import numpy as np
import tensorflow as tf

from real.kit import integers, model, normal, session, uniform

Q, raw = tf.quantization, tf.raw_ops


@model
def fake_quantized_network():
    w, b = tf.Variable(normal(3, 3, 4, 6) * 0.2), tf.Variable(normal(6))
    low, high = tf.Variable(-1.5), tf.Variable(1.2)
    per = tf.Variable(-np.ones(6, "float32")), tf.Variable(np.linspace(0.5, 2, 6).astype("float32"))

    def program(x):
        x = Q.fake_quant_with_min_max_vars(x, low, high)
        qw = Q.fake_quant_with_min_max_vars_per_channel(w, *per, num_bits=4, narrow_range=True)
        y = tf.nn.relu6(tf.nn.bias_add(tf.nn.conv2d(x, qw, 2, "SAME"), b))
        y = Q.fake_quant_with_min_max_args(y, 0, 6, narrow_range=False)
        with tf.GradientTape() as tape:
            tape.watch(x)
            z = Q.fake_quant_with_min_max_vars(x, low, high, num_bits=3)
        return x, y, tf.reduce_mean(y, [1, 2]), tape.gradient(z, [x, low, high])

    return program, [{"x": normal(n, 8, 7, 4)} for n in (2, 1)], [w, b, low, high, *per]


@model
def quantize_and_dequantize():
    def program(x):
        outs = []
        for mode in ("MIN_COMBINED", "MIN_FIRST", "SCALED"):
            for kind in (tf.quint8, tf.qint8):
                q = Q.quantize(x, -2.0, 2.5, kind, mode=mode)
                outs += [tf.bitcast(q.output, tf.uint8), q.output_min, q.output_max, Q.dequantize(q.output, q.output_min, q.output_max, mode=mode)]
        outs += [Q.quantize_and_dequantize_v2(x, -1.0, 1.0, range_given=True), Q.quantize_and_dequantize_v2(x, 0.0, 0.0, num_bits=5, round_mode="HALF_UP"),
                 Q.quantize_and_dequantize_v2(x, 0.0, 0.0, signed_input=False), raw.QuantizeAndDequantizeV3(input=x, input_min=-1.0, input_max=1.0, num_bits=6)]
        return outs

    return program, [{"x": normal(n, 5)} for n in (4, 1)]


@session
def quantized_dense():
    v1 = tf.compat.v1
    x = v1.placeholder(tf.float32, [None, 6])
    a = raw.QuantizeV2(input=x, min_range=-2.0, max_range=2.0, T=tf.quint8, mode="MIN_FIRST")
    w = raw.QuantizeV2(input=tf.constant(normal(6, 5)), min_range=-3.0, max_range=3.0, T=tf.quint8, mode="MIN_FIRST")
    product = raw.QuantizedMatMul(a=a.output, b=w.output, min_a=a.output_min, max_a=a.output_max, min_b=w.output_min, max_b=w.output_max)
    span = raw.RequantizationRange(input=product.out, input_min=product.min_out, input_max=product.max_out)
    small = raw.Requantize(input=product.out, input_min=product.min_out, input_max=product.max_out, requested_output_min=span.output_min, requested_output_max=span.output_max, out_type=tf.quint8)
    relu = raw.QuantizedRelu(features=small.output, min_features=small.output_min, max_features=small.output_max)
    y = raw.Dequantize(input=relu.activations, min_range=relu.min_activations, max_range=relu.max_activations, mode="MIN_FIRST")
    return [([y, span.output_min, span.output_max, raw.Dequantize(input=product.out, min_range=product.min_out, max_range=product.max_out, mode="MIN_FIRST")], {x: normal(n, 6)}) for n in (3, 1)]


@session
def quantized_convolution():
    v1 = tf.compat.v1
    x = v1.placeholder(tf.float32, [None, 6, 5, 3])
    a = raw.QuantizeV2(input=x, min_range=0.0, max_range=1.0, T=tf.quint8, mode="MIN_FIRST")
    w = raw.QuantizeV2(input=tf.constant(normal(2, 2, 3, 4)), min_range=-3.0, max_range=3.0, T=tf.quint8, mode="MIN_FIRST")
    conv = raw.QuantizedConv2D(input=a.output, filter=w.output, min_input=a.output_min, max_input=a.output_max, min_filter=w.output_min, max_filter=w.output_max, strides=[1, 1, 1, 1], padding="SAME")
    down = raw.QuantizeDownAndShrinkRange(input=conv.output, input_min=conv.min_output, input_max=conv.max_output, out_type=tf.quint8)
    pool = raw.QuantizedMaxPool(input=down.output, min_input=down.output_min, max_input=down.output_max, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")
    mean = raw.QuantizedAvgPool(input=a.output, min_input=a.output_min, max_input=a.output_max, ksize=[1, 3, 3, 1], strides=[1, 1, 1, 1], padding="SAME")
    cat = raw.QuantizedConcat(concat_dim=3, values=[a.output, mean.output], input_mins=[a.output_min, mean.min_output], input_maxes=[a.output_max, mean.max_output])
    shaped = raw.QuantizedReshape(tensor=cat.output, shape=[-1, 6], input_min=cat.output_min, input_max=cat.output_max)
    deq = lambda v, lo, hi: raw.Dequantize(input=v, min_range=lo, max_range=hi, mode="MIN_FIRST")
    fetches = [deq(pool.output, pool.min_output, pool.max_output), deq(mean.output, mean.min_output, mean.max_output), deq(shaped.output, shaped.output_min, shaped.output_max)]
    return [(fetches, {x: uniform(n, 6, 5, 3)}) for n in (1, 2)]


@model
def uniform_quantized_dense():
    def program(x, w):
        q = raw.UniformQuantize(input=x, scales=0.05, zero_points=3, Tout=tf.qint8, quantization_axis=-1, quantization_min_val=-128, quantization_max_val=127)
        qw = raw.UniformQuantize(input=w, scales=0.04, zero_points=0, Tout=tf.qint8, quantization_axis=-1, quantization_min_val=-127, quantization_max_val=127)
        dot = raw.UniformQuantizedDot(lhs=q, rhs=qw, lhs_scales=0.05, lhs_zero_points=3, rhs_scales=0.04, rhs_zero_points=0, output_scales=0.002, output_zero_points=0, Tout=tf.qint32,
                                      lhs_quantization_axis=-1, rhs_quantization_axis=-1, output_quantization_axis=-1, lhs_quantization_min_val=-128, lhs_quantization_max_val=127,
                                      rhs_quantization_min_val=-127, rhs_quantization_max_val=127, output_quantization_min_val=-(2**31), output_quantization_max_val=2**31 - 1)
        back = raw.UniformDequantize(input=dot, scales=0.002, zero_points=0, Tout=tf.float32, quantization_axis=-1, quantization_min_val=-(2**31), quantization_max_val=2**31 - 1)
        hybrid = raw.UniformQuantizedDotHybrid(lhs=x, rhs=qw, rhs_scales=0.04, rhs_zero_points=0, Tout=tf.float32, rhs_quantization_min_val=-127, rhs_quantization_max_val=127)
        return back, hybrid

    return program, [{"x": normal(n, 6), "w": normal(6, 4)} for n in (3, 1)]


@model
def integer_arithmetic():
    def program(a, b):
        wide = tf.cast(a, tf.int32), tf.cast(b, tf.int32)
        return [a + b, a - b, a * b, a // tf.maximum(b, 1), a % tf.maximum(b, 1), tf.bitwise.bitwise_xor(a, b), tf.bitwise.left_shift(a, b % 3), tf.bitwise.invert(a), tf.matmul(*wide, transpose_b=True),
                tf.math.bincount(wide[0] % 7, minlength=7), tf.reduce_sum(a), tf.reduce_prod(wide[0] % 3, 0), tf.cumsum(a, 1), tf.cast(a, tf.float16), tf.saturate_cast(wide[0] * 3, tf.uint8), tf.clip_by_value(a, 3, 9)]

    return program, [{"a": integers(0, 100, 3, 4, dtype=t), "b": integers(0, 100, 3, 4, seed=1, dtype=t)} for t in ("int8",)] + [{"a": integers(0, 100, 1, 4, dtype="int8"), "b": integers(0, 100, 1, 4, dtype="int8")}]
