#include "verifier/pool.h"

#include "base/clock.h"
#include "base/log.h"
#include "verifier/keeper.h"
#include "verifier/message.h"
#include "verifier/probe.h"
#include "verifier/procfs.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ALONE_PATIENCE_S = 10,  /* then a task that wants to be alone is one like others */
    SUSPECT_MS = 100,       /* a worker that still lives so long after a loss takes work again */
    START_S = 60,           /* a worker that isn't ready by then is given up */
    BASE_BYTES = 128 << 20, /* address space of an idle worker where /proc doesn't tell */
    FLAVOUR_MB = 1024,      /* for loading a package */
    SPARE_BYTES = 32 << 20, /* for the harness's own needs beyond the candidate's memory */
};

/* What a turn may be late so that tests needn't be compiled in one more worker. */
static const double HOME_S = 0.1;
enum { NR_PIDFD_SEND_SIGNAL = 424 };

enum worker_state { WORKER_DOWN, WORKER_ASKED, WORKER_STARTING, WORKER_READY };

struct worker {
    struct pool *pool; /* borrowed */
    int slot;
    enum worker_state state;
    struct box_process process; /* owned once STARTING; control is the forker's */
    struct forker *forker;      /* owned */
    struct process *spare;      /* owned: a child that waits for its job; NULL: none */
    struct flavour_set flavours;
    struct watch_timer *timer; /* owned: start-up, or the wait before the next try */
    struct task *task;         /* borrowed; what runs */
    uint64_t base_bytes;
    struct list suites;
    int failures; /* starts in a row that came to nothing */
    bool suspect; /* READY, but a task was lost on it a moment ago */
};

struct template_listener {
    void (*ready)(void *arg, struct worker *, const struct err *);
    void (*lost)(void *arg);
    void *arg; /* borrowed */
};

struct pool {
    struct probe probe;
    struct watch_set watches;
    int keeper_fd; /* owned until attached */
    pid_t keeper_pid;
    struct watch *keeper;   /* owned once attached */
    struct worker *workers; /* owned; the last one is the template's */
    int n_workers;          /* without the template's */
    struct list queue;
    int n_queued;
    struct watch_timer *pump; /* owned once attached: hands out tasks, never from within a call */
    bool closing;
    struct template_listener listener;
    uint64_t replaced;
};

static void move(struct worker *w, enum worker_state to) {
    static const bool legal[4][4] = {
        [WORKER_DOWN] = {[WORKER_ASKED] = true},
        [WORKER_ASKED] = {[WORKER_STARTING] = true, [WORKER_DOWN] = true},
        [WORKER_STARTING] = {[WORKER_READY] = true, [WORKER_DOWN] = true},
        [WORKER_READY] = {[WORKER_DOWN] = true},
    };
    BUG_ON(!legal[w->state][to]);
    w->state = to;
}

static void kill_process(struct worker *w) {
    if (w->process.pidfd >= 0) syscall(NR_PIDFD_SEND_SIGNAL, w->process.pidfd, SIGKILL, NULL, 0);
}

static bool is_template(const struct worker *w) { return w->slot == w->pool->n_workers; }

/* ---- tasks ---- */

static double used(const struct task *task) { return task->share ? task->share->used_s : 0; }

static bool is_at_home(struct task *task, const struct worker *w) {
    return !task->is_at_home || task->is_at_home(task, w);
}

static bool is_idle(const struct worker *w) {
    return w->state == WORKER_READY && !w->suspect && !w->task && process_forker_is_open(w->forker);
}

/* Where it is at home is free, or soon. */
static bool would_rather_wait(struct task *task, const struct worker *w) {
    if (is_at_home(task, w)) return false;
    for (int i = 0; i < w->pool->n_workers; i++) {
        const struct worker *other = &w->pool->workers[i];
        bool soon = is_idle(other) || (other->task && other->task->leaving);
        if (soon && is_at_home(task, other)) return true;
    }
    return false;
}

