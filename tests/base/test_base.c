#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- err ---- */

START_TEST(err_says_kind_and_message) {
    struct err e = {0};
    ck_assert(!err_set(&e, ERR_BUSY, "%d of %d", 3, 4));
    ck_assert_int_eq(e.kind, ERR_BUSY);
    ck_assert_str_eq(e.message, "3 of 4");
    ck_assert(!err_param(&e, "n", "n is %d", 0));
    ck_assert_int_eq(e.kind, ERR_INPUT);
    ck_assert_str_eq(e.param, "n");
    ck_assert(!err_code(&e, "bad_n"));
    ck_assert_str_eq(e.code, "bad_n");
    ck_assert(!err_errno(&e, ENOENT, "open %s", "x"));
    ck_assert_int_eq(e.kind, ERR_SYSTEM);
    ck_assert_str_eq(e.message, "open x: No such file or directory");
    ck_assert(!e.code && !*e.param); /* of the error before */
}
END_TEST

START_TEST(err_prefix_and_cut) {
    struct err e = {0};
    err_set(&e, ERR_INPUT, "inner");
    err_prefix(&e, "%s", e.message);
    ck_assert_str_eq(e.message, "inner: inner");
    char text[2000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    err_set(&e, ERR_INPUT, "%s", text);
    ck_assert_uint_eq(strlen(e.message), sizeof e.message - 1);
    err_prefix(&e, "file");
    ck_assert_uint_eq(strlen(e.message), sizeof e.message - 1);
    ck_assert(!strncmp(e.message, "file: xx", 8));
    err_prefix(&e, "%s", text);
    ck_assert_uint_eq(strlen(e.message), sizeof e.message - 1);
    err_errno(&e, EIO, "%s", text);
    ck_assert_uint_eq(strlen(e.message), sizeof e.message - 1);
    err_param(&e, text, "long name");
    ck_assert_uint_eq(strlen(e.param), sizeof e.param - 1);
}
END_TEST

START_TEST(err_may_be_null) {
    ck_assert(!err_set(NULL, ERR_INPUT, "x") && !err_param(NULL, "p", "x"));
    ck_assert(!err_errno(NULL, EIO, "x") && !err_prefix(NULL, "x") && !err_code(NULL, "c"));
}
END_TEST

START_TEST(bug_aborts) { BUG_ON(1 + 1 == 2); }
END_TEST

START_TEST(huge_allocation_aborts) { free(err_alloc(SIZE_MAX / 2, 3)); }
END_TEST

START_TEST(alloc_zeroes_and_copies) {
    unsigned char *p = err_alloc(100, 3);
    for (int i = 0; i < 300; i++)
        ck_assert_int_eq(p[i], 0);
    free(p);
    free(err_alloc(0, 8));
    char *s = err_strndup("a\0b", 3);
    ck_assert_mem_eq(s, "a\0b", 4);
    s = err_realloc(s, 2000, 1);
    ck_assert_mem_eq(s, "a\0b", 4);
    free(s);
}
END_TEST

/* ---- buf ---- */

START_TEST(buf_grows_to_its_maximum) {
    struct buf b;
    buf_init(&b, 1000);
    ck_assert_str_eq(buf_text(&b), "");
    for (int i = 0; i < 1000; i++)
        ck_assert(buf_append(&b, "x", 1));
    ck_assert_uint_eq(b.len, 1000);
    ck_assert(!b.overflowed);
    ck_assert(!buf_append(&b, "y", 1));
    ck_assert(b.overflowed && b.len == 1000 && !b.data[1000]);
    ck_assert(!buf_append(&b, "", 0)); /* a writer that checks only its last call sees it too */
    buf_reset(&b);
    ck_assert(!b.overflowed && !b.len);
    ck_assert(buf_printf(&b, "%s-%d", "ab", 7));
    ck_assert_str_eq(buf_text(&b), "ab-7");
    ck_assert(!buf_printf(&b, "%*d", 2000, 1));
    ck_assert_str_eq(buf_text(&b), "ab-7");
    buf_clear(&b);
    ck_assert(buf_puts(&b, "again"));
    buf_clear(&b);
}
END_TEST

START_TEST(buf_at_one_under_and_over) {
    for (size_t len = 9; len <= 11; len++) {
        struct buf b;
        buf_init(&b, 10);
        ck_assert_int_eq(buf_append(&b, "0123456789ab", len), len <= 10);
        ck_assert_uint_eq(b.len, len <= 10 ? len : 0);
        buf_clear(&b);
    }
    struct buf b;
    buf_init(&b, SIZE_MAX);
    ck_assert(buf_puts(&b, "x"));
    buf_clear(&b);
}
END_TEST

START_TEST(buf_consume_and_take) {
    struct buf b;
    buf_init(&b, 100);
    buf_consume(&b, 0);
    buf_puts(&b, "abcdef");
    buf_consume(&b, 2);
    ck_assert_str_eq(buf_text(&b), "cdef");
    size_t len;
    char *s = buf_take(&b, &len);
    ck_assert_str_eq(s, "cdef");
    ck_assert_uint_eq(len, 4);
    free(s);
    ck_assert(!b.data && !b.len && b.max == 100);
    s = buf_take(&b, &len);
    ck_assert_str_eq(s, "");
    free(s);
    buf_init(&b, 0);
    s = buf_take(&b, NULL);
    ck_assert_str_eq(s, "");
    free(s);
}
END_TEST

/* ---- arena ---- */

static bool holds(const unsigned char *p, size_t n, size_t value) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != value) return false;
    return true;
}

