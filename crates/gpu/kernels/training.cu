// Kernels of training. `build.py` compiles them to training.ptx.gz.

#include "common.cuh"

typedef long long i64;

// Sums of pairs of numbers of rows `0..n` of `c` columns: a block of 32 x 8 threads adds up a part of the rows of 32
// columns, and writes it to `parts[blockIdx.y]`, sums of the first numbers before those of the second.
template <class F> __device__ void column_pairs(F each, float *parts, int n, int c) {
    __shared__ float shared[2][8][33];
    int column = blockIdx.x * 32 + threadIdx.x, rows = (n + gridDim.y - 1) / gridDim.y;
    int end = min(n, (int)(blockIdx.y + 1) * rows);
    float a = 0, b = 0;
    if (column < c) {
#pragma unroll 4
        for (int row = blockIdx.y * rows + threadIdx.y; row < end; row += 8) {
            float2 v = each(row, column);
            a += v.x;
            b += v.y;
        }
    }
    shared[0][threadIdx.y][threadIdx.x] = a;
    shared[1][threadIdx.y][threadIdx.x] = b;
    __syncthreads();
    if (threadIdx.y != 0 || column >= c) return;
    for (int i = 1; i < 8; i++) {
        a += shared[0][i][threadIdx.x];
        b += shared[1][i][threadIdx.x];
    }
    float *to = parts + (size_t)blockIdx.y * 2 * c;
    to[column] = a;
    to[c + column] = b;
}

// The distance of each column's elements from its first one, and its square: of these no sum is much larger than the
// deviations.
template <class T> __device__ void norm_parts(const T *x, float *parts, int n, int c) {
    column_pairs(
        [=](int row, int column) {
            float d = load(x + (size_t)row * c + column) - load(x + column);
            return make_float2(d, d * d);
        },
        parts, n, c);
}

// Mean and variance of the columns, and what becomes of running ones.
template <class T>
__device__ void norm_finish(const T *x, const float *parts, const float *old_mean, const float *old_variance,
                            float *mean, float *variance, float *new_mean, float *new_variance, int n, int c,
                            int n_parts, float factor) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= c) return;
    double sum = 0, squares = 0;
#pragma unroll 16
    for (int i = 0; i < n_parts; i++) {
        sum += parts[(size_t)i * 2 * c + column];
        squares += parts[(size_t)i * 2 * c + c + column];
    }
    double shift = sum / n, v = squares / n - shift * shift;
    if (v < 0) v = 0;
    float m = (float)(shift + load(x + column)), sample = (float)(v * n / max(n - 1, 1));
    mean[column] = m;
    variance[column] = (float)v;
    new_mean[column] = factor == 1 ? m : (1 - factor) * old_mean[column] + factor * m;
    new_variance[column] = factor == 1 ? sample : (1 - factor) * old_variance[column] + factor * sample;
}

// The gradient of the output, and its product with the distance from the mean.
template <class T>
__device__ void norm_grad_parts(const T *dy, const T *x, const float *mean, float *parts, int n, int c) {
    column_pairs(
        [=](int row, int column) {
            size_t at = (size_t)row * c + column;
            float d = load(dy + at);
            return make_float2(d, d * (load(x + at) - mean[column]));
        },
        parts, n, c);
}

// The same of the gradient of the Relu behind the normalization.
template <class T>
__device__ void norm_relu_grad_parts(const T *dy, const T *x, const float *mean, const float *scale,
                                     const float *offset, const float *variance, float *parts, int n, int c,
                                     float epsilon) {
    int own = min(blockIdx.x * 32 + threadIdx.x, c - 1);
    float factor = __fmul_rn(scale[own], rsqrtf(__fadd_rn(variance[own], epsilon))), m = mean[own], o = offset[own];
    column_pairs(
        [=](int row, int column) {
            size_t at = (size_t)row * c + column;
            float distance = __fsub_rn(load(x + at), m), y = __fadd_rn(__fmul_rn(distance, factor), o);
            float d = y > 0 ? load(dy + at) : 0.0f;
            return make_float2(d, d * distance);
        },
        parts, n, c);
}

