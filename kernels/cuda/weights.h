/* Matrices on the device: rows of any GGUF type, rounded to bf16 or, where that was asked for, to
 * fp8 E4M3 with one scale for each row, that is for each output of a product.
 *
 * A file's blocks are sent as they lie there and dequantised on the device, through two pieces of
 * pinned memory and one of the device, which are there from the first matrix on until the load
 * ends: 0.56 bytes an element for Q4_K cross the bus instead of two, or one of fp8, and the host
 * copies instead of decoding.
 *
 * The scale makes a row's largest magnitude the largest fp8, 448.  Rows and columns of an fp8
 * matrix are multiples of 16, as cuBLASLt wants them; others, those of the vocabulary's size, and
 * those with rows longer than a piece are bf16.
 *
 * Owner: ENGINE. */
#ifndef KERNELS_CUDA_WEIGHTS_H
#define KERNELS_CUDA_WEIGHTS_H

#include "kernels/kernels.h"

enum { WEIGHTS_FP8_MULTIPLE = 16, WEIGHTS_FP8_COLS = 1 << 20 };

/* See kernels.h: weight_new and its neighbours.  Queued: errors of the device come out later. */
struct kernels_weight *weights_new(struct kernels_device *, enum quant_type, int n_rows, int n_cols,
                                   const void *data, struct err *e);
void weights_free(struct kernels_device *, struct kernels_weight *);
size_t weights_bytes(const struct kernels_weight *);
size_t weights_bytes_needed(const struct kernels_device *, enum quant_type, int n_rows, int n_cols);
bool weights_keeps_data(const struct kernels_device *, enum quant_type);

/* Waits for what was sent and gives the memory of the load back; the next matrix begins another. */
bool weights_end_load(struct kernels_device *, struct err *e);

#endif
