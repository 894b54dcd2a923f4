// Reads from PTX text what a launch must agree with.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace standin {

struct PtxEntry {
    std::vector<size_t> parameter_bytes;
    /// Static shared memory.
    size_t shared_bytes = 0;
    /// The most threads of a block by __launch_bounds__; 0: not said.
    size_t most_threads = 0;
};

struct Ptx {
    /// 90 is PTX 9.0.
    int version = 0;
    /// 80 is sm_80.
    int target = 0;
    std::map<std::string, PtxEntry, std::less<>> entries;
};

/// False if it is not PTX.
bool read_ptx(std::string_view text, Ptx& ptx);

/// The newest PTX version that a driver knows; both as their owners count: 13000 -> 90.
int newest_ptx(int driver);

}  // namespace standin
