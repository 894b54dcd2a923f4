// Tests of experts.cu.
#include <algorithm>

#include "quants.hpp"

namespace {

struct Variant {
    std::string suffix;
    unsigned rows, outputs, threads, shared_bytes;
};

template <typename X> std::vector<Variant> variants();
template <> std::vector<Variant> variants<float>() { return {{"f32_16", 16, 32, 128, 0}, {"f32_64", 64, 64, 256, 0}}; }
template <> std::vector<Variant> variants<bf16>() {
    return {{"bf16_16", 16, 32, 64, 49152}, {"bf16_64", 64, 64, 128, 49152}, {"bf16_128", 128, 128, 128, 49152}};
}

/// What `route` gives, by row in ascending order of experts.
struct Choices {
    std::vector<unsigned> chosen;
    std::vector<float> weights;
};

Choices route(const std::vector<float>& scores, unsigned experts, unsigned per_row, bool is_normalized) {
    const unsigned rows = static_cast<unsigned>(scores.size() / experts);
    Buffer<float> from(scores), weights(rows * per_row);
    Buffer<unsigned> chosen(rows * per_row);
    run("route", rows, 128, 0, chosen.get(), weights.get(), from.get(), rows, experts, per_row, unsigned{is_normalized});
    return {chosen.read(), weights.read()};
}

void test_route(const std::string& what, const std::vector<float>& scores, unsigned experts, unsigned per_row, bool is_normalized) {
    std::vector<unsigned> chosen;
    std::vector<double> weights;
    for (size_t row = 0; row < scores.size() / experts; ++row) {
        const float* of = &scores[row * experts];
        std::vector<unsigned> order(experts);
        for (unsigned i = 0; i < experts; ++i) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [&](unsigned a, unsigned b) { return of[a] > of[b]; });
        const double greatest = of[order[0]];
        double total = 0.0;
        for (unsigned i = 0; i < (is_normalized ? per_row : experts); ++i) total += std::exp(of[order[i]] - greatest);
        std::sort(order.begin(), order.begin() + per_row);
        for (unsigned i = 0; i < per_row; ++i) {
            chosen.push_back(order[i]);
            weights.push_back(std::exp(of[order[i]] - greatest) / total);
        }
    }
    const Choices got = route(scores, experts, per_row, is_normalized);
    expect(got.chosen == chosen, "route, " + what + ": other experts");
    expect_near("route, " + what, got.weights, weights, 2e-5, 1e-7);
}

/// Scores that are no numbers: what is chosen exists, once each and ascending, and what is weighed shows it.
void test_route_without_numbers() {
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    for (const std::vector<float>& odd : {std::vector<float>{nan}, {-nan, nan}, {infinity}, {-infinity}, {nan, infinity, -infinity}}) {
        for (const unsigned experts : {3u, 40u, 200u}) {
            std::vector<float> scores(experts);
            for (unsigned i = 0; i < experts; ++i) scores[i] = odd[i % odd.size()];
            const Choices got = route(scores, experts, 3, false);
            for (unsigned i = 0; i < 3; ++i) {
                expect(got.chosen[i] < experts && (i == 0 || got.chosen[i - 1] < got.chosen[i]), "route: no such experts");
                expect(std::isnan(got.weights[i]), "route: a weight of what is no number");
            }
        }
    }
}

/// Choices by expert.
struct Groups {
    std::vector<unsigned> starts, tile_starts, rows, places;
};

Groups expected_groups(const std::vector<unsigned>& chosen, unsigned experts, unsigned per_row, unsigned tile_rows) {
    Groups groups;
    groups.places.resize(chosen.size());
    unsigned tiles = 0;
    for (unsigned expert = 0; expert <= experts; ++expert) {
        const unsigned start = static_cast<unsigned>(groups.rows.size());
        groups.starts.push_back(start);
        groups.tile_starts.push_back(tiles);
        for (unsigned i = 0; i < chosen.size(); ++i) {
            if (chosen[i] != expert) continue;
            groups.places[i] = static_cast<unsigned>(groups.rows.size());
            groups.rows.push_back(i / per_row);
        }
        tiles += ceil_div(groups.rows.size() - start, tile_rows);
    }
    return groups;
}

void test_groups(const Buffer<unsigned>& chosen, unsigned experts, unsigned per_row, unsigned tile_rows, const Groups& wanted) {
    const unsigned choices = static_cast<unsigned>(chosen.count());
    Buffer<unsigned> counts(experts), starts(experts + 1), tile_starts(experts + 1), rows(choices), places(choices);
    run("count_choices", experts, 256, 0, counts.get(), chosen.get(), choices, experts);
    run("group_choices", experts, 256, 0, starts.get(), tile_starts.get(), rows.get(), places.get(), counts.get(), chosen.get(),
        choices, experts, per_row, tile_rows);
    expect(starts.read() == wanted.starts, "group_choices: starts");
    expect(tile_starts.read() == wanted.tile_starts, "group_choices: tiles");
    expect(rows.read() == wanted.rows, "group_choices: rows");
    expect(places.read() == wanted.places, "group_choices: places");
}

