// What a test sets: by the environment, or by `standin_configure`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace standin {

struct Settings {
    /// Orders of streams, blocks and threads.
    uint64_t seed = 1;
    int devices = 1;
    /// Bytes of each device.
    size_t memory = size_t{1} << 30;
    /// Launches to come before the device that makes the next one is lost. It is lost once; then this is empty.
    std::optional<uint64_t> lost_after;
    /// Captures begin; if not, each is refused.
    bool captures = true;
    /// Whether the first launch within a capture breaks it.
    bool breaks_captures = false;
    /// The driver's version as CUDA counts: 1000 * major + 10 * minor.
    int driver = 13000;
    /// A file that problems are appended to.
    std::string report;
    /// Devices may be given access to each other's memory.
    bool peers = true;
    /// Kernels of which a launch writes one wrong value, ends the process, or never ends; empty: none.
    std::string wrong, crashes, hangs;
    /// Major and minor in one number.
    int capability = 80;
    /// Whoever asks machine code for a kernel whose name begins so loses the device; empty: nobody.
    std::string lost_by;
    /// What the driver's compiler says of every PTX, which it does not take; empty: it takes them.
    std::string refuses;
    /// Races are looked for.
    bool strict = true;
};

/// Read from the environment on first use.
Settings& settings();

/// False if there is no such key or the value cannot be read.
bool configure(Settings& settings, const std::string& key, const std::string& value);

}  // namespace standin
