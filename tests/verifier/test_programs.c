/* Programs with a standard input: limits, kinds of ends, what is told; the comparison of outputs;
 * what makes runs repeat themselves. */
#include "tests/verifier/rig.h"
#include "verifier/cases.h"
#include "verifier/compare.h"
#include "verifier/feedback.h"

#include <stdio.h>

static struct rig rig;

static void open_rig(void) { rig_open(&rig, 3); }
static void close_rig(void) { rig_close(&rig); }

/* ---- comparison ---- */

static const struct {
    struct compare how;
    const char *got, *expected;
    int line; /* 0: equal */
} outputs[] = {
    {{0}, "", "", 0},
    {{0}, "a\n", "a", 0},
    {{0}, "a  \nb\t\n\n\n", "a\nb", 0},
    {{0}, "a\r\nb\r\n", "a\nb\n", 0},
    {{0}, "a b", "a  b", 0},
    {{0}, "a\nb", "a b", 1},
    {{0}, "a b", "b a", 1},
    {{0}, "a\na", "a", 2},
    {{0}, "a\n\nb", "a\nb", 2},
    {{0}, "1", "1.0", 0},
    {{0}, "+1", "1", 0},
    {{0}, "01", "1", 0},
    {{0}, "-0", "0", 0},
    {{0}, "0.10", ".1", 0},
    {{0}, "1e3", "1000", 0},
    {{0}, "1E-2", "0.01", 0},
    {{0}, "100000000000000000000000000001", "100000000000000000000000000002", 1},
    {{0}, "0.1000000000000000000001", "0.1", 1},
    {{0}, "1.5.1", "1.51", 1},
    {{0}, "1e", "1", 1},
    {{0}, "e1", "1", 1},
    {{0}, "-", "0", 1},
    {{0}, ".", "0", 1},
    {{0}, "-1", "1", 1},
    {{0}, "1e999999999999999999999", "1", 1},
    {{0}, "nan", "nan", 0},
    {{0}, "Yes", "YES", 1},
    {{0}, "1 2 3", "1 2", 1},
    {{0}, "1 2", "1 2 3", 1},
    {{.abs_tol = 1e-6}, "0.3333333", "0.3333334", 0},
    {{.abs_tol = 1e-9}, "0.3333333", "0.3333334", 1},
    {{.rel_tol = 1e-6}, "1000000.5", "1000000", 0},
    {{.rel_tol = 1e-6}, "x 1.0000001\n2", "x 1\n3", 2},
    {{.abs_tol = 0.1}, "nan", "1", 1},
    {{.abs_tol = 1e9}, "inf", "1", 1},
    {{.exact = true}, "a", "a\n", 1},
    {{.exact = true}, "a\nb ", "a\nb ", 0},
    {{.exact = true}, "a\nb c", "a\nb  c", 2},
    {{.exact = true}, "1", "1.0", 1},
};

START_TEST(test_compare) {
    int line;
    /* Exact copies, so that a sanitizer sees one byte too many. */
    size_t got_len = strlen(outputs[_i].got), expected_len = strlen(outputs[_i].expected);
    char *got = malloc(got_len ? got_len : 1), *expected = malloc(expected_len ? expected_len : 1);
    memcpy(got, outputs[_i].got, got_len);
    memcpy(expected, outputs[_i].expected, expected_len);
    bool equal = compare_output(&outputs[_i].how, got, got_len, expected, expected_len, &line);
    ck_assert_msg(equal == !outputs[_i].line, "<%s> and <%s>: %d", outputs[_i].got,
                  outputs[_i].expected, equal);
    if (!equal && !outputs[_i].how.exact) ck_assert_int_eq(line, outputs[_i].line);
    free(got);
    free(expected);
}
END_TEST

/* ---- cases ---- */