struct Shape {
    unsigned outputs, inputs;
    bool has_bias, has_list;
    /// Values before x and w: bases that are not aligned to 16 bytes.
    unsigned shift;
};

/// A place's value in double precision, and its bits as those of a product of its row alone.
template <typename X>
void test_products(const std::vector<unsigned>& chosen, unsigned rows, unsigned experts, unsigned per_row, const Shape& of) {
    const unsigned choices = rows * per_row, size = of.outputs * of.inputs;
    const std::vector<X> x = random_values<X>(size_t{of.has_list ? rows : choices} * of.inputs + of.shift);
    const std::vector<X> w = random_values<X>(size_t{experts} * size + of.shift);
    const std::vector<float> bias = random_values<float>(experts * of.outputs);
    Buffer<X> x_buffer(x), w_buffer(w);
    Buffer<float> bias_buffer(bias), out(choices * of.outputs), alone(of.outputs);
    std::vector<float> first;
    for (const Variant& variant : variants<X>()) {
        const Groups groups = expected_groups(chosen, experts, per_row, variant.rows);
        Buffer<unsigned> chosen_buffer(chosen), starts(groups.starts), tile_starts(groups.tile_starts), list(groups.rows);
        test_groups(chosen_buffer, experts, per_row, variant.rows, groups);
        const unsigned used = std::min(choices, experts), tiles = (choices + used * (variant.rows - 1)) / variant.rows;
        expect(groups.tile_starts[experts] <= tiles, "more tiles than there may be");
        const std::string name = "expert_gemm_" + variant.suffix;
        run(name, Dim(tiles, ceil_div(of.outputs, variant.outputs)), variant.threads, variant.shared_bytes, out.get(),
            x_buffer.get() + of.shift, of.has_list ? list.get() : null<unsigned>(), w_buffer.get() + of.shift,
            of.has_bias ? bias_buffer.get() : null<float>(), starts.get(), tile_starts.get(), experts, of.outputs, of.inputs);
        const std::vector<float> got = out.read();
        if (!first.empty()) {
            expect_same_bits(name + " beside another tile", got, first);
            continue;
        }
        first = got;
        std::vector<double> wanted;
        for (unsigned place = 0; place < choices; ++place) {
            const unsigned row = of.has_list ? groups.rows[place] : place;
            const auto behind = std::upper_bound(groups.starts.begin(), groups.starts.end(), place);
            const unsigned expert = static_cast<unsigned>(behind - groups.starts.begin()) - 1;
            for (unsigned output = 0; output < of.outputs; ++output) {
                double sum = of.has_bias ? bias[expert * of.outputs + output] : 0.0;
                for (unsigned i = 0; i < of.inputs; ++i) {
                    sum += static_cast<double>(to_float(x[of.shift + row * of.inputs + i])) *
                           to_float(w[of.shift + size_t{expert} * size + output * of.inputs + i]);
                }
                wanted.push_back(sum);
            }
            // Some are enough: a launch each.
            if (place % 7 != 0) continue;
            run("gemm_" + variant.suffix, Dim(1, ceil_div(of.outputs, variant.outputs)), variant.threads, variant.shared_bytes,
                alone.get(), x_buffer.get() + of.shift + row * of.inputs, w_buffer.get() + of.shift + size_t{expert} * size,
                of.has_bias ? bias_buffer.get() + expert * of.outputs : null<float>(), 1u, of.outputs, of.inputs, 0u);
            const auto own = got.begin() + place * of.outputs;
            expect_same_bits(name + ": a row alone", alone.read(), std::vector<float>(own, own + of.outputs));
        }
        expect_near(name, got, wanted, 1e-5, 1e-6 * of.inputs + 1e-5);
    }
}

