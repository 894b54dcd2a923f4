// The operations of streams that have run, by epoch.
#pragma once

#include <cstdint>
#include <string>

namespace standin {

/// Whether the operation of that epoch comes before the one that runs: by its stream, or by events or waits of the host.
bool comes_before(uint32_t epoch);
/// "kernel rms_norm_f32 in stream 2", for reports.
std::string operation_of(uint32_t epoch);
/// Epochs begin anew: all that ran comes before all that will.
void forget_operations();
/// Streams begin anew, too.
void reset_operations();

}  // namespace standin
