// Tests of activation.cu.
#include "check.hpp"

namespace {

double silu(double x) { return x / (1.0 + std::exp(-x)); }
double gelu(double x) { return x / 2.0 * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x))); }
double relu(double x) { return x < 0.0 ? 0.0 : x; }

/// Random values, and those where something might overflow.
std::vector<float> values_with_extremes(size_t count) {
    std::vector<float> values = random_values<float>(count, 4.0f);
    const float extremes[] = {0.0f, -0.0f, 100.0f, -100.0f, 1e-30f, -1e4f, 1e4f};
    for (size_t i = 0; i < count && i < std::size(extremes); ++i) values[i] = extremes[i];
    return values;
}

template <typename X> void test_gated(const std::string& kernel, double (*act)(double), unsigned rows, unsigned width) {
    const std::vector<float> in = values_with_extremes(size_t{rows} * 2 * width);
    std::vector<double> wanted;
    for (unsigned i = 0; i < rows * width; ++i) {
        const float* gate = &in[i / width * 2 * width + i % width];
        wanted.push_back(act(gate[0]) * gate[width]);
    }
    Buffer<float> from(in);
    Buffer<X> out(rows * width);
    const std::string name = kernel + "_" + Type<X>::name;
    run(name, ceil_div(rows * width, 256), 256, 0, out.get(), from.get(), rows, width);
    // e^100 is not a number of f32: what is smaller than 1e-30 may be zero.
    expect_near(name, out.read(), wanted, Type<X>::error + 2e-5, 1e-6);
}

template <typename X> void test_activate(const std::string& kernel, double (*act)(double), unsigned count) {
    const std::vector<float> in = values_with_extremes(count);
    std::vector<double> wanted;
    for (const float x : in) wanted.push_back(act(x));
    Buffer<float> from(in);
    Buffer<X> out(count);
    const std::string name = kernel + "_" + Type<X>::name;
    run(name, ceil_div(count, 256), 256, 0, out.get(), from.get(), uint64_t{count});
    expect_near(name, out.read(), wanted, Type<X>::error + 2e-5, 1e-6);
}

/// The number of T that is nearest to x, of two the one whose last bit is zero: found by trying all of them.
template <typename T> uint16_t nearest(double x) {
    const bool is_f16 = std::is_same_v<T, half_t>;
    const auto value = [&](uint32_t bits) {
        if (!is_f16) return static_cast<double>(std::bit_cast<float>(bits << 16));
        const int exponent = static_cast<int>(bits >> 10 & 31);
        const double fraction = bits & 1023;
        const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024.0 + fraction, exponent - 25);
        return bits & 0x8000 ? -magnitude : magnitude;
    };
    const uint32_t infinity = is_f16 ? 0x7c00 : 0x7f80, sign = std::signbit(x) ? 0x8000 : 0;
    uint32_t low = 0, high = infinity - 1;
    // Magnitudes grow with their bits.
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        (std::fabs(value(middle)) <= std::fabs(x) ? low : high) = middle;
    }
    const double to_low = std::fabs(x) - value(low), to_high = value(high) - std::fabs(x);
    const bool is_high = to_high < to_low || (to_high == to_low && high % 2 == 0);
    return static_cast<uint16_t>(sign | (is_high ? high : low));
}

template <typename T> void test_convert() {
    std::vector<float> in = random_values<float>(4000, 10.0f);
    for (int exponent = -30; exponent < 17; ++exponent) {
        // Ties between two neighbours of each type, and what is just beside them.
        for (const float fraction : {1.0f, 1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 1.0f + 0x1p-11f, 1.0f + 0x3p-11f, 1.99999988f}) {
            const float x = std::ldexp(fraction, exponent);
            if (std::is_same_v<T, half_t> && x > 65504.0f) continue;
            in.insert(in.end(), {x, -x, std::nextafter(x, 0.0f)});
        }
    }
    std::vector<uint16_t> wanted;
    for (const float x : in) wanted.push_back(nearest<T>(x));
    if (std::is_same_v<T, half_t>) {
        in.insert(in.end(), {65519.0f, 65520.0f, -1e30f, INFINITY});
        wanted.insert(wanted.end(), {0x7bff, 0x7bff, 0xfbff, 0x7bff});
    }
    const unsigned count = static_cast<unsigned>(in.size());
    in.push_back(NAN);
    Buffer<float> from(in);
    Buffer<T> out(in.size());
    const std::string name = std::string("convert_") + Type<T>::name;
    run(name, ceil_div(count + 1, 256), 256, 0, out.get(), from.get(), uint64_t{count + 1});
    const std::vector<T> got = out.read();
    for (unsigned i = 0; i < count; ++i) {
        if (std::bit_cast<uint16_t>(got[i]) == wanted[i]) continue;
        fail(name + " of " + std::to_string(in[i]));
        break;
    }
    expect(std::isnan(to_float(got[count])), name + " of a NaN");
}

void test_sums(unsigned count) {
    const std::vector<float> to = random_values<float>(count), from = random_values<float>(count);
    std::vector<double> sums, products;
    for (unsigned i = 0; i < count; ++i) {
        sums.push_back(to[i] + 0.3f * static_cast<double>(from[i]));
        products.push_back(to[i] * 0.3f);
    }
    Buffer<float> sum(to), added(from), product(to), copy(count);
    run("add_scaled", ceil_div(count, 256), 256, 0, sum.get(), added.get(), 0.3f, uint64_t{count});
    expect_near("add_scaled", sum.read(), sums, 1e-6, 1e-6);
    run("scale_values", ceil_div(count, 256), 256, 0, product.get(), 0.3f, uint64_t{count});
    expect_near("scale_values", product.read(), products, 1e-6, 0.0);
    run("convert_f32", ceil_div(count, 256), 256, 0, copy.get(), added.get(), uint64_t{count});
    expect_same_bits("convert_f32", copy.read(), from);
}

}  // namespace

void test_values() {
    for (const unsigned rows : {1u, 3u, 17u}) {
        for (const unsigned width : {1u, 7u, 255u, 300u}) {
            test_gated<float>("gated_silu", silu, rows, width);
            test_gated<bf16>("gated_silu", silu, rows, width);
            test_gated<float>("gated_gelu", gelu, rows, width);
            test_gated<bf16>("gated_gelu", gelu, rows, width);
        }
    }
    for (const unsigned count : {1u, 255u, 256u, 1001u}) {
        test_activate<float>("activate_gelu", gelu, count);
        test_activate<bf16>("activate_gelu", gelu, count);
        test_activate<float>("activate_relu", relu, count);
        test_activate<bf16>("activate_relu", relu, count);
        test_sums(count);
    }
    test_convert<half_t>();
    test_convert<bf16>();
}
