// What the compiler calls before each load and store of a kernel (-fsanitize=thread), and where it finds an index or a pointer that
// cannot be right (-fsanitize=bounds,alignment). These take the place of the sanitizers' own libraries, which are not linked.

#include <cstring>

#include "report.hpp"
#include "shadow.hpp"

using namespace standin;

#define CALLER __builtin_return_address(0)

#define HOOKS(bytes)                                                                              \
    void __tsan_read##bytes(void* address) { check<Access::read, bytes>(address, CALLER); }       \
    void __tsan_write##bytes(void* address) { check<Access::write, bytes>(address, CALLER); }     \
    void __tsan_volatile_read##bytes(void* address) { check<Access::read, bytes>(address, CALLER); } \
    void __tsan_volatile_write##bytes(void* address) { check<Access::write, bytes>(address, CALLER); }

extern "C" {

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

void __tsan_init() {}
void __tsan_read_range(void* address, size_t bytes) { check_range(address, bytes, Access::read, CALLER); }
void __tsan_write_range(void* address, size_t bytes) { check_range(address, bytes, Access::write, CALLER); }

// The build script lets kernels call these for memcpy, memmove and memset, which the compiler does not instrument.
void* standin_memcpy(void* to, const void* from, size_t bytes) {
    check_range(from, bytes, Access::read, CALLER);
    check_range(to, bytes, Access::write, CALLER);
    return std::memmove(to, from, bytes);
}

void* standin_memmove(void* to, const void* from, size_t bytes) { return standin_memcpy(to, from, bytes); }

void* standin_memset(void* to, int value, size_t bytes) {
    check_range(to, bytes, Access::write, CALLER);
    return std::memset(to, value, bytes);
}

/// The start of what the compiler hands over: where in the source.
struct SourcePlace {
    const char* file;
    uint32_t line, column;
};

void __ubsan_handle_out_of_bounds(const SourcePlace* place, uintptr_t index) {
    problem(format("index %ld outside its array (%s:%u)", static_cast<long>(index), place->file, place->line));
}

void __ubsan_handle_type_mismatch_v1(const SourcePlace* place, uintptr_t pointer) {
    problem(format("pointer 0x%lx is not aligned to its type (%s:%u)", pointer, place->file, place->line));
}

}
