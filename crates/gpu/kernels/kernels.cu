// Kernels that are the same for every model. `build.py` compiles them to kernels.ptx.gz.
//
// Half-precision elements are computed in float. Sizes are in elements, and at most 2^31 - 1: callers check it.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef __nv_bfloat16 bf16;
#define INFINITY __int_as_float(0x7f800000)

__device__ inline float load(const float *p) { return *p; }
__device__ inline float load(const __half *p) { return __half2float(*p); }
__device__ inline float load(const bf16 *p) { return __bfloat162float(*p); }
__device__ inline void store(float *p, float v) { *p = v; }
__device__ inline void store(__half *p, float v) { *p = __float2half(v); }
__device__ inline void store(bf16 *p, float v) { *p = __float2bfloat16(v); }

struct Sum {
    static __device__ float first() { return 0.0f; }
    static __device__ float add(float a, float b) { return a + b; }
};
struct Max {
    static __device__ float first() { return -INFINITY; }
    // A NaN stays.
    static __device__ float add(float a, float b) { return (a > b || a != a) ? a : b; }
};
struct Min {
    static __device__ float first() { return INFINITY; }
    static __device__ float add(float a, float b) { return (a < b || a != a) ? a : b; }
};
struct Prod {
    static __device__ float first() { return 1.0f; }
    static __device__ float add(float a, float b) { return a * b; }
};

// Combines the values of a block; every thread gets the result.
template <class R> __device__ float block_all(float v) {
    __shared__ float shared[33];
    for (int offset = 16; offset > 0; offset /= 2) v = R::add(v, __shfl_xor_sync(0xffffffff, v, offset));
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = lane < warps ? shared[lane] : R::first();
        for (int offset = 16; offset > 0; offset /= 2) v = R::add(v, __shfl_xor_sync(0xffffffff, v, offset));
        if (lane == 0) shared[32] = v;
    }
    __syncthreads();
    v = shared[32];
    __syncthreads();
    return v;
}

// Softmax of rows of `n` elements, a block a row.
template <class T> __device__ void softmax(const T *x, T *y, int n, int is_log) {
    x += (size_t)blockIdx.x * n;
    y += (size_t)blockIdx.x * n;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < n; i += blockDim.x) largest = Max::add(largest, load(x + i));
    largest = block_all<Max>(largest);
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(load(x + i) - largest);
    sum = block_all<Sum>(sum);
    float factor = 1 / sum, shift = logf(sum);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = load(x + i) - largest;
        store(y + i, is_log ? v - shift : expf(v) * factor);
    }
}

// Softmax of rows of at most 1,024 elements: a warp a row, whose elements stay in registers.
template <class T> __device__ void softmax_short(const T *x, T *y, int rows, int n, int is_log) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    x += (size_t)row * n;
    y += (size_t)row * n;
    float v[32], largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int at = i * 32 + lane;
        v[i] = at < n ? load(x + at) : -INFINITY;
        if (i * 32 < n) largest = Max::add(largest, v[i]);
    }
    for (int offset = 16; offset > 0; offset /= 2)
        largest = Max::add(largest, __shfl_xor_sync(0xffffffff, largest, offset));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (i * 32 < n) sum += i * 32 + lane < n ? expf(v[i] - largest) : 0;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    float factor = 1 / sum, shift = logf(sum);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int at = i * 32 + lane;
        if (at < n) store(y + at, is_log ? v[i] - largest - shift : expf(v[i] - largest) * factor);
    }
}

// (x - mean) / sqrt(variance + epsilon) * scale + offset of rows of `n` elements, a block a row.
template <class T>
__device__ void layer_norm(const T *x, const T *scale, const T *offset, T *y, int n, float epsilon) {
    x += (size_t)blockIdx.x * n;
    y += (size_t)blockIdx.x * n;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += load(x + i);
    float mean = block_all<Sum>(sum) / n;
    float squares = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float d = load(x + i) - mean;
        squares += d * d;
    }
    float factor = rsqrtf(block_all<Sum>(squares) / n + epsilon);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        store(y + i, (load(x + i) - mean) * factor * load(scale + i) + load(offset + i));
}

