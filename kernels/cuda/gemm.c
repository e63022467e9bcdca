#include "kernels/cuda/gemm.h"

#include "kernels/cuda/launch.h"

#include <cublasLt.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    WORKSPACE_BYTES = 32 << 20, /* what cuBLAS takes for itself on Hopper */
    RAW_BYTES = 32 << 20,       /* of fp8 products before their scales, where those come apart */
    MAX_PLANS = 1024,
    LIBRARY_MAJOR = CUDART_VERSION / 1000,
};

/* The functions of the library that are used, found by name: the program starts without it. */
struct library {
    void *handle;
    __typeof__(&cublasLtCreate) create;
    __typeof__(&cublasLtDestroy) destroy;
    __typeof__(&cublasLtGetVersion) version;
    __typeof__(&cublasLtMatmul) matmul;
    __typeof__(&cublasLtMatmulDescCreate) desc_create;
    __typeof__(&cublasLtMatmulDescDestroy) desc_destroy;
    __typeof__(&cublasLtMatmulDescSetAttribute) desc_set;
    __typeof__(&cublasLtMatrixLayoutCreate) layout_create;
    __typeof__(&cublasLtMatrixLayoutDestroy) layout_destroy;
    __typeof__(&cublasLtMatmulPreferenceCreate) preference_create;
    __typeof__(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    __typeof__(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    __typeof__(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    __typeof__(&cublasLtGetStatusString) text;
};

/* What was chosen for one shape. */
struct plan {
    int n_out, n_in, rows, y_stride, x_stride; /* rows: of the bucket */
    bool add, has_bias, fp8;
    bool bias_apart; /* no algorithm has the bias in its epilogue: launch_bias() comes first */
    cublasLtMatmulAlgo_t algo;
};

struct gemm {
    struct gpu *gpu; /* borrowed */
    struct library lib;
    cublasLtHandle_t handle;
    void *workspace; /* owned device memory */
    bool invariant;
    /* The library's fp8 products have no scales of rows and outputs here (only Hopper's do):
     * launch_scale() brings them after, and a product that adds goes through `raw`. */
    bool scales_apart;
    float *raw; /* owned device memory */
    char name[64];
    struct plan *plans; /* owned */
    int n_plans;
};

/* ---- the library ---- */

static bool find(struct library *l, const char *name, void *to, struct err *e) {
    void *p = dlsym(l->handle, name);
    if (!p) return err_set(e, ERR_SYSTEM, "cuda: libcublasLt.so has no %s", name);
    __builtin_memcpy(to, &p, sizeof p);
    return true;
}

static bool load(struct library *l, struct err *e) {
    char name[64];
    snprintf(name, sizeof name, "libcublasLt.so.%d", LIBRARY_MAJOR);
    l->handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!l->handle)
        return err_set(e, ERR_SYSTEM,
                       "cuda: %s can't be loaded (%s); it comes with the CUDA toolkit %d, and must "
                       "be where the loader looks, or in LD_LIBRARY_PATH",
                       name, dlerror(), LIBRARY_MAJOR);
    return find(l, "cublasLtCreate", &l->create, e) && find(l, "cublasLtDestroy", &l->destroy, e) &&
           find(l, "cublasLtGetVersion", &l->version, e) &&
           find(l, "cublasLtMatmul", &l->matmul, e) &&
           find(l, "cublasLtMatmulDescCreate", &l->desc_create, e) &&
           find(l, "cublasLtMatmulDescDestroy", &l->desc_destroy, e) &&
           find(l, "cublasLtMatmulDescSetAttribute", &l->desc_set, e) &&
           find(l, "cublasLtMatrixLayoutCreate", &l->layout_create, e) &&
           find(l, "cublasLtMatrixLayoutDestroy", &l->layout_destroy, e) &&
           find(l, "cublasLtMatmulPreferenceCreate", &l->preference_create, e) &&
           find(l, "cublasLtMatmulPreferenceDestroy", &l->preference_destroy, e) &&
           find(l, "cublasLtMatmulPreferenceSetAttribute", &l->preference_set, e) &&
           find(l, "cublasLtMatmulAlgoGetHeuristic", &l->heuristic, e) &&
           find(l, "cublasLtGetStatusString", &l->text, e);
}

static bool has_outer_scales(struct gemm *g);

static bool start(struct gemm *g, const struct gemm_options *o, struct err *e) {
    if (!load(&g->lib, e) ||
        !(g->workspace = gpu_alloc(g->gpu, WORKSPACE_BYTES, "products' workspace", e)))
        return false;
    cublasStatus_t status = g->lib.create(&g->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        g->handle = NULL;
        return err_set(e, ERR_SYSTEM, "cuda: cuBLASLt doesn't start: %s", g->lib.text(status));
    }
    g->scales_apart = o->fp8 && !has_outer_scales(g);
    return !g->scales_apart ||
           (g->raw = gpu_alloc(g->gpu, RAW_BYTES, "products before their scales", e)) != NULL;
}

struct gemm *gemm_open(struct gpu *gpu, const struct gemm_options *o, struct err *e) {
    struct gemm *g = err_alloc(1, sizeof *g);
    g->gpu = gpu;
    g->invariant = o->invariant;
    g->plans = err_alloc(MAX_PLANS, sizeof *g->plans);
    if (!start(g, o, e)) {
        gemm_close(g);
        return NULL;
    }
    size_t version = g->lib.version();
    snprintf(g->name, sizeof g->name, "cuBLASLt %zu.%zu.%zu%s", version / 10000,
             version / 100 % 100, version % 100, g->scales_apart ? ", scales apart" : "");
    return g;
}

void gemm_close(struct gemm *g) {
    if (!g) return;
    if (g->handle) g->lib.destroy(g->handle);
    gpu_release(g->gpu, g->workspace);
    gpu_release(g->gpu, g->raw);
    if (g->lib.handle) dlclose(g->lib.handle);
    free(g->plans);
    free(g);
}

const char *gemm_name(const struct gemm *g) { return g->name; }

size_t gemm_workspace_bytes(const struct gemm *g) {
    return WORKSPACE_BYTES + (g->raw ? RAW_BYTES : 0);
}

/* ---- one product ---- */

/* The descriptions that the library wants of a call: D [n_out x n_rows] column-major = A^T B, with
 * A the weights and B the rows. */
struct description {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d;
};

static cublasStatus_t set(const struct gemm *g, cublasLtMatmulDesc_t op,
                          cublasLtMatmulDescAttributes_t what, const void *value, size_t size) {
    return g->lib.desc_set(op, what, value, size);
}

static cublasStatus_t set_scales(const struct gemm *g, cublasLtMatmulDesc_t op,
                                 const struct gemm_call *c) {
    int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    cublasStatus_t s = set(g, op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode);
    if (!s) s = set(g, op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode);
    if (!s) s = set(g, op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &c->w_scales, sizeof c->w_scales);
    if (!s) s = set(g, op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &c->x_scales, sizeof c->x_scales);
    return s;
}

static void undescribe(const struct gemm *g, struct description *d) {
    if (d->op) g->lib.desc_destroy(d->op);
    if (d->a) g->lib.layout_destroy(d->a);
    if (d->b) g->lib.layout_destroy(d->b);
    if (d->d) g->lib.layout_destroy(d->d);
    *d = (struct description){0};
}

static cublasStatus_t describe(const struct gemm *g, const struct gemm_call *c, int n_rows,
                               bool bias, struct description *d) {
    *d = (struct description){0};
    cudaDataType_t in = c->w_scales ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    uint64_t n_out = (uint64_t)c->n_out, n_in = (uint64_t)c->n_in, rows = (uint64_t)n_rows;
    cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    cublasStatus_t s = g->lib.desc_create(&d->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s) s = set(g, d->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (!s) s = set(g, d->op, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof plain);
    if (!s && c->w_scales && !g->scales_apart) s = set_scales(g, d->op, c);
    if (!s && bias) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        cudaDataType_t type = CUDA_R_32F;
        s = set(g, d->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        if (!s) s = set(g, d->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &c->bias, sizeof c->bias);
        if (!s) s = set(g, d->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    }
    if (!s) s = g->lib.layout_create(&d->a, in, n_in, n_out, c->n_in);
    if (!s) s = g->lib.layout_create(&d->b, in, n_in, rows, c->x_stride);
    if (!s) s = g->lib.layout_create(&d->d, CUDA_R_32F, n_out, rows, c->y_stride);
    return s;
}

/* ---- plans ---- */

static cublasStatus_t ask(const struct gemm *g, const struct description *d,
                          cublasLtMatmulAlgo_t *algo) {
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result = {0};
    int found = 0;
    uint64_t workspace = WORKSPACE_BYTES;
    uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasStatus_t s = g->lib.preference_create(&preference);
    if (!s)
        s = g->lib.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                  sizeof workspace);
    /* Sums split over blocks would be put together in another order for other row counts. */
    if (!s && g->invariant)
        s = g->lib.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none,
                                  sizeof none);
    if (!s)
        s = g->lib.heuristic(g->handle, d->op, d->a, d->b, d->d, d->d, preference, 1, &result,
                             &found);
    if (preference) g->lib.preference_destroy(preference);
    if (!s && !found) s = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!s) s = result.state;
    *algo = result.algo;
    return s;
}

static bool has_outer_scales(struct gemm *g) {
    struct gemm_call c = {.n_out = 64, .n_in = 64, .n_rows = 16, .x_stride = 64, .y_stride = 64};
    const float *any = g->workspace;
    c.w_scales = c.x_scales = any;
    struct description d;
    cublasLtMatmulAlgo_t algo;
    cublasStatus_t s = describe(g, &c, c.n_rows, false, &d);
    if (!s) s = ask(g, &d, &algo);
    undescribe(g, &d);
    return !s;
}

/* Algorithms are asked for once for a row count's bucket; in invariant mode there is only one. */
static int bucket(const struct gemm *g, int n_rows) {
    int b = g->invariant ? 1024 : 1;
    while (b < n_rows && !g->invariant)
        b *= 2;
    return b;
}

static bool fits(const struct gemm *g, const struct plan *p, const struct gemm_call *c) {
    return p->n_out == c->n_out && p->n_in == c->n_in && p->rows == bucket(g, c->n_rows) &&
           p->y_stride == c->y_stride && p->x_stride == c->x_stride && p->add == c->add &&
           p->has_bias == (c->bias != NULL) && p->fp8 == (c->w_scales != NULL);
}

static const struct plan *make_plan(struct gemm *g, const struct gemm_call *c, struct err *e) {
    BUG_ON(g->n_plans == MAX_PLANS);
    struct plan *p = &g->plans[g->n_plans];
    *p = (struct plan){.n_out = c->n_out,
                       .n_in = c->n_in,
                       .rows = bucket(g, c->n_rows),
                       .y_stride = c->y_stride,
                       .x_stride = c->x_stride,
                       .add = c->add,
                       .has_bias = c->bias != NULL,
                       .fp8 = c->w_scales != NULL};
    cublasStatus_t s = CUBLAS_STATUS_NOT_SUPPORTED;
    for (int apart = c->bias ? 0 : 1; apart < 2 && s; apart++) {
        struct description d;
        s = describe(g, c, p->rows, !apart, &d);
        if (!s) s = ask(g, &d, &p->algo);
        undescribe(g, &d);
        p->bias_apart = apart && c->bias;
    }
    if (s) {
        err_set(e, ERR_SYSTEM, "cuda: cuBLASLt has no product for [%d x %d] with %d rows: %s",
                c->n_out, c->n_in, c->n_rows, g->lib.text(s));
        return NULL;
    }
    g->n_plans++;
    return p;
}

static bool run(struct gemm *g, const struct gemm_call *c, struct err *e) {
    const struct plan *p = NULL;
    for (int i = 0; i < g->n_plans && !p; i++)
        if (fits(g, &g->plans[i], c)) p = &g->plans[i];
    if (!p && !(p = make_plan(g, c, e))) return false;
    void *stream = gpu_stream(g->gpu);
    if (p->bias_apart) {
        struct launch_bias b = {c->bias, c->y, c->n_out, c->y_stride, c->n_rows, c->add};
        launch_bias(stream, &b);
    }
    struct description d;
    float one = 1, beta = c->add || p->bias_apart ? 1 : 0;
    cublasStatus_t s = describe(g, c, c->n_rows, c->bias && !p->bias_apart, &d);
    if (!s)
        s = g->lib.matmul(g->handle, d.op, &one, c->w, d.a, c->x, d.b, &beta, c->y, d.d, c->y, d.d,
                          &p->algo, g->workspace, WORKSPACE_BYTES, stream);
    undescribe(g, &d);
    return !s || err_set(e, ERR_SYSTEM, "cuda: a product of [%d x %d] with %d rows failed: %s",
                         c->n_out, c->n_in, c->n_rows, g->lib.text(s));
}

/* An fp8 product without scales, then the scales: in place, or where it is to be added to y, by way
 * of `raw`, as many rows at a time as that holds. */
static bool run_apart(struct gemm *g, const struct gemm_call *c, struct err *e) {
    int most = c->add ? (int)(RAW_BYTES / sizeof(float) / (size_t)c->n_out) : c->n_rows;
    BUG_ON(most < 1);
    for (int first = 0; first < c->n_rows; first += most) {
        int n = c->n_rows - first < most ? c->n_rows - first : most;
        float *y = c->y + (size_t)first * (size_t)c->y_stride;
        struct gemm_call raw = *c;
        raw.x = (const uint8_t *)c->x + (size_t)first * (size_t)c->x_stride;
        raw.n_rows = n;
        raw.bias = NULL;
        raw.add = false;
        raw.y = c->add ? g->raw : y;
        raw.y_stride = c->add ? c->n_out : c->y_stride;
        if (!run(g, &raw, e)) return false;
        struct launch_scale s = {.raw = raw.y,
                                 .w_scales = c->w_scales,
                                 .x_scales = c->x_scales + first,
                                 .bias = c->bias,
                                 .y = y,
                                 .n = c->n_out,
                                 .raw_stride = raw.y_stride,
                                 .y_stride = c->y_stride,
                                 .rows = n,
                                 .add = c->add};
        launch_scale(gpu_stream(g->gpu), &s);
    }
    return true;
}

bool gemm_run(struct gemm *g, const struct gemm_call *c, struct err *e) {
    return c->w_scales && g->scales_apart ? run_apart(g, c, e) : run(g, c, e);
}
