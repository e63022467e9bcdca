/* Files of tasks: each known shape, and what is wrong with the others. */
#include "server/eval_tasks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static struct eval_tasks tasks;
static struct err e;

static bool parse(const char *text) {
    e = (struct err){0};
    return eval_tasks_parse(&tasks, "T", text, strlen(text), &e);
}

static const struct eval_task *one(const char *text) {
    ck_assert_msg(parse(text), "%s", e.message);
    ck_assert_int_eq(tasks.n, 1);
    return &tasks.tasks[0];
}

#define HUMAN                                                                                      \
    "{\"task_id\": \"HumanEval/0\", \"prompt\": \"import re\\ndef f(x):\\n    pass\\n\", "         \
    "\"entry_point\": \"f\", \"canonical_solution\": \"x\", \"test\": \"def check(f):\\n    "      \
    "assert f(1)\\n\""

START_TEST(human_eval) {
    const struct eval_task *t = one(HUMAN "}");
    ck_assert_str_eq(t->id, "HumanEval/0");
    ck_assert_str_eq(t->code, "import re\ndef f(x):\n    pass\n");
    ck_assert_str_eq(t->question,
                     "Complete the following Python function. Reply with the whole function in one "
                     "Python code block.\n\n```python\nimport re\ndef f(x):\n    pass\n\n```");
    ck_assert_str_eq(t->format, "humaneval");
    ck_assert_str_eq(t->entry_point, "f");
    ck_assert_str_eq(t->tests, "def check(f):\n    assert f(1)\n");
    ck_assert(t->human_eval && !t->public_only);
    eval_tasks_clear(&tasks);
}
END_TEST

/* A whole number of 40 digits reaches the tests as it is written. */
START_TEST(evalplus_keeps_its_own_text) {
    static const char text[] = HUMAN ", \"base_input\": [[1]], \"plus_input\": "
                                     "[[9999999999999999999999999999999999999999]], \"atol\": 0}";
    const struct eval_task *t = one(text);
    ck_assert_str_eq(t->format, "evalplus");
    ck_assert_str_eq(t->tests, text);
    ck_assert_uint_eq(t->tests_len, sizeof text - 1);
    ck_assert(!t->human_eval && t->code);
    eval_tasks_clear(&tasks);
}
END_TEST

START_TEST(mbpp) {
    const struct eval_task *t =
        one("{\"task_id\": 11, \"text\": \"Write f.\", \"code\": \"x\", \"test_setup_code\": "
            "\"import math\", \"test_list\": [\"assert f(1) == 2\", \"assert f(2) == 3\"]}");
    ck_assert_str_eq(t->id, "11");
    ck_assert_str_eq(t->format, "asserts");
    ck_assert_str_eq(t->tests, "import math\nassert f(1) == 2\nassert f(2) == 3\n");
    ck_assert_ptr_nonnull(strstr(t->question, "Write f.\nYour code should pass these tests:\n\n"
                                              "assert f(1) == 2\nassert f(2) == 3\n"));
    ck_assert_ptr_null(strstr(t->question, "import math"));
    eval_tasks_clear(&tasks);
    t = one("[{\"task_id\": 2, \"prompt\": \"Write f.\", \"test_imports\": [\"import re\"], "
            "\"test_list\": [\"assert f()\"]}]");
    ck_assert_str_eq(t->tests, "import re\nassert f()\n");
    eval_tasks_clear(&tasks);
}
END_TEST

START_TEST(live_code_bench) {
#define LCB "{\"question_id\": \"q\", \"question_content\": \"Twice.\", \"public_test_cases\": "
    const struct eval_task *t =
        one(LCB "\"[{\\\"input\\\": \\\"1\\\", \\\"output\\\": \\\"2\\\"}]\", "
                "\"private_test_cases\": \"eJxLTEoGAAJNASc=\", \"starter_code\": \"\"}");
    ck_assert_str_eq(t->format, "livecodebench");
    ck_assert(t->public_only);
    ck_assert_ptr_null(strstr(t->tests, "private"));
    ck_assert_ptr_nonnull(strstr(t->question, "standard input"));
    eval_tasks_clear(&tasks);
    t = one(LCB "[{}], \"private_test_cases\": \"[{}]\", \"starter_code\": \"class Solution:\"}");
    ck_assert(!t->public_only);
    ck_assert_ptr_nonnull(strstr(t->tests, "private_test_cases"));
    ck_assert_ptr_nonnull(strstr(t->question, "```python\nclass Solution:\n```"));
    eval_tasks_clear(&tasks);
}
END_TEST

START_TEST(others) {
    const struct eval_task *t = one("{\"prompt\": \"Say 4.\", \"tests\": [{\"input\": \"\", "
                                    "\"output\": \"4\"}], \"format\": \"stdio\"}\n\n");
    ck_assert_str_eq(t->id, "1");
    ck_assert_str_eq(t->question, "Say 4.");
    ck_assert_str_eq(t->tests, "[{\"input\":\"\",\"output\":\"4\"}]");
    ck_assert_ptr_null(t->code);
    eval_tasks_clear(&tasks);
    t = one("{\"id\": \"x\", \"prompt\": \"class A:\\n\", \"tests\": \"assert A\", "
            "\"entry_point\": \"A\"}");
    ck_assert_str_eq(t->code, "class A:\n");
    ck_assert_ptr_null(t->format);
    eval_tasks_clear(&tasks);
    /* Apps, whose record names neither prompt nor tests. */
    t = one("{\"problem_id\": 7, \"question\": \"Q\", \"input_output\": \"{\\\"inputs\\\": []}\"}");
    ck_assert_str_eq(t->format, "apps");
    eval_tasks_clear(&tasks);
}
END_TEST

