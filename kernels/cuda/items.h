/* Which queries meet which keys in one step: the work items of the two attention kernels.  Pure.
 *
 * Rows of one sequence, and the prompt that the rows of a group share, are items of the tile
 * kernel; what a row has for itself, from its group's prefix on, those of the warp kernel, which
 * runs after. Ranges are cut where splits lie.  Every (row, key up to its position) is in exactly
 * one item. */
#ifndef KERNELS_CUDA_ITEMS_H
#define KERNELS_CUDA_ITEMS_H

#include "kernels/cuda/launch.h"
#include "kernels/kernels.h"

struct items {
    struct launch_item *tiles, *warps; /* borrowed, with room for items_most() */
    int n_tiles, n_warps;
};

/* Upper bounds of the items that a step of n_rows rows has, sequences of up to n_splits splits. */
void items_most(int n_rows, int group, int n_splits, int *tiles, int *warps);
/* group: query heads of a KV head, 1 … LAUNCH_WARP_ROWS; split: positions, a multiple of 16. */
void items_make(const struct kernels_batch *, int group, int split, struct items *);

#endif
