/* A stand-in for libcublasLt on machines without a GPU: the functions that kernels/cuda/gemm.c
 * uses, by the words of NVIDIA's documentation, on the emulated device's stream.  What the library
 * refuses is refused here too: operations it hasn't, fp8 that isn't transposed × plain, sides and
 * strides that aren't multiples of 16 bytes, biases of a type that doesn't go with the matrices',
 * algorithms that were found for something else.  Sums are in f32 in ascending order. */
#include "tests/cuda/lt/fake_cublaslt.h"

#include "base/err.h"
#include "kernels/host_emulation/gpu_host.h"

#include <cublasLt.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct cublasLtContext {
    int unused;
};

struct operation {
    int32_t transposed_a, transposed_b, a_mode, b_mode;
    cublasLtEpilogue_t epilogue;
    cudaDataType_t bias_type;
    const float *a_scales, *b_scales, *bias;
};
struct matrix {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t stride;
};
struct preference {
    uint64_t workspace;
    uint32_t reductions;
};
/* What an algorithm was found for. */
struct algorithm {
    uint64_t n_out, n_in;
    int64_t y_stride;
    cudaDataType_t type;
    bool outer, bias;
};
_Static_assert(sizeof(struct algorithm) <= sizeof(cublasLtMatmulAlgo_t), "fits in the algorithm");

