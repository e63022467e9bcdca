#include "verifier/keeper.h"

#include "verifier/message.h"
#include "verifier/procfs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MAX_WORKERS = 512,
    NR_CLOSE_RANGE = 436,
    FD_SOCKET = 3,
    FD_PAYLOAD = 4,
    FD_MODULE = 5,
    FIRST_FREE = 6
};

struct keeper {
    struct box_plan plan;
    pid_t workers[MAX_WORKERS];
    int n_slots; /* all that there ever were are below */
    int n_workers;
};

static void on_child(int signal_number) { (void)signal_number; }

static bool is_worker(const struct keeper *k, pid_t pid) {
    for (int i = 0; i < k->n_workers; i++)
        if (k->workers[i] == pid) return true;
    return false;
}

/* Kills what a dead worker left: children of ours by adoption that are no workers. */
static void kill_orphans(const struct keeper *k) {
    char path[64];
    uint64_t pids[MAX_WORKERS];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    /* No /proc: their death signal and the supervisor's pidfds must do. */
    int n = procfs_numbers(path, NULL, pids, MAX_WORKERS);
    for (int i = 0; i < n; i++)
        if (pids[i] > 1 && !is_worker(k, (pid_t)pids[i])) kill((pid_t)pids[i], SIGKILL);
}

static void reap(struct keeper *k) {
    bool died = false;
    for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
        for (int i = 0; i < k->n_workers; i++)
            if (k->workers[i] == pid) {
                k->workers[i] = k->workers[--k->n_workers];
                died = true;
                break;
            }
    if (died) kill_orphans(k);
}

static void spawn(struct keeper *k, const struct keeper_ask *ask) {
    struct keeper_answer answer = {.slot = ask->slot};
    struct box_process made = box_no_process;
    bool ok = k->n_workers < MAX_WORKERS &&
              box_spawn(&k->plan, ask->slot, ask->flavour, &made, &answer.failure);
    int fds[KEEPER_FDS] = {made.control, made.pidfd, made.errors_fd, made.uid_fd};
    if (ok) {
        k->workers[k->n_workers++] = made.pid;
        if (ask->slot >= k->n_slots) k->n_slots = ask->slot + 1;
        answer.pid = made.pid;
    } else if (!answer.failure.layer[0]) {
        snprintf(answer.failure.layer, sizeof answer.failure.layer, "keeper");
        answer.failure.error = EAGAIN;
    }
    if (!message_send(FD_SOCKET, &answer, sizeof answer, fds,
                      !ok               ? 0
                      : made.uid_fd < 0 ? KEEPER_UID
                                        : KEEPER_FDS)) {
        if (ok) kill(made.pid, SIGKILL);
    }
    box_process_clear(&made);
}

static _Noreturn void run(struct keeper *k) {
    sigset_t blocked, waiting;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    sigprocmask(SIG_BLOCK, &blocked, &waiting);
    sigdelset(&waiting, SIGCHLD);
    struct sigaction action = {.sa_handler = on_child};
    sigaction(SIGCHLD, &action, NULL);
    for (;;) {
        reap(k);
        struct pollfd polled = {.fd = FD_SOCKET, .events = POLLIN};
        if (ppoll(&polled, 1, NULL, &waiting) < 0) continue;
        struct keeper_ask ask;
        int fds[MESSAGE_FDS], n_fds;
        ssize_t n = message_receive(FD_SOCKET, &ask, sizeof ask, fds, &n_fds);
        if (n != (ssize_t)sizeof ask) break;
        ask.flavour[sizeof ask.flavour - 1] = 0;
        spawn(k, &ask);
    }
    for (int i = 0; i < k->n_workers; i++)
        kill(k->workers[i], SIGKILL);
    for (int i = 0; i < 1000; i++) {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            continue;
        k->n_workers = 0;
        kill_orphans(k);
        if (waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD) break;
        poll(NULL, 0, 1);
    }
    for (int slot = 0; k->plan.cgroup && slot < k->n_slots; slot++)
        cgroup_remove(k->plan.cgroup, slot);
    _exit(0);
}

/* The keeper needs its socket and the two memfds; nothing else of the server must live on in it. */
static bool lay_out(const struct box_plan *plan, int socket) {
    int wanted[3] = {socket, plan->payload_fd, plan->module_fd};
    for (int i = 0; i < 3; i++)
        if ((wanted[i] = fcntl(wanted[i], F_DUPFD_CLOEXEC, 32)) < 0) return false;
    for (int i = 0; i < 3; i++)
        if (dup3(wanted[i], FD_SOCKET + i, O_CLOEXEC) < 0) return false;
    if (!syscall(NR_CLOSE_RANGE, FIRST_FREE, ~0U, 0)) return true;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files)) return false;
    for (int fd = FIRST_FREE; fd < (int)files.rlim_cur; fd++)
        close(fd);
    return true;
}

bool keeper_start(const struct box_plan *plan, int *fd, pid_t *pid, struct err *e) {
    int pair[2];
    if (!message_pair(pair)) return err_errno(e, errno, "no socket for the keeper of the workers");
    pid_t parent = getpid();
    *pid = fork();
    if (*pid == 0) {
        /* Its own session: the terminal's Ctrl-C is for the server, which ends the keeper itself.
         */
        setsid();
        prctl(PR_SET_NAME, "firstpass-keep");
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent ||
            prctl(PR_SET_CHILD_SUBREAPER, 1) || !lay_out(plan, pair[1]))
            _exit(1);
        signal(SIGPIPE, SIG_IGN);
        signal(SIGTERM, SIG_DFL);
        signal(SIGINT, SIG_DFL);
        struct keeper *k = calloc(1, sizeof *k);
        if (!k) _exit(1);
        k->plan = *plan;
        k->plan.payload_fd = FD_PAYLOAD;
        k->plan.module_fd = FD_MODULE;
        run(k);
    }
    int error = errno;
    close(pair[1]);
    if (*pid < 0) {
        close(pair[0]);
        return err_errno(e, error, "the keeper of the workers can't be forked");
    }
    *fd = pair[0];
    return true;
}
