#include "engine/gguf.h"

#include "tests/engine/gguf_builder.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 1 << 22 };

/* Parses an exact copy on the heap, so that a sanitizer sees each byte read behind the end. */
static struct gguf *parse_copy(const struct buf *b, void **copy, struct err *e) {
    *copy = malloc(b->len ? b->len : 1);
    if (b->len) memcpy(*copy, b->data, b->len);
    *e = (struct err){0};
    return gguf_parse(*copy, b->len, "test.gguf", e);
}

/* A file with a value of every type, arrays and three tensors. */
static void put_whole(struct buf *b) {
    put_header(b, 3, 20);
    static const struct {
        const char *key;
        uint32_t type, bytes;
        uint64_t bits;
    } scalars[] = {
        {"u8", GGUF_U8, 1, 200},          {"i8", GGUF_I8, 1, 0xFE},
        {"u16", GGUF_U16, 2, 60000},      {"i16", GGUF_I16, 2, 0xFFFF},
        {"u32", GGUF_U32, 4, 0xFFFFFFFF}, {"i32", GGUF_I32, 4, 7},
        {"f32", GGUF_F32, 4, 0x3FC00000}, {"bool", GGUF_BOOL, 1, 1},
        {"u64", GGUF_U64, 8, 5},          {"u64 big", GGUF_U64, 8, UINT64_MAX},
        {"i64", GGUF_I64, 8, UINT64_MAX}, {"f64", GGUF_F64, 8, 0x4004000000000000},
        {"bool bad", GGUF_BOOL, 1, 2},
    };
    for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) {
        put_key(b, scalars[i].key, scalars[i].type);
        buf_append(b, &scalars[i].bits, scalars[i].bytes);
    }
    put_key_string(b, "string", "text \"with\"\n\x1b[31m");
    put_key_array(b, "strings", GGUF_STRING, 3);
    put_string(b, "", 0);
    put_string(b, "a\0b", 3);
    put_string(b, "\xFF", 1);
    put_key_array(b, "u16s", GGUF_U16, 3);
    buf_append(b, (const uint16_t[]){4, 4, 4}, 6);
    put_key_array(b, "u8s", GGUF_U8, 2);
    buf_append(b, (const uint8_t[]){3, 4}, 2);
    put_key_array(b, "floats", GGUF_F32, 2);
    put_f32(b, 0.5f);
    put_f32(b, -1.0f);
    put_key_array(b, "none", GGUF_I32, 0);
    put_key_array(b, "large", GGUF_I64, 1);
    put_u64(b, (uint64_t)1 << 31);
    put_tensor(b, "matrix", 2, (const uint64_t[]){64, 3}, QUANT_Q8_0, 0);
    put_tensor(b, "vector", 1, (const uint64_t[]){5}, QUANT_F32, 224);
    put_tensor(b, "odd", 2, (const uint64_t[]){7, 2}, 99, 256);
    put_padding(b, 32);
    put_zeros(b, 256);
}

static struct buf file;
static struct gguf *g;
static void *bytes;
static struct err error;

static void open_whole(void) {
    buf_init(&file, MAX_BYTES);
    put_whole(&file);
    g = parse_copy(&file, &bytes, &error);
    ck_assert_msg(g != NULL, "%s", error.message);
}

static void close_whole(void) {
    gguf_free(g);
    free(bytes);
    buf_clear(&file);
}

/* ---- whole files ---- */

