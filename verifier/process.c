#include "verifier/process.h"

#include "verifier/message.h"
#include "verifier/procfs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NR_PIDFD_SEND_SIGNAL = 424, READY_TEXT = 4096 };

struct forker {
    struct watch *control; /* owned */
    struct list processes;
    uint32_t next_id;
    bool closing; /* process_forker_close() came while it was in a callback */
    bool busy;    /* in a callback */
    void (*ready)(void *arg, const char *text);
    void (*lost)(void *arg);
    void *arg; /* borrowed */
};

static void send_kill(struct process *p) {
    struct wire_fork ask = {.kind = WIRE_KILL, .id = p->id};
    if (p->pidfd >= 0)
        syscall(NR_PIDFD_SEND_SIGNAL, p->pidfd, SIGKILL, NULL, 0);
    else if (process_forker_is_open(p->forker))
        message_send(watch_fd(p->forker->control), &ask, sizeof ask, NULL, 0);
}

void process_kill(struct process *p) {
    if (p->state == PROCESS_NONE || p->state == PROCESS_ENDED) return;
    p->killed = true;
    if (p->state == PROCESS_STARTED)
        send_kill(p);
    else
        p->kill_pending = true;
}

static void move(struct process *p, enum process_state to) {
    BUG_ON(!(p->state == PROCESS_NONE && to == PROCESS_ASKED) &&
           !(p->state == PROCESS_ASKED && (to == PROCESS_STARTED || to == PROCESS_ENDED)) &&
           !(p->state == PROCESS_STARTED && to == PROCESS_ENDED));
    p->state = to;
}

static void end(struct process *p) {
    move(p, PROCESS_ENDED);
    list_remove(&p->link);
    p->ended(p->arg);
}

static struct process *find(struct forker *f, uint32_t id) {
    LIST_EACH(it, &f->processes) {
        struct process *p = LIST_ITEM(it, struct process, link);
        if (p->id == id) return p;
    }
    return NULL;
}

/* Its number in our own /proc, which the pidfd's description tells; 0: unknown. */
static pid_t number_of(struct process *p) {
    char path[64];
    uint64_t pid;
    if (p->pidfd < 0 || p->number) return p->number;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", p->pidfd);
    if (procfs_numbers(path, "Pid:", &pid, 1) == 1) p->number = (pid_t)pid;
    return p->number;
}

static void on_event(struct forker *f, const struct wire_event *event, const char *text, int *fd) {
    if (event->kind == WIRE_READY) {
        if (f->ready) f->ready(f->arg, text);
        return;
    }
    struct process *p = find(f, event->id);
    if (!p) return;
    if (event->kind == WIRE_STARTED && p->state == PROCESS_ASKED) {
        p->pidfd = *fd;
        *fd = -1;
        move(p, PROCESS_STARTED);
        if (p->kill_pending)
            send_kill(p);
        else
            number_of(p); /* here it is not yet waited for */
    } else if (event->kind == WIRE_EXITED) {
        p->status = event->status;
        p->cpu_s = (double)event->cpu_us * 1e-6;
        p->max_rss_mb = (int)(event->max_rss_kb / 1024);
        end(p);
    } else if (event->kind == WIRE_FAILED) {
        p->lost = true;
        end(p);
    }
}

static void lose_all(struct forker *f) {
    while (!list_empty(&f->processes)) {
        struct process *p = LIST_ITEM(f->processes.next, struct process, link);
        process_kill(p);
        p->lost = true;
        end(p);
    }
}

static void on_control(void *arg) {
    struct forker *f = arg;
    bool gone = false;
    f->busy = true;
    while (!f->closing && !gone) {
        char message[sizeof(struct wire_event) + READY_TEXT + 1];
        struct wire_event event;
        int fds[MESSAGE_FDS], n_fds;
        ssize_t n = message_receive(watch_fd(f->control), message, sizeof message - 1, fds, &n_fds);
        if (n < 0 && errno == EAGAIN) break;
        gone = n < (ssize_t)sizeof event;
        int fd = n_fds ? fds[0] : -1;
        for (int i = 1; i < n_fds; i++)
            close(fds[i]);
        if (!gone) {
            memcpy(&event, message, sizeof event);
            message[n] = 0;
            on_event(f, &event, message + sizeof event, &fd);
        }
        if (fd >= 0) close(fd);
    }
    if (gone && !f->closing) {
        watch_close(f->control);
        f->control = NULL;
        lose_all(f);
        if (!f->closing) f->lost(f->arg);
    }
    f->busy = false;
    if (f->closing) process_forker_close(f); /* it was asked for in between */
}

