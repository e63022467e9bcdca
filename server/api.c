#include "server/api.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/api_verify.h"
#include "server/call.h"
#include "server/page.h"
#include "server/route.h"
#include "server/status.h"
#include "server/tokens.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { TICK_MS = 1000, IDLE_TICKS = 2, RETRY_MAX_S = 60, PEM_BYTES = 1024 * 1024 };

/* Of the places for races and candidates that one key may take while others have keys too. */
#define KEY_SHARE 0.75

/* ---- requests ---- */

/* Pages of other origins may ask in browsers only where this says so. */
static void add_cors(const struct api *api, struct http_request *http, bool preflight) {
    const char *origin = api->config->server.cors_origin;
    if (!*origin) return;
    http_add_header(http, "Access-Control-Allow-Origin", origin);
    http_add_header(http, "Access-Control-Expose-Headers",
                    "x-request-id, x-firstpass-verified, Retry-After");
    if (strcmp(origin, "*")) http_add_header(http, "Vary", "Origin");
    if (!preflight) return;
    http_add_header(http, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    http_add_header(http, "Access-Control-Allow-Headers", "*, Authorization");
    http_add_header(http, "Access-Control-Max-Age", "86400");
}

static void reply_options(struct http_request *http, const char *allow) {
    http_add_header(http, "Allow", allow);
    http_reply(http, 204, NULL, NULL, 0);
}

/* The key in "Authorization: Bearer KEY", or in "api-key", as some clients have it. */
static const char *key_of(struct http_request *http) {
    const char *value = http_header(http, "authorization");
    if (!value) return http_header(http, "api-key");
    if (strncasecmp(value, "bearer ", 7)) return NULL;
    value += 7;
    while (*value == ' ')
        value++;
    return value;
}

static bool needs_key(const struct api *api, enum route route) {
    return route != ROUTE_HEALTH && route != ROUTE_READY && route != ROUTE_OPTIONS &&
           route != ROUTE_PAGE && !(route == ROUTE_METRICS && api->config->server.open_metrics);
}

static void reply_race(struct api *api, struct http_request *http, const char *id,
                       const struct keys_holder *holder, bool delete) {
    struct races_view live, *view = NULL;
    LIST_EACH(it, &api->calls) {
        struct call *c = call_of(it);
        call_view(c, &live);
        if (!races_is(&live, id, holder)) continue;
        view = &live;
        if (delete) call_cancel(c);
        break;
    }
    const struct races_view *shown = view ? view : races_find(&api->races, id, holder);
    if (!shown) {
        struct err e = {0};
        err_set(&e, ERR_NOT_FOUND,
                "there is no race \"%.140s\": none of this id is in work or among "
                "the last %d",
                id, RACES_KEPT);
        err_code(&e, "race_not_found");
        route_reply_error(http, &e, NULL);
        return;
    }
    if (view && delete) view->status = "cancelled";
    struct buf body;
    struct writer w;
    buf_init(&body, 65536);
    writer_init(&w, &body);
    races_write(&w, shown, view && delete);
    route_reply_json(http, 200, &body);
}

static void on_request(void *arg, struct http_request *http) {
    struct api *api = arg;
    struct err e = {0};
    const char *rest, *allow;
    enum route route = route_find(http_method(http), http_path(http), &rest, &allow, &e);
    if (route == ROUTE_PAGE && !api->config->server.page) {
        route_not_found(http_path(http), &e);
        route = ROUTE_NONE;
        allow = NULL;
    }
    add_cors(api, http, route == ROUTE_OPTIONS);
    struct keys_holder *holder = keys_find(&api->keys, key_of(http));
    if (!holder && needs_key(api, route)) {
        err_set(&e, ERR_AUTH,
                "the API key is missing or wrong; send one as \"Authorization: Bearer "
                "KEY\"");
        route_reply_error(http, &e, NULL);
        return;
    }
    switch (route) {
    case ROUTE_COMPLETIONS:
        call_start(api, http, API_REQUEST_COMPLETIONS, holder);
        break;
    case ROUTE_CHAT:
        call_start(api, http, API_REQUEST_CHAT, holder);
        break;
    case ROUTE_RESPONSES:
        call_start(api, http, API_REQUEST_RESPONSES, holder);
        break;
    case ROUTE_TOKENIZE:
        tokens_encode(api, http);
        break;
    case ROUTE_DETOKENIZE:
        tokens_decode(api, http);
        break;
    case ROUTE_TOKENIZER_INFO:
        tokens_info(api, http);
        break;
    case ROUTE_RACE:
    case ROUTE_RACE_DELETE:
        reply_race(api, http, rest, holder, route == ROUTE_RACE_DELETE);
        break;
    case ROUTE_VERIFY:
        api_verify_start(api, http, holder);
        break;
    case ROUTE_MODELS:
        status_models(api, http);
        break;
    case ROUTE_MODEL:
        status_model(api, http, rest);
        break;
    case ROUTE_HEALTH:
        status_health(api, http);
        break;
    case ROUTE_READY:
        status_ready(api, http);
        break;
    case ROUTE_METRICS:
        status_metrics(api, http);
        break;
    case ROUTE_VERSION:
        status_version(api, http);
        break;
    case ROUTE_PAGE:
        page_reply(http, rest);
        break;
    case ROUTE_OPTIONS:
        reply_options(http, allow);
        break;
    case ROUTE_NONE:
        if (allow) http_add_header(http, "Allow", allow);
        route_reply_error(http, &e, NULL);
        break;
    }
}

static void on_refused(void *arg, struct http_request *http, const struct err *e) {
    add_cors(arg, http, false);
    route_reply_error(http, e, NULL);
}

/* ---- admission ---- */

bool api_accepts(struct api *api, struct http_request *http, struct err *e) {
    static const char *const whys[] = {
        [API_LOADING] = "the model is still loading; try again in a few seconds",
        [API_DRAINING] = "the server is shutting down",
        [API_FAILED] = "the engine has failed and the server is about to restart",
    };
    if (api->phase == API_SERVING) return true;
    http_add_header(http, "Retry-After", "5");
    return err_set(e, ERR_UNAVAILABLE, "%s", whys[api->phase]);
}

int64_t api_candidates_waiting(const struct api *api) {
    int64_t n = 0;
    LIST_EACH(it, &api->calls) n += call_waiting(call_of(it));
    return n;
}

bool api_admits(struct api *api, struct http_request *http, const struct keys_holder *holder, int n,
                int n_candidates, struct err *e) {
    int most = api->config->server.max_races;
    double share = api->keys.n_holders > 1 ? KEY_SHARE : 1;
    int64_t waiting = api_candidates_waiting(api), more = (int64_t)n * n_candidates;
    int64_t queue = api->config->server.max_queued_candidates;
    if (n > most)
        return err_param(e, "prompt", "prompt: has %d prompts; this server works on %d at once", n,
                         most);
    bool races = n <= most - api->n_races, candidates = !waiting || more <= queue - waiting;
    /* What a key holds is bounded, not what it asks for first: else a race of 10,000 could be
     * impossible for it. */
    bool fair =
        !holder->n_races || (holder->n_races + n <= most * share &&
                             (double)(holder->n_candidates + more) <= (double)queue * share);
    if (races && candidates && fair) return true;
    /* The wait is counted in candidates: how long those admitted will take at the present pace. */
    double wait = api->ended_rate > 0 ? ceil((double)waiting / api->ended_rate) : 1;
    int seconds = wait < 1 ? 1 : wait > RETRY_MAX_S ? RETRY_MAX_S : (int)wait;
    char text[16];
    snprintf(text, sizeof text, "%d", seconds);
    http_add_header(http, "Retry-After", text);
    if (!races)
        return err_set(e, ERR_BUSY,
                       "the server works on %d prompts already and takes %d at once "
                       "(server.max_races); try again in %d s",
                       api->n_races, most, seconds);
    if (!candidates)
        return err_set(e, ERR_BUSY,
                       "%lld candidates are waiting already and the queue takes %lld "
                       "(server.max_queued_candidates); try again in %d s",
                       (long long)waiting, (long long)queue, seconds);
    return err_set(e, ERR_BUSY,
                   "this key has %d prompts and %lld candidates in work, its share of what the "
                   "server takes; try again in %d s",
                   holder->n_races, (long long)holder->n_candidates, seconds);
}

/* ---- the queue ---- */

/* The oldest request of the key with the fewest live races. */
static struct call *next_in_queue(struct api *api) {
    struct call *best = NULL;
    LIST_EACH(it, &api->queue) {
        struct call *c = call_queued(it);
        if (!best || call_holder(c)->n_live < call_holder(best)->n_live) best = c;
    }
    return best;
}

/* More than the engine can have in one step would only wait inside it, where no key's turn is
 * known; twice as many keep it busy while prompts are read. */
static int most_live(const struct api *api) { return 2 * api->config->engine.max_rows; }

void api_dispatch(struct api *api) {
    if (api->held) return;
    api->held = true; /* starting may fail, and then end another */
    for (struct call *c; api->n_live < most_live(api) && (c = next_in_queue(api));)
        call_begin(c);
    api->held = false;
}

void api_reload_keys(struct api *api) {
    struct err e = {0};
    const char *path = api->config->server.api_key_file;
    if (!*path)
        log_line(LOG_INFO, "SIGHUP: there is no server.api_key_file to read again");
    else if (keys_load(&api->keys, path, &e))
        log_line(LOG_INFO, "SIGHUP: %d API keys read from %s", api->keys.n, path);
    else
        log_line(LOG_ERROR, "SIGHUP: the keys stay as they are: %s", e.message);
}

/* ---- life ---- */

void api_check_engine(struct api *api) {
    struct err e = {0};
    const struct engine *engine = runtime_engine(api->runtime);
    if (api->phase == API_FAILED || !engine || !engine_failed(engine, &e)) return;
    api->phase = API_FAILED;
    api->failed(api->arg, &e);
}

static void on_tick(uv_timer_t *timer) {
    struct api *api = timer->data;
    double now = clock_seconds();
    api->held = true; /* each may end itself, but no other while the list is walked */
    LIST_EACH_SAFE(it, &api->calls) call_tick(call_of(it), now);
    api->held = false;
    api_dispatch(api);
    struct race_set_stats s;
    race_set_stats(runtime_races(api->runtime), &s);
    uint64_t ended = s.candidates_finished + s.candidates_cancelled;
    api->ended_rate += 0.2 * ((double)(ended - api->ended_before) - api->ended_rate);
    api->ended_before = ended;
    bool idle = list_empty(&api->calls) && list_empty(&api->verifications);
    api->idle_ticks = idle && api->phase == API_SERVING ? api->idle_ticks + 1 : 0;
    if (api->idle_ticks >= IDLE_TICKS) runtime_measure(api->runtime);
    api_check_engine(api);
}

/* A file's text; free() it. */
static char *read_pem(const char *setting, const char *path, struct err *e) {
    FILE *file = fopen(path, "re");
    char *text = err_alloc(1, PEM_BYTES + 1);
    size_t len = file ? fread(text, 1, PEM_BYTES, file) : 0;
    if (file) fclose(file);
    if (len && strlen(text) == len) return text;
    free(text);
    err_set(e, ERR_INPUT, "server.%s: %s can't be read as PEM", setting, path);
    return NULL;
}

bool api_open(struct api *api, const struct config *config, struct runtime *runtime,
              void (*failed)(void *arg, const struct err *), void *arg, struct err *e) {
    *api = (struct api){
        .config = config, .runtime = runtime, .phase = API_LOADING, .failed = failed, .arg = arg};
    api->created = (int64_t)time(NULL);
    api->opened_at = clock_seconds();
    list_init(&api->calls);
    list_init(&api->verifications);
    list_init(&api->queue);
    keys_init(&api->keys);
    metrics_init(&api->metrics);
    if (*config->server.api_key_file && !keys_load(&api->keys, config->server.api_key_file, e))
        return false;
    char *cert = NULL, *key = NULL;
    bool tls = *config->server.tls_cert || *config->server.tls_key;
    if (tls && !((cert = read_pem("tls_cert", config->server.tls_cert, e)) &&
                 (key = read_pem("tls_key", config->server.tls_key, e)))) {
        free(cert);
        keys_clear(&api->keys);
        return false;
    }
    const struct http_options options = {
        .host = config->server.host,
        .port = config->server.port,
        .max_connections = config->server.max_connections,
        .idle_s = config->server.idle_s,
        .read_s = config->server.read_s,
        .tls_cert = cert,
        .tls_key = key,
        .max_body = (size_t)config->server.max_body_bytes,
    };
    const struct http_handler handler = {on_request, on_refused, api};
    api->http = http_open(runtime_loop(runtime), &options, &handler, e);
    if (key) explicit_bzero(key, strlen(key));
    free(key);
    free(cert);
    if (!api->http) {
        keys_clear(&api->keys);
        return false;
    }
    int status = uv_timer_init(runtime_loop(runtime), &api->tick);
    BUG_ON(status);
    api->tick.data = api;
    uv_timer_start(&api->tick, on_tick, TICK_MS, TICK_MS);
    return true;
}

void api_close(struct api *api) {
    http_close(api->http);
    api->http = NULL;
    uv_close((uv_handle_t *)&api->tick, NULL);
    keys_clear(&api->keys);
}

void api_fail_calls(struct api *api, const struct err *e) {
    bool held = api->held;
    api->held = true;
    LIST_EACH_SAFE(it, &api->calls) call_fail(call_of(it), e);
    LIST_EACH_SAFE(it, &api->verifications) api_verify_fail(it, e);
    api->held = held;
}

bool api_idle(const struct api *api) { return list_empty(&api->calls) && !http_busy(api->http); }
