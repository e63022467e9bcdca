/* Paths, methods, and what an error looks like to a client. */
#include "server/route.h"

#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The answer that was given, instead of a connection's. */
static struct {
    int status;
    char *body;
    char headers[400];
} answer;

void http_add_header(struct http_request *r, const char *name, const char *value) {
    (void)r;
    size_t used = strlen(answer.headers);
    snprintf(answer.headers + used, sizeof answer.headers - used, "%s: %s\n", name, value);
}

void http_reply(struct http_request *r, int status, const char *type, char *body, size_t len) {
    (void)r;
    ck_assert_str_eq(type, "application/json");
    ck_assert_uint_eq(strlen(body), len);
    free(answer.body);
    answer.status = status;
    answer.body = body;
}

static void teardown(void) {
    free(answer.body);
    memset(&answer, 0, sizeof answer);
}

START_TEST(paths_with_and_without_v1) {
    static const struct {
        enum http_method method;
        const char *path;
        enum route route;
        const char *rest;
    } cases[] = {
        {HTTP_POST, "/v1/completions", ROUTE_COMPLETIONS, ""},
        {HTTP_POST, "/completions", ROUTE_COMPLETIONS, ""},
        {HTTP_POST, "/v1/chat/completions", ROUTE_CHAT, ""},
        {HTTP_POST, "/v1/chat/completions/", ROUTE_CHAT, ""},
        {HTTP_GET, "/v1/models", ROUTE_MODELS, ""},
        {HTTP_GET, "/v1/models/", ROUTE_MODELS, ""},
        {HTTP_GET, "/v1/models/org/name:tag", ROUTE_MODEL, "org/name:tag"},
        {HTTP_POST, "/v1/responses", ROUTE_RESPONSES, ""},
        {HTTP_POST, "/tokenize", ROUTE_TOKENIZE, ""},
        {HTTP_GET, "/tokenizer_info", ROUTE_TOKENIZER_INFO, ""},
        {HTTP_GET, "/v1/races/cmpl-1", ROUTE_RACE, "cmpl-1"},
        {HTTP_DELETE, "/v1/races/cmpl-1", ROUTE_RACE_DELETE, "cmpl-1"},
        {HTTP_GET, "/health", ROUTE_HEALTH, ""},
        {HTTP_GET, "/v1/health", ROUTE_HEALTH, ""},
        {HTTP_GET, "/ping", ROUTE_HEALTH, ""},
        {HTTP_GET, "/ready", ROUTE_READY, ""},
        {HTTP_GET, "/metrics", ROUTE_METRICS, ""},
        {HTTP_GET, "/version", ROUTE_VERSION, ""},
        {HTTP_OPTIONS, "/v1/models", ROUTE_OPTIONS, ""},
        {HTTP_GET, "/", ROUTE_PAGE, ""},
        {HTTP_GET, "/web/page.css", ROUTE_PAGE, "page.css"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *rest, *allow;
        struct err e = {0};
        ck_assert_msg(route_find(cases[i].method, cases[i].path, &rest, &allow, &e) ==
                          cases[i].route,
                      "%s", cases[i].path);
        ck_assert_str_eq(rest, cases[i].rest);
        ck_assert_ptr_nonnull(allow);
    }
}
END_TEST

START_TEST(unknown_paths_and_methods) {
    static const char *const unknown[] = {
        "//",   "",      "/v1",       "/v1/",          "/healthy", "/v1/model",
        "/web", "/web/", "/v1/web/x", "/v1/v1/models", "/v1//"};
    const char *rest, *allow;
    struct err e = {0};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        ck_assert_int_eq(route_find(HTTP_GET, unknown[i], &rest, &allow, &e), ROUTE_NONE);
        ck_assert_int_eq(e.kind, ERR_NOT_FOUND);
        ck_assert_ptr_null(allow);
    }
    ck_assert_int_eq(route_find(HTTP_GET, "/v1/completions", &rest, &allow, &e), ROUTE_NONE);
    ck_assert_int_eq(e.kind, ERR_METHOD);
    ck_assert_str_eq(allow, "POST, OPTIONS");
    ck_assert_int_eq(route_find(HTTP_DELETE, "/metrics", &rest, &allow, &e), ROUTE_NONE);
    ck_assert_int_eq(route_find(HTTP_OTHER, "/v1/models", &rest, &allow, &e), ROUTE_NONE);
    ck_assert_int_eq(e.kind, ERR_METHOD);
}
END_TEST