START_TEST(integers) {
    uint32_t v;
    static const struct {
        const char *key;
        int64_t want; /* -1: out of range or another type */
    } cases[] = {{"u8", 200}, {"i8", -1},   {"u16", 60000},  {"i16", -1},     {"u32", 0xFFFFFFFF},
                 {"i32", 7},  {"u64", 5},   {"u64 big", -1}, {"i64", -1},     {"f32", -1},
                 {"f64", -1}, {"bool", -1}, {"string", -1},  {"strings", -1}, {"u16s", 4},
                 {"u8s", -1}, {"none", -1}, {"floats", -1},  {"no such", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        error.message[0] = 0;
        bool done = gguf_u32(g, cases[i].key, &v, &error);
        ck_assert_msg(done == (cases[i].want >= 0), "%s", cases[i].key);
        if (done) ck_assert_uint_eq(v, (uint32_t)cases[i].want);
        /* A failure names file and key. */
        if (!done)
            ck_assert(strstr(error.message, "test.gguf") && strstr(error.message, cases[i].key));
        if (!done) ck_assert_int_eq(error.kind, ERR_INPUT);
    }
}
END_TEST

START_TEST(other_scalars) {
    float f;
    bool flag;
    struct gguf_string s;
    ck_assert(gguf_f32(g, "f32", &f, &error));
    ck_assert(f == 1.5f);
    ck_assert(gguf_f32(g, "f64", &f, &error));
    ck_assert(f == 2.5f);
    ck_assert(!gguf_f32(g, "u32", &f, &error));
    ck_assert(!gguf_f32(g, "floats", &f, &error));
    ck_assert(gguf_bool(g, "bool", &flag, &error));
    ck_assert(flag);
    ck_assert(!gguf_bool(g, "bool bad", &flag, &error));
    ck_assert(!gguf_bool(g, "u8", &flag, &error));
    ck_assert(gguf_str(g, "string", &s, &error));
    ck_assert_uint_eq(s.len, 17);
    ck_assert(!gguf_str(g, "strings", &s, &error));
    ck_assert(!gguf_str(g, "u32", &s, &error));
    ck_assert(gguf_has(g, "u8") && !gguf_has(g, "u") && !gguf_has(g, "") && !gguf_has(g, "u88"));
}
END_TEST

START_TEST(arrays) {
    struct gguf_string *strings;
    int32_t *ints;
    float *floats;
    uint64_t n;
    enum gguf_type type;
    ck_assert(gguf_strings(g, "strings", &strings, &n, &error));
    ck_assert_uint_eq(n, 3);
    ck_assert_uint_eq(strings[0].len, 0);
    ck_assert_uint_eq(strings[1].len, 3);
    ck_assert_int_eq(memcmp(strings[1].data, "a\0b", 3), 0);
    ck_assert_int_eq(*strings[2].data, '\xFF');
    free(strings);
    ck_assert(gguf_i32s(g, "u16s", &ints, &n, &error));
    ck_assert_uint_eq(n, 3);
    ck_assert_int_eq(ints[2], 4);
    free(ints);
    ck_assert(gguf_i32s(g, "none", &ints, &n, &error));
    ck_assert_uint_eq(n, 0);
    free(ints);
    ck_assert(gguf_f32s(g, "floats", &floats, &n, &error));
    ck_assert_uint_eq(n, 2);
    ck_assert(floats[0] == 0.5f && floats[1] == -1.0f);
    free(floats);
    ck_assert(gguf_array_len(g, "u8s", &type, &n, &error));
    ck_assert_int_eq(type, GGUF_U8);
    ck_assert_uint_eq(n, 2);
    /* Elements of another type, no array, numbers out of range. */
    ck_assert(!gguf_strings(g, "u8s", &strings, &n, &error));
    ck_assert(!gguf_strings(g, "string", &strings, &n, &error));
    ck_assert(!gguf_i32s(g, "floats", &ints, &n, &error));
    ck_assert(!gguf_i32s(g, "strings", &ints, &n, &error));
    ck_assert(!gguf_i32s(g, "large", &ints, &n, &error));
    ck_assert(!gguf_i32s(g, "u32", &ints, &n, &error));
    ck_assert(!gguf_f32s(g, "u8s", &floats, &n, &error));
    ck_assert(!gguf_f32s(g, "f32", &floats, &n, &error));
    ck_assert(!gguf_array_len(g, "u8", &type, &n, &error));
}
END_TEST

START_TEST(tensors) {
    ck_assert_uint_eq(gguf_n_tensors(g), 3);
    const struct gguf_tensor *t = gguf_tensor(g, "matrix", 64, 3, &error);
    ck_assert(t != NULL);
    ck_assert_uint_eq(t->bytes, 204); /* 3 rows of two blocks of 34 bytes */
    const unsigned char *start = bytes;
    ck_assert_ptr_eq(t->data, start + gguf_header_bytes(g));
    ck_assert_uint_eq(gguf_header_bytes(g) % 32, 0);
    t = gguf_tensor(g, "vector", 5, 1, &error);
    ck_assert(t != NULL);
    ck_assert_ptr_eq(t->data, start + gguf_header_bytes(g) + 224);
    ck_assert_ptr_eq(gguf_tensor_at(g, 1), t);
    ck_assert(!gguf_tensor(g, "matrix", 3, 64, &error));
    ck_assert(!gguf_tensor(g, "vector", 5, 2, &error));
    ck_assert(!gguf_tensor(g, "no such", 5, 1, &error));
    ck_assert(strstr(error.message, "no such"));
    /* Of an unknown type: listed, refused by name at use. */
    t = gguf_find(g, "odd");
    ck_assert(t != NULL);
    ck_assert_uint_eq(t->bytes, 0);
    ck_assert(!gguf_tensor(g, "odd", 7, 2, &error));
    ck_assert(strstr(error.message, "99"));
    ck_assert(!gguf_find(g, "matri") && !gguf_find(g, ""));
}
END_TEST

START_TEST(key_texts) {
    char text[256];
    static const struct {
        uint64_t i;
        const char *want;
    } cases[] = {
        {0, "u8  u8  200"},
        {1, "i8  i8  -2"},
        {6, "f32  f32  1.5"},
        {7, "bool  bool  true"},
        {9, "u64 big  u64  18446744073709551615"},
        {10, "i64  i64  -1"},
        {13, "string  string  \"text \\\"with\\\"\\n\\x1b[31m\""},
        {14, "strings  string[3]  \"\", \"a\\x00b\", \"\\xff\""},
        {15, "u16s  u16[3]  4, 4, 4"},
        {18, "none  i32[0]  "},
    };
    ck_assert_uint_eq(gguf_n_keys(g), 20);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_key_text(g, cases[i].i, text, sizeof text);
        ck_assert_str_eq(text, cases[i].want);
        gguf_key_text(g, cases[i].i, text, 9);
        ck_assert_uint_le(strlen(text), 8);
        ck_assert_int_eq(strncmp(text, cases[i].want, strlen(text)), 0);
    }
}
END_TEST

