// Copies of rows and parts, and what is asked of many values at once.
//
// gather_rows  out[i] = in[rows[i]], rows of row_bytes (even) bytes. block 128, grid count: a block has one row.
// copy_parts   part p: `bytes` bytes to + p * to_stride <- from + p * from_stride. block 256, grid x ceil(bytes / 4096), y
// parts. finite       *all_finite = 0 if a value is not finite (the host sets 1 before). block 256, grid min(ceil(count /
// 256), 1024). argmax       out[r] = the token with the greatest of logits[r] [vocab] of f32; of equal ones the lowest.
// block 256, grid rows.
#include "device.cuh"

extern "C" __global__ void __launch_bounds__(128)
    gather_rows(unsigned char* out, const unsigned char* in, const unsigned* rows, unsigned count, unsigned row_bytes) {
    if (blockIdx.x >= count) return;
    const unsigned char* from = in + size_t{rows[blockIdx.x]} * row_bytes;
    unsigned char* to = out + size_t{blockIdx.x} * row_bytes;
    if (row_bytes % 16 == 0 && is_aligned_16(in) && is_aligned_16(out)) {
        for (unsigned i = threadIdx.x; i < row_bytes / 16; i += blockDim.x) {
            reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
        }
    } else {
        for (unsigned i = threadIdx.x; i < row_bytes / 2; i += blockDim.x) {
            reinterpret_cast<unsigned short*>(to)[i] = reinterpret_cast<const unsigned short*>(from)[i];
        }
    }
}

/// Bytes of a part that a block copies: 256 threads, 16 bytes each.
constexpr unsigned COPY_BYTES = 4096;

extern "C" __global__ void __launch_bounds__(256)
    copy_parts(unsigned char* to, unsigned long long to_stride, const unsigned char* from, unsigned long long from_stride,
               unsigned parts, unsigned long long bytes) {
    if (blockIdx.y >= parts) return;
    to += blockIdx.y * to_stride;
    from += blockIdx.y * from_stride;
    const uint64_t start = uint64_t{blockIdx.x} * COPY_BYTES;
    if (is_aligned_16(to) && is_aligned_16(from) && start + COPY_BYTES <= bytes) {
        const uint64_t at = start + threadIdx.x * 16;
        *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
        return;
    }
    for (uint64_t at = start + threadIdx.x; at < start + COPY_BYTES && at < bytes; at += blockDim.x) to[at] = from[at];
}

template <typename T>
__device__ __forceinline__ void finite(unsigned* all_finite, const T* values, uint64_t count) {
    bool is_finite = true;
    const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
    for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        is_finite = is_finite && isfinite(to_float(values[i]));
    }
    const bool is_warp_finite = __ballot_sync(ALL_LANES, !is_finite) == 0;
    if (!is_warp_finite && threadIdx.x % WARP == 0) atomicAnd(all_finite, 0u);
}

#define FINITE(name, T)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) name(unsigned* all_finite, const T* values, unsigned long long count) { \
        finite(all_finite, values, count);                                                                                 \
    }

FINITE(finite_f32, float)
FINITE(finite_f16, half_t)
FINITE(finite_bf16, bf16)

/// The better of two candidates.
struct Candidate {
    float logit;
    unsigned token;

    __device__ __forceinline__ void take(float other, unsigned other_token) {
        if (other > logit || (other == logit && other_token < token)) {
            logit = other;
            token = other_token;
        }
    }
};

constexpr unsigned ARGMAX_THREADS = 256;

extern "C" __global__ void __launch_bounds__(ARGMAX_THREADS)
    argmax(unsigned* out, const float* logits, unsigned rows, unsigned vocab) {
    __shared__ float best_logits[ARGMAX_THREADS / WARP];
    __shared__ unsigned best_tokens[ARGMAX_THREADS / WARP];
    if (blockIdx.x >= rows) return;
    const float* row = logits + size_t{blockIdx.x} * vocab;
    // Token 0 unless something is greater: a row without numbers has a token, too.
    Candidate best = {-INFINITY, 0};
    for (unsigned token = threadIdx.x; token < vocab; token += ARGMAX_THREADS) best.take(row[token], token);
    for (unsigned distance = WARP / 2; distance > 0; distance /= 2) {
        const float logit = __shfl_xor_sync(ALL_LANES, best.logit, distance);
        best.take(logit, __shfl_xor_sync(ALL_LANES, best.token, distance));
    }
    if (threadIdx.x % WARP == 0) {
        best_logits[threadIdx.x / WARP] = best.logit;
        best_tokens[threadIdx.x / WARP] = best.token;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (unsigned warp = 1; warp < ARGMAX_THREADS / WARP; ++warp) best.take(best_logits[warp], best_tokens[warp]);
    out[blockIdx.x] = best.token;
}