/// The same of weights of 8 bits.
void test_products_q8(const std::vector<unsigned>& chosen, unsigned rows, unsigned experts, unsigned per_row, const Shape& of) {
    const unsigned choices = rows * per_row;
    const std::vector<bf16> x = random_values<bf16>(size_t{of.has_list ? rows : choices} * of.inputs + of.shift);
    const Quants quants(experts * of.outputs, of.inputs);
    const std::vector<float> bias = random_values<float>(experts * of.outputs);
    Buffer<bf16> x_buffer(x);
    Buffer<uint8_t> lines(quants.lines);
    Buffer<float> scales(quants.scales), bias_buffer(bias), out(choices * of.outputs), alone(of.outputs);
    for (const Variant& variant : variants<bf16>()) {
        const Groups groups = expected_groups(chosen, experts, per_row, variant.rows);
        Buffer<unsigned> starts(groups.starts), tile_starts(groups.tile_starts), list(groups.rows);
        const unsigned used = std::min(choices, experts), tiles = (choices + used * (variant.rows - 1)) / variant.rows;
        const std::string tile = "q8" + variant.suffix.substr(variant.suffix.rfind('_')), name = "expert_gemm_" + tile;
        run(name, Dim(tiles, ceil_div(of.outputs, variant.outputs)), variant.threads, variant.shared_bytes, out.get(),
            x_buffer.get() + of.shift, of.has_list ? list.get() : null<unsigned>(), lines.get(), scales.get(),
            of.has_bias ? bias_buffer.get() : null<float>(), starts.get(), tile_starts.get(), experts, of.outputs, of.inputs);
        const std::vector<float> got = out.read();
        std::vector<double> wanted;
        for (unsigned place = 0; place < choices; ++place) {
            const unsigned row = of.has_list ? groups.rows[place] : place;
            const auto behind = std::upper_bound(groups.starts.begin(), groups.starts.end(), place);
            const unsigned first = (static_cast<unsigned>(behind - groups.starts.begin()) - 1) * of.outputs;
            for (unsigned output = 0; output < of.outputs; ++output) {
                double sum = of.has_bias ? bias[first + output] : 0.0;
                for (unsigned i = 0; i < of.inputs; ++i) {
                    sum += to_float(x[of.shift + row * of.inputs + i]) * quants.weight(first + output, i);
                }
                wanted.push_back(sum);
            }
            // Some are enough: a launch each.
            if (place % 7 != 0) continue;
            run("gemm_" + tile, Dim(1, ceil_div(of.outputs, variant.outputs)), variant.threads, variant.shared_bytes, alone.get(),
                x_buffer.get() + of.shift + row * of.inputs, lines.get() + size_t{first} * quants.line_bytes(), scales.get() + first,
                of.has_bias ? bias_buffer.get() + first : null<float>(), 1u, of.outputs, of.inputs, 0u);
            const auto own = got.begin() + place * of.outputs;
            expect_same_bits(name + ": a row alone", alone.read(), std::vector<float>(own, own + of.outputs));
        }
        expect_near(name, got, wanted, 1e-5, 1e-6 * of.inputs + 1e-5);
    }
}

void test_combine(const std::vector<unsigned>& chosen, unsigned rows, unsigned experts, unsigned per_row, unsigned width) {
    const std::vector<unsigned> places = expected_groups(chosen, experts, per_row, 16).places;
    const std::vector<float> in = random_values<float>(places.size() * width), weights = random_values<float>(places.size());
    std::vector<double> wanted;
    for (unsigned row = 0; row < rows; ++row) {
        for (unsigned i = 0; i < width; ++i) {
            double sum = 0.0;
            for (unsigned choice = row * per_row; choice < (row + 1) * per_row; ++choice) {
                sum += static_cast<double>(weights[choice]) * in[places[choice] * width + i];
            }
            wanted.push_back(sum);
        }
    }
    Buffer<float> from(in), of_choices(weights), out(rows * width);
    Buffer<unsigned> place_buffer(places);
    run("combine_experts", ceil_div(rows * width, 256), 256, 0, out.get(), from.get(), of_choices.get(), place_buffer.get(), rows,
        width, per_row);
    expect_near("combine_experts", out.read(), wanted, 1e-5, 1e-6 * per_row);
}

/// Everything behind the router, for choices that are given.
void test_choices(const std::vector<unsigned>& chosen, unsigned rows, unsigned experts, unsigned per_row) {
    for (const Shape& of : {Shape{33, 40, true, true, 0}, Shape{66, 96, false, false, 0}, Shape{9, 33, true, true, 3},
                            Shape{130, 16, false, true, 0}, Shape{40, 72, true, false, 1}}) {
        test_products<float>(chosen, rows, experts, per_row, of);
        test_products<bf16>(chosen, rows, experts, per_row, of);
        test_products_q8(chosen, rows, experts, per_row, of);
    }
    for (const unsigned width : {1u, 50u, 256u}) test_combine(chosen, rows, experts, per_row, width);
}

}  // namespace

void test_experts() {
    for (const unsigned experts : {1u, 3u, 33u, 128u, 200u}) {
        for (const unsigned per_row : {1u, 2u, 8u, experts}) {
            if (per_row > experts) continue;
            const std::string what = std::to_string(per_row) + " of " + std::to_string(experts);
            for (const bool is_normalized : {false, true}) {
                test_route(what, random_values<float>(5 * experts, 3.0f), experts, per_row, is_normalized);
                test_route(what + ", equal", std::vector<float>(experts, -2.5f), experts, per_row, is_normalized);
                // Few values, so that many are equal.
                std::vector<float> few(4 * experts);
                for (float& score : few) score = static_cast<float>(below(3)) - 1.0f;
                test_route(what + ", some equal", few, experts, per_row, is_normalized);
            }
        }
    }
    test_route_without_numbers();
    for (const unsigned rows : {1u, 90u}) test_choices(route(random_values<float>(rows * 5), 5, 3, true).chosen, rows, 5, 3);
    // Most experts have no row.
    for (const unsigned rows : {1u, 7u}) test_choices(route(random_values<float>(rows * 40), 40, 3, true).chosen, rows, 40, 3);
    // All rows have one expert, and the others none.
    test_choices(std::vector<unsigned>(140, 2), 140, 4, 1);
    test_choices(std::vector<unsigned>(1, 0), 1, 1, 1);
}
