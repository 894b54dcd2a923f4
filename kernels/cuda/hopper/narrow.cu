// Products of bf16 for few rows, where the weights' bytes are all that counts: out = (add ? out : 0) + bias + x w^T with the bits of
// gemm.cuh. A block takes tiles of all rows and OUTPUTS outputs, one
// after the other. One of its warps has tiles of x and w copied, STAGES of them, without any work
// for their addresses; the others multiply.
//
// narrow_gemm_bf16_{16,32,64}_32    up to 16, 32 or 64 rows, 32 outputs a block
// narrow_gemms_bf16_16_32           up to 16 rows, by up to three matrices at once
// narrow_gated_{silu,gelu}_{16,64}  as wide_gated_{silu,gelu}: 16 values a block
//
// parameters as the wide ones; x's map has tiles of ROWS lines, w's of OUTPUTS, or half of them where they are gates and ups. block THREADS;
// grid x tiles, or as many blocks as multiprocessors have at once; dynamic shared memory SHARED_BYTES. inputs is a multiple of 8; x and w are aligned to 16, out to 8; outputs is even.
#include "../activation.cuh"
#include "gemm.cuh"

template <unsigned ROWS_, unsigned OUTPUTS_, unsigned STAGES_, unsigned DOWN_, unsigned ACROSS_> struct NarrowTile {
    static constexpr unsigned ROWS = ROWS_, OUTPUTS = OUTPUTS_, STAGES = STAGES_, DOWN = DOWN_, ACROSS = ACROSS_;
    static constexpr unsigned WARPS = DOWN * ACROSS, THREADS = (WARPS + 1) * WARP;
    static constexpr unsigned WARP_ROWS = ROWS / DOWN, WARP_OUTPUTS = OUTPUTS / ACROSS;
    /// Inputs of a stage, in two tiles of 64.
    static constexpr unsigned DEPTH = 128;
    static constexpr unsigned X_BYTES = ROWS * 128, W_BYTES = OUTPUTS * 128, HALF_BYTES = X_BYTES + W_BYTES, STAGE_BYTES = 2 * HALF_BYTES;
    static constexpr unsigned SHARED_BYTES = STAGES * STAGE_BYTES + 1024;
    static_assert(WARP_ROWS % 16 == 0 && WARP_OUTPUTS == 16, "whole mma tiles");
};

template <typename Tile> __device__ __forceinline__ void start_barriers(StageBarriers<Tile::STAGES>& barriers) {
    for (unsigned i = 0; i < Tile::STAGES; ++i) {
        barrier_start(&barriers.full[i], 1);
        barrier_start(&barriers.empty[i], Tile::WARPS);
    }
    fence_barriers();
}

/// Has stages copied for a tile whose first output is `first_output`; a thread's work. Of outputs in two halves, `second_half` says how far
/// the second one lies behind the first in w; else it is 0.
template <typename Tile>
__device__ __forceinline__ void copy_narrow(unsigned char* stages, StageBarriers<Tile::STAGES>& barriers, Turn<Tile::STAGES>& turn,
                                            const WideInput& in, unsigned first_output, unsigned second_half) {
    for (unsigned input = 0; input < in.inputs; input += Tile::DEPTH) {
        barrier_wait(&barriers.empty[turn.stage], turn.parity ^ 1);
        uint64_t* const full = &barriers.full[turn.stage];
        const unsigned stage = shared_address(stages + turn.stage * Tile::STAGE_BYTES);
        barrier_expect(full, Tile::STAGE_BYTES);
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            const unsigned to = stage + half * Tile::HALF_BYTES, value = input + half * 64;
            copy_tile(to + Tile::X_BYTES, in.w, value, first_output, full);
            if (second_half != 0) {
                copy_tile(to + Tile::X_BYTES + Tile::W_BYTES / 2, in.w, value, second_half + first_output, full);
            }
            copy_tile(to, in.x, value, 0, full);
        }
        turn.next();
    }
}

/// Several matrices that the same rows are multiplied by, such as those of Q, K and V: their outputs lie side by side in one launch, and each
/// product in memory of its own.
struct Matrices {
    static constexpr unsigned MOST = 3;
    float* out[MOST];
    const float* bias[MOST];
    unsigned outputs[MOST];

