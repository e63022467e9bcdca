#include "server/status.h"

#include "base/clock.h"
#include "server/route.h"

#include <string.h>
#include <time.h>

enum { PAGE_BYTES = 1024 * 1024 };

static const char *phase_name(enum api_phase phase) {
    static const char *const names[] = {"loading", "ready", "draining", "failed"};
    return names[phase];
}

static const struct engine_model *model_of(struct api *api) {
    struct engine *engine = runtime_engine(api->runtime);
    return engine ? engine_model(engine) : NULL;
}

void status_health(struct api *api, struct http_request *http) {
    struct buf body;
    struct writer w;
    buf_init(&body, PAGE_BYTES);
    writer_init(&w, &body);
    writer_object(&w);
    writer_key(&w, "status");
    writer_text(&w, api->phase == API_SERVING ? "ok" : phase_name(api->phase));
    writer_object_end(&w);
    route_reply_json(http, api->phase == API_SERVING ? 200 : 503, &body);
}

void status_ready(struct api *api, struct http_request *http) {
    const struct verifier_report *report = verifier_report(runtime_verifier(api->runtime));
    const struct engine_model *model = model_of(api);
    struct buf body;
    struct writer w;
    buf_init(&body, PAGE_BYTES);
    writer_init(&w, &body);
    writer_object(&w);
    writer_key(&w, "ready");
    writer_bool(&w, api->phase == API_SERVING);
    writer_key(&w, "status");
    writer_text(&w, phase_name(api->phase));
    writer_key(&w, "model");
    writer_text(&w, model ? model->name : NULL);
    struct err why = {0};
    bool chat = model && runtime_chat(api->runtime, &why);
    writer_key(&w, "chat");
    writer_bool(&w, chat);
    if (model && !chat) {
        writer_key(&w, "chat_error");
        writer_text(&w, why.message);
    }
    writer_key(&w, "sandbox");
    writer_object(&w);
    writer_key(&w, "level");
    writer_int(&w, report->level);
    writer_key(&w, "python");
    writer_text(&w, report->python_version);
    writer_key(&w, "layers");
    writer_array(&w);
    for (int i = 0; i < report->n_layers; i++) {
        const struct verifier_layer *layer = &report->layers[i];
        writer_object(&w);
        writer_key(&w, "name");
        writer_text(&w, layer->name);
        writer_key(&w, "active");
        writer_bool(&w, layer->active);
        writer_key(&w, "detail");
        writer_text(&w, layer->detail);
        writer_object_end(&w);
    }
    writer_array_end(&w);
    writer_object_end(&w);
    writer_object_end(&w);
    route_reply_json(http, api->phase == API_SERVING ? 200 : 503, &body);
}

void status_metrics(struct api *api, struct http_request *http) {
    struct http_stats http_now;
    struct race_set_stats races;
    struct verifier_stats verifier;
    struct engine_stats engine_now = {0};
    struct engine *engine = runtime_engine(api->runtime);
    http_stats(api->http, &http_now);
    race_set_stats(runtime_races(api->runtime), &races);
    verifier_stats(runtime_verifier(api->runtime), &verifier);
    if (engine) engine_stats(engine, &engine_now);
    const struct metrics_view view = {
        .model = engine ? engine_model(engine)->name : "",
        .own = &api->metrics,
        .http = &http_now,
        .races = &races,
        .engine = engine ? &engine_now : NULL,
        .ceiling = runtime_ceiling(api->runtime),
        .verifier = &verifier,
        .report = verifier_report(runtime_verifier(api->runtime)),
        .candidates_waiting = api_candidates_waiting(api),
        .uptime_s = clock_seconds() - api->opened_at,
        .ready = api->phase == API_SERVING,
    };
    struct buf body;
    buf_init(&body, PAGE_BYTES);
    metrics_write(&body, &view);
    size_t len;
    char *text = buf_take(&body, &len);
    http_reply(http, 200, "text/plain; version=0.0.4; charset=utf-8", text, len);
}

static void write_model(struct api *api, struct writer *w, const struct engine_model *model) {
    writer_object(w);
    writer_key(w, "id");
    writer_text(w, model->name);
    writer_key(w, "object");
    writer_text(w, "model");
    writer_key(w, "created");
    writer_int(w, api->created);
    writer_key(w, "owned_by");
    writer_text(w, "firstpass");
    writer_key(w, "root");
    writer_text(w, model->name);
    writer_key(w, "parent");
    writer_null(w);
    writer_key(w, "max_model_len");
    writer_int(w, model->context);
    writer_object_end(w);
}

void status_models(struct api *api, struct http_request *http) {
    const struct engine_model *model = model_of(api);
    struct buf body;
    struct writer w;
    buf_init(&body, PAGE_BYTES);
    writer_init(&w, &body);
    writer_object(&w);
    writer_key(&w, "object");
    writer_text(&w, "list");
    writer_key(&w, "data");
    writer_array(&w);
    if (model) write_model(api, &w, model);
    writer_array_end(&w);
    writer_object_end(&w);
    route_reply_json(http, 200, &body);
}

void status_model(struct api *api, struct http_request *http, const char *id) {
    const struct engine_model *model = model_of(api);
    if (!model || strcmp(id, model->name)) {
        struct err e = {0};
        err_set(&e, ERR_NOT_FOUND, "there is no model \"%.200s\" here%s%s", id,
                model ? "; this server has " : " (yet: one is still loading)",
                model ? model->name : "");
        err_code(&e, "model_not_found");
        route_reply_error(http, &e, NULL);
        return;
    }
    struct buf body;
    struct writer w;
    buf_init(&body, PAGE_BYTES);
    writer_init(&w, &body);
    write_model(api, &w, model);
    route_reply_json(http, 200, &body);
}

void status_version(struct api *api, struct http_request *http) {
    (void)api;
    struct buf body;
    struct writer w;
    buf_init(&body, PAGE_BYTES);
    writer_init(&w, &body);
    writer_object(&w);
    writer_key(&w, "version");
    writer_text(&w, FIRSTPASS_VERSION);
    writer_object_end(&w);
    route_reply_json(http, 200, &body);
}