static bool goes_before(struct task *a, struct task *b, const struct worker *w) {
    if (a->urgent != b->urgent) return a->urgent;
    if (a->alone != b->alone) return b->alone;
    if (a->priority != b->priority) return a->priority < b->priority;
    return used(a) - (is_at_home(a, w) ? HOME_S : 0) < used(b) - (is_at_home(b, w) ? HOME_S : 0);
}

/* Marks that they have company: that of each other. */
static int count_running(struct pool *p, bool mark) {
    int n = 0;
    for (int i = 0; i < p->n_workers; i++)
        if (p->workers[i].task && !p->workers[i].task->leaving) {
            n++;
            if (mark) p->workers[i].task->had_company = true;
        }
    return n;
}

/* The task whose turn it is in this worker, or NULL. */
static struct task *next_task(struct pool *p, const struct worker *w) {
    struct task *next = NULL;
    LIST_EACH(it, &p->queue) {
        struct task *task = LIST_ITEM(it, struct task, link);
        if ((!next || goes_before(task, next, w)) && !would_rather_wait(task, w)) next = task;
    }
    bool may_begin = !next || !next->alone || !count_running(p, false) ||
                     clock_seconds() - next->since > ALONE_PATIENCE_S;
    return may_begin ? next : NULL;
}

static void dispatch(struct pool *p) {
    if (!p->closing) watch_timer_set(p->pump, 0);
}

/* Who was away has saved up nothing: it begins with what the least served of the others has. */
static void join(struct pool *p, struct pool_share *share) {
    double least = -1;
    for (int i = 0; i < p->n_workers; i++) {
        const struct task *task = p->workers[i].task;
        if (task && task->share && task->share != share && (least < 0 || used(task) < least))
            least = used(task);
    }
    LIST_EACH(it, &p->queue) {
        const struct task *task = LIST_ITEM(it, struct task, link);
        if (task->share && task->share != share && (least < 0 || used(task) < least))
            least = used(task);
    }
    if (share->used_s < least) share->used_s = least;
}

static void leave(struct task *task) {
    if (task->share) task->share->n_tasks--;
}

void pool_disown(struct task *task) {
    if (task->worker || !list_empty(&task->link)) leave(task);
    task->share = NULL;
}

void pool_submit(struct pool *p, struct task *task) {
    list_append(&p->queue, &task->link);
    task->worker = NULL;
    task->leaving = false;
    task->since = clock_seconds();
    if (task->share && task->share->n_tasks++ == 0) join(p, task->share);
    p->n_queued++;
    dispatch(p);
}

void pool_withdraw(struct pool *p, struct task *task) {
    BUG_ON(task->worker);
    list_remove(&task->link);
    p->n_queued--;
    leave(task);
}

static void settle(struct task *task) {
    if (task->share) task->share->used_s += clock_seconds() - task->since;
    leave(task);
    task->share = NULL;
}

void pool_leave(struct pool *p, struct task *task) {
    settle(task);
    task->leaving = true;
    dispatch(p);
}

void pool_done(struct pool *p, struct task *task) {
    struct worker *w = task->worker;
    BUG_ON(!w || w->task != task);
    struct pool_share *share = task->share; /* it may be submitted again */
    settle(task);
    task->share = share;
    w->task = NULL;
    task->worker = NULL;
    dispatch(p);
}

void pool_lost(struct pool *p, struct task *task) {
    struct worker *w = task->worker;
    BUG_ON(!w);
    if (w->state == WORKER_READY) {
        w->suspect = true;
        watch_timer_set(w->timer, SUSPECT_MS / 1e3);
    }
    pool_done(p, task);
}

/* ---- the child forked ahead ---- */

static void on_spare_ended(void *arg) {
    struct worker *w = arg;
    struct process *ended = w->spare;
    w->spare = NULL;
    process_free(ended);
}

static void drop_spare(struct worker *w) {
    process_abandon(w->spare);
    w->spare = NULL;
}