static const char *field(json_t *error, const char *name) {
    return json_string_value(json_object_get(error, name));
}

START_TEST(each_kind_has_its_status) {
    static const struct {
        enum err_kind kind;
        int status;
        const char *type, *code;
    } cases[] = {
        {ERR_INPUT, 400, "invalid_request_error", NULL},
        {ERR_AUTH, 401, "invalid_request_error", "invalid_api_key"},
        {ERR_NOT_FOUND, 404, "invalid_request_error", "not_found"},
        {ERR_METHOD, 405, "invalid_request_error", "method_not_allowed"},
        {ERR_TOO_LARGE, 413, "invalid_request_error", "request_too_large"},
        {ERR_URI, 414, "invalid_request_error", "uri_too_long"},
        {ERR_MEDIA, 415, "invalid_request_error", "unsupported_media_type"},
        {ERR_NONE_PASSED, 422, "no_candidate_passed", "no_candidate_passed"},
        {ERR_BUSY, 429, "rate_limit_error", "rate_limit_exceeded"},
        {ERR_SYSTEM, 500, "server_error", "internal_error"},
        {ERR_UNAVAILABLE, 503, "service_unavailable", "service_unavailable"},
        {ERR_DEADLINE, 504, "timeout", "deadline_exceeded"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        err_set(&e, cases[i].kind, "what \"happened\"");
        answer.headers[0] = 0;
        route_reply_error(NULL, &e, NULL);
        ck_assert_int_eq(answer.status, cases[i].status);
        ck_assert_int_eq(route_status(cases[i].kind), cases[i].status);
        json_t *body = json_loads(answer.body, 0, NULL);
        json_t *error = json_object_get(body, "error");
        ck_assert_str_eq(field(error, "message"), "what \"happened\"");
        ck_assert_str_eq(field(error, "type"), cases[i].type);
        ck_assert_pstr_eq(field(error, "code"), cases[i].code);
        ck_assert(json_is_null(json_object_get(error, "param")));
        json_decref(body);
        /* What a client library would try again in vain isn't to be tried again. */
        ck_assert_int_eq(strstr(answer.headers, "x-should-retry: false") != NULL,
                         cases[i].kind == ERR_DEADLINE);
    }
}
END_TEST

START_TEST(param_code_and_extra_members) {
    struct err e = {0};
    err_param(&e, "temperature", "temperature: too hot");
    err_code(&e, "hot");
    route_reply_error(NULL, &e, "\"firstpass\":{\"verified\":false}");
    json_t *body = json_loads(answer.body, 0, NULL);
    ck_assert_ptr_nonnull(body);
    ck_assert_str_eq(field(json_object_get(body, "error"), "param"), "temperature");
    ck_assert_str_eq(field(json_object_get(body, "error"), "code"), "hot");
    ck_assert(json_is_false(json_object_get(json_object_get(body, "firstpass"), "verified")));
    json_decref(body);
}
END_TEST

START_TEST(an_answer_that_is_too_large_is_an_error) {
    struct buf body;
    buf_init(&body, 10);
    buf_puts(&body, "0123456789");
    buf_puts(&body, "x");
    route_reply_json(NULL, 200, &body);
    ck_assert_int_eq(answer.status, 500);
    buf_init(&body, 10);
    buf_puts(&body, "0123456789");
    route_reply_json(NULL, 200, &body);
    ck_assert_int_eq(answer.status, 200);
    ck_assert_str_eq(answer.body, "0123456789");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("route");
    TCase *t = tcase_create("route");
    tcase_set_timeout(t, 0);
    tcase_add_checked_fixture(t, NULL, teardown);
    tcase_add_test(t, paths_with_and_without_v1);
    tcase_add_test(t, unknown_paths_and_methods);
    tcase_add_test(t, each_kind_has_its_status);
    tcase_add_test(t, param_code_and_extra_members);
    tcase_add_test(t, an_answer_that_is_too_large_is_an_error);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
