// What both APIs, the driver's and the C++ one, use.
#pragma once

#include <mutex>

#include "executor.hpp"

namespace standin {

/// One call at a time: kernels run within the call of some thread.
std::mutex& driver_lock();
/// What no device would run; null if there is nothing.
const char* wrong_shape(const Launch& launch);
/// Forgets the driver's handles.
void reset_handles();

}  // namespace standin
