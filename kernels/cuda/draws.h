/* Draws on the device: sorted by row and settings on the host, made by kernels/cuda/sample.cu. */
#ifndef KERNELS_CUDA_DRAWS_H
#define KERNELS_CUDA_DRAWS_H

#include "kernels/kernels.h"

void draws_sample(struct kernels_device *, struct kernels_view logits, int n_vocab,
                  const struct kernels_draws *, int first_row, int n_rows);
bool draws_drawn(struct kernels_device *, struct kernels_drawn *out, int n_draws, struct err *e);

bool draws_can_follow(const struct kernels_device *);

#endif
