/* libcurl does HTTP: connections kept and reused, TLS, proxies, time-outs, chunked answers. */
#include "base/buf.h"
#include "base/clock.h"
#include "base/list.h"
#include "server/eval_backend.h"
#include "server/race.h"

#include <curl/curl.h>
#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ANSWER_BYTES = 512 * 1024 * 1024,
    TURN_MS = 500,
    CONNECT_SECONDS = 30,
    /* What the knee of the machine behind the address is isn't told. */
    IN_FLIGHT = 64,
    /* Verdicts come with the answer of their request: with smaller requests a kill loses less. */
    MOST_IN_ASK = 32,
    PATIENCE_SECONDS = 600, /* with a server that is loading, or has no room */
};

struct remote {
    struct eval_events events;
    CURLM *multi;               /* owned */
    struct curl_slist *headers; /* owned */
    char *base;                 /* owned: "http://…/v1" */
    char *model;                /* owned */
    struct list asks;           /* struct remote_ask.link */
};

struct remote_ask {
    struct remote *owner;
    struct list link;
    CURL *easy; /* owned */
    void *cookie;
    char *body; /* owned */
    struct buf answer;
    char why[CURL_ERROR_SIZE];
    double started, again_at; /* again_at > 0: it waits for another try */
};

static void free_ask(struct remote_ask *a) {
    list_remove(&a->link);
    if (a->again_at <= 0) curl_multi_remove_handle(a->owner->multi, a->easy);
    curl_easy_cleanup(a->easy);
    buf_clear(&a->answer);
    free(a->body);
    free(a);
}

/* ---- answers ---- */

static const char *text_at(json_t *object, const char *key, size_t *len) {
    json_t *v = json_object_get(object, key);
    if (len) *len = json_is_string(v) ? json_string_length(v) : 0;
    return json_is_string(v) ? json_string_value(v) : "";
}

static int int_at(json_t *object, const char *key) {
    json_int_t v = json_integer_value(json_object_get(object, key));
    return v > 0 && v < 1 << 30 ? (int)v : 0;
}

static double number_at(json_t *object, const char *key, double preset) {
    json_t *v = json_object_get(object, key);
    return json_is_number(v) ? json_number_value(v) : preset;
}

static void tell_candidate(const struct remote_ask *a, json_t *c) {
    struct eval_candidate told = {
        .index = int_at(c, "candidate"),
        .prompt = int_at(c, "prompt"),
        .temperature = (float)number_at(c, "temperature", 0),
        .tokens = int_at(c, "tokens"),
        .verdict = text_at(c, "verdict", NULL),
        .duplicate = json_is_true(json_object_get(c, "duplicate")),
        .tests_passed = int_at(c, "tests_passed"),
        .tests_total = int_at(c, "tests_total"),
        .verify_s = number_at(c, "verify_s", 0),
        .error = text_at(c, "error", NULL),
        .method = text_at(c, "extraction", NULL),
    };
    if (!*told.verdict) return; /* cut off */
    told.passed = !strcmp(told.verdict, verdict_name(VERDICT_PASSED));
    told.broken = !strcmp(told.verdict, verdict_name(VERDICT_BROKEN));
    told.text = text_at(c, "text", &told.text_len);
    told.code = text_at(c, "code", &told.code_len);
    a->owner->events.candidate(a->owner->events.arg, a->cookie, &told);
}

static bool tell_candidates(const struct remote_ask *a, json_t *answer, struct eval_end *end) {
    json_t *ours = json_object_get(answer, "firstpass");
    json_t *list = json_object_get(ours, "candidates");
    if (!json_is_array(list))
        return err_set(&end->error, ERR_SYSTEM,
                       "%s answered without firstpass.candidates: is it a firstpass server?",
                       a->owner->base);
    size_t i;
    json_t *c;
    json_array_foreach(list, i, c) { tell_candidate(a, c); }
    json_t *tokens = json_object_get(ours, "tokens");
    end->tokens = (int64_t)int_at(tokens, "winner") + int_at(tokens, "losers");
    end->first_pass_s = number_at(json_object_get(ours, "timings"), "first_pass_s", -1);
    return true;
}

