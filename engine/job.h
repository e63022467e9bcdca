/* A job in the engine: one prompt, and the candidates that continue it.
 *
 * The prompt's keys and values are computed once, for all but its last position; each candidate's
 * first row is the prompt's last token, so that candidates may start at any time.  ENGINE thread,
 * but for struct job_handle. */
#ifndef ENGINE_JOB_H
#define ENGINE_JOB_H

#include "base/arena.h"
#include "base/list.h"
#include "engine/engine.h"
#include "engine/kv.h"
#include "engine/stop.h"

#include <stdatomic.h>

/* What the LOOP thread may change of a job at any time.  Relaxed order is enough: each flag stands
 * alone, and the engine reads them again before every step. */
struct job_handle {
    uint64_t id;
    int n_candidates;
    atomic_bool cancelled;
    atomic_int width;
    atomic_bool some_cancelled; /* a bit of `candidates` was set */
    atomic_uchar *candidates;   /* owned [ceil(n/8)]: bit i: candidate i is cancelled */
    atomic_llong generated;     /* tokens drawn for all its candidates; ENGINE adds, LOOP reads */
    atomic_llong rows;          /* rows computed for them, shared ones once; the same */
    atomic_int holders;         /* LOOP's table and ENGINE's job; the last one frees */
};

struct job_handle *job_handle_new(uint64_t id, int n_candidates, int width);
void job_handle_unref(struct job_handle *);
bool job_handle_candidate_cancelled(const struct job_handle *, int index);

struct job {
    struct list in_engine;     /* oldest first */
    uint64_t group;            /* 0: none */
    struct job *mate;          /* owned: the next of its group, on the way to the engine */
    struct job_handle *handle; /* holds one reference */
    struct arena arena;        /* owns all that spec points to */
    struct engine_job spec;
    struct stop_rules rules;
    struct list branches; /* struct branch.in_job, oldest first */
    int *table;           /* arena: blocks of the prompt */
    int n_blocks;
    int cached;         /* prompt positions computed: the goal is spec.n_prompt - 1 */
    int reused;         /* of these, found in the cache */
    uint64_t published; /* identity of the last full block that was published or found */
    int n_published;
    bool looked_up, announced;
    struct engine_logprob *prompt_logprobs; /* arena [n_prompt]; NULL: not asked for */
    int next_index; /* first candidate never started; cancelled ones are passed over */
    int in_flight;  /* candidates in branches */
    int32_t *texts; /* owned [2 GUESS_SIBLINGS]: tokens of candidates that came to an end, the
                       latest last; NULL before the first */
    int n_texts;
};

/* Copies all that the spec points to. */
struct job *job_new(const struct engine_job *, struct job_handle *);
/* The branches must be gone. */
void job_free(struct job *, struct kv_pool *);

/* Prompt positions to compute before candidates start. */
int job_prompt_goal(const struct job *);
/* Takes what the cache has of the prompt; once, at the first row. */
void job_look_up(struct job *, struct kv_pool *);
/* Makes the table hold n positions; false where no block is free. */
bool job_grow(struct job *, struct kv_pool *, int n_positions);
/* Publishes the full blocks computed since the last call. */
void job_publish(struct job *, struct kv_pool *);
/* Blocks that giving the prompt back would free. */
int job_private_blocks(const struct job *, const struct kv_pool *);
/* Gives the prompt's blocks back. */
void job_drop_prompt(struct job *, struct kv_pool *);
/* The number that candidate `index` draws as. */
int job_draws_as(const struct job *, int index);
/* Candidates never started and not cancelled; advances next_index over cancelled ones. */
int job_waiting(struct job *);
bool job_has_penalties(const struct job *);
/* Keeps the tokens of a candidate that came to an end, for guesses. */
void job_keep_text(struct job *, const int32_t *tokens, int n);
/* The prompt position `at` was drawn: keeps its log-probabilities. */
void job_keep_logprob(struct job *, int at, const struct kernels_drawn *);

#endif