START_TEST(no_file_cut_off_is_read) {
    /* The last tensor's type is unknown, so that only its start must be inside. */
    size_t whole = file.len;
    for (size_t len = 0; len < whole; len++) {
        void *copy;
        struct err e;
        struct buf cut = {.data = file.data, .len = len};
        struct gguf *part = parse_copy(&cut, &copy, &e);
        ck_assert_msg(!part, "%zu of %zu bytes were taken", len, whole);
        ck_assert_int_eq(e.kind, ERR_INPUT);
        ck_assert(strstr(e.message, "test.gguf"));
        free(copy);
    }
}
END_TEST

START_TEST(no_changed_byte_does_harm) {
    /* Whatever parses is read through every accessor; a sanitizer watches. */
    for (size_t i = 0; i < file.len; i++) {
        static const unsigned char values[] = {0, 1, 0x7F, 0x80, 0xFF};
        for (size_t k = 0; k < sizeof values; k++) {
            void *copy;
            struct err e;
            char old = file.data[i];
            file.data[i] = (char)values[k];
            struct gguf *changed = parse_copy(&file, &copy, &e);
            file.data[i] = old;
            for (uint64_t n = 0; changed && n < gguf_n_keys(changed); n++) {
                char text[300];
                gguf_key_text(changed, n, text, sizeof text);
            }
            for (uint64_t n = 0; changed && n < gguf_n_tensors(changed); n++) {
                const struct gguf_tensor *t = gguf_tensor_at(changed, n);
                const unsigned char *data = t->data;
                volatile unsigned char sum = 0;
                for (uint64_t j = 0; j < t->bytes; j++)
                    sum = (unsigned char)(sum + data[j]);
            }
            gguf_free(changed);
            free(copy);
        }
    }
}
END_TEST

