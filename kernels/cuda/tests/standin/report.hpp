// Problems found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace standin {

/// Notes a problem: to stderr, to the report file, for `standin_problems`. The device becomes unusable. Within a kernel the launch
/// ends and this does not return. `caller` is an address in the code that did it, for its source line.
void problem(const std::string& what, const void* caller = nullptr);

/// The number of problems since the last call; the text of the first ones goes to `text`.
size_t take_problems(char* text, size_t bytes);

/// printf into a string.
__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...);

}  // namespace standin
