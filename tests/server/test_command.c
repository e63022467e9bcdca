#include "server/command.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

START_TEST(words_in_every_form) {
    char *argv[] = {(char[]){"verify"}, (char[]){"--tests"},
                    (char[]){"T"},      (char[]){"a.py"},
                    (char[]){"--json"}, (char[]){"--tests=U"},
                    (char[]){"-"},      (char[]){"--"},
                    (char[]){"--json"}, NULL};
    struct err e = {0};
    struct command_args a;
    command_args_init(&a, 9, argv, &e);
    ck_assert(command_args_next(&a));
    ck_assert_ptr_null(command_args_name(&a));
    ck_assert(!command_args_flag(&a, "test")); /* a prefix is no match */
    ck_assert_ptr_null(command_args_value(&a, "test"));
    ck_assert_str_eq(command_args_value(&a, "tests"), "T");
    ck_assert(command_args_next(&a));
    ck_assert_str_eq(command_args_name(&a), "a.py");
    ck_assert(command_args_next(&a));
    ck_assert(command_args_flag(&a, "json"));
    ck_assert(command_args_next(&a));
    ck_assert_str_eq(command_args_value(&a, "tests"), "U");
    ck_assert(command_args_next(&a));
    ck_assert_str_eq(command_args_name(&a), "-");
    ck_assert(command_args_next(&a));
    ck_assert(!command_args_flag(&a, "json"));
    ck_assert_str_eq(command_args_name(&a), "--json");
    ck_assert(!command_args_next(&a));
    ck_assert(!a.failed);
}
END_TEST

START_TEST(failures_end_the_walk) {
    char *argv[] = {(char[]){"run"}, (char[]){"--prompt"}, NULL};
    struct err e = {0};
    struct command_args a;
    command_args_init(&a, 2, argv, &e);
    ck_assert(command_args_next(&a));
    ck_assert_ptr_nonnull(command_args_value(&a, "prompt"));
    ck_assert(a.failed && !command_args_next(&a));
    ck_assert_ptr_nonnull(strstr(e.message, "--prompt needs a value"));
    command_args_init(&a, 2, argv, &e);
    ck_assert(command_args_next(&a));
    command_args_unknown(&a);
    ck_assert(a.failed);
    ck_assert_ptr_nonnull(strstr(e.message, "\"--prompt\""));
}
END_TEST

START_TEST(files_up_to_their_limit) {
    char path[] = "/tmp/firstpass-test-command-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "abc\0e", 5), 5);
    close(fd);
    struct err e = {0};
    size_t len = 0;
    char *text = command_read_file(path, 5, &len, &e);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(len, 5);
    ck_assert_mem_eq(text, "abc\0e", 6);
    free(text);
    ck_assert_ptr_null(command_read_file(path, 4, &len, &e));
    ck_assert_int_eq(e.kind, ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.message, "larger than 4"));
    unlink(path);
    ck_assert_ptr_null(command_read_file(path, 4, &len, &e));
    ck_assert_int_eq(e.kind, ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.message, path));
    ck_assert_ptr_null(command_read_file("/tmp", 4, &len, &e));
    ck_assert_int_eq(e.kind, ERR_INPUT);
}
END_TEST

START_TEST(status_by_kind) {
    const struct {
        enum err_kind kind;
        int status;
    } cases[] = {{ERR_INPUT, COMMAND_USAGE},
                 {ERR_TOO_LARGE, COMMAND_USAGE},
                 {ERR_SYSTEM, COMMAND_SYSTEM},
                 {ERR_UNAVAILABLE, COMMAND_SYSTEM}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        err_set(&e, cases[i].kind, "a message of the test, printed on purpose");
        ck_assert_int_eq(command_failed("test", &e), cases[i].status);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("command");
    TCase *t = tcase_create("command");
    tcase_set_timeout(t, 0);
    tcase_add_test(t, words_in_every_form);
    tcase_add_test(t, failures_end_the_walk);
    tcase_add_test(t, files_up_to_their_limit);
    tcase_add_test(t, status_by_kind);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
