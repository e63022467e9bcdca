/* formats.txt: every format, codes that must pass and codes that must not.  asserts.txt: small
 * tasks whose code must pass, and whose tests must fail code that gives nothing or claims
 * everything. */
#include "tests/verifier/rig.h"

#include <stdio.h>

enum { MAX_SECTIONS = 200, MAX_CODES = 12 };

struct code {
    char *text; /* owned */
    bool passes;
    char error[120]; /* a part of it, for one that fails */
};
struct section {
    char name[120], entry[64];
    enum verifier_format format;
    int total;            /* of a passing code; 0: any */
    char *prompt, *tests; /* owned; may be NULL */
    struct code codes[MAX_CODES];
    int n_codes;
};
static struct section sections[MAX_SECTIONS];
static int n_sections;
static struct rig rig;

static void append(char **text, const char *line) {
    size_t old = *text ? strlen(*text) : 0;
    *text = err_realloc(*text, old + strlen(line) + 2, 1);
    memcpy(*text + old, line, strlen(line));
    memcpy(*text + old + strlen(line), "\n", 2);
}

static void directive(struct section *s, const char *line) {
    struct err e = {0};
    if (!strncmp(line, "format ", 7))
        ck_assert_msg(verifier_format_parse(line + 7, &s->format, &e), "%s", e.message);
    else if (!strncmp(line, "entry ", 6))
        snprintf(s->entry, sizeof s->entry, "%.63s", line + 6);
    else if (!strncmp(line, "total ", 6))
        s->total = (int)strtol(line + 6, NULL, 10);
    else
        ck_abort_msg("formats.txt: unknown directive %s", line);
}

/* Where the lines after a "---- WORD" go. */
static char **part_of(struct section *s, const char *word) {
    if (!strcmp(word, "prompt")) return &s->prompt;
    if (!strcmp(word, "tests")) return &s->tests;
    ck_assert_msg(!strcmp(word, "pass") || !strncmp(word, "fail", 4), "formats.txt: %s", word);
    ck_assert_int_lt(s->n_codes, MAX_CODES);
    struct code *code = &s->codes[s->n_codes++];
    code->passes = word[0] == 'p';
    snprintf(code->error, sizeof code->error, "%.119s", code->passes || !word[4] ? "" : word + 5);
    return &code->text;
}

static void load(const char *path, enum verifier_format preset) {
    FILE *f = fopen(path, "re");
    ck_assert_msg(f != NULL, "%s can't be opened: run from the source directory", path);
    char line[2048];
    char **into = NULL;
    struct section *s = NULL;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "#### ", 5)) {
            ck_assert_int_lt(n_sections, MAX_SECTIONS);
            s = &sections[n_sections++];
            *s = (struct section){.format = preset};
            snprintf(s->name, sizeof s->name, "%.119s", line + 5);
            into = NULL;
        } else if (s && !strncmp(line, "#: ", 3)) {
            directive(s, line + 3);
        } else if (s && !strncmp(line, "---- ", 5)) {
            into = part_of(s, line + 5);
        } else if (into) {
            append(into, line);
        }
    }
    fclose(f);
}

static void unload(void) {
    for (int i = 0; i < n_sections; i++) {
        free(sections[i].prompt);
        free(sections[i].tests);
        for (int k = 0; k < sections[i].n_codes; k++)
            free(sections[i].codes[k].text);
    }
    n_sections = 0;
}

