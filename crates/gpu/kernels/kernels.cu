// Kernels that are the same for every model. `build.py` compiles them to kernels.ptx.gz.

#include "common.cuh"

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

// A row of at most 32 N elements in the registers of a warp: lane `l` has the elements from (32 i + l) V on, for each `i`.
template <int N, int V> struct Row {
    float v[N];

    static __device__ int at(int i) { return (i / V * 32 + threadIdx.x % 32) * V + i % V; }

    template <class T> __device__ void read(const T *x, int n) {
#pragma unroll
        for (int i = 0; i < N; i += V) {
            if (at(i) >= n) continue;
            Vector<T, V> e = *(const Vector<T, V> *)(x + at(i));
#pragma unroll
            for (int k = 0; k < V; k++) v[i + k] = load(&e.v[k]);
        }
    }

    template <class T> __device__ void write(T *y, int n) const {
#pragma unroll
        for (int i = 0; i < N; i += V) {
            if (at(i) >= n) continue;
            Vector<T, V> e;
#pragma unroll
            for (int k = 0; k < V; k++) store(&e.v[k], v[i + k]);
            *(Vector<T, V> *)(y + at(i)) = e;
        }
    }
};

// Elements of a vector for rows of N elements a lane.
template <class T> __device__ constexpr int lanes(int n) { return n < 16 / (int)sizeof(T) ? n : 16 / (int)sizeof(T); }

// Whether rows of `n` elements, behind one another from `x` on, can be read by vectors of 16 bytes.
template <class T> __device__ inline bool by_vectors(const T *x, int n) {
    return (size_t)x % 16 == 0 && n * sizeof(T) % 16 == 0;
}

// Calls `F<N, V>` with the registers that each lane of a warp needs for a row of `n` elements.
#define BY_LENGTH(F, T, vectors, n, ...)                                                                              \
    if (!(vectors)) F<32, 1>(__VA_ARGS__);                                                                            \
    else if (n <= 128) F<4, lanes<T>(4)>(__VA_ARGS__);                                                                \
    else if (n <= 256) F<8, lanes<T>(8)>(__VA_ARGS__);                                                                \
    else if (n <= 512) F<16, lanes<T>(16)>(__VA_ARGS__);                                                              \
    else if (n <= 768) F<24, lanes<T>(24)>(__VA_ARGS__);                                                              \
    else F<32, lanes<T>(32)>(__VA_ARGS__);

template <int N, int V, class T> __device__ void softmax_of(const T *x, T *y, int n, int is_log) {
    Row<N, V> row;
    row.read(x, n);
    float largest = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (row.at(i) < n) largest = Max::add(largest, row.v[i]);
    largest = warp_all<Max>(largest);
#pragma unroll
    for (int i = 0; i < N; i++) {
        row.v[i] -= largest;
        float e = row.at(i) < n ? expf(row.v[i]) : 0;
        sum += e;
        if (!is_log) row.v[i] = e;
    }
    sum = warp_all<Sum>(sum);
    float factor = 1 / sum, shift = logf(sum);
#pragma unroll
    for (int i = 0; i < N; i++) row.v[i] = is_log ? row.v[i] - shift : row.v[i] * factor;
    row.write(y, n);
}

// Softmax of rows of at most 1,024 elements: a warp a row, whose elements stay in registers.
template <class T> __device__ void softmax_short(const T *x, T *y, int rows, int n, int is_log) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    x += (size_t)row * n;
    y += (size_t)row * n;
    bool vectors = by_vectors(x, n) && by_vectors(y, n);
    BY_LENGTH(softmax_of, T, vectors, n, x, y, n, is_log)
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

template <int N, int V, class T>
__device__ void layer_norm_of(const T *x, const T *scale, const T *offset, T *y, int n, float epsilon) {
    Row<N, V> row;
    row.read(x, n);
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (row.at(i) < n) sum += row.v[i];
    float mean = warp_all<Sum>(sum) / n;
#pragma unroll
    for (int i = 0; i < N; i++) {
        row.v[i] -= mean;
        if (row.at(i) < n) squares += row.v[i] * row.v[i];
    }
    float factor = rsqrtf(warp_all<Sum>(squares) / n + epsilon);
#pragma unroll
    for (int i = 0; i < N; i += V) {
        int at = row.at(i);
        if (at >= n) continue;
        Vector<T, V> by = *(const Vector<T, V> *)(scale + at), to = *(const Vector<T, V> *)(offset + at);
#pragma unroll
        for (int k = 0; k < V; k++) row.v[i + k] = row.v[i + k] * factor * load(&by.v[k]) + load(&to.v[k]);
    }
    row.write(y, n);
}

