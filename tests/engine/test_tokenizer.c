/* The tokenizer on small vocabularies made here; tests/model/test_tokens.c has the real ones. */
#include "engine/tokenizer.h"

#include "config/limits.h"
#include "engine/engine.h"
#include "tests/engine/gguf_builder.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_BYTES = 1 << 25,
    SPECIAL = ENGINE_TOKENIZE_SPECIAL,
    GUARDED = ENGINE_TOKENIZE_SPECIAL | ENGINE_TOKENIZE_GUARDED,
};

/* ---- vocabularies ---- */

struct extra {
    const char *text;
    int32_t kind;
};

struct spec {
    const char *model, *pre;
    struct extra extras[24]; /* tokens after the 256 bytes */
    const char *merges[24];
    int eos, bos, eot; /* -1: no key */
    int add_bos;       /* -1: no key */
};

/* Byte b in the printable alphabet of byte-level vocabularies. */
static void byte_text(int b, char out[4]) {
    int c = b, hidden = 0;
    for (int i = 0; i <= b; i++) {
        bool prints = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        if (i == b && !prints) c = 256 + hidden;
        hidden += !prints;
    }
    memset(out, 0, 4);
    if (c < 128) {
        out[0] = (char)c;
    } else {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
    }
}

static int n_extras(const struct spec *s) {
    int n = 0;
    while (n < 24 && s->extras[n].text)
        n++;
    return n;
}

static void put_tokens(struct buf *b, const struct spec *s) {
    put_key_array(b, "tokenizer.ggml.tokens", GGUF_STRING, 256 + (uint64_t)n_extras(s));
    for (int i = 0; i < 256; i++) {
        char text[4];
        byte_text(i, text);
        put_string(b, text, strlen(text));
    }
    for (int i = 0; i < n_extras(s); i++)
        put_string(b, s->extras[i].text, strlen(s->extras[i].text));
}

static void put_kinds(struct buf *b, const struct spec *s) {
    put_key_array(b, "tokenizer.ggml.token_type", GGUF_I32, 256 + (uint64_t)n_extras(s));
    for (int i = 0; i < 256; i++)
        put_u32(b, 1);
    for (int i = 0; i < n_extras(s); i++)
        put_u32(b, (uint32_t)s->extras[i].kind);
}

static void put_merges(struct buf *b, const struct spec *s) {
    uint64_t n = 0;
    while (n < 24 && s->merges[n])
        n++;
    put_key_array(b, "tokenizer.ggml.merges", GGUF_STRING, n);
    for (uint64_t i = 0; i < n; i++)
        put_string(b, s->merges[i], strlen(s->merges[i]));
}

static void put_spec(struct buf *b, const struct spec *s) {
    put_header(b, 0,
               5 + (uint64_t)(s->eos >= 0) + (s->bos >= 0) + (s->eot >= 0) + (s->add_bos >= 0));
    put_key_string(b, "tokenizer.ggml.model", s->model);
    put_key_string(b, "tokenizer.ggml.pre", s->pre);
    put_tokens(b, s);
    put_kinds(b, s);
    put_merges(b, s);
    if (s->eos >= 0) put_key_u32(b, "tokenizer.ggml.eos_token_id", (uint32_t)s->eos);
    if (s->bos >= 0) put_key_u32(b, "tokenizer.ggml.bos_token_id", (uint32_t)s->bos);
    if (s->eot >= 0) put_key_u32(b, "tokenizer.ggml.eot_token_id", (uint32_t)s->eot);
    if (s->add_bos >= 0) {
        put_key(b, "tokenizer.ggml.add_bos_token", GGUF_BOOL);
        buf_append(b, s->add_bos ? "\1" : "\0", 1);
    }
}

static struct tokenizer *load_bytes(const struct buf *b, struct err *e) {
    struct gguf *g = gguf_parse(b->data, b->len, "test.gguf", e);
    ck_assert_msg(g != NULL, "%s", e->message);
    struct tokenizer *t = tokenizer_new(g, e);
    gguf_free(g); /* the tokenizer keeps nothing of it */
    return t;
}

