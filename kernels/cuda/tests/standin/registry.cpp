#include "registry.hpp"

namespace standin {

const Kernel* find_kernel(std::string_view name) {
    for (size_t i = 0; i < kernel_count; ++i) {
        if (kernel_table[i]->name == name) return kernel_table[i];
    }
    return nullptr;
}

}  // namespace standin
