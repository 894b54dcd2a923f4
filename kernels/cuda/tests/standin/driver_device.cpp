// Devices and contexts.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.hpp"

namespace standin {

Handles<StreamHandle> stream_handles;
Handles<Event> event_handles;

namespace {

bool was_initialized = false;
/// A number and not a device: a reset makes new devices.
thread_local DeviceNumber current_number = -1;

Device* device_numbered(DeviceNumber number) {
    const bool exists = number >= 0 && static_cast<size_t>(number) < devices().size();
    return exists ? devices()[static_cast<size_t>(number)].get() : nullptr;
}

/// Runs the body of a call that asks about a device.
template <typename Body>
int about(DeviceNumber number, Body body) {
    const std::lock_guard guard(driver_lock());
    if (!was_initialized) return not_initialized;
    Device* const device = device_numbered(number);
    return device == nullptr ? invalid_device : body(*device);
}

/// What was made in the device's context is gone. A lost device works again; one that failed by a problem does not, so that no test
/// passes over it.
void destroy_context(Device& device) {
    stream_handles.remove_if([&](const StreamHandle& handle) { return handle.stream->device == &device; });
    event_handles.remove_if([&](const Event& event) { return event.device == &device; });
    drop_modules(device);
    drop_graphs(device);
    drop_streams(device);
    device.release_all();
    device.reaches.clear();
    for (const auto& other : devices()) other->reaches.erase(device.number);
    if (device.error == launch_failed) device.error = 0;
}

/// As an A100 (sm_80) has them, but for the compute capability.
int attribute_of(int attribute, int& value) {
    if (attribute == 75 || attribute == 76) {
        value = attribute == 75 ? settings().capability / 10 : settings().capability % 10;
        return success;
    }
    constexpr struct { int attribute, value; } known[] = {
        {1, 1024},        // threads of a block
        {2, 1024}, {3, 1024}, {4, 64},
        {5, 0x7fffffff}, {6, 65535}, {7, 65535},
        {8, 48 * 1024},   // shared memory of a block
        {10, 32},         // threads of a warp
        {13, 1410000},    // kHz
        {16, 108},        // multiprocessors
        {17, 0}, {18, 0}, {19, 1}, {20, 0},
        {31, 1},          // kernels run beside each other
        {32, 1}, {33, 1}, {34, 0},
        {36, 1215000}, {37, 5120}, {38, 40 << 20},
        {39, 2048},       // threads of a multiprocessor
        {40, 3}, {41, 1}, {50, 0},
        {78, 1}, {81, 164 * 1024}, {82, 65536}, {83, 0},
        {97, static_cast<int>(most_shared_bytes)},
        {106, 32}, {111, 1024}, {115, 0},
    };
    for (const auto& one : known) {
        if (one.attribute != attribute) continue;
        value = one.value;
        return success;
    }
    return invalid_value;
}

}  // namespace

bool is_initialized() { return was_initialized; }

Device* current_device() { return device_numbered(current_number); }

Device* device_of_context(const void* context) {
    for (const auto& device : devices()) {
        if (device.get() == context) return device->users == 0 ? nullptr : device.get();
    }
    return nullptr;
}

Stream* stream_of(const void* handle) {
    // 0, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
    if (reinterpret_cast<uintptr_t>(handle) <= 1) return &null_stream(*current_device());
    const auto found = stream_handles.find(handle);
    if (found != nullptr) return found->stream;
    problem(format("stream %p does not exist or was destroyed", handle));
    return nullptr;
}

void reset_handles() {
    stream_handles.clear();
    event_handles.clear();
    reset_modules();
    reset_graphs();
}

}  // namespace standin

using namespace standin;

CUDA_API int cuInit(unsigned flags) {
    const std::lock_guard guard(driver_lock());
    if (flags != 0) return invalid_value;
    if (settings().devices == 0) return no_device;
    // When the process ends, other threads may still make calls, which must not find what has been destroyed.
    static const int registered = std::atexit([] {
        const std::lock_guard at_exit(driver_lock());
        was_initialized = false;
    });
    was_initialized = registered == 0;
    return success;
}

CUDA_API int cuDriverGetVersion(int* version) {
    const std::lock_guard guard(driver_lock());
    *version = settings().driver;
    return success;
}

CUDA_API int cuDeviceGetCount(int* count) {
    const std::lock_guard guard(driver_lock());
    if (!was_initialized) return not_initialized;
    *count = static_cast<int>(devices().size());
    return success;
}

CUDA_API int cuDeviceGet(DeviceNumber* number, int ordinal) {
    return about(ordinal, [&](Device&) {
        *number = ordinal;
        return success;
    });
}

