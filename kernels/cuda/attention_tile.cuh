// What the attention kernels of tensor cores share: what decides the bits of a line. A warp has 16 query lines, whose scores and sums are
// accumulators of 16 x 8 tiles, see mma_m16n8k16; a tile has KEYS keys.
#pragma once

#include "attention.cuh"

constexpr unsigned WARP_LINES = 16;
/// Values of 16 bytes.
constexpr unsigned CHUNK = 8;
constexpr float LOG2_E = 1.4426950408889634f;

template <typename T, unsigned D> struct Shape {
    /// Keys of a tile: fewer for long heads, so that sums and scores stay in registers.
    static constexpr unsigned KEYS = D > 128 ? 32 : 64;
    /// Values of a line in shared memory: 16 bytes more than D, so that eight lines' chunks are in different banks.
    static constexpr unsigned STRIDE = D + CHUNK;
};

/// What a block works on.
template <typename T> struct Work {
    AttentionInput<T> in;
    AttentionTile tile;
    unsigned kv_head;
    /// Heads of a KV head.
    unsigned group;
    /// The block's first line, and how many it has.
    unsigned first_line, lines;
    /// Whether lines of q and of the pool can be copied in chunks.
    bool has_chunks;

    __device__ __forceinline__ unsigned row(unsigned line) const { return tile.first_row + (first_line + line) / group; }
    __device__ __forceinline__ unsigned head(unsigned line) const { return kv_head * group + (first_line + line) % group; }
    /// The first value of a line in q and in out.
    __device__ __forceinline__ size_t place(unsigned line) const {
        return (size_t{row(line)} * in.heads + head(line)) * in.head_dim;
    }
};

/// That of a block of `block_lines` query lines, of the tile of that number; blockIdx.y says the KV head, and which of its lines.
template <typename T>
__device__ __forceinline__ Work<T> work_of_block(const AttentionInput<T>& in, unsigned block_lines, unsigned tile) {
    Work<T> work;
    work.in = in;
    work.tile = in.tiles[tile];
    const unsigned chunks = gridDim.y / in.kv_heads;
    work.kv_head = blockIdx.y / chunks;
    work.group = in.heads / in.kv_heads;
    work.first_line = blockIdx.y % chunks * block_lines;
    const unsigned lines = work.tile.rows * work.group;
    work.lines = work.first_line < lines ? min(lines - work.first_line, block_lines) : 0;
    work.has_chunks = in.head_dim % CHUNK == 0 && is_aligned_16(in.q) && is_aligned_16(in.keys) && is_aligned_16(in.values);
    return work;
}

/// What masks the scores of a line. In shared memory, so that long heads' sums have the registers.
struct Line {
    unsigned position;
    float slope;
};

template <typename T> __device__ __forceinline__ void load_line(Line& to, unsigned line, const Work<T>& work) {
    to = {0, 0.0f};
    if (line >= work.lines) return;
    to.position = work.in.row_positions[work.row(line)];
    if (work.in.slopes) to.slope = work.in.slopes[work.head(line)];
}

/// Scores as the thread's lines see them; `lines` are those of its warp.
template <unsigned KEYS>
__device__ __forceinline__ void mask(float (&scores)[KEYS / 8][4], const Line* lines, const unsigned* key_positions,
                                     unsigned window) {
    const unsigned first_key = threadIdx.x % 4 * 2;
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
        const Line line = lines[half * 8 + threadIdx.x % WARP / 4];
#pragma unroll
        for (unsigned i = 0; i < KEYS / 4; ++i) {
            float& score = scores[i / 2][half * 2 + i % 2];
            const unsigned key = key_positions[i / 2 * 8 + first_key + i % 2];
            score = masked_score(score, line.slope, line.position, key, window);
        }
    }
}

/// Turns scores into weights against the new maximum, and shrinks what was summed against the old one. `seen.weights` are
/// sums of this thread's keys only.
template <unsigned KEYS, unsigned D>
__device__ __forceinline__ void weigh(float (&scores)[KEYS / 8][4], float (&sums)[D / 8][4], Seen (&seen)[2]) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
        float greatest = seen[half].greatest;
#pragma unroll
        for (unsigned i = 0; i < KEYS / 4; ++i) greatest = fmaxf(greatest, scores[i / 2][half * 2 + i % 2]);
        // The other keys of the line are in the three lanes beside this one.
        greatest = fmaxf(greatest, __shfl_xor_sync(ALL_LANES, greatest, 1));
        greatest = fmaxf(greatest, __shfl_xor_sync(ALL_LANES, greatest, 2));
        // Of a difference, so that it is exactly 1 where the maximum stays: a tile that a line sees nothing of must not change its bits.
        const float decay = approximate_exp(seen[half].greatest - greatest);
        // e^x as 2^(x log2 e), with one multiply-add a score ("FlashAttention-2", section 3.1).
        const float greatest2 = greatest * LOG2_E;
        float weights = 0.0f;
#pragma unroll
        for (unsigned i = 0; i < KEYS / 4; ++i) {
            float& score = scores[i / 2][half * 2 + i % 2];
            score = approximate_exp2(fmaf(score, LOG2_E, -greatest2));
            weights += score;
        }
        // Said to be one rounding, so that it is in every kernel.
        seen[half] = {greatest, fmaf(seen[half].weights, decay, weights)};
#pragma unroll
        for (unsigned i = 0; i < D / 4; ++i) sums[i / 2][half * 2 + i % 2] *= decay;
    }
}

/// A segment's state in a thread: two lines' maxima and weights, and their sums of values as mma accumulators.
template <unsigned D> struct Segment {
    Seen seen[2];
    float sums[D / 8][4];

    __device__ __forceinline__ void start() {
        seen[0] = seen[1] = seen_nothing();
#pragma unroll
        for (unsigned tile = 0; tile < D / 8; ++tile) {
            for (unsigned i = 0; i < 4; ++i) sums[tile][i] = 0.0f;
        }
    }
    /// Adds up the weights of the four lanes that share a line.
    __device__ __forceinline__ void close() {
        for (unsigned half = 0; half < 2; ++half) {
            seen[half].weights += __shfl_xor_sync(ALL_LANES, seen[half].weights, 1);
            seen[half].weights += __shfl_xor_sync(ALL_LANES, seen[half].weights, 2);
        }
    }
};

/// Calls `then(column, tile)` for each pair of columns of a thread that exists.
template <unsigned D, typename Then> __device__ __forceinline__ void each_pair(unsigned head_dim, Then then) {
#pragma unroll
    for (unsigned tile = 0; tile < D / 8; ++tile) {
        const unsigned column = tile * 8 + threadIdx.x % 4 * 2;
        // head_dim is even: a pair exists or does not.
        if (column < head_dim) then(column, tile);
    }
}
