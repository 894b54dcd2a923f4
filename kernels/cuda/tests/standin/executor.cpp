#include "executor.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.hpp"
#include "fibre.hpp"
#include "report.hpp"
#include "shared_memory.hpp"

namespace standin {

Block block;
Thread* running = nullptr;
Random choices;
Context main_context;
Carrier* carrier = nullptr;

namespace {

// A page more than a power of two, and each stack begins some cache lines further down: else the tops of all stacks would
// compete for the same few lines of the caches.
constexpr size_t stack_bytes = 33 * 4096;
constexpr size_t guard_bytes = 4096;
constexpr size_t most_threads = 1024;
constexpr size_t most_parameters = 64;

/// The arguments lie in front of the stacks, so that a kernel's reads of them need no check.
struct Parameters {
    void* pointers[most_parameters];
    alignas(16) unsigned char bytes[16 * 1024];
};
constexpr size_t parameters_bytes = 64 * 1024;
static_assert(sizeof(Parameters) <= parameters_bytes);

Parameters* parameters = nullptr;
std::vector<Carrier*> carriers;
std::vector<Carrier*> free_carriers;
bool is_stopped = false;
const char* running_operation = nullptr;

void map_stacks() {
    stacks_bytes = parameters_bytes + most_threads * stack_bytes;
    void* memory = mmap(nullptr, stacks_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        std::perror("stand-in: stacks");
        std::abort();
    }
    stacks_base = reinterpret_cast<uintptr_t>(memory);
    parameters = static_cast<Parameters*>(memory);
}

void carrier_main();

/// Orders the threads warp by warp, so that lanes that meet are close together.
void order_threads() {
    const auto count = static_cast<unsigned>(block.threads.size());
    const unsigned whole = count / 32;
    block.order.clear();
    const Order lanes(32, choices);
    unsigned lane_order[32];
    for (unsigned i = 0; i < 32; ++i) lane_order[i] = static_cast<unsigned>(lanes(i));
    if (whole > 0) {
        const Order warps(whole, choices);
        for (unsigned i = 0; i < whole; ++i) {
            const auto warp = static_cast<unsigned>(warps(i));
            for (const unsigned lane : lane_order) block.order.push_back(warp * 32 + lane);
        }
    }
    for (unsigned i = whole * 32; i < count; ++i) block.order.push_back(i);
}

/// Runs the thread that `running` names, then others, as long as there are any.
void carrier_main() {
    for (;;) {
        running->is_started = true;
        running->carrier = carrier;
        block.launch->kernel->call(parameters->pointers);
        running->is_finished = true;
        ++block.finished;
        warp_of(*running).finished |= 1u << lane_of(*running);
        check_end(*running);
        Thread* next = choose();
        set_current(next);
        if (next != nullptr && !next->is_started) continue;
        Carrier* self = carrier;
        free_carriers.push_back(self);
        if (next != nullptr) {
            switch_to(self->context, next->carrier);
        } else {
            standin_switch(&self->context, &main_context);
        }
    }
}

void begin_block(uint64_t number) {
    const Size grid = block.launch->grid;
    block.index = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
                   static_cast<unsigned>(number / grid.x / grid.y)};
    now.block = next_epoch();
    poison_shared();
    for (Thread& thread : block.threads) {
        thread.is_started = thread.is_finished = false;
        thread.wait.collective = Collective::none;
        thread.copies.clear();
        thread.copy_group = 0;
    }
    for (Warp& warp : block.warps) {
        warp.finished = warp.rounds = 0;
        warp.meetings.clear();
    }
    block.ready.clear();
    block.started = block.finished = block.at_barrier = 0;
    block.starts_first = choices.below(4) == 0;
    order_threads();
}

void run_block(uint64_t number) {
    begin_block(number);
    set_current(choose());
    switch_to(main_context, take_carrier());
    const bool is_stuck = !is_stopped && block.finished < block.threads.size();
    if (is_stuck) {
        report_stuck();
        is_stopped = true;
    }
}

void shape_block(const Launch& launch) {
    const Size size = launch.block;
    block.launch = &launch;
    block.size = {size.x, size.y, size.z};
    block.grid = {launch.grid.x, launch.grid.y, launch.grid.z};
    block.threads.resize(size.count());
    for (unsigned i = 0; i < block.threads.size(); ++i) {
        block.threads[i].number = i;
        block.threads[i].index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    }
    block.warps.resize((block.threads.size() + 31) / 32);
    for (Warp& warp : block.warps) warp.lanes = 0;
    for (unsigned i = 0; i < block.threads.size(); ++i) block.warps[i / 32].lanes |= 1u << i % 32;
}

void place_arguments(const Launch& launch) {
    std::memcpy(parameters->bytes, launch.arguments.data(), launch.arguments.size());
    size_t offset = 0;
    for (size_t i = 0; i < launch.kernel->parameter_bytes.size(); ++i) {
        parameters->pointers[i] = parameters->bytes + offset;
        offset += (launch.kernel->parameter_bytes[i] + 15) / 16 * 16;
    }
}

/// After a launch was given up its threads' stacks hold what nobody will go on with.
void renew_carriers() {
    free_carriers = carriers;
    for (Carrier* one : carriers) prepare(one->context, one->stack, one->bytes, &carrier_main);
}

}  // namespace

