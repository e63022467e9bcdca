#include "engine/stop.h"

#include "base/utf8.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every case is fed whole, byte by byte, and cut in two at each place: the outcome must be the
 * same, and what was shown on the way must add up to the text. */

struct outcome {
    char *text;
    size_t len;
    enum stop_why why;
    int which;
};

static void show(struct stop *s, struct buf *shown) {
    size_t len;
    const char *text = stop_show(s, &len);
    buf_append(shown, text, len);
    if (s->why == STOP_NOT && !s->finished) ck_assert(utf8_valid(shown->data, shown->len));
}

/* Feeds in pieces of `step` bytes after a first one of `first`. */
static struct outcome feed(const struct stop_rules *rules, const char *input, size_t len,
                           size_t first, size_t step) {
    struct stop s;
    struct buf shown;
    buf_init(&shown, 1 << 20);
    stop_init(&s, rules);
    for (size_t i = 0; i < len;) {
        size_t n = i == 0 && first ? first : step;
        if (n > len - i) n = len - i;
        bool over = stop_feed(&s, input + i, n);
        ck_assert_int_eq(over, s.why != STOP_NOT);
        show(&s, &shown);
        if (over) break;
        i += n;
    }
    stop_finish(&s);
    stop_finish(&s);
    show(&s, &shown);
    ck_assert_uint_eq(shown.len, s.text.len);
    ck_assert_int_eq(memcmp(buf_text(&shown), buf_text(&s.text), shown.len), 0);
    struct outcome out = {.why = s.why, .which = s.which};
    out.text = buf_take(&s.text, &out.len);
    stop_clear(&s);
    buf_clear(&shown);
    return out;
}

static void expect(const struct stop_rules *rules, const char *input, size_t len, const char *text,
                   size_t text_len, enum stop_why why, int which) {
    for (size_t step = 1; step <= 3; step++) {
        for (size_t first = 0; first <= len; first++) {
            struct outcome o = feed(rules, input, len, first, step == 3 ? len + 1 : step);
            if (o.len != text_len || memcmp(o.text, text, text_len) != 0 || o.why != why ||
                o.which != which)
                ck_abort_msg("input \"%.*s\" first %zu step %zu: got \"%s\" why %d which %d, not "
                             "\"%s\" why %d which %d",
                             (int)len, input, first, step, o.text, (int)o.why, o.which, text,
                             (int)why, which);
            free(o.text);
        }
    }
}

/* ---- stop strings ---- */

static const struct {
    const char *stops[4];
    bool include;
    const char *input, *text;
    enum stop_why why;
    int which;
} stop_cases[] = {
    {{"END"}, false, "some END more", "some ", STOP_STRING, 0},
    {{"END"}, true, "some END more", "some END", STOP_STRING, 0},
    {{"END"}, false, "no such thing: EN", "no such thing: EN", STOP_NOT, 0},
    {{"END"}, false, "EENEND", "EEN", STOP_STRING, 0},
    {{"aab"}, false, "aaaab", "aa", STOP_STRING, 0},
    {{"END"}, false, "END", "", STOP_STRING, 0},
    {{"x", "\n\n"}, false, "a\n\nb", "a", STOP_STRING, 1},
    /* The one complete first, even if another began earlier. */
    {{"abcd", "bc"}, false, "xabcd", "xa", STOP_STRING, 1},
    /* Of two complete at once the longer one. */
    {{"bc", "abc"}, false, "xabcd", "x", STOP_STRING, 1},
    {{"abc", "bc"}, false, "xabcd", "x", STOP_STRING, 0},
    {{"é"}, false, "caf\xC3\xA9!", "caf", STOP_STRING, 0},
    {{"é"}, false, "caf\xC3\xA8!", "caf\xC3\xA8!", STOP_NOT, 0},
    {{"日本", "本"}, false, "日日本", "日", STOP_STRING, 0},
    {{"\n```"}, false, "code\n``\n```", "code\n``", STOP_STRING, 0},
};

START_TEST(stop_strings) {
    const char *const *stops = stop_cases[_i].stops;
    size_t lens[4];
    int n = 0;
    for (; n < 4 && stops[n]; n++)
        lens[n] = strlen(stops[n]);
    struct stop_rules rules = {
        .strings = stops, .lens = lens, .n = n, .include = stop_cases[_i].include};
    const char *input = stop_cases[_i].input, *text = stop_cases[_i].text;
    expect(&rules, input, strlen(input), text, strlen(text), stop_cases[_i].why,
           stop_cases[_i].which);
}
END_TEST

