/* The evaluation: figures against brute force, the journal after every kind of end, and runs on a
 * scripted backend, whose candidates are known beforehand. */
#include "server/eval.h"
#include "server/eval_report.h"
#include "server/eval_stats.h"

#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- figures ---- */

/* The share of all k-subsets of n candidates, the first `passed` of which pass, that hold a pass.
 */
static double by_counting(int n, int passed, int k) {
    int all = 0, hold = 0;
    for (unsigned set = 0; set < 1u << n; set++) {
        if (__builtin_popcount(set) != k) continue;
        all++;
        hold += (set & ((1u << passed) - 1)) != 0;
    }
    return (double)hold / all;
}

START_TEST(pass_at_k_is_what_counting_gives) {
    for (int n = 1; n <= 12; n++)
        for (int passed = 0; passed <= n; passed++)
            for (int k = 1; k <= n; k++) {
                const struct eval_count count = {n, passed};
                struct eval_estimate x = eval_stats_pass_at(&count, 1, k);
                ck_assert_double_eq_tol(x.value, by_counting(n, passed, k), 1e-12);
                ck_assert_double_eq_tol(x.low, x.value, 1e-12); /* one task: nothing to resample */
            }
    const struct eval_count few = {3, 1};
    ck_assert_double_nan(eval_stats_pass_at(&few, 1, 4).value);
    ck_assert_double_nan(eval_stats_pass_at(&few, 0, 1).value);
}
END_TEST

START_TEST(intervals_hold_the_value_and_narrow) {
    struct eval_count counts[400];
    double before = 1;
    for (int i = 0; i < 400; i++)
        counts[i] = (struct eval_count){10, i * 7 % 11};
    for (int n = 25; n <= 400; n *= 4) {
        struct eval_estimate x = eval_stats_pass_at(counts, n, 3);
        ck_assert_double_lt(x.low, x.value);
        ck_assert_double_gt(x.high, x.value);
        ck_assert_double_lt(x.high - x.low, before);
        before = x.high - x.low;
        struct eval_estimate again = eval_stats_pass_at(counts, n, 3);
        ck_assert_double_eq(again.low, x.low);
    }
    /* The mean's standard error: 1.96 of them on each side. */
    double sum = 0, squares = 0;
    for (int i = 0; i < 400; i++) {
        double p = by_counting(10, counts[i].passed, 3);
        sum += p;
        squares += p * p;
    }
    double error = sqrt((squares / 400 - sum / 400 * (sum / 400)) / 400);
    ck_assert_double_eq_tol(before, 2 * 1.96 * error, 0.2 * error);
}
END_TEST

/* Wilson's interval of 8 in 10 is a textbook figure. */
START_TEST(shares) {
    struct eval_estimate x = eval_stats_share(8, 10);
    ck_assert_double_eq_tol(x.value, 0.8, 1e-12);
    ck_assert_double_eq_tol(x.low, 0.4901625, 1e-6);
    ck_assert_double_eq_tol(x.high, 0.9433178, 1e-6);
    ck_assert_double_eq(eval_stats_share(0, 5).low, 0);
    ck_assert_double_eq(eval_stats_share(5, 5).high, 1);
    ck_assert_double_lt(eval_stats_share(5, 5).low, 1);
    ck_assert_double_nan(eval_stats_share(0, 0).value);
}
END_TEST

/* ---- a scripted backend ---- */

enum { TASKS = 3, CANDIDATES = 12, IN_FLIGHT = 24 };

/* Of each task: which candidates pass. */
static const char *const passes[TASKS] = {"............", "...x.x......", "x..........."};

struct script {
    struct eval_events events;
    struct {
        void *cookie;
        int task, first, n, done;
        bool first_mode;
    } live[TASKS];
    int die_after; /* candidates judged, then the backend fails; < 0: never */
    int made[TASKS][CANDIDATES];
    int most_in_flight, n_live;
};

static char dir[64];
static struct eval_tasks tasks;
static struct eval_options options;
static struct err e;

static int task_number(const char *body) {
    for (int i = 0; i < TASKS; i++) {
        char name[16];
        snprintf(name, sizeof name, "task %c", 'a' + i);
        if (strstr(body, name)) return i;
    }
    ck_abort_msg("no task in %s", body);
}

