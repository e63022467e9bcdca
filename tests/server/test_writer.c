/* JSON out: what jansson reads back is what was written, whatever the bytes. */
#include "server/writer.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

static struct buf out;
static struct writer w;

static void setup(void) {
    buf_init(&out, 1 << 20);
    writer_init(&w, &out);
}

static void teardown(void) { buf_clear(&out); }

START_TEST(nesting_and_commas) {
    writer_object(&w);
    writer_key(&w, "a");
    writer_array(&w);
    writer_array_end(&w);
    writer_key(&w, "b");
    writer_array(&w);
    writer_int(&w, -1);
    writer_object(&w);
    writer_object_end(&w);
    writer_null(&w);
    writer_bool(&w, true);
    writer_raw(&w, "1,2", 3);
    writer_raw(&w, "", 0);
    writer_uint(&w, UINT64_MAX);
    writer_array_end(&w);
    writer_key(&w, "c");
    writer_text(&w, NULL);
    writer_object_end(&w);
    ck_assert_str_eq(buf_text(&out),
                     "{\"a\":[],\"b\":[-1,{},null,true,1,2,18446744073709551615],\"c\":null}");
}
END_TEST

START_TEST(numbers_that_json_has_not_are_null) {
    writer_array(&w);
    writer_number(&w, (double)NAN);
    writer_number(&w, (double)INFINITY);
    writer_number(&w, -(double)INFINITY);
    writer_number(&w, 0.25);
    writer_number(&w, 1e300);
    writer_array_end(&w);
    ck_assert_str_eq(buf_text(&out), "[null,null,null,0.25,1e+300]");
}
END_TEST

START_TEST(floats_are_as_short_as_can_be) {
    static const float values[] = {0.8F, 1, 0, 1.2F, 1 / 3.0F, 16777217.0F, 1e-6F, (float)NAN};
    writer_array(&w);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        writer_float(&w, values[i]);
    writer_array_end(&w);
    ck_assert_str_eq(buf_text(&out), "[0.8,1,0,1.2,0.33333334,16777216,1e-06,null]");
}
END_TEST

static void round_trip(const char *s, size_t len, const char *want, size_t want_len) {
    buf_reset(&out);
    writer_init(&w, &out);
    writer_string(&w, s, len);
    json_t *v = json_loadb(buf_text(&out), out.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    ck_assert_msg(v != NULL, "no JSON: %s", buf_text(&out));
    ck_assert_uint_eq(json_string_length(v), want_len);
    ck_assert(!memcmp(json_string_value(v), want, want_len));
    json_decref(v);
}

START_TEST(strings_come_back) {
    char all[127];
    for (int i = 0; i < 127; i++)
        all[i] = (char)i;
    round_trip(all, sizeof all, all, sizeof all);
    static const char text[] = "\"\\/\b\f\n\r\t \x7f é € 😀 \xe2\x80\xa8";
    round_trip(text, sizeof text - 1, text, sizeof text - 1);
    round_trip("", 0, "", 0);
}
END_TEST

#define U "\xEF\xBF\xBD"
START_TEST(what_is_no_utf8_is_replaced) {
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"\xff", U},
        {"a\x80z", "a" U "z"},
        {"\xc3", U},
        {"\xe2\x82", U U},
        {"\xed\xa0\x80", U U U}, /* a surrogate */
        {"\xc0\x80", U U},       /* overlong */
        {"\xf4\x90\x80\x80", U U U U},
        {"\"\xff\\", "\"" U "\\"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        round_trip(cases[i].in, strlen(cases[i].in), cases[i].out, strlen(cases[i].out));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("writer");
    TCase *t = tcase_create("writer");
    tcase_set_timeout(t, 0);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, nesting_and_commas);
    tcase_add_test(t, numbers_that_json_has_not_are_null);
    tcase_add_test(t, floats_are_as_short_as_can_be);
    tcase_add_test(t, strings_come_back);
    tcase_add_test(t, what_is_no_utf8_is_replaced);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
