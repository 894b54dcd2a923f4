// Products of bf16 on tensor cores: out = (add ? out : 0) + bias + x w^T. A block's part of them; the kernels
// are in gemm.cu and experts.cu. Weights of another type (W) say in a header of their own how they are loaded: gemm_q8.cuh.
//
// x [rows, inputs], w [outputs, inputs] of bf16, bias [outputs] of f32 or null, out [rows, outputs] of f32.
// A block has a tile of rows x outputs and walks over the inputs, DEPTH at a time, with STAGES - 1 tiles of x and w under
// way. Each value is the sum of one chain of m16n8k16 products over the inputs in ascending order, 16 at a time, whatever
// the tile's shape: so all kernels of these tiles give the same bits, and a row's bits do not depend on the rows beside it.
#pragma once

#include "device.cuh"

/// A block's tile of ROWS x OUTPUTS, and its warps' tiles, of which DOWN are side by side over rows and ACROSS over
/// outputs.
template <unsigned ROWS_, unsigned OUTPUTS_, unsigned DEPTH_, unsigned STAGES_, unsigned DOWN_, unsigned ACROSS_, typename W_ = bf16>
struct GemmTile {
    using W = W_;
    static constexpr unsigned ROWS = ROWS_, OUTPUTS = OUTPUTS_, DEPTH = DEPTH_, STAGES = STAGES_;
    static constexpr unsigned DOWN = DOWN_, ACROSS = ACROSS_;
    static constexpr unsigned THREADS = DOWN * ACROSS * WARP;
    static constexpr unsigned WARP_ROWS = ROWS / DOWN, WARP_OUTPUTS = OUTPUTS / ACROSS;
    /// 16 bytes each, of a line of DEPTH values.
    static constexpr unsigned CHUNKS = DEPTH / 8;
    /// Lines of bf16: those of x, and those of w unless that is of another type.
    static constexpr unsigned STAGE_LINES = ROWS + (sizeof(W) == sizeof(bf16) ? OUTPUTS : 0);
    /// What a stage takes, in values of bf16.
    static constexpr unsigned STAGE = (ROWS * sizeof(bf16) + OUTPUTS * sizeof(W)) * DEPTH / sizeof(bf16);
    static_assert(STAGES * STAGE * sizeof(bf16) == 49152, "what launch.md says");
    static_assert(WARP_ROWS % 16 == 0 && WARP_OUTPUTS % 16 == 0 && (CHUNKS == 4 || CHUNKS == 8), "whole mma tiles");

    /// Where a chunk of a line lies in a stage, in values. Shared memory has 8 places of 16 bytes side by side; eight lines
    /// that follow each other have the same chunk in different ones, so that ldmatrix reads them at once.
    static __device__ __forceinline__ unsigned place(unsigned line, unsigned chunk) {
        return line * DEPTH + (chunk ^ (line / (8 / CHUNKS) % CHUNKS)) * 8;
    }
};

/// The factors of a product.
template <typename X> struct GemmInput {
    const X* x;
    /// Which row of x each of `rows` rows is; null where it is the same.
    const unsigned* list;
    const X* w;
    unsigned rows, outputs, inputs;

    /// Whether lines can be copied in chunks.
    __device__ __forceinline__ bool has_chunks() const { return inputs % 8 == 0 && is_aligned_16(x) && is_aligned_16(w); }
    /// What the sums of an output are multiplied with.
    __device__ __forceinline__ float scale(unsigned) const { return 1.0f; }
    /// Leaves so many outputs out.
    __device__ __forceinline__ void skip_outputs(size_t count) { w += count * inputs; }
};

/// A chunk of a stage: where it goes to, in values, and the values of it that exist.
struct GemmChunk {
    unsigned place;
    const bf16* from;
    unsigned values;
};

/// Chunk `i` of a stage of DEPTH inputs from `input` on: first the lines of x, then those of w.
template <typename Tile>
__device__ __forceinline__ GemmChunk gemm_chunk(unsigned i, const GemmInput<bf16>& in, unsigned first_row, unsigned first_output,
                                                unsigned input) {
    const unsigned line = i / Tile::CHUNKS, chunk = i % Tile::CHUNKS, column = input + chunk * 8;
    const bool is_x = Tile::STAGE_LINES == Tile::ROWS || line < Tile::ROWS;
    const unsigned row = is_x ? first_row + line : first_output + line - Tile::ROWS;
    const bool exists = row < (is_x ? in.rows : in.outputs) && column < in.inputs;
    const unsigned from_row = is_x && exists && in.list ? in.list[row] : row;
    const bf16* from = (is_x ? in.x : in.w) + (exists ? size_t{from_row} * in.inputs + column : 0);
    return {Tile::place(line, chunk), from, exists ? min(8u, in.inputs - column) : 0};
}

