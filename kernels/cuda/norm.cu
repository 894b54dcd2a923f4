// Norms of rows and of heads.
//
// rms_norm    out = in / sqrt(mean(in^2) + eps) * weight ("Root Mean Square Layer Normalization", equation 4)
// layer_norm  out = (in - mean) / sqrt(variance + eps) * weight + bias ("Layer Normalization", equation 3)
//     in [rows, width] of f32, out of X; an out of f32 may be in itself.
//     block 256, grid rows: a block has one row, its threads every 256th value.
// head_norm   rms_norm of each head by itself, in place: values [rows, heads, head_dim] of f32, weight [head_dim].
//     block 128, grid ceil(rows * heads / 4): a warp has one head.
#include "reduce.cuh"

constexpr unsigned NORM_THREADS = 256;

/// A thread's values of a row, of which it reads all before it needs the first one; of longer rows again when they are needed.
struct RowValues {
    static constexpr unsigned KEPT = 16;
    const float* from;
    unsigned width;
    float kept[KEPT];

    __device__ __forceinline__ RowValues(const float* from, unsigned width) : from(from), width(width) {
#pragma unroll
        for (unsigned i = 0; i < KEPT; ++i) {
            const unsigned at = i * NORM_THREADS + threadIdx.x;
            kept[i] = at < width ? from[at] : 0.0f;
        }
    }
    /// Calls `then(place, value)` for each, in ascending order of places.
    template <typename Then> __device__ __forceinline__ void each(Then then) const {
#pragma unroll
        for (unsigned i = 0; i < KEPT; ++i) {
            const unsigned at = i * NORM_THREADS + threadIdx.x;
            if (at < width) then(at, kept[i]);
        }
        for (unsigned at = KEPT * NORM_THREADS + threadIdx.x; at < width; at += NORM_THREADS) then(at, from[at]);
    }
};

template <typename X>
__device__ __forceinline__ void rms_norm(X* out, const float* in, const float* weight, float eps, unsigned width) {
    const RowValues values(in + size_t{blockIdx.x} * width, width);
    X* to = out + size_t{blockIdx.x} * width;
    float squares = 0.0f;
    values.each([&](unsigned, float value) { squares = fmaf(value, value, squares); });
    squares = block_sum<NORM_THREADS>(squares);
    const float share = 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
    values.each([&](unsigned at, float value) { to[at] = from_float<X>(value * share * weight[at]); });
}

template <typename X>
__device__ __forceinline__ void layer_norm(X* out, const float* in, const float* weight, const float* bias, float eps,
                                           unsigned width) {
    const RowValues values(in + size_t{blockIdx.x} * width, width);
    X* to = out + size_t{blockIdx.x} * width;
    float sum = 0.0f;
    values.each([&](unsigned, float value) { sum += value; });
    const float mean = block_sum<NORM_THREADS>(sum) / static_cast<float>(width);
    // From the differences, not from the mean of the squares, which would cancel.
    float squares = 0.0f;
    values.each([&](unsigned, float value) { squares = fmaf(value - mean, value - mean, squares); });
    squares = block_sum<NORM_THREADS>(squares);
    const float share = 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
    values.each([&](unsigned at, float value) { to[at] = from_float<X>(fmaf((value - mean) * share, weight[at], bias[at])); });
}

#define NORMS(suffix, X)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS)                                                             \
        rms_norm_##suffix(X* out, const float* in, const float* weight, float eps, unsigned rows, unsigned width) {        \
        if (blockIdx.x < rows) rms_norm(out, in, weight, eps, width);                                                      \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS)                                                             \
        layer_norm_##suffix(X* out, const float* in, const float* weight, const float* bias, float eps, unsigned rows,     \
                            unsigned width) {                                                                              \
        if (blockIdx.x < rows) layer_norm(out, in, weight, bias, eps, width);                                              \
    }

NORMS(f32, float)
NORMS(bf16, bf16)

extern "C" __global__ void __launch_bounds__(128)
    head_norm(float* values, const float* weight, float eps, unsigned rows, unsigned heads, unsigned head_dim) {
    const unsigned head = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (head >= rows * heads) return;
    float* row = values + size_t{head} * head_dim;
    float squares = 0.0f;
    for (unsigned i = threadIdx.x % WARP; i < head_dim; i += WARP) squares = fmaf(row[i], row[i], squares);
    squares = warp_sum(squares);
    const float share = 1.0f / sqrtf(squares / static_cast<float>(head_dim) + eps);
    for (unsigned i = threadIdx.x % WARP; i < head_dim; i += WARP) row[i] = row[i] * share * weight[i];
}
