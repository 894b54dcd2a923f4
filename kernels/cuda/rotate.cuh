// Rotary position embedding in the half-split form ("RoFormer: Enhanced Transformer with Rotary Position Embedding",
// equation 34): element i < pairs turns with element i + pairs, those from 2 * pairs on stay.
//
// A head has head_dim - pairs units: the first `pairs` are a pair each, the others an element that stays.
#pragma once

#include "device.cuh"

/// Where the unit of a thread is.
struct RotationUnit {
    /// Row and head, as one number.
    uint64_t head;
    unsigned unit;
    bool exists;
};

__device__ __forceinline__ RotationUnit rotation_unit(uint64_t heads, unsigned head_dim, unsigned pairs) {
    const uint64_t thread = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const unsigned units = head_dim - pairs;
    return {thread / units, static_cast<unsigned>(thread % units), thread < heads * units};
}

/// `a` and `b` turned by the angle of pair `pair` at `position`; angles [positions][2][pairs].
__device__ __forceinline__ float2 turned(float a, float b, const float* angles, unsigned position, unsigned pairs,
                                         unsigned pair) {
    const float* of_position = angles + size_t{position} * 2 * pairs;
    const float cosine = of_position[pair], sine = of_position[pairs + pair];
    // Said which product is rounded by itself, so that it is the same in every kernel.
    return make_float2(fmaf(a, cosine, -(b * sine)), fmaf(b, cosine, a * sine));
}
