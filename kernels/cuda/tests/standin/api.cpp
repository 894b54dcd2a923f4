// The functions of standin.hpp.

#include "standin.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include "api.hpp"
#include "device.hpp"
#include "report.hpp"
#include "settings.hpp"
#include "stream.hpp"

namespace standin {

namespace {

/// The stream of the C++ API.
Stream& own_stream() { return null_stream(*devices().at(0)); }

void run_and_wait(Work work) {
    Stream& stream = own_stream();
    const Point point = enqueue(stream, std::move(work));
    finish(point, stream.clock);
}

std::string taken_problems() {
    std::string text(16 * 1024, '\0');
    if (take_problems(text.data(), text.size()) == 0) return "";
    text.resize(std::strlen(text.c_str()));
    return text;
}

}  // namespace

std::mutex& driver_lock() {
    static std::mutex lock;
    return lock;
}

void* allocate(size_t bytes) {
    const std::lock_guard guard(driver_lock());
    const uintptr_t address = devices().at(0)->allocate(bytes);
    if (address == 0) throw std::runtime_error("the stand-in's device has not that much memory");
    return reinterpret_cast<void*>(address);
}

void release(void* memory) {
    const std::lock_guard guard(driver_lock());
    devices().at(0)->release(reinterpret_cast<uintptr_t>(memory));
}

void write(void* to, const void* from, size_t bytes) {
    const std::lock_guard guard(driver_lock());
    if (bytes != 0) run_and_wait(Upload{reinterpret_cast<uintptr_t>(to), static_cast<const unsigned char*>(from), bytes, {}});
}

void read(void* to, const void* from, size_t bytes) {
    const std::lock_guard guard(driver_lock());
    if (bytes != 0) run_and_wait(Download{static_cast<unsigned char*>(to), reinterpret_cast<uintptr_t>(from), bytes});
}

void launch_with(const char* name, Dim grid, Dim block, size_t shared_bytes, const std::vector<void*>& parameters,
                 const std::vector<size_t>& bytes) {
    const std::lock_guard guard(driver_lock());
    const Kernel* kernel = find_kernel(name);
    if (kernel == nullptr) throw std::invalid_argument(std::string("there is no kernel ") + name);
    if (!std::ranges::equal(kernel->parameter_bytes, bytes)) throw std::invalid_argument(std::string(name) + " takes other parameters");
    Launch launch{kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes,
                  packed_arguments(*kernel, parameters.data())};
    if (const char* wrong = wrong_shape(launch)) throw std::invalid_argument(std::string(name) + ": " + wrong);
    run_and_wait(std::move(launch));
}

std::string problems() {
    const std::lock_guard guard(driver_lock());
    std::string text = taken_problems();
    for (const auto& device : devices()) device->error = 0;
    return text;
}

void set_seed(uint64_t seed) {
    const std::lock_guard guard(driver_lock());
    settings().seed = seed;
    reset_streams();
}

const char* wrong_shape(const Launch& launch) {
    if (launch.grid.count() == 0 || launch.block.count() == 0) return "a grid or block of nothing";
    if (launch.block.count() > 1024 || launch.block.z > 64) return "too many threads in a block";
    if (launch.grid.x > 0x7fffffff || launch.grid.y > 65535 || launch.grid.z > 65535) return "too many blocks";
    if (launch.shared_bytes > most_shared_bytes) return "too much shared memory";
    return nullptr;
}

}  // namespace standin

using namespace standin;

extern "C" {

void standin_configure(const char* key, const char* value) {
    const std::lock_guard guard(driver_lock());
    if (std::strcmp(key, "reset") == 0) {
        reset_streams();
        reset_handles();
        devices().clear();
        take_problems(nullptr, 0);
        return;
    }
    if (!configure(settings(), key, value)) {
        std::fprintf(stderr, "stand-in: cannot set %s to %s\n", key, value);
        std::abort();
    }
}

size_t standin_problems(char* text, size_t len) {
    const std::lock_guard guard(driver_lock());
    return take_problems(text, len);
}

uint64_t standin_launches(void) {
    const std::lock_guard guard(driver_lock());
    return launches();
}

}