    /// The matrix of a tile, which becomes that matrix's own tile.
    template <unsigned OUTPUTS> __device__ __forceinline__ unsigned find(unsigned& tile) const {
        unsigned which = 0;
#pragma unroll
        for (unsigned i = 0; i + 1 < MOST; ++i) {
            const unsigned tiles = (outputs[i] + OUTPUTS - 1) / OUTPUTS;
            if (which == i && tile >= tiles) {
                tile -= tiles;
                ++which;
            }
        }
        return which;
    }
    template <unsigned OUTPUTS> __device__ __forceinline__ unsigned tiles() const {
        unsigned all = 0;
#pragma unroll
        for (unsigned i = 0; i < MOST; ++i) all += (outputs[i] + OUTPUTS - 1) / OUTPUTS;
        return all;
    }
};

/// A warp's sums: `line(i)` is the line of w in its tile that the first and the second eight of its outputs begin at.
template <typename Tile>
__device__ __forceinline__ void sum_narrow(float (&sums)[Tile::WARP_ROWS / 16][2][4], const unsigned char* stages,
                                           StageBarriers<Tile::STAGES>& barriers, Turn<Tile::STAGES>& turn, unsigned inputs,
                                           unsigned first_row, unsigned first_line, unsigned second_line) {
    const unsigned lane = threadIdx.x % WARP, line = (lane < 16 ? first_line : second_line) + lane % 8;
#pragma unroll
    for (unsigned i = 0; i < Tile::WARP_ROWS / 16 * 8; ++i) sums[i / 8][i / 4 % 2][i % 4] = 0.0f;
    for (unsigned input = 0; input < inputs; input += Tile::DEPTH) {
        barrier_wait(&barriers.full[turn.stage], turn.parity);
        const unsigned char* stage = stages + turn.stage * Tile::STAGE_BYTES;
        // Behind the last input are zeros, which change no sum.
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            const unsigned char *x = stage + half * Tile::HALF_BYTES, *w = x + Tile::X_BYTES;
            uint32_t a[4][Tile::WARP_ROWS / 16][4], b[4][4];
#pragma unroll
            for (unsigned step = 0; step < 4; ++step) {
                ldmatrix_x4(b[step], w + swizzled(line, step * 2 + lane / 8 % 2));
#pragma unroll
                for (unsigned tile = 0; tile < Tile::WARP_ROWS / 16; ++tile) {
                    ldmatrix_x4(a[step][tile], x + swizzled(first_row + tile * 16 + lane % 16, step * 2 + lane / 16));
                }
            }
#pragma unroll
            for (unsigned step = 0; step < 4; ++step) {
#pragma unroll
                for (unsigned tile = 0; tile < Tile::WARP_ROWS / 16; ++tile) {
                    mma_m16n8k16(sums[tile][0], a[step][tile], b[step], bf16());
                    mma_m16n8k16(sums[tile][1], a[step][tile], b[step] + 2, bf16());
                }
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&barriers.empty[turn.stage]);
        turn.next();
    }
}

/// All tiles of a block. A warp has 16 lines of a tile's part of w: those of its outputs, or eight gates and the ups of the same values.
/// `write(sums, first_row, first_output)` is called by every warp.
template <typename Tile, bool is_gated, typename Write>
__device__ __forceinline__ void narrow_gemm(const WideInput& in, unsigned all_outputs, Write write) {
    extern __shared__ __align__(16) unsigned char unaligned[];
    __shared__ StageBarriers<Tile::STAGES> barriers;
    unsigned char* const stages = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
    constexpr unsigned STEP = is_gated ? Tile::OUTPUTS / 2 : Tile::OUTPUTS, WARP_STEP = is_gated ? 8 : 16;
    const unsigned warp = threadIdx.x / WARP, tiles = (all_outputs + STEP - 1) / STEP;
    if (threadIdx.x == 0) start_barriers<Tile>(barriers);
    __syncthreads();
    const unsigned first_row = warp / Tile::ACROSS * Tile::WARP_ROWS, own = warp % Tile::ACROSS * WARP_STEP;
    Turn<Tile::STAGES> turn;
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        if (warp == Tile::WARPS) {
            if (threadIdx.x % WARP == 0) copy_narrow<Tile>(stages, barriers, turn, in, tile * STEP, is_gated ? all_outputs : 0);
            continue;
        }
        float sums[Tile::WARP_ROWS / 16][2][4];
        sum_narrow<Tile>(sums, stages, barriers, turn, in.inputs, first_row, own, is_gated ? Tile::OUTPUTS / 2 + own : own + 8);
        write(sums, first_row, tile * STEP + own);
    }
}

