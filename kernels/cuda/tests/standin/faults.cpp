#include "faults.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "settings.hpp"
#include "shadow.hpp"

namespace standin {

namespace {

/// Bytes behind a pointer that are looked through for what was written.
constexpr size_t most_bytes = 1 << 20;

bool is_of(const Launch& launch, const std::string& name) { return !name.empty() && launch.kernel->name == name; }

/// Changes the greatest bit of the exponent of the first number that this launch wrote behind an address, of whatever type it is: 0 becomes 2.
bool change_behind(uintptr_t address) {
    Space& space = *device_space;
    for (uintptr_t at = address & ~uintptr_t{1}; at < address + most_bytes && space.contains(at); at += 2) {
        const Cell written = space.written[(at - space.base) / 2];
        if (written == 0 || epoch_of(written) < now.launch) continue;
        const bool is_wide = at % 4 == 0 && epoch_of(space.written[(at + 2 - space.base) / 2]) >= now.launch;
        const bool has_upper = (written & Cell{2} << mask_shift) != 0;
        const uintptr_t place = is_wide ? at + 3 : at + (has_upper ? 1 : 0);
        *reinterpret_cast<unsigned char*>(place) ^= 0x40;
        return true;
    }
    return false;
}

}  // namespace

void plant_before(const Launch& launch) {
    if (is_of(launch, settings().crashes)) {
        std::fprintf(stderr, "stand-in: %s crashes, as it was told to\n", launch.kernel->name.data());
        std::abort();
    }
    while (is_of(launch, settings().hangs)) pause();
}

void plant_after(const Launch& launch) {
    if (!is_of(launch, settings().wrong)) return;
    size_t offset = 0;
    for (const size_t bytes : launch.kernel->parameter_bytes) {
        uintptr_t address = 0;
        if (bytes == sizeof address) std::memcpy(&address, launch.arguments.data() + offset, sizeof address);
        if (device_space->contains(address) && change_behind(address)) return;
        offset += (bytes + 15) / 16 * 16;
    }
}

}  // namespace standin
