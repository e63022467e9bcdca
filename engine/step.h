/* One forward pass: the model's operations in order, from token ids to logits to draws.
 *
 * All buffers are taken at start for the largest step.  ENGINE thread. */
#ifndef ENGINE_STEP_H
#define ENGINE_STEP_H

#include "engine/batch.h"
#include "engine/model.h"

struct step;

/* Bytes of buffers for steps of up to n_rows rows, n_logits of them with logits, of which at most
 * kernels.logit_rows rows exist at once: never those of 10,000 candidates. */
size_t step_bytes(const struct kernels *, const struct model_shape *, int n_rows, int n_logits);
struct step *step_new(const struct model *, int n_rows, int n_logits, struct err *e);
void step_free(struct step *);

/* Queues all rows: keys and values of each are in the cache after it, and the logit rows' hidden
 * states are kept for step_draw.  The first part of a step.  Where the backend computes later,
 * errors come with whatever waits next. */
bool step_forward(struct step *, const struct kernels_batch *, struct err *e);
/* Queues draws from the logits of the last step_forward; draw i names logit row
 * draws[i].logit_row, ascending.  The second part; the next step may follow at once. */
void step_draw(struct step *, const struct kernels_draws *);
/* Waits for the draws of the oldest step that has some which weren't collected: out[n_draws].  Two
 * steps may have such draws. */
bool step_collect(struct step *, struct kernels_drawn *out, int n_draws, struct err *e);
/* Logits of one logit row of the last step_forward, for tests and vectors: out[n_vocab]. */
bool step_logits(struct step *, int logit_row, float *out, struct err *e);

#endif
