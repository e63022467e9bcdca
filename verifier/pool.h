/* The workers and what they have to do.
 *
 * THEORY.  One task a worker at a time; tasks wait in one queue.  Next is the first by (urgent,
 * priority, time that its share has used, arrival): each tests object is a share, so that a flood
 * of slow tests only slows itself.  A task goes where its tests are compiled already, if it can: it
 * counts as HOME_S less there, and doesn't go elsewhere while its worker is about to be free.  A
 * task that wants to be alone comes last and begins when nothing else runs, or after
 * ALONE_PATIENCE_S.  A worker that dies takes its task's processes with it (the task hears of each
 * as lost and asks to be run again), is replaced through the keeper, and nothing is handed to it
 * before its self-test was good.  The last slot is kept for chat templates and made when first
 * needed.  Opened before threads; then LOOP thread. */
#ifndef VERIFIER_POOL_H
#define VERIFIER_POOL_H

#include "base/list.h"
#include "verifier/box.h"
#include "verifier/flavour.h"
#include "verifier/process.h"
#include "verifier/verifier.h"

struct pool;
struct worker;

/* What tasks of one owner have used of the workers; zero it. */
struct pool_share {
    double used_s; /* one that comes anew begins with what the least served has */
    int n_tasks;   /* that wait or run */
};

/* Embedded in what is to be done. */
struct task {
    struct list link;         /* in the queue while it waits */
    bool urgent;              /* short, and others wait for it: compiling tests */
    int priority;             /* lower first */
    bool alone;               /* while nothing else runs, if it can be had */
    bool had_company;         /* set: something else ran at the same time */
    double since;             /* waits, or runs, since then */
    struct pool_share *share; /* borrowed; NULL: counts for nobody */
    struct worker *worker;    /* borrowed; set while it runs */
    bool leaving;             /* set by pool_leave() */
    void (*begin)(struct task *, struct worker *);
    /* Whether the worker holds what it would have to make elsewhere; NULL: all are alike. */
    bool (*is_at_home)(struct task *, const struct worker *);
};

struct pool *pool_open(const struct verifier_options *, struct err *e);
bool pool_attach(struct pool *, uv_loop_t *, struct err *e);
/* Ends all workers; the tasks that run hear of their processes' end.  Closes handles: see
 * pool_watches(). */
void pool_close(struct pool *);
void pool_free(struct pool *);
const struct verifier_report *pool_report(const struct pool *);
struct watch_set *pool_watches(struct pool *);

/* Queues it; `begin` comes from the loop, never from within. */
void pool_submit(struct pool *, struct task *);
/* Takes it out of the queue; only while it waits. */
void pool_withdraw(struct pool *, struct task *);
/* It counts for its share no more, whose owner goes. */
void pool_disown(struct task *);
/* Its work is done but for its processes to end: pool_done() follows in a moment.  It counts for
 * its share no more, and for nobody as company. */
void pool_leave(struct pool *, struct task *);
/* The task has let go of its worker, which takes the next. */
void pool_done(struct pool *, struct task *);
/* As pool_done, where the worker seems to have died under it: it gets nothing more until that is
 * known, or a moment has shown that it lives.  Else a task would spend all its tries on a worker
 * whose end isn't noticed yet. */
void pool_lost(struct pool *, struct task *);

int pool_slots(const struct pool *); /* worker slots, the template's included */
struct pool_counts {
    int queued, running, workers;
    uint64_t replaced;
};
void pool_counts(const struct pool *, struct pool_counts *out);

/* ---- a worker ---- */

int pool_slot(const struct worker *);
/* The suites that it holds compiled, most recently used first; kept by suite.c. */
struct list *pool_suites(struct worker *);
struct forker *pool_forker(const struct worker *);
/* A fresh process for a candidate, forked ahead where there was time for it; the next one is asked
 * for.  NULL where none can be had.  `ended` as of process_start(). */
struct process *pool_candidate(struct worker *, enum flavour, void (*ended)(void *arg), void *arg);
/* RLIMIT_AS of a child that may use `memory_mb` itself. */
uint64_t pool_address_space(struct worker *, int memory_mb);

/* The template worker, asked for if it isn't there: `ready(arg, worker, error)` comes later, with
 * NULL and the error where it can't be had; `lost(arg)` when it dies.  One listener. */
void pool_template_worker(struct pool *,
                          void (*ready)(void *arg, struct worker *, const struct err *),
                          void (*lost)(void *arg), void *arg);

#endif