static struct tokenizer *load(const struct spec *s, struct err *e) {
    struct buf b;
    buf_init(&b, MAX_BYTES);
    put_spec(&b, s);
    struct tokenizer *t = load_bytes(&b, e);
    buf_clear(&b);
    return t;
}

/* Ids of the extras below. */
enum {
    AB = 256,
    ABC,
    BC,
    AA,
    AAAA,
    SPACE_A,
    START,
    END,
    END_X,
    USER,
    USER_LONG,
    NEWLINE,
    ODD,
    ENDOFTEXT,
    UNUSED,
};

static const struct spec plain_spec = {
    .model = "gpt2",
    .pre = "qwen2",
    .extras = {{"ab", 1},
               {"abc", 1},
               {"bc", 1},
               {"aa", 1},
               {"aaaa", 1},
               {"Ġa", 1},
               {"<|im_start|>", 3},
               {"<|im_end|>", 3},
               {"<|im_end|>x", 3},
               {"<tool>", 4},
               {"<tool>s", 4},
               {"\n", 3},
               {"ü é", 3},
               {"<|endoftext|>", 4},
               {"<|unused|>", 5}},
    /* Ranks in this order: "bc" before "ab". */
    .merges = {"b c", "a b", "a a", "aa aa", "ab c", "Ġ a"},
    .eos = END,
    .bos = START,
    .eot = -1,
    .add_bos = -1,
};

static struct tokenizer *t;

static void open_plain(void) {
    struct err e;
    t = load(&plain_spec, &e);
    ck_assert_msg(t != NULL, "%s", e.message);
}

static void close_plain(void) { tokenizer_free(t); }

/* ---- encoding ---- */

static int32_t *encode(const char *text, size_t len, unsigned flags, size_t *n) {
    int32_t *tokens;
    struct err e;
    if (!tokenizer_encode(t, text, len, flags, &tokens, n, &e)) ck_abort_msg("%s", e.message);
    return tokens;
}

/* `want` ends with -1. */
static void expect(const char *text, size_t len, unsigned flags, const int32_t *want) {
    size_t n;
    int32_t *got = encode(text, len, flags, &n);
    size_t n_want = 0;
    while (want[n_want] >= 0)
        n_want++;
    for (size_t i = 0; i < n && i < n_want; i++)
        ck_assert_msg(got[i] == want[i], "\"%s\" flags %u: token %zu is %d, not %d", text, flags, i,
                      got[i], want[i]);
    ck_assert_msg(n == n_want, "\"%s\" flags %u: %zu tokens, not %zu", text, flags, n, n_want);
    free(got);
}

#define IDS(...)                                                                                   \
    { __VA_ARGS__, -1 }

