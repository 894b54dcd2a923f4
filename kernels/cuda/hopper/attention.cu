// Attention as in attention.cu with a warpgroup's tensor instructions, for many rows: the same bits. "FlashAttention-3: Fast and Accurate
// Attention with Asynchrony and Low-precision", without its pairs of blocks and its 8 bits.
//
// A block has 128 query lines, 64 for each of two warpgroups; a third one copies keys and values ahead of them, STAGES tiles of 64 keys.
// A warpgroup multiplies its queries with the next tile's keys while it turns the scores of this one into weights. Everything that
// decides bits (tiles of 64 keys, segments of 512 slots, the order of sums) is attention.cu's. Sums of the segments before stay in registers.
//
// wide_attention_…          the whole context, to `out`, f32 or (is_bf16) rounded to bf16; z is 1, `partial` is not used
// wide_attention_split_…    a segment of it in each block, to `partial`; z as many as there are
//
// block 384; grid x tiles (of at most 128 / group rows), y kv_heads * ceil(rows of a tile * group / 128); parameters as the kernels of
// attention.cu, and behind them the maps of keys and values: [blocks * kv_heads * 16, head_dim], tiles of 16 lines, and u32 is_bf16. head_dim is a multiple of 8, up to D; q, keys and values are aligned to 16.
#include "../attention_tile.cuh"
#include "wgmma.cuh"

template <typename T, unsigned D> struct WideShape {
    static constexpr unsigned KEYS = Shape<T, D>::KEYS, STAGES = D > 64 ? 4 : 6, LINES = 128;
    /// Tiles of 64 values side by side.
    static constexpr unsigned PARTS = D / 64;
    static constexpr unsigned Q_BYTES = LINES * D * 2, K_BYTES = KEYS * D * 2, STAGE_BYTES = 2 * K_BYTES;
    static constexpr unsigned SHARED_BYTES = Q_BYTES + STAGES * STAGE_BYTES + 1024;
    static_assert(KEYS == 64, "a lane holds two positions");
};

/// What is known of the keys of a stage.
template <unsigned KEYS> struct StageKeys {
    /// Or NO_SLOT behind the last tile.
    unsigned slot;
    bool is_seen_by_all;
    unsigned positions[KEYS];
};
constexpr unsigned NO_SLOT = 0xffffffff;

template <typename T, unsigned D> struct WideShared {
    uint64_t full[WideShape<T, D>::STAGES], empty[WideShape<T, D>::STAGES];
    StageKeys<WideShape<T, D>::KEYS> keys[WideShape<T, D>::STAGES];
    Line lines[WideShape<T, D>::LINES];
};

/// Where a chunk of 16 bytes of a line of D values lies in a tile of `lines` lines.
template <unsigned LINES> __device__ __forceinline__ unsigned wide_place(unsigned line, unsigned chunk) {
    return chunk / 8 * LINES * 128 + swizzled(line, chunk % 8);
}