/* ---- malformed files: each a thing that some reader has been attacked with ---- */

static const uint64_t DIM_1[] = {1}, DIM_32[] = {32}, DIM_0[] = {0}, DIM_33[] = {33};

static void bad_magic(struct buf *b) { buf_puts(b, "GGML\3\0\0\0"); }
static void bad_version(struct buf *b) {
    put_header(b, 0, 0);
    b->data[4] = 1;
}
static void big_endian(struct buf *b) {
    put_header(b, 0, 0);
    memcpy(b->data + 4, "\0\0\0\3", 4);
}
static void too_many_keys(struct buf *b) { put_header(b, 0, (uint64_t)1 << 61); }
static void many_keys(struct buf *b) {
    put_header(b, 0, 100);
    put_zeros(b, 100);
}
static void too_many_tensors(struct buf *b) { put_header(b, UINT64_MAX, 0); }
static void keys_that_overflow(struct buf *b) { put_header(b, 0, UINT64_MAX / 16 + 2); }
static void long_key(struct buf *b) {
    put_header(b, 0, 1);
    put_u64(b, UINT64_MAX);
    put_zeros(b, 64);
}
static void empty_key(struct buf *b) {
    put_header(b, 0, 1);
    put_key_u32(b, "", 1);
    put_zeros(b, 64);
}
static void key_with_escape(struct buf *b) {
    put_header(b, 0, 1);
    put_key_u32(b, "a\x1b[2J", 1);
}
static void key_with_nul(struct buf *b) {
    put_header(b, 0, 1);
    put_string(b, "a\0b", 3);
    put_u32(b, GGUF_U32);
    put_u32(b, 1);
}
static void key_not_utf8(struct buf *b) {
    put_header(b, 0, 1);
    put_key_u32(b, "a\xFF", 1);
}
static void key_too_long(struct buf *b) {
    static char name[GGUF_MAX_NAME + 2];
    memset(name, 'a', GGUF_MAX_NAME + 1);
    put_header(b, 0, 1);
    put_key_u32(b, name, 1);
}
static void key_twice(struct buf *b) {
    put_header(b, 0, 3);
    put_key_u32(b, "a", 1);
    put_key_u32(b, "b", 1);
    put_key_u32(b, "a", 2);
}
static void bad_type(struct buf *b) {
    put_header(b, 0, 1);
    put_key(b, "a", 13);
    put_zeros(b, 16);
}
static void negative_type(struct buf *b) {
    put_header(b, 0, 1);
    put_key(b, "a", UINT32_MAX);
    put_zeros(b, 16);
}
static void long_string(struct buf *b) {
    put_header(b, 0, 1);
    put_key(b, "a", GGUF_STRING);
    put_u64(b, UINT64_MAX - 7);
    put_zeros(b, 16);
}
static void long_array(struct buf *b) {
    put_header(b, 0, 1);
    put_key_array(b, "a", GGUF_F64, UINT64_MAX / 8 + 2);
    put_zeros(b, 16);
}
static void long_string_array(struct buf *b) {
    put_header(b, 0, 1);
    put_key_array(b, "a", GGUF_STRING, (uint64_t)1 << 40);
    put_zeros(b, 64);
}
static void string_array_cut(struct buf *b) {
    put_header(b, 0, 1);
    put_key_array(b, "a", GGUF_STRING, 2);
    put_string(b, "abc", 3);
    put_u64(b, 4);
    buf_puts(b, "abc");
}
static void array_of_arrays(struct buf *b) {
    put_header(b, 0, 1);
    put_key_array(b, "a", GGUF_ARRAY, 1);
    put_u32(b, GGUF_U8);
    put_u64(b, 1);
    put_zeros(b, 16);
}
static void array_of_unknown(struct buf *b) {
    put_header(b, 0, 1);
    put_key_array(b, "a", 77, 1);
    put_zeros(b, 16);
}
static void with_alignment(struct buf *b, uint32_t type, uint64_t value, size_t bytes_of_value) {
    put_header(b, 1, 1);
    put_key(b, "general.alignment", type);
    buf_append(b, &value, bytes_of_value);
    put_tensor(b, "t", 1, DIM_1, QUANT_F32, 0);
    put_zeros(b, 256);
}
static void alignment_0(struct buf *b) { with_alignment(b, GGUF_U32, 0, 4); }
static void alignment_48(struct buf *b) { with_alignment(b, GGUF_U32, 48, 4); }
static void alignment_4(struct buf *b) { with_alignment(b, GGUF_U32, 4, 4); }
static void alignment_large(struct buf *b) { with_alignment(b, GGUF_U32, 1 << 17, 4); }
static void alignment_overflow(struct buf *b) { with_alignment(b, GGUF_U32, 0x80000000u, 4); }
static void alignment_u64(struct buf *b) { with_alignment(b, GGUF_U64, 32, 8); }

