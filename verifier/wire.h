/* What crosses the sockets between the supervisor and the processes inside the box.
 *
 * THEORY.  Three kinds of sockets, all SOCK_SEQPACKET so that a message is whole or absent:
 *
 * control: supervisor and a fork server (the zygote of a worker, the parent of the tests'
 * processes, the parent of the renders).  Asks: struct wire_fork with one descriptor, the child's
 * job socket. Tells: struct wire_event.
 *
 * job: supervisor and one child.  First one struct wire_job with descriptors goes in, only after
 * the fork: a fork server never holds tests, code or nonces of a child.  Out comes at most one
 * struct wire_report, or a single byte where the child can't begin.
 *
 * call: A and B, a stream of the frames in inside/codec.c; the supervisor has no end of it.
 *
 * Native byte order: both ends run on one machine from one binary.  Shared by the supervisor and
 * inside/; plain C only. */
#ifndef VERIFIER_WIRE_H
#define VERIFIER_WIRE_H

#include <stdint.h>

enum {
    WIRE_NONCE = 16,
    WIRE_FDS = 4,
    WIRE_REPORT_TEXT = 32768,
    WIRE_REPORT_FEEDBACK = 65536,
    /* Descriptors of a worker at its start. */
    WIRE_FD_CONTROL = 3,
    WIRE_FD_PAYLOAD = 4,
    WIRE_FD_MODULE = 5,
};

/* Kinds of children. */
enum wire_kind {
    WIRE_CANDIDATE = 'A',      /* fds: code, call socket, output; with WIRE_PROGRAM: code, input,
                                  output, errors */
    WIRE_CANDIDATE_SOON = 'a', /* the same, whose job is likely to come at once */
    WIRE_TESTS = 'B',          /* fds: call socket, or what a checker looks at */
    WIRE_SUITE = 'T', /* one tests object, compiled: a fork server, or where they leave nothing
                         behind its own B; fds: spec, control socket */
    WIRE_TEMPLATE =
        'R', /* a fork server: one chat template, compiled; fds: template, control socket */
    WIRE_RENDER = 'V',  /* fds: variables, output */
    WIRE_FLAVOUR = 'N', /* a fork server of candidates with a package loaded; fds: its name, control
                           socket */
    WIRE_KILL = 'K',    /* no child: ends the one with this id, whose pidfd got lost on its way */
};

struct wire_fork {
    uint32_t kind;
    uint32_t id;
};

enum wire_event_kind {
    WIRE_READY = 'W',   /* the zygote is up; text follows: its JSON report */
    WIRE_STARTED = 'S', /* with one descriptor: the child's pidfd */
    WIRE_EXITED = 'X',
    WIRE_FAILED = 'F', /* fork failed; status is an errno */
};
struct wire_event {
    uint32_t kind;
    uint32_t id;
    int32_t status; /* as of waitpid */
    int32_t pid;    /* in the worker's own numbering */
    int64_t cpu_us;
    int64_t max_rss_kb;
};

enum wire_job_flags {
    WIRE_PROGRAM = 2, /* A runs a program with a standard input, no functions for tests */
    WIRE_NUMPY = 4,   /* A's code asks for numpy, or for what loads it */
    WIRE_FORKS = 8,   /* T forks its B's also where it could do their work itself */
};
struct wire_job {
    uint64_t address_space; /* bytes, RLIMIT_AS */
    uint64_t seed;
    uint32_t cpu_s; /* RLIMIT_CPU: the back-up of the supervisor's clock */
    uint32_t flags;
    unsigned char nonce[WIRE_NONCE]; /* zero for A */
};

enum wire_report_kind {
    WIRE_PASSED = 'P',
    WIRE_NOT_PASSED = 'F',
    WIRE_GONE = 'G',     /* the candidate's process closed its socket */
    WIRE_TAMPERED = 'X', /* malformed or unasked frames came from the candidate */
    WIRE_PREPARED = 'R', /* a suite or template compiled */
    WIRE_REFUSED = 'E',  /* it did not compile, or the template raised: text says why */
    WIRE_MISSING = 'M',  /* a Python package is missing: text names it */
};
struct wire_report {
    uint32_t kind;
    uint32_t passed, total; /* executed assertions */
    uint32_t again;         /* not 0: B waits for another candidate; of T: its B's may */
    uint32_t text_len, feedback_len;
    unsigned char nonce[WIRE_NONCE];
    char limit[16]; /* name of the limit that an error speaks of, or "" */
    char text[];    /* text_len bytes of UTF-8; then feedback_len bytes of JSON: see feedback.h */
};

#endif
