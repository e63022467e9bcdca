/* Races of the real engine and the real verifier in one process, on a model of random weights.
 *
 * The prompt is "def f():\n    return " and a bias lets every candidate be one digit, so that a
 * candidate is a whole function whose verdict the test knows. */
#include "server/runtime.h"

#include "server/race.h"
#include "tests/engine/tiny_model.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct tiny_model model = {.architecture = "qwen2",
                                  .n_layers = 2,
                                  .n_embd = 128,
                                  .n_heads = 4,
                                  .n_kv_heads = 2,
                                  .n_ff = 256,
                                  .context = 512,
                                  .seed = 7};
static const char prompt[] = "def f():\n    return ";

static struct config config;
static struct runtime *rt;

static void load_config(const char *path) { /* also outside of a test: no ck_ here */
    char option[] = "--model", value[128];
    snprintf(value, sizeof value, "%s", path);
    char *argv[] = {(char[]){"test"},          option, value, (char[]){"--engine.memory_mb=512"},
                    (char[]){"--context=256"}, NULL};
    int argc = 5;
    struct err e = {0};
    bool ok = config_load(&config, &argc, argv, &e);
    BUG_ON(!ok);
}

static void setup(void) {
    struct err e = {0};
    load_config(model.path);
    rt = runtime_open(&config, &e);
    ck_assert_msg(rt != NULL, "%s", e.message);
    ck_assert(!runtime_loaded(rt) && !runtime_engine(rt));
    ck_assert_msg(runtime_load_wait(rt, NULL, NULL, &e), "%s", e.message);
    ck_assert(runtime_loaded(rt) && runtime_engine(rt));
}

static void teardown(void) {
    runtime_close(rt);
    config_clear(&config);
}

/* ---- one race ---- */

struct outcome {
    struct race *race;
    bool done, verified;
    struct err error;
    char text[32];
    int index, n_choices, n_passed, wrongly_judged;
    struct race_counts counts;
    char wanted;
};

static void on_done(void *arg, const struct race_result *result) {
    struct outcome *o = arg;
    ck_assert(!o->done);
    o->done = true;
    o->verified = result->verified;
    o->error = result->error;
    o->counts = result->counts;
    o->n_choices = result->n_choices;
    for (int i = 0; i < result->n_choices; i++) {
        const struct race_candidate *c = result->choices[i];
        if (!i) {
            snprintf(o->text, sizeof o->text, "%s", c->text);
            o->index = c->index;
        }
        bool right = c->text_len == 1 && c->text[0] == o->wanted;
        o->n_passed += right;
        o->wrongly_judged += right != (c->verdict == VERDICT_PASSED);
    }
}

/* Candidates are the digits from low to high; the tests want one of them. */
static void start(struct outcome *o, int n, enum race_return returns, char low, char high,
                  char wanted, uint64_t seed) {
    struct engine_bias bias[10];
    int32_t *tokens;
    size_t n_tokens;
    struct err e = {0};
    for (char digit = low; digit <= high; digit++)
        bias[digit - low] = (struct engine_bias){.token = digit, .bias = 400};
    ck_assert(
        engine_tokenize(runtime_engine(rt), prompt, strlen(prompt), 0, &tokens, &n_tokens, &e));
    char tests[64];
    snprintf(tests, sizeof tests, "assert f() == %c", wanted);
    const struct verifier_spec spec = {.format = VERIFIER_ASSERTS,
                                       .tests = tests,
                                       .tests_len = strlen(tests),
                                       .entry_point = "f",
                                       .prompt = prompt,
                                       .prompt_len = strlen(prompt),
                                       .extract = VERIFIER_EXTRACT_CONTINUATION,
                                       .timeout_s = 10,
                                       .memory_mb = 256};
    const struct race_prompt all = {.tokens = tokens, .n_tokens = (int)n_tokens};
    const struct race_request q = {
        .prompts = &all,
        .n_prompts = 1,
        .job = {.n_candidates = n,
                .seed = seed,
                .sampling = {.temperature = 8, /* the weights are random, the digits unequal */
                             .top_p = 1,
                             .repetition_penalty = 1,
                             .bias = bias,
                             .n_bias = high - low + 1},
                .max_tokens = 1},
        .tests = &spec,
        .returns = returns,
        .on_fail = RACE_FAIL_ERROR,
    };
    const struct race_callbacks callbacks = {.on_done = on_done};
    *o = (struct outcome){.wanted = wanted};
    bool ok = race_start(runtime_races(rt), &q, &callbacks, o, &o->race, &e);
    ck_assert_msg(ok, "%s", e.message);
    ck_assert(!o->done);
    free(tokens);
}