static const struct {
    enum verifier_format format;
    const char *text;
    int n;             /* -1: refused; -2: of a function */
    const char *words; /* of the refusal */
} shapes[] = {
    {VERIFIER_STDIO, "[{\"input\":\"a\",\"output\":\"b\"}]", 1, ""},
    {VERIFIER_STDIO, "{\"cases\":[{\"input\":\"a\",\"output\":\"b\",\"hidden\":true}]}", 1, ""},
    {VERIFIER_STDIO, "{\"inputs\":[\"a\",[\"b\",\"c\"]],\"outputs\":[\"b\",\"\"]}", 2, ""},
    {VERIFIER_APPS, "{\"inputs\":[[1]],\"outputs\":[1],\"fn_name\":\"f\"}", -2, ""},
    {VERIFIER_LIVECODEBENCH, "[{\"input\":\"1\",\"output\":\"1\",\"testtype\":\"functional\"}]", -2,
     ""},
    {VERIFIER_LIVECODEBENCH,
     "{\"public_test_cases\":\"[{\\\"input\\\":\\\"1\\\",\\\"output\\\":"
     "\\\"1\\\",\\\"testtype\\\":\\\"stdin\\\"}]\"}",
     1, ""},
    {VERIFIER_LIVECODEBENCH, "{\"public_test_cases\":[],\"private_test_cases\":\"eJxrYE==\"}", -1,
     "decode"},
    {VERIFIER_STDIO, "", -1, "no JSON"},
    {VERIFIER_STDIO, "[", -1, "no JSON"},
    {VERIFIER_STDIO, "5", -1, "no JSON"},
    {VERIFIER_STDIO, "[]", -1, "no case"},
    {VERIFIER_STDIO, "{}", -1, "no case"},
    {VERIFIER_STDIO, "[1]", -1, "must be an object"},
    {VERIFIER_STDIO, "[{\"input\":\"a\"}]", -1, "needs an input and an output"},
    {VERIFIER_STDIO, "[{\"input\":1,\"output\":\"b\"}]", -1, "must be strings"},
    {VERIFIER_STDIO, "{\"inputs\":[\"a\"],\"outputs\":[]}", -1, "equal length"},
    {VERIFIER_STDIO, "{\"inputs\":[[1]],\"outputs\":[\"\"]}", -1, "must be strings"},
    {VERIFIER_STDIO, "{\"cases\":[],\"compare\":\"set\"}", -1, "tokens"},
    {VERIFIER_STDIO, "{\"cases\":[],\"abs_tol\":-1}", -1, "abs_tol"},
    {VERIFIER_STDIO, "{\"cases\":[],\"rel_tol\":\"x\"}", -1, "rel_tol"},
    {VERIFIER_STDIO, "{\"cases\":[],\"checker\":5}", -1, "checker"},
    {VERIFIER_STDIO, "{\"cases\":{\"a\":1}}", -1, "must be a list"},
};

START_TEST(test_cases) {
    struct cases cases;
    struct err e = {0};
    bool ok = cases_read(shapes[_i].format, shapes[_i].text, strlen(shapes[_i].text), &cases, &e);
    ck_assert_msg(ok == (shapes[_i].n != -1), "%s: %s", shapes[_i].text, e.message);
    if (!ok) {
        ck_assert_str_eq(e.param, "tests");
        ck_assert_msg(strstr(e.message, shapes[_i].words) != NULL, "%s", e.message);
    } else {
        ck_assert_int_eq(cases.functional, shapes[_i].n == -2);
        if (!cases.functional) ck_assert_int_eq(cases.n, shapes[_i].n);
    }
    cases_clear(&cases);
}
END_TEST

START_TEST(test_deep_cases) {
    struct cases cases;
    struct err e = {0};
    char *text = err_alloc(300001, 1);
    memset(text, '[', 300000); /* before any parser recurses */
    ck_assert(!cases_read(VERIFIER_STDIO, text, 300000, &cases, &e));
    ck_assert_ptr_nonnull(strstr(e.message, "too deep"));
    for (int i = 0; i < 300000; i++)
        text[i] = "[],"[i % 3];
    ck_assert(!cases_read(VERIFIER_STDIO, text, 300000, &cases, &e));
    free(text);
}
END_TEST

/* ---- ends of programs ---- */

