// Sequences with scattered blocks, shuffled positions, gaps and hidden slots, and attention over them in double precision.
#pragma once

#include <algorithm>

#include "check.hpp"

constexpr unsigned HIDDEN = 0xffffffff;
constexpr unsigned BLOCK_TOKENS = 16;

struct Heads {
    unsigned heads, kv_heads, head_dim;

    unsigned group() const { return heads / kv_heads; }
};

/// Query rows of a sequence, and the sequence: slots without keys are hidden.
struct Sequence {
    std::vector<unsigned> row_positions, key_positions, blocks;
};

/// As a prompt is: a key for every position, in order, and rows at the end.
inline Sequence plain_sequence(unsigned rows, unsigned slots) {
    Sequence sequence;
    for (unsigned slot = 0; slot < slots; ++slot) sequence.key_positions.push_back(slot);
    for (unsigned row = 0; row < rows; ++row) sequence.row_positions.push_back(slots - rows + row);
    return sequence;
}

/// Some rows see nothing: their positions are before the first key.
inline Sequence random_sequence(unsigned rows, unsigned slots) {
    Sequence sequence;
    // Gaps between positions, and an order of slots that is not theirs.
    std::vector<unsigned> positions = shuffled(slots + slots / 3 + 2);
    for (unsigned slot = 0; slot < slots; ++slot) {
        sequence.key_positions.push_back(below(8) == 0 ? HIDDEN : positions[slot] + 3);
    }
    for (unsigned row = 0; row < rows; ++row) sequence.row_positions.push_back(below(slots + slots / 3 + 6));
    return sequence;
}

/// One layer's K and V of all sequences, of which only slots with keys are written.
template <typename T> struct Pool {
    Heads shape;
    Buffer<T> keys, values;
    std::vector<float> k, v;

    Pool(const Heads& shape_, std::vector<Sequence>& sequences)
        : shape(shape_), keys(size_of(shape_, sequences)), values(keys.count()), k(keys.count()), v(keys.count()) {
        const std::vector<unsigned> blocks = shuffled(blocks_of(sequences));
        unsigned next = 0;
        for (Sequence& sequence : sequences) {
            const unsigned needed = ceil_div(sequence.key_positions.size(), BLOCK_TOKENS);
            sequence.blocks.assign(blocks.begin() + next, blocks.begin() + next + needed);
            next += needed;
            for (unsigned slot = 0; slot < sequence.key_positions.size(); ++slot) {
                if (sequence.key_positions[slot] == HIDDEN) continue;
                for (unsigned head = 0; head < shape.kv_heads; ++head) write(place(sequence, slot, head));
            }
        }
    }

    size_t place(const Sequence& sequence, unsigned slot, unsigned kv_head) const {
        const size_t block = sequence.blocks[slot / BLOCK_TOKENS];
        return ((block * shape.kv_heads + kv_head) * BLOCK_TOKENS + slot % BLOCK_TOKENS) * shape.head_dim;
    }

private:
    void write(size_t at) {
        const std::vector<T> key = random_values<T>(shape.head_dim), value = random_values<T>(shape.head_dim);
        standin::write(keys.get() + at, key.data(), key.size() * sizeof(T));
        standin::write(values.get() + at, value.data(), value.size() * sizeof(T));
        for (unsigned i = 0; i < shape.head_dim; ++i) {
            k[at + i] = to_float(key[i]);
            v[at + i] = to_float(value[i]);
        }
    }
    static unsigned blocks_of(const std::vector<Sequence>& sequences) {
        unsigned blocks = 2;
        for (const Sequence& sequence : sequences) blocks += ceil_div(sequence.key_positions.size(), BLOCK_TOKENS);
        return blocks;
    }
    static size_t size_of(const Heads& shape, const std::vector<Sequence>& sequences) {
        return size_t{blocks_of(sequences)} * shape.kv_heads * BLOCK_TOKENS * shape.head_dim;
    }
};

/// The softmax weights that a query gives to each slot; all zero if it sees none.
template <typename T>
std::vector<double> reference_weights(const Pool<T>& pool, const Sequence& sequence, const T* q, unsigned position,
                                      unsigned head, unsigned window, float slope) {
    std::vector<double> weights(sequence.key_positions.size(), 0.0);
    double greatest = -1e300, sum = 0.0;
    const auto is_seen = [&](unsigned slot) {
        const unsigned key = sequence.key_positions[slot];
        return key != HIDDEN && key <= position && (window == 0 || position - key < window);
    };
    for (unsigned slot = 0; slot < weights.size(); ++slot) {
        if (!is_seen(slot)) continue;
        const size_t at = pool.place(sequence, slot, head / pool.shape.group());
        double score = -static_cast<double>(slope) * (position - sequence.key_positions[slot]);
        for (unsigned i = 0; i < pool.shape.head_dim; ++i) score += static_cast<double>(to_float(q[i])) * pool.k[at + i];
        weights[slot] = score;
        greatest = std::max(greatest, score);
    }
    for (unsigned slot = 0; slot < weights.size(); ++slot) {
        if (!is_seen(slot)) continue;
        weights[slot] = std::exp(weights[slot] - greatest);
        sum += weights[slot];
    }
    for (double& weight : weights) weight = sum == 0.0 ? 0.0 : weight / sum;
    return weights;
}

inline std::vector<float> random_slopes(unsigned heads) {
    std::vector<float> slopes;
    for (unsigned head = 0; head < heads; ++head) slopes.push_back(0.02f * static_cast<float>(head + 1));
    return slopes;
}
