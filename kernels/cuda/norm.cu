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

template <typename X>
__device__ __forceinline__ void rms_norm(X* out, const float* in, const float* weight, float eps, unsigned width) {
    const float* from = in + size_t{blockIdx.x} * width;
    X* to = out + size_t{blockIdx.x} * width;
    float squares = 0.0f;
    for (unsigned i = threadIdx.x; i < width; i += NORM_THREADS) squares = fmaf(from[i], from[i], squares);
    squares = block_sum<NORM_THREADS>(squares);
    const float share = 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
    for (unsigned i = threadIdx.x; i < width; i += NORM_THREADS) to[i] = from_float<X>(from[i] * share * weight[i]);
}

template <typename X>
__device__ __forceinline__ void layer_norm(X* out, const float* in, const float* weight, const float* bias, float eps,
                                           unsigned width) {
    const float* from = in + size_t{blockIdx.x} * width;
    X* to = out + size_t{blockIdx.x} * width;
    float sum = 0.0f;
    for (unsigned i = threadIdx.x; i < width; i += NORM_THREADS) sum += from[i];
    const float mean = block_sum<NORM_THREADS>(sum) / static_cast<float>(width);
    // From the differences, not from the mean of the squares, which would cancel.
    float squares = 0.0f;
    for (unsigned i = threadIdx.x; i < width; i += NORM_THREADS) squares = fmaf(from[i] - mean, from[i] - mean, squares);
    squares = block_sum<NORM_THREADS>(squares);
    const float share = 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
    for (unsigned i = threadIdx.x; i < width; i += NORM_THREADS) {
        to[i] = from_float<X>(fmaf((from[i] - mean) * share, weight[i], bias[i]));
    }
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
