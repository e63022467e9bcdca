/* Matrices on the device: dequantised rows of any GGUF type, rounded to bf16 or, where that was
 * asked for, to fp8 E4M3 with one scale for each row, that is for each output of a product.
 *
 * The scale makes a row's largest magnitude the largest fp8, 448.  Rows and columns of an fp8
 * matrix are multiples of 16, as cuBLASLt wants them; others, and those of the vocabulary's size,
 * are bf16.
 *
 * Owner: ENGINE. */
#ifndef KERNELS_CUDA_WEIGHTS_H
#define KERNELS_CUDA_WEIGHTS_H

#include "kernels/kernels.h"

enum { WEIGHTS_FP8_MULTIPLE = 16 };

/* See kernels.h: weight_new and its neighbours. */
struct kernels_weight *weights_new(struct kernels_device *, enum quant_type, int n_rows, int n_cols,
                                   const void *data, struct err *e);
void weights_free(struct kernels_device *, struct kernels_weight *);
size_t weights_bytes(const struct kernels_weight *);
size_t weights_bytes_needed(const struct kernels_device *, enum quant_type, int n_rows, int n_cols);
bool weights_keeps_data(const struct kernels_device *, enum quant_type);

#endif