CUDA_API int cuDeviceGetName(char* name, int length, DeviceNumber number) {
    return about(number, [&](Device&) {
        if (length <= 0) return invalid_value;
        std::snprintf(name, static_cast<size_t>(length), "Ragstone stand-in %d", number);
        return success;
    });
}

CUDA_API int cuDeviceTotalMem_v2(size_t* bytes, DeviceNumber number) {
    return about(number, [&](Device& device) {
        *bytes = device.memory;
        return success;
    });
}

CUDA_API int cuDeviceGetAttribute(int* value, int attribute, DeviceNumber number) {
    return about(number, [&](Device&) { return attribute_of(attribute, *value); });
}

CUDA_API int cuDeviceGetUuid_v2(unsigned char* uuid, DeviceNumber number) {
    return about(number, [&](Device&) {
        std::memcpy(uuid, "ragstone standin", 16);
        uuid[15] = static_cast<unsigned char>(number);
        return success;
    });
}

CUDA_API int cuDeviceGetUuid(unsigned char* uuid, DeviceNumber number) { return cuDeviceGetUuid_v2(uuid, number); }

CUDA_API int cuDevicePrimaryCtxRetain(void** context, DeviceNumber number) {
    return about(number, [&](Device& device) {
        if (device.error != 0) return device.error;
        *context = &device;
        ++device.users;
        return static_cast<int>(success);
    });
}

CUDA_API int cuDevicePrimaryCtxRelease_v2(DeviceNumber number) {
    return about(number, [&](Device& device) {
        if (device.users == 0) return invalid_context;
        if (--device.users == 0) destroy_context(device);
        return success;
    });
}

CUDA_API int cuCtxSetCurrent(void* context) {
    const std::lock_guard guard(driver_lock());
    if (!was_initialized) return not_initialized;
    for (const auto& device : devices()) {
        if (device.get() != context) continue;
        current_number = device->number;
        return device->error;
    }
    if (context != nullptr) return invalid_context;
    current_number = -1;
    return success;
}

CUDA_API int cuCtxGetCurrent(void** context) {
    const std::lock_guard guard(driver_lock());
    if (!was_initialized) return not_initialized;
    *context = current_device();
    return success;
}

CUDA_API int cuCtxGetDevice(DeviceNumber* number) {
    const std::lock_guard guard(driver_lock());
    if (current_device() == nullptr) return invalid_context;
    *number = current_device()->number;
    return success;
}

CUDA_API int cuDeviceCanAccessPeer(int* can, DeviceNumber number, DeviceNumber peer) {
    return about(number, [&](Device&) -> int {
        if (device_numbered(peer) == nullptr) return invalid_device;
        *can = settings().peers && number != peer ? 1 : 0;
        return success;
    });
}

// Of no use to kernels here: memory of another device is none of theirs, also where they could reach it.
CUDA_API int cuCtxEnablePeerAccess(void* context, unsigned flags) {
    return with_device("cuCtxEnablePeerAccess", [&](Device& device) -> int {
        const Device* peer = device_of_context(context);
        if (flags != 0) return invalid_value;
        if (peer == nullptr || peer == &device) return peer == nullptr ? invalid_context : invalid_device;
        if (!settings().peers) return peer_access_unsupported;
        return device.reaches.insert(peer->number).second ? success : peer_access_already_enabled;
    });
}

// Waits for everything are what a program with several streams must not do.
CUDA_API int cuCtxSynchronize() {
    return with_device("cuCtxSynchronize", [](Device&) {
        problem("a wait for the whole device");
        return success;
    });
}

namespace {

struct ErrorText {
    int error;
    const char *name, *text;
};

constexpr ErrorText error_texts[] = {
    {success, "CUDA_SUCCESS", "no error"},
    {invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {not_initialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {no_device, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {invalid_device, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {invalid_image, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {peer_access_unsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {invalid_ptx, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {unsupported_ptx_version, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {not_found, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {not_ready, "CUDA_ERROR_NOT_READY", "device not ready"},
    {peer_access_already_enabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {launch_failed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {capture_invalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {capture_unmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {capture_unjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {capture_isolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
};

int find_text(int error, const char* ErrorText::*field, const char** text) {
    for (const ErrorText& one : error_texts) {
        if (one.error != error) continue;
        *text = one.*field;
        return success;
    }
    *text = nullptr;
    return invalid_value;
}

}  // namespace

CUDA_API int cuGetErrorName(int error, const char** name) { return find_text(error, &ErrorText::name, name); }
CUDA_API int cuGetErrorString(int error, const char** text) { return find_text(error, &ErrorText::text, text); }
