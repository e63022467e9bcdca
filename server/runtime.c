#include "server/runtime.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* Events taken in one turn of the loop, so that connections get their turn too. */
enum { EVENTS_EACH_TURN = 256 };

struct runtime {
    const struct config *config; /* borrowed */
    uv_loop_t loop;
    bool loop_open;
    struct verifier *verifier; /* owned */
    bool attached, verifier_closed;
    struct race_set *races; /* owned */

    /* loading; written by the pool's thread between queueing and on_loaded() only */
    uv_work_t work;
    bool loading;
    char *model_path; /* owned */
    void (*progress)(void *arg, const char *what, double share);
    void (*ready)(void *arg, const struct err *);
    void *arg;
    struct err load_error;

    struct engine *engine; /* owned */
    uv_work_t measurement; /* writes the next two until it is done */
    struct engine_ceiling ceiling;
    struct err measure_error;
    enum { UNMEASURED, MEASURING, MEASURED } ceiling_state;
    uv_async_t wake;
    bool wake_open, loaded;
    struct err chat_error; /* why chat prompts can't be rendered; ERR_NONE: they can */
};

/* ---- the race's two tables: thin, so that races exist before the engine does ---- */

static bool call_submit(void *self, const struct engine_job *jobs, int n, uint64_t *ids,
                        struct err *e) {
    struct runtime *rt = self;
    if (!rt->loaded) return err_set(e, ERR_UNAVAILABLE, "the model is still loading; try again");
    return engine_submit_group(rt->engine, jobs, n, ids, e);
}

static void call_cancel(void *self, uint64_t id) {
    engine_cancel(((struct runtime *)self)->engine, id);
}

static void call_cancel_candidate(void *self, uint64_t id, int index) {
    engine_cancel_candidate(((struct runtime *)self)->engine, id, index);
}

static int64_t call_tokens(void *self, uint64_t id) {
    return engine_job_tokens(((struct runtime *)self)->engine, id);
}

static int64_t call_rows(void *self, uint64_t id) {
    return engine_job_rows(((struct runtime *)self)->engine, id);
}

static void call_set_width(void *self, uint64_t id, int width) {
    engine_set_width(((struct runtime *)self)->engine, id, width);
}

static bool call_tests_open(void *self, const struct verifier_spec *spec,
                            void (*ready)(void *, struct verifier_tests *, const struct err *),
                            void *arg, struct err *e) {
    return verifier_tests_open(((struct runtime *)self)->verifier, spec, ready, arg, e);
}

/* ---- events ---- */

static void on_wake(uv_async_t *handle) {
    struct runtime *rt = handle->data;
    for (int n = 0; n < EVENTS_EACH_TURN; n++) {
        struct engine_event *event = engine_poll(rt->engine);
        if (!event) return;
        race_set_event(rt->races, event);
        engine_event_free(event);
    }
    uv_async_send(&rt->wake);
}

/* ENGINE thread. */
static void wake_loop(void *arg) { uv_async_send(&((struct runtime *)arg)->wake); }

/* ---- open and load ---- */

struct runtime *runtime_open(const struct config *config, struct err *e) {
    struct runtime *rt = err_alloc(1, sizeof *rt);
    rt->config = config;
    const struct verifier_options options = {
        .python = config->verifier.python,
        .workers = config->verifier.workers,
        .min_level = config->verifier.min_level,
        .max_level = config->verifier.max_level,
        .max_landlock_abi = config->verifier.max_landlock_abi,
    };
    rt->verifier = verifier_open(&options, e);
    if (!rt->verifier) goto failed;
    int status = uv_loop_init(&rt->loop);
    if (status) {
        err_set(e, ERR_SYSTEM, "the event loop can't be set up: %s", uv_strerror(status));
        goto failed;
    }
    rt->loop_open = true;
    rt->attached = verifier_attach(rt->verifier, &rt->loop, e);
    if (!rt->attached) goto failed;
    const struct race_engine engine = {
        rt,          call_submit, call_cancel, call_cancel_candidate, call_set_width,
        call_tokens, call_rows};
    const struct race_verifier verifier = {rt, call_tests_open, verifier_tests_close,
                                           verifier_submit, verifier_cancel};
    rt->races = race_set_new(&rt->loop, engine, verifier);
    return rt;
failed:
    runtime_close(rt);
    return NULL;
}

