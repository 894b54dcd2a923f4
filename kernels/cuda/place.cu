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

// The same of a step's fresh rows, with their queries: q, k, v of f32 as products give them. k_out and v_out get K before its turn, and V, rounded;
// q_out the queries as rotate.cu has them. The bits are those of convert, rotate and place one after the other.
//
// block 256, grid ceil(rows * (heads + kv_heads) * (head_dim - pairs) / 256)
template <typename T> struct Fresh {
    T *q_out, *k_out, *v_out, *keys, *values;
    const float *q, *k, *v;
    const unsigned *blocks, *slots, *positions;
    const float* angles;
    unsigned pairs;
    float scale;
    unsigned rows, heads, kv_heads, head_dim;
};

template <typename T> __device__ __forceinline__ void place_fresh(const Fresh<T>& of) {
    const unsigned all = of.heads + of.kv_heads;
    const RotationUnit at = rotation_unit(uint64_t{of.rows} * all, of.head_dim, of.pairs);
    if (!at.exists) return;
    const unsigned row = static_cast<unsigned>(at.head / all), head = static_cast<unsigned>(at.head % all);
    const unsigned low = at.unit, high = at.unit + of.pairs, position = of.positions[row];
    if (head < of.heads) {
        const size_t from = (size_t{row} * of.heads + head) * of.head_dim;
        if (low < of.pairs) {
            const float2 pair = turned(of.q[from + low], of.q[from + high], of.angles, position, of.pairs, low);
            of.q_out[from + low] = from_float<T>(pair.x * of.scale);
            of.q_out[from + high] = from_float<T>(pair.y * of.scale);
        } else {
            of.q_out[from + high] = from_float<T>(of.q[from + high] * of.scale);
        }
        return;
    }
    const unsigned kv_head = head - of.heads, slot = of.slots[row];
    const size_t from = (size_t{row} * of.kv_heads + kv_head) * of.head_dim;
    const size_t to = pool_row(of.blocks[slot / BLOCK_TOKENS], kv_head, slot % BLOCK_TOKENS, of.kv_heads) * of.head_dim;
    const auto keep_value = [&](unsigned i) {
        const T v = from_float<T>(of.v[from + i]);
        of.v_out[from + i] = v;
        of.values[to + i] = v;
    };
    const T k_high = from_float<T>(of.k[from + high]);
    of.k_out[from + high] = k_high;
    if (low < of.pairs) {
        const T k_low = from_float<T>(of.k[from + low]);
        of.k_out[from + low] = k_low;
        const float2 pair = turned(to_float(k_low), to_float(k_high), of.angles, position, of.pairs, low);
        of.keys[to + low] = from_float<T>(pair.x);
        of.keys[to + high] = from_float<T>(pair.y);
        keep_value(low);
    } else {
        of.keys[to + high] = k_high;
    }
    keep_value(high);
}

#define PLACE_FRESH(name, T)                                                                                               \
    extern "C" __global__ void __launch_bounds__(256)                                                                      \
        name(T* q_out, T* k_out, T* v_out, T* keys, T* values, const float* q, const float* k, const float* v,             \
             const unsigned* blocks, const unsigned* slots, const unsigned* positions, const float* angles, unsigned pairs, \
             float scale, unsigned rows, unsigned heads, unsigned kv_heads, unsigned head_dim) {                           \
        place_fresh<T>({q_out, k_out, v_out, keys, values, q, k, v, blocks, slots, positions, angles, pairs, scale, rows,  \
                        heads, kv_heads, head_dim});                                                                       \
    }

PLACE_FRESH(place_fresh_f32, float)
PLACE_FRESH(place_fresh_f16, half_t)
PLACE_FRESH(place_fresh_bf16, bf16)
