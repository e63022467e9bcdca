/* The box: the ordered list of layers that a new process takes before it becomes a worker's Python.
 *
 * THEORY.  box_spawn() makes the process (with new namespaces where the plan says so) and in it, in
 * this order: session, user mapping, mount tree, uid, capabilities, no_new_privs, descriptors,
 * exec.  The order matters: mounts need the rights that the uid change gives up; no_new_privs must
 * come last, before exec.  A layer that fails ends the process and is named with its errno over a
 * pipe.  Landlock, seccomp and the limits of a job come later, inside (inside/lockdown.c), for each
 * child.  In the keeper or, for the probe, in main before threads start: it forks a single-threaded
 * process. */
#ifndef VERIFIER_BOX_H
#define VERIFIER_BOX_H

#include "base/err.h"
#include "verifier/cgroup.h"
#include "verifier/interpreter.h"

#include <sys/types.h>

enum {
    /* Each worker has a uid of its own, so that its processes can't reach another's and are counted
       apart; so has each of another server on this host. */
    BOX_UID = 64001,
    BOX_UID_LAST = 65533,
    BOX_WORK_BYTES = 16 * 1024 * 1024,
    BOX_WORK_FILES = 512,
    BOX_PROCESSES =
        512, /* and threads, of a worker and all its children; where groups can be had */
};
#define BOX_WORK "/tmp"

struct box_plan {
    int level;           /* what it amounts to, 0 … 3 */
    bool namespaces;     /* pid, net, ipc, uts, cgroup and mount, with a tree of its own */
    bool user_namespace; /* needed for them without root */
    bool own_uid;        /* root: a uid that nobody else has */
    bool limits;         /* rlimits of each child */
    bool filter;         /* seccomp */
    bool own_core;       /* each worker one of the cores, of which there are as many */
    int landlock_abi;    /* 0: none */
    const struct interpreter *interpreter; /* borrowed */
    const struct cgroup *cgroup;           /* borrowed; NULL: workers have no group of their own */
    int payload_fd, module_fd;             /* borrowed memfds: verifier/payload.h */
};

/* What failed where. */
struct box_failure {
    char layer[32]; /* "" : nothing failed */
    int error;
    char detail[96];
};

struct box_process {
    pid_t pid;
    int pidfd;     /* owned */
    int control;   /* owned; the supervisor's end of the control socket */
    int errors_fd; /* owned; a memfd with what it printed on standard error */
    int uid_fd;    /* owned; while it is open no other server takes the uid; -1: not its own */
};

extern const struct box_process box_no_process;

/* Starts the Python of worker `slot`; flavour is "standard" or "template".  True once it was
 * exec'ed. */
bool box_spawn(const struct box_plan *, int slot, const char *flavour, struct box_process *out,
               struct box_failure *failure) MUST_CHECK;
/* Closes descriptors; the process is the caller's to kill and reap. */
void box_process_clear(struct box_process *);
/* The last line that it printed on standard error, for messages; "" where there is none. */
void box_last_words(int errors_fd, char *out, size_t size);
/* Layers by name that `plan` leaves out or whose attempt alone fails here, for the report.  Writes
 * why to detail, true if this namespace (CLONE_NEW* flag) can be made, alone or within a user
 * namespace. */
bool box_try_namespace(int flag, bool in_user_namespace, int *error);

#endif
