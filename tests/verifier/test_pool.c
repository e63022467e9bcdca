/* Workers and objects over their whole life: shared runs, cancelling, deaths, levels, leaks. */
#include "tests/verifier/rig.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

static struct rig rig;

static void open_rig(void) { rig_open(&rig, 3); }
static void close_rig(void) { rig_close(&rig); }

static struct verifier_spec plain_spec(void) {
    struct verifier_spec spec = rig_spec(VERIFIER_ASSERTS, "assert f(2) == 4\n");
    spec.extract = VERIFIER_EXTRACT_RAW;
    return spec;
}

/* ---- sharing ---- */

START_TEST(test_equal_codes_run_once) {
    enum { N = 60 };
    const char *codes[N];
    for (int i = 0; i < N; i++)
        codes[i] = i % 3 ? "def f(x): return 4" : "def f(x): return 5";
    struct verifier_spec spec = plain_spec();
    ck_assert(rig_open_tests(&rig, &spec));
    rig_submit(&rig, codes, N);
    int duplicates = 0;
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(rig.outcomes[i].kind, i % 3 ? VERDICT_PASSED : VERDICT_FAILED);
        duplicates += rig.outcomes[i].duplicate;
    }
    ck_assert_int_eq(duplicates, N - 2);
    /* And again, from what is known. */
    rig_submit(&rig, codes, N);
    for (int i = 0; i < N; i++)
        ck_assert(rig.outcomes[i].duplicate);
    struct verifier_stats stats;
    verifier_stats(rig.verifier, &stats);
    ck_assert_int_eq((int)stats.duplicates, N + N - 2);
    ck_assert_int_eq((int)(stats.verdicts[VERDICT_PASSED] + stats.verdicts[VERDICT_FAILED]), N + N);
    ck_assert_int_eq(stats.queued + stats.running, 0);
    verifier_tests_close(rig.tests);
}
END_TEST

/* ---- cancelling ---- */

static void must_not_come(void *arg, int index, const struct verdict *v) {
    (void)arg;
    (void)v;
    ck_abort_msg("a verdict of the cancelled candidate %d came", index);
}

static void on_tick(uv_timer_t *timer) {
    (void)timer;
    uv_stop(&rig.loop);
}

static void let_pass(uint64_t ms) {
    uv_timer_t timer;
    uv_timer_init(&rig.loop, &timer);
    uv_timer_start(&timer, on_tick, ms, 0);
    uv_run(&rig.loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&rig.loop, UV_RUN_NOWAIT);
}

START_TEST(test_cancel) {
    struct verifier_spec spec = plain_spec();
    spec.timeout_s = 100;
    ck_assert(rig_open_tests(&rig, &spec));
    static const char *const loops[] = {
        "def f(x):\n    while 1: pass\n", "def f(x):\n    while 2: pass\n",
        "def f(x):\n    while 3: pass\n", "def f(x):\n    while 4: pass\n"};
    uint64_t ids[4];
    for (int i = 0; i < 4; i++)
        ids[i] =
            verifier_submit(rig.tests, i, loops[i], strlen(loops[i]), false, must_not_come, NULL);
    let_pass(300); /* two run, two wait */
    for (int i = 0; i < 4; i++)
        verifier_cancel(rig.tests, ids[i]);
    verifier_cancel(rig.tests, ids[0]); /* unknown by now: nothing happens */
    /* The workers are free at once: an honest one gets its verdict long before any of those limits.
     */
    static const char *const honest[] = {"def f(x): return 4"};
    rig_submit(&rig, honest, 1);
    ck_assert_int_eq(rig.outcomes[0].kind, VERDICT_PASSED);
    struct verifier_stats stats;
    let_pass(100);
    verifier_stats(rig.verifier, &stats);
    ck_assert_int_eq(stats.running + stats.queued, 0);
    verifier_tests_close(rig.tests);
}
END_TEST

