// Modules, functions and launches.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "capture.hpp"
#include "driver.hpp"
#include "ptx.hpp"

namespace standin {

namespace {

struct Function {
    const Kernel* kernel;
    PtxEntry entry;
    /// What cuFuncSetAttribute allowed.
    size_t most_dynamic_bytes = 0;
};

struct Module {
    Device* device;
    Ptx ptx;
    std::map<std::string, std::shared_ptr<Function>> functions;
};

Handles<Module> modules;
Handles<Function> functions;

/// A block's shared memory unless a function is allowed more.
constexpr size_t usual_shared_bytes = 48 * 1024;

std::string list_of(std::span<const size_t> bytes) {
    std::string text;
    for (const size_t one : bytes) text += format("%s%zu", text.empty() ? "" : ", ", one);
    return text;
}

/// Whether an entry takes the parameters that the kernel in this library takes; reports if not.
bool is_current(const std::string& name, const PtxEntry& entry, const Kernel& kernel) {
    if (std::ranges::equal(entry.parameter_bytes, kernel.parameter_bytes)) return true;
    problem("the PTX is stale: " + name + " takes parameters of " + list_of(entry.parameter_bytes) + " bytes in it, of " +
            list_of(kernel.parameter_bytes) + " in the source");
    return false;
}

/// Whether an image is machine code: an ELF file of the machine CUDA.
bool is_machine_code(const char* image) { return std::memcmp(image, "\x7f" "ELF", 4) == 0 && image[0x12] == '\xbe' && image[0x13] == 0; }

/// What machine code of these kernels would hold. It cannot be run here: the kernels of this library stand for it, with as much static shared
/// memory and as many threads as they want.
void read_machine_code(Ptx& ptx) {
    ptx.version = 90;
    ptx.target = 80;
    for (size_t i = 0; i < kernel_count; ++i) {
        const std::span<const size_t> bytes = kernel_table[i]->parameter_bytes;
        ptx.entries[std::string(kernel_table[i]->name)] = PtxEntry{{bytes.begin(), bytes.end()}};
    }
}

int load(Device& device, void** handle, const void* image, std::string& said) {
    const char* text = static_cast<const char*>(image);
    auto module = std::make_shared<Module>();
    module->device = &device;
    if (text != nullptr && is_machine_code(text)) {
        read_machine_code(module->ptx);
        *handle = modules.add(module);
        return success;
    }
    if (text == nullptr || std::memcmp(text, "\x7f" "ELF", 4) == 0 || !read_ptx(text, module->ptx)) {
        problem("a module is not PTX text");
        return invalid_image;
    }
    if (!settings().refuses.empty()) {
        said = settings().refuses;
        return invalid_ptx;
    }
    if (module->ptx.version > newest_ptx(settings().driver)) return unsupported_ptx_version;
    if (module->ptx.target > 80) return invalid_ptx;
    for (const auto& [name, entry] : module->ptx.entries) {
        const Kernel* kernel = find_kernel(name);
        if (kernel != nullptr && !is_current(name, entry, *kernel)) return invalid_ptx;
    }
    *handle = modules.add(module);
    return success;
}

int check_launch(const Function& function, const Launch& launch) {
    if (wrong_shape(launch) != nullptr) return invalid_value;
    const size_t allowed = std::max(function.most_dynamic_bytes, usual_shared_bytes - function.entry.shared_bytes);
    if (launch.shared_bytes > allowed) return invalid_value;
    const size_t most = function.entry.most_threads;
    return most != 0 && launch.block.count() > most ? invalid_value : success;
}

}  // namespace

void reset_modules() {
    modules.clear();
    functions.clear();
}

void drop_modules(const Device& device) {
    modules.each([&](const Module& module) {
        if (module.device != &device) return;
        for (const auto& [name, function] : module.functions) functions.remove(function.get());
    });
    modules.remove_if([&](const Module& module) { return module.device == &device; });
}

}  // namespace standin

using namespace standin;

CUDA_API int cuModuleLoadData(void** handle, const void* image) {
    std::string said;
    return with_device("cuModuleLoadData", [&](Device& device) { return load(device, handle, image, said); });
}

CUDA_API int cuModuleLoadDataEx(void** handle, const void* image, unsigned count, int* options, void** values) {
    std::string said;
    const int result = with_device("cuModuleLoadDataEx", [&](Device& device) { return load(device, handle, image, said); });
    // 5: where errors are said; 6: how much room there is, and then how much was said.
    char* log = nullptr;
    for (unsigned i = 0; i < count; ++i) {
        if (options[i] == 5) log = static_cast<char*>(values[i]);
    }
    for (unsigned i = 0; i < count && log != nullptr; ++i) {
        if (options[i] != 6) continue;
        const size_t room = reinterpret_cast<size_t>(values[i]);
        const size_t len = std::min(said.size(), room == 0 ? 0 : room - 1);
        std::memcpy(log, said.data(), len);
        if (room != 0) log[len] = 0;
        values[i] = reinterpret_cast<void*>(len);
    }
    return result;
}

