// Copies between devices.

#include "selftest_cuda.hpp"

namespace {

constexpr unsigned count = 5000;

/// A device in use, with memory and a stream.
struct Rank {
    Rank(Session& session, int number) : context(session.use(number)), stream(session.stream()), ready(session.event()), taken(session.event()) {
        own = session.device(count);
        gathered = session.device(2 * count);
        void* module = nullptr;
        cuModuleLoadData(&module, empty_ptx);
        cuModuleGetFunction(&add_one, module, "add_one");
    }
    void enter() const { cuCtxSetCurrent(context); }

    void* context;
    void *stream, *ready, *taken;
    void* add_one = nullptr;
    unsigned long long own, gathered;
};

/// Each of two devices computes and takes what both have, in several rounds over the same memory. Which of the events to leave out: 0 none,
/// 1 what is taken is ready, 2 it is taken before it is written again.
std::vector<float> exchange(Session& session, int left_out) {
    Rank ranks[] = {Rank(session, 0), Rank(session, 1)};
    for (Rank& rank : ranks) {
        rank.enter();
        cuMemsetD8Async(rank.own, 0, count * 4, rank.stream);
    }
    for (unsigned round = 0; round < 4; ++round) {
        for (Rank& rank : ranks) {
            rank.enter();
            session.add_one_function = rank.add_one;
            session.add_one(rank.own, count, rank.stream);
            cuEventRecord(rank.ready, rank.stream);
        }
        for (Rank& rank : ranks) {
            const Rank& other = &rank == ranks ? ranks[1] : ranks[0];
            rank.enter();
            if (left_out != 1) cuStreamWaitEvent(rank.stream, other.ready, 0);
            cuMemcpyPeerAsync(rank.gathered, rank.context, rank.own, rank.context, count * 4, rank.stream);
            cuMemcpyPeerAsync(rank.gathered + count * 4, rank.context, other.own, other.context, count * 4, rank.stream);
            cuEventRecord(rank.taken, rank.stream);
        }
        for (Rank& rank : ranks) {
            const Rank& other = &rank == ranks ? ranks[1] : ranks[0];
            rank.enter();
            if (left_out != 2) cuStreamWaitEvent(rank.stream, other.taken, 0);
        }
    }
    std::vector<float> result(4 * count);
    for (Rank& rank : ranks) {
        rank.enter();
        cuMemcpyDtoHAsync_v2(&result[&rank == ranks ? 0 : 2 * count], rank.gathered, 2 * count * 4, rank.stream);
    }
    return result;
}

void test_exchange() {
    for (const char* peers : {"all", "none"}) {
        standin_configure("peers", peers);
        for (unsigned seed = 1; seed <= 50; ++seed) {
            Session session(seed);
            const bool is_right = exchange(session, 0) == std::vector<float>(4 * count, 4.0f);
            const std::string text = standin::problems();
            expect(is_right && text.empty(), "an exchange of two devices, seed " + std::to_string(seed) + ": " + text);
        }
    }
    standin_configure("peers", "all");
    const char* names[] = {"", "no event: written, taken", "no event: taken, written again"};
    for (int left_out = 1; left_out <= 2; ++left_out) {
        for (unsigned seed = 1; seed <= 50; ++seed) {
            Session session(seed);
            exchange(session, left_out);
            const std::string text = standin::problems();
            const bool is_found = text.find("with no event between them") != std::string::npos ||
                                  (left_out == 1 && text.find("never written") != std::string::npos);
            expect(is_found, std::string(names[left_out]) + ", seed " + std::to_string(seed) + ": " + text);
            if (seed == 1) std::printf("%s: %s", names[left_out], text.substr(0, text.find('\n') + 1).c_str());
        }
    }
}

void test_access() {
    Session session(1);
    void *second = session.use(1), *first = session.use(0);
    int can = 0, cannot = 1;
    expect(cuDeviceCanAccessPeer(&can, 0, 1) == 0 && can == 1 && cuDeviceCanAccessPeer(&cannot, 1, 1) == 0 && cannot == 0, "who reaches whom");
    expect(cuCtxEnablePeerAccess(second, 0) == 0 && cuCtxEnablePeerAccess(second, 0) == 704, "access is given once");
    expect(cuCtxEnablePeerAccess(first, 0) == 101, "no access to oneself");
    standin_configure("peers", "none");
    expect(cuDeviceCanAccessPeer(&can, 0, 1) == 0 && can == 0 && cuCtxEnablePeerAccess(second, 0) == 217, "devices without a link");
    standin_configure("peers", "all");
    void* of_first = session.stream();
    const auto memory = session.device(count);
    expect(cuMemcpyPeerAsync(memory, second, memory, first, 4, of_first) == 1, "memory of another context than was said");
    cuCtxSetCurrent(second);
    expect(cuMemsetD8Async(memory, 0, 4, of_first) == 400, "a stream of another device");
    expect(standin::problems().empty(), "wrong arguments are errors, not problems");
    const auto there = session.device(count);
    void* of_second = session.stream();
    cuMemcpyPeerAsync(there, second, memory, first, count * 4, of_second);
    expect(cuStreamSynchronize(of_second) == 700, "a copy of what was never written");
    expect(standin::problems().find("never written") != std::string::npos, "it is reported");
}

/// What a lost device gives is nothing, and no fault of who copies it.
void test_loss() {
    for (unsigned seed = 1; seed <= 50; ++seed) {
        standin_configure("lost_after", "1");
        Session session(seed);
        Rank first(session, 0), second(session, 1);
        first.enter();
        session.add_one_function = first.add_one;
        cuMemsetD8Async(first.own, 0, count * 4, first.stream);
        session.add_one(first.own, count, first.stream);
        expect(session.add_one(first.own, count, first.stream) == 719, "the first device is lost");
        second.enter();
        cuStreamWaitEvent(second.stream, first.ready, 0);
        expect(cuMemcpyPeerAsync(second.own, second.context, first.own, first.context, count * 4, second.stream) == 0, "a copy is queued");
        session.add_one_function = second.add_one;
        session.add_one(second.own, count, second.stream);
        expect(cuStreamSynchronize(second.stream) == 0 && standin::problems().empty(), "the second device works on");
    }
}

}  // namespace

void test_peers() {
    standin_configure("devices", "2");
    test_exchange();
    test_access();
    test_loss();
    standin_configure("devices", "1");
    standin_configure("reset", "");
}