template <typename Tile>
__device__ __forceinline__ void write_narrow(float* out, const float* bias, const float (&sums)[Tile::WARP_ROWS / 16][2][4],
                                             unsigned first_row, unsigned first_output, const WideInput& in, bool add) {
    const unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (unsigned i = 0; i < Tile::WARP_ROWS / 16 * 4; ++i) {
        const unsigned row = first_row + i / 4 * 16 + i % 2 * 8 + lane / 4, output = first_output + i / 2 % 2 * 8 + lane % 4 * 2;
        if (row >= in.rows || output >= in.outputs) continue;
        const float* sum = sums[i / 4][i / 2 % 2] + i % 2 * 2;
        const float2 both = bias ? make_float2(bias[output], bias[output + 1]) : make_float2(0.0f, 0.0f);
        float2* to = reinterpret_cast<float2*>(out + size_t{row} * in.outputs + output);
        const float2 before = add ? *to : make_float2(0.0f, 0.0f);
        *to = make_float2(before.x + fmaf(sum[0], 1.0f, both.x), before.y + fmaf(sum[1], 1.0f, both.y));
    }
}

template <typename Tile, typename Activation>
__device__ __forceinline__ void write_narrow_gated(bf16* out, const float* bias, const float (&sums)[Tile::WARP_ROWS / 16][2][4],
                                                   unsigned first_row, unsigned first_value, unsigned rows, unsigned width) {
    const unsigned lane = threadIdx.x % WARP, value = first_value + lane % 4 * 2;
    if (value >= width) return;
#pragma unroll
    for (unsigned i = 0; i < Tile::WARP_ROWS / 8; ++i) {
        const unsigned row = first_row + i * 8 + lane / 4;
        if (row >= rows) continue;
        float both[2];
#pragma unroll
        for (unsigned j = 0; j < 2; ++j) {
            const float gate = fmaf(sums[i / 2][0][i % 2 * 2 + j], 1.0f, bias ? bias[value + j] : 0.0f);
            const float up = fmaf(sums[i / 2][1][i % 2 * 2 + j], 1.0f, bias ? bias[width + value + j] : 0.0f);
            both[j] = Activation()(gate) * up;
        }
        *reinterpret_cast<uint32_t*>(out + size_t{row} * width + value) = pack2<bf16>(both[0], both[1]);
    }
}

using Narrow16x32 = NarrowTile<16, 32, 8, 1, 2>;
using Narrow32x32 = NarrowTile<32, 32, 6, 1, 2>;
using Narrow64x32 = NarrowTile<64, 32, 8, 2, 2>;

