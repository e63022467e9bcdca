#include "verifier/probe.h"

#include "base/clock.h"
#include "base/log.h"
#include "verifier/landlock.h"
#include "verifier/message.h"
#include "verifier/payload.h"
#include "verifier/seccomp.h"
#include "verifier/wire.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- one attempt ---- */

const char *probe_check_ready(const struct box_plan *plan, const char *text) {
    if (text[0] != '=') return text[0] ? text : "its self-test said nothing";
    char *end;
    long bits = strtol(text + 1, &end, 10);
    if (*end) return "its self-test said nothing readable";
    if (!plan->filter) bits &= SELFTEST_THREAD;
    if (!plan->landlock_abi && !plan->namespaces)
        bits &= ~(long)(SELFTEST_FILE | SELFTEST_SERVER_FILE);
    if (bits & SELFTEST_FILE) return "self-test: /etc/passwd could be read";
    if (bits & SELFTEST_SOCKET) return "self-test: a socket could be made";
    if (bits & SELFTEST_FORK) return "self-test: a process could be forked";
    if (bits & SELFTEST_KILL) return "self-test: the worker could be sent signals";
    if (bits & SELFTEST_PRLIMIT) return "self-test: the worker's limits could be reached";
    if (bits & SELFTEST_OWNER) return "self-test: F_SETOWN was possible";
    if (bits & SELFTEST_EXEC) return "self-test: execve was possible";
    if (bits & SELFTEST_CHANGE) return "self-test: files could be truncated or their times set";
    if (bits & SELFTEST_SERVER_FILE) return "self-test: the fork server could read /etc/passwd";
    if (bits & SELFTEST_SERVER_CALL)
        return "self-test: the fork server could make a socket or run a program";
    if (bits & SELFTEST_THREAD) return "self-test: a thread could not be made";
    return NULL;
}

static bool failed(struct box_failure *failure, const char *layer, int error, const char *detail) {
    *failure = (struct box_failure){.error = error};
    snprintf(failure->layer, sizeof failure->layer, "%s", layer);
    snprintf(failure->detail, sizeof failure->detail, "%.95s", detail);
    return false;
}

/* Waits for the worker's READY and judges it. */
static bool hear_ready(const struct box_plan *plan, const struct box_process *process,
                       struct box_failure *failure) {
    char message[sizeof(struct wire_event) + 4096 + 1];
    struct pollfd polled = {.fd = process->control, .events = POLLIN};
    double until = clock_seconds() + PROBE_READY_S;
    int n_ready;
    do
        n_ready = poll(&polled, 1, (int)((until - clock_seconds()) * 1000));
    while (n_ready < 0 && errno == EINTR && clock_seconds() < until);
    int fds[MESSAGE_FDS], n_fds;
    ssize_t n = n_ready <= 0
                    ? -1
                    : message_receive(process->control, message, sizeof message - 1, fds, &n_fds);
    if (n < (ssize_t)sizeof(struct wire_event)) {
        char words[96];
        box_last_words(process->errors_fd, words, sizeof words);
        return failed(failure, "interpreter", 0, words[0] ? words : "it ended without a word");
    }
    message[n] = 0;
    const char *wrong = probe_check_ready(plan, message + sizeof(struct wire_event));
    if (!wrong) return true;
    const char *layer = strncmp(wrong, "landlock", 8) == 0  ? "landlock"
                        : strncmp(wrong, "seccomp", 7) == 0 ? "seccomp"
                                                            : "self-test";
    return failed(failure, layer, 0, wrong);
}

static bool attempt(struct box_plan *plan, struct box_failure *failure, struct err *e) {
    struct box_process process;
    if (!payload_make(plan, e)) return failed(failure, "payload", 0, e->message);
    bool spawned = box_spawn(plan, 0, "standard", &process, failure);
    bool ok = spawned && hear_ready(plan, &process, failure);
    if (spawned) {
        kill(process.pid, SIGKILL);
        while (waitpid(process.pid, NULL, 0) < 0 && errno == EINTR)
            continue;
        box_process_clear(&process);
    }
    if (!ok) {
        if (plan->payload_fd >= 0) close(plan->payload_fd);
        if (plan->module_fd >= 0) close(plan->module_fd);
        plan->payload_fd = plan->module_fd = -1;
    }
    return ok;
}

/* ---- the ladder ---- */

struct ladder {
    struct box_plan wish;       /* at the level under trial */
    struct box_failure failure; /* the first one met: why it is not the highest level */
    struct box_failure last;
    bool uid_failed;
    int uid_error;
};

