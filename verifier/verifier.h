/* The verifier's front door: hostile code in, a verdict out.
 *
 * THEORY.  verifier_open() runs before any thread and before a GPU is touched: it probes what this
 * machine gives and forks the workers.  Each worker is one sandboxed process (a zygote: a warm
 * Python) that forks a fresh child for each piece of work. The supervisor is in the LOOP thread
 * (verifier_attach): clocks, kills by pidfd, comparison of output. The candidate's code runs in
 * process A, the tests in process B; only plain values cross (DESIGN section 6).
 *
 * All calls but verifier_open() are LOOP thread; callbacks come in the LOOP thread, never from
 * within the call that asked.  A sandbox failure is VERDICT_BROKEN (retried once inside), never a
 * verdict on the candidate. */
#ifndef VERIFIER_VERIFIER_H
#define VERIFIER_VERIFIER_H

#include "base/err.h"
#include "base/list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <uv.h>

struct verifier;

/* Layers switched off, to see what each is for: by tests and `doctor --attack` only. */
enum verifier_without {
    VERIFIER_WITHOUT_SECCOMP = 1,
    VERIFIER_WITHOUT_LANDLOCK = 2,
    VERIFIER_WITHOUT_NAMESPACES = 4,
    VERIFIER_WITHOUT_UID = 8, /* of its own: root's, without its rights */
    VERIFIER_WITHOUT_LIMITS = 16,
};

struct verifier_options {
    const char *python; /* path of an interpreter, or "auto": the first usable CPython >= 3.8 */
    int workers;        /* 0: one for each core */
    int min_level; /* 0 … 3: verifier_open() fails where the machine gives less, naming what is
                      missing */
    int max_level; /* 3; lower ones force a weaker sandbox, for tests */
    int max_landlock_abi; /* -1: what the kernel has; lower: as on an older kernel, 0: none; for
                             tests */
    unsigned without;     /* bits of enum verifier_without; 0 */
};

/* What is active and what is not, found by running the workers' own code in a throw-away child. */
struct verifier_layer {
    const char *name; /* "user namespace", "seccomp", "landlock", "uid", … */
    bool active;
    char detail[160]; /* "ABI 7", or the call that failed and its errno */
};
struct verifier_report {
    int level;
    char python[256], python_version[32];
    const struct verifier_layer *layers; /* borrowed from the verifier */
    int n_layers;
};

struct verifier *verifier_open(const struct verifier_options *, struct err *e);
bool verifier_attach(struct verifier *, uv_loop_t *, struct err *e);
/* Kills all children, drops pending work without callbacks, closes its handles: run the loop until
 * it calls `closed`. */
void verifier_close(struct verifier *, void (*closed)(void *arg), void *arg);
void verifier_free(struct verifier *);
const struct verifier_report *verifier_report(const struct verifier *);

/* ---- tests: one object for all candidates of a race ---- */

enum verifier_format {
    VERIFIER_HUMANEVAL, /* check(candidate) */
    VERIFIER_ASSERTS,   /* assert statements, as MBPP's */
    VERIFIER_SCRIPT,    /* a program with assert statements */
    VERIFIER_UNITTEST,
    VERIFIER_PYTEST,
    VERIFIER_DOCTEST,
    VERIFIER_EVALPLUS,      /* JSON: inputs and expected results or the canonical solution */
    VERIFIER_STDIO,         /* JSON: standard inputs and outputs of a program */
    VERIFIER_APPS,          /* JSON: inputs and outputs, of a function where there is fn_name */
    VERIFIER_LIVECODEBENCH, /* JSON: cases by testtype */
};
/* By the API's name; false where there is none such (the message lists them). */
bool verifier_format_parse(const char *name, enum verifier_format *out, struct err *e);
const char *verifier_format_name(enum verifier_format);

/* What is told of each test.  NAMES: no values of the tests, also not in verdict.error. */
enum verifier_feedback { VERIFIER_FEEDBACK_NONE, VERIFIER_FEEDBACK_NAMES, VERIFIER_FEEDBACK_FULL };
bool verifier_feedback_parse(const char *name, enum verifier_feedback *out, struct err *e);

enum verifier_extract {
    VERIFIER_EXTRACT_AUTO,
    VERIFIER_EXTRACT_FENCED,
    VERIFIER_EXTRACT_RAW,
    VERIFIER_EXTRACT_CONTINUATION
};
bool verifier_extract_parse(const char *name, enum verifier_extract *out, struct err *e);

/* Strings are copied. */
struct verifier_spec {
    enum verifier_format format;
    const char *tests;
    size_t tests_len;
    const char *
        entry_point; /* NULL: found in the tests (humaneval: required unless the prompt names it) */
    const char *prompt; /* the code that a continuation continues and whose helpers and imports the
                           tests may use, or NULL */
    size_t prompt_len;
    enum verifier_extract extract;
    double timeout_s; /* CPU seconds of one candidate (of a program: of one run); the wall clock is
                         more generous */
    int memory_mb;
    uint64_t seed; /* random.seed of candidate i comes from (seed, i) */
    bool score;    /* run all tests after a failure, for on_fail: best */
    enum verifier_feedback feedback;
    int priority; /* lower first */
};
struct verifier_tests;
/* Compiles the tests in the sandbox.  `ready(arg, tests, NULL)`, or `ready(arg, NULL, error)` where
 * they don't compile (ERR_INPUT) or the sandbox failed (ERR_SYSTEM). */
