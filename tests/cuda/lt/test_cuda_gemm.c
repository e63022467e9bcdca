/* kernels/cuda/gemm.c with a stand-in for cuBLASLt (fake_cublaslt.c): descriptions, plans and their
 * reuse, biases and scales that the library hasn't, and what is said where it refuses. */
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/state.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/lt/fake_cublaslt.h"

#include <dlfcn.h>

static struct fake_cublaslt *behaviour(void) {
    void *lib = dlopen("libcublasLt.so." CUDA_MAJOR, RTLD_NOW | RTLD_LOCAL), *found;
    ck_assert_msg(lib != NULL, "%s", dlerror());
    struct fake_cublaslt *(*get)(void);
    found = dlsym(lib, "fake_cublaslt");
    ck_assert(found != NULL);
    memcpy(&get, &found, sizeof found);
    return get();
}

struct bench {
    struct gpu *gpu;
    struct gemm *gemm;
    struct fake_cublaslt *lib;
};

static struct bench open_bench(struct gemm_options o, struct fake_cublaslt as) {
    struct bench b = {.lib = behaviour()};
    struct gpu_info info;
    struct err e = {0};
    *b.lib = as;
    ck_assert_msg(gpu_open(&b.gpu, &info, &e), "%s", e.message);
    ck_assert_msg((b.gemm = gemm_open(b.gpu, &o, &e)) != NULL, "%s", e.message);
    return b;
}
static void close_bench(struct bench *b) {
    gemm_close(b->gemm);
    gpu_close(b->gpu);
}