START_TEST(the_same_text_has_the_same_hash) {
    uint64_t first = (one(HUMAN "}"), tasks.hash);
    eval_tasks_clear(&tasks);
    uint64_t second = (one(HUMAN "} "), tasks.hash);
    eval_tasks_clear(&tasks);
    ck_assert_uint_ne(first, second);
    ck_assert_uint_eq(first, eval_tasks_hash(HUMAN "}", strlen(HUMAN "}")));
}
END_TEST

START_TEST(what_is_wrong_is_said) {
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "no tasks"},
        {"\n \n", "no tasks"},
        {"[]", "no tasks"},
        {"[", "no JSON"},
        {"3", "no JSON"},
        {"[3]", "record 1: it is no JSON object"},
        {HUMAN "}\n{", "line 2"},
        {HUMAN "}\n" HUMAN "}", "two tasks \"HumanEval/0\""},
        {"{\"prompt\": \"x\"}", "no tests"},
        {"{\"tests\": \"x\"}", "\"prompt\" is missing"},
        {"{\"prompt\": \"x\", \"tests\": \"\"}", "tests are empty"},
        {"{\"prompt\": \"x\", \"test\": \"y\"}", "\"entry_point\" is missing"},
        {"{\"base_input\": [], \"entry_point\": \"f\"}", "\"prompt\" is missing"},
        {"{\"text\": \"x\", \"test_list\": []}", "test_list"},
        {"{\"text\": \"x\", \"test_list\": [1]}", "texts"},
        {"{\"test_list\": [\"assert f()\"]}", "\"text\" is missing"},
        {"{\"public_test_cases\": [], \"starter_code\": \"\"}", "question_content"},
        {"{\"question_content\": \"x\", \"public_test_cases\": \"eJx\"}", "no test cases"},
        {"{\"input_output\": \"{}\"}", "\"question\" is missing"},
        {"{\"prompt\": \"x\", \"tests\": [99999999999999999999]}", "line 1"},
        {"{\"prompt\": \"\\u0000\", \"tests\": \"x\"}", "line 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_msg(!parse(cases[i].text), "%zu was taken", i);
        ck_assert_int_eq(e.kind, ERR_INPUT);
        ck_assert_msg(strstr(e.message, cases[i].words) && strstr(e.message, "T"), "%zu: %s", i,
                      e.message);
    }
}
END_TEST

/* ---- gzip ---- */

static size_t deflated(const char *text, size_t len,
                       char *out /* NOLINT(readability-non-const-parameter) */, size_t size) {
    z_stream z = {.next_in = (z_const Bytef *)(uintptr_t)text,
                  .avail_in = (uInt)len,
                  .next_out = (Bytef *)out,
                  .avail_out = (uInt)size};
    ck_assert_int_eq(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t n = size - z.avail_out;
    deflateEnd(&z);
    return n;
}

START_TEST(gzip_of_any_size_and_number) {
    enum { BYTES = 300000 };
    char *text = malloc(BYTES), *packed = malloc((size_t)2 * BYTES);
    size_t len = 0;
    for (size_t i = 0; i < BYTES; i++)
        text[i] = (char)('a' + i * i % 23);
    size_t n = deflated(text, BYTES, packed, BYTES);
    n += deflated(text, 10, packed + n, BYTES);
    char *got = eval_tasks_inflate(packed, n, BYTES + 10, &len, &e);
    ck_assert_ptr_nonnull(got);
    ck_assert_uint_eq(len, BYTES + 10);
    ck_assert_mem_eq(got, text, BYTES);
    ck_assert_mem_eq(got + BYTES, text, 10);
    free(got);
    ck_assert_ptr_null(eval_tasks_inflate(packed, n, BYTES + 9, &len, &e));
    ck_assert_ptr_nonnull(strstr(e.message, "larger"));
    for (size_t cut = 1; cut < n; cut += n / 50) {
        e = (struct err){0};
        got = eval_tasks_inflate(packed, n - cut, BYTES + 10, &len, &e);
        /* The first member alone is whole. */
        ck_assert(!got || len == BYTES);
        ck_assert(got || strstr(e.message, "cut off"));
        free(got);
    }
    free(text);
    free(packed);
}
END_TEST

START_TEST(files_that_are_not_there) {
    e = (struct err){0};
    ck_assert(!eval_tasks_load(&tasks, "/nonexistent/tasks.jsonl", &e));
    ck_assert_ptr_nonnull(strstr(e.message, "/nonexistent/tasks.jsonl"));
    ck_assert_int_eq(e.kind, ERR_INPUT);
}
END_TEST

int main(void) {
    Suite *s = suite_create("eval_tasks");
    TCase *t = tcase_create("eval_tasks");
    tcase_add_test(t, human_eval);
    tcase_add_test(t, evalplus_keeps_its_own_text);
    tcase_add_test(t, mbpp);
    tcase_add_test(t, live_code_bench);
    tcase_add_test(t, others);
    tcase_add_test(t, the_same_text_has_the_same_hash);
    tcase_add_test(t, what_is_wrong_is_said);
    tcase_add_test(t, gzip_of_any_size_and_number);
    tcase_add_test(t, files_that_are_not_there);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