static const struct {
    const char *code;
    enum verdict_kind kind;
    const char *limit, *error;
} ends[] = {
    {"print(2 * int(input()))", VERDICT_PASSED, "", ""},
    {"while True: pass", VERDICT_TIMEOUT, "cpu_time", "CPU time"},
    {"import time\ntime.sleep(99)", VERDICT_TIMEOUT, "wall_time", "wall clock"},
    {"x = [0] * 10 ** 10", VERDICT_MEMORY, "memory", ""},
    {"import sys\nwhile True: sys.stdout.write('x' * 99999)", VERDICT_OUTPUT_LIMIT, "output", ""},
    {"import sys\nwhile True: sys.stderr.write('x' * 99999)", VERDICT_OUTPUT_LIMIT, "output", ""},
    {"import os\nos.abort()", VERDICT_CRASHED, "", "signal 6"},
    {"import os\nos.kill(os.getpid(), 9)", VERDICT_MEMORY, "memory", "killed"},
    {"import os\nprint(6)\nos.fork()", VERDICT_FAILED, "", "PermissionError"},
    {"open('/etc/passwd')", VERDICT_FAILED, "", "Error"},
    {"import socket\nsocket.create_connection(('127.0.0.1', 80))", VERDICT_FAILED, "", "Error"},
    {"import os\nos.write(3, b'x')", VERDICT_FAILED, "", "OSError"},
    {"import os\nos.write(4, b'x')", VERDICT_FAILED, "", "OSError"},
    {"open('a', 'wb').write(b'x' * (64 << 20))", VERDICT_FAILED, "", ""},
    {"import os\nopen('a.txt', 'w').write('6')\nprint(open('a.txt').read())\nprint(*os.listdir('.')"
     ", file=__import__('sys').stderr)",
     VERDICT_PASSED, "", ""},
    {"print(6)\nimport sys\nsys.exit(0)", VERDICT_PASSED, "", ""},
    {"print(6)\nimport sys\nsys.exit('bad')", VERDICT_FAILED, "", "bad"},
    {"print(6)\nraise SystemExit(256)", VERDICT_PASSED, "", ""}, /* as the shell sees it */
    {"import sys\nsys.stdout.buffer.write(b'\\xff6')", VERDICT_FAILED, "", "line 1"},
    {"import sys\nsys.stdout.close()", VERDICT_FAILED, "", "case 1"},
    {"import atexit\natexit.register(print, 6)", VERDICT_PASSED, "", ""},
    {"import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print(6))).start()",
     VERDICT_PASSED, "", ""},
    {"import os\nprint(6 if not os.environ.get('FIRSTPASS_TEST_SECRET') else 7)", VERDICT_PASSED,
     "", ""},
    {"", VERDICT_FAILED, "", ""},
};
enum { N_ENDS = sizeof ends / sizeof ends[0] };

START_TEST(test_ends) {
    const char *codes[N_ENDS];
    for (int i = 0; i < N_ENDS; i++)
        codes[i] = ends[i].code;
    struct verifier_spec spec =
        rig_spec(VERIFIER_STDIO, "[{\"input\":\"3\\n\",\"output\":\"6\\n\"}]");
    spec.timeout_s = 1;
    spec.extract = VERIFIER_EXTRACT_RAW;
    ck_assert_msg(rig_open_tests(&rig, &spec), "%s", rig.refused.message);
    rig_submit(&rig, codes, N_ENDS);
    verifier_tests_close(rig.tests);
    for (int i = 0; i < N_ENDS; i++) {
        const struct outcome *o = &rig.outcomes[i];
        ck_assert_msg(o->kind == ends[i].kind, "%s: %s (%s), wanted %s | %s", codes[i],
                      verdict_name(o->kind), o->error, verdict_name(ends[i].kind), o->output);
        ck_assert_msg(strstr(o->error, ends[i].error) != NULL, "%s: %s", codes[i], o->error);
        ck_assert_msg(!strcmp(o->limit, ends[i].limit), "%s: limit %s", codes[i], o->limit);
        ck_assert_str_eq(o->trust, "stdio");
    }
}
END_TEST

/* A program can't see its expected output, the next case, or what another one left. */
START_TEST(test_nothing_crosses) {
    struct verifier_spec spec =
        rig_spec(VERIFIER_STDIO,
                 "[{\"input\":\"\",\"output\":\"none\"},{\"input\":\"\",\"output\":\"none\"}]");
    const struct outcome *o =
        rig_judge(&rig, &spec,
                  "import os\nfound = os.listdir('.')\nopen('left', 'w').write('x')\n"
                  "import gc\nsecret = [s for s in gc.get_objects() if isinstance(s, dict) and "
                  "'expected' in s and s['expected'] == 'none']\n"
                  "print(found or secret or 'none')\n");
    ck_assert_msg(o->kind == VERDICT_PASSED && o->total == 2, "%s: %s", verdict_name(o->kind),
                  o->error);
}
END_TEST

START_TEST(test_output_head_and_tail) {
    struct verifier_spec spec = rig_spec(VERIFIER_STDIO, "[{\"input\":\"\",\"output\":\"x\"}]");
    spec.timeout_s = 5;
    const struct outcome *o = rig_judge(&rig, &spec,
                                        "print('HEAD' + 'y' * 500000 + 'TAIL')\nimport sys\n"
                                        "print('complaint', file=sys.stderr)\n");
    ck_assert_int_eq(o->kind, VERDICT_FAILED);
    ck_assert(!strncmp(o->output, "HEAD", 4));
    ck_assert_int_gt((int)o->output_len, 60000);
    ck_assert_int_lt((int)o->output_len, 66000);
    /* As much as the limit, and one byte more. */
    char code[200];
    for (int more = 0; more < 2; more++) {
        snprintf(code, sizeof code, "import sys\nsys.stdout.write('y' * %d)\n", 1048576 + more);
        o = rig_judge(&rig, &spec, code);
        ck_assert_int_eq(o->kind, more ? VERDICT_OUTPUT_LIMIT : VERDICT_FAILED);
    }
}
END_TEST

/* ---- the same each time ---- */

