/* A verifier with its loop, for tests: judge a batch of codes and wait for the verdicts. */
#ifndef TESTS_RIG_H
#define TESTS_RIG_H

#include "verifier/verifier.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RIG_BATCH = 512, RIG_USER = 60321 };

struct outcome {
    bool there;
    enum verdict_kind kind;
    bool duplicate;
    int passed, total, max_rss_mb;
    double cpu_s;
    char method[16], limit[24], error[800], output[2048], trust[8];
    size_t output_len;
    char *code; /* owned */
};

struct rig {
    uv_loop_t loop;
    struct verifier *verifier;
    struct verifier_tests *tests;
    struct err refused; /* what ready() told */
    bool told;
    int pending;
    struct outcome outcomes[RIG_BATCH];
};

static inline void rig_on_verdict(void *arg, int index, const struct verdict *v) {
    struct rig *r = arg;
    struct outcome *o = &r->outcomes[index];
    ck_assert(!o->there);
    o->there = true;
    o->kind = v->kind;
    o->duplicate = v->duplicate;
    o->passed = v->tests_passed;
    o->total = v->tests_total;
    o->max_rss_mb = v->max_rss_mb;
    o->cpu_s = v->cpu_s;
    o->output_len = v->output_len;
    o->code = err_strndup(v->code, v->code_len);
    snprintf(o->method, sizeof o->method, "%s", v->method);
    snprintf(o->limit, sizeof o->limit, "%s", v->limit ? v->limit : "");
    snprintf(o->error, sizeof o->error, "%s", v->error);
    snprintf(o->output, sizeof o->output, "%s", v->output);
    snprintf(o->trust, sizeof o->trust, "%s", v->trust);
    if (--r->pending == 0) uv_stop(&r->loop);
}

static inline void rig_on_ready(void *arg, struct verifier_tests *tests, const struct err *e) {
    struct rig *r = arg;
    ck_assert(!r->told);
    ck_assert((tests != NULL) == (e == NULL));
    r->told = true;
    r->tests = tests;
    if (e) r->refused = *e;
    uv_stop(&r->loop);
}

static inline bool rig_try_open(struct rig *r, const struct verifier_options *options,
                                struct err *e) {
    *r = (struct rig){0};
    r->verifier = verifier_open(options, e);
    if (!r->verifier) return false;
    ck_assert_int_eq(uv_loop_init(&r->loop), 0);
    ck_assert(verifier_attach(r->verifier, &r->loop, e));
    return true;
}

static inline struct verifier_options rig_options(int max_level, int max_abi) {
    return (struct verifier_options){
        .python = "auto",
        .workers = 2,
        .max_level = max_level,
        .max_landlock_abi = max_abi,
    };
}

static inline void rig_open(struct rig *r, int max_level) {
    struct err e = {0};
    struct verifier_options options = rig_options(max_level, -1);
    ck_assert_msg(rig_try_open(r, &options, &e), "%s", e.message);
}

static inline void rig_clear_outcomes(struct rig *r) {
    for (int i = 0; i < RIG_BATCH; i++)
        free(r->outcomes[i].code);
    memset(r->outcomes, 0, sizeof r->outcomes);
}

static inline void rig_on_closed(void *arg) { *(bool *)arg = true; }

static inline void rig_close(struct rig *r) {
    bool closed = false;
    verifier_close(r->verifier, rig_on_closed, &closed);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    ck_assert(closed);
    verifier_free(r->verifier);
    ck_assert_int_eq(uv_loop_close(&r->loop), 0);
    rig_clear_outcomes(r);
}

/* False with r->refused where the tests can't be used. */
static inline bool rig_open_tests(struct rig *r, const struct verifier_spec *spec) {
    struct err e = {0};
    r->told = false;
    r->tests = NULL;
    r->refused = (struct err){0};
    if (!verifier_tests_open(r->verifier, spec, rig_on_ready, r, &e)) {
        r->refused = e;
        return false;
    }
    ck_assert_msg(!r->told, "ready came from within the call");
    uv_run(&r->loop, UV_RUN_DEFAULT);
    ck_assert(r->told);
    return r->tests != NULL;
}

