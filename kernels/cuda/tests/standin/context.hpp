// Switching between fibres.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace standin {

#if defined(__x86_64__)

/// Where a suspended fibre goes on: its stack pointer. All else lies on its stack.
struct Context {
    void* stack_pointer = nullptr;
};

#else

struct Context {
    ucontext_t state;
};

#endif

/// Suspends the running fibre in `from` and goes on with `to`.
extern "C" void standin_switch(Context* from, Context* to);

/// Makes `context` run `entry` on the stack [stack, stack + bytes). `entry` must never return.
void prepare(Context& context, void* stack, size_t bytes, void (*entry)());

}  // namespace standin