// The same for rows of at most 1,024 elements: a warp a row, whose elements stay in registers.
template <class T>
__device__ void layer_norm_short(const T *x, const T *scale, const T *offset, T *y, int rows, int n, float epsilon) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    x += (size_t)row * n;
    y += (size_t)row * n;
    bool vectors = by_vectors(x, n) && by_vectors(scale, n) && by_vectors(offset, n) && by_vectors(y, n);
    BY_LENGTH(layer_norm_of, T, vectors, n, x, scale, offset, y, n, epsilon)
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

// Reduces rows of at most 1,024 elements, a warp a row.
template <class R, class T> __device__ void reduce_short(const T *x, T *y, int rows, int n, float factor) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    x += (size_t)row * n;
    float v = R::first();
#pragma unroll 8
    for (int i = threadIdx.x % 32; i < n; i += 32) v = R::add(v, load(x + i));
    v = warp_all<R>(v);
    if (threadIdx.x % 32 == 0) store(y + row, v * factor);
}

// Pooling of [batch, height, width, channels], a thread for `N` channels of an output. `is_max` or the mean of what is
// inside.
template <int N, class T>
__device__ void pool(const T *x, T *y, int count, int height, int width, int channels, int out_height, int out_width,
                     int window_h, int window_w, int stride_h, int stride_w, int pad_h, int pad_w, int is_max) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x, per = channels / N;
    if (at >= count / N) return;
    unsigned c = at % per * N, pixel = at / per;
    int ox = pixel % out_width, oy = pixel / out_width % out_height, b = pixel / out_width / out_height;
    int y0 = oy * stride_h - pad_h, x0 = ox * stride_w - pad_w;
    int y1 = min(y0 + window_h, height), x1 = min(x0 + window_w, width);
    y0 = max(y0, 0);
    x0 = max(x0, 0);
    float v[N];
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = is_max ? -INFINITY : 0;
    for (int i = y0; i < y1; i++)
        for (int j = x0; j < x1; j++) {
            size_t from = (((size_t)b * height + i) * width + j) * channels + c;
            Vector<T, N> e = *(const Vector<T, N> *)(x + from);
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = is_max ? Max::add(v[k], load(&e.v[k])) : v[k] + load(&e.v[k]);
        }
    Vector<T, N> result;
#pragma unroll
    for (int k = 0; k < N; k++) store(&result.v[k], is_max ? v[k] : v[k] / (float)((y1 - y0) * (x1 - x0)));
    *(Vector<T, N> *)(y + (size_t)at * N) = result;
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

// The same where `rows` elements are side by side in the source and `columns` in the target, by tiles; the other dimensions
// are the grid's third.
template <class T>
__device__ void transpose(const T *x, T *y, int rows, int columns, int row_to, int column_from, int d1, int d2, int d3,
                          int a0, int a1, int a2, int a3, int b0, int b1, int b2, int b3) {
    __shared__ T tile[32][33];
    int i3 = blockIdx.z % d3, rest = blockIdx.z / d3;
    int i2 = rest % d2;
    rest /= d2;
    int i1 = rest % d1, i0 = rest / d1;
    x += (long long)i0 * a0 + (long long)i1 * a1 + (long long)i2 * a2 + (long long)i3 * a3;
    y += (long long)i0 * b0 + (long long)i1 * b1 + (long long)i2 * b2 + (long long)i3 * b3;
    int row = blockIdx.x * 32 + threadIdx.x, column = blockIdx.y * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (row < rows && column + i < columns)
            tile[threadIdx.y + i][threadIdx.x] = x[row + (long long)(column + i) * column_from];
    __syncthreads();
    row = blockIdx.x * 32 + threadIdx.y;
    column = blockIdx.y * 32 + threadIdx.x;
    for (int i = 0; i < 32; i += 8)
        if (row + i < rows && column < columns)
            y[(long long)(row + i) * row_to + column] = tile[threadIdx.x][threadIdx.y + i];
}

// Rows of [outer, rows, inner] by number, for [outer, n, inner].
template <class T, class I>
__device__ void gather(const T *x, const I *indices, T *y, int count, int rows, int n, int inner) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    int i = at % inner, k = at / inner % n, o = at / inner / n;
    y[at] = x[((size_t)o * rows + (size_t)indices[k]) * inner + i];
}

