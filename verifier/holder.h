/* A fork server that holds something compiled: one tests object, or one chat template.  Or, where
 * a tests object leaves nothing behind, no fork server but the one process that does all its jobs:
 * compiled, it is taken.
 *
 * It lives in one worker.  `changed` tells READY once, or why not; after READY it may tell LOST.
 * LOOP thread. */
#ifndef VERIFIER_HOLDER_H
#define VERIFIER_HOLDER_H

#include "verifier/process.h"

enum holder_state {
    HOLDER_STARTING,
    HOLDER_READY,   /* text: what it reports, the names of a suite */
    HOLDER_REFUSED, /* text: why it doesn't compile */
    HOLDER_MISSING, /* text: the package that is missing */
    HOLDER_SLOW,    /* it took more than the time given */
    HOLDER_LOST,    /* its process or its worker went */
};

struct holder_input {
    enum wire_kind kind;
    int fd; /* borrowed: the memfd with the spec or template */
    uint64_t address_space;
    double seconds; /* for compiling */
    uint32_t flags;
};

struct holder;
/* NULL where the worker's socket is gone.  `changed` never comes from within. */
struct holder *holder_open(struct watch_set *, struct forker *parent, const struct holder_input *,
                           void (*changed)(void *arg, enum holder_state, const char *text),
                           void *arg);
/* Ends its processes; no callback comes after.  NULL is fine. */
void holder_close(struct holder *);
enum holder_state holder_state(const struct holder *);
/* Its report said that one child may do many jobs. */
bool holder_is_repeatable(const struct holder *);
/* Where its children are made; only while READY, and where it isn't lone. */
struct forker *holder_forker(const struct holder *);
/* READY, and no fork server: */
bool holder_is_lone(const struct holder *);
/* its process, once, which is the caller's from now on.  `ended` as of process_start(). */
struct process *holder_take(struct holder *, void (*ended)(void *arg), void *arg);

#endif
