#include "shared_memory.hpp"

#include <cstring>

#include "executor.hpp"
#include "registry.hpp"
#include "report.hpp"
#include "shadow.hpp"

// Both are laid out by the build script's linker script: all arrays of kernels with gaps between them.
extern unsigned char standin_shared_begin[] __attribute__((visibility("hidden")));
extern unsigned char standin_shared_end[] __attribute__((visibility("hidden")));

namespace standin {

namespace {

constexpr size_t page_bytes = size_t{1} << page_shift;

/// Kernels see the bytes that a launch asks for; the array's own end is far behind.
__attribute__((section(".noinit.standin_dynamic"), aligned(4096))) unsigned char dynamic_shared[most_shared_bytes + 4096];
size_t dynamic_bytes = 0;

size_t offset_of(const unsigned char* pointer) { return reinterpret_cast<uintptr_t>(pointer) - shared_space.base; }

void map_shared() {
    shared_space.base = reinterpret_cast<uintptr_t>(standin_shared_begin);
    shared_space.bytes = static_cast<size_t>(standin_shared_end - standin_shared_begin);
    shared_space.map_shadow();
    for (size_t i = 0; i < shared_variable_count; ++i) {
        const SharedVariable& variable = shared_variables[i];
        set_bits(shared_space.live, offset_of(variable.begin), static_cast<size_t>(variable.end - variable.begin), true);
    }
}

}  // namespace

void open_shared(size_t bytes) {
    if (shared_space.base == 0) map_shared();
    set_bits(shared_space.live, offset_of(dynamic_shared), dynamic_bytes, false);
    set_bits(shared_space.live, offset_of(dynamic_shared), bytes, true);
    dynamic_bytes = bytes;
}

void poison_shared() {
    forget_shared_accesses();
    for (size_t page = 0; page < shared_space.bytes >> page_shift; ++page) {
        if (shared_space.page_touched[page] == 0) continue;
        shared_space.page_touched[page] = 0;
        std::memset(shared_space.ready + page * page_bytes / 8, 0, page_bytes / 8);
    }
}

std::string describe_shared(uintptr_t address) {
    const auto* pointer = reinterpret_cast<const unsigned char*>(address);
    if (pointer >= dynamic_shared && pointer < dynamic_shared + sizeof dynamic_shared) {
        const auto offset = static_cast<size_t>(pointer - dynamic_shared);
        return format("byte %zu of %zu bytes of dynamic shared memory", offset, dynamic_bytes);
    }
    const SharedVariable* nearest = nullptr;
    for (size_t i = 0; i < shared_variable_count; ++i) {
        const SharedVariable& variable = shared_variables[i];
        if (variable.begin <= pointer && (nearest == nullptr || variable.begin >= nearest->begin)) nearest = &variable;
    }
    if (nearest == nullptr) return "before all shared memory";
    return format("byte %td of shared %s (%td bytes)", pointer - nearest->begin, nearest->name, nearest->end - nearest->begin);
}

}  // namespace standin

extern "C" void* standin_dynamic_shared() { return standin::dynamic_shared; }
