// Random weights of 8 bits, packed by definition (q8.cuh).
#pragma once

#include "check.hpp"

struct Quants {
    unsigned outputs, inputs;
    /// [outputs, inputs]
    std::vector<int> values;
    /// [outputs]
    std::vector<float> scales;
    std::vector<uint8_t> lines;

    Quants(unsigned outputs_, unsigned inputs_) : outputs(outputs_), inputs(inputs_) {
        // Which input each of 16 bytes is of.
        constexpr unsigned INPUTS[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
        // Weights of about one, as those of other tests are.
        scales = random_values<float>(outputs, 0.015f);
        for (unsigned i = 0; i < outputs * inputs; ++i) values.push_back(static_cast<int>(below(255)) - 127);
        for (unsigned output = 0; output < outputs; ++output) {
            for (unsigned place = 0; place < line_bytes(); ++place) {
                const unsigned input = place / 16 * 16 + INPUTS[place % 16];
                lines.push_back(static_cast<uint8_t>(128 + (input < inputs ? values[output * inputs + input] : 0)));
            }
        }
    }

    unsigned line_bytes() const { return ceil_div(inputs, 16) * 16; }

    double weight(unsigned output, unsigned input) const {
        return static_cast<double>(scales[output]) * values[size_t{output} * inputs + input];
    }

    /// The integers, which bf16 has exactly.
    std::vector<bf16> as_bf16() const {
        std::vector<bf16> all;
        for (const int value : values) all.push_back(from_float<bf16>(static_cast<float>(value)));
        return all;
    }
};
