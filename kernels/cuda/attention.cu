// Attention of scattered query rows over paged keys and values on tensor cores, masked by true position: prefill, chunks of
// it, blended rows and decoding, all in one form ("FlashAttention-2: Faster Attention with Better Parallelism and Work
// Partitioning").
//
//     out = softmax(q K^T) V,  a row at p sees the key at k iff k <= p (and p - k < window, where there is one)
//
// q [rows, heads, head_dim] of T, rotated and scaled; keys, values one layer of the pool; out [rows, heads, head_dim] of
// f32. A tile is some rows of one sequence. With the heads / kv_heads heads of a KV head they are the tile's query lines; a
// block has 64 lines, each of its 4 warps 16 of them, and walks over tiles of KEYS slots. Scores and sums are f32; softmax
// weights are rounded to T. A line's bits depend neither on the lines beside it nor on key tiles that it does not see.
//
// block 128; grid x tiles, y kv_heads * ceil(rows of a tile * heads / kv_heads / 64), z 1, or the segments where `partial`
// is given (see launch.md). Dynamic shared memory: (64 + 2 KEYS) * (D + 8) * 2 bytes.
#include "attention_tile.cuh"

constexpr unsigned WARPS = 4;
constexpr unsigned LINES = WARPS * WARP_LINES;
constexpr unsigned THREADS = WARPS * WARP;

/// The values of a chunk from column `column` on; none if its line is not wanted.
__device__ __forceinline__ unsigned values_of_chunk(unsigned column, unsigned head_dim, bool is_wanted) {
    return is_wanted && column < head_dim ? min(head_dim - column, CHUNK) : 0;
}

/// Copies a chunk of less than CHUNK values, or one that is not aligned, and zeros behind them.
template <typename T> __device__ __forceinline__ void copy_values(T* to, const T* from, unsigned values) {
#pragma unroll 1
    for (unsigned i = 0; i < CHUNK; ++i) to[i] = i < values ? from[i] : from_float<T>(0.0f);
}

/// The block's lines of q, zeros behind the last one.
template <typename T, unsigned D> __device__ __forceinline__ void load_queries(T* to, const Work<T>& work) {
    constexpr unsigned STRIDE = Shape<T, D>::STRIDE;
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < LINES * (D / CHUNK); i += THREADS) {
        const unsigned line = i / (D / CHUNK), column = i % (D / CHUNK) * CHUNK;
        const unsigned values = values_of_chunk(column, work.in.head_dim, line < work.lines);
        const T* from = work.in.q + (values == 0 ? 0 : work.place(line) + column);
        if (work.has_chunks) {
            copy_async_16(to + line * STRIDE + column, from, values == 0 ? 0 : 16);
        } else {
            copy_values(to + line * STRIDE + column, from, values);
        }
    }
}

/// The first value of a key in the pool; the pool's first one if the key is not visible.
template <typename T, unsigned KEYS>
__device__ __forceinline__ size_t place_of_key(const KeyTile<KEYS>& keys, unsigned key, const Work<T>& work) {
    if (!keys.is_visible(key)) return 0;
    const unsigned slot = keys.slot + key, block = work.in.blocks[work.tile.blocks_start + slot / BLOCK_TOKENS];
    return pool_row(block, work.kv_head, slot % BLOCK_TOKENS, work.in.kv_heads) * work.in.head_dim;
}

/// The visible keys (or values) of a tile, zeros for the others, up to the last column that products read.
template <typename T, unsigned D>
__device__ __forceinline__ void load_keys(T* to, const T* pool, const KeyTile<Shape<T, D>::KEYS>& keys, const Work<T>& work) {
    constexpr unsigned STRIDE = Shape<T, D>::STRIDE, ALL_CHUNKS = Shape<T, D>::KEYS * (D / CHUNK);
    static_assert(THREADS % (D / CHUNK) == 0, "a thread has one column");
    const unsigned column = threadIdx.x % (D / CHUNK) * CHUNK, columns = (work.in.head_dim + 15) / 16 * 16;
    if (column >= columns) return;
    if (work.has_chunks) {
#pragma unroll 4
        for (unsigned i = 0; i < ALL_CHUNKS; i += THREADS) {
            const unsigned key = (i + threadIdx.x) / (D / CHUNK);
            const bool exists = keys.is_visible(key) && column < work.in.head_dim;
            const T* from = pool + place_of_key(keys, key, work) + (exists ? column : 0);
            copy_async_16(to + key * STRIDE + column, from, exists ? 16 : 0);
        }
        return;
    }
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < ALL_CHUNKS; i += THREADS) {
        const unsigned key = i / (D / CHUNK);
        const unsigned values = values_of_chunk(column, work.in.head_dim, keys.is_visible(key));
        copy_values(to + key * STRIDE + column, pool + place_of_key(keys, key, work) + (values == 0 ? 0 : column), values);
    }
}

