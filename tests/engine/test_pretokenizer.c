#include "engine/pretokenizer.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The pieces, each in brackets. */
static void bracket(void *arg, const char *text, size_t len) {
    char *out = arg;
    size_t used = strlen(out);
    snprintf(out + used, 4096 - used, "[%.*s]", (int)len, text);
}

/* Expected pieces follow from the published patterns; tests/model/test_tokens.c compares whole
 * token sequences with the reference implementation. */
static const struct {
    const char *name, *text, *pieces;
} cases[] = {
    {"qwen2", "Hello world", "[Hello][ world]"},
    {"qwen2", "it's we'VE I'm'ok", "[it]['s][ we]['VE][ I]['m]['ok]"},
    {"qwen2", "x = 1234;", "[x][ =][ ][1][2][3][4][;]"},
    {"qwen2", "a  b", "[a][ ][ b]"},
    {"qwen2", "if x:\n    y\n\n  z", "[if][ x][:\n][   ][ y][\n\n][ ][ z]"},
    {"qwen2", "a.b(c)", "[a][.b][(c][)]"},
    {"qwen2", "tail   ", "[tail][   ]"},
    {"qwen2", " \n \n x", "[ \n \n][ x]"},
    {"qwen2", "\t\tx", "[\t][\tx]"},
    {"qwen2", "été 日本語", "[été][ 日本語]"},
    {"qwen2", "!!!\n\nx", "[!!!\n\n][x]"},
    {"qwen2", "\xE2\x80\xA8x", "[\xE2\x80\xA8x]"},     /* U+2028 is no \r or \n: may lead a word */
    {"qwen2", " \xE1\xA0\x8E ", "[ \xE1\xA0\x8E][ ]"}, /* U+180E is no white space */
    {"qwen2",
     "a\xC2\xA0\xC2\xA0"
     "b",
     "[a][\xC2\xA0][\xC2\xA0"
     "b]"}, /* U+00A0 is */
    {"qwen2", "", ""},
    {"llama-bpe", "x = 1234567;", "[x][ =][ ][123][456][7][;]"},
    {"llama-bpe", "it'S", "[it]['S]"},
    {"gpt-2", "it's IT'S 1234 a,b", "[it]['s][ IT]['][S][ 1234][ a][,][b]"},
    {"gpt-2", "a\n\n b  ", "[a][\n\n][ b][  ]"},
    {"gpt-2", "x!?\n", "[x][!?][\n]"},
    {"smollm", "x = 12, y", "[x][ =][ ][1][2][,][ y]"},
    {"smollm", "12 ab", "[1][2][ ab]"},
    {"smollm", "a 1", "[a][ ][1]"},
    {"smollm", "it's", "[it]['s]"},
    {"starcoder", "a1b", "[a][1][b]"},
};

static struct pretokenizer *open_named(const char *name) {
    struct err e;
    struct pretokenizer *p = pretokenizer_new(name, strlen(name), "test.gguf", &e);
    ck_assert_msg(p != NULL, "%s", e.message);
    return p;
}

START_TEST(pieces) {
    struct err e;
    char out[4096] = "";
    struct pretokenizer *p = open_named(cases[_i].name);
    ck_assert(pretokenizer_split(p, cases[_i].text, strlen(cases[_i].text), bracket, out, &e));
    ck_assert_str_eq(out, cases[_i].pieces);
    pretokenizer_free(p);
}
END_TEST

START_TEST(unknown_names_are_refused) {
    static const char *const names[] = {"default", "qwen", "qwen22", "", "deepseek-llm", "QWEN2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct err e;
        ck_assert(!pretokenizer_new(names[i], strlen(names[i]), "test.gguf", &e));
        ck_assert_int_eq(e.kind, ERR_INPUT);
        char quoted[64];
        snprintf(quoted, sizeof quoted, "\"%s\"", names[i]);
        ck_assert(strstr(e.message, quoted) && strstr(e.message, "test.gguf"));
    }
}
END_TEST

START_TEST(families_differ_in_what_goes_with_them) {
    struct pretokenizer *llama = open_named("llama-bpe"), *qwen = open_named("qwen2");
    ck_assert(pretokenizer_ignores_merges(llama) && pretokenizer_adds_bos(llama));
    ck_assert(!pretokenizer_ignores_merges(qwen) && !pretokenizer_adds_bos(qwen));
    pretokenizer_free(llama);
    pretokenizer_free(qwen);
}
END_TEST

/* ---- long runs ---- */

struct total {
    size_t bytes;
    bool broken;
    const char *expected; /* where the next piece must start */
};

static void count(void *arg, const char *text, size_t len) {
    struct total *t = arg;
    t->broken = t->broken || text != t->expected || !len; /* check's own assertions are slow here */
    t->expected = text + len;
    t->bytes += len;
}

/* A million of one unit, for every family: the match limit is linear in the text, so a pattern that
 * backtracked more would fail. */
START_TEST(long_runs_are_cut_in_linear_work) {
    static const char *const names[] = {"qwen2", "llama-bpe", "smollm", "gpt-2"};
    static const char *const units[] = {
        "a", " ", "\n", "1", "!", "'", "é", " \n", "a ", "'s", "\xE2\x80\xA8", "\xCC\x81", " \t"};
    enum { LEN = 1000000 };
    char *text = malloc(LEN);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        struct pretokenizer *p = open_named(names[n]);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            size_t unit = strlen(units[u]), len = LEN / unit * unit;
            for (size_t i = 0; i < len; i += unit)
                memcpy(text + i, units[u], unit);
            struct err e;
            struct total t = {.expected = text};
            ck_assert_msg(pretokenizer_split(p, text, len, count, &t, &e), "%s", e.message);
            ck_assert(!t.broken);
            ck_assert_uint_eq(t.bytes, len);
        }
        pretokenizer_free(p);
    }
    free(text);
}
END_TEST

static Suite *pretokenizer_suite(void) {
    Suite *suite = suite_create("pretokenizer");
    TCase *tc = tcase_create("pretokenizer");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, pieces, 0, sizeof cases / sizeof *cases);
    tcase_add_test(tc, unknown_names_are_refused);
    tcase_add_test(tc, families_differ_in_what_goes_with_them);
    tcase_add_test(tc, long_runs_are_cut_in_linear_work);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void) {
    SRunner *runner = srunner_create(pretokenizer_suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