// The gradients of scale and offset; and three terms, so that that of x is
// terms[0] * dy + terms[1] * (x - mean) + terms[2].
extern "C" __global__ void norm_grad_finish(const float *parts, const float *scale, const float *variance,
                                            float *d_scale, float *d_offset, float *terms, int n, int c, int n_parts,
                                            float epsilon, int is_training) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= c) return;
    double sum = 0, weighted = 0;
#pragma unroll 16
    for (int i = 0; i < n_parts; i++) {
        sum += parts[(size_t)i * 2 * c + column];
        weighted += parts[(size_t)i * 2 * c + c + column];
    }
    double inverse = 1 / sqrt((double)variance[column] + epsilon), factor = inverse * scale[column];
    d_scale[column] = (float)(weighted * inverse);
    d_offset[column] = (float)sum;
    terms[column] = (float)factor;
    terms[c + column] = is_training ? (float)(-factor * inverse * inverse * weighted / n) : 0;
    terms[2 * c + column] = is_training ? (float)(-factor * sum / n) : 0;
}

// Sums, or sums of squares, of the columns of [outer, n, inner] in parts: see `reduce_finish`.
template <class T, bool SQUARES> __device__ void column_parts(const T *x, float *parts, int n, int inner) {
    __shared__ float shared[8][33];
    int column = blockIdx.x * 32 + threadIdx.x, rows = (n + gridDim.y - 1) / gridDim.y;
    int end = min(n, (int)(blockIdx.y + 1) * rows);
    x += (size_t)blockIdx.z * n * inner;
    float a = 0;
    if (column < inner) {
#pragma unroll 8
        for (int row = blockIdx.y * rows + threadIdx.y; row < end; row += 8) {
            float v = load(x + (size_t)row * inner + column);
            a += SQUARES ? v * v : v;
        }
    }
    shared[threadIdx.y][threadIdx.x] = a;
    __syncthreads();
    if (threadIdx.y != 0 || column >= inner) return;
    for (int i = 1; i < 8; i++) a += shared[i][threadIdx.x];
    parts[((size_t)blockIdx.z * gridDim.y + blockIdx.y) * inner + column] = a;
}

// The same of rows of [outer, n].
template <class T, bool SQUARES> __device__ void row_parts(const T *x, float *parts, int n) {
    int size = (n + gridDim.x - 1) / gridDim.x, end = min(n, (int)(blockIdx.x + 1) * size);
    x += (size_t)blockIdx.y * n;
    float a = 0;
    for (int i = blockIdx.x * size + threadIdx.x; i < end; i += blockDim.x) {
        float v = load(x + i);
        a += SQUARES ? v * v : v;
    }
    a = block_all<Sum>(a);
    if (threadIdx.x == 0) parts[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = a;
}

// Adds up the parts of [outer, parts, inner].
template <class T> __device__ void reduce_finish(const float *parts, T *y, int count, int n, int inner, float factor) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    const float *from = parts + (size_t)(at / inner) * n * inner + at % inner;
    float v = 0;
#pragma unroll 16
    for (int i = 0; i < n; i++) v += from[(size_t)i * inner];
    store(y + at, v * factor);
}

// The gradient of pooling, a thread for `N` channels of an input: it gets what the windows around it pass on. The first of
// the largest elements of a window gets all of it.
struct Window {
    int height, width, channels, out_height, out_width, rows, columns, stride_h, stride_w, pad_h, pad_w;
};

template <int N, class T>
__device__ void pool_grad(const T *x, const T *y, const T *dy, T *dx, int count, Window w, int is_max) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x, per = w.channels / N;
    if (at >= count / N) return;
    unsigned c = at % per * N, pixel = at / per;
    int column = pixel % w.width, row = pixel / w.width % w.height, b = pixel / w.width / w.height;
    int o1 = min((row + w.pad_h) / w.stride_h, w.out_height - 1);
    int p1 = min((column + w.pad_w) / w.stride_w, w.out_width - 1);
    int o0 = max(0, (row + w.pad_h - w.rows + w.stride_h) / w.stride_h);
    int p0 = max(0, (column + w.pad_w - w.columns + w.stride_w) / w.stride_w);
    if (row + w.pad_h < w.rows) o0 = 0;
    if (column + w.pad_w < w.columns) p0 = 0;
    Vector<T, N> own;
    if (is_max) own = *(const Vector<T, N> *)(x + (size_t)at * N);
    float sum[N];
