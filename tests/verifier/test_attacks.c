/* attacks.txt at every level that this machine gives, as root and without privileges: no attack may
 * pass but those that the table itself calls open at the level, and every honest twin must. */
#include "tests/verifier/rig.h"
#include "verifier/attack.h"

#include <stdio.h>

/* WORKERS: more than cores, since many attacks do nothing but wait for their clock to run out. */
enum { LEAST_CASES = 110, WORKERS = 4 };

static int count_wrong(const struct attack_list *list, const struct attack_outcome *outcomes,
                       int level, bool own_uid) {
    int wrong = 0;
    for (int i = 0; i < list->n; i++) {
        const struct attack *a = &list->items[i];
        const struct attack_outcome *o = &outcomes[i];
        enum attack_result result = attack_judge(a, o, level, own_uid);
        if (result == ATTACK_STOPPED || result == ATTACK_OPEN) continue;
        wrong++;
        printf("level %d, %s: %s: %s: %s; twin %s: %s\n", level, own_uid ? "root" : "user", a->name,
               verdict_name(o->kind), o->said, o->twin_ran ? verdict_name(o->twin_kind) : "not run",
               o->twin_said);
    }
    return wrong;
}

static void run_level(int max_level) {
    static struct rig r;
    struct attack_list list;
    struct err e = {0};
    attack_load(&list);
    ck_assert_int_ge(list.n, LEAST_CASES);
    struct attack_outcome *outcomes = err_alloc((size_t)list.n, sizeof *outcomes);
    struct verifier_options options = rig_options(max_level, -1);
    options.workers = WORKERS;
    ck_assert_msg(rig_try_open(&r, &options, &e), "%s", e.message);
    int level = verifier_report(r.verifier)->level;
    if (level < max_level) { /* which has a turn of its own */
        const char *must = getenv("FIRSTPASS_MUST");
        printf("skipped: level %d as %s: this machine doesn't give it: ", max_level,
               geteuid() == 0 ? "root" : "user");
        rig_tell_level(verifier_report(r.verifier), "what there is");
        ck_assert_msg(!must || !strstr(must, "box"), "FIRSTPASS_MUST has box");
        rig_close(&r);
        free(outcomes);
        attack_unload(&list);
        return;
    }
    ck_assert_msg(attack_run(r.verifier, &r.loop, &list, 0, true, outcomes, NULL, NULL, &e), "%s",
                  e.message);
    int wrong = count_wrong(&list, outcomes, level, geteuid() == 0);
    struct verifier_stats stats;
    verifier_stats(r.verifier, &stats);
    printf("level %d as %s: %d attacks with their twins, %d wrong, workers replaced %lu, retries "
           "%lu\n",
           level, geteuid() == 0 ? "root" : "user", list.n, wrong,
           (unsigned long)stats.workers_replaced, (unsigned long)stats.retries);
    fflush(stdout);
    ck_assert_int_eq(wrong, 0);
    ck_assert_uint_eq(stats.workers_replaced, 0);
    rig_close(&r);
    free(outcomes);
    attack_unload(&list);
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

/* ---- what each layer is for ---- */

static void print_row(const struct verifier_attacks *a, unsigned without) {
    const char *between = "";
    printf("| ");
    for (unsigned bit = 1; bit <= VERIFIER_WITHOUT_LIMITS; bit <<= 1)
        if (without & bit) {
            printf("%s%s", between, verifier_without_name((enum verifier_without)bit));
            between = ", ";
        }
    printf(" | ");
    between = "";
    for (int i = 0; i < a->n; i++)
        if (a->items[i].through && a->items[i].stopped_by == without) {
            printf("%s%s", between, a->items[i].name);
            between = "; ";
        }
    printf(" |\n");
}

/* The table of verifier/LAYERS.md: for each layer, alone or with those that cover for it, attacks
 * that work where it is off, and not where it is on. */
START_TEST(test_each_layer_carries_weight) {
    struct verifier_options options = rig_options(3, -1);
    struct verifier_attacks a;
    struct err e = {0};
    options.workers = WORKERS;
    unsigned weighty = 0;
    ck_assert_msg(verifier_attacks_run(&options, &a, NULL, NULL, &e), "%s", e.message);
    ck_assert_int_eq(a.n_through + a.n_wrong, 0);
    ck_assert_int_eq(a.n_stopped + a.n_open, a.n);
    for (int i = 0; i < a.n; i++)
        if (a.items[i].through) weighty |= a.items[i].stopped_by;
    for (int at = 1; at < a.n_arrangements; at++)
        print_row(&a, a.without[at]);
    unsigned there = 0;
    for (int at = 1; at < a.n_arrangements; at++)
        there |= a.without[at];
    if (a.level < 3 || geteuid() != 0)
        printf("not all layers are there at level %d as %s: bits %x of the table\n", a.level,
               geteuid() ? "user" : "root", there);
    /* Where the machine gives less, what is there must still be seen to matter. */
    ck_assert_uint_eq(weighty & there, there);
    ck_assert_uint_ne(there & (VERIFIER_WITHOUT_SECCOMP | VERIFIER_WITHOUT_LIMITS), 0);
    verifier_attacks_clear(&a);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("attacks");
    TCase *tc = tcase_create("attacks");
    tcase_set_timeout(tc, 600);
    tcase_add_loop_test(tc, test_as_started, 0, 3);
    tcase_add_loop_test(tc, test_without_privileges, 0, 3);
    suite_add_tcase(suite, tc);
    tc = tcase_create("layers");
    tcase_set_timeout(tc, 900);
    tcase_add_test(tc, test_each_layer_carries_weight);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
