/* One piece of work: one candidate as a program against all cases, from the queue to a verdict.
 *
 * THEORY.  QUEUED → COMPILING (where there is a checker and it is not yet in this worker) → RUNNING
 * a case → CHECKING (where there is a checker) → RUNNING the next …; ENDING while a process that
 * must go is still there.  Each case is a fresh process with the input as its standard input, read
 * from a file in memory.  What it prints is compared here, outside the box: what is expected never
 * enters it, but for a checker's process, which is not the candidate's.  After SLICE_S the worker
 * goes back to the pool, so that many cases don't keep others waiting.  The job owns itself, as
 * job.h has it. LOOP thread. */
#ifndef VERIFIER_PROGRAM_H
#define VERIFIER_PROGRAM_H

#include "verifier/cases.h"
#include "verifier/job.h"

struct program_input {
    struct job_input job; /* suite: the checker, NULL where there is none; timeout_s: of one case */
    const struct cases *cases; /* borrowed until done or cancelled */
    enum verifier_feedback feedback;
};

struct program;
struct program *program_start(struct pool *, const struct program_input *,
                              void (*done)(void *arg, const struct job_result *), void *arg,
                              struct err *e);
void program_cancel(struct program *);

#endif