/* At once where tasks wait; else it would only take time from the one that runs. */
static void fork_ahead(struct worker *w) {
    const struct pool *p = w->pool;
    bool busy = w->task && !w->task->leaving;
    if (w->spare || w->state != WORKER_READY || is_template(w) || (busy && !p->n_queued)) return;
    enum wire_kind kind = p->n_queued ? WIRE_CANDIDATE_SOON : WIRE_CANDIDATE;
    w->spare = process_new(w->forker, kind, on_spare_ended, w);
}

struct process *pool_candidate(struct worker *w, enum flavour flavour, void (*ended)(void *arg),
                               void *arg) {
    struct forker *flavoured = flavour_forker(&w->flavours, &w->pool->watches, w->forker, flavour,
                                              pool_address_space(w, FLAVOUR_MB));
    if (flavoured) return process_new(flavoured, WIRE_CANDIDATE, ended, arg);
    struct process *p = w->spare;
    w->spare = NULL;
    if (p)
        process_adopt(p, ended, arg);
    else
        p = process_new(w->forker, WIRE_CANDIDATE, ended, arg);
    fork_ahead(w);
    return p;
}

/* ---- handing out ---- */

/* A task that can't even begin ends within its own begin(), and with its last try its owner hears:
 * from the loop alone, so that nobody is told of what pool_submit() has not yet returned from, and
 * that a queue full of such tasks does not nest. */
static void hand_to(struct worker *w, struct task *task) {
    struct pool *p = w->pool;
    list_remove(&task->link);
    p->n_queued--;
    task->had_company = count_running(p, true) > 0;
    w->task = task;
    task->worker = w;
    task->since = clock_seconds();
    task->begin(task, w);
}

/* Again until nothing changes: what one worker has taken others wait for no more. */
static void hand_out(void *arg) {
    struct pool *p = arg;
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < p->n_workers && !list_empty(&p->queue) && !p->closing; i++) {
            struct worker *w = &p->workers[i];
            struct task *task = is_idle(w) ? next_task(p, w) : NULL;
            if (!task) continue;
            hand_to(w, task);
            any = true;
        }
    }
    for (int i = 0; i < p->n_workers && !p->closing; i++)
        fork_ahead(&p->workers[i]);
}

/* ---- workers ---- */

static void ask_for(struct worker *w) {
    struct pool *p = w->pool;
    struct keeper_ask ask = {.slot = w->slot};
    snprintf(ask.flavour, sizeof ask.flavour, "%s", is_template(w) ? "template" : "standard");
    int fd = p->keeper ? watch_fd(p->keeper) : p->keeper_fd;
    if (fd < 0 || !message_send(fd, &ask, sizeof ask, NULL, 0)) return;
    move(w, WORKER_ASKED);
}

static void on_timer(void *arg) {
    struct worker *w = arg;
    if (w->state == WORKER_DOWN)
        ask_for(w);
    else if (w->state == WORKER_STARTING)
        kill_process(w);
    else if (w->state == WORKER_READY) {
        w->suspect = false;
        dispatch(w->pool);
    }
}

/* Back to DOWN, and up again: at once after a worker that had worked, later and later after failed
 * starts. */
static void restart(struct worker *w) {
    move(w, WORKER_DOWN);
    w->suspect = false;
    if (w->pool->closing) return;
    double wait = w->failures ? 0.1 * (double)(1 << (w->failures > 7 ? 7 : w->failures)) : 0;
    watch_timer_set(w->timer, wait);
}

static void tell_template(struct pool *p, struct worker *w, const struct err *e) {
    if (p->listener.ready) p->listener.ready(p->listener.arg, w, e);
}

static void start_failed(struct worker *w, const char *why) {
    log_line(LOG_ERROR, "verifier: worker %d did not start: %s", w->slot, why);
    w->failures++;
    struct err e = {0};
    err_set(&e, ERR_SYSTEM, "a sandbox worker did not start: %s", why);
    restart(w);
    if (is_template(w)) tell_template(w->pool, NULL, &e);
}

