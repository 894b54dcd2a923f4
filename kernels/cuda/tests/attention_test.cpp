// Tests of attention.cu, attention_plain.cu and attention_weights.cu.
#include "sequences.hpp"

namespace {

struct Tile {
    unsigned first_row, rows, blocks_start, keys_start, slots;
};

struct Case {
    Heads shape;
    unsigned window;
    bool has_slopes;
    /// Rows and slots of each sequence.
    std::vector<std::pair<unsigned, unsigned>> sequences;
    /// Values before q: a base that is not aligned to 16 bytes.
    unsigned shift = 0;
    /// Whether sequences are as prompts are, without gaps and hidden slots.
    bool is_plain = false;
};

template <typename T> struct Kernel {
    std::string name;
    unsigned lines, shared_bytes;

    explicit Kernel(unsigned head_dim) {
        if (std::is_same_v<T, float>) {
            name = "attention_f32";
            lines = 16;
            shared_bytes = 0;
            return;
        }
        const unsigned padded = head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
        name = std::string("attention_") + Type<T>::name + "_" + std::to_string(padded);
        lines = 64;
        shared_bytes = (64 + 2 * (padded == 256 ? 32 : 64)) * (padded + 8) * 2;
    }
};

/// What the host brings to a launch.
template <typename T> struct Batch {
    const Case& of;
    std::vector<Sequence> sequences;
    std::vector<unsigned> row_positions, key_positions, blocks;
    /// By row.
    std::vector<unsigned> sequence_of;
    Pool<T>* pool = nullptr;
    std::vector<T> q;
    std::vector<float> slopes;

    explicit Batch(const Case& of_) : of(of_), slopes(random_slopes(of_.shape.heads)) {
        for (const auto& [rows, slots] : of.sequences) {
            sequences.push_back(of.is_plain ? plain_sequence(rows, slots) : random_sequence(rows, slots));
        }
        pool = new Pool<T>(of.shape, sequences);
        for (unsigned i = 0; i < sequences.size(); ++i) {
            const Sequence& sequence = sequences[i];
            row_positions.insert(row_positions.end(), sequence.row_positions.begin(), sequence.row_positions.end());
            sequence_of.insert(sequence_of.end(), sequence.row_positions.size(), i);
            key_positions.insert(key_positions.end(), sequence.key_positions.begin(), sequence.key_positions.end());
            blocks.insert(blocks.end(), sequence.blocks.begin(), sequence.blocks.end());
        }
        const float spread = 1.5f / std::sqrt(static_cast<float>(of.shape.head_dim));
        q = random_values<T>(of.shift + rows() * of.shape.heads * of.shape.head_dim, spread);
    }
    ~Batch() { delete pool; }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    size_t rows() const { return row_positions.size(); }

    /// Tiles of at most `most_rows` rows, from row `from` to `to` of the batch.
    std::vector<Tile> tiles(unsigned most_rows, unsigned from, unsigned to) const {
        std::vector<Tile> tiles;
        unsigned row = 0, block = 0, key = 0;
        for (const Sequence& sequence : sequences) {
            const unsigned end = row + static_cast<unsigned>(sequence.row_positions.size());
            const unsigned slots = static_cast<unsigned>(sequence.key_positions.size());
            for (unsigned first = std::max(row, from); first < std::min(end, to); first += most_rows) {
                tiles.push_back({first, std::min(most_rows, std::min(end, to) - first), block, key, slots});
            }
            row = end;
            block += static_cast<unsigned>(sequence.blocks.size());
            key += slots;
        }
        return tiles;
    }
};

/// Attention of the tiles' rows, by one walk over the context or split over it; NaN in rows of no tile.
template <typename T> std::vector<float> attend(const Batch<T>& batch, const std::vector<Tile>& tiles, bool is_split) {
    const Heads& shape = batch.of.shape;
    const Kernel<T> kernel(shape.head_dim);
    Buffer<T> q(batch.q);
    Buffer<unsigned> rows(batch.row_positions), keys(batch.key_positions), blocks(batch.blocks);
    Buffer<Tile> tile_list(tiles);
    Buffer<float> slopes(batch.slopes);
    unsigned lines = 1, slots = 1;
    for (const Tile& tile : tiles) {
        lines = std::max(lines, tile.rows * shape.group());
        slots = std::max(slots, tile.slots);
    }
    const unsigned count = static_cast<unsigned>(batch.rows()), segments = ceil_div(slots, 512);
    const unsigned tile_count = static_cast<unsigned>(tiles.size());
    Buffer<float> out(std::vector<float>(size_t{count} * shape.heads * shape.head_dim, NAN));
    Buffer<float> partial(is_split ? size_t{segments} * count * shape.heads * (shape.head_dim + 2) : 1);
    run(kernel.name, Dim(tile_count, shape.kv_heads * ceil_div(lines, kernel.lines), is_split ? segments : 1), 128,
        kernel.shared_bytes, is_split ? nullptr : out.get(), is_split ? partial.get() : nullptr, q.get() + batch.of.shift,
        batch.pool->keys.get(), batch.pool->values.get(), rows.get(), tile_list.get(), blocks.get(), keys.get(),
        batch.of.has_slopes ? slopes.get() : nullptr, batch.of.window, count, shape.heads, shape.kv_heads, shape.head_dim);
    if (is_split) {
        run("attention_combine", Dim(tile_count, shape.heads), 128, 0, out.get(), partial.get(), tile_list.get(), count,
            shape.heads, shape.head_dim, 0u);
    }
    return out.read();
}

template <typename T> std::vector<double> reference(const Batch<T>& batch) {
    const Heads& shape = batch.of.shape;
    std::vector<double> out;
    for (unsigned row = 0; row < batch.rows(); ++row) {
        const Sequence& sequence = batch.sequences[batch.sequence_of[row]];
        for (unsigned head = 0; head < shape.heads; ++head) {
            const T* q = &batch.q[batch.of.shift + (size_t{row} * shape.heads + head) * shape.head_dim];
            const std::vector<double> weights =
                reference_weights(*batch.pool, sequence, q, batch.row_positions[row], head, batch.of.window,
                                  batch.of.has_slopes ? batch.slopes[head] : 0.0f);
            std::vector<double> sums(shape.head_dim, 0.0);
            for (unsigned slot = 0; slot < weights.size(); ++slot) {
                if (weights[slot] == 0.0) continue;
                const size_t at = batch.pool->place(sequence, slot, head / shape.group());
                for (unsigned i = 0; i < shape.head_dim; ++i) sums[i] += weights[slot] * batch.pool->v[at + i];
            }
            out.insert(out.end(), sums.begin(), sums.end());
        }
    }
    return out;
}

template <typename T> void test_case(const Case& of) {
    const Batch<T> batch(of);
    const unsigned rows = static_cast<unsigned>(batch.rows());
    const unsigned at_once = std::max(1u, Kernel<T>(of.shape.head_dim).lines / of.shape.group());
    const std::string what = Kernel<T>(of.shape.head_dim).name + " " + std::to_string(of.shape.heads) + "/" +
                             std::to_string(of.shape.kv_heads) + " heads of " + std::to_string(of.shape.head_dim) + ", " +
                             std::to_string(rows) + " rows, " + std::to_string(batch.key_positions.size()) + " slots";
    const std::vector<float> whole = attend(batch, batch.tiles(at_once, 0, rows), false);
    // Weights are rounded, their sum is not.
    expect_near(what, whole, reference(batch), 0.0, 2.0 * Type<T>::error + 1e-5);
    expect_same_bits(what + ", split", attend(batch, batch.tiles(at_once, 0, rows), true), whole);
    const std::vector<float> in_chunks = attend(batch, batch.tiles(at_once * 2 + 1, 0, rows), false);
    expect_same_bits(what + ", in larger tiles", in_chunks, whole);
    const size_t row_len = size_t{of.shape.heads} * of.shape.head_dim;
    for (const unsigned row : {0u, rows / 2, rows - 1}) {
        const std::vector<float> alone = attend(batch, batch.tiles(1, row, row + 1), false);
        const auto its_part = [&](const std::vector<float>& out) {
            return std::vector<float>(out.begin() + row * row_len, out.begin() + (row + 1) * row_len);
        };
        expect_same_bits(what + ", row " + std::to_string(row) + " alone", its_part(alone), its_part(whole));
    }
}

template <typename T> void test_weights(const Case& of) {
    const Batch<T> batch(of);
    const Heads& shape = of.shape;
    const Sequence& sequence = batch.sequences[0];
    const unsigned rows = static_cast<unsigned>(batch.rows()), slots = static_cast<unsigned>(sequence.key_positions.size());
    std::vector<double> wanted;
    for (unsigned row = 0; row < rows; ++row) {
        std::vector<double> mean(slots, 0.0);
        for (unsigned head = 0; head < shape.heads; ++head) {
            const T* q = &batch.q[of.shift + (size_t{row} * shape.heads + head) * shape.head_dim];
            const std::vector<double> weights = reference_weights(*batch.pool, sequence, q, batch.row_positions[row], head,
                                                                  of.window, of.has_slopes ? batch.slopes[head] : 0.0f);
            for (unsigned slot = 0; slot < slots; ++slot) mean[slot] += weights[slot] / shape.heads;
        }
        wanted.insert(wanted.end(), mean.begin(), mean.end());
    }
    Buffer<T> q(batch.q);
    Buffer<unsigned> positions(batch.row_positions), keys(sequence.key_positions), blocks(sequence.blocks);
    Buffer<float> slopes(batch.slopes), out(size_t{rows} * slots);
    const std::string name = std::string("attention_weights_") + Type<T>::name;
    run(name, rows, 256, 0, out.get(), q.get() + of.shift, batch.pool->keys.get(), positions.get(), blocks.get(), keys.get(),
        of.has_slopes ? slopes.get() : nullptr, of.window, rows, slots, shape.heads, shape.kv_heads, shape.head_dim);
    expect_near(name, out.read(), wanted, 1e-5, 1e-6);
}

const Case cases[] = {
    {{1, 1, 2}, 0, false, {{1, 1}}},
    {{2, 1, 6}, 0, true, {{2, 5}, {1, 17}}},
    {{4, 2, 64}, 0, false, {{1, 40}, {7, 64}, {16, 15}}},
    {{4, 2, 64}, 9, true, {{17, 130}, {1, 513}}},
    {{14, 2, 64}, 0, false, {{1, 1100}, {2, 33}}},
    {{14, 2, 64}, 64, false, {{33, 200}, {7, 1}}},
    {{3, 3, 8}, 0, false, {{100, 90}}},
    {{2, 2, 80}, 0, true, {{17, 70}, {1, 1030}}},
    {{8, 1, 96}, 20, false, {{9, 129}}},
    {{6, 2, 128}, 0, false, {{2, 600}, {30, 66}}, 2},
    {{8, 2, 128}, 600, true, {{1, 1600}}},
    {{2, 1, 250}, 0, false, {{7, 40}}},
    {{4, 2, 256}, 0, false, {{3, 700}, {20, 50}}},
    {{71, 1, 16}, 0, false, {{2, 70}}},
    {{4, 1, 64}, 0, false, {{40, 200}, {1, 640}, {16, 16}}, 0, true},
    {{2, 1, 128}, 150, false, {{90, 300}, {1, 64}}, 0, true},
    {{2, 2, 256}, 40, false, {{50, 130}}, 0, true},
};

}  // namespace

void test_attention() {
    for (const Case& of : cases) {
        test_case<float>(of);
        test_case<half_t>(of);
        test_case<bf16>(of);
    }
}

void test_attention_weights() {
    for (const Case& of : cases) {
        const Case one = {of.shape, of.window, of.has_slopes, {of.sequences[0]}, of.shift, of.is_plain};
        test_weights<float>(one);
        test_weights<half_t>(one);
        test_weights<bf16>(one);
    }
}
