/* Siblings with equal history: one branch of the job's trie, computed as one row.
 *
 * A branch is the tokens since the prompt, their text, their blocks, and the candidates that all
 * have exactly these tokens so far. Each step draws for every member from the same distribution;
 * where the draws differ, the branch forks: full blocks are shared by reference, the last partial
 * one is copied.  Members of one branch end together, with the same text.
 *
 * A branch is live (its table holds the positions 0…cached-1) or parked (no blocks; it has been
 * preempted or hasn't begun).  What is computed again after parking is bitwise what it was: kernels
 * are batch-invariant. ENGINE thread. */
#ifndef ENGINE_BRANCH_H
#define ENGINE_BRANCH_H

#include "engine/guess.h"
#include "engine/job.h"
#include "engine/tokenizer.h"

/* A candidate of a branch, and what steps that are still running do for it. */
struct branch_member {
    int index;
    int draw[2]; /* its draw, of the step with this parity, that hasn't been collected; -1: none */
    int block;   /* where a branch of its own goes on if its token is none of those before it in a
                    running step; owned; -1: none */
};

struct branch {
    struct list in_job;
    struct job *job;               /* borrowed */
    uint64_t age;                  /* order of start */
    uint64_t served;               /* step of its last row */
    struct branch_member *members; /* owned: ascending by index */
    int n_members;
    int32_t guesses[GUESS_MOST]; /* of what it draws next, drawn after in the running step */
    int n_guesses;
    int32_t *tokens; /* owned: drawn since the prompt */
    int n_tokens, capacity;
    float *logprobs;     /* owned [capacity], where the job asks for log-probabilities */
    int32_t *top_tokens; /* owned [capacity][n_top_logprobs] */
    float *top_logprobs;
    double sum_logprob;
    struct stop stop;
    struct kernels_seen
        *seen; /* owned: prompt and drawn tokens with counts, where the job has penalties */
    int n_seen, seen_capacity;
    int *table; /* owned: blocks of positions 0 … */
    int n_blocks, table_capacity;
    int cached; /* positions computed */
    bool parked;
    int sent_tokens;          /* of these, told in ENGINE_TEXT events */
    enum engine_reason ended; /* how it ended, once `over` */
    bool over;
};

/* A parked branch with candidates first … first+n-1 that aren't cancelled; none where LOOP has just
 * cancelled them all. */
struct branch *branch_new(struct job *, int first, int n, uint64_t age);
/* Gives its blocks back. */
void branch_free(struct branch *, struct kv_pool *);

/* Positions of prompt and tokens: what must be computed before the next draw. */
int branch_length(const struct branch *);
/* The token at a position. */
int32_t branch_token(const struct branch *, int position);
/* Blocks that parking would free. */
int branch_private_blocks(const struct branch *, const struct kv_pool *);

void branch_park(struct branch *, struct kv_pool *);
/* Takes the job's prompt blocks; `copy(arg, to, from, n)` copies a partial one.  False where no
 * block is free. */
bool branch_unpark(struct branch *, struct kv_pool *,
                   void (*copy)(void *arg, int to, int from, int n), void *arg);
/* Makes the table hold n positions; false where no block is free. */
bool branch_grow(struct branch *, struct kv_pool *, int n_positions);
/* Takes members out that are cancelled; calls gone(arg, index) for each.  The branch may be left
 * with none. */
void branch_drop_cancelled(struct branch *, void (*gone)(void *arg, struct branch *, int index),
                           void *arg);
/* A branch with the same history for the members in `indices` (which leave this one).  Where no
 * block is free for the partial one, the fork computes it again.  Where the first of them has a
 * block to go on in, a running step has copied there what is to be copied. */
struct branch *branch_fork(struct branch *, const int *indices, int n, uint64_t age,
                           struct kv_pool *, void (*copy)(void *arg, int to, int from, int n),
                           void *arg);
/* Gives the blocks back that members were to go on in. */
void branch_give_back(struct branch *, struct kv_pool *);
/* Appends a drawn token: text, counts, and whether the branch is over. */
void branch_append(struct branch *, const struct kernels_drawn *, const struct tokenizer *,
                   int context);

#endif