/* What the server's error object says, or the status. */
static void read_error(const struct remote_ask *a, long status, json_t *answer, struct err *e) {
    const char *message = text_at(json_object_get(answer, "error"), "message", NULL);
    enum err_kind kind = status == 400 || status == 413 || status == 422 ? ERR_INPUT : ERR_SYSTEM;
    if (*message)
        err_set(e, kind, "%s answered %ld: %.300s", a->owner->base, status, message);
    else
        err_set(e, kind, "%s answered %ld", a->owner->base, status);
}

/* True: it is to be tried again. */
static bool put_off(struct remote_ask *a, long status) {
    curl_off_t wait = 0;
    bool busy = status == 429 || status == 503;
    if (!busy || clock_seconds() - a->started > PATIENCE_SECONDS) return false;
    curl_easy_getinfo(a->easy, CURLINFO_RETRY_AFTER, &wait);
    curl_multi_remove_handle(a->owner->multi, a->easy);
    a->again_at = clock_seconds() + (wait > 0 && wait < 60 ? (double)wait : 1);
    buf_reset(&a->answer);
    return true;
}

static void finished(struct remote_ask *a, CURLcode code) {
    struct remote *m = a->owner;
    struct eval_end end = {.first_pass_s = -1, .seconds = clock_seconds() - a->started};
    long status = 0;
    curl_easy_getinfo(a->easy, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_OK && put_off(a, status)) return;
    json_t *answer = json_loadb(buf_text(&a->answer), a->answer.len, JSON_ALLOW_NUL, NULL);
    if (code != CURLE_OK)
        err_set(&end.error, ERR_SYSTEM, "%s: %s; the same command goes on where this one stood",
                m->base, *a->why ? a->why : curl_easy_strerror(code));
    else if (status != 200)
        read_error(a, status, answer, &end.error);
    else
        tell_candidates(a, answer, &end);
    json_decref(answer);
    void *cookie = a->cookie;
    free_ask(a);
    m->events.end(m->events.arg, cookie, &end);
}

/* ---- requests ---- */

static size_t take(char *data, size_t size, size_t n, void *arg) {
    struct buf *b = arg;
    return buf_append(b, data, size * n) ? size * n : 0;
}

static CURL *new_easy(const struct remote *m, const char *path, struct buf *answer, char *why) {
    char *url;
    size_t size = strlen(m->base) + strlen(path) + 1;
    CURL *easy = curl_easy_init();
    BUG_ON(!easy);
    url = err_alloc(size, 1);
    snprintf(url, size, "%s%s", m->base, path);
    curl_easy_setopt(easy, CURLOPT_URL, url); /* copied */
    free(url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, m->headers);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "firstpass/" FIRSTPASS_VERSION);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, answer);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, why);
    return easy;
}

static bool start(void *self, const struct eval_ask *ask, void *cookie, struct err *e) {
    struct remote *m = self;
    struct remote_ask *a = err_alloc(1, sizeof *a);
    (void)e; /* what the server thinks of it comes with its answer */
    *a = (struct remote_ask){.owner = m, .cookie = cookie, .started = clock_seconds()};
    list_init(&a->link);
    list_append(&m->asks, &a->link);
    buf_init(&a->answer, ANSWER_BYTES);
    a->body = err_strndup(ask->body, ask->len);
    a->easy =
        new_easy(m, ask->completion ? "/completions" : "/chat/completions", &a->answer, a->why);
    curl_easy_setopt(a->easy, CURLOPT_POSTFIELDS, a->body);
    curl_easy_setopt(a->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)ask->len);
    curl_easy_setopt(a->easy, CURLOPT_PRIVATE, a);
    CURLMcode code = curl_multi_add_handle(m->multi, a->easy);
    BUG_ON(code);
    return true;
}

