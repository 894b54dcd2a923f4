// How far stored K and V are from fresh ones: the sum of squared differences over a token's row ("CacheBlend: Fast Large
// Language Model Serving for RAG with Cached Knowledge Fusion", section 4.3).
//
// fresh_k, fresh_v [rows, kv_dim], stored_k, stored_v [tokens, kv_dim] of T, K before rotation; pairs [count][2]: a row and
// a token. compared: 1 K, 2 V, 3 both. out [count] of f32.
// block 128, grid ceil(count / 4): a warp has one pair.
#include "reduce.cuh"

template <typename T>
__device__ __forceinline__ float squared_distance(const T* a, const T* b, unsigned length) {
    float sum = 0.0f;
    for (unsigned i = threadIdx.x % WARP; i < length; i += WARP) {
        const float difference = to_float(a[i]) - to_float(b[i]);
        sum = fmaf(difference, difference, sum);
    }
    return warp_sum(sum);
}

template <typename T>
__device__ __forceinline__ void deviation(float* out, const T* fresh_k, const T* fresh_v, const T* stored_k, const T* stored_v,
                                          const unsigned* pairs, unsigned count, unsigned kv_dim, unsigned compared) {
    const unsigned pair = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (pair >= count) return;
    const size_t row = size_t{pairs[2 * size_t{pair}]} * kv_dim, token = size_t{pairs[2 * size_t{pair} + 1]} * kv_dim;
    float sum = 0.0f;
    if (compared & 1) sum += squared_distance(fresh_k + row, stored_k + token, kv_dim);
    if (compared & 2) sum += squared_distance(fresh_v + row, stored_v + token, kv_dim);
    if (threadIdx.x % WARP == 0) out[pair] = sum;
}

#define DEVIATION(name, T)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(128)                                                                      \
        name(float* out, const T* fresh_k, const T* fresh_v, const T* stored_k, const T* stored_v, const unsigned* pairs,  \
             unsigned count, unsigned kv_dim, unsigned compared) {                                                         \
        deviation(out, fresh_k, fresh_v, stored_k, stored_v, pairs, count, kv_dim, compared);                              \
    }

DEVIATION(deviation_f32, float)
DEVIATION(deviation_f16, half_t)
DEVIATION(deviation_bf16, bf16)
