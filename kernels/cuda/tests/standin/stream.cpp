#include "stream.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "capture.hpp"
#include "host_memory.hpp"
#include "operations.hpp"
#include "random.hpp"
#include "report.hpp"
#include "run.hpp"
#include "settings.hpp"

namespace standin {

namespace {

std::vector<std::unique_ptr<Stream>> streams;
std::vector<Stream*> dropped;
/// By stream number: operations done. Numbers are not given twice.
std::vector<uint64_t> done;
/// What the host has waited for: whatever it enqueues comes after.
Clock host_clock;
uint64_t launch_count = 0;

Random& random() {
    static Random all{settings().seed};
    return all;
}

uint64_t& at(Clock& clock, size_t stream) {
    if (clock.size() <= stream) clock.resize(stream + 1);
    return clock[stream];
}

void join(Clock& clock, const Clock& other) {
    if (clock.size() < other.size()) clock.resize(other.size());
    for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

bool may_run(const Stream& stream) {
    if (stream.queue.empty()) return false;
    const auto& after = stream.queue.front().after;
    return std::all_of(after.begin(), after.end(), [](const Point& point) { return is_done(point); });
}

/// Runs one operation whose turn has come, by seeded choice. False if there is none.
bool run_one() {
    static std::vector<Stream*> candidates;
    candidates.clear();
    for (const auto& stream : streams) {
        if (may_run(*stream)) candidates.push_back(stream.get());
    }
    if (candidates.empty()) return false;
    Stream& stream = *candidates[random().below(candidates.size())];
    // Out of the queue first: what runs is not waiting.
    Operation operation = std::move(stream.queue.front());
    stream.queue.pop_front();
    run_operation(stream, operation, random().next());
    done[stream.number] = operation.index;
    if (stream.device->error != 0) drop_operations(*stream.device);
    return true;
}

/// The null stream and the blocking streams of a device come one after the other, in the order of the host's calls.
void order_with_null_stream(Stream& stream, Operation& operation) {
    if (!stream.is_blocking) return;
    for (const auto& other : streams) {
        const bool is_other = other.get() != &stream && other->is_blocking && other->device == stream.device;
        if (!is_other || other->is_null == stream.is_null || other->enqueued == 0) continue;
        operation.after.push_back({other->number, other->enqueued});
        join(operation.clock, other->clock);
    }
}

void count_launch(Device& device) {
    std::optional<uint64_t>& left = settings().lost_after;
    if (left == 0) {
        left.reset();
        device.fail(launch_failed);
        drop_operations(device);
        return;
    }
    if (left.has_value()) --*left;
    ++launch_count;
}

void forget_dropped() {
    std::erase_if(dropped, [](Stream* stream) {
        if (!stream->queue.empty()) return false;
        std::erase_if(streams, [&](const auto& one) { return one.get() == stream; });
        return true;
    });
}

}  // namespace

Stream& make_stream(Device& device, bool is_blocking) {
    forget_dropped();
    auto stream = std::make_unique<Stream>();
    stream->device = &device;
    stream->number = done.size();
    stream->is_blocking = is_blocking;
    done.push_back(0);
    streams.push_back(std::move(stream));
    return *streams.back();
}

Stream& null_stream(Device& device) {
    for (const auto& stream : streams) {
        if (stream->is_null && stream->device == &device) return *stream;
    }
    Stream& made = make_stream(device, true);
    made.is_null = true;
    return made;
}

void drop_stream(Stream& stream) { dropped.push_back(&stream); }

Point enqueue(Stream& stream, Work work, const std::vector<const Event*>& after) {
    if (auto* launch = std::get_if<Launch>(&work); launch != nullptr) count_launch(*stream.device);
    const Point point{stream.number, ++stream.enqueued};
    Operation operation{std::move(work), point.index, {}, {}};
    if (stream.device->error != 0) {
        done[stream.number] = point.index;
        return point;
    }
    if (auto* upload = std::get_if<Upload>(&operation.work)) begin_upload(*upload);
    if (auto* download = std::get_if<Download>(&operation.work)) begin_download(*download);
    operation.clock = stream.clock;
    join(operation.clock, host_clock);
    for (const Event* event : after) {
        if (event->point.index == 0) continue;
        operation.after.push_back(event->point);
        join(operation.clock, event->clock);
    }
    order_with_null_stream(stream, operation);
    at(operation.clock, stream.number) = point.index;
    stream.clock = operation.clock;
    if (auto* mark = std::get_if<Mark>(&operation.work)) {
        mark->event->point = point;
        mark->event->clock = operation.clock;
    }
    stream.queue.push_back(std::move(operation));
    return point;
}

bool is_done(const Point& point) { return done[point.stream] >= point.index; }

void finish(const Point& point, const Clock& clock) {
    while (!is_done(point)) {
        if (run_one()) continue;
        std::fprintf(stderr, "stand-in: nothing can run, but operation %lu of stream %zu is not done\n", point.index, point.stream);
        std::abort();
    }
    join(host_clock, clock);
}

bool query(const Point& point, const Clock& clock) {
    if (is_done(point)) {
        join(host_clock, clock);
        return true;
    }
    run_one();
    return false;
}

void drift() {
    while (random().below(8) == 0 && run_one()) {}
}

void finish_all() {
    while (run_one()) {}
}

void drop_operations(Device& device) {
    for (const auto& stream : streams) {
        if (stream->device != &device) continue;
        stream->queue.clear();
        done[stream->number] = stream->enqueued;
    }
}

void drop_streams(const Device& device) {
    std::erase_if(dropped, [&](const Stream* stream) { return stream->device == &device; });
    std::erase_if(streams, [&](const auto& stream) {
        if (stream->device == &device) done[stream->number] = stream->enqueued;
        return stream->device == &device;
    });
}

void reset_streams() {
    streams.clear();
    dropped.clear();
    done.clear();
    host_clock.clear();
    launch_count = 0;
    random() = Random(settings().seed);
    reset_operations();
}

uint64_t launches() { return launch_count; }

bool is_host_memory_pending(const unsigned char* memory, size_t bytes, bool downloads_only) {
    const auto overlaps = [&](const unsigned char* other, size_t count) {
        return std::less<>{}(memory, other + count) && std::less<>{}(other, memory + bytes);
    };
    for (const auto& stream : streams) {
        for (const Operation& operation : stream->queue) {
            const auto* download = std::get_if<Download>(&operation.work);
            if (download != nullptr && overlaps(download->to, download->bytes)) return true;
            const auto* upload = std::get_if<Upload>(&operation.work);
            if (downloads_only || upload == nullptr || !upload->copy.empty()) continue;
            if (overlaps(upload->from, upload->bytes)) return true;
        }
    }
    return false;
}

}  // namespace standin
