// C++ API for tests of single kernels: checked device memory and launches, without the driver's API. Link with the libcuda.so that
// the build script makes.
//
//     standin::Buffer<float> in({1, 2, 3}), out(3);
//     standin::launch("scale_values", 1, 256, 0, out.get(), 2.0f, uint64_t{3});
//     assert(standin::problems().empty());
//     std::vector<float> result = out.read();
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#define STANDIN_API __attribute__((visibility("default")))

extern "C" {
/// Keys: seed, devices, memory, peers (all, none), lost_after, driver, report, mode (strict, relaxed), and reset, which forgets all
/// devices, streams and problems. Aborts on a key or value it does not know.
STANDIN_API void standin_configure(const char* key, const char* value);
/// The number of problems since the last call, and the text of the first ones.
STANDIN_API size_t standin_problems(char* text, size_t len);
/// Kernels launched so far.
STANDIN_API uint64_t standin_launches(void);
}

namespace standin {

struct Dim {
    unsigned x, y, z;
    Dim(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/// Allocates on device 0.
STANDIN_API void* allocate(size_t bytes);
STANDIN_API void release(void* memory);
/// Both report a problem if the memory is not allocated, or not written.
STANDIN_API void write(void* to, const void* from, size_t bytes);
STANDIN_API void read(void* to, const void* from, size_t bytes);
/// Runs a kernel on device 0 and waits. The parameters' sizes must be those of the kernel.
STANDIN_API void launch_with(const char* name, Dim grid, Dim block, size_t shared_bytes, const std::vector<void*>& parameters,
                             const std::vector<size_t>& bytes);
/// The text of the problems since the last call; empty if there were none. The device works again.
STANDIN_API std::string problems();
/// Another order of blocks and threads.
STANDIN_API void set_seed(uint64_t seed);

/// An argument must have the parameter's size: pass `uint64_t{n}`, `unsigned{n}`, `1.0f`, pointers.
template <typename... Arguments>
void launch(const char* name, Dim grid, Dim block, size_t shared_bytes, Arguments... arguments) {
    static_assert((std::is_trivially_copyable_v<Arguments> && ...));
    launch_with(name, grid, block, shared_bytes, {static_cast<void*>(&arguments)...}, {sizeof(Arguments)...});
}

/// Device memory for values. Fresh memory may not be read before it is written.
template <typename T>
class Buffer {
public:
    explicit Buffer(size_t count) : length(count), memory(static_cast<T*>(allocate(count * sizeof(T)))) {}
    explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) { fill(values); }
    ~Buffer() { release(memory); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    T* get() const { return memory; }
    size_t count() const { return length; }
    void fill(const std::vector<T>& values) {
        if (values.size() != length) throw std::invalid_argument("a buffer is filled with another number of values");
        write(memory, values.data(), length * sizeof(T));
    }
    std::vector<T> read() const {
        std::vector<T> values(length);
        standin::read(values.data(), memory, length * sizeof(T));
        return values;
    }

private:
    size_t length;
    T* memory;
};

}  // namespace standin
