// The threads of the block that runs.
#pragma once

#include <cstdint>
#include <vector>

#include "context.hpp"
#include "executor.hpp"
#include "host_device.hpp"
#include "random.hpp"
#include "shadow.hpp"

namespace standin {

/// A stack on which threads run, one after the other.
struct Carrier {
    Context context;
    unsigned char* stack = nullptr;
    size_t bytes = 0;
};

enum class Collective : unsigned char { none, block_barrier, warp_barrier, shuffle, vote, mma, load_matrix };

/// What a thread waits with.
struct Wait {
    Collective collective = Collective::none;
    /// Shuffle, Vote or MmaType.
    unsigned kind = 0;
    unsigned mask = 0;
    unsigned width = 0;
    Place place{};
};

/// What a thread brings to a collective and takes from it.
struct Exchange {
    uint32_t value = 0;
    unsigned argument = 0;
    uint32_t a[4] = {}, b[2] = {};
    Accumulators sum{};
    const void* row = nullptr;
};

/// A copy to shared memory that the thread has not waited for.
struct AsyncCopy {
    void* to;
    const void* from;
    unsigned bytes;
    unsigned group;
    const void* caller;
};

struct Thread {
    uint3 index{};
    unsigned number = 0;
    bool is_started = false;
    bool is_finished = false;
    Carrier* carrier = nullptr;
    Wait wait;
    Exchange exchange;
    std::vector<AsyncCopy> copies;
    /// Groups of copies that were ended.
    unsigned copy_group = 0;
};

/// Lanes of a warp that wait for each other.
struct Meeting {
    Wait wait;
    unsigned arrived = 0;
};

struct Warp {
    /// Lanes that the block has, and those of them whose thread has ended.
    unsigned lanes = 0;
    unsigned finished = 0;
    /// Warp barriers since the last block barrier.
    unsigned rounds = 0;
    /// Almost always one.
    std::vector<Meeting> meetings;
};

/// The block that runs.
struct Block {
    const Launch* launch = nullptr;
    uint3 index{}, size{}, grid{};
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    /// Suspended threads that may go on.
    std::vector<Thread*> ready;
    /// Numbers of threads in the order in which they start.
    std::vector<unsigned> order;
    /// Whether threads start before others go on, or the other way round.
    bool starts_first = false;
    unsigned started = 0, finished = 0, at_barrier = 0;
    /// The first thread that waits at the block's barrier.
    const Thread* first_at_barrier = nullptr;
};

extern Block block;
/// The thread that runs; null outside kernels.
extern Thread* running;
extern Random choices;

inline Warp& warp_of(const Thread& thread) { return block.warps[thread.number / 32]; }
inline unsigned lane_of(const Thread& thread) { return thread.number % 32; }

/// Reports that no thread can go on, or that one ended while others wait.
void report_stuck();
/// Called when `thread` ends: nobody may wait for it.
void check_end(const Thread& thread);
/// "__syncthreads (rows.cu:12)", for reports.
std::string describe(const Wait& wait);

/// The executor's own context, which goes on when no thread can.
extern Context main_context;
/// The carrier that runs.
extern Carrier* carrier;
Carrier* take_carrier();

/// From now on `thread` runs: accesses are noted as its own.
inline void set_current(Thread* thread) {
    running = thread;
    if (thread == nullptr) return;
    now.mine = Cell{now.epoch} << 32 | Cell{warp_of(*thread).rounds} << round_shift | thread->number;
}

/// The thread to go on with; null if there is none. Which comes first is up to the order in which threads start and are set free, which
/// is seeded. Threads of one warp mostly follow each other, so that what they use stays in the cache.
inline Thread* choose() {
    const bool has_fresh = block.started < block.threads.size();
    if (block.ready.empty() || (has_fresh && block.starts_first)) {
        return has_fresh ? &block.threads[block.order[block.started++]] : nullptr;
    }
    Thread* thread = block.ready.back();
    block.ready.pop_back();
    return thread;
}

inline void switch_to(Context& from, Carrier* to) {
    carrier = to;
    standin_switch(&from, &to->context);
}

/// Suspends the running thread until another puts it into `block.ready`.
inline void suspend() {
    Thread* self = running;
    Thread* next = choose();
    set_current(next);
    if (next == nullptr) {
        standin_switch(&self->carrier->context, &main_context);
    } else {
        switch_to(self->carrier->context, next->is_started ? next->carrier : take_carrier());
    }
}

}  // namespace standin
