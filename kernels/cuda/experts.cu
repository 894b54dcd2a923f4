// Mixtures of experts ("Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer"): which experts a row
// goes through, rows by expert, each expert's products, and the sum of what comes out. Nothing of it goes by way of the host.
//
// A row has `per_row` choices, in ascending order of the experts' numbers; choice c is of row c / per_row. Each choice has a
// place: expert after expert, and within one by row. An expert's rows are cut in tiles of tile_rows places.
//
// route            chosen and weights [rows, per_row] from scores [rows, experts]: the greatest scores (of equal ones those of
//                  the lower numbers) and their softmax over all experts, or over the chosen ones. block 128, grid rows
// count_choices    counts [experts]: choices of each. block 256, grid experts
// group_choices    starts and tile_starts [experts + 1]: an expert's first place and first tile, and the end; rows [choices]:
//                  the row at each place; places [choices]: of each choice. block 256, grid experts
// expert_gemm_...  out [choices, outputs] by place: x w^T + bias with w [experts, outputs, inputs] and bias [experts, outputs]
//                  or null. Place p has row list[p] of x, or row p where list is null. Tiles, blocks and shared memory are
//                  those of gemm_..., and so are the bits. grid x the most tiles that there may be, y ceil(outputs / tile).
//                  Of q8: w has an expert's lines after those of the one before, scales [experts, outputs]
// combine_experts  out [rows, width]: sum over a row's choices, in their order, of weight * in[place]. block 256, grid
//                  ceil(rows * width / 256)
#include "gemm_plain.cuh"
#include "gemm_q8.cuh"
#include "reduce.cuh"

constexpr unsigned ROUTE_THREADS = 128, GROUP_THREADS = 256;
/// What a configuration may have; `MOST_EXPERTS` of the host.
constexpr unsigned MOST_EXPERTS = 4096;