static void on_worker_lost(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    char words[200];
    box_last_words(w->process.errors_fd, words, sizeof words);
    bool was_ready = w->state == WORKER_READY;
    drop_spare(w);
    flavour_clear(&w->flavours);
    process_forker_close(w->forker);
    w->forker = NULL;
    kill_process(w);
    w->base_bytes = 0;
    box_process_clear(&w->process);
    if (!was_ready) {
        start_failed(w, words[0] ? words : "it ended without a word");
        return;
    }
    log_line(LOG_WARN, "verifier: worker %d died%s%s; it is replaced", w->slot,
             words[0] ? ": " : "", words);
    p->replaced++;
    if (is_template(w) && p->listener.lost) p->listener.lost(p->listener.arg);
    restart(w);
}

static void on_worker_ready(void *arg, const char *text) {
    struct worker *w = arg;
    const char *wrong = probe_check_ready(&w->pool->probe.plan, text);
    if (wrong || w->state != WORKER_STARTING) {
        log_line(LOG_ERROR, "verifier: worker %d is not fit for work: %s", w->slot,
                 wrong ? wrong : "");
        kill_process(w);
        return;
    }
    w->failures = 0;
    watch_timer_stop(w->timer);
    move(w, WORKER_READY);
    if (is_template(w)) {
        tell_template(w->pool, w, NULL);
    } else {
        fork_ahead(w);
        dispatch(w->pool);
    }
}

static uint64_t address_space(pid_t pid) {
    char path[64];
    uint64_t pages;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    if (procfs_numbers(path, NULL, &pages, 1) != 1) return BASE_BYTES;
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void close_all(const int *fds, int n) {
    for (int i = 0; i < n; i++)
        close(fds[i]);
}

/* Takes the descriptors over, of which there are none where no process was made. */
static void take_answer(struct pool *p, const struct keeper_answer *answer, const int *fds,
                        int n_fds) {
    bool known = answer->slot >= 0 && answer->slot <= p->n_workers;
    struct worker *w = known ? &p->workers[answer->slot] : NULL;
    if (!w || w->state != WORKER_ASKED) {
        close_all(fds, n_fds);
        return;
    }
    if (!answer->pid) {
        struct err e = {0};
        err_errno(&e, answer->failure.error, "layer '%s': %s", answer->failure.layer,
                  answer->failure.detail);
        start_failed(w, e.message);
        return;
    }
    w->process = (struct box_process){
        .pid = answer->pid,
        .pidfd = fds[KEEPER_PIDFD],
        .control = -1,
        .errors_fd = fds[KEEPER_ERRORS],
        .uid_fd = n_fds == KEEPER_FDS ? fds[KEEPER_UID] : -1,
    };
    move(w, WORKER_STARTING);
    w->forker =
        process_forker_open(&p->watches, fds[KEEPER_CONTROL], on_worker_ready, on_worker_lost, w);
    watch_timer_set(w->timer, START_S);
}

static void on_keeper(void *arg) {
    struct pool *p = arg;
    for (;;) {
        struct keeper_answer answer;
        int fds[MESSAGE_FDS], n_fds;
        ssize_t n = message_receive(watch_fd(p->keeper), &answer, sizeof answer, fds, &n_fds);
        if (n < 0 && errno == EAGAIN) return;
        if (n == (ssize_t)sizeof answer && (answer.pid ? n_fds >= KEEPER_UID : n_fds == 0)) {
            take_answer(p, &answer, fds, n_fds);
            continue;
        }
        close_all(fds, n_fds);
        log_line(LOG_ERROR, "verifier: the keeper of the workers is gone; dead workers stay dead");
        watch_close(p->keeper);
        p->keeper = NULL;
        return;
    }
}

/* ---- life ---- */

static int count_cores(void) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (sched_getaffinity(0, sizeof cores, &cores)) return 1;
    return CPU_COUNT(&cores);
}