/* One product of random elements, rows of x with a gap, against sums in double. */
static void check_product(struct bench *b, bool fp8, int n_out, int n_in, int n_rows, bool bias,
                          bool add, uint64_t seed) {
    struct random random = {seed};
    struct err e = {0};
    int x_stride = 2 * n_in, y_stride = n_out + 12;
    size_t size = fp8 ? 1 : 2, n_w = (size_t)(n_out * n_in), n_x = (size_t)(n_rows * x_stride),
           n_y = (size_t)(n_rows * y_stride);
    float *w = malloc(n_w * 4), *x = malloc(n_x * 4), *before = malloc(n_y * 4),
          *got = malloc(n_y * 4), *scales = malloc((size_t)(n_out + n_rows) * 4),
          *biases = malloc((size_t)n_out * 4);
    uint8_t *w_bytes = malloc(n_w * size), *x_bytes = malloc(n_x * size);
    fill(&random, 1, before, n_y);
    fill(&random, 1, biases, (size_t)n_out);
    for (int i = 0; i < n_out + n_rows; i++)
        scales[i] = fp8 ? 0.01f + fabsf(random_float(&random)) / 100 : 1;
    for (size_t i = 0; i < n_w + n_x; i++) {
        uint8_t *to = (i < n_w ? w_bytes : x_bytes) + (i < n_w ? i : i - n_w) * size;
        float f = round_bf16(random_float(&random));
        uint8_t code = (uint8_t)(fabsf(f) * 112);
        if (f < 0) code |= 0x80;
        if (fp8)
            *to = code;
        else
            memcpy(to, (uint8_t *)&f + 2, 2);
        *(i < n_w ? w + i : x + (i - n_w)) = fp8 ? (float)fp8_value(code) : f;
    }
    void *on_device[5];
    const void *from[] = {w_bytes, x_bytes, before, scales, biases};
    size_t bytes[] = {n_w * size, n_x * size, n_y * 4, (size_t)(n_out + n_rows) * 4,
                      (size_t)n_out * 4};
    for (int i = 0; i < 5; i++) {
        ck_assert((on_device[i] = gpu_alloc(b->gpu, bytes[i], "a test", &e)) != NULL);
        gpu_put(b->gpu, on_device[i], from[i], bytes[i]);
    }
    struct gemm_call c = {.w = on_device[0],
                          .w_scales = fp8 ? on_device[3] : NULL,
                          .n_out = n_out,
                          .n_in = n_in,
                          .x = on_device[1],
                          .x_scales = fp8 ? (float *)on_device[3] + n_out : NULL,
                          .n_rows = n_rows,
                          .x_stride = x_stride,
                          .bias = bias ? on_device[4] : NULL,
                          .add = add,
                          .y = on_device[2],
                          .y_stride = y_stride};
    ck_assert_msg(gemm_run(b->gemm, &c, &e), "%s", e.message);
    gpu_get(b->gpu, got, on_device[2], n_y * 4);
    ck_assert(gpu_wait(b->gpu, &e));
    for (int r = 0; r < n_rows; r++)
        for (int m = 0; m < y_stride; m++) {
            size_t at = (size_t)(r * y_stride + m);
            double want = (double)before[at];
            if (m < n_out) {
                double sum = 0;
                for (int k = 0; k < n_in; k++)
                    sum += (double)w[m * n_in + k] * (double)x[r * x_stride + k];
                want = sum * (double)scales[m] * (double)scales[n_out + r] +
                       (bias ? (double)biases[m] : 0) + (add ? (double)before[at] : 0);
            }
            ck_assert_msg(fabs((double)got[at] - want) <= 1e-4 * (1 + fabs(want)),
                          "%s [%d x %d] %d rows%s%s: row %d output %d is %g, not %g",
                          fp8 ? "fp8" : "bf16", n_out, n_in, n_rows, bias ? ", bias" : "",
                          add ? ", add" : "", r, m, (double)got[at], want);
        }
    for (int i = 0; i < 5; i++)
        gpu_release(b->gpu, on_device[i]);
    void *all[] = {w, x, before, got, scales, biases, w_bytes, x_bytes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* Hopper, others, a library without bias epilogues; and one algorithm for all row counts. */
static const struct {
    struct fake_cublaslt as;
    bool invariant, apart;
} kinds[] = {
    {.as = {0}},
    {.as = {.no_outer_scales = true}, .apart = true},
    {.as = {.no_bias_epilogue = true}},
    {.as = {.no_outer_scales = true, .no_bias_epilogue = true}, .invariant = true, .apart = true}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

START_TEST(products) {
    static const int shapes[][3] = {{16, 16, 1}, {48, 64, 3}, {64, 208, 17}, {96, 32, 70}};
    struct bench b = open_bench((struct gemm_options){kinds[_i].invariant, true}, kinds[_i].as);
    ck_assert_int_eq(strstr(gemm_name(b.gemm), "scales apart") != NULL, kinds[_i].apart);
    ck_assert_msg(strstr(gemm_name(b.gemm), "cuBLASLt 13.0.2") != NULL, "%s", gemm_name(b.gemm));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int how = 0; how < 8; how++)
            check_product(&b, how & 1, shapes[i][0], shapes[i][1], shapes[i][2], how & 2, how & 4,
                          i * 8 + (uint64_t)how + 1);
    ck_assert_int_eq(b.lib->split_sums, !kinds[_i].invariant);
    close_bench(&b);
}
END_TEST

/* A product that adds is cut into as many rows as there is room for before the scales. */
START_TEST(scales_apart_in_parts) {
    struct bench b = open_bench((struct gemm_options){.fp8 = true},
                                (struct fake_cublaslt){.no_outer_scales = true});
    ck_assert_uint_eq(gemm_workspace_bytes(b.gemm), (size_t)64 << 20);
    int before = b.lib->products;
    /* 32 MiB are 4 rows of 2^21 outputs. */
    check_product(&b, true, 1 << 21, 16, 5, true, true, 3);
    ck_assert_int_eq(b.lib->products - before, 2);
    close_bench(&b);
}
END_TEST

/* Algorithms are asked for once a shape and bucket of rows; in invariant mode once a shape. */
START_TEST(plans_are_kept) {
    for (int invariant = 0; invariant < 2; invariant++) {
        struct bench b =
            open_bench((struct gemm_options){.invariant = invariant}, (struct fake_cublaslt){0});
        static const int rows[] = {1, 1, 2, 3, 4, 4, 3, 5, 8, 1};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            check_product(&b, false, 32, 16, rows[i], false, false, i + 1);
        ck_assert_int_eq(b.lib->heuristics, invariant ? 1 : 4);
        check_product(&b, false, 32, 32, 1, false, false, 1);
        check_product(&b, false, 32, 32, 1, true, false, 1);
        check_product(&b, false, 32, 32, 1, false, true, 1);
        ck_assert_int_eq(b.lib->heuristics, invariant ? 4 : 7);
        close_bench(&b);
    }
}
END_TEST

START_TEST(a_refusal_says_which_shape) {
    struct bench b = open_bench((struct gemm_options){0}, (struct fake_cublaslt){0});
    b.lib->no_products = true;
    struct err e = {0};
    float any[64] = {0};
    struct gemm_call c = {.w = any,
                          .n_out = 24,
                          .n_in = 8,
                          .x = any,
                          .n_rows = 2,
                          .x_stride = 8,
                          .y = any,
                          .y_stride = 24};
    ck_assert(!gemm_run(b.gemm, &c, &e));
    ck_assert_msg(strstr(e.message, "[24 x 8] with 2 rows") && strstr(e.message, "not supported"),
                  "%s", e.message);
    close_bench(&b);
}
END_TEST

/* The whole backend opens with it. */
START_TEST(a_device_with_the_library) {
    *behaviour() = (struct fake_cublaslt){.no_outer_scales = true};
    struct side s =
        side_open_as("cuda", &(struct kernels_options){.isa = "auto", .weights = "fp8"});
    ck_assert_msg(strstr(s.k->describe(s.dev), "products by cuBLASLt 13.0.2, scales apart") != NULL,
                  "%s", s.k->describe(s.dev));
    s.k->device_close(s.dev);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("cuda gemm");
    tcase_add_loop_test(t, products, 0, N_KINDS);
    tcase_add_test(t, scales_apart_in_parts);
    tcase_add_test(t, plans_are_kept);
    tcase_add_test(t, a_refusal_says_which_shape);
    tcase_add_test(t, a_device_with_the_library);
    return run_tests(&t, 1, "cuda gemm");
}