struct engine_options runtime_engine_options(const struct config *c, const char *model_path) {
    return (struct engine_options){
        .model_path = model_path,
        .model_name = c->model.name,
        .backend = c->engine.backend,
        .isa = c->engine.isa,
        .weights = c->engine.weights,
        .kv = c->engine.kv,
        .threads = c->engine.threads,
        .context = c->engine.context,
        .max_rows = c->engine.max_rows,
        .prefill_chunk = c->engine.prefill_chunk,
        .memory_bytes = (uint64_t)c->engine.memory_mb << 20,
        .kv_blocks = c->engine.kv_blocks,
    };
}

static void load(uv_work_t *work) {
    struct runtime *rt = work->data;
    const struct config *c = rt->config;
    struct engine_options options = runtime_engine_options(c, rt->model_path);
    options.progress = rt->progress;
    options.progress_arg = rt->arg;
    rt->engine = engine_open(&options, &rt->load_error);
}

static void measure(uv_work_t *work) {
    struct runtime *rt = work->data;
    struct engine_options options = runtime_engine_options(rt->config, rt->model_path);
    bool ok = engine_ceiling(&options, &rt->ceiling, &rt->measure_error);
    (void)ok; /* the error says it */
}

/* Without it /metrics says less: no reason to fail. */
static void on_measured(uv_work_t *work, int status) {
    struct runtime *rt = work->data;
    (void)status; /* the work is never cancelled */
    rt->ceiling_state = MEASURED;
    if (rt->measure_error.kind != ERR_NONE)
        log_line(LOG_WARN, "the machine's limits weren't measured: %s", rt->measure_error.message);
}

void runtime_measure(struct runtime *rt) {
    if (!rt->loaded || rt->ceiling_state != UNMEASURED) return;
    rt->ceiling_state = MEASURING;
    rt->measurement.data = rt;
    int status = uv_queue_work(&rt->loop, &rt->measurement, measure, on_measured);
    BUG_ON(status);
}

static void tell_ready(struct runtime *rt, const struct err *error) {
    rt->loading = false;
    rt->loaded = !error;
    rt->ready(rt->arg, error);
}

/* A model whose template doesn't compile still completes; only chat is refused, saying why. */
static void on_template(void *arg, const struct err *error) {
    struct runtime *rt = arg;
    if (error) {
        rt->chat_error = *error;
        err_prefix(&rt->chat_error, "chat prompts can't be rendered");
        log_line(LOG_WARN, "%s", rt->chat_error.message);
    }
    tell_ready(rt, NULL);
}

static void on_loaded(uv_work_t *work, int status) {
    struct runtime *rt = work->data;
    struct err *e = &rt->load_error;
    (void)status; /* the work is never cancelled */
    if (!rt->engine) {
        tell_ready(rt, e);
        return;
    }
    uv_async_init(&rt->loop, &rt->wake, on_wake);
    rt->wake.data = rt;
    rt->wake_open = true;
    if (!engine_start(rt->engine, wake_loop, rt, e)) {
        tell_ready(rt, e);
        return;
    }
    const char *text = engine_model(rt->engine)->chat_template;
    struct err why = {0};
    if (!text) {
        err_set(&rt->chat_error, ERR_INPUT,
                "model %s has no chat template; use /v1/completions with it",
                engine_model(rt->engine)->name);
        tell_ready(rt, NULL);
    } else if (!verifier_template_set(rt->verifier, text, strlen(text), on_template, rt, &why)) {
        on_template(rt, &why);
    }
}

