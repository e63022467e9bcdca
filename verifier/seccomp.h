/* The system call filter of the box: an allow-list, built by libseccomp, entered inside the box.
 *
 * Denials answer with an errno, so that the candidate's own exception tells the story; numbers
 * nobody thought of answer ENOSYS; a foreign architecture's calls kill.  Shared with inside/, which
 * has no libseccomp: plain C. */
#ifndef VERIFIER_SECCOMP_H
#define VERIFIER_SECCOMP_H

#include "base/err.h"

#include <stddef.h>

enum {
    /* Stands for the process's own number in the program; inside/lockdown.c replaces it. */
    SECCOMP_THIS_PROCESS = 0x5e1f0001,
};

/* What inside/lockdown.c's self-test found possible that must not be (SELFTEST_THREAD: the other
 * way round). */
enum {
    SELFTEST_FILE = 1,
    SELFTEST_SOCKET = 2,
    SELFTEST_FORK = 4,
    SELFTEST_KILL = 8,
    SELFTEST_PRLIMIT = 16,
    SELFTEST_OWNER = 32,
    SELFTEST_EXEC = 64,
    SELFTEST_THREAD = 128,
    SELFTEST_CHANGE = 256, /* truncating a file or setting its times, by path */
    SELFTEST_SERVER_FILE = 512,
    SELFTEST_SERVER_CALL = 1024, /* a socket, or running a program */
};

/* A fork server (the zygote; the parents of tests' processes and of renders) parses what clients
 * sent, and takes its filter before that: the allow-list, which its children inherit.  They take
 * their own on top, which takes back what is the server's own; so it is short, since every child
 * pays for its loading (with the whole list 0.25 ms). */
enum seccomp_program { SECCOMP_CHILD, SECCOMP_SERVER };

/* The program as an array of struct sock_filter; free() it. */
void *seccomp_build(enum seccomp_program, size_t *bytes, struct err *e);

#endif
