// Barriers, shuffles, votes and atomics: what needs the other threads of a block.

#include <algorithm>
#include <bit>
#include <cstring>

#include "meeting.hpp"
#include "report.hpp"
#include "shadow.hpp"

namespace standin {

namespace {

std::string describe_thread(const Thread& thread) {
    const std::string at = thread.is_finished ? "has ended" : "waits at " + describe(thread.wait);
    return format("thread (%u,%u,%u) ", thread.index.x, thread.index.y, thread.index.z) + at;
}


/// The lane that `lane` reads from, or -1 where it keeps its own value (PTX ISA, shfl.sync).
int source_lane(Shuffle kind, unsigned lane, unsigned argument, unsigned width) {
    const unsigned first = lane & ~(width - 1);
    switch (kind) {
        case Shuffle::from_lane: return static_cast<int>(first | (argument & (width - 1)));
        case Shuffle::exclusive_or: {
            const unsigned other = lane ^ argument;
            return other < first + width ? static_cast<int>(other) : -1;
        }
        case Shuffle::up: return lane - first < argument ? -1 : static_cast<int>(lane - argument);
        case Shuffle::down: return lane - first + argument >= width ? -1 : static_cast<int>(lane + argument);
    }
    return -1;
}

void shuffle_all(const Wait& wait) {
    Thread* const first = &block.threads[running->number / 32 * 32];
    const unsigned present = wait.mask & warp_of(*running).lanes;
    uint32_t results[32];
    for (unsigned left = present; left != 0; left &= left - 1) {
        const auto lane = static_cast<unsigned>(std::countr_zero(left));
        const int source = source_lane(static_cast<Shuffle>(wait.kind), lane, first[lane].exchange.argument, wait.width);
        if (source >= 0 && (source > 31 || (present >> source & 1) == 0)) {
            problem(format("lane %u reads lane %d in %s, which is not in mask 0x%08x of the warp's lanes", lane, source,
                           describe(wait).c_str(), present));
        }
        results[lane] = first[source < 0 ? static_cast<int>(lane) : source].exchange.value;
    }
    for (unsigned left = present; left != 0; left &= left - 1) {
        const int lane = std::countr_zero(left);
        first[lane].exchange.value = results[lane];
    }
}

void vote_all(const Wait& wait) {
    Thread* const first = &block.threads[running->number / 32 * 32];
    const unsigned present = wait.mask & warp_of(*running).lanes;
    unsigned ballot = 0;
    for (unsigned left = present; left != 0; left &= left - 1) {
        const int lane = std::countr_zero(left);
        if (first[lane].exchange.value != 0) ballot |= 1u << lane;
    }
    const auto kind = static_cast<Vote>(wait.kind);
    const uint32_t result = kind == Vote::ballot ? ballot : kind == Vote::any ? ballot != 0 : ballot == present;
    for (unsigned left = present; left != 0; left &= left - 1) first[std::countr_zero(left)].exchange.value = result;
}

/// What the block did so far comes before what it will do.
void new_interval() {
    next_epoch();
    forget_shared_accesses();
    for (Warp& warp : block.warps) warp.rounds = 0;
}

uint32_t combined(Atomic kind, uint32_t old, uint32_t value, uint32_t compare) {
    switch (kind) {
        case Atomic::add: return old + value;
        case Atomic::add_float: return std::bit_cast<uint32_t>(std::bit_cast<float>(old) + std::bit_cast<float>(value));
        case Atomic::minimum: return std::min(old, value);
        case Atomic::maximum: return std::max(old, value);
        case Atomic::bit_and: return old & value;
        case Atomic::bit_or: return old | value;
        case Atomic::exchange: return value;
        case Atomic::compare_exchange: return old == compare ? value : old;
    }
    return old;
}

}  // namespace

void wrong_mask(const Wait& wait) {
    const Warp& warp = warp_of(*running);
    if ((wait.mask >> lane_of(*running) & 1) == 0) {
        problem(format("mask 0x%08x of %s has not the lane that calls, %u", wait.mask, describe(wait).c_str(), lane_of(*running)));
    }
    problem(format("mask 0x%08x of %s has lanes whose threads have ended: 0x%08x", wait.mask, describe(wait).c_str(),
                   wait.mask & warp.finished));
}

void wrong_meeting(const Wait& wait, unsigned waiting) {
    const unsigned other = running->number / 32 * 32 + static_cast<unsigned>(std::countr_zero(waiting));
    problem("lanes of one warp meet at different places: at " + describe(wait) + ", and " +
            describe_thread(block.threads[other]));
}

std::string describe(const Wait& wait) {
    constexpr const char* names[] = {"nothing", "__syncthreads", "__syncwarp", "a shuffle", "a vote", "mma_m16n8k16", "ldmatrix"};
    const char* slash = std::strrchr(wait.place.file, '/');
    return format("%s (%s:%u)", names[static_cast<unsigned>(wait.collective)], slash != nullptr ? slash + 1 : wait.place.file,
                  wait.place.line);
}

void check_end(const Thread& thread) {
    if (block.at_barrier != 0) {
        problem(format("thread (%u,%u,%u) ended, but ", thread.index.x, thread.index.y, thread.index.z) +
                describe_thread(*block.first_at_barrier));
    }
    for (const Meeting& meeting : warp_of(thread).meetings) {
        if ((meeting.wait.mask >> lane_of(thread) & 1) == 0) continue;
        problem(format("thread (%u,%u,%u) ended, but other lanes of its warp wait for it at ", thread.index.x, thread.index.y,
                       thread.index.z) + describe(meeting.wait));
    }
}

void report_stuck() {
    std::string text = "the block cannot go on:";
    unsigned listed = 0;
    const Wait* last = nullptr;
    for (const Thread& thread : block.threads) {
        const Wait& wait = thread.wait;
        if (thread.is_finished || wait.collective == Collective::none || listed == 4) continue;
        const bool is_new = last == nullptr || last->collective != wait.collective || last->mask != wait.mask ||
                            !same_place(last->place, wait.place);
        if (!is_new) continue;
        text += format("%s %s with mask 0x%08x", listed == 0 ? "" : ";", describe_thread(thread).c_str(), wait.mask);
        last = &wait;
        ++listed;
    }
    problem(text);
}

}  // namespace standin

