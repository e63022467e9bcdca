/* What every backend does alike with what kernels.h is given: whether a batch and a weight can be
 * so, and which rows of a batch go together.  Pure. */
#ifndef KERNELS_CHECK_H
#define KERNELS_CHECK_H

#include "kernels/kernels.h"

/* Rows 1 … max_rows, block numbers below n_blocks, positions inside their tables, groups in order
 * with equal prefixes, families in order with equal histories, logit rows that are there. */
bool check_batch(const struct kernels_batch *, int max_rows, int n_blocks, struct err *e);

/* Rows that have the first n_shared blocks of their tables in common: of one sequence (all blocks),
 * of a group (its prefix), or one row alone. */
struct check_unit {
    int first_row, n_rows, n_shared;
    bool one_sequence; /* several rows of one */
};
/* The unit that begins at `row`; *group is where to look for the next group, 0 at first. */
struct check_unit check_unit_at(const struct kernels_batch *, int row, int *group);

/* Whether a matrix of the type can have that shape: rows are whole blocks. */
bool check_weight(enum quant_type type, int n_rows, int n_cols, struct err *e);

#endif
