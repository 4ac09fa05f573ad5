// Attention, softmax(q kᵀ · scale) v, without the scores in memory (FlashAttention-2: Dao 2023, arXiv:2307.08691). `build.py`
// compiles it to attention.ptx.gz, for devices of compute capability 8.0 on: their instructions multiply 16 x 16 by 16 x 8
// elements of 16 bits, or 16 x 8 by 8 x 8 in TF32.

#include "common.cuh"

// Threads of a block, in warps of 16 queries each.
#define THREADS 128
#define QUERIES 64

// A row of an instruction's left side has eight words of 32 bits: 16 elements or 8.
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const bf16 *) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const __half *) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const float *) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline unsigned rounded(float v) {
    unsigned word;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(v));
    return word;
}
// A word as the instructions take it.
template <class T> __device__ inline unsigned operand(unsigned word, const T *) { return word; }
__device__ inline unsigned operand(unsigned word, const float *) { return rounded(__uint_as_float(word)); }

__device__ inline unsigned packed(float a, float b, const bf16 *) {
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *(unsigned *)&v;
}
__device__ inline unsigned packed(float a, float b, const __half *) {
    __half2 v = __floats2half2_rn(a, b);
    return *(unsigned *)&v;
}

// Two rows of eight 16-bit elements of each of eight rows, turned: what the instruction takes of a right side whose rows are
// stored one after the other.
__device__ inline void load_turned(unsigned &b0, unsigned &b1, const unsigned *row) {
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(b0), "=r"(b1) : "r"(at));
}

// Distances in elements from one batch, head and row to the next.
struct Strides {
    int batch, head, row;
};

// Starts to copy `count` rows from row `first` on to shared memory, with zeros behind the last row and behind `depth`.
template <class T, int WORDS>
__device__ inline void start_rows(unsigned *to, const T *from, int first, int count, int rows, int stride, int depth) {
    constexpr int CHUNKS = WORDS / 4, ELEMENTS = 16 / sizeof(T);
    for (int i = threadIdx.x; i < count * CHUNKS; i += THREADS) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        bool is_inside = first + row < rows && chunk * ELEMENTS < depth;
        const T *source = is_inside ? from + (size_t)(first + row) * stride + chunk * ELEMENTS : from;
        unsigned at = (unsigned)__cvta_generic_to_shared(to + row * (WORDS + 4) + chunk * 4);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(source), "r"(is_inside ? 16 : 0));
    }
}
__device__ inline void wait_for_rows() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Adds the product of a warp's weights and the values.
template <class T, int N, int D>
__device__ inline void add_values(float (&out)[D / 8][4], const float (&p)[N][4], const unsigned *values, int stride,
                                  const T *of) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if constexpr (sizeof(T) == 4) {
        // Elements 2 t and 2 t + 1 of a row of weights are with the lane that the instruction expects t and t + 4 of; the
        // rows of values are taken in the same order.
#pragma unroll
        for (int j = 0; j < N; j++) {
            unsigned a[4] = {rounded(p[j][0]), rounded(p[j][2]), rounded(p[j][1]), rounded(p[j][3])};
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                const unsigned *b = values + (j * 8 + 2 * t) * stride + n * 8 + g;
                multiply(out[n], a, operand(b[0], of), operand(b[stride], of), of);
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            unsigned a[4] = {packed(p[2 * j][0], p[2 * j][1], of), packed(p[2 * j][2], p[2 * j][3], of),
                             packed(p[2 * j + 1][0], p[2 * j + 1][1], of), packed(p[2 * j + 1][2], p[2 * j + 1][3], of)};
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                unsigned b0, b1;
                load_turned(b0, b1, values + (j * 16 + lane % 16) * stride + n * 4);
                multiply(out[n], a, b0, b1, of);
            }
        }
    }
}

__device__ inline void store_two(float *p, float a, float b) { *(float2 *)p = make_float2(a, b); }
template <class T> __device__ inline void store_two(T *p, float a, float b) { *(unsigned *)p = packed(a, b, p); }

__device__ inline float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffff, v, 2));
}
__device__ inline float quad_sum(float v) {
    v += __shfl_xor_sync(0xffffffff, v, 1);
    return v + __shfl_xor_sync(0xffffffff, v, 2);
}

// The bits of a thread's columns of a tile of keys where the condition of a query is true.
template <int N>
__device__ inline unsigned allowed(const bool *condition, size_t row, int first, int keys, int mask_key) {
    unsigned bits = 0;
    int own = first + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
        int key = min(own + i / 2 * 8 + i % 2, keys - 1);
        bits |= (unsigned)condition[row + (size_t)key * mask_key] << i;
    }
    return bits;
}

