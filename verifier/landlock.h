/* Landlock: the kernel's file, network and signal rules for a process that asks for them.
 *
 * The kernel's ABI is found at run time; the structs are our own, since distribution headers are
 * older than the kernels that they meet.  Compiled into the supervisor (which reports the ABI) and
 * into the module inside the box (which restricts itself).  Functions return 0 or an errno value.
 * Any thread. */
#ifndef VERIFIER_LANDLOCK_H
#define VERIFIER_LANDLOCK_H

#include <stdbool.h>

/* The ABI of this kernel capped at `max` (negative: no cap); 0 where Landlock is absent, with
 * *error the errno. */
int landlock_abi(int max, int *error);

/* A new ruleset that denies every access which `abi` can name; its descriptor in *fd. */
int landlock_open(int abi, int *fd);
/* Allows reading beneath `path`, a directory or a file.  A path that does not exist is skipped. */
int landlock_allow_read(int fd, const char *path);
/* Allows making, reading, writing and removing plain files and directories beneath `path`. */
int landlock_allow_work(int fd, int abi, const char *path);
/* Restricts the calling thread and its children for ever; no_new_privs must be set. */
int landlock_enter(int fd);

#endif
