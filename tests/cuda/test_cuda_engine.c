/* The whole engine on the CUDA backend: the same seeds give the same tokens whoever shares a
 * prompt, whatever else runs, with recorded steps and without. */
#include "engine/engine.h"
#include "tests/cuda/cuda_test.h"
#include "tests/engine/tiny_model.h"

#include <time.h>

static struct tiny_model model = {.architecture = "qwen2",
                                  .n_layers = 2,
                                  .n_embd = 448,
                                  .n_heads = 7,
                                  .n_kv_heads = 1,
                                  .n_ff = 352,
                                  .context = 512,
                                  .seed = 7};

enum { N = 12, TOKENS = 14, PROMPT = 41 };

static void no_wake(void *arg) { (void)arg; }

static struct engine *open_engine(struct engine_options o) {
    struct err e = {0};
    o.model_path = model.path;
    o.backend = "cuda";
    o.isa = "auto";
    o.max_rows = 24;
    o.prefill_chunk = 32;
    o.context = 256;
    struct engine *g = engine_open(&o, &e);
    ck_assert_msg(g != NULL, "%s", e.message);
    ck_assert_msg(engine_start(g, no_wake, NULL, &e), "%s", e.message);
    return g;
}

struct outcome {
    int n_tokens[2 * N];
    int32_t tokens[2 * N][TOKENS];
};

static uint64_t submit(struct engine *g, int n, uint64_t seed, float top_p) {
    static int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (i * 37 + 11) % 250;
    struct engine_job job = {
        .prompt = prompt,
        .n_prompt = PROMPT,
        .n_candidates = n,
        .seed = seed,
        .sampling = {.temperature = 4, .top_p = top_p, .repetition_penalty = 1.1f},
        .max_tokens = TOKENS,
        .width = n};
    struct err e = {0};
    uint64_t id;
    ck_assert_msg(engine_submit(g, &job, &id, &e), "%s", e.message);
    return id;
}

/* All events of the jobs; `out` those of job `id`. */
static void finish(struct engine *g, int n_jobs, uint64_t id, struct outcome *out) {
    memset(out, 0, sizeof *out);
    for (int i = 0; i < 400000 && n_jobs; i++) {
        struct engine_event *ev = engine_poll(g);
        if (!ev) {
            nanosleep(&(struct timespec){0, 200000}, NULL);
            continue;
        }
        if (ev->type == ENGINE_JOB_ENDED) {
            ck_assert_msg(ev->error.kind == ERR_NONE, "%s", ev->error.message);
            n_jobs--;
        }
        if (ev->type == ENGINE_ENDED && ev->job == id) {
            ck_assert(ev->n_tokens <= TOKENS);
            out->n_tokens[ev->index] = ev->n_tokens;
            memcpy(out->tokens[ev->index], ev->tokens, (size_t)ev->n_tokens * sizeof(int32_t));
        }
        engine_event_free(ev);
    }
    ck_assert_int_eq(n_jobs, 0);
}

static void run(struct engine_options o, int n, bool company, struct outcome *out) {
    struct engine *g = open_engine(o);
    if (company) submit(g, 5, 1234, 1);
    uint64_t id = submit(g, n, 99, 0.95f);
    finish(g, company ? 2 : 1, id, out);
    engine_close(g);
}

START_TEST(same_tokens) {
    tiny_model_write(&model);
    static struct outcome first, again;
    run((struct engine_options){0}, N, false, &first);
    int total = 0, distinct = 0;
    for (int i = 0; i < N; i++) {
        total += first.n_tokens[i];
        distinct += i && memcmp(first.tokens[i], first.tokens[0], sizeof first.tokens[0]) != 0;
    }
    ck_assert_int_gt(total, N);
    ck_assert_int_gt(distinct, N / 2); /* the trie has split */
    run((struct engine_options){.no_sharing = true}, N, false, &again);
    ck_assert_msg(!memcmp(&first, &again, sizeof first), "without sharing");
    run((struct engine_options){.no_graphs = true}, N, false, &again);
    ck_assert_msg(!memcmp(&first, &again, sizeof first), "without graphs");
    run((struct engine_options){0}, N, true, &again);
    ck_assert_msg(!memcmp(&first, &again, sizeof first), "in company");
    run((struct engine_options){0}, N + 7, false, &again);
    for (int i = 0; i < N; i++)
        ck_assert_msg(!memcmp(first.tokens[i], again.tokens[i], sizeof first.tokens[i]),
                      "candidate %d among more siblings", i);
    unlink(model.path);
}
END_TEST

