// The only header that differs between a GPU and a CPU: under nvcc it wraps what the kernels need of the hardware,
// elsewhere the driver stand-in of the tests gives the same names (host_device.hpp, found by -I).
#pragma once

#include <stdint.h>

#ifndef __CUDACC__
#include "host_device.hpp"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

using bf16 = __nv_bfloat16;
using half_t = __half;

/// A block's dynamic shared memory as an array of `type`.
#define DYNAMIC_SHARED(type, name)                                     \
    extern __shared__ __align__(16) unsigned char dynamic_shared[];    \
    type* const name = reinterpret_cast<type*>(dynamic_shared)

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(half_t x) { return __half2float(x); }

/// What is beyond the range of f16 becomes its largest number, as on the CPU; what is no number stays so.
__device__ __forceinline__ float into_f16_range(float x) { return fabsf(x) > 65504.0f ? copysignf(65504.0f, x) : x; }

/// Rounds to nearest, ties to even.
template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ __forceinline__ half_t from_float<half_t>(float x) { return __float2half_rn(into_f16_range(x)); }

/// 2^x, e^x and 1 / x by the hardware's own instructions: within a few units of the last place, far below what rounding to 16 bits does.
/// Subnormal numbers are zeros.
__device__ __forceinline__ float approximate_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float approximate_exp(float x) { return approximate_exp2(x * 1.4426950408889634f); }
__device__ __forceinline__ float approximate_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// Two rounded values in one register, `low` in the lower half.
template <typename T> __device__ __forceinline__ uint32_t pack2(float low, float high);
template <> __device__ __forceinline__ uint32_t pack2<bf16>(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
template <> __device__ __forceinline__ uint32_t pack2<half_t>(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(into_f16_range(high)), "f"(into_f16_range(low)));
    return packed;
}

/// d += a b on tensor cores, for the 16x16 tile a, the 16x8 tile b and the 16x8 tile d of a warp. With g = lane / 4, t =
/// lane % 4 (PTX ISA, "Matrix fragments for mma.m16n8k16"):
///   a[0], a[1]  row g and row g + 8, columns 2t, 2t + 1;  a[2], a[3]  the same rows, columns 2t + 8, 2t + 9
///   b[0], b[1]  rows 2t, 2t + 1 and rows 2t + 8, 2t + 9, column g
///   d[0], d[1]  row g, columns 2t, 2t + 1;  d[2], d[3]  row g + 8
__device__ __forceinline__ void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], half_t) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

/// Loads four 8x8 tiles of 16-bit values. Lane l names row l % 8 of tile l / 8 (16 bytes, aligned to 16); then d[i] is row
/// l / 4, columns 2 (l % 4) and one more, of tile i.
__device__ __forceinline__ void ldmatrix_x4(uint32_t d[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_address(shared_row))
                 : "memory");
}
/// The same of the transposed tiles: d[i] is column l / 4, rows 2 (l % 4) and one more.
__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t d[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

/// Begins a copy of `bytes` (0 or 16) bytes, filled up to 16 with zeros; both addresses are aligned to 16. It is done for
/// this thread after `copy_async_wait`, for the others of the block after a barrier that follows.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, unsigned bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}
/// Ends a group of copies.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most `pending` of the latest groups are under way.
template <int pending> __device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

#endif

constexpr unsigned WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffff;

/// Whether `address` is a multiple of 16 bytes, as copies of whole vectors need.
__device__ __forceinline__ bool is_aligned_16(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }
