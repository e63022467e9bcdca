/* The row kernels and products of the CUDA backend, emulated, against the CPU definition, over odd
 * shapes and in three orders of threads. */
#include "tests/cuda/cuda_test.h"

static const int widths[] = {1, 31, 64, 65, 127, 896, 1031, 4864};
enum { N_WIDTHS = sizeof widths / sizeof *widths, MAX_WIDTH = 4864, MAX_N = 5 };

struct pair {
    struct side cuda, cpu;
};

static struct pair open_pair(int max_cols) {
    struct pair p = {side_cuda(), side_reference()};
    struct kernels_step_shape shape = {70, max_cols, 2, 64, 37, 512};
    side_reserve(&p.cuda, shape);
    side_reserve(&p.cpu, shape);
    return p;
}
static void close_pair(struct pair *p) {
    p->cuda.k->device_close(p->cuda.dev);
    p->cpu.k->device_close(p->cpu.dev);
}

static void norm_on(const struct side *s, const float *x, const float *weight, int n, int d,
                    bool in_place, float *out) {
    size_t bytes = (size_t)n * (size_t)d * 4;
    struct kernels_view from = side_new(s, x, bytes), w = side_new(s, weight, (size_t)d * 4);
    struct kernels_view to = in_place ? from : side_new(s, NULL, bytes);
    s->k->rms_norm(s->dev, from, w, 1e-5f, n, d, to);
    side_read_operand(s, to, out, n, d);
    s->k->buffer_free(s->dev, from.buffer);
    s->k->buffer_free(s->dev, w.buffer);
    if (!in_place) s->k->buffer_free(s->dev, to.buffer);
}

/* q and k heads in rows that have v behind them, which stays as it is. */
enum { Q_HEADS = 7, K_HEADS = 2, ALL_HEADS = Q_HEADS + 2 * K_HEADS, HEAD = 128 };

static void head_norms_on(const struct side *s, const float *x, const float *w, int d, float *out) {
    size_t bytes = (size_t)(MAX_N * ALL_HEADS * d) * sizeof(float);
    struct kernels_view heads = side_new(s, x, bytes);
    struct kernels_view q = side_new(s, w, 2 * (size_t)d * sizeof(float)), k = q;
    k.offset = (size_t)d * sizeof(float);
    struct kernels_head_norms norms = {.heads = heads,
                                       .stride = ALL_HEADS * d,
                                       .n_rows = MAX_N,
                                       .n_heads = Q_HEADS,
                                       .n_kv_heads = K_HEADS,
                                       .head_dim = d,
                                       .q_weight = q,
                                       .k_weight = k,
                                       .eps = 1e-6f};
    s->k->head_norms(s->dev, &norms);
    side_read(s, heads, out, bytes);
    s->k->buffer_free(s->dev, heads.buffer);
    s->k->buffer_free(s->dev, q.buffer);
}

START_TEST(norms_of_heads) {
    static const int sizes[] = {64, 96, HEAD};
    static float x[MAX_N * ALL_HEADS * HEAD], w[2 * HEAD], got[MAX_N * ALL_HEADS * HEAD],
        want[MAX_N * ALL_HEADS * HEAD];
    use_order(_i);
    struct pair p = open_pair(MAX_WIDTH);
    struct random r = {4};
    for (int i = 0; i < 3; i++) {
        size_t n = (size_t)(MAX_N * ALL_HEADS * sizes[i]);
        fill(&r, 3, x, n);
        fill(&r, 1, w, 2 * (size_t)sizes[i]);
        head_norms_on(&p.cuda, x, w, sizes[i], got);
        head_norms_on(&p.cpu, x, w, sizes[i], want);
        check_close("norms of heads", got, want, n, 1e-6, 1e-5);
    }
    close_pair(&p);
}
END_TEST

