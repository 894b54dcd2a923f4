// Small kernels for the self-test: right ones, and one for each defect.

#include "host_device.hpp"

constexpr unsigned all_lanes = 0xffffffffu;

extern "C" __global__ void add_one(float* values, unsigned count) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] += 1.0f;
}

// Sums of blocks: shuffles within warps, shared memory between them. Blocks have 128 threads.
template <bool has_barrier>
__device__ void sum_block(float* sums, const float* values, unsigned count) {
    __shared__ float of_warps[4];
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = i < count ? values[i] : 0.0f;
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    if constexpr (has_barrier) __syncthreads();
    if (threadIdx.x == 0) sums[blockIdx.x] = of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3];
}
extern "C" __global__ void sum_blocks(float* sums, const float* values, unsigned count) { sum_block<true>(sums, values, count); }
extern "C" __global__ void sum_blocks_no_barrier(float* sums, const float* values, unsigned count) {
    sum_block<false>(sums, values, count);
}

// Reverses 64 values through dynamic shared memory, twice, so that the second pass writes what the first one read.
template <bool has_barrier>
__device__ void reverse_twice(float* values) {
    DYNAMIC_SHARED(float, tile);
    for (int pass = 0; pass < 2; ++pass) {
        tile[threadIdx.x] = values[threadIdx.x];
        __syncthreads();
        values[threadIdx.x] = tile[63 - threadIdx.x];
        if constexpr (has_barrier) __syncthreads();
    }
}
extern "C" __global__ void reverse_values(float* values) { reverse_twice<true>(values); }
extern "C" __global__ void reverse_values_no_barrier(float* values) { reverse_twice<false>(values); }

// Lanes hand values on through shared memory, ordered by warp barriers alone.
template <bool has_barrier>
__device__ void rotate_in_warp(float* values) {
    __shared__ float tile[2][32];
    float* mine = tile[threadIdx.x / 32];
    const unsigned lane = threadIdx.x % 32;
    mine[lane] = values[threadIdx.x];
    if constexpr (has_barrier) __syncwarp(all_lanes);
    values[threadIdx.x] = mine[(lane + 1) % 32];
}
extern "C" __global__ void rotate_lanes(float* values) { rotate_in_warp<true>(values); }
extern "C" __global__ void rotate_lanes_no_barrier(float* values) { rotate_in_warp<false>(values); }

// Neighbouring values of 2 bytes by different threads and blocks do not race.
extern "C" __global__ void fill_halves(half_t* out, unsigned count) {
    for (unsigned i = blockIdx.x + threadIdx.x * gridDim.x; i < count; i += gridDim.x * blockDim.x) {
        out[i] = from_float<half_t>(static_cast<float>(i));
    }
}
extern "C" __global__ void fill_bytes(unsigned char* out, unsigned count) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = static_cast<unsigned char>(i);
}

extern "C" __global__ void count_up(unsigned* counter) { atomicAdd(counter, 1); }
extern "C" __global__ void count_up_plain(unsigned* counter) { *counter += 1; }

// d[16][8] = a[16][16] b[16][8] by one warp; b is given by columns. Fragments come as the PTX ISA says, a also by ldmatrix.
template <typename T>
__device__ void multiply_tile(float* d, const T* a, const T* b) {
    __shared__ __align__(16) T rows[16 * 16];
    const unsigned lane = threadIdx.x, g = lane / 4, t = lane % 4 * 2;
    copy_async_16(rows + lane * 8, a + lane * 8, 16);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp(all_lanes);
    uint32_t fragment_a[4], fragment_b[2];
    ldmatrix_x4(fragment_a, rows + (lane % 16) * 16 + lane / 16 * 8);
    for (unsigned i = 0; i < 2; ++i) {
        const T* column = b + g * 16 + t + i * 8;
        fragment_b[i] = column[0].bits | static_cast<uint32_t>(column[1].bits) << 16;
    }
    float sum[4] = {};
    mma_m16n8k16(sum, fragment_a, fragment_b, T{});
    for (unsigned i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + t + i % 2] = sum[i];
}
extern "C" __global__ void multiply_bf16(float* d, const bf16* a, const bf16* b) { multiply_tile(d, a, b); }
extern "C" __global__ void multiply_f16(float* d, const half_t* a, const half_t* b) { multiply_tile(d, a, b); }

