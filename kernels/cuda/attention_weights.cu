// What rows look at, for selectors that choose tokens by it: the mean over heads of softmax(q K^T), masked as attention is.
//
// q [rows, heads, head_dim] of T, rotated and scaled; keys one layer of the pool; blocks, key_positions [slots] of one
// sequence; out [rows, slots] of f32, zeros where nothing is seen.
// block 256, grid rows: a block has one row, its threads every 256th slot. Scores are computed twice, for the sum and for
// the weights.
#include "attention.cuh"

constexpr unsigned WEIGHTS_THREADS = 256;

/// The greatest score and the sum of weights over a block, from its threads' own, in every thread.
__device__ __forceinline__ Seen block_seen(Seen seen) {
    __shared__ float greatest_of[WEIGHTS_THREADS / WARP];
    const float warp_greatest = warp_max(seen.greatest);
    if (threadIdx.x % WARP == 0) greatest_of[threadIdx.x / WARP] = warp_greatest;
    __syncthreads();
    float greatest = NOTHING_SEEN;
    for (unsigned warp = 0; warp < WEIGHTS_THREADS / WARP; ++warp) greatest = fmaxf(greatest, greatest_of[warp]);
    return {greatest, block_sum<WEIGHTS_THREADS>(seen.weights * expf(seen.greatest - greatest))};
}

template <typename T>
__device__ __forceinline__ void attention_weights(float* out, const T* q, const AttentionInput<T>& in, unsigned slots) {
    __shared__ float query[MOST_HEAD_DIM];
    const unsigned row = blockIdx.x, position = in.row_positions[row];
    const float share = 1.0f / static_cast<float>(in.heads);
    for (unsigned head = 0; head < in.heads; ++head) {
        const unsigned kv_head = head / (in.heads / in.kv_heads);
        const float slope = in.slopes ? in.slopes[head] : 0.0f;
        // The head before is used up.
        __syncthreads();
        for (unsigned i = threadIdx.x; i < in.head_dim; i += WEIGHTS_THREADS) {
            query[i] = to_float(q[(size_t{row} * in.heads + head) * in.head_dim + i]);
        }
        __syncthreads();
        const auto score = [&](unsigned slot) {
            const unsigned key = in.key_positions[slot];
            if (!sees(position, key, in.window)) return -INFINITY;
            const size_t at = pool_row(in.blocks[slot / BLOCK_TOKENS], kv_head, slot % BLOCK_TOKENS, in.kv_heads);
            const T* k = in.keys + at * in.head_dim;
            float sum = 0.0f;
            for (unsigned i = 0; i < in.head_dim; ++i) sum = fmaf(query[i], to_float(k[i]), sum);
            return masked_score(sum, slope, position, key, in.window);
        };
        Seen seen = seen_nothing();
        for (unsigned slot = threadIdx.x; slot < slots; slot += WEIGHTS_THREADS) {
            const float at_slot = score(slot), greatest = fmaxf(seen.greatest, at_slot);
            seen = {greatest, fmaf(seen.weights, expf(seen.greatest - greatest), expf(at_slot - greatest))};
        }
        seen = block_seen(seen);
        for (unsigned slot = threadIdx.x; slot < slots; slot += WEIGHTS_THREADS) {
            float* to = out + size_t{row} * slots + slot;
            const float weight = seen.weights == 0.0f ? 0.0f : expf(score(slot) - seen.greatest) / seen.weights * share;
            *to = head == 0 ? weight : *to + weight;
        }
    }
}

#define ATTENTION_WEIGHTS(name, T)                                                                                         \
    extern "C" __global__ void __launch_bounds__(WEIGHTS_THREADS)                                                          \
        name(float* out, const T* q, const T* keys, const unsigned* row_positions, const unsigned* blocks,                 \
             const unsigned* key_positions, const float* slopes, unsigned window, unsigned rows, unsigned slots,           \
             unsigned heads, unsigned kv_heads, unsigned head_dim) {                                                       \
        if (blockIdx.x >= rows) return;                                                                                    \
        const AttentionInput<T> in = {q,      keys,   nullptr, row_positions, nullptr,  blocks,  key_positions,             \
                                      slopes, window, rows,    heads,         kv_heads, head_dim};                         \
        attention_weights(out, q, in, slots);                                                                              \
    }

ATTENTION_WEIGHTS(attention_weights_f32, float)
ATTENTION_WEIGHTS(attention_weights_f16, half_t)
ATTENTION_WEIGHTS(attention_weights_bf16, bf16)
