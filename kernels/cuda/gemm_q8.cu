// Products of bf16 with weights of 8 bits: see gemm_q8.cuh.
//
// gemm_q8_16, gemm_q8_64, gemm_q8_128: tiles, block, grid and dynamic shared memory are those of gemm_bf16_...
#include "gemm_q8.cuh"

// Shared memory has room for two or three blocks. Said so, the compiler takes the registers that they need; else it spilled some, for more
// blocks than there may be.
#define GEMM_Q8(name, Tile)                                                                                              \
    extern "C" __global__ void __launch_bounds__(Tile::THREADS, 3)                                                       \
        name(float* out, const bf16* x, const q8* w, const float* scales, const float* bias, unsigned rows,              \
             unsigned outputs, unsigned inputs, unsigned add) {                                                          \
        const GemmInputQ8 in = {x, nullptr, w, scales, rows, outputs, inputs};                                           \
        gemm<Tile>(out, in, bias, blockIdx.x * Tile::ROWS, blockIdx.y * Tile::OUTPUTS, add != 0);                        \
    }

GEMM_Q8(gemm_q8_16, GemmTileQ8_16)
GEMM_Q8(gemm_q8_64, GemmTileQ8_64)
GEMM_Q8(gemm_q8_128, GemmTileQ8_128)
