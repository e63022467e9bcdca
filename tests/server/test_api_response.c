/* Answers in OpenAI's shapes, read back by a JSON parser. */
#include "answer.h"

static struct api_request request;
static struct api_response_head head;
static struct buf out;
static struct writer w;

static void setup(void) {
    request = (struct api_request){.kind = API_REQUEST_CHAT};
    head = (struct api_response_head){.request = &request,
                                      .id = "chatcmpl-1",
                                      .model = "tiny",
                                      .fingerprint = "fp_1",
                                      .created = 1234,
                                      .sandbox_level = 3,
                                      .token_text = answer_token_text};
    buf_init(&out, 1 << 20);
    writer_init(&w, &out);
}

static void teardown(void) { buf_clear(&out); }

/* What was written, as a value of its own; decref it. */
static json_t *result(void) {
    json_error_t error;
    json_t *v = json_loadb(buf_text(&out), out.len, 0, &error);
    ck_assert_msg(v != NULL, "%s in %s", error.text, buf_text(&out));
    return v;
}

static json_t *choice(const char *echo) {
    const struct api_response_prompt prompt = {.echo = echo, .echo_len = strlen(echo)};
    api_response_write_choice(&w, &head, 2, &answer_candidate, &prompt);
    return result();
}

START_TEST(a_chat_choice) {
    json_t *v = choice("");
    ck_assert_int_eq(int_of(v, "index"), 2);
    ck_assert_str_eq(text_of(v, "finish_reason"), "stop");
    ck_assert(is_null(v, "logprobs"));
    json_t *message = json_object_get(v, "message");
    ck_assert_str_eq(text_of(message, "role"), "assistant");
    ck_assert_str_eq(text_of(message, "content"), "a\xC3\xA9\xEF\xBF\xBD");
    ck_assert(is_null(message, "refusal"));
    ck_assert_ptr_null(json_object_get(v, "token_ids"));
    json_decref(v);
}
END_TEST

START_TEST(a_completion_choice_with_echo_and_ids) {
    request.kind = API_REQUEST_COMPLETIONS;
    request.return_token_ids = true;
    json_t *v = choice("\xC3\xA9p:");
    ck_assert_str_eq(text_of(v, "text"), "\xC3\xA9p:a\xC3\xA9\xEF\xBF\xBD");
    ck_assert_ptr_null(json_object_get(v, "message"));
    ck_assert_uint_eq(json_array_size(json_object_get(v, "token_ids")), 3);
    json_decref(v);
}
END_TEST

START_TEST(chat_log_probabilities) {
    request.job.logprobs = true;
    json_t *v = choice("");
    json_t *content = json_object_get(json_object_get(v, "logprobs"), "content");
    ck_assert_uint_eq(json_array_size(content), 3);
    json_t *first = json_array_get(content, 0), *last = json_array_get(content, 2);
    ck_assert_str_eq(text_of(first, "token"), "a");
    ck_assert(number_of(first, "logprob") == -0.5);
    ck_assert_uint_eq(json_array_size(json_object_get(first, "top_logprobs")), 2);
    ck_assert_str_eq(text_of(last, "token"), "\xEF\xBF\xBD");
    ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(last, "bytes"), 0)), 0xC3);
    /* Minus infinity has its own number in this API. */
    ck_assert(number_of(last, "logprob") == -9999.0);
    json_decref(v);
}
END_TEST

START_TEST(legacy_log_probabilities) {
    request.kind = API_REQUEST_COMPLETIONS;
    request.job.logprobs = true;
    request.job.n_top_logprobs = 2;
    json_t *v = choice("\xC3\xA9p:");
    json_t *p = json_object_get(v, "logprobs");
    json_t *tokens = json_object_get(p, "tokens"), *top = json_object_get(p, "top_logprobs");
    json_t *offsets = json_object_get(p, "text_offset");
    ck_assert_str_eq(json_string_value(json_array_get(tokens, 1)), "\xC3\xA9");
    ck_assert_str_eq(json_string_value(json_array_get(tokens, 2)), "bytes:\\xc3");
    ck_assert_uint_eq(json_array_size(json_object_get(p, "token_logprobs")), 3);
    /* Offsets count characters and start behind the echo. */
    static const json_int_t want[] = {3, 4, 5};
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(json_integer_value(json_array_get(offsets, i)), want[i]);
    /* The sampled token is among the top ones, once. */
    ck_assert_uint_eq(json_object_size(json_array_get(top, 0)), 2);
    ck_assert(number_of(json_array_get(top, 1), "\xC3\xA9") == -0.5);
    ck_assert(number_of(json_array_get(top, 1), "bytes:\\xa9") == -0.25);
    json_decref(v);

    buf_reset(&out);
    writer_init(&w, &out);
    request.job.n_top_logprobs = 0;
    v = choice("");
    ck_assert(is_null(json_object_get(v, "logprobs"), "top_logprobs"));
    json_decref(v);
}
END_TEST

