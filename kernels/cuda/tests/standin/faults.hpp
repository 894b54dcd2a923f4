// Faults that a test plants in a kernel, as a GPU or its driver may have them.
#pragma once

#include "executor.hpp"

namespace standin {

/// Ends the process, or has the call wait for good, where the launch is of a kernel that settings name so.
void plant_before(const Launch& launch);
/// Makes one value wrong of those that the launch wrote, where it is of a kernel that settings name so.
void plant_after(const Launch& launch);

}  // namespace standin