static int field(const char *body, const char *key) {
    const char *at = strstr(body, key);
    ck_assert_ptr_nonnull(at);
    return (int)strtol(at + strlen(key), NULL, 10);
}

static bool script_start(void *self, const struct eval_ask *ask, void *cookie, struct err *why) {
    struct script *s = self;
    (void)why;
    int task = task_number(ask->body);
    ck_assert_ptr_null(s->live[task].cookie);
    s->live[task].cookie = cookie;
    s->live[task].first = field(ask->body, "\"first_index\":");
    s->live[task].n = field(ask->body, "\"max_candidates\":");
    s->live[task].done = 0;
    s->live[task].first_mode = strstr(ask->body, "\"return\":\"first\"") != NULL;
    s->n_live++;
    int in_flight = 0;
    for (int i = 0; i < TASKS; i++)
        if (s->live[i].cookie) in_flight += s->live[i].n - s->live[i].done;
    if (in_flight > s->most_in_flight) s->most_in_flight = in_flight;
    return true;
}

static void script_end(struct script *s, int task, const char *error) {
    struct eval_end end = {.tokens = 10 * s->live[task].done + 3, .seconds = 1, .first_pass_s = -1};
    void *cookie = s->live[task].cookie;
    if (error) err_set(&end.error, ERR_SYSTEM, "%s", error);
    s->live[task].cookie = NULL;
    s->n_live--;
    s->events.end(s->events.arg, cookie, &end);
}

/* One candidate of each live race. */
static void script_turn(void *self) {
    struct script *s = self;
    for (int i = 0; i < TASKS; i++) {
        if (!s->live[i].cookie) continue;
        if (!s->die_after) {
            script_end(s, i, "the power went out");
            continue;
        }
        s->die_after--;
        int index = s->live[i].first + s->live[i].done++;
        bool passed = passes[i][index] == 'x';
        s->made[i][index]++;
        const struct eval_candidate c = {.index = index,
                                         .tokens = 10,
                                         .verdict = passed ? "passed" : "failed",
                                         .passed = passed,
                                         .error = "",
                                         .method = "fenced",
                                         .text = "text\n",
                                         .text_len = 5,
                                         .code = "def f(): pass\n",
                                         .code_len = 14};
        s->events.candidate(s->events.arg, s->live[i].cookie, &c);
        if (s->live[i].done == s->live[i].n || (passed && s->live[i].first_mode))
            script_end(s, i, NULL);
    }
}

static void script_close(void *self) { (void)self; }

static void no_progress(void *arg, const struct eval_result *over) {
    (void)arg;
    (void)over;
}

/* Opens, runs to the end or the script's failure; `v` stays open. */
static bool evaluate(struct eval *v, struct script *s) {
    *v = (struct eval){0};
    s->events = eval_events(v);
    const struct eval_backend backend = {.self = s,
                                         .model = "m",
                                         .model_key = "k",
                                         .in_flight = IN_FLIGHT,
                                         .start = script_start,
                                         .turn = script_turn,
                                         .close = script_close};
    e = (struct err){0};
    memset(s->live, 0, sizeof s->live);
    s->n_live = 0;
    return eval_open(v, &options, &tasks, &backend, dir, &e) && eval_run(v, no_progress, NULL, &e);
}

