// The shared memory of the block that runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace standin {

/// Opens `bytes` of dynamic shared memory beside the kernels' own arrays.
void open_shared(size_t bytes);
/// A new block finds nothing written.
void poison_shared();
/// Says where an address lies, for a report.
std::string describe_shared(uintptr_t address);

}  // namespace standin
