/* Matrix products: every type, odd shapes, every instruction set; the definition is `reference`. */
#include "tests/kernels/kernels_test.h"

#include <stdio.h>

enum { MAX_ROWS = 33, MAX_COLS = 1152 };
static const char *const fast[] = {"generic", "avx2", "avx512vnni", "amx"};
enum { N_FAST = 4 };

struct product {
    enum quant_type type;
    int n_outputs, n_cols, n_rows;
    bool bias, add;
    uint8_t *weights; /* owned */
    float *x, *y, *b; /* owned; y is what is added to */
};

static struct product make_product(uint64_t seed, enum quant_type type, int n_outputs, int n_cols,
                                   int n_rows) {
    struct random r = {seed};
    struct product p = {.type = type, .n_outputs = n_outputs, .n_cols = n_cols, .n_rows = n_rows};
    size_t row = quant_row_bytes(type, (size_t)n_cols);
    p.weights = calloc((size_t)n_outputs, row);
    p.x = calloc((size_t)(n_rows * n_cols), sizeof(float));
    p.y = calloc((size_t)(n_rows * n_outputs), sizeof(float));
    p.b = calloc((size_t)n_outputs, sizeof(float));
    for (int i = 0; i < n_outputs; i++)
        random_row(&r, type, n_cols, p.weights + (size_t)i * row);
    for (int i = 0; i < n_rows * n_cols; i++) {
        p.x[i] = random_float(&r);
        if (random_int(&r, 100) == 0) p.x[i] *= 50; /* outliers */
    }
    memset(p.x, 0, 32 * sizeof(float)); /* a block of zeros */
    for (int i = 0; i < n_rows * n_outputs; i++)
        p.y[i] = random_float(&r);
    for (int i = 0; i < n_outputs; i++)
        p.b[i] = random_float(&r);
    return p;
}

static void free_product(struct product *p) {
    free(p->weights);
    free(p->x);
    free(p->y);
    free(p->b);
}

/* Rows first … first+n-1 of the product, y with a stride of n_outputs + 5. */
static void compute(const struct product *p, const char *isa, int n_threads, int first, int n,
                    float *out) {
    const struct kernels *k = kernels_backend("cpu");
    struct kernels_device *dev = open_device(isa, n_threads);
    struct err e = {0};
    int stride = p->n_outputs + 5;
    size_t bytes = (size_t)n * (size_t)stride * sizeof(float);
    ck_assert(k->reserve_rows(
        dev, &(struct kernels_step_shape){MAX_ROWS, MAX_COLS, 2, 64, 100, 512}, &e));
    struct kernels_weight *w = k->weight_new(dev, p->type, p->n_outputs, p->n_cols, p->weights, &e);
    ck_assert_msg(w != NULL, "%s", e.message);
    ck_assert(k->weight_bytes(w) <= k->weight_bytes_needed(dev, p->type, p->n_outputs, p->n_cols));
    float *y = calloc(1, bytes);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < stride; i++)
            y[r * stride + i] = i < p->n_outputs ? p->y[(first + r) * p->n_outputs + i] : 77;
    struct kernels_view x =
        new_view(dev, p->x + first * p->n_cols, (size_t)(n * p->n_cols) * sizeof(float));
    struct kernels_view to = new_view(dev, y, bytes);
    struct kernels_view bias = {0};
    if (p->bias) bias = new_view(dev, p->b, (size_t)p->n_outputs * sizeof(float));
    k->matmul(dev, w, x, n, bias, p->add, to, stride);
    read_view(dev, to, y, bytes);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < stride; i++) {
            if (i < p->n_outputs)
                out[r * p->n_outputs + i] = y[r * stride + i];
            else
                ck_assert(y[r * stride + i] == 77); /* nothing is written past the outputs */
        }
    free(y);
    k->weight_free(dev, w);
    k->buffer_free(dev, x.buffer);
    k->buffer_free(dev, to.buffer);
    k->buffer_free(dev, bias.buffer);
    k->device_close(dev);
}

/* The reference on what int8 activations stand for: what remains is float rounding alone. */
static void round_activations(struct product *p) {
    if (quant_block_elements(p->type) == 1) return;
    for (int i = 0; i < p->n_rows * p->n_cols; i += 32) {
        float most = 0;
        for (int j = 0; j < 32; j++)
            most = fmaxf(most, fabsf(p->x[i + j]));
        for (int j = 0; j < 32 && most > 0; j++)
            p->x[i + j] = rintf(p->x[i + j] * (127 / most)) * (most / 127);
    }
}