static void wait_done(struct outcome *o) {
    while (!o->done)
        uv_run(runtime_loop(rt), UV_RUN_ONCE);
}

/* Nothing is left of any race, neither here nor in the engine. */
static void wait_ended(void) {
    struct race_set_stats races;
    for (race_set_stats(runtime_races(rt), &races); races.live;
         race_set_stats(runtime_races(rt), &races))
        uv_run(runtime_loop(rt), UV_RUN_ONCE);
    struct engine_stats engine;
    engine_stats(runtime_engine(rt), &engine);
    ck_assert_int_eq(engine.jobs_waiting + engine.jobs_running + engine.candidates_running, 0);
    ck_assert_int_eq(engine.blocks_free, engine.blocks_total);
}

START_TEST(first_pass_wins) {
    struct outcome o;
    start(&o, 200, RACE_FIRST, '0', '9', '4', 1);
    wait_done(&o);
    ck_assert_msg(o.verified, "%s", o.error.message);
    ck_assert_str_eq(o.text, "4");
    ck_assert_int_ge(o.counts.passed, 1);
    wait_ended();
}
END_TEST

START_TEST(lowest_index_is_the_first_pass_of_all) {
    struct outcome all, lowest, again;
    start(&all, 60, RACE_ALL, '0', '9', '3', 5);
    wait_done(&all);
    start(&lowest, 60, RACE_LOWEST_INDEX, '0', '9', '3', 5);
    start(&again, 60, RACE_LOWEST_INDEX, '0', '9', '3', 5);
    wait_done(&lowest);
    wait_done(&again);
    ck_assert_int_eq(all.n_choices, 60);
    ck_assert_int_eq(all.wrongly_judged, 0);
    ck_assert_int_eq(all.n_passed, all.counts.passed);
    ck_assert_int_eq(all.counts.verified, 60);
    ck_assert_int_ge(all.n_passed, 2);
    ck_assert_int_eq(lowest.index, all.index);
    ck_assert_int_eq(again.index, all.index);
    ck_assert_str_eq(lowest.text, "3");
    /* Ten answers at most are distinct. */
    ck_assert_int_ge(all.counts.duplicates, 50);
    wait_ended();
}
END_TEST

START_TEST(none_can_pass) {
    struct outcome o;
    start(&o, 20, RACE_FIRST, '0', '4', '7', 1);
    wait_done(&o);
    ck_assert_int_eq(o.error.kind, ERR_NONE_PASSED);
    ck_assert_int_eq(o.counts.verified, 20);
    wait_ended();
}
END_TEST

START_TEST(fifty_races_each_its_own_winner) {
    enum { N = 50 };
    struct outcome o[N];
    for (int i = 0; i < N; i++)
        start(&o[i], 300, RACE_FIRST, '0', '9', (char)('0' + i % 10), (uint64_t)i);
    for (int i = 0; i < N; i++) {
        wait_done(&o[i]);
        ck_assert_msg(o[i].verified, "race %d: %s", i, o[i].error.message);
        ck_assert_int_eq(o[i].text[0], o[i].wanted);
    }
    wait_ended();
}
END_TEST

