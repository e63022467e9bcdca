#include "base/clock.h"
#include "base/list.h"
#include "server/api_request.h"
#include "server/api_variants.h"
#include "server/eval_backend.h"
#include "server/prompt.h"
#include "server/runtime.h"

#include <stdlib.h>
#include <string.h>

struct local {
    const struct config *config; /* borrowed */
    struct eval_events events;
    struct runtime *runtime; /* owned */
    uv_timer_t pulse;        /* so that turn() returns */
    struct list races;       /* struct local_race.link */
};

struct local_race {
    struct local *owner;
    struct list link;
    void *cookie;
    struct api_request request; /* owned */
    struct prompt_set prompts;  /* owned */
    uint64_t render;            /* 0: not in the template's hands */
    struct race *race;          /* borrowed; NULL until it runs */
    bool failed;
    struct err error; /* where it failed before it ran; told from turn() */
    double started;
};

static void free_race(struct local_race *r) {
    list_remove(&r->link);
    prompt_set_clear(&r->prompts);
    api_request_clear(&r->request);
    free(r);
}

/* ---- events of the race ---- */

static void on_verdict(void *arg, const struct race_candidate *c) {
    struct local_race *r = arg;
    const struct eval_candidate told = {
        .index = api_request_number(&r->request, c->index),
        .prompt = api_request_variant_of(&r->request, c->index),
        .temperature = api_request_temperature(&r->request, c->index),
        .tokens = c->n_tokens,
        .verdict = verdict_name(c->verdict),
        .passed = c->verdict == VERDICT_PASSED,
        .broken = c->verdict == VERDICT_BROKEN,
        .duplicate = c->duplicate,
        .tests_passed = c->tests_passed,
        .tests_total = c->tests_total,
        .verify_s = c->verify_s,
        .error = c->error,
        .method = c->method,
        .text = c->text ? c->text : "",
        .text_len = c->text ? c->text_len : 0,
        .code = c->code ? c->code : "",
        .code_len = c->code ? c->code_len : 0,
    };
    r->owner->events.candidate(r->owner->events.arg, r->cookie, &told);
}

static void on_done(void *arg, const struct race_result *result) {
    struct local_race *r = arg;
    struct local *l = r->owner;
    const struct race_counts *n = &result->counts;
    struct eval_end end = {
        .error = result->error,
        .tokens = n->tokens_winner + n->tokens_losers,
        .seconds = clock_seconds() - r->started,
        .first_pass_s = n->first_pass_s,
    };
    /* That none passed is a result; what each candidate came to was told. */
    if (end.error.kind == ERR_NONE_PASSED) end.error = (struct err){0};
    void *cookie = r->cookie;
    free_race(r);
    l->events.end(l->events.arg, cookie, &end);
}

/* ---- from a request to a race ---- */

static char *guard(void *self, const char *text, size_t len, size_t *len_out) {
    return engine_guard(self, text, len, len_out);
}

static bool run(struct local_race *r, struct err *e) {
    const struct local *l = r->owner;
    const struct race_callbacks callbacks = {.on_done = on_done, .on_verdict = on_verdict};
    struct race_request request;
    return prompt_race(&r->request, engine_model(runtime_engine(l->runtime)),
                       l->config->server.default_max_tokens, &r->prompts, &request, e) &&
           race_start(runtime_races(l->runtime), &request, &callbacks, r, &r->race, e);
}

static bool run_completion(struct local_race *r, struct err *e) {
    return prompt_set_add(&r->prompts, runtime_engine(r->owner->runtime), &r->request,
                          &r->request.prompts[0], e) &&
           run(r, e);
}

static void render_next(struct local_race *);

static void on_rendered(void *arg, const char *text, size_t len, const struct err *error) {
    struct local_race *r = arg;
    r->render = 0;
    if (error) {
        r->failed = true;
        r->error = *error;
    } else if (!prompt_set_add_chat(&r->prompts, runtime_engine(r->owner->runtime), &r->request,
                                    text, len, &r->error)) {
        r->failed = true;
    } else if (r->prompts.n < api_request_n_variants(&r->request)) {
        render_next(r);
    } else {
        r->failed = !run(r, &r->error);
    }
}

