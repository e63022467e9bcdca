/* Threads of control within one thread of the system, switched by hand: a few nanoseconds a switch.
 *
 * A fiber runs `body(arg)` and is then over; fiber_start() makes it ready for another body, so that
 * one fiber's stack serves many.  On x86-64 the switch is assembly; elsewhere it is swapcontext(),
 * thirty times slower.  Sanitizers are told of every switch.
 *
 * Owner: the thread that made it; fiber_resume() and fiber_yield() nest one deep. */
#ifndef KERNELS_HOST_EMULATION_FIBER_H
#define KERNELS_HOST_EMULATION_FIBER_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fiber;

struct fiber *fiber_new(size_t stack_bytes);
void fiber_free(struct fiber *);
/* Sets what the next fiber_resume() begins to run. */
void fiber_start(struct fiber *, void (*body)(void *arg), void *arg);
/* Runs it until it yields or is over; false when it is over. */
bool fiber_resume(struct fiber *);
/* Inside a fiber: back to whoever resumed it. */
void fiber_yield(struct fiber *);

#ifdef __cplusplus
}
#endif
#endif
