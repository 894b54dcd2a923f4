// Products of bf16 with a warpgroup's tensor instructions: out = (add ? out : 0) + bias + x w^T, with the bits of gemm.cuh: one chain of
// sums for each value, 16 inputs at a time, in ascending order.
//
// A block takes tiles of 128 rows x OUTPUTS, one after the other, those of the same outputs side by side in time, so that weights are
// read from memory once and x stays in the cache. A thread has tiles copied, DEPTH inputs at a time, STAGES of them in shared memory; two
// warpgroups have 64 rows each. While they write a tile, the next one is copied already.
#pragma once

#include "wgmma.cuh"

template <unsigned OUTPUTS_, unsigned STAGES_> struct WideTile {
    static constexpr unsigned ROWS = 128, OUTPUTS = OUTPUTS_, DEPTH = 64, STAGES = STAGES_;
    static constexpr unsigned THREADS = 3 * WARPGROUP;
    /// Accumulators of a thread.
    static constexpr unsigned SUMS = OUTPUTS / 2;
    static constexpr unsigned X_BYTES = ROWS * DEPTH * 2, STAGE_BYTES = X_BYTES + OUTPUTS * DEPTH * 2;
    /// One KiB more, so that stages can begin at a multiple of it.
    static constexpr unsigned SHARED_BYTES = STAGES * STAGE_BYTES + 1024;
};

struct WideInput {
    /// Tiles of ROWS lines of x [rows, inputs], and of OUTPUTS (or half of them) of w [outputs, inputs].
    const CUtensorMap* x;
    const CUtensorMap* w;
    unsigned rows, outputs, inputs;
};

template <unsigned STAGES> struct StageBarriers {
    /// The stage is there; it is used up.
    uint64_t full[STAGES], empty[STAGES];
};

/// The place of a stage in the ring, and how often the ring was gone round.
template <unsigned STAGES> struct Turn {
    unsigned stage = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/// Has stages copied for all tiles of the block; a thread's work. `second_half` is 0, or how far behind the first half of a tile's
/// outputs the second half lies in w.
template <typename Tile>
__device__ __forceinline__ void copy_tiles(unsigned char* stages, StageBarriers<Tile::STAGES>& barriers, const WideInput& in,
                                           unsigned row_tiles, unsigned tiles, unsigned step_outputs, unsigned second_half) {
    Turn<Tile::STAGES> turn;
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const unsigned first_row = tile % row_tiles * Tile::ROWS, first_output = tile / row_tiles * step_outputs;
        for (unsigned input = 0; input < in.inputs; input += Tile::DEPTH) {
            barrier_wait(&barriers.empty[turn.stage], turn.parity ^ 1);
            uint64_t* const full = &barriers.full[turn.stage];
            const unsigned stage = shared_address(stages + turn.stage * Tile::STAGE_BYTES);
            barrier_expect(full, Tile::STAGE_BYTES);
            copy_tile(stage, in.x, input, first_row, full);
            copy_tile(stage + Tile::X_BYTES, in.w, input, first_output, full);
            if (second_half != 0) {
                copy_tile(stage + Tile::X_BYTES + Tile::OUTPUTS * Tile::DEPTH, in.w, input, second_half + first_output, full);
            }
            turn.next();
        }
    }
}

/// Sums of the warpgroup's 64 rows over all inputs.
template <typename Tile>
__device__ __forceinline__ void sum_tile(float (&sums)[Tile::SUMS], const unsigned char* stages,
                                         StageBarriers<Tile::STAGES>& barriers, Turn<Tile::STAGES>& turn, unsigned inputs,
                                         unsigned warpgroup) {
#pragma unroll
    for (unsigned i = 0; i < Tile::SUMS; ++i) sums[i] = 0.0f;
    unsigned before = Tile::STAGES;
    for (unsigned input = 0; input < inputs; input += Tile::DEPTH) {
        barrier_wait(&barriers.full[turn.stage], turn.parity);
        const unsigned stage = shared_address(stages + turn.stage * Tile::STAGE_BYTES);
        const uint64_t x = tile_descriptor(stage + warpgroup * 64 * 128), w = tile_descriptor(stage + Tile::X_BYTES);
        wgmma_fence();
        // Behind the last input are zeros, which change no sum.
#pragma unroll
        for (unsigned i = 0; i < Tile::DEPTH / 16; ++i) wgmma_64(sums, x + 2 * i, w + 2 * i, bf16());
        wgmma_commit();
        // The products of the stage before are done.
        wgmma_wait<1>();
        if (before != Tile::STAGES && threadIdx.x % WARP == 0) barrier_arrive(&barriers.empty[before]);
        before = turn.stage;
        turn.next();
    }
    wgmma_wait<0>();
    if (before != Tile::STAGES && threadIdx.x % WARP == 0) barrier_arrive(&barriers.empty[before]);
}