/* The next variant of a chat's prompt. */
static void render_next(struct local_race *r) {
    size_t len;
    char *variables = api_variants_variables(&r->request, r->prompts.n, &len);
    r->render =
        verifier_render(runtime_verifier(r->owner->runtime), variables, len, on_rendered, r);
    free(variables);
}

static bool start(void *self, const struct eval_ask *ask, void *cookie, struct err *e) {
    struct local *l = self;
    struct engine *engine = runtime_engine(l->runtime);
    const struct api_request_context context = {
        .config = l->config, .model = engine_model(engine), .guard = guard, .self = engine};
    enum api_request_kind kind = ask->completion ? API_REQUEST_COMPLETIONS : API_REQUEST_CHAT;
    if (!ask->completion && !runtime_chat(l->runtime, e)) return false;
    struct local_race *r = err_alloc(1, sizeof *r);
    *r = (struct local_race){.owner = l, .cookie = cookie, .started = clock_seconds()};
    list_init(&r->link);
    bool ok = api_request_parse(&r->request, kind, ask->body, ask->len, &context, e);
    if (ok) {
        prompt_choose_seed(&r->request);
        list_append(&l->races, &r->link);
        if (ask->completion)
            ok = run_completion(r, e);
        else
            render_next(r);
    }
    if (!ok) free_race(r);
    return ok;
}

static void set_width(void *self, void *cookie, int width) {
    struct local *l = self;
    LIST_EACH(it, &l->races) {
        struct local_race *r = LIST_ITEM(it, struct local_race, link);
        if (r->cookie != cookie) continue;
        r->request.job.width = width; /* for one that is still being rendered */
        if (r->race) race_set_width(r->race, width);
        return;
    }
}

/* ---- turns ---- */

static void on_pulse(uv_timer_t *timer) { (void)timer; /* it has ended uv_run() */ }

static void turn(void *self) {
    struct local *l = self;
    struct err lost = {0};
    uv_run(runtime_loop(l->runtime), UV_RUN_ONCE);
    if (engine_failed(runtime_engine(l->runtime), &lost)) {
        lost.kind = ERR_SYSTEM;
        race_set_fail(runtime_races(l->runtime), &lost);
    }
    LIST_EACH_SAFE(it, &l->races) {
        struct local_race *r = LIST_ITEM(it, struct local_race, link);
        if (!r->failed) continue;
        const struct eval_end end = {.error = r->error, .first_pass_s = -1};
        void *cookie = r->cookie;
        free_race(r);
        l->events.end(l->events.arg, cookie, &end);
    }
}

static void close_local(void *self) {
    struct local *l = self;
    LIST_EACH_SAFE(it, &l->races) {
        struct local_race *r = LIST_ITEM(it, struct local_race, link);
        if (r->render) verifier_render_cancel(runtime_verifier(l->runtime), r->render);
        if (r->race) race_abandon(r->race);
        free_race(r);
    }
    if (runtime_loaded(l->runtime)) uv_close((uv_handle_t *)&l->pulse, NULL);
    runtime_close(l->runtime);
    free(l);
}

bool eval_backend_local(struct eval_backend *b, const struct config *config,
                        const struct eval_events *events, struct err *e) {
    struct local *l = err_alloc(1, sizeof *l);
    *l = (struct local){.config = config, .events = *events};
    list_init(&l->races);
    l->runtime = runtime_open(config, e);
    if (!l->runtime || !runtime_load_wait(l->runtime, NULL, NULL, e)) {
        runtime_close(l->runtime);
        free(l);
        return false;
    }
    uv_timer_init(runtime_loop(l->runtime), &l->pulse);
    uv_timer_start(&l->pulse, on_pulse, 500, 500);
    const struct engine_model *model = engine_model(runtime_engine(l->runtime));
    *b = (struct eval_backend){
        .self = l,
        .model = model->name,
        .model_key = model->fingerprint,
        /* Beyond the knee a step's tokens still cost less each: a lone race is sooner done
         * with fewer, an evaluation isn't. */
        .in_flight = config->engine.max_rows,
        .start = start,
        .set_width = set_width,
        .turn = turn,
        .close = close_local,
    };
    return true;
}
