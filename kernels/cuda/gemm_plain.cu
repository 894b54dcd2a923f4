// Products of f32: out = (add ? out : 0) + bias + x w^T, each value the sum of one chain of multiply-adds over the inputs
// in ascending order, whatever the tile's shape: so both kernels give the same bits.
//
// x [rows, inputs], w [outputs, inputs], bias [outputs] or null, out [rows, outputs], all f32.
// gemm_f32_16  16 x 32 values a block of 128 threads, 2 x 2 a thread
// gemm_f32_64  64 x 64 values a block of 256 threads, 4 x 4 a thread
// grid x ceil(rows / tile rows), y ceil(outputs / tile outputs); static shared memory only.
#include "device.cuh"

/// Inputs that are in shared memory together.
constexpr unsigned PLAIN_DEPTH = 16;

/// Brings PLAIN_DEPTH inputs of LINES lines, transposed; zeros for lines that do not exist.
template <unsigned LINES, unsigned THREADS>
__device__ __forceinline__ void load_plain(float (&to)[PLAIN_DEPTH][LINES + 1], const float* from, unsigned first,
                                           unsigned lines, unsigned inputs, unsigned input) {
    for (unsigned i = threadIdx.x; i < LINES * PLAIN_DEPTH; i += THREADS) {
        const unsigned line = i / PLAIN_DEPTH, column = i % PLAIN_DEPTH;
        const bool exists = first + line < lines && input + column < inputs;
        to[column][line] = exists ? from[size_t{first + line} * inputs + input + column] : 0.0f;
    }
}

template <unsigned ROWS, unsigned OUTPUTS, unsigned SIDE, unsigned THREADS>
__device__ __forceinline__ void gemm_plain(float* out, const float* x, const float* w, const float* bias, unsigned rows,
                                           unsigned outputs, unsigned inputs, bool add) {
    // One line more than needed, so that the lines of a column are in different banks as they are written.
    __shared__ float x_tile[PLAIN_DEPTH][ROWS + 1], w_tile[PLAIN_DEPTH][OUTPUTS + 1];
    constexpr unsigned DOWN = ROWS / SIDE, ACROSS = OUTPUTS / SIDE;
    static_assert(DOWN * ACROSS == THREADS, "a thread for each SIDE x SIDE values");
    const unsigned first_row = blockIdx.x * ROWS, first_output = blockIdx.y * OUTPUTS;
    const unsigned down = threadIdx.x / ACROSS, across = threadIdx.x % ACROSS;
    float sums[SIDE][SIDE] = {};
    for (unsigned input = 0; input < inputs; input += PLAIN_DEPTH) {
        load_plain<ROWS, THREADS>(x_tile, x, first_row, rows, inputs, input);
        load_plain<OUTPUTS, THREADS>(w_tile, w, first_output, outputs, inputs, input);
        __syncthreads();
        const unsigned depth = min(PLAIN_DEPTH, inputs - input);
        for (unsigned i = 0; i < depth; ++i) {
#pragma unroll
            for (unsigned r = 0; r < SIDE; ++r) {
#pragma unroll
                for (unsigned o = 0; o < SIDE; ++o) {
                    sums[r][o] = fmaf(x_tile[i][down + r * DOWN], w_tile[i][across + o * ACROSS], sums[r][o]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (unsigned i = 0; i < SIDE * SIDE; ++i) {
        const unsigned row = first_row + down + i / SIDE * DOWN, output = first_output + across + i % SIDE * ACROSS;
        if (row >= rows || output >= outputs) continue;
        const float sum = bias ? sums[i / SIDE][i % SIDE] + bias[output] : sums[i / SIDE][i % SIDE];
        float* to = out + size_t{row} * outputs + output;
        *to = add ? *to + sum : sum;
    }
}

extern "C" __global__ void __launch_bounds__(128)
    gemm_f32_16(float* out, const float* x, const float* w, const float* bias, unsigned rows, unsigned outputs, unsigned inputs,
                unsigned add) {
    gemm_plain<16, 32, 2, 128>(out, x, w, bias, rows, outputs, inputs, add != 0);
}

extern "C" __global__ void __launch_bounds__(256)
    gemm_f32_64(float* out, const float* x, const float* w, const float* bias, unsigned rows, unsigned outputs, unsigned inputs,
                unsigned add) {
    gemm_plain<64, 64, 4, 256>(out, x, w, bias, rows, outputs, inputs, add != 0);
}
