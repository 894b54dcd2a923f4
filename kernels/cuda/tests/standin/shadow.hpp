// What is known of every byte that kernels may touch: whether it is allocated, whether it has been written, and who wrote and
// read it last.
//
// Time is counted in epochs. A new one begins with every operation of a stream, with every block, and when a block passes a
// barrier. Blocks run one after the other, so a single number says how an earlier access relates to the present one: below
// `Space::ordered` it came before; from there to `Space::launch` it belongs to another operation, which may be unordered; below
// `now.block` to another block of this launch; below `now.epoch` to this block before its last barrier. This is FastTrack
// (Flanagan, Freund 2009) with the barriers of a GPU in place of locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace standin {

/// A cell is kept for every two bytes: epoch in the upper half, the rest as below. 0: never.
using Cell = uint64_t;

constexpr unsigned page_shift = 12;

constexpr Cell thread_bits = 0x3ff;
constexpr unsigned round_shift = 10;
constexpr Cell round_bits = Cell{0xfff} << round_shift;
constexpr unsigned mask_shift = 22;
constexpr Cell mask_bits = Cell{3} << mask_shift;
/// Several lanes of one warp read.
constexpr Cell several_lanes = Cell{1} << 24;
/// Threads of several warps read.
constexpr Cell several_warps = Cell{1} << 25;
/// Another block of the same launch read before.
constexpr Cell other_block = Cell{1} << 26;
constexpr Cell atomic_bit = Cell{1} << 27;

inline uint32_t epoch_of(Cell cell) { return static_cast<uint32_t>(cell >> 32); }

/// A range of checked memory with its shadow.
struct Space {
    uintptr_t base = 0;
    size_t bytes = 0;
    /// One bit a byte: allocated.
    uint8_t* live = nullptr;
    /// One bit a byte: allocated and written.
    uint8_t* ready = nullptr;
    /// One cell for two bytes.
    Cell* written = nullptr;
    Cell* read = nullptr;
    /// The epoch of the last copy that wrote or read the whole page: it stands for the page's cells.
    uint32_t* page_written = nullptr;
    uint32_t* page_read = nullptr;
    /// Whether a kernel wrote to the page. Used for shared memory, which each block finds unwritten.
    uint8_t* page_touched = nullptr;

    /// Accesses of earlier epochs need not be looked at: they come before the present ones. In shared memory that is all before the
    /// block's last barrier; what came before the block was in the shared memory of another one.
    uint32_t ordered = 0;
    /// Accesses from this epoch on belong to the launch that runs. In shared memory the same as `ordered`.
    uint32_t launch = 0;

    bool contains(uintptr_t address) const { return address - base < bytes; }
    void map_shadow();
    void unmap_shadow();
};

/// Where the accesses being checked stand.
struct Now {
    /// Epoch and thread of the running thread, as a cell without its byte mask.
    Cell mine = 0;
    uint32_t epoch = 1;
    uint32_t block = 1;
    uint32_t launch = 1;
    /// Races are looked for (strict), not only bounds.
    bool strict = true;
};

extern Now now;
/// The memory of the device whose operation runs.
extern Space* device_space;
extern Space shared_space;
/// The fibres' stacks and parameters; not checked.
extern uintptr_t stacks_base;
extern size_t stacks_bytes;

/// At the start of a block and when it passes a barrier.
inline void forget_shared_accesses() { shared_space.ordered = shared_space.launch = now.epoch; }

enum class Access { read, write, atomic };

// The rare cases; each reports a problem or finds that there is none.
void slow_bits(const Space& space, size_t offset, size_t bytes, Access access, const void* caller);
void slow_outside(uintptr_t address, size_t bytes, Access access, const void* caller);
void slow_unaligned(uintptr_t address, size_t bytes, Access access, const void* caller);
void slow_written(const Space& space, size_t cell, Cell mask, Access access, const void* caller);
void slow_read(const Space& space, size_t cell, Cell mask, const void* caller);
void slow_page(const Space& space, size_t offset, Access access, const void* caller);
/// What is kept of the readers of a cell when the running thread reads it after `old`, in the same block.
Cell joined_read(Cell old, Cell mine_with_mask);

inline bool by_me(Cell cell) { return ((cell ^ now.mine) & (~Cell{0} << 32 | thread_bits)) == 0; }

inline bool only_by_me(Cell read) {
    constexpr Cell compared = ~Cell{0} << 32 | thread_bits | several_lanes | several_warps | other_block;
    return ((read ^ now.mine) & compared) == 0;
}

