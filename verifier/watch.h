/* Descriptors and clocks of the supervisor inside the libuv loop.
 *
 * libuv closes handles later than it is told; this keeps that out of everybody else's structs.
 * After *_close() no callback comes.  LOOP thread. */
#ifndef VERIFIER_WATCH_H
#define VERIFIER_WATCH_H

#include <stdbool.h>
#include <uv.h>

/* Counts the handles that are open, so that an owner knows when the last is gone.  Embedded in the
 * owner. */
struct watch_set {
    uv_loop_t *loop; /* borrowed */
    int n_handles;
    void (*on_empty)(void *arg); /* called when n_handles comes to 0, if not NULL */
    void *arg;
};

/* Calls `ready(arg)` whenever fd can be read or its peer is gone.  Owns fd, which it makes
 * non-blocking. */
struct watch;
struct watch *watch_open(struct watch_set *, int fd, void (*ready)(void *arg), void *arg);
int watch_fd(const struct watch *);
/* Closes fd too.  NULL is fine. */
void watch_close(struct watch *);

struct watch_timer;
struct watch_timer *watch_timer_open(struct watch_set *, void (*ring)(void *arg), void *arg);
/* Rings once after `seconds`; replaces what was set. */
void watch_timer_set(struct watch_timer *, double seconds);
void watch_timer_stop(struct watch_timer *);
void watch_timer_close(struct watch_timer *);

#endif