/// Copies the tiles that some line sees; a warpgroup's work. Where all keys of a tile are seen by some line, one thread has them copied,
/// block by block of the pool; else each thread copies its share of those that are seen, as the others may be unwritten memory.
template <typename T, unsigned D>
__device__ __forceinline__ void copy_keys(unsigned char* stages, WideShared<T, D>& shared, const Work<T>& work, const RowSpan& span,
                                          const SlotRange& range, const CUtensorMap* key_map, const CUtensorMap* value_map) {
    using S = WideShape<T, D>;
    constexpr unsigned KEYS = S::KEYS, CHUNKS = D / 8, KEYS_AT_ONCE = WARPGROUP / CHUNKS;
    const AttentionInput<T>& in = work.in;
    const unsigned thread = threadIdx.x % WARPGROUP, lane = threadIdx.x % WARP, chunk = thread % CHUNKS, first_key = thread / CHUNKS;
    const unsigned* positions = in.key_positions + work.tile.keys_start;
    const unsigned* blocks = in.blocks + work.tile.blocks_start;
    const unsigned end = range.end;
    const bool has_column = chunk * 8 < in.head_dim;
    unsigned stage = 0, parity = 1;
    // Positions of two keys, and the block of lane / 8, all of the tile after this one.
    unsigned next_low, next_high, next_block;
    const auto look_up = [&](unsigned slot) {
        next_low = slot + lane < end ? positions[slot + lane] : HIDDEN;
        next_high = slot + WARP + lane < end ? positions[slot + WARP + lane] : HIDDEN;
        const unsigned of_block = slot + lane / 8 * BLOCK_TOKENS;
        next_block = of_block < end ? blocks[of_block / BLOCK_TOKENS] : 0;
    };
    look_up(range.start);
    for (unsigned slot = range.start; slot < end; slot += KEYS) {
        const unsigned low = next_low, high = next_high, block_of_lane = next_block;
        look_up(slot + KEYS);
        const bool is_low = span.may_see(low, in.window), is_high = span.may_see(high, in.window);
        const uint32_t visible_low = __ballot_sync(ALL_LANES, is_low), visible_high = __ballot_sync(ALL_LANES, is_high);
        const bool is_seen_by_all = __all_sync(ALL_LANES, span.all_see(low, in.window) && span.all_see(high, in.window));
        if ((visible_low | visible_high) == 0) continue;
        barrier_wait(&shared.empty[stage], parity);
        uint64_t* const full = &shared.full[stage];
        if (thread < WARP) {
            StageKeys<KEYS>& keys = shared.keys[stage];
            keys.positions[lane] = is_low ? low : HIDDEN;
            keys.positions[WARP + lane] = is_high ? high : HIDDEN;
            if (lane == 0) {
                keys.slot = slot;
                keys.is_seen_by_all = is_seen_by_all;
            }
        }
        unsigned char* to = stages + stage * S::STAGE_BYTES;
        if ((visible_low & visible_high) == ALL_LANES) {
            const unsigned line = pool_row(block_of_lane, work.kv_head, 0, in.kv_heads);
            if (thread == 0) barrier_expect(full, S::STAGE_BYTES); else barrier_arrive(full);
            // A lane in eight has a block copied, after the bytes are expected.
            __syncwarp();
            if (thread < WARP && lane % 8 == 0) {
                const unsigned place = shared_address(to) + lane / 8 * BLOCK_TOKENS * 128;
#pragma unroll
                for (unsigned part = 0; part < S::PARTS; ++part) {
                    copy_tile(place + part * KEYS * 128, key_map, part * 64, line, full);
                    copy_tile(place + S::K_BYTES + part * KEYS * 128, value_map, part * 64, line, full);
                }
            }
        } else {
#pragma unroll 2
            for (unsigned i = 0; i < KEYS; i += KEYS_AT_ONCE) {
                const unsigned key = first_key + i;
                const unsigned block = __shfl_sync(ALL_LANES, block_of_lane, key / BLOCK_TOKENS * 8);
                const bool exists = has_column && ((key < WARP ? visible_low : visible_high) >> key % WARP & 1);
                const size_t from = exists ? pool_row(block, work.kv_head, key % BLOCK_TOKENS, in.kv_heads) * in.head_dim + chunk * 8 : 0;
                copy_async_16(to + wide_place<KEYS>(key, chunk), in.keys + from, exists ? 16 : 0);
                copy_async_16(to + S::K_BYTES + wide_place<KEYS>(key, chunk), in.values + from, exists ? 16 : 0);
            }
            barrier_arrive_with_copies(full);
        }
        if (++stage == S::STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    barrier_wait(&shared.empty[stage], parity);
    if (thread == 0) shared.keys[stage].slot = NO_SLOT;
    barrier_arrive(&shared.full[stage]);
}

/// Waits for a stage; what threads copied to it is seen by wgmma then, too.
__device__ __forceinline__ void wait_for_keys(uint64_t* full, unsigned parity) {
    barrier_wait(full, parity);
    fence_to_wgmma();
}

/// Scores of the warpgroup's lines: queries' tile at `q`, keys' at `k`. Begins; done when waited for.
template <typename T, unsigned D, unsigned KEYS>
__device__ __forceinline__ void score_wide(float (&scores)[KEYS / 8][4], unsigned q, unsigned k) {
#pragma unroll
    for (unsigned i = 0; i < KEYS / 2; ++i) scores[i / 4][i % 4] = 0.0f;
    wgmma_fence();
#pragma unroll
    for (unsigned i = 0; i < D / 16; ++i) {
        const uint64_t a = tile_descriptor(q + i / 4 * WideShape<T, D>::LINES * 128) + i % 4 * 2;
        const uint64_t b = tile_descriptor(k + i / 4 * KEYS * 128) + i % 4 * 2;
        wgmma_64(reinterpret_cast<float(&)[KEYS / 2]>(scores), a, b, T());
    }
    wgmma_commit();
}

/// sums += weights V. Begins; done when waited for.
template <typename T, unsigned D, unsigned KEYS>
__device__ __forceinline__ void gather_wide(float (&sums)[D / 8][4], const uint32_t (&weights)[KEYS / 16][4], unsigned v) {
    wgmma_fence();
#pragma unroll
    for (unsigned i = 0; i < KEYS / 16; ++i) {
        wgmma_64(reinterpret_cast<float(&)[D / 2]>(sums), weights[i], value_descriptor(v + i * 16 * 128, KEYS * 128), T());
    }
    wgmma_commit();
}

/// Adds a closed segment to the sums before it.
template <unsigned D>
__device__ __forceinline__ void add_wide(float (&before)[D / 8][4], Seen (&seen)[2], const Segment<D>& segment) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
        if (segment.seen[half].weights == 0.0f) continue;
        const Shares shares = add_segment(seen[half], segment.seen[half]);
#pragma unroll
        for (unsigned i = 0; i < D / 4; ++i) {
            float& sum = before[i / 2][half * 2 + i % 2];
            sum = add_values(sum, segment.sums[i / 2][half * 2 + i % 2], shares);
        }
    }
}

