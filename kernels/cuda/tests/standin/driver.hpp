// What the parts of the driver's API share: its results, its handles, and how a call begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "api.hpp"
#include "device.hpp"
#include "report.hpp"
#include "settings.hpp"
#include "stream.hpp"

#define CUDA_API extern "C" __attribute__((visibility("default")))

namespace standin {

/// CUresult.
enum Result : int {
    success = 0,
    invalid_value = 1,
    out_of_memory = 2,
    not_initialized = 3,
    no_device = 100,
    invalid_device = 101,
    invalid_image = 200,
    invalid_context = 201,
    peer_access_unsupported = 217,
    invalid_ptx = 218,
    unsupported_ptx_version = 222,
    invalid_handle = 400,
    not_found = 500,
    not_ready = 600,
    peer_access_already_enabled = 704,
    capture_unsupported = 900,
    capture_invalidated = 901,
    capture_unmatched = 903,
    capture_unjoined = 904,
    capture_isolation = 905,
};

using DeviceNumber = int;
using DevicePointer = unsigned long long;

/// Objects that the driver gives out, by their address.
template <typename T>
class Handles {
public:
    T* add(std::shared_ptr<T> object) {
        T* const address = object.get();
        objects.emplace(address, std::move(object));
        return address;
    }
    /// Null if the handle was never given out or has been destroyed.
    std::shared_ptr<T> find(const void* handle) const {
        const auto found = objects.find(handle);
        return found == objects.end() ? nullptr : found->second;
    }
    bool remove(const void* handle) { return objects.erase(handle) != 0; }
    template <typename Visit>
    void each(Visit visit) const {
        for (const auto& [handle, object] : objects) visit(*object);
    }
    template <typename Predicate>
    void remove_if(Predicate predicate) {
        std::erase_if(objects, [&](const auto& entry) { return predicate(*entry.second); });
    }
    void clear() { objects.clear(); }

private:
    std::unordered_map<const void*, std::shared_ptr<T>> objects;
};

/// Streams that were created and not destroyed; the null stream is not among them.
struct StreamHandle {
    Stream* stream;
};

extern Handles<StreamHandle> stream_handles;
extern Handles<Event> event_handles;

/// The thread's current device; null: none.
Device* current_device();
/// The device of a context that is retained; null: none.
Device* device_of_context(const void* context);
bool is_initialized();
void reset_modules();
/// A device's modules and their functions.
void drop_modules(const Device& device);
void reset_graphs();
void drop_graphs(const Device& device);

/// The stream that a handle of the API means, the null stream being the current device's; null if there is none.
Stream* stream_of(const void* handle);

/// Runs the body of a call that needs a current device: one call at a time, not after the device has failed. Before it, operations
/// may run by chance; what fails then or in the body is the call's result.
template <typename Body>
int with_device(const char* call, Body body) {
    const std::lock_guard guard(driver_lock());
    if (!is_initialized()) return not_initialized;
    Device* const device = current_device();
    if (device == nullptr || device->users == 0) return invalid_context;
    active_device = device;
    if (device->error == 0) drift();
    active_device = device;
    int result = device->error;
    if (result == 0) {
        set_running_operation(call);
        result = body(*device);
        set_running_operation(nullptr);
    }
    active_device = nullptr;
    return device->error != 0 ? device->error : result;
}

}  // namespace standin