START_TEST(arena_is_aligned_zeroed_and_stable) {
    struct arena a;
    arena_init(&a);
    unsigned char *blocks[500];
    size_t sizes[500];
    for (size_t i = 0; i < 500; i++) {
        sizes[i] = i % 50 ? i * 7 % 300 : 20000;
        blocks[i] = arena_alloc(&a, sizes[i], 1);
        ck_assert_uint_eq((uintptr_t)blocks[i] % 16, 0);
        ck_assert(holds(blocks[i], sizes[i], 0));
        memset(blocks[i], (int)(i & 255), sizes[i]);
    }
    for (size_t i = 0; i < 500; i++)
        ck_assert(holds(blocks[i], sizes[i], i & 255));
    ck_assert_str_eq(arena_strdup(&a, "text"), "text");
    ck_assert_str_eq(arena_strndup(&a, "text", 2), "te");
    arena_clear(&a);
    ck_assert_str_eq(arena_strdup(&a, "after"), "after");
    arena_clear(&a);
}
END_TEST

START_TEST(arena_overflow_aborts) {
    struct arena a;
    arena_init(&a);
    arena_alloc(&a, SIZE_MAX / 2, 4);
}
END_TEST

/* ---- list ---- */

struct item {
    int value;
    struct list link;
};

static void expect(const struct list *head, const char *values) {
    LIST_EACH(it, head) { ck_assert_int_eq(LIST_ITEM(it, struct item, link)->value, *values++); }
    ck_assert_int_eq(*values, 0);
}

START_TEST(list_orders_and_removes) {
    struct list head;
    list_init(&head);
    ck_assert(list_empty(&head));
    struct item items[4];
    for (int i = 0; i < 4; i++) {
        items[i].value = 'a' + i;
        list_init(&items[i].link);
    }
    list_append(&head, &items[1].link);
    list_append(&head, &items[2].link);
    list_prepend(&head, &items[0].link);
    expect(&head, "abc");
    list_remove(&items[1].link);
    expect(&head, "ac");
    ck_assert(list_empty(&items[1].link));
    list_remove(&items[1].link);
    list_remove(&items[3].link); /* was never in a list */
    list_append(&head, &items[1].link);
    expect(&head, "acb");
    LIST_EACH_SAFE(it, &head) { list_remove(it); }
    ck_assert(list_empty(&head));
}
END_TEST

START_TEST(clock_never_goes_back) {
    double before = clock_seconds();
    for (int i = 0; i < 1000; i++) {
        double now = clock_seconds();
        ck_assert(now >= before);
        before = now;
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("base");
    TCase *t = tcase_create("base");
    tcase_set_timeout(t, 0);
    tcase_add_test(t, err_says_kind_and_message);
    tcase_add_test(t, err_prefix_and_cut);
    tcase_add_test(t, err_may_be_null);
    tcase_add_test_raise_signal(t, bug_aborts, SIGABRT);
    tcase_add_test_raise_signal(t, huge_allocation_aborts, SIGABRT);
    tcase_add_test(t, alloc_zeroes_and_copies);
    tcase_add_test(t, buf_grows_to_its_maximum);
    tcase_add_test(t, buf_at_one_under_and_over);
    tcase_add_test(t, buf_consume_and_take);
    tcase_add_test(t, arena_is_aligned_zeroed_and_stable);
    tcase_add_test_raise_signal(t, arena_overflow_aborts, SIGABRT);
    tcase_add_test(t, list_orders_and_removes);
    tcase_add_test(t, clock_never_goes_back);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
