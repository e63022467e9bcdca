/* The /metrics page: its form is what Prometheus' text format asks for, its numbers those of the
 * parts. */
#include "server/metrics.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct metrics own;
static struct buf page;

static void setup(void) {
    metrics_init(&own);
    buf_init(&page, 1 << 20);
}

static void teardown(void) { buf_clear(&page); }

static void write_full(void) {
    static const struct verifier_layer layers[] = {{"seccomp", true, "x"},
                                                   {"net\"ns\\", false, "y"}};
    static const struct verifier_report report = {.level = 2, .layers = layers, .n_layers = 2};
    static const struct http_stats http = {
        .connections = 3, .requests = 9, .by_class = {0, 0, 7, 0, 2, 0}};
    static const struct race_set_stats races = {.live = 1,
                                                .races = 5,
                                                .verified = 4,
                                                .cancels = 2,
                                                .cancel_s = 0.5,
                                                .cancel_longest_s = 0.375};
    static const struct engine_stats engine = {.candidates_running = 6,
                                               .blocks_total = 100,
                                               .blocks_free = 75,
                                               .rows = 130,
                                               .prompt_tokens = 90,
                                               .prompt_tokens_cached = 40,
                                               .generated_tokens = 160,
                                               .ops = {{"matmul", 2, 1e9, 4e9, 7}},
                                               .memory = {.weights = 5000000000u}};
    static const struct engine_ceiling ceiling = {.macs_per_s = 4e9, .bytes_per_s = 1e10};
    static const struct verifier_stats verifier = {.verdicts = {[VERDICT_PASSED] = 11}};
    const struct metrics_view view = {.model = "a \"b\"",
                                      .own = &own,
                                      .http = &http,
                                      .races = &races,
                                      .engine = &engine,
                                      .ceiling = &ceiling,
                                      .verifier = &verifier,
                                      .report = &report,
                                      .candidates_waiting = 9994,
                                      .uptime_s = 1.5,
                                      .ready = true};
    metrics_write(&page, &view);
    ck_assert(!page.overflowed);
}

static void expect(const char *line) {
    char with[300];
    snprintf(with, sizeof with, "\n%s\n", line);
    ck_assert_msg(strstr(buf_text(&page), with) != NULL, "no line %s in\n%s", line,
                  buf_text(&page));
}

START_TEST(numbers_of_the_parts) {
    write_full();
    expect("firstpass_ready 1");
    expect("firstpass_http_connections 3");
    expect("firstpass_http_responses_total{class=\"2xx\"} 7");
    expect("firstpass_http_responses_total{class=\"4xx\"} 2");
    expect("firstpass_races_live 1");
    expect("firstpass_rows_per_token 0.5");
    expect("firstpass_kv_use 0.25");
    expect("firstpass_op_macs_total{op=\"matmul\"} 4e+09");
    expect("firstpass_roofline_share 0.5"); /* arithmetic takes 1 s of the 2 */
    expect("firstpass_cancel_seconds_sum 0.5");
    expect("firstpass_cancel_seconds_count 2");
    expect("firstpass_cancel_seconds_longest 0.375");
    expect("firstpass_races_ended_total{outcome=\"verified\"} 4");
    expect("firstpass_candidates_running 6");
    expect("firstpass_candidates_waiting 9994");
    expect("firstpass_kv_blocks_free 75");
    expect("firstpass_memory_bytes{bucket=\"weights\"} 5000000000");
    expect("firstpass_verdicts_total{verdict=\"passed\"} 11");
    expect("firstpass_sandbox_level 2");
    expect("firstpass_sandbox_layer{layer=\"seccomp\"} 1");
    expect("firstpass_sandbox_layer{layer=\"net\\\"ns\\\\\"} 0");
}
END_TEST

START_TEST(routers_find_candidates_under_their_names) {
    write_full();
    expect("vllm:num_requests_running{model_name=\"a \\\"b\\\"\"} 6");
    expect("vllm:num_requests_waiting{model_name=\"a \\\"b\\\"\"} 9994");
    expect("vllm:kv_cache_usage_perc{model_name=\"a \\\"b\\\"\"} 0.25");
    expect("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1");
}
END_TEST

START_TEST(every_name_is_declared_once_before_its_values) {
    write_full();
    char *copy = strdup(buf_text(&page)), *save = NULL;
    char declared[8192] = " ", current[100] = "";
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char name[100];
        if (!strncmp(line, "# TYPE ", 7)) {
            ck_assert_int_eq(sscanf(line + 7, "%99s", current), 1);
            char with[110];
            snprintf(with, sizeof with, " %s ", current);
            ck_assert_msg(!strstr(declared, with), "%s is declared twice", current);
            strncat(declared, with + 1, sizeof declared - strlen(declared) - 1);
        } else if (*line != '#') {
            ck_assert_int_eq(sscanf(line, "%99[a-zA-Z0-9_:]", name), 1);
            ck_assert_msg(!strncmp(name, current, strlen(current)), "%s under %s", name, current);
            char *end;
            strtod(strrchr(line, ' ') + 1, &end);
            ck_assert_msg(!*end, "no number at the end of: %s", line);
        }
    }
    free(copy);
}
END_TEST

START_TEST(histograms_are_cumulative) {
    static const double values[] = {0, 0.05, 0.051, 0.1, 0.11, 1e9};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        metrics_observe(&own.request_seconds, values[i]);
    const struct metrics_view view = {.model = "", .own = &own};
    metrics_write(&page, &view);
    expect("firstpass_request_seconds_bucket{le=\"0.05\"} 2");
    expect("firstpass_request_seconds_bucket{le=\"0.1\"} 4");
    expect("firstpass_request_seconds_bucket{le=\"0.2\"} 5");
    expect("firstpass_request_seconds_bucket{le=\"409.6\"} 5");
    expect("firstpass_request_seconds_bucket{le=\"+Inf\"} 6");
    expect("firstpass_request_seconds_count 6");
    expect("firstpass_ready 0");
    ck_assert_ptr_null(strstr(buf_text(&page), "vllm:"));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("metrics");
    TCase *t = tcase_create("metrics");
    tcase_set_timeout(t, 0);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, numbers_of_the_parts);
    tcase_add_test(t, routers_find_candidates_under_their_names);
    tcase_add_test(t, every_name_is_declared_once_before_its_values);
    tcase_add_test(t, histograms_are_cumulative);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
