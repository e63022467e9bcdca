/* A small model's tokens, a request and candidates, for tests of what answers look like. */
#ifndef TESTS_SERVER_ANSWER_H
#define TESTS_SERVER_ANSWER_H

#include "server/api_response.h"

#include <check.h>
#include <jansson.h>
#include <string.h>

/* Token 3 is half of a character. */
static const char *answer_token_text(const void *self, int32_t token, size_t *len) {
    static const char *const texts[] = {"a", "bc", "\xC3\xA9", "\xC3", "\xA9", "\"\n"};
    (void)self;
    ck_assert_int_lt(token, 6);
    *len = strlen(texts[token]);
    return texts[token];
}

static const int32_t answer_tokens[] = {0, 2, 3};
static const int32_t answer_top_tokens[] = {0, 1, 4, 2, 3, 4};
static const float answer_top_logprobs[] = {-0.5f, -1.5f, -0.25f, -0.5f, -1.0f, -1e30f};
static const struct engine_logprob answer_logprobs[] = {
    {0, -0.5f, 2, answer_top_tokens, answer_top_logprobs},
    {2, -3.0f, 2, answer_top_tokens + 2, answer_top_logprobs + 2},
    {3, -1e30f, 2, answer_top_tokens + 4, answer_top_logprobs + 4},
};
static const struct race_candidate answer_candidate = {
    .index = 7,
    .text = "a\xC3\xA9\xEF\xBF\xBD",
    .text_len = 6,
    .tokens = answer_tokens,
    .n_tokens = 3,
    .logprobs = answer_logprobs,
    .reason = ENGINE_CODE_END,
    .mean_logprob = -1.25,
    .decided = true,
    .verdict = VERDICT_PASSED,
    .tests_passed = 3,
    .tests_total = 4,
    .verify_s = 0.125,
    .cpu_s = 0.0625,
    .code = "def f(): pass",
    .code_len = 13,
    .error = "",
    .method = "fenced",
    .output = "\xff!",
    .output_len = 2,
    .trust = "split",
};

static inline const char *text_of(json_t *v, const char *key) {
    return json_string_value(json_object_get(v, key));
}
static inline json_int_t int_of(json_t *v, const char *key) {
    ck_assert_msg(json_is_integer(json_object_get(v, key)), "no number \"%s\"", key);
    return json_integer_value(json_object_get(v, key));
}
static inline double number_of(json_t *v, const char *key) {
    ck_assert_msg(json_is_number(json_object_get(v, key)), "no number \"%s\"", key);
    return json_number_value(json_object_get(v, key));
}
static inline bool is_null(json_t *v, const char *key) {
    return json_is_null(json_object_get(v, key));
}

#endif
