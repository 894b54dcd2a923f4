#include "device.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "report.hpp"
#include "settings.hpp"

namespace standin {

Device* active_device = nullptr;

namespace {

/// Addresses of one device. Only what is touched takes memory.
constexpr size_t address_space = size_t{64} << 30;

size_t rounded(size_t bytes) { return (bytes + Device::alignment - 1) / Device::alignment * Device::alignment; }

}  // namespace

Device::Device(int number_, size_t memory_) : number(number_), memory(memory_) {
    void* range = mmap(nullptr, address_space, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
        std::perror("stand-in: addresses of a device");
        std::abort();
    }
    space.base = reinterpret_cast<uintptr_t>(range);
    space.bytes = address_space;
    space.map_shadow();
    next = space.base + gap;
}

Device::~Device() {
    munmap(reinterpret_cast<void*>(space.base), space.bytes);
    space.unmap_shadow();
}

/// The first place from `next` on, else from the start, between the allocations there are.
uintptr_t Device::place_for(size_t bytes) const {
    for (const uintptr_t from : {next, space.base + gap}) {
        uintptr_t place = from;
        auto after = allocations.lower_bound(place);
        if (after != allocations.begin()) {
            const auto before = std::prev(after);
            place = std::max(place, before->first + rounded(before->second.bytes) + gap);
        }
        for (; after != allocations.end() && after->first < place + rounded(bytes) + gap; ++after) {
            place = after->first + rounded(after->second.bytes) + gap;
        }
        if (place + rounded(bytes) + gap <= space.base + space.bytes) return place;
    }
    return 0;
}

uintptr_t Device::allocate(size_t bytes) {
    if (rounded(bytes) > memory - std::min(memory, used_bytes)) return 0;
    const uintptr_t place = place_for(bytes);
    if (place == 0) return 0;
    freed.erase(freed.lower_bound(place), freed.lower_bound(place + rounded(bytes)));
    allocations[place] = {bytes, ++count};
    used_bytes += rounded(bytes);
    next = place + rounded(bytes) + gap;
    set_bits(space.live, place - space.base, bytes, true);
    return place;
}

size_t Device::allocated_at(uintptr_t address) const {
    const auto found = allocations.find(address);
    return found == allocations.end() ? 0 : found->second.bytes;
}

bool Device::release(uintptr_t address) {
    const auto found = allocations.find(address);
    if (found == allocations.end()) return false;
    const size_t bytes = found->second.bytes;
    set_bits(space.live, address - space.base, bytes, false);
    set_bits(space.ready, address - space.base, bytes, false);
    const uintptr_t page = (address + 4095) & ~uintptr_t{4095};
    const uintptr_t end = (address + bytes) & ~uintptr_t{4095};
    if (page < end) madvise(reinterpret_cast<void*>(page), end - page, MADV_DONTNEED);
    freed[address] = found->second;
    used_bytes -= rounded(bytes);
    allocations.erase(found);
    return true;
}

void Device::release_all() {
    while (!allocations.empty()) release(allocations.begin()->first);
}

std::string Device::describe(uintptr_t address) const {
    const auto nearest = [&](const std::map<uintptr_t, Allocation>& all) {
        const auto after = all.upper_bound(address);
        return after == all.begin() ? all.end() : std::prev(after);
    };
    const auto live = nearest(allocations);
    const auto dead = nearest(freed);
    const auto text = [&](auto place, const char* kind) {
        const size_t offset = address - place->first;
        const size_t bytes = place->second.bytes;
        if (offset < bytes) {
            return format("byte %zu of %sallocation %lu (%zu bytes)", offset, kind, place->second.number, bytes);
        }
        return format("%zu bytes past the end of %sallocation %lu (%zu bytes)", offset - bytes, kind, place->second.number, bytes);
    };
    const bool is_dead = dead != freed.end() && (live == allocations.end() || dead->first > live->first);
    if (is_dead) return text(dead, "freed ");
    if (live != allocations.end()) return text(live, "");
    return "before all allocations";
}

std::vector<std::unique_ptr<Device>>& devices() {
    static auto& all = *new std::vector<std::unique_ptr<Device>>;
    while (all.size() < static_cast<size_t>(settings().devices)) {
        all.push_back(std::make_unique<Device>(static_cast<int>(all.size()), settings().memory));
    }
    return all;
}

Device* device_of(uintptr_t address) {
    for (const auto& device : devices()) {
        if (device->space.contains(address)) return device.get();
    }
    return nullptr;
}

}  // namespace standin
