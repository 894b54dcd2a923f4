#include "report.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <vector>

#include "device.hpp"
#include "executor.hpp"
#include "settings.hpp"

namespace standin {

namespace {

constexpr size_t kept = 32;
std::vector<std::string> first_problems;
size_t problem_count = 0;

/// The source line of an address, where binutils are at hand; else what the dynamic linker knows.
std::string source_of(const void* caller) {
    Dl_info info;
    if (caller == nullptr || dladdr(caller, &info) == 0) return "";
    // The address is a return address: the call is before it.
    const auto offset = static_cast<const char*>(caller) - static_cast<const char*>(info.dli_fbase) - 1;
    const std::string command = format("addr2line -e '%s' 0x%tx 2>/dev/null", info.dli_fname, offset);
    std::string line;
    if (FILE* pipe = popen(command.c_str(), "r")) {
        char buffer[512];
        while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) line += buffer;
        pclose(pipe);
    }
    if (line.empty() || line[0] == '?') return format(", at %s+0x%tx", info.dli_fname, offset);
    line.erase(std::min(line.find('\n'), line.find(" (")));
    return ", at " + line.substr(line.rfind('/') + 1);
}

}  // namespace

std::string format(const char* pattern, ...) {
    char buffer[1024];
    va_list arguments;
    va_start(arguments, pattern);
    std::vsnprintf(buffer, sizeof buffer, pattern, arguments);
    va_end(arguments);
    return buffer;
}

void problem(const std::string& what, const void* caller) {
    const std::string text = "stand-in: " + what + running_place() + source_of(caller);
    ++problem_count;
    if (first_problems.size() < kept) first_problems.push_back(text);
    std::fprintf(stderr, "%s\n", text.c_str());
    if (const std::string& path = settings().report; !path.empty()) {
        if (FILE* file = std::fopen(path.c_str(), "a")) {
            std::fprintf(file, "%s\n", text.c_str());
            std::fclose(file);
        }
    }
    if (active_device != nullptr) active_device->fail(illegal_address);
    if (in_kernel()) stop_launch();
}

size_t take_problems(char* text, size_t bytes) {
    std::string all;
    for (const auto& one : first_problems) all += one + "\n";
    if (bytes > 0) {
        const size_t length = std::min(bytes - 1, all.size());
        std::memcpy(text, all.data(), length);
        text[length] = 0;
    }
    first_problems.clear();
    return std::exchange(problem_count, 0);
}

}  // namespace standin
