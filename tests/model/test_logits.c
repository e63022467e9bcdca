/* Log-probabilities and greedy text against llama.cpp, on real weights (tests/vectors/README.md).
 *
 * Two comparisons for each model, both with llama.cpp on weights dequantised to F32:
 * - isa `reference` (dequantised weights, f32 activations, f16 keys and values): top-10
 * log-probabilities within 0.05, greedy text of 64 tokens equal on at least 10 of 12 prompts, every
 * difference at a near-tie.
 * - the default path, which rounds activations to 8 bits for each 32, as llama.cpp's own quantised
 * path does.  Such rounding moves log-probabilities of small models by tenths, so the yardstick is
 * what llama.cpp itself loses on the quantised file, printed beside: ours may be at most WORSE
 * times that in the worst case and MEAN_WORSE times on average, and a greedy text may part only
 * where the margin is within that loss. */
#include "engine/engine.h"
#include "tests/model/models.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CASES = 32, TOP = 10 };
static const double TOLERANCE = 0.05, WORSE = 1.5, MEAN_WORSE = 1.5;

struct answer {
    int32_t *tokens;
    int n_tokens;
    int32_t top_token[20];
    float top_logprob[20];
    int n_top;
    bool done;
};

static void no_wake(void *arg) { (void)arg; }

/* ---- our side ---- */

static void keep(struct answer *a, const struct engine_event *ev) {
    a->tokens = err_alloc((size_t)ev->n_tokens + 1, sizeof *a->tokens);
    memcpy(a->tokens, ev->tokens, (size_t)ev->n_tokens * sizeof *a->tokens);
    a->n_tokens = ev->n_tokens;
    ck_assert(ev->logprobs && ev->n_tokens);
    a->n_top = ev->logprobs[0].n_top;
    memcpy(a->top_token, ev->logprobs[0].top_token, (size_t)a->n_top * sizeof(int32_t));
    memcpy(a->top_logprob, ev->logprobs[0].top_logprob, (size_t)a->n_top * sizeof(float));
}

static void submit(struct engine *g, const json_t *tokens, uint64_t *id) {
    int n = (int)json_array_size(tokens);
    int32_t *prompt = err_alloc((size_t)n, sizeof *prompt);
    for (int i = 0; i < n; i++)
        prompt[i] = (int32_t)json_integer_value(json_array_get(tokens, (size_t)i));
    struct engine_job job = {.prompt = prompt,
                             .n_prompt = n,
                             .n_candidates = 1,
                             .sampling = {.temperature = 0, .top_p = 1, .repetition_penalty = 1},
                             .max_tokens = 64,
                             .logprobs = true,
                             .n_top_logprobs = 20};
    struct err e = {0};
    ck_assert_msg(engine_submit(g, &job, id, &e), "%s", e.message);
    free(prompt);
}

/* All cases at once, as the engine is used. */
static void run_cases(const char *path, const char *isa, const json_t *cases,
                      struct answer *answers) {
    struct err e = {0};
    struct engine_options o = {.model_path = path,
                               .isa = isa,
                               .context = 512,
                               .max_rows = 32,
                               .memory_bytes = (uint64_t)6 << 30};
    struct engine *g = engine_open(&o, &e);
    ck_assert_msg(g != NULL, "%s", e.message);
    ck_assert_msg(engine_start(g, no_wake, NULL, &e), "%s", e.message);
    uint64_t ids[MAX_CASES];
    int n = (int)json_array_size(cases);
    for (int i = 0; i < n; i++)
        submit(g, json_object_get(json_array_get(cases, (size_t)i), "tokens"), &ids[i]);
    for (int left = n; left;) {
        struct engine_event *ev = engine_poll(g);
        if (!ev) {
            nanosleep(&(struct timespec){0, 1000000}, NULL);
            continue;
        }
        for (int i = 0; i < n; i++) {
            if (ids[i] != ev->job) continue;
            if (ev->type == ENGINE_ENDED) keep(&answers[i], ev);
            if (ev->type == ENGINE_JOB_ENDED) {
                ck_assert_int_eq(ev->error.kind, ERR_NONE);
                left--;
            }
        }
        engine_event_free(ev);
    }
    engine_close(g);
}

/* ---- the comparison ---- */

/* Largest difference over the reference's top ten; a token that isn't even in our top twenty counts
 * as far off. */
static double top_difference(const json_t *top, const struct answer *a) {
    double worst = 0;
    for (size_t i = 0; i < TOP; i++) {
        const json_t *pair = json_array_get(top, i);
        int32_t token = (int32_t)json_integer_value(json_array_get(pair, 0));
        double logprob = json_number_value(json_array_get(pair, 1)), ours = -99;
        for (int k = 0; k < a->n_top; k++)
            if (a->top_token[k] == token) ours = (double)a->top_logprob[k];
        /* Below our twentieth: it is at most that. */
        if (ours < -98) ours = logprob < (double)a->top_logprob[a->n_top - 1] ? logprob : -99;
        if (fabs(ours - logprob) > worst) worst = fabs(ours - logprob);
    }
    return worst;
}

/* What llama.cpp's own quantised path differs by, on the tokens that both list. */
static double peer_difference(const json_t *reference, const json_t *quantised) {
    double worst = 0;
    for (size_t i = 0; i < TOP; i++)
        for (size_t k = 0; k < TOP; k++) {
            const json_t *a = json_array_get(reference, i), *b = json_array_get(quantised, k);
            if (json_integer_value(json_array_get(a, 0)) !=
                json_integer_value(json_array_get(b, 0)))
                continue;
            double d = fabs(json_number_value(json_array_get(a, 1)) -
                            json_number_value(json_array_get(b, 1)));
            if (d > worst) worst = d;
        }
    return worst;
}

