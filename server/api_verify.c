#include "server/api_verify.h"

#include "base/clock.h"
#include "base/log.h"
#include "config/limits.h"
#include "server/api_tests.h"
#include "server/route.h"
#include "server/verdict_json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    WINDOW = 64, /* codes with the verifier at once: each holds a descriptor */
    RESPONSE_BYTES = 512 * 1024 * 1024,
    OUTPUT_BYTES = 32 * 1024 * 1024, /* of all results: what is printed beyond is left out */
};

struct verification {
    struct api *api; /* borrowed */
    struct list link;
    struct keys_holder *holder; /* borrowed */
    struct http_request *http;  /* borrowed; NULL once answered or gone */
    struct arena arena;
    json_t *root; /* owned */
    struct verifier_spec spec;
    json_t *codes; /* borrowed from root */
    int n, n_sent, n_left, n_passed;
    struct verifier_tests *tests; /* owned */
    bool opening;                 /* ready() is still to come */
    bool admitted;
    struct buf *results; /* owned; [n] */
    size_t output_bytes;
    double began;
    char id[80], request_id[RACES_ID_BYTES];
};

static void verification_free(struct verification *v) {
    list_remove(&v->link);
    if (v->admitted) {
        v->api->n_races--;
        v->holder->n_races--;
    }
    for (int i = 0; v->results && i < v->n; i++)
        buf_clear(&v->results[i]);
    free(v->results);
    json_decref(v->root);
    arena_clear(&v->arena);
    free(v);
}

/* Nobody waits any more.  Where the tests are still being compiled it goes when they are. */
static void drop(struct verification *v) {
    v->http = NULL;
    if (v->tests) verifier_tests_close(v->tests);
    v->tests = NULL;
    if (!v->opening) verification_free(v);
}

static void on_gone(void *arg) { drop(arg); }

static void fail(struct verification *v, const struct err *e) {
    log_request(e->kind == ERR_SYSTEM ? LOG_ERROR : LOG_INFO, v->request_id, "%d %s",
                route_status(e->kind), e->message);
    if (v->http) route_reply_error(v->http, e, NULL);
    drop(v);
}

void api_verify_fail(struct list *item, const struct err *e) {
    fail(LIST_ITEM(item, struct verification, link), e);
}

/* ---- the answer ---- */

static void answer(struct verification *v) {
    struct buf body;
    struct writer w;
    buf_init(&body, RESPONSE_BYTES);
    writer_init(&w, &body);
    writer_object(&w);
    writer_key(&w, "id");
    writer_text(&w, v->id);
    writer_key(&w, "object");
    writer_text(&w, "verification");
    writer_key(&w, "created");
    writer_int(&w, (int64_t)time(NULL));
    writer_key(&w, "format");
    writer_text(&w, verifier_format_name(v->spec.format));
    writer_key(&w, "passed");
    writer_int(&w, v->n_passed);
    writer_key(&w, "results");
    writer_array(&w);
    for (int i = 0; i < v->n; i++)
        writer_raw(&w, buf_text(&v->results[i]), v->results[i].len);
    writer_array_end(&w);
    writer_key(&w, "sandbox_level");
    writer_int(&w, verifier_report(runtime_verifier(v->api->runtime))->level);
    writer_key(&w, "total_s");
    writer_number(&w, clock_seconds() - v->began);
    writer_object_end(&w);
    log_request(LOG_INFO, v->request_id, "200 %d of %d passed in %.3f s", v->n_passed, v->n,
                clock_seconds() - v->began);
    route_reply_json(v->http, 200, &body);
    drop(v);
}

static void submit_more(struct verification *v);

static void on_verdict(void *arg, int index, const struct verdict *verdict) {
    struct verification *v = arg;
    struct verdict shown = *verdict;
    v->output_bytes += shown.output_len;
    if (v->output_bytes > OUTPUT_BYTES) shown.output_len = 0;
    struct writer w;
    writer_init(&w, &v->results[index]);
    writer_object(&w);
    writer_key(&w, "index");
    writer_int(&w, index);
    verdict_json_members(&w, &shown, v->spec.feedback != VERIFIER_FEEDBACK_NONE);
    writer_object_end(&w);
    v->n_passed += verdict->kind == VERDICT_PASSED;
    v->n_left--;
    if (v->n_left)
        submit_more(v);
    else
        answer(v);
}

