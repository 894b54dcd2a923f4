// The instructions of tensor cores, which a whole warp does together, and copies in the background.

#include <cstring>

#include "meeting.hpp"
#include "report.hpp"
#include "shadow.hpp"

// The compiler makes a second form with wider vectors and chooses when the program starts. Neither fuses products with sums.
#if defined(__x86_64__)
#define WITH_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define WITH_VECTORS
#endif

namespace standin {

namespace {

struct Pair { float low, high; };

Pair unpack(uint32_t word, MmaType type) {
    const auto low = static_cast<uint16_t>(word), high = static_cast<uint16_t>(word >> 16);
    if (type == MmaType::bf16) return {bf16_value(low), bf16_value(high)};
    return {half_value(low), half_value(high)};
}

/// Lane l has group g = l / 4 and place t = l % 4 in it. Of a: rows g and g + 8, columns 2t, 2t + 1 and those + 8; of b: rows as a's
/// columns, column g; of d: rows g and g + 8, columns 2t and 2t + 1.
WITH_VECTORS void multiply_all(MmaType type, Thread* lanes) {
    float a[16][16], b[16][8], d[16][8];
    for (unsigned lane = 0; lane < 32; ++lane) {
        const unsigned g = lane / 4, t = lane % 4 * 2;
        const Exchange& mine = lanes[lane].exchange;
        for (unsigned i = 0; i < 4; ++i) {
            const Pair pair = unpack(mine.a[i], type);
            const unsigned row = g + (i % 2) * 8, column = t + (i / 2) * 8;
            a[row][column] = pair.low;
            a[row][column + 1] = pair.high;
        }
        for (unsigned i = 0; i < 2; ++i) {
            const Pair pair = unpack(mine.b[i], type);
            b[t + i * 8][g] = pair.low;
            b[t + i * 8 + 1][g] = pair.high;
        }
        d[g][t] = mine.sum.d0;
        d[g][t + 1] = mine.sum.d1;
        d[g + 8][t] = mine.sum.d2;
        d[g + 8][t + 1] = mine.sum.d3;
    }
    for (unsigned row = 0; row < 16; ++row) {
        for (unsigned k = 0; k < 16; ++k) {
            for (unsigned column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
        }
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
        const unsigned g = lane / 4, t = lane % 4 * 2;
        lanes[lane].exchange.sum = {d[g][t], d[g][t + 1], d[g + 8][t], d[g + 8][t + 1]};
    }
}

/// Lane l gets of each tile the values 2 (l % 4) and one more of row l / 4, or of column l / 4.
void load_all(bool is_transposed, Thread* lanes) {
    for (unsigned tile = 0; tile < 4; ++tile) {
        uint16_t values[8][8];
        for (unsigned row = 0; row < 8; ++row) std::memcpy(values[row], lanes[tile * 8 + row].exchange.row, sizeof values[row]);
        for (unsigned lane = 0; lane < 32; ++lane) {
            const unsigned major = lane / 4, minor = lane % 4 * 2;
            const uint32_t low = is_transposed ? values[minor][major] : values[major][minor];
            const uint32_t high = is_transposed ? values[minor + 1][major] : values[major][minor + 1];
            lanes[lane].exchange.a[tile] = low | high << 16;
        }
    }
}

void finish_copy(const AsyncCopy& copy) {
    check<Access::write, 16>(copy.to, copy.caller);
    std::memcpy(copy.to, copy.from, copy.bytes);
    std::memset(static_cast<unsigned char*>(copy.to) + copy.bytes, 0, 16 - copy.bytes);
}

/// The whole warp must take part.
bool meet_all(Collective collective, unsigned kind, Place place) {
    const Wait wait{collective, kind, 0xffffffffu, 0, place};
    if (warp_of(*running).lanes != 0xffffffffu) problem(describe(wait) + " in a warp that is not whole");
    return meet(wait);
}

}  // namespace

}  // namespace standin

using namespace standin;

extern "C" {

Accumulators standin_mma(Accumulators sum, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                         MmaType type, Place place) {
    Exchange& mine = running->exchange;
    mine.sum = sum;
    mine.a[0] = a0, mine.a[1] = a1, mine.a[2] = a2, mine.a[3] = a3;
    mine.b[0] = b0, mine.b[1] = b1;
    if (meet_all(Collective::mma, static_cast<unsigned>(type), place)) {
        multiply_all(type, &block.threads[running->number / 32 * 32]);
        release(0xffffffffu);
    }
    return running->exchange.sum;
}

uint4 standin_load_matrix(const void* row, bool is_transposed, Place place) {
    check<Access::read, 16>(row, __builtin_return_address(0));
    if (!shared_space.contains(reinterpret_cast<uintptr_t>(row))) problem("ldmatrix from what is not shared memory");
    running->exchange.row = row;
    if (meet_all(Collective::load_matrix, is_transposed ? 1 : 0, place)) {
        load_all(is_transposed, &block.threads[running->number / 32 * 32]);
        release(0xffffffffu);
    }
    const uint32_t* words = running->exchange.a;
    return {words[0], words[1], words[2], words[3]};
}

void standin_copy_async(void* to, const void* from, unsigned bytes) {
    const void* caller = __builtin_return_address(0);
    const auto target = reinterpret_cast<uintptr_t>(to);
    if (!shared_space.contains(target)) problem("a copy in the background to what is not shared memory", caller);
    if (target % 16 != 0 || (bytes != 0 && reinterpret_cast<uintptr_t>(from) % 16 != 0)) {
        problem("a copy in the background of what is not aligned to 16 bytes", caller);
    }
    if (bytes > 16) problem("a copy in the background of more than 16 bytes", caller);
    // It may happen from now on, so nobody else may use either side; but nobody may count on it yet.
    if (bytes == 16) {
        check<Access::read, 16>(from, caller);
    } else {
        check_range(from, bytes, Access::read, caller);
    }
    check<Access::write, 16>(to, caller);
    set_bits(shared_space.ready, target - shared_space.base, 16, false);
    running->copies.push_back({to, from, bytes, running->copy_group, caller});
}

void standin_copy_async_commit() { ++running->copy_group; }

void standin_copy_async_wait(unsigned pending) {
    std::vector<AsyncCopy>& copies = running->copies;
    size_t done = 0;
    // Groups up to copy_group - pending - 1 are over; what was not committed belongs to group copy_group.
    while (done < copies.size() && copies[done].group + pending < running->copy_group) finish_copy(copies[done++]);
    copies.erase(copies.begin(), copies.begin() + static_cast<ptrdiff_t>(done));
}

}
