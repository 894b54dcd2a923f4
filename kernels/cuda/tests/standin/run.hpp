// Runs an operation of a stream.
#pragma once

#include "stream.hpp"

namespace standin {

/// `seed` orders the blocks and threads of a launch.
void run_operation(Stream& stream, Operation& operation, uint64_t seed);

}  // namespace standin
