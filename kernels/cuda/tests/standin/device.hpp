// A device: its memory, and whether it still works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "shadow.hpp"

namespace standin {

// The two results of the driver that the parts below its API know (their numbers are CUDA's).
constexpr int illegal_address = 700;
constexpr int launch_failed = 719;

struct Allocation {
    size_t bytes;
    uint64_t number;
};

/// Addresses are handed out upwards and come again only after the whole range has been used, so that a pointer to freed memory
/// stays recognizable. Between allocations there are at least `gap` bytes.
class Device {
public:
    static constexpr size_t alignment = 256;
    static constexpr size_t gap = 256;

    Device(int number_, size_t memory_);
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    /// 0 if there is not enough memory.
    uintptr_t allocate(size_t bytes);
    /// How many bytes are allocated from `address` on; 0 if no allocation starts there.
    size_t allocated_at(uintptr_t address) const;
    /// False if `address` is not the start of an allocation.
    bool release(uintptr_t address);
    /// All memory is given back.
    void release_all();
    size_t used() const { return used_bytes; }
    /// Says where an address lies, for a report.
    std::string describe(uintptr_t address) const;

    /// The device stops working; the first reason stays.
    void fail(int error_) {
        if (error == 0) error = error_;
    }

    const int number;
    const size_t memory;
    Space space;
    /// The result that every call gives from now on; 0 while the device works.
    int error = 0;
    /// How often its context is retained. With the last release goes all that it has.
    unsigned users = 0;
    /// Devices that its context was given access to, by number.
    std::set<int> reaches;

private:
    uintptr_t place_for(size_t bytes) const;

    std::map<uintptr_t, Allocation> allocations;
    /// What was freed, until its addresses come again.
    std::map<uintptr_t, Allocation> freed;
    uintptr_t next;
    size_t used_bytes = 0;
    uint64_t count = 0;
};

/// Made from the settings on first use. Lives as long as the process: at its end other threads may still make calls.
std::vector<std::unique_ptr<Device>>& devices();
/// Null if no device has it.
Device* device_of(uintptr_t address);
/// The device whose operation or call runs.
extern Device* active_device;

}  // namespace standin
