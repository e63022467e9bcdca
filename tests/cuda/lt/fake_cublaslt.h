/* What the stand-in for cuBLASLt has beyond the library's own functions: how it is to behave, and
 * what it was asked.  Found by name in the library that kernels/cuda/gemm.c has loaded. */
#ifndef TESTS_CUDA_LT_FAKE_CUBLASLT_H
#define TESTS_CUDA_LT_FAKE_CUBLASLT_H

#include <stdbool.h>

struct fake_cublaslt {
    bool no_outer_scales;  /* as everywhere but on Hopper */
    bool no_bias_epilogue; /* for any type */
    bool no_products;      /* nothing is supported */
    int heuristics;        /* how often algorithms were asked for */
    int products;          /* … and run */
    bool split_sums;       /* the last question allowed sums to be split */
};

/* The one there is. */
struct fake_cublaslt *fake_cublaslt(void);

#endif