#pragma unroll
    for (int k = 0; k < N; k++) sum[k] = 0;
    for (int o = o0; o <= o1; o++)
        for (int p = p0; p <= p1; p++) {
            int y0 = o * w.stride_h - w.pad_h, x0 = p * w.stride_w - w.pad_w;
            int y1 = min(y0 + w.rows, w.height), x1 = min(x0 + w.columns, w.width);
            y0 = max(y0, 0);
            x0 = max(x0, 0);
            if (row < y0 || row >= y1 || column < x0 || column >= x1) continue;
            size_t out = (((size_t)b * w.out_height + o) * w.out_width + p) * w.channels + c;
            Vector<T, N> d = *(const Vector<T, N> *)(dy + out);
            if (!is_max) {
                float n = (float)((y1 - y0) * (x1 - x0));
#pragma unroll
                for (int k = 0; k < N; k++) sum[k] += load(&d.v[k]) / n;
                continue;
            }
            // Which channels have their first largest element here.
            Vector<T, N> largest = *(const Vector<T, N> *)(y + out);
            unsigned first = 0;
#pragma unroll
            for (int k = 0; k < N; k++) first |= (load(&own.v[k]) == load(&largest.v[k])) << k;
            for (int i = y0; i <= row && first; i++)
                for (int j = x0; j < x1 && first && (i < row || j < column); j++) {
                    size_t from = (((size_t)b * w.height + i) * w.width + j) * w.channels + c;
                    Vector<T, N> before = *(const Vector<T, N> *)(x + from);
#pragma unroll
                    for (int k = 0; k < N; k++) first &= ~((load(&before.v[k]) == load(&own.v[k])) << k);
                }
#pragma unroll
            for (int k = 0; k < N; k++)
                if (first >> k & 1) sum[k] += load(&d.v[k]);
        }
    Vector<T, N> result;
#pragma unroll
    for (int k = 0; k < N; k++) store(&result.v[k], sum[k]);
    *(Vector<T, N> *)(dx + (size_t)at * N) = result;
}

// The gradients of a depthwise convolution: by the input, a thread an element; by the filter, a block an element.
struct Depthwise {
    int batch, height, width, channels, multiplier, out_height, out_width, rows, columns, stride_h, stride_w, pad_h,
        pad_w, dilation_h, dilation_w;
};

template <class T> __device__ void depthwise_input(const T *filter, const T *dy, T *dx, int count, Depthwise d) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    int c = at % d.channels, column = at / d.channels % d.width, row = at / d.channels / d.width % d.height;
    int b = at / d.channels / d.width / d.height, outputs = d.channels * d.multiplier;
    float sum = 0;
    for (int i = 0; i < d.rows; i++) {
        int y = row + d.pad_h - i * d.dilation_h;
        if (y < 0 || y % d.stride_h != 0 || y / d.stride_h >= d.out_height) continue;
        for (int j = 0; j < d.columns; j++) {
            int x = column + d.pad_w - j * d.dilation_w;
            if (x < 0 || x % d.stride_w != 0 || x / d.stride_w >= d.out_width) continue;
            size_t out = (((size_t)b * d.out_height + y / d.stride_h) * d.out_width + x / d.stride_w) * outputs;
            size_t in = (size_t)(i * d.columns + j) * outputs;
            for (int m = c * d.multiplier; m < (c + 1) * d.multiplier; m++)
                sum += load(dy + out + m) * load(filter + in + m);
        }
    }
    store(dx + at, sum);
}

