/* Drawing tokens from logits, without sorting the vocabulary.
 *
 * All filters keep a prefix of the tokens in descending order of weight (ties: lower id first), so
 * their intersection is one threshold: (weight, how many of those equal to it).  It is looked for
 * among the tokens whose weight can matter: where they are many, by cutting the range of weights in
 * five until few are left, then by a radix select on their bits.
 *
 * One struct sample a thread; no memory is taken while drawing. */
#ifndef KERNELS_CPU_SAMPLE_H
#define KERNELS_CPU_SAMPLE_H

#include "kernels/cpu/vector.h"

struct sample;

struct sample *sample_new(int n_vocab);
void sample_free(struct sample *);
size_t sample_bytes(int n_vocab);
/* All draws of one row of logits: draws[order[0 … n-1]]; results in out[order[i]]. */
void sample_row(struct sample *, const struct vector_ops *, const float *logits, int n_vocab,
                const struct kernels_draws *draws, const int32_t *order, int n,
                struct kernels_drawn *out);

#endif
