// Products of bf16 with weights of 8 bits (q8.cuh) on tensor cores: out = (add ? out : 0) + bias + scale * (x q^T). A block's part
// of them; the kernels are in gemm_q8.cu and experts.cu.
//
// Weights stay bytes in shared memory, too; a warp makes bf16 of those that it multiplies next, which loses nothing. So
// x q^T has the bits that gemm.cuh gives for the same integers in bf16: one chain of m16n8k16 products, 16 inputs at a time.
// A sum is multiplied with its output's scale once, at the end, and rounded with the bias once.
#pragma once

#include "gemm.cuh"
#include "q8.cuh"

/// The factors of a product.
struct GemmInputQ8 {
    const bf16* x;
    /// As of GemmInput.
    const unsigned* list;
    /// A line for each output.
    const q8* w;
    /// One for each output.
    const float* scales;
    unsigned rows, outputs, inputs;

    /// Whether lines of x can be copied in chunks; those of w always can.
    __device__ __forceinline__ bool has_chunks() const { return inputs % 8 == 0 && is_aligned_16(x); }
    /// What the sums of an output are multiplied with.
    __device__ __forceinline__ float scale(unsigned output) const { return scales[output]; }
    /// Leaves so many outputs out.
    __device__ __forceinline__ void skip_outputs(size_t count) {
        w += count * q8_line(inputs);
        scales += count;
    }
};

/// Where a chunk of 16 weights lies behind the lines of x, in bytes: as GemmTile::place, for lines of DEPTH bytes.
template <typename Tile> __device__ __forceinline__ unsigned q8_stage_place(unsigned line, unsigned chunk) {
    constexpr unsigned CHUNKS = Tile::DEPTH / Q8_CHUNK;
    return line * Tile::DEPTH + (chunk ^ (line / (8 / CHUNKS) % CHUNKS)) * Q8_CHUNK;
}

/// Brings DEPTH inputs from `input` on to a stage. `has_chunks`: lines of x can be copied in them.
template <typename Tile>
__device__ __forceinline__ void load_gemm_stage(bf16* stage, const GemmInputQ8& in, bool has_chunks, unsigned first_row,
                                                unsigned first_output, unsigned input) {
    const GemmInput<bf16> x = {in.x, in.list, nullptr, in.rows, in.outputs, in.inputs};
    load_gemm_stage<Tile>(stage, x, has_chunks, first_row, first_output, input);
    constexpr unsigned CHUNKS = Tile::DEPTH / Q8_CHUNK;
    static_assert(Tile::OUTPUTS * CHUNKS % Tile::THREADS == 0, "each thread has as many");
    uint8_t* const lines = reinterpret_cast<uint8_t*>(stage + Tile::ROWS * Tile::DEPTH);
    const size_t line_bytes = q8_line(in.inputs);
#pragma unroll
    for (unsigned i = 0; i < Tile::OUTPUTS * CHUNKS; i += Tile::THREADS) {
        const unsigned line = (i + threadIdx.x) / CHUNKS, chunk = (i + threadIdx.x) % CHUNKS;
        const unsigned output = first_output + line, column = input + chunk * Q8_CHUNK;
        const bool exists = output < in.outputs && column < in.inputs;
        copy_async_16(lines + q8_stage_place<Tile>(line, chunk), in.w + (exists ? output * line_bytes + column : 0), exists ? 16 : 0);
    }
}

/// Loads 16 inputs of the warp's outputs, chunks `chunk` and `chunk + 1` of lines of x.
template <typename Tile>
__device__ __forceinline__ void load_weights(uint32_t (&b)[Tile::WARP_OUTPUTS / 16][4], const bf16* stage, unsigned first_output,
                                             unsigned chunk, q8) {
    const uint8_t* const lines = reinterpret_cast<const uint8_t*>(stage + Tile::ROWS * Tile::DEPTH);
    const unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (unsigned tile = 0; tile < Tile::WARP_OUTPUTS / 8; ++tile) {
        // The lanes of eight outputs read 16 bytes of each, which lie in different banks.
        const uint8_t* from = lines + q8_stage_place<Tile>(first_output + tile * 8 + lane / 4, chunk / 2) + lane % 4 * 4;
        unpack_q8(b[tile / 2] + tile % 2 * 2, *reinterpret_cast<const uint32_t*>(from));
    }
}

// The blocks' and the warps' tiles are those of bf16. A stage takes less, so there are more of them.
using GemmTileQ8_16 = GemmTile<16, 32, 64, 12, 1, 2, q8>;
using GemmTileQ8_64 = GemmTile<64, 64, 64, 4, 2, 2, q8>;
using GemmTileQ8_128 = GemmTile<128, 128, 32, 4, 2, 2, q8>;