template <class T> __device__ void depthwise_filter(const T *x, const T *dy, T *dw, Depthwise d) {
    int outputs = d.channels * d.multiplier, o = blockIdx.x % outputs, j = blockIdx.x / outputs % d.columns;
    int i = blockIdx.x / outputs / d.columns, c = o / d.multiplier, n = d.batch * d.out_height * d.out_width;
    float sum = 0;
    for (int at = threadIdx.x; at < n; at += blockDim.x) {
        int column = at % d.out_width * d.stride_w - d.pad_w + j * d.dilation_w;
        int row = at / d.out_width % d.out_height * d.stride_h - d.pad_h + i * d.dilation_h;
        if (row < 0 || row >= d.height || column < 0 || column >= d.width) continue;
        int b = at / d.out_width / d.out_height;
        sum += load(x + (((size_t)b * d.height + row) * d.width + column) * d.channels + c) *
               load(dy + (size_t)at * outputs + o);
    }
    sum = block_all<Sum>(sum);
    if (threadIdx.x == 0) store(dw + blockIdx.x, sum);
}

// The cross entropy of rows of `n` logits with the distribution `labels`, and its gradient; a block a row.
template <class T> __device__ void xent(const T *x, const T *labels, T *loss, T *grad, int n) {
    x += (size_t)blockIdx.x * n;
    labels += (size_t)blockIdx.x * n;
    grad += (size_t)blockIdx.x * n;
    float largest = -INFINITY, sum = 0, total = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) largest = Max::add(largest, load(x + i));
    largest = block_all<Max>(largest);
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(load(x + i) - largest);
    sum = block_all<Sum>(sum);
    float log_sum = logf(sum);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float d = load(x + i) - largest, label = load(labels + i);
        total += label * (log_sum - d);
        store(grad + i, expf(d) / sum - label);
    }
    total = block_all<Sum>(total);
    if (threadIdx.x == 0) store(loss + blockIdx.x, total);
}

// The same with the number of one class for each row; one that does not exist makes NaN.
template <class T, class I> __device__ void sparse_xent(const T *x, const I *labels, T *loss, T *grad, int n) {
    x += (size_t)blockIdx.x * n;
    grad += (size_t)blockIdx.x * n;
    i64 label = labels[blockIdx.x];
    bool exists = label >= 0 && label < n;
    float largest = -INFINITY, sum = 0, nan = __int_as_float(0x7fc00000);
    for (int i = threadIdx.x; i < n; i += blockDim.x) largest = Max::add(largest, load(x + i));
    largest = block_all<Max>(largest);
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(load(x + i) - largest);
    sum = block_all<Sum>(sum);
    if (threadIdx.x == 0) store(loss + blockIdx.x, exists ? logf(sum) + largest - load(x + label) : nan);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        store(grad + i, exists ? expf(load(x + i) - largest) / sum - (i == label) : nan);
}

// The position of the largest or smallest element along the middle of [outer, n, inner], the first one of equal ones. NaN
// beats nothing. With `inner` 1 a warp makes each result, else a thread.
template <class T> __device__ void arg(const T *x, void *y, int count, int n, int inner, int is_max, int is_long) {
    int at = blockIdx.x * blockDim.x + threadIdx.x, lane = 0, step = 1;
    if (inner == 1) {
        lane = at % 32;
        step = 32;
        at /= 32;
    }
    if (at >= count) return;
    const T *from = x + (size_t)(at / inner) * n * inner + at % inner;
    float best = -INFINITY;
    int found = n;
    for (int i = lane; i < n; i += step) {
        float v = load(from + (size_t)i * inner);
        if (!is_max) v = -v;
        if (v > best) {
            best = v;
            found = i;
        }
    }
    if (step == 32)
        for (int offset = 16; offset > 0; offset /= 2) {
            float v = __shfl_xor_sync(0xffffffff, best, offset);
            int i = __shfl_xor_sync(0xffffffff, found, offset);
            if (v > best || (v == best && i < found)) {
                best = v;
                found = i;
            }
        }
    if (lane != 0) return;
    if (found == n) found = 0;
    if (is_long)
        ((i64 *)y)[at] = found;
    else
        ((int *)y)[at] = found;
}

// The better of two elements of a row: the larger, of equal ones the first.
__device__ inline bool beats(float v, int i, float w, int j) { return v > w || (v == w && i < j); }

