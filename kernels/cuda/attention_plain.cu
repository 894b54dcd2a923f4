// Attention as in attention.cu, of f32 keys and values, by multiply-adds.
//
// A block has 16 query lines, whose values are summed by its threads: each has every 128th value of all lines, up to two of
// them. block 128; grid x tiles, y kv_heads * ceil(rows of a tile * heads / kv_heads / 16), z 1, or the segments where
// `partial` is given.
#include "attention.cuh"

constexpr unsigned PLAIN_LINES = 16;
constexpr unsigned PLAIN_KEYS = 64;
constexpr unsigned PLAIN_THREADS = 128;
constexpr unsigned PLAIN_WARPS = PLAIN_THREADS / WARP;
/// Values of a line that a thread sums.
constexpr unsigned PLAIN_VALUES = MOST_HEAD_DIM / PLAIN_THREADS;

struct PlainState {
    float q[PLAIN_LINES][MOST_HEAD_DIM];
    /// Scores of a key tile, then weights.
    float scores[PLAIN_LINES][PLAIN_KEYS];
    unsigned key_positions[PLAIN_KEYS];
    unsigned line_positions[PLAIN_LINES];
    float slopes[PLAIN_LINES];
    /// What sums shrink by because of a greater maximum.
    float decay[PLAIN_LINES];
    /// Of the segment, and of those before it.
    Seen segment[PLAIN_LINES], seen[PLAIN_LINES];
    /// The first value of a line in q and out.
    size_t places[PLAIN_LINES];
    unsigned rows[PLAIN_LINES], heads[PLAIN_LINES];
};

__device__ __forceinline__ void start_lines(PlainState& state, const AttentionInput<float>& in, const AttentionTile& tile,
                                            unsigned kv_head, unsigned first_line, unsigned lines) {
    const unsigned group = in.heads / in.kv_heads;
    for (unsigned line = threadIdx.x; line < PLAIN_LINES; line += PLAIN_THREADS) {
        // Lines behind the last one repeat it; nothing of them is written.
        const unsigned of_tile = first_line + min(line, lines - 1);
        state.rows[line] = tile.first_row + of_tile / group;
        state.heads[line] = kv_head * group + of_tile % group;
        state.places[line] = (size_t{state.rows[line]} * in.heads + state.heads[line]) * in.head_dim;
        state.line_positions[line] = in.row_positions[state.rows[line]];
        state.slopes[line] = in.slopes ? in.slopes[state.heads[line]] : 0.0f;
        state.segment[line] = state.seen[line] = seen_nothing();
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < PLAIN_LINES * in.head_dim; i += PLAIN_THREADS) {
        state.q[i / in.head_dim][i % in.head_dim] = in.q[state.places[i / in.head_dim] + i % in.head_dim];
    }
}

/// A thread has one key, and half of the lines.
__device__ __forceinline__ void score_plain(PlainState& state, const AttentionInput<float>& in, const KeyTile<PLAIN_KEYS>& keys,
                                            const unsigned* blocks, unsigned kv_head) {
    constexpr unsigned EACH = PLAIN_LINES * PLAIN_KEYS / PLAIN_THREADS;
    const unsigned key = threadIdx.x % PLAIN_KEYS, first_line = threadIdx.x / PLAIN_KEYS * EACH, slot = keys.slot + key;
    float scores[EACH] = {};
    if (keys.is_visible(key)) {
        const size_t row = pool_row(blocks[slot / BLOCK_TOKENS], kv_head, slot % BLOCK_TOKENS, in.kv_heads);
        const float* k = in.keys + row * in.head_dim;
        for (unsigned i = 0; i < in.head_dim; ++i) {
            const float value = k[i];
#pragma unroll
            for (unsigned line = 0; line < EACH; ++line) {
                scores[line] = fmaf(state.q[first_line + line][i], value, scores[line]);
            }
        }
    }
#pragma unroll
    for (unsigned line = 0; line < EACH; ++line) {
        const unsigned at = first_line + line;
        state.scores[at][key] =
            masked_score(scores[line], state.slopes[at], state.line_positions[at], state.key_positions[key], in.window);
    }
}

/// A warp has every fourth line.
__device__ __forceinline__ void weigh_plain(PlainState& state) {
    const unsigned lane = threadIdx.x % WARP;
    for (unsigned line = threadIdx.x / WARP; line < PLAIN_LINES; line += PLAIN_WARPS) {
        float* scores = state.scores[line];
        const Seen before = state.segment[line];
        const float greatest = fmaxf(before.greatest, warp_max(fmaxf(scores[lane], scores[lane + WARP])));
        const float low = expf(scores[lane] - greatest), high = expf(scores[lane + WARP] - greatest);
        scores[lane] = low;
        scores[lane + WARP] = high;
        const float weights = warp_sum(low + high), decay = expf(before.greatest - greatest);
        // Every lane has read what was before.
        __syncwarp(ALL_LANES);
        if (lane != 0) continue;
        state.decay[line] = decay;
        state.segment[line] = {greatest, fmaf(before.weights, decay, weights)};
    }
}

__device__ __forceinline__ void gather_plain(float (&sums)[PLAIN_VALUES][PLAIN_LINES], const PlainState& state,
                                             const AttentionInput<float>& in, const KeyTile<PLAIN_KEYS>& keys,
                                             const unsigned* blocks, unsigned kv_head) {
#pragma unroll
    for (unsigned value = 0; value < PLAIN_VALUES; ++value) {
        const unsigned column = value * PLAIN_THREADS + threadIdx.x;
        if (column >= in.head_dim) continue;
        for (unsigned line = 0; line < PLAIN_LINES; ++line) sums[value][line] *= state.decay[line];
        for (unsigned key = 0; key < PLAIN_KEYS; ++key) {
            if (!keys.is_visible(key)) continue;
            const unsigned slot = keys.slot + key;
            const size_t row = pool_row(blocks[slot / BLOCK_TOKENS], kv_head, slot % BLOCK_TOKENS, in.kv_heads);
            const float v = in.values[row * in.head_dim + column];
#pragma unroll
            for (unsigned line = 0; line < PLAIN_LINES; ++line) {
                sums[value][line] = fmaf(state.scores[line][key], v, sums[value][line]);
            }
        }
    }
}

