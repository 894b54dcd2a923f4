// Modules, graphs, errors that stay, lost devices, several devices.

#include <algorithm>

#include "selftest_cuda.hpp"

namespace {

constexpr unsigned count = 300;

std::vector<float> read_back(unsigned long long memory, void* stream) {
    std::vector<float> values(count);
    cuMemcpyDtoHAsync_v2(values.data(), memory, count * 4, stream);
    return values;
}

void test_module() {
    Session session(1);
    void* function = nullptr;
    void* module = nullptr;
    expect(cuModuleGetFunction(&function, session.module, "nothing") == 500 && standin::problems().empty(), "no such function");
    expect(cuModuleGetFunction(&function, session.module, "gone") == 700, "a function of the PTX alone");
    expect(standin::problems().find("the source has no gone") != std::string::npos, "a function of the PTX alone is reported");
    expect(cuModuleGetFunction(&function, session.module, "sum_blocks") == 700, "a function of the source alone");
    expect(standin::problems().find("it has no sum_blocks") != std::string::npos, "a function of the source alone is reported");
    std::string stale = empty_ptx;
    stale.replace(stale.find(".param .u32"), 11, ".param .u64");
    expect(cuModuleLoadData(&module, stale.c_str()) != 0, "stale PTX is not loaded");
    const std::string text = standin::problems();
    expect(text.find("add_one takes parameters of 8, 8 bytes in it, of 8, 4 in the source") != std::string::npos, "stale PTX: " + text);
    std::printf("%-28s %s", "stale PTX", text.c_str());
    std::string elf(64, '\0');
    elf.replace(0, 4, "\x7f" "ELF");
    expect(cuModuleLoadData(&module, elf.c_str()) != 0 && !standin::problems().empty(), "what is not PTX");
    elf[0x12] = '\xbe';
    expect(cuModuleLoadData(&module, elf.c_str()) == 0 && cuModuleGetFunction(&function, module, "sum_blocks") == 0, "machine code");
    char log[8];
    int options[] = {5, 6};
    void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
    standin_configure("refuses", "no such register");
    expect(cuModuleLoadDataEx(&module, empty_ptx, 2, options, values) == 218 && std::string(log) == "no such", "what a compiler says");
    standin_configure("refuses", "");
    standin_configure("driver", "12040");
    expect(cuModuleLoadData(&module, empty_ptx) == 222, "PTX newer than the driver");
    standin_configure("driver", "13000");
}

/// One of 300 values, of a kernel that was named.
void test_wrong_value() {
    for (const char* name : {"", "add_one", "other"}) {
        Session session(1);
        standin_configure("wrong", name);
        void* stream = session.stream();
        const auto memory = session.device(count);
        cuMemsetD8Async(memory, 0, count * 4, stream);
        session.add_one(memory, count, stream);
        const std::vector<float> values = read_back(memory, stream);
        const long wrong = std::ranges::count_if(values, [](float value) { return value != 1; });
        expect(wrong == (std::string(name) == "add_one" ? 1 : 0), std::string("wrong values of add_one where ") + name + " is wrong");
        standin_configure("wrong", "");
    }
}

void test_launch_limits() {
    Session session(1);
    void* function = nullptr;
    cuModuleGetFunction(&function, session.module, "reverse_values");
    void* stream = session.stream();
    auto memory = session.device(64);
    void* parameters[] = {&memory};
    const auto launch = [&](unsigned threads, unsigned shared) {
        return cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, shared, stream, parameters, nullptr);
    };
    cuMemsetD8Async(memory, 0, 256, stream);
    expect(launch(2000, 256) == 1 && launch(0, 256) == 1, "too many or no threads");
    expect(launch(64, 60 * 1024) == 1, "more shared memory than is usual");
    expect(cuFuncSetAttribute(function, 8, 60 * 1024) == 0 && launch(64, 60 * 1024) == 0, "more shared memory after it was allowed");
    expect(cuFuncSetAttribute(function, 8, 200 * 1024) == 1, "more shared memory than there is");
    auto values = memory;
    unsigned number = 64;
    void* two[] = {&values, &number};
    expect(cuLaunchKernel(session.add_one_function, 1, 1, 1, 600, 1, 1, 0, stream, two, nullptr) == 1, "more threads than bounded");
    cuStreamSynchronize(stream);
    expect(standin::problems().empty(), "limits of launches are no problems");
}