// The `k` largest elements of rows of `n`, the largest first, a block a row: each pass finds the best one behind the last.
template <class T> __device__ void top_k(const T *x, T *values, void *indices, int n, int k, int is_long) {
    __shared__ float best_values[32];
    __shared__ int best_at[32];
    x += (size_t)blockIdx.x * n;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, last_at = -1;
    float last = INFINITY;
    for (int pass = 0; pass < k; pass++) {
        float v = -INFINITY;
        int at = n;
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            float own = load(x + i);
            if (beats(last, last_at, own, i) && beats(own, i, v, at)) {
                v = own;
                at = i;
            }
        }
        for (int offset = 16; offset > 0; offset /= 2) {
            float w = __shfl_xor_sync(0xffffffff, v, offset);
            int j = __shfl_xor_sync(0xffffffff, at, offset);
            if (beats(w, j, v, at)) {
                v = w;
                at = j;
            }
        }
        if (lane == 0) {
            best_values[warp] = v;
            best_at[warp] = at;
        }
        __syncthreads();
        for (int i = 0; i < warps; i++)
            if (beats(best_values[i], best_at[i], v, at)) {
                v = best_values[i];
                at = best_at[i];
            }
        __syncthreads();
        last = v;
        last_at = at;
        if (threadIdx.x == 0) {
            size_t to = (size_t)blockIdx.x * k + pass;
            store(values + to, v);
            if (is_long)
                ((i64 *)indices)[to] = at;
            else
                ((int *)indices)[to] = at;
        }
    }
}

// Sums or products so far along the middle of [outer, n, inner], a thread a column.
template <class T>
__device__ void scan(const T *x, T *y, int count, int n, int inner, int exclusive, int reverse, int is_product) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    size_t first = (size_t)(at / inner) * n * inner + at % inner;
    float v = is_product ? 1 : 0;
    for (int i = 0; i < n; i++) {
        size_t place = first + (size_t)(reverse ? n - 1 - i : i) * inner;
        float own = load(x + place), before = v;
        v = is_product ? v * own : v + own;
        store(y + place, exclusive ? before : v);
    }
}

#define POOL_GRAD(N, NAME, T)                                                                                         \
    extern "C" __global__ void pool_grad_##N##_##NAME(                                                                \
        const T *x, const T *y, const T *dy, T *dx, int count, int height, int width, int channels, int out_height,   \
        int out_width, int rows, int columns, int stride_h, int stride_w, int pad_h, int pad_w, int is_max) {         \
        pool_grad<N>(x, y, dy, dx, count,                                                                             \
                     Window{height, width, channels, out_height, out_width, rows, columns, stride_h, stride_w, pad_h, \
                            pad_w},                                                                                   \
                     is_max);                                                                                         \
    }

