/* A step's operations on the device; see kernels.h for each. */
#ifndef KERNELS_CUDA_FORWARD_H
#define KERNELS_CUDA_FORWARD_H

#include "kernels/kernels.h"

bool forward_batch_begin(struct kernels_device *, const struct kernels_batch *, struct err *e);
void forward_batch_end(struct kernels_device *);
void forward_kv_copy_block(struct kernels_device *, int to, int from, int n_positions);
void forward_embed(struct kernels_device *, const struct kernels_weight *table,
                   struct kernels_view out);
void forward_rms_norm(struct kernels_device *, struct kernels_view x, struct kernels_view weight,
                      float eps, int n_rows, int d, struct kernels_view out);
void forward_matmul(struct kernels_device *, const struct kernels_weight *w, struct kernels_view x,
                    int n_rows, struct kernels_view bias, bool add, struct kernels_view y,
                    int y_stride);
void forward_head_norms(struct kernels_device *, const struct kernels_head_norms *);
void forward_rope_append(struct kernels_device *, int layer, const struct kernels_rope *,
                         struct kernels_view q, struct kernels_view k, struct kernels_view v,
                         int stride, int n_heads);
void forward_attention(struct kernels_device *, int layer, struct kernels_view q, int stride,
                       int n_heads, float scale, struct kernels_view out);
void forward_swiglu(struct kernels_device *, struct kernels_view gate_up, int n_rows, int d,
                    struct kernels_view out);
void forward_gather_logit_rows(struct kernels_device *, struct kernels_view x, int d,
                               struct kernels_view out);
void forward_output(struct kernels_device *, const struct kernels_weight *w, struct kernels_view x,
                    int n, struct kernels_view logits);

#endif