#ifdef KERNELS_HOST_EMULATION
/* A device too small says which number to change. */
START_TEST(a_plan_that_does_not_fit) {
    tiny_model_write(&model);
    struct err e = {0};
    gpu_host_memory(20 << 20);
    struct engine_options o = {.model_path = model.path, .backend = "cuda", .isa = "auto"};
    ck_assert(!engine_open(&o, &e));
    ck_assert_msg(strstr(e.message, "engine.max_rows") != NULL, "%s", e.message);
    unlink(model.path);
}
END_TEST
#endif

#ifdef KERNELS_HOST_EMULATION
/* The plan's five buckets are what the device is asked for, and all of it is taken before serving:
 * prompts of several chunks, splits, penalties, log-probabilities and company take no more. */
START_TEST(memory_is_planned_and_held) {
    static struct outcome out;
    tiny_model_write(&model);
    gpu_host_memory((size_t)200 << 20);
    for (int fp8 = 0; fp8 < 2; fp8++) {
        struct engine *g = open_engine((struct engine_options){.weights = fp8 ? "fp8" : "bf16"});
        struct engine_stats s;
        engine_stats(g, &s);
        const struct engine_memory *m = &s.memory;
        ck_assert(m->weights && m->kv && m->activations && m->runtime && m->reserve);
        size_t sum = m->weights + m->kv + m->activations + m->runtime + m->reserve;
        ck_assert_uint_le(sum, (size_t)200 << 20);
        ck_assert_uint_le(gpu_host_most_taken(), m->weights + m->kv + m->activations + m->runtime);
        gpu_host_seal(true);
        submit(g, 5, 1234, 1);
        finish(g, 2, submit(g, 2 * N, 99, 0.95f), &out);
        gpu_host_seal(false);
        engine_close(g);
    }
    unlink(model.path);
}
END_TEST

/* A pool that is asked for and doesn't fit is named, too. */
START_TEST(blocks_that_do_not_fit) {
    tiny_model_write(&model);
    struct err e = {0};
    gpu_host_memory((size_t)200 << 20);
    struct engine_options o = {.model_path = model.path,
                               .backend = "cuda",
                               .isa = "auto",
                               .max_rows = 4,
                               .context = 128,
                               .kv_blocks = 1 << 20};
    ck_assert(!engine_open(&o, &e));
    ck_assert_msg(strstr(e.message, "lower engine.kv_blocks or engine.max_rows") != NULL, "%s",
                  e.message);
    unlink(model.path);
}
END_TEST
#endif

/* What doctor and the start say. */
START_TEST(described) {
    tiny_model_write(&model);
    struct err e = {0};
    for (int automatic = 0; automatic < 2; automatic++) {
        struct engine_options o = {.model_path = model.path,
                                   .backend = automatic ? "auto" : "cuda",
                                   .isa = "auto",
                                   .max_rows = 4,
                                   .context = 128};
        struct engine *g = engine_open(&o, &e);
        ck_assert_msg(g != NULL, "%s", e.message);
        char text[4096] = {0};
        FILE *f = fmemopen(text, sizeof text - 1, "w");
        engine_describe(g, f);
        fclose(f);
        ck_assert_msg(strstr(text, "backend cuda: ") && strstr(text, "bf16"), "%s", text);
        ck_assert_int_eq(strstr(text, "(auto: there is a device)") != NULL, automatic);
        engine_close(g);
    }
    struct engine_options o = {.model_path = model.path, .backend = "auto", .isa = "generic"};
    struct engine *g = engine_open(&o, &e);
    ck_assert_msg(g != NULL, "%s", e.message);
    char text[4096] = {0};
    FILE *f = fmemopen(text, sizeof text - 1, "w");
    engine_describe(g, f);
    fclose(f);
    ck_assert_msg(strstr(text, "backend cpu: generic") && strstr(text, "(auto: isa generic"), "%s",
                  text);
    engine_close(g);
    unlink(model.path);
}
END_TEST

int main(void) {
    if (!cuda_test_can_run()) return 77;
    TCase *t = tcase_create("cuda engine");
    tcase_add_test(t, same_tokens);
#ifdef KERNELS_HOST_EMULATION
    tcase_add_test(t, a_plan_that_does_not_fit);
    tcase_add_test(t, memory_is_planned_and_held);
    tcase_add_test(t, blocks_that_do_not_fit);
#endif
    tcase_add_test(t, described);
    return run_tests(&t, 1, "cuda engine");
}
