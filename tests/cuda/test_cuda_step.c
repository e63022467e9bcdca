/* Whole forward passes on small models of Qwen's and Llama's shape: the CUDA backend, emulated,
 * against the CPU definition; recorded steps against plain ones; nothing allocated while it serves.
 */
#include "engine/step.h"
#include "kernels/cuda/state.h"
#include "tests/cuda/cuda_test.h"
#include "tests/engine/tiny_model.h"

enum { N_BLOCKS = 400, MAX_ROWS = 256, CONTEXT = 512 };

/* 7, 6 and 3 query heads for one KV head; head sizes 64 and 128; odd widths. */
static struct tiny_model models[] = {
    {.architecture = "qwen2",
     .n_layers = 2,
     .n_embd = 448,
     .n_heads = 7,
     .n_kv_heads = 1,
     .n_ff = 352,
     .context = CONTEXT,
     .seed = 3},
    {.architecture = "llama",
     .n_layers = 2,
     .n_embd = 576,
     .n_heads = 9,
     .n_kv_heads = 3,
     .n_ff = 608,
     .context = CONTEXT,
     .seed = 4},
    {.architecture = "qwen2",
     .n_layers = 1,
     .n_embd = 768,
     .n_heads = 6,
     .n_kv_heads = 1,
     .n_ff = 160,
     .context = CONTEXT,
     .seed = 5},
};
enum { N_MODELS = sizeof models / sizeof *models };

struct run {
    struct side s;
    struct model *model;
    struct step *step;
};

static struct run open_run(const char *path, const char *backend, const char *isa, bool graphs) {
    struct run r = {.s = side_open(backend, isa, graphs)};
    struct err e = {0};
    ck_assert_msg((r.model = model_open(path, &e)) != NULL, "%s", e.message);
    ck_assert_msg(model_load(r.model, r.s.k, r.s.dev, NULL, NULL, &e), "%s", e.message);
    const struct model_shape *m = &r.model->shape;
    struct kernels_kv_shape kv = {m->n_layers, m->n_kv_heads, m->head_dim, N_BLOCKS};
    ck_assert_msg(r.s.k->kv_open(r.s.dev, &kv, &e), "%s", e.message);
    int widest = m->n_ff > m->n_embd ? m->n_ff : m->n_embd;
    side_reserve(&r.s, (struct kernels_step_shape){MAX_ROWS, widest, m->n_heads, m->head_dim,
                                                   m->n_vocab, CONTEXT});
    ck_assert_msg((r.step = step_new(r.model, MAX_ROWS, MAX_ROWS, &e)) != NULL, "%s", e.message);
    return r;
}

static void close_run(struct run *r) {
    step_free(r->step);
    r->s.k->kv_close(r->s.dev);
    model_free(r->model);
    r->s.k->device_close(r->s.dev);
}

/* ---- batches ---- */

struct steps {
    int32_t tokens[MAX_ROWS], positions[MAX_ROWS], tables[MAX_ROWS * 32], starts[MAX_ROWS + 1],
        table_of_row[MAX_ROWS], logit_rows[MAX_ROWS];
    struct kernels_group groups[8];
    struct kernels_batch batch;
};

static int32_t token_at(int sequence, int position) {
    return (int32_t)((unsigned)(sequence * 7919 + position * 104729 + 13) % 250);
}

static void add_table(struct steps *s, const int32_t *blocks, int n) {
    int t = s->batch.n_tables++;
    memcpy(s->tables + s->starts[t], blocks, (size_t)n * sizeof *blocks);
    s->starts[t + 1] = s->starts[t] + n;
}

static void add_row(struct steps *s, int32_t token, int position, int table, bool logits) {
    int r = s->batch.n_rows++;
    s->tokens[r] = token;
    s->positions[r] = position;
    s->table_of_row[r] = table;
    if (logits) s->logit_rows[s->batch.n_logits++] = r;
}

static struct kernels_batch *batch_of(struct steps *s) {
    s->batch.tokens = s->tokens;
    s->batch.positions = s->positions;
    s->batch.tables = s->tables;
    s->batch.table_starts = s->starts;
    s->batch.table_of_row = s->table_of_row;
    s->batch.groups = s->groups;
    s->batch.logit_rows = s->logit_rows;
    return &s->batch;
}

