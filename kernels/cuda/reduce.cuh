// Sums and maxima over the threads of a warp or a block, in a fixed order: the result depends on the values alone.
#pragma once

#include "device.cuh"

/// The sum over a warp, in every lane.
template <typename T> __device__ __forceinline__ T warp_sum(T value) {
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
template <unsigned THREADS, typename T> __device__ __forceinline__ T block_sum(T value) {
    __shared__ T sums[THREADS / WARP];
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = value;
    __syncthreads();
    T sum = 0;
    for (unsigned warp = 0; warp < THREADS / WARP; ++warp) sum += sums[warp];
    // So that a second call does not overwrite what another thread still reads.
    __syncthreads();
    return sum;
}
