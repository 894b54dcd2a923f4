#include "shadow.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.hpp"
#include "operations.hpp"

namespace standin {

Now now;
Space* device_space = nullptr;
Space shared_space;
uintptr_t stacks_base = 0;
size_t stacks_bytes = 0;

namespace {

template <typename T>
void map_table(T*& table, size_t entries) {
    void* memory = mmap(nullptr, entries * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        std::perror("stand-in: shadow memory");
        std::abort();
    }
    table = static_cast<T*>(memory);
}

/// Forgets who touched what; pages go back to the system.
void clear_epochs(const Space& space) {
    if (space.bytes == 0) return;
    madvise(space.written, space.bytes / 2 * sizeof(Cell), MADV_DONTNEED);
    madvise(space.read, space.bytes / 2 * sizeof(Cell), MADV_DONTNEED);
    madvise(space.page_written, (space.bytes >> page_shift) * sizeof(uint32_t), MADV_DONTNEED);
    madvise(space.page_read, (space.bytes >> page_shift) * sizeof(uint32_t), MADV_DONTNEED);
}

bool bit(const uint8_t* bits, size_t offset) { return (bits[offset >> 3] >> (offset & 7) & 1) != 0; }

/// Checks `bytes` at `offset` as one access aligned to its size.
template <Access access>
void check_piece(Space& space, size_t offset, size_t bytes, const void* caller) {
    switch (bytes) {
        case 1: return check_inside<access, 1>(space, offset, caller);
        case 2: return check_inside<access, 2>(space, offset, caller);
        case 4: return check_inside<access, 4>(space, offset, caller);
        case 8: return check_inside<access, 8>(space, offset, caller);
        default: return check_inside<access, 16>(space, offset, caller);
    }
}

template <Access access>
void check_pieces(Space& space, size_t offset, size_t bytes, const void* caller) {
    for (const size_t end = offset + bytes; offset < end;) {
        const size_t aligned = offset == 0 ? 16 : size_t{1} << std::min(4, std::countr_zero(offset));
        const size_t piece = std::min(aligned, std::bit_floor(end - offset));
        check_piece<access>(space, offset, piece, caller);
        offset += piece;
    }
}

/// Checks the cells of whole pages against a copy, then lets the page's epoch stand for them.
template <Access access>
void copy_page(Space& space, size_t page) {
    const size_t offset = page << page_shift;
    if (space.page_written[page] >= space.ordered || (access == Access::write && space.page_read[page] >= space.ordered)) {
        slow_page(space, offset, access, nullptr);
    }
    const size_t begin = offset >> 1;
    for (size_t cell = begin; cell < begin + (size_t{1} << (page_shift - 1)); ++cell) {
        if (epoch_of(space.written[cell]) >= space.ordered) slow_written(space, cell, 3, access, nullptr);
        if (access == Access::write && epoch_of(space.read[cell]) >= space.ordered) slow_read(space, cell, 3, nullptr);
    }
    (access == Access::write ? space.page_written : space.page_read)[page] = now.epoch;
}

template <Access access>
void copy_cells(Space& space, size_t offset, size_t bytes) {
    for (const size_t end = offset + bytes; offset < end;) {
        const size_t page_end = (offset >> page_shift << page_shift) + (size_t{1} << page_shift);
        const size_t piece = std::min(end, page_end) - offset;
        if (piece == size_t{1} << page_shift) {
            copy_page<access>(space, offset >> page_shift);
        } else {
            check_pieces<access>(space, offset, piece, nullptr);
        }
        offset += piece;
    }
}

}  // namespace

void Space::map_shadow() {
    map_table(live, bytes / 8);
    map_table(ready, bytes / 8);
    map_table(written, bytes / 2);
    map_table(read, bytes / 2);
    map_table(page_written, bytes >> page_shift);
    map_table(page_read, bytes >> page_shift);
    map_table(page_touched, bytes >> page_shift);
}

void Space::unmap_shadow() {
    munmap(live, bytes / 8);
    munmap(ready, bytes / 8);
    munmap(written, bytes / 2 * sizeof(Cell));
    munmap(read, bytes / 2 * sizeof(Cell));
    munmap(page_written, (bytes >> page_shift) * sizeof(uint32_t));
    munmap(page_read, (bytes >> page_shift) * sizeof(uint32_t));
    munmap(page_touched, bytes >> page_shift);
}

uint32_t next_epoch() {
    if (now.epoch == UINT32_MAX) {
        for (const auto& device : devices()) clear_epochs(device->space);
        clear_epochs(shared_space);
        now.epoch = now.block = now.launch = 0;
        forget_operations();
    }
    return ++now.epoch;
}

void check_range(const void* pointer, size_t bytes, Access access, const void* caller) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (bytes == 0 || address - stacks_base < stacks_bytes) return;
    Space& space = device_space->contains(address) ? *device_space : shared_space;
    if (!space.contains(address) || space.bytes - (address - space.base) < bytes) {
        return slow_outside(address, bytes, access, caller);
    }
    if (access == Access::read) return check_pieces<Access::read>(space, address - space.base, bytes, caller);
    check_pieces<Access::write>(space, address - space.base, bytes, caller);
}

bool check_copy(Space& space, uintptr_t address, size_t bytes, Access access) {
    const size_t offset = address - space.base;
    const int error_before = active_device->error;
    const uint8_t* bits = access == Access::read ? space.ready : space.live;
    if (const size_t bad = first_clear(bits, offset, bytes); bad != offset + bytes) {
        slow_bits(space, bad, offset + bytes - bad, access, nullptr);
        return false;
    }
    if (now.strict) {
        access == Access::read ? copy_cells<Access::read>(space, offset, bytes) : copy_cells<Access::write>(space, offset, bytes);
    }
    if (access == Access::write) set_bits(space.ready, offset, bytes, true);
    return active_device->error == error_before;
}

void set_bits(uint8_t* bits, size_t offset, size_t bytes, bool value) {
    size_t end = offset + bytes;
    const auto set = [&](size_t at) {
        const auto one = static_cast<uint8_t>(1u << (at & 7));
        bits[at >> 3] = static_cast<uint8_t>(value ? bits[at >> 3] | one : bits[at >> 3] & ~one);
    };
    for (; offset < end && (offset & 7) != 0; ++offset) set(offset);
    for (; offset < end && (end & 7) != 0; --end) set(end - 1);
    if (offset < end) std::memset(bits + (offset >> 3), value ? 0xff : 0, (end - offset) >> 3);
}

size_t first_clear(const uint8_t* bits, size_t offset, size_t bytes) {
    const size_t end = offset + bytes;
    while (offset < end) {
        if ((offset & 7) == 0 && end - offset >= 8 && bits[offset >> 3] == 0xff) {
            offset += 8;
        } else if (bit(bits, offset)) {
            ++offset;
        } else {
            return offset;
        }
    }
    return end;
}

}  // namespace standin