START_TEST(test_cancel_one_of_two_waiters) {
    struct verifier_spec spec = plain_spec();
    ck_assert(rig_open_tests(&rig, &spec));
    static const char code[] = "import time\ntime.sleep(0.3)\ndef f(x): return 4\n";
    uint64_t first = verifier_submit(rig.tests, 0, code, strlen(code), false, must_not_come, NULL);
    rig.pending = 1;
    rig_clear_outcomes(&rig);
    verifier_submit(rig.tests, 1, code, strlen(code), false, rig_on_verdict, &rig);
    let_pass(100);
    verifier_cancel(rig.tests, first);
    while (rig.pending)
        uv_run(&rig.loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(rig.outcomes[1].kind, VERDICT_PASSED);
    verifier_tests_close(rig.tests);
}
END_TEST

static void closes_tests(void *arg, int index, const struct verdict *v) {
    (void)index;
    verifier_tests_close(rig.tests);
    *(bool *)arg = true;
    ck_assert_str_eq(v->code, "def f(x): return 4"); /* still readable after the close */
    uv_stop(&rig.loop);
}

START_TEST(test_close_within_callback) {
    struct verifier_spec spec = plain_spec();
    bool done = false;
    ck_assert(rig_open_tests(&rig, &spec));
    verifier_submit(rig.tests, 0, "def f(x): return 4", 18, false, closes_tests, &done);
    for (int i = 1; i < 20; i++) {
        char code[64];
        snprintf(code, sizeof code, "import time\ntime.sleep(5)\ndef f(x): return %d", i);
        verifier_submit(rig.tests, i, code, strlen(code), false, must_not_come, NULL);
    }
    while (!done)
        uv_run(&rig.loop, UV_RUN_DEFAULT);
    let_pass(100);
}
END_TEST

START_TEST(test_close_with_work_under_way) {
    struct verifier_spec spec = plain_spec();
    spec.timeout_s = 100;
    ck_assert(rig_open_tests(&rig, &spec));
    for (int i = 0; i < 10; i++) {
        char code[64];
        snprintf(code, sizeof code, "def f(x):\n    while %d: pass\n", i + 1);
        verifier_submit(rig.tests, i, code, strlen(code), false, must_not_come, NULL);
    }
    let_pass(200);
    struct err e = {0}; /* and tests that are still being compiled */
    ck_assert(verifier_tests_open(rig.verifier, &spec, rig_on_ready, &rig, &e));
} /* close_rig() ends it all */
END_TEST

/* ---- many tests objects ---- */

START_TEST(test_more_objects_than_are_kept) {
    enum { N = 40 };
    struct verifier_tests *tests[N];
    for (int i = 0; i < N; i++) {
        char text[64];
        snprintf(text, sizeof text, "assert f(2) == %d\n", i);
        struct verifier_spec spec = rig_spec(VERIFIER_ASSERTS, text);
        spec.extract = VERIFIER_EXTRACT_RAW;
        ck_assert(rig_open_tests(&rig, &spec));
        tests[i] = rig.tests;
    }
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < N; i++) {
            char right[64];
            snprintf(right, sizeof right, "def f(x): return %d  # %d\n", i, round);
            const char *codes[] = {right,
                                   round ? "def f(x): return -1\n" : "def f(x): return -2\n"};
            rig.tests = tests[i];
            rig_submit(&rig, codes, 2);
            ck_assert_int_eq(rig.outcomes[0].kind, VERDICT_PASSED);
            ck_assert_int_eq(rig.outcomes[1].kind, VERDICT_FAILED);
        }
    for (int i = 0; i < N; i++)
        verifier_tests_close(tests[i]);
}
END_TEST

/* ---- deaths ---- */

/* The children of the keeper are the workers. */
static int kill_workers(void) {
    pid_t all[256];
    int n = rig_descendants(getpid(), all, 256), killed = 0;
    for (int i = 0; i < n && i < 256; i++) {
        char path[64], name[64] = "";
        snprintf(path, sizeof path, "/proc/%d/cmdline", (int)all[i]);
        FILE *f = fopen(path, "re");
        if (!f) continue;
        if (!fgets(name, sizeof name, f)) name[0] = 0;
        fclose(f);
        if (!strcmp(name, "firstpass-worker") && !kill(all[i], SIGKILL)) killed++;
    }
    return killed;
}