static void describe_level(struct box_plan *plan, int level, int abi, bool root, unsigned without) {
    plan->namespaces = level >= 3 && !(without & VERIFIER_WITHOUT_NAMESPACES);
    plan->user_namespace = plan->namespaces && !root;
    plan->own_uid = root && level >= 1;
    plan->filter = level >= 1 && !(without & VERIFIER_WITHOUT_SECCOMP);
    plan->landlock_abi = level >= 2 ? abi : 0;
    plan->limits = !(without & VERIFIER_WITHOUT_LIMITS);
    /* Without Landlock a tree of its own still keeps files away, but not what the ladder's top
     * promises. */
    plan->level = !plan->filter                            ? 0
                  : plan->namespaces && plan->landlock_abi ? 3
                  : plan->namespaces || plan->landlock_abi ? 2
                                                           : 1;
}

static bool climb(struct ladder *l, const struct verifier_options *options, int abi,
                  struct err *e) {
    bool root = geteuid() == 0 && !(options->without & VERIFIER_WITHOUT_UID);
    for (int level = options->max_level; level >= 0; level--) {
        if (level == 2 && !abi) continue;
        for (int own_uid = root; own_uid >= 0; own_uid--) {
            describe_level(&l->wish, level, abi, own_uid, options->without);
            if (attempt(&l->wish, &l->last, e)) return true;
            if (!l->failure.layer[0]) l->failure = l->last;
            if (strcmp(l->last.layer, "interpreter") == 0 && level <= 2) return false;
            if (strcmp(l->last.layer, "uid") != 0) break;
            /* Root of a container that knows no other uid: as a plain user then. */
            l->uid_failed = true;
            l->uid_error = l->last.error;
        }
    }
    return false;
}

/* ---- the report ---- */

static void add(struct probe *p, const char *name, bool active, const char *detail, int error) {
    BUG_ON(p->report.n_layers == PROBE_LAYERS);
    struct verifier_layer *layer = &p->layers[p->report.n_layers++];
    *layer = (struct verifier_layer){.name = name, .active = active};
    struct err text = {0};
    if (error) err_errno(&text, error, "%s", detail);
    snprintf(layer->detail, sizeof layer->detail, "%.159s", error ? text.message : detail);
}

static void add_namespaces(struct probe *p, const struct ladder *l, int max_level) {
    static const struct {
        const char *name;
        int flag;
    } spaces[] = {
        {"pid namespace", CLONE_NEWPID},  {"network namespace", CLONE_NEWNET},
        {"mount namespace", CLONE_NEWNS}, {"ipc namespace", CLONE_NEWIPC},
        {"uts namespace", CLONE_NEWUTS},  {"cgroup namespace", CLONE_NEWCGROUP},
    };
    const struct box_plan *plan = &p->plan;
    bool user = geteuid() != 0, on = plan->namespaces;
    int error = 0;
    /* Root needs none: it is no layer then, and not missing. */
    if (on && plan->user_namespace)
        add(p, "user namespace", true, "", 0);
    else if (user && !box_try_namespace(0, true, &error))
        add(p, "user namespace", false, "unshare(CLONE_NEWUSER)", error);
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
        if (on || max_level < 3)
            add(p, spaces[i].name, on, on ? "" : "switched off by max_level", 0);
        else if (!box_try_namespace(spaces[i].flag, user, &error))
            add(p, spaces[i].name, false, "unshare", error);
        else
            add(p, spaces[i].name, false, "given up with the others", 0);
    }
    char why[256];
    snprintf(why, sizeof why, "%s: %s", l->failure.layer, l->failure.detail);
    if (on)
        add(p, "mount tree", true, "read-only, without /proc, /sys and /dev", 0);
    else if (max_level < 3)
        add(p, "mount tree", false, "switched off by max_level", 0);
    else
        add(p, "mount tree", false, why, l->failure.error);
    add(p, "work directory", on,
        on ? "16 MiB, noexec, emptied after each candidate" : "none is granted", 0);
}

