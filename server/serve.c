#include "server/serve.h"

#include "base/log.h"
#include "server/api.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum {
    CHECK_MS = 20,   /* how often a draining server looks whether it is idle */
    FLUSH_MS = 1000, /* for answers on their way when the time to drain is up */
};

struct serve {
    const struct config *config;
    struct runtime *runtime;
    struct api api;
    uv_signal_t term, interrupt, hang_up;
    uv_timer_t check;
    double drain_s, flush_s; /* left */
    bool draining, stopped;
    int status;   /* of the process */
    double shown; /* share of the loading last logged */
};

/* ---- the end ---- */

static void stop(struct serve *s) {
    s->stopped = true;
    uv_stop(runtime_loop(s->runtime));
}

static void cut(struct serve *s) {
    struct err e = {0};
    err_set(&e, ERR_UNAVAILABLE, "the server is shutting down");
    api_fail_calls(&s->api, &e);
    s->drain_s = 0;
}

static void on_check(uv_timer_t *timer) {
    struct serve *s = timer->data;
    if (api_idle(&s->api)) {
        stop(s);
    } else if (s->drain_s > 0) {
        s->drain_s -= CHECK_MS / 1e3;
        if (s->drain_s <= 0) {
            log_line(LOG_WARN, "server.drain_s is over; requests still in work are cut");
            cut(s);
        }
    } else {
        s->flush_s -= CHECK_MS / 1e3;
        if (s->flush_s <= 0) stop(s);
    }
}

static void drain(struct serve *s, double seconds) {
    s->draining = true;
    s->drain_s = seconds;
    s->flush_s = FLUSH_MS / 1e3;
    if (seconds <= 0) cut(s);
    uv_timer_start(&s->check, on_check, 0, CHECK_MS);
}

static void on_signal(uv_signal_t *signal, int number) {
    struct serve *s = signal->data;
    const char *name = number == SIGTERM ? "SIGTERM" : "SIGINT";
    if (!s->draining) {
        log_line(LOG_INFO, "%s: no new requests; %d in work get %g s to end", name, s->api.n_races,
                 s->config->server.drain_s);
        if (s->api.phase != API_FAILED) s->api.phase = API_DRAINING;
        drain(s, s->config->server.drain_s);
    } else {
        log_line(LOG_INFO, "%s again: stopping at once", name);
        cut(s);
        /* The next one has its default action. */
        uv_signal_stop(&s->term);
        uv_signal_stop(&s->interrupt);
    }
}

static void on_hang_up(uv_signal_t *signal, int number) {
    struct serve *s = signal->data;
    (void)number;
    api_reload_keys(&s->api);
}

/* Live races have had the engine's error already; what can still be said is said, then out: whoever
 * runs the server starts it again. */
static void on_failed(void *arg, const struct err *e) {
    struct serve *s = arg;
    log_line(LOG_ERROR, "the engine is lost: %s; exiting", e->message);
    s->status = 1;
    api_fail_calls(&s->api, e);
    if (!s->draining) drain(s, FLUSH_MS / 1e3);
}

/* ---- the start ---- */

/* One line for each tenth of a part; from the loading thread. */
static void on_progress(void *arg, const char *what, double share) {
    struct serve *s = arg;
    if (share > 0 && share < 1 && share - s->shown < 0.1 && share >= s->shown) return;
    s->shown = share;
    log_line(LOG_INFO, "%s: %.0f %%", what, share * 100);
}

static void on_ready(void *arg, const struct err *error) {
    struct serve *s = arg;
    if (error) {
        log_line(LOG_ERROR, "%s", error->message);
        fprintf(stderr, "firstpass: %s\n", error->message);
        s->status = 1;
        stop(s);
        return;
    }
    struct engine *engine = runtime_engine(s->runtime);
    engine_describe(engine, stderr);
    if (s->api.phase == API_LOADING) s->api.phase = API_SERVING;
    log_line(LOG_INFO, "ready: model %s, sandbox level %d", engine_model(engine)->name,
             verifier_report(runtime_verifier(s->runtime))->level);
}

/* Each waiting request needs two descriptors: its own and the one that watches its client. */
static void raise_descriptor_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void start_handle(struct serve *s, uv_signal_t *handle, uv_signal_cb callback, int number) {
    int rc = uv_signal_init(runtime_loop(s->runtime), handle);
    BUG_ON(rc);
    handle->data = s;
    rc = uv_signal_start(handle, callback, number);
    BUG_ON(rc);
}

static void run(struct serve *s) {
    uv_loop_t *loop = runtime_loop(s->runtime);
    start_handle(s, &s->term, on_signal, SIGTERM);
    start_handle(s, &s->interrupt, on_signal, SIGINT);
    start_handle(s, &s->hang_up, on_hang_up, SIGHUP);
    int rc = uv_timer_init(loop, &s->check);
    BUG_ON(rc);
    s->check.data = s;
    runtime_load(s->runtime, on_progress, on_ready, s);
    while (!s->stopped)
        uv_run(loop, UV_RUN_DEFAULT);
    /* Calls whose prompts are being tokenized in the pool hold on to the engine until that is done.
     */
    struct err e = {0};
    err_set(&e, ERR_UNAVAILABLE, "the server is shutting down");
    api_fail_calls(&s->api, &e);
    while (!list_empty(&s->api.calls) || s->api.n_tokenizing)
        uv_run(loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&s->term, NULL);
    uv_close((uv_handle_t *)&s->interrupt, NULL);
    uv_close((uv_handle_t *)&s->hang_up, NULL);
    uv_close((uv_handle_t *)&s->check, NULL);
    api_close(&s->api);
}

static int report(const struct err *e) {
    fprintf(stderr, "firstpass: %s\n", e->message);
    return 1;
}

int serve_main(int argc, char **argv, const struct config *config) {
    struct serve s = {.config = config};
    struct err e = {0};
    if (argc > 1) {
        fprintf(stderr, "firstpass serve: unknown argument \"%s\"; see firstpass --help\n",
                argv[1]);
        return 2;
    }
    raise_descriptor_limit();
    s.runtime = runtime_open(config, &e);
    if (!s.runtime) return report(&e);
    signal(SIGPIPE, SIG_IGN); /* after the workers: they have their own */
    if (!api_open(&s.api, config, s.runtime, on_failed, &s, &e)) {
        runtime_close(s.runtime);
        return report(&e);
    }
    log_line(LOG_INFO, "listening on http%s://%s:%d", *config->server.tls_cert ? "s" : "",
             config->server.host, http_port(s.api.http));
    run(&s);
    runtime_close(s.runtime);
    log_line(LOG_INFO, "stopped");
    return s.status;
}