START_TEST(test_killed_workers_are_replaced) {
    struct verifier_spec spec = plain_spec();
    ck_assert(rig_open_tests(&rig, &spec));
    enum { N = 30 };
    char texts[N][100];
    rig_clear_outcomes(&rig);
    rig.pending = N;
    for (int i = 0; i < N; i++) {
        snprintf(texts[i], sizeof texts[i],
                 "import time\ntime.sleep(0.1)\ndef f(x): return 4 + %d  # %d\n", i % 2, i);
        verifier_submit(rig.tests, i, texts[i], strlen(texts[i]), false, rig_on_verdict, &rig);
    }
    let_pass(400);
    int killed = kill_workers();
    ck_assert_int_ge(killed, 2);
    while (rig.pending)
        uv_run(&rig.loop, UV_RUN_DEFAULT);
    for (int i = 0; i < N; i++)
        ck_assert_msg(rig.outcomes[i].kind == (i % 2 ? VERDICT_FAILED : VERDICT_PASSED),
                      "%d: %s: %s", i, verdict_name(rig.outcomes[i].kind), rig.outcomes[i].error);
    struct verifier_stats stats;
    verifier_stats(rig.verifier, &stats);
    ck_assert_uint_ge(stats.workers_replaced, 1);
    ck_assert_uint_ge(stats.retries, 1);
    ck_assert_uint_eq(stats.verdicts[VERDICT_BROKEN], 0);
    verifier_tests_close(rig.tests);
}
END_TEST

/* The process that judges many candidates is used up by one that ends it, and by its hundredth run:
 * whoever comes next finds another, and none of these is the candidate's fault. */
START_TEST(test_candidates_after_one_that_ends_the_process) {
    static const struct {
        const char *code;
        enum verdict_kind kind;
    } cases[] = {
        {"def f(x): return 4", VERDICT_PASSED},
        {"def f(x):\n    while True: pass", VERDICT_TIMEOUT},
        {"def f(x): return 4  # 2", VERDICT_PASSED},
        {"import os\ndef f(x): os._exit(0)", VERDICT_FAILED},
        {"def f(x): return 4  # 3", VERDICT_PASSED},
        {"class C: pass\ndef f(x): return C()", VERDICT_FAILED},
        {"def f(x): return 4  # 4", VERDICT_PASSED},
    };
    enum { CASES = sizeof cases / sizeof cases[0], MANY = 230 };
    struct verifier_spec spec = plain_spec();
    spec.timeout_s = 0.5;
    ck_assert(rig_open_tests(&rig, &spec));
    for (int i = 0; i < CASES; i++) {
        rig_submit(&rig, &cases[i].code, 1);
        ck_assert_msg(rig.outcomes[0].kind == cases[i].kind, "%s: %s: %s", cases[i].code,
                      verdict_name(rig.outcomes[0].kind), rig.outcomes[0].error);
    }
    verifier_tests_close(rig.tests);
    ck_assert(rig_open_tests(&rig, &spec)); /* anew: none of its runs has ended a process yet */
    for (int i = 0; i < MANY; i++) {
        char text[64];
        const char *code = text;
        snprintf(text, sizeof text, "def f(x): return 4  # run %d", i);
        rig_submit(&rig, &code, 1);
        ck_assert_int_eq(rig.outcomes[0].kind, VERDICT_PASSED);
    }
    verifier_tests_close(rig.tests);
    struct verifier_stats stats;
    verifier_stats(rig.verifier, &stats);
    ck_assert_uint_eq(stats.retries, 0);
}
END_TEST

/* Where there is a worker for each core its candidates run there and can't leave it. */
START_TEST(test_a_core_each) {
    struct verifier_spec spec = plain_spec();
    struct verifier_options options = rig_options(3, -1);
    struct err e = {0};
    options.workers = 0;
    ck_assert_msg(rig_try_open(&rig, &options, &e), "%s", e.message);
    const struct outcome *outcome =
        rig_judge(&rig, &spec,
                  "import os\n"
                  "def f(x):\n"
                  "    if len(os.sched_getaffinity(0)) != 1: return 1\n"
                  "    try: os.sched_setaffinity(0, range(os.cpu_count()))\n"
                  "    except OSError: return 4\n");
    ck_assert_msg(outcome->kind == VERDICT_PASSED, "%s", outcome->error);
    rig_close(&rig);
}
END_TEST

