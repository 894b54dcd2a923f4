// What all attention kernels share: which key a query sees, and how parts of the context are put together.
//
// The context of a sequence is cut into segments of SEGMENT slots from slot 0 on. Each segment has a softmax of its own
// ("Online normalizer calculation for softmax", algorithm 3): the greatest score m, the sum l of e^(score - m), and the
// values weighted with e^(score - m). Segments are added up in their order (the same paper, section 3.1), by the functions
// below, whether one block walks over all of them or each has its own block ("Flash-Decoding for long-context inference"):
// so both ways give the same bits.
#pragma once

#include "pool.cuh"
#include "reduce.cuh"

/// Rows of one sequence, one sequence's blocks (from `blocks_start` in the list of blocks) and its `slots` keys (from
/// `keys_start` in the list of key positions).
struct AttentionTile {
    unsigned first_row, rows, blocks_start, keys_start, slots;
};

template <typename T> struct AttentionInput {
    /// [rows, heads, head_dim], rotated and scaled.
    const T* q;
    /// One layer of the pool.
    const T* keys;
    const T* values;
    /// By row of the batch.
    const unsigned* row_positions;
    const AttentionTile* tiles;
    const unsigned* blocks;
    const unsigned* key_positions;
    /// By head, or null: what a score shrinks by for each position that the key is before the query (ALiBi).
    const float* slopes;
    /// 0: every key up to the query's position is seen.
    unsigned window;
    /// Of the batch.
    unsigned rows;
    unsigned heads, kv_heads, head_dim;
};

constexpr unsigned SEGMENT = 512;
/// The position of a slot that no query sees.
constexpr unsigned HIDDEN = 0xffffffff;
/// Where a running maximum starts: so low that any score's weight against it is zero, yet finite, so that differences are
/// numbers.
constexpr float NOTHING_SEEN = -1e30f;
/// The most values of a head.
constexpr unsigned MOST_HEAD_DIM = 256;

__device__ __forceinline__ bool sees(unsigned row, unsigned key, unsigned window) {
    return key != HIDDEN && key <= row && (window == 0 || row - key < window);
}

/// The score of a key as a row sees it.
__device__ __forceinline__ float masked_score(float score, float slope, unsigned row, unsigned key, unsigned window) {
    return sees(row, key, window) ? fmaf(-slope, static_cast<float>(row - key), score) : -INFINITY;
}

/// The least and the greatest position of the rows of a tile. Every warp finds it by itself.
struct RowSpan {
    unsigned least, greatest;

    /// Whether some position in the span may see the key.
    __device__ __forceinline__ bool may_see(unsigned key, unsigned window) const {
        return key != HIDDEN && key <= greatest && (window == 0 || key >= least || least - key < window);
    }
    /// Whether every position in the span sees the key.
    __device__ __forceinline__ bool all_see(unsigned key, unsigned window) const {
        return sees(least, key, 0) && sees(greatest, key, window);
    }
};

__device__ __forceinline__ RowSpan row_span(const AttentionTile& tile, const unsigned* row_positions) {
    RowSpan span = {0xffffffff, 0};
    for (unsigned row = threadIdx.x % WARP; row < tile.rows; row += WARP) {
        const unsigned position = row_positions[tile.first_row + row];
        span.least = min(span.least, position);
        span.greatest = max(span.greatest, position);
    }
    for (unsigned distance = WARP / 2; distance > 0; distance /= 2) {
        span.least = min(span.least, __shfl_xor_sync(ALL_LANES, span.least, distance));
        span.greatest = max(span.greatest, __shfl_xor_sync(ALL_LANES, span.greatest, distance));
    }
    return span;
}

/// KEYS slots from `slot` on. Only keys that some row of the tile may see are read: the others may be unwritten memory.
template <unsigned KEYS> struct KeyTile {
    unsigned slot;
    /// Positions of the keys lane, lane + 32.
    unsigned positions[KEYS / WARP];
    /// By key: whether it is read. The same in every lane.
    uint32_t visible[KEYS / WARP];
    /// Whether every row of the tile sees every key.
    bool is_seen_by_all;

    __device__ __forceinline__ bool is_visible(unsigned key) const {
        // Not by an index that is only known at run time, so that the words stay in registers.
        const uint32_t word = KEYS == 2 * WARP && key >= WARP ? visible[KEYS / WARP - 1] : visible[0];
        return word >> (key % WARP) & 1;
    }
};

