#include "base/utf8.h"

#include <check.h>
#include <string.h>

/* Every scalar value there is: encodes, decodes, and each cut is seen as a cut. */
START_TEST(every_scalar_value) {
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        char s[5] = {0};
        int n = utf8_encode(c, s);
        int expected = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        uint32_t back = 0;
        if (n != expected || utf8_decode(s, (size_t)n, &back) != n || back != c)
            ck_abort_msg("U+%04X", c);
        for (int cut = 0; cut < n; cut++)
            if (utf8_decode(s, (size_t)cut, &back) != -1 ||
                utf8_incomplete_tail(s, (size_t)cut) != (size_t)cut)
                ck_abort_msg("U+%04X cut at %d", c, cut);
        if (utf8_incomplete_tail(s, (size_t)n)) ck_abort_msg("U+%04X whole", c);
    }
}
END_TEST

START_TEST(not_utf8) {
    static const char *const bad[] = {
        "\x80", /* continuation alone */
        "\xBF",
        "\xC0\xAF", /* overlong "/" */
        "\xC1\xBF",
        "\xE0\x80\xAF", /* overlong in three and four */
        "\xE0\x9F\xBF",
        "\xF0\x80\x80\xAF",
        "\xF0\x8F\xBF\xBF",
        "\xED\xA0\x80", /* surrogates */
        "\xED\xBF\xBF",
        "\xF4\x90\x80\x80", /* above U+10FFFF */
        "\xF5\x80\x80\x80",
        "\xF8\x88\x80\x80\x80",
        "\xFE",
        "\xFF",
        "\xC3\x28", /* no continuation */
        "\xE2\x82\x28",
        "\xF0\x9F\x98\x28",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint32_t c;
        ck_assert_int_eq(utf8_decode(bad[i], strlen(bad[i]), &c), 0);
        ck_assert(!utf8_valid(bad[i], strlen(bad[i])));
        ck_assert_uint_eq(utf8_incomplete_tail(bad[i], strlen(bad[i])), 0);
    }
    /* Bytes that no continuation can save aren't waited for. */
    ck_assert_uint_eq(utf8_incomplete_tail("\xED\xA0", 2), 0);
    ck_assert_uint_eq(utf8_incomplete_tail("\xF4\x90", 2), 0);
}
END_TEST

START_TEST(whole_strings) {
    ck_assert(utf8_valid("", 0));
    ck_assert(utf8_valid("a\0b", 3));
    ck_assert(utf8_valid("h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80", 12));
    ck_assert(!utf8_valid("ok\xE2\x82", 4));
    ck_assert_uint_eq(utf8_incomplete_tail("ok\xE2\x82", 4), 2);
    ck_assert_uint_eq(utf8_incomplete_tail("\xF0\x9F\x98", 3), 3);
    ck_assert_uint_eq(utf8_incomplete_tail("\xE2\x82\xAC\xC3", 4), 1);
    ck_assert_uint_eq(utf8_incomplete_tail("\xE2\x82\xAC", 3), 0);
    ck_assert_uint_eq(utf8_incomplete_tail("", 0), 0);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("utf8");
    TCase *t = tcase_create("utf8");
    tcase_set_timeout(t, 0);
    tcase_add_test(t, every_scalar_value);
    tcase_add_test(t, not_utf8);
    tcase_add_test(t, whole_strings);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