/* Tests that a worker took with it are compiled by another: at whatever moment it dies. */
START_TEST(test_tests_outlive_their_worker) {
    int killed = 0; /* a worker that only just starts isn't seen, and not killed */
    for (unsigned delay = 0; delay < 12; delay += 2) {
        struct err e = {0};
        struct verifier_spec spec = plain_spec();
        rig.told = false;
        ck_assert_msg(verifier_tests_open(rig.verifier, &spec, rig_on_ready, &rig, &e), "%s",
                      e.message);
        if (delay) let_pass(delay);
        killed += kill_workers();
        while (!rig.told)
            uv_run(&rig.loop, UV_RUN_DEFAULT);
        ck_assert_msg(rig.tests != NULL, "after %u ms: %s", delay, rig.refused.message);
        const char *codes[] = {"def f(x): return 4\n"};
        rig_submit(&rig, codes, 1);
        ck_assert_msg(rig.outcomes[0].kind == VERDICT_PASSED, "after %u ms: %s: %s", delay,
                      verdict_name(rig.outcomes[0].kind), rig.outcomes[0].error);
        verifier_tests_close(rig.tests);
    }
    ck_assert_int_ge(killed, 4);
}
END_TEST

/* ---- no descriptors ---- */

/* Leaves the process `spare` descriptors more than it has. */
static struct rlimit leave_descriptors(int spare) {
    struct rlimit before, now;
    int lowest = dup(0);
    ck_assert_int_ge(lowest, 0);
    close(lowest);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    now = (struct rlimit){(rlim_t)(lowest + spare), before.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &now), 0);
    return before;
}

/* Enough workers for all tries of a job that none of them can begin: it is over before anything
 * else happens, and its owner must have it by then.  Seen by a sanitizer where it has not. */
START_TEST(test_no_descriptors) {
    struct err e = {0};
    struct verifier_options options = rig_options(3, -1);
    struct verifier_stats stats;
    options.workers = 6;
    ck_assert_msg(rig_try_open(&rig, &options, &e), "%s", e.message);
    struct verifier_spec spec = plain_spec();
    ck_assert(rig_open_tests(&rig, &spec));
    do {
        let_pass(20);
        verifier_stats(rig.verifier, &stats);
    } while (stats.workers < options.workers);
    struct rlimit before = leave_descriptors(1); /* for the code */
    const char *codes[] = {"def f(x): return 4"};
    rig_submit(&rig, codes, 1);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_int_eq(rig.outcomes[0].kind, VERDICT_BROKEN);
    verifier_tests_close(rig.tests);
    ck_assert_int_eq(rig_judge(&rig, &spec, "def f(x): return 4")->kind, VERDICT_PASSED);
    rig_close(&rig);
}
END_TEST

/* ---- leaks ---- */

static void thousand(int max_level) {
    rig_open(&rig, max_level);
    struct verifier_spec spec = plain_spec();
    spec.timeout_s = 10;
    ck_assert(rig_open_tests(&rig, &spec));
    int fds = 0, processes = 0;
    enum { BATCH = 100 };
    static char texts[BATCH][100];
    const char *codes[BATCH];
    for (int batch = 0; batch < 10; batch++) {
        for (int i = 0; i < BATCH; i++) {
            static const char *const bodies[] = {"return 4", "return 5", "raise KeyError",
                                                 "import os; os._exit(0)", "import os; os.abort()"};
            snprintf(texts[i], sizeof texts[i], "def f(x): %s  # %d\n", bodies[i % 5],
                     batch * BATCH + i);
            codes[i] = texts[i];
        }
        rig_submit(&rig, codes, BATCH);
        for (int i = 0; i < BATCH; i++) {
            static const enum verdict_kind kinds[] = {
                VERDICT_PASSED, VERDICT_FAILED, VERDICT_FAILED, VERDICT_FAILED, VERDICT_CRASHED};
            ck_assert_msg(rig.outcomes[i].kind == kinds[i % 5], "%s: %s: %s", codes[i],
                          verdict_name(rig.outcomes[i].kind), rig.outcomes[i].error);
        }
        let_pass(20);
        if (batch == 3) { /* every worker has compiled the tests by then */
            fds = rig_count_entries("/proc/self/fd");
            processes = rig_descendants(getpid(), NULL, 0);
        }
    }
    ck_assert_int_eq(rig_count_entries("/proc/self/fd"), fds);
    ck_assert_int_eq(rig_descendants(getpid(), NULL, 0), processes);
    struct verifier_stats stats;
    verifier_stats(rig.verifier, &stats);
    ck_assert_uint_eq(stats.retries + stats.workers_replaced, 0);
    verifier_tests_close(rig.tests);
    rig_close(&rig);
    ck_assert_int_eq(rig_descendants(getpid(), NULL, 0), 0);
}