// A block computes 64 queries of a head. `depth`, at most D, is a multiple of what 16 bytes hold, and `keys` at least 1.
// `bias` is added to the scores; where `condition` is false they are `fill`. While a tile of keys and values is multiplied, the
// next one is copied.
template <class T, int D>
__device__ void attention(const T *q, const T *k, const T *v, const T *bias, const bool *condition, T *y, int heads,
                          int queries, int keys, int depth, Strides qs, Strides ks, Strides vs, Strides ys, int mask_batch,
                          int mask_head, int mask_row, int mask_key, float scale, float fill) {
    constexpr int WORDS = D * sizeof(T) / 4, STRIDE = WORDS + 4, KEYS = 2048 / WORDS < 64 ? 2048 / WORDS : 64, N = KEYS / 8;
    // Two tiles; the queries, which are read once, are in the place of the second one, or of both.
    constexpr int TILE = 2 * KEYS * STRIDE, QUERIES_AT = 2 * TILE - QUERIES * STRIDE;
    __shared__ alignas(16) unsigned shared[2 * TILE];
    static_assert(QUERIES_AT >= 0, "the queries are as large as two tiles at most");
    int tiles = (queries + QUERIES - 1) / QUERIES, tile = blockIdx.x % tiles, head = blockIdx.x / tiles % heads;
    int batch = blockIdx.x / tiles / heads;
    q += (size_t)batch * qs.batch + (size_t)head * qs.head;
    k += (size_t)batch * ks.batch + (size_t)head * ks.head;
    v += (size_t)batch * vs.batch + (size_t)head * vs.head;
    y += (size_t)batch * ys.batch + (size_t)head * ys.head;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, own = threadIdx.x / 32 * 16 + g;
    int rows[2] = {tile * QUERIES + own, tile * QUERIES + own + 8};
    size_t mask[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        mask[h] = (size_t)batch * mask_batch + (size_t)head * mask_head + (size_t)min(rows[h], queries - 1) * mask_row;
    auto start_tile = [&](int first) {
        unsigned *to = shared + first / KEYS % 2 * TILE;
        start_rows<T, WORDS>(to, k, first, KEYS, keys, ks.row, depth);
        start_rows<T, WORDS>(to + KEYS * STRIDE, v, first, KEYS, keys, vs.row, depth);
    };

    start_rows<T, WORDS>(shared + QUERIES_AT, q, tile * QUERIES, QUERIES, queries, qs.row, depth);
    if (QUERIES_AT >= TILE) start_tile(0);
    wait_for_rows();
    __syncthreads();
    unsigned left[WORDS / 8][4];
#pragma unroll
    for (int j = 0; j < WORDS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            left[j][i] = operand(shared[QUERIES_AT + (own + i % 2 * 8) * STRIDE + j * 8 + t + i / 2 * 4], q);
    if (QUERIES_AT < TILE) {
        __syncthreads();
        start_tile(0);
    }

    float out[D / 8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    for (int first = 0; first < keys; first += KEYS) {
        wait_for_rows();
        __syncthreads();
        if (first + KEYS < keys) start_tile(first + KEYS);
        const unsigned *shared_keys = shared + first / KEYS % 2 * TILE, *shared_values = shared_keys + KEYS * STRIDE;
        unsigned bits[2] = {~0u, ~0u};
        if (condition) {
            bits[0] = allowed<N>(condition, mask[0], first, keys, mask_key);
            bits[1] = mask_row ? allowed<N>(condition, mask[1], first, keys, mask_key) : bits[0];
        }
        float p[N][4] = {};
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < WORDS / 8; j++) {
                const unsigned *right = shared_keys + (n * 8 + g) * STRIDE + j * 8 + t;
                multiply(p[n], left[j], operand(right[0], q), operand(right[4], q), q);
            }
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int key = first + n * 8 + t * 2 + i % 2;
                float s = p[n][i] * scale;
                if (bias) s += load(bias + mask[i / 2] + (size_t)min(key, keys - 1) * mask_key);
                if (!(bits[i / 2] >> (n * 2 + i % 2) & 1)) s = fill;
                p[n][i] = key < keys ? s : -INFINITY;
            }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float m = largest[h];
#pragma unroll
            for (int n = 0; n < N; n++) m = fmaxf(m, fmaxf(p[n][2 * h], p[n][2 * h + 1]));
            m = quad_max(m);
            // So far all scores may be minus infinity.
            float base = m == -INFINITY ? 0 : m, factor = __expf(largest[h] - base), added = 0;
            largest[h] = m;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 2 * h; i < 2 * h + 2; i++) {
                    p[n][i] = __expf(p[n][i] - base);
                    added += p[n][i];
                }
            sum[h] = sum[h] * factor + added;
#pragma unroll
            for (int n = 0; n < D / 8; n++) out[n][2 * h] *= factor, out[n][2 * h + 1] *= factor;
        }
        add_values<T, N, D>(out, p, shared_values, STRIDE, q);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float factor = 1 / quad_sum(sum[h]);
        if (rows[h] >= queries) continue;
        T *to = y + (size_t)rows[h] * ys.row;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            if (n * 8 + t * 2 < depth) store_two(to + n * 8 + t * 2, out[n][2 * h] * factor, out[n][2 * h + 1] * factor);
    }
}

#define ATTENTION(D, NAME, T)                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_##D##_##NAME(                                     \
        const T *q, const T *k, const T *v, const T *bias, const bool *condition, T *y, int heads, int queries,       \
        int keys, int depth, int q0, int q1, int q2, int k0, int k1, int k2, int v0, int v1, int v2, int y0, int y1,  \
        int y2, int m0, int m1, int m2, int m3, float scale, float fill) {                                            \
        attention<T, D>(q, k, v, bias, condition, y, heads, queries, keys, depth, Strides{q0, q1, q2},                \
                        Strides{k0, k1, k2}, Strides{v0, v1, v2}, Strides{y0, y1, y2}, m0, m1, m2, m3, scale, fill);  \
    }

#define OF_TYPE(NAME, T) ATTENTION(32, NAME, T) ATTENTION(64, NAME, T) ATTENTION(128, NAME, T)

OF_TYPE(f32, float)
OF_TYPE(f16, __half)
OF_TYPE(bf16, bf16)
