/* Rope, the paged cache and the attention kernels, emulated: against double precision written out
 * here, and bit for bit whoever shares a prompt, whatever the chunks, whoever else is in the step;
 * with keys and values in bf16 and in fp8. */
#include "tests/cuda/cuda_test.h"

enum { N_BLOCKS = 96, MAX_ROWS = 112, MAX_HISTORY = 320 };

struct shape {
    int n_heads, n_kv_heads, head_dim;
    bool fp8; /* keys and values */
};
/* 7, 6, 3, 1 and 16 query heads for one KV head. */
static const struct shape shapes[] = {{14, 2, 64, false}, {6, 1, 128, false}, {9, 3, 64, false},
                                      {2, 2, 128, false}, {16, 1, 64, false}, {14, 2, 64, true},
                                      {6, 1, 128, true},  {9, 3, 64, true}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

struct fixture {
    struct side s;
    struct shape shape;
    struct kernels_rope rope;
    float inv_freq[64];
    struct kernels_view qkv, out;
    int stride, width;
};

static struct fixture make(struct shape shape, bool interleaved) {
    struct fixture f = {
        .s = side_open_as("cuda", &(struct kernels_options){.n_threads = 1,
                                                            .isa = "auto",
                                                            .no_graphs = true,
                                                            .kv = shape.fp8 ? "fp8" : "bf16"}),
        .shape = shape};
    struct err e = {0};
    struct kernels_kv_shape kv = {2, shape.n_kv_heads, shape.head_dim, N_BLOCKS};
    ck_assert_msg(f.s.k->kv_open(f.s.dev, &kv, &e), "%s", e.message);
    side_reserve(&f.s, (struct kernels_step_shape){MAX_ROWS, 64, shape.n_heads, shape.head_dim, 10,
                                                   MAX_HISTORY + 200});
    f.stride = (shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim + 6;
    f.width = shape.n_heads * shape.head_dim;
    f.qkv = side_new(&f.s, NULL, MAX_ROWS * (size_t)f.stride * 4);
    f.out = side_new(&f.s, NULL, MAX_ROWS * (size_t)f.width * 4);
    f.rope = (struct kernels_rope){.n_rot = interleaved ? shape.head_dim / 2 : shape.head_dim,
                                   .interleaved = interleaved};
    for (int i = 0; i < f.rope.n_rot / 2; i++)
        f.inv_freq[i] = (float)pow(10000, -2.0 * i / f.rope.n_rot);
    return f;
}

static void done(struct fixture *f) {
    f->s.k->buffer_free(f->s.dev, f->qkv.buffer);
    f->s.k->buffer_free(f->s.dev, f->out.buffer);
    f->s.k->kv_close(f->s.dev);
    f->s.k->device_close(f->s.dev);
}

/* q, k and v of one position of one sequence: known from (sequence, position). */
static void inputs(const struct fixture *f, int sequence, int position, float *row) {
    struct random r = {(uint64_t)(sequence * 100000 + position + 1)};
    for (int i = 0; i < f->stride; i++)
        row[i] = 2 * random_float(&r);
}

struct row {
    int sequence, position, table; /* `sequence` names the input */
};
struct tables {
    int32_t blocks[4096], starts[MAX_ROWS + 1];
    int n;
};

static void add_table(struct tables *t, const int32_t *blocks, int n) {
    memcpy(t->blocks + t->starts[t->n], blocks, (size_t)n * sizeof *blocks);
    t->starts[t->n + 1] = t->starts[t->n] + n;
    t->n++;
}

/* One step of layer 1; out: what the operand holds, byte for byte, [n][width] of 4 bytes. */
static void step(struct fixture *f, const struct row *rows, int n, const struct tables *t,
                 const struct kernels_group *groups, int n_groups, float *out) {
    const struct kernels *k = f->s.k;
    int32_t tokens[MAX_ROWS] = {0}, positions[MAX_ROWS], table_of_row[MAX_ROWS];
    float *qkv = calloc((size_t)(n * f->stride), sizeof *qkv);
    for (int i = 0; i < n; i++) {
        positions[i] = rows[i].position;
        table_of_row[i] = rows[i].table;
        inputs(f, rows[i].sequence, rows[i].position, qkv + i * f->stride);
    }
    k->upload(f->s.dev, f->qkv, qkv, (size_t)(n * f->stride) * sizeof *qkv);
    free(qkv);
    struct kernels_batch b = {.n_rows = n,
                              .tokens = tokens,
                              .positions = positions,
                              .tables = t->blocks,
                              .table_starts = t->starts,
                              .table_of_row = table_of_row,
                              .n_tables = t->n,
                              .groups = groups,
                              .n_groups = n_groups};
    struct err e = {0};
    f->rope.inv_freq = f->inv_freq;
    size_t d = (size_t)f->shape.head_dim * 4;
    struct kernels_view keys = {f->qkv.buffer, (size_t)f->shape.n_heads * d};
    struct kernels_view values = {f->qkv.buffer,
                                  (size_t)(f->shape.n_heads + f->shape.n_kv_heads) * d};
    ck_assert_msg(k->batch_begin(f->s.dev, &b, &e), "%s", e.message);
    k->rope_append(f->s.dev, 1, &f->rope, f->qkv, keys, values, f->stride, f->shape.n_heads);
    k->attention(f->s.dev, 1, f->qkv, f->stride, f->shape.n_heads,
                 1 / sqrtf((float)f->shape.head_dim), f->out);
    k->batch_end(f->s.dev);
    side_read_operand(&f->s, f->out, out, n, f->width);
}

/* ---- double precision, from the formulas, with what is rounded to bf16 rounded ---- */

static void rotate(const struct fixture *f, int position, const float *x, double *out) {
    int n = f->rope.n_rot;
    for (int i = 0; i < f->shape.head_dim; i++)
        out[i] = (double)x[i];
    for (int i = 0; i < n / 2; i++) {
        int a = f->rope.interleaved ? 2 * i : i, b = f->rope.interleaved ? 2 * i + 1 : i + n / 2;
        double angle = position * (double)f->inv_freq[i];
        out[a] = (double)x[a] * cos(angle) - (double)x[b] * sin(angle);
        out[b] = (double)x[a] * sin(angle) + (double)x[b] * cos(angle);
    }
}

static void round_queries(const struct fixture *f, double *x) {
    for (int i = 0; i < f->shape.head_dim; i++)
        x[i] = (double)round_bf16((float)x[i]);
}

/* To the nearest fp8, ties to even, |x| <= 448: three bits after the first, exponents from -6 on.
 */
static double fp8_rounded(double x) {
    int exponent = fabs(x) < 0x1p-6 ? -6 : ilogb(x);
    return ldexp(nearbyint(ldexp(x, 3 - exponent)), exponent - 3);
}

/* A head's keys or values as the cache has them. */
static void round_stored(const struct fixture *f, double *x) {
    if (!f->shape.fp8) {
        round_queries(f, x);
        return;
    }
    double top = 0;
    for (int i = 0; i < f->shape.head_dim; i++)
        top = fmax(top, fabs(x[i]));
    float scale = (float)top / 448.0f;
    for (int i = 0; i < f->shape.head_dim; i++)
        x[i] = fp8_rounded(x[i] / (double)scale) * (double)scale;
}

/* Head h at `position` of a sequence whose position p had the input of sequence history[p]. */
static void expected(const struct fixture *f, const int *history, int position, int h,
                     double *out) {
    int d = f->shape.head_dim, kv = h / (f->shape.n_heads / f->shape.n_kv_heads);
    float *row = calloc((size_t)f->stride, sizeof *row);
    double q[128], k[128], v[128], scores[MAX_HISTORY], most = -INFINITY, total = 0;
    inputs(f, history[position], position, row);
    rotate(f, position, row + h * d, q);
    round_queries(f, q);
    for (int p = 0; p <= position; p++) {
        inputs(f, history[p], p, row);
        rotate(f, p, row + (f->shape.n_heads + kv) * d, k);
        round_stored(f, k);
        scores[p] = 0;
        for (int i = 0; i < d; i++)
            scores[p] += q[i] * k[i];
        scores[p] /= sqrt(d);
        most = fmax(most, scores[p]);
    }
    memset(out, 0, (size_t)d * sizeof *out);
    for (int p = 0; p <= position; p++) {
        inputs(f, history[p], p, row);
        double w = exp(scores[p] - most);
        total += w;
        for (int i = 0; i < d; i++)
            v[i] = (double)row[(f->shape.n_heads + f->shape.n_kv_heads + kv) * d + i];
        round_stored(f, v);
        for (int i = 0; i < d; i++)
            out[i] += w * v[i];
    }
    for (int i = 0; i < d; i++)
        out[i] /= total;
    free(row);
}

/* A rotation that is off by an ulp can round to the next code, a sixteenth away: hence twice as
 * much with fp8. */
static void check_row(const struct fixture *f, const int *history, int position, const float *got) {
    for (int h = 0; h < f->shape.n_heads; h++) {
        double want[128];
        expected(f, history, position, h, want);
        for (int c = 0; c < f->shape.head_dim; c++) {
            double is = (double)got[h * f->shape.head_dim + c];
            ck_assert_msg(fabs(is - want[c]) < (f->shape.fp8 ? 0.024 : 0.012),
                          "position %d head %d dimension %d: %g is not %g", position, h, c, is,
                          want[c]);
        }
    }
}

/* ---- a prompt, then siblings that share its full blocks, and beside them a stranger ---- */

struct plot {
    int prompt, chunk, siblings, steps;
    bool groups;  /* the siblings are named as a group */
    bool alone;   /* only sibling 0 is in the steps */
    bool checked; /* against double precision */
};

/* Blocks of the prompt are scattered over the pool. */
static int prompt_block(int i) { return (i * 29 + 7) % 61; }

/* The outputs of sibling 0 in the last step. */
static void tell(struct shape shape, bool interleaved, struct plot plot, float *sibling) {
    struct fixture f = make(shape, interleaved);
    float *out = calloc(MAX_ROWS * (size_t)f.width, sizeof *out);
    static struct row rows[MAX_ROWS];
    static struct tables t;
    memset(&t, 0, sizeof t);
    int32_t blocks[64];
    int n_blocks = (plot.prompt + 15) / 16, full = plot.prompt / 16, history[MAX_HISTORY];
    for (int i = 0; i < n_blocks; i++)
        blocks[i] = prompt_block(i);
    add_table(&t, blocks, n_blocks);
    for (int p = 0; p < MAX_HISTORY; p++)
        history[p] = 0;
    for (int at = 0; at < plot.prompt; at += plot.chunk) {
        int n = plot.prompt - at < plot.chunk ? plot.prompt - at : plot.chunk;
        for (int i = 0; i < n; i++)
            rows[i] = (struct row){.sequence = 0, .position = at + i};
        step(&f, rows, n, &t, NULL, 0, out);
        if (!plot.checked) continue;
        check_row(&f, history, at, out);
        check_row(&f, history, at + n - 1, out + (n - 1) * f.width);
    }
    memset(&t, 0, sizeof t);
    int siblings = plot.alone ? 1 : plot.siblings;
    for (int i = 0; i < siblings; i++) {
        int own = 61 + i;
        if (plot.prompt % 16) f.s.k->kv_copy_block(f.s.dev, own, blocks[full], plot.prompt % 16);
        int32_t mine[64];
        memcpy(mine, blocks, (size_t)full * sizeof *mine);
        mine[full] = own;
        add_table(&t, mine, full + 1);
    }
    int32_t stranger = N_BLOCKS - 1;
    add_table(&t, &stranger, 1);
    for (int turn = 0; turn < plot.steps; turn++) {
        int n = 0;
        for (int i = 0; i < siblings; i++)
            rows[n++] = (struct row){i + 1, plot.prompt + turn, i};
        if (!plot.alone) rows[n++] = (struct row){900, turn, siblings};
        struct kernels_group g = {.first_row = 0, .n_rows = siblings, .n_prefix_blocks = full};
        step(&f, rows, n, &t, &g, plot.groups, out);
    }
    memcpy(sibling, out, (size_t)f.width * sizeof *out);
    int last = plot.prompt + plot.steps - 1;
    for (int i = 0; i <= siblings && plot.checked; i++) {
        for (int p = 0; p <= last; p++)
            history[p] = i == siblings ? 900 : p < plot.prompt ? 0 : i + 1;
        check_row(&f, history, i == siblings ? plot.steps - 1 : last, out + i * f.width);
    }
    free(out);
    done(&f);
}

/* Prompts that end inside a block, at one, inside and beyond a split of 256 positions. */
static const struct plot plots[] = {
    {.prompt = 53, .chunk = 20, .siblings = 5, .steps = 3, .groups = true, .checked = true},
    {.prompt = 64, .chunk = 64, .siblings = 11, .steps = 2, .groups = true, .checked = true},
    {.prompt = 1, .chunk = 1, .siblings = 3, .steps = 4, .groups = true, .checked = true},
    {.prompt = 277, .chunk = 100, .siblings = 3, .steps = 2, .groups = true, .checked = true},
};
enum { N_PLOTS = sizeof plots / sizeof *plots };

START_TEST(against_double) {
    struct plot p = plots[_i % N_PLOTS];
    struct shape s = shapes[_i / N_PLOTS];
    float *out = calloc((size_t)(s.n_heads * s.head_dim), sizeof *out);
    use_order(_i % N_ORDERS);
    tell(s, _i % 2, p, out);
    free(out);
}
END_TEST

/* A candidate's numbers don't depend on whether the prompt is read once for all, how it was cut
 * into chunks, who else is there, and the order in which threads run. */
START_TEST(bitwise_equal) {
    struct shape s = shapes[_i / N_PLOTS];
    struct plot p = plots[_i % N_PLOTS];
    size_t bytes = (size_t)(s.n_heads * s.head_dim) * sizeof(float);
    float *first = malloc(bytes), *again = malloc(bytes);
    p.checked = false;
    use_order(0);
    tell(s, false, p, first);
    for (int variant = 0; variant < 4; variant++) {
        struct plot q = p;
        use_order(variant % N_ORDERS);
        if (variant == 0) q.groups = false;
        if (variant == 1) q.alone = true;
        if (variant == 2) q.chunk = p.chunk > 2 ? p.chunk / 2 - 1 : 1;
        if (variant == 3) q.siblings = p.siblings + 13;
        tell(s, false, q, again);
        ck_assert_msg(!memcmp(first, again, bytes), "variant %d differs", variant);
    }
    free(first);
    free(again);
}
END_TEST

/* What lies in a block beyond a row's position is never read, not even a NaN. */
START_TEST(nothing_beyond_the_position) {
    for (int i = 0; i < N_SHAPES; i++) {
        struct fixture f = make(shapes[i], false);
        size_t n = 4 * (size_t)f.width;
        float *out = calloc(16 * (size_t)f.width, sizeof *out), *again = calloc(n * 4, sizeof *out);
        struct tables *t = calloc(1, sizeof *t);
        struct row rows[16];
        int32_t block = 0;
        add_table(t, &block, 1);
        for (int p = 0; p < 16; p++)
            rows[p] = (struct row){.sequence = 0, .position = p};
        step(&f, rows, 4, t, NULL, 0, out); /* the rest of the block is NaN: fresh memory */
        for (size_t k = 0; k < n; k++)
            ck_assert(!isnan(out[k]));
        step(&f, rows + 4, 12, t, NULL, 0, again);
        step(&f, rows, 4, t, NULL, 0, again);
        ck_assert(!memcmp(out, again, n * sizeof *out));
        free(out);
        free(again);
        free(t);
        done(&f);
    }
}
END_TEST

/* Chains, swaps and many copies at once, as if each were done at once. */
START_TEST(copies_in_order) {
    struct fixture f = make(shapes[0], false);
    float *out = calloc(MAX_ROWS * (size_t)f.width, sizeof *out);
    struct tables *t = calloc(1, sizeof *t);
    struct row rows[MAX_ROWS];
    for (int s = 0; s < 4; s++) {
        int32_t block = s;
        add_table(t, &block, 1);
        for (int p = 0; p < 15; p++)
            rows[s * 15 + p] = (struct row){.sequence = s, .position = p, .table = s};
    }
    step(&f, rows, 60, t, NULL, 0, out);
    f.s.k->kv_copy_block(f.s.dev, 40, 0, 15);
    f.s.k->kv_copy_block(f.s.dev, 41, 40, 15); /* reads what was just written */
    f.s.k->kv_copy_block(f.s.dev, 0, 1, 15);   /* overwrites what was just read */
    f.s.k->kv_copy_block(f.s.dev, 1, 41, 15);
    f.s.k->kv_copy_block(f.s.dev, 2, 2, 15);
    memset(t, 0, sizeof *t);
    static const int32_t blocks[] = {0, 1, 2, 40, 41};
    static const int holds[] = {1, 0, 2, 0, 0};
    for (int i = 0; i < 5; i++) {
        add_table(t, &blocks[i], 1);
        rows[i] = (struct row){.sequence = 50, .position = 15, .table = i};
    }
    step(&f, rows, 5, t, NULL, 0, out);
    for (int i = 0; i < 5; i++) {
        int history[16];
        for (int p = 0; p < 16; p++)
            history[p] = p < 15 ? holds[i] : 50;
        check_row(&f, history, 15, out + i * f.width);
    }
    free(out);
    free(t);
    done(&f);
}
END_TEST

START_TEST(batch_is_checked) {
    struct fixture f = make(shapes[0], false);
    int32_t tokens[] = {1, 2}, positions[] = {16, 17}, tables[] = {0, 1, 0, 2},
            starts[] = {0, 2, 4}, table_of_row[] = {0, 1};
    struct kernels_batch b = {.n_rows = 2,
                              .tokens = tokens,
                              .positions = positions,
                              .tables = tables,
                              .table_starts = starts,
                              .table_of_row = table_of_row,
                              .n_tables = 2};
    struct err e = {0};
    ck_assert_msg(f.s.k->batch_begin(f.s.dev, &b, &e), "%s", e.message);
    f.s.k->batch_end(f.s.dev);
    tables[1] = N_BLOCKS;
    ck_assert(!f.s.k->batch_begin(f.s.dev, &b, &e) && strstr(e.message, "block 96") != NULL);
    tables[1] = 1;
    positions[1] = 32;
    ck_assert(!f.s.k->batch_begin(f.s.dev, &b, &e) && strstr(e.message, "position 32") != NULL);
    b.n_rows = MAX_ROWS + 1;
    ck_assert(!f.s.k->batch_begin(f.s.dev, &b, &e) && strstr(e.message, "113") != NULL);
    done(&f);
}
END_TEST

int main(void) {
    if (!cuda_test_can_run()) return 77;
    TCase *t[] = {tcase_create("numbers"), tcase_create("company")};
    tcase_add_loop_test(t[0], against_double, 0, N_SHAPES * N_PLOTS);
    tcase_add_test(t[0], nothing_beyond_the_position);
    tcase_add_test(t[0], copies_in_order);
    tcase_add_test(t[0], batch_is_checked);
    tcase_add_loop_test(t[1], bitwise_equal, 0, N_SHAPES * N_PLOTS);
    return run_tests(t, 2, "cuda attention");
}
