#include "engine/safetensors.h"

#include "base/buf.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 64 << 20 };

static void put_file(struct buf *b, const char *header, size_t data_bytes) {
    uint64_t n = strlen(header);
    buf_append(b, &n, sizeof n);
    buf_puts(b, header);
    for (size_t i = 0; i < data_bytes; i++)
        buf_append(b, &(char){(char)i}, 1);
}

/* Parses an exact copy on the heap, so that a sanitizer sees each byte read behind the end. */
static struct safetensors *parse_copy(const struct buf *b, void **copy, struct err *e) {
    *copy = malloc(b->len ? b->len : 1);
    if (b->len) memcpy(*copy, b->data, b->len);
    *e = (struct err){0};
    return safetensors_parse(*copy, b->len, "test.safetensors", e);
}

static const char whole[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]},"
    "\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
    "\"scale\":{\"dtype\":\"F8_E4M3\",\"shape\":[],\"data_offsets\":[20,21]},"
    "\"none\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[20,20]}}   ";

START_TEST(a_whole_file) {
    struct buf b;
    struct err e;
    void *copy;
    buf_init(&b, MAX_BYTES);
    put_file(&b, whole, 21);
    struct safetensors *s = parse_copy(&b, &copy, &e);
    ck_assert_msg(s != NULL, "%s", e.message);
    ck_assert_str_eq(safetensors_label(s), "test.safetensors");
    ck_assert_uint_eq(safetensors_n(s), 4);
    ck_assert_str_eq(safetensors_at(s, 0)->name, "a.weight");
    const struct safetensors_tensor *t = safetensors_find(s, "a.weight");
    ck_assert_ptr_eq(t, safetensors_at(s, 0));
    ck_assert_str_eq(safetensors_dtype_name(t->dtype), "BF16");
    ck_assert_int_eq(t->n_dims, 2);
    ck_assert_uint_eq(t->dims[0], 2);
    ck_assert_uint_eq(t->dims[1], 3);
    ck_assert_uint_eq(t->bytes, 12);
    ck_assert_int_eq(*(const char *)t->data, 0);
    t = safetensors_find(s, "scale");
    ck_assert_int_eq(t->n_dims, 0);
    ck_assert_int_eq(*(const char *)t->data, 20);
    ck_assert_uint_eq(safetensors_find(s, "none")->bytes, 0);
    ck_assert_ptr_null(safetensors_find(s, "__metadata__"));
    ck_assert_ptr_null(safetensors_find(s, "c"));
    safetensors_free(s);
    free(copy);
    buf_clear(&b);
}
END_TEST

START_TEST(an_empty_file) {
    struct buf b;
    struct err e;
    void *copy;
    buf_init(&b, MAX_BYTES);
    put_file(&b, "{}", 0);
    struct safetensors *s = parse_copy(&b, &copy, &e);
    ck_assert_msg(s != NULL, "%s", e.message);
    ck_assert_uint_eq(safetensors_n(s), 0);
    ck_assert_ptr_null(safetensors_find(s, "a"));
    safetensors_free(s);
    free(copy);
    buf_clear(&b);
}
END_TEST

/* One entry "t" of a file with 8 bytes of data. */
#define ENTRY(dtype, shape, offsets)                                                               \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct bad {
    const char *header, *says;
} bad[] = {
    {"", "doesn't begin with"},
    {"[]", "doesn't begin with"},
    {"{", "not the JSON"},
    {"{} {}", "not the JSON"},
    {"{\"t\":1}", "not described"},
    {"{\"\":{}}", "not printable"},
    {"{\"\\u001b[31m\":{}}", "not printable"},
    {ENTRY("\"F4\"", "[8]", "[0,8]"), "dtype F4, which isn't known"},
    {ENTRY("7", "[8]", "[0,8]"), "dtype (none)"},
    {ENTRY("\"U8\"", "8", "[0,8]"), "no shape"},
    {ENTRY("\"U8\"", "[1,1,1,1,1,1,1,1,8]", "[0,8]"), "at most 8 dimensions"},
    {ENTRY("\"U8\"", "[-8]", "[0,8]"), "no count"},
    {ENTRY("\"U8\"", "[8.0]", "[0,8]"), "no count"},
    {ENTRY("\"U8\"", "[9223372036854775807,3]", "[0,8]"), "too large"},
    {ENTRY("\"F32\"", "[4611686018427387904]", "[0,0]"), "too large"},
    {ENTRY("\"U8\"", "[99999999999999999999]", "[0,8]"), "not the JSON"},
    {ENTRY("\"U8\"", "[8]", "[0]"), "no data_offsets"},
    {ENTRY("\"U8\"", "[8]", "[8,0]"), "no data_offsets"},
    {ENTRY("\"U8\"", "[8]", "[-1,7]"), "no data_offsets"},
    {ENTRY("\"U8\"", "[8]", "\"08\""), "no data_offsets"},
    {ENTRY("\"U8\"", "[9]", "[0,9]"), "outside the file"},
    {ENTRY("\"U8\"", "[9]", "[9223372036854775806,9223372036854775807]"), "outside the file"},
    {ENTRY("\"U8\"", "[7]", "[0,8]"), "take 7"},
    {ENTRY("\"F32\"", "[]", "[0,8]"), "take 4"},
    {ENTRY("\"U8\"", "[7]", "[1,8]"), "1 bytes before tensor t"},
    {ENTRY("\"U8\"", "[7]", "[0,7]"), "1 bytes at the end"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]},"
     "\"u\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[3,8]}}",
     "overlaps"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
     "\"t\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
     "not the JSON"},
};

