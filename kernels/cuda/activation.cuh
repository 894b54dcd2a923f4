// Activations of one value.
#pragma once

#include "device.cuh"

struct Silu {
    __device__ __forceinline__ float operator()(float x) const { return x * approximate_inverse(1.0f + approximate_exp(-x)); }
};

/// x / 2 (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). As (1 + tanh u) / 2 is 1 / (1 + e^(-2u)), nothing cancels.
struct Gelu {
    __device__ __forceinline__ float operator()(float x) const {
        const float inner = fmaf(x * x, 0.044715f, 1.0f);
        return x * approximate_inverse(1.0f + approximate_exp(x * -1.5957691f * inner));
    }
};

/// What is no number stays so.
struct Relu {
    __device__ __forceinline__ float operator()(float x) const { return x < 0.0f ? 0.0f : x; }
};