static void with_tensor(struct buf *b, const char *name, uint32_t n_dims, const uint64_t *dims,
                        uint32_t type, uint64_t offset) {
    put_header(b, 1, 0);
    put_tensor(b, name, n_dims, dims, type, offset);
    put_padding(b, 32);
    put_zeros(b, 256);
}
static void no_dims(struct buf *b) { with_tensor(b, "t", 0, DIM_1, QUANT_F32, 0); }
static void five_dims(struct buf *b) {
    with_tensor(b, "t", 5, (const uint64_t[]){1, 1, 1, 1, 1}, QUANT_F32, 0);
}
static void many_dims(struct buf *b) {
    put_header(b, 1, 0);
    put_string(b, "t", 1);
    put_u32(b, UINT32_MAX);
    put_zeros(b, 256);
}
static void zero_dim(struct buf *b) { with_tensor(b, "t", 1, DIM_0, QUANT_F32, 0); }
static void negative_dim(struct buf *b) {
    with_tensor(b, "t", 2, (const uint64_t[]){32, (uint64_t)-1}, QUANT_F32, 0);
}
static void dims_overflow(struct buf *b) {
    with_tensor(b, "t", 4, (const uint64_t[]){65536, 65536, 65536, 65536}, QUANT_F32, 0);
}
static void dims_overflow_63(struct buf *b) {
    with_tensor(b, "t", 2, (const uint64_t[]){(uint64_t)1 << 32, (uint64_t)1 << 31}, QUANT_Q8_0, 0);
}
static void bytes_overflow(struct buf *b) {
    with_tensor(b, "t", 2, (const uint64_t[]){(uint64_t)1 << 31, (uint64_t)1 << 31}, QUANT_F32, 0);
}
static void row_not_in_blocks(struct buf *b) { with_tensor(b, "t", 1, DIM_33, QUANT_Q8_0, 0); }
static void tensor_outside(struct buf *b) { with_tensor(b, "t", 1, DIM_32, QUANT_F32, 160); }
static void tensor_far_outside(struct buf *b) {
    with_tensor(b, "t", 1, DIM_32, QUANT_F32, UINT64_MAX - 31);
}
static void tensor_unaligned(struct buf *b) { with_tensor(b, "t", 1, DIM_1, QUANT_F32, 4); }
static void unknown_tensor_outside(struct buf *b) { with_tensor(b, "t", 1, DIM_1, 99, 512); }
static void tensor_name_empty(struct buf *b) { with_tensor(b, "", 1, DIM_1, QUANT_F32, 0); }
static void tensor_name_with_newline(struct buf *b) {
    with_tensor(b, "a\nb", 1, DIM_1, QUANT_F32, 0);
}
static void two_tensors(struct buf *b, const char *second, uint64_t offset) {
    put_header(b, 2, 0);
    put_tensor(b, "a", 1, DIM_32, QUANT_F32, 0);
    put_tensor(b, second, 1, DIM_1, QUANT_F32, offset);
    put_padding(b, 32);
    put_zeros(b, 256);
}
static void tensors_overlap(struct buf *b) { two_tensors(b, "b", 96); }
static void tensors_equal_place(struct buf *b) { two_tensors(b, "b", 0); }
static void tensor_twice(struct buf *b) { two_tensors(b, "a", 128); }