struct forker *process_forker_open(struct watch_set *set, int control_fd,
                                   void (*ready)(void *arg, const char *text),
                                   void (*lost)(void *arg), void *arg) {
    struct forker *f = err_alloc(1, sizeof *f);
    *f = (struct forker){.ready = ready, .lost = lost, .arg = arg};
    list_init(&f->processes);
    f->control = watch_open(set, control_fd, on_control, f);
    return f;
}

void process_forker_close(struct forker *f) {
    if (!f) return;
    f->closing = true;
    if (f->busy) return; /* on_control() comes back here */
    f->busy = true;
    lose_all(f);
    watch_close(f->control);
    free(f);
}

bool process_forker_is_open(const struct forker *f) { return f && f->control && !f->closing; }

bool process_start(struct forker *f, struct process *p, enum wire_kind kind,
                   void (*ended)(void *arg), void *arg) {
    int pair[2];
    *p = (struct process){.job_fd = -1, .pidfd = -1, .ended = ended, .arg = arg};
    list_init(&p->link);
    if (!process_forker_is_open(f) || !message_pair(pair)) return false;
    struct wire_fork ask = {.kind = kind, .id = ++f->next_id};
    bool sent = message_send(watch_fd(f->control), &ask, sizeof ask, &pair[1], 1);
    close(pair[1]);
    if (!sent) {
        close(pair[0]);
        return false;
    }
    p->id = ask.id;
    p->forker = f;
    p->job_fd = pair[0];
    move(p, PROCESS_ASKED);
    list_append(&f->processes, &p->link);
    return true;
}

bool process_give(struct process *p, const struct wire_job *job, const int *fds, int n_fds) {
    return message_send(p->job_fd, job, sizeof *job, fds, n_fds);
}

static double cpu_seconds(pid_t pid) {
    clockid_t clock;
    struct timespec used;
    if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &used)) return 0;
    return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

void process_time(struct process *p, double *cpu_s, double *starved_s) {
    char path[64];
    uint64_t times_ns[2]; /* on a core; ready, waiting for one */
    *cpu_s = *starved_s = 0;
    pid_t pid = number_of(p);
    if (!pid) return;
    *cpu_s = cpu_seconds(pid);
    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)pid);
    if (procfs_numbers(path, NULL, times_ns, 2) == 2) *starved_s = (double)times_ns[1] * 1e-9;
}

void process_use(struct process *p) {
    char path[64];
    uint64_t kb;
    pid_t pid = number_of(p);
    if (!pid) return;
    p->cpu_s = cpu_seconds(pid);
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    if (procfs_numbers(path, "VmHWM:", &kb, 1) == 1) p->max_rss_mb = (int)(kb / 1024);
}

void process_clear(struct process *p) {
    BUG_ON(p->state == PROCESS_ASKED || p->state == PROCESS_STARTED);
    if (p->state == PROCESS_NONE) return;
    if (p->job_fd >= 0) close(p->job_fd);
    if (p->pidfd >= 0) close(p->pidfd);
    *p = (struct process){.job_fd = -1, .pidfd = -1};
}

struct process *process_new(struct forker *f, enum wire_kind kind, void (*ended)(void *arg),
                            void *arg) {
    struct process *p = err_alloc(1, sizeof *p);
    if (process_start(f, p, kind, ended, arg)) return p;
    free(p);
    return NULL;
}

void process_adopt(struct process *p, void (*ended)(void *arg), void *arg) {
    BUG_ON(p->state != PROCESS_ASKED && p->state != PROCESS_STARTED);
    p->ended = ended;
    p->arg = arg;
}

void process_free(struct process *p) {
    if (!p) return;
    process_clear(p);
    free(p);
}

static void on_abandoned_ended(void *arg) { process_free(arg); }

void process_abandon(struct process *p) {
    if (!p) return;
    if (p->state == PROCESS_ENDED) {
        process_free(p);
        return;
    }
    process_adopt(p, on_abandoned_ended, p);
    process_kill(p);
}
