/* Requests out of JSON, for the tests of what reads them: the including file defines `context`. */
#ifndef TESTS_SERVER_REQUEST_TEST_H
#define TESTS_SERVER_REQUEST_TEST_H

#include "config/limits.h"
#include "server/api_request.h"

#include <check.h>
#include <string.h>

static struct config config = {
    .server = {.max_candidates = LIMIT_CANDIDATES, .default_deadline_s = 600},
    .verifier = {.timeout_s = 3, .memory_mb = 256},
};
static const struct api_request_context context;

static struct api_request q;

static void teardown(void) { api_request_clear(&q); }

static bool parse(enum api_request_kind kind, const char *body, struct err *e) {
    api_request_clear(&q);
    return api_request_parse(&q, kind, body, strlen(body), &context, e);
}

static void takes(enum api_request_kind kind, const char *body) {
    struct err e = {0};
    ck_assert_msg(parse(kind, body, &e), "%s: %s", body, e.message);
}

static void refuses(enum api_request_kind kind, const char *body, const char *param,
                    const char *words) {
    struct err e = {0};
    ck_assert_msg(!parse(kind, body, &e), "accepted: %s", body);
    ck_assert_int_eq(e.kind, ERR_INPUT);
    ck_assert_msg(!strcmp(e.param, param), "%s: param is \"%s\"", body, e.param);
    ck_assert_msg(strstr(e.message, words) != NULL, "%s: %s", body, e.message);
}

#endif
