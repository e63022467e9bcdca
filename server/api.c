#include "server/api.h"

#include "base/clock.h"
#include "server/api_verify.h"
#include "server/call.h"
#include "server/route.h"
#include "server/status.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum { TICK_MS = 1000, RETRY_MAX_S = 60 };

/* ---- requests ---- */

static void reply_options(struct http_request *http, const char *allow) {
    http_add_header(http, "Allow", allow);
    http_reply(http, 204, NULL, NULL, 0);
}

static void on_request(void *arg, struct http_request *http) {
    struct api *api = arg;
    struct err e = {0};
    const char *rest, *allow;
    switch (route_find(http_method(http), http_path(http), &rest, &allow, &e)) {
    case ROUTE_COMPLETIONS:
        call_start(api, http, API_REQUEST_COMPLETIONS);
        break;
    case ROUTE_CHAT:
        call_start(api, http, API_REQUEST_CHAT);
        break;
    case ROUTE_VERIFY:
        api_verify_start(api, http);
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
    (void)arg;
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

bool api_admits(struct api *api, struct http_request *http, int n, struct err *e) {
    int most = api->config->server.max_races;
    if (n <= most - api->n_races) return true;
    /* The wait is counted in candidates: how long those admitted will take at the present pace. */
    double wait =
        api->ended_rate > 0 ? ceil((double)api_candidates_waiting(api) / api->ended_rate) : 1;
    char text[16];
    snprintf(text, sizeof text, "%d", wait < 1 ? 1 : wait > RETRY_MAX_S ? RETRY_MAX_S : (int)wait);
    http_add_header(http, "Retry-After", text);
    if (n > most)
        return err_param(e, "prompt", "prompt: has %d prompts; this server works on %d at once", n,
                         most);
    return err_set(e, ERR_BUSY,
                   "the server works on %d prompts already and takes %d at once "
                   "(server.max_races); try again in %s s",
                   api->n_races, most, text);
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
    LIST_EACH_SAFE(it, &api->calls) call_tick(call_of(it), now);
    struct race_set_stats s;
    race_set_stats(runtime_races(api->runtime), &s);
    uint64_t ended = s.candidates_finished + s.candidates_cancelled;
    api->ended_rate += 0.2 * ((double)(ended - api->ended_before) - api->ended_rate);
    api->ended_before = ended;
    api_check_engine(api);
}

bool api_open(struct api *api, const struct config *config, struct runtime *runtime,
              void (*failed)(void *arg, const struct err *), void *arg, struct err *e) {
    *api = (struct api){
        .config = config, .runtime = runtime, .phase = API_LOADING, .failed = failed, .arg = arg};
    api->created = (int64_t)time(NULL);
    api->opened_at = clock_seconds();
    list_init(&api->calls);
    list_init(&api->verifications);
    metrics_init(&api->metrics);
    const struct http_options options = {
        .host = config->server.host,
        .port = config->server.port,
        .max_connections = config->server.max_connections,
        .idle_s = config->server.idle_s,
        .max_body = (size_t)config->server.max_body_bytes,
    };
    const struct http_handler handler = {on_request, on_refused, api};
    api->http = http_open(runtime_loop(runtime), &options, &handler, e);
    if (!api->http) return false;
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
}

void api_fail_calls(struct api *api, const struct err *e) {
    LIST_EACH_SAFE(it, &api->calls) call_fail(call_of(it), e);
    LIST_EACH_SAFE(it, &api->verifications) api_verify_fail(it, e);
}

bool api_idle(const struct api *api) { return list_empty(&api->calls) && !http_busy(api->http); }
