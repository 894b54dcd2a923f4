#include "run.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "faults.hpp"
#include "host_memory.hpp"
#include "operations.hpp"
#include "report.hpp"
#include "settings.hpp"
#include "shadow.hpp"

namespace standin {

namespace {

/// An operation that ran, and the epoch it began with.
struct Past {
    uint32_t epoch;
    size_t stream;
    uint64_t index;
    const char* name;
};

/// Of all streams, by epoch. Older ones than these are taken to come before everything.
constexpr size_t most_kept = 1 << 17;
std::deque<Past> history;
/// By stream: the epoch of each operation that ran.
std::vector<std::vector<uint32_t>> epochs;

/// The clock of the operation that runs.
const Clock* current_clock = nullptr;
/// Epochs [first, last) of the operation that was last found to come before.
uint32_t known_first = 0, known_last = 0;

bool is_before(const Past& past) {
    return past.stream < current_clock->size() && (*current_clock)[past.stream] >= past.index;
}

/// The operation whose epochs contain `epoch`, or the end of the history.
std::deque<Past>::const_iterator find(uint32_t epoch) {
    const auto after = std::upper_bound(history.begin(), history.end(), epoch,
                                        [](uint32_t wanted, const Past& past) { return wanted < past.epoch; });
    return after == history.begin() ? history.end() : std::prev(after);
}

/// The epoch of the first operation that ran and does not come before this one.
uint32_t first_unordered(uint32_t own_epoch) {
    uint32_t first = own_epoch;
    for (size_t stream = 0; stream < epochs.size(); ++stream) {
        const uint64_t known = stream < current_clock->size() ? (*current_clock)[stream] : 0;
        if (known < epochs[stream].size()) first = std::min(first, epochs[stream][known]);
    }
    return first;
}

const char* name_of(const Work& work) {
    if (const auto* launch = std::get_if<Launch>(&work)) return launch->kernel->name.data();
    if (std::holds_alternative<Upload>(work)) return "the copy to the device";
    if (std::holds_alternative<Download>(work)) return "the copy to the host";
    if (const auto* copy = std::get_if<DeviceCopy>(&work)) {
        return device_of(copy->from) == device_of(copy->to) ? "the copy within the device" : "the copy between devices";
    }
    if (std::holds_alternative<Fill>(work)) return "the fill";
    if (std::holds_alternative<Release>(work)) return "the release";
    return "nothing";
}

/// The device whose memory [address, address + bytes) is; reports if none has it.
Device* owner(uintptr_t address, size_t bytes) {
    Device* device = device_of(address);
    if (device != nullptr && device->space.bytes - (address - device->space.base) >= bytes) return device;
    problem(format("0x%lx is not memory of a device", address));
    return nullptr;
}

bool touch(uintptr_t address, size_t bytes, Access access) {
    Device* device = owner(address, bytes);
    return device != nullptr && check_copy(device->space, address, bytes, access);
}

void run(const Upload& upload) {
    const unsigned char* from = finish_upload(upload);
    if (!touch(upload.to, upload.bytes, Access::write)) return;
    std::memcpy(reinterpret_cast<void*>(upload.to), from, upload.bytes);
}

void run(const Download& download) {
    finish_download(download);
    if (!touch(download.from, download.bytes, Access::read)) return;
    std::memcpy(download.to, reinterpret_cast<const void*>(download.from), download.bytes);
}

void run(const DeviceCopy& copy) {
    Device* from = owner(copy.from, copy.bytes);
    Device* to = owner(copy.to, copy.bytes);
    if (from == nullptr || to == nullptr) return;
    if (copy.from < copy.to + copy.bytes && copy.to < copy.from + copy.bytes) {
        return problem("the ranges of a copy within the device overlap");
    }
    // What a device that failed gives is nothing that anybody may use; what was copied from it is not the fault of who copied.
    if (from->error != 0 || to->error != 0) {
        if (to->error == 0 && check_copy(to->space, copy.to, copy.bytes, Access::write)) {
            std::memset(reinterpret_cast<void*>(copy.to), unfinished, copy.bytes);
        }
        return;
    }
    if (!check_copy(from->space, copy.from, copy.bytes, Access::read)) return;
    if (!check_copy(to->space, copy.to, copy.bytes, Access::write)) return;
    std::memcpy(reinterpret_cast<void*>(copy.to), reinterpret_cast<const void*>(copy.from), copy.bytes);
}

void run(const Fill& fill) {
    if (!touch(fill.to, fill.bytes, Access::write)) return;
    std::memset(reinterpret_cast<void*>(fill.to), fill.value, fill.bytes);
}

void run(const Release& release) {
    Device* device = device_of(release.address);
    const size_t bytes = device == nullptr ? 0 : device->allocated_at(release.address);
    if (bytes == 0) return problem(format("0x%lx is freed, which is not the start of an allocation", release.address));
    // As a write: whoever still uses the memory has to come before.
    if (check_copy(device->space, release.address, bytes, Access::write)) device->release(release.address);
}

void run(const Mark& mark) { mark.event->time = std::chrono::steady_clock::now(); }

void run(const Nothing&) {}

}  // namespace

void run_operation(Stream& stream, Operation& operation, uint64_t seed) {
    Device* const caller_device = std::exchange(active_device, stream.device);
    device_space = &stream.device->space;
    current_clock = &operation.clock;
    known_first = known_last = 0;
    now.strict = settings().strict;
    now.epoch = now.launch = now.block = next_epoch();
    now.mine = Cell{now.epoch} << 32;
    const uint32_t ordered = now.strict ? first_unordered(now.epoch) : now.epoch;
    for (const auto& device : devices()) {
        device->space.ordered = ordered;
        device->space.launch = now.launch;
    }
    const char* name = name_of(operation.work);
    if (const auto* launch = std::get_if<Launch>(&operation.work)) {
        plant_before(*launch);
        run_launch(*launch, seed);
        plant_after(*launch);
    } else {
        set_running_operation(name);
        std::visit([](const auto& work) {
            if constexpr (!std::is_same_v<std::decay_t<decltype(work)>, Launch>) run(work);
        }, operation.work);
        set_running_operation(nullptr);
    }
    if (history.size() == most_kept) history.pop_front();
    history.push_back({now.launch, stream.number, operation.index, name});
    if (epochs.size() <= stream.number) epochs.resize(stream.number + 1);
    epochs[stream.number].push_back(now.launch);
    active_device = caller_device;
    current_clock = nullptr;
}

bool comes_before(uint32_t epoch) {
    if (epoch >= known_first && epoch < known_last) return true;
    const auto past = find(epoch);
    if (past == history.end()) return true;
    if (!is_before(*past)) return false;
    const auto next = std::next(past);
    known_first = past->epoch;
    known_last = next == history.end() ? now.launch : next->epoch;
    return true;
}

std::string operation_of(uint32_t epoch) {
    const auto past = find(epoch);
    if (past == history.end()) return "an operation";
    return format("%s in stream %zu", past->name, past->stream);
}

void forget_operations() {
    history.clear();
    for (auto& each : epochs) std::fill(each.begin(), each.end(), 0);
}

void reset_operations() {
    history.clear();
    epochs.clear();
}

}  // namespace standin