/// Brings DEPTH inputs of a stage's lines of bf16 from `input` on; zeros for what does not exist. `has_chunks`: lines can be copied in
/// them.
template <typename Tile>
__device__ __forceinline__ void load_gemm_stage(bf16* stage, const GemmInput<bf16>& in, bool has_chunks, unsigned first_row,
                                                unsigned first_output, unsigned input) {
    constexpr unsigned ALL_CHUNKS = Tile::STAGE_LINES * Tile::CHUNKS;
    static_assert(ALL_CHUNKS % Tile::THREADS == 0, "each thread has as many");
    if (has_chunks) {
#pragma unroll
        for (unsigned i = 0; i < ALL_CHUNKS; i += Tile::THREADS) {
            const GemmChunk chunk = gemm_chunk<Tile>(i + threadIdx.x, in, first_row, first_output, input);
            copy_async_16(stage + chunk.place, chunk.from, chunk.values == 0 ? 0 : 16);
        }
        return;
    }
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < ALL_CHUNKS; i += Tile::THREADS) {
        const GemmChunk chunk = gemm_chunk<Tile>(i, in, first_row, first_output, input);
        for (unsigned j = 0; j < 8; ++j) {
            stage[chunk.place + j] = j < chunk.values ? chunk.from[j] : from_float<bf16>(0.0f);
        }
    }
}

/// Loads 16 inputs of the warp's outputs, chunks `chunk` and `chunk + 1`.
template <typename Tile>
__device__ __forceinline__ void load_weights(uint32_t (&b)[Tile::WARP_OUTPUTS / 16][4], const bf16* stage, unsigned first_output,
                                             unsigned chunk, bf16) {
    const unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (unsigned tile = 0; tile < Tile::WARP_OUTPUTS / 16; ++tile) {
        const unsigned line = Tile::ROWS + first_output + tile * 16 + lane / 16 * 8 + lane % 8;
        ldmatrix_x4(b[tile], stage + Tile::place(line, chunk + lane / 8 % 2));
    }
}

/// Adds the product of 16 inputs, chunks `chunk` and `chunk + 1`, to the warp's sums.
template <typename Tile>
__device__ __forceinline__ void multiply_step(float (&sums)[Tile::WARP_ROWS / 16][Tile::WARP_OUTPUTS / 8][4], const bf16* stage,
                                              unsigned first_row, unsigned first_output, unsigned chunk) {
    const unsigned lane = threadIdx.x % WARP;
    uint32_t a[Tile::WARP_ROWS / 16][4], b[Tile::WARP_OUTPUTS / 16][4];
#pragma unroll
    for (unsigned tile = 0; tile < Tile::WARP_ROWS / 16; ++tile) {
        ldmatrix_x4(a[tile], stage + Tile::place(first_row + tile * 16 + lane % 16, chunk + lane / 16));
    }
    load_weights<Tile>(b, stage, first_output, chunk, typename Tile::W());
#pragma unroll
    for (unsigned down = 0; down < Tile::WARP_ROWS / 16; ++down) {
#pragma unroll
        for (unsigned across = 0; across < Tile::WARP_OUTPUTS / 8; ++across) {
            mma_m16n8k16(sums[down][across], a[down], b[across / 2] + across % 2 * 2, bf16());
        }
    }
}

/// Writes two neighbouring values of a row, the second one if it exists, with what is added to them.
__device__ __forceinline__ void write_gemm_pair(float* to, float first, float second, bool has_second, bool is_pair, bool add) {
    if (is_pair) {
        const float2 before = add ? *reinterpret_cast<const float2*>(to) : make_float2(0.0f, 0.0f);
        *reinterpret_cast<float2*>(to) = make_float2(before.x + first, before.y + second);
        return;
    }
    to[0] = (add ? to[0] : 0.0f) + first;
    if (has_second) to[1] = (add ? to[1] : 0.0f) + second;
}

