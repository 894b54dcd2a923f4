// Order between streams, and host memory of copies.

#include <thread>

#include "selftest_cuda.hpp"

namespace {

constexpr unsigned count = 5000;

/// Uploads in one stream, computes in another, downloads in a third, in several rounds over two buffers. Which of the events to
/// leave out: 0 none, 1 upload to kernel, 2 kernel to download, 3 download to the next upload.
bool pipeline(Session& session, int left_out, float* result) {
    void *load = session.stream(), *compute = session.stream(), *store = session.stream();
    float* from = session.host(4 * count);
    for (unsigned i = 0; i < 4 * count; ++i) from[i] = static_cast<float>(i);
    unsigned long long buffers[2] = {session.device(count), session.device(count)};
    for (unsigned round = 0; round < 4; ++round) {
        const unsigned long long buffer = buffers[round % 2];
        if (left_out != 3) session.order(store, load);
        cuMemcpyHtoDAsync_v2(buffer, from + round * count, count * 4, load);
        if (left_out != 1) session.order(load, compute);
        session.add_one(buffer, count, compute);
        session.add_one(buffer, count, compute);
        if (left_out != 2) session.order(compute, store);
        cuMemcpyDtoHAsync_v2(result + round * count, buffer, count * 4, store);
    }
    return cuStreamSynchronize(store) == 0;
}

void test_pipeline() {
    for (unsigned seed = 1; seed <= 50; ++seed) {
        Session session(seed);
        float* result = session.host(4 * count);
        bool is_right = pipeline(session, 0, result);
        for (unsigned i = 0; i < 4 * count; ++i) is_right = is_right && result[i] == static_cast<float>(i) + 2;
        const std::string text = standin::problems();
        expect(is_right && text.empty(), "a pipeline of three streams, seed " + std::to_string(seed) + ": " + text);
    }
    const char* names[] = {"", "no event: upload, kernel", "no event: kernel, download", "no event: download, upload"};
    for (int left_out = 1; left_out <= 3; ++left_out) {
        for (unsigned seed = 1; seed <= 50; ++seed) {
            Session session(seed);
            const bool is_right = pipeline(session, left_out, session.host(4 * count));
            const std::string text = standin::problems();
            // Where the device's memory was not yet written, the missing event shows so.
            const bool is_found = text.find("with no event between them") != std::string::npos ||
                                  (left_out != 3 && text.find("never written") != std::string::npos);
            expect(is_found && !is_right, std::string(names[left_out]) + ", seed " + std::to_string(seed) + ": " + text);
            if (seed == 1) std::printf("%s: %s", names[left_out], text.substr(0, text.find('\n') + 1).c_str());
        }
    }
}

/// Streams run ahead of each other: over some seeds each of two unordered downloads comes first.
void test_orders() {
    unsigned first = 0;
    for (unsigned seed = 1; seed <= 50; ++seed) {
        Session session(seed);
        void *a = session.stream(), *b = session.stream(), *event_a = session.event(), *event_b = session.event();
        const auto memory = session.device(2);
        cuMemsetD8Async(memory, 0, 4, a);
        cuEventRecord(event_a, a);
        cuMemsetD8Async(memory + 4, 0, 4, b);
        cuEventRecord(event_b, b);
        for (;;) {
            const bool is_a = cuEventQuery(event_a) == 0, is_b = cuEventQuery(event_b) == 0;
            if (is_a != is_b) first += is_a ? 1 : 0;
            if (is_a || is_b) break;
        }
        cuStreamSynchronize(a);
        cuStreamSynchronize(b);
        expect(cuStreamQuery(a) == 0 && standin::problems().empty(), "two streams");
    }
    expect(first > 5 && first < 45, "either of two streams comes first: " + std::to_string(first) + " of 50");
}

/// Several threads of the host, each with a stream and memory of its own.
void test_threads() {
    Session session(1);
    std::vector<std::thread> threads;
    std::vector<float> results(4);
    for (size_t i = 0; i < results.size(); ++i) {
        threads.emplace_back([&, i] {
            session.use(0);
            void* stream = session.stream();
            const auto memory = session.device(count);
            cuMemsetD8Async(memory, 0, count * 4, stream);
            for (int round = 0; round < 20; ++round) session.add_one(memory, count, stream);
            cuMemcpyDtoHAsync_v2(&results[i], memory, 4, stream);
        });
    }
    for (std::thread& thread : threads) thread.join();
    const std::string text = standin::problems();
    expect(results == std::vector<float>(4, 20.0f) && text.empty(), "four threads: " + text);
}

/// `or_else`: what is reported where the operations run in the other order.
template <typename Body>
void finds_in_session(const std::string& name, const std::string& wanted, Body body, const std::string& or_else = "") {
    for (unsigned seed = 1; seed <= 20; ++seed) {
        Session session(seed);
        body(session);
        const std::string text = standin::problems();
        const bool is_found = text.find(wanted) != std::string::npos || (!or_else.empty() && text.find(or_else) != std::string::npos);
        expect(is_found, name + " with seed " + std::to_string(seed) + ": " + text);
        if (!is_found) return;
        if (seed == 1) std::printf("%-28s %s", name.c_str(), text.substr(0, text.find('\n') + 1).c_str());
    }
}

void test_host_memory() {
    finds_in_session("upload's source changed", "was changed before the copy", [](Session& session) {
        // The chance of a call to run something must not hide it: enough is queued before.
        void* stream = session.stream();
        const auto memory = session.device(count);
        float* from = session.host(count);
        std::fill(from, from + count, 1.0f);
        for (int i = 0; i < 20; ++i) cuMemcpyHtoDAsync_v2(memory, from, count * 4, stream);
        from[17] = 2.0f;
        cuStreamSynchronize(stream);
    });
    finds_in_session("download's target written", "was written before the copy", [](Session& session) {
        void* stream = session.stream();
        const auto memory = session.device(count);
        float* to = session.host(count);
        for (int i = 0; i < 20; ++i) cuMemsetD8Async(memory, 0, count * 4, stream);
        cuMemcpyDtoHAsync_v2(to, memory, count * 4, stream);
        to[17] = 2.0f;
        cuStreamSynchronize(stream);
    });
    finds_in_session("host memory freed too early", "that a queued copy will use", [](Session& session) {
        void* stream = session.stream();
        const auto memory = session.device(count);
        float* from = session.host(count);
        for (int i = 0; i < 20; ++i) cuMemcpyHtoDAsync_v2(memory, from, count * 4, stream);
        cuMemFreeHost(from);
    });
    unsigned early = 0;
    for (unsigned seed = 1; seed <= 20; ++seed) {
        Session session(seed);
        void* stream = session.stream();
        const auto memory = session.device(count);
        float* to = session.host(count);
        std::fill(to, to + count, 0.0f);
        cuMemsetD8Async(memory, 0, count * 4, stream);
        cuMemcpyDtoHAsync_v2(to, memory, count * 4, stream);
        // Both the old bytes and the copied ones are 0.
        if (to[0] != 0.0f) ++early;
        cuStreamSynchronize(stream);
        expect(to[0] == 0.0f && standin::problems().empty(), "a download");
    }
    expect(early > 10, "who reads a download's target too early reads neither the old nor the new bytes");
    // Pageable memory is read and written before the call returns.
    Session session(1);
    void* stream = session.stream();
    const auto memory = session.device(4);
    std::vector<float> pageable = {1, 2, 3, 4}, back(4);
    cuMemcpyHtoDAsync_v2(memory, pageable.data(), 16, stream);
    pageable.assign(4, 0.0f);
    cuMemcpyDtoHAsync_v2(back.data(), memory, 16, stream);
    expect(back == std::vector<float>({1, 2, 3, 4}) && standin::problems().empty(), "copies of pageable memory");
}

void test_freed() {
    finds_in_session("freed under a queued kernel", "freed allocation", [](Session& session) {
        void* stream = session.stream();
        const auto memory = session.device(count);
        cuMemsetD8Async(memory, 0, count * 4, stream);
        for (int i = 0; i < 20; ++i) session.add_one(memory, count, stream);
        cuMemFree_v2(memory);
        cuStreamSynchronize(stream);
    });
    const auto free_in_another_stream = [](Session& session) {
        void *stream = session.stream(), *other = session.stream();
        const auto memory = session.device(count);
        cuMemsetD8Async(memory, 0, count * 4, stream);
        session.order(stream, other);
        session.add_one(memory, count, other);
        cuMemFreeAsync(memory, stream);
        cuStreamSynchronize(stream);
        cuStreamSynchronize(other);
    };
    finds_in_session("freed in another stream", "with no event between them", free_in_another_stream, "freed allocation");
    finds_in_session("used after it is freed", "freed allocation", [](Session& session) {
        void* stream = session.stream();
        const auto memory = session.device(count);
        cuMemFreeAsync(memory, stream);
        cuMemsetD8Async(memory, 0, count * 4, stream);
        cuStreamSynchronize(stream);
    });
    for (unsigned seed = 1; seed <= 50; ++seed) {
        Session session(seed);
        void* stream = session.stream();
        for (int round = 0; round < 20; ++round) {
            const auto memory = session.device(count);
            cuMemsetD8Async(memory, 0, count * 4, stream);
            session.add_one(memory, count, stream);
            cuMemFreeAsync(memory, stream);
        }
        cuStreamSynchronize(stream);
        expect(standin::problems().empty(), "memory freed in the order of its stream: " + standin::problems());
    }
    finds_in_session("copy past the end", "past the end of allocation", [](Session& session) {
        void* stream = session.stream();
        cuMemsetD8Async(session.device(count), 0, count * 4 + 1, stream);
        cuStreamSynchronize(stream);
    });
}

}  // namespace

void test_streams() {
    test_pipeline();
    test_orders();
    test_threads();
    test_host_memory();
    test_freed();
}