template <Access access>
inline void track_cell(Space& space, size_t cell, Cell mask, const void* caller) {
    const Cell written = space.written[cell];
    if (epoch_of(written) >= space.ordered && (!by_me(written) || access == Access::atomic)) {
        slow_written(space, cell, mask, access, caller);
    }
    const Cell mine = now.mine | mask << mask_shift;
    const Cell read = space.read[cell];
    if constexpr (access == Access::read) {
        // Nothing more is to be said of what several warps read.
        constexpr Cell all = several_warps | mask_bits;
        if (read == mine || ((read ^ mine) >> 32 == 0 && (read & all) == all)) return;
        space.read[cell] = epoch_of(read) < space.launch ? mine
                           : epoch_of(read) < now.block  ? mine | other_block
                                                         : joined_read(read, mine);
    } else {
        if (epoch_of(read) >= space.ordered && !only_by_me(read)) slow_read(space, cell, mask, caller);
        // A thread that writes the bytes of a cell one by one owns both.
        const bool is_rest = ((written ^ mine) & ~mask_bits) == 0;
        space.written[cell] = (is_rest ? mine | written : mine) | (access == Access::atomic ? atomic_bit : 0);
    }
}

/// The usual case, of cells that nothing unordered touched: notes the access and returns true.
template <Access access>
inline bool track_untouched(Space& space, size_t first, size_t count) {
    const Cell mine = now.mine | mask_bits;
    const Cell ordered = Cell{space.ordered} << 32;
    const Cell untouched = access == Access::read ? Cell{space.launch} << 32 : ordered;
    bool is_touched = false;
    for (size_t i = first; i < first + count; ++i) {
        is_touched |= space.written[i] >= ordered;
        is_touched |= space.read[i] >= untouched;
    }
    if (is_touched) return false;
    Cell* const cells = access == Access::read ? space.read : space.written;
    for (size_t i = first; i < first + count; ++i) cells[i] = mine | (access == Access::atomic ? atomic_bit : 0);
    return true;
}

template <Access access>
inline void track(Space& space, size_t offset, size_t bytes, const void* caller) {
    const size_t page = offset >> page_shift;
    if (space.page_written[page] >= space.ordered || (access != Access::read && space.page_read[page] >= space.ordered)) {
        slow_page(space, offset, access, caller);
    }
    if (bytes == 1) {
        track_cell<access>(space, offset >> 1, Cell{1} << (offset & 1), caller);
        return;
    }
    const size_t first = offset >> 1;
    if (track_untouched<access>(space, first, bytes >> 1)) return;
    for (size_t cell = first; cell < first + (bytes >> 1); ++cell) track_cell<access>(space, cell, 3, caller);
}

/// Checks an access of 1, 2, 4, 8 or 16 bytes, aligned to its size, inside `space`.
template <Access access, size_t bytes>
inline void check_inside(Space& space, size_t offset, const void* caller) {
    using Word = std::conditional_t<bytes == 16, uint16_t, uint8_t>;
    const auto wanted = static_cast<Word>(((1u << bytes) - 1) << (bytes == 16 ? 0 : offset & 7));
    auto& ready = *reinterpret_cast<Word*>(space.ready + (offset >> 3));
    if constexpr (access == Access::write) {
        const Word live = *reinterpret_cast<const Word*>(space.live + (offset >> 3));
        if ((live & wanted) != wanted) slow_bits(space, offset, bytes, access, caller);
        ready |= wanted;
        space.page_touched[offset >> page_shift] = 1;
    } else {
        if ((ready & wanted) != wanted) slow_bits(space, offset, bytes, access, caller);
    }
    if (now.strict) track<access>(space, offset, bytes, caller);
}

template <Access access, size_t bytes>
inline void check(const void* pointer, const void* caller) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (address - stacks_base < stacks_bytes) return;
    Space& space = device_space->contains(address) ? *device_space : shared_space;
    if (!space.contains(address)) return slow_outside(address, bytes, access, caller);
    if ((address & (bytes - 1)) != 0) return slow_unaligned(address, bytes, access, caller);
    check_inside<access, bytes>(space, address - space.base, caller);
}

/// Checks an access of any size and alignment by a thread.
void check_range(const void* pointer, size_t bytes, Access access, const void* caller);

/// Checks a copy or fill of device memory by the operation that runs, and notes it. Reports and returns false on a problem.
bool check_copy(Space& space, uintptr_t address, size_t bytes, Access access);

// Bits of the shadow over ranges of bytes.
void set_bits(uint8_t* bits, size_t offset, size_t bytes, bool value);
/// The first offset in the range whose bit is clear, or offset + bytes.
size_t first_clear(const uint8_t* bits, size_t offset, size_t bytes);

/// Begins the next epoch. Before the numbers run out all cells are forgotten.
uint32_t next_epoch();

}  // namespace standin