/* The prompt "é" behind a token that begins it; the next one is among the top two, the last isn't.
 */
static const int32_t prompt_tokens[] = {5, 2, 1};
static const int32_t prompt_top[] = {2, 0, 3, 4};
static const float prompt_top_logprobs[] = {-0.5f, -1.5f, -0.25f, -0.75f};
static const struct engine_logprob prompt_logprobs[] = {
    {5, NAN, 0, prompt_top, prompt_top_logprobs},
    {2, -0.5f, 2, prompt_top, prompt_top_logprobs},
    {1, -4, 2, prompt_top + 2, prompt_top_logprobs + 2},
};
static const struct api_response_prompt shown = {.echo = "\xC3\xA9"
                                                         "bc",
                                                 .echo_len = 4,
                                                 .tokens = prompt_tokens,
                                                 .n_tokens = 3,
                                                 .n_lead = 1,
                                                 .logprobs = prompt_logprobs};

START_TEST(an_echo_has_its_log_probabilities) {
    request.kind = API_REQUEST_COMPLETIONS;
    request.job.logprobs = true;
    request.job.n_top_logprobs = 2;
    request.n_prompt_logprobs = -1;
    api_response_write_choice(&w, &head, 0, &answer_candidate, &shown);
    json_t *v = result();
    json_t *p = json_object_get(v, "logprobs");
    json_t *values = json_object_get(p, "token_logprobs"),
           *top = json_object_get(p, "top_logprobs");
    ck_assert_uint_eq(json_array_size(json_object_get(p, "tokens")), 6);
    ck_assert_uint_eq(json_array_size(values), 6);
    ck_assert(json_is_null(json_array_get(values, 0)) && json_is_null(json_array_get(top, 0)));
    ck_assert(json_number_value(json_array_get(values, 2)) == -4);
    /* One that isn't among the top ones is shown beside them. */
    ck_assert_uint_eq(json_object_size(json_array_get(top, 1)), 2);
    ck_assert_uint_eq(json_object_size(json_array_get(top, 2)), 3);
    static const json_int_t want[] = {0, 0, 1, 3, 4, 5};
    json_t *offsets = json_object_get(p, "text_offset");
    for (size_t i = 0; i < 6; i++)
        ck_assert_int_eq(json_integer_value(json_array_get(offsets, i)), want[i]);
    ck_assert_ptr_null(json_object_get(v, "prompt_logprobs"));
    json_decref(v);
}
END_TEST

START_TEST(prompt_log_probabilities_by_id) {
    request.kind = API_REQUEST_COMPLETIONS;
    request.n_prompt_logprobs = 1;
    api_response_write_choice(&w, &head, 0, &answer_candidate, &shown);
    json_t *v = result();
    ck_assert(is_null(v, "logprobs"));
    json_t *p = json_object_get(v, "prompt_logprobs");
    ck_assert_uint_eq(json_array_size(p), 3);
    ck_assert(json_is_null(json_array_get(p, 0)));
    json_t *second = json_object_get(json_array_get(p, 1), "2");
    ck_assert_uint_eq(json_object_size(json_array_get(p, 1)), 1);
    ck_assert_int_eq(int_of(second, "rank"), 1);
    ck_assert_str_eq(text_of(second, "decoded_token"), "\xC3\xA9");
    ck_assert_uint_eq(json_object_size(json_array_get(p, 2)), 2);
    ck_assert(is_null(json_object_get(json_array_get(p, 2), "1"), "rank"));
    json_decref(v);
}
END_TEST

