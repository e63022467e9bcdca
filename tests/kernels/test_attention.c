/* Rope, KV cache and attention: against double precision written out here, and bitwise across
 * groups, threads and instruction sets. */
#include "tests/kernels/kernels_test.h"

enum { N_BLOCKS = 40, MAX_N = 24 };
static const char *const isas[] = {"reference", "generic", "avx2", "avx512vnni"};

struct shape {
    int n_heads, n_kv_heads, head_dim;
};
static const struct shape shapes[] = {{14, 2, 64}, {12, 2, 128}, {9, 3, 64},
                                      {8, 2, 80},  {3, 3, 34},   {5, 1, 16}};

/* A sequence: its blocks, and what was fed at each position. */
struct fixture {
    struct shape s;
    struct kernels_device *dev;
    struct kernels_rope rope;
    float inv_freq[64];
    struct kernels_view qkv, out;
    int stride;
};

static struct fixture make(struct shape s, const char *isa, int n_threads, bool interleaved) {
    const struct kernels *k = kernels_backend("cpu");
    struct fixture f = {.s = s, .dev = open_device(isa, n_threads)};
    struct err e = {0};
    f.stride = (s.n_heads + 2 * s.n_kv_heads) * s.head_dim + 3;
    ck_assert(k->reserve_rows(
        f.dev, &(struct kernels_step_shape){64, 64, s.n_heads, s.head_dim, 10, 512}, &e));
    struct kernels_kv_shape kv = {
        .n_layers = 2, .n_kv_heads = s.n_kv_heads, .head_dim = s.head_dim, .n_blocks = N_BLOCKS};
    ck_assert_msg(k->kv_open(f.dev, &kv, &e), "%s", e.message);
    f.qkv = new_view(f.dev, NULL, 64 * (size_t)f.stride * sizeof(float));
    f.out = new_view(f.dev, NULL, 64 * (size_t)(s.n_heads * s.head_dim) * sizeof(float));
    f.rope = (struct kernels_rope){.n_rot = s.head_dim >= 64 ? s.head_dim : s.head_dim / 2 / 2 * 2,
                                   .interleaved = interleaved};
    for (int i = 0; i < f.rope.n_rot / 2; i++)
        f.inv_freq[i] = (float)pow(10000, -2.0 * i / f.rope.n_rot);
    return f;
}

static void done(struct fixture *f) {
    const struct kernels *k = kernels_backend("cpu");
    k->buffer_free(f->dev, f->qkv.buffer);
    k->buffer_free(f->dev, f->out.buffer);
    k->kv_close(f->dev);
    k->device_close(f->dev);
}

/* q, k and v of one position of one sequence: known from (sequence, position). */
static void inputs(const struct fixture *f, int sequence, int position, float *row) {
    struct random r = {(uint64_t)(sequence * 1000 + position + 1)};
    for (int i = 0; i < f->stride; i++)
        row[i] = 2 * random_float(&r);
}

struct row {
    int sequence, position, table; /* `sequence` names the input; `table` the blocks */
};

/* One step of layer 1; out gets [n][n_heads * head_dim]. */
static void step(struct fixture *f, const struct row *rows, int n, const int32_t *tables,
                 const int32_t *starts, int n_tables, const struct kernels_group *groups,
                 int n_groups, float *out) {
    const struct kernels *k = kernels_backend("cpu");
    int32_t tokens[64] = {0}, positions[64], table_of_row[64];
    float *qkv = calloc((size_t)(n * f->stride), sizeof *qkv);
    for (int i = 0; i < n; i++) {
        positions[i] = rows[i].position;
        table_of_row[i] = rows[i].table;
        inputs(f, rows[i].sequence, rows[i].position, qkv + i * f->stride);
    }
    k->upload(f->dev, f->qkv, qkv, (size_t)(n * f->stride) * sizeof *qkv);
    free(qkv);
    struct kernels_batch b = {.n_rows = n,
                              .tokens = tokens,
                              .positions = positions,
                              .tables = tables,
                              .table_starts = starts,
                              .table_of_row = table_of_row,
                              .n_tables = n_tables,
                              .groups = groups,
                              .n_groups = n_groups};
    struct err e = {0};
    f->rope.inv_freq = f->inv_freq;
    size_t d = (size_t)f->s.head_dim * sizeof(float);
    struct kernels_view keys = {f->qkv.buffer, (size_t)f->s.n_heads * d};
    struct kernels_view values = {f->qkv.buffer, (size_t)(f->s.n_heads + f->s.n_kv_heads) * d};
    ck_assert_msg(k->batch_begin(f->dev, &b, &e), "%s", e.message);
    k->rope_append(f->dev, 1, &f->rope, f->qkv, keys, values, f->stride, f->s.n_heads);
    k->attention(f->dev, 1, f->qkv, f->stride, f->s.n_heads, 1 / sqrtf((float)f->s.head_dim),
                 f->out);
    k->batch_end(f->dev);
    read_view(f->dev, f->out, out, (size_t)(n * f->s.n_heads) * d);
}