START_TEST(test_thousand_without_a_leak) {
    uv_loop_t loop; /* libuv opens two descriptors with the first loop and keeps them */
    uv_loop_init(&loop);
    uv_loop_close(&loop);
    int fds = rig_count_entries("/proc/self/fd");
    thousand(_i);
    ck_assert_int_eq(rig_count_entries("/proc/self/fd"), fds);
}
END_TEST

/* ---- levels ---- */

static bool layer_is_active(const struct verifier_report *report, const char *name) {
    for (int i = 0; i < report->n_layers; i++)
        if (!strcmp(report->layers[i].name, name)) return report->layers[i].active;
    ck_abort_msg("no layer %s in the report", name);
}

static void one_verdict(void) {
    struct verifier_spec spec = plain_spec();
    ck_assert_int_eq(rig_judge(&rig, &spec, "def f(x): return 4")->kind, VERDICT_PASSED);
    ck_assert_int_eq(rig_judge(&rig, &spec, "def f(x): return 5")->kind, VERDICT_FAILED);
}

START_TEST(test_levels_by_option) {
    rig_open(&rig, _i);
    const struct verifier_report *report = verifier_report(rig.verifier);
    rig_tell_level(report, "by option");
    ck_assert_int_le(report->level, _i);
    ck_assert_int_eq(layer_is_active(report, "seccomp"), report->level >= 1);
    if (report->level < 2) ck_assert(!layer_is_active(report, "landlock"));
    ck_assert_int_eq(layer_is_active(report, "mount tree"), report->level == 3);
    ck_assert(report->python[0] == '/');
    ck_assert_int_eq(strncmp(report->python_version, "3.", 2), 0);
    one_verdict();
    rig_close(&rig);
}
END_TEST

static int abi_case; /* of a body that takes no argument */

/* As on older kernels: fewer rights to name, or no Landlock. */
static void at_landlock_abi(void) {
    struct err e = {0};
    struct verifier_options options = rig_options(abi_case % 2 ? 3 : 2, abi_case / 2);
    ck_assert_msg(rig_try_open(&rig, &options, &e), "%s", e.message);
    const struct verifier_report *report = verifier_report(rig.verifier);
    char what[40];
    snprintf(what, sizeof what, "Landlock up to ABI %d", options.max_landlock_abi);
    rig_tell_level(report, what);
    if (options.max_landlock_abi == 0) {
        ck_assert(!layer_is_active(report, "landlock"));
        /* Without Landlock files are kept away by a tree of its own or not at all. */
        ck_assert_int_eq(report->level, layer_is_active(report, "mount tree") ? 2 : 1);
    }
    one_verdict();
    if (report->level >= 2) {
        struct verifier_spec spec = plain_spec();
        ck_assert_int_eq(
            rig_judge(&rig, &spec, "def f(x):\n    return 4 if open('/etc/passwd').read() else 0\n")
                ->kind,
            VERDICT_FAILED);
    }
    rig_close(&rig);
}

START_TEST(test_landlock_abi_by_option) {
    abi_case = _i;
    at_landlock_abi();
}
END_TEST

START_TEST(test_landlock_abi_without_privileges) {
    abi_case = _i;
    if (!rig_as_user(at_landlock_abi)) printf("skipped: this container knows no other user\n");
}
END_TEST

START_TEST(test_min_level_refuses) {
    struct err e = {0};
    struct verifier_options options = rig_options(1, -1);
    options.min_level = 2;
    ck_assert(!rig_try_open(&rig, &options, &e));
    ck_assert_int_eq(e.kind, ERR_SYSTEM);
    ck_assert_ptr_nonnull(strstr(e.message, "level 1"));
    ck_assert_ptr_nonnull(strstr(e.message, "min_level"));
}
END_TEST

