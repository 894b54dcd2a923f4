// Runs a launch: blocks in a seeded order one after the other, the threads of a block as fibres.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "registry.hpp"

namespace standin {

struct Size {
    unsigned x = 1, y = 1, z = 1;
    uint64_t count() const { return uint64_t{x} * y * z; }
};

struct Launch {
    const Kernel* kernel = nullptr;
    Size grid, block;
    size_t shared_bytes = 0;
    /// The arguments, one after the other, each aligned to 16 bytes.
    std::vector<unsigned char> arguments;
};

/// The greatest dynamic shared memory of a block (sm_80: 163 KiB).
constexpr size_t most_shared_bytes = 163 * 1024;

/// Runs all blocks, or up to the first problem. `seed` gives the order.
void run_launch(const Launch& launch, uint64_t seed);

/// Whether a thread of a kernel runs.
bool in_kernel();
/// Gives the launch up, from within a kernel.
[[noreturn]] void stop_launch();
/// " in kernel k, block (0,0,0), thread (1,0,0)", or what else runs.
std::string running_place();
/// The name of the copy or fill that runs, for reports; null after it.
void set_running_operation(const char* name);

/// Copies the arguments of `kernel` out of a launch's parameter list.
std::vector<unsigned char> packed_arguments(const Kernel& kernel, void* const* parameters);

}  // namespace standin
