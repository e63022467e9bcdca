/* Row operations: norm, SwiGLU, gathering, the profile; against double precision and bitwise across
 * instruction sets. */
#include "tests/kernels/kernels_test.h"

static const char *const isas[] = {"generic", "avx2", "avx512vnni", "reference"};

/* Runs `operation` on each instruction set; all but the reference must give the same bits. */
static void on_all(void (*operation)(struct kernels_device *, int d, float *out), int d, float *out,
                   int n) {
    float *again = calloc((size_t)n, sizeof *again);
    memset(out, 0, (size_t)n * sizeof *out);
    for (int i = 0; i < 4; i++) {
        if (!can_run(isas[i])) continue;
        struct kernels_device *dev = open_device(isas[i], 2);
        operation(dev, d, i ? again : out);
        for (int j = 0; j < n && i; j++) {
            if (i < 3)
                ck_assert_msg(!memcmp(&out[j], &again[j], 4), "%s differs at %d", isas[i], j);
            else
                ck_assert_double_eq_tol((double)out[j], (double)again[j],
                                        1e-6 * (1 + fabs((double)out[j])));
        }
        kernels_backend("cpu")->device_close(dev);
    }
    free(again);
}

enum { ROWS = 5 };

static void fill(uint64_t seed, float spread, float *x, int n) {
    struct random r = {seed};
    for (int i = 0; i < n; i++)
        x[i] = spread * random_float(&r);
}

static void norm(struct kernels_device *dev, int d, float *out) {
    const struct kernels *k = kernels_backend("cpu");
    float x[ROWS * 1000], w[1000];
    size_t bytes = (size_t)d * sizeof(float);
    fill(1, 3, x, ROWS * d);
    fill(2, 1, w, d);
    struct kernels_view vx = new_view(dev, x, ROWS * bytes), vw = new_view(dev, w, bytes);
    k->rms_norm(dev, vx, vw, 1e-5f, ROWS, d, vx); /* in place */
    read_view(dev, vx, out, ROWS * bytes);
    k->buffer_free(dev, vx.buffer);
    k->buffer_free(dev, vw.buffer);
}

START_TEST(rms_norm) {
    static const int sizes[] = {1, 16, 37, 576, 896};
    for (int s = 0; s < 5; s++) {
        int d = sizes[s];
        float out[ROWS * 1000], x[ROWS * 1000], w[1000];
        on_all(norm, d, out, ROWS * d);
        fill(1, 3, x, ROWS * d);
        fill(2, 1, w, d);
        for (int r = 0; r < ROWS; r++) {
            double squares = 0;
            for (int i = 0; i < d; i++)
                squares += (double)x[r * d + i] * (double)x[r * d + i];
            for (int i = 0; i < d; i++) {
                double want =
                    (double)x[r * d + i] / sqrt(squares / d + (double)1e-5f) * (double)w[i];
                ck_assert_double_eq_tol((double)out[r * d + i], want, 1e-6 * (1 + fabs(want)));
            }
        }
    }
}
END_TEST

/* Heads of d values of q and k in rows that have v behind them, which stays as it is. */
enum { Q_HEADS = 3, K_HEADS = 2, ALL_HEADS = Q_HEADS + 2 * K_HEADS };

static void head_norms(struct kernels_device *dev, int d, float *out) {
    const struct kernels *k = kernels_backend("cpu");
    float x[ROWS * ALL_HEADS * 128], w[2 * 128];
    size_t bytes = (size_t)(ROWS * ALL_HEADS * d) * sizeof(float);
    fill(5, 3, x, ROWS * ALL_HEADS * d);
    fill(6, 1, w, 2 * d);
    struct kernels_view vx = new_view(dev, x, bytes);
    struct kernels_view q = new_view(dev, w, 2 * (size_t)d * sizeof(float)), key = q;
    key.offset = (size_t)d * sizeof(float);
    struct kernels_head_norms norms = {.heads = vx,
                                       .stride = ALL_HEADS * d,
                                       .n_rows = ROWS,
                                       .n_heads = Q_HEADS,
                                       .n_kv_heads = K_HEADS,
                                       .head_dim = d,
                                       .q_weight = q,
                                       .k_weight = key,
                                       .eps = 1e-6f};
    k->head_norms(dev, &norms);
    read_view(dev, vx, out, bytes);
    k->buffer_free(dev, vx.buffer);
    k->buffer_free(dev, q.buffer);
}

START_TEST(norms_of_heads) {
    static const int sizes[] = {8, 64, 80, 128};
    for (int s = 0; s < 4; s++) {
        int d = sizes[s];
        float out[ROWS * ALL_HEADS * 128], x[ROWS * ALL_HEADS * 128], w[2 * 128];
        on_all(head_norms, d, out, ROWS * ALL_HEADS * d);
        fill(5, 3, x, ROWS * ALL_HEADS * d);
        fill(6, 1, w, 2 * d);
        for (int h = 0; h < ROWS * ALL_HEADS; h++) {
            const float *weight = h % ALL_HEADS < Q_HEADS ? w : w + d, *head = x + h * d;
            bool normed = h % ALL_HEADS < Q_HEADS + K_HEADS;
            double squares = 0;
            for (int i = 0; i < d; i++)
                squares += (double)head[i] * (double)head[i];
            for (int i = 0; i < d; i++) {
                double scale = (double)weight[i] / sqrt(squares / d + (double)1e-6f);
                double want = (double)head[i] * (normed ? scale : 1);
                ck_assert_double_eq_tol((double)out[h * d + i], want, 1e-6 * (1 + fabs(want)));
            }
        }
    }
}
END_TEST

