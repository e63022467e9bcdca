/* One tests object as the workers know it: compiled in a process T of each worker that judges
 * candidates by it.
 *
 * A worker holds a few at most and lets the one go that was not used for longest.  LOOP thread. */
#ifndef VERIFIER_SUITE_H
#define VERIFIER_SUITE_H

#include "verifier/holder.h"
#include "verifier/pool.h"
#include "verifier/verifier.h"

enum { SUITE_KEPT = 12, SUITE_COMPILE_S = 20, SUITE_RUNS = 100 /* of one B */ };

struct suite;

/* format: as suite.py knows it. */
struct suite *suite_open(struct pool *, const struct verifier_spec *, const char *format,
                         struct err *e);
void suite_close(struct suite *);

/* Compiled in this worker, now or soon: `ready(arg, state, text)` comes once, perhaps from within.
 * One asker a worker. */
void suite_want(struct suite *, struct worker *,
                void (*ready)(void *arg, enum holder_state, const char *text), void *arg);
/* Compiled there. */
bool suite_is_ready(const struct suite *, const struct worker *);
/* The asker no longer wants to hear. */
void suite_forget(struct suite *, struct worker *);
/* A process B, READY there: one that waits for a job, forked ahead or after a run, or a new one.
 * NULL where none can be had.  `ended` as of process_start(). */
struct process *suite_take(struct suite *, struct worker *, void (*ended)(void *arg), void *arg);
/* Whether B's of this suite may judge many candidates, one after the other, and this one more. */
bool suite_is_repeatable(const struct suite *, const struct worker *);
/* B ended: another one is forked ahead. */
void suite_refill(struct suite *, struct worker *);
/* B has reported and waits for the next job. */
void suite_give_back(struct suite *, struct worker *, struct process *);

#endif
