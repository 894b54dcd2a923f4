// Streams, events and the operations in them.
//
// Work is queued. Whenever the host waits, and by chance at any other call, operations whose turn has come run in a seeded order:
// those of one stream one after the other, those of several in any order that their events allow. Besides, a vector clock a stream
// tells what an operation is ordered after, so that two operations that touch the same memory without an event between them are
// found in whatever order they ran.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <variant>
#include <vector>

#include "device.hpp"
#include "executor.hpp"

namespace standin {

/// By stream: how many of its operations came before.
using Clock = std::vector<uint64_t>;

/// An operation: the index-th of a stream, counted from 1.
struct Point {
    size_t stream = 0;
    uint64_t index = 0;
};

struct Capture;

struct Event {
    Device* device = nullptr;
    bool is_timed = true;
    /// The operation last recorded; index 0: none.
    Point point;
    Clock clock;
    std::chrono::steady_clock::time_point time;
    /// The capture it was recorded in, if it was, and the place in it.
    std::weak_ptr<Capture> capture;
    size_t capture_node = 0;
};

struct Upload {
    uintptr_t to;
    const unsigned char* from;
    size_t bytes;
    /// Of pageable memory the driver takes a copy at once.
    std::vector<unsigned char> copy;
    uint64_t checksum = 0;
    bool is_checked = false;
};
struct Download {
    unsigned char* to;
    uintptr_t from;
    size_t bytes;
    /// The target was filled with `unfinished`: who reads it too early does not find the old or the right bytes.
    bool is_marked = false;
};
struct DeviceCopy {
    uintptr_t to, from;
    size_t bytes;
};
struct Fill {
    uintptr_t to;
    uint8_t value;
    size_t bytes;
};
/// Gives device memory back.
struct Release {
    uintptr_t address;
};
struct Mark {
    std::shared_ptr<Event> event;
};
/// Only waits for others.
struct Nothing {};

using Work = std::variant<Launch, Upload, Download, DeviceCopy, Fill, Release, Mark, Nothing>;

struct Operation {
    Work work;
    uint64_t index = 0;
    /// What must be done before, besides the stream's earlier operations.
    std::vector<Point> after;
    Clock clock;
};

struct Stream {
    Device* device = nullptr;
    size_t number = 0;
    /// Takes turns with the null stream, which is one, too.
    bool is_blocking = false;
    bool is_null = false;
    std::deque<Operation> queue;
    uint64_t enqueued = 0;
    Clock clock;
    /// The capture that takes what is enqueued, and the stream's place in it.
    std::shared_ptr<Capture> capture;
    size_t capture_stream = 0;
};

Stream& make_stream(Device& device, bool is_blocking);
/// The stream that a null handle means.
Stream& null_stream(Device& device);
/// The stream goes when its operations are done.
void drop_stream(Stream& stream);

/// Puts work at the end of a stream. `after`: events it waits for, with what they are ordered after.
Point enqueue(Stream& stream, Work work, const std::vector<const Event*>& after = {});

bool is_done(const Point& point);
/// Runs operations until `point` is done or its device has failed. The host then comes after it.
void finish(const Point& point, const Clock& clock);
/// Whether it is done; if so the host comes after it. If not, something runs, so that whoever asks again gets on.
bool query(const Point& point, const Clock& clock);
/// By chance runs some operations.
void drift();
/// Runs everything.
void finish_all();
/// Whether a queued copy, or only one to the host, uses that host memory.
bool is_host_memory_pending(const unsigned char* memory, size_t bytes, bool downloads_only);
/// Drops what a failed device still has to do.
void drop_operations(Device& device);
/// The streams of a device are gone, with what is queued in them.
void drop_streams(const Device& device);
/// Forgets streams and what ran; for the next test.
void reset_streams();

uint64_t launches();

// Page-locked host memory, which copies read and write when they run.
void* allocate_host(size_t bytes);
bool release_host(void* memory);

}  // namespace standin
