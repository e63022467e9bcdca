/* Dense products on the device's tensor cores: cuBLASLt (kernels/cuda/gemm.c), or in tests a plain
 * product of the same signature (kernels/host_emulation/gemm_host.c).
 *
 * What is computed is Y^T = W X^T, which in cuBLASLt's column-major words has the weights as its
 * first operand: a few rows still fill its tiles.
 *
 * Owner: ENGINE. */
#ifndef KERNELS_CUDA_GEMM_H
#define KERNELS_CUDA_GEMM_H

#include "kernels/cuda/gpu.h"

#include <stdint.h>

struct gemm;

struct gemm_call {
    const void *w;         /* [n_out][n_in] bf16, or fp8 where w_scales */
    const float *w_scales; /* [n_out]; NULL: bf16 */
    int n_out, n_in;
    const void *x;         /* [n_rows][n_in] of the same type, rows x_stride elements apart */
    const float *x_scales; /* [n_rows], with w_scales */
    int n_rows, x_stride;
    const float *bias; /* [n_out] or NULL */
    bool add;          /* y += instead of y = */
    float *y;          /* rows y_stride elements apart */
    int y_stride;
};

struct gemm_options {
    bool invariant; /* one algorithm for all row counts, without split sums, so that a row's result
                       doesn't depend on its company; slower */
    bool fp8;       /* fp8 products are wanted */
};

/* Loads the library and takes all memory that products need. */
struct gemm *gemm_open(struct gpu *, const struct gemm_options *, struct err *e);
void gemm_close(struct gemm *);
/* "cuBLASLt 13.0.2" */
const char *gemm_name(const struct gemm *);
/* Device memory that gemm_open() has taken. */
size_t gemm_workspace_bytes(const struct gemm *);
/* Queues the product.  False where no algorithm takes the shape. */
bool gemm_run(struct gemm *, const struct gemm_call *, struct err *e);

#endif
