/* What a JSON text would take, counted without parsing it. */
#include "base/json_shape.h"

#include <check.h>
#include <string.h>

static const struct {
    const char *text;
    struct json_shape shape; /* depth, containers, strings */
} cases[] = {
    {"", {0, 0, 0}},
    {"7", {0, 0, 0}},
    {"[]", {1, 1, 0}},
    {"{\"a\": [1, [2]], \"b\": {}}", {3, 4, 2}},
    {"[[], [], []]", {2, 4, 0}},
    {"\"[{[{\"", {0, 0, 1}},
    {"\"\\\"[\"", {0, 0, 1}},
    {"\"\\\\\"[", {1, 1, 1}},
    {"\"without an end [[[", {0, 0, 1}},
    {"\"\\", {0, 0, 1}},
    {"]]]}[", {1, 1, 0}},
    {"[}[}[}", {1, 3, 0}},
};

START_TEST(test_table) {
    struct json_shape shape = {0};
    json_shape_add(&shape, cases[_i].text, strlen(cases[_i].text));
    ck_assert_uint_eq(shape.depth, cases[_i].shape.depth);
    ck_assert_uint_eq(shape.containers, cases[_i].shape.containers);
    ck_assert_uint_eq(shape.strings, cases[_i].shape.strings);
}
END_TEST

START_TEST(test_texts_add_up) {
    struct json_shape shape = {0};
    json_shape_add(&shape, "[[\"a\"]]", 7);
    json_shape_add(&shape, "[\"b\"]", 5);
    ck_assert_uint_eq(shape.depth, 2);
    ck_assert_uint_eq(shape.containers, 3);
    ck_assert_uint_eq(shape.strings, 2);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("json_shape");
    TCase *tc = tcase_create("json_shape");
    tcase_add_loop_test(tc, test_table, 0, (int)(sizeof cases / sizeof cases[0]));
    tcase_add_test(tc, test_texts_add_up);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
