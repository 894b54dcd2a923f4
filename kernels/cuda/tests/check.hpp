// What all tests of kernels use: random values, comparison with a reference in double precision, and launches on the
// stand-in.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "host_device.hpp"
#include "standin.hpp"

using standin::Buffer;
using standin::Dim;

inline int failures = 0;
inline std::mt19937 generator(17);

inline void fail(const std::string& what) {
    // The first ones say enough.
    if (++failures <= 20) std::printf("FAILED %s\n", what.c_str());
}

inline void expect(bool holds, const std::string& what) {
    if (!holds) fail(what);
}

/// The type's name in kernels' names, and how far a rounded value is from what was rounded, relative to it.
template <typename T> struct Type;
template <> struct Type<float> {
    static constexpr const char* name = "f32";
    static constexpr double error = 0x1p-24;
};
template <> struct Type<half_t> {
    static constexpr const char* name = "f16";
    static constexpr double error = 0x1p-11;
};
template <> struct Type<bf16> {
    static constexpr const char* name = "bf16";
    static constexpr double error = 0x1p-8;
};

inline unsigned ceil_div(uint64_t a, uint64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

inline unsigned below(unsigned bound) { return std::uniform_int_distribution<unsigned>(0, bound - 1)(generator); }

template <typename T> std::vector<T> random_values(size_t count, float spread = 1.0f) {
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<T> values(count);
    for (T& value : values) value = from_float<T>(normal(generator));
    return values;
}

/// 0..count, shuffled.
inline std::vector<unsigned> shuffled(unsigned count) {
    std::vector<unsigned> order(count);
    for (unsigned i = 0; i < count; ++i) order[i] = i;
    for (unsigned i = count; i > 1; --i) std::swap(order[i - 1], order[below(i)]);
    return order;
}

/// Launches and says what the stand-in found.
template <typename... Arguments>
void run(const std::string& kernel, Dim grid, Dim block, size_t shared_bytes, Arguments... arguments) {
    standin::launch(kernel.c_str(), grid, block, shared_bytes, arguments...);
    const std::string problems = standin::problems();
    if (!problems.empty()) fail(kernel + ": " + problems.substr(0, 600));
}

/// Each value within `relative` of the wanted one, and `absolute` more.
template <typename T>
void expect_near(const std::string& what, const std::vector<T>& got, const std::vector<double>& wanted, double relative,
                 double absolute) {
    expect(got.size() == wanted.size(), what + ": lengths");
    for (size_t i = 0; i < got.size() && i < wanted.size(); ++i) {
        const double value = to_float(got[i]);
        if (std::fabs(value - wanted[i]) <= relative * std::fabs(wanted[i]) + absolute) continue;
        fail(what + ": value " + std::to_string(i) + " is " + std::to_string(value) + ", not " + std::to_string(wanted[i]));
        return;
    }
}

template <typename T> void expect_same_bits(const std::string& what, const std::vector<T>& a, const std::vector<T>& b) {
    expect(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0, what + ": bits differ");
}

template <typename T> T* null() { return nullptr; }

void test_rows();
void test_values();
void test_positions();
void test_attention();
void test_attention_weights();
void test_gemm();
void test_experts();
