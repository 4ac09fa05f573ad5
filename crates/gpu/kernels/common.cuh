// What all compiled kernels share.
//
// Half-precision elements are computed in float. Sizes are in elements, and at most 2^31 - 1: callers check it.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef __nv_bfloat16 bf16;
#define INFINITY __int_as_float(0x7f800000)

__device__ inline float load(const float *p) { return *p; }
__device__ inline float load(const __half *p) { return __half2float(*p); }
__device__ inline float load(const bf16 *p) { return __bfloat162float(*p); }
__device__ inline float load(const bool *p) { return *p; }
__device__ inline void store(float *p, float v) { *p = v; }
__device__ inline void store(__half *p, float v) { *p = __float2half(v); }
__device__ inline void store(bf16 *p, float v) { *p = __float2bfloat16(v); }
__device__ inline void store(bool *p, float v) { *p = v > 0; }

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

// Combines the values of a warp; every lane gets the result.
template <class R> __device__ inline float warp_all(float v) {
    for (int offset = 16; offset > 0; offset /= 2) v = R::add(v, __shfl_xor_sync(0xffffffff, v, offset));
    return v;
}

// Combines the values of a block; every thread gets the result.
template <class R> __device__ float block_all(float v) {
    __shared__ float shared[33];
    v = warp_all<R>(v);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = warp_all<R>(lane < warps ? shared[lane] : R::first());
        if (lane == 0) shared[32] = v;
    }
    __syncthreads();
    v = shared[32];
    __syncthreads();
    return v;
}

// Elements that are loaded and stored at once.
template <class T, int N> struct alignas(N * sizeof(T)) Vector {
    T v[N];
};
