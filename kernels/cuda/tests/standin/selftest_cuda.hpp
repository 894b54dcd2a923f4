// The driver's calls that the self-test makes, declared as CUDA's header declares them, and short forms for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "selftest.hpp"

extern "C" {
int cuInit(unsigned flags);
int cuDriverGetVersion(int* version);
int cuDeviceGetCount(int* count);
int cuDeviceGetAttribute(int* value, int attribute, int device);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(void* context);
int cuDeviceCanAccessPeer(int* can, int device, int peer);
int cuCtxEnablePeerAccess(void* context, unsigned flags);
int cuCtxGetCurrent(void** context);
int cuCtxSynchronize();
int cuMemGetInfo_v2(size_t* free, size_t* total);
int cuMemAlloc_v2(unsigned long long* pointer, size_t bytes);
int cuMemFree_v2(unsigned long long pointer);
int cuMemFreeAsync(unsigned long long pointer, void* stream);
int cuMemHostAlloc(void** memory, size_t bytes, unsigned flags);
int cuMemFreeHost(void* memory);
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes, void* stream);
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void* stream);
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void* stream);
int cuMemcpyPeerAsync(unsigned long long to, void* to_context, unsigned long long from, void* from_context, size_t bytes, void* stream);
int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void* stream);
int cuStreamCreate(void** stream, unsigned flags);
int cuStreamDestroy_v2(void* stream);
int cuStreamSynchronize(void* stream);
int cuStreamQuery(void* stream);
int cuStreamWaitEvent(void* stream, void* event, unsigned flags);
int cuEventCreate(void** event, unsigned flags);
int cuEventRecord(void* event, void* stream);
int cuEventSynchronize(void* event);
int cuEventQuery(void* event);
int cuEventDestroy_v2(void* event);
int cuModuleLoadData(void** module, const void* image);
int cuModuleLoadDataEx(void** module, const void* image, unsigned count, int* options, void** values);
int cuModuleGetFunction(void** function, void* module, const char* name);
int cuFuncSetAttribute(void* function, int attribute, int value);
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void* stream, void** parameters, void** extra);
int cuStreamBeginCapture_v2(void* stream, int mode);
int cuStreamEndCapture(void* stream, void** graph);
int cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long flags);
int cuGraphLaunch(void* exec, void* stream);
int cuGetErrorName(int error, const char** name);
}

/// PTX with nothing in its entries.
inline const char* const empty_ptx = R"(
// .entry in_a_comment()
.version 9.0
.target sm_80
.address_size 64
.visible .entry add_one(
    .param .u64 .ptr .global .align 1 add_one_param_0,
    .param .u32 add_one_param_1
)
.maxntid 512
{
    .shared .align 4 .b8 tile[64];
    ret;
}
.visible .entry reverse_values(.param .u64 reverse_values_param_0) { ret; }
.visible .entry gone(.param .u64 gone_param_0) { ret; }
)";

/// A process's view of the driver with a fresh device, its module and some streams.
class Session {
public:
    explicit Session(uint64_t seed) {
        standin_configure("reset", "");
        standin_configure("seed", std::to_string(seed).c_str());
        standin_configure("reset", "");
        cuInit(0);
        use(0);
        cuModuleLoadData(&module, empty_ptx);
        cuModuleGetFunction(&add_one_function, module, "add_one");
    }
    void* use(int device) {
        void* context = nullptr;
        cuDevicePrimaryCtxRetain(&context, device);
        cuCtxSetCurrent(context);
        return context;
    }
    /// Memory for `count` floats, page-locked or the device's.
    float* host(size_t count) {
        void* memory = nullptr;
        cuMemHostAlloc(&memory, count * 4, 0);
        return static_cast<float*>(memory);
    }
    unsigned long long device(size_t count) {
        unsigned long long pointer = 0;
        cuMemAlloc_v2(&pointer, count * 4);
        return pointer;
    }
    void* stream() {
        void* made = nullptr;
        cuStreamCreate(&made, 1);
        return made;
    }
    void* event() {
        void* made = nullptr;
        cuEventCreate(&made, 2);
        return made;
    }
    int add_one(unsigned long long values, unsigned count, void* in) {
        void* parameters[] = {&values, &count};
        return cuLaunchKernel(add_one_function, (count + 127) / 128, 1, 1, 128, 1, 1, 0, in, parameters, nullptr);
    }
    /// `to` goes on after what `from` has so far.
    void order(void* from, void* to) {
        void* between = event();
        cuEventRecord(between, from);
        cuStreamWaitEvent(to, between, 0);
        cuEventDestroy_v2(between);
    }

    void* module = nullptr;
    void* add_one_function = nullptr;
};