/* ---- double precision, from the formulas ---- */

static void rotate(const struct fixture *f, int position, const float *x, double *out) {
    int n = f->rope.n_rot;
    for (int i = 0; i < f->s.head_dim; i++)
        out[i] = (double)x[i];
    for (int i = 0; i < n / 2; i++) {
        int a = f->rope.interleaved ? 2 * i : i, b = f->rope.interleaved ? 2 * i + 1 : i + n / 2;
        double angle = position * (double)f->inv_freq[i];
        out[a] = (double)x[a] * cos(angle) - (double)x[b] * sin(angle);
        out[b] = (double)x[a] * sin(angle) + (double)x[b] * cos(angle);
    }
}

static double half(double x) { return (double)quant_f16_to_f32(quant_f32_to_f16((float)x)); }

/* Attention of head h of a sequence at `position`; history[p] says whose input position p has. */
static void expected(const struct fixture *f, const int *history, int position, int h,
                     double *out) {
    int d = f->s.head_dim, group = f->s.n_heads / f->s.n_kv_heads, kv = h / group;
    float row[8192];
    double q[128], k[128], scores[1024], most = -INFINITY, total = 0;
    inputs(f, history[position], position, row);
    rotate(f, position, row + h * d, q);
    for (int p = 0; p <= position; p++) {
        inputs(f, history[p], p, row);
        rotate(f, p, row + (f->s.n_heads + kv) * d, k);
        scores[p] = 0;
        for (int i = 0; i < d; i++)
            scores[p] += q[i] * half(k[i]);
        scores[p] /= sqrt(d);
        most = fmax(most, scores[p]);
    }
    memset(out, 0, (size_t)d * sizeof *out);
    for (int p = 0; p <= position; p++) {
        inputs(f, history[p], p, row);
        double w = exp(scores[p] - most);
        total += w;
        for (int i = 0; i < d; i++)
            out[i] += w * half((double)row[(f->s.n_heads + f->s.n_kv_heads + kv) * d + i]);
    }
    for (int i = 0; i < d; i++)
        out[i] /= total;
}

/* A prompt of 53 in steps of 20, 20 and 13 rows; then 3 steps of 5 siblings that share its 3 full
 * blocks, each with its own copy of the fourth; beside them an unrelated sequence. */
struct story {
    float *outputs; /* owned; of the last step, [6][n_heads * head_dim] */
};

static struct story tell(struct shape s, const char *isa, int n_threads, bool interleaved,
                         bool groups, bool check) {
    const struct kernels *k = kernels_backend("cpu");
    struct fixture f = make(s, isa, n_threads, interleaved);
    size_t width = (size_t)(s.n_heads * s.head_dim);
    float *out = calloc(64 * width, sizeof *out);
    int32_t tables[6 * 4 + 4] = {7, 3, 12, 20}, starts[8] = {0, 4};
    struct row rows[64];
    for (int at = 0; at < 53; at += 20) {
        int n = 53 - at < 20 ? 53 - at : 20;
        for (int i = 0; i < n; i++)
            rows[i] = (struct row){.sequence = 0, .position = at + i};
        step(&f, rows, n, tables, starts, 1, NULL, 0, out);
    }
    for (int i = 0; i < 5; i++) {
        k->kv_copy_block(f.dev, 21 + i, 20, 5);
        int32_t table[4] = {7, 3, 12, 21 + i};
        memcpy(tables + 4 * i, table, sizeof table);
        starts[i + 1] = 4 * (i + 1);
    }
    tables[20] = 30;
    starts[6] = 21;
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < 5; i++)
            rows[i] = (struct row){.sequence = i + 1, .position = 53 + t, .table = i};
        rows[5] = (struct row){.sequence = 9, .position = t, .table = 5};
        struct kernels_group g = {.first_row = 0, .n_rows = 5, .n_prefix_blocks = 3};
        step(&f, rows, 6, tables, starts, 6, &g, groups, out);
    }
    for (int i = 0; i < 6 && check; i++) {
        int history[56], last = i < 5 ? 55 : 2;
        for (int p = 0; p <= last; p++)
            history[p] = i == 5 ? 9 : p < 53 ? 0 : i + 1;
        for (int h = 0; h < s.n_heads; h++) {
            double want[128];
            expected(&f, history, last, h, want);
            for (int c = 0; c < s.head_dim; c++) {
                double got = (double)out[(size_t)i * width + (size_t)(h * s.head_dim + c)];
                ck_assert_msg(fabs(got - want[c]) < 1e-3,
                              "%s: row %d head %d dimension %d: %g is not %g", isa, i, h, c, got,
                              want[c]);
            }
        }
    }
    done(&f);
    return (struct story){out};
}

