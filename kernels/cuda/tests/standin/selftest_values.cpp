// Number formats, and the results of warps' instructions.

#include <bit>
#include <cmath>
#include <limits>

#include "host_device.hpp"
#include "selftest.hpp"

using standin::Buffer;
using standin::launch;

namespace {

/// The nearest of all values of a format with 16 bits, the even one of two, by looking at the neighbours of `bits`.
template <typename Value>
bool is_nearest(float x, uint16_t bits, Value value) {
    const double distance = std::fabs(double{value(bits)} - x);
    for (const int step : {-1, 1}) {
        const auto other = static_cast<uint16_t>(bits + step);
        if ((other & 0x7fff) > 0x7f7f || ((other ^ bits) & 0x8000) != 0) continue;
        const double other_distance = std::fabs(double{value(other)} - x);
        if (!std::isfinite(other_distance)) continue;
        if (other_distance < distance || (other_distance == distance && bits % 2 != 0)) return false;
    }
    return true;
}

void test_formats() {
    bool halves = true, bf16s = true;
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
        const auto word = static_cast<uint16_t>(bits);
        const float half = standin::half_value(word), brain = standin::bf16_value(word);
        halves = halves && (std::isnan(half) ? (word & 0x7fff) > 0x7c00 : standin::half_bits(half) == word);
        bf16s = bf16s && (std::isnan(brain) ? (word & 0x7fff) > 0x7f80 : standin::bf16_bits(brain) == word);
    }
    expect(halves, "every f16 comes back from f32");
    expect(bf16s, "every bf16 comes back from f32");
    bool half_nearest = true, bf16_nearest = true;
    for (uint64_t bits = 0; bits < 0x100000000; bits += 4093) {
        const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
        if (!std::isfinite(x)) continue;
        if (std::fabs(x) < 65504) half_nearest = half_nearest && is_nearest(x, standin::half_bits(x), standin::half_value);
        if (std::fabs(x) < 3e38f) bf16_nearest = bf16_nearest && is_nearest(x, standin::bf16_bits(x), standin::bf16_value);
    }
    expect(half_nearest, "f32 rounds to the nearest f16");
    expect(bf16_nearest, "f32 rounds to the nearest bf16");
    expect(standin::half_value(0x3555) == 0.333251953125f && standin::half_value(0x0001) == 0x1p-24f, "values of f16");
    expect(standin::half_bits(0x1p-25f) == 0 && standin::half_bits(0x1.8p-25f) == 1, "the smallest f16");
    expect(standin::half_bits(65519.0f) == 0x7bff && standin::half_bits(65520.0f) == 0x7c00, "the largest f16");
    expect(from_float<half_t>(1e6f).bits == 0x7bff && from_float<half_t>(-INFINITY).bits == 0xfbff, "f16 saturates");
    expect(__byte_perm(0x33221100, 0x77665544, 0x7061) == 0x77006611, "bytes of two words");
    expect(std::isnan(to_float(from_float<half_t>(NAN))) && std::isnan(to_float(from_float<bf16>(NAN))), "no number stays none");
}

template <typename T>
void test_product(const char* name) {
    std::vector<T> a(16 * 16), b(16 * 8);
    for (unsigned i = 0; i < a.size(); ++i) a[i] = from_float<T>(static_cast<float>((i * 7 + 3) % 23) - 11.0f);
    for (unsigned i = 0; i < b.size(); ++i) b[i] = from_float<T>(static_cast<float>((i * 5 + 1) % 19) - 9.0f);
    finds_nothing(name, 50, [&] {
        Buffer<T> device_a(a), device_b(b);
        Buffer<float> d(16 * 8);
        launch(name, 1, 32, 0, d.get(), device_a.get(), device_b.get());
        const std::vector<float> got = d.read();
        for (unsigned row = 0; row < 16; ++row) {
            for (unsigned column = 0; column < 8; ++column) {
                float wanted = 0.0f;
                for (unsigned k = 0; k < 16; ++k) wanted += to_float(a[row * 16 + k]) * to_float(b[column * 16 + k]);
                expect(got[row * 8 + column] == wanted, std::string(name) + ": a value of the product");
            }
        }
    });
}

void test_transpose() {
    std::vector<uint32_t> in(128);
    for (unsigned i = 0; i < 128; ++i) in[i] = 2 * i | (2 * i + 1) << 16;
    Buffer<uint32_t> device_in(in), out(128);
    launch("transpose_8x8", 1, 32, 0, out.get(), static_cast<const uint32_t*>(device_in.get()));
    const std::vector<uint32_t> got = out.read();
    bool is_right = true;
    for (unsigned i = 0; i < 128; ++i) {
        const unsigned tile = i / 32, column = i % 32 / 4, row = i % 4 * 2;
        is_right = is_right && got[i] == ((tile * 64 + row * 8 + column) | (tile * 64 + row * 8 + 8 + column) << 16);
    }
    expect(is_right && standin::problems().empty(), "ldmatrix transposes");
}

void test_shuffles() {
    finds_nothing("shuffle_and_vote", 50, [] {
        Buffer<unsigned> out(32 * 7);
        launch("shuffle_and_vote", 1, 32, 0, out.get());
        const std::vector<unsigned> got = out.read();
        bool is_right = true;
        for (unsigned lane = 0; lane < 32; ++lane) {
            const unsigned wanted[7] = {lane < 3 ? lane : lane - 3,
                                        lane > 28 ? lane : lane + 3,
                                        lane % 8 > 4 ? lane : lane + 3,
                                        lane / 8 * 8 + 5,
                                        0x49249249,
                                        2,
                                        lane < 16 ? lane ^ 5 : lane ^ 6};
            for (unsigned i = 0; i < 7; ++i) is_right = is_right && got[lane * 7 + i] == wanted[i];
        }
        expect(is_right, "shuffles and votes");
    });
}

}  // namespace

void test_values() {
    test_formats();
    test_product<bf16>("multiply_bf16");
    test_product<half_t>("multiply_f16");
    test_transpose();
    test_shuffles();
}