// Reduces the middle of [outer, n, inner]. With `inner` 1 a block makes each result, else a thread.
template <class R, class T> __device__ void reduce(const T *x, T *y, int outer, int n, int inner, float factor) {
    if (inner == 1) {
        x += (size_t)blockIdx.x * n;
        float v = R::first();
        for (int i = threadIdx.x; i < n; i += blockDim.x) v = R::add(v, load(x + i));
        v = block_all<R>(v);
        if (threadIdx.x == 0) store(y + blockIdx.x, v * factor);
        return;
    }
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)outer * inner) return;
    const T *from = x + at / inner * ((size_t)n * inner) + at % inner;
    float v = R::first();
    for (int i = 0; i < n; i++) v = R::add(v, load(from + (size_t)i * inner));
    store(y + at, v * factor);
}

// Pooling of [batch, height, width, channels], a thread an output. `is_max` or the mean of what is inside.
template <class T>
__device__ void pool(const T *x, T *y, int count, int height, int width, int channels, int out_height, int out_width,
                     int window_h, int window_w, int stride_h, int stride_w, int pad_h, int pad_w, int is_max) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    int c = at % channels, ox = at / channels % out_width, oy = at / channels / out_width % out_height;
    int b = at / channels / out_width / out_height;
    int y0 = oy * stride_h - pad_h, x0 = ox * stride_w - pad_w;
    int y1 = min(y0 + window_h, height), x1 = min(x0 + window_w, width);
    y0 = max(y0, 0);
    x0 = max(x0, 0);
    float v = is_max ? -INFINITY : 0;
    for (int i = y0; i < y1; i++)
        for (int j = x0; j < x1; j++) {
            float e = load(x + (((size_t)b * height + i) * width + j) * channels + c);
            v = is_max ? Max::add(v, e) : v + e;
        }
    store(y + at, is_max ? v : v / (float)((y1 - y0) * (x1 - x0)));
}

// A depthwise convolution of [batch, height, width, channels] with a filter of [height, width, channels, multiplier],
// a thread an output, plus a bias if there is one.
template <class T>
__device__ void depthwise(const T *x, const T *filter, const T *bias, T *y, int count, int height, int width,
                          int channels, int multiplier, int out_height, int out_width, int filter_h, int filter_w,
                          int stride_h, int stride_w, int pad_h, int pad_w, int dilation_h, int dilation_w) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    int outputs = channels * multiplier;
    int o = at % outputs, ox = at / outputs % out_width, oy = at / outputs / out_width % out_height;
    int b = at / outputs / out_width / out_height, c = o / multiplier;
    float sum = bias ? load(bias + o) : 0;
    for (int i = 0; i < filter_h; i++) {
        int iy = oy * stride_h - pad_h + i * dilation_h;
        if (iy < 0 || iy >= height) continue;
        for (int j = 0; j < filter_w; j++) {
            int ix = ox * stride_w - pad_w + j * dilation_w;
            if (ix < 0 || ix >= width) continue;
            sum += load(x + (((size_t)b * height + iy) * width + ix) * channels + c) *
                   load(filter + (size_t)(i * filter_w + j) * outputs + o);
        }
    }
    store(y + at, sum);
}

// Copies between two strided arrays of the same extents, outermost first; unused dimensions have extent 1.
template <class T>
__device__ void copy_nd(const T *x, T *y, int count, int d1, int d2, int d3, int d4, int d5, int a0, int a1, int a2,
                        int a3, int a4, int a5, int b0, int b1, int b2, int b3, int b4, int b5) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    int i5 = at % d5, rest = at / d5;
    int i4 = rest % d4;
    rest /= d4;
    int i3 = rest % d3;
    rest /= d3;
    int i2 = rest % d2;
    rest /= d2;
    int i1 = rest % d1, i0 = rest / d1;
    long long from = (long long)i0 * a0 + (long long)i1 * a1 + (long long)i2 * a2 + (long long)i3 * a3 +
                     (long long)i4 * a4 + (long long)i5 * a5;
    long long to = (long long)i0 * b0 + (long long)i1 * b1 + (long long)i2 * b2 + (long long)i3 * b3 +
                   (long long)i4 * b4 + (long long)i5 * b5;
    y[to] = x[from];
}