/* A file of the server's own user, which the candidate has too: not to be emptied or dated. */
static void keeps_files(int max_abi) {
    char path[] = "/tmp/firstpass-victim-XXXXXX", code[1024];
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "content", 7), 7);
    struct stat before, after;
    ck_assert_int_eq(fstat(fd, &before), 0);
    snprintf(code, sizeof code,
             "import os\n"
             "def f(x):\n"
             "    p, n = '%s', 0\n"
             "    for g in (lambda: os.truncate(p, 0), lambda: os.utime(p, (1, 1)),\n"
             "              lambda: os.open(p, os.O_RDONLY | os.O_TRUNC),\n"
             "              lambda: os.open(p, 3 | os.O_TRUNC), lambda: open(p, 'w')):\n"
             "        try: g()\n"
             "        except PermissionError: n += 1\n"
             "    return n - 1\n",
             path);
    struct err e = {0};
    struct verifier_options options = rig_options(2, max_abi);
    ck_assert_msg(rig_try_open(&rig, &options, &e), "%s", e.message);
    struct verifier_spec spec = plain_spec();
    bool expected = verifier_report(rig.verifier)->level >= 2;
    const struct outcome *o = rig_judge(&rig, &spec, code);
    ck_assert_int_eq(fstat(fd, &after), 0);
    close(fd);
    unlink(path);
    if (expected) {
        ck_assert_msg(o->kind == VERDICT_PASSED, "%s: %s", verdict_name(o->kind), o->error);
        ck_assert_int_eq(after.st_size, before.st_size);
        ck_assert_int_eq(after.st_mtime, before.st_mtime);
    }
    rig_close(&rig);
}

static void keeps_files_any(void) { keeps_files(-1); }
static void keeps_files_abi_2(void) { keeps_files(2); }

START_TEST(test_files_outside_stay) {
    if (!rig_as_user(_i ? keeps_files_abi_2 : keeps_files_any))
        printf("skipped: this container knows no other user\n");
}
END_TEST

/* Root of a container that knows no other uid: the candidates run as root then, without its
 * rights. */
START_TEST(test_root_without_rights) {
    if (geteuid() != 0) {
        printf("skipped: not root\n");
        return;
    }
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    ck_assert_int_eq(seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(setresuid), 0), 0);
    ck_assert_int_eq(seccomp_load(filter), 0);
    seccomp_release(filter);
    rig_open(&rig, _i);
    ck_assert(!layer_is_active(verifier_report(rig.verifier), "uid"));
    struct verifier_spec spec = plain_spec();
    const struct outcome *o =
        rig_judge(&rig, &spec,
                  "def f(x):\n"
                  "    lines = open('/proc/self/status').read().split('\\n')\n"
                  "    caps = [l.split()[1] for l in lines if l.startswith('Cap')]\n"
                  "    return 4 if len(caps) == 5 and not any(int(c, 16) for c in caps) else 0\n");
    ck_assert_msg(o->kind == VERDICT_PASSED, "%s: %s", verdict_name(o->kind), o->error);
    rig_close(&rig);
}
END_TEST

/* What Docker's default profile takes away: namespaces, mounts, clone3. */
static void deny_like_docker(void) {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    static const int denied[] = {SCMP_SYS(mount),   SCMP_SYS(umount2), SCMP_SYS(pivot_root),
                                 SCMP_SYS(unshare), SCMP_SYS(setns),   SCMP_SYS(keyctl),
                                 SCMP_SYS(bpf)};
    for (size_t i = 0; i < sizeof denied / sizeof denied[0]; i++)
        ck_assert_int_eq(seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), denied[i], 0), 0);
    const scmp_datum_t spaces = CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET |
                                CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
    for (scmp_datum_t flag = 1; flag; flag <<= 1)
        if (spaces & flag)
            ck_assert_int_eq(seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                                              SCMP_CMP(0, SCMP_CMP_MASKED_EQ, flag, flag)),
                             0);
    ck_assert_int_eq(seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0), 0);
    ck_assert_int_eq(seccomp_load(filter), 0);
    seccomp_release(filter);
}

static void in_container(void) {
    deny_like_docker();
    rig_open(&rig, 3);
    const struct verifier_report *report = verifier_report(rig.verifier);
    rig_tell_level(report, "as under Docker's default profile");
    ck_assert_int_eq(report->level, 2);
    bool named = false;
    for (int i = 0; i < report->n_layers; i++)
        named |= !strcmp(report->layers[i].name, "pid namespace") && !report->layers[i].active &&
                 report->layers[i].detail[0];
    ck_assert_msg(named, "the missing layer has no reason");
    one_verdict();
    rig_close(&rig);
}