static const struct {
    const char *text;
    unsigned flags;
    int32_t want[24];
} encode_cases[] = {
    {"", 0, {-1}},
    {"a", 0, IDS('a')},
    {"ab", 0, IDS(AB)},
    /* the lower rank first, even if the other would give a longer token */
    {"abc", 0, IDS('a', BC)},
    {"aaa", 0, IDS(AA, 'a')},
    {"aaaa", 0, IDS(AAAA)},
    {"aaaaaaa", 0, IDS(AAAA, AA, 'a')},
    {"aab", 0, IDS('a', AB)},
    {"x ab", 0, IDS('x', ' ', AB)}, /* "a b" comes before " a" */
    {"x ac", 0, IDS('x', SPACE_A, 'c')},
    /* merges stay inside the pre-tokenizer's pieces */
    {"a.b", 0, IDS('a', '.', 'b')},
    {"é", 0, IDS(0xC3, 0xA9)},
    /* control tokens only where asked for */
    {"<|im_end|>", SPECIAL, IDS(END)},
    {"a<|im_end|>b", SPECIAL, IDS('a', END, 'b')},
    {"<|im_start|><|im_end|>", SPECIAL, IDS(START, END)},
    {"<|im_end|", SPECIAL, IDS('<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|')},
    {"<|im_end|>", 0, IDS('<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>')},
    /* the longest */
    {"<|im_end|>xy", SPECIAL, IDS(END_X, 'y')},
    /* user-defined ones always */
    {"a<tool>b", 0, IDS('a', USER, 'b')},
    {"<tool>st", 0, IDS(USER_LONG, 't')},
    {"<tool", 0, IDS('<', 't', 'o', 'o', 'l')},
    {"<<tool>>", SPECIAL, IDS('<', USER, '>')},
    /* one that ends generation counts as control even where the file calls it user-defined */
    {"<|endoftext|>", SPECIAL, IDS(ENDOFTEXT)},
    {"<|endof", 0, IDS('<', '|', 'e', 'n', 'd', 'o', 'f')},
    /* unused ones and control ones of a single character are only text */
    {"<|un", SPECIAL, IDS('<', '|', 'u', 'n')},
    {"\n", SPECIAL, IDS('\n')},
    {"ü é", SPECIAL, IDS(ODD)},
    /* beginning of sequence: this model doesn't ask for it */
    {"a", ENGINE_TOKENIZE_BOS, IDS('a')},
};

START_TEST(encoding) {
    const char *text = encode_cases[_i].text;
    expect(text, strlen(text), encode_cases[_i].flags, encode_cases[_i].want);
}
END_TEST

START_TEST(a_nul_is_a_byte_like_others) { expect("a\0b", 3, SPECIAL, (int32_t[])IDS('a', 0, 'b')); }
END_TEST

START_TEST(what_is_not_utf8_is_refused) {
    static const char *const texts[] = {"\xFF", "a\xC3", "\xED\xA0\x80", "\xC0\x80", "ok \x80"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int32_t *tokens;
        size_t n;
        struct err e;
        ck_assert(!tokenizer_encode(t, texts[i], strlen(texts[i]), 0, &tokens, &n, &e));
        ck_assert_int_eq(e.kind, ERR_INPUT);
    }
}
END_TEST

START_TEST(too_long_a_text_is_refused) {
    int32_t *tokens;
    size_t n, len = (size_t)LIMIT_BODY_BYTES_MAX + 1;
    struct err e;
    char *text = calloc(1, len);
    ck_assert(!tokenizer_encode(t, text, len, 0, &tokens, &n, &e));
    ck_assert_int_eq(e.kind, ERR_TOO_LARGE);
    free(text);
}
END_TEST

START_TEST(beginning_of_sequence) {
    struct err e;
    struct spec s = plain_spec;
    s.add_bos = 1;
    tokenizer_free(t);
    t = load(&s, &e);
    ck_assert(tokenizer_adds_bos(t));
    expect("a", 1, 0, (int32_t[])IDS('a'));
    expect("a", 1, ENGINE_TOKENIZE_BOS, (int32_t[])IDS(START, 'a'));
    expect("", 0, ENGINE_TOKENIZE_BOS, (int32_t[])IDS(START));
    /* not twice */
    expect("<|im_start|>a", 13, SPECIAL | ENGINE_TOKENIZE_BOS, (int32_t[])IDS(START, 'a'));
    s.bos = -1;
    tokenizer_free(t);
    t = load(&s, &e);
    ck_assert(!tokenizer_adds_bos(t));
    expect("a", 1, ENGINE_TOKENIZE_BOS, (int32_t[])IDS('a'));
    /* Llama 3's files may leave the key out and mean yes; a piece that is a token needs no merges
     * there. */
    s = plain_spec;
    s.pre = "llama-bpe";
    tokenizer_free(t);
    t = load(&s, &e);
    expect("abc", 3, ENGINE_TOKENIZE_BOS, (int32_t[])IDS(START, ABC));
    expect("abcc", 4, 0, (int32_t[])IDS('a', BC, 'c'));
}
END_TEST

