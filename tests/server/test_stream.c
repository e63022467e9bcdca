/* Streams as clients see them: every frame parsed, the pieces put together again. */
#include "answer.h"
#include "base/buf.h"
#include "server/stream.h"

#include <stdio.h>
#include <stdlib.h>

/* The connection: what was written to it. */
static struct {
    struct buf text;
    bool open, ended;
    char headers[300];
} wire;

void http_add_header(struct http_request *r, const char *name, const char *value) {
    (void)r;
    size_t used = strlen(wire.headers);
    snprintf(wire.headers + used, sizeof wire.headers - used, "%s: %s\n", name, value);
}
void http_stream(struct http_request *r, int status, const char *type) {
    (void)r;
    ck_assert_int_eq(status, 200);
    ck_assert_str_eq(type, "text/event-stream");
    wire.open = true;
}
void http_write(struct http_request *r, const void *data, size_t len) {
    (void)r;
    ck_assert(wire.open && !wire.ended);
    buf_append(&wire.text, data, len);
}
void http_end(struct http_request *r) {
    (void)r;
    wire.ended = true;
}
void http_reply(struct http_request *r, int status, const char *type, char *body, size_t len) {
    (void)r;
    (void)type;
    (void)len;
    free(body);
    ck_abort_msg("a stream answered with status %d", status);
}

static struct api_request request;
static struct api_response_head head;
static struct stream stream;
static json_t *frames; /* all data frames but [DONE] */
static bool done;

static void setup_kind(enum api_request_kind kind, int n) {
    request.kind = kind;
    request.stream = true;
    head = (struct api_response_head){.request = &request,
                                      .id = "id-1",
                                      .model = "tiny",
                                      .fingerprint = "fp",
                                      .created = 5,
                                      .token_text = answer_token_text};
    stream_init(&stream, &head, n);
    static char connection;
    stream_open(&stream, (struct http_request *)(void *)&connection);
}

static void setup(void) {
    memset(&wire, 0, sizeof wire);
    buf_init(&wire.text, 1 << 20);
    request = (struct api_request){0};
}

static void teardown(void) {
    stream_clear(&stream);
    buf_clear(&wire.text);
    json_decref(frames);
    frames = NULL;
}

/* Splits what was sent into events; comments are left out. */
static void read_frames(void) {
    frames = json_array();
    done = false;
    const char *at = buf_text(&wire.text);
    while (*at) {
        const char *end = strstr(at, "\n\n");
        ck_assert_msg(end != NULL, "an event without an end: %s", at);
        ck_assert(!done);
        if (!strncmp(at, "data: [DONE]\n\n", 14)) {
            done = true;
        } else if (*at != ':') {
            ck_assert_msg(!strncmp(at, "data: ", 6), "no event: %s", at);
            json_error_t error;
            json_t *v = json_loadb(at + 6, (size_t)(end - at - 6), 0, &error);
            ck_assert_msg(v != NULL, "%s: %.*s", error.text, (int)(end - at), at);
            json_array_append_new(frames, v);
        }
        at = end + 2;
    }
}

static void text(int index, const char *s, int n_tokens) {
    struct engine_event event = {.tokens = answer_tokens, .n_tokens = n_tokens};
    if (request.job.logprobs) event.logprobs = answer_logprobs;
    stream_text(&stream, index, s, strlen(s), &event);
}

static void end(int index, const char *s, int n_tokens, const char *extra) {
    struct race_candidate c = {.index = index,
                               .text = s,
                               .text_len = strlen(s),
                               .tokens = answer_tokens,
                               .n_tokens = n_tokens,
                               .reason = ENGINE_LENGTH};
    if (request.job.logprobs) c.logprobs = answer_logprobs;
    stream_choice_end(&stream, index, &c, extra);
}

static void finish(void) {
    struct api_response_totals totals = {.prompt_tokens = 3, .completion_tokens = 4};
    stream_end(&stream, &totals, "\"firstpass\":{\"seed\":1}");
    ck_assert(wire.ended);
    read_frames();
    ck_assert(done);
}

