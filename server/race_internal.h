/* What the files of the race share: race.c (state machines and events), race_settle.c (the answer),
 * race_set.c (routing, deadlines, progress).  LOOP thread. */
#ifndef SERVER_RACE_INTERNAL_H
#define SERVER_RACE_INTERNAL_H

#include "base/list.h"
#include "server/race.h"
#include "server/race_entry.h"
#include "server/race_rank.h"

enum race_state { RACE_PREPARING, RACE_RUNNING, RACE_SETTLED, RACE_ENDED };

/* On the heap of its own: libuv lets go of a handle a turn after it was closed, a race may be gone.
 */
struct race_timer {
    uv_timer_t handle;
    struct race *race; /* borrowed; NULL once stopped */
};

/* The engine's job for one prompt of a race: its candidate i is the race's first + i * n_jobs. */
struct race_job {
    struct list routed; /* in a bucket of set->routes */
    struct race *race;  /* borrowed: it has the job */
    uint64_t id;
    int first;
    bool ended;
    int64_t tokens; /* of its candidates that ended */
    int64_t rows;   /* as the engine last told them */
};

struct race {
    struct race_set *set; /* borrowed */
    struct list link;     /* in set->races */
    struct list waiting;  /* in set->dirty (until settled) or set->closing (after), or unlinked */
    enum race_state state;
    int busy; /* calls of ours on the stack: no freeing below them */

    struct race_callbacks callbacks;
    void *arg;
    bool abandoned;

    /* the request */
    bool has_tests, stream;
    int n_choices;
    enum race_return returns;
    int n_passes;
    enum race_on_fail on_fail;
    enum race_detail detail;
    int job_width; /* as asked for */
    uint64_t seed;

    /* engine */
    struct race_job *jobs; /* owned [n_jobs] */
    int n_jobs, n_jobs_live;
    struct err job_error; /* the first */
    int width;            /* as last set */
    int narrow_width;     /* back-pressure; 0: none */
    int64_t narrow_at;    /* backlog that narrows (again) */

    /* verifier */
    struct verifier_tests *tests; /* owned; NULL until ready and after closing */
    bool tests_pending;           /* tests_open's callback is still to come */

    /* candidates */
    struct race_entry **entries; /* owned; [n_entries], NULL where not started */
    int n_entries;
    int n_decoding, n_verifying;
    int lowest_pass;    /* -1: none */
    int cancelled_from; /* lowest_index: this index and all above don't matter any more */
    struct list kept;   /* entries decided whose texts may still be wanted */
    struct race_rank rank;
    struct race_entry *leading;             /* borrowed: one of the best outcome so far */
    struct engine_logprob *prompt_logprobs; /* owned; NULL: not asked for, or not known yet */

    struct race_counts counts;
    double started_at, settled_at;
    double deadline_s;        /* 0: none */
    struct race_timer *timer; /* owned until stopped; NULL: none */
};

/* ---- race.c ---- */
void race_move(struct race *, enum race_state to);
/* Brackets each entry from outside; leave() frees a race that has ended. */
void race_enter(struct race *);
void race_leave(struct race *);
/* The time limit passed. */
void race_deadline(struct race *);
/* Closes the tests of a settled race; from the loop, never from within a callback of the verifier.
 */
void race_close_tests(struct race *);
/* Calls on_progress of a race that isn't settled. */
void race_progress(struct race *);
/* Tokens drawn for all its candidates, those still decoding included. */
int64_t race_tokens(const struct race *);
/* Frees; `race` must be unlinked. */
void race_free(struct race *);
/* Cancels all that runs and moves to SETTLED. */
void race_stop(struct race *);

/* ---- race_settle.c ---- */
/* All candidates that will ever be judged are: answers. */
void race_settle_exhausted(struct race *);
/* Answers with the pass of lowest index: the only one (first) or the right one (lowest_index); with
 * several passes wanted, with all there are. */
void race_settle_pass(struct race *);
/* The time limit passed: answers with what there is. */
void race_settle_deadline(struct race *);
void race_settle_error(struct race *, const struct err *);

/* ---- race_set.c ---- */
struct race_set {
    uv_loop_t *loop; /* borrowed */
    struct race_engine engine;
    struct race_verifier verifier;
    struct list races;
    struct list *routes;        /* owned; buckets by job id */
    struct list dirty;          /* races whose counts changed since the last progress */
    struct list closing;        /* settled races whose tests are to be closed */
    struct race_set_idle *idle; /* owned */
    int n_waiting;              /* races that wait for a verdict */
    struct race_set_stats stats;
};
void race_set_add(struct race_set *, struct race *);    /* links by its jobs' ids, counts */
void race_set_remove(struct race_set *, struct race *); /* unlinks from everything, counts tokens */
struct race_job *race_set_find(const struct race_set *, uint64_t id);
/* Progress is due, or tests are to be closed, in the next turn of the loop. */
void race_set_dirty(struct race_set *, struct race *);
void race_set_closing(struct race_set *, struct race *);
void race_set_timer_start(struct race *);
void race_set_timer_stop(struct race *);

#endif