void runtime_load(struct runtime *rt, void (*progress)(void *arg, const char *what, double share),
                  void (*ready)(void *arg, const struct err *), void *arg) {
    BUG_ON(rt->loading || rt->engine);
    rt->model_path = config_model_path(rt->config);
    rt->progress = progress;
    rt->ready = ready;
    rt->arg = arg;
    rt->work.data = rt;
    rt->loading = true;
    int status = uv_queue_work(&rt->loop, &rt->work, load, on_loaded);
    BUG_ON(status);
}

struct load_wait {
    void (*progress)(void *arg, const char *what, double share);
    void *arg;
    bool done, ok;
    struct err *e;
};

static void wait_progress(void *arg, const char *what, double share) {
    struct load_wait *wait = arg;
    if (wait->progress) wait->progress(wait->arg, what, share);
}

static void wait_ready(void *arg, const struct err *error) {
    struct load_wait *wait = arg;
    wait->done = true;
    wait->ok = !error;
    if (error && wait->e) *wait->e = *error;
}

bool runtime_load_wait(struct runtime *rt,
                       void (*progress)(void *arg, const char *what, double share), void *arg,
                       struct err *e) {
    struct load_wait wait = {.progress = progress, .arg = arg, .e = e};
    runtime_load(rt, wait_progress, wait_ready, &wait);
    while (!wait.done)
        uv_run(&rt->loop, UV_RUN_ONCE);
    return wait.ok;
}

/* ---- close ---- */

static void on_verifier_closed(void *arg) { ((struct runtime *)arg)->verifier_closed = true; }

static void ignore_ready(void *arg, const struct err *error) {
    (void)arg;
    (void)error;
}

static void close_races(struct runtime *rt) {
    struct err error = {0};
    err_set(&error, ERR_UNAVAILABLE, "firstpass is shutting down");
    race_set_fail(rt->races, &error);
    struct race_set_stats stats;
    for (race_set_stats(rt->races, &stats); stats.live; race_set_stats(rt->races, &stats))
        uv_run(&rt->loop, UV_RUN_ONCE);
    race_set_free(rt->races);
}

void runtime_close(struct runtime *rt) {
    if (!rt) return;
    if (rt->loading) rt->ready = ignore_ready;
    /* Reading a model can't be broken off, and neither can measuring. */
    while (rt->loading || rt->ceiling_state == MEASURING)
        uv_run(&rt->loop, UV_RUN_ONCE);
    if (rt->races) close_races(rt);
    if (rt->engine) engine_close(rt->engine);
    if (rt->wake_open) uv_close((uv_handle_t *)&rt->wake, NULL);
    if (rt->attached) {
        verifier_close(rt->verifier, on_verifier_closed, rt);
        while (!rt->verifier_closed)
            uv_run(&rt->loop, UV_RUN_ONCE);
    }
    if (rt->verifier) verifier_free(rt->verifier);
    if (rt->loop_open) {
        uv_run(&rt->loop, UV_RUN_DEFAULT); /* close callbacks */
        int status = uv_loop_close(&rt->loop);
        BUG_ON(status);
    }
    free(rt->model_path);
    free(rt);
}

/* ---- parts ---- */

uv_loop_t *runtime_loop(struct runtime *rt) { return &rt->loop; }
struct verifier *runtime_verifier(struct runtime *rt) {
    return rt->verifier;
}
struct race_set *runtime_races(struct runtime *rt) {
    return rt->races;
}
struct engine *runtime_engine(struct runtime *rt) {
    return rt->loaded ? rt->engine : NULL;
}
bool runtime_loaded(const struct runtime *rt) { return rt->loaded; }

const struct engine_ceiling *runtime_ceiling(const struct runtime *rt) {
    return rt->ceiling_state == MEASURED ? &rt->ceiling : NULL;
}

bool runtime_chat(const struct runtime *rt, struct err *e) {
    if (rt->chat_error.kind == ERR_NONE) return true;
    if (e) *e = rt->chat_error;
    return false;
}
