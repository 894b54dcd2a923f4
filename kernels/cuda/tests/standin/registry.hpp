// The kernels in this library, by name, and their arrays in shared memory. The build script writes both tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace standin {

struct Kernel {
    /// Ends with a zero.
    std::string_view name;
    /// Calls the kernel as one thread. `parameters[i]` points to the i-th argument.
    void (*call)(void** parameters);
    /// Bytes of each parameter, in order.
    std::span<const size_t> parameter_bytes;
};

/// Null if there is none of that name.
const Kernel* find_kernel(std::string_view name);

/// For what is compiled with the kernels and is not one.
#define STANDIN_UNCHECKED __attribute__((no_sanitize("thread", "alignment")))

template <auto function>
struct Caller;

template <typename... Parameters, void (*function)(Parameters...)>
struct Caller<function> {
    STANDIN_UNCHECKED static void call(void** parameters) { call(parameters, std::index_sequence_for<Parameters...>{}); }
    static constexpr size_t bytes[sizeof...(Parameters) + 1] = {sizeof(Parameters)...};
    /// A constant: what is compiled with the kernels is checked and must not run outside of them.
    static constexpr Kernel kernel(std::string_view name) { return {name, &call, {bytes, sizeof...(Parameters)}}; }

private:
    template <size_t... index>
    STANDIN_UNCHECKED static void call([[maybe_unused]] void** parameters, std::index_sequence<index...>) {
        function(*static_cast<Parameters*>(parameters[index])...);
    }
};

/// A variable in shared memory.
struct SharedVariable {
    const char* name;
    unsigned char* begin;
    unsigned char* end;
};

extern const Kernel* const kernel_table[];
extern const size_t kernel_count;
extern const SharedVariable shared_variables[];
extern const size_t shared_variable_count;

}  // namespace standin
