/* What a stream tells of each candidate: once an event, as it is by then, and only what changed. */
#include "answer.h"
#include "server/progress.h"

#include <stdlib.h>

static struct api_request request;
static struct api_response_head head;
static struct progress progress;

static void setup_with(enum race_detail detail, int n) {
    request = (struct api_request){.has_tests = true, .stream = true, .detail = detail};
    request.progress = API_REQUEST_PROGRESS_CANDIDATES;
    head = (struct api_response_head){.request = &request, .token_text = answer_token_text};
    progress_init(&progress, &head, n);
}

static void teardown(void) { progress_clear(&progress); }

static void note(int index, enum race_entry_state state, int tokens) {
    struct race_candidate c = answer_candidate;
    c.index = index;
    c.n_tokens = tokens;
    c.verdict = index % 2 ? VERDICT_FAILED : VERDICT_PASSED;
    progress_note(&progress, &c, state);
}

/* The next event's members. */
static json_t *told(void) {
    struct buf out;
    struct writer w;
    buf_init(&out, 1 << 24);
    writer_init(&w, &out);
    writer_object(&w);
    progress_write(&progress, &w);
    writer_object_end(&w);
    json_t *v = json_loadb(out.data, out.len, 0, NULL);
    ck_assert_msg(v != NULL, "%s", buf_text(&out));
    buf_clear(&out);
    ck_assert(!progress_waits(&progress) && !progress_is_long(&progress));
    return v;
}

static void is_row(json_t *event, size_t at, int number, const char *state, int tokens) {
    json_t *row = json_array_get(json_object_get(event, "candidates"), at);
    ck_assert_uint_eq(json_array_size(row), 3);
    ck_assert_int_eq(json_integer_value(json_array_get(row, 0)), number);
    ck_assert_str_eq(json_string_value(json_array_get(row, 1)), state);
    ck_assert_int_eq(json_integer_value(json_array_get(row, 2)), tokens);
}

static size_t rows(json_t *event) { return json_array_size(json_object_get(event, "candidates")); }

START_TEST(each_candidate_once_an_event) {
    setup_with(RACE_CANDIDATES_NONE, 4);
    ck_assert(!progress_waits(&progress));
    note(2, RACE_ENTRY_DECODING, 0);
    note(0, RACE_ENTRY_DECODING, 0);
    note(2, RACE_ENTRY_DECODING, 7);
    note(2, RACE_ENTRY_VERIFYING, 9);
    ck_assert(progress_waits(&progress));
    json_t *event = told();
    ck_assert_uint_eq(rows(event), 2);
    is_row(event, 0, 2, "verifying", 9);
    is_row(event, 1, 0, "decoding", 0);
    json_decref(event);
    event = told();
    ck_assert_uint_eq(rows(event), 0);
    json_decref(event);
    note(2, RACE_ENTRY_DECIDED, 9);
    note(1, RACE_ENTRY_DECIDED, 5);
    note(0, RACE_ENTRY_CANCELLED, 3);
    event = told();
    ck_assert_uint_eq(rows(event), 3);
    is_row(event, 0, 2, "passed", 9);
    is_row(event, 1, 1, "failed", 5);
    is_row(event, 2, 0, "cancelled", 3);
    ck_assert_ptr_null(json_object_get(event, "judged"));
    json_decref(event);
}
END_TEST

START_TEST(numbers_are_those_of_the_seed) {
    setup_with(RACE_CANDIDATES_NONE, 2);
    request.job.first_index = 100;
    note(1, RACE_ENTRY_DECODING, 1);
    json_t *event = told();
    is_row(event, 0, 101, "decoding", 1);
    json_decref(event);
}
END_TEST

START_TEST(judged_ones_as_the_request_wants_them) {
    setup_with(RACE_CANDIDATES_FULL, 4);
    note(3, RACE_ENTRY_VERIFYING, 9);
    note(3, RACE_ENTRY_DECIDED, 9);
    note(2, RACE_ENTRY_DECIDED, 9);
    json_t *event = told(), *judged = json_object_get(event, "judged");
    ck_assert_uint_eq(json_array_size(judged), 2);
    json_t *first = json_array_get(judged, 0);
    ck_assert_int_eq(int_of(first, "candidate"), 3);
    ck_assert_str_eq(text_of(first, "verdict"), "failed");
    ck_assert_str_eq(text_of(first, "code"), "def f(): pass");
    json_decref(event);
    event = told();
    ck_assert_ptr_null(json_object_get(event, "judged"));
    json_decref(event);
    progress_clear(&progress);

    setup_with(RACE_CANDIDATES_VERDICTS, 4);
    note(2, RACE_ENTRY_DECIDED, 9);
    event = told();
    first = json_array_get(json_object_get(event, "judged"), 0);
    ck_assert_str_eq(text_of(first, "verdict"), "passed");
    ck_assert_ptr_null(json_object_get(first, "code"));
    json_decref(event);
}
END_TEST

/* Ten thousand at once are one event that doesn't wait for its turn; each is in it. */
START_TEST(ten_thousand) {
    enum { N = 10000 };
    setup_with(RACE_CANDIDATES_FULL, N);
    bool was_long = false;
    size_t n_rows = 0, n_judged = 0;
    for (int i = 0; i < N; i++) {
        note(i, RACE_ENTRY_DECIDED, i);
        if (!progress_is_long(&progress) && i + 1 < N) continue;
        was_long = was_long || progress_is_long(&progress);
        json_t *event = told();
        n_rows += rows(event);
        n_judged += json_array_size(json_object_get(event, "judged"));
        json_decref(event);
    }
    ck_assert(was_long);
    ck_assert_uint_eq(n_rows, N);
    ck_assert_uint_eq(n_judged, N);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("progress");
    TCase *t = tcase_create("progress");
    tcase_set_timeout(t, 0);
    tcase_add_checked_fixture(t, NULL, teardown);
    tcase_add_test(t, each_candidate_once_an_event);
    tcase_add_test(t, numbers_are_those_of_the_seed);
    tcase_add_test(t, judged_ones_as_the_request_wants_them);
    tcase_add_test(t, ten_thousand);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
