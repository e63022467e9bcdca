#include "server/race_rank.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct given {
    enum verdict_kind kind;
    int passed, total;
    const char *code, *error;
    double logprob;
};

static struct race_entry *entry(int index, const struct given *g) {
    struct race_entry *c = race_entry_new(index);
    race_entry_move(c, RACE_ENTRY_DECODING);
    race_entry_set_output(c, &(struct engine_event){.text = "t",
                                                    .text_len = 1,
                                                    .tokens = (const int32_t[]){1},
                                                    .n_tokens = 1,
                                                    .sum_logprob = g->logprob});
    race_entry_move(c, RACE_ENTRY_VERIFYING);
    race_entry_move(c, RACE_ENTRY_DECIDED);
    race_entry_set_verdict(c, &(struct verdict){.kind = g->kind,
                                                .tests_passed = g->passed,
                                                .tests_total = g->total,
                                                .code = g->code,
                                                .code_len = strlen(g->code),
                                                .error = g->error,
                                                .output = "",
                                                .method = "raw",
                                                .trust = "split"});
    return c;
}

static const char wrong[] = "AssertionError: f(1) == 2";

/* Each is better than the next. */
static const struct given ladder[] = {
    {VERDICT_PASSED, 4, 4, "a", "", -9},         {VERDICT_FAILED, 3, 4, "b", "NameError: x", -9},
    {VERDICT_TIMEOUT, 5, 8, "c", "", -1},        {VERDICT_FAILED, 2, 4, "d", wrong, -9},
    {VERDICT_CRASHED, 2, 4, "e", "", -1},        {VERDICT_TIMEOUT, 4, 8, "f", "", -1},
    {VERDICT_FAILED, 0, 4, "g", wrong, -1},      {VERDICT_FAILED, 0, 0, "h", "NameError: y", -1},
    {VERDICT_MEMORY, 0, 4, "i", "", -2},         {VERDICT_TIMEOUT, 0, 4, "j", "", -1},
    {VERDICT_FAILED, 0, 4, "", "no code", -0.1},
};
enum { N_LADDER = sizeof ladder / sizeof *ladder };

START_TEST(every_rung_beats_those_below) {
    for (int top = 0; top < N_LADDER; top++) {
        struct race_rank r;
        struct race_entry *entries[N_LADDER] = {NULL};
        race_rank_init(&r);
        ck_assert_ptr_null(race_rank_best(&r));
        for (int i = N_LADDER - 1; i >= top; i--) {
            /* Indices run against the ladder, so that they don't decide. */
            entries[i] = entry(N_LADDER - i, &ladder[i]);
            ck_assert_ptr_null(race_rank_add(&r, entries[i]));
        }
        ck_assert_ptr_eq(race_rank_best(&r), entries[top]);
        race_rank_clear(&r);
        for (int i = 0; i < N_LADDER; i++)
            race_entry_free(entries[i]);
    }
}
END_TEST

/* Several codes with one outcome: members, then log-probability, then index. */
static const struct given equals[] = {
    {VERDICT_FAILED, 1, 4, "w", wrong, -0.5}, {VERDICT_FAILED, 1, 4, "x", wrong, -3},
    {VERDICT_FAILED, 1, 4, "y", wrong, -2},   {VERDICT_FAILED, 1, 4, "x", wrong, -4},
    {VERDICT_FAILED, 1, 4, "y", wrong, -1},   {VERDICT_FAILED, 1, 4, "z", wrong, -1},
    {VERDICT_FAILED, 1, 4, "z", wrong, -7},
};
enum { N_EQUALS = sizeof equals / sizeof *equals };

/* Calls visit for every order of 0 … n-1. */
static void permute(int *order, int n, int at, void (*visit)(const int *)) {
    if (at == n) visit(order);
    for (int i = at; i < n; i++) {
        int first = order[at];
        order[at] = order[i];
        order[i] = first;
        permute(order, n, at + 1, visit);
        order[i] = order[at];
        order[at] = first;
    }
}

static void check_order(const int *order) {
    struct race_rank r;
    struct race_entry *entries[N_EQUALS];
    int spares = 0;
    race_rank_init(&r);
    for (int k = 0; k < N_EQUALS; k++) {
        int i = order[k];
        entries[i] = entry(i, &equals[i]);
        struct race_entry *spare = race_rank_add(&r, entries[i]);
        if (!spare) continue;
        spares++;
        ck_assert(spare->view.index == 3 || spare->view.index == 4 || spare->view.index == 6 ||
                  spare == entries[i] || spare->view.index > i);
    }
    ck_assert_int_eq(spares, 3);
    /* x, y and z have two members; y and z the best log-probability; y the lower index. */
    ck_assert_int_eq(race_rank_best(&r)->view.index, 2);
    race_rank_clear(&r);
    for (int i = 0; i < N_EQUALS; i++)
        race_entry_free(entries[i]);
}

START_TEST(order_of_arrival_does_not_matter) {
    int order[N_EQUALS] = {0, 1, 2, 3, 4, 5, 6};
    permute(order, N_EQUALS, 0, check_order);
}
END_TEST

START_TEST(many_groups) {
    enum { N = 5000 };
    struct race_rank r;
    struct race_entry **entries = err_alloc(N, sizeof(struct race_entry *));
    race_rank_init(&r);
    for (int i = 0; i < N; i++) {
        char code[32];
        snprintf(code, sizeof code, "code %d", i % 2500 == 77 ? 77 : i);
        entries[i] = entry(i, &(struct given){VERDICT_FAILED, 0, 4, code, wrong, -i});
        bool spare = race_rank_add(&r, entries[i]) != NULL;
        ck_assert_int_eq(spare, i == 2577);
    }
    ck_assert_int_eq(race_rank_best(&r)->view.index, 77);
    ck_assert_uint_eq(r.n_groups, N - 1);
    race_rank_clear(&r);
    for (int i = 0; i < N; i++)
        race_entry_free(entries[i]);
    free(entries);
}
END_TEST

START_TEST(illegal_move_is_a_bug) {
    struct race_entry *c = race_entry_new(0);
    race_entry_move(c, RACE_ENTRY_VERIFYING);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("race_rank");
    TCase *t = tcase_create("rank");
    tcase_set_timeout(t, 0);
    tcase_add_test(t, every_rung_beats_those_below);
    tcase_add_test(t, order_of_arrival_does_not_matter);
    tcase_add_test(t, many_groups);
    tcase_add_test_raise_signal(t, illegal_move_is_a_bug, 6);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
