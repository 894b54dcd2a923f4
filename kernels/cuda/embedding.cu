// The rows that enter the first layer: out[r] = table[tokens[r]] * scale (+ position_table[positions[r] + skipped]).
//
// table [vocab, hidden] of W, position_table [positions, hidden] of f32 or null, out [rows, hidden] of f32. Of q8 (q8.cuh) a token's
// line is multiplied with its own scale first: scales [vocab].
// block 256, grid rows: a block has one row, its threads every 256th value.
#include "q8.cuh"

/// A table of plain values.
template <typename W> struct Table {
    const W* values;

    __device__ __forceinline__ float value(unsigned token, unsigned i, unsigned hidden) const {
        return to_float(values[size_t{token} * hidden + i]);
    }
};

/// A table of 8 bits.
struct TableQ8 {
    const q8* values;
    const float* scales;

    __device__ __forceinline__ float value(unsigned token, unsigned i, unsigned hidden) const {
        return to_float(values[token * q8_line(hidden) + q8_place(i)]) * scales[token];
    }
};

template <typename AnyTable>
__device__ __forceinline__ void embed(float* out, const AnyTable& table, const unsigned* tokens, const unsigned* positions,
                                      const float* position_table, unsigned skipped, float scale, unsigned hidden) {
    const unsigned row = blockIdx.x, token = tokens[row];
    float* to = out + size_t{row} * hidden;
    const float* position = position_table ? position_table + size_t{positions[row] + skipped} * hidden : nullptr;
    for (unsigned i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float value = table.value(token, i, hidden) * scale;
        to[i] = position ? value + position[i] : value;
    }
}

#define EMBED(name, W)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                                      \
        name(float* out, const W* table, const unsigned* tokens, const unsigned* positions, const float* position_table,   \
             unsigned skipped, float scale, unsigned rows, unsigned hidden) {                                              \
        const Table<W> of = {table};                                                                                       \
        if (blockIdx.x < rows) embed(out, of, tokens, positions, position_table, skipped, scale, hidden);                  \
    }

EMBED(embed_f32, float)
EMBED(embed_bf16, bf16)

extern "C" __global__ void __launch_bounds__(256)
    embed_q8(float* out, const q8* table, const float* scales, const unsigned* tokens, const unsigned* positions,
             const float* position_table, unsigned skipped, float scale, unsigned rows, unsigned hidden) {
    const TableQ8 of = {table, scales};
    if (blockIdx.x < rows) embed(out, of, tokens, positions, position_table, skipped, scale, hidden);
}