/// The first tile from `slot` on, and before `end`, of which something is seen; its slot is `end` or more if there is none.
template <unsigned KEYS>
__device__ __forceinline__ KeyTile<KEYS> next_key_tile(unsigned slot, unsigned end, const unsigned* key_positions,
                                                       const RowSpan& span, unsigned window) {
    static_assert(KEYS == WARP || KEYS == 2 * WARP, "a lane holds one position or two");
    KeyTile<KEYS> tile;
    for (tile.slot = slot; tile.slot < end; tile.slot += KEYS) {
        uint32_t any = 0;
        bool is_seen = true;
#pragma unroll
        for (unsigned part = 0; part < KEYS / WARP; ++part) {
            const unsigned key = tile.slot + part * WARP + threadIdx.x % WARP;
            const unsigned position = key < end ? key_positions[key] : HIDDEN;
            const bool is_visible = span.may_see(position, window);
            tile.positions[part] = is_visible ? position : HIDDEN;
            tile.visible[part] = __ballot_sync(ALL_LANES, is_visible);
            any |= tile.visible[part];
            is_seen = is_seen && span.all_see(position, window);
        }
        tile.is_seen_by_all = __ballot_sync(ALL_LANES, is_seen) == ALL_LANES;
        if (any != 0) break;
    }
    return tile;
}

/// The slots that a block walks over: all of the tile's, or those of segment blockIdx.z.
struct SlotRange {
    unsigned start, end;
};

__device__ __forceinline__ SlotRange slot_range(const AttentionTile& tile, bool is_split) {
    if (!is_split) return {0, tile.slots};
    const unsigned start = blockIdx.z * SEGMENT;
    return {start, min(start + SEGMENT, tile.slots)};
}

/// What a query has seen: the greatest score and the sum of weights against it.
struct Seen {
    float greatest, weights;
};

__device__ __forceinline__ Seen seen_nothing() { return {NOTHING_SEEN, 0.0f}; }

/// What is multiplied with the sums so far, and with a segment's, to add the segment to them.
struct Shares {
    float before, segment;
};

/// Adds a segment to what was seen before it.
__device__ __forceinline__ Shares add_segment(Seen& seen, const Seen& segment) {
    const float greatest = fmaxf(seen.greatest, segment.greatest);
    const Shares shares = {expf(seen.greatest - greatest), expf(segment.greatest - greatest)};
    seen.weights = fmaf(seen.weights, shares.before, segment.weights * shares.segment);
    seen.greatest = greatest;
    return shares;
}

__device__ __forceinline__ float add_values(float before, float segment, const Shares& shares) {
    return fmaf(before, shares.before, segment * shares.segment);
}

/// What the sums of values are multiplied with once every segment is added; 0 if nothing was seen.
__device__ __forceinline__ float final_share(const Seen& seen) { return seen.weights == 0.0f ? 0.0f : 1.0f / seen.weights; }

/// The output. Adding zero turns -0, which depends on skipped tiles, into 0.
__device__ __forceinline__ float finished(float sum, float share) { return fmaf(sum, share, 0.0f); }

/// The place of a query's part of a segment in `partial` [segments][rows][heads][head_dim + 2]: greatest score, sum of
/// weights, values.
__device__ __forceinline__ size_t partial_place(unsigned segment, unsigned row, unsigned head, unsigned rows, unsigned heads,
                                                unsigned head_dim) {
    return ((size_t{segment} * rows + row) * heads + head) * (size_t{head_dim} + 2);
}

/// The parameters of an attention kernel over T, and what they are bundled to.
#define ATTENTION_PARAMETERS(T)                                                                                            \
    float *out, float *partial, const T *q, const T *keys, const T *values, const unsigned *row_positions,                 \
        const AttentionTile *tiles, const unsigned *blocks, const unsigned *key_positions, const float *slopes,            \
        unsigned window, unsigned rows, unsigned heads, unsigned kv_heads, unsigned head_dim
#define ATTENTION_INPUT                                                                                                    \
    { q, keys, values, row_positions, tiles, blocks, key_positions, slopes, window, rows, heads, kv_heads, head_dim }
