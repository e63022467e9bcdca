/* All that one step reads: rows, their tables, which siblings share a prompt, which rows want
 * logits.
 *
 * Filled anew each step: batch_reset, then batch_prompt and batch_branch job by job (rows of one
 * job together, so that its branches form one group).  Arrays grow to the largest step seen and
 * stay.  ENGINE thread. */
#ifndef ENGINE_BATCH_H
#define ENGINE_BATCH_H

#include "engine/branch.h"

struct batch_draw {        /* one row that gives logits */
    struct branch *branch; /* whose row it is; NULL: a row of a prompt */
    int logit_row;
    int ahead;  /* tokens that its history has after the branch's own: guessed or being drawn */
    int member; /* the one that it is for; -1: all of them */
    int first;  /* its first draw among those of the step, as sampler_prepare() says */
    struct job *job; /* of a prompt's row: whose token at `position` is to be told about */
    int position;
};

struct batch {
    struct kernels_batch rows; /* points into the arrays below */
    int capacity_rows, capacity_tables, capacity_groups, n_table_entries, capacity_table_entries;
    int32_t *tokens, *positions, *table_of_row, *table_starts, *tables, *logit_rows; /* owned */
    int32_t *draw_of_row;            /* owned: of families' rows */
    struct kernels_group *groups;    /* owned */
    struct kernels_family *families; /* owned */
    int capacity_families;
    struct batch_draw *draws; /* owned */
    int n_draws;
    const struct job
        *group_job; /* the job that the last group belongs to, while its branches are added */
};

void batch_clear(struct batch *);
void batch_reset(struct batch *);
/* Rows for the prompt positions cached … cached+n-1; the job's table holds them already. */
void batch_prompt(struct batch *, struct job *, int n);
/* Rows for the branch's positions cached … cached+n-1; with a draw where they reach its length, and
 * then a row and a draw for each of n_guesses guessed tokens that may follow; the table holds them.
 */
void batch_branch(struct batch *, struct branch *, int n, const int32_t *guesses, int n_guesses);
/* Rows for the position after the branch's last, one for each member, whose token is its draw in
 * the running step of this parity: a family.  The first goes on in the branch's table, the others
 * in the block that they have for it. */
void batch_family(struct batch *, struct branch *, int parity);
static inline int batch_n_members(const struct batch_draw *d) {
    return d->member >= 0 ? 1 : d->branch->n_members;
}
/* The finished batch; borrowed until the next reset. */
const struct kernels_batch *batch_rows(struct batch *);

#endif
