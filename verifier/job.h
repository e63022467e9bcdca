/* One piece of work: one candidate's code against one suite, from the queue to a verdict.
 *
 * THEORY.  QUEUED → COMPILING (its suite is not yet in this worker) → RUNNING → ENDING → over.
 * RUNNING has two processes: A with the code, B with the tests; a clock; a pipe with what A prints,
 * read while it runs, since a full pipe would stop it. The first of B's report, a limit or A's end
 * makes it ENDING: the rest is killed, and when both processes have ended the verdict is made from
 * all that is known.  Where B has reported of tests that came to their end the verdict waits for
 * nothing more of A: it is told at once, and the job is LEAVING until A has ended, which keeps the
 * worker: the next candidate must find the directory and the process table empty.  A candidate that
 * was on its way to a pass when its time was up, while others ran beside it, is run once more
 * alone.  BROKEN is run once more, and again where its worker died.  A job owns itself: it is gone
 * after `done` or, without `done`, some time after job_cancel().  LOOP thread. */
#ifndef VERIFIER_JOB_H
#define VERIFIER_JOB_H

#include "verifier/pool.h"
#include "verifier/suite.h"
#include "verifier/verifier.h"

struct job_input {
    struct suite *suite; /* borrowed until done or cancelled */
    const char *code;    /* copied */
    size_t code_len;
    uint64_t seed;
    double timeout_s;
    int memory_mb;
    bool score;
    int priority;
    struct pool_share *share; /* borrowed until done or cancelled */
};

/* What job and verdict share; strings are borrowed until `done` returns. */
struct job_result {
    enum verdict_kind kind;
    int tests_passed, tests_total;
    double cpu_s, wall_s;
    int max_rss_mb;
    const char *error, *limit; /* limit: static string or NULL */
    const char *output;
    size_t output_len;
    const struct verdict_test *tests;
    int n_tests;
    int retries;
    bool again; /* it timed out among others and was run once more alone */
};

struct job;
struct job *job_start(struct pool *, const struct job_input *,
                      void (*done)(void *arg, const struct job_result *), void *arg, struct err *e);
void job_cancel(struct job *);

#endif
