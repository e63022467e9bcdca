/* Limits by cgroup v2, where the server may have them: one group for each worker.
 *
 * THEORY.  cgroup_open() looks for a v2 group of the server's own that it may divide: with the
 * controllers memory and pids, writable.  A group that has children to whom controllers are given
 * must hold no process itself, so the server and the keeper move to a leaf of it first.  Each
 * worker starts in a group of its own with memory.max, memory.swap.max and pids.max: what
 * RLIMIT_AS, which counts one process and no kernel memory, can't bound.  Where any of this isn't
 * to be had nothing is changed, the reason is reported, and the limits of processes stand alone.
 *
 * The paths are arguments, so that tests give a tree of plain files.  Before threads start, and in
 * the keeper. */
#ifndef VERIFIER_CGROUP_H
#define VERIFIER_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { CGROUP_PATH = 512 };

struct cgroup {
    char base[CGROUP_PATH]; /* the divided group's directory; "": there is none */
    char why[160];          /* that there is none */
    int error;              /* its errno, or 0 */
};

/* `mounted` is where v2 lies ("/sys/fs/cgroup"), `self` the list of the process's groups
 * ("/proc/self/cgroup").  True where workers can have groups. */
bool cgroup_open(struct cgroup *, const char *mounted, const char *self);
/* Makes the group of worker `slot`, empty, with its limits; an open descriptor of its
 * cgroup.procs, to which a process writes "0" to enter, or -1 with errno.  Anew for each worker:
 * the group of a dead one is removed first. */
int cgroup_worker(const struct cgroup *, int slot, uint64_t memory_bytes, int processes);
/* Removes the group of a worker that has ended; what can't be removed yet is by the next
 * cgroup_worker() of its slot. */
void cgroup_remove(const struct cgroup *, int slot);

#endif