START_TEST(a_broken_header) {
    struct buf b;
    struct err e;
    void *copy;
    buf_init(&b, MAX_BYTES);
    put_file(&b, bad[_i].header, 8);
    ck_assert_ptr_null(parse_copy(&b, &copy, &e));
    ck_assert_int_eq(e.kind, ERR_INPUT);
    ck_assert_msg(!strncmp(e.message, "test.safetensors: ", 18), "%s", e.message);
    ck_assert_msg(strstr(e.message, bad[_i].says) != NULL, "%s, not %s", e.message, bad[_i].says);
    free(copy);
    buf_clear(&b);
}
END_TEST

/* Cut at every length: an error each, no byte read behind the end. */
START_TEST(cut_off) {
    struct buf b;
    struct err e;
    void *copy;
    buf_init(&b, MAX_BYTES);
    put_file(&b, whole, 21);
    for (size_t len = 0; len < b.len; len++) {
        struct buf part = {.data = b.data, .len = len};
        ck_assert_msg(!parse_copy(&part, &copy, &e), "parsed at %zu bytes", len);
        ck_assert_int_eq(e.kind, ERR_INPUT);
        free(copy);
    }
    buf_clear(&b);
}
END_TEST

START_TEST(header_length) {
    static const uint64_t lengths[] = {SAFETENSORS_MAX_HEADER, SAFETENSORS_MAX_HEADER + 1,
                                       UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct buf b;
        struct err e;
        void *copy;
        buf_init(&b, MAX_BYTES);
        put_file(&b, "{}", 64);
        memcpy(b.data, &lengths[i], sizeof lengths[i]);
        ck_assert_ptr_null(parse_copy(&b, &copy, &e));
        ck_assert_msg(strstr(e.message, i ? "up to" : "more than the file has") != NULL, "%s",
                      e.message);
        free(copy);
        buf_clear(&b);
    }
}
END_TEST

/* At the limit of tensors and one over. */
START_TEST(many_tensors) {
    for (int over = 0; over < 2; over++) {
        struct buf b;
        struct err e;
        void *copy;
        buf_init(&b, MAX_BYTES);
        uint64_t n = 0;
        buf_append(&b, &n, sizeof n);
        for (int i = 0; i < SAFETENSORS_MAX_TENSORS + over; i++)
            buf_printf(&b, "%c\"t%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                       i ? ',' : '{', i);
        buf_puts(&b, "}");
        n = b.len - sizeof n;
        memcpy(b.data, &n, sizeof n);
        struct safetensors *s = parse_copy(&b, &copy, &e);
        ck_assert_msg((s != NULL) == !over, "%s", e.message);
        if (s) ck_assert_ptr_nonnull(safetensors_find(s, "t65535"));
        if (!s) ck_assert_msg(strstr(e.message, "up to 65536") != NULL, "%s", e.message);
        safetensors_free(s);
        free(copy);
        buf_clear(&b);
    }
}
END_TEST

/* A header nested deeper than a JSON parser's stack should go. */
START_TEST(deep_nesting) {
    struct buf b;
    struct err e;
    void *copy;
    buf_init(&b, MAX_BYTES);
    uint64_t n = 0;
    buf_append(&b, &n, sizeof n);
    buf_puts(&b, "{\"t\":");
    for (int i = 0; i < 200000; i++)
        buf_puts(&b, "[");
    n = b.len - sizeof n;
    memcpy(b.data, &n, sizeof n);
    ck_assert_ptr_null(parse_copy(&b, &copy, &e));
    ck_assert_int_eq(e.kind, ERR_INPUT);
    free(copy);
    buf_clear(&b);
}
END_TEST

int main(void) {
    Suite *s = suite_create("safetensors");
    TCase *t = tcase_create("safetensors");
    tcase_add_test(t, a_whole_file);
    tcase_add_test(t, an_empty_file);
    tcase_add_loop_test(t, a_broken_header, 0, (int)(sizeof bad / sizeof *bad));
    tcase_add_test(t, cut_off);
    tcase_add_test(t, header_length);
    tcase_add_test(t, many_tensors);
    tcase_add_test(t, deep_nesting);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
