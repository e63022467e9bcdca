/* Shared by the tests of whole forward passes: small models of Qwen's and Llama's shape on either
 * backend, and batches for them. */
#ifndef TESTS_CUDA_STEP_TEST_H
#define TESTS_CUDA_STEP_TEST_H

#include "engine/step.h"
#include "tests/cuda/cuda_test.h"
#include "tests/engine/tiny_model.h"

enum { STEP_BLOCKS = 400, STEP_ROWS = 256, STEP_CONTEXT = 512 };

/* 7, 6 and 3 query heads for one KV head; head sizes 64 and 128; odd widths; heads that are wider
 * together than what they are computed from, with norms of their own. */
static struct tiny_model step_models[] = {
    {.architecture = "qwen2",
     .n_layers = 2,
     .n_embd = 448,
     .n_heads = 7,
     .n_kv_heads = 1,
     .n_ff = 352,
     .context = STEP_CONTEXT,
     .seed = 3},
    {.architecture = "llama",
     .n_layers = 2,
     .n_embd = 576,
     .n_heads = 9,
     .n_kv_heads = 3,
     .n_ff = 608,
     .context = STEP_CONTEXT,
     .seed = 4},
    {.architecture = "qwen2",
     .n_layers = 1,
     .n_embd = 768,
     .n_heads = 6,
     .n_kv_heads = 1,
     .n_ff = 160,
     .context = STEP_CONTEXT,
     .seed = 5},
    {.architecture = "qwen3",
     .n_layers = 2,
     .n_embd = 160,
     .n_heads = 6,
     .n_kv_heads = 2,
     .head_dim = 128,
     .n_ff = 800,
     .context = STEP_CONTEXT,
     .seed = 6},
};
enum { STEP_MODELS = sizeof step_models / sizeof *step_models };

struct step_run {
    struct side s;
    struct model *model;
    struct step *step;
};

/* With room for steps of so many rows. */
static inline struct step_run step_run_open_as(const char *path, const char *backend,
                                               struct kernels_options o, int rows) {
    struct step_run r = {0};
    struct err e = {0};
    ck_assert_msg((r.model = model_open(path, &e)) != NULL, "%s", e.message);
    const struct model_shape *m = &r.model->shape;
    o.n_threads = 1;
    o.n_vocab = m->n_vocab;
    r.s = side_open_as(backend, &o);
    ck_assert_msg(model_load(r.model, r.s.k, r.s.dev, NULL, NULL, &e), "%s", e.message);
    int blocks = rows > STEP_BLOCKS ? rows : STEP_BLOCKS;
    struct kernels_kv_shape kv = {m->n_layers, m->n_kv_heads, m->head_dim, blocks};
    ck_assert_msg(r.s.k->kv_open(r.s.dev, &kv, &e), "%s", e.message);
    int widest = m->n_ff > m->n_embd ? m->n_ff : m->n_embd, heads = m->n_heads * m->head_dim;
    if (heads > widest) widest = heads;
    side_reserve(&r.s, (struct kernels_step_shape){rows, widest, m->n_heads, m->head_dim,
                                                   m->n_vocab, STEP_CONTEXT});
    ck_assert_msg((r.step = step_new(r.model, rows, rows, &e)) != NULL, "%s", e.message);
    return r;
}

static inline struct step_run step_run_open(const char *path, const char *backend, const char *isa,
                                            bool graphs, const char *weights) {
    struct kernels_options o = {.isa = isa, .no_graphs = !graphs, .weights = weights};
    return step_run_open_as(path, backend, o, STEP_ROWS);
}

static inline void step_run_close(struct step_run *r) {
    step_free(r->step);
    r->s.k->kv_close(r->s.dev);
    model_free(r->model);
    r->s.k->device_close(r->s.dev);
}

/* ---- batches ---- */

struct step_rows {
    int32_t tokens[STEP_ROWS], positions[STEP_ROWS], tables[STEP_ROWS * 32], starts[STEP_ROWS + 1],
        table_of_row[STEP_ROWS], logit_rows[STEP_ROWS];
    struct kernels_group groups[8];
    struct kernels_batch batch;
};

static inline int32_t step_token_at(int sequence, int position) {
    return (int32_t)((unsigned)(sequence * 7919 + position * 104729 + 13) % 250);
}

static inline void add_table(struct step_rows *s, const int32_t *blocks, int n) {
    int t = s->batch.n_tables++;
    memcpy(s->tables + s->starts[t], blocks, (size_t)n * sizeof *blocks);
    s->starts[t + 1] = s->starts[t] + n;
}

