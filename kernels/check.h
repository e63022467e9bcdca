/* Whether a batch can be what kernels.h says: the part of batch_begin that is the same in every
 * backend.  Pure. */
#ifndef KERNELS_CHECK_H
#define KERNELS_CHECK_H

#include "kernels/kernels.h"

/* Rows 1 … max_rows, block numbers below n_blocks, positions inside their tables, groups in order
 * with equal prefixes, logit rows that are there. */
bool check_batch(const struct kernels_batch *, int max_rows, int n_blocks, struct err *e);

#endif