/// In the order of scores, for all bits: numbers, infinities, and what is no number before or behind them (IEEE 754 totalOrder).
__device__ __forceinline__ int order_of(float score) {
    const int bits = __float_as_int(score);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

/// Bits of lanes below this one.
__device__ __forceinline__ unsigned lower_lanes() { return (1u << threadIdx.x % WARP) - 1; }

/// How many experts come before this one: every expert has another rank, whatever the scores are.
__device__ __forceinline__ unsigned rank_of(const int* orders, unsigned expert, unsigned experts) {
    const int own = orders[expert];
    unsigned rank = 0;
    for (unsigned other = 0; other < experts; ++other) {
        rank += orders[other] > own || (orders[other] == own && other < expert);
    }
    return rank;
}

extern "C" __global__ void __launch_bounds__(ROUTE_THREADS)
    route(unsigned* chosen, float* weights, const float* scores, unsigned rows, unsigned experts, unsigned per_row,
          unsigned is_normalized) {
    __shared__ int orders[MOST_EXPERTS];
    // A bit an expert: whether it is chosen.
    __shared__ unsigned chosen_bits[MOST_EXPERTS / WARP];
    __shared__ float greatest;
    if (blockIdx.x >= rows) return;
    scores += size_t{blockIdx.x} * experts;
    for (unsigned expert = threadIdx.x; expert < experts; expert += ROUTE_THREADS) orders[expert] = order_of(scores[expert]);
    __syncthreads();
    for (unsigned first = 0; first < experts; first += ROUTE_THREADS) {
        const unsigned expert = first + threadIdx.x;
        const unsigned rank = expert < experts ? rank_of(orders, expert, experts) : experts;
        const unsigned bits = __ballot_sync(ALL_LANES, rank < per_row);
        if (threadIdx.x % WARP == 0) chosen_bits[expert / WARP] = bits;
        if (rank == 0) greatest = scores[expert];
    }
    __syncthreads();
    // What a softmax over all is divided by cancels where the chosen ones' shares are to sum up to one.
    float total = 0.0f;
    for (unsigned expert = threadIdx.x; expert < experts; expert += ROUTE_THREADS) {
        const bool is_chosen = chosen_bits[expert / WARP] >> expert % WARP & 1;
        if (is_chosen || !is_normalized) total += expf(scores[expert] - greatest);
    }
    total = block_sum<ROUTE_THREADS>(total);
    for (unsigned expert = threadIdx.x; expert < experts; expert += ROUTE_THREADS) {
        if (!(chosen_bits[expert / WARP] >> expert % WARP & 1)) continue;
        unsigned choice = __popc(chosen_bits[expert / WARP] & lower_lanes());
        for (unsigned word = 0; word < expert / WARP; ++word) choice += __popc(chosen_bits[word]);
        chosen[size_t{blockIdx.x} * per_row + choice] = expert;
        weights[size_t{blockIdx.x} * per_row + choice] = expf(scores[expert] - greatest) / total;
    }
}

extern "C" __global__ void __launch_bounds__(GROUP_THREADS)
    count_choices(unsigned* counts, const unsigned* chosen, unsigned choices, unsigned experts) {
    if (blockIdx.x >= experts) return;
    unsigned count = 0;
    for (unsigned choice = threadIdx.x; choice < choices; choice += GROUP_THREADS) count += chosen[choice] == blockIdx.x;
    count = block_sum<GROUP_THREADS>(count);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

extern "C" __global__ void __launch_bounds__(GROUP_THREADS)
    group_choices(unsigned* starts, unsigned* tile_starts, unsigned* rows, unsigned* places, const unsigned* counts,
                  const unsigned* chosen, unsigned choices, unsigned experts, unsigned per_row, unsigned tile_rows) {
    __shared__ unsigned of_warps[GROUP_THREADS / WARP];
    if (blockIdx.x >= experts) return;
    unsigned next = 0, tiles = 0;
    for (unsigned expert = threadIdx.x; expert < blockIdx.x; expert += GROUP_THREADS) {
        next += counts[expert];
        tiles += (counts[expert] + tile_rows - 1) / tile_rows;
    }
    next = block_sum<GROUP_THREADS>(next);
    tiles = block_sum<GROUP_THREADS>(tiles);
    if (threadIdx.x == 0) {
        const unsigned own = counts[blockIdx.x];
        starts[blockIdx.x] = next;
        tile_starts[blockIdx.x] = tiles;
        if (blockIdx.x + 1 == experts) {
            starts[experts] = next + own;
            tile_starts[experts] = tiles + (own + tile_rows - 1) / tile_rows;
        }
    }
    const unsigned warp = threadIdx.x / WARP;
    for (unsigned first = 0; first < choices; first += GROUP_THREADS) {
        const unsigned choice = first + threadIdx.x;
        const bool is_own = choice < choices && chosen[choice] == blockIdx.x;
        const unsigned bits = __ballot_sync(ALL_LANES, is_own);
        if (threadIdx.x % WARP == 0) of_warps[warp] = __popc(bits);
        __syncthreads();
        unsigned place = next + __popc(bits & lower_lanes());
        for (unsigned other = 0; other < GROUP_THREADS / WARP; ++other) {
            if (other < warp) place += of_warps[other];
            next += of_warps[other];
        }
        if (is_own) {
            rows[place] = choice / per_row;
            places[choice] = place;
        }
        // So that nobody overwrites what another thread still reads.
        __syncthreads();
    }
}

/// The expert that has a tile: the last one whose tiles do not begin behind it. One without rows has none.
__device__ __forceinline__ unsigned expert_of(const unsigned* tile_starts, unsigned experts, unsigned tile) {
    unsigned first = 0, end = experts;
    while (end - first > 1) {
        const unsigned middle = (first + end) / 2;
        if (tile_starts[middle] <= tile) {
            first = middle;
        } else {
            end = middle;
        }
    }
    return first;
}

/// `in` is for all experts: their outputs after each other, and the rows of all.
template <typename Tile, typename Input>
__device__ __forceinline__ void expert_gemm(float* out, Input in, const float* bias, const unsigned* starts,
                                            const unsigned* tile_starts, unsigned experts) {
    // The grid is for as many tiles as there may be.
    if (blockIdx.x >= tile_starts[experts]) return;
    const unsigned expert = expert_of(tile_starts, experts, blockIdx.x);
    const unsigned start = starts[expert], first_row = (blockIdx.x - tile_starts[expert]) * Tile::ROWS;
    in.rows = starts[expert + 1] - start;
    in.skip_outputs(size_t{expert} * in.outputs);
    if (in.list) {
        in.list += start;
    } else {
        in.x += size_t{start} * in.inputs;
    }
    if (bias) bias += size_t{expert} * in.outputs;
    gemm<Tile>(out + size_t{start} * in.outputs, in, bias, first_row, blockIdx.y * Tile::OUTPUTS, false);
}

#define EXPERT_GEMM(name, Tile, X)                                                                                        \
    extern "C" __global__ void __launch_bounds__(Tile::THREADS)                                                          \
        name(float* out, const X* x, const unsigned* list, const X* w, const float* bias, const unsigned* starts,         \
             const unsigned* tile_starts, unsigned experts, unsigned outputs, unsigned inputs) {                          \
        const GemmInput<X> in = {x, list, w, 0, outputs, inputs};                                                         \
        expert_gemm<Tile>(out, in, bias, starts, tile_starts, experts);                                                   \
    }

EXPERT_GEMM(expert_gemm_bf16_16, GemmTile16, bf16)
EXPERT_GEMM(expert_gemm_bf16_64, GemmTile64, bf16)
EXPERT_GEMM(expert_gemm_bf16_128, GemmTile128, bf16)
EXPERT_GEMM(expert_gemm_f32_16, PlainTile16, float)
EXPERT_GEMM(expert_gemm_f32_64, PlainTile64, float)

#define EXPERT_GEMM_Q8(name, Tile)                                                                                        \
    extern "C" __global__ void __launch_bounds__(Tile::THREADS)                                                          \
        name(float* out, const bf16* x, const unsigned* list, const q8* w, const float* scales, const float* bias,        \
             const unsigned* starts, const unsigned* tile_starts, unsigned experts, unsigned outputs, unsigned inputs) {  \
        const GemmInputQ8 in = {x, list, w, scales, 0, outputs, inputs};                                                  \
        expert_gemm<Tile>(out, in, bias, starts, tile_starts, experts);                                                   \
    }

EXPERT_GEMM_Q8(expert_gemm_q8_16, GemmTileQ8_16)
EXPERT_GEMM_Q8(expert_gemm_q8_64, GemmTileQ8_64)
EXPERT_GEMM_Q8(expert_gemm_q8_128, GemmTileQ8_128)

extern "C" __global__ void __launch_bounds__(256)
    combine_experts(float* out, const float* in, const float* weights, const unsigned* places, unsigned rows, unsigned width,
                    unsigned per_row) {
    const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= uint64_t{rows} * width) return;
    const uint64_t first = i / width * per_row;
    float sum = 0.0f;
    for (unsigned choice = 0; choice < per_row; ++choice) {
        sum = fmaf(weights[first + choice], in[size_t{places[first + choice]} * width + i % width], sum);
    }
    out[i] = sum;
}
