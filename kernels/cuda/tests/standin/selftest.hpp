// What the parts of the self-test share.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "standin.hpp"

/// Counts and prints what is not as it should be.
inline int failures = 0;

inline void expect(bool is_right, const std::string& what) {
    if (is_right) return;
    ++failures;
    std::printf("FAILED: %s\n", what.c_str());
}

/// Runs `body` under `seeds` seeds: no problem may be found.
inline void finds_nothing(const std::string& name, unsigned seeds, const std::function<void()>& body) {
    for (unsigned seed = 1; seed <= seeds; ++seed) {
        standin::set_seed(seed);
        body();
        const std::string text = standin::problems();
        expect(text.empty(), name + " with seed " + std::to_string(seed) + " is right, but: " + text);
        if (!text.empty()) return;
    }
}

/// Runs `body` under `seeds` seeds: each time a problem must be found whose text contains `wanted`.
inline void finds(const std::string& name, const std::string& wanted, unsigned seeds, const std::function<void()>& body) {
    for (unsigned seed = 1; seed <= seeds; ++seed) {
        standin::set_seed(seed);
        body();
        const std::string text = standin::problems();
        const bool is_found = text.find(wanted) != std::string::npos;
        expect(is_found, name + " with seed " + std::to_string(seed) + ": wanted \"" + wanted + "\", got \"" + text + "\"");
        if (!is_found) return;
        if (seed == 1) std::printf("%-28s %s", name.c_str(), text.substr(0, text.find('\n') + 1).c_str());
    }
}

void test_values();
void test_kernels();
void test_streams();
void test_driver();
void test_peers();
