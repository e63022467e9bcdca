/* The table of extraction: what a model wrote, and the code in it. */
#include "verifier/extract.h"

#include "base/buf.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define F "def f(x):\n    return x\n"
#define F2 "def f(x):\n    return 2\n"
#define G "def g(x):\n    return 3\n"
#define PROMPT "import math\n\n\ndef f(x):\n    \"\"\"doc\"\"\"\n"

struct entry {
    enum verifier_extract how;
    const char *prompt, *text;
    const char *tries[EXTRACT_TRIES]; /* NULL: no more */
    const char *method;               /* of the first */
    bool cut;
};

#define AUTO VERIFIER_EXTRACT_AUTO
#define FENCED VERIFIER_EXTRACT_FENCED
#define RAW VERIFIER_EXTRACT_RAW
#define CONT VERIFIER_EXTRACT_CONTINUATION

static const struct entry table[] = {
    /* ---- fences ---- */
    {AUTO, NULL, "```python\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "```\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "```py\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "```python3\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "```Python\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "``` python\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "```python title=\"a.py\"\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "```{.python}\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "~~~python\n" F "~~~\n", {F}, "fenced", false},
    {AUTO, NULL, "````python\n" F "````\n", {F}, "fenced", false},
    {AUTO,
     NULL,
     "````python\ns = '''\n```\n'''\n" F "````\n",
     {"s = '''\n```\n'''\n" F},
     "fenced",
     false},
    {AUTO, NULL, "```python\n" F "`````\n", {F}, "fenced", false},
    {AUTO, NULL, "~~~\n```\n" F "~~~\n", {"```\n" F}, "fenced", false},
    {AUTO, NULL, "Here:\n\n```python\n" F "```\n\nDone.", {F}, "fenced", false},
    {AUTO, NULL, "```python\r\ndef f(x):\r\n    return x\r\n```\r\n", {F}, "fenced", false},
    {AUTO, NULL, "```python\n" F, {F}, "fenced", false}, /* unclosed: to the end */
    {AUTO,
     NULL,
     "1. So:\n   ```python\n   def f(x):\n       return x\n   ```\n",
     {F},
     "fenced",
     false},
    {AUTO, NULL, "- a\n\t```python\n\tdef f(x):\n\t    return x\n\t```\n", {F}, "fenced", false},
    {AUTO, NULL, "```bash\npip install x\n```\n```python\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "```python\n" F "```\n```text\noutput\n```\n", {F}, "fenced", false},
    {AUTO, NULL, "```javascript\nlet f;\n```\n", {NULL}, "", false},
    {AUTO, NULL, "```pythonic\n" F "```\n", {NULL}, "", false},
    {AUTO, NULL, "```python\n```\n", {NULL}, "", false},
    {AUTO, NULL, "``\n" F "``\n", {"``\n" F "``\n"}, "raw", false}, /* two are no fence */
    {AUTO, NULL, "x = ```a``` b\n", {"x = ```a``` b\n"}, "raw", false},
    {AUTO, NULL, "```py3\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "```PYTHON3 \n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "```python3.11\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "```{python}\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "```{r}\n" F "```\n", {NULL}, "", false},
    {AUTO, NULL, "```pycon\n>>> f(1)\n```\n```python\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "~~~~\n" F "~~~~~\n", {F}, "fenced", false},
    {AUTO, NULL, "~~~python\n" F "```\n~~~\n", {F "```\n"}, "fenced", false},
    {AUTO, NULL, "````python\n" F "```\n", {F "```\n"}, "fenced", false}, /* too short to close */
    {AUTO, NULL, "```python\n" F "```   \nDone.", {F}, "fenced", false},
    {AUTO, NULL, "h\xc3\xa9 \xf0\x9f\x98\x80\n```python\n" F "```", {F}, "fenced", false},
    {AUTO, NULL, "```python\n```\n```python\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "> quoted\n\n```python\n\n\n" F "\n```\n", {"\n\n" F "\n"}, "fenced", false},
    /* ---- which block ---- */
    {AUTO,
     NULL,
     "```python\n" F "```\n```python\n" G "```\n```python\n" F2 "```\n```python\nf(1)\n```\n",
     {F2, "f(1)\n", F G F2 "f(1)\n"},
     "fenced",
     false},
    {AUTO,
     NULL,
     "```python\nclass Solution:\n    pass\n```\n```python\nSolution()\n```\n",
     {"class Solution:\n    pass\n", "Solution()\n", "class Solution:\n    pass\nSolution()\n"},
     "fenced",
     false},
    {AUTO,
     NULL,
     "```python\n" F "```\n```\n$ python a.py\n```\n",
     {F, "$ python a.py\n", F "$ python a.py\n"},
     "fenced",
     false},
    {FENCED,
     PROMPT,
     "```python\n" F "```\n```text\n3\n```\n",
     {"import math\n\n\n" F},
     "fenced",
     false},
    {AUTO, NULL, "```python\n" F "```\n```python\n" F2 "```\n", {F2, F F2}, "fenced", false},
    {AUTO,
     NULL,
     "```python\n" F "```\nUse:\n```python\nprint(f(1))\n```\n",
     {F, "print(f(1))\n", F "print(f(1))\n"},
     "fenced",
     false},
    {AUTO, NULL, "```python\n" G "```\n```python\n" F "```\n", {F, G F}, "fenced", false},
    {AUTO,
     NULL,
     "```python\nfrom math import pi\n```\n```python\n" G "```\n",
     {G, "from math import pi\n" G},
     "fenced",
     false},
    {AUTO,
     NULL,
     "```python\nf = lambda x: x\n```\n```python\nf(2)\n```\n",
     {"f = lambda x: x\n", "f(2)\n", "f = lambda x: x\nf(2)\n"},
     "fenced",
     false},
    {AUTO,
     NULL,
     "```python\nclass f:\n    pass\n```\n```python\nf()\n```\n",
     {"class f:\n    pass\n", "f()\n", "class f:\n    pass\nf()\n"},
     "fenced",
     false},
    {AUTO,
     NULL,
     "```python\nasync def f(x):\n    pass\n```\n",
     {"async def f(x):\n    pass\n"},
     "fenced",
     false},
    {AUTO,
     NULL,
     "```python\nf == 1\n```\n```python\n" F "```\n```python\nff = 1\n```\n",
     {F, "ff = 1\n", "f == 1\n" F "ff = 1\n"},
     "fenced",
     false},
    /* ---- thinking ---- */
    {AUTO,
     NULL,
     "<think>```python\n" F2 "```\n</think>\n```python\n" F "```\n",
     {F},
     "fenced",
     false},
    {AUTO,
     NULL,
     "no tag at first\n```python\n" F2 "```</think>\n```python\n" F "```\n",
     {F},
     "fenced",
     false},
    {AUTO, NULL, "<think>a</think>b<think>c</think>\n```\n" F "```\n", {F}, "fenced", false},
    {AUTO, NULL, "<think>\n```python\n" F "```\n", {NULL}, "", false},
    {AUTO, NULL, "```python\n" F "```\n<think>more", {F}, "fenced", false},
    {FENCED, NULL, "<think>" F "</think>", {NULL}, "", false},
    {AUTO, NULL, "a</think>\n" F, {"\n" F}, "raw", false},
    {AUTO, NULL, "<think>a</think>", {NULL}, "", false},
    {AUTO, NULL, "<think>\n" F, {NULL}, "", true},
    {AUTO,
     PROMPT,
     "<think>so</think>    return x\n",
     {PROMPT "    return x\n"},
     "continuation",
     false},
    {RAW, NULL, "<think>a</think>x = 1\n", {"<think>a</think>x = 1\n"}, "raw", false},
    /* ---- no fence ---- */
    {AUTO, NULL, F, {F}, "raw", false},
    {AUTO, NULL, "", {NULL}, "", false},
    {AUTO, NULL, " \n\t\n", {NULL}, "", false},
    {AUTO, NULL, "I can't do that.", {"I can't do that."}, "raw", false},
    {FENCED, NULL, F, {NULL}, "", false},
    {RAW, NULL, "```python\n" F "```\n", {"```python\n" F "```\n"}, "raw", false},
    {RAW, PROMPT, F, {F}, "raw", false},
    /* ---- continuations ---- */
    {AUTO, PROMPT, "    return x\n", {PROMPT "    return x\n"}, "continuation", false},
    {AUTO,
     PROMPT,
     "    return x\n\nprint(f(1))\n",
     {PROMPT "    return x\n\n"},
     "continuation",
     false},
    {AUTO,
     PROMPT,
     "    return x\n\n\ndef g():\n    pass\n",
     {PROMPT "    return x\n\n\ndef g():\n    pass\n", PROMPT "    return x\n\n\n"},
     "continuation",
     false},
    {AUTO,
     PROMPT,
     "    return x\nif __name__ == '__main__':\n    f(1)\n",
     {PROMPT "    return x\n"},
     "continuation",
     false},
    {AUTO,
     PROMPT,
     "    return x\n```\nThis works.",
     {PROMPT "    return x\n"},
     "continuation",
     false},
    {AUTO,
     PROMPT,
     "    return x\n\nThis function returns",
     {PROMPT "    return x\n\n"},
     "continuation",
     false},
    {AUTO,
     PROMPT,
     "    return x\n# done\n    \nassert f(1) == 1\n",
     {PROMPT "    return x\n# done\n    \n"},
     "continuation",
     false},
    {AUTO,
     PROMPT,
     "    y = g(\n        x\n    )\n    return y\n@cache\ndef g(x):\n    return x\n",
     {PROMPT "    y = g(\n        x\n    )\n    return y\n@cache\ndef g(x):\n    return x\n",
      PROMPT "    y = g(\n        x\n    )\n    return y\n"},
     "continuation",
     false},
    /* Nothing continued: the prompt stands alone. */
    {CONT, "def f(x):\n    return x\n", "", {"def f(x):\n    return x\n"}, "continuation", false},
    {CONT, PROMPT, F, {"import math\n\n\n" F, PROMPT F}, "continuation", false},
    {CONT,
     PROMPT,
     "    return x\n\nimport os\n",
     {PROMPT "    return x\n\nimport os\n", PROMPT "    return x\n\n"},
     "continuation",
     false},
    {CONT, NULL, "x = 1\n", {"x = 1\n"}, "continuation", false},
    {CONT, PROMPT, "```python\n" F "```\n", {"import math\n\n\n" F}, "fenced", false},
    {FENCED, PROMPT, "    return x\n", {NULL}, "", false},
    /* ---- the inside of the function within a fence ---- */
    {AUTO, PROMPT, "```python\n    return x\n```\n", {PROMPT "    return x\n"}, "fenced", false},
    {AUTO,
     "import math\n\n\ndef g(x):\n    return 1\n\n\ndef f(x):\n",
     "```python\n" F "```\n",
     {"import math\n\n\ndef g(x):\n    return 1\n\n\n" F},
     "fenced",
     false},
    /* ---- with a prompt, a module gets what stands before the signature ---- */
    {AUTO, PROMPT, "```python\n" F "```\n", {"import math\n\n\n" F}, "fenced", false},
    {AUTO, PROMPT, "```python\nimport math\n" F "```\n", {"import math\n" F}, "fenced", false},
    {AUTO,
     PROMPT,
     "```python\nfrom __future__ import annotations\n" F "```\n",
     {"from __future__ import annotations\n" F},
     "fenced",
     false},
    {AUTO, PROMPT, F, {"import math\n\n\n" F, PROMPT F}, "raw", false},
    {AUTO, "Write a function.", "```python\n" F "```\n", {F}, "fenced", false},
    /* ---- cut by the token limit ---- */
    {AUTO,
     NULL,
     "```python\n" F "def h(y):\n    retu",
     {F "def h(y):\n    retu\n", F},
     "fenced",
     true},
    {AUTO,
     NULL,
     "```python\ndef f(x):\n    if x:\n        return 1\n    retu",
     {"def f(x):\n    if x:\n        return 1\n    retu\n",
      "def f(x):\n    if x:\n        return 1\n"},
     "fenced",
     true},
    {AUTO,
     PROMPT,
     "    return x\n\ndef h(",
     {PROMPT "    return x\n\ndef h(", PROMPT "    return x\n\n"},
     "continuation",
     true},
};
enum { N_ENTRIES = sizeof table / sizeof table[0] };

static const char *const names[] = {"f"};

_Static_assert(N_ENTRIES >= 80, "the table's promise");

START_TEST(test_table) {
    const struct entry *entry = &table[_i];
    struct extract_input in = {
        .how = entry->how,
        .text = entry->text,
        .text_len = strlen(entry->text),
        .prompt = entry->prompt,
        .prompt_len = entry->prompt ? strlen(entry->prompt) : 0,
        .names = names,
        .n_names = 1,
        .cut_by_length = entry->cut,
    };
    struct extract_result got;
    extract_code(&in, &got);
    int n = 0;
    while (n < EXTRACT_TRIES && entry->tries[n])
        n++;
    for (int i = 0; i < got.n && i < n; i++)
        ck_assert_msg(!strcmp(got.tries[i].code, entry->tries[i]),
                      "text:\n%s\ntry %d is\n<%s>\nwanted\n<%s>", entry->text, i, got.tries[i].code,
                      entry->tries[i]);
    ck_assert_msg(got.n == n, "text:\n%s\n%d tries, wanted %d; one more: %s", entry->text, got.n, n,
                  got.n > n ? got.tries[n].code : "");
    if (n) ck_assert_str_eq(got.tries[0].method, entry->method);
    extract_clear(&got);
}
END_TEST

/* Every prefix of every text, in every way: nothing to find but that it neither crashes nor reads
 * beyond. */
START_TEST(test_prefixes) {
    for (int i = 0; i < N_ENTRIES; i++)
        for (size_t len = 0; len <= strlen(table[i].text); len++)
            for (int how = (int)AUTO; how <= (int)CONT; how++) {
                char *exact =
                    malloc(len ? len : 1); /* so that a sanitizer sees one byte too many */
                memcpy(exact, table[i].text, len);
                struct extract_input in = {
                    .how = (enum verifier_extract)how,
                    .text = exact,
                    .text_len = len,
                    .prompt = i % 2 ? PROMPT : NULL,
                    .prompt_len = i % 2 ? strlen(PROMPT) : 0,
                    .names = names,
                    .n_names = i % 3 != 0,
                    .cut_by_length = len % 2,
                };
                struct extract_result got;
                extract_code(&in, &got);
                for (int k = 0; k < got.n; k++)
                    ck_assert(got.tries[k].len == strlen(got.tries[k].code));
                extract_clear(&got);
                free(exact);
            }
}
END_TEST

/* What took minutes where every line was held against every name or every other line: the test's
 * own time limit is the check. */
enum { N_NAMES = 40000, N_LINES = 400000, N_PRELUDE = 60000, NAME = 8 };

START_TEST(test_many_names_and_lines) {
    static char name[N_NAMES][NAME];
    static const char *sorted[N_NAMES];
    for (int i = 0; i < N_NAMES; i++) {
        snprintf(name[i], NAME, "n%05d", i);
        sorted[i] = name[i];
    }
    struct buf text;
    buf_init(&text, 1 << 20);
    buf_puts(&text, _i ? "def n39999(x): return 1\n" : "def other(x): return 1\n");
    for (int i = 0; i < N_LINES; i++)
        buf_puts(&text, "#\n");
    for (int how = (int)AUTO; how <= (int)CONT; how++) {
        struct extract_input in = {
            .how = (enum verifier_extract)how,
            .text = buf_text(&text),
            .text_len = text.len,
            .prompt = _i ? PROMPT : NULL,
            .prompt_len = _i ? strlen(PROMPT) : 0,
            .names = sorted,
            .n_names = N_NAMES,
        };
        struct extract_result got;
        extract_code(&in, &got);
        ck_assert_int_eq(got.n > 0, how != (int)FENCED);
        extract_clear(&got);
    }
    buf_clear(&text);
}
END_TEST

/* The code has every line of the prelude, or all but one, at its far end. */
START_TEST(test_long_prelude) {
    struct buf prompt, text;
    buf_init(&prompt, 4 << 20);
    buf_init(&text, 8 << 20);
    for (int i = 0; i < N_PRELUDE; i++)
        buf_printf(&text, "y%x=1\n", (unsigned)i);
    for (int i = 0; i < N_PRELUDE; i++) {
        buf_printf(&prompt, "x%x=1\n\n", (unsigned)(i % (N_PRELUDE - 1000))); /* some twice */
        buf_printf(&text, "x%x=1\n", (unsigned)(_i && !i ? 1 : i));
    }
    buf_puts(&prompt, "def f(x):\n");
    buf_puts(&text, F);
    struct extract_input in = {
        .how = AUTO,
        .text = buf_text(&text),
        .text_len = text.len,
        .prompt = buf_text(&prompt),
        .prompt_len = prompt.len,
        .names = names,
        .n_names = 1,
    };
    struct extract_result got;
    extract_code(&in, &got);
    ck_assert_int_gt(got.n, 0);
    size_t prelude = prompt.len - strlen("def f(x):\n");
    ck_assert_uint_eq(got.tries[0].len, text.len + (_i ? prelude : 0));
    extract_clear(&got);
    buf_clear(&prompt);
    buf_clear(&text);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("extract");
    TCase *tc = tcase_create("extract");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_table, 0, N_ENTRIES);
    tcase_add_test(tc, test_prefixes);
    suite_add_tcase(suite, tc);
    tc = tcase_create("large");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, test_many_names_and_lines, 0, 2);
    tcase_add_loop_test(tc, test_long_prelude, 0, 2);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
