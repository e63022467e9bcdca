/* Whole forward passes on small models of Qwen's and Llama's shape: the CUDA backend, emulated,
 * against the CPU definition; recorded steps against plain ones; nothing allocated while it serves.
 */
#include "kernels/cuda/state.h"
#include "tests/cuda/step_test.h"

/* ---- logits ---- */

START_TEST(logits_like_the_cpu) {
    static const int prompts[] = {1, 2, 15, 16, 17, 63, 200};
    static const int widths[] = {1, 2, 5, 70};
    tiny_model_write(&step_models[_i]);
    struct step_run cuda = step_run_open(step_models[_i].path, "cuda", "auto", true, NULL),
                    cpu = step_run_open(step_models[_i].path, "cpu", "reference", false, NULL);
    int n_vocab = cpu.model->shape.n_vocab;
    struct step_rows *s = calloc(1, sizeof *s);
    for (size_t p = 0; p < sizeof prompts / sizeof *prompts; p++) {
        use_order((int)p % N_ORDERS);
        step_rows_prompt(s, prompts[p], prompts[p] < 20);
        step_run_forward(&cuda, s);
        step_run_forward(&cpu, s);
        step_check_logits(&cuda, &cpu, s->batch.n_logits, n_vocab);
        int n = widths[p % 4];
        step_run_copy_last_block(&cuda, prompts[p], n);
        step_run_copy_last_block(&cpu, prompts[p], n);
        for (int turn = 0; turn < 3; turn++) {
            step_rows_siblings(s, prompts[p], n, turn);
            step_run_forward(&cuda, s);
            step_run_forward(&cpu, s);
            step_check_logits(&cuda, &cpu, n, n_vocab);
        }
    }
    free(s);
    step_run_close(&cuda);
    step_run_close(&cpu);
    unlink(step_models[_i].path);
}
END_TEST

/* Steps that are recorded and run again give what steps queued one by one give, bit for bit, while
 * row counts grow and shrink within and across buckets; and no step takes device memory. */
START_TEST(graphs_change_nothing) {
    static const int widths[] = {1, 1, 1, 3, 4, 3, 4, 4, 2, 33, 40, 64, 33, 5, 1};
    tiny_model_write(&step_models[_i]);
    struct step_run plain = step_run_open(step_models[_i].path, "cuda", "auto", false, NULL),
                    graphs = step_run_open(step_models[_i].path, "cuda", "auto", true, NULL);
    size_t n_vocab = (size_t)plain.model->shape.n_vocab;
    float *a = malloc(n_vocab * 4), *b = malloc(n_vocab * 4);
    struct step_rows *s = calloc(1, sizeof *s);
    step_rows_prompt(s, 37, false);
    step_run_forward(&plain, s);
    step_run_forward(&graphs, s);
    step_run_copy_last_block(&plain, 37, 64);
    step_run_copy_last_block(&graphs, 37, 64);
    int before = gpu_allocations(graphs.s.dev->gpu);
    for (size_t turn = 0; turn < sizeof widths / sizeof *widths; turn++) {
        step_rows_siblings(s, 37, widths[turn], (int)turn);
        step_run_forward(&plain, s);
        step_run_forward(&graphs, s);
        for (int row = 0; row < widths[turn]; row++) {
            step_run_logits(&plain, row, a);
            step_run_logits(&graphs, row, b);
            ck_assert_msg(!memcmp(a, b, n_vocab * 4), "turn %zu row %d", turn, row);
        }
    }
    ck_assert_int_gt(graphs.s.dev->n_graphs, 3);
    ck_assert_int_eq(plain.s.dev->n_graphs, 0);
    ck_assert_int_eq(gpu_allocations(graphs.s.dev->gpu), before);
    free(a);
    free(b);
    free(s);
    step_run_close(&plain);
    step_run_close(&graphs);
    unlink(step_models[_i].path);
}
END_TEST

#ifdef KERNELS_HOST_EMULATION
/* Whether the device is as fast as it can be or as slow: nothing is read or overwritten too early,
 * steps queued behind each other included. */
START_TEST(whenever_the_device_works) {
    tiny_model_write(&step_models[0]);
    size_t n_vocab = TINY_VOCAB;
    float *logits[2] = {malloc(8 * n_vocab * 4), malloc(8 * n_vocab * 4)};
    struct step_rows *s = calloc(2, sizeof *s);
    for (int eager = 1; eager >= 0; eager--) {
        gpu_host_eager(eager);
        struct step_run r = step_run_open(step_models[0].path, "cuda", "auto", true, NULL);
        step_rows_prompt(s, 37, false);
        step_run_forward(&r, s);
        step_run_copy_last_block(&r, 37, 8);
        if (eager) step_run_logits(&r, 0, logits[0]); /* no wait loses a copy */
        for (int turn = 0; turn < 5; turn++) {
            struct step_rows *now = &s[turn % 2]; /* the other one's step may still run */
            step_rows_siblings(now, 37, 8, turn);
            step_run_forward(&r, now);
        }
        for (int row = 0; row < 8; row++)
            step_run_logits(&r, row, logits[eager] + (size_t)row * n_vocab);
        step_run_close(&r);
    }
    gpu_host_eager(false);
    ck_assert(!memcmp(logits[0], logits[1], 8 * n_vocab * 4));
    free(logits[0]);
    free(logits[1]);
    free(s);
    unlink(step_models[0].path);
}
END_TEST
#endif