// Rows of [outer, rows, inner] by number, for [outer, n, inner].
template <class T, class I>
__device__ void gather(const T *x, const I *indices, T *y, int count, int rows, int n, int inner) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    int i = at % inner, k = at / inner % n, o = at / inner / n;
    y[at] = x[((size_t)o * rows + (size_t)indices[k]) * inner + i];
}

#define OF_TYPE(NAME, T)                                                                                              \
    extern "C" __global__ void softmax_##NAME(const T *x, T *y, int n, int is_log) { softmax(x, y, n, is_log); }      \
    extern "C" __global__ void softmax_short_##NAME(const T *x, T *y, int rows, int n, int is_log) {                  \
        softmax_short(x, y, rows, n, is_log);                                                                         \
    }                                                                                                                 \
    extern "C" __global__ void layer_norm_##NAME(const T *x, const T *scale, const T *offset, T *y, int n,            \
                                                 float epsilon) {                                                     \
        layer_norm(x, scale, offset, y, n, epsilon);                                                                  \
    }                                                                                                                 \
    REDUCE(sum, Sum, NAME, T) REDUCE(max, Max, NAME, T) REDUCE(min, Min, NAME, T) REDUCE(prod, Prod, NAME, T)         \
    extern "C" __global__ void pool_##NAME(const T *x, T *y, int count, int height, int width, int channels,          \
                                           int out_height, int out_width, int window_h, int window_w, int stride_h,   \
                                           int stride_w, int pad_h, int pad_w, int is_max) {                          \
        pool(x, y, count, height, width, channels, out_height, out_width, window_h, window_w, stride_h, stride_w,     \
             pad_h, pad_w, is_max);                                                                                   \
    }                                                                                                                 \
    extern "C" __global__ void depthwise_##NAME(const T *x, const T *filter, const T *bias, T *y, int count,          \
                                                int height, int width, int channels, int multiplier, int out_height,  \
                                                int out_width, int filter_h, int filter_w, int stride_h,              \
                                                int stride_w, int pad_h, int pad_w, int dilation_h, int dilation_w) { \
        depthwise(x, filter, bias, y, count, height, width, channels, multiplier, out_height, out_width, filter_h,    \
                  filter_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w);                                \
    }

#define REDUCE(OP, R, NAME, T)                                                                                        \
    extern "C" __global__ void reduce_##OP##_##NAME(const T *x, T *y, int outer, int n, int inner, float factor) {    \
        reduce<R>(x, y, outer, n, inner, factor);                                                                     \
    }

OF_TYPE(f32, float)
OF_TYPE(f16, __half)
OF_TYPE(bf16, bf16)

#define OF_SIZE(BYTES, T)                                                                                             \
    extern "C" __global__ void copy_nd_##BYTES(const T *x, T *y, int count, int d1, int d2, int d3, int d4, int d5,   \
                                               int a0, int a1, int a2, int a3, int a4, int a5, int b0, int b1,        \
                                               int b2, int b3, int b4, int b5) {                                      \
        copy_nd(x, y, count, d1, d2, d3, d4, d5, a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5);                     \
    }                                                                                                                 \
    extern "C" __global__ void gather_##BYTES##_i32(const T *x, const int *indices, T *y, int count, int rows, int n, \
                                                    int inner) {                                                      \
        gather(x, indices, y, count, rows, n, inner);                                                                 \
    }                                                                                                                 \
    extern "C" __global__ void gather_##BYTES##_i64(const T *x, const long long *indices, T *y, int count, int rows,  \
                                                    int n, int inner) {                                               \
        gather(x, indices, y, count, rows, n, inner);                                                                 \
    }

OF_SIZE(1, unsigned char)
OF_SIZE(2, unsigned short)
OF_SIZE(4, unsigned int)
OF_SIZE(8, unsigned long long)
OF_SIZE(16, uint4)