START_TEST(norms) {
    use_order(_i);
    struct pair p = open_pair(MAX_WIDTH);
    struct random r = {1};
    static float x[MAX_N * MAX_WIDTH], w[MAX_WIDTH], got[MAX_N * MAX_WIDTH],
        want[MAX_N * MAX_WIDTH];
    for (int i = 0; i < N_WIDTHS; i++)
        for (int in_place = 0; in_place < 2; in_place++) {
            size_t n = (size_t)(MAX_N * widths[i]);
            fill(&r, 3, x, n);
            fill(&r, 1, w, (size_t)widths[i]);
            norm_on(&p.cuda, x, w, MAX_N, widths[i], in_place, got);
            norm_on(&p.cpu, x, w, MAX_N, widths[i], in_place, want);
            check_close("norm", got, want, n, 1e-6, 1.0 / 256);
        }
    close_pair(&p);
}
END_TEST

static void swiglu_on(const struct side *s, const float *x, int n, int d, float *out) {
    size_t bytes = (size_t)n * (size_t)d * 4;
    struct kernels_view from = side_new(s, x, 2 * bytes), to = side_new(s, NULL, bytes);
    s->k->swiglu(s->dev, from, n, d, to);
    side_read_operand(s, to, out, n, d);
    s->k->buffer_free(s->dev, from.buffer);
    s->k->buffer_free(s->dev, to.buffer);
}

START_TEST(swiglus) {
    use_order(_i);
    struct pair p = open_pair(MAX_WIDTH);
    struct random r = {2};
    static float x[2 * MAX_N * MAX_WIDTH], got[MAX_N * MAX_WIDTH], want[MAX_N * MAX_WIDTH];
    for (int i = 0; i < N_WIDTHS; i++) {
        fill(&r, 20, x, (size_t)(2 * MAX_N * widths[i]));
        x[0] = -200; /* e^200 overflows: the result is -0 */
        swiglu_on(&p.cuda, x, MAX_N, widths[i], got);
        swiglu_on(&p.cpu, x, MAX_N, widths[i], want);
        check_close("swiglu", got, want, (size_t)(MAX_N * widths[i]), 1e-6, 1.0 / 256);
    }
    close_pair(&p);
}
END_TEST

/* ---- products ---- */

struct product {
    int n_out, n_in, n_rows;
    enum quant_type type;
    bool bias, add;
};

static void product_on(const struct side *s, const struct product *p, const uint8_t *data,
                       const float *x, const float *bias, const float *before, int stride,
                       float *out) {
    struct err e = {0};
    size_t bytes = (size_t)p->n_rows * (size_t)stride * 4;
    struct kernels_weight *w = s->k->weight_new(s->dev, p->type, p->n_out, p->n_in, data, &e);
    ck_assert_msg(w != NULL, "%s", e.message);
    struct kernels_view from = side_operand(s, x, p->n_rows, p->n_in),
                        b = side_new(s, bias, (size_t)p->n_out * 4), none = {0};
    struct kernels_view y = side_new(s, before, bytes);
    s->k->matmul(s->dev, w, from, p->n_rows, p->bias ? b : none, p->add, y, stride);
    side_read(s, y, out, bytes);
    if (!p->bias && !p->add) {
        /* The output layer is the same product under another name. */
        float *again = malloc((size_t)p->n_rows * (size_t)p->n_out * 4);
        struct kernels_view logits = side_new(s, NULL, (size_t)p->n_rows * (size_t)p->n_out * 4);
        s->k->output(s->dev, w, from, p->n_rows, logits);
        side_read(s, logits, again, (size_t)p->n_rows * (size_t)p->n_out * 4);
        for (int r = 0; r < p->n_rows; r++)
            ck_assert(!memcmp(again + r * p->n_out, out + r * stride, (size_t)p->n_out * 4));
        s->k->buffer_free(s->dev, logits.buffer);
        free(again);
    }
    s->k->weight_free(s->dev, w);
    s->k->buffer_free(s->dev, from.buffer);
    s->k->buffer_free(s->dev, b.buffer);
    s->k->buffer_free(s->dev, y.buffer);
}

