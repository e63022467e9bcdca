/* Shared by the tests of Hugging Face directories: the references of tests/vectors/hf, and an
 * engine's log-probabilities beside them. */
#ifndef TESTS_ENGINE_HF_TEST_H
#define TESTS_ENGINE_HF_TEST_H

#include "engine/engine.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

enum { HF_TOP = 5 };

static inline json_t *hf_reference(const char *name) {
    char path[512];
    json_error_t why;
    snprintf(path, sizeof path, "tests/vectors/hf/%s/reference.json", name);
    json_t *root = json_load_file(path, 0, &why);
    ck_assert_msg(root != NULL, "%s: %s", path, why.text);
    return root;
}

static inline void hf_no_wake(void *arg) { (void)arg; }

/* The largest difference over the reference's best tokens after one position; those that aren't
 * among ours count by the least of ours. */
static inline double hf_difference(const json_t *top, const struct engine_logprob *ours) {
    double worst = 0;
    for (size_t i = 0; i < HF_TOP; i++) {
        const json_t *pair = json_array_get(top, i);
        double want = json_number_value(json_array_get(pair, 1)), got = -99;
        for (int k = 0; k < ours->n_top; k++)
            if (ours->top_token[k] == json_integer_value(json_array_get(pair, 0)))
                got = (double)ours->top_logprob[k];
        worst = fmax(worst, fabs(got - want));
    }
    return worst;
}

/* The largest difference of a case of a reference's. */
static inline double hf_run_case(struct engine *g, const json_t *c) {
    const json_t *tokens = json_object_get(c, "tokens"), *top = json_object_get(c, "top");
    int n = (int)json_array_size(tokens), compared = 0;
    int32_t prompt[128];
    ck_assert_int_le(n, 128);
    for (int i = 0; i < n; i++)
        prompt[i] = (int32_t)json_integer_value(json_array_get(tokens, (size_t)i));
    struct engine_job job = {.prompt = prompt,
                             .n_prompt = n,
                             .n_candidates = 1,
                             .sampling = {.top_p = 1, .repetition_penalty = 1},
                             .max_tokens = 1,
                             .logprobs = true,
                             .n_top_logprobs = 20,
                             .prompt_logprobs = true,
                             .n_prompt_top = 20};
    struct err e = {0};
    uint64_t id;
    double worst = 0;
    ck_assert_msg(engine_submit(g, &job, &id, &e), "%s", e.message);
    for (bool over = false; !over;) {
        struct engine_event *ev = engine_poll(g);
        if (!ev) {
            nanosleep(&(struct timespec){0, 1000000}, NULL);
            continue;
        }
        for (int i = 1; ev->type == ENGINE_PREFILLED && i < n; i++, compared++)
            worst =
                fmax(worst, hf_difference(json_array_get(top, (size_t)i - 1), &ev->logprobs[i]));
        if (ev->type == ENGINE_ENDED) {
            worst = fmax(worst, hf_difference(json_array_get(top, (size_t)n - 1), ev->logprobs));
            compared++;
        }
        if (ev->type == ENGINE_JOB_ENDED) ck_assert_int_eq(ev->error.kind, ERR_NONE);
        over = ev->type == ENGINE_JOB_ENDED;
        engine_event_free(ev);
    }
    ck_assert_int_eq(compared, n);
    return worst;
}

/* The largest of all cases of a reference. */
static inline double hf_run_cases(struct engine *g, const json_t *root) {
    const json_t *cases = json_object_get(root, "cases");
    double worst = 0;
    ck_assert_uint_ge(json_array_size(cases), 3);
    for (size_t i = 0; i < json_array_size(cases); i++)
        worst = fmax(worst, hf_run_case(g, json_array_get(cases, i)));
    return worst;
}

#endif