static void submit_more(struct verification *v) {
    while (v->n_sent < v->n && v->n_sent - (v->n - v->n_left) < WINDOW) {
        json_t *code = json_array_get(v->codes, (size_t)v->n_sent);
        verifier_submit(v->tests, v->n_sent, json_string_value(code), json_string_length(code),
                        false, on_verdict, v);
        v->n_sent++;
    }
}

static void on_ready(void *arg, struct verifier_tests *tests, const struct err *e) {
    struct verification *v = arg;
    v->opening = false;
    v->tests = tests;
    if (!v->http)
        drop(v);
    else if (e)
        fail(v, e);
    else
        submit_more(v);
}

/* ---- the request ---- */

static bool check_names(struct reader *r) {
    static const char *const known[] = {
        "tests",     "format",    "entry_point", "prompt",   "code", "codes", "extract",
        "timeout_s", "memory_mb", "score",       "feedback", "seed", NULL,
    };
    return reader_only(r, known, "/v1/verify");
}

static bool read_codes(struct verification *v, struct reader *r) {
    json_t *one = reader_get(r, "code"), *many = reader_get(r, "codes");
    if (!one == !many)
        return reader_fail(r, "codes", "give either code, a string, or codes, a list of strings");
    if (one) {
        if (!json_is_string(one))
            return reader_fail(r, "code", "must be a string, not %s", reader_type(one));
        json_object_set_new(r->object, "codes", json_pack("[O]", one));
        many = reader_get(r, "codes");
    }
    if (!json_is_array(many))
        return reader_fail(r, "codes", "must be a list of strings, not %s", reader_type(many));
    size_t n = json_array_size(many);
    if (!n || n > LIMIT_CANDIDATES)
        return reader_fail(r, "codes", "has %zu codes; it must have 1 … %d", n, LIMIT_CANDIDATES);
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(many, i)))
            return reader_fail(r, "codes", "must hold strings only; item %zu is %s", i,
                               reader_type(json_array_get(many, i)));
    v->codes = many;
    v->n = v->n_left = (int)n;
    return true;
}

static bool parse(struct verification *v, struct err *e) {
    size_t len;
    const char *body = http_body(v->http, &len);
    struct json_shape spent = {0};
    v->root = reader_parse(body, len, &spent, e);
    http_drop_body(v->http);
    if (!v->root) return false;
    if (!json_is_object(v->root))
        return err_set(e, ERR_INPUT, "the body must be a JSON object, not %s",
                       reader_type(v->root));
    struct reader r = {.object = v->root, .where = "", .arena = &v->arena, .e = e, .spent = spent};
    v->spec.feedback = VERIFIER_FEEDBACK_FULL;
    if (!check_names(&r) || !api_tests_read_spec(&r, v->api->config, &v->spec)) return false;
    v->spec.prompt = reader_string(&r, "prompt", LIMIT_CODE_BYTES, &v->spec.prompt_len);
    v->spec.score = reader_bool(&r, "score", false);
    v->spec.seed = (uint64_t)reader_int(&r, "seed", 0, INT64_MAX, 0);
    return !r.failed && read_codes(v, &r);
}

void api_verify_start(struct api *api, struct http_request *http, struct keys_holder *holder) {
    struct err e = {0};
    struct verification *v = err_alloc(1, sizeof *v);
    v->api = api;
    v->http = http;
    v->holder = holder;
    v->began = clock_seconds();
    arena_init(&v->arena);
    list_append(&api->verifications, &v->link);
    snprintf(v->id, sizeof v->id, "verify-%.48s", http_request_id(http));
    snprintf(v->request_id, sizeof v->request_id, "%s", http_request_id(http));
    if (!api_accepts(api, http, &e) || !parse(v, &e) || !api_admits(api, http, holder, 1, 0, &e)) {
        fail(v, &e);
        return;
    }
    v->admitted = true;
    api->n_races++;
    holder->n_races++;
    v->results = err_alloc((size_t)v->n, sizeof *v->results);
    for (int i = 0; i < v->n; i++)
        buf_init(&v->results[i], RESPONSE_BYTES);
    http_on_gone(http, on_gone, v);
    v->opening = true;
    if (!verifier_tests_open(runtime_verifier(api->runtime), &v->spec, on_ready, v, &e)) {
        v->opening = false;
        fail(v, &e);
    }
}