/* Sum of |w x| of each output: what the tolerance is relative to. */
static double magnitude(const struct product *p, int row, int output) {
    float w[MAX_COLS];
    size_t bytes = quant_row_bytes(p->type, (size_t)p->n_cols);
    quant_decode(p->type, p->weights + (size_t)output * bytes, (size_t)p->n_cols, w);
    double sum = 1;
    for (int i = 0; i < p->n_cols; i++)
        sum += fabs((double)w[i] * (double)p->x[row * p->n_cols + i]);
    return sum;
}

static void check_product(struct product *p) {
    size_t n = (size_t)(p->n_rows * p->n_outputs);
    float *rounded = calloc(n, sizeof(float)), *first = calloc(n, sizeof(float)),
          *y = calloc(n, sizeof(float));
    compute(p, fast[0], 1, 0, p->n_rows, first);
    for (int i = 1; i < N_FAST; i++) {
        if (!can_run(fast[i])) continue;
        compute(p, fast[i], 2, 0, p->n_rows, y);
        for (size_t j = 0; j < n; j++)
            ck_assert_msg(!memcmp(&y[j], &first[j], 4),
                          "%s %s, %d x %d, row %d output %d: %.9g is not %.9g", quant_name(p->type),
                          fast[i], p->n_outputs, p->n_cols, (int)j / p->n_outputs,
                          (int)j % p->n_outputs, (double)y[j], (double)first[j]);
    }
    /* Each row alone gives the same bits. */
    for (int r = 0; r < p->n_rows; r += 5) {
        const char *isa = can_run(fast[2]) ? fast[2] : fast[0];
        compute(p, isa, 1, r, 1, y);
        ck_assert_msg(!memcmp(y, first + r * p->n_outputs, (size_t)p->n_outputs * sizeof *y),
                      "%s: row %d alone differs", quant_name(p->type), r);
    }
    round_activations(p);
    compute(p, "reference", 2, 0, p->n_rows, rounded);
    for (size_t j = 0; j < n; j++) {
        double scale = magnitude(p, (int)j / p->n_outputs, (int)j % p->n_outputs);
        double error = fabs((double)first[j] - (double)rounded[j]) / scale;
        ck_assert_msg(error < 2e-6, "%s, %d x %d, row %d output %d: %g instead of %g",
                      quant_name(p->type), p->n_outputs, p->n_cols, (int)j / p->n_outputs,
                      (int)j % p->n_outputs, (double)first[j], (double)rounded[j]);
    }
    free(rounded);
    free(first);
    free(y);
}

START_TEST(types_and_shapes) {
    static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 33};
    static const int outputs[] = {1, 15, 16, 17, 33, 48, 70};
    static const int cols[] = {32, 96, 256, 768, 1152, 800};
    enum quant_type type = all_types[_i];
    for (int i = 0; i < 12; i++) {
        int n = cols[i % 6];
        if (n % quant_block_elements(type)) n = 256 * (1 + i % 4);
        struct product p = make_product((uint64_t)(i + 1), type, outputs[i % 7], n, rows[i]);
        p.bias = i % 2;
        p.add = i / 2 % 2;
        check_product(&p);
        free_product(&p);
    }
}
END_TEST

/* f32, f16 and bf16 rows may have any length. */
START_TEST(odd_columns_of_dense_types) {
    for (int i = 0; i < 3; i++) {
        struct product p = make_product(9, all_types[i], 19, 37, 5);
        check_product(&p);
        free_product(&p);
    }
}
END_TEST

/* All codes at their ends and all activations at ±127: where 16-bit sums would overflow first. */
START_TEST(extreme_codes) {
    static const uint8_t fills[] = {0x00, 0xff, 0x80, 0x7f};
    for (int t = 3; t < N_ALL_TYPES; t++)
        for (size_t f = 0; f < sizeof fills; f++) {
            struct product p = make_product(5, all_types[t], 16, 512, 6);
            size_t block = quant_block_bytes(p.type);
            size_t bytes = quant_row_bytes(p.type, 512) * 16;
            uint8_t *scales = malloc(bytes);
            memcpy(scales, p.weights, bytes);
            memset(p.weights, fills[f], bytes);
            for (size_t b = 0; b < bytes; b += block) { /* scales stay finite */
                size_t at = p.type == QUANT_Q2_K   ? 80
                            : p.type == QUANT_Q3_K ? 108
                            : p.type == QUANT_Q6_K ? 208
                                                   : 0;
                memcpy(p.weights + b + at, scales + b + at, 2);
                bool two = p.type == QUANT_Q2_K || p.type == QUANT_Q4_1 || p.type == QUANT_Q5_1 ||
                           p.type == QUANT_Q4_K || p.type == QUANT_Q5_K;
                if (two) memcpy(p.weights + b + at + 2, scales + b + at + 2, 2);
            }
            for (int i = 0; i < p.n_rows * p.n_cols; i++)
                p.x[i] = i / p.n_cols % 3 == 0   ? 127
                         : i / p.n_cols % 3 == 1 ? -127
                                                 : (i % 2 ? 127 : -127);
            check_product(&p);
            free(scales);
            free_product(&p);
        }
}
END_TEST

