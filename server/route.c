#include "server/route.h"

#include <stdio.h>
#include <string.h>

/* ---- paths ---- */

static const struct {
    const char *path; /* one that ends in '/' takes more behind it */
    enum http_method method;
    enum route route;
    const char *allow;
} table[] = {
    {"/completions", HTTP_POST, ROUTE_COMPLETIONS, "POST, OPTIONS"},
    {"/chat/completions", HTTP_POST, ROUTE_CHAT, "POST, OPTIONS"},
    {"/verify", HTTP_POST, ROUTE_VERIFY, "POST, OPTIONS"},
    {"/responses", HTTP_POST, ROUTE_RESPONSES, "POST, OPTIONS"},
    {"/tokenize", HTTP_POST, ROUTE_TOKENIZE, "POST, OPTIONS"},
    {"/detokenize", HTTP_POST, ROUTE_DETOKENIZE, "POST, OPTIONS"},
    {"/tokenizer_info", HTTP_GET, ROUTE_TOKENIZER_INFO, "GET, HEAD, OPTIONS"},
    {"/races/", HTTP_GET, ROUTE_RACE, "GET, HEAD, DELETE, OPTIONS"},
    {"/races/", HTTP_DELETE, ROUTE_RACE_DELETE, "GET, HEAD, DELETE, OPTIONS"},
    {"/models", HTTP_GET, ROUTE_MODELS, "GET, HEAD, OPTIONS"},
    {"/models/", HTTP_GET, ROUTE_MODEL, "GET, HEAD, OPTIONS"},
    {"/health", HTTP_GET, ROUTE_HEALTH, "GET, HEAD, OPTIONS"},
    {"/ping", HTTP_GET, ROUTE_HEALTH, "GET, HEAD, OPTIONS"},
    {"/ready", HTTP_GET, ROUTE_READY, "GET, HEAD, OPTIONS"},
    {"/metrics", HTTP_GET, ROUTE_METRICS, "GET, HEAD, OPTIONS"},
    {"/version", HTTP_GET, ROUTE_VERSION, "GET, HEAD, OPTIONS"},
    {"/web/", HTTP_GET, ROUTE_PAGE, "GET, HEAD, OPTIONS"},
    {"", HTTP_GET, ROUTE_PAGE, "GET, HEAD, OPTIONS"},
};

static bool match(const char *pattern, const char *path, const char **rest) {
    size_t n = strlen(pattern);
    if (!n) return !strcmp(path, "/");
    if (pattern[n - 1] == '/') {
        if (strncmp(pattern, path, n) || !path[n]) return false;
        *rest = path + n;
        return true;
    }
    /* One slash too many at the end is forgiven. */
    return !strncmp(pattern, path, n) && (!path[n] || !strcmp(path + n, "/"));
}

enum route route_find(enum http_method method, const char *path, const char **rest,
                      const char **allow, struct err *e) {
    bool versioned = !strncmp(path, "/v1/", 4);
    const char *bare = versioned ? path + 3 : path;
    *rest = "";
    *allow = NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (versioned && table[i].route == ROUTE_PAGE) continue;
        if (!match(table[i].path, bare, rest)) continue;
        *allow = table[i].allow;
        if (method == HTTP_OPTIONS) return ROUTE_OPTIONS;
        if (method == table[i].method) return table[i].route;
    }
    if (*allow) {
        err_set(e, ERR_METHOD, "%.200s doesn't take this method; it takes %s", path, *allow);
        err_code(e, "method_not_allowed");
        return ROUTE_NONE;
    }
    route_not_found(path, e);
    return ROUTE_NONE;
}

bool route_not_found(const char *path, struct err *e) {
    err_set(e, ERR_NOT_FOUND,
            "there is nothing at %.200s; the API is at /v1/chat/completions, /v1/completions and "
            "/v1/models",
            path);
    return err_code(e, "not_found");
}

/* ---- errors ---- */

static const struct {
    int status;
    const char *type, *code; /* code: where the error has none of its own */
} kinds[] = {
    [ERR_NONE] = {200, "", NULL},
    [ERR_INPUT] = {400, "invalid_request_error", NULL},
    [ERR_AUTH] = {401, "invalid_request_error", "invalid_api_key"},
    [ERR_NOT_FOUND] = {404, "invalid_request_error", "not_found"},
    [ERR_METHOD] = {405, "invalid_request_error", "method_not_allowed"},
    [ERR_TOO_LARGE] = {413, "invalid_request_error", "request_too_large"},
    [ERR_URI] = {414, "invalid_request_error", "uri_too_long"},
    [ERR_MEDIA] = {415, "invalid_request_error", "unsupported_media_type"},
    [ERR_NONE_PASSED] = {422, "no_candidate_passed", "no_candidate_passed"},
    [ERR_BUSY] = {429, "rate_limit_error", "rate_limit_exceeded"},
    [ERR_HEAD] = {431, "invalid_request_error", "request_header_fields_too_large"},
    [ERR_SYSTEM] = {500, "server_error", "internal_error"},
    [ERR_UNAVAILABLE] = {503, "service_unavailable", "service_unavailable"},
    [ERR_DEADLINE] = {504, "timeout", "deadline_exceeded"},
    [ERR_CANCELLED] = {499, "cancelled", "cancelled"},
};

int route_status(enum err_kind kind) { return kinds[kind].status; }

void route_write_error(struct writer *w, const struct err *e) {
    const char *code = e->code ? e->code : kinds[e->kind].code;
    /* Its name is part of the contract with clients. */
    if (e->kind == ERR_NONE_PASSED) code = kinds[e->kind].code;
    writer_object(w);
    writer_key(w, "message");
    writer_text(w, e->message);
    writer_key(w, "type");
    writer_text(w, kinds[e->kind].type);
    writer_key(w, "param");
    writer_text(w, e->param[0] ? e->param : NULL);
    writer_key(w, "code");
    writer_text(w, code);
    writer_object_end(w);
}

/* ---- answers ---- */

void route_reply_json(struct http_request *r, int status, struct buf *body) {
    struct err e = {0};
    if (body->overflowed) {
        buf_clear(body);
        err_set(&e, ERR_SYSTEM, "the answer is larger than %zu bytes; ask for less of it",
                body->max);
        route_reply_error(r, &e, NULL);
        return;
    }
    size_t len;
    char *text = buf_take(body, &len);
    http_reply(r, status, "application/json", text, len);
}

void route_reply_error(struct http_request *r, const struct err *e, const char *extra) {
    struct buf body;
    buf_init(&body, (extra ? strlen(extra) : 0) + 8192);
    struct writer w;
    writer_init(&w, &body);
    writer_object(&w);
    writer_key(&w, "error");
    route_write_error(&w, e);
    if (extra) writer_raw(&w, extra, strlen(extra));
    writer_object_end(&w);
    /* A client library repeats what failed with 429 or 5xx; another try would meet the same time
     * limit. */
    if (e->kind == ERR_DEADLINE) http_add_header(r, "x-should-retry", "false");
    if (e->kind == ERR_AUTH) http_add_header(r, "WWW-Authenticate", "Bearer");
    size_t len;
    char *text = buf_take(&body, &len);
    http_reply(r, kinds[e->kind].status, "application/json", text, len);
}