START_TEST(a_stop_string_may_hold_nul) {
    const char *stop = "a\0b";
    size_t len = 3;
    struct stop_rules rules = {.strings = &stop, .lens = &len, .n = 1};
    expect(&rules, "x\0a\0bz", 6, "x\0", 2, STOP_STRING, 0);
}
END_TEST

START_TEST(the_beginning_of_a_stop_string_is_held_back) {
    const char *stops[] = {"</end>", "END"};
    size_t lens[] = {6, 3}, len;
    struct stop_rules rules = {.strings = stops, .lens = lens, .n = 2};
    struct stop s;
    stop_init(&s, &rules);
    ck_assert(!stop_feed(&s, "text </e", 8));
    ck_assert_int_eq(memcmp(stop_show(&s, &len), "text ", 5), 0);
    ck_assert_uint_eq(len, 5);
    ck_assert(!stop_feed(&s, "N", 1));
    const char *more = stop_show(&s, &len);
    ck_assert_uint_eq(len, 4); /* "N" alone begins no stop string */
    ck_assert_int_eq(memcmp(more, "</eN", 4), 0);
    ck_assert(!stop_feed(&s, "E", 1));
    stop_show(&s, &len);
    ck_assert_uint_eq(len, 0);
    stop_finish(&s);
    more = stop_show(&s, &len);
    ck_assert_uint_eq(len, 1);
    ck_assert_int_eq(*more, 'E');
    stop_clear(&s);
}
END_TEST

/* ---- UTF-8 ---- */

