// Products of f32: out = (add ? out : 0) + bias + x w^T. A block's part of them; gemm_plain.cu and experts.cu have the kernels.
//
// x [rows, inputs], w [outputs, inputs], bias [outputs] or null, out [rows, outputs], all f32. Each value is the sum of one
// chain of multiply-adds over the inputs in ascending order, whatever the tile's shape: so both tiles give the same bits.
#pragma once

#include "gemm.cuh"

/// Inputs that are in shared memory together.
constexpr unsigned PLAIN_DEPTH = 16;

/// Brings PLAIN_DEPTH inputs of LINES lines (those of `list`, where it is not null), transposed; zeros for lines that do not exist.
template <unsigned LINES, unsigned THREADS>
__device__ __forceinline__ void load_plain(float (&to)[PLAIN_DEPTH][LINES + 1], const float* from, const unsigned* list,
                                           unsigned first, unsigned lines, unsigned inputs, unsigned input) {
    for (unsigned i = threadIdx.x; i < LINES * PLAIN_DEPTH; i += THREADS) {
        const unsigned line = i / PLAIN_DEPTH, column = i % PLAIN_DEPTH;
        const bool exists = first + line < lines && input + column < inputs;
        const unsigned from_line = exists && list ? list[first + line] : first + line;
        to[column][line] = exists ? from[size_t{from_line} * inputs + input + column] : 0.0f;
    }
}

/// A block's tile of ROWS_ x OUTPUTS_ values, SIDE_ x SIDE_ a thread.
template <unsigned ROWS_, unsigned OUTPUTS_, unsigned SIDE_>
struct PlainTile {
    static constexpr unsigned ROWS = ROWS_, OUTPUTS = OUTPUTS_, SIDE = SIDE_;
    static constexpr unsigned DOWN = ROWS / SIDE, ACROSS = OUTPUTS / SIDE, THREADS = DOWN * ACROSS;
};

using PlainTile16 = PlainTile<16, 32, 2>;
using PlainTile64 = PlainTile<64, 64, 4>;

/// The tile of a block whose first value is that of row `first_row` and output `first_output`.
template <typename Tile>
__device__ __forceinline__ void gemm(float* out, const GemmInput<float>& in, const float* bias, unsigned first_row,
                                     unsigned first_output, bool add) {
    constexpr unsigned ROWS = Tile::ROWS, OUTPUTS = Tile::OUTPUTS, SIDE = Tile::SIDE, THREADS = Tile::THREADS;
    constexpr unsigned DOWN = Tile::DOWN, ACROSS = Tile::ACROSS;
    const unsigned rows = in.rows, outputs = in.outputs, inputs = in.inputs;
    // One line more than needed, so that the lines of a column are in different banks as they are written.
    __shared__ float x_tile[PLAIN_DEPTH][ROWS + 1], w_tile[PLAIN_DEPTH][OUTPUTS + 1];
    const unsigned down = threadIdx.x / ACROSS, across = threadIdx.x % ACROSS;
    float sums[SIDE][SIDE] = {};
    for (unsigned input = 0; input < inputs; input += PLAIN_DEPTH) {
        load_plain<ROWS, THREADS>(x_tile, in.x, in.list, first_row, rows, inputs, input);
        load_plain<OUTPUTS, THREADS>(w_tile, in.w, nullptr, first_output, outputs, inputs, input);
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
