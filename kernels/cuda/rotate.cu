// Queries for attention: each head of a row rotated to the row's position (see rotate.cuh), times `scale`, then rounded to
// T.
//
// in [rows, heads, head_dim] of f32, out the same of T.
// block 256, grid ceil(rows * heads * (head_dim - pairs) / 256): a thread has one pair, or one element that stays.
#include "rotate.cuh"

template <typename T>
__device__ __forceinline__ void rotate(T* out, const float* in, const unsigned* positions, const float* angles, unsigned pairs,
                                       float scale, unsigned rows, unsigned heads, unsigned head_dim) {
    const RotationUnit at = rotation_unit(uint64_t{rows} * heads, head_dim, pairs);
    if (!at.exists) return;
    const float* from = in + at.head * head_dim;
    T* to = out + at.head * head_dim;
    if (at.unit < pairs) {
        const unsigned position = positions[at.head / heads];
        const float2 pair = turned(from[at.unit], from[at.unit + pairs], angles, position, pairs, at.unit);
        to[at.unit] = from_float<T>(pair.x * scale);
        to[at.unit + pairs] = from_float<T>(pair.y * scale);
    } else {
        to[at.unit + pairs] = from_float<T>(from[at.unit + pairs] * scale);
    }
}

#define ROTATE(name, T)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                      \
        name(T* out, const float* in, const unsigned* positions, const float* angles, unsigned pairs, float scale,         \
             unsigned rows, unsigned heads, unsigned head_dim) {                                                           \
        rotate(out, in, positions, angles, pairs, scale, rows, heads, head_dim);                                           \
    }

ROTATE(rotate_f32, float)
ROTATE(rotate_f16, half_t)
ROTATE(rotate_bf16, bf16)