static void turn(void *self) {
    struct remote *m = self;
    int running, left;
    CURLMsg *message;
    double now = clock_seconds();
    LIST_EACH(it, &m->asks) {
        struct remote_ask *a = LIST_ITEM(it, struct remote_ask, link);
        if (a->again_at <= 0 || a->again_at > now) continue;
        a->again_at = 0;
        CURLMcode code = curl_multi_add_handle(m->multi, a->easy);
        BUG_ON(code);
    }
    curl_multi_perform(m->multi, &running);
    bool told = false;
    while ((message = curl_multi_info_read(m->multi, &left))) {
        char *arg = NULL;
        if (message->msg != CURLMSG_DONE) continue;
        CURLcode code = message->data.result; /* the message goes with its handle */
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &arg);
        finished((struct remote_ask *)(void *)arg, code);
        told = true;
    }
    if (!told) curl_multi_poll(m->multi, NULL, 0, TURN_MS, NULL);
}

static void close_remote(void *self) {
    struct remote *m = self;
    LIST_EACH_SAFE(it, &m->asks) free_ask(LIST_ITEM(it, struct remote_ask, link));
    curl_multi_cleanup(m->multi);
    curl_slist_free_all(m->headers);
    curl_global_cleanup();
    free(m->base);
    free(m->model);
    free(m);
}

/* ---- open ---- */

/* The address without a slash at its end, and with /v1. */
static char *base_of(const char *url) {
    size_t len = strlen(url);
    while (len && url[len - 1] == '/')
        len--;
    bool has = len >= 3 && !strncmp(url + len - 3, "/v1", 3);
    char *base = err_alloc(len + 4, 1);
    snprintf(base, len + 4, "%.*s%s", (int)len, url, has ? "" : "/v1");
    return base;
}

static bool find_model(struct remote *m, struct err *e) {
    struct buf answer;
    char why[CURL_ERROR_SIZE] = "";
    long status = 0;
    buf_init(&answer, 1 << 20);
    CURL *easy = new_easy(m, "/models", &answer, why);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT, (long)CONNECT_SECONDS);
    CURLcode code = curl_easy_perform(easy);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(easy);
    json_t *list = json_loadb(buf_text(&answer), answer.len, 0, NULL);
    const char *id = text_at(json_array_get(json_object_get(list, "data"), 0), "id", NULL);
    bool ok = false;
    if (code != CURLE_OK)
        err_set(e, ERR_UNAVAILABLE, "%s can't be asked: %s", m->base,
                *why ? why : curl_easy_strerror(code));
    else if (status != 200)
        err_set(e, status == 401 ? ERR_INPUT : ERR_UNAVAILABLE, "%s/models answered %ld%s", m->base,
                status, status == 401 ? "; give --key-file" : "");
    else if (!*id)
        err_set(e, ERR_UNAVAILABLE, "%s/models names no model; give --model-name", m->base);
    else
        ok = true;
    if (ok && !m->model) m->model = err_strdup(id);
    json_decref(list);
    buf_clear(&answer);
    return ok;
}

bool eval_backend_remote(struct eval_backend *b, const struct config *config, const char *url,
                         const char *key, const struct eval_events *events, struct err *e) {
    if (strncmp(url, "http://", 7) && strncmp(url, "https://", 8))
        return err_set(e, ERR_INPUT, "--base-url \"%.100s\" must begin with http:// or https://",
                       url);
    if (curl_global_init(CURL_GLOBAL_DEFAULT))
        return err_set(e, ERR_SYSTEM, "libcurl can't be set up");
    struct remote *m = err_alloc(1, sizeof *m);
    *m = (struct remote){.events = *events, .base = base_of(url), .multi = curl_multi_init()};
    BUG_ON(!m->multi);
    list_init(&m->asks);
    if (*config->model.name) m->model = err_strdup(config->model.name);
    m->headers = curl_slist_append(NULL, "Content-Type: application/json");
    m->headers = curl_slist_append(m->headers, "Expect:"); /* no asking before the body is sent */
    if (key) {
        size_t size = strlen(key) + sizeof "Authorization: Bearer ";
        char *header = err_alloc(size, 1);
        snprintf(header, size, "Authorization: Bearer %s", key);
        m->headers = curl_slist_append(m->headers, header);
        free(header);
    }
    if (!find_model(m, e)) {
        close_remote(m);
        return false;
    }
    *b = (struct eval_backend){
        .self = m,
        .model = m->model,
        .model_key = "",
        .in_flight = IN_FLIGHT,
        .most_in_ask = MOST_IN_ASK,
        .start = start,
        .turn = turn,
        .close = close_remote,
    };
    return true;
}
