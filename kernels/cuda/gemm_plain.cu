// Products of f32: see gemm_plain.cuh.
//
// gemm_f32_16  16 x 32 values a block of 128 threads, 2 x 2 a thread
// gemm_f32_64  64 x 64 values a block of 256 threads, 4 x 4 a thread
// grid x ceil(rows / tile rows), y ceil(outputs / tile outputs); static shared memory only.
#include "gemm_plain.cuh"

#define GEMM_PLAIN(name, Tile)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(Tile::THREADS)                                                               \
        name(float* out, const float* x, const float* w, const float* bias, unsigned rows, unsigned outputs, unsigned inputs,  \
             unsigned add) {                                                                                                   \
        const GemmInput<float> in = {x, nullptr, w, rows, outputs, inputs};                                                    \
        gemm<Tile>(out, in, bias, blockIdx.x * Tile::ROWS, blockIdx.y * Tile::OUTPUTS, add != 0);                              \
    }

GEMM_PLAIN(gemm_f32_16, PlainTile16)
GEMM_PLAIN(gemm_f32_64, PlainTile64)
