// Tests of embedding.cu, norm.cu, rows.cu and deviation.cu.
#include "quants.hpp"

namespace {

template <typename W> void test_embed(unsigned rows, unsigned hidden, bool has_positions) {
    const unsigned vocab = 11, skipped = 2;
    const std::vector<W> table = random_values<W>(vocab * hidden);
    const std::vector<float> position_table = random_values<float>(9 * hidden);
    std::vector<unsigned> tokens(rows), positions(rows);
    std::vector<double> wanted;
    for (unsigned row = 0; row < rows; ++row) {
        tokens[row] = below(vocab);
        positions[row] = below(7);
        for (unsigned i = 0; i < hidden; ++i) {
            const double position = has_positions ? position_table[(positions[row] + skipped) * hidden + i] : 0.0;
            wanted.push_back(to_float(table[tokens[row] * hidden + i]) * 1.5 + position);
        }
    }
    Buffer<float> out(rows * hidden), of_positions(position_table);
    Buffer<W> of_tokens(table);
    Buffer<unsigned> token_buffer(tokens), position_buffer(positions);
    const std::string name = std::string("embed_") + Type<W>::name;
    run(name, rows, 256, 0, out.get(), of_tokens.get(), token_buffer.get(),
        has_positions ? position_buffer.get() : null<unsigned>(), has_positions ? of_positions.get() : null<float>(), skipped, 1.5f, rows, hidden);
    expect_near(name, out.read(), wanted, 1e-6, 1e-6);
}

/// Of a table of 8 bits.
void test_embed_q8(unsigned rows, unsigned hidden, bool has_positions) {
    const unsigned vocab = 11, skipped = 2;
    const Quants table(vocab, hidden);
    const std::vector<float> position_table = random_values<float>(9 * hidden);
    std::vector<unsigned> tokens(rows), positions(rows);
    std::vector<double> wanted;
    for (unsigned row = 0; row < rows; ++row) {
        tokens[row] = below(vocab);
        positions[row] = below(7);
        for (unsigned i = 0; i < hidden; ++i) {
            const double position = has_positions ? position_table[(positions[row] + skipped) * hidden + i] : 0.0;
            wanted.push_back(table.weight(tokens[row], i) * 1.5 + position);
        }
    }
    Buffer<float> out(rows * hidden), of_positions(position_table), scales(table.scales);
    Buffer<uint8_t> lines(table.lines);
    Buffer<unsigned> token_buffer(tokens), position_buffer(positions);
    run("embed_q8", rows, 256, 0, out.get(), lines.get(), scales.get(), token_buffer.get(),
        has_positions ? position_buffer.get() : null<unsigned>(), has_positions ? of_positions.get() : null<float>(), skipped, 1.5f, rows, hidden);
    expect_near("embed_q8", out.read(), wanted, 1e-6, 1e-6);
}

template <typename X> void test_norms(unsigned rows, unsigned width) {
    std::vector<float> in = random_values<float>(rows * width, 3.0f);
    // A mean far from zero, from which a variance by squares would cancel.
    for (float& value : in) value += 1000.0f;
    const std::vector<float> weight = random_values<float>(width), bias = random_values<float>(width);
    const double eps = 1e-5f;
    std::vector<double> rms, layer;
    for (unsigned row = 0; row < rows; ++row) {
        double squares = 0.0, sum = 0.0, variance = 0.0;
        for (unsigned i = 0; i < width; ++i) {
            const double x = in[row * width + i];
            squares += x * x;
            sum += x;
        }
        for (unsigned i = 0; i < width; ++i) variance += std::pow(in[row * width + i] - sum / width, 2);
        for (unsigned i = 0; i < width; ++i) {
            const double x = in[row * width + i];
            rms.push_back(x / std::sqrt(squares / width + eps) * weight[i]);
            layer.push_back((x - sum / width) / std::sqrt(variance / width + eps) * weight[i] + bias[i]);
        }
    }
    Buffer<X> out(rows * width);
    Buffer<float> from(in), weights(weight), biases(bias);
    const std::string suffix = Type<X>::name;
    run("rms_norm_" + suffix, rows, 256, 0, out.get(), from.get(), weights.get(), 1e-5f, rows, width);
    expect_near("rms_norm_" + suffix, out.read(), rms, Type<X>::error + 1e-5, 1e-5);
    run("layer_norm_" + suffix, rows, 256, 0, out.get(), from.get(), weights.get(), biases.get(), 1e-5f, rows, width);
    // A mean near 1000 has an error of 1000 / 2^24, which a small deviation makes greater.
    expect_near("layer_norm_" + suffix, out.read(), layer, Type<X>::error + 1e-4, width < 3 ? 0.5 : 5e-4);
}

void test_head_norm(unsigned rows, unsigned heads, unsigned head_dim) {
    const std::vector<float> in = random_values<float>(rows * heads * head_dim), weight = random_values<float>(head_dim);
    std::vector<double> wanted;
    for (unsigned head = 0; head < rows * heads; ++head) {
        double squares = 0.0;
        for (unsigned i = 0; i < head_dim; ++i) squares += std::pow(in[head * head_dim + i], 2);
        for (unsigned i = 0; i < head_dim; ++i) {
            wanted.push_back(in[head * head_dim + i] / std::sqrt(squares / head_dim + 1e-6) * weight[i]);
        }
    }
    Buffer<float> values(in), weights(weight);
    run("head_norm", ceil_div(rows * heads, 4), 128, 0, values.get(), weights.get(), 1e-6f, rows, heads, head_dim);
    expect_near("head_norm", values.read(), wanted, 1e-5, 1e-6);
}

/// `shift` bytes before the rows: a base that is not aligned to 16 bytes.
void test_gather(unsigned count, unsigned row_bytes, unsigned shift) {
    const unsigned rows = 13;
    std::vector<unsigned char> in(rows * row_bytes + shift), wanted;
    for (unsigned char& byte : in) byte = static_cast<unsigned char>(below(256));
    std::vector<unsigned> chosen(count);
    for (unsigned& row : chosen) {
        row = below(rows);
        const auto from = in.begin() + shift + row * row_bytes;
        wanted.insert(wanted.end(), from, from + row_bytes);
    }
    Buffer<unsigned char> from(in), out(count * row_bytes);
    Buffer<unsigned> list(chosen);
    run("gather_rows", count, 128, 0, out.get(), from.get() + shift, list.get(), count, row_bytes);
    expect_same_bits("gather_rows", out.read(), wanted);
}

void test_copy_parts(unsigned parts, unsigned bytes, unsigned to_gap, unsigned from_gap, unsigned shift) {
    const unsigned to_stride = bytes + to_gap, from_stride = bytes + from_gap;
    std::vector<unsigned char> in(parts * from_stride + shift), before(parts * to_stride + shift);
    for (unsigned char& byte : in) byte = static_cast<unsigned char>(below(256));
    std::vector<unsigned char> wanted = before;
    for (unsigned part = 0; part < parts; ++part) {
        std::memcpy(&wanted[shift + part * to_stride], &in[shift + part * from_stride], bytes);
    }
    Buffer<unsigned char> from(in), to(before);
    run("copy_parts", Dim(ceil_div(bytes, 4096), parts), 256, 0, to.get() + shift, uint64_t{to_stride}, from.get() + shift,
        uint64_t{from_stride}, parts, uint64_t{bytes});
    expect_same_bits("copy_parts", to.read(), wanted);
}

template <typename T> void test_deviation(unsigned count, unsigned kv_dim, unsigned compared) {
    const unsigned rows = 9, tokens = 14;
    const std::vector<T> fresh_k = random_values<T>(rows * kv_dim), fresh_v = random_values<T>(rows * kv_dim);
    const std::vector<T> stored_k = random_values<T>(tokens * kv_dim), stored_v = random_values<T>(tokens * kv_dim);
    std::vector<unsigned> pairs;
    std::vector<double> wanted;
    for (unsigned pair = 0; pair < count; ++pair) {
        const unsigned row = below(rows), token = below(tokens);
        pairs.insert(pairs.end(), {row, token});
        double sum = 0.0;
        for (unsigned i = 0; i < kv_dim; ++i) {
            const auto square = [&](const std::vector<T>& fresh, const std::vector<T>& stored) {
                return std::pow(to_float(fresh[row * kv_dim + i]) - to_float(stored[token * kv_dim + i]), 2);
            };
            if (compared & 1) sum += square(fresh_k, stored_k);
            if (compared & 2) sum += square(fresh_v, stored_v);
        }
        wanted.push_back(sum);
    }
    Buffer<T> a(fresh_k), b(fresh_v), c(stored_k), d(stored_v);
    Buffer<unsigned> list(pairs);
    Buffer<float> out(count);
    const std::string name = std::string("deviation_") + Type<T>::name;
    T* const none = nullptr;
    run(name, ceil_div(count, 4), 128, 0, out.get(), compared & 1 ? a.get() : none, compared & 2 ? b.get() : none,
        compared & 1 ? c.get() : none, compared & 2 ? d.get() : none, list.get(), count, kv_dim, compared);
    expect_near(name, out.read(), wanted, 1e-5, 1e-6);
}

}  // namespace