bool verifier_tests_open(struct verifier *, const struct verifier_spec *,
                         void (*ready)(void *arg, struct verifier_tests *, const struct err *),
                         void *arg, struct err *e);
/* Cancels what is still pending (no callback comes after it), frees. */
void verifier_tests_close(struct verifier_tests *);

/* ---- verdicts ---- */

enum verdict_kind {
    VERDICT_PASSED,
    VERDICT_FAILED,
    VERDICT_TIMEOUT,
    VERDICT_MEMORY,
    VERDICT_CRASHED,
    VERDICT_OUTPUT_LIMIT,
    VERDICT_FORGED, /* it tried to speak for the tests */
    VERDICT_BROKEN, /* the sandbox's fault, not the candidate's */
};
const char *verdict_name(enum verdict_kind); /* "passed", … */

/* One test.  Strings are never NULL but where it says so. */
struct verdict_test {
    const char *name, *status;  /* status: "passed", "failed", "error", "skipped" */
    const char *got, *expected; /* NULL: withheld, or there is no such value */
    const char *error;          /* "" where it passed */
    int line;                   /* of the candidate's code, where it raised; 0: none */
    double ms;
};

struct verdict {
    enum verdict_kind kind;
    bool duplicate;                /* the same code had this verdict before (or shares the run) */
    int tests_passed, tests_total; /* executed assertions, test functions or cases; total 0 where
                                      unknown */
    const struct verdict_test *tests; /* as far as they were run and asked for; failed ones first */
    int n_tests;
    double cpu_s, wall_s;
    int max_rss_mb;
    const char *code; /* the extracted code that was judged; "" where none was found */
    size_t code_len;
    const char *method; /* how it was extracted: "fenced", "raw", "continuation", "none" */
    const char *error;  /* "AssertionError: assert f(2) == 4", one line, or "" */
    const char *output; /* head and tail of what the candidate printed */
    size_t output_len;
    const char *limit; /* which limit was hit, or NULL */
    const char *trust; /* "split" or "stdio" */
};
/* Judges the text a model wrote.  The verdict and all it points to are borrowed until the callback
 * returns. Returns an id for verifier_cancel, never 0. */
uint64_t verifier_submit(struct verifier_tests *, int index, const char *text, size_t len,
                         bool cut_by_length,
                         void (*done)(void *arg, int index, const struct verdict *), void *arg);
void verifier_cancel(struct verifier_tests *, uint64_t id);

/* ---- chat templates: Jinja rendered by jinja2 in a sandboxed worker of the same kind ---- */

/* Compiles once; every later render uses it.  Fails with ERR_INPUT where the template doesn't
 * compile, ERR_SYSTEM where there is no jinja2.  `ready` comes with NULL on success. */
bool verifier_template_set(struct verifier *, const char *text, size_t len,
                           void (*ready)(void *arg, const struct err *), void *arg, struct err *e);
/* `variables` is JSON: {"messages": […], "add_generation_prompt": true, "bos_token": …, …}.
 * `done(arg, text, len, NULL)` or `done(arg, NULL, 0, error)`: what the template's raise_exception
 * said is ERR_INPUT. */
uint64_t verifier_render(struct verifier *, const char *variables, size_t len,
                         void (*done)(void *arg, const char *text, size_t len, const struct err *),
                         void *arg);
void verifier_render_cancel(struct verifier *, uint64_t id);

/* ---- the built-in attacks: what each layer is for, on this very machine ---- */

enum { VERIFIER_ARRANGEMENTS = 10 };
struct verifier_attack {
    const char *name; /* "41 the own process group" */
    enum verdict_kind verdict;
    const char *result; /* static: "stopped", "open" as documented for the level, "through", or
                           "wrong": another verdict than it should get, or its twin failed */
    char said[200];     /* the verdict's limit and error */
    bool twin_ran;      /* an honest candidate of the same shape */
    bool twin_passed;
    unsigned ran, through; /* bit i: it was run, it worked in arrangement i */
    unsigned stopped_by;   /* bits of enum verifier_without: it works where these are off, and not
                              where fewer of them are; 0: it never did */
};
struct verifier_attacks {
    int level;
    int n, n_arrangements;
    unsigned without[VERIFIER_ARRANGEMENTS]; /* [0] is 0: all that the machine gives */
    struct verifier_attack *items;           /* owned */
    int n_stopped, n_open, n_through, n_wrong;
    void *text; /* owned: what the names point to */
};
/* Runs all attacks as `options` say, then again with layers switched off, in sandboxes of its own;
 * takes a minute or two.  Harmless where a layer is off: they ask, and take nothing.  Before
 * threads start.  `progress(arg, without, done, total)` may be NULL. */
bool verifier_attacks_run(const struct verifier_options *, struct verifier_attacks *out,
                          void (*progress)(void *arg, unsigned without, int done, int total),
                          void *arg, struct err *e) MUST_CHECK;
void verifier_attacks_clear(struct verifier_attacks *);
/* "seccomp", "landlock", "namespaces", "uid" or "limits". */
const char *verifier_without_name(enum verifier_without layer);

/* ---- seen from outside ---- */

struct verifier_stats {
    int queued, running, workers;
    uint64_t verdicts[VERDICT_BROKEN + 1];
    uint64_t duplicates, workers_replaced, retries;
    uint64_t reruns; /* timed out among others, on the way to a pass: run once more alone */
    double cpu_s, wall_s;
};
void verifier_stats(const struct verifier *, struct verifier_stats *out);

#endif