static void forward(struct run *r, struct steps *s) {
    struct err e = {0};
    ck_assert_msg(step_forward(r->step, batch_of(s), &e), "%s", e.message);
}

static void logits_of(struct run *r, int row, float *out) {
    struct err e = {0};
    ck_assert_msg(step_logits(r->step, row, out, &e), "%s", e.message);
}

/* A prompt of sequence 0 in its own blocks, logits of the last row; or of all. */
static void prompt_steps(struct steps *s, int n, bool all) {
    memset(s, 0, sizeof *s);
    int32_t blocks[32];
    for (int i = 0; i < 32; i++)
        blocks[i] = i * 3 % 97;
    add_table(s, blocks, (n + 15) / 16);
    for (int p = 0; p < n; p++)
        add_row(s, token_at(0, p), p, 0, all || p == n - 1);
}

/* One position of each of n siblings after a prompt of n_prompt, sharing its full blocks. */
static void sibling_steps(struct steps *s, int n_prompt, int n, int turn) {
    memset(s, 0, sizeof *s);
    int full = n_prompt / 16;
    for (int i = 0; i < n; i++) {
        int32_t blocks[32];
        for (int k = 0; k < full; k++)
            blocks[k] = k * 3 % 97;
        for (int k = full; k < 32; k++)
            blocks[k] = 100 + 2 * i + (k - full);
        add_table(s, blocks, full + 2);
        add_row(s, token_at(i + 1, n_prompt + turn), n_prompt + turn, i, true);
    }
    if (n > 1 && full) {
        s->groups[0] = (struct kernels_group){0, n, full};
        s->batch.n_groups = 1;
    }
}

static void copy_last_block(struct run *r, int n_prompt, int n) {
    if (n_prompt % 16)
        for (int i = 0; i < n; i++)
            r->s.k->kv_copy_block(r->s.dev, 100 + 2 * i, n_prompt / 16 * 3 % 97, n_prompt % 16);
}

/* ---- logits ---- */

static void check_logits(struct run *got, struct run *want, int n_rows, int n_vocab) {
    float *a = malloc((size_t)n_vocab * 4), *b = malloc((size_t)n_vocab * 4);
    for (int row = 0; row < n_rows; row++) {
        logits_of(got, row, a);
        logits_of(want, row, b);
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
        /* Everything between is rounded to bf16, 2^-9 of it on average: within 2e-2 of the logits'
         * size in the mean square. */
        ck_assert_msg(worst <= 6e-2 * spread && sqrt(error / n_vocab) <= 2e-2 * spread,
                      "row %d of %d: logits differ by %g, %g in the mean square; they are %g", row,
                      n_rows, worst, sqrt(error / n_vocab), spread);
        if (margin > 12e-2 * spread) ck_assert_int_eq(top_a, top_b);
    }
    free(a);
    free(b);
}

START_TEST(logits_like_the_cpu) {
    static const int prompts[] = {1, 2, 15, 16, 17, 63, 200};
    static const int widths[] = {1, 2, 5, 70};
    tiny_model_write(&models[_i]);
    struct run cuda = open_run(models[_i].path, "cuda", "auto", true),
               cpu = open_run(models[_i].path, "cpu", "reference", false);
    int n_vocab = cpu.model->shape.n_vocab;
    struct steps *s = calloc(1, sizeof *s);
    for (size_t p = 0; p < sizeof prompts / sizeof *prompts; p++) {
        use_order((int)p % N_ORDERS);
        prompt_steps(s, prompts[p], prompts[p] < 20);
        forward(&cuda, s);
        forward(&cpu, s);
        check_logits(&cuda, &cpu, s->batch.n_logits, n_vocab);
        int n = widths[p % 4];
        copy_last_block(&cuda, prompts[p], n);
        copy_last_block(&cpu, prompts[p], n);
        for (int turn = 0; turn < 3; turn++) {
            sibling_steps(s, prompts[p], n, turn);
            forward(&cuda, s);
            forward(&cpu, s);
            check_logits(&cuda, &cpu, n, n_vocab);
        }
    }
    free(s);
    close_run(&cuda);
    close_run(&cpu);
    unlink(models[_i].path);
}
END_TEST

/* Steps that are recorded and run again give what steps queued one by one give, bit for bit, while
 * row counts grow and shrink within and across buckets; and no step takes device memory. */