/// `is_split`: of one segment of the context, to `partial`.
template <typename T, unsigned D, bool is_split>
__device__ __forceinline__ void attend_wide(float* out, const AttentionInput<T>& in, const CUtensorMap* key_map, const CUtensorMap* value_map,
                                            bool is_bf16 = false) {
    using S = WideShape<T, D>;
    constexpr unsigned KEYS = S::KEYS;
    extern __shared__ __align__(16) unsigned char unaligned[];
    __shared__ WideShared<T, D> shared;
    unsigned char* const q_tile = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
    unsigned char* const stages = q_tile + S::Q_BYTES;
    // Later rows see more: theirs begin first.
    const Work<T> work = work_of_block<T>(in, S::LINES, gridDim.x - 1 - blockIdx.x);
    const SlotRange range = slot_range(work.tile, is_split);
    if (work.lines == 0 || (is_split && range.start >= work.tile.slots)) return;
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < S::STAGES; ++i) {
            barrier_start(&shared.full[i], WARPGROUP);
            barrier_start(&shared.empty[i], 2 * WARPGROUP / WARP);
        }
        fence_barriers();
    }
    // Everybody copies queries.
    for (unsigned i = threadIdx.x; i < S::LINES * (D / 8); i += 3 * WARPGROUP) {
        const unsigned line = i / (D / 8), chunk = i % (D / 8);
        const bool exists = line < work.lines && chunk * 8 < in.head_dim;
        copy_async_16(q_tile + wide_place<S::LINES>(line, chunk), in.q + (exists ? work.place(line) + chunk * 8 : 0), exists ? 16 : 0);
    }
    copy_async_commit();
    if (threadIdx.x < S::LINES) load_line(shared.lines[threadIdx.x], threadIdx.x, work);
    copy_async_wait<0>();
    fence_to_wgmma();
    __syncthreads();
    if (threadIdx.x / WARPGROUP == 0) {
        give_registers<40>();
        copy_keys<T, D>(stages, shared, work, row_span(work.tile, in.row_positions), range, key_map, value_map);
        return;
    }
    take_registers<232>();
    const unsigned first_line = (threadIdx.x / WARP - WARPGROUP / WARP) * WARP_LINES;
    const unsigned q = shared_address(q_tile) + first_line / 64 * 64 * 128;
    float before[D / 8][4];
    Seen seen[2] = {seen_nothing(), seen_nothing()};
    Segment<D> segment;
    segment.start();
    if (!is_split) {
#pragma unroll
        for (unsigned i = 0; i < D / 2; ++i) before[i / 4][i % 4] = 0.0f;
    }

    unsigned stage = 0, parity = 0;
    float scores[KEYS / 8][4];
    wait_for_keys(&shared.full[0], 0);
    unsigned slot = shared.keys[0].slot;
    if (slot != NO_SLOT) {
        score_wide<T, D, KEYS>(scores, q, shared_address(stages));
        wgmma_wait<0>();
    }
    while (slot != NO_SLOT) {
        const unsigned own = stage;
        if (++stage == S::STAGES) {
            stage = 0;
            parity ^= 1;
        }
        wait_for_keys(&shared.full[stage], parity);
        const unsigned next = shared.keys[stage].slot;
        float next_scores[KEYS / 8][4];
        if (next != NO_SLOT) score_wide<T, D, KEYS>(next_scores, q, shared_address(stages + stage * S::STAGE_BYTES));
        const StageKeys<KEYS>& keys = shared.keys[own];
        if (in.slopes || !keys.is_seen_by_all) mask<KEYS>(scores, shared.lines + first_line, keys.positions, in.window);
        weigh<KEYS, D>(scores, segment.sums, segment.seen);
        uint32_t weights[KEYS / 16][4];
#pragma unroll
        for (unsigned i = 0; i < KEYS / 4; ++i) {
            weights[i / 4][i % 4] = pack2<T>(scores[i / 2][i % 2 * 2], scores[i / 2][i % 2 * 2 + 1]);
        }
        gather_wide<T, D, KEYS>(segment.sums, weights, shared_address(stages + own * S::STAGE_BYTES + S::K_BYTES));
        wgmma_wait<0>();
        if (threadIdx.x % WARP == 0) barrier_arrive(&shared.empty[own]);
        if (!is_split && (next == NO_SLOT || next / SEGMENT != slot / SEGMENT)) {
            segment.close();
            add_wide<D>(before, seen, segment);
            segment.start();
        }
#pragma unroll
        for (unsigned i = 0; i < KEYS / 2; ++i) scores[i / 4][i % 4] = next_scores[i / 4][i % 4];
        slot = next;
    }
    if (is_split) segment.close();
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
        const unsigned line = first_line + half * 8 + threadIdx.x % WARP / 4;
        if (line >= work.lines) continue;
        if (is_split) {
            float* to = out + partial_place(blockIdx.z, work.row(line), work.head(line), in.rows, in.heads, in.head_dim);
            if (threadIdx.x % 4 == 0) {
                to[0] = segment.seen[half].greatest;
                to[1] = segment.seen[half].weights;
            }
            each_pair<D>(in.head_dim, [&](unsigned column, unsigned tile) {
                for (unsigned i = 0; i < 2; ++i) to[2 + column + i] = segment.sums[tile][half * 2 + i];
            });
            continue;
        }
        float* to = out + work.place(line);
        const float share = final_share(seen[half]);
        each_pair<D>(in.head_dim, [&](unsigned column, unsigned tile) {
            float2 both = make_float2(0.0f, 0.0f);
            if (share != 0.0f) both = make_float2(finished(before[tile][half * 2], share), finished(before[tile][half * 2 + 1], share));
            if (is_bf16) {
                *reinterpret_cast<uint32_t*>(reinterpret_cast<bf16*>(out) + work.place(line) + column) = pack2<bf16>(both.x, both.y);
            } else {
                *reinterpret_cast<float2*>(to + column) = both;
            }
        });
    }
}

#define WIDE_ATTENTION(T, name, D)                                                                                         \
    extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1)                                                         \
        wide_attention_##name(ATTENTION_PARAMETERS(T), const __grid_constant__ CUtensorMap key_map,                        \
                              const __grid_constant__ CUtensorMap value_map, unsigned is_bf16) {                           \
        attend_wide<T, D, false>(out, ATTENTION_INPUT, &key_map, &value_map, is_bf16 != 0);                                \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1)                                                         \
        wide_attention_split_##name(ATTENTION_PARAMETERS(T), const __grid_constant__ CUtensorMap key_map,                  \
                                    const __grid_constant__ CUtensorMap value_map, unsigned) {                             \
        attend_wide<T, D, true>(partial, ATTENTION_INPUT, &key_map, &value_map);                                           \
    }

WIDE_ATTENTION(half_t, f16_64, 64)
WIDE_ATTENTION(half_t, f16_128, 128)
WIDE_ATTENTION(bf16, bf16_64, 64)
WIDE_ATTENTION(bf16, bf16_128, 128)
