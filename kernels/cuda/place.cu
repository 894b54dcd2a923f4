// Puts K and V of some tokens into the paged pool, K rotated to its token's position: fresh ones, and stored frames, which
// are gathered to wherever their sequence has its slots ("Efficient Memory Management for Large Language Model Serving with
// PagedAttention", section 4).
//
// k, v [tokens, kv_heads, head_dim] of T, K before rotation. keys, values: one layer of the pool,
// [blocks][kv_heads][16][head_dim] of T. Token i goes to slot slots[i] of the sequence: token slots[i] % 16 of block
// blocks[slots[i] / 16]. Slots are distinct. block 256, grid ceil(tokens * kv_heads * (head_dim - pairs) / 256): a thread
// has one pair, or one element that stays, of K and of V.
#include "pool.cuh"
#include "rotate.cuh"

template <typename T>
__device__ __forceinline__ void place(T* keys, T* values, const T* k, const T* v, const unsigned* blocks, const unsigned* slots,
                                      const unsigned* positions, const float* angles, unsigned pairs, unsigned tokens,
                                      unsigned kv_heads, unsigned head_dim) {
    const RotationUnit at = rotation_unit(uint64_t{tokens} * kv_heads, head_dim, pairs);
    if (!at.exists) return;
    const uint64_t token = at.head / kv_heads;
    const unsigned kv_head = static_cast<unsigned>(at.head % kv_heads), slot = slots[token];
    const size_t from = at.head * head_dim;
    const size_t to = pool_row(blocks[slot / BLOCK_TOKENS], kv_head, slot % BLOCK_TOKENS, kv_heads) * head_dim;
    const unsigned low = at.unit, high = at.unit + pairs;
    if (low < pairs) {
        const float a = to_float(k[from + low]), b = to_float(k[from + high]);
        const float2 pair = turned(a, b, angles, positions[token], pairs, low);
        keys[to + low] = from_float<T>(pair.x);
        keys[to + high] = from_float<T>(pair.y);
        values[to + low] = v[from + low];
    } else {
        keys[to + high] = k[from + high];
    }
    values[to + high] = v[from + high];
}

#define PLACE(name, T)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                                      \
        name(T* keys, T* values, const T* k, const T* v, const unsigned* blocks, const unsigned* slots,                    \
             const unsigned* positions, const float* angles, unsigned pairs, unsigned tokens, unsigned kv_heads,           \
             unsigned head_dim) {                                                                                          \
        place(keys, values, k, v, blocks, slots, positions, angles, pairs, tokens, kv_heads, head_dim);                    \
    }

PLACE(place_f32, float)
PLACE(place_f16, half_t)
PLACE(place_bf16, bf16)
