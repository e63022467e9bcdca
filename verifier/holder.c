#include "verifier/holder.h"

#include "verifier/message.h"
#include "verifier/report.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

struct holder {
    enum holder_state state;
    struct process *process;   /* owned; NULL once it was taken */
    struct watch_set *set;     /* borrowed */
    struct forker *forker;     /* owned; NULL until READY, and where its process is to be taken */
    struct watch *report;      /* owned */
    struct watch_timer *timer; /* owned */
    int control;               /* owned until the forker has it */
    unsigned char nonce[WIRE_NONCE];
    bool lone; /* of a suite: it may serve itself where that leaves nothing behind */
    bool repeatable;
    bool closed; /* nobody listens: freed when the process has ended */
    void (*changed)(void *arg, enum holder_state, const char *text);
    void *arg; /* borrowed */
};

static void move(struct holder *h, enum holder_state to, const char *text) {
    if (h->closed || h->state == to || (h->state != HOLDER_STARTING && h->state != HOLDER_READY))
        return;
    BUG_ON(h->state == HOLDER_READY && to != HOLDER_LOST);
    h->state = to;
    watch_timer_stop(h->timer);
    h->changed(h->arg, to, text);
}

static void on_lost(void *arg) { move(arg, HOLDER_LOST, ""); }

static void on_report(void *arg) {
    struct holder *h = arg;
    struct report report;
    enum report_status status = report_receive(watch_fd(h->report), h->nonce, &report);
    if (status == REPORT_NONE) return;
    watch_close(h->report);
    h->report = NULL;
    bool over = h->lone && h->process->state == PROCESS_ENDED; /* it has nobody else */
    if (status != REPORT_OK || (over && report.kind == WIRE_PREPARED)) {
        move(h, HOLDER_LOST, "");
    } else if (report.kind == WIRE_PREPARED) {
        h->repeatable = report.again;
        h->lone = h->lone && h->repeatable;
        if (!h->lone) {
            h->forker = process_forker_open(h->set, h->control, NULL, on_lost, h);
            h->control = -1;
        }
        move(h, HOLDER_READY, report.text);
    } else {
        move(h, report.kind == WIRE_MISSING ? HOLDER_MISSING : HOLDER_REFUSED, report.text);
    }
}

static void on_slow(void *arg) {
    struct holder *h = arg;
    process_kill(h->process);
    move(h, HOLDER_SLOW, "");
}

static void destroy(struct holder *h) {
    process_forker_close(h->forker);
    watch_close(h->report);
    watch_timer_close(h->timer);
    if (h->control >= 0) close(h->control);
    process_free(h->process);
    free(h);
}

static void on_ended(void *arg) {
    struct holder *h = arg;
    if (h->closed)
        destroy(h);
    else if (!h->report) /* its last words may still be in the socket: then on_report() decides */
        move(h, HOLDER_LOST, "");
}

struct holder *holder_open(struct watch_set *set, struct forker *parent,
                           const struct holder_input *input,
                           void (*changed)(void *arg, enum holder_state, const char *text),
                           void *arg) {
    struct holder *h = err_alloc(1, sizeof *h);
    *h = (struct holder){
        .set = set,
        .control = -1,
        .lone = input->kind == WIRE_SUITE && !(input->flags & WIRE_FORKS),
        .changed = changed,
        .arg = arg,
    };
    h->process = process_new(parent, input->kind, on_ended, h);
    if (!h->process) {
        free(h);
        return NULL;
    }
    int pair[2] = {-1, -1};
    struct wire_job job = {.address_space = input->address_space, .flags = input->flags};
    report_draw_nonce(h->nonce);
    for (int i = 0; i < WIRE_NONCE; i++)
        job.nonce[i] = h->nonce[i];
    bool ok = message_pair(pair) && process_give(h->process, &job, (int[]){input->fd, pair[1]}, 2);
    if (pair[1] >= 0) close(pair[1]);
    h->control = pair[0];
    h->timer = watch_timer_open(set, on_slow, h);
    /* Its own copy: the socket stays the process's, which may have jobs to come. */
    int report = fcntl(h->process->job_fd, F_DUPFD_CLOEXEC, 0);
    if (report >= 0) h->report = watch_open(set, report, on_report, h);
    if (!ok || report < 0) {
        holder_close(h);
        return NULL;
    }
    watch_timer_set(h->timer, input->seconds);
    return h;
}

void holder_close(struct holder *h) {
    if (!h || h->closed) return;
    h->closed = true;
    if (h->process) process_kill(h->process);
    process_forker_close(h->forker);
    h->forker = NULL;
    watch_timer_close(h->timer);
    h->timer = NULL;
    watch_close(h->report);
    h->report = NULL;
    if (!h->process || h->process->state == PROCESS_ENDED) destroy(h);
}

bool holder_is_lone(const struct holder *h) { return h->state == HOLDER_READY && h->lone; }

struct process *holder_take(struct holder *h, void (*ended)(void *arg), void *arg) {
    struct process *p = h->process;
    BUG_ON(!holder_is_lone(h) || !p);
    h->process = NULL;
    process_time(p, &p->cpu_before_s, &p->starved_before_s); /* compiling is no job */
    process_adopt(p, ended, arg);
    return p;
}

enum holder_state holder_state(const struct holder *h) { return h->state; }
bool holder_is_repeatable(const struct holder *h) { return h->repeatable; }
struct forker *holder_forker(const struct holder *h) {
    return h->forker;
}