static int judge(const struct section *s, bool score) {
    struct verifier_spec spec = rig_spec(s->format, s->tests);
    spec.entry_point = s->entry[0] ? s->entry : NULL;
    spec.prompt = s->prompt;
    spec.prompt_len = s->prompt ? strlen(s->prompt) : 0;
    spec.extract = s->prompt ? VERIFIER_EXTRACT_CONTINUATION : VERIFIER_EXTRACT_RAW;
    spec.timeout_s = 5;
    spec.memory_mb = 512;
    spec.score = score;
    spec.feedback = score ? VERIFIER_FEEDBACK_FULL : VERIFIER_FEEDBACK_NONE;
    const char *codes[MAX_CODES];
    int wrong = 0, n = s->n_codes;
    for (int i = 0; i < n; i++)
        codes[i] = s->codes[i].text;
    ck_assert_msg(rig_open_tests(&rig, &spec), "%s: %s", s->name, rig.refused.message);
    rig_submit(&rig, codes, n);
    verifier_tests_close(rig.tests);
    for (int i = 0; i < n; i++) {
        const struct outcome *o = &rig.outcomes[i];
        const struct code *code = &s->codes[i];
        bool ok = code->passes ? o->kind == VERDICT_PASSED && (!s->total || o->total == s->total)
                               : o->kind == VERDICT_FAILED && strstr(o->error, code->error);
        ok = ok && o->passed <= o->total && (!code->passes || o->passed == o->total);
        if (ok) continue;
        wrong++;
        printf("%s, code %d%s: %s, %d of %d: %s | %.300s\n", s->name, i, score ? " (score)" : "",
               verdict_name(o->kind), o->passed, o->total, o->error, o->output);
    }
    return wrong;
}

START_TEST(test_all) {
    load("tests/verifier/formats.txt", VERIFIER_ASSERTS);
    ck_assert_int_ge(n_sections, 30);
    rig_open(&rig, 3);
    int wrong = 0, codes = 0;
    for (int i = 0; i < n_sections; i++) {
        codes += sections[i].n_codes;
        wrong += judge(&sections[i], _i == 1);
    }
    printf("%d sections, %d codes, %d wrong\n", n_sections, codes, wrong);
    fflush(stdout);
    rig_close(&rig);
    unload();
    ck_assert_int_eq(wrong, 0);
}
END_TEST

/* ---- numpy.txt ---- */

static bool open_with_numpy(void) {
    const char *python = getenv("FIRSTPASS_NUMPY_PYTHON");
    if (!python) {
        printf("skipped: FIRSTPASS_NUMPY_PYTHON names no Python with numpy\n");
        return false;
    }
    struct err e = {0};
    struct verifier_options options = rig_options(3, -1);
    options.python = python;
    ck_assert_msg(rig_try_open(&rig, &options, &e), "%s", e.message);
    return true;
}

START_TEST(test_numpy) {
    if (!open_with_numpy()) return;
    load("tests/verifier/numpy.txt", VERIFIER_ASSERTS);
    int wrong = 0;
    for (int i = 0; i < n_sections; i++)
        wrong += judge(&sections[i], false);
    rig_close(&rig);
    unload();
    ck_assert_int_eq(wrong, 0);
}
END_TEST

/* A scalar comes as a plain number where numpy isn't loaded: an array of an earlier candidate,
 * which loads it, must change nothing for a later one. */
START_TEST(test_numpy_leaves_nothing) {
    enum { N = 16 };
    static char texts[N][120];
    const char *codes[N];
    if (!open_with_numpy()) return;
    struct verifier_spec spec = rig_spec(VERIFIER_ASSERTS, "assert isinstance(f(2), int)\n");
    spec.extract = VERIFIER_EXTRACT_RAW;
    ck_assert_msg(rig_open_tests(&rig, &spec), "%s", rig.refused.message);
    for (int i = 0; i < N; i++) {
        snprintf(texts[i], sizeof texts[i], "import numpy\ndef f(x): return numpy.%s  # %d\n",
                 i / 2 % 2 ? "int64(x)" : "zeros(x)", i);
        codes[i] = texts[i];
    }
    rig_submit(&rig, codes, N);
    for (int i = 0; i < N; i++)
        ck_assert_msg(rig.outcomes[i].kind == (i / 2 % 2 ? VERDICT_PASSED : VERDICT_FAILED),
                      "%s%s: %s", codes[i], verdict_name(rig.outcomes[i].kind),
                      rig.outcomes[i].error);
    verifier_tests_close(rig.tests);
    rig_close(&rig);
}
END_TEST

/* The first candidates come from the zygote, later ones of the same worker from a process that has
 * numpy loaded; what they compute is the same, random numbers too. */