START_TEST(against_double) {
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int i = 0; i < 4; i++) {
            if (!can_run(isas[i])) continue;
            struct story a = tell(shapes[s], isas[i], 2, _i, true, true);
            free(a.outputs);
        }
}
END_TEST

START_TEST(bitwise_equal) {
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        size_t bytes = 6 * (size_t)(shapes[s].n_heads * shapes[s].head_dim) * sizeof(float);
        struct story first = tell(shapes[s], "generic", 1, _i, false, false);
        for (int i = 1; i < 4; i++)
            for (int variant = 0; variant < 3; variant++) {
                if (!can_run(isas[i])) continue;
                struct story a = tell(shapes[s], isas[i], 1 + variant, _i, variant % 2, false);
                ck_assert_msg(!memcmp(a.outputs, first.outputs, bytes),
                              "%s with %d threads differs", isas[i], 1 + variant);
                free(a.outputs);
            }
        free(first.outputs);
    }
}
END_TEST

/* A prompt gives the same in one step, in two, and one row at a time. */
START_TEST(chunks_of_a_prompt) {
    static const int chunks[] = {40, 17, 1};
    struct shape s = shapes[0];
    size_t width = (size_t)(s.n_heads * s.head_dim);
    float *first = NULL;
    for (int c = 0; c < 3; c++) {
        struct fixture f = make(s, "auto", 2, false);
        int32_t tables[] = {5, 4, 3}, starts[] = {0, 3};
        float *out = calloc(64 * width, sizeof *out), *all = calloc(64 * width, sizeof *all);
        for (int at = 0; at < 40; at += chunks[c]) {
            struct row rows[40];
            int n = 40 - at < chunks[c] ? 40 - at : chunks[c];
            for (int i = 0; i < n; i++)
                rows[i] = (struct row){.sequence = 0, .position = at + i};
            step(&f, rows, n, tables, starts, 1, NULL, 0, out);
            memcpy(all + (size_t)at * width, out, (size_t)n * width * sizeof *out);
        }
        if (first) ck_assert(!memcmp(first, all, 40 * width * sizeof *all));
        if (!first) {
            first = all;
        } else {
            free(all);
        }
        free(out);
        done(&f);
    }
    free(first);
}
END_TEST

/* What lies in a block beyond a row's position is never read, not even a NaN. */
START_TEST(nothing_beyond_the_position) {
    struct shape s = shapes[0];
    size_t width = (size_t)(s.n_heads * s.head_dim);
    float *out = calloc(64 * width, sizeof *out), *again = calloc(64 * width, sizeof *again);
    for (int i = 1; i < 4; i++) {
        if (!can_run(isas[i])) continue;
        struct fixture f = make(s, isas[i], 1, false);
        int32_t tables[] = {0}, starts[] = {0, 1};
        struct row rows[16];
        for (int p = 0; p < 16; p++)
            rows[p] = (struct row){.sequence = 0, .position = p};
        step(&f, rows, 4, tables, starts, 1, NULL, 0, out);
        f.inv_freq[0] = NAN; /* fills the block's rest with NaN */
        step(&f, rows + 4, 12, tables, starts, 1, NULL, 0, again);
        f.inv_freq[0] = 1;
        step(&f, rows, 4, tables, starts, 1, NULL, 0, again);
        ck_assert(!memcmp(out, again, 4 * width * sizeof *out));
        done(&f);
    }
    free(out);
    free(again);
}
END_TEST

