/* The operations of a step on the CPU; kernels/kernels.h says what each computes.  Owner: ENGINE.
 */
#ifndef KERNELS_CPU_OPERATIONS_H
#define KERNELS_CPU_OPERATIONS_H

#include "kernels/cpu/device.h"

bool operations_batch_begin(struct kernels_device *, const struct kernels_batch *, struct err *e);
void operations_batch_end(struct kernels_device *);
void operations_embed(struct kernels_device *, const struct kernels_weight *,
                      struct kernels_view out);
void operations_rms_norm(struct kernels_device *, struct kernels_view x, struct kernels_view weight,
                         float eps, int n_rows, int d, struct kernels_view out);
void operations_matmul(struct kernels_device *, const struct kernels_weight *,
                       struct kernels_view x, int n_rows, struct kernels_view bias, bool add,
                       struct kernels_view y, int y_stride);
void operations_output(struct kernels_device *, const struct kernels_weight *,
                       struct kernels_view x, int n, struct kernels_view logits);
void operations_head_norms(struct kernels_device *, const struct kernels_head_norms *);
void operations_rope_append(struct kernels_device *, int layer, const struct kernels_rope *,
                            struct kernels_view q, struct kernels_view k, struct kernels_view v,
                            int stride, int n_heads);
void operations_attention(struct kernels_device *, int layer, struct kernels_view q, int stride,
                          int n_heads, float scale, struct kernels_view out);
void operations_swiglu(struct kernels_device *, struct kernels_view gate_up, int n_rows, int d,
                       struct kernels_view out);
void operations_gather_logit_rows(struct kernels_device *, struct kernels_view x, int d,
                                  struct kernels_view out);
void operations_sample(struct kernels_device *, struct kernels_view logits, int n_vocab,
                       const struct kernels_draws *, int first_row, int n_rows);
bool operations_drawn(struct kernels_device *, struct kernels_drawn *out, int n_draws,
                      struct err *e);
bool operations_can_follow(const struct kernels_device *);

#endif