START_TEST(products) {
    static const struct product cases[] = {
        {1, 256, 1, QUANT_Q4_K, false, false},  {37, 64, 3, QUANT_Q8_0, true, false},
        {64, 512, 17, QUANT_Q6_K, false, true}, {129, 96, 70, QUANT_Q5_0, true, true},
        {48, 256, 5, QUANT_Q2_K, false, false}, {33, 35, 2, QUANT_F32, true, true},
        {16, 256, 9, QUANT_BF16, false, false}, {20, 32, 4, QUANT_F16, false, false}};
    const struct product *c = &cases[_i];
    struct pair p = open_pair(512);
    struct random r = {(uint64_t)_i + 10};
    int stride = c->n_out + 7;
    size_t row_bytes = quant_row_bytes(c->type, (size_t)c->n_in), n = (size_t)(c->n_rows * stride);
    uint8_t *data = malloc((size_t)c->n_out * row_bytes);
    for (int m = 0; m < c->n_out; m++)
        random_row(&r, c->type, c->n_in, data + (size_t)m * row_bytes);
    float *x = malloc((size_t)(c->n_rows * c->n_in) * 4), *bias = malloc((size_t)c->n_out * 4);
    float *before = malloc(n * 4), *got = malloc(n * 4), *want = malloc(n * 4);
    fill(&r, 1, x, (size_t)(c->n_rows * c->n_in));
    fill(&r, 1, bias, (size_t)c->n_out);
    fill(&r, 1, before, n);
    product_on(&p.cuda, c, data, x, bias, before, stride, got);
    product_on(&p.cpu, c, data, x, bias, before, stride, want);
    /* Weights are rounded to bf16: 2^-9 of each term. */
    double size = 0;
    float *row = malloc((size_t)c->n_in * 4);
    quant_decode(c->type, data, (size_t)c->n_in, row);
    for (int i = 0; i < c->n_in; i++)
        size = fmax(size, fabs((double)row[i]));
    check_close("product", got, want, n, 2 * size * sqrt(c->n_in) / 256 + 1e-5, 1e-3);
    /* What lies between the rows is left alone. */
    for (int i = 0; i < c->n_rows; i++)
        ck_assert(!memcmp(got + i * stride + c->n_out, before + i * stride + c->n_out, 7 * 4));
    free(data);
    free(x);
    free(bias);
    free(before);
    free(got);
    free(want);
    free(row);
    close_pair(&p);
}
END_TEST

START_TEST(bad_weights_are_refused) {
    struct side s = side_cuda();
    struct err e = {0};
    uint8_t data[64] = {0};
    ck_assert(!s.k->weight_new(s.dev, QUANT_Q8_0, 1, 33, data, &e));
    ck_assert(strstr(e.message, "whole blocks") != NULL);
    ck_assert(!s.k->weight_new(s.dev, QUANT_F32, 0, 4, data, &e));
    ck_assert_uint_eq(s.k->weight_bytes_needed(s.dev, QUANT_Q4_K, 10, 256), 10 * 256 * 2);
    s.k->device_close(s.dev);
}
END_TEST

/* ---- what needs a batch: embedding, logit rows ---- */

static void embed_on(const struct side *s, int n, int d, const uint8_t *table, float *out,
                     float *gathered) {
    struct err e = {0};
    struct kernels_kv_shape kv = {1, 1, 64, 80};
    ck_assert_msg(s->k->kv_open(s->dev, &kv, &e), "%s", e.message);
    struct kernels_weight *w = s->k->weight_new(s->dev, QUANT_F32, 50, d, table, &e);
    ck_assert(w != NULL);
    int32_t tokens[70], positions[70], tables[70], starts[71], rows[70], wanted[70];
    int n_wanted = 0;
    for (int i = 0; i < n; i++) {
        tokens[i] = (i * 7 + 3) % 50;
        positions[i] = i % 16;
        tables[i] = starts[i] = rows[i] = i;
        if (i % 3 == 0) wanted[n_wanted++] = i;
    }
    starts[n] = n;
    struct kernels_batch b = {.n_rows = n,
                              .tokens = tokens,
                              .positions = positions,
                              .tables = tables,
                              .table_starts = starts,
                              .table_of_row = rows,
                              .n_tables = n,
                              .logit_rows = wanted,
                              .n_logits = n_wanted};
    size_t bytes = (size_t)n * (size_t)d * 4;
    struct kernels_view to = side_new(s, NULL, bytes), last = side_new(s, NULL, bytes);
    ck_assert_msg(s->k->batch_begin(s->dev, &b, &e), "%s", e.message);
    s->k->embed(s->dev, w, to);
    s->k->gather_logit_rows(s->dev, to, d, last);
    s->k->batch_end(s->dev);
    side_read(s, to, out, bytes);
    side_read(s, last, gathered, (size_t)n_wanted * (size_t)d * 4);
    s->k->buffer_free(s->dev, to.buffer);
    s->k->buffer_free(s->dev, last.buffer);
    s->k->weight_free(s->dev, w);
    s->k->kv_close(s->dev);
}

