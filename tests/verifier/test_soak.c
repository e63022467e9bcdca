/* Many verdicts in a row, hostile candidates among them: nothing leaks, and no honest verdict
 * changes.  Also what carries over from one run to the next: nothing; and who waits for whom.
 *
 * FIRSTPASS_SOAK=N: N verdicts (100000 takes about ten minutes on two cores); 3000 without. */
#include "tests/verifier/rig.h"

#include <time.h>

static struct rig rig;

static void open_rig(void) { rig_open(&rig, 3); }
static void close_rig(void) { rig_close(&rig); }

static struct verifier_spec spec_of(const char *tests) {
    struct verifier_spec spec = rig_spec(VERIFIER_ASSERTS, tests);
    spec.extract = VERIFIER_EXTRACT_RAW;
    spec.timeout_s = 10;
    return spec;
}

/* ---- the soak ---- */

enum { BATCH = 400, HOSTILE_EACH = 100, SETTLED = 2 };

/* Each means harm to those after it or to the verdict; none may pass. */
static const char *const hostile[] = {
    "import os\ndef f(x): os._exit(0)",
    "import os\ndef f(x): os.abort()",
    "import sys\ndef f(x): sys.exit(0)",
    "import os\ndef f(x):\n    for fd in range(3, 64):\n        try: os.write(fd, b'P' * 60)\n     "
    "   except OSError: pass\n    "
    "return 5",
    "import os, signal\ndef f(x):\n    try: os.kill(os.getppid(), signal.SIGKILL)\n    except "
    "OSError: pass\n    return 5",
    "def f(x): return [0] * 10 ** 10",
    "def f(x):\n    while True: print('x' * 65536)",
    "import os\ndef f(x):\n    while True: os.fork()",
    "import threading, time\ndef f(x):\n    while True: threading.Thread(target=time.sleep, "
    "args=(9,)).start()",
    "import tempfile\ndef f(x):\n    return [tempfile.TemporaryFile(dir='.') for _ in range(200)] "
    "and 5",
    "import os\ndef f(x):\n    for i in range(50):\n        try: os.mkdir('d%d' % i); open('d%d/f' "
    "% i, 'w').write('x')\n        "
    "except OSError: pass\n    return 5",
    "class Liar(int):\n    def __eq__(self, other): return True\ndef f(x): return Liar(5)",
    "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(x): return f(x) + 1",
    "import gc\ndef f(x):\n    for o in gc.get_objects():\n        try: o.clear()\n        except "
    "Exception: pass\n    return 5",
    "import builtins\nbuiltins.len = builtins.sum = lambda *a: 4\ndef f(x): return 5",
};
enum { N_HOSTILE = sizeof hostile / sizeof hostile[0] };

/* Kilobytes of memory of a process. */
static long memory_kb(pid_t pid) {
    char path[64], line[256];
    long kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, "VmRSS:", 6)) kb = strtol(line + 6, NULL, 10);
    fclose(f);
    return kb;
}

static void on_tick(uv_timer_t *timer) { uv_stop(timer->loop); }

/* What ends just now has time to be heard of. */
static void let_settle(void) {
    uv_timer_t timer;
    uv_timer_init(&rig.loop, &timer);
    uv_timer_start(&timer, on_tick, 200, 0);
    uv_run(&rig.loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&rig.loop, UV_RUN_NOWAIT);
}

/* A clean directory, clean builtins and a new process: what an honest candidate may count on. */
static const char honest[] =
    "import builtins, os, threading\n"
    "def f(x):\n"
    "    try: left = os.listdir('.')\n"
    "    except OSError: left = []\n"
    "    if left and os.getcwd() != '/': return 'left: %%r' %% left\n"
    "    if len('abc') != 3 or threading.active_count() != 1: return 'not clean'\n"
    "    return %d + 0 * %d\n";

static int fill(char texts[BATCH][900], const char **codes, int *n_made) {
    int n_hostile = 0;
    for (int i = 0; i < BATCH; i++) {
        int number = (*n_made)++;
        if (number % HOSTILE_EACH == 7) {
            snprintf(texts[i], sizeof texts[i], "%s  # %d\n", hostile[n_hostile % N_HOSTILE],
                     number);
            n_hostile++;
        } else {
            snprintf(texts[i], sizeof texts[i], honest, number % 3 ? 4 : 5, number);
        }
        codes[i] = texts[i];
    }
    return n_hostile;
}

/* Of this process and all below it. */
static long memory_of_all(void) {
    pid_t below[64];
    int n = rig_descendants(getpid(), below, 64);
    long kb = memory_kb(getpid());
    for (int i = 0; i < n && i < 64; i++)
        kb += memory_kb(below[i]);
    return kb;
}

