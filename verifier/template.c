#include "verifier/template.h"

#include "base/buf.h"
#include "config/limits.h"
#include "verifier/holder.h"
#include "verifier/payload.h"
#include "verifier/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* THEORY.  template_set() asks for the template worker and compiles there, in a process R.  Renders
 * wait in one line; each runs in a fresh child V of R with its own clock, so that a template that
 * loops for ever costs its own request only.  A worker or R that is lost is made again and the
 * render that ran is run again, once. */

enum {
    RENDER_MEMORY_MB = 512,
    RENDER_BYTES = 32 * 1024 * 1024,
    RENDER_CPU_S = 5,
    COMPILE_S = 30,
    PIECE = 65536,
};
static const double RENDER_WALL_S = 15;

struct render {
    struct list link;
    uint64_t id;
    int variables_fd; /* owned */
    int tries;
    void (*done)(void *arg, const char *text, size_t len, const struct err *);
    void *arg; /* borrowed */
};

struct template {
    struct pool *pool;                            /* borrowed */
    int source_fd;                                /* owned; -1: no template */
    struct worker *worker;                        /* borrowed; NULL: none */
    struct holder *holder;                        /* owned */
    void (*ready)(void *arg, const struct err *); /* who waits for template_set() */
    void *ready_arg;
    struct list waiting;
    struct watch_timer *pump; /* owned: starts renders from the loop, never from within a call */
    uint64_t next_id;
    int losses; /* in a row */

    /* the render that runs */
    struct render *current; /* owned; NULL: none, or cancelled while `running` */
    bool running;
    struct process process;
    struct watch *output, *report;
    struct watch_timer *clock;
    struct buf text;
    unsigned char nonce[WIRE_NONCE];
    enum report_status status;
    struct report reported;
    bool overdue;
};

static void start_next(struct template *t);
static void want_worker(struct template *t);

static void free_render(struct render *r) {
    close(r->variables_fd);
    free(r);
}

/* Ends one render with this error or text. */
static void answer(struct render *r, const char *text, size_t len, const struct err *e) {
    r->done(r->arg, text, len, e);
    free_render(r);
}

static void fail_all(struct template *t, const struct err *e) {
    struct list failed;
    list_init(&failed);
    while (!list_empty(&t->waiting)) {
        struct list *it = t->waiting.next;
        list_remove(it);
        list_append(&failed, it);
    }
    while (!list_empty(&failed)) {
        struct render *r = LIST_ITEM(failed.next, struct render, link);
        list_remove(&r->link);
        answer(r, NULL, 0, e);
    }
}

static void tell_ready(struct template *t, const struct err *e) {
    void (*ready)(void *, const struct err *) = t->ready;
    t->ready = NULL;
    if (ready) ready(t->ready_arg, e);
}

/* ---- the running render ---- */

static void clear_run(struct template *t) {
    watch_close(t->output);
    watch_close(t->report);
    watch_timer_close(t->clock);
    t->output = t->report = NULL;
    t->clock = NULL;
    process_clear(&t->process);
    buf_clear(&t->text);
    t->status = REPORT_NONE;
    t->overdue = false;
    t->running = false;
}

static void take_output(struct template *t) {
    char piece[PIECE];
    while (t->output) {
        ssize_t n = read(watch_fd(t->output), piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            watch_close(t->output);
            t->output = NULL;
            return;
        }
        if (!buf_append(&t->text, piece, (size_t)n)) process_kill(&t->process);
    }
}

static void take_report(struct template *t) {
    if (!t->report) return;
    enum report_status status = report_receive(watch_fd(t->report), t->nonce, &t->reported);
    if (status == REPORT_NONE) return;
    t->status = status;
    watch_close(t->report);
    t->report = NULL;
}