/* What int8 activations cost: the error against unrounded ones stays within the step of the
 * rounding. */
START_TEST(error_of_int8_activations) {
    struct product p = make_product(3, QUANT_Q5_0, 64, 896, 8);
    for (int i = 0; i < p.n_rows * p.n_cols; i++)
        p.x[i] = fmaxf(fminf(p.x[i], 1), -1);
    float y[8 * 64], exact[8 * 64];
    compute(&p, "auto", 2, 0, 8, y);
    compute(&p, "reference", 2, 0, 8, exact);
    double error = 0, size = 0;
    for (int i = 0; i < 8 * 64; i++) {
        error += ((double)y[i] - (double)exact[i]) * ((double)y[i] - (double)exact[i]);
        size += (double)exact[i] * (double)exact[i];
    }
    ck_assert_double_lt(sqrt(error / size), 0.01);
    ck_assert_double_gt(sqrt(error / size), 0); /* it is the int8 path */
    free_product(&p);
}
END_TEST

START_TEST(embedding_is_exact) {
    const struct kernels *k = kernels_backend("cpu");
    enum quant_type type = all_types[_i];
    struct product p = make_product(8, type, 37, 512, 1);
    struct kernels_kv_shape shape = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 2, .n_blocks = 1};
    int32_t tokens[] = {0, 36, 17, 16}, positions[] = {0, 1, 2, 3}, tables[] = {0},
            starts[] = {0, 1};
    int32_t table_of_row[] = {0, 0, 0, 0};
    struct kernels_batch b = {.n_rows = 4,
                              .tokens = tokens,
                              .positions = positions,
                              .tables = tables,
                              .table_starts = starts,
                              .table_of_row = table_of_row,
                              .n_tables = 1};
    for (int i = 0; k->isas[i]; i++) {
        if (!can_run(k->isas[i])) continue;
        struct kernels_device *dev = open_device(k->isas[i], 2);
        struct err e = {0};
        ck_assert(k->reserve_rows(dev, &(struct kernels_step_shape){4, 512, 1, 2, 37, 512}, &e));
        ck_assert(k->kv_open(dev, &shape, &e));
        struct kernels_weight *w = k->weight_new(dev, type, 37, 512, p.weights, &e);
        struct kernels_view out = new_view(dev, NULL, 4 * 512 * sizeof(float));
        ck_assert_msg(k->batch_begin(dev, &b, &e), "%s", e.message);
        k->embed(dev, w, out);
        k->batch_end(dev);
        float got[4 * 512], want[512];
        read_view(dev, out, got, sizeof got);
        for (int r = 0; r < 4; r++) {
            quant_decode(type, p.weights + (size_t)tokens[r] * quant_row_bytes(type, 512), 512,
                         want);
            for (int c = 0; c < 512; c++)
                ck_assert_msg(got[r * 512 + c] == want[c],
                              "%s on %s: token %d column %d: %g is not %g", quant_name(type),
                              k->isas[i], tokens[r], c, (double)got[r * 512 + c], (double)want[c]);
        }
        k->weight_free(dev, w);
        k->buffer_free(dev, out.buffer);
        k->kv_close(dev);
        k->device_close(dev);
    }
    free_product(&p);
}
END_TEST

START_TEST(refuses_broken_rows) {
    const struct kernels *k = kernels_backend("cpu");
    struct kernels_device *dev = open_device("auto", 1);
    struct err e = {0};
    uint8_t data[256] = {0};
    ck_assert(!k->weight_new(dev, QUANT_Q4_K, 1, 128, data, &e));
    ck_assert(e.kind == ERR_INPUT && strstr(e.message, "Q4_K") != NULL);
    k->device_close(dev);
}
END_TEST

int main(void) {
    TCase *products = tcase_create("products"), *others = tcase_create("others");
    for (int i = 1; i < N_FAST; i++)
        if (!can_run(fast[i])) printf("skipped here: %s, which this machine lacks\n", fast[i]);
    tcase_add_loop_test(products, types_and_shapes, 0, N_ALL_TYPES);
    tcase_add_test(products, odd_columns_of_dense_types);
    tcase_add_test(products, extreme_codes);
    tcase_add_test(others, error_of_int8_activations);
    tcase_add_loop_test(others, embedding_is_exact, 0, N_ALL_TYPES);
    tcase_add_test(others, refuses_broken_rows);
    return run_tests((TCase *[]){products, others}, 2, "matmul");
}
