#include "capture.hpp"

#include <algorithm>

namespace standin {

namespace {

void join(Clock& clock, const Clock& other) {
    if (clock.size() < other.size()) clock.resize(other.size());
    for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

void add_stream(Stream& stream, const std::shared_ptr<Capture>& capture) {
    stream.capture = capture;
    stream.capture_stream = capture->streams.size();
    capture->streams.push_back(&stream);
    capture->clocks.emplace_back();
}

}  // namespace

void begin_capture(Stream& stream) { add_stream(stream, std::make_shared<Capture>()); }

size_t capture(Stream& stream, Work work, const std::vector<size_t>& after) {
    Capture& capture = *stream.capture;
    const size_t node = capture.nodes.size();
    Clock& clock = capture.clocks[stream.capture_stream];
    for (const size_t other : after) join(clock, capture.node_clocks[other]);
    if (clock.size() <= stream.capture_stream) clock.resize(stream.capture_stream + 1);
    ++clock[stream.capture_stream];
    capture.node_clocks.push_back(clock);
    capture.nodes.push_back({std::move(work), stream.capture_stream, after});
    return node;
}

void join_capture(Stream& stream, const std::shared_ptr<Capture>& into, size_t node) {
    if (stream.capture == nullptr) add_stream(stream, into);
    capture(stream, Nothing{}, {node});
}

bool end_capture(Stream& stream, Graph& graph) {
    const std::shared_ptr<Capture> capture = stream.capture;
    Clock ends(capture->streams.size());
    for (const Node& node : capture->nodes) ++ends[node.stream];
    Clock& known = capture->clocks[0];
    known.resize(ends.size());
    for (Stream* one : capture->streams) one->capture = nullptr;
    graph = std::move(capture->nodes);
    return known == ends;
}

void launch_graph(GraphExec& exec, Stream& stream) {
    size_t count = 0;
    for (const Node& node : exec.graph) count = std::max(count, node.stream);
    while (exec.streams.size() < count) exec.streams.push_back(&make_stream(*stream.device, false));
    // The graph begins after what is in the stream, and after its own launch before.
    const auto begin = std::make_shared<Event>();
    std::vector<const Event*> before;
    if (exec.last_end != nullptr) before.push_back(exec.last_end.get());
    enqueue(stream, Mark{begin}, before);
    for (Stream* one : exec.streams) enqueue(*one, Nothing{}, {begin.get()});
    std::vector<std::shared_ptr<Event>> ends(exec.graph.size());
    for (size_t i = 0; i < exec.graph.size(); ++i) {
        const Node& node = exec.graph[i];
        Stream& into = node.stream == 0 ? stream : *exec.streams[node.stream - 1];
        std::vector<const Event*> after;
        for (const size_t other : node.after) after.push_back(ends[other].get());
        if (!std::holds_alternative<Mark>(node.work)) {
            enqueue(into, node.work, after);
            continue;
        }
        // An event of a capture marks a place in the graph and nothing outside of it.
        ends[i] = std::make_shared<Event>();
        enqueue(into, Mark{ends[i]}, after);
    }
    exec.last_end = std::make_shared<Event>();
    enqueue(stream, Mark{exec.last_end});
}

}  // namespace standin