/* Against the definition: 1 - C(n - c, k) / C(n, k). */
START_TEST(pass_at_k_is_the_unbiased_estimate) {
    ck_assert(api_response_pass_at(10, 0, 1) == 0);
    ck_assert(api_response_pass_at(10, 10, 3) == 1);
    ck_assert(fabs(api_response_pass_at(10, 3, 1) - 0.3) < 1e-12);
    ck_assert(fabs(api_response_pass_at(10, 3, 2) - (1 - 21.0 / 45)) < 1e-12);
    ck_assert(fabs(api_response_pass_at(5, 2, 3) - (1 - 1.0 / 10)) < 1e-12);
    ck_assert(api_response_pass_at(5, 3, 3) == 1);
    ck_assert(isnan(api_response_pass_at(5, 3, 6)));
    double p = api_response_pass_at(10000, 1, 5000);
    ck_assert(fabs(p - 0.5) < 1e-9);
}
END_TEST

START_TEST(tokens_named_by_id) {
    request.job.logprobs = true;
    request.tokens_as_ids = true;
    json_t *v = choice("");
    json_t *content = json_object_get(json_object_get(v, "logprobs"), "content");
    ck_assert_str_eq(text_of(json_array_get(content, 2), "token"), "token_id:3");
    json_decref(v);
}
END_TEST

START_TEST(finish_reasons_are_only_those_that_clients_know) {
    ck_assert_str_eq(api_response_finish_reason(ENGINE_STOP), "stop");
    ck_assert_str_eq(api_response_finish_reason(ENGINE_CODE_END), "stop");
    ck_assert_str_eq(api_response_finish_reason(ENGINE_LENGTH), "length");
    ck_assert_str_eq(api_response_finish_reason(ENGINE_CANCELLED), "length");
    ck_assert_str_eq(api_response_finish_reason(ENGINE_FAILED), "length");
}
END_TEST

