// Runs every kernel on the stand-in for the driver and compares it with a plain reference.
//
//     kernels_test [part ...]     parts: rows, values, positions, attention, weights, gemm, experts; all of them if none is given
#include <chrono>

#include "check.hpp"

int main(int count, char** arguments) {
    struct Part {
        const char* name;
        void (*test)();
    };
    const Part parts[] = {{"rows", test_rows},           {"values", test_values},
                          {"positions", test_positions}, {"attention", test_attention},
                          {"weights", test_attention_weights}, {"gemm", test_gemm},
                          {"experts", test_experts}};
    for (const Part& part : parts) {
        bool is_wanted = count == 1;
        for (int i = 1; i < count; ++i) is_wanted = is_wanted || std::strcmp(arguments[i], part.name) == 0;
        if (!is_wanted) continue;
        const int before = failures;
        const auto started = std::chrono::steady_clock::now();
        part.test();
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
        std::printf("%-10s %s, %.1f s\n", part.name, failures == before ? "passed" : "FAILED", seconds);
    }
    return failures == 0 ? 0 : 1;
}