START_TEST(clients_that_leave_free_everything) {
    enum { N = 30 };
    struct outcome o[N];
    for (int i = 0; i < N; i++)
        start(&o[i], 10000, RACE_ALL, '0', '9', '1', (uint64_t)i);
    for (int i = 0; i < N; i++) {
        for (int turns = i; turns; turns--)
            uv_run(runtime_loop(rt), UV_RUN_NOWAIT);
        race_abandon(o[i].race);
    }
    wait_ended();
    for (int i = 0; i < N; i++)
        ck_assert(!o[i].done);
    struct outcome after;
    start(&after, 300, RACE_FIRST, '0', '9', '2', 3);
    wait_done(&after);
    ck_assert(after.verified);
    wait_ended();
}
END_TEST

START_TEST(closing_fails_what_is_live) {
    struct outcome o[5];
    for (int i = 0; i < 5; i++)
        start(&o[i], 10000, RACE_ALL, '0', '9', '1', (uint64_t)i);
    for (int turns = 0; turns < 20; turns++)
        uv_run(runtime_loop(rt), UV_RUN_ONCE);
    runtime_close(rt);
    rt = NULL;
    for (int i = 0; i < 5; i++) {
        ck_assert(o[i].done);
        ck_assert_int_eq(o[i].error.kind, ERR_UNAVAILABLE);
    }
}
END_TEST

START_TEST(no_template_no_chat) {
    struct err e = {0};
    ck_assert(!runtime_chat(rt, &e));
    ck_assert_int_eq(e.kind, ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.message, "/v1/completions"));
}
END_TEST

/* ---- without the fixture ---- */

START_TEST(a_missing_model_is_named) {
    struct err e = {0};
    load_config("/nonexistent/m.gguf");
    rt = runtime_open(&config, &e);
    ck_assert(rt);
    ck_assert(!runtime_load_wait(rt, NULL, NULL, &e));
    ck_assert_ptr_nonnull(strstr(e.message, "/nonexistent/m.gguf"));
    ck_assert(!runtime_loaded(rt) && !runtime_engine(rt));
    teardown();
}
END_TEST

static void never(void *arg, const struct err *error) {
    (void)arg;
    (void)error;
    ck_abort_msg("ready came although the runtime was closed");
}

START_TEST(closing_while_loading) {
    struct err e = {0};
    load_config(model.path);
    rt = runtime_open(&config, &e);
    ck_assert(rt);
    runtime_load(rt, NULL, never, NULL);
    teardown();
}
END_TEST

/* Whether this machine can run these tests; else the error says why not. */
static bool can_run(struct err *e) {
    load_config(model.path);
    struct runtime *probe = runtime_open(&config, e);
    runtime_close(probe);
    config_clear(&config);
    return probe != NULL;
}

int main(void) {
    struct err e = {0};
    tiny_model_write(&model);
    if (!can_run(&e)) {
        const char *must = getenv("FIRSTPASS_MUST");
        printf("skipped: no sandbox: %s\n", e.message);
        unlink(model.path);
        return must && strstr(must, "box") ? EXIT_FAILURE : 77;
    }
    Suite *suite = suite_create("runtime");
    TCase *t = tcase_create("races");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 0);
    tcase_add_test(t, first_pass_wins);
    tcase_add_test(t, lowest_index_is_the_first_pass_of_all);
    tcase_add_test(t, none_can_pass);
    tcase_add_test(t, fifty_races_each_its_own_winner);
    tcase_add_test(t, clients_that_leave_free_everything);
    tcase_add_test(t, closing_fails_what_is_live);
    tcase_add_test(t, no_template_no_chat);
    suite_add_tcase(suite, t);
    TCase *life = tcase_create("life");
    tcase_set_timeout(life, 0);
    tcase_add_test(life, a_missing_model_is_named);
    tcase_add_test(life, closing_while_loading);
    suite_add_tcase(suite, life);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    unlink(model.path);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