START_TEST(graphs_change_nothing) {
    static const int widths[] = {1, 1, 1, 3, 4, 3, 4, 4, 2, 33, 40, 64, 33, 5, 1};
    tiny_model_write(&models[_i]);
    struct run plain = open_run(models[_i].path, "cuda", "auto", false),
               graphs = open_run(models[_i].path, "cuda", "auto", true);
    size_t n_vocab = (size_t)plain.model->shape.n_vocab;
    float *a = malloc(n_vocab * 4), *b = malloc(n_vocab * 4);
    struct steps *s = calloc(1, sizeof *s);
    prompt_steps(s, 37, false);
    forward(&plain, s);
    forward(&graphs, s);
    copy_last_block(&plain, 37, 64);
    copy_last_block(&graphs, 37, 64);
    int before = gpu_allocations(graphs.s.dev->gpu);
    for (size_t turn = 0; turn < sizeof widths / sizeof *widths; turn++) {
        sibling_steps(s, 37, widths[turn], (int)turn);
        forward(&plain, s);
        forward(&graphs, s);
        for (int row = 0; row < widths[turn]; row++) {
            logits_of(&plain, row, a);
            logits_of(&graphs, row, b);
            ck_assert_msg(!memcmp(a, b, n_vocab * 4), "turn %zu row %d", turn, row);
        }
    }
    ck_assert_int_gt(graphs.s.dev->n_graphs, 3);
    ck_assert_int_eq(plain.s.dev->n_graphs, 0);
    ck_assert_int_eq(gpu_allocations(graphs.s.dev->gpu), before);
    free(a);
    free(b);
    free(s);
    close_run(&plain);
    close_run(&graphs);
    unlink(models[_i].path);
}
END_TEST

/* A row's logits are the same alone and among others, whatever shares its prompt. */
START_TEST(a_row_alone) {
    tiny_model_write(&models[_i]);
    struct run many = open_run(models[_i].path, "cuda", "auto", true),
               alone = open_run(models[_i].path, "cuda", "auto", true);
    size_t n_vocab = (size_t)many.model->shape.n_vocab;
    float *a = malloc(n_vocab * 4), *b = malloc(n_vocab * 4);
    struct steps *s = calloc(1, sizeof *s);
    prompt_steps(s, 50, false);
    forward(&many, s);
    forward(&alone, s);
    copy_last_block(&many, 50, 30);
    copy_last_block(&alone, 50, 1);
    for (int turn = 0; turn < 4; turn++) {
        sibling_steps(s, 50, 30, turn);
        forward(&many, s);
        sibling_steps(s, 50, 1, turn);
        forward(&alone, s);
        logits_of(&many, 0, a);
        logits_of(&alone, 0, b);
        ck_assert(!memcmp(a, b, n_vocab * 4));
    }
    free(a);
    free(b);
    free(s);
    close_run(&many);
    close_run(&alone);
    unlink(models[_i].path);
}
END_TEST

#ifdef KERNELS_HOST_EMULATION
/* A device error is told by the step that meets it and by all after it. */
START_TEST(a_failed_device_stays_failed) {
    tiny_model_write(&models[0]);
    struct run r = open_run(models[0].path, "cuda", "auto", true);
    struct err e = {0};
    struct steps *s = calloc(1, sizeof *s);
    prompt_steps(s, 5, false);
    forward(&r, s);
    gpu_host_fail(gpu_stream(r.s.dev->gpu));
    for (int i = 0; i < 2; i++) {
        ck_assert(!step_forward(r.step, batch_of(s), &e));
        ck_assert(e.kind == ERR_SYSTEM && strstr(e.message, "device has failed"));
    }
    free(s);
    close_run(&r);
    unlink(models[0].path);
}
END_TEST
#endif

int main(void) {
    if (!cuda_test_can_run()) return 77;
    TCase *t = tcase_create("cuda step");
    tcase_add_loop_test(t, logits_like_the_cpu, 0, N_MODELS);
    tcase_add_loop_test(t, graphs_change_nothing, 0, N_MODELS);
    tcase_add_loop_test(t, a_row_alone, 0, N_MODELS);
#ifdef KERNELS_HOST_EMULATION
    tcase_add_test(t, a_failed_device_stays_failed);
#endif
    return run_tests(&t, 1, "cuda step");
}