START_TEST(test_under_docker_profile) { in_container(); }
END_TEST

START_TEST(test_under_docker_profile_without_privileges) {
    if (!rig_as_user(in_container)) printf("skipped: this container knows no other user\n");
}
END_TEST

START_TEST(test_bad_python) {
    static const struct {
        const char *python, *message;
    } cases[] = {
        {"/nonexistent/python3", "can't be run"},
        {"/bin/true", "no Python that works"},
        {"/bin/echo", "no Python that works"},
        {"/etc/passwd", "can't be run"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err e = {0};
        struct verifier_options options = rig_options(3, -1);
        options.python = cases[i].python;
        ck_assert(!rig_try_open(&rig, &options, &e));
        ck_assert_msg(strstr(e.message, cases[i].message) != NULL, "%s", e.message);
        ck_assert_msg(strstr(e.message, cases[i].python) != NULL, "%s", e.message);
    }
}
END_TEST

/* Opened for its report only, as `doctor` does. */
/* Uids of all processes below this one, each once, in order; how many. */
static int uids_below(unsigned *uids, int max) {
    pid_t below[256];
    int n = rig_descendants(getpid(), below, 256), found = 0;
    for (int i = 0; i < n && i < 256; i++) {
        char path[64];
        struct stat st;
        snprintf(path, sizeof path, "/proc/%d", (int)below[i]);
        if (stat(path, &st)) continue;
        bool known = false;
        for (int k = 0; k < found; k++)
            known = known || uids[k] == st.st_uid;
        if (!known && found < max) uids[found++] = st.st_uid;
    }
    return found;
}

/* Processes are counted by uid: a server whose candidates have many must not take another's away.
 */
START_TEST(test_two_servers_share_no_uid) {
    enum { MOST = 32, EACH = 2 };
    static const char threads[] =
        "import threading\nthreading.stack_size(65536)\ndef f(x):\n    stop = threading.Event()\n  "
        "  all = "
        "[threading.Thread(target=stop.wait) for _ in range(40)]\n    for t in all: t.start()\n"
        "    import time; time.sleep(0.5); stop.set()\n    return 2 * x  # %d\n";
    if (geteuid() != 0) {
        printf("skipped: only root can give workers uids of their own\n");
        return;
    }
    static struct rig first, second;
    struct rig *rigs[] = {&first, &second};
    char texts[2][EACH][sizeof threads + 10];
    rig_open(&first, 3);
    rig_open(&second, 3);
    struct verifier_spec spec = rig_spec(VERIFIER_ASSERTS, "assert f(2) == 4\n");
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(rig_open_tests(rigs[i], &spec), "%s", rigs[i]->refused.message);
        rigs[i]->pending = EACH;
        for (int k = 0; k < EACH; k++) {
            snprintf(texts[i][k], sizeof texts[i][k], threads, k);
            verifier_submit(rigs[i]->tests, k, texts[i][k], strlen(texts[i][k]), false,
                            rig_on_verdict, rigs[i]);
        }
    }
    while (first.pending || second.pending) {
        uv_run(&first.loop, UV_RUN_NOWAIT);
        uv_run(&second.loop, UV_RUN_NOWAIT);
        usleep(1000);
    }
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < EACH; k++)
            ck_assert_msg(rigs[i]->outcomes[k].kind == VERDICT_PASSED, "%s",
                          rigs[i]->outcomes[k].error);
    unsigned uids[MOST];
    int n = 0, all = uids_below(uids, MOST);
    unsigned least = 65534; /* a server that runs beside this test has others */
    for (int i = 0; i < all; i++) {
        bool ours = uids[i] >= 64001 && uids[i] <= 65533;
        n += ours;
        if (ours && uids[i] < least) least = uids[i];
    }
    ck_assert_int_eq(n, EACH + EACH); /* two workers of each */
    verifier_tests_close(first.tests);
    verifier_tests_close(second.tests);
    rig_close(&first);
    rig_close(&second);
    /* They are free again. */
    rig_open(&first, 3);
    spec.priority = 1;
    ck_assert_int_eq(rig_judge(&first, &spec, "def f(x): return 2 * x")->kind, VERDICT_PASSED);
    all = uids_below(uids, MOST);
    for (int i = 0; i < all; i++)
        ck_assert_uint_lt(uids[i], least + EACH + 1);
    rig_close(&first);
}
END_TEST

