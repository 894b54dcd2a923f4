// Tests of gemm.cu, gemm_plain.cu and gemm_q8.cu.
#include "quants.hpp"

namespace {

struct Variant {
    std::string name;
    unsigned rows, outputs, threads, shared_bytes;
};

template <typename X> std::vector<Variant> variants();
template <> std::vector<Variant> variants<float>() {
    return {{"gemm_f32_16", 16, 32, 128, 0}, {"gemm_f32_64", 64, 64, 256, 0}};
}
template <> std::vector<Variant> variants<bf16>() {
    return {{"gemm_bf16_16", 16, 32, 64, 49152}, {"gemm_bf16_64", 64, 64, 128, 49152}, {"gemm_bf16_128", 128, 128, 128, 49152}};
}

struct Case {
    unsigned rows, outputs, inputs;
    bool has_bias, add;
    /// Values before x and w: bases that are not aligned to 16 bytes.
    unsigned shift;
};

template <typename X>
std::vector<float> product(const Variant& variant, const Case& of, X* x, X* w, float* bias, const std::vector<float>& before) {
    Buffer<float> out(before);
    run(variant.name, Dim(ceil_div(of.rows, variant.rows), ceil_div(of.outputs, variant.outputs)), variant.threads,
        variant.shared_bytes, out.get(), x, w, of.has_bias ? bias : nullptr, of.rows, of.outputs, of.inputs, unsigned{of.add});
    return out.read();
}

template <typename X> void test_product(const Case& of) {
    const std::vector<X> x = random_values<X>(size_t{of.rows} * of.inputs + of.shift);
    const std::vector<X> w = random_values<X>(size_t{of.outputs} * of.inputs + of.shift);
    const std::vector<float> bias = random_values<float>(of.outputs);
    const std::vector<float> before = random_values<float>(size_t{of.rows} * of.outputs);
    std::vector<double> wanted;
    for (unsigned row = 0; row < of.rows; ++row) {
        for (unsigned output = 0; output < of.outputs; ++output) {
            double sum = of.add ? before[row * of.outputs + output] : 0.0;
            if (of.has_bias) sum += bias[output];
            for (unsigned i = 0; i < of.inputs; ++i) {
                sum += static_cast<double>(to_float(x[of.shift + row * of.inputs + i])) *
                       to_float(w[of.shift + output * of.inputs + i]);
            }
            wanted.push_back(sum);
        }
    }
    Buffer<X> x_buffer(x), w_buffer(w);
    Buffer<float> bias_buffer(bias);
    std::vector<float> first;
    for (const Variant& variant : variants<X>()) {
        const std::string what = variant.name + " " + std::to_string(of.rows) + "x" + std::to_string(of.outputs) + "x" +
                                 std::to_string(of.inputs);
        const std::vector<float> got =
            product(variant, of, x_buffer.get() + of.shift, w_buffer.get() + of.shift, bias_buffer.get(), before);
        expect_near(what, got, wanted, 1e-5, 1e-6 * of.inputs + 1e-5);
        if (first.empty()) first = got;
        expect_same_bits(what + " beside another tile", got, first);
    }
    // The last row alone.
    const Case alone = {1, of.outputs, of.inputs, of.has_bias, of.add, of.shift};
    const size_t row = of.rows - 1;
    const std::vector<float> its_before(before.end() - of.outputs, before.end());
    const std::vector<float> got = product(variants<X>()[0], alone, x_buffer.get() + of.shift + row * of.inputs,
                                           w_buffer.get() + of.shift, bias_buffer.get(), its_before);
    expect_same_bits(variants<X>()[0].name + ": a row alone", got, std::vector<float>(first.end() - of.outputs, first.end()));
}

std::vector<float> product_q8(unsigned tile, const Case& of, bf16* x, uint8_t* lines, float* scales, float* bias,
                              const std::vector<float>& before) {
    // Tiles, blocks and shared memory are those of bf16.
    const Variant variant = variants<bf16>()[tile];
    Buffer<float> out(before);
    run("gemm_q8" + variant.name.substr(variant.name.rfind('_')), Dim(ceil_div(of.rows, variant.rows), ceil_div(of.outputs, variant.outputs)),
        variant.threads, variant.shared_bytes, out.get(), x, lines, scales, of.has_bias ? bias : nullptr, of.rows, of.outputs,
        of.inputs, unsigned{of.add});
    return out.read();
}

/// Near the exact sums; and to the last bit what bf16 makes of the same integers, scaled and rounded once.
void test_product_q8(const Case& of) {
    const std::vector<bf16> x = random_values<bf16>(size_t{of.rows} * of.inputs + of.shift);
    const Quants quants(of.outputs, of.inputs);
    const std::vector<float> bias = random_values<float>(of.outputs);
    const std::vector<float> before = random_values<float>(size_t{of.rows} * of.outputs);
    Buffer<bf16> x_buffer(x), integers(quants.as_bf16());
    Buffer<uint8_t> lines(quants.lines);
    Buffer<float> scales(quants.scales), bias_buffer(bias);
    const Case plain = {of.rows, of.outputs, of.inputs, false, false, of.shift};
    const std::vector<float> sums =
        product(variants<bf16>()[0], plain, x_buffer.get() + of.shift, integers.get(), bias_buffer.get(), before);
    std::vector<double> wanted;
    std::vector<float> bits;
    for (unsigned row = 0; row < of.rows; ++row) {
        for (unsigned output = 0; output < of.outputs; ++output) {
            const float added = of.has_bias ? bias[output] : 0.0f, there = of.add ? before[row * of.outputs + output] : 0.0f;
            double sum = static_cast<double>(there) + added;
            for (unsigned i = 0; i < of.inputs; ++i) {
                sum += to_float(x[of.shift + row * of.inputs + i]) * quants.weight(output, i);
            }
            wanted.push_back(sum);
            bits.push_back(there + std::fmaf(sums[row * of.outputs + output], quants.scales[output], added));
        }
    }
    for (unsigned tile = 0; tile < variants<bf16>().size(); ++tile) {
        const std::string what = "product of q8, tile " + std::to_string(tile) + ", " + std::to_string(of.rows) + "x" +
                                 std::to_string(of.outputs) + "x" + std::to_string(of.inputs);
        const std::vector<float> got =
            product_q8(tile, of, x_buffer.get() + of.shift, lines.get(), scales.get(), bias_buffer.get(), before);
        expect_near(what, got, wanted, 1e-5, 1e-6 * of.inputs + 1e-5);
        expect_same_bits(what + " beside bf16", got, bits);
    }
    // The last row alone.
    const Case alone = {1, of.outputs, of.inputs, of.has_bias, of.add, of.shift};
    const std::vector<float> its_before(before.end() - of.outputs, before.end());
    const std::vector<float> got = product_q8(0, alone, x_buffer.get() + of.shift + size_t{of.rows - 1} * of.inputs, lines.get(),
                                              scales.get(), bias_buffer.get(), its_before);
    expect_same_bits("product of q8: a row alone", got, std::vector<float>(bits.end() - of.outputs, bits.end()));
}

}  // namespace

void test_gemm() {
    const Case cases[] = {
        {1, 1, 1, false, false, 0},     {1, 33, 16, true, false, 0},   {2, 64, 8, false, true, 0},
        {7, 65, 100, true, true, 0},    {16, 40, 64, true, false, 0},  {17, 129, 72, false, true, 0},
        {33, 31, 200, true, true, 1},   {100, 130, 33, true, false, 0}, {130, 66, 136, true, true, 0},
        {3, 96, 650, true, false, 0},   {5, 7, 1000, false, false, 0}, {65, 9, 96, true, true, 3},
    };
    for (const Case& of : cases) {
        test_product<float>(of);
        test_product<bf16>(of);
        test_product_q8(of);
    }
}
