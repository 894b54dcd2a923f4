// Streams and events.

#include "capture.hpp"
#include "driver.hpp"

using namespace standin;

namespace {

/// Asking or waiting for a stream that is captured breaks the capture.
bool breaks_capture(Stream& stream) {
    if (stream.capture == nullptr) return false;
    stream.capture->is_broken = true;
    return true;
}

template <typename Body>
int with_stream(const char* call, const void* handle, Body body) {
    return with_device(call, [&](Device&) -> int {
        Stream* stream = stream_of(handle);
        return stream == nullptr ? static_cast<int>(invalid_handle) : body(*stream);
    });
}

template <typename Body>
int with_event(const char* call, const void* handle, Body body) {
    return with_device(call, [&](Device&) -> int {
        const auto event = event_handles.find(handle);
        if (event != nullptr) return body(event);
        problem(format("event %p does not exist or was destroyed", handle));
        return invalid_handle;
    });
}

}  // namespace

CUDA_API int cuStreamCreate(void** handle, unsigned flags) {
    return with_device("cuStreamCreate", [&](Device& device) -> int {
        if (flags > 1) return invalid_value;
        *handle = stream_handles.add(std::make_shared<StreamHandle>(&make_stream(device, flags == 0)));
        return success;
    });
}

CUDA_API int cuStreamCreateWithPriority(void** handle, unsigned flags, int) { return cuStreamCreate(handle, flags); }

CUDA_API int cuStreamDestroy_v2(void* handle) {
    return with_stream("cuStreamDestroy", handle, [&](Stream& stream) {
        if (stream.is_null) return invalid_handle;
        breaks_capture(stream);
        drop_stream(stream);
        stream_handles.remove(handle);
        return success;
    });
}

CUDA_API int cuStreamSynchronize(void* handle) {
    return with_stream("cuStreamSynchronize", handle, [](Stream& stream) {
        if (breaks_capture(stream)) return capture_unsupported;
        finish({stream.number, stream.enqueued}, stream.clock);
        return success;
    });
}

CUDA_API int cuStreamQuery(void* handle) {
    return with_stream("cuStreamQuery", handle, [](Stream& stream) {
        if (breaks_capture(stream)) return capture_unsupported;
        return query({stream.number, stream.enqueued}, stream.clock) ? success : not_ready;
    });
}

CUDA_API int cuStreamWaitEvent(void* handle, void* event_handle, unsigned) {
    return with_event("cuStreamWaitEvent", event_handle, [&](const std::shared_ptr<Event>& event) -> int {
        Stream* stream = stream_of(handle);
        if (stream == nullptr) return invalid_handle;
        const auto captured = event->capture.lock();
        if (captured != nullptr && (stream->capture == nullptr || stream->capture == captured)) {
            join_capture(*stream, captured, event->capture_node);
            return success;
        }
        if (stream->capture != nullptr) {
            stream->capture->is_broken = true;
            return capture_isolation;
        }
        enqueue(*stream, Nothing{}, {event.get()});
        return success;
    });
}

CUDA_API int cuEventCreate(void** handle, unsigned flags) {
    return with_device("cuEventCreate", [&](Device& device) {
        const auto event = std::make_shared<Event>();
        event->device = &device;
        event->is_timed = (flags & 2) == 0;
        *handle = event_handles.add(event);
        return success;
    });
}

CUDA_API int cuEventDestroy_v2(void* handle) {
    return with_event("cuEventDestroy", handle, [&](const std::shared_ptr<Event>&) {
        event_handles.remove(handle);
        return success;
    });
}

CUDA_API int cuEventRecord(void* handle, void* stream_handle) {
    return with_event("cuEventRecord", handle, [&](const std::shared_ptr<Event>& event) -> int {
        Stream* stream = stream_of(stream_handle);
        if (stream == nullptr || stream->device != event->device) return invalid_handle;
        event->capture = stream->capture;
        if (stream->capture != nullptr) {
            event->capture_node = capture(*stream, Mark{event});
        } else {
            enqueue(*stream, Mark{event});
        }
        return success;
    });
}

CUDA_API int cuEventRecordWithFlags(void* handle, void* stream, unsigned) { return cuEventRecord(handle, stream); }

CUDA_API int cuEventSynchronize(void* handle) {
    return with_event("cuEventSynchronize", handle, [](const std::shared_ptr<Event>& event) {
        if (!event->capture.expired()) return capture_unsupported;
        finish(event->point, event->clock);
        return success;
    });
}

CUDA_API int cuEventQuery(void* handle) {
    return with_event("cuEventQuery", handle, [](const std::shared_ptr<Event>& event) {
        if (!event->capture.expired()) return capture_unsupported;
        return query(event->point, event->clock) ? success : not_ready;
    });
}

CUDA_API int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
    return with_event("cuEventElapsedTime", start, [&](const std::shared_ptr<Event>& first) -> int {
        const auto last = event_handles.find(end);
        if (last == nullptr || !first->is_timed || !last->is_timed) return invalid_handle;
        if (first->point.index == 0 || last->point.index == 0) return invalid_handle;
        if (!is_done(first->point) || !is_done(last->point)) return not_ready;
        *milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
        return success;
    });
}

CUDA_API int cuEventElapsedTime_v2(float* milliseconds, void* start, void* end) {
    return cuEventElapsedTime(milliseconds, start, end);
}