/* ---- the heap against the plain definition ---- */

/* Merges the best pair again and again, O(n^2). */
static size_t merge_slowly(int32_t *ids, size_t n) {
    static const int32_t merges[][3] = {
        {'b', 'c', BC}, {'a', 'b', AB}, {'a', 'a', AA}, {AA, AA, AAAA}, {AB, 'c', ABC}};
    for (;;) {
        size_t best = SIZE_MAX, rank = sizeof merges / sizeof *merges;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t r = 0; r < rank; r++)
                if (ids[i] == merges[r][0] && ids[i + 1] == merges[r][1]) {
                    best = i;
                    rank = r;
                }
        if (best == SIZE_MAX) return n;
        ids[best] = merges[rank][2];
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

START_TEST(merging_follows_the_definition) {
    uint32_t random = 12345;
    for (int round = 0; round < 2000; round++) {
        char text[64];
        int32_t want[64];
        size_t len = 1 + (size_t)round % 60, n;
        for (size_t i = 0; i < len; i++) {
            random = random * 1664525u + 1013904223u;
            text[i] = "aaabbc"[(random >> 16) % 6];
            want[i] = (unsigned char)text[i];
        }
        size_t n_want = merge_slowly(want, len);
        int32_t *got = encode(text, len, 0, &n);
        ck_assert_uint_eq(n, n_want);
        ck_assert_int_eq(memcmp(got, want, n * sizeof *got), 0);
        free(got);
    }
}
END_TEST

START_TEST(a_word_of_a_megabyte_is_merged) {
    enum { LEN = 1 << 20 };
    char *text = malloc(LEN);
    memset(text, 'a', LEN);
    size_t n;
    int32_t *got = encode(text, LEN, 0, &n);
    ck_assert_uint_eq(n, LEN / 4);
    ck_assert_int_eq(got[LEN / 4 - 1], AAAA);
    free(got);
    free(text);
}
END_TEST

/* ---- the vocabulary ---- */

START_TEST(vocabulary) {
    int n;
    size_t len;
    ck_assert_int_eq(tokenizer_n_vocab(t), UNUSED + 1);
    ck_assert_int_eq(tokenizer_eos(t), END);
    ck_assert_int_eq(tokenizer_bos(t), START);
    const int32_t *ends = tokenizer_ends(t, &n);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(ends[0], END);
    ck_assert_int_eq(ends[1], ENDOFTEXT);
    ck_assert(tokenizer_ends_generation(t, END) && tokenizer_ends_generation(t, ENDOFTEXT));
    ck_assert(!tokenizer_ends_generation(t, START) && !tokenizer_ends_generation(t, 'a'));
    ck_assert(tokenizer_is_control(t, START) && tokenizer_is_control(t, ENDOFTEXT));
    ck_assert(!tokenizer_is_control(t, USER) && !tokenizer_is_control(t, AB));
    ck_assert_int_eq(tokenizer_find(t, "<|im_end|>", 10), END);
    ck_assert_int_eq(tokenizer_find(t, "<tool>", 6), USER);
    ck_assert_int_eq(tokenizer_find(t, " a", 2), SPACE_A);
    ck_assert_int_eq(tokenizer_find(t, "<|im_en", 7), -1);
    ck_assert_int_eq(tokenizer_find(t, "", 0), -1);
    ck_assert_int_eq(memcmp(tokenizer_bytes(t, SPACE_A, &len), " a", 2), 0);
    ck_assert_uint_eq(len, 2);
    ck_assert_int_eq(*tokenizer_bytes(t, 0xFF, &len), '\xFF');
    ck_assert_uint_eq(len, 1);
    /* Ids that aren't there. */
    static const int32_t none[] = {-1, UNUSED + 1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        tokenizer_bytes(t, none[i], &len);
        ck_assert_uint_eq(len, 0);
        ck_assert(!tokenizer_is_control(t, none[i]) && !tokenizer_ends_generation(t, none[i]));
    }
}
END_TEST

START_TEST(decoding) {
    const int32_t tokens[] = {START, 'u', USER, SPACE_A, 0xC3, 0xA9, END, -5, 999999};
    struct buf out;
    buf_init(&out, 100);
    ck_assert(tokenizer_decode(t, tokens, 9, false, &out));
    ck_assert_str_eq(buf_text(&out), "u<tool> a\xC3\xA9");
    buf_reset(&out);
    ck_assert(tokenizer_decode(t, tokens, 9, true, &out));
    ck_assert_str_eq(buf_text(&out), "<|im_start|>u<tool> a\xC3\xA9<|im_end|>");
    buf_clear(&out);
    buf_init(&out, 5);
    ck_assert(!tokenizer_decode(t, tokens, 9, true, &out));
    buf_clear(&out);
}
END_TEST

/* ---- guarded text ---- */

/* What a user's text can do to the marks and to the tokens beside it. */
static const char *const fragments[] = {
    "<|im_end|>",
    "<|im_end|>x",
    "<|im_start|>",
    "<|endoftext|>",
    "<",
    "<|",
    "<|im",
    "<|im_end|",
    "|im_end|>",
    "im_end",
    "_end|>",
    ">",
    "|>",
    ">x",
    "x",
    "<tool>",
    "<tool",
    "ool>",
    "a",
    "abc",
    " ",
    "\n",
    "\t ",
    "\xC2\xA0",
    "",
    "\xEF\xB7\x90",
    "\xEF\xB7\x91",
    "\xEF\xB7\x92",
    "\xEF\xB7\x90\xEF\xB7\x91",
    "\xEF\xB7\x90\xEF\xB7\x92",
    "ü é",
    "ü ",
    " é",
    "é",
    "ü",
    "\xEF\xB7",
    "日本",
};
enum { N_FRAGMENTS = sizeof fragments / sizeof *fragments };

static void append_guarded(struct buf *out, const char *text, size_t len) {
    size_t guarded_len;
    char *guarded = tokenizer_guard(t, text, len, &guarded_len);
    buf_append(out, guarded, guarded_len);
    free(guarded);
}

/* `prompt` is what a template made of guarded texts, `plain` the same of the texts themselves. */
static void expect_plain(const struct buf *prompt, const struct buf *plain) {
    size_t n, n_want;
    int32_t *got = encode(buf_text(prompt), prompt->len, GUARDED, &n);
    int32_t *want = encode(buf_text(plain), plain->len, 0, &n_want);
    if (n != n_want || memcmp(got, want, n * sizeof *got) != 0)
        ck_abort_msg("\"%s\" isn't read as \"%s\"", buf_text(prompt), buf_text(plain));
    free(want);
    free(got);
}

static bool is_whole(const char *fragment) { return strcmp(fragment, "\xEF\xB7") != 0; }

START_TEST(guarded_fragments_are_plain_text_however_joined) {
    /* Every two fragments as one user's text, and as two texts joined; with a template's own half
     * token before and behind. */
    static const char *const heads[] = {"", "<|im", "<", "ü ", "q\n"}, *const tails[] = {
                                                                           "", "|>", "end|>", " é",
                                                                           "\nq"};
    struct buf prompt, plain;
    buf_init(&prompt, MAX_BYTES);
    buf_init(&plain, MAX_BYTES);
    for (int i = 0; i < N_FRAGMENTS * N_FRAGMENTS * 2; i++) {
        const char *a = fragments[i / 2 % N_FRAGMENTS], *b = fragments[i / 2 / N_FRAGMENTS];
        if (!is_whole(a) || !is_whole(b)) continue;
        for (int k = 0; k < 5; k++) {
            buf_reset(&prompt);
            buf_reset(&plain);
            buf_puts(&plain, heads[k]);
            buf_puts(&plain, a);
            buf_puts(&plain, b);
            buf_puts(&plain, tails[k]);
            buf_puts(&prompt, heads[k]);
            if (i % 2) {
                append_guarded(&prompt, a, strlen(a));
                append_guarded(&prompt, b, strlen(b));
            } else {
                append_guarded(&prompt, plain.data + strlen(heads[k]), strlen(a) + strlen(b));
            }
            buf_puts(&prompt, tails[k]);
            expect_plain(&prompt, &plain);
        }
    }
    buf_clear(&plain);
    buf_clear(&prompt);
}
END_TEST

START_TEST(random_guarded_texts_are_plain_text) {
    uint32_t random = 99;
    struct buf prompt, plain, text;
    buf_init(&prompt, MAX_BYTES);
    buf_init(&plain, MAX_BYTES);
    buf_init(&text, MAX_BYTES);
    for (int round = 0; round < 5000; round++) {
        buf_reset(&prompt);
        buf_reset(&plain);
        for (int part = 0; part < 3; part++) {
            buf_reset(&text);
            for (int k = 0; k < 5; k++) {
                random = random * 1664525u + 1013904223u;
                const char *f = fragments[(random >> 16) % N_FRAGMENTS];
                if (is_whole(f)) buf_puts(&text, f);
            }
            append_guarded(&prompt, buf_text(&text), text.len);
            buf_append(&plain, buf_text(&text), text.len);
        }
        expect_plain(&prompt, &plain);
    }
    buf_clear(&text);
    buf_clear(&plain);
    buf_clear(&prompt);
}
END_TEST

START_TEST(trimming_after_guarding_does_no_harm) {
    /* As a template's `content | trim` between its own halves of a token. */
    static const char *const texts[] = {"  _end|>", "_end|>  ", "\n\n_end|>\n",
                                        " \xC2\xA0_end|>\t"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t len;
        char *guarded = tokenizer_guard(t, texts[i], strlen(texts[i]), &len);
        char *from = guarded, *to = guarded + len;
        while (*from == ' ' || *from == '\n' || (unsigned char)*from == 0xC2 ||
               (unsigned char)*from == 0xA0)
            from++;
        while (to > from && strchr(" \n\t", to[-1]))
            to--;
        struct buf prompt, plain;
        buf_init(&prompt, 1000);
        buf_init(&plain, 1000);
        buf_printf(&prompt, "<|im%.*s", (int)(to - from), from);
        buf_puts(&plain, "<|im_end|>");
        expect_plain(&prompt, &plain);
        buf_clear(&plain);
        buf_clear(&prompt);
        free(guarded);
    }
}
END_TEST

START_TEST(harmless_text_is_guarded_as_it_is) {
    static const char *const texts[] = {
        "",      "def f(a, b):\n    return a < b\n", "  trimmed?  ", "日本 é", "<tool>", "a -> b",
        "y |= z"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t len;
        char *guarded = tokenizer_guard(t, texts[i], strlen(texts[i]), &len);
        ck_assert_str_eq(guarded, texts[i]);
        ck_assert_uint_eq(len, strlen(texts[i]));
        free(guarded);
    }
}
END_TEST

START_TEST(a_template_s_own_control_tokens_are_read_beside_guarded_text) {
    struct buf prompt;
    buf_init(&prompt, 1000);
    buf_puts(&prompt, "<|im_start|>");
    append_guarded(&prompt, "<|im_end|>", 10);
    buf_puts(&prompt, "<|im_end|>");
    expect(prompt.data, prompt.len, GUARDED,
           (int32_t[])IDS(START, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>', END));
    buf_clear(&prompt);
    /* A template's own noncharacter is text. */
    expect("\xEF\xB7\x90"
           "a",
           4, GUARDED, (int32_t[])IDS(0xEF, 0xB7, 0x90, 'a'));
}
END_TEST

/* ---- files that can't be used ---- */

static void refuse(const struct buf *b, const char *message) {
    struct err e = {0};
    struct tokenizer *bad = load_bytes(b, &e);
    ck_assert_msg(!bad, "taken, though %s", message);
    ck_assert_int_eq(e.kind, ERR_INPUT);
    ck_assert_msg(strstr(e.message, message) && strstr(e.message, "test.gguf"),
                  "\"%s\" doesn't say \"%s\"", e.message, message);
}

static void change_model(struct spec *s) { s->model = "llama"; }
static void change_pre(struct spec *s) { s->pre = "mystery"; }
static void change_eos(struct spec *s) { s->eos = UNUSED + 1; }
static void change_bos(struct spec *s) { s->bos = INT32_MAX; }
static void change_kind(struct spec *s) { s->extras[0].kind = 7; }
static void change_kind_negative(struct spec *s) { s->extras[0].kind = -1; }
static void change_kind_zero(struct spec *s) { s->extras[0].kind = 0; }
static void merge_without_space(struct spec *s) { s->merges[0] = "bc"; }
static void merge_empty(struct spec *s) { s->merges[0] = ""; }
static void merge_of_nothing(struct spec *s) { s->merges[0] = " c"; }
static void merge_of_unknown(struct spec *s) { s->merges[0] = "b zz"; }
static void merge_to_unknown(struct spec *s) { s->merges[0] = "b d"; }
static void merge_of_three(struct spec *s) { s->merges[0] = "a b c"; }
static void merge_outside_alphabet(struct spec *s) { s->merges[0] = "b 日"; }
/* Two ordinary tokens whose bytes make up a control token: no text may become one. */
static void merge_to_control(struct spec *s) {
    s->extras[0] = (struct extra){"bc", 3};
    s->extras[2] = (struct extra){"zz", 1};
}

static const struct {
    void (*change)(struct spec *);
    const char *message;
} changes[] = {
    {change_model, "\"llama\""},      {change_pre, "\"mystery\""},
    {change_eos, "eos_token_id"},     {change_bos, "bos_token_id"},
    {change_kind, "token_type"},      {change_kind_negative, "token_type"},
    {change_kind_zero, "token_type"}, {merge_without_space, "merge 0"},
    {merge_empty, "merge 0"},         {merge_of_nothing, "merge 0"},
    {merge_of_unknown, "merge 0"},    {merge_to_unknown, "merge 0"},
    {merge_of_three, "merge 0"},      {merge_outside_alphabet, "merge 0"},
    {merge_to_control, "merge 0"},
};

START_TEST(unusable_vocabularies_are_refused) {
    struct spec s = plain_spec;
    struct buf b;
    buf_init(&b, MAX_BYTES);
    changes[_i].change(&s);
    put_spec(&b, &s);
    refuse(&b, changes[_i].message);
    buf_clear(&b);
}
END_TEST

static void put_start(struct buf *b, uint64_t n_keys) {
    put_header(b, 0, n_keys);
    put_key_string(b, "tokenizer.ggml.model", "gpt2");
    put_key_string(b, "tokenizer.ggml.pre", "qwen2");
}

START_TEST(arrays_of_another_type_or_length_are_refused) {
    struct buf b;
    buf_init(&b, MAX_BYTES);
    put_start(&b, 2);
    refuse(&b, "tokenizer.ggml.tokens");
    buf_clear(&b);
    put_start(&b, 3);
    put_key_array(&b, "tokenizer.ggml.tokens", GGUF_U8, 4);
    put_u32(&b, 0);
    refuse(&b, "tokenizer.ggml.tokens");
    buf_clear(&b);
    put_start(&b, 3);
    put_key_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, 0);
    refuse(&b, "number of tokens");
    buf_clear(&b);
    put_start(&b, 3);
    put_tokens(&b, &plain_spec);
    refuse(&b, "tokenizer.ggml.merges");
    buf_clear(&b);
    /* Bytes or floats where 32-bit integers are usual, and too few of them. */
    for (int i = 0; i < 3; i++) {
        put_start(&b, 4);
        put_tokens(&b, &plain_spec);
        put_key_array(&b, "tokenizer.ggml.token_type",
                      i == 0   ? GGUF_U8
                      : i == 1 ? GGUF_F32
                               : GGUF_I32,
                      3);
        put_zeros(&b, i == 0 ? 3 : 12);
        refuse(&b, "token_type");
        buf_clear(&b);
    }
}
END_TEST

START_TEST(kinds_stored_as_bytes_are_read) {
    struct buf b;
    struct err e;
    buf_init(&b, MAX_BYTES);
    put_start(&b, 5);
    put_tokens(&b, &plain_spec);
    put_merges(&b, &plain_spec);
    put_key_array(&b, "tokenizer.ggml.token_type", GGUF_U8, UNUSED + 1);
    for (int i = 0; i <= UNUSED; i++)
        buf_append(&b, i == START ? "\3" : "\1", 1);
    struct tokenizer *bytes = load_bytes(&b, &e);
    ck_assert_msg(bytes != NULL, "%s", e.message);
    ck_assert(tokenizer_is_control(bytes, START) && !tokenizer_is_control(bytes, END));
    ck_assert_int_eq(tokenizer_eos(bytes), -1);
    tokenizer_free(bytes);
    buf_clear(&b);
}
END_TEST

/* LIMIT_VOCAB tokens are read, one more isn't. */
START_TEST(the_number_of_tokens_is_limited) {
    struct buf b;
    struct err e;
    buf_init(&b, MAX_BYTES);
    for (uint64_t n = LIMIT_VOCAB; n <= (uint64_t)LIMIT_VOCAB + 1; n++) {
        put_start(&b, 4);
        put_key_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, n);
        put_zeros(&b, n * 8);
        put_key_array(&b, "tokenizer.ggml.merges", GGUF_STRING, 0);
        if (n > LIMIT_VOCAB) {
            refuse(&b, "1048577");
        } else {
            struct tokenizer *large = load_bytes(&b, &e);
            ck_assert_msg(large != NULL, "%s", e.message);
            tokenizer_free(large);
        }
        buf_clear(&b);
    }
}
END_TEST

static Suite *tokenizer_suite(void) {
    Suite *suite = suite_create("tokenizer");
    TCase *plain = tcase_create("plain");
    tcase_add_checked_fixture(plain, open_plain, close_plain);
    tcase_set_timeout(plain, 300);
    tcase_add_loop_test(plain, encoding, 0, sizeof encode_cases / sizeof *encode_cases);
    tcase_add_test(plain, a_nul_is_a_byte_like_others);
    tcase_add_test(plain, what_is_not_utf8_is_refused);
    tcase_add_test(plain, too_long_a_text_is_refused);
    tcase_add_test(plain, beginning_of_sequence);
    tcase_add_test(plain, merging_follows_the_definition);
    tcase_add_test(plain, a_word_of_a_megabyte_is_merged);
    tcase_add_test(plain, vocabulary);
    tcase_add_test(plain, decoding);
    tcase_add_test(plain, guarded_fragments_are_plain_text_however_joined);
    tcase_add_test(plain, random_guarded_texts_are_plain_text);
    tcase_add_test(plain, trimming_after_guarding_does_no_harm);
    tcase_add_test(plain, harmless_text_is_guarded_as_it_is);
    tcase_add_test(plain, a_template_s_own_control_tokens_are_read_beside_guarded_text);
    suite_add_tcase(suite, plain);
    TCase *files = tcase_create("files");
    tcase_set_timeout(files, 120);
    tcase_add_loop_test(files, unusable_vocabularies_are_refused, 0,
                        sizeof changes / sizeof *changes);
    tcase_add_test(files, arrays_of_another_type_or_length_are_refused);
    tcase_add_test(files, kinds_stored_as_bytes_are_read);
    tcase_add_test(files, the_number_of_tokens_is_limited);
    suite_add_tcase(suite, files);
    return suite;
}

int main(void) {
    SRunner *runner = srunner_create(tokenizer_suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
