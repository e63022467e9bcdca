/* Every length of prompt, every number of rows, a trie that splits again and again: the CUDA
 * backend, emulated, against the CPU definition, for each number of query heads a KV head and each
 * head size; and by name, that no kernel is left to a device alone. */
#include "kernels/cuda/state.h"
#include "tests/cuda/step_test.h"

#include <jansson.h>

/* Narrow, so that all lengths and widths are soon done. */
static struct tiny_model shapes[] = {
    {.architecture = "qwen2",
     .n_layers = 1,
     .n_embd = 64,
     .n_heads = 7,
     .n_kv_heads = 1,
     .head_dim = 64,
     .n_ff = 96,
     .context = STEP_CONTEXT,
     .seed = 11},
    {.architecture = "llama",
     .n_layers = 1,
     .n_embd = 192,
     .n_heads = 6,
     .n_kv_heads = 2,
     .head_dim = 128,
     .n_ff = 160,
     .context = STEP_CONTEXT,
     .seed = 12},
    {.architecture = "qwen2",
     .n_layers = 1,
     .n_embd = 96,
     .n_heads = 6,
     .n_kv_heads = 1,
     .head_dim = 128,
     .n_ff = 32,
     .context = STEP_CONTEXT,
     .seed = 13},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, LONGEST = 200, WIDEST = 70, SHARED = 37 };

/* ---- lengths and widths ---- */

/* All rows of one prompt are near the CPU's; and a prompt that ends at any of them gives, bit for
 * bit, what that row gave. */
static void check_lengths(struct step_run *cuda, struct step_run *cpu, struct step_rows *s) {
    static float all[LONGEST][TINY_VOCAB], last[TINY_VOCAB];
    step_rows_prompt(s, LONGEST, true);
    step_run_forward(cuda, s);
    step_run_forward(cpu, s);
    step_check_logits(cuda, cpu, LONGEST, TINY_VOCAB);
    for (int row = 0; row < LONGEST; row++)
        step_run_logits(cuda, row, all[row]);
    for (int n = 1; n <= LONGEST; n += n < 34 ? 1 : 9) {
        use_order(n % N_ORDERS);
        step_rows_prompt(s, n, false);
        step_run_forward(cuda, s);
        step_run_logits(cuda, 0, last);
        ck_assert_msg(!memcmp(last, all[n - 1], sizeof last), "a prompt of %d", n);
    }
}

/* The same of siblings, 1 to 70 of them. */
static void check_widths(struct step_run *cuda, struct step_run *cpu, struct step_rows *s) {
    static float all[WIDEST][TINY_VOCAB], row[TINY_VOCAB];
    struct step_run *both[] = {cuda, cpu};
    for (int i = 0; i < 2; i++) {
        step_rows_prompt(s, SHARED, false);
        step_run_forward(both[i], s);
        step_run_copy_last_block(both[i], SHARED, WIDEST);
        step_rows_siblings(s, SHARED, WIDEST, 0);
        step_run_forward(both[i], s);
    }
    step_check_logits(cuda, cpu, WIDEST, TINY_VOCAB);
    for (int r = 0; r < WIDEST; r++)
        step_run_logits(cuda, r, all[r]);
    for (int n = 1; n <= WIDEST; n++) {
        use_order(n % N_ORDERS);
        step_rows_siblings(s, SHARED, n, 0);
        step_run_forward(cuda, s);
        for (int r = 0; r < n; r++) {
            step_run_logits(cuda, r, row);
            ck_assert_msg(!memcmp(row, all[r], sizeof row), "row %d of %d", r, n);
        }
    }
}

START_TEST(every_length_and_width) {
    tiny_model_write(&shapes[_i]);
    struct step_run cuda = step_run_open(shapes[_i].path, "cuda", "auto", true, NULL),
                    cpu = step_run_open(shapes[_i].path, "cpu", "reference", false, NULL);
    struct step_rows *s = calloc(1, sizeof *s);
    check_lengths(&cuda, &cpu, s);
    check_widths(&cuda, &cpu, s);
    free(s);
    step_run_close(&cuda);
    step_run_close(&cpu);
    unlink(shapes[_i].path);
}
END_TEST

/* ---- a trie that splits ---- */

enum { TURNS = 30, LEAVES = 8, BLOCKS = 6 };

/* Before which turn which branch leaves which; -1: the prompt.  The prompt ends within a block, at
 * turn 11 and 27 a block begins: forks before, at and after that, and of forks. */
static const struct {
    int turn, from;
} forks[LEAVES] = {{0, -1}, {2, 0}, {5, 0}, {5, 1}, {11, 1}, {13, 3}, {27, 5}, {29, 6}};

struct trie {
    int32_t tables[LEAVES][BLOCKS];
    int n, next_block;
};

/* Branch t->n goes on where its parent is: full blocks are shared, the last one is copied. */
static void fork_off(struct trie *t, const struct kernels *k, struct kernels_device *dev,
                     int position) {
    int from = forks[t->n].from, full = position / KERNELS_BLOCK, rest = position % KERNELS_BLOCK;
    int32_t *to = t->tables[t->n];
    for (int i = 0; i <= full; i++)
        to[i] = from < 0 ? i * 3 % 97 : t->tables[from][i];
    if (rest) {
        int32_t shared = to[full];
        to[full] = t->next_block++;
        k->kv_copy_block(dev, to[full], shared, rest);
    }
    t->n++;
}