/* {how it is written, what the message must say} */
static const struct {
    void (*put)(struct buf *);
    const char *message;
} malformed[] = {
    {bad_magic, "GGUF"},
    {bad_version, "version 1"},
    {big_endian, "big-endian"},
    {too_many_keys, "metadata keys"},
    {many_keys, "metadata keys"},
    {keys_that_overflow, "metadata keys"},
    {too_many_tensors, "tensors"},
    {long_key, "metadata key 0"},
    {empty_key, "metadata key 0"},
    {key_with_escape, "metadata key 0"},
    {key_with_nul, "metadata key 0"},
    {key_not_utf8, "metadata key 0"},
    {key_too_long, "metadata key 0"},
    {key_twice, "key a is there twice"},
    {bad_type, "type 13"},
    {negative_type, "type 4294967295"},
    {long_string, "string a"},
    {long_array, "array a claims"},
    {long_string_array, "array a claims"},
    {string_array_cut, "string 1 of the array a"},
    {array_of_arrays, "type 9"},
    {array_of_unknown, "type 77"},
    {alignment_0, "general.alignment"},
    {alignment_4, "general.alignment"},
    {alignment_48, "general.alignment"},
    {alignment_large, "general.alignment"},
    {alignment_overflow, "general.alignment"},
    {alignment_u64, "general.alignment"},
    {no_dims, "0 dimensions"},
    {five_dims, "5 dimensions"},
    {many_dims, "4294967295 dimensions"},
    {zero_dim, "empty dimension"},
    {negative_dim, "too large"},
    {dims_overflow, "too large"},
    {dims_overflow_63, "too large"},
    {bytes_overflow, "too large"},
    {row_not_in_blocks, "multiple"},
    {tensor_outside, "outside"},
    {tensor_far_outside, "outside"},
    {tensor_unaligned, "aligned"},
    {unknown_tensor_outside, "outside"},
    {tensor_name_empty, "tensor name 0"},
    {tensor_name_with_newline, "tensor name 0"},
    {tensors_overlap, "overlaps"},
    {tensors_equal_place, "overlaps"},
    {tensor_twice, "tensor a is there twice"},
};

START_TEST(malformed_files_are_refused) {
    struct buf b;
    void *copy;
    struct err e;
    buf_init(&b, MAX_BYTES);
    malformed[_i].put(&b);
    struct gguf *parsed = parse_copy(&b, &copy, &e);
    ck_assert(!parsed);
    ck_assert_int_eq(e.kind, ERR_INPUT);
    ck_assert_msg(strstr(e.message, malformed[_i].message) && strstr(e.message, "test.gguf"),
                  "\"%s\" doesn't say \"%s\"", e.message, malformed[_i].message);
    free(copy);
    buf_clear(&b);
}
END_TEST

/* ---- the same builders at the edge of what is allowed ---- */

static void empty_file(struct buf *b) { put_header(b, 0, 0); }
static void version_2(struct buf *b) {
    put_header(b, 0, 0);
    b->data[4] = 2;
}
static void alignment_8(struct buf *b) { with_alignment(b, GGUF_U32, 8, 4); }
static void alignment_65536(struct buf *b) {
    with_alignment(b, GGUF_U32, 65536, 4);
    put_zeros(b, 65536);
}
static void key_longest(struct buf *b) {
    static char name[GGUF_MAX_NAME + 1];
    memset(name, 'a', GGUF_MAX_NAME);
    put_header(b, 0, 1);
    put_key_u32(b, name, 1);
}
static void tensor_at_the_end(struct buf *b) { with_tensor(b, "t", 1, DIM_32, QUANT_F32, 128); }
static void tensors_side_by_side(struct buf *b) { two_tensors(b, "b", 128); }
static void tensors_in_any_order(struct buf *b) {
    put_header(b, 2, 0);
    put_tensor(b, "b", 1, DIM_32, QUANT_F32, 128);
    put_tensor(b, "a", 1, DIM_32, QUANT_F32, 0);
    put_padding(b, 32);
    put_zeros(b, 256);
}
static void empty_array(struct buf *b) {
    put_header(b, 0, 1);
    put_key_array(b, "a", GGUF_STRING, 0);
}