/// Writes the warp's sums that exist.
template <typename Tile, typename Input>
__device__ __forceinline__ void write_gemm(float* out, const float* bias, unsigned first_row, unsigned first_output,
                                           const float (&sums)[Tile::WARP_ROWS / 16][Tile::WARP_OUTPUTS / 8][4],
                                           const Input& in, bool add) {
    const bool is_pair = in.outputs % 2 == 0 && reinterpret_cast<uintptr_t>(out) % 8 == 0;
#pragma unroll
    for (unsigned across = 0; across < Tile::WARP_OUTPUTS / 8; ++across) {
        const unsigned output = first_output + across * 8 + threadIdx.x % 4 * 2;
        if (output >= in.outputs) continue;
        const bool has_second = output + 1 < in.outputs;
        const float first_bias = bias ? bias[output] : 0.0f, second_bias = bias && has_second ? bias[output + 1] : 0.0f;
        const float first_scale = in.scale(output), second_scale = in.scale(has_second ? output + 1 : output);
#pragma unroll
        for (unsigned i = 0; i < Tile::WARP_ROWS / 8; ++i) {
            const unsigned row = first_row + i * 8 + threadIdx.x % WARP / 4;
            if (row >= in.rows) continue;
            const float* sum = sums[i / 2][across] + i % 2 * 2;
            // Said to be one rounding, so that it is in every kernel.
            const float first = fmaf(sum[0], first_scale, first_bias), second = fmaf(sum[1], second_scale, second_bias);
            write_gemm_pair(out + size_t{row} * in.outputs + output, first, second, has_second, is_pair, add);
        }
    }
}

/// The tile of a block whose first value is that of row `first_row` and output `first_output`.
template <typename Tile, typename Input>
__device__ __forceinline__ void gemm(float* out, const Input& in, const float* bias, unsigned first_row, unsigned first_output,
                                     bool add) {
    DYNAMIC_SHARED(bf16, stages);
    const unsigned inputs = in.inputs;
    const bool has_chunks = in.has_chunks();
    const unsigned warp = threadIdx.x / WARP;
    const unsigned warp_row = warp / Tile::ACROSS * Tile::WARP_ROWS, warp_output = warp % Tile::ACROSS * Tile::WARP_OUTPUTS;

    float sums[Tile::WARP_ROWS / 16][Tile::WARP_OUTPUTS / 8][4];
#pragma unroll
    for (unsigned i = 0; i < Tile::WARP_ROWS / 16 * (Tile::WARP_OUTPUTS / 8) * 4; ++i) {
        sums[i / 4 / (Tile::WARP_OUTPUTS / 8)][i / 4 % (Tile::WARP_OUTPUTS / 8)][i % 4] = 0.0f;
    }
    const auto load = [&](unsigned step) {
        const unsigned input = step * Tile::DEPTH;
        if (input < inputs) {
            bf16* stage = stages + step % Tile::STAGES * Tile::STAGE;
            load_gemm_stage<Tile>(stage, in, has_chunks, first_row, first_output, input);
        }
        // A group for every step, an empty one at the end, so that waiting counts steps.
        copy_async_commit();
    };
#pragma unroll 1
    for (unsigned step = 0; step < Tile::STAGES - 1; ++step) load(step);
#pragma unroll 1
    for (unsigned step = 0; step * Tile::DEPTH < inputs; ++step) {
        // This step's stage is there, and every warp is done with the step before, whose stage is loaded next.
        copy_async_wait<Tile::STAGES - 2>();
        __syncthreads();
        load(step + Tile::STAGES - 1);
        const bf16* stage = stages + step % Tile::STAGES * Tile::STAGE;
        const unsigned left = inputs - step * Tile::DEPTH;
        if (left >= Tile::DEPTH) {
#pragma unroll
            for (unsigned chunk = 0; chunk < Tile::CHUNKS; chunk += 2) {
                multiply_step<Tile>(sums, stage, warp_row, warp_output, chunk);
            }
        } else {
#pragma unroll 1
            for (unsigned chunk = 0; chunk * 8 < left; chunk += 2) {
                multiply_step<Tile>(sums, stage, warp_row, warp_output, chunk);
            }
        }
    }
    write_gemm<Tile>(out, bias, first_row + warp_row, first_output + warp_output, sums, in, add);
}

using GemmTile16 = GemmTile<16, 32, 64, 8, 1, 2>;
using GemmTile64 = GemmTile<64, 64, 64, 3, 2, 2>;
using GemmTile128 = GemmTile<128, 128, 32, 3, 2, 2>;
