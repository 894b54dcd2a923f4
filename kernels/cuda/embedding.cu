// The rows that enter the first layer: out[r] = table[tokens[r]] * scale (+ position_table[positions[r] + skipped]).
//
// table [vocab, hidden] of W, position_table [positions, hidden] of f32 or null, out [rows, hidden] of f32.
// block 256, grid rows: a block has one row, its threads every 256th value.
#include "device.cuh"

template <typename W>
__device__ __forceinline__ void embed(float* out, const W* table, const unsigned* tokens, const unsigned* positions,
                                      const float* position_table, unsigned skipped, float scale, unsigned hidden) {
    const unsigned row = blockIdx.x;
    const W* token = table + size_t{tokens[row]} * hidden;
    float* to = out + size_t{row} * hidden;
    const float* position = position_table ? position_table + size_t{positions[row] + skipped} * hidden : nullptr;
    for (unsigned i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float value = to_float(token[i]) * scale;
        to[i] = position ? value + position[i] : value;
    }
}

#define EMBED(name, W)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                                      \
        name(float* out, const W* table, const unsigned* tokens, const unsigned* positions, const float* position_table,   \
             unsigned skipped, float scale, unsigned rows, unsigned hidden) {                                              \
        if (blockIdx.x < rows) embed(out, table, tokens, positions, position_table, skipped, scale, hidden);               \
    }

EMBED(embed_f32, float)
EMBED(embed_bf16, bf16)