static const char *const environment =
    "import random, time, locale, sys, os\n"
    "print(list({'a', 'b', 'c', 'd', 'e', 'f'}), hash('x'), random.random(), time.strftime('%Z'),\n"
    "      time.localtime(0).tm_hour, locale.setlocale(locale.LC_ALL), sys.getdefaultencoding(),\n"
    "      sys.stdout.encoding, sorted(os.environ), '\\u00e9')\n";

START_TEST(test_determinism) {
    setenv("TZ", "Asia/Tokyo", 1);
    setenv("LC_ALL", "tr_TR.UTF-8", 1);
    setenv("PYTHONHASHSEED", "random", 1);
    char seen[3][2048];
    struct verifier_spec spec = rig_spec(VERIFIER_STDIO, "[{\"input\":\"\",\"output\":\"\"}]");
    for (int i = 0; i < 3; i++) {
        spec.seed = i == 2 ? 8 : 7;
        rig_open(&rig, 3);
        snprintf(seen[i], sizeof seen[i], "%s", rig_judge(&rig, &spec, environment)->output);
        rig_close(&rig);
    }
    ck_assert_str_eq(seen[0], seen[1]);
    ck_assert_str_ne(seen[0], seen[2]); /* random.random() follows the seed */
    ck_assert_ptr_nonnull(strstr(seen[0], " UTC 0 "));
    ck_assert_msg(strstr(seen[0], "utf-8 utf-8") != NULL, "%s", seen[0]);
    ck_assert_ptr_null(strstr(seen[0], "tr_TR"));
}
END_TEST

/* The candidates of one request have random numbers of their own. */
START_TEST(test_random_by_candidate) {
    struct verifier_spec spec = rig_spec(VERIFIER_STDIO, "[{\"input\":\"\",\"output\":\"\"}]");
    static const char *const codes[] = {"import random\nprint(random.random())",
                                        "import random\nprint(random.random() )"};
    ck_assert(rig_open_tests(&rig, &spec));
    rig_submit(&rig, codes, 2);
    verifier_tests_close(rig.tests);
    ck_assert_str_ne(rig.outcomes[0].output, rig.outcomes[1].output);
}
END_TEST

/* ---- feedback ---- */

START_TEST(test_feedback_is_read_with_care) {
    static const char json[] =
        "[{\"name\":\"a\",\"status\":\"passed\",\"ms\":1.5},5,{\"name\":3,\"status\":\"passed\"},"
        "{\"name\":\"b\",\"status\":\"nonsense\"},{\"name\":\"c\",\"status\":\"failed\",\"error\":"
        "\"e\",\"got\":\"1\",\"expected\":\"2\",\"line\":99999999999}]";
    struct feedback f = {0};
    feedback_parse(&f, json, strlen(json));
    ck_assert_int_eq(f.n, 2);
    ck_assert_str_eq(f.tests[0].name, "a");
    ck_assert_ptr_null(f.tests[0].got);
    ck_assert_str_eq(f.tests[0].error, "");
    ck_assert_str_eq(f.tests[1].expected, "2");
    ck_assert_int_eq(f.tests[1].line, 0);
    feedback_clear(&f);
    feedback_parse(&f, "{", 1);
    ck_assert_int_eq(f.n, 0);
    const struct verdict_test test = {.name = "x", .status = "passed", .error = ""};
    for (int i = 0; i < FEEDBACK_TESTS + 5; i++)
        feedback_add(&f, &test);
    ck_assert_int_eq(f.n, FEEDBACK_TESTS);
    feedback_clear(&f);
    char *value = feedback_value("\xc3\xa9\xc3\xa9", 4);
    ck_assert_str_eq(value, "\xc3\xa9\xc3\xa9");
    free(value);
}
END_TEST

int main(void) {
    setenv("FIRSTPASS_TEST_SECRET", "SECRET_OF_THE_SERVER", 1);
    Suite *suite = suite_create("programs");
    TCase *tc = tcase_create("pure");
    tcase_add_loop_test(tc, test_compare, 0, sizeof outputs / sizeof outputs[0]);
    tcase_add_loop_test(tc, test_cases, 0, sizeof shapes / sizeof shapes[0]);
    tcase_add_test(tc, test_deep_cases);
    tcase_add_test(tc, test_feedback_is_read_with_care);
    suite_add_tcase(suite, tc);
    tc = tcase_create("programs");
    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, open_rig, close_rig);
    tcase_add_test(tc, test_ends);
    tcase_add_test(tc, test_nothing_crosses);
    tcase_add_test(tc, test_output_head_and_tail);
    tcase_add_test(tc, test_random_by_candidate);
    suite_add_tcase(suite, tc);
    tc = tcase_create("determinism");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, test_determinism);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