/* Index of the first token that differs, or -1. */
static int first_difference(const json_t *greedy, const struct answer *a, bool ended) {
    int n = (int)json_array_size(greedy);
    for (int i = 0; i < n; i++)
        if (i >= a->n_tokens ||
            json_integer_value(json_array_get(greedy, (size_t)i)) != a->tokens[i])
            return i;
    /* Our last token is the end of generation where there was one. */
    return a->n_tokens != n + (ended ? 1 : 0) ? n : -1;
}

struct comparison {
    int n, equal, peer_equal;
    double worst, mean, peer_worst, peer_mean; /* differences of top-10 log-probabilities */
    double widest_tie;                         /* margin where a greedy text parts */
    double widest_flip; /* margin of a first token that isn't the reference's */
};

static void compare_case(const json_t *c, const struct answer *a, struct comparison *sum) {
    const json_t *f32 = json_object_get(c, "f32"), *quantised = json_object_get(c, "quantised");
    const json_t *top = json_object_get(f32, "top"), *margin = json_object_get(f32, "margin");
    const json_t *greedy = json_object_get(f32, "greedy");
    double peer = peer_difference(top, json_object_get(quantised, "top")),
           difference = top_difference(top, a);
    int differs = first_difference(greedy, a, json_is_true(json_object_get(f32, "ended")));
    double tie = differs < 0 ? 0 : json_number_value(json_array_get(margin, (size_t)differs));
    ck_assert(a->tokens);
    bool first_same = a->tokens[0] == json_integer_value(json_array_get(json_array_get(top, 0), 0));
    double flip = first_same ? 0 : json_number_value(json_array_get(margin, 0));
    printf("  case %2d: top-10 within %.4f (llama.cpp on the quantised file: %.4f)", sum->n,
           difference, peer);
    if (differs >= 0) printf("; greedy text parts at token %d, margin %.4f", differs, tie);
    printf("\n");
    sum->n++;
    sum->equal += differs < 0;
    sum->peer_equal += json_equal(greedy, json_object_get(quantised, "greedy"));
    sum->worst = fmax(sum->worst, difference);
    sum->peer_worst = fmax(sum->peer_worst, peer);
    sum->mean += difference;
    sum->peer_mean += peer;
    sum->widest_tie = fmax(sum->widest_tie, tie);
    sum->widest_flip = fmax(sum->widest_flip, flip);
}

static void check_model(const char *name, const char *isa, bool reference) {
    char path[512], vectors[512];
    models_path(path, sizeof path, name);
    snprintf(vectors, sizeof vectors, "tests/vectors/logits-%s.json", name);
    json_error_t error;
    json_t *root = json_load_file(vectors, 0, &error);
    ck_assert_msg(root != NULL, "%s: %s", vectors, error.text);
    const json_t *cases = json_object_get(root, "cases");
    int n = (int)json_array_size(cases);
    ck_assert_int_ge(n, 12);
    ck_assert_int_le(n, MAX_CASES);
    struct answer answers[MAX_CASES] = {0};
    run_cases(path, isa, cases, answers);
    printf("%s, isa %s\n", name, isa);
    struct comparison sum = {0};
    for (int i = 0; i < n; i++) {
        compare_case(json_array_get(cases, (size_t)i), &answers[i], &sum);
        free(answers[i].tokens);
    }
    printf("  worst %.4f, mean %.4f (llama.cpp on the quantised file: %.4f, %.4f); greedy text "
           "equal on %d of %d (%d)\n",
           sum.worst, sum.mean / n, sum.peer_worst, sum.peer_mean / n, sum.equal, n,
           sum.peer_equal);
    double allowed = reference ? TOLERANCE : WORSE * sum.peer_worst;
    ck_assert_msg(sum.worst <= allowed, "log-probabilities differ by %.4f, allowed %.4f", sum.worst,
                  allowed);
    ck_assert_msg(sum.widest_tie <= allowed, "greedy text parts at a margin of %.4f, allowed %.4f",
                  sum.widest_tie, allowed);
    ck_assert_msg(sum.widest_flip <= allowed, "the first token differs at a margin of %.4f",
                  sum.widest_flip);
    if (reference)
        ck_assert_int_ge(sum.equal, n - 2);
    else
        ck_assert_msg(sum.mean <= MEAN_WORSE * sum.peer_mean,
                      "mean difference %.4f, llama.cpp's %.4f", sum.mean / n, sum.peer_mean / n);
    json_decref(root);
}

static const char SMOLLM2[] = MODELS_SMOLLM2, QWEN[] = MODELS_QWEN;

START_TEST(smollm2_reference) { check_model(SMOLLM2, "reference", true); }
END_TEST
START_TEST(smollm2_default) { check_model(SMOLLM2, "auto", false); }
END_TEST
START_TEST(qwen_reference) { check_model(QWEN, "reference", true); }
END_TEST
START_TEST(qwen_default) { check_model(QWEN, "auto", false); }
END_TEST

int main(void) {
    if (!models_have(SMOLLM2) || !models_have(QWEN)) return models_must() ? EXIT_FAILURE : 77;
    Suite *s = suite_create("logits");
    TCase *t = tcase_create("logits");
    tcase_set_timeout(t, 0); /* ctest has one */
    tcase_add_test(t, smollm2_reference);
    tcase_add_test(t, smollm2_default);
    tcase_add_test(t, qwen_reference);
    tcase_add_test(t, qwen_default);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