static void trie_step(struct trie *t, struct step_run *r, struct step_rows *s, int turn) {
    int position = SHARED + turn, last = position / KERNELS_BLOCK;
    while (t->n < LEAVES && forks[t->n].turn == turn)
        fork_off(t, r->s.k, r->s.dev, position);
    memset(s, 0, sizeof *s);
    for (int i = 0; i < t->n; i++) {
        if (position % KERNELS_BLOCK == 0) t->tables[i][last] = t->next_block++;
        add_table(s, t->tables[i], last + 1);
        add_row(s, step_token_at(i + 1, position), position, i, true);
    }
    s->groups[0] = (struct kernels_group){0, t->n, SHARED / KERNELS_BLOCK};
    s->batch.n_groups = t->n > 1;
    step_run_forward(r, s);
}

START_TEST(a_trie_that_splits) {
    tiny_model_write(&shapes[_i]);
    struct step_run cuda = step_run_open(shapes[_i].path, "cuda", "auto", true, NULL),
                    cpu = step_run_open(shapes[_i].path, "cpu", "reference", false, NULL);
    struct step_run *both[] = {&cuda, &cpu};
    struct step_rows *s = calloc(1, sizeof *s);
    struct trie tries[2] = {{.next_block = 100}, {.next_block = 100}};
    for (int i = 0; i < 2; i++) {
        step_rows_prompt(s, SHARED, false);
        step_run_forward(both[i], s);
    }
    for (int turn = 0; turn < TURNS; turn++) {
        use_order(turn % N_ORDERS);
        for (int i = 0; i < 2; i++)
            trie_step(&tries[i], both[i], s, turn);
        step_check_logits(&cuda, &cpu, tries[0].n, TINY_VOCAB);
    }
    ck_assert_int_eq(tries[0].n, LEAVES);
    free(s);
    step_run_close(&cuda);
    step_run_close(&cpu);
    unlink(shapes[_i].path);
}
END_TEST

/* ---- kernels by name ---- */

/* A step with everything in it: logits of siblings, and draws. */
static void run_all(int model, struct kernels_options o) {
    struct step_run r = step_run_open_as(step_models[model].path, "cuda", o, STEP_ROWS);
    struct step_rows *s = calloc(1, sizeof *s);
    struct kernels_drawn drawn[3];
    struct kernels_draw draws[3];
    struct err e = {0};
    step_rows_prompt(s, SHARED, false);
    step_run_forward(&r, s);
    step_run_copy_last_block(&r, SHARED, 3);
    step_rows_siblings(s, SHARED, 3, 0);
    step_run_forward(&r, s);
    for (int i = 0; i < 3; i++)
        draws[i] =
            (struct kernels_draw){.logit_row = i, .temperature = 1, .top_p = 0.9f, .repetition = 1};
    struct kernels_draws all = {.draws = draws, .n_draws = 3};
    step_draw(r.step, &all);
    ck_assert_msg(step_collect(r.step, drawn, 3, &e), "%s", e.message);
    free(s);
    step_run_close(&r);
}

/* What cuBLASLt lacks on some devices: the two kernels that its products are made up by. */
static void run_made_up_products(void) {
    struct side s = side_cuda();
    float ones[64];
    for (int i = 0; i < 64; i++)
        ones[i] = 1;
    struct kernels_view v = side_new(&s, ones, sizeof ones), y = side_new(&s, ones, sizeof ones);
    float *in = (float *)(void *)v.buffer->data, *out = (float *)(void *)y.buffer->data;
    struct launch_scale scale = {
        .raw = in, .w_scales = in, .x_scales = in, .y = out, .n = 64, .rows = 1};
    struct launch_bias bias = {
        .bias = in, .y = out, .n = 64, .y_stride = 64, .rows = 1, .add = true};
    launch_scale(gpu_stream(s.dev->gpu), &scale);
    launch_bias(gpu_stream(s.dev->gpu), &bias);
    side_read(&s, y, ones, sizeof ones);
    for (int i = 0; i < 64; i++)
        ck_assert(ones[i] == 2);
    s.k->buffer_free(s.dev, v.buffer);
    s.k->buffer_free(s.dev, y.buffer);
    s.k->device_close(s.dev);
}

/* Of the table of tests/cuda/gates.py, which has every kernel that nvcc makes: each has run here,
 * and says so by its name.  Head sizes and element types of attention are the launcher's choice
 * among equals, and tests/cuda/test_cuda_attention.c has them all. */
START_TEST(no_kernel_is_left_to_a_device) {
    for (int i = 0; i < STEP_MODELS; i++) {
        tiny_model_write(&step_models[i]);
        run_all(i, (struct kernels_options){.isa = "auto"});
        if (!i) run_all(i, (struct kernels_options){.isa = "auto", .weights = "fp8", .kv = "fp8"});
        unlink(step_models[i].path);
    }
    run_made_up_products();
    json_t *root = json_load_file("tests/cuda/kernels.json", 0, NULL), *ignored;
    ck_assert(root != NULL);
    const char *full;
    int n = 0;
    json_object_foreach(json_object_get(root, "kernels"), full, ignored) {
        char name[64];
        /* attention_tile<64, false> is launched as `tile`. */
        const char *begin = strncmp(full, "attention_", 10) ? full : full + 10;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(begin, "<"), begin);
        ck_assert_msg(emulate_has_run(name), "%s has never run in the emulation", full);
        n++;
    }
    ck_assert_int_gt(n, 20);
    json_decref(root);
}
END_TEST

int main(void) {
    if (!cuda_test_can_run()) return 77;
    TCase *t = tcase_create("cuda shapes");
    tcase_add_loop_test(t, every_length_and_width, 0, N_SHAPES);
    tcase_add_loop_test(t, a_trie_that_splits, 0, N_SHAPES);
    tcase_add_test(t, no_kernel_is_left_to_a_device);
    return run_tests(&t, 1, "cuda shapes");
}