struct fake_cublaslt *fake_cublaslt(void) {
    static struct fake_cublaslt behaviour;
    return &behaviour;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    *out = err_alloc(1, sizeof(struct cublasLtContext));
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion(void) { return 130002; }
const char *cublasLtGetStatusString(cublasStatus_t s) {
    return s == CUBLAS_STATUS_NOT_SUPPORTED ? "the functionality is not supported" : "an error";
}

/* ---- descriptions ---- */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    struct operation *op = err_alloc(1, sizeof *op);
    op->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    *out = (void *)op;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
    free(d);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t keep(void *to, size_t to_size, const void *from, size_t size) {
    if (size != to_size) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t what, const void *from,
                                              size_t size) {
    struct operation *op = (void *)d;
    const struct {
        cublasLtMatmulDescAttributes_t what;
        void *to;
        size_t size;
    } known[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &op->transposed_a, 4},
        {CUBLASLT_MATMUL_DESC_TRANSB, &op->transposed_b, 4},
        {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &op->a_mode, 4},
        {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &op->b_mode, 4},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &op->a_scales, sizeof(void *)},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &op->b_scales, sizeof(void *)},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &op->epilogue, sizeof op->epilogue},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &op->bias, sizeof(void *)},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &op->bias_type, 4},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].what == what) return keep(known[i].to, known[i].size, from, size);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t stride) {
    if (!rows || !cols || stride < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    struct matrix *m = err_alloc(1, sizeof *m);
    *m = (struct matrix){type, rows, cols, stride};
    *out = (void *)m;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t m) {
    free(m);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    struct preference *p = err_alloc(1, sizeof *p);
    p->reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    *out = (void *)p;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *from, size_t size) {
    struct preference *p = (void *)pref;
    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return keep(&p->workspace, sizeof p->workspace, from, size);
    if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return keep(&p->reductions, sizeof p->reductions, from, size);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---- what is supported ---- */

static bool has_outer(const struct operation *op) {
    return op->a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F &&
           op->b_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
}

static bool supported(const struct operation *op, const struct matrix *a, const struct matrix *b,
                      const struct matrix *d) {
    const struct fake_cublaslt *f = fake_cublaslt();
    bool fp8 = a->type == CUDA_R_8F_E4M3, bias = op->epilogue == CUBLASLT_EPILOGUE_BIAS;
    if (f->no_products || a->type != b->type || d->type != CUDA_R_32F) return false;
    if (!fp8 && a->type != CUDA_R_16BF) return false;
    if (op->transposed_a != CUBLAS_OP_T || op->transposed_b != CUBLAS_OP_N) return false;
    if (a->rows != b->rows || a->cols != d->rows || b->cols != d->cols) return false;
    if (op->a_mode != op->b_mode || (op->a_mode && !has_outer(op))) return false;
    if (has_outer(op) && (!fp8 || f->no_outer_scales)) return false;
    /* With f32 results fp8 takes biases of bf16 alone. */
    if (bias && (f->no_bias_epilogue || fp8 || op->bias_type != CUDA_R_32F)) return false;
    return !fp8 || !(a->rows % 16 || a->cols % 16 || a->stride % 16 || b->stride % 16);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t od,
                                              cublasLtMatrixLayout_t ad, cublasLtMatrixLayout_t bd,
                                              cublasLtMatrixLayout_t cd, cublasLtMatrixLayout_t dd,
                                              cublasLtMatmulPreference_t pd, int wanted,
                                              cublasLtMatmulHeuristicResult_t *out, int *found) {
    const struct operation *op = (const void *)od;
    const struct matrix *a = (const void *)ad, *b = (const void *)bd, *d = (const void *)dd;
    const struct preference *p = (const void *)pd;
    *found = 0;
    if (!handle || cd != dd || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
    if (!supported(op, a, b, d)) return CUBLAS_STATUS_NOT_SUPPORTED;
    fake_cublaslt()->heuristics++;
    fake_cublaslt()->split_sums = p->reductions != CUBLASLT_REDUCTION_SCHEME_NONE;
    struct algorithm algo = {.n_out = a->cols,
                             .n_in = a->rows,
                             .y_stride = d->stride,
                             .type = a->type,
                             .outer = has_outer(op),
                             .bias = op->epilogue == CUBLASLT_EPILOGUE_BIAS};
    *out = (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_SUCCESS};
    memcpy(&out->algo, &algo, sizeof algo);
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product ---- */

struct call {
    struct operation op;
    struct matrix a, b, d;
    const uint8_t *w, *x;
    float beta, *y;
};

static float code_value(int code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    float f = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    if ((code & 0x7f) == 0x7f) f = NAN;
    return code & 0x80 ? -f : f;
}

/* A row of elements as f32. */
static void decode(const uint8_t *from, cudaDataType_t type, uint64_t n, const float *codes,
                   float *out) {
    for (uint64_t i = 0; i < n; i++) {
        if (type == CUDA_R_16BF) {
            uint32_t bits = 0;
            memcpy((uint8_t *)&bits + 2, from + 2 * i, 2);
            memcpy(&out[i], &bits, 4);
        } else {
            out[i] = codes[from[i]];
        }
    }
}

static void multiply(void *arg) {
    const struct call *c = arg;
    if (emulate_position()->thread.x) return;
    float codes[256];
    for (int i = 0; i < 256; i++)
        codes[i] = code_value(i);
    uint64_t n = c->a.rows, size = c->a.type == CUDA_R_16BF ? 2 : 1;
    float *w = err_alloc(n, sizeof *w), *x = err_alloc(n * c->b.cols, sizeof *x);
    for (uint64_t r = 0; r < c->b.cols; r++)
        decode(c->x + r * (uint64_t)c->b.stride * size, c->b.type, n, codes, x + r * n);
    for (uint64_t m = 0; m < c->a.cols; m++) {
        decode(c->w + m * (uint64_t)c->a.stride * size, c->a.type, n, codes, w);
        for (uint64_t r = 0; r < c->b.cols; r++) {
            float sum = 0, *y = c->y + r * (uint64_t)c->d.stride + m;
            for (uint64_t k = 0; k < n; k++)
                sum += w[k] * x[r * n + k];
            if (has_outer(&c->op)) sum *= c->op.a_scales[m] * c->op.b_scales[r];
            if (c->op.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += c->op.bias[m];
            *y = c->beta == 0 ? sum : sum + c->beta * *y;
        }
    }
    free(w);
    free(x);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t od, const void *alpha,
                              const void *w, cublasLtMatrixLayout_t ad, const void *x,
                              cublasLtMatrixLayout_t bd, const void *beta, const void *c,
                              cublasLtMatrixLayout_t cd, void *y, cublasLtMatrixLayout_t dd,
                              const cublasLtMatmulAlgo_t *chosen, void *workspace, size_t bytes,
                              cudaStream_t stream) {
    struct call *call = err_alloc(1, sizeof *call);
    struct algorithm algo;
    memcpy(&algo, chosen, sizeof algo);
    memcpy(&call->op, od, sizeof call->op);
    memcpy(&call->a, ad, sizeof call->a);
    memcpy(&call->b, bd, sizeof call->b);
    memcpy(&call->d, dd, sizeof call->d);
    memcpy(&call->beta, beta, sizeof call->beta);
    call->w = w;
    call->x = x;
    call->y = y;
    float one;
    memcpy(&one, alpha, sizeof one);
    bool bias = call->op.epilogue == CUBLASLT_EPILOGUE_BIAS;
    bool aligned = !((uintptr_t)w % 16 || (uintptr_t)x % 16 || (uintptr_t)y % 4);
    if (!handle || !workspace || !bytes || c != y || cd != dd || one != 1 || !aligned ||
        !supported(&call->op, &call->a, &call->b, &call->d) || algo.n_out != call->a.cols ||
        algo.n_in != call->a.rows || algo.y_stride != call->d.stride || algo.type != call->a.type ||
        algo.outer != has_outer(&call->op) || algo.bias != bias || (bias && !call->op.bias) ||
        (algo.outer && !(call->op.a_scales && call->op.b_scales))) {
        free(call);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    fake_cublaslt()->products++;
    gpu_host_launch(stream, "product of the stand-in", (struct emulate_dim){1, 1, 1},
                    (struct emulate_dim){EMULATE_WARP, 1, 1}, 0, multiply, call, free);
    return CUBLAS_STATUS_SUCCESS;
}