START_TEST(test_many) {
    const char *wanted = getenv("FIRSTPASS_SOAK");
    int n = wanted ? (int)strtol(wanted, NULL, 10) : 3000, n_made = 0, n_hostile = 0, wrong = 0;
    static char texts[BATCH][900];
    const char *codes[BATCH];
    struct verifier_spec spec = spec_of("assert f(2) == 4\n");
    spec.timeout_s = 1;
    int fds = 0, processes = 0;
    long memory = 0;
    for (int batch = 0; n_made < n; batch++) {
        ck_assert_msg(rig_open_tests(&rig, &spec), "%s", rig.refused.message);
        n_hostile += fill(texts, codes, &n_made);
        rig_submit(&rig, codes, BATCH);
        for (int i = 0; i < BATCH; i++) {
            int number = n_made - BATCH + i;
            const struct outcome *o = &rig.outcomes[i];
            bool mean = number % HOSTILE_EACH == 7;
            bool right = mean ? o->kind != VERDICT_PASSED && o->kind != VERDICT_BROKEN
                              : o->kind == (number % 3 ? VERDICT_PASSED : VERDICT_FAILED) &&
                                    (number % 3 || strstr(o->error, "f(2) == 4"));
            if (!right && ++wrong < 10)
                printf("%s\n-> %s: %s\n", codes[i], verdict_name(o->kind), o->error);
        }
        verifier_tests_close(rig.tests);
        let_settle();
        if (batch == SETTLED) {
            fds = rig_count_entries("/proc/self/fd");
            processes = rig_descendants(getpid(), NULL, 0);
            memory = memory_of_all();
        }
    }
    struct verifier_stats stats;
    verifier_stats(rig.verifier, &stats);
    printf("%d verdicts, %d of hostile code, %d wrong; descriptors %d then %d, processes %d then "
           "%d, memory %ld then %ld KiB; "
           "workers replaced %d, broken runs %d\n",
           n_made, n_hostile, wrong, fds, rig_count_entries("/proc/self/fd"), processes,
           rig_descendants(getpid(), NULL, 0), memory, memory_of_all(), (int)stats.workers_replaced,
           (int)stats.retries);
    fflush(stdout);
    ck_assert_int_eq(wrong, 0);
    ck_assert_int_eq(rig_count_entries("/proc/self/fd"), fds);
    ck_assert_int_eq(rig_descendants(getpid(), NULL, 0), processes);
    ck_assert_int_le(memory_of_all(), memory + 32L * 1024);
}
END_TEST

/* ---- what carries over: nothing ---- */

/* Tests that would remember an earlier candidate, if they could. */
static const char *const remembering[] = {
    /* run by one process many times: each time from the start */
    "seen = []\ndef g():\n    seen.append(f(1))\n    assert len(seen) == 1\ng()\nassert f(1) == "
    "4\n",
    "import random\nassert f(1) == 4 and random.random() is not None\n",
    "counts = {}\ncounts[f(1)] = counts.get(f(1), 0) + 1\nassert counts == {4: 1}\n",
    /* a process each, since these change what outlives a run */
    "import math\nassert not hasattr(math, 'seen'), 'seen before'\nmath.seen = 1\nassert f(1) == "
    "4\n",
    "import builtins\nassert not hasattr(builtins, 'seen'), 'seen before'\nsetattr(builtins, "
    "'seen', 1)\nassert f(1) == 4\n",
    "import sys\nassert 'seen' not in sys.modules, 'seen before'\nsys.modules['seen'] = "
    "sys\nassert f(1) == 4\n",
    "import copy\nassert 7 not in copy.dispatch_table, 'seen before'\ncopy.dispatch_table[7] = "
    "1\nassert f(1) == 4\n",
    "import decimal\nassert decimal.getcontext().prec == 28, 'seen "
    "before'\ndecimal.getcontext().prec = 5\nassert f(1) == 4\n",
    "def g():\n    yield\nb = g().gi_frame.f_builtins\nassert 'seen' not in b, 'seen "
    "before'\nb['seen'] = 1\nassert f(1) == 4\n",
    "import heapq, functools\ndef g(*a): return 9\nassert heapq.merge(1) != 9, 'seen before'\n"
    "functools.update_wrapper(heapq.merge, g, assigned=('__code__',))\nassert f(1) == 4\n",
    /* what they forgot to import is given to them */
    "assert 'seen' not in os.environ, 'seen before'\nos.environ['seen'] = '1'\nassert f(1) == 4\n",
    "assert sys.getrecursionlimit() != 900, 'seen before'\nsys.setrecursionlimit(900)\nassert f(1) "
    "== 4\n",
    "assert decimal.getcontext().prec == 28, 'seen "
    "before'\ndecimal.setcontext(decimal.Context(prec=9))\nassert f(1) == 4\n",
    "assert gc.isenabled(), 'seen before'\ngc.disable()\nassert f(1) == 4\n",
    /* modules by other names, and out of others */
    "import re as r\nassert 'seen' not in r.enum.sys.modules, 'seen "
    "before'\nr.enum.sys.modules['seen'] = r\nassert f(1) == 4\n",
    "import random\nr = random\nassert 'seen' not in r._os.environ, 'seen "
    "before'\nr._os.environ['seen'] = '1'\nassert f(1) == 4\n",
    "import string, heapq\ng = string.Formatter().get_field('0.__globals__', (heapq.merge,), "
    "{})[0]\nassert 'seen' not in g, 'seen before'\ng['seen'] = 1\nassert f(1) == 4\n",
    "import typing, fractions\nassert not isinstance(fractions.Fraction(1), typing.Sized), 'seen "
    "before'\ntyping.Sized.register(fractions.Fraction)\nassert f(1) == 4\n",
    /* a generator's end, when it is collected: in the next one's run */
    "def g():\n    try:\n        yield f(1)\n    finally:\n        f(1)\nkept = [g()]\n"
    "kept.append(kept)\nassert next(kept[0]) == 4\n",
    "seen = []\nseen.append(seen)\nseen.append(lambda: seen)\nassert f(1) == 4\nassert len(seen) "
    "== 2\n",
};