/// A graph of two streams, launched three times.
void test_graph() {
    for (unsigned seed = 1; seed <= 50; ++seed) {
        Session session(seed);
        void *main = session.stream(), *side = session.stream();
        const auto a = session.device(count), b = session.device(count);
        cuMemsetD8Async(a, 0, count * 4, main);
        cuMemsetD8Async(b, 0, count * 4, main);
        void *graph = nullptr, *exec = nullptr;
        expect(cuStreamBeginCapture_v2(main, 1) == 0, "a capture begins");
        session.order(main, side);
        session.add_one(a, count, main);
        session.add_one(b, count, side);
        session.add_one(a, count, main);
        session.order(side, main);
        session.add_one(b, count, main);
        const uint64_t before = standin_launches();
        expect(cuStreamEndCapture(main, &graph) == 0, "a capture ends");
        expect(cuGraphInstantiateWithFlags(&exec, graph, 0) == 0, "a graph is made ready");
        expect(standin_launches() == before, "a capture launches nothing");
        for (int i = 0; i < 3; ++i) cuGraphLaunch(exec, main);
        session.add_one(b, count, main);
        const float of_a = read_back(a, main)[count - 1], of_b = read_back(b, main)[count - 1];
        const std::string text = standin::problems();
        expect(of_a == 6.0f && of_b == 7.0f && text.empty(), "a graph, seed " + std::to_string(seed) + ": " + text);
    }
}

void test_capture_errors() {
    Session session(1);
    void *main = session.stream(), *side = session.stream(), *graph = nullptr;
    const auto a = session.device(count);
    cuMemsetD8Async(a, 0, count * 4, main);
    cuStreamBeginCapture_v2(main, 1);
    session.order(main, side);
    session.add_one(a, count, side);
    expect(cuStreamEndCapture(main, &graph) == 904, "a stream that was not joined again");
    cuStreamBeginCapture_v2(main, 1);
    expect(cuStreamSynchronize(main) == 900, "a wait within a capture");
    expect(cuStreamEndCapture(main, &graph) == 901, "the capture is broken by it");
    standin_configure("captures", "no");
    expect(cuStreamBeginCapture_v2(main, 1) == 900 && cuStreamQuery(main) != 900, "captures that are refused");
    standin_configure("captures", "yes");
    unsigned long long memory = 0;
    cuStreamBeginCapture_v2(main, 1);
    expect(cuMemAlloc_v2(&memory, 4) == 900, "an allocation within a capture");
    cuStreamEndCapture(main, &graph);
    expect(cuStreamSynchronize(main) == 0 && standin::problems().empty(), "wrong captures are errors, not problems");
    for (unsigned seed = 1; seed <= 50; ++seed) {
        Session fresh(seed);
        void *first = fresh.stream(), *second = fresh.stream(), *exec = nullptr;
        const auto memory = fresh.device(count);
        cuMemsetD8Async(memory, 0, count * 4, first);
        cuStreamBeginCapture_v2(first, 1);
        fresh.order(first, second);
        fresh.add_one(memory, count, first);
        fresh.add_one(memory, count, second);
        fresh.order(second, first);
        cuStreamEndCapture(first, &graph);
        cuGraphInstantiateWithFlags(&exec, graph, 0);
        cuGraphLaunch(exec, first);
        expect(cuStreamSynchronize(first) == 700, "two branches of a graph that race");
        expect(standin::problems().find("with no event between them") != std::string::npos, "the race in a graph is reported");
    }
}

