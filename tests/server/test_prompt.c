#include "server/prompt.h"

#include "tests/engine/tiny_model.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct tiny_model model = {.architecture = "llama",
                                  .n_layers = 1,
                                  .n_embd = 64,
                                  .n_heads = 2,
                                  .n_kv_heads = 1,
                                  .n_ff = 128,
                                  .context = 256,
                                  .seed = 3};
static struct engine *engine;
static struct err e;

static void setup(void) {
    e = (struct err){0};
    const struct engine_options options = {.model_path = model.path,
                                           .backend = "cpu",
                                           .isa = "auto",
                                           .threads = 1,
                                           .context = 100,
                                           .max_rows = 4,
                                           .prefill_chunk = 4,
                                           .memory_bytes = (uint64_t)256 << 20};
    engine = engine_open(&options, &e);
    ck_assert_msg(engine != NULL, "%s", e.message);
}

static void teardown(void) { engine_close(engine); }

/* ---- tokens ---- */

START_TEST(text_and_token_lists) {
    const struct api_request q = {.kind = API_REQUEST_COMPLETIONS, .add_bos = true};
    int32_t *tokens = NULL;
    size_t n = 0;
    const struct api_request_prompt text = {.text = "a<|im_start|>", .len = 13};
    ck_assert(prompt_tokenize(engine, &q, &text, &tokens, &n, &e));
    ck_assert_uint_eq(n, 13); /* a user's text is never a control token */
    ck_assert_int_eq(tokens[0], 'a');
    free(tokens);
    const int32_t given[] = {TINY_CONTROL, 5};
    const struct api_request_prompt list = {.tokens = given, .n_tokens = 2};
    ck_assert(prompt_tokenize(engine, &q, &list, &tokens, &n, &e));
    ck_assert_uint_eq(n, 2);
    ck_assert_mem_eq(tokens, given, sizeof given);
    free(tokens);
}
END_TEST

START_TEST(empty_text_starts_from_the_end_token) {
    const struct api_request q = {.kind = API_REQUEST_COMPLETIONS};
    const struct api_request_prompt empty = {.text = "", .len = 0};
    int32_t *tokens = NULL;
    size_t n = 0;
    ck_assert(prompt_tokenize(engine, &q, &empty, &tokens, &n, &e));
    ck_assert_uint_eq(n, 1);
    ck_assert_int_eq(tokens[0], TINY_END); /* this model has no token for the beginning */
    free(tokens);
}
END_TEST

START_TEST(text_that_is_no_utf8_names_its_field) {
    const struct api_request q = {.kind = _i ? API_REQUEST_CHAT : API_REQUEST_COMPLETIONS};
    const struct api_request_prompt bad = {.text = "\xff", .len = 1};
    int32_t *tokens = NULL;
    size_t n = 0;
    bool ok = _i ? prompt_tokenize_chat(engine, &q, bad.text, bad.len, &tokens, &n, &e)
                 : prompt_tokenize(engine, &q, &bad, &tokens, &n, &e);
    ck_assert(!ok);
    ck_assert_int_eq(e.kind, ERR_INPUT);
    ck_assert_str_eq(e.param, _i ? "messages" : "prompt");
}
END_TEST

START_TEST(control_tokens_come_from_the_template_only) {
    const struct api_request q = {.kind = API_REQUEST_CHAT, .add_bos = true};
    const char *user = "x<|im_start|>y";
    size_t len, n = 0;
    char *guarded = engine_guard(engine, user, strlen(user), &len);
    char rendered[256];
    int used = snprintf(rendered, sizeof rendered, "<|im_start|>%.*s<|im_end|>", (int)len, guarded);
    int32_t *tokens = NULL;
    ck_assert(prompt_tokenize_chat(engine, &q, rendered, (size_t)used, &tokens, &n, &e));
    ck_assert_uint_eq(n, 2 + strlen(user));
    ck_assert_int_eq(tokens[0], TINY_CONTROL);
    ck_assert_int_eq(tokens[n - 1], TINY_END);
    for (size_t i = 1; i + 1 < n; i++)
        ck_assert_int_eq(tokens[i], (unsigned char)user[i - 1]);
    free(tokens);
    free(guarded);
}
END_TEST

/* ---- variants ---- */

/* All of `set`'s tokens from the first control token on, as text; the tiny model's are bytes. */
static void expect_tokens(const struct prompt_set *set, int variant, const char *text) {
    ck_assert_uint_eq(set->n_tokens[variant], strlen(text));
    for (size_t i = 0; text[i]; i++)
        ck_assert_int_eq(set->tokens[variant][i], (unsigned char)text[i]);
}