static char *path_of(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static json_t *load(const char *name) {
    json_t *root = json_load_file(path_of(name), 0, NULL);
    ck_assert_ptr_nonnull(root);
    return root;
}

static void setup(void) {
    static const char text[] =
        "{\"id\": \"a\", \"prompt\": \"task a\", \"tests\": \"assert f()\"}\n"
        "{\"id\": \"b\", \"prompt\": \"task b\", \"tests\": \"assert f()\"}\n"
        "{\"id\": \"c\", \"prompt\": \"task c\", \"tests\": \"assert f()\"}";
    snprintf(dir, sizeof dir, "/tmp/test_eval_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert(eval_tasks_parse(&tasks, "T", text, sizeof text - 1, &e));
    options = (struct eval_options){.n = CANDIDATES,
                                    .temperature = 0.8,
                                    .top_p = 1,
                                    .max_tokens = 16,
                                    .timeout_s = 1,
                                    .memory_mb = 64,
                                    .step = 1,
                                    .ks = {1, 12},
                                    .n_ks = 2};
}

static void teardown(void) {
    static const char *const names[] = {"candidates.jsonl", "results.json", "samples.jsonl",
                                        "samples-evalplus.jsonl"};
    eval_tasks_clear(&tasks);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(path_of(names[i]));
    rmdir(dir);
}

/* ---- runs ---- */

static void assert_each_made_once(const struct script *s) {
    for (int i = 0; i < TASKS; i++)
        for (int k = 0; k < CANDIDATES; k++)
            ck_assert_msg(s->made[i][k] == 1, "candidate %d of %d: %d times", k, i, s->made[i][k]);
}

START_TEST(all_are_judged_and_reported) {
    struct script s = {.die_after = -1};
    struct eval v;
    ck_assert_msg(evaluate(&v, &s), "%s", e.message);
    assert_each_made_once(&s);
    ck_assert_int_eq(s.most_in_flight, IN_FLIGHT);
    ck_assert_int_eq(v.judged, (intmax_t)TASKS * CANDIDATES);
    ck_assert_int_eq(v.solved, 2);
    ck_assert_int_eq(v.results[1].first_pass, 3);
    ck_assert_int_eq(v.results[1].passed, 2);
    ck_assert_int_eq(v.results[1].judged_to_pass, 4);
    ck_assert_int_eq((int)v.results[1].tokens_to_pass, 40);
    ck_assert_int_eq((int)v.tokens,
                     (intmax_t)TASKS * (CANDIDATES * 10 + 3)); /* 3 of what was cut off */
    ck_assert_msg(eval_report_write(&v, &e), "%s", e.message);
    eval_close(&v);
    json_t *r = load("results.json");
    ck_assert_int_eq((int)json_integer_value(json_object_get(r, "solved")), 2);
    json_t *at = json_object_get(r, "pass_at_k");
    double one = json_number_value(json_object_get(at, "1"));
    ck_assert_double_eq_tol(one, (2.0 / 12 + 1.0 / 12) / 3, 1e-6);
    ck_assert_double_eq_tol(json_number_value(json_object_get(at, "12")), 2.0 / 3, 1e-6);
    ck_assert_uint_eq(json_array_size(json_object_get(r, "per_task")), TASKS);
    ck_assert_str_eq(json_string_value(json_object_get(r, "mode")), "pass@k");
    json_t *kinds = json_object_get(r, "kinds"), *kind = json_array_get(kinds, 0);
    ck_assert_uint_eq(json_array_size(kinds), 1);
    ck_assert_int_eq((int)json_integer_value(json_object_get(kind, "judged")),
                     (intmax_t)TASKS * CANDIDATES);
    ck_assert_int_eq((int)json_integer_value(json_object_get(kind, "passed")), 3);
    ck_assert_int_eq((int)json_integer_value(json_object_get(kind, "hard")), 0);
    json_decref(r);
    FILE *samples = fopen(path_of("samples.jsonl"), "r");
    char line[256];
    int n = 0;
    while (fgets(line, sizeof line, samples)) {
        ck_assert_ptr_nonnull(strstr(line, "\"completion\":\"\\ndef f(): pass\\n\""));
        n++;
    }
    fclose(samples);
    ck_assert_int_eq(n, (intmax_t)TASKS * CANDIDATES);
}
END_TEST

START_TEST(first_stops_at_a_pass) {
    struct script s = {.die_after = -1};
    struct eval v;
    options.mode = EVAL_FIRST;
    ck_assert_msg(evaluate(&v, &s), "%s", e.message);
    ck_assert_int_eq(v.results[0].judged, CANDIDATES);
    ck_assert_int_eq(v.results[1].judged, 4);
    ck_assert_int_eq(v.results[2].judged, 1);
    ck_assert_int_eq(v.over, TASKS);
    ck_assert_msg(eval_report_write(&v, &e), "%s", e.message);
    eval_close(&v);
    json_t *r = load("results.json");
    json_t *at = json_object_get(r, "pass_at_k");
    ck_assert_double_eq_tol(json_number_value(json_object_get(at, "1")), 1.0 / 3, 1e-6);
    json_decref(r);
    /* Again: nothing is left to do. */
    struct script again = {.die_after = 0};
    ck_assert_msg(evaluate(&v, &again), "%s", e.message);
    ck_assert_int_eq(v.solved, 2);
    ck_assert_int_eq(v.journal.sessions, 1);
    eval_close(&v);
}
END_TEST

/* Wherever a run ends, the next one makes what is missing, each candidate once in all. */
START_TEST(goes_on_after_any_end) {
    for (int at = 0; at <= (intmax_t)TASKS * CANDIDATES; at++) {
        struct script s = {.die_after = at};
        struct eval v;
        bool done = evaluate(&v, &s);
        ck_assert(done == (at == (intmax_t)TASKS * CANDIDATES) ||
                  !strcmp(e.message, "the power went out"));
        int64_t tokens = v.tokens;
        eval_close(&v);
        s.die_after = -1;
        ck_assert_msg(evaluate(&v, &s), "%s", e.message);
        ck_assert_int_eq(v.judged, (intmax_t)TASKS * CANDIDATES);
        ck_assert_int_ge((int)v.tokens, (int)tokens);
        assert_each_made_once(&s);
        eval_close(&v);
        unlink(path_of("candidates.jsonl"));
    }
}
END_TEST

/* A kill may leave any part of the last line. */
START_TEST(goes_on_after_a_torn_line) {
    struct script s = {.die_after = 7};
    struct eval v;
    struct stat st;
    evaluate(&v, &s);
    eval_close(&v);
    ck_assert_int_eq(stat(path_of("candidates.jsonl"), &st), 0);
    off_t whole = st.st_size;
    char *text = malloc((size_t)whole);
    int fd = open(path_of("candidates.jsonl"), O_RDWR);
    ck_assert_int_eq((int)read(fd, text, (size_t)whole), (int)whole);
    for (off_t cut = whole; cut > 0; cut -= 37) {
        ck_assert_int_eq(ftruncate(fd, 0), 0);
        ck_assert_int_eq((int)pwrite(fd, text, (size_t)cut, 0), (int)cut);
        struct script next = {.die_after = -1};
        ck_assert_msg(evaluate(&v, &next), "%s", e.message);
        ck_assert_int_eq(v.judged, (intmax_t)TASKS * CANDIDATES);
        int made = 0, lines = 0;
        for (int i = 0; i < TASKS; i++)
            for (int k = 0; k < CANDIDATES; k++) {
                ck_assert_int_le(next.made[i][k], 1);
                made += next.made[i][k];
            }
        for (const char *at = text; (at = memmem(at, (size_t)(text + cut - at), "{\"task\":", 8));
             at++) {
            const char *end = memchr(at, '\n', (size_t)(text + cut - at));
            lines += end != NULL;
        }
        ck_assert_int_eq(made + lines, (intmax_t)TASKS * CANDIDATES);
        eval_close(&v);
    }
    close(fd);
    free(text);
}
END_TEST

START_TEST(other_options_are_refused) {
    struct script s = {.die_after = -1};
    struct eval v;
    ck_assert(evaluate(&v, &s));
    eval_close(&v);
    struct eval_options same = options;
    const struct {
        struct eval_options other;
        const char *word;
    } cases[] = {
        {.other = {.mode = EVAL_FIRST, .temperature = 0.8}, .word = "mode"},
        {.other = {.temperature = 0.9}, .word = "\"temperature\": 0.8"},
        {.other = {.temperature = 0.8, .seed = 2}, .word = "seed"},
        {.other = {.temperature = 0.8, .temperatures = {1}, .n_temperatures = 1},
         .word = "temperatures"},
        {.other = {.temperature = 0.8, .greedy_first = true}, .word = "greedy_first"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        options = same;
        options.mode = cases[i].other.mode;
        options.temperature = cases[i].other.temperature;
        options.seed = cases[i].other.seed;
        options.greedy_first = cases[i].other.greedy_first;
        options.temperatures[0] = cases[i].other.temperatures[0];
        options.n_temperatures = cases[i].other.n_temperatures;
        ck_assert(!evaluate(&v, &s));
        ck_assert_int_eq(e.kind, ERR_INPUT);
        ck_assert_msg(strstr(e.message, cases[i].word), "%s", e.message);
        eval_close(&v);
    }
    options = same;
    options.n = CANDIDATES - 1;
    ck_assert(!evaluate(&v, &s));
    ck_assert_msg(strstr(e.message, "--n must be at least 12"), "%s", e.message);
    eval_close(&v);
    /* Other tasks of the same file are others' results, not an error. */
    options = same;
    options.first_task = 2;
    ck_assert_msg(evaluate(&v, &s), "%s", e.message);
    ck_assert_int_eq(v.judged, CANDIDATES);
    eval_close(&v);
}
END_TEST

START_TEST(a_damaged_journal_is_refused) {
    static const char *const cases[][2] = {
        {"what\n", "line 1"},
        {"{\"eval\": 2, \"options\": {}}\n", "no journal"},
        {"[]\n", "line 1"},
        {"\n", "line 1"},
    };
    struct script s = {.die_after = -1};
    struct eval v;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *f = fopen(path_of("candidates.jsonl"), "w");
        fputs(cases[i][0], f);
        fclose(f);
        ck_assert(!evaluate(&v, &s));
        ck_assert_int_eq(e.kind, ERR_INPUT);
        ck_assert_msg(strstr(e.message, cases[i][1]), "%s", e.message);
        eval_close(&v);
    }
    unlink(path_of("candidates.jsonl"));
    ck_assert(evaluate(&v, &s));
    eval_close(&v);
    FILE *f = fopen(path_of("candidates.jsonl"), "a");
    fputs("{\"task\":\"a\",\"index\":3,\"tokens\":1,\"verdict\":\"failed\"}\n", f);
    fclose(f);
    ck_assert(!evaluate(&v, &s));
    ck_assert_msg(strstr(e.message, "there twice"), "%s", e.message);
    eval_close(&v);
}
END_TEST

START_TEST(two_runs_in_one_folder_exclude_each_other) {
    struct script s = {.die_after = -1}, other = {.die_after = -1};
    struct eval v, w;
    ck_assert(evaluate(&v, &s));
    ck_assert(!evaluate(&w, &other));
    ck_assert_msg(strstr(e.message, "another"), "%s", e.message);
    eval_close(&w);
    eval_close(&v);
}
END_TEST

/* ---- diversity ---- */

START_TEST(diversity_goes_into_the_request) {
    options.temperatures[0] = 0.5;
    options.temperatures[1] = 1;
    options.temperatures[2] = 1.5;
    options.n_temperatures = 3;
    char *body = eval_body(&options, "m", &tasks.tasks[0], 5, 8, 8, 4);
    ck_assert_ptr_nonnull(strstr(body, "\"diversity\":{\"temperatures\":[0.5,1,1.5]}"));
    ck_assert_ptr_nonnull(strstr(body, "\"first_index\":8"));
    free(body);
    options.prompts = json_pack("[s, {s:s}]", "Think \"first\".", "assistant", "```python\n");
    options.n_temperatures = 0;
    body = eval_body(&options, "m", &tasks.tasks[0], 5, 8, 8, 4);
    ck_assert_ptr_nonnull(strstr(body, "\"diversity\":{\"prompts\":[\"Think \\\"first\\\".\","
                                       "{\"assistant\":\"```python\\n\"}]}"));
    ck_assert_ptr_nonnull(strstr(body, "task a\""));
    free(body);
    json_decref(options.prompts);
    options.prompts = json_pack("[{s:s}]", "assistant", "<{code}|{code}>");
    struct eval_task coded = tasks.tasks[0];
    coded.code = "def f():\n";
    body = eval_body(&options, "m", &coded, 5, 8, 8, 4);
    ck_assert_ptr_nonnull(strstr(body, "\"<def f():\\n|def f():\\n>\""));
    free(body);
    json_decref(options.prompts);
    options.prompts = NULL;
}
END_TEST

int main(void) {
    Suite *s = suite_create("eval");
    TCase *t = tcase_create("figures");
    tcase_add_test(t, pass_at_k_is_what_counting_gives);
    tcase_add_test(t, intervals_hold_the_value_and_narrow);
    tcase_add_test(t, shares);
    suite_add_tcase(s, t);
    t = tcase_create("runs");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, all_are_judged_and_reported);
    tcase_add_test(t, first_stops_at_a_pass);
    tcase_add_test(t, goes_on_after_any_end);
    tcase_add_test(t, goes_on_after_a_torn_line);
    tcase_add_test(t, other_options_are_refused);
    tcase_add_test(t, a_damaged_journal_is_refused);
    tcase_add_test(t, two_runs_in_one_folder_exclude_each_other);
    tcase_add_test(t, diversity_goes_into_the_request);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