START_TEST(test_flavour) {
    enum { MOST = 400 };
    static const char code[] = "import os, sys\nimport numpy as np\n"
                               "print(os.getppid(), np.random.rand(), np.random.randint(1 << 30))\n"
                               "def f(x): return np.array([x, x]).sum()  # %d\n";
    if (!open_with_numpy()) return;
    struct verifier_spec spec = rig_spec(VERIFIER_ASSERTS, "assert f(2) == 4\n");
    spec.extract = VERIFIER_EXTRACT_RAW;
    char first[200] = "", text[sizeof code + 20];
    const char *codes[] = {text};
    long parent = 0;
    int tried = 0;
    /* The seed is that of index 0 of these tests each time. */
    for (; tried < MOST; tried++) {
        ck_assert_msg(rig_open_tests(&rig, &spec), "%s", rig.refused.message);
        snprintf(text, sizeof text, code, tried);
        rig_submit(&rig, codes, 1);
        const struct outcome *o = &rig.outcomes[0];
        ck_assert_msg(o->kind == VERDICT_PASSED, "%s", o->error);
        char *numbers = NULL;
        long of = strtol(o->output, &numbers, 10);
        if (!tried) {
            parent = of;
            snprintf(first, sizeof first, "%s", numbers);
        }
        ck_assert_str_eq(numbers, first);
        verifier_tests_close(rig.tests);
        if (of != parent) break;
    }
    printf("the candidates' parent changed after %d\n", tried);
    ck_assert_int_lt(tried, MOST);
    rig_close(&rig);
}
END_TEST

/* ---- asserts.txt ---- */

/* A module that defines NAME so that it gives `what` for all arguments. */
static void pretend(char *out, size_t size, const char *name, const char *what) {
    snprintf(out, size,
             "class E:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return "
             "False\n    def __hash__(self): return 1\n    def __bool__(self): return True\n"
             "    def __lt__(self, o): return True\n    __gt__ = __le__ = __ge__ = __lt__\n"
             "    def __call__(self, *a, **k): return self\n    def __getattr__(self, n): "
             "return self\n    def __iter__(self): return iter(())\n    def __len__(self): "
             "return 0\n    def __abs__(self): return self\n    def __getitem__(self, i): return "
             "self\n%.100s = lambda *a, **k: %s\n",
             name, what);
}

START_TEST(test_asserts) {
    load("tests/verifier/asserts.txt", VERIFIER_ASSERTS);
    ck_assert_int_ge(n_sections, 100);
    rig_open(&rig, 3);
    int passed = 0, wrong = 0;
    for (int i = 0; i < n_sections; i++) {
        const struct section *s = &sections[i];
        struct verifier_spec spec = rig_spec(VERIFIER_ASSERTS, s->tests);
        spec.extract = VERIFIER_EXTRACT_RAW;
        char nothing[2048], everything[2048];
        pretend(nothing, sizeof nothing, s->name, "None");
        pretend(everything, sizeof everything, s->name, "E()");
        const char *codes[] = {s->codes[0].text, nothing, everything};
        ck_assert_msg(rig_open_tests(&rig, &spec), "%s: %s", s->name, rig.refused.message);
        rig_submit(&rig, codes, 3);
        verifier_tests_close(rig.tests);
        passed += rig.outcomes[0].kind == VERDICT_PASSED;
        for (int k = 0; k < 3; k++) {
            const struct outcome *o = &rig.outcomes[k];
            if (o->kind == (k ? VERDICT_FAILED : VERDICT_PASSED)) continue;
            wrong++;
            printf("%s, %s: %s: %s\n", s->name,
                   k == 0   ? "code"
                   : k == 1 ? "None"
                            : "claims",
                   verdict_name(o->kind), o->error);
        }
    }
    printf("%d of %d solutions pass, %d wrong\n", passed, n_sections, wrong);
    fflush(stdout);
    rig_close(&rig);
    unload();
    ck_assert_int_eq(wrong, 0);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("formats");
    TCase *tc = tcase_create("formats");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, test_all, 0, 2);
    tcase_add_test(tc, test_asserts);
    tcase_add_test(tc, test_numpy);
    tcase_add_test(tc, test_numpy_leaves_nothing);
    tcase_add_test(tc, test_flavour);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