extern "C" __global__ void transpose_8x8(uint32_t* out, const uint32_t* in) {
    __shared__ __align__(16) uint32_t tiles[128];
    for (unsigned i = threadIdx.x; i < 128; i += 32) tiles[i] = in[i];
    __syncwarp(all_lanes);
    uint32_t d[4];
    ldmatrix_x4_transposed(d, tiles + threadIdx.x * 4);
    for (unsigned i = 0; i < 4; ++i) out[i * 32 + threadIdx.x] = d[i];
}

// What each lane gets from shuffles and votes: 7 numbers a lane.
extern "C" __global__ void shuffle_and_vote(unsigned* out) {
    const unsigned lane = threadIdx.x;
    unsigned* mine = out + lane * 7;
    mine[0] = __shfl_up_sync(all_lanes, lane, 3);
    mine[1] = __shfl_down_sync(all_lanes, lane, 3);
    mine[2] = __shfl_down_sync(all_lanes, lane, 3, 8);
    mine[3] = __shfl_sync(all_lanes, lane, 13, 8);
    mine[4] = __ballot_sync(all_lanes, lane % 3 == 0);
    mine[5] = static_cast<unsigned>(__any_sync(all_lanes, lane == 7) * 2 + __all_sync(all_lanes, lane < 31));
    mine[6] = lane < 16 ? __shfl_xor_sync(0x0000ffffu, lane, 5) : __shfl_xor_sync(0xffff0000u, lane, 6);
}

// Defects.

extern "C" __global__ void read_past_end(float* out, const float* in, unsigned count) { out[0] = in[count]; }
extern "C" __global__ void read_before_start(float* out, const float* in) { out[0] = in[-1]; }
extern "C" __global__ void read_null(float* out, const float* in) { out[0] = in == nullptr ? *in : 0.0f; }

extern "C" __global__ void shared_past_end(float* out, unsigned index) {
    __shared__ float tile[16];
    tile[threadIdx.x] = 1.0f;
    const float* start = tile;
    out[threadIdx.x] = start[index];
}
extern "C" __global__ void dynamic_past_end(float* out, unsigned index) {
    DYNAMIC_SHARED(float, tile);
    tile[index] = 1.0f;
    out[0] = tile[index];
}
// Shared memory keeps nothing from one block to the next.
extern "C" __global__ void shared_never_written(float* out) {
    __shared__ float tile[32];
    if (blockIdx.x == gridDim.x) tile[threadIdx.x] = 0.0f;
    out[threadIdx.x] = tile[threadIdx.x];
}
extern "C" __global__ void local_past_end(float* out, unsigned index) {
    float local[4] = {1, 2, 3, 4};
    for (unsigned i = 0; i < 4; ++i) local[i] += out[i];
    out[0] = local[index];
}
extern "C" __global__ void misaligned(float4* out, const float* in) {
    out[0] = *reinterpret_cast<const float4*>(in + 1);
}
extern "C" __global__ void blocks_write_same(float* out) { out[0] = static_cast<float>(blockIdx.x); }
// A block reads what another one writes.
extern "C" __global__ void shift_in_place(float* values, unsigned count) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + 1 < count) values[i] = values[i + 1];
}

extern "C" __global__ void shuffle_without_caller(float* out) {
    out[threadIdx.x] = __shfl_sync(0x0000ffffu, out[threadIdx.x], 0);
}
extern "C" __global__ void shuffle_in_half_warp(float* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(all_lanes, out[threadIdx.x], 1);
}
extern "C" __global__ void shuffle_from_outside(float* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0x0000ffffu, out[threadIdx.x], 20);
}
extern "C" __global__ void barrier_in_branch(float* out) {
    if (threadIdx.x < 40) __syncthreads();
    out[threadIdx.x] = 1.0f;
}
extern "C" __global__ void two_barriers(float* out) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
        out[threadIdx.x] = 2.0f;
    }
    out[threadIdx.x] = 1.0f;
}
extern "C" __global__ void barrier_and_warp_barrier(float* out) {
    if (threadIdx.x == 5) {
        __syncthreads();
    } else {
        __syncwarp(all_lanes);
    }
    out[threadIdx.x] = 1.0f;
}
extern "C" __global__ void copy_without_wait(float* out, const float* in) {
    __shared__ __align__(16) float tile[128];
    copy_async_16(tile + threadIdx.x * 4, in + threadIdx.x * 4, 16);
    copy_async_commit();
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}
extern "C" __global__ void mma_in_half_warp(float* out) {
    float d[4] = {};
    const uint32_t a[4] = {}, b[2] = {};
    if (threadIdx.x < 16) mma_m16n8k16(d, a, b, bf16{});
    out[threadIdx.x] = d[0];
}
