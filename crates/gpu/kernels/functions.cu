// The functions of one element that generated kernels call. `build.py` compiles them to functions.ptx.gz.

#define FUNCTION(NAME, VALUE)                                                                                         \
    extern "C" __device__ __noinline__ float ff_##NAME(float x) { return VALUE; }
#define FUNCTION2(NAME, VALUE)                                                                                        \
    extern "C" __device__ __noinline__ float ff_##NAME(float x, float y) { return VALUE; }

#define FUNCTION3(NAME, VALUE)                                                                                        \
    extern "C" __device__ __noinline__ float ff_##NAME(float x, float y, float z) { return VALUE; }
#define FUNCTION4(NAME, VALUE)                                                                                        \
    extern "C" __device__ __noinline__ float ff_##NAME(float x, float y, float z, float u) { return VALUE; }
#define FUNCTION5(NAME, VALUE)                                                                                        \
    extern "C" __device__ __noinline__ float ff_##NAME(float x, float y, float z, float u, float v) { return VALUE; }
#define FUNCTION6(NAME, VALUE)                                                                                        \
    extern "C" __device__ __noinline__ float ff_##NAME(float x, float y, float z, float u, float v, float w) {       \
        return VALUE;                                                                                                 \
    }

__device__ inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }
__device__ inline float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, with erfc to 1.5e-7 (Abramowitz and Stegun 7.1.26): a memory-bound loop has time
// for a dozen instructions an element. The product is 0 where x is infinite.
__device__ inline float gelu(float x) {
    float a = fabsf(x), t = reciprocal(fmaf(a, 0.3275911f * 0.70710678f, 1.0f));
    float p = fmaf(fmaf(fmaf(fmaf(0.5f * 1.061405429f, t, 0.5f * -1.453152027f), t, 0.5f * 1.421413741f), t,
                        0.5f * -0.284496736f),
                   t, 0.5f * 0.254829592f);
    float s = x * 0.84932180f;
    return fmaxf(x, 0) - fminf(a, 1e30f) * (p * t * exp2(-s * s));
}

FUNCTION(exp, expf(x))
FUNCTION(expm1, expm1f(x))
FUNCTION(log, logf(x))
FUNCTION(log1p, log1pf(x))
FUNCTION(sin, sinf(x))
FUNCTION(cos, cosf(x))
FUNCTION(tanh, tanhf(x))
FUNCTION(sigmoid, sigmoid(x))
FUNCTION(erf, erff(x))
FUNCTION(erfc, erfcf(x))
FUNCTION(round, rintf(x))
FUNCTION(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x)
FUNCTION(relu, x < 0 ? 0.0f : x)
FUNCTION(relu6, x < 0 ? 0.0f : x > 6 ? 6.0f : x)
FUNCTION(elu, x < 0 ? expm1f(x) : x)
FUNCTION(selu, 1.0507009873554804934f * (x < 0 ? 1.6732632423543772848f * expm1f(x) : x))
FUNCTION(softplus, x > 13.942385f ? x : x < -13.942385f ? expf(x) : log1pf(expf(x)))
FUNCTION(softsign, x / (1 + fabsf(x)))
FUNCTION(swish, x * sigmoid(x))
FUNCTION(hard_swish, x * (x < -3 ? 0.0f : x > 3 ? 1.0f : (x + 3) / 6))
FUNCTION(gelu, gelu(x))
FUNCTION(gelu_tanh, x * reciprocal(1 + exp2(-2.3022082f * (x + 0.044715f * x * x * x))))
FUNCTION2(leaky_relu, x < 0 ? x * y : x)
FUNCTION2(pow, powf(x, y))
FUNCTION2(maximum, (x > y || x != x) ? x : y)
FUNCTION2(minimum, (x < y || x != x) ? x : y)

// Further functions of one and two numbers.
FUNCTION(tan, tanf(x))
FUNCTION(asin, asinf(x))
FUNCTION(acos, acosf(x))
FUNCTION(atan, atanf(x))
FUNCTION(sinh, sinhf(x))
FUNCTION(cosh, coshf(x))
FUNCTION(asinh, asinhf(x))
FUNCTION(acosh, acoshf(x))
FUNCTION(atanh, atanhf(x))
FUNCTION(lgamma, lgammaf(x))
FUNCTION2(atan2, atan2f(x, y))
FUNCTION2(div_no_nan, y == 0 ? 0.0f : x / y)
FUNCTION2(mul_no_nan, y == 0 ? 0.0f : x * y)
FUNCTION2(xdivy, x == 0 ? 0.0f : x / y)
FUNCTION2(xlogy, x == 0 ? 0.0f : x * logf(y))
FUNCTION2(xlog1py, x == 0 ? 0.0f : x * log1pf(y))
FUNCTION2(floor_div, floorf(x / y))
FUNCTION3(clip, x != x ? x : fminf(fmaxf(x, y), z))