static void finish(struct template *t) {
    struct err e = {0};
    struct render *r = t->current;
    t->current = NULL;
    take_output(t);
    take_report(t);
    bool clean =
        WIFEXITED(t->process.status) && WEXITSTATUS(t->process.status) == 0 && !t->process.lost;
    if (r && t->process.lost && r->tries++ == 0) {
        list_prepend(&t->waiting, &r->link);
        clear_run(t);
        /* Not at once: that R or its worker is gone is known only when all who hear of it have. */
        watch_timer_set(t->pump, 0);
        return;
    }
    bool ok = false;
    if (t->text.overflowed)
        err_set(&e, ERR_INPUT, "the chat template wrote more than %d bytes", RENDER_BYTES);
    else if (t->overdue ||
             (WIFSIGNALED(t->process.status) && t->status != REPORT_OK && !t->process.lost))
        err_set(&e, ERR_INPUT, "the chat template took more than its limit of %d s", RENDER_CPU_S);
    else if (t->status == REPORT_OK && t->reported.kind == WIRE_REFUSED)
        err_set(&e, ERR_INPUT, "%.480s", t->reported.text);
    else if (t->status == REPORT_OK && t->reported.kind == WIRE_PASSED && clean)
        ok = true;
    else
        err_set(&e, ERR_SYSTEM, "the process that renders the chat template failed");
    size_t len;
    char *text = buf_take(&t->text, &len);
    clear_run(t);
    watch_timer_set(t->pump, 0);
    if (r) answer(r, ok ? text : NULL, ok ? len : 0, ok ? NULL : &e);
    free(text);
}

static void on_output(void *arg) { take_output(arg); }
static void on_report(void *arg) { take_report(arg); }
static void on_ended(void *arg) { finish(arg); }

static void on_clock(void *arg) {
    struct template *t = arg;
    t->overdue = true;
    process_kill(&t->process);
}

static bool begin(struct template *t, struct render *r) {
    int output[2] = {-1, -1};
    struct wire_job job = {
        .address_space = pool_address_space(t->worker, RENDER_MEMORY_MB),
        .cpu_s = RENDER_CPU_S,
    };
    report_draw_nonce(t->nonce);
    memcpy(job.nonce, t->nonce, WIRE_NONCE);
    if (pipe2(output, O_CLOEXEC)) return false;
    bool ok = process_start(holder_forker(t->holder), &t->process, WIRE_RENDER, on_ended, t);
    if (ok) {
        t->running = true;
        t->current = r;
        /* Where the job can't be given the child sees its socket end and exits without a report. */
        int fds[] = {r->variables_fd, output[1]};
        if (!process_give(&t->process, &job, fds, 2)) process_kill(&t->process);
        t->output = watch_open(pool_watches(t->pool), output[0], on_output, t);
        t->report = watch_open(pool_watches(t->pool), t->process.job_fd, on_report, t);
        t->process.job_fd = -1;
        t->clock = watch_timer_open(pool_watches(t->pool), on_clock, t);
        watch_timer_set(t->clock, RENDER_WALL_S);
    } else {
        close(output[0]);
    }
    close(output[1]);
    return ok;
}

static void start_next(struct template *t) {
    if (t->running || list_empty(&t->waiting) || t->source_fd < 0) return;
    if (!t->holder) {
        want_worker(t);
        return;
    }
    if (holder_state(t->holder) != HOLDER_READY ||
        !process_forker_is_open(holder_forker(t->holder)))
        return; /* on_holder() goes on */
    struct render *r = LIST_ITEM(t->waiting.next, struct render, link);
    list_remove(&r->link);
    if (begin(t, r)) return;
    struct err e = {0};
    err_set(&e, ERR_SYSTEM, "the process that renders the chat template can't be started");
    answer(r, NULL, 0, &e);
}

/* ---- the worker and the compiled template ---- */

static void give_up(struct template *t, enum err_kind kind, const char *what) {
    struct err e = {0};
    err_set(&e, kind, "%s", what);
    tell_ready(t, &e);
    fail_all(t, &e);
}

static void on_holder(void *arg, enum holder_state state, const char *text) {
    struct template *t = arg;
    char message[512];
    if (state == HOLDER_READY) {
        t->losses = 0;
        tell_ready(t, NULL);
        watch_timer_set(t->pump, 0);
        return;
    }
    snprintf(message, sizeof message, "%.500s", text);
    holder_close(t->holder);
    t->holder = NULL;
    switch (state) {
    case HOLDER_REFUSED:
        snprintf(message, sizeof message, "the chat template doesn't compile: %.400s", text);
        give_up(t, ERR_INPUT, message);
        return;
    case HOLDER_SLOW:
        give_up(t, ERR_INPUT, "the chat template takes too long to compile");
        return;
    case HOLDER_MISSING:
        give_up(t, ERR_SYSTEM, message);
        return;
    case HOLDER_STARTING:
    case HOLDER_READY:
    case HOLDER_LOST:
        if (++t->losses < 3)
            want_worker(t);
        else
            give_up(t, ERR_SYSTEM, "the process that holds the chat template keeps ending");
        return;
    }
}

