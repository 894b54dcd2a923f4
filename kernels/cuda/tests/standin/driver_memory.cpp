// Memory and copies.

#include "capture.hpp"
#include "driver.hpp"
#include "host_memory.hpp"

using namespace standin;

namespace {

/// What may not be called while a stream is captured breaks the capture.
bool is_capturing() {
    bool found = false;
    stream_handles.each([&](const StreamHandle& handle) {
        if (handle.stream->capture == nullptr) return;
        handle.stream->capture->is_broken = true;
        found = true;
    });
    return found;
}

/// Enqueues a copy or fill, or captures it.
template <typename Copy>
int copy(const char* call, const void* handle, Copy work) {
    return with_device(call, [&](Device& device) -> int {
        Stream* stream = stream_of(handle);
        if (stream == nullptr || stream->device != &device) return invalid_handle;
        if (work.bytes == 0) return success;
        if (stream->capture != nullptr) {
            capture(*stream, std::move(work));
            return success;
        }
        const Point point = enqueue(*stream, work);
        // A copy to pageable memory is done when the call returns.
        if constexpr (std::is_same_v<Copy, Download>) {
            if (!is_page_locked(work.to, work.bytes)) finish(point, stream->clock);
        }
        return success;
    });
}

}  // namespace

CUDA_API int cuMemGetInfo_v2(size_t* free, size_t* total) {
    return with_device("cuMemGetInfo", [&](Device& device) {
        *total = device.memory;
        *free = device.memory - device.used();
        return success;
    });
}

CUDA_API int cuMemAlloc_v2(DevicePointer* pointer, size_t bytes) {
    return with_device("cuMemAlloc", [&](Device& device) -> int {
        if (is_capturing()) return capture_unsupported;
        if (bytes == 0) return invalid_value;
        *pointer = device.allocate(bytes);
        return *pointer == 0 ? out_of_memory : success;
    });
}

// Does not wait for what is queued: that would hide from a test that it still uses the memory.
CUDA_API int cuMemFree_v2(DevicePointer pointer) {
    return with_device("cuMemFree", [&](Device&) -> int {
        if (is_capturing()) return capture_unsupported;
        if (pointer == 0) return success;
        Device* owner = device_of(pointer);
        if (owner != nullptr && owner->release(pointer)) return success;
        problem(format("0x%llx is freed, which is not the start of an allocation", pointer));
        return invalid_value;
    });
}

CUDA_API int cuMemFreeAsync(DevicePointer pointer, void* handle) {
    return with_device("cuMemFreeAsync", [&](Device&) -> int {
        Stream* stream = stream_of(handle);
        if (stream == nullptr) return invalid_handle;
        if (is_capturing()) return capture_unsupported;
        if (pointer != 0) enqueue(*stream, Release{pointer});
        return success;
    });
}

CUDA_API int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    return with_device("cuMemHostAlloc", [&](Device&) -> int {
        if (bytes == 0) return invalid_value;
        *memory = allocate_host(bytes);
        return *memory == nullptr ? out_of_memory : success;
    });
}

// Host memory is given back also after the device has failed.
CUDA_API int cuMemFreeHost(void* memory) {
    const std::lock_guard guard(driver_lock());
    if (!is_initialized()) return not_initialized;
    active_device = current_device();
    const bool was_there = release_host(memory);
    if (!was_there) problem(format("host memory %p is freed, which the driver did not give out", memory));
    active_device = nullptr;
    const Device* device = current_device();
    if (device != nullptr && device->error != 0) return device->error;
    return was_there ? success : invalid_value;
}

CUDA_API int cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes, void* stream) {
    return copy("cuMemcpyHtoDAsync", stream, Upload{to, static_cast<const unsigned char*>(from), bytes, {}});
}

CUDA_API int cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t bytes, void* stream) {
    return copy("cuMemcpyDtoHAsync", stream, Download{static_cast<unsigned char*>(to), from, bytes});
}

CUDA_API int cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t bytes, void* stream) {
    return copy("cuMemcpyDtoDAsync", stream, DeviceCopy{to, from, bytes});
}

// The same whether the one device has access to the other or not: then a driver copies through the host.
CUDA_API int cuMemcpyPeerAsync(DevicePointer to, void* to_context, DevicePointer from, void* from_context, size_t bytes, void* stream) {
    const auto is_of = [](DevicePointer pointer, const void* context) {
        const Device* owner = device_of(pointer);
        return owner != nullptr && owner == context;
    };
    {
        const std::lock_guard guard(driver_lock());
        if (device_of_context(to_context) == nullptr || device_of_context(from_context) == nullptr) return invalid_context;
        if (!is_of(to, to_context) || !is_of(from, from_context)) return invalid_value;
    }
    return copy("cuMemcpyPeerAsync", stream, DeviceCopy{to, from, bytes});
}

CUDA_API int cuMemsetD8Async(DevicePointer to, unsigned char value, size_t bytes, void* stream) {
    return copy("cuMemsetD8Async", stream, Fill{to, value, bytes});
}