/* Verdicts of n texts in r->outcomes. */
static inline void rig_submit(struct rig *r, const char *const *codes, int n) {
    ck_assert_int_le(n, RIG_BATCH);
    rig_clear_outcomes(r);
    r->pending = n;
    for (int i = 0; i < n; i++)
        ck_assert_uint_ne(
            verifier_submit(r->tests, i, codes[i], strlen(codes[i]), false, rig_on_verdict, r), 0);
    ck_assert_msg(r->pending == n, "a verdict came from within the call");
    uv_run(&r->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(r->pending, 0);
}

static inline struct verifier_spec rig_spec(enum verifier_format format, const char *tests) {
    return (struct verifier_spec){
        .format = format,
        .tests = tests,
        .tests_len = strlen(tests),
        .timeout_s = 3,
        .memory_mb = 128,
        .seed = 7,
    };
}

/* One code against one tests text; the outcome in r->outcomes[0]. */
static inline const struct outcome *rig_judge(struct rig *r, const struct verifier_spec *spec,
                                              const char *code) {
    ck_assert_msg(rig_open_tests(r, spec), "%s", r->refused.message);
    rig_submit(r, &code, 1);
    verifier_tests_close(r->tests);
    r->tests = NULL;
    return &r->outcomes[0];
}

/* Runs `body` in a process without any privilege; the whole test fails where it fails.  True where
 * it could be tried. */
static inline bool rig_as_user(void (*body)(void)) {
    if (geteuid() != 0) {
        body();
        return true;
    }
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        if (setgroups(0, NULL) || setresgid(RIG_USER, RIG_USER, RIG_USER) ||
            setresuid(RIG_USER, RIG_USER, RIG_USER))
            _exit(99);
        /* As if it had been started so: a process that gave up root can't write its own uid_map. */
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
        body();
        _exit(0);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0)
        ck_assert_int_eq(errno, EINTR);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 99) return false;
    ck_assert_msg(status == 0, "the run without privileges failed (status %d)", status);
    return true;
}

/* One line: the level that the machine gives, and what is missing, each with its reason. */
static inline void rig_tell_level(const struct verifier_report *report, const char *what) {
    printf("level %d as %s, %s;", report->level, geteuid() == 0 ? "root" : "user", what);
    const char *before = " without";
    for (int i = 0; i < report->n_layers; i++) {
        const struct verifier_layer *layer = &report->layers[i];
        if (layer->active) continue;
        printf("%s %s (%s)", before, layer->name, layer->detail);
        before = ",";
    }
    printf("%s\n", before[0] == ',' ? "" : " all layers");
    fflush(stdout);
}

static inline int rig_count_entries(const char *path) {
    int n = 0;
    DIR *directory = opendir(path);
    if (!directory) return -1;
    while (readdir(directory))
        n++;
    closedir(directory);
    return n;
}

/* Processes of this machine's /proc whose parent chain leads to `root`. */
static inline int rig_descendants(pid_t root, pid_t *found, int max) {
    pid_t parents[4096], pids[4096];
    int n = 0, count = 0;
    DIR *proc = opendir("/proc");
    ck_assert_ptr_nonnull(proc);
    for (struct dirent *entry; (entry = readdir(proc)) && n < 4096;) {
        char path[300], line[512];
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid <= 0) continue;
        snprintf(path, sizeof path, "/proc/%ld/stat", pid);
        FILE *f = fopen(path, "re");
        if (!f) continue;
        char *got = fgets(line, sizeof line, f);
        fclose(f);
        char *after = got ? strrchr(line, ')') : NULL;
        if (!after || strlen(after) < 5 || after[2] == 'Z') continue; /* ") S 123 …" */
        pids[n] = (pid_t)pid;
        parents[n++] = (pid_t)strtol(after + 4, NULL, 10);
    }
    closedir(proc);
    for (int i = 0; i < n; i++) {
        pid_t at = parents[i];
        for (int depth = 0; depth < 20 && at > 1 && at != root; depth++) {
            pid_t up = 0;
            for (int k = 0; k < n; k++)
                if (pids[k] == at) up = parents[k];
            at = up;
        }
        if (at != root || pids[i] == root) continue;
        if (found && count < max) found[count] = pids[i];
        count++;
    }
    return count;
}

#endif
