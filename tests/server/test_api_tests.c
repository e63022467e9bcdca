/* What clients that can't add fields say instead: in the model's name, in the question's text. */
#include "server/api_tests.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

START_TEST(the_model_name_says_how_many) {
    static const struct {
        const char *name;
        int n;
        size_t len;
    } cases[] = {
        {"m:best-of-64", 64, 1},
        {"a/b:c:best-of-10000", 10000, 5},
        {"m", 0, 0},
        {"m:best-of-", 0, 0},
        {"m:best-of-0", 0, 0},
        {"m:best-of-64x", 0, 0},
        {":best-of-64", 0, 0},
        {"m:best-of-10001", 0, 0},
        {"m:best-of-99999999999", 0, 0},
        {"m:best-of-2:best-of-3", 3, 11},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t len;
        ck_assert_int_eq(api_tests_model_suffix(cases[i].name, &len), cases[i].n);
        ck_assert_uint_eq(len, cases[i].n ? cases[i].len : strlen(cases[i].name));
    }
}
END_TEST

START_TEST(tests_in_a_fenced_block) {
    static const char text[] =
        "Write f.\n```python\ndef f(): pass\n```\n``` Python  tests \nold\n```\n"
        "~~~py test\nassert f() == 1\n```\n~~~\nbye";
    size_t len = 0;
    const char *found = api_tests_find_tests(text, sizeof text - 1, &len);
    ck_assert_ptr_nonnull(found);
    ck_assert_uint_eq(len, 20);
    ck_assert_mem_eq(found, "assert f() == 1\n```\n", 20);
    static const char *const none[] = {"",
                                       "```python\ntest\n```",
                                       "```python test\n```",
                                       "```python test",
                                       "```python testing\nx\n```",
                                       "```test\nx\n```"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        ck_assert_ptr_null(api_tests_find_tests(none[i], strlen(none[i]), &len));
}
END_TEST

int main(void) {
    Suite *s = suite_create("api_tests");
    TCase *t = tcase_create("api_tests");
    tcase_set_timeout(t, 0);
    tcase_add_test(t, the_model_name_says_how_many);
    tcase_add_test(t, tests_in_a_fenced_block);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