static inline void add_row(struct step_rows *s, int32_t token, int position, int table,
                           bool logits) {
    int r = s->batch.n_rows++;
    s->tokens[r] = token;
    s->positions[r] = position;
    s->table_of_row[r] = table;
    if (logits) s->logit_rows[s->batch.n_logits++] = r;
}

static inline struct kernels_batch *step_rows_batch(struct step_rows *s) {
    s->batch.tokens = s->tokens;
    s->batch.positions = s->positions;
    s->batch.tables = s->tables;
    s->batch.table_starts = s->starts;
    s->batch.table_of_row = s->table_of_row;
    s->batch.groups = s->groups;
    s->batch.logit_rows = s->logit_rows;
    return &s->batch;
}

static inline void step_run_forward(struct step_run *r, struct step_rows *s) {
    struct err e = {0};
    ck_assert_msg(step_forward(r->step, step_rows_batch(s), &e), "%s", e.message);
}

static inline void step_run_logits(struct step_run *r, int row, float *out) {
    struct err e = {0};
    ck_assert_msg(step_logits(r->step, row, out, &e), "%s", e.message);
}

/* Everything between is rounded to bf16, 2^-9 of it on average: the logits of each row are within
 * 2e-2 of their size in the mean square, and within 6e-2 one by one.  Where the first is clear of
 * the second by twice that, it is the same token. */
static inline void step_check_logits(struct step_run *got, struct step_run *want, int n_rows,
                                     int n_vocab) {
    float *a = malloc((size_t)n_vocab * 4), *b = malloc((size_t)n_vocab * 4);
    for (int row = 0; row < n_rows; row++) {
        step_run_logits(got, row, a);
        step_run_logits(want, row, b);
        double square = 0, error = 0, worst = 0;
        int top_a = 0, top_b = 0, second = -1;
        for (int i = 0; i < n_vocab; i++) {
            worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
            square += (double)b[i] * (double)b[i];
            error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
            if (a[i] > a[top_a]) top_a = i;
            if (b[i] > b[top_b]) top_b = i;
        }
        for (int i = 0; i < n_vocab; i++)
            if (i != top_b && (second < 0 || b[i] > b[second])) second = i;
        double spread = sqrt(square / n_vocab), margin = (double)(b[top_b] - b[second]);
        ck_assert_msg(worst <= 6e-2 * spread && sqrt(error / n_vocab) <= 2e-2 * spread,
                      "row %d of %d: logits differ by %g, %g in the mean square; they are %g", row,
                      n_rows, worst, sqrt(error / n_vocab), spread);
        if (margin > 12e-2 * spread) ck_assert_int_eq(top_a, top_b);
    }
    free(a);
    free(b);
}

/* A prompt of sequence 0 in its own blocks, logits of the last row; or of all. */
static inline void step_rows_prompt(struct step_rows *s, int n, bool all) {
    memset(s, 0, sizeof *s);
    int32_t blocks[32];
    for (int i = 0; i < 32; i++)
        blocks[i] = i * 3 % 97;
    add_table(s, blocks, (n + 15) / 16);
    for (int p = 0; p < n; p++)
        add_row(s, step_token_at(0, p), p, 0, all || p == n - 1);
}

/* One position of each of n siblings after a prompt of n_prompt, sharing its full blocks. */
static inline void step_rows_siblings(struct step_rows *s, int n_prompt, int n, int turn) {
    memset(s, 0, sizeof *s);
    int full = n_prompt / 16;
    for (int i = 0; i < n; i++) {
        int32_t blocks[32];
        for (int k = 0; k < full; k++)
            blocks[k] = k * 3 % 97;
        for (int k = full; k < 32; k++)
            blocks[k] = 100 + 2 * i + (k - full);
        add_table(s, blocks, full + 2);
        add_row(s, step_token_at(i + 1, n_prompt + turn), n_prompt + turn, i, true);
    }
    if (n > 1 && full) {
        s->groups[0] = (struct kernels_group){0, n, full};
        s->batch.n_groups = 1;
    }
}

static inline void step_run_copy_last_block(struct step_run *r, int n_prompt, int n) {
    if (n_prompt % 16)
        for (int i = 0; i < n; i++)
            r->s.k->kv_copy_block(r->s.dev, 100 + 2 * i, n_prompt / 16 * 3 % 97, n_prompt % 16);
}

#endif