static void fill_report(struct probe *p, const struct ladder *l,
                        const struct verifier_options *options, int abi_error) {
    const struct box_plan *plan = &p->plan;
    char text[160];
    p->report = (struct verifier_report){.level = plan->level, .layers = p->layers};
    snprintf(p->report.python, sizeof p->report.python, "%s", p->interpreter.path);
    snprintf(p->report.python_version, sizeof p->report.python_version, "%s",
             p->interpreter.version);
    add_namespaces(p, l, options->max_level);
    if (plan->own_uid || plan->user_namespace) {
        snprintf(text, sizeof text, "%d and up, one for each worker", BOX_UID);
        add(p, "uid", true, plan->own_uid ? text : "of the user namespace", 0);
    } else {
        add(p, "uid", false, l->uid_failed ? "setresuid" : "the server's own: not started as root",
            l->uid_failed ? l->uid_error : 0);
    }
    add(p, "no_new_privs", true, "", 0);
    add(p, "limits", plan->limits, "memory, cpu time, file size, descriptors, stack", 0);
    add(p, "process count", plan->own_uid || plan->user_namespace,
        plan->own_uid || plan->user_namespace ? "" : "needs a uid of its own", 0);
    snprintf(text, sizeof text, "ABI %d", plan->landlock_abi);
    if (plan->landlock_abi)
        add(p, "landlock", true, text, 0);
    else
        add(p, "landlock", false,
            abi_error ? "landlock_create_ruleset" : "switched off by an option", abi_error);
    if (plan->filter)
        add(p, "seccomp", true, "allow-list", 0);
    else
        add(p, "seccomp", false,
            strcmp(l->last.layer, "seccomp") == 0 ? l->last.detail : "switched off by max_level",
            0);
    if (plan->cgroup)
        add(p, "cgroup", true, "v2: memory and processes of each worker in all", 0);
    else
        add(p, "cgroup", false, p->cgroup.why, p->cgroup.error);
    add(p, "self-test", true, "each worker, before it takes work", 0);
}

static bool below_minimum(const struct probe *p, const struct ladder *l, int min_level,
                          struct err *e) {
    const char *way_out = "lower verifier.min_level to accept less";
    if (l->failure.layer[0] && l->failure.error) {
        err_errno(e, l->failure.error,
                  "the sandbox reaches level %d, verifier.min_level is %d (%s); the layer '%s' "
                  "failed: %s",
                  p->plan.level, min_level, way_out, l->failure.layer, l->failure.detail);
        return false;
    }
    return err_set(e, ERR_SYSTEM,
                   "the sandbox reaches level %d, verifier.min_level is %d (%s)%s%s%s%s",
                   p->plan.level, min_level, way_out, l->failure.layer[0] ? "; the layer " : "",
                   l->failure.layer, l->failure.layer[0] ? " failed: " : "", l->failure.detail);
}

static bool no_level(const struct probe *p, const struct ladder *l, struct err *e) {
    const struct box_failure *f = &l->last;
    if (strcmp(f->layer, "interpreter") == 0) {
        if (f->error) err_errno(e, f->error, "exec");
        return err_set(
            e, ERR_SYSTEM,
            "%s can't run as the sandbox's user: %s%s; it and its library must be readable by "
            "every user (an interpreter in a home directory is not): set verifier.python",
            p->interpreter.path, f->detail, f->error ? " (exec refused)" : "");
    }
    if (f->error)
        return err_errno(e, f->error, "the sandbox's layer '%s' failed: %s", f->layer, f->detail);
    return err_set(e, ERR_SYSTEM, "the sandbox's layer '%s' failed: %s", f->layer, f->detail);
}

bool probe_run(struct probe *out, const struct verifier_options *options, struct err *e) {
    int abi_error = 0;
    int max_abi = options->without & VERIFIER_WITHOUT_LANDLOCK ? 0 : options->max_landlock_abi;
    int abi = landlock_abi(max_abi, &abi_error);
    struct err first = {0};
    for (int skip = 0;; skip++) {
        *out = (struct probe){0};
        out->plan.payload_fd = out->plan.module_fd = -1;
        struct err found = {0};
        if (!interpreter_find(&out->interpreter, options->python, skip, &found)) {
            if (!first.kind) first = found;
            if (e) *e = first;
            return false;
        }
        struct ladder l = {
            .wish = {.interpreter = &out->interpreter, .payload_fd = -1, .module_fd = -1}};
        if (climb(&l, options, abi, &found)) {
            out->plan = l.wish;
            if (!out->plan.limits)
                snprintf(out->cgroup.why, sizeof out->cgroup.why, "switched off with the limits");
            else if (cgroup_open(&out->cgroup, "/sys/fs/cgroup", "/proc/self/cgroup"))
                out->plan.cgroup = &out->cgroup;
            fill_report(out, &l, options, abi_error);
            if (out->plan.level >= options->min_level) return true;
            below_minimum(out, &l, options->min_level, e);
            probe_clear(out);
            return false;
        }
        no_level(out, &l, &found);
        if (!first.kind) first = found;
        log_line(LOG_WARN, "%s", found.message);
        interpreter_clear(&out->interpreter);
    }
}

void probe_clear(struct probe *p) {
    if (p->plan.payload_fd >= 0) close(p->plan.payload_fd);
    if (p->plan.module_fd >= 0) close(p->plan.module_fd);
    p->plan.payload_fd = p->plan.module_fd = -1;
    interpreter_clear(&p->interpreter);
}