START_TEST(the_head_and_usage) {
    writer_object(&w);
    api_response_write_head(&w, &head, false);
    struct api_response_totals totals = {0};
    struct race_counts counts = {
        .prompt_tokens = 10, .cached_tokens = 4, .tokens_winner = 5, .tokens_losers = 6};
    api_response_add(&totals, &counts);
    api_response_add(&totals, &counts);
    writer_key(&w, "usage");
    api_response_write_usage(&w, &totals);
    writer_object_end(&w);
    json_t *v = result(), *usage = json_object_get(v, "usage");
    ck_assert_str_eq(text_of(v, "object"), "chat.completion");
    ck_assert_str_eq(text_of(v, "id"), "chatcmpl-1");
    ck_assert_str_eq(text_of(v, "system_fingerprint"), "fp_1");
    ck_assert_int_eq(int_of(v, "created"), 1234);
    ck_assert_int_eq(int_of(usage, "prompt_tokens"), 20);
    ck_assert_int_eq(int_of(usage, "completion_tokens"), 22);
    ck_assert_int_eq(int_of(usage, "total_tokens"), 42);
    ck_assert_int_eq(int_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"), 8);
    json_decref(v);
}
END_TEST

static struct race_result make_result(const struct race_candidate *const *list) {
    return (struct race_result){
        .verified = true,
        .choices = list,
        .n_choices = 1,
        .candidates = list,
        .n_candidates = 2,
        .seed = 99,
        .counts = {.max_candidates = 10,
                   .started = 5,
                   .finished = 4,
                   .verified = 3,
                   .passed = 1,
                   .cancelled = 2,
                   .tokens_winner = 3,
                   .tokens_losers = 8,
                   .prompt_s = -1,
                   .first_pass_s = 0.5},
    };
}

START_TEST(firstpass_of_a_verified_race) {
    struct race_candidate running = {.index = 8, .reason = ENGINE_CANCELLED};
    const struct race_candidate *const list[] = {&answer_candidate, &running};
    struct race_result r = make_result(list);
    request.has_tests = true;
    api_response_write_firstpass(&w, &head, &r);
    json_t *v = result();
    ck_assert(json_is_true(json_object_get(v, "verified")));
    json_t *winner = json_object_get(v, "winner");
    ck_assert_int_eq(int_of(winner, "candidate"), 7);
    ck_assert_int_eq(int_of(winner, "seed"), 99);
    ck_assert_str_eq(text_of(winner, "verdict"), "passed");
    ck_assert_str_eq(text_of(winner, "code"), "def f(): pass");
    ck_assert_int_eq(int_of(json_object_get(v, "counts"), "cancelled"), 2);
    ck_assert_int_eq(int_of(json_object_get(v, "tokens"), "losers"), 8);
    ck_assert(is_null(json_object_get(v, "timings"), "prompt_s"));
    ck_assert(number_of(json_object_get(v, "timings"), "first_pass_s") == 0.5);
    ck_assert_ptr_null(json_object_get(v, "candidates"));
    ck_assert_int_eq(int_of(json_object_get(v, "sandbox"), "level"), 3);
    ck_assert_str_eq(text_of(json_object_get(v, "sandbox"), "trust"), "split");
    json_decref(v);
}
END_TEST

START_TEST(candidates_as_asked) {
    struct race_candidate running = {.index = 8, .reason = ENGINE_CANCELLED};
    const struct race_candidate *const list[] = {&answer_candidate, &running};
    struct race_result r = make_result(list);
    request.has_tests = true;
    for (int full = 0; full < 2; full++) {
        buf_reset(&out);
        writer_init(&w, &out);
        request.detail = full ? RACE_CANDIDATES_FULL : RACE_CANDIDATES_VERDICTS;
        api_response_write_firstpass(&w, &head, &r);
        json_t *v = result(), *all = json_object_get(v, "candidates");
        ck_assert_uint_eq(json_array_size(all), 2);
        json_t *one = json_array_get(all, 0), *other = json_array_get(all, 1);
        ck_assert_str_eq(text_of(one, "ended"), "code_end");
        ck_assert_str_eq(text_of(other, "ended"), "cancelled");
        ck_assert(is_null(other, "verdict"));
        ck_assert_int_eq(json_object_get(one, "text") != NULL, full);
        /* What a candidate printed may be any bytes. */
        if (full) ck_assert_str_eq(text_of(one, "output"), "\xEF\xBF\xBD!");
        json_decref(v);
    }
}
END_TEST

START_TEST(none_passed_tells_the_verdicts_unasked) {
    struct race_candidate failed = answer_candidate;
    failed.verdict = VERDICT_FAILED;
    const struct race_candidate *const list[] = {&failed, &failed};
    struct race_result r = make_result(list);
    r.verified = false;
    r.n_choices = 0;
    err_set(&r.error, ERR_NONE_PASSED, "none");
    request.has_tests = true;
    api_response_write_firstpass(&w, &head, &r);
    json_t *v = result();
    ck_assert(is_null(v, "winner"));
    ck_assert_str_eq(text_of(json_array_get(json_object_get(v, "candidates"), 1), "verdict"),
                     "failed");
    json_decref(v);
}
END_TEST

START_TEST(characters_are_counted_not_bytes) {
    ck_assert_int_eq(api_response_characters("a\xC3\xA9\xF0\x9F\x98\x80", 7), 3);
    ck_assert_int_eq(api_response_characters("", 0), 0);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("api_response");
    TCase *t = tcase_create("api_response");
    tcase_set_timeout(t, 0);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_chat_choice);
    tcase_add_test(t, a_completion_choice_with_echo_and_ids);
    tcase_add_test(t, an_echo_has_its_log_probabilities);
    tcase_add_test(t, prompt_log_probabilities_by_id);
    tcase_add_test(t, pass_at_k_is_the_unbiased_estimate);
    tcase_add_test(t, chat_log_probabilities);
    tcase_add_test(t, legacy_log_probabilities);
    tcase_add_test(t, tokens_named_by_id);
    tcase_add_test(t, finish_reasons_are_only_those_that_clients_know);
    tcase_add_test(t, the_head_and_usage);
    tcase_add_test(t, firstpass_of_a_verified_race);
    tcase_add_test(t, candidates_as_asked);
    tcase_add_test(t, none_passed_tells_the_verdicts_unasked);
    tcase_add_test(t, characters_are_counted_not_bytes);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
