// Copies of rows and of parts.
//
// gather_rows  out[i] = in[rows[i]], rows of row_bytes (even) bytes. block 128, grid count: a block has one row.
// copy_parts   part p: `bytes` bytes to + p * to_stride <- from + p * from_stride. block 256, grid x ceil(bytes / 4096), y parts.
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