/// Adds the segment to what stands in `out`, of which a thread reads and writes its own values, and starts the next one.
__device__ __forceinline__ void add_to_out_plain(float* out, float (&sums)[PLAIN_VALUES][PLAIN_LINES], PlainState& state,
                                                 unsigned lines, unsigned head_dim) {
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < PLAIN_VALUES * PLAIN_LINES; ++i) {
        const unsigned line = i % PLAIN_LINES, column = i / PLAIN_LINES * PLAIN_THREADS + threadIdx.x;
        float& sum = sums[i / PLAIN_LINES][line];
        if (line < lines && column < head_dim && state.segment[line].weights != 0.0f) {
            Seen seen = state.seen[line];
            float* to = out + state.places[line] + column;
            const float before = seen.weights == 0.0f ? 0.0f : *to;
            *to = add_values(before, sum, add_segment(seen, state.segment[line]));
        }
        sum = 0.0f;
    }
    __syncthreads();
    if (threadIdx.x < PLAIN_LINES) {
        if (state.segment[threadIdx.x].weights != 0.0f) add_segment(state.seen[threadIdx.x], state.segment[threadIdx.x]);
        state.segment[threadIdx.x] = seen_nothing();
    }
    __syncthreads();
}

__device__ __forceinline__ void finish_plain(float* out, const PlainState& state, unsigned lines, unsigned head_dim) {
    for (unsigned line = 0; line < lines; ++line) {
        const float share = final_share(state.seen[line]);
        for (unsigned column = threadIdx.x; column < head_dim; column += PLAIN_THREADS) {
            float* to = out + state.places[line] + column;
            // Nothing was written where nothing was seen.
            *to = share == 0.0f ? 0.0f : finished(*to, share);
        }
    }
}

__device__ __forceinline__ void write_partial_plain(float* partial, const float (&sums)[PLAIN_VALUES][PLAIN_LINES],
                                                    const PlainState& state, const AttentionInput<float>& in, unsigned lines) {
#pragma unroll
    for (unsigned line = 0; line < PLAIN_LINES; ++line) {
        if (line >= lines) break;
        float* to = partial + partial_place(blockIdx.z, state.rows[line], state.heads[line], in.rows, in.heads, in.head_dim);
        if (threadIdx.x == 0) {
            to[0] = state.segment[line].greatest;
            to[1] = state.segment[line].weights;
        }
#pragma unroll
        for (unsigned value = 0; value < PLAIN_VALUES; ++value) {
            const unsigned column = value * PLAIN_THREADS + threadIdx.x;
            if (column < in.head_dim) to[2 + column] = sums[value][line];
        }
    }
}

__device__ __forceinline__ void attend_plain(float* out, float* partial, const AttentionInput<float>& in) {
    __shared__ PlainState state;
    const AttentionTile tile = in.tiles[blockIdx.x];
    const unsigned chunks = gridDim.y / in.kv_heads, kv_head = blockIdx.y / chunks;
    const unsigned all_lines = tile.rows * (in.heads / in.kv_heads), first_line = blockIdx.y % chunks * PLAIN_LINES;
    const SlotRange range = slot_range(tile, partial != nullptr);
    if (first_line >= all_lines || (partial && range.start >= tile.slots)) return;
    const unsigned lines = min(all_lines - first_line, PLAIN_LINES);
    const RowSpan span = row_span(tile, in.row_positions);
    start_lines(state, in, tile, kv_head, first_line, lines);

    float sums[PLAIN_VALUES][PLAIN_LINES] = {};
    const unsigned *blocks = in.blocks + tile.blocks_start, *positions = in.key_positions + tile.keys_start;
    const auto tile_from = [&](unsigned slot) {
        return next_key_tile<PLAIN_KEYS>(slot, range.end, positions, span, in.window);
    };
    KeyTile<PLAIN_KEYS> keys = tile_from(range.start);
    while (keys.slot < range.end) {
        if (threadIdx.x < WARP) {
            state.key_positions[threadIdx.x] = keys.positions[0];
            state.key_positions[WARP + threadIdx.x] = keys.positions[1];
        }
        // Positions are there; weights of the tile before are used up.
        __syncthreads();
        score_plain(state, in, keys, blocks, kv_head);
        __syncthreads();
        weigh_plain(state);
        __syncthreads();
        gather_plain(sums, state, in, keys, blocks, kv_head);
        const KeyTile<PLAIN_KEYS> next = tile_from(keys.slot + PLAIN_KEYS);
        if (!partial && (next.slot >= range.end || next.slot / SEGMENT != keys.slot / SEGMENT)) {
            add_to_out_plain(out, sums, state, lines, in.head_dim);
        }
        keys = next;
    }
    __syncthreads();
    if (partial) {
        write_partial_plain(partial, sums, state, in, lines);
    } else {
        finish_plain(out, state, lines, in.head_dim);
    }
}

extern "C" __global__ void __launch_bounds__(PLAIN_THREADS) attention_f32(ATTENTION_PARAMETERS(float)) {
    attend_plain(out, partial, ATTENTION_INPUT);
}