struct pool *pool_open(const struct verifier_options *options, struct err *e) {
    struct pool *p = err_alloc(1, sizeof *p);
    p->keeper_fd = -1;
    list_init(&p->queue);
    if (!probe_run(&p->probe, options, e)) {
        free(p);
        return NULL;
    }
    int cores = count_cores();
    p->n_workers = options->workers > 0 ? options->workers : cores;
    /* With fewer workers another process may sit on a core while others are idle. */
    p->probe.plan.own_core = p->n_workers == cores;
    p->workers = err_alloc((size_t)p->n_workers + 1, sizeof *p->workers);
    for (int i = 0; i <= p->n_workers; i++)
        p->workers[i] = (struct worker){
            .pool = p,
            .slot = i,
            .process = box_no_process,
        };
    for (int i = 0; i <= p->n_workers; i++)
        list_init(&p->workers[i].suites);
    if (!keeper_start(&p->probe.plan, &p->keeper_fd, &p->keeper_pid, e)) {
        pool_free(p);
        return NULL;
    }
    for (int i = 0; i < p->n_workers; i++)
        ask_for(&p->workers[i]);
    return p;
}

bool pool_attach(struct pool *p, uv_loop_t *loop, struct err *e) {
    if (p->keeper_fd < 0) return err_set(e, ERR_SYSTEM, "the verifier is attached already");
    p->watches.loop = loop;
    for (int i = 0; i <= p->n_workers; i++)
        p->workers[i].timer = watch_timer_open(&p->watches, on_timer, &p->workers[i]);
    p->pump = watch_timer_open(&p->watches, hand_out, p);
    p->keeper = watch_open(&p->watches, p->keeper_fd, on_keeper, p);
    p->keeper_fd = -1;
    return true;
}

void pool_close(struct pool *p) {
    p->closing = true;
    watch_close(p->keeper);
    p->keeper = NULL;
    watch_timer_close(p->pump);
    p->pump = NULL;
    for (int i = 0; i <= p->n_workers; i++) {
        struct worker *w = &p->workers[i];
        drop_spare(w);
        flavour_clear(&w->flavours);
        process_forker_close(w->forker);
        w->forker = NULL;
        kill_process(w);
        box_process_clear(&w->process);
        watch_timer_close(w->timer);
        w->timer = NULL;
    }
}

void pool_free(struct pool *p) {
    if (!p) return;
    if (p->keeper_fd >= 0) close(p->keeper_fd);
    if (p->keeper_pid > 0)
        while (waitpid(p->keeper_pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    probe_clear(&p->probe);
    free(p->workers);
    free(p);
}

const struct verifier_report *pool_report(const struct pool *p) { return &p->probe.report; }
struct watch_set *pool_watches(struct pool *p) {
    return &p->watches;
}
int pool_slots(const struct pool *p) { return p->n_workers + 1; }

void pool_counts(const struct pool *p, struct pool_counts *out) {
    *out = (struct pool_counts){.queued = p->n_queued, .replaced = p->replaced};
    for (int i = 0; i < p->n_workers; i++) {
        out->running += p->workers[i].task && !p->workers[i].task->leaving;
        out->workers += p->workers[i].state == WORKER_READY;
    }
}

int pool_slot(const struct worker *w) { return w->slot; }
struct list *pool_suites(struct worker *w) {
    return &w->suites;
}
struct forker *pool_forker(const struct worker *w) {
    return w->forker;
}

uint64_t pool_address_space(struct worker *w, int memory_mb) {
    /* Read once it is up: what it maps while it loads is part of every child. */
    if (!w->base_bytes) w->base_bytes = address_space(w->process.pid);
    return w->base_bytes + SPARE_BYTES + ((uint64_t)memory_mb << 20);
}

void pool_template_worker(struct pool *p,
                          void (*ready)(void *arg, struct worker *, const struct err *),
                          void (*lost)(void *arg), void *arg) {
    struct worker *w = &p->workers[p->n_workers];
    p->listener = (struct template_listener){ready, lost, arg};
    /* Where it has just died it comes back by itself, and the listener hears of it then. */
    if (w->state == WORKER_READY && process_forker_is_open(w->forker))
        ready(arg, w, NULL);
    else if (w->state == WORKER_DOWN)
        watch_timer_set(w->timer, 0);
}