/// A thread has values of two lines, the rows of an mma's accumulators: this one is `half` 0 or 1.
__device__ __forceinline__ unsigned line_of_thread(unsigned half) {
    return threadIdx.x / WARP * WARP_LINES + half * 8 + threadIdx.x % WARP / 4;
}

/// scores = q K^T, of the warp's lines and the tile's keys. Both lie in rows: A's tiles are read as they are, and so are
/// B's, whose columns are keys.
template <typename T, unsigned D>
__device__ __forceinline__ void score(float (&scores)[Shape<T, D>::KEYS / 8][4], const T* q, const T* k, unsigned head_dim) {
    constexpr unsigned STRIDE = Shape<T, D>::STRIDE;
    const unsigned lane = threadIdx.x % WARP, first_line = threadIdx.x / WARP * WARP_LINES;
#pragma unroll
    for (unsigned tile = 0; tile < Shape<T, D>::KEYS / 8; ++tile) {
        for (unsigned i = 0; i < 4; ++i) scores[tile][i] = 0.0f;
    }
#pragma unroll 4
    for (unsigned column = 0; column < D; column += 16) {
        if (column >= head_dim) break;
        uint32_t a[4];
        ldmatrix_x4(a, q + (first_line + lane % 16) * STRIDE + column + lane / 16 * 8);
#pragma unroll
        for (unsigned key = 0; key < Shape<T, D>::KEYS; key += 16) {
            uint32_t b[4];
            ldmatrix_x4(b, k + (key + lane / 16 * 8 + lane % 8) * STRIDE + column + lane / 8 % 2 * 8);
            mma_m16n8k16(scores[key / 8], a, b, T());
            mma_m16n8k16(scores[key / 8 + 1], a, b + 2, T());
        }
    }
}

/// sums += weights V. The accumulators of two score tiles are, rounded, the A tile of their 16 keys; V lies in rows of
/// keys, which are B's rows, so it is read transposed.
template <typename T, unsigned D>
__device__ __forceinline__ void gather(float (&sums)[D / 8][4], const float (&weights)[Shape<T, D>::KEYS / 8][4], const T* v,
                                       unsigned head_dim) {
    constexpr unsigned STRIDE = Shape<T, D>::STRIDE;
    const unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (unsigned key = 0; key < Shape<T, D>::KEYS; key += 16) {
        const float(&low)[4] = weights[key / 8];
        const float(&high)[4] = weights[key / 8 + 1];
        const uint32_t a[4] = {pack2<T>(low[0], low[1]), pack2<T>(low[2], low[3]), pack2<T>(high[0], high[1]),
                               pack2<T>(high[2], high[3])};
#pragma unroll
        for (unsigned column = 0; column < D; column += 16) {
            if (column >= head_dim) break;
            uint32_t b[4];
            ldmatrix_x4_transposed(b, v + (key + lane % 16) * STRIDE + column + lane / 16 * 8);
            mma_m16n8k16(sums[column / 8], a, b, T());
            mma_m16n8k16(sums[column / 8 + 1], a, b + 2, T());
        }
    }
}

/// What the segments before have seen of each thread's lines. In shared memory though every thread has its own, for the same
/// reason as lines.
using SeenBefore = Seen[2][THREADS];

