// The rare cases of shadow.hpp: tells what is wrong with an access, or that nothing is.

#include "device.hpp"
#include "executor.hpp"
#include "operations.hpp"
#include "report.hpp"
#include "shadow.hpp"
#include "shared_memory.hpp"

namespace standin {

namespace {

const char* verb(Access access) {
    return access == Access::read ? "read" : access == Access::write ? "write" : "atomic access";
}

std::string describe(const Space& space, uintptr_t address) {
    if (&space == &shared_space) return describe_shared(address);
    // A copy between devices touches one that is not active.
    const Device* owner = device_of(address);
    return (owner == nullptr ? active_device : owner)->describe(address);
}

std::string thread_of(Cell cell) { return format("thread %lu", static_cast<unsigned long>(cell & thread_bits)); }

uint64_t round_of(Cell cell) { return (cell & round_bits) >> round_shift; }

bool same_warp(Cell a, Cell b) { return (a & thread_bits) / 32 == (b & thread_bits) / 32; }

void race(const Space& space, size_t cell, const std::string& what, const void* caller) {
    // A copy goes on after a problem: the first is enough.
    if (!in_kernel() && active_device->error != 0) return;
    const uintptr_t address = space.base + cell * 2;
    problem(format("race: %s at 0x%lx, ", what.c_str(), address) + describe(space, address), caller);
}

void race_of_operations(const Space& space, size_t cell, Cell earlier, const char* did, Access access, const void* caller) {
    race(space, cell, format("%s of what %s %s, with no event between them", verb(access),
                             operation_of(epoch_of(earlier)).c_str(), did), caller);
}

}  // namespace

void slow_bits(const Space& space, size_t offset, size_t bytes, Access access, const void* caller) {
    const size_t dead = first_clear(space.live, offset, bytes);
    const bool is_live = dead == offset + bytes;
    const size_t bad = is_live ? first_clear(space.ready, offset, bytes) : dead;
    const uintptr_t address = space.base + offset;
    const char* reason = is_live ? "of memory never written" : "outside what is allocated";
    const std::string what = format("%s of %zu bytes at 0x%lx %s: ", verb(access), bytes, address, reason);
    problem(what + describe(space, space.base + bad), caller);
}

void slow_outside(uintptr_t address, size_t bytes, Access access, const void* caller) {
    const Device* other = device_of(address);
    const char* where = address < 4096      ? "a null pointer"
                        : other != nullptr ? "memory of another device"
                                           : "not memory of a device";
    problem(format("%s of %zu bytes at 0x%lx: %s", verb(access), bytes, address, where), caller);
}

void slow_unaligned(uintptr_t address, size_t bytes, Access access, const void* caller) {
    problem(format("%s of %zu bytes at 0x%lx, which is not aligned to that size", verb(access), bytes, address), caller);
}

void slow_written(const Space& space, size_t cell, Cell mask, Access access, const void* caller) {
    const Cell old = space.written[cell];
    if ((old & mask << mask_shift) == 0) return;
    const uint32_t epoch = epoch_of(old);
    if (epoch < space.launch) {
        if (!comes_before(epoch)) race_of_operations(space, cell, old, "wrote", access, caller);
        return;
    }
    if (access == Access::atomic && (old & atomic_bit) != 0) return;
    if (epoch < now.block) {
        return race(space, cell, format("%s of what %s of another block wrote", verb(access), thread_of(old).c_str()), caller);
    }
    if (epoch < now.epoch || by_me(old)) return;
    if (same_warp(old, now.mine) && round_of(old) < round_of(now.mine)) return;
    race(space, cell, format("%s of what %s of the block wrote, with no barrier between them", verb(access),
                             thread_of(old).c_str()), caller);
}

void slow_read(const Space& space, size_t cell, Cell mask, const void* caller) {
    const Cell old = space.read[cell];
    if ((old & mask << mask_shift) == 0) return;
    const uint32_t epoch = epoch_of(old);
    if (epoch < space.launch) {
        if (!comes_before(epoch)) race_of_operations(space, cell, old, "reads", Access::write, caller);
        return;
    }
    if (epoch < now.block || (old & other_block) != 0) {
        return race(space, cell, format("write of what %s of another block reads", thread_of(old).c_str()), caller);
    }
    if (epoch < now.epoch) return;
    const bool is_ordered = same_warp(old, now.mine) && round_of(old) < round_of(now.mine);
    if ((old & several_warps) == 0 && (is_ordered || ((old & several_lanes) == 0 && by_me(old)))) return;
    race(space, cell, format("write of what %s of the block reads, with no barrier between them", thread_of(old).c_str()), caller);
}

void slow_page(const Space& space, size_t offset, Access access, const void* caller) {
    const size_t page = offset >> page_shift;
    const auto check = [&](uint32_t epoch, const char* did) {
        if (epoch < space.ordered || epoch == now.launch || comes_before(epoch)) return;
        race_of_operations(space, offset >> 1, Cell{epoch} << 32, did, access, caller);
    };
    check(space.page_written[page], "wrote");
    if (access != Access::read) check(space.page_read[page], "reads");
}

Cell joined_read(Cell old, Cell mine) {
    const Cell flags = old & other_block;
    if (epoch_of(old) < now.epoch) return mine | flags;
    const Cell masks = old & mask_bits;
    if (!same_warp(old, mine) || (old & several_warps) != 0) return mine | masks | flags | several_warps;
    if (round_of(old) < round_of(mine)) return mine | flags;
    const bool is_same = ((old ^ mine) & thread_bits) == 0 && (old & several_lanes) == 0;
    return mine | masks | flags | (is_same ? 0 : several_lanes);
}

}  // namespace standin