/* The text of a choice over all chunks; its finish reason comes once and last. */
static void expect_choice(json_int_t index, const char *want) {
    struct buf all;
    buf_init(&all, 1 << 16);
    int finished = 0, roles = 0;
    for (size_t i = 0; i < json_array_size(frames); i++) {
        json_t *frame = json_array_get(frames, i), *c;
        size_t j;
        json_array_foreach(json_object_get(frame, "choices"), j, c) {
            if (int_of(c, "index") != index) continue;
            ck_assert_int_eq(finished, 0);
            json_t *delta = json_object_get(c, "delta");
            const char *piece =
                request.kind == API_REQUEST_CHAT ? text_of(delta, "content") : text_of(c, "text");
            if (piece) buf_puts(&all, piece);
            roles += json_object_get(delta, "role") != NULL;
            ck_assert_ptr_nonnull(json_object_get(c, "finish_reason"));
            finished += !is_null(c, "finish_reason");
        }
    }
    ck_assert_str_eq(buf_text(&all), want);
    ck_assert_int_eq(finished, 1);
    ck_assert_int_eq(roles, request.kind == API_REQUEST_CHAT);
    buf_clear(&all);
}

static void expect_heads(const char *object) {
    json_t *frame;
    size_t i;
    json_array_foreach(frames, i, frame) {
        ck_assert_str_eq(text_of(frame, "id"), "id-1");
        ck_assert_str_eq(text_of(frame, "object"), object);
        ck_assert_int_eq(int_of(frame, "created"), 5);
        ck_assert_str_eq(text_of(frame, "model"), "tiny");
    }
}

START_TEST(a_chat) {
    setup_kind(API_REQUEST_CHAT, 1);
    text(0, "Hel", 1);
    text(0, "lo", 1);
    end(0, "Hello", 2, NULL);
    finish();
    expect_heads("chat.completion.chunk");
    expect_choice(0, "Hello");
    ck_assert_ptr_nonnull(strstr(wire.headers, "Cache-Control: no-cache"));
    ck_assert_ptr_nonnull(strstr(wire.headers, "X-Accel-Buffering: no"));
    json_t *first = json_array_get(json_object_get(json_array_get(frames, 0), "choices"), 0);
    ck_assert_str_eq(text_of(json_object_get(first, "delta"), "role"), "assistant");
    /* Not asked for: no usage, and no chunk without choices, which small clients trip over. */
    json_t *frame;
    size_t i;
    json_array_foreach(frames, i, frame) {
        ck_assert_ptr_null(json_object_get(frame, "usage"));
        ck_assert_uint_eq(json_array_size(json_object_get(frame, "choices")), 1);
    }
}
END_TEST

START_TEST(a_completion) {
    setup_kind(API_REQUEST_COMPLETIONS, 1);
    const struct api_response_prompt prompt = {.echo = "Say: ", .echo_len = 5};
    stream_echo(&stream, 0, &prompt);
    text(0, "Hel", 1);
    end(0, "Hello", 2, NULL);
    finish();
    expect_heads("text_completion");
    expect_choice(0, "Say: Hello");
}
END_TEST

START_TEST(indices_are_first_seen_in_order) {
    setup_kind(API_REQUEST_CHAT, 4);
    text(2, "two", 1);
    text(0, "zero", 1);
    end(3, "three", 1, NULL);
    end(2, "two!", 2, NULL);
    end(1, "", 0, NULL);
    end(0, "zero", 1, NULL);
    finish();
    json_int_t most = -1;
    json_t *frame;
    size_t i;
    json_array_foreach(frames, i, frame) {
        json_int_t index = int_of(json_array_get(json_object_get(frame, "choices"), 0), "index");
        ck_assert_int_le(index, most + 1);
        if (index > most) most = index;
    }
    expect_choice(0, "zero");
    expect_choice(1, "");
    expect_choice(2, "two!");
    expect_choice(3, "three");
}
END_TEST