// One of `depth` elements is `on`, that of the index, the others `off`: [outer, depth, inner].
template <class T, class I>
__device__ void one_hot(const I *indices, const T *on, const T *off, T *y, int count, int depth, int inner) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    int i = at % inner, d = at / inner % depth, o = at / inner / depth;
    y[at] = indices[(size_t)o * inner + i] == d ? *on : *off;
}

// Replaces rows of `y` by number, by rows or by one element.
template <class T, class I>
__device__ void scatter(const T *x, const I *indices, T *y, int count, int rows, int inner, int is_scalar) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    long long row = indices[at / inner];
    if (row >= 0 && row < rows) y[(size_t)row * inner + at % inner] = x[is_scalar ? 0 : at];
}

// Adds rows, or one element, times a factor to rows of `y` by number.
template <class I>
__device__ void scatter_add(const float *x, const I *indices, float *y, int count, int rows, int inner, int is_scalar,
                            float factor) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    long long row = indices[at / inner];
    if (row >= 0 && row < rows) atomicAdd(y + (size_t)row * inner + at % inner, factor * x[is_scalar ? 0 : at]);
}

// Compares integers; one may be for all of the other side.
template <class I>
__device__ void compare(const I *x, const I *y, bool *z, int count, int x_step, int y_step, int op) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    I a = x[(size_t)at * x_step], b = y[(size_t)at * y_step];
    z[at] = op == 0 ? a == b : op == 1 ? a != b : op == 2 ? a < b : op == 3 ? a <= b : op == 4 ? a > b : a >= b;
}

// Functions of integers; one side may be for all of the other.
template <class I>
__device__ void arithmetic(const I *x, const I *y, I *z, int count, int x_step, int y_step, int op) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    typedef unsigned long long U;
    I a = x[(size_t)at * x_step], b = y[(size_t)at * y_step];
    z[at] = op == 0   ? a & b
            : op == 1 ? a | b
            : op == 2 ? a ^ b
            : op == 3 ? (I)((U)a + (U)b)
            : op == 4 ? (I)((U)a - (U)b)
            : op == 5 ? (I)((U)a * (U)b)
            : op == 6 ? min(a, b)
                      : max(a, b);
}

template <class A, class B> __device__ void convert(const A *x, B *y, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) y[at] = (B)x[at];
}

#define OF_INDEX(NAME, I)                                                                                             \
    extern "C" __global__ void scatter_add_##NAME(const float *x, const I *indices, float *y, int count, int rows,    \
                                                  int inner, int is_scalar, float factor) {                           \
        scatter_add(x, indices, y, count, rows, inner, is_scalar, factor);                                            \
    }                                                                                                                 \
    extern "C" __global__ void compare_##NAME(const I *x, const I *y, bool *z, int count, int x_step, int y_step,     \
                                              int op) {                                                               \
        compare(x, y, z, count, x_step, y_step, op);                                                                  \
    }                                                                                                                 \
    extern "C" __global__ void arithmetic_##NAME(const I *x, const I *y, I *z, int count, int x_step, int y_step,     \
                                                 int op) {                                                            \
        arithmetic(x, y, z, count, x_step, y_step, op);                                                               \
    }                                                                                                                 \
    extern "C" __global__ void convert_##NAME##_i32(const I *x, int *y, int count) { convert(x, y, count); }          \
    extern "C" __global__ void convert_##NAME##_i64(const I *x, long long *y, int count) { convert(x, y, count); }    \
    extern "C" __global__ void convert_##NAME##_bool(const I *x, bool *y, int count) { convert(x, y, count); }

OF_INDEX(i32, int)
OF_INDEX(i64, long long)

#define OF_TYPE(NAME, T)                                                                                              \
    extern "C" __global__ void softmax_##NAME(const T *x, T *y, int n, int is_log) { softmax(x, y, n, is_log); }      \
    extern "C" __global__ void __launch_bounds__(128, 6) softmax_short_##NAME(const T *x, T *y, int rows, int n,        \
                                                                              int is_log) {                           \
        softmax_short(x, y, rows, n, is_log);                                                                         \
    }                                                                                                                 \
    extern "C" __global__ void layer_norm_##NAME(const T *x, const T *scale, const T *offset, T *y, int n,            \
                                                 float epsilon) {                                                     \
        layer_norm(x, scale, offset, y, n, epsilon);                                                                  \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(128, 6) layer_norm_short_##NAME(                                     \
        const T *x, const T *scale, const T *offset, T *y, int rows, int n, float epsilon) {                          \
        layer_norm_short(x, scale, offset, y, rows, n, epsilon);                                                      \
    }                                                                                                                 \
    REDUCE(sum, Sum, NAME, T) REDUCE(max, Max, NAME, T) REDUCE(min, Min, NAME, T) REDUCE(prod, Prod, NAME, T)         \
    POOL(1, NAME, T) POOL(4, NAME, T) POOL(8, NAME, T)                                                                                 \
    extern "C" __global__ void depthwise_##NAME(const T *x, const T *filter, const T *bias, T *y, int count,          \
                                                int height, int width, int channels, int multiplier, int out_height,  \
                                                int out_width, int filter_h, int filter_w, int stride_h,              \
                                                int stride_w, int pad_h, int pad_w, int dilation_h, int dilation_w) { \
        depthwise(x, filter, bias, y, count, height, width, channels, multiplier, out_height, out_width, filter_h,    \
                  filter_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w);                                \
    }

