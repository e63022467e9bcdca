/* MBPP: every canonical solution passes unmodified, and one that gives nothing fails.
 *
 * No package that can be installed carries the tasks: $FIRSTPASS_MBPP names mbpp.jsonl of Google
 * Research's repository; skipped without.  asserts.txt has tasks of its shapes. */
#include "base/buf.h"
#include "tests/verifier/rig.h"

#include <jansson.h>

enum { TESTS_BYTES = 1 << 20, MOST_MISSED_IN_972 = 2 };

static struct rig rig;

static void put_list(struct buf *b, const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        buf_puts(b, json_string_value(json_array_get(list, i)));
        buf_puts(b, "\n");
    }
}

/* Whether the solution passes; it is told why not. */
static bool judge(const json_t *task, struct buf *tests) {
    const char *solution = json_string_value(json_object_get(task, "code"));
    const char *setup = json_string_value(json_object_get(task, "test_setup_code"));
    ck_assert_ptr_nonnull(solution);
    buf_reset(tests);
    buf_puts(tests, setup ? setup : "");
    buf_puts(tests, "\n");
    put_list(tests, json_object_get(task, "test_list"));
    put_list(tests, json_object_get(task, "challenge_test_list"));
    struct verifier_spec spec = rig_spec(VERIFIER_ASSERTS, buf_text(tests));
    spec.extract = VERIFIER_EXTRACT_RAW;
    spec.timeout_s = 10;
    spec.memory_mb = 512;
    const char *codes[] = {solution, "def __getattr__(name): return lambda *a, **k: None\n"};
    long long id = json_integer_value(json_object_get(task, "task_id"));
    if (!rig_open_tests(&rig, &spec)) {
        printf("task %lld: %s\n", id, rig.refused.message);
        return false;
    }
    rig_submit(&rig, codes, 2);
    verifier_tests_close(rig.tests);
    const struct outcome *o = rig.outcomes;
    if (o[0].kind != VERDICT_PASSED)
        printf("task %lld: %s: %s\n", id, verdict_name(o[0].kind), o[0].error);
    ck_assert_msg(o[1].kind != VERDICT_PASSED, "task %lld: nothing passed", id);
    return o[0].kind == VERDICT_PASSED;
}

START_TEST(test_canonical_solutions) {
    FILE *f = fopen(getenv("FIRSTPASS_MBPP"), "re");
    struct buf tests;
    char *line = NULL;
    size_t size = 0;
    int n = 0, passed = 0;
    ck_assert_ptr_nonnull(f);
    buf_init(&tests, TESTS_BYTES);
    rig_open(&rig, 3);
    while (getline(&line, &size, f) > 0) {
        json_t *task = json_loads(line, 0, NULL);
        ck_assert_ptr_nonnull(task);
        n++;
        passed += judge(task, &tests);
        json_decref(task);
    }
    free(line);
    fclose(f);
    buf_clear(&tests);
    rig_close(&rig);
    printf("%d of %d solutions pass\n", passed, n);
    ck_assert_int_gt(n, 0);
    ck_assert(972 * (n - passed) <= MOST_MISSED_IN_972 * n + 971);
}
END_TEST

int main(void) {
    const char *path = getenv("FIRSTPASS_MBPP");
    if (!path || !*path) {
        printf("skipped: FIRSTPASS_MBPP names no mbpp.jsonl\n");
        return 77;
    }
    Suite *suite = suite_create("mbpp");
    TCase *tc = tcase_create("mbpp");
    tcase_set_timeout(tc, 1200);
    tcase_add_test(tc, test_canonical_solutions);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
