/* The keeper: a small process, forked before any thread, that makes workers whenever the supervisor
 * asks.
 *
 * THEORY.  By the time a worker dies, the server has threads and perhaps a GPU, and must not fork.
 * The keeper can: it has one thread and nothing else.  It answers each ask in order with the new
 * worker's sockets.  It is the subreaper of its workers: where there is no pid namespace, what a
 * dead worker leaves behind falls to it and is killed.  It ends, and every worker with it, when the
 * supervisor's end of the socket closes. */
#ifndef VERIFIER_KEEPER_H
#define VERIFIER_KEEPER_H

#include "base/err.h"
#include "verifier/box.h"

#include <stdint.h>

struct keeper_ask {
    int32_t slot;
    char flavour[16];
};
struct keeper_answer {
    int32_t slot;
    int32_t pid;                /* 0: it failed */
    struct box_failure failure; /* then why */
};
/* With an answer that has a pid come three descriptors, in this order, and a fourth where it has a
 * uid of its own. */
enum { KEEPER_CONTROL, KEEPER_PIDFD, KEEPER_ERRORS, KEEPER_UID, KEEPER_FDS };

/* Forks it; the supervisor's end of its socket in *fd (the caller's to close).  Before threads
 * start. */
bool keeper_start(const struct box_plan *, int *fd, pid_t *pid, struct err *e) MUST_CHECK;

#endif