START_TEST(usage_where_asked_for) {
    request.include_usage = true;
    setup_kind(API_REQUEST_CHAT, 1);
    text(0, "x", 1);
    end(0, "x", 1, NULL);
    finish();
    size_t n = json_array_size(frames);
    for (size_t i = 0; i + 1 < n; i++)
        ck_assert(is_null(json_array_get(frames, i), "usage"));
    json_t *last = json_array_get(frames, n - 1);
    ck_assert_uint_eq(json_array_size(json_object_get(last, "choices")), 0);
    ck_assert_int_eq(int_of(json_object_get(last, "usage"), "total_tokens"), 7);
    ck_assert_int_eq(int_of(json_object_get(last, "firstpass"), "seed"), 1);
}
END_TEST

START_TEST(log_probabilities_come_with_their_tokens_once) {
    request.job.logprobs = true;
    request.return_token_ids = true;
    setup_kind(API_REQUEST_COMPLETIONS, 1);
    text(0, "a", 1);
    end(0, "a\xC3\xA9", 2, NULL);
    finish();
    size_t n = 0, ids = 0;
    json_int_t offset = -1;
    json_t *frame;
    size_t i;
    json_array_foreach(frames, i, frame) {
        json_t *c = json_array_get(json_object_get(frame, "choices"), 0);
        json_t *p = json_object_get(c, "logprobs");
        n += json_array_size(json_object_get(p, "tokens"));
        ids += json_array_size(json_object_get(c, "token_ids"));
        if (json_array_size(json_object_get(p, "text_offset")))
            offset = json_integer_value(json_array_get(json_object_get(p, "text_offset"), 0));
    }
    ck_assert_uint_eq(n, 2);
    ck_assert_uint_eq(ids, 2);
    ck_assert_int_eq(offset, 1);
}
END_TEST

START_TEST(progress_pings_and_the_winner) {
    request.has_tests = true;
    setup_kind(API_REQUEST_CHAT, 1);
    struct race_counts counts = {.max_candidates = 9, .started = 4};
    stream_progress(&stream, &counts, NULL);
    stream_ping(&stream);
    end(0, "winner", 3, "\"firstpass\":{\"verified\":true}");
    finish();
    expect_choice(0, "winner");
    json_t *first = json_array_get(frames, 0);
    ck_assert_uint_eq(json_array_size(json_object_get(first, "choices")), 0);
    json_t *told = json_object_get(json_object_get(first, "firstpass"), "counts");
    ck_assert_int_eq(int_of(told, "started"), 4);
    json_t *last = json_array_get(frames, json_array_size(frames) - 1);
    ck_assert(json_is_true(json_object_get(json_object_get(last, "firstpass"), "verified")));
    ck_assert_ptr_nonnull(strstr(buf_text(&wire.text), "\n\n: ping\n\n"));
}
END_TEST

START_TEST(an_error_ends_the_stream) {
    setup_kind(API_REQUEST_CHAT, 1);
    text(0, "x", 1);
    struct err e = {0};
    err_set(&e, ERR_NONE_PASSED, "none of 3 passed");
    stream_error(&stream, &e, "\"firstpass\":{\"verified\":false}");
    ck_assert(wire.ended);
    read_frames();
    ck_assert(done);
    json_t *last = json_array_get(frames, json_array_size(frames) - 1);
    ck_assert_str_eq(text_of(json_object_get(last, "error"), "code"), "no_candidate_passed");
    ck_assert(json_is_false(json_object_get(json_object_get(last, "firstpass"), "verified")));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("stream");
    TCase *t = tcase_create("stream");
    tcase_set_timeout(t, 0);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_chat);
    tcase_add_test(t, a_completion);
    tcase_add_test(t, indices_are_first_seen_in_order);
    tcase_add_test(t, usage_where_asked_for);
    tcase_add_test(t, log_probabilities_come_with_their_tokens_once);
    tcase_add_test(t, progress_pings_and_the_winner);
    tcase_add_test(t, an_error_ends_the_stream);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