/* The expected texts are Python's bytes.decode("utf-8", "replace"). */
static const struct {
    const char *input, *text;
} utf8_cases[] = {
    {"plain", "plain"},
    {"h\xC3\xA9llo \xE6\x97\xA5 \xF0\x9F\x98\x80", "héllo 日 😀"},
    {"a\xFF"
     "b",
     "a\xEF\xBF\xBD"
     "b"},
    {"a\x80\x80", "a\xEF\xBF\xBD\xEF\xBF\xBD"},
    {"\xC3", "\xEF\xBF\xBD"},
    {"\xC3(", "\xEF\xBF\xBD("},
    {"\xE6\x97", "\xEF\xBF\xBD"},
    {"\xE6\x97x", "\xEF\xBF\xBDx"},
    {"\xF0\x9F\x98", "\xEF\xBF\xBD"},
    {"\xF0\x9F\x98z", "\xEF\xBF\xBDz"},
    {"\xF0\x9F\xF0\x9F\x98\x80", "\xEF\xBF\xBD😀"},
    {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},                                 /* overlong */
    {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},                 /* surrogate */
    {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* > U+10FFFF */
    {"\xE6\xE6\x97\xA5", "\xEF\xBF\xBD日"},
};

START_TEST(utf8) {
    struct stop_rules rules = {0};
    const char *input = utf8_cases[_i].input, *text = utf8_cases[_i].text;
    expect(&rules, input, strlen(input), text, strlen(text), STOP_NOT, 0);
}
END_TEST

START_TEST(an_incomplete_character_is_held_back) {
    struct stop_rules rules = {0};
    struct stop s;
    size_t len;
    stop_init(&s, &rules);
    stop_feed(&s, "a\xF0\x9F", 3);
    stop_show(&s, &len);
    ck_assert_uint_eq(len, 1);
    stop_feed(&s, "\x98", 1);
    stop_show(&s, &len);
    ck_assert_uint_eq(len, 0);
    stop_feed(&s, "\x80", 1);
    const char *text = stop_show(&s, &len);
    ck_assert_uint_eq(len, 4);
    ck_assert_int_eq(memcmp(text, "😀", 4), 0);
    stop_clear(&s);
}
END_TEST

/* ---- code ---- */

#define ENDS(input, text)                                                                          \
    { input, text, STOP_CODE_END }
#define GOES_ON(input)                                                                             \
    { input, input, STOP_NOT }

static const struct {
    const char *input, *text;
    enum stop_why why;
} code_cases[] = {
    ENDS("```python\nx = 1\n```\nThis is prose.", "```python\nx = 1\n```"),
    ENDS("Sure, here it is:\n\n```python\nx = 1\n```\n\nIt works.",
         "Sure, here it is:\n\n```python\nx = 1\n```"),
    /* the end of generation closes, too */
    ENDS("```python\nx = 1\n```", "```python\nx = 1\n```"),
    ENDS("```python\nx = 1\n```  ", "```python\nx = 1\n```"),
    ENDS("```python\nx = 1\n``` \t\r\nmore", "```python\nx = 1\n```"),
    /* languages */
    ENDS("```\nx = 1\n```\n", "```\nx = 1\n```"),
    ENDS("```  \nx = 1\n```\n", "```  \nx = 1\n```"),
    ENDS("```py\nx\n```\n", "```py\nx\n```"),
    ENDS("```Python\nx\n```\n", "```Python\nx\n```"),
    ENDS("```PYTHON3\nx\n```\n", "```PYTHON3\nx\n```"),
    ENDS("``` py3 title=\"a.py\"\nx\n```\n", "``` py3 title=\"a.py\"\nx\n```"),
    GOES_ON("```bash\npip install x\n```\nThen wait.\n"),
    GOES_ON("```python2\nprint 1\n```\n"),
    GOES_ON("```pythonic\nx\n```\n"),
    ENDS("```bash\npip install x\n```\nthen\n```python\nx = 1\n```\nbye",
         "```bash\npip install x\n```\nthen\n```python\nx = 1\n```"),
    ENDS("```text\n```python\n```\n```python\nx\n```\n",
         "```text\n```python\n```\n```python\nx\n```"),
    /* empty blocks are passed over */
    GOES_ON("```python\n```\nSorry.\n"),
    GOES_ON("```python\n\n  \t\n```\n"),
    ENDS("```python\n\n```\n```python\nx\n```\n", "```python\n\n```\n```python\nx\n```"),
    ENDS("```python\n# only a comment\n```\n", "```python\n# only a comment\n```"),
    /* longer fences and tildes */
    ENDS("````python\n```\nx\n```\n````\nbye", "````python\n```\nx\n```\n````"),
    ENDS("```python\nx\n`````\nbye", "```python\nx\n`````"),
    ENDS("~~~python\nx\n```\n~~~\nbye", "~~~python\nx\n```\n~~~"),
    ENDS("~~~ py\nx\n~~~~\n", "~~~ py\nx\n~~~~"),
    GOES_ON("~~~python\nx\n~~\n```\n"),
    GOES_ON("``\nx\n``\nno fence\n"),
    /* indentation */
    ENDS("   ```python\n   x\n   ```\n", "   ```python\n   x\n   ```"),
    ENDS("1. So:\n  ```py\n  x\n```\n", "1. So:\n  ```py\n  x\n```"),
    GOES_ON("    ```python\n    x\n    ```\n"),
    GOES_ON("\t```python\n\tx\n\t```\n"),
    ENDS("```python\ns = '''\n    ```\n'''\n```\n", "```python\ns = '''\n    ```\n'''\n```"),
    /* not fences: code in a line, fences with something behind or before */
    GOES_ON("Use ```x``` here\n```y``` there\n"),
    GOES_ON("```print(1)```\nx\n"),
    GOES_ON("say ```python\nx\n"),
    ENDS("```python\nx = '```'\ny = 1 # ``\n``` more\n```\n",
         "```python\nx = '```'\ny = 1 # ``\n``` more\n```"),
    ENDS("```python\ndef f():\n    \"\"\"``quoted`` text\"\"\"\n```\n",
         "```python\ndef f():\n    \"\"\"``quoted`` text\"\"\"\n```"),
    ENDS("```python\r\nx\r\n```\r\nbye", "```python\r\nx\r\n```"),
    /* nothing there, never closed */
    GOES_ON(""),
    GOES_ON("\n\n"),
    GOES_ON("```"),
    GOES_ON("```python"),
    GOES_ON("```python\n"),
    GOES_ON("```python\nwhile True:\n    pass\n"),
    GOES_ON("def f(): return 1\n"),
};

START_TEST(code_end) {
    struct stop_rules rules = {.code_end = true};
    const char *input = code_cases[_i].input, *text = code_cases[_i].text;
    expect(&rules, input, strlen(input), text, strlen(text), code_cases[_i].why, 0);
}
END_TEST

START_TEST(code_goes_on_where_the_rule_is_off) {
    struct stop_rules rules = {0};
    const char *input = "```python\nx\n```\nprose\n";
    expect(&rules, input, strlen(input), input, strlen(input), STOP_NOT, 0);
}
END_TEST

START_TEST(what_comes_first_ends_it) {
    const char *stops[] = {"prose", "\n", "```\n"};
    size_t lens[] = {5, 1, 4};
    const char *input = "```python\nx\n```\nprose\n";
    struct stop_rules rules = {.strings = stops, .lens = lens, .n = 1, .code_end = true};
    expect(&rules, input, strlen(input), "```python\nx\n```", 15, STOP_CODE_END, 0);
    rules.n = 2;
    expect(&rules, input, strlen(input), "```python", 9, STOP_STRING, 1);
    rules = (struct stop_rules){.strings = stops + 2, .lens = lens + 2, .n = 1, .code_end = true};
    /* The code's end lies before the newline that completes the stop string. */
    expect(&rules, input, strlen(input), "```python\nx\n```", 15, STOP_CODE_END, 0);
}
END_TEST

/* What the text begins with is no output: it opens a block, and nothing in it is a stop string or
 * the end of code. */
START_TEST(a_lead_only_begins_the_text) {
    static const struct {
        const char *lead, *input, *text;
        enum stop_why why;
    } cases[] = {
        {"```python\ndef f():\n", "    return 1\n```\nprose", "    return 1\n```", STOP_CODE_END},
        {"```python\ndef f(", "x):\n    return x\n```\n", "x):\n    return x\n```", STOP_CODE_END},
        {"```python\n1\n```\nAgain: ", "```\n2\n```\n", "```\n2\n```\n", STOP_NOT},
        {"```python\n1\n```\n", "```py\n2\n```\n", "```py\n2\n```", STOP_CODE_END},
        {"an END and EN", "D goes on END", "D goes on ", STOP_STRING},
    };
    const char *stops[] = {"END"};
    size_t lens[] = {3};
    struct stop_rules rules = {.strings = stops, .lens = lens, .n = 1, .code_end = true};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct stop s;
        struct buf shown, whole;
        buf_init(&shown, 1 << 20);
        buf_init(&whole, 1 << 20);
        buf_printf(&whole, "%s%s", cases[i].lead, cases[i].text);
        stop_init(&s, &rules);
        stop_lead(&s, cases[i].lead, strlen(cases[i].lead));
        ck_assert_int_eq(s.why, STOP_NOT);
        show(&s, &shown);
        ck_assert_str_eq(buf_text(&shown), cases[i].lead);
        for (const char *at = cases[i].input; *at && !stop_feed(&s, at, 1); at++)
            show(&s, &shown);
        stop_finish(&s);
        show(&s, &shown);
        ck_assert_str_eq(buf_text(&shown), buf_text(&whole));
        ck_assert_str_eq(buf_text(&s.text), buf_text(&whole));
        ck_assert_int_eq(s.why, cases[i].why);
        stop_clear(&s);
        buf_clear(&shown);
        buf_clear(&whole);
    }
}
END_TEST

static Suite *stop_suite(void) {
    Suite *suite = suite_create("stop");
    TCase *tc = tcase_create("stop");
    tcase_add_loop_test(tc, stop_strings, 0, sizeof stop_cases / sizeof *stop_cases);
    tcase_add_test(tc, a_stop_string_may_hold_nul);
    tcase_add_test(tc, the_beginning_of_a_stop_string_is_held_back);
    tcase_add_loop_test(tc, utf8, 0, sizeof utf8_cases / sizeof *utf8_cases);
    tcase_add_test(tc, an_incomplete_character_is_held_back);
    tcase_add_loop_test(tc, code_end, 0, sizeof code_cases / sizeof *code_cases);
    tcase_add_test(tc, code_goes_on_where_the_rule_is_off);
    tcase_add_test(tc, what_comes_first_ends_it);
    tcase_add_test(tc, a_lead_only_begins_the_text);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void) {
    SRunner *runner = srunner_create(stop_suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
