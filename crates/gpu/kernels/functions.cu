// The functions of one element that generated kernels call. `build.py` compiles them to functions.ptx.gz.

#define FUNCTION(NAME, VALUE)                                                                                         \
    extern "C" __device__ __noinline__ float ff_##NAME(float x) { return VALUE; }
#define FUNCTION2(NAME, VALUE)                                                                                        \
    extern "C" __device__ __noinline__ float ff_##NAME(float x, float y) { return VALUE; }

__device__ inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }

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
FUNCTION(gelu, 0.5f * x * (1 + erff(x * 0.70710678118654752440f)))
FUNCTION(gelu_tanh, 0.5f * x * (1 + tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x))))
FUNCTION2(leaky_relu, x < 0 ? x * y : x)
FUNCTION2(pow, powf(x, y))
FUNCTION2(maximum, (x > y || x != x) ? x : y)
FUNCTION2(minimum, (x < y || x != x) ? x : y)