/// Adds a closed segment to `before` and to what stands in `out`, which only this thread reads and writes.
template <typename T, unsigned D>
__device__ __forceinline__ void add_to_out(float* out, const Segment<D>& segment, SeenBefore& before, const Work<T>& work) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
        const unsigned line = line_of_thread(half);
        if (line >= work.lines || segment.seen[half].weights == 0.0f) continue;
        Seen seen = before[half][threadIdx.x];
        const bool is_first = seen.weights == 0.0f;
        const Shares shares = add_segment(seen, segment.seen[half]);
        before[half][threadIdx.x] = seen;
        float* to = out + work.place(line);
        each_pair<D>(work.in.head_dim, [&](unsigned column, unsigned tile) {
            for (unsigned i = 0; i < 2; ++i) {
                const float sum = is_first ? 0.0f : to[column + i];
                to[column + i] = add_values(sum, segment.sums[tile][half * 2 + i], shares);
            }
        });
    }
}

template <typename T, unsigned D>
__device__ __forceinline__ void finish_out(float* out, const SeenBefore& seen, const Work<T>& work) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
        const unsigned line = line_of_thread(half);
        if (line >= work.lines) continue;
        float* to = out + work.place(line);
        const float share = final_share(seen[half][threadIdx.x]);
        each_pair<D>(work.in.head_dim, [&](unsigned column, unsigned) {
            for (unsigned i = 0; i < 2; ++i) {
                // Nothing was written where nothing was seen.
                to[column + i] = share == 0.0f ? 0.0f : finished(to[column + i], share);
            }
        });
    }
}

/// Writes a closed segment to its place.
template <typename T, unsigned D>
__device__ __forceinline__ void write_partial(float* partial, const Segment<D>& segment, const Work<T>& work) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
        const unsigned line = line_of_thread(half);
        if (line >= work.lines) continue;
        const AttentionInput<T>& in = work.in;
        float* to = partial + partial_place(blockIdx.z, work.row(line), work.head(line), in.rows, in.heads, in.head_dim);
        if (threadIdx.x % 4 == 0) {
            to[0] = segment.seen[half].greatest;
            to[1] = segment.seen[half].weights;
        }
        each_pair<D>(in.head_dim, [&](unsigned column, unsigned tile) {
            for (unsigned i = 0; i < 2; ++i) to[2 + column + i] = segment.sums[tile][half * 2 + i];
        });
    }
}

template <typename T, unsigned D>
__device__ __forceinline__ void attend(float* out, float* partial, const AttentionInput<T>& in) {
    constexpr unsigned KEYS = Shape<T, D>::KEYS, STRIDE = Shape<T, D>::STRIDE;
    DYNAMIC_SHARED(T, q_tile);
    T* const k_tile = q_tile + LINES * STRIDE;
    T* const v_tile = k_tile + KEYS * STRIDE;
    __shared__ unsigned key_positions[KEYS];
    __shared__ Line lines[LINES];

    const Work<T> work = work_of_block(in, LINES, blockIdx.x);
    const SlotRange range = slot_range(work.tile, partial != nullptr);
    if (work.lines == 0 || (partial && range.start >= work.tile.slots)) return;
    const RowSpan span = row_span(work.tile, in.row_positions);
    const unsigned* all_positions = in.key_positions + work.tile.keys_start;
    // A warp without lines only helps to copy.
    const bool has_lines = threadIdx.x / WARP * WARP_LINES < work.lines;

    const auto load_k = [&](const KeyTile<KEYS>& keys) {
        if (keys.slot < range.end) {
            load_keys<T, D>(k_tile, in.keys, keys, work);
#pragma unroll
            for (unsigned part = 0; part < KEYS / WARP; ++part) {
                if (threadIdx.x < WARP) key_positions[part * WARP + threadIdx.x] = keys.positions[part];
            }
        }
        copy_async_commit();
    };

    __shared__ SeenBefore seen;
    seen[0][threadIdx.x] = seen[1][threadIdx.x] = seen_nothing();
    Segment<D> segment;
    segment.start();
    KeyTile<KEYS> keys = next_key_tile<KEYS>(range.start, range.end, all_positions, span, in.window);
    if (keys.slot < range.end) {
        load_queries<T, D>(q_tile, work);
        if (threadIdx.x < LINES) load_line(lines[threadIdx.x], threadIdx.x, work);
    }
    load_k(keys);
    while (keys.slot < range.end) {
        // K is there; every warp is done with the values of the tile before.
        copy_async_wait<0>();
        __syncthreads();
        load_keys<T, D>(v_tile, in.values, keys, work);
        copy_async_commit();
        float scores[KEYS / 8][4];
        if (has_lines) {
            score<T, D>(scores, q_tile, k_tile, in.head_dim);
            // Most tiles of a long context need no mask; one that changes nothing gives the same bits.
            if (in.slopes || !keys.is_seen_by_all) mask<KEYS>(scores, lines + threadIdx.x / WARP * WARP_LINES, key_positions, in.window);
            weigh<KEYS, D>(scores, segment.sums, segment.seen);
        }
        // V is there; every warp is done with the keys.
        copy_async_wait<0>();
        __syncthreads();
        const KeyTile<KEYS> next = next_key_tile<KEYS>(keys.slot + KEYS, range.end, all_positions, span, in.window);
        load_k(next);
        if (has_lines) gather<T, D>(segment.sums, scores, v_tile, in.head_dim);
        if (!partial && (next.slot >= range.end || next.slot / SEGMENT != keys.slot / SEGMENT)) {
            segment.close();
            add_to_out<T, D>(out, segment, seen, work);
            segment.start();
        }
        keys = next;
    }
    if (!partial) {
        finish_out<T, D>(out, seen, work);
        return;
    }
    segment.close();
    write_partial<T, D>(partial, segment, work);
}

