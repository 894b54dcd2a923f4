// Wide products of bf16: see gemm.cuh beside this.
//
// wide_gemm_bf16_{128,256}    tiles of 128 rows x 128 or 256 outputs; parameters as gemm_bf16_128, with maps of x (tiles of 128 lines) and
// w (tiles of 128 or 256 lines) in place of pointers
// wide_gated_{silu,gelu}      out[r][i] = act(gate) * up of bf16, the bits of gemm_bf16 followed by gated_{silu,gelu}_bf16; tiles of 128
// rows x 128 values. w has `width` lines of gates, then as many of ups (tiles of 128 lines); bias likewise. width is even.
//
// block 384; grid x as many blocks as multiprocessors or tiles, whichever is less; dynamic shared memory SHARED_BYTES of the tile.
// inputs is a multiple of 8, outputs is even; x and w are aligned to 16, out to 8.
#include "gemm.cuh"

#include "../activation.cuh"

using Wide128 = WideTile<128, 6>;
using Wide256 = WideTile<256, 4>;

#define WIDE_GEMM(name, Tile)                                                                                              \
    extern "C" __global__ void __launch_bounds__(Tile::THREADS, 1)                                                         \
        name(float* out, const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w, const float* bias,  \
             unsigned rows, unsigned outputs, unsigned inputs, unsigned add) {                                             \
        const WideInput in = {&x, &w, rows, outputs, inputs};                                                              \
        wide_gemm<Tile>(in, Tile::OUTPUTS, outputs, 0,                                                                     \
                        [&](const float(&sums)[Tile::SUMS], unsigned first_row, unsigned first_output) {                   \
                            write_wide(out, bias, sums, first_row, first_output, in, add != 0);                            \
                        });                                                                                                \
    }

WIDE_GEMM(wide_gemm_bf16_128, Wide128)
WIDE_GEMM(wide_gemm_bf16_256, Wide256)

/// Writes the activated values of a warpgroup's sums: gates in the first half of them, ups in the other.
template <typename Activation, unsigned SUMS>
__device__ __forceinline__ void write_gated(bf16* out, const float* bias, const float (&sums)[SUMS], unsigned first_row,
                                            unsigned first_value, unsigned rows, unsigned width) {
#pragma unroll
    for (unsigned i = 0; i < SUMS / 2; i += 2) {
        const unsigned row = first_row + row_of_sum(i), value = first_value + output_of_sum(i);
        if (row >= rows || value >= width) continue;
        // width is even: a pair exists or does not.
        float both[2];
#pragma unroll
        for (unsigned j = 0; j < 2; ++j) {
            const float gate = fmaf(sums[i + j], 1.0f, bias ? bias[value + j] : 0.0f);
            const float up = fmaf(sums[SUMS / 2 + i + j], 1.0f, bias ? bias[width + value + j] : 0.0f);
            both[j] = Activation()(gate) * up;
        }
        *reinterpret_cast<uint32_t*>(out + size_t{row} * width + value) = pack2<bf16>(both[0], both[1]);
    }
}

#define WIDE_GATED(name, Activation)                                                                                       \
    extern "C" __global__ void __launch_bounds__(Wide256::THREADS, 1)                                                      \
        name(bf16* out, const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w, const float* bias,   \
             unsigned rows, unsigned width, unsigned inputs) {                                                             \
        const WideInput in = {&x, &w, rows, 2 * width, inputs};                                                            \
        wide_gemm<Wide256>(in, Wide256::OUTPUTS / 2, width, width,                                                         \
                           [&](const float(&sums)[Wide256::SUMS], unsigned first_row, unsigned first_value) {              \
                               write_gated<Activation>(out, bias, sums, first_row, first_value, rows, width);              \
                           });                                                                                             \
    }

WIDE_GATED(wide_gated_silu, Silu)
WIDE_GATED(wide_gated_gelu, Gelu)
