// Tests of rotate.cu and place.cu.
#include "check.hpp"

namespace {

/// [positions][2][pairs]
std::vector<float> angles_of(unsigned positions, unsigned pairs) {
    std::vector<float> angles;
    for (unsigned position = 0; position < positions; ++position) {
        for (unsigned part = 0; part < 2; ++part) {
            for (unsigned pair = 0; pair < pairs; ++pair) {
                const double angle = position / std::pow(100.0, static_cast<double>(pair) / pairs);
                angles.push_back(static_cast<float>(part == 0 ? std::cos(angle) : std::sin(angle)));
            }
        }
    }
    return angles;
}

/// A head at `position`, times `scale`.
std::vector<double> rotated(std::vector<double> head, const std::vector<float>& angles, unsigned position, unsigned pairs) {
    for (unsigned i = 0; i < pairs; ++i) {
        const double cosine = angles[position * 2 * pairs + i], sine = angles[position * 2 * pairs + pairs + i];
        const double a = head[i], b = head[i + pairs];
        head[i] = a * cosine - b * sine;
        head[i + pairs] = b * cosine + a * sine;
    }
    return head;
}

template <typename T> void test_rotate(unsigned rows, unsigned heads, unsigned head_dim, unsigned pairs) {
    const std::vector<float> in = random_values<float>(rows * heads * head_dim), angles = angles_of(20, pairs);
    std::vector<unsigned> positions(rows);
    std::vector<double> wanted;
    for (unsigned& position : positions) position = below(20);
    for (unsigned head = 0; head < rows * heads; ++head) {
        const std::vector<double> values(&in[head * head_dim], &in[head * head_dim] + head_dim);
        for (const double value : rotated(values, angles, positions[head / heads], pairs)) wanted.push_back(value * 0.25);
    }
    Buffer<float> from(in), table(angles.empty() ? std::vector<float>{0.0f} : angles);
    Buffer<unsigned> at(positions);
    Buffer<T> out(in.size());
    const std::string name = std::string("rotate_") + Type<T>::name;
    run(name, ceil_div(rows * heads * (head_dim - pairs), 256), 256, 0, out.get(), from.get(), at.get(),
        pairs ? table.get() : null<float>(), pairs, 0.25f, rows, heads, head_dim);
    expect_near(name, out.read(), wanted, Type<T>::error + 1e-6, 1e-6);
}

template <typename T> void test_place(unsigned tokens, unsigned kv_heads, unsigned head_dim, unsigned pairs) {
    const unsigned blocks_of_sequence = tokens / 16 + 3, pool_blocks = blocks_of_sequence + 4, kv_dim = kv_heads * head_dim;
    const std::vector<T> k = random_values<T>(tokens * kv_dim), v = random_values<T>(tokens * kv_dim);
    const std::vector<float> angles = angles_of(40, pairs);
    std::vector<unsigned> blocks = shuffled(pool_blocks), slots = shuffled(blocks_of_sequence * 16), positions(tokens);
    slots.resize(tokens);
    for (unsigned& position : positions) position = below(40);
    // What no token is written to stays.
    const size_t pool_values = size_t{pool_blocks} * kv_heads * 16 * head_dim;
    const T old = from_float<T>(77.0f);
    std::vector<double> wanted_k(pool_values, 77.0), wanted_v(pool_values, 77.0);
    for (unsigned token = 0; token < tokens; ++token) {
        for (unsigned head = 0; head < kv_heads; ++head) {
            const size_t from = size_t{token} * kv_dim + head * head_dim;
            const size_t to = ((size_t{blocks[slots[token] / 16]} * kv_heads + head) * 16 + slots[token] % 16) * head_dim;
            std::vector<double> key;
            for (unsigned i = 0; i < head_dim; ++i) key.push_back(to_float(k[from + i]));
            key = rotated(key, angles, positions[token], pairs);
            for (unsigned i = 0; i < head_dim; ++i) {
                wanted_k[to + i] = key[i];
                wanted_v[to + i] = to_float(v[from + i]);
            }
        }
    }
    Buffer<T> keys(std::vector<T>(pool_values, old)), values(std::vector<T>(pool_values, old)), from_k(k), from_v(v);
    Buffer<unsigned> block_list(blocks), slot_list(slots), at(positions);
    Buffer<float> table(angles.empty() ? std::vector<float>{0.0f} : angles);
    const std::string name = std::string("place_") + Type<T>::name;
    run(name, ceil_div(tokens * kv_heads * (head_dim - pairs), 256), 256, 0, keys.get(), values.get(), from_k.get(),
        from_v.get(), block_list.get(), slot_list.get(), at.get(), pairs ? table.get() : null<float>(), pairs, tokens, kv_heads, head_dim);
    expect_near(name + ": keys", keys.read(), wanted_k, Type<T>::error + 1e-6, 1e-6);
    expect_near(name + ": values", values.read(), wanted_v, 0.0, 0.0);
}

template <typename T> void test_both() {
    for (const unsigned count : {1u, 2u, 7u, 17u, 33u}) {
        for (const unsigned head_dim : {2u, 6u, 64u, 80u}) {
            for (const unsigned pairs : {0u, head_dim / 2, head_dim / 4}) {
                test_rotate<T>(count, 3, head_dim, pairs);
                test_place<T>(count, 2, head_dim, pairs);
            }
        }
    }
}

}  // namespace

void test_positions() {
    test_both<float>();
    test_both<half_t>();
    test_both<bf16>();
}