START_TEST(test_runs_know_nothing_of_each_other) {
    enum { N = 24 };
    static char texts[N][80];
    const char *codes[N];
    struct verifier_spec spec = spec_of(remembering[_i]);
    ck_assert_msg(rig_open_tests(&rig, &spec), "%s", rig.refused.message);
    for (int i = 0; i < N; i++) {
        snprintf(texts[i], sizeof texts[i], "def f(x): return %d  # %d\n", i % 4 ? 4 : 5, i);
        codes[i] = texts[i];
    }
    rig_submit(&rig, codes, N);
    for (int i = 0; i < N; i++)
        ck_assert_msg(rig.outcomes[i].kind == (i % 4 ? VERDICT_PASSED : VERDICT_FAILED), "%s%s: %s",
                      codes[i], verdict_name(rig.outcomes[i].kind), rig.outcomes[i].error);
    verifier_tests_close(rig.tests);
}
END_TEST

/* Candidates after one that would leave something in the tests' process. */
static const struct {
    const char *tests, *first, *second; /* the first fails */
} leaving[] = {
    /* a value of its own as the key of a cache, whose handle is another's number in the next */
    {"import re\nf(0)\nassert re.compile(f(1)).pattern.tag() == 4\n",
     "class S(str):\n    def tag(self): return 5\ndef f(x): return S('a') if x else None\n",
     "class S(str):\n    def tag(self): return 4 if self == 'a' else 6\n"
     "def f(x): return S('a') if x else S('b')\n"},
    /* room */
    {"def g(): pass\ngot = f(20)\nassert len(got) == 20\n",
     "def f(x): return [str(i) * 9 for i in range(500000)]\n",
     "def f(x): return ['x' * 1500000 + str(i) for i in range(x)]\n"},
    /* a class of errors by a name of its own */
    {"try:\n    f(1)\nexcept ValueError as error:\n    assert 'four' in str(error)\n",
     "class ValueError(ValueError): pass\ndef f(x): raise ValueError('five')\n",
     "def f(x): raise ValueError('four')\n"},
    /* functions of the tests, kept by the candidate and called at odd times */
    {"n = [0]\ndef g(): n[0] += 1\nf(g)\nassert f(n) == 4\n",
     "def f(x):\n    if callable(x):\n        for _ in range(9): x()\n    return 5\n",
     "def f(x): return 4 if callable(x) or x == [0] else x\n"},
};

START_TEST(test_a_candidate_leaves_nothing) {
    enum { PAIRS = 8 };
    static char texts[2 * PAIRS][400];
    const char *codes[2 * PAIRS]; /* two of each in turn: each of two workers meets both kinds */
    struct verifier_spec spec = spec_of(leaving[_i].tests);
    ck_assert_msg(rig_open_tests(&rig, &spec), "%s", rig.refused.message);
    for (int i = 0; i < 2 * PAIRS; i++) {
        snprintf(texts[i], sizeof texts[i], "%s# %d\n",
                 i / 2 % 2 ? leaving[_i].second : leaving[_i].first, i);
        codes[i] = texts[i];
    }
    rig_submit(&rig, codes, 2 * PAIRS);
    for (int i = 0; i < 2 * PAIRS; i++)
        ck_assert_msg(rig.outcomes[i].kind == (i / 2 % 2 ? VERDICT_PASSED : VERDICT_FAILED),
                      "%s%s: %s", codes[i], verdict_name(rig.outcomes[i].kind),
                      rig.outcomes[i].error);
    verifier_tests_close(rig.tests);
}
END_TEST

