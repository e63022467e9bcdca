/* The same seed, index and model file give the same tokens: alone and among 64, sharing equal rows
 * or not, guessing or not, on one thread and two, whatever the size of the prompt's chunks, beside
 * another race, on every instruction set. */
#include "engine/engine.h"
#include "tests/model/models.h"

#include <check.h>
#include <string.h>
#include <time.h>

enum { CANDIDATES = 64, TOKENS = 12 };

static const char PROMPT[] =
    "def is_palindrome(text: str) -> bool:\n    \"\"\"Whether text reads the same in both "
    "directions, leaving out case and all that is no letter.\"\"\"\n";

struct tokens {
    int32_t of[CANDIDATES][TOKENS];
};

/* How the same candidates are computed. */
struct way {
    const char *what, *isa;
    int candidates, threads, width, chunk;
    bool no_sharing, company, no_guessing;
};

static const struct way plain = {"plain", "auto", CANDIDATES, 2, 0, 0, false, false, false};
static const struct way ways[] = {
    {"a width of 64, nothing shared", "auto", CANDIDATES, 2, CANDIDATES, 0, true, false, false},
    {"one after the other", "auto", 8, 2, 1, 0, true, false, false},
    {"nothing guessed", "auto", 24, 2, 0, 0, false, false, true},
    {"one thread, a width of 7", "auto", 24, 1, 7, 0, false, false, false},
    {"the prompt in chunks of 5", "auto", 16, 2, 0, 5, false, false, false},
    {"beside another race", "auto", 32, 2, 0, 0, false, true, false},
    {"amx", "amx", 32, 2, 32, 0, true, false, false},
    {"avx512vnni", "avx512vnni", 32, 2, 32, 0, true, false, false},
    {"avx2", "avx2", 32, 2, 32, 0, true, false, false},
    {"generic", "generic", 3, 2, 0, 0, false, false, false},
};
enum { WAYS = sizeof ways / sizeof *ways };

static void no_wake(void *arg) { (void)arg; }

/* NULL where this machine lacks the instruction set. */
static struct engine *open_engine(const char *model, const struct way *w) {
    char path[512];
    models_path(path, sizeof path, model);
    struct engine_options o = {.model_path = path,
                               .isa = w->isa,
                               .threads = w->threads,
                               .context = 512,
                               .kv_blocks = 1024,
                               .prefill_chunk = w->chunk,
                               .no_sharing = w->no_sharing,
                               .no_guessing = w->no_guessing};
    struct err e = {0};
    struct engine *g = engine_open(&o, &e);
    if (!g && strstr(e.message, "instruction set")) {
        printf("  not here: %s\n", w->what);
        return NULL;
    }
    ck_assert_msg(g != NULL, "%s", e.message);
    ck_assert_msg(engine_start(g, no_wake, NULL, &e), "%s", e.message);
    return g;
}

static uint64_t submit(struct engine *g, const char *text, int n, int width, uint64_t seed) {
    struct err e = {0};
    int32_t *prompt;
    size_t n_prompt;
    ck_assert(engine_tokenize(g, text, strlen(text), ENGINE_TOKENIZE_BOS, &prompt, &n_prompt, &e));
    struct engine_job job = {
        .prompt = prompt,
        .n_prompt = (int)n_prompt,
        .n_candidates = n,
        .width = width,
        .seed = seed,
        .sampling = {.temperature = 0.8f,
                     .top_p = 0.95f,
                     .repetition_penalty = 1,
                     .greedy_first = true},
        .max_tokens = TOKENS,
        .ignore_eos = true,
    };
    uint64_t id;
    ck_assert_msg(engine_submit(g, &job, &id, &e), "%s", e.message);
    free(prompt);
    return id;
}

static bool compute(const char *model, const struct way *w, struct tokens *out) {
    struct engine *g = open_engine(model, w);
    if (!g) return false;
    int left = w->company ? 2 : 1;
    if (w->company) submit(g, "Once upon a time there was a king who", 24, 0, 99);
    uint64_t id = submit(g, PROMPT, w->candidates, w->width, 7);
    while (left) {
        struct engine_event *ev = engine_poll(g);
        if (!ev) {
            nanosleep(&(struct timespec){0, 200000}, NULL);
            continue;
        }
        if (ev->type == ENGINE_ENDED && ev->job == id) {
            ck_assert_int_eq(ev->n_tokens, TOKENS);
            memcpy(out->of[ev->index], ev->tokens, sizeof out->of[0]);
        }
        if (ev->type == ENGINE_JOB_ENDED) {
            ck_assert_msg(ev->error.kind == ERR_NONE, "%s", ev->error.message);
            left--;
        }
        engine_event_free(ev);
    }
    engine_close(g);
    return true;
}

static void check_model(const char *model) {
    static struct tokens expected, got;
    ck_assert(compute(model, &plain, &expected));
    int different = 0;
    for (int i = 1; i < CANDIDATES; i++)
        different += memcmp(expected.of[i], expected.of[0], sizeof expected.of[0]) != 0;
    ck_assert_int_gt(different, CANDIDATES / 2); /* they are draws */
    for (int i = 0; i < WAYS; i++) {
        memset(&got, 0, sizeof got);
        if (!compute(model, &ways[i], &got)) continue;
        for (int c = 0; c < ways[i].candidates; c++)
            for (int t = 0; t < TOKENS; t++)
                ck_assert_msg(got.of[c][t] == expected.of[c][t],
                              "%s: candidate %d, token %d: %d instead of %d", ways[i].what, c, t,
                              got.of[c][t], expected.of[c][t]);
    }
}

START_TEST(smollm2) { check_model(MODELS_SMOLLM2); }
END_TEST
START_TEST(qwen) { check_model(MODELS_QWEN); }
END_TEST

int main(void) {
    if (!models_have(MODELS_SMOLLM2) || !models_have(MODELS_QWEN))
        return models_must() ? EXIT_FAILURE : 77;
    Suite *s = suite_create("invariance");
    TCase *t = tcase_create("invariance");
    tcase_set_timeout(t, 0); /* ctest has one */
    tcase_add_test(t, smollm2);
    tcase_add_test(t, qwen);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