/* A row's logits are the same alone and among others, whatever shares its prompt. */
START_TEST(a_row_alone) {
    tiny_model_write(&step_models[_i]);
    struct step_run many = step_run_open(step_models[_i].path, "cuda", "auto", true, NULL),
                    alone = step_run_open(step_models[_i].path, "cuda", "auto", true, NULL);
    size_t n_vocab = (size_t)many.model->shape.n_vocab;
    float *a = malloc(n_vocab * 4), *b = malloc(n_vocab * 4);
    struct step_rows *s = calloc(1, sizeof *s);
    step_rows_prompt(s, 50, false);
    step_run_forward(&many, s);
    step_run_forward(&alone, s);
    step_run_copy_last_block(&many, 50, 30);
    step_run_copy_last_block(&alone, 50, 1);
    for (int turn = 0; turn < 4; turn++) {
        step_rows_siblings(s, 50, 30, turn);
        step_run_forward(&many, s);
        step_rows_siblings(s, 50, 1, turn);
        step_run_forward(&alone, s);
        step_run_logits(&many, 0, a);
        step_run_logits(&alone, 0, b);
        ck_assert(!memcmp(a, b, n_vocab * 4));
    }
    free(a);
    free(b);
    free(s);
    step_run_close(&many);
    step_run_close(&alone);
    unlink(step_models[_i].path);
}
END_TEST

/* ---- many rows ---- */

enum { MANY = 1100 };

static void draw_many(struct step_run *r, int first, int n, struct kernels_drawn *out) {
    static int32_t tokens[MANY], positions[MANY], tables[MANY], starts[MANY + 1], rows[MANY];
    static struct kernels_draw draws[MANY];
    struct err e = {0};
    for (int i = 0; i < n; i++) {
        tokens[i] = step_token_at(first + i, 0);
        positions[i] = 0;
        tables[i] = starts[i] = rows[i] = i;
        draws[i] = (struct kernels_draw){.logit_row = i,
                                         .seed = 7,
                                         .candidate = (uint32_t)(first + i),
                                         .temperature = 1,
                                         .top_p = 0.9f,
                                         .repetition = 1};
    }
    starts[n] = n;
    struct kernels_batch b = {.n_rows = n,
                              .tokens = tokens,
                              .positions = positions,
                              .tables = tables,
                              .table_starts = starts,
                              .table_of_row = rows,
                              .n_tables = n,
                              .logit_rows = rows,
                              .n_logits = n};
    ck_assert_msg(step_forward(r->step, &b, &e), "%s", e.message);
    struct kernels_draws all = {.draws = draws, .n_draws = n};
    step_draw(r->step, &all);
    ck_assert_msg(step_collect(r->step, out, n, &e), "%s", e.message);
}

/* More rows than have logits at once draw what they draw in small steps; and the buffers for 10,000
 * candidates of a large vocabulary are those of 1,024 rows of logits. */
START_TEST(logits_in_chunks) {
    struct tiny_model small = {.architecture = "llama",
                               .n_layers = 1,
                               .n_embd = 64,
                               .n_heads = 1,
                               .n_kv_heads = 1,
                               .n_ff = 32,
                               .context = 64,
                               .seed = 9};
    tiny_model_write(&small);
    struct step_run r =
        step_run_open_as(small.path, "cuda", (struct kernels_options){.isa = "auto"}, MANY);
    static struct kernels_drawn all[MANY], some[100];
    draw_many(&r, 0, MANY, all);
    for (int first = 0; first < MANY; first += 100) {
        draw_many(&r, first, 100, some);
        for (int i = 0; i < 100; i++)
            ck_assert_msg(some[i].token == all[first + i].token &&
                              !memcmp(&some[i].logprob, &all[first + i].logprob, sizeof(float)),
                          "row %d", first + i);
    }
    struct model_shape half = {.n_layers = 24,
                               .n_embd = 896,
                               .n_heads = 14,
                               .n_kv_heads = 2,
                               .head_dim = 64,
                               .n_ff = 4864,
                               .n_vocab = 151936};
    size_t without = step_bytes(r.s.k, &half, 10000, 0),
           with = step_bytes(r.s.k, &half, 10000, 10000);
    ck_assert_uint_le(with - without, ((size_t)1024 * 151936 + 10000 * 896) * 4 + 256);
    step_run_close(&r);
    unlink(small.path);
}
END_TEST

#ifdef KERNELS_HOST_EMULATION
/* A device error is told by the step that meets it and by all after it. */
START_TEST(a_failed_device_stays_failed) {
    tiny_model_write(&step_models[0]);
    struct step_run r = step_run_open(step_models[0].path, "cuda", "auto", true, NULL);
    struct err e = {0};
    struct step_rows *s = calloc(1, sizeof *s);
    step_rows_prompt(s, 5, false);
    step_run_forward(&r, s);
    gpu_host_fail(gpu_stream(r.s.dev->gpu));
    for (int i = 0; i < 2; i++) {
        float logits[TINY_VOCAB];
        ck_assert(!step_forward(r.step, step_rows_batch(s), &e) ||
                  !step_logits(r.step, 0, logits, &e));
        ck_assert(e.kind == ERR_SYSTEM && strstr(e.message, "device has failed"));
    }
    free(s);
    step_run_close(&r);
    unlink(step_models[0].path);
}
END_TEST
#endif

int main(void) {
    if (!cuda_test_can_run()) return 77;
    TCase *t = tcase_create("cuda step");
    tcase_add_loop_test(t, logits_like_the_cpu, 0, STEP_MODELS);
    tcase_add_loop_test(t, graphs_change_nothing, 0, STEP_MODELS);
    tcase_add_loop_test(t, a_row_alone, 0, STEP_MODELS);
    tcase_add_test(t, logits_in_chunks);
#ifdef KERNELS_HOST_EMULATION
    tcase_add_test(t, a_failed_device_stays_failed);
    tcase_add_test(t, whenever_the_device_works);
#endif
    return run_tests(&t, 1, "cuda step");
}