/* ---- once more alone ---- */

/* The first run begins before a moment that it doesn't live to see, the second one after it. */
START_TEST(test_a_timeout_beside_others_is_run_again) {
    static const char slow[] = "import time\n"
                               "began = time.time()\n"
                               "def f(x):\n"
                               "    while x == 2 and began < %ld: pass\n"
                               "    return %s\n";
    char late[400], wrong[400];
    struct verifier_stats stats;
    struct verifier_spec spec = spec_of("assert f(1) == 4\nassert f(2) == 4\n");
    spec.timeout_s = 5;
    spec.score = true;
    ck_assert_msg(rig_open_tests(&rig, &spec), "%s", rig.refused.message);
    long until = (long)time(NULL) + 4;
    snprintf(late, sizeof late, slow, until, "4");
    snprintf(wrong, sizeof wrong, slow, until, "4 if x == 2 else 5"); /* it could not have won */
    const char *codes[] = {late, wrong};
    rig_submit(&rig, codes, 2);
    verifier_stats(rig.verifier, &stats);
    ck_assert_msg(rig.outcomes[0].kind == VERDICT_PASSED, "%s", rig.outcomes[0].error);
    ck_assert_int_eq(rig.outcomes[1].kind, VERDICT_TIMEOUT);
    ck_assert_uint_eq(stats.reruns, 1);
    verifier_tests_close(rig.tests);
}
END_TEST

/* ---- who waits for whom ---- */

enum { FLOOD = 40 };
static int n_flood,
    flood_before; /* verdicts of the flood, and how many had come before the other's */

static void on_flood(void *arg, int index, const struct verdict *v) {
    (void)arg;
    (void)index;
    ck_assert_int_eq(v->kind, VERDICT_FAILED);
    n_flood++;
}

static void on_quick(void *arg, int index, const struct verdict *v) {
    (void)index;
    ck_assert_int_eq(v->kind, VERDICT_PASSED);
    if (--*(int *)arg == 0) flood_before = n_flood;
}

/* One tests object with many slow candidates, another that comes later with a few quick ones. */
START_TEST(test_a_flood_slows_itself_only) {
    struct verifier_spec spec = spec_of("assert f(2) == 4\n");
    ck_assert(rig_open_tests(&rig, &spec));
    struct verifier_tests *flood = rig.tests;
    ck_assert(rig_open_tests(&rig, &spec));
    n_flood = flood_before = 0;
    for (int i = 0; i < FLOOD; i++) {
        char code[160];
        snprintf(code, sizeof code, "import time\ndef f(x):\n    time.sleep(0.2)\n    return %d\n",
                 i + 100);
        verifier_submit(flood, i, code, strlen(code), false, on_flood, NULL);
    }
    int left = 5;
    for (int i = 0; i < 5; i++) {
        char code[80];
        snprintf(code, sizeof code, "def f(x): return 4  # %d\n", i);
        verifier_submit(rig.tests, i, code, strlen(code), false, on_quick, &left);
    }
    while (left)
        uv_run(&rig.loop, UV_RUN_ONCE);
    ck_assert_msg(flood_before < FLOOD / 2, "%d verdicts of the flood came before the other's five",
                  flood_before);
    verifier_tests_close(flood);
    verifier_tests_close(rig.tests);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("soak");
    TCase *tc = tcase_create("many");
    tcase_add_checked_fixture(tc, open_rig, close_rig);
    tcase_set_timeout(tc, 7200);
    tcase_add_test(tc, test_many);
    suite_add_tcase(suite, tc);
    tc = tcase_create("between runs");
    tcase_add_checked_fixture(tc, open_rig, close_rig);
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, test_runs_know_nothing_of_each_other, 0,
                        (int)(sizeof remembering / sizeof remembering[0]));
    tcase_add_loop_test(tc, test_a_candidate_leaves_nothing, 0,
                        (int)(sizeof leaving / sizeof leaving[0]));
    tcase_add_test(tc, test_a_timeout_beside_others_is_run_again);
    tcase_add_test(tc, test_a_flood_slows_itself_only);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