#define OF_TYPE(NAME, T)                                                                                              \
    extern "C" __global__ void norm_parts_##NAME(const T *x, float *parts, int n, int c) {                            \
        norm_parts(x, parts, n, c);                                                                                   \
    }                                                                                                                 \
    extern "C" __global__ void norm_finish_##NAME(                                                                    \
        const T *x, const float *parts, const float *old_mean, const float *old_variance, float *mean,                \
        float *variance, float *new_mean, float *new_variance, int n, int c, int n_parts, float factor) {             \
        norm_finish(x, parts, old_mean, old_variance, mean, variance, new_mean, new_variance, n, c, n_parts, factor); \
    }                                                                                                                 \
    extern "C" __global__ void norm_grad_parts_##NAME(const T *dy, const T *x, const float *mean, float *parts,       \
                                                      int n, int c) {                                                 \
        norm_grad_parts(dy, x, mean, parts, n, c);                                                                    \
    }                                                                                                                 \
    extern "C" __global__ void norm_relu_grad_parts_##NAME(                                                           \
        const T *dy, const T *x, const float *mean, const float *scale, const float *offset, const float *variance,   \
        float *parts, int n, int c, float epsilon) {                                                                  \
        norm_relu_grad_parts(dy, x, mean, scale, offset, variance, parts, n, c, epsilon);                             \
    }                                                                                                                 \
    extern "C" __global__ void column_parts_sum_##NAME(const T *x, float *parts, int n, int inner) {                  \
        column_parts<T, false>(x, parts, n, inner);                                                                   \
    }                                                                                                                 \
    extern "C" __global__ void row_parts_sum_##NAME(const T *x, float *parts, int n) {                                \
        row_parts<T, false>(x, parts, n);                                                                             \
    }                                                                                                                 \
    extern "C" __global__ void row_parts_squares_##NAME(const T *x, float *parts, int n) {                            \
        row_parts<T, true>(x, parts, n);                                                                              \
    }                                                                                                                 \
    extern "C" __global__ void reduce_finish_##NAME(const float *parts, T *y, int count, int n, int inner,            \
                                                    float factor) {                                                   \
        reduce_finish(parts, y, count, n, inner, factor);                                                             \
    }                                                                                                                 \
    POOL_GRAD(1, NAME, T)                                                                                             \
    POOL_GRAD(4, NAME, T)                                                                                             \
    extern "C" __global__ void depthwise_input_##NAME(                                                                \
        const T *filter, const T *dy, T *dx, int count, int batch, int height, int width, int channels,               \
        int multiplier, int out_height, int out_width, int rows, int columns, int stride_h, int stride_w, int pad_h,  \
        int pad_w, int dilation_h, int dilation_w) {                                                                  \
        depthwise_input(filter, dy, dx, count,                                                                        \
                        Depthwise{batch, height, width, channels, multiplier, out_height, out_width, rows, columns,   \
                                  stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w});                         \
    }                                                                                                                 \
    extern "C" __global__ void depthwise_filter_##NAME(                                                               \
        const T *x, const T *dy, T *dw, int batch, int height, int width, int channels, int multiplier,               \
        int out_height, int out_width, int rows, int columns, int stride_h, int stride_w, int pad_h, int pad_w,       \
        int dilation_h, int dilation_w) {                                                                             \
        depthwise_filter(x, dy, dw,                                                                                   \
                         Depthwise{batch, height, width, channels, multiplier, out_height, out_width, rows, columns,  \
                                   stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w});                        \
    }                                                                                                                 \
    extern "C" __global__ void xent_##NAME(const T *x, const T *labels, T *loss, T *grad, int n) {                    \
        xent(x, labels, loss, grad, n);                                                                               \
    }                                                                                                                 \
    extern "C" __global__ void sparse_xent_##NAME##_i32(const T *x, const int *labels, T *loss, T *grad, int n) {     \
        sparse_xent(x, labels, loss, grad, n);                                                                        \
    }                                                                                                                 \
    extern "C" __global__ void sparse_xent_##NAME##_i64(const T *x, const i64 *labels, T *loss, T *grad, int n) {     \
        sparse_xent(x, labels, loss, grad, n);                                                                        \
    }                                                                                                                 \
    extern "C" __global__ void arg_##NAME(const T *x, void *y, int count, int n, int inner, int is_max,               \
                                          int is_long) {                                                              \
        arg(x, y, count, n, inner, is_max, is_long);                                                                  \
    }                                                                                                                 \
    extern "C" __global__ void scan_##NAME(const T *x, T *y, int count, int n, int inner, int exclusive, int reverse, \
                                           int is_product) {                                                          \
        scan(x, y, count, n, inner, exclusive, reverse, is_product);                                                  \
    }                                                                                                                 \
    extern "C" __global__ void top_k_##NAME(const T *x, T *values, void *indices, int n, int k, int is_long) {        \
        top_k(x, values, indices, n, k, is_long);                                                                     \
    }                                                                                                                 \
    extern "C" __global__ void segment_sum_##NAME##_i32(const T *x, const int *ids, float *y, int count, int inner,   \
                                                        int segments) {                                               \
        segment_sum(x, ids, y, count, inner, segments);                                                               \
    }                                                                                                                 \
    extern "C" __global__ void segment_sum_##NAME##_i64(const T *x, const i64 *ids, float *y, int count, int inner,   \
                                                        int segments) {                                               \
        segment_sum(x, ids, y, count, inner, segments);                                                               \
    }                                                                                                                 \
    extern "C" __global__ void random_##NAME(T *y, int count, int kind, const int *position) {                        \
        random(y, count, kind, position);                                                                             \
    }