using namespace standin;

extern "C" {

void standin_block_barrier(Place place) {
    running->wait = {Collective::block_barrier, 0, 0, 0, place};
    if (block.finished != 0) {
        problem(format("%u threads of the block ended, but others wait at ", block.finished) + describe(running->wait));
    }
    if (block.at_barrier == 0) {
        block.first_at_barrier = running;
    } else if (!same_place(block.first_at_barrier->wait.place, place)) {
        problem("threads of one block wait at different barriers: at " + describe(running->wait) + ", and " +
                describe_thread(*block.first_at_barrier));
    }
    if (++block.at_barrier < block.threads.size()) return suspend();
    block.at_barrier = 0;
    new_interval();
    for (Thread& thread : block.threads) {
        thread.wait.collective = Collective::none;
        if (&thread != running) block.ready.push_back(&thread);
    }
    set_current(running);
}

void standin_warp_barrier(unsigned mask, Place place) {
    if (!meet({Collective::warp_barrier, 0, mask, 0, place})) return;
    Warp& warp = warp_of(*running);
    // A cell has 12 bits for the round. When they run out the whole block gets a new epoch, as if it had passed a barrier.
    if (++warp.rounds > round_bits >> round_shift) {
        new_interval();
    }
    release(mask);
}

uint32_t standin_shuffle(Shuffle kind, unsigned mask, uint32_t value, unsigned argument, unsigned width, Place place) {
    const Wait wait{Collective::shuffle, static_cast<unsigned>(kind), mask, width, place};
    if (width == 0 || width > 32 || (width & (width - 1)) != 0) problem(format("width %u of a shuffle", width));
    running->exchange.value = value;
    running->exchange.argument = argument;
    if (meet(wait)) {
        shuffle_all(wait);
        release(mask);
    }
    return running->exchange.value;
}

uint32_t standin_vote(Vote kind, unsigned mask, bool predicate, Place place) {
    const Wait wait{Collective::vote, static_cast<unsigned>(kind), mask, 0, place};
    running->exchange.value = predicate ? 1 : 0;
    if (meet(wait)) {
        vote_all(wait);
        release(mask);
    }
    return running->exchange.value;
}

uint32_t standin_atomic(Atomic kind, void* address, uint32_t value, uint32_t compare) {
    check<Access::atomic, 4>(address, __builtin_return_address(0));
    auto* word = static_cast<uint32_t*>(address);
    const uint32_t old = *word;
    *word = combined(kind, old, value, compare);
    return old;
}

void standin_trap(Place place) {
    problem(format("__trap (%s:%u)", place.file, place.line));
    __builtin_unreachable();
}

}
