/* From branches whose logits are ready to the draws of each of their candidates.
 *
 * A draw depends on (seed, candidate, position) and the candidate's own history only.  ENGINE
 * thread. */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include "engine/batch.h"
#include "engine/tokenizer.h"

struct sampler {
    struct kernels_draws draws; /* points into the arrays below */
    struct kernels_draw *draw;  /* owned */
    int capacity;
    struct kernels_seen *seen; /* owned */
    int n_seen, seen_capacity;
    struct kernels_bias *bias; /* owned */
    int n_bias, bias_capacity;
    struct kernels_drawn *drawn; /* owned [capacity]: where the results go */
};

void sampler_clear(struct sampler *);
/* One draw for each member that each of batch.draws is for and for each row of a prompt, in the
 * order of batch.draws, whose `first` it sets, and then of the members. */
void sampler_prepare(struct sampler *, struct batch *, const struct tokenizer *);

#endif
