// Products of bf16: see gemm.cuh.
//
// gemm_bf16_16   16 x 32 x 64, for at most 16 rows, where the weights' bytes are all that counts
// gemm_bf16_64   64 x 64 x 64
// gemm_bf16_128  128 x 128 x 32
// block 128 (64 for gemm_bf16_16), grid x ceil(rows / tile rows), y ceil(outputs / tile outputs), 49,152 bytes of dynamic
// shared memory.
#include "gemm.cuh"

#define GEMM(name, Tile)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(Tile::THREADS)                                                            \
        name(float* out, const bf16* x, const bf16* w, const float* bias, unsigned rows, unsigned outputs, unsigned inputs, \
             unsigned add) {                                                                                               \
        const GemmInput<bf16> in = {x, nullptr, w, rows, outputs, inputs};                                                 \
        gemm<Tile>(out, in, bias, blockIdx.x * Tile::ROWS, blockIdx.y * Tile::OUTPUTS, add != 0);                          \
    }

GEMM(gemm_bf16_16, GemmTile16)
GEMM(gemm_bf16_64, GemmTile64)
GEMM(gemm_bf16_128, GemmTile128)