START_TEST(embeddings) {
    use_order(_i);
    static const int sizes[][2] = {{1, 64}, {3, 33}, {70, 896}};
    for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        int n = sizes[c][0], d = sizes[c][1];
        struct pair p = open_pair(MAX_WIDTH);
        struct random r = {5};
        size_t all = (size_t)(n * d);
        float *table = malloc((size_t)(50 * d) * 4), *got = calloc(all, 4), *want = calloc(all, 4),
              *got_last = calloc(all, 4), *want_last = calloc(all, 4);
        fill(&r, 1, table, (size_t)(50 * d));
        embed_on(&p.cuda, n, d, (const uint8_t *)table, got, got_last);
        embed_on(&p.cpu, n, d, (const uint8_t *)table, want, want_last);
        check_close("embedding", got, want, all, 0, 1.0 / 256);
        check_close("logit rows", got_last, want_last, all, 0, 1.0 / 256);
        free(table);
        free(got);
        free(want);
        free(got_last);
        free(want_last);
        close_pair(&p);
    }
}
END_TEST

/* ---- settings ---- */

START_TEST(unknown_isa_is_refused) {
    struct err e = {0};
    struct kernels_device *dev;
    struct kernels_options o = {.isa = "avx2"};
    ck_assert(!kernels_backend("cuda")->device_open(&o, &dev, &e));
    ck_assert(strstr(e.message, "avx2") && strstr(e.message, "bf16"));
    struct side s = side_open("cuda", "invariant", true);
    ck_assert(strstr(s.k->describe(s.dev), "invariant") != NULL);
    s.k->device_close(s.dev);
}
END_TEST

START_TEST(shapes_without_kernels_are_refused) {
    struct side s = side_cuda();
    struct err e = {0};
    struct kernels_kv_shape kv = {1, 2, 80, 8};
    ck_assert(!s.k->kv_open(s.dev, &kv, &e));
    ck_assert(strstr(e.message, "80 dimensions") && strstr(e.message, "--backend cpu"));
    kv.head_dim = 64;
    ck_assert(s.k->kv_open(s.dev, &kv, &e));
    struct kernels_step_shape shape = {4, 64, 34, 64, 10, 512};
    ck_assert(!s.k->reserve_rows(s.dev, &shape, &e));
    ck_assert(strstr(e.message, "34 query heads") != NULL);
    shape.n_heads = 32;
    ck_assert_msg(s.k->reserve_rows(s.dev, &shape, &e), "%s", e.message);
    ck_assert(s.k->scratch_bytes(s.dev, &shape) > 0);
    s.k->kv_close(s.dev);
    s.k->device_close(s.dev);
}
END_TEST

int main(void) {
    if (!cuda_test_can_run()) return 77;
    TCase *t = tcase_create("cuda rows");
    tcase_add_loop_test(t, norms, 0, N_ORDERS);
    tcase_add_loop_test(t, norms_of_heads, 0, N_ORDERS);
    tcase_add_loop_test(t, swiglus, 0, N_ORDERS);
    tcase_add_loop_test(t, products, 0, 8);
    tcase_add_loop_test(t, embeddings, 0, N_ORDERS);
    tcase_add_test(t, bad_weights_are_refused);
    tcase_add_test(t, unknown_isa_is_refused);
    tcase_add_test(t, shapes_without_kernels_are_refused);
    return run_tests(&t, 1, "cuda rows");
}