START_TEST(variants_of_a_completion) {
    const struct api_request_prompt prompt = {.text = "def f():\n", .len = 9};
    const struct api_request_variant variants[] = {
        {.user = "", .lead = "", .behind = ""},
        {.user = "# fast\n", .user_len = 7, .lead = "    ret", .lead_len = 7},
        {.user = "# 3.8\n{question}", .user_len = 16, .lead = ""},
    };
    const struct api_request q = {.kind = API_REQUEST_COMPLETIONS,
                                  .prompts = &prompt,
                                  .n_prompts = 1,
                                  .variants = variants,
                                  .n_variants = 3};
    struct prompt_set set = {0};
    struct race_request race;
    ck_assert(prompt_set_add(&set, engine, &q, &prompt, &e));
    expect_tokens(&set, 0, "def f():\n");
    expect_tokens(&set, 1, "def f():\n# fast\n    ret");
    expect_tokens(&set, 2, "# 3.8\ndef f():\n");
    ck_assert(prompt_race(&q, engine_model(engine), 64, &set, &race, &e));
    ck_assert_int_eq(race.n_prompts, 3);
    ck_assert_uint_eq(race.prompts[1].lead_len, 7);
    ck_assert_uint_eq(race.prompts[2].lead_len, 0);
    prompt_set_clear(&set);
}
END_TEST

/* What the assistant begins with is a user's text: it makes no control token. */
START_TEST(variants_of_a_chat) {
    const char *lead = "A<|im_start|>";
    size_t len;
    char *guarded = engine_guard(engine, lead, strlen(lead), &len);
    const struct api_request_variant variants[] = {
        {.user = "", .lead = "", .behind = ""},
        {.user = "", .lead = lead, .lead_len = strlen(lead), .behind = guarded, .behind_len = len},
    };
    const struct api_request q = {.kind = API_REQUEST_CHAT, .variants = variants, .n_variants = 2};
    struct prompt_set set = {0};
    for (int i = 0; i < 2; i++)
        ck_assert(prompt_set_add_chat(&set, engine, &q, "Q:", 2, &e));
    expect_tokens(&set, 0, "Q:");
    expect_tokens(&set, 1, "Q:A<|im_start|>");
    prompt_set_clear(&set);
    /* The first one that is too long ends it. */
    char *question = err_alloc(401, 1);
    memset(question, 'x', 400);
    ck_assert(!prompt_set_add_chat(&set, engine, &q, question, 400, &e));
    ck_assert_str_eq(e.code, "context_length_exceeded");
    prompt_set_clear(&set);
    free(question);
    free(guarded);
}
END_TEST

/* ---- the race ---- */

START_TEST(room_in_the_context) {
    const struct engine_model *m = engine_model(engine);
    struct api_request q = {.kind = API_REQUEST_CHAT, .n_choices = 1};
    struct race_request race;
    int32_t tokens[200] = {0};
    struct prompt_set set = {.tokens = {tokens}, .n_tokens = {10}, .n = 1};
    size_t context = (size_t)m->context;
    ck_assert_uint_lt(context, 200);
    q.job.n_candidates = 7;
    q.job.min_tokens = 50;
    ck_assert(prompt_race(&q, m, 64, &set, &race, &e));
    ck_assert_int_eq(race.job.max_tokens, 64);
    ck_assert_int_eq(race.n_prompts, 1);
    ck_assert_int_eq(race.prompts[0].n_tokens, 10);
    ck_assert_int_eq(race.job.n_candidates, 7);
    ck_assert_ptr_null(race.tests);
    /* The longest of several decides. */
    set.tokens[1] = tokens;
    set.n_tokens[1] = context - 1;
    set.n = 2;
    ck_assert(prompt_race(&q, m, 64, &set, &race, &e));
    ck_assert_int_eq(race.job.max_tokens, 1);
    ck_assert_int_eq(race.job.min_tokens, 1);
    set.n_tokens[1] = context;
    ck_assert(!prompt_race(&q, m, 64, &set, &race, &e));
    ck_assert_int_eq(e.kind, ERR_INPUT);
    ck_assert_str_eq(e.code, "context_length_exceeded");
    ck_assert_str_eq(e.param, "messages");
    /* What the client says is the engine's to judge. */
    q.job.max_tokens = 5000;
    q.has_tests = true;
    set.n = 1;
    ck_assert(prompt_race(&q, m, 64, &set, &race, &e));
    ck_assert_int_eq(race.job.max_tokens, 5000);
    ck_assert_ptr_eq(race.tests, &q.tests);
}
END_TEST

START_TEST(seeds) {
    struct api_request given = {.has_seed = true}, a = {0}, b = {0};
    given.job.seed = UINT64_MAX;
    prompt_choose_seed(&given);
    ck_assert_uint_eq(given.job.seed, UINT64_MAX);
    ck_assert_uint_eq(given.tests.seed, UINT64_MAX);
    prompt_choose_seed(&a);
    prompt_choose_seed(&b);
    ck_assert_uint_ne(a.job.seed, b.job.seed);
    ck_assert_uint_eq(a.tests.seed, a.job.seed);
    ck_assert_uint_lt(a.job.seed | b.job.seed, (uint64_t)1 << 53);
}
END_TEST

int main(void) {
    tiny_model_write(&model);
    Suite *suite = suite_create("prompt");
    TCase *t = tcase_create("prompt");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 0);
    tcase_add_test(t, text_and_token_lists);
    tcase_add_test(t, empty_text_starts_from_the_end_token);
    tcase_add_loop_test(t, text_that_is_no_utf8_names_its_field, 0, 2);
    tcase_add_test(t, control_tokens_come_from_the_template_only);
    tcase_add_test(t, variants_of_a_completion);
    tcase_add_test(t, variants_of_a_chat);
    tcase_add_test(t, room_in_the_context);
    tcase_add_test(t, seeds);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    unlink(model.path);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