void test_failures() {
    {
        Session session(1);
        void* stream = session.stream();
        session.add_one(session.device(count), count, stream);
        expect(cuStreamSynchronize(stream) == 700, "a problem is the result of the wait");
        size_t free = 0, total = 0;
        expect(cuMemGetInfo_v2(&free, &total) == 700, "and of every later call");
        expect(!standin::problems().empty(), "the problem is told");
    }
    {
        Session session(1);
        expect(cuCtxSynchronize() != 0, "a wait for the whole device");
        const std::string text = standin::problems();
        expect(text.find("whole device") != std::string::npos, "a wait for the whole device is reported");
        std::printf("%-28s %s", "wait for the whole device", text.c_str());
    }
    {
        standin_configure("lost_after", "2");
        Session session(1);
        void* stream = session.stream();
        const auto memory = session.device(count);
        cuMemsetD8Async(memory, 0, count * 4, stream);
        expect(session.add_one(memory, count, stream) == 0 && session.add_one(memory, count, stream) == 0, "launches before the loss");
        expect(session.add_one(memory, count, stream) == 719 && cuStreamSynchronize(stream) == 719, "the device is lost");
        expect(cuStreamQuery(stream) == 719 && standin::problems().empty(), "a lost device is no problem of the program");
        // With the context all goes that the device had; then it works again.
        cuDevicePrimaryCtxRelease_v2(0);
        expect(cuStreamSynchronize(stream) == 201, "a context that is gone");
        session.use(0);
        cuModuleLoadData(&session.module, empty_ptx);
        cuModuleGetFunction(&session.add_one_function, session.module, "add_one");
        stream = session.stream();
        const auto fresh = session.device(count);
        cuMemsetD8Async(fresh, 0, count * 4, stream);
        for (int i = 0; i < 5; ++i) session.add_one(fresh, count, stream);
        expect(read_back(fresh, stream)[0] == 5.0f && standin::problems().empty(), "a lost device that was taken into use again");
    }
    const char* name = nullptr;
    expect(cuGetErrorName(719, &name) == 0 && std::string(name) == "CUDA_ERROR_LAUNCH_FAILED", "an error's name");
}

void test_devices() {
    standin_configure("devices", "2");
    standin_configure("memory", "1000000");
    Session session(1);
    int devices = 0;
    expect(cuDeviceGetCount(&devices) == 0 && devices == 2, "two devices");
    size_t free = 0, total = 0;
    unsigned long long big = 0;
    expect(cuMemAlloc_v2(&big, 1000001) == 2 && cuMemGetInfo_v2(&free, &total) == 0 && total == 1000000, "memory of a device");
    void* first = session.stream();
    const auto on_first = session.device(count);
    cuMemsetD8Async(on_first, 0, count * 4, first);
    session.add_one(on_first, count, first);
    session.use(1);
    void* second = session.stream();
    const auto on_second = session.device(count);
    session.order(first, second);
    cuStreamSynchronize(first);
    cuMemcpyDtoDAsync_v2(on_second, on_first, count * 4, second);
    expect(read_back(on_second, second)[0] == 1.0f && standin::problems().empty(), "a copy from device to device");
    void *module = nullptr, *function = nullptr;
    cuModuleLoadData(&module, empty_ptx);
    cuModuleGetFunction(&function, module, "add_one");
    session.add_one_function = function;
    session.add_one(on_first, count, second);
    expect(cuStreamSynchronize(second) == 700, "a kernel touches memory of another device");
    session.use(0);
    expect(session.add_one(on_first, count, first) == 0 && cuStreamSynchronize(first) == 0, "the other device still works");
    expect(standin::problems().find("memory of another device") != std::string::npos, "memory of another device is reported");
    standin_configure("devices", "1");
    standin_configure("memory", "1073741824");
}

}  // namespace

void test_driver() {
    test_module();
    test_wrong_value();
    test_launch_limits();
    test_graph();
    test_capture_errors();
    test_failures();
    test_devices();
    standin_configure("reset", "");
}