// Adds rows to the row of `y` that each has the number of; others are dropped.
template <class T, class I>
__device__ void segment_sum(const T *x, const I *ids, float *y, int count, int inner, int segments) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    i64 row = ids[at / inner];
    if (row >= 0 && row < segments) atomicAdd(y + (size_t)row * inner + at % inner, load(x + at));
}

// Philox 4x32-10 (Salmon et al., SC 2011): the block of a counter.
__device__ inline uint4 philox(uint4 c, unsigned k0, unsigned k1) {
    for (int i = 0; i < 10; i++) {
        unsigned p_high = __umulhi(c.x, 0xD2511F53u), p = c.x * 0xD2511F53u;
        unsigned q_high = __umulhi(c.z, 0xCD9E8D57u), q = c.z * 0xCD9E8D57u;
        c = make_uint4(q_high ^ c.y ^ k0, q, p_high ^ c.w ^ k1, p);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

__device__ inline uint4 skipped(uint4 c, unsigned long long n) {
    unsigned long long low = ((unsigned long long)c.y << 32 | c.x) + n, high = (unsigned long long)c.w << 32 | c.z;
    high += low < n;
    return make_uint4((unsigned)low, (unsigned)(low >> 32), (unsigned)high, (unsigned)(high >> 32));
}

// A number in [0, 1) of the upper bits of a mantissa, as TensorFlow makes it.
__device__ inline float unit(unsigned x, const float *) { return __uint_as_float(0x3f800000u | (x & 0x7fffffu)) - 1; }
__device__ inline float unit(unsigned x, const __half *) {
    return __half2float(__ushort_as_half((unsigned short)(0x3c00u | (x & 0x3ffu)))) - 1;
}
__device__ inline float unit(unsigned x, const bf16 *) {
    return __uint_as_float((0x3f80u | (x & 0x7fu)) << 16) - 1;
}

// Two normal numbers of two random ones (Box and Muller).
__device__ inline float2 normals(unsigned a, unsigned b) {
    const float *as_float = nullptr;
    float u1 = fmaxf(unit(a, as_float), 1.0e-7f), v1 = 6.28318530717958647692f * unit(b, as_float);
    float u2 = sqrtf(-2.0f * logf(u1));
    return make_float2(sinf(v1) * u2, cosf(v1) * u2);
}

// Random numbers of four for each block: uniform (0), normal (1), or truncated (2), whose groups begin 256 blocks apart
// for each of their numbers. `position` has the two words of the key, and the four of the counter.
template <class T>
__device__ void random(T *y, int count, int kind, const int *position) {
    int group = blockIdx.x * blockDim.x + threadIdx.x;
    if (group >= (count + 3) / 4) return;
    unsigned k0 = position[0], k1 = position[1];
    uint4 counter = make_uint4(position[2], position[3], position[4], position[5]);
    float v[4];
    if (kind == 2) {
        counter = skipped(counter, (unsigned long long)group * 256);
        for (int found = 0; found < 4;) {
            uint4 r = philox(counter, k0, k1);
            counter = skipped(counter, 1);
            float2 a = normals(r.x, r.y), b = normals(r.z, r.w);
            float all[4] = {a.x, a.y, b.x, b.y};
            for (int i = 0; i < 4 && found < 4; i++)
                if (fabsf(all[i]) < 2.0f) v[found++] = all[i];
        }
    } else {
        uint4 r = philox(skipped(counter, group), k0, k1);
        if (kind == 0) {
            v[0] = unit(r.x, y);
            v[1] = unit(r.y, y);
            v[2] = unit(r.z, y);
            v[3] = unit(r.w, y);
        } else {
            float2 a = normals(r.x, r.y), b = normals(r.z, r.w);
            v[0] = a.x;
            v[1] = a.y;
            v[2] = b.x;
            v[3] = b.y;
        }
    }
    for (int i = 0; i < 4 && group * 4 + i < count; i++) store(y + group * 4 + i, v[i]);
}

OF_TYPE(f32, float)
OF_TYPE(f16, __half)
OF_TYPE(bf16, bf16)