static bool begin(struct fixture *f, struct kernels_batch b, struct err *e) {
    bool ok = kernels_backend("cpu")->batch_begin(f->dev, &b, e);
    if (ok) kernels_backend("cpu")->batch_end(f->dev);
    return ok;
}

START_TEST(batch_is_checked) {
    struct fixture f = make(shapes[0], "auto", 1, false);
    int32_t tokens[] = {1, 2}, positions[] = {16, 17}, tables[] = {0, 1, 0, 2},
            starts[] = {0, 2, 4};
    int32_t table_of_row[] = {0, 1}, logit_rows[] = {1};
    struct kernels_group g = {.first_row = 0, .n_rows = 2, .n_prefix_blocks = 1};
    struct kernels_batch b = {.n_rows = 2,
                              .tokens = tokens,
                              .positions = positions,
                              .tables = tables,
                              .table_starts = starts,
                              .table_of_row = table_of_row,
                              .n_tables = 2,
                              .groups = &g,
                              .n_groups = 1,
                              .logit_rows = logit_rows,
                              .n_logits = 1};
    struct err e = {0};
    ck_assert_msg(begin(&f, b, &e), "%s", e.message);
    struct kernels_batch bad = b;
    bad.n_rows = 0;
    ck_assert(!begin(&f, bad, &e));
    bad.n_rows = 65;
    ck_assert(!begin(&f, bad, &e) && strstr(e.message, "65") != NULL);
    positions[1] = 32; /* past its table */
    ck_assert(!begin(&f, b, &e) && strstr(e.message, "position 32") != NULL);
    positions[1] = 15; /* inside the prefix */
    ck_assert(!begin(&f, b, &e) && strstr(e.message, "prefix") != NULL);
    positions[1] = 17;
    tables[2] = 3; /* not the group's prefix */
    ck_assert(!begin(&f, b, &e));
    tables[2] = N_BLOCKS;
    ck_assert(!begin(&f, b, &e) && strstr(e.message, "block 40") != NULL);
    tables[2] = 0;
    table_of_row[1] = 2;
    ck_assert(!begin(&f, b, &e));
    table_of_row[1] = 1;
    logit_rows[0] = 2;
    ck_assert(!begin(&f, b, &e));
    logit_rows[0] = 0;
    g.n_rows = 3;
    ck_assert(!begin(&f, b, &e));
    g.n_rows = 2;
    ck_assert(begin(&f, b, &e));
    done(&f);
}
END_TEST

START_TEST(copies_all_layers) {
    struct shape s = shapes[0];
    struct fixture f = make(s, "auto", 1, false);
    const struct kernels *k = kernels_backend("cpu");
    size_t width = (size_t)(s.n_heads * s.head_dim);
    float *out = calloc(64 * width, sizeof *out), *again = calloc(64 * width, sizeof *again);
    int32_t tables[] = {0, 9}, starts[] = {0, 1, 2};
    struct row rows[8];
    for (int p = 0; p < 8; p++)
        rows[p] = (struct row){.sequence = 0, .position = p};
    step(&f, rows, 8, tables, starts, 2, NULL, 0, out);
    k->kv_copy_block(f.dev, 9, 0, 8);
    rows[0] = (struct row){.sequence = 4, .position = 8, .table = 0};
    rows[1] = (struct row){.sequence = 4, .position = 8, .table = 1};
    step(&f, rows, 2, tables, starts, 2, NULL, 0, again);
    ck_assert(!memcmp(again, again + width, width * sizeof *again));
    ck_assert_uint_eq(k->kv_bytes_per_block(f.dev, s.n_kv_heads, s.head_dim), 2 * 16 * 2 * 64 * 2);
    free(out);
    free(again);
    done(&f);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("attention");
    tcase_add_loop_test(t, against_double, 0, 2);
    tcase_add_loop_test(t, bitwise_equal, 0, 2);
    tcase_add_test(t, chunks_of_a_prompt);
    tcase_add_test(t, nothing_beyond_the_position);
    tcase_add_test(t, batch_is_checked);
    tcase_add_test(t, copies_all_layers);
    return run_tests(&t, 1, "attention");
}
