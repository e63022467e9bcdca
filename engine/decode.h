/* The step loop's state and one turn of it: jobs in, a forward pass over all live branches, events
 * out.
 *
 * THEORY.  A turn: cancelled things leave; scheduler_admit says who starts, scheduler_rows who gets
 * rows; blocks are taken; one step_forward computes all rows; each branch that reached its length
 * draws for its members, forks where they differ, and ends where its text does; while rows are few,
 * it also draws after guessed tokens (guess.h), as far as these are what its members drew.  A job
 * ends when it has no branch and no candidate left to start.
 *
 * Overlap.  Where the backend computes while the host goes on, a turn queues step k + 1 before it
 * waits for the draws of step k, and settles those while k + 1 runs.  A branch whose token is being
 * drawn is a family of rows (kernels.h), one for each member, the token taken where it is drawn:
 * the backend finds out which of them are equal as settle_position() does, so that both put the
 * same members together.  Each member but the first has a block ready, in case a branch of its own
 * begins with it.  A text that ends with the token of step k has a row in k + 1 all the same, which
 * is dropped.  All other rows of k + 1, those of prompts and new candidates, are as always.  The
 * results are the same; what is decided with all draws known (parking, guesses, penalties) waits
 * for them.
 *
 * No thread of its own: engine.c drives it from ENGINE, tests drive it directly. */
#ifndef ENGINE_DECODE_H
#define ENGINE_DECODE_H

#include "engine/branch.h"
#include "engine/memory_plan.h"
#include "engine/step.h"

struct decode;

struct decode_options {
    const struct model *model;         /* borrowed */
    const struct tokenizer *tokenizer; /* borrowed */
    const struct memory_plan *plan;    /* borrowed */
    bool no_sharing, no_guessing, no_overlap,
        always_overlap;                              /* as struct engine_options has them */
    void (*event)(void *arg, struct engine_event *); /* takes the event */
    void *arg;
};

struct decode *decode_new(const struct decode_options *, struct err *e);
void decode_free(struct decode *); /* all jobs must have ended: decode_fail_all */
/* Takes the job. */
void decode_add(struct decode *, struct job *);
int decode_jobs(const struct decode *);
/* One turn.  False where the device failed: `e` says how, and every job has been ended with it. */
bool decode_turn(struct decode *, struct err *e);
/* Ends every job with this error. */
void decode_fail_all(struct decode *, const struct err *);
/* Candidates in flight of a job whose width is 0, and rows up to which guesses fill a step; 1 until
 * set. */
void decode_set_auto_width(struct decode *, int width);
/* Counters back to 0: after measuring. */
void decode_forget_stats(struct decode *);
void decode_stats(const struct decode *, struct engine_stats *out);

#endif