Carrier* take_carrier() {
    if (free_carriers.empty()) {
        auto* made = new Carrier;
        made->stack = reinterpret_cast<unsigned char*>(stacks_base) + parameters_bytes + carriers.size() * stack_bytes;
        mprotect(made->stack, guard_bytes, PROT_NONE);
        made->bytes = stack_bytes - carriers.size() % 61 * 64;
        prepare(made->context, made->stack, made->bytes, &carrier_main);
        carriers.push_back(made);
        return made;
    }
    Carrier* taken = free_carriers.back();
    free_carriers.pop_back();
    return taken;
}

void run_launch(const Launch& launch, uint64_t seed) {
    if (stacks_base == 0) map_stacks();
    choices = Random(seed);
    is_stopped = false;
    shape_block(launch);
    place_arguments(launch);
    open_shared(launch.shared_bytes);
    const uint64_t count = launch.grid.count();
    const Order order(count, choices);
    for (uint64_t i = 0; i < count && !is_stopped; ++i) run_block(order(i));
    running = nullptr;
    block.launch = nullptr;
    if (is_stopped) renew_carriers();
}

bool in_kernel() { return running != nullptr; }

void stop_launch() {
    is_stopped = true;
    running = nullptr;
    Context abandoned;
    standin_switch(&abandoned, &main_context);
    std::abort();
}

std::string running_place() {
    if (block.launch == nullptr) return running_operation == nullptr ? "" : format(" in %s", running_operation);
    std::string text = format(" in kernel %s, block (%u,%u,%u)", std::string(block.launch->kernel->name).c_str(), block.index.x,
                              block.index.y, block.index.z);
    if (running != nullptr) text += format(", thread (%u,%u,%u)", running->index.x, running->index.y, running->index.z);
    return text;
}

void set_running_operation(const char* name) { running_operation = name; }

std::vector<unsigned char> packed_arguments(const Kernel& kernel, void* const* from) {
    std::vector<unsigned char> bytes;
    for (size_t i = 0; i < kernel.parameter_bytes.size(); ++i) {
        const size_t offset = bytes.size();
        bytes.resize(offset + (kernel.parameter_bytes[i] + 15) / 16 * 16);
        std::memcpy(bytes.data() + offset, from[i], kernel.parameter_bytes[i]);
    }
    return bytes;
}

}  // namespace standin

// The indices. They are read before the executor switches, which the compiler cannot know of a `const` function; it keeps them for
// the fibre that asked.
extern "C" {
uint3 standin_thread_index() { return standin::running->index; }
uint3 standin_block_index() { return standin::block.index; }
uint3 standin_block_size() { return standin::block.size; }
uint3 standin_grid_size() { return standin::block.grid; }
}
