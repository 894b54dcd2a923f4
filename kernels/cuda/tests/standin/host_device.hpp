// The host form of the CUDA C++ that the kernels use. kernels/cuda/device.cuh includes it wherever the compiler is not nvcc.
//
// Every thread of a block is a fibre. What needs other threads (barriers, shuffles, tensor-core products) is a call into the
// executor, out of line, which suspends the fibre; everything else is plain C++ that the compiler may inline. Loads and stores
// are checked because kernels are compiled with -fsanitize=thread: see shadow.hpp.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

// The build script finds kernels by this attribute in the preprocessed text. It also keeps a kernel from being inlined.
#define __global__ __attribute__((used, noipa))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__
// One block runs at a time, so that a block's shared memory can be static. `noinit` gives each variable its own section
// `.noinit.<name>`, in templates too; the build script lays those out with gaps between them.
#define __shared__ static __attribute__((noinit, aligned(16)))
#define __constant__ static const

struct uint3 { unsigned x, y, z; };
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(4) ushort2 { unsigned short x, y; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace standin {

/// Where a collective stands in the source: threads that meet must meet at the same place.
struct Place {
    const char* file;
    unsigned line;
};

enum class Shuffle : unsigned { from_lane, exclusive_or, up, down };
enum class Vote : unsigned { ballot, any, all };
enum class Atomic : unsigned { add, add_float, minimum, maximum, bit_and, bit_or, exchange, compare_exchange };
enum class MmaType : unsigned { bf16, f16 };

/// The four accumulators of one lane. They travel by value, so that a kernel's arrays need no address and stay in registers.
struct Accumulators { float d0, d1, d2, d3; };

}  // namespace standin

// The executor's side. `const`: a fibre's indices do not change while it lives, so the compiler may keep them in registers.
extern "C" {
__attribute__((const)) uint3 standin_thread_index();
__attribute__((const)) uint3 standin_block_index();
__attribute__((const)) uint3 standin_block_size();
__attribute__((const)) uint3 standin_grid_size();
__attribute__((const)) void* standin_dynamic_shared();
void standin_block_barrier(standin::Place place);
void standin_warp_barrier(unsigned mask, standin::Place place);
uint32_t standin_shuffle(standin::Shuffle kind, unsigned mask, uint32_t value, unsigned argument, unsigned width, standin::Place place);
uint32_t standin_vote(standin::Vote kind, unsigned mask, bool predicate, standin::Place place);
standin::Accumulators standin_mma(standin::Accumulators sum, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                  uint32_t b1, standin::MmaType type, standin::Place place);
uint4 standin_load_matrix(const void* row, bool is_transposed, standin::Place place);
void standin_copy_async(void* shared, const void* global, unsigned bytes);
void standin_copy_async_commit();
void standin_copy_async_wait(unsigned pending);
uint32_t standin_atomic(standin::Atomic kind, void* address, uint32_t value, uint32_t compare);
[[noreturn]] void standin_trap(standin::Place place);
}

#define threadIdx (::standin_thread_index())
#define blockIdx (::standin_block_index())
#define blockDim (::standin_block_size())
#define gridDim (::standin_grid_size())
inline constexpr int warpSize = 32;

#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(::standin_dynamic_shared())
#endif

#define STANDIN_PLACE const char *file = __builtin_FILE(), unsigned line = __builtin_LINE()

inline void __syncthreads(STANDIN_PLACE) { standin_block_barrier({file, line}); }
inline void __syncwarp(unsigned mask = 0xffffffffu, STANDIN_PLACE) { standin_warp_barrier(mask, {file, line}); }
[[noreturn]] inline void __trap(STANDIN_PLACE) { standin_trap({file, line}); }

namespace standin {

/// Shuffles values of 2, 4 or 8 bytes as one or two words.
template <typename T>
inline T shuffle(Shuffle kind, unsigned mask, T value, unsigned argument, int width, Place place) {
    static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8));
    const auto w = static_cast<unsigned>(width);
    if constexpr (sizeof(T) == 8) {
        const auto whole = std::bit_cast<uint64_t>(value);
        const uint64_t low = standin_shuffle(kind, mask, static_cast<uint32_t>(whole), argument, w, place);
        const uint64_t high = standin_shuffle(kind, mask, static_cast<uint32_t>(whole >> 32), argument, w, place);
        return std::bit_cast<T>(low | high << 32);
    } else if constexpr (sizeof(T) == 4) {
        return std::bit_cast<T>(standin_shuffle(kind, mask, std::bit_cast<uint32_t>(value), argument, w, place));
    } else {
        const uint32_t word = standin_shuffle(kind, mask, std::bit_cast<uint16_t>(value), argument, w, place);
        return std::bit_cast<T>(static_cast<uint16_t>(word));
    }
}

}  // namespace standin

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, STANDIN_PLACE) {
    return standin::shuffle(standin::Shuffle::from_lane, mask, value, static_cast<unsigned>(lane), width, {file, line});
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, STANDIN_PLACE) {
    return standin::shuffle(standin::Shuffle::exclusive_or, mask, value, static_cast<unsigned>(lanes), width, {file, line});
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, STANDIN_PLACE) {
    return standin::shuffle(standin::Shuffle::up, mask, value, delta, width, {file, line});
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, STANDIN_PLACE) {
    return standin::shuffle(standin::Shuffle::down, mask, value, delta, width, {file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, STANDIN_PLACE) {
    return standin_vote(standin::Vote::ballot, mask, predicate != 0, {file, line});
}
inline int __any_sync(unsigned mask, int predicate, STANDIN_PLACE) {
    return static_cast<int>(standin_vote(standin::Vote::any, mask, predicate != 0, {file, line}));
}
inline int __all_sync(unsigned mask, int predicate, STANDIN_PLACE) {
    return static_cast<int>(standin_vote(standin::Vote::all, mask, predicate != 0, {file, line}));
}

inline unsigned atomicAdd(unsigned* to, unsigned value) { return standin_atomic(standin::Atomic::add, to, value, 0); }
inline int atomicAdd(int* to, int value) {
    return static_cast<int>(standin_atomic(standin::Atomic::add, to, static_cast<uint32_t>(value), 0));
}
inline float atomicAdd(float* to, float value) {
    return std::bit_cast<float>(standin_atomic(standin::Atomic::add_float, to, std::bit_cast<uint32_t>(value), 0));
}
inline unsigned atomicMin(unsigned* to, unsigned value) { return standin_atomic(standin::Atomic::minimum, to, value, 0); }
inline unsigned atomicMax(unsigned* to, unsigned value) { return standin_atomic(standin::Atomic::maximum, to, value, 0); }
inline unsigned atomicAnd(unsigned* to, unsigned value) { return standin_atomic(standin::Atomic::bit_and, to, value, 0); }
inline unsigned atomicOr(unsigned* to, unsigned value) { return standin_atomic(standin::Atomic::bit_or, to, value, 0); }
inline unsigned atomicExch(unsigned* to, unsigned value) { return standin_atomic(standin::Atomic::exchange, to, value, 0); }
inline unsigned atomicCAS(unsigned* to, unsigned compare, unsigned value) {
    return standin_atomic(standin::Atomic::compare_exchange, to, value, compare);
}

using std::isfinite;
using std::isinf;
using std::isnan;

// Functions of CUDA's math library that C++ has not.
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
/// Four of the eight bytes of y and x (x lower), each named by four bits of the selector; without the sign's copies.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; ++i) result |= static_cast<unsigned>(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
    return result;
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
template <typename T>
inline T __ldg(const T* from) { return *from; }

// CUDA's min and max mix types; the result has the operands' common type.
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

/// The upper half of an f32.
struct bf16 { uint16_t bits; };
/// IEEE 754 binary16.
struct half_t { uint16_t bits; };

namespace standin {

/// Round to nearest even; a NaN stays one (quiet), as __float2bfloat16_rn does.
inline uint16_t bf16_bits(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/// Round to nearest even; beyond the range it is infinite, as __float2half_rn does.
inline uint16_t half_bits(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    // 65520 is half way between the largest f16 and what would follow it: it and all above round to infinity.
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
        // Below 2^-14: adding 0.5 leaves in the low bits the value in units of 2^-24, rounded by the hardware.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float bf16_value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline float half_value(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // Shifted into place the exponent is too small by 112; the product mends it, for subnormal values too.
    const float scaled = std::bit_cast<float>(magnitude << 13) * std::bit_cast<float>(0x77800000u);
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

}  // namespace standin

inline float to_float(float value) { return value; }
inline float to_float(bf16 value) { return standin::bf16_value(value.bits); }
inline float to_float(half_t value) { return standin::half_value(value.bits); }

/// What is beyond the range of f16 becomes its largest number; what is no number stays so.
inline float into_f16_range(float value) { return fabsf(value) > 65504.0f ? copysignf(65504.0f, value) : value; }

template <typename T>
inline T from_float(float value) {
    if constexpr (std::is_same_v<T, bf16>) {
        return bf16{standin::bf16_bits(value)};
    } else if constexpr (std::is_same_v<T, half_t>) {
        return half_t{standin::half_bits(into_f16_range(value))};
    } else {
        static_assert(std::is_same_v<T, float>);
        return value;
    }
}

/// What the hardware approximates, without its last units' errors.
inline float without_subnormals(float value) { return fabsf(value) < 1.17549435e-38f ? copysignf(0.0f, value) : value; }
inline float approximate_exp2(float x) { return without_subnormals(exp2f(x)); }
inline float approximate_exp(float x) { return approximate_exp2(x * 1.4426950408889634f); }
inline float approximate_inverse(float x) { return without_subnormals(1.0f / without_subnormals(x)); }

/// Two rounded values in one register, `low` in the lower half.
template <typename T>
inline uint32_t pack2(float low, float high) {
    return from_float<T>(low).bits | static_cast<uint32_t>(from_float<T>(high).bits) << 16;
}

namespace standin {

inline void mma(float d[4], const uint32_t a[4], const uint32_t b[2], MmaType type, Place place) {
    const Accumulators sum = standin_mma({d[0], d[1], d[2], d[3]}, a[0], a[1], a[2], a[3], b[0], b[1], type, place);
    d[0] = sum.d0;
    d[1] = sum.d1;
    d[2] = sum.d2;
    d[3] = sum.d3;
}

}  // namespace standin

/// d += a b for a 16x16 tile a (rows), a 16x8 tile b (columns) and a 16x8 tile d, spread over the 32 lanes of a warp as PTX ISA,
/// "Matrix Fragments for mma.m16n8k16 with floating point type", says. Every lane of the warp must call it.
inline void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], bf16, STANDIN_PLACE) {
    standin::mma(d, a, b, standin::MmaType::bf16, {file, line});
}
inline void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], half_t, STANDIN_PLACE) {
    standin::mma(d, a, b, standin::MmaType::f16, {file, line});
}

namespace standin {

inline void load_matrix(uint32_t d[4], const void* row, bool is_transposed, Place place) {
    const uint4 words = standin_load_matrix(row, is_transposed, place);
    d[0] = words.x;
    d[1] = words.y;
    d[2] = words.z;
    d[3] = words.w;
}

}  // namespace standin

/// Loads four 8x8 tiles of 16-bit values from shared memory (PTX ISA, ldmatrix). Lane l names row l % 8 of tile l / 8.
inline void ldmatrix_x4(uint32_t d[4], const void* shared_row, STANDIN_PLACE) {
    standin::load_matrix(d, shared_row, false, {file, line});
}
inline void ldmatrix_x4_transposed(uint32_t d[4], const void* shared_row, STANDIN_PLACE) {
    standin::load_matrix(d, shared_row, true, {file, line});
}

/// Copies of 16 bytes to shared memory in the background (PTX ISA, cp.async). They happen when the thread waits for them; until then
/// the target counts as not written.
inline void copy_async_16(void* shared, const void* global, unsigned bytes) { standin_copy_async(shared, global, bytes); }
inline void copy_async_commit() { standin_copy_async_commit(); }
template <int pending>
inline void copy_async_wait() { standin_copy_async_wait(pending); }