/// All tiles of a block; `write(sums, first_row, first_output)` is called by the threads of a warpgroup with its 64 rows. A tile takes
/// `step_outputs` of `all_outputs`.
template <typename Tile, typename Write>
__device__ __forceinline__ void wide_gemm(const WideInput& in, unsigned step_outputs, unsigned all_outputs, unsigned second_half,
                                          Write write) {
    extern __shared__ __align__(16) unsigned char unaligned[];
    __shared__ StageBarriers<Tile::STAGES> barriers;
    unsigned char* const stages = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
    const unsigned row_tiles = (in.rows + Tile::ROWS - 1) / Tile::ROWS;
    const unsigned tiles = row_tiles * ((all_outputs + step_outputs - 1) / step_outputs);
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < Tile::STAGES; ++i) {
            barrier_start(&barriers.full[i], 1);
            barrier_start(&barriers.empty[i], 2 * WARPGROUP / WARP);
        }
        fence_barriers();
    }
    __syncthreads();
    if (threadIdx.x / WARPGROUP == 0) {
        give_registers<40>();
        if (threadIdx.x == 0) copy_tiles<Tile>(stages, barriers, in, row_tiles, tiles, step_outputs, second_half);
        return;
    }
    take_registers<232>();
    const unsigned warpgroup = threadIdx.x / WARPGROUP - 1;
    Turn<Tile::STAGES> turn;
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float sums[Tile::SUMS];
        sum_tile<Tile>(sums, stages, barriers, turn, in.inputs, warpgroup);
        write(sums, tile % row_tiles * Tile::ROWS + warpgroup * 64, tile / row_tiles * step_outputs);
    }
}

/// The row and the output of a thread's sum `i` of its warpgroup's tile.
__device__ __forceinline__ unsigned row_of_sum(unsigned i) {
    return threadIdx.x % WARPGROUP / WARP * 16 + i / 2 % 2 * 8 + threadIdx.x % WARP / 4;
}
__device__ __forceinline__ unsigned output_of_sum(unsigned i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }

/// Writes a warpgroup's sums as f32, with what is added to them. `outputs` is even, and `out` aligned to 8.
template <unsigned SUMS>
__device__ __forceinline__ void write_wide(float* out, const float* bias, const float (&sums)[SUMS], unsigned first_row,
                                           unsigned first_output, const WideInput& in, bool add) {
    /// Pairs that are read before the first of them is written: a warp waits for memory once for all of them.
    constexpr unsigned PAIRS = 16;
#pragma unroll
    for (unsigned first = 0; first < SUMS; first += 2 * PAIRS) {
        float2 before[PAIRS];
#pragma unroll
        for (unsigned pair = 0; pair < PAIRS; ++pair) {
            const unsigned i = first + 2 * pair, row = first_row + row_of_sum(i), output = first_output + output_of_sum(i);
            before[pair] = make_float2(0.0f, 0.0f);
            if (add && row < in.rows && output < in.outputs) {
                before[pair] = *reinterpret_cast<const float2*>(out + size_t{row} * in.outputs + output);
            }
        }
#pragma unroll
        for (unsigned pair = 0; pair < PAIRS; ++pair) {
            const unsigned i = first + 2 * pair, row = first_row + row_of_sum(i), output = first_output + output_of_sum(i);
            if (row >= in.rows || output >= in.outputs) continue;
            const float2 both = bias ? make_float2(bias[output], bias[output + 1]) : make_float2(0.0f, 0.0f);
            // As gemm.cuh has them, a scale of one included.
            const float one = fmaf(sums[i], 1.0f, both.x), other = fmaf(sums[i + 1], 1.0f, both.y);
            *reinterpret_cast<float2*>(out + size_t{row} * in.outputs + output) = make_float2(before[pair].x + one, before[pair].y + other);
        }
    }
}