START_TEST(test_never_attached) {
    struct err e = {0};
    struct verifier_options options = rig_options(3, -1);
    struct verifier *v = verifier_open(&options, &e);
    ck_assert_msg(v != NULL, "%s", e.message);
    ck_assert_int_ge(verifier_report(v)->level, 0);
    verifier_free(v);
    ck_assert_int_eq(rig_descendants(getpid(), NULL, 0), 0);
}
END_TEST

/* The server dies by SIGKILL: nothing of the box lives on. */
START_TEST(test_nothing_survives_the_server) {
    int pipe_fds[2];
    ck_assert_int_eq(pipe(pipe_fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        rig_open(&rig, _i);
        struct verifier_spec spec = plain_spec();
        spec.timeout_s = 100;
        ck_assert(rig_open_tests(&rig, &spec));
        static const char code[] = "def f(x):\n    while 1: pass\n";
        verifier_submit(rig.tests, 0, code, strlen(code), false, must_not_come, NULL);
        let_pass(300);
        pid_t all[64];
        int n = rig_descendants(getpid(), all, 64);
        ck_assert_int_eq(write(pipe_fds[1], &n, sizeof n), sizeof n);
        ck_assert_int_eq(write(pipe_fds[1], all, sizeof all), sizeof all);
        pause();
    }
    pid_t all[64];
    int n;
    ck_assert_int_eq(read(pipe_fds[0], &n, sizeof n), sizeof n);
    ck_assert_int_eq(read(pipe_fds[0], all, sizeof all), sizeof all);
    ck_assert_int_ge(n, 4); /* keeper, two workers, the candidate at least */
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    int alive = n;
    for (int wait = 0; wait < 500 && alive; wait++) {
        usleep(10000);
        alive = 0;
        for (int i = 0; i < n && i < 64; i++) {
            char path[64];
            snprintf(path, sizeof path, "/proc/%d/exe", (int)all[i]);
            char target[64]; /* a zombie has none */
            alive += !kill(all[i], 0) && readlink(path, target, sizeof target) >= 0;
        }
    }
    ck_assert_int_eq(alive, 0);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("pool");
    TCase *tc = tcase_create("with a verifier");
    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, open_rig, close_rig);
    tcase_add_test(tc, test_equal_codes_run_once);
    tcase_add_test(tc, test_cancel);
    tcase_add_test(tc, test_cancel_one_of_two_waiters);
    tcase_add_test(tc, test_close_within_callback);
    tcase_add_test(tc, test_close_with_work_under_way);
    tcase_add_test(tc, test_more_objects_than_are_kept);
    tcase_add_test(tc, test_killed_workers_are_replaced);
    tcase_add_test(tc, test_candidates_after_one_that_ends_the_process);
    tcase_add_test(tc, test_tests_outlive_their_worker);
    suite_add_tcase(suite, tc);
    tc = tcase_create("levels");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, test_thousand_without_a_leak, 2, 4);
    tcase_add_loop_test(tc, test_levels_by_option, 0, 4);
    tcase_add_loop_test(tc, test_landlock_abi_by_option, 0, 16);
    tcase_add_loop_test(tc, test_landlock_abi_without_privileges, 0, 16);
    tcase_add_test(tc, test_min_level_refuses);
    tcase_add_test(tc, test_under_docker_profile);
    tcase_add_test(tc, test_under_docker_profile_without_privileges);
    tcase_add_test(tc, test_bad_python);
    tcase_add_test(tc, test_two_servers_share_no_uid);
    tcase_add_test(tc, test_a_core_each);
    tcase_add_test(tc, test_never_attached);
    tcase_add_loop_test(tc, test_nothing_survives_the_server, 0, 4);
    suite_add_tcase(suite, tc);
    tc = tcase_create("descriptors");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_no_descriptors);
    suite_add_tcase(suite, tc);
    tc = tcase_create("rights");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_files_outside_stay, 0, 2);
    tcase_add_loop_test(tc, test_root_without_rights, 0, 2);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