static void (*const allowed[])(struct buf *) = {
    empty_file,        version_2,   alignment_8,          alignment_65536,
    tensor_at_the_end, key_longest, tensors_side_by_side, tensors_in_any_order,
    empty_array,
};

START_TEST(allowed_files_are_read) {
    struct buf b;
    void *copy;
    struct err e;
    buf_init(&b, MAX_BYTES);
    allowed[_i](&b);
    struct gguf *parsed = parse_copy(&b, &copy, &e);
    ck_assert_msg(parsed != NULL, "%s", e.message);
    gguf_free(parsed);
    free(copy);
    buf_clear(&b);
}
END_TEST

START_TEST(a_part_of_a_split_model_says_so) {
    struct buf b;
    void *copy;
    struct err e;
    buf_init(&b, MAX_BYTES);
    put_header(&b, 0, 1);
    put_key(&b, "split.count", GGUF_U16);
    buf_append(&b, (const uint16_t[]){3}, 2);
    struct gguf *parsed = parse_copy(&b, &copy, &e);
    ck_assert(parsed != NULL);
    ck_assert(!gguf_tensor(parsed, "output.weight", 1, 1, &e));
    ck_assert(strstr(e.message, "3 parts"));
    gguf_free(parsed);
    free(copy);
    buf_clear(&b);
}
END_TEST

START_TEST(many_names_are_found) {
    /* As many as a large model has, in an order that isn't sorted. */
    enum { N = 5000 };
    struct buf b;
    void *copy;
    struct err e;
    char name[32];
    buf_init(&b, MAX_BYTES);
    put_header(&b, 0, N);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "key.%d", i * 7919 % N);
        put_key_u32(&b, name, (uint32_t)(i * 7919 % N));
    }
    struct gguf *parsed = parse_copy(&b, &copy, &e);
    ck_assert_msg(parsed != NULL, "%s", e.message);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t v;
        snprintf(name, sizeof name, "key.%u", i);
        ck_assert(gguf_u32(parsed, name, &v, &e));
        ck_assert_uint_eq(v, i);
    }
    gguf_free(parsed);
    free(copy);
    buf_clear(&b);
}
END_TEST

static Suite *gguf_suite(void) {
    Suite *suite = suite_create("gguf");
    TCase *whole = tcase_create("whole");
    tcase_add_checked_fixture(whole, open_whole, close_whole);
    tcase_set_timeout(whole, 120);
    tcase_add_test(whole, integers);
    tcase_add_test(whole, other_scalars);
    tcase_add_test(whole, arrays);
    tcase_add_test(whole, tensors);
    tcase_add_test(whole, key_texts);
    tcase_add_test(whole, no_file_cut_off_is_read);
    tcase_add_test(whole, no_changed_byte_does_harm);
    suite_add_tcase(suite, whole);
    TCase *built = tcase_create("built");
    tcase_add_loop_test(built, malformed_files_are_refused, 0,
                        sizeof malformed / sizeof *malformed);
    tcase_add_loop_test(built, allowed_files_are_read, 0, sizeof allowed / sizeof *allowed);
    tcase_add_test(built, a_part_of_a_split_model_says_so);
    tcase_add_test(built, many_names_are_found);
    suite_add_tcase(suite, built);
    return suite;
}

int main(void) {
    SRunner *runner = srunner_create(gguf_suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