void test_rows() {
    for (const unsigned rows : {1u, 2u, 7u, 33u}) {
        for (const unsigned hidden : {1u, 3u, 64u, 300u}) {
            test_embed<float>(rows, hidden, false);
            test_embed<float>(rows, hidden, true);
            test_embed<bf16>(rows, hidden, true);
            test_embed_q8(rows, hidden, false);
            test_embed_q8(rows, hidden, true);
        }
        for (const unsigned width : {1u, 2u, 5u, 64u, 255u, 1000u}) {
            test_norms<float>(rows, width);
            test_norms<bf16>(rows, width);
        }
        for (const unsigned head_dim : {2u, 6u, 64u, 80u}) test_head_norm(rows, 3, head_dim);
        for (const unsigned kv_dim : {2u, 31u, 160u}) {
            for (const unsigned compared : {1u, 2u, 3u}) {
                test_deviation<float>(rows, kv_dim, compared);
                test_deviation<half_t>(rows, kv_dim, compared);
                test_deviation<bf16>(rows, kv_dim, compared);
            }
        }
    }
    for (const unsigned row_bytes : {2u, 6u, 16u, 48u, 1000u, 2304u}) {
        test_gather(1, row_bytes, 0);
        test_gather(17, row_bytes, 0);
        test_gather(5, row_bytes, 2);
    }
    for (const unsigned bytes : {1u, 16u, 100u, 4096u, 4100u, 9000u}) {
        test_copy_parts(1, bytes, 0, 0, 0);
        test_copy_parts(3, bytes, 16, 48, 0);
        test_copy_parts(2, bytes, 5, 3, 1);
    }
}
