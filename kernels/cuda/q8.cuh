// Weights of 8 bits: integers from -127 to 127, and an f32 for each output that a line of them is multiplied with. The CPU's
// rule (`--weights q8`), and its values.
//
// A line has the inputs of an output, 16 after each other, filled up with zeros to whole 16. Of 16 it has the order in which
// the lanes of mma.m16n8k16 take them: word t is inputs 2t, 2t + 1, 2t + 8, 2t + 9, from the lowest byte on. A byte is 128 more
// than what it stands for. Lines begin at multiples of 16 bytes.
#pragma once

#include "device.cuh"

/// A byte of a line.
struct q8 {
    uint8_t bits;
};

/// Inputs that are put in another order together: those of an mma, in 16 bytes.
constexpr unsigned Q8_CHUNK = 16;

/// Bytes of a line.
__device__ __forceinline__ size_t q8_line(unsigned inputs) { return (size_t{inputs} + Q8_CHUNK - 1) / Q8_CHUNK * Q8_CHUNK; }

/// Where an input stands in its line.
__device__ __forceinline__ unsigned q8_place(unsigned input) {
    const unsigned within = input % Q8_CHUNK;
    return input - within + within % 8 / 2 * 4 + within / 8 * 2 + within % 2;
}

/// What a byte stands for.
__device__ __forceinline__ float to_float(q8 x) { return static_cast<float>(static_cast<int>(x.bits) - 128); }

/// What a word stands for, as a column's part of an mma's b: exact in bf16. 2^23 plus the byte, of which 2^23 + 128 is taken off,
/// is an f32 whose lower half is zero.
__device__ __forceinline__ void unpack_q8(uint32_t b[2], uint32_t word) {
    uint32_t bits[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        bits[i] = __float_as_uint(__uint_as_float(__byte_perm(word, 0x4b000000, 0x7440 + i)) - 8388736.0f);
    }
    b[0] = __byte_perm(bits[0], bits[1], 0x7632);
    b[1] = __byte_perm(bits[2], bits[3], 0x7632);
}