// Conditions, as 0 and 1.
FUNCTION2(less, x < y)
FUNCTION2(less_equal, x <= y)
FUNCTION2(greater, x > y)
FUNCTION2(greater_equal, x >= y)
FUNCTION2(equal, x == y)
FUNCTION2(not_equal, x != y)
FUNCTION2(and, x != 0 && y != 0)
FUNCTION2(or, x != 0 || y != 0)
FUNCTION(not, x == 0)
FUNCTION(is_nan, x != x)
FUNCTION(is_inf, fabsf(x) == __int_as_float(0x7f800000))
FUNCTION(is_finite, fabsf(x) < __int_as_float(0x7f800000))

// Gradients: x and y are the inputs of the op of that name.
FUNCTION2(relu_grad, y > 0 ? x : 0.0f)
FUNCTION2(relu6_grad, y > 0 && y < 6 ? x : 0.0f)
FUNCTION3(leaky_relu_grad, y > 0 ? x : x * z)
FUNCTION2(elu_grad, y < 0 ? x * (y + 1) : x)
FUNCTION2(selu_grad, x * (y < 0 ? y + 1.7580993408473768599f : 1.0507009873554804934f))
FUNCTION2(tanh_grad, y * (1 - x * x))
FUNCTION2(sigmoid_grad, y * x * (1 - x))
FUNCTION2(sqrt_grad, y * 0.5f / x)
FUNCTION2(rsqrt_grad, y * -0.5f * (x * x * x))
FUNCTION2(inv_grad, -y * (x * x))
FUNCTION2(softplus_grad, x / (expf(-y) + 1))
FUNCTION2(softsign_grad, x / ((1 + fabsf(y)) * (1 + fabsf(y))))

// Optimizers, whose subnormal slots are flushed to zero as on CPUs.
__device__ inline float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0, x) : x; }
__device__ inline float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; }
__device__ inline float shrunk(float x, float l1, float l2) {
    return (l1 > 0 ? sign(x) * fmaxf(fabsf(x) - l1, 0) : x) / (1 + l2);
}

// x moves toward y; z of it is kept.
FUNCTION3(approach, flushed(x + (y - x) * (1 - z)))
FUNCTION3(decay, flushed(x * z + y * (1 - z)))
FUNCTION3(scaled_add, flushed(x * z + y))
FUNCTION3(step, x - y * z)
FUNCTION5(nesterov, x - (z * u + y * v * u))
FUNCTION4(keras_accum, flushed(x * z - y * u))
FUNCTION5(keras_nesterov, x + (y * u - z * v))
FUNCTION4(adagrad, x - z * u / sqrtf(y))
FUNCTION5(adagrad_v2, x - z * u / (sqrtf(y) + v))
FUNCTION4(adadelta, sqrtf(x + u) / sqrtf(y + u) * z)
FUNCTION6(rms_prop, flushed(x * y + z * u / sqrtf(v + w)))
FUNCTION3(adam_rate, x * sqrtf(1 - z) / (1 - y))
FUNCTION3(adam_ahead, y * (1 - z) + z * x)
FUNCTION5(adam, x - y * u / (sqrtf(z) + v))
FUNCTION2(larger, x < y ? y : x)
FUNCTION3(ada_max_slot, flushed(x * z < fabsf(y) ? fabsf(y) : x * z))
FUNCTION6(ada_max, x - u / (1 - w) * (y / (z + v)))
FUNCTION6(add_sign, x - u * (v + w * (sign(y) * sign(z))) * y)
FUNCTION6(power_sign, x - u * expf(v * w * (sign(y) * sign(z))) * y)
FUNCTION5(proximal, shrunk(x - y * z, z * u, z * v))
FUNCTION2(adagrad_rate, x / sqrtf(y))
FUNCTION6(adagrad_da, -z * (u > 0 ? sign(x) * fmaxf(fabsf(x) - w * u, 0) : x) / (v * w * z + sqrtf(y)))
FUNCTION2(ftrl_power, y == -0.5f ? sqrtf(x) : powf(x, -y))
FUNCTION3(ftrl_gradient, z == 0 ? x : x + 2 * z * y)
// Of linear, the gradient, the change of the power, the variable and the learning rate.
FUNCTION5(ftrl_linear, x + y - z / v * u)
FUNCTION5(ftrl_linear_by_rate, x + y * v - z * u)
// Of linear, the power, and the rates.
FUNCTION5(ftrl, fabsf(x) > u ? (u * sign(x) - x) / (y / z + 2 * v) : 0.0f)
FUNCTION5(ftrl_by_rate, fabsf(x) > u * z ? (u * z * sign(x) - x) / (y + 2 * v * z) : 0.0f)