CUDA_API int cuModuleUnload(void* handle) {
    return with_device("cuModuleUnload", [&](Device&) -> int {
        const auto module = modules.find(handle);
        if (module == nullptr) return invalid_handle;
        for (const auto& [name, function] : module->functions) functions.remove(function.get());
        modules.remove(handle);
        return success;
    });
}

CUDA_API int cuModuleGetFunction(void** handle, void* module_handle, const char* name) {
    return with_device("cuModuleGetFunction", [&](Device& device) -> int {
        const auto module = modules.find(module_handle);
        if (module == nullptr) return invalid_handle;
        const auto entry = module->ptx.entries.find(std::string_view(name));
        const Kernel* kernel = find_kernel(name);
        if (entry == module->ptx.entries.end()) {
            const std::string& begin = settings().lost_by;
            if (!begin.empty() && std::string_view(name).starts_with(begin)) {
                device.fail(launch_failed);
                drop_operations(device);
                return launch_failed;
            }
            if (kernel != nullptr) problem(format("the PTX is stale: it has no %s", name));
            return not_found;
        }
        if (kernel == nullptr) {
            problem(format("the PTX is stale: the source has no %s", name));
            return not_found;
        }
        auto& function = module->functions[name];
        if (function == nullptr) function = std::make_shared<Function>(Function{kernel, entry->second});
        if (functions.find(function.get()) == nullptr) functions.add(function);
        *handle = function.get();
        return success;
    });
}

/// What the hardware's copies read: here nobody does, so that it may hold anything.
CUDA_API int cuTensorMapEncodeTiled(void* map, int, unsigned, void* address, const void*, const void*, const void*, const void*, int, int, int, int) {
    if (map == nullptr || reinterpret_cast<uintptr_t>(address) % 16 != 0) return invalid_value;
    std::memset(map, 0, 128);
    return success;
}

CUDA_API int cuFuncSetAttribute(void* handle, int attribute, int value) {
    return with_device("cuFuncSetAttribute", [&](Device&) -> int {
        const auto function = functions.find(handle);
        if (function == nullptr) return invalid_handle;
        // 8: the most dynamic shared memory; 9: how to share with the cache, a hint.
        if (attribute == 9) return success;
        const size_t room = most_shared_bytes - function->entry.shared_bytes;
        if (attribute != 8 || value < 0 || static_cast<size_t>(value) > room) return invalid_value;
        function->most_dynamic_bytes = static_cast<size_t>(value);
        return success;
    });
}

CUDA_API int cuFuncGetAttribute(int* value, int attribute, void* handle) {
    return with_device("cuFuncGetAttribute", [&](Device&) -> int {
        const auto function = functions.find(handle);
        if (function == nullptr) return invalid_handle;
        switch (attribute) {
            case 0: *value = function->entry.most_threads == 0 ? 1024 : static_cast<int>(function->entry.most_threads); break;
            case 1: *value = static_cast<int>(function->entry.shared_bytes); break;
            case 2: case 3: case 7: *value = 0; break;
            case 4: *value = 32; break;
            case 5: case 6: *value = 80; break;
            case 8: *value = static_cast<int>(std::max(function->most_dynamic_bytes, usual_shared_bytes)); break;
            default: return invalid_value;
        }
        return success;
    });
}

CUDA_API int cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                            unsigned block_z, unsigned shared_bytes, void* stream_handle, void** parameters, void** extra) {
    return with_device("cuLaunchKernel", [&](Device& device) -> int {
        const auto function = functions.find(handle);
        Stream* stream = stream_of(stream_handle);
        if (function == nullptr || stream == nullptr || stream->device != &device) return invalid_handle;
        if (extra != nullptr || (parameters == nullptr && !function->kernel->parameter_bytes.empty())) return invalid_value;
        Launch launch{function->kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes,
                      packed_arguments(*function->kernel, parameters)};
        if (const int result = check_launch(*function, launch); result != success) return result;
        if (stream->capture != nullptr && settings().breaks_captures) {
            stream->capture->is_broken = true;
            return capture_unsupported;
        }
        if (stream->capture != nullptr) {
            capture(*stream, std::move(launch));
        } else {
            enqueue(*stream, std::move(launch));
        }
        return success;
    });
}