static void on_worker(void *arg, struct worker *w, const struct err *e) {
    struct template *t = arg;
    if (e) {
        if (++t->losses >= 3) give_up(t, e->kind, e->message);
        return;
    }
    t->worker = w;
    if (t->holder || t->source_fd < 0) return;
    struct holder_input input = {
        .kind = WIRE_TEMPLATE,
        .fd = t->source_fd,
        .address_space = pool_address_space(w, RENDER_MEMORY_MB + 256),
        .seconds = COMPILE_S,
    };
    t->holder = holder_open(pool_watches(t->pool), pool_forker(w), &input, on_holder, t);
    if (!t->holder)
        give_up(t, ERR_SYSTEM, "the process that holds the chat template can't be started");
}

static void on_worker_lost(void *arg) {
    struct template *t = arg;
    t->worker = NULL;
    holder_close(t->holder);
    t->holder = NULL;
    watch_timer_set(t->pump, 0);
}

static void want_worker(struct template *t) {
    pool_template_worker(t->pool, on_worker, on_worker_lost, t);
}

/* ---- the calls ---- */

static void on_pump(void *arg) {
    struct template *t = arg;
    struct err e = {0};
    if (t->source_fd < 0) {
        err_set(&e, ERR_SYSTEM, "no chat template is set");
        fail_all(t, &e);
        return;
    }
    if (!t->holder) want_worker(t);
    start_next(t);
}

struct template *template_open(struct pool *pool) {
    struct template *t = err_alloc(1, sizeof *t);
    *t = (struct template){.pool = pool, .source_fd = -1, .process = {.job_fd = -1, .pidfd = -1}};
    list_init(&t->waiting);
    buf_init(&t->text, RENDER_BYTES);
    t->pump = watch_timer_open(pool_watches(pool), on_pump, t);
    return t;
}

void template_close(struct template *t) {
    if (!t) return;
    LIST_EACH_SAFE(it, &t->waiting)
    free_render(LIST_ITEM(it, struct render, link));
    if (t->current) free_render(t->current);
    t->current = NULL;
    BUG_ON(t->running); /* the pool was closed before, which ended it */
    watch_timer_close(t->pump);
    holder_close(t->holder);
    if (t->source_fd >= 0) close(t->source_fd);
    buf_clear(&t->text);
    free(t);
}

bool template_set(struct template *t, const char *text, size_t len,
                  void (*ready)(void *arg, const struct err *), void *arg, struct err *e) {
    if (len > LIMIT_TEMPLATE_BYTES)
        return err_set(e, ERR_INPUT, "the chat template has %zu bytes; the limit is %d", len,
                       LIMIT_TEMPLATE_BYTES);
    if (t->ready) return err_set(e, ERR_BUSY, "another chat template is being compiled");
    int fd = payload_memfd("template", text, len, e);
    if (fd < 0) return false;
    if (t->source_fd >= 0) close(t->source_fd);
    t->source_fd = fd;
    t->ready = ready;
    t->ready_arg = arg;
    t->losses = 0;
    holder_close(t->holder);
    t->holder = NULL;
    watch_timer_set(t->pump, 0);
    return true;
}

uint64_t template_render(struct template *t, const char *variables, size_t len,
                         void (*done)(void *arg, const char *text, size_t len, const struct err *),
                         void *arg) {
    struct render *r = err_alloc(1, sizeof *r);
    *r = (struct render){.id = ++t->next_id, .done = done, .arg = arg};
    list_init(&r->link);
    r->variables_fd = payload_memfd("variables", variables, len, NULL);
    list_append(&t->waiting, &r->link);
    watch_timer_set(t->pump, 0);
    return r->id;
}

void template_cancel(struct template *t, uint64_t id) {
    if (t->current && t->current->id == id) {
        free_render(t->current);
        t->current = NULL;
        process_kill(&t->process);
        return;
    }
    LIST_EACH_SAFE(it, &t->waiting) {
        struct render *r = LIST_ITEM(it, struct render, link);
        if (r->id != id) continue;
        list_remove(&r->link);
        free_render(r);
    }
}
