// Capture of streams, and graphs.

#include "capture.hpp"
#include "driver.hpp"

namespace standin {

namespace {

Handles<Graph> graphs;
Handles<GraphExec> execs;

}  // namespace

void reset_graphs() {
    graphs.clear();
    execs.clear();
}

void drop_graphs(const Device& device) {
    execs.remove_if([&](const GraphExec& exec) { return exec.device == &device; });
}

}  // namespace standin

using namespace standin;

CUDA_API int cuStreamBeginCapture_v2(void* handle, int mode) {
    return with_device("cuStreamBeginCapture", [&](Device&) -> int {
        Stream* stream = stream_of(handle);
        if (stream == nullptr || mode < 0 || mode > 2) return stream == nullptr ? invalid_handle : invalid_value;
        if (stream->is_null || !settings().captures) return capture_unsupported;
        if (stream->capture != nullptr) return invalid_value;
        begin_capture(*stream);
        return success;
    });
}

CUDA_API int cuStreamIsCapturing(void* handle, int* status) {
    return with_device("cuStreamIsCapturing", [&](Device&) -> int {
        Stream* stream = stream_of(handle);
        if (stream == nullptr) return invalid_handle;
        *status = stream->capture == nullptr ? 0 : stream->capture->is_broken ? 2 : 1;
        return success;
    });
}

CUDA_API int cuStreamEndCapture(void* handle, void** graph_handle) {
    return with_device("cuStreamEndCapture", [&](Device&) -> int {
        Stream* stream = stream_of(handle);
        *graph_handle = nullptr;
        if (stream == nullptr) return invalid_handle;
        if (stream->capture == nullptr) return invalid_value;
        if (stream->capture_stream != 0) return capture_unmatched;
        const bool is_broken = stream->capture->is_broken;
        auto graph = std::make_shared<Graph>();
        const bool is_joined = end_capture(*stream, *graph);
        if (is_broken) return capture_invalidated;
        if (!is_joined) return capture_unjoined;
        *graph_handle = graphs.add(graph);
        return success;
    });
}

CUDA_API int cuGraphInstantiateWithFlags(void** handle, void* graph_handle, unsigned long long) {
    return with_device("cuGraphInstantiate", [&](Device& device) -> int {
        const auto graph = graphs.find(graph_handle);
        if (graph == nullptr) return invalid_handle;
        auto exec = std::make_shared<GraphExec>();
        exec->graph = *graph;
        exec->device = &device;
        *handle = execs.add(exec);
        return success;
    });
}

CUDA_API int cuGraphLaunch(void* handle, void* stream_handle) {
    return with_device("cuGraphLaunch", [&](Device& device) -> int {
        const auto exec = execs.find(handle);
        Stream* stream = stream_of(stream_handle);
        if (exec == nullptr || stream == nullptr || exec->device != &device) return invalid_handle;
        if (stream->capture != nullptr) {
            stream->capture->is_broken = true;
            return capture_unsupported;
        }
        launch_graph(*exec, *stream);
        return success;
    });
}

CUDA_API int cuGraphExecDestroy(void* handle) {
    return with_device("cuGraphExecDestroy", [&](Device&) {
        const auto exec = execs.find(handle);
        if (exec == nullptr) return invalid_handle;
        for (Stream* stream : exec->streams) drop_stream(*stream);
        execs.remove(handle);
        return success;
    });
}

CUDA_API int cuGraphDestroy(void* handle) {
    return with_device("cuGraphDestroy", [&](Device&) { return graphs.remove(handle) ? success : invalid_handle; });
}
