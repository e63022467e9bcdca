/* attacks.txt at every level that this machine gives, as root and without privileges: no attack may
 * pass but those that the table itself calls open at the level, and every honest twin must. */
#include "tests/verifier/rig.h"

#include <stdio.h>

enum { MAX_CASES = 200 };

struct attack {
    char name[100];
    char *code, *twin, *tests; /* owned; twin and tests may be NULL */
    unsigned expect;           /* bits of enum verdict_kind */
    unsigned open, open_user;  /* bits of levels */
    unsigned twin_levels;
};

static const char usual_tests[] = "assert f(2) == 4\nassert f(3) == 6\nassert f(10) == 20\n";

static unsigned parse_kinds(const char *words) {
    unsigned bits = 0;
    for (int kind = 0; kind <= VERDICT_BROKEN; kind++) {
        const char *name = verdict_name((enum verdict_kind)kind);
        const char *at = strstr(words, name);
        if (at && (at[strlen(name)] == ' ' || !at[strlen(name)])) bits |= 1U << kind;
    }
    ck_assert_uint_ne(bits, 0);
    return bits;
}

static unsigned parse_levels(const char *words) {
    unsigned bits = 0;
    for (; *words; words++)
        if (*words >= '0' && *words <= '3') bits |= 1U << (*words - '0');
    return bits;
}

static void append(char **text, const char *line) {
    size_t old = *text ? strlen(*text) : 0;
    *text = err_realloc(*text, old + strlen(line) + 2, 1);
    memcpy(*text + old, line, strlen(line));
    memcpy(*text + old + strlen(line), "\n", 2);
}

static bool directive(struct attack *a, const char *line) {
    if (strncmp(line, "#: ", 3) != 0) return false;
    line += 3;
    if (!strncmp(line, "expect ", 7))
        a->expect = parse_kinds(line + 7);
    else if (!strncmp(line, "open-user ", 10))
        a->open_user = parse_levels(line + 10);
    else if (!strncmp(line, "open ", 5))
        a->open = parse_levels(line + 5);
    else if (!strncmp(line, "twin ", 5))
        a->twin_levels = parse_levels(line + 5);
    else
        ck_abort_msg("attacks.txt: unknown directive %s", line);
    return true;
}

static int load(struct attack *attacks) {
    FILE *f = fopen("tests/verifier/attacks.txt", "re");
    ck_assert_msg(f != NULL,
                  "tests/verifier/attacks.txt can't be opened: run from the source directory");
    char line[1024];
    int n = 0;
    char **into = NULL;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        struct attack *a = n ? &attacks[n - 1] : NULL;
        if (!strncmp(line, "#### ", 5)) {
            ck_assert_int_lt(n, MAX_CASES);
            a = &attacks[n++];
            *a = (struct attack){.expect = 1U << VERDICT_FAILED, .twin_levels = 15};
            snprintf(a->name, sizeof a->name, "%.99s", line + 5);
            into = &a->code;
        } else if (a && !strcmp(line, "---- twin")) {
            into = &a->twin;
        } else if (a && !strcmp(line, "---- tests")) {
            into = &a->tests;
        } else if (a && !directive(a, line)) {
            append(into, line);
        }
    }
    fclose(f);
    return n;
}

static void unload(struct attack *attacks, int n) {
    for (int i = 0; i < n; i++) {
        free(attacks[i].code);
        free(attacks[i].twin);
        free(attacks[i].tests);
    }
}

/* Codes of one tests text are judged together, so that they also disturb each other if they can. */
static int run_group(struct rig *r, struct attack *attacks, int n, int from, int level,
                     bool own_uid) {
    const char *tests = attacks[from].tests ? attacks[from].tests : usual_tests;
    const char *codes[2 * MAX_CASES];
    int owner[2 * MAX_CASES], count = 0, wrong = 0;
    bool is_twin[2 * MAX_CASES];
    for (int i = from; i < n; i++) {
        struct attack *a = &attacks[i];
        if (strcmp(a->tests ? a->tests : usual_tests, tests) != 0) continue;
        codes[count] = a->code;
        owner[count] = i;
        is_twin[count++] = false;
        if (a->twin && (a->twin_levels >> level & 1)) {
            codes[count] = a->twin;
            owner[count] = i;
            is_twin[count++] = true;
        }
    }
    struct verifier_spec spec = rig_spec(VERIFIER_ASSERTS, tests);
    spec.entry_point = "f";
    spec.timeout_s = 1.5;
    spec.extract = VERIFIER_EXTRACT_RAW;
    ck_assert_msg(rig_open_tests(r, &spec), "%s", r->refused.message);
    rig_submit(r, codes, count);
    verifier_tests_close(r->tests);
    for (int i = 0; i < count; i++) {
        const struct attack *a = &attacks[owner[i]];
        const struct outcome *o = &r->outcomes[i];
        bool open = (a->open >> level & 1) || (!own_uid && (a->open_user >> level & 1));
        bool ok = is_twin[i] ? o->kind == VERDICT_PASSED
                             : (a->expect >> o->kind & 1) || (open && o->kind != VERDICT_BROKEN);
        if (ok) continue;
        wrong++;
        printf("level %d, %s: %s%s: %s %s: %s | %.200s\n", level, own_uid ? "root" : "user",
               a->name, is_twin[i] ? " (twin)" : "", verdict_name(o->kind), o->limit, o->error,
               o->output);
    }
    return wrong;
}

static void run_level(int max_level) {
    static struct attack attacks[MAX_CASES];
    static struct rig r;
    int n = load(attacks), wrong = 0, groups = 0;
    ck_assert_int_ge(n, 80);
    rig_open(&r, max_level);
    int level = verifier_report(r.verifier)->level;
    for (int i = 0; i < n; i++) {
        bool seen = false;
        for (int j = 0; j < i && !seen; j++)
            seen = !strcmp(attacks[j].tests ? attacks[j].tests : usual_tests,
                           attacks[i].tests ? attacks[i].tests : usual_tests);
        if (seen) continue;
        groups++;
        wrong += run_group(&r, attacks, n, i, level, geteuid() == 0);
    }
    struct verifier_stats stats;
    verifier_stats(r.verifier, &stats);
    printf("level %d as %s: %d attacks in %d groups, %d wrong, workers replaced %lu, retries %lu\n",
           level, geteuid() == 0 ? "root" : "user", n, groups, wrong,
           (unsigned long)stats.workers_replaced, (unsigned long)stats.retries);
    fflush(stdout);
    ck_assert_int_eq(wrong, 0);
    ck_assert_uint_eq(stats.workers_replaced, 0);
    rig_close(&r);
    unload(attacks, n);
}

static void level_3(void) { run_level(3); }
static void level_2(void) { run_level(2); }
static void level_1(void) { run_level(1); }
static void (*const levels[])(void) = {level_1, level_2, level_3};

START_TEST(test_as_started) { levels[_i](); }
END_TEST

START_TEST(test_without_privileges) {
    if (!rig_as_user(levels[_i])) printf("skipped: this container knows no other user\n");
}
END_TEST

int main(void) {
    /* What the environment of the server holds must not be found by any candidate. */
    setenv("FIRSTPASS_TEST_SECRET", "SECRET_OF_THE_SERVER", 1);
    Suite *suite = suite_create("attacks");
    TCase *tc = tcase_create("attacks");
    tcase_set_timeout(tc, 600);
    tcase_add_loop_test(tc, test_as_started, 0, 3);
    tcase_add_loop_test(tc, test_without_privileges, 0, 3);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
