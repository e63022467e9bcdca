/* The definition of the operations: weights dequantised to f32, activations f32, sums in double.
 *
 * Products are summed in f32 over 8 terms a lane, then in double.  Any thread, on disjoint outputs.
 */
#ifndef KERNELS_CPU_REFERENCE_H
#define KERNELS_CPU_REFERENCE_H

#include "kernels/cpu/vector.h"

struct reference_matmul {
    enum quant_type type;
    const void *data; /* rows as in the file */
    int n_cols;
    const float *x; /* [n_rows][n_cols] */
    int n_rows;
    const float *bias;
    bool add;
    float *y;
    int y_stride;
};

/* Outputs begin … end-1; `row` is scratch of n_cols. */
void reference_matmul(const struct reference_matmul *, float *row, int begin, int end);
void reference_rms_norm(const float *x, const float *weight, float eps, int d, float *out);
void reference_swiglu(const float *gate, const float *up, int d, float *out);
/* One query head of one row; `scores` is scratch of position + 1. */
void reference_attention(const struct vector_attention *, int row, int head, double *scores);

#endif