/// As narrow_gemm, of up to three matrices.
template <typename Tile>
__device__ __forceinline__ void narrow_gemms(const CUtensorMap* x, const CUtensorMap* const (&w)[Matrices::MOST], const Matrices& matrices,
                                             unsigned rows, unsigned inputs) {
    extern __shared__ __align__(16) unsigned char unaligned[];
    __shared__ StageBarriers<Tile::STAGES> barriers;
    unsigned char* const stages = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
    const unsigned warp = threadIdx.x / WARP, tiles = matrices.tiles<Tile::OUTPUTS>();
    if (threadIdx.x == 0) start_barriers<Tile>(barriers);
    __syncthreads();
    Turn<Tile::STAGES> turn;
    for (unsigned all = blockIdx.x; all < tiles; all += gridDim.x) {
        unsigned tile = all;
        const unsigned which = matrices.find<Tile::OUTPUTS>(tile);
        const CUtensorMap* const map = which == 0 ? w[0] : which == 1 ? w[1] : w[2];
        const WideInput in = {x, map, rows, which == 0 ? matrices.outputs[0] : which == 1 ? matrices.outputs[1] : matrices.outputs[2], inputs};
        if (warp == Tile::WARPS) {
            if (threadIdx.x % WARP == 0) copy_narrow<Tile>(stages, barriers, turn, in, tile * Tile::OUTPUTS, 0);
            continue;
        }
        const unsigned first_row = warp / Tile::ACROSS * Tile::WARP_ROWS, own = warp % Tile::ACROSS * 16;
        float sums[Tile::WARP_ROWS / 16][2][4];
        sum_narrow<Tile>(sums, stages, barriers, turn, inputs, first_row, own, own + 8);
        float* const out = which == 0 ? matrices.out[0] : which == 1 ? matrices.out[1] : matrices.out[2];
        const float* const bias = which == 0 ? matrices.bias[0] : which == 1 ? matrices.bias[1] : matrices.bias[2];
        write_narrow<Tile>(out, bias, sums, first_row, tile * Tile::OUTPUTS + own, in, false);
    }
}

#define NARROW_GEMM(name, Tile)                                                                                            \
    extern "C" __global__ void __launch_bounds__(Tile::THREADS)                                                            \
        name(float* out, const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w, const float* bias,  \
             unsigned rows, unsigned outputs, unsigned inputs, unsigned add) {                                             \
        const WideInput in = {&x, &w, rows, outputs, inputs};                                                              \
        narrow_gemm<Tile, false>(                                                                                          \
            in, outputs, [&](const float(&sums)[Tile::WARP_ROWS / 16][2][4], unsigned first_row, unsigned first_output) {  \
                write_narrow<Tile>(out, bias, sums, first_row, first_output, in, add != 0);                                \
            });                                                                                                            \
    }
#define NARROW_GATED(name, Tile, Activation)                                                                               \
    extern "C" __global__ void __launch_bounds__(Tile::THREADS)                                                            \
        name(bf16* out, const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w, const float* bias,   \
             unsigned rows, unsigned width, unsigned inputs) {                                                             \
        const WideInput in = {&x, &w, rows, 2 * width, inputs};                                                            \
        narrow_gemm<Tile, true>(                                                                                           \
            in, width, [&](const float(&sums)[Tile::WARP_ROWS / 16][2][4], unsigned first_row, unsigned first_value) {     \
                write_narrow_gated<Tile, Activation>(out, bias, sums, first_row, first_value, rows, width);                \
            });                                                                                                            \
    }

NARROW_GEMM(narrow_gemm_bf16_16_32, Narrow16x32)
NARROW_GEMM(narrow_gemm_bf16_32_32, Narrow32x32)
NARROW_GEMM(narrow_gemm_bf16_64_32, Narrow64x32)
NARROW_GATED(narrow_gated_silu_16, Narrow16x32, Silu)
NARROW_GATED(narrow_gated_gelu_16, Narrow16x32, Gelu)
NARROW_GATED(narrow_gated_silu_64, Narrow64x32, Silu)
NARROW_GATED(narrow_gated_gelu_64, Narrow64x32, Gelu)

// Products of the same rows with up to three matrices, without bias where it is null; of none where its outputs are 0.
#define NARROW_GEMMS(name, Tile)                                                                                           \
    extern "C" __global__ void __launch_bounds__(Tile::THREADS)                                                            \
        name(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w0,                                \
             const __grid_constant__ CUtensorMap w1, const __grid_constant__ CUtensorMap w2, float* out0, float* out1,     \
             float* out2, const float* bias0, const float* bias1, const float* bias2, unsigned outputs0, unsigned outputs1, \
             unsigned outputs2, unsigned rows, unsigned inputs) {                                                          \
        const Matrices matrices = {{out0, out1, out2}, {bias0, bias1, bias2}, {outputs0, outputs1, outputs2}};             \
        const CUtensorMap* const w[] = {&w0, &w1, &w2};                                                                    \
        narrow_gemms<Tile>(&x, w, matrices, rows, inputs);                                                                 \
    }

NARROW_GEMMS(narrow_gemms_bf16_16_32, Narrow16x32)