#define ATTENTION(name, T, D)                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, D <= 64 ? 3 : 2) name(ATTENTION_PARAMETERS(T)) {                 \
        attend<T, D>(out, partial, ATTENTION_INPUT);                                                                       \
    }

ATTENTION(attention_f16_64, half_t, 64)
ATTENTION(attention_f16_128, half_t, 128)
ATTENTION(attention_f16_256, half_t, 256)
ATTENTION(attention_bf16_64, bf16, 64)
ATTENTION(attention_bf16_128, bf16, 128)
ATTENTION(attention_bf16_256, bf16, 256)

// Adds up the segments of attention that was split over the context. out [rows, heads, head_dim] of f32, or of bf16.
//
// block 128; grid x tiles, y heads: a block has one head of a tile's rows, its threads every 128th value.
extern "C" __global__ void __launch_bounds__(128)
    attention_combine(void* out, const float* partial, const AttentionTile* tiles, unsigned rows, unsigned heads,
                      unsigned head_dim, unsigned is_bf16) {
    const AttentionTile tile = tiles[blockIdx.x];
    const unsigned head = blockIdx.y, segments = (tile.slots + SEGMENT - 1) / SEGMENT;
    /// Segments that are read before the first of them is added.
    constexpr unsigned AT_ONCE = 8;
    for (unsigned row = tile.first_row; row < tile.first_row + tile.rows; ++row) {
        for (unsigned i = threadIdx.x; i < head_dim; i += blockDim.x) {
            Seen seen = seen_nothing();
            float sum = 0.0f;
            for (unsigned first = 0; first < segments; first += AT_ONCE) {
                Seen parts[AT_ONCE];
                float values[AT_ONCE];
#pragma unroll
                for (unsigned j = 0; j < AT_ONCE; ++j) {
                    parts[j] = seen_nothing();
                    values[j] = 0.0f;
                    if (first + j >= segments) continue;
                    const float* part = partial + partial_place(first + j, row, head, rows, heads, head_dim);
                    parts[j] = {part[0], part[1]};
                    values[j] = part[2 + i];
                }
#pragma unroll
                for (unsigned j = 0; j < AT_ONCE; ++j) {
                    if (parts[j].weights == 0.0f) continue;
                    const Shares shares = add_segment(seen, parts[j]);
                    sum = add_values(sum, values[j], shares);
                }
            }
            const size_t at = (size_t{row} * heads + head) * head_dim + i;
            const float value = finished(sum, final_share(seen));
            if (is_bf16) {
                static_cast<bf16*>(out)[at] = from_float<bf16>(value);
            } else {
                static_cast<float*>(out)[at] = value;
            }
        }
    }
}
