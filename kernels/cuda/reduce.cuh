// Sums and maxima over the threads of a warp or a block, in a fixed order: the result depends on the values alone.
#pragma once

#include "device.cuh"

/// The sum over a warp, in every lane.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (unsigned distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

/// The maximum over a warp, in every lane.
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (unsigned distance = WARP / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, distance));
    }
    return value;
}

/// The sum over a block of THREADS threads, in every thread. All of them call it.
template <unsigned THREADS> __device__ __forceinline__ float block_sum(float value) {
    __shared__ float sums[THREADS / WARP];
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = value;
    __syncthreads();
    float sum = 0.0f;
    for (unsigned warp = 0; warp < THREADS / WARP; ++warp) sum += sums[warp];
    // So that a second call does not overwrite what another thread still reads.
    __syncthreads();
    return sum;
}
