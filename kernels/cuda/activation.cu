// Element by element: activations, sums, scalings and conversions.
//
// gated_{silu,gelu}     out[r][i] = act(gate_up[r][i]) * gate_up[r][width + i]; gate_up [rows, 2 * width] of f32, out
// [rows, width] of X activate_{gelu,relu}  out[i] = act(in[i])
// convert               out[i] = in[i] rounded to T
// add_scaled            to[i] += scale * from[i]
// scale_values          values[i] *= by
//
// block 256, one thread a value of the output: grid ceil(values / 256).
#include "activation.cuh"

__device__ __forceinline__ uint64_t value_of_thread() { return uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

template <typename X, typename Activation>
__device__ __forceinline__ void gated(X* out, const float* gate_up, unsigned rows, unsigned width) {
    const uint64_t i = value_of_thread();
    if (i >= uint64_t{rows} * width) return;
    const float* gate = gate_up + i / width * 2 * width + i % width;
    out[i] = from_float<X>(Activation()(gate[0]) * gate[width]);
}

#define GATED(name, X, Activation)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                                      \
        name(X* out, const float* gate_up, unsigned rows, unsigned width) {                                                \
        gated<X, Activation>(out, gate_up, rows, width);                                                                   \
    }

#define ACTIVATE(name, X, Activation)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) name(X* out, const float* in, unsigned long long count) {            \
        const uint64_t i = value_of_thread();                                                                              \
        if (i < count) out[i] = from_float<X>(Activation()(in[i]));                                                        \
    }

#define CONVERT(name, T)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(256) name(T* out, const float* in, unsigned long long count) {            \
        const uint64_t i = value_of_thread();                                                                              \
        if (i < count) out[i] = from_float<T>(in[i]);                                                                      \
    }

GATED(gated_silu_f32, float, Silu)
GATED(gated_silu_bf16, bf16, Silu)
GATED(gated_gelu_f32, float, Gelu)
GATED(gated_gelu_bf16, bf16, Gelu)
ACTIVATE(activate_gelu_f32, float, Gelu)
ACTIVATE(activate_gelu_bf16, bf16, Gelu)
ACTIVATE(activate_relu_f32, float, Relu)
ACTIVATE(activate_relu_bf16, bf16, Relu)
CONVERT(convert_f32, float)
CONVERT(convert_f16, half_t)
CONVERT(convert_bf16, bf16)

extern "C" __global__ void __launch_bounds__(256)
    add_scaled(float* to, const float* from, float scale, unsigned long long count) {
    const uint64_t i = value_of_thread();
    if (i < count) to[i] = fmaf(scale, from[i], to[i]);
}

extern "C" __global__ void __launch_bounds__(256) scale_values(float* values, float by, unsigned long long count) {
    const uint64_t i = value_of_thread();
    if (i < count) values[i] *= by;
}