#define POOL(N, NAME, T)                                                                                              \
    extern "C" __global__ void pool_##N##_##NAME(                                                                     \
        const T *x, T *y, int count, int height, int width, int channels, int out_height, int out_width,              \
        int window_h, int window_w, int stride_h, int stride_w, int pad_h, int pad_w, int is_max) {                   \
        pool<N>(x, y, count, height, width, channels, out_height, out_width, window_h, window_w, stride_h, stride_w,  \
                pad_h, pad_w, is_max);                                                                                \
    }

#define REDUCE(OP, R, NAME, T)                                                                                        \
    extern "C" __global__ void reduce_##OP##_##NAME(const T *x, T *y, int outer, int n, int inner, float factor) {    \
        reduce<R>(x, y, outer, n, inner, factor);                                                                     \
    }                                                                                                                 \
    extern "C" __global__ void reduce_short_##OP##_##NAME(const T *x, T *y, int rows, int n, float factor) {          \
        reduce_short<R>(x, y, rows, n, factor);                                                                       \
    }

REDUCE(max, Max, bool, bool) REDUCE(min, Min, bool, bool)
OF_TYPE(f32, float)
OF_TYPE(f16, __half)
OF_TYPE(bf16, bf16)

#define OF_SIZE(BYTES, T)                                                                                             \
    extern "C" __global__ void copy_nd_##BYTES(const T *x, T *y, int count, int d1, int d2, int d3, int d4, int d5,   \
                                               int a0, int a1, int a2, int a3, int a4, int a5, int b0, int b1,        \
                                               int b2, int b3, int b4, int b5) {                                      \
        copy_nd(x, y, count, d1, d2, d3, d4, d5, a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5);                     \
    }                                                                                                                 \
    extern "C" __global__ void transpose_##BYTES(                                                                     \
        const T *x, T *y, int rows, int columns, int row_to, int column_from, int d1, int d2, int d3, int a0, int a1, \
        int a2, int a3, int b0, int b1, int b2, int b3) {                                                             \
        transpose(x, y, rows, columns, row_to, column_from, d1, d2, d3, a0, a1, a2, a3, b0, b1, b2, b3);              \
    }                                                                                                                 \
    extern "C" __global__ void gather_##BYTES##_i32(const T *x, const int *indices, T *y, int count, int rows, int n, \
                                                    int inner) {                                                      \
        gather(x, indices, y, count, rows, n, inner);                                                                 \
    }                                                                                                                 \
    extern "C" __global__ void gather_##BYTES##_i64(const T *x, const long long *indices, T *y, int count, int rows,  \
                                                    int n, int inner) {                                               \
        gather(x, indices, y, count, rows, n, inner);                                                                 \
    }                                                                                                                 \
    ROWS(BYTES, T, i32, int) ROWS(BYTES, T, i64, long long)

#define ROWS(BYTES, T, NAME, I)                                                                                       \
    extern "C" __global__ void one_hot_##BYTES##_##NAME(const I *indices, const T *on, const T *off, T *y, int count, \
                                                        int depth, int inner) {                                       \
        one_hot(indices, on, off, y, count, depth, inner);                                                            \
    }                                                                                                                 \
    extern "C" __global__ void scatter_##BYTES##_##NAME(const T *x, const I *indices, T *y, int count, int rows,      \
                                                        int inner, int is_scalar) {                                   \
        scatter(x, indices, y, count, rows, inner, is_scalar);                                                        \
    }

OF_SIZE(1, unsigned char)
OF_SIZE(2, unsigned short)
OF_SIZE(4, unsigned int)
OF_SIZE(8, unsigned long long)
OF_SIZE(16, uint4)
