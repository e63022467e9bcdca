#include "kernels/host_emulation/fiber.h"

#include "base/err.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN 1
#endif
#endif
#ifdef FIBER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#include <ucontext.h>
#endif

struct fiber {
    uint8_t *stack; /* owned mapping */
    size_t bytes;
    void (*body)(void *arg);
    void *arg;
    bool over;
#ifdef __x86_64__
    void *sp, *caller_sp; /* where each side left off */
#else
    ucontext_t self, caller;
#endif
    /* What the address sanitizer keeps of each side. */
    void *fake_self, *fake_caller;
    const void *caller_stack;
    size_t caller_bytes;
};

#ifdef __x86_64__
/* void fiber_swap(void **save, void *to): keeps the registers that a call must keep on the stack,
 * leaves the stack pointer in *save and goes on where `to` was left. */
void fiber_swap(void **save, void *to);
__asm__(".text\n"
        ".p2align 4\n"
        ".type fiber_swap, @function\n"
        "fiber_swap:\n"
        "  pushq %rbp\n"
        "  pushq %rbx\n"
        "  pushq %r12\n"
        "  pushq %r13\n"
        "  pushq %r14\n"
        "  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n"
        "  popq %r14\n"
        "  popq %r13\n"
        "  popq %r12\n"
        "  popq %rbx\n"
        "  popq %rbp\n"
        "  ret\n"
        ".size fiber_swap, .-fiber_swap\n");

static void swap_in(struct fiber *f) { fiber_swap(&f->caller_sp, f->sp); }
static void swap_out(struct fiber *f) { fiber_swap(&f->sp, f->caller_sp); }
#else
static void swap_in(struct fiber *f) { BUG_ON(swapcontext(&f->caller, &f->self)); }
static void swap_out(struct fiber *f) { BUG_ON(swapcontext(&f->self, &f->caller)); }
#endif

/* The fiber that is being entered for the first time: the entry of a fresh stack has no argument.
 */
static _Thread_local struct fiber *entering;

static void arrived_in_fiber(struct fiber *f) {
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(f->fake_self, &f->caller_stack, &f->caller_bytes);
#else
    (void)f;
#endif
}

static void leave_fiber(struct fiber *f) {
#ifdef FIBER_ASAN
    __sanitizer_start_switch_fiber(&f->fake_self, f->caller_stack, f->caller_bytes);
#endif
    swap_out(f);
    arrived_in_fiber(f);
}

static void fiber_main(void) {
    struct fiber *f = entering;
    arrived_in_fiber(f);
    for (;;) {
        f->body(f->arg);
        f->over = true;
        leave_fiber(f);
    }
}

struct fiber *fiber_new(size_t stack_bytes) {
    struct fiber *f = err_alloc(1, sizeof *f);
    f->bytes = (stack_bytes + 4095) & ~(size_t)4095;
    f->over = true;
    f->stack = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    BUG_ON(f->stack == MAP_FAILED);
#ifdef __x86_64__
    /* As fiber_swap() leaves a stack: six registers, the return address; at a function's entry the
     * stack pointer is 8 short of a multiple of 16. */
    void **top = (void **)(void *)(f->stack + f->bytes);
    top[-2] = (void *)(uintptr_t)fiber_main;
    f->sp = top - 8;
#else
    BUG_ON(getcontext(&f->self));
    f->self.uc_stack.ss_sp = f->stack;
    f->self.uc_stack.ss_size = f->bytes;
    makecontext(&f->self, fiber_main, 0);
#endif
    return f;
}

void fiber_free(struct fiber *f) {
    if (!f) return;
    munmap(f->stack, f->bytes);
    free(f);
}

void fiber_start(struct fiber *f, void (*body)(void *arg), void *arg) {
    BUG_ON(!f->over);
    f->body = body;
    f->arg = arg;
    f->over = false;
}

bool fiber_resume(struct fiber *f) {
    BUG_ON(f->over);
    entering = f;
#ifdef FIBER_ASAN
    __sanitizer_start_switch_fiber(&f->fake_caller, f->stack, f->bytes);
#endif
    swap_in(f);
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(f->fake_caller, NULL, NULL);
#endif
    return !f->over;
}

void fiber_yield(struct fiber *f) { leave_fiber(f); }