static void swiglu(struct kernels_device *dev, int d, float *out) {
    const struct kernels *k = kernels_backend("cpu");
    float x[ROWS * 2 * 1000];
    size_t bytes = (size_t)(ROWS * d) * sizeof(float);
    fill(3, 20, x, ROWS * 2 * d);
    x[0] = 500; /* where e^x and e^-x leave the range of floats */
    x[1] = -500;
    struct kernels_view vx = new_view(dev, x, 2 * bytes), vo = new_view(dev, NULL, bytes);
    k->swiglu(dev, vx, ROWS, d, vo);
    read_view(dev, vo, out, bytes);
    k->buffer_free(dev, vx.buffer);
    k->buffer_free(dev, vo.buffer);
}

START_TEST(swiglu_rows) {
    static const int sizes[] = {5, 16, 37, 999};
    for (int s = 0; s < 4; s++) {
        int d = sizes[s];
        float out[ROWS * 1000], x[ROWS * 2 * 1000];
        on_all(swiglu, d, out, ROWS * d);
        fill(3, 20, x, ROWS * 2 * d);
        x[0] = 500;
        x[1] = -500;
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < d; i++) {
                double g = (double)x[2 * r * d + i], u = (double)x[2 * r * d + d + i];
                double want = g / (1 + exp(-g)) * u;
                ck_assert_double_eq_tol((double)out[r * d + i], want, 1e-6 * (1 + fabs(want)));
            }
    }
}
END_TEST

START_TEST(gathers_and_counts) {
    const struct kernels *k = kernels_backend("cpu");
    struct kernels_device *dev = open_device("auto", 2);
    struct err e = {0};
    int32_t tokens[4] = {0}, positions[] = {0, 1, 2, 3}, tables[] = {0}, starts[] = {0, 1};
    int32_t table_of_row[4] = {0}, logit_rows[] = {1, 3};
    struct kernels_kv_shape shape = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 2, .n_blocks = 1};
    struct kernels_batch b = {.n_rows = 4,
                              .tokens = tokens,
                              .positions = positions,
                              .tables = tables,
                              .table_starts = starts,
                              .table_of_row = table_of_row,
                              .n_tables = 1,
                              .logit_rows = logit_rows,
                              .n_logits = 2};
    float x[4 * 32], w[8 * 32], out[2 * 32], logits[2 * 8];
    fill(4, 1, x, 4 * 32);
    fill(5, 1, w, 8 * 32);
    ck_assert(k->reserve_rows(dev, &(struct kernels_step_shape){4, 32, 1, 2, 8, 512}, &e));
    ck_assert(k->scratch_bytes(dev, &(struct kernels_step_shape){4, 32, 1, 2, 8, 512}) > 0);
    ck_assert(k->kv_open(dev, &shape, &e));
    ck_assert(k->batch_begin(dev, &b, &e));
    struct kernels_view vx = new_view(dev, x, sizeof x), vo = new_view(dev, NULL, sizeof out);
    struct kernels_view vl = new_view(dev, NULL, sizeof logits);
    k->gather_logit_rows(dev, vx, 32, vo);
    read_view(dev, vo, out, sizeof out);
    ck_assert(!memcmp(out, x + 32, 32 * sizeof *x) &&
              !memcmp(out + 32, x + 3 * 32, 32 * sizeof *x));
    struct kernels_weight *weight = k->weight_new(dev, QUANT_F32, 8, 32, w, &e);
    k->output(dev, weight, vo, 2, vl);
    read_view(dev, vl, logits, sizeof logits);
    for (int r = 0; r < 2; r++)
        for (int m = 0; m < 8; m++) {
            double want = 0;
            for (int i = 0; i < 32; i++)
                want += (double)w[m * 32 + i] * (double)out[r * 32 + i];
            ck_assert_double_eq_tol((double)logits[r * 8 + m], want, 1e-5);
        }
    k->batch_end(dev);
    struct kernels_profile p;
    k->profile(dev, &p);
    ck_assert_uint_eq(p.op[KERNELS_OP_OUTPUT].calls, 1);
    ck_assert(p.op[KERNELS_OP_OUTPUT].macs == 2 * 8 * 32);
    ck_assert(p.op[KERNELS_OP_OUTPUT].bytes >= 8 * 32 * 4);
    ck_assert_uint_eq(p.op[KERNELS_OP_MATMUL].calls, 0);
    k->weight_free(dev, weight);
    k->buffer_free(dev, vx.buffer);
    k->buffer_free(dev, vo.buffer);
    k->buffer_free(dev, vl.buffer);
    k->kv_close(dev);
    k->device_close(dev);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("rows");
    tcase_add_test(t, rms_norm);
    tcase_add_test(t, norms_of_heads);
    tcase_add_test(t, swiglu_rows);
    tcase_add_test(t, gathers_and_counts);
    return run_tests(&t, 1, "rows");
}
