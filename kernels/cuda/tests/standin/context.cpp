#include "context.hpp"

#include <cstdint>

namespace standin {

#if defined(__x86_64__)

// The registers that a callee must keep (System V ABI) go onto the stack, then the stacks are exchanged. The control words of
// the floating point units are the same in every fibre.
asm(R"(
.text
.hidden standin_switch
.globl standin_switch
.type standin_switch, @function
standin_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size standin_switch, . - standin_switch
)");

void prepare(Context& context, void* stack, size_t bytes, void (*entry)()) {
    auto top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15};
    auto* words = reinterpret_cast<uint64_t*>(top);
    // On entry a function expects its return address where rsp + 8 is a multiple of 16; there is nothing to return to.
    words[-1] = 0;
    words[-2] = reinterpret_cast<uint64_t>(entry);
    for (int i = 3; i <= 8; ++i) words[-i] = 0;
    context.stack_pointer = words - 8;
}

#else

extern "C" void standin_switch(Context* from, Context* to) { swapcontext(&from->state, &to->state); }

void prepare(Context& context, void* stack, size_t bytes, void (*entry)()) {
    getcontext(&context.state);
    context.state.uc_stack.ss_sp = stack;
    context.state.uc_stack.ss_size = bytes;
    context.state.uc_link = nullptr;
    makecontext(&context.state, entry, 0);
}

#endif

}  // namespace standin
