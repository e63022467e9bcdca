/* The scheduler alone: single decisions, and whole lives of random jobs on pools of any size,
 * counted against invariants. */
#include "engine/scheduler.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 16 };

static struct scheduler_budget budget_of(int rows, int chunk, int free_blocks) {
    return (struct scheduler_budget){.block = BLOCK,
                                     .max_rows = rows,
                                     .prefill_chunk = chunk,
                                     .free_blocks = free_blocks,
                                     .auto_width = 16};
}

START_TEST(starts_up_to_the_width) {
    struct scheduler_job j = {.waiting = 100, .width = 5};
    struct scheduler_budget b = budget_of(64, 128, 1000);
    scheduler_admit(&j, 1, NULL, 0, &b);
    ck_assert_int_eq(j.start, 5);
    j.width = 0;
    scheduler_admit(&j, 1, NULL, 0, &b);
    ck_assert_int_eq(j.start, 16);
    j.in_flight = 10;
    scheduler_admit(&j, 1, NULL, 0, &b);
    ck_assert_int_eq(j.start, 6);
}
END_TEST

START_TEST(waits_for_the_prompt) {
    struct scheduler_job j = {.waiting = 3, .prompt_left = 1};
    struct scheduler_budget b = budget_of(64, 128, 1000);
    scheduler_admit(&j, 1, NULL, 0, &b);
    ck_assert_int_eq(j.start, 0);
    scheduler_rows(&j, 1, NULL, 0, &b);
    ck_assert_int_eq(j.rows, 1);
}
END_TEST

START_TEST(a_newcomer_gets_its_share_at_once) {
    struct scheduler_job jobs[2] = {{.waiting = 9000, .in_flight = 64, .width = 64},
                                    {.waiting = 9000, .width = 64}};
    struct scheduler_branch live[64];
    for (int i = 0; i < 64; i++)
        live[i] = (struct scheduler_branch){
            .job = 0, .length = 20, .cached = 19, .blocks = 2, .age = (uint64_t)i};
    struct scheduler_budget b = budget_of(64, 128, 1000);
    scheduler_admit(jobs, 2, live, 64, &b);
    ck_assert_int_eq(jobs[0].start, 0);
    ck_assert_int_eq(jobs[1].start, 32);
}
END_TEST

START_TEST(prompts_share_the_chunk) {
    struct scheduler_job jobs[3] = {
        {.prompt_left = 1000}, {.prompt_left = 20}, {.prompt_left = 1000}};
    struct scheduler_budget b = budget_of(64, 120, 1000);
    scheduler_rows(jobs, 3, NULL, 0, &b);
    ck_assert_int_eq(jobs[0].rows, 40);
    ck_assert_int_eq(jobs[1].rows, 20);
    ck_assert_int_eq(jobs[2].rows, 60);
}
END_TEST

START_TEST(parks_the_youngest_for_the_oldest) {
    struct scheduler_job j = {.in_flight = 2};
    struct scheduler_branch br[2] = {
        {.length = 17, .cached = 16, .blocks = 1, .private_blocks = 1, .age = 1},
        {.length = 17, .cached = 16, .blocks = 1, .private_blocks = 1, .age = 2},
    };
    struct scheduler_budget b = budget_of(64, 128, 0);
    scheduler_rows(&j, 1, br, 2, &b);
    ck_assert_int_eq(br[0].rows, 1);
    ck_assert(!br[0].park);
    ck_assert(br[1].park);
    ck_assert_int_eq(br[1].rows, 0);
}
END_TEST

START_TEST(more_branches_than_rows_take_turns) {
    struct scheduler_job j = {.in_flight = 3};
    struct scheduler_branch br[3] = {
        {.length = 5, .cached = 4, .blocks = 1, .age = 1, .served = 9},
        {.length = 5, .cached = 4, .blocks = 1, .age = 2, .served = 8},
        {.length = 5, .cached = 4, .blocks = 1, .age = 3, .served = 8},
    };
    struct scheduler_budget b = budget_of(2, 16, 10);
    scheduler_rows(&j, 1, br, 3, &b);
    ck_assert_int_eq(br[0].rows, 0);
    ck_assert_int_eq(br[1].rows, 1);
    ck_assert_int_eq(br[2].rows, 1);
}
END_TEST

START_TEST(mates_start_in_the_order_of_their_numbers) {
    struct scheduler_job jobs[4] = {
        {.waiting = 3, .mate = 1, .step = 3, .next = 0},
        {.waiting = 3, .mate = 3, .step = 3, .next = 1, .follows = true},
        {.waiting = 9},
        {.waiting = 3, .step = 3, .next = 2, .follows = true},
    };
    struct scheduler_budget b = budget_of(64, 128, 1000);
    b.auto_width = 5;
    scheduler_admit(jobs, 4, NULL, 0, &b);
    ck_assert_int_eq(jobs[0].start, 2);
    ck_assert_int_eq(jobs[1].start, 2);
    ck_assert_int_eq(jobs[3].start, 1);
    ck_assert_int_eq(jobs[2].start, 5); /* another race: a width of its own */
    /* Beyond its turn none goes on: number 1 waits for its prompt. */
    jobs[1].prompt_left = 4;
    scheduler_admit(jobs, 4, NULL, 0, &b);
    ck_assert_int_eq(jobs[0].start, 1);
    ck_assert_int_eq(jobs[1].start + jobs[3].start, 0);
    /* One that has none left isn't waited for. */
    jobs[1].waiting = 0;
    scheduler_admit(jobs, 4, NULL, 0, &b);
    ck_assert_int_eq(jobs[0].start, 3);
    ck_assert_int_eq(jobs[3].start, 2);
}
END_TEST

START_TEST(a_held_prompt_gets_no_rows) {
    struct scheduler_job jobs[2] = {
        {.prompt_left = 60, .waiting = 1, .mate = 1},
        {.prompt_left = 60, .waiting = 1, .follows = true, .held = true}};
    struct scheduler_budget b = budget_of(64, 40, 1000);
    scheduler_rows(jobs, 2, NULL, 0, &b);
    ck_assert_int_eq(jobs[0].rows, 40);
    ck_assert_int_eq(jobs[1].rows, 0);
}
END_TEST

/* The prompts of one race don't fit beside each other: the one that is there goes on, in whatever
 * order. */
START_TEST(mates_without_room_for_each_other_get_on) {
    struct scheduler_job jobs[2] = {
        {.waiting = 4, .next = 2, .step = 2, .mate = 1, .prompt_cached = 20, .prompt_blocks = 2},
        {.waiting = 5, .next = 1, .step = 2, .follows = true, .prompt_left = 40}};
    struct scheduler_budget b = budget_of(64, 128, 2);
    scheduler_admit(jobs, 2, NULL, 0, &b);
    ck_assert_int_eq(jobs[0].start, 1);
    ck_assert_int_eq(jobs[1].start, 0);
    b.free_blocks = 4;
    scheduler_admit(jobs, 2, NULL, 0, &b);
    ck_assert_int_eq(jobs[0].start, 0);
}
END_TEST

/* ---- whole lives ---- */

enum { MAX_JOBS = 12, MAX_BRANCHES = 4096 };

/* A world without a model: every candidate is its own branch and produces a known number of tokens.
 */
struct world {
    struct scheduler_job jobs[MAX_JOBS];
    int n_prompt[MAX_JOBS], prompt_blocks[MAX_JOBS], prompt_done[MAX_JOBS], waiting[MAX_JOBS],
        in_flight[MAX_JOBS];
    int n_tokens[MAX_JOBS];
    int mate[MAX_JOBS], place[MAX_JOBS], step[MAX_JOBS], started[MAX_JOBS];
    bool begun[MAX_JOBS];
    int n_jobs;
    struct branch_state {
        int job, tokens, cached, blocks;
        bool parked, live;
        uint64_t age, served;
    } b[MAX_BRANCHES];
    int n_b;
    int n_blocks, used;
    uint64_t age, turn;
    int finished;
};

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

static void take(struct world *w, int n) {
    w->used += n;
    ck_assert_int_le(w->used, w->n_blocks);
    ck_assert_int_ge(w->used, 0);
}

static int goal(const struct world *w, int j) { return w->n_prompt[j] - 1; }

/* Blocks of a branch that are its own: all but the prompt's full ones. */
static int own_blocks(const struct world *w, const struct branch_state *b) {
    return b->parked ? 0 : b->blocks - goal(w, b->job) / BLOCK;
}

/* Some jobs are those of one race. */
static void pair_up(struct world *w, uint32_t random) {
    for (int j = 0; j < w->n_jobs; j++)
        w->step[j] = 1;
    for (int j = 1; j < w->n_jobs; j++) {
        if (random >> j & 1) continue;
        w->mate[j - 1] = j;
        w->place[j] = w->place[j - 1] + 1;
        for (int k = j; k >= j - w->place[j]; k--)
            w->step[k] = w->place[j] + 1;
    }
}

static bool held(const struct world *w, int j) {
    for (int k = j - w->place[j]; k < j && !w->begun[j]; k++)
        if ((w->waiting[k] || w->in_flight[k]) && w->prompt_done[k] < goal(w, k)) return true;
    return false;
}

static int view(struct world *w, struct scheduler_branch *out, int *index) {
    for (int j = 0; j < w->n_jobs; j++)
        w->jobs[j] = (struct scheduler_job){
            .prompt_left = w->waiting[j] || w->in_flight[j] ? goal(w, j) - w->prompt_done[j] : 0,
            .prompt_cached = w->prompt_done[j],
            .prompt_blocks = w->prompt_blocks[j],
            .prompt_private = w->prompt_blocks[j],
            .waiting = w->waiting[j],
            .in_flight = w->in_flight[j],
            .mate = w->mate[j],
            .follows = w->place[j] > 0,
            .held = held(w, j),
            .next = w->place[j] + w->started[j] * w->step[j],
            .step = w->step[j]};
    int n = 0;
    for (int i = 0; i < w->n_b; i++) {
        struct branch_state *b = &w->b[i];
        if (!b->live) continue;
        index[n] = i;
        out[n++] = (struct scheduler_branch){.job = b->job,
                                             .parked = b->parked,
                                             .length = w->n_prompt[b->job] + b->tokens,
                                             .cached = b->cached,
                                             .blocks = b->blocks,
                                             .private_blocks = own_blocks(w, b),
                                             .age = b->age,
                                             .served = b->served};
    }
    return n;
}

static void unpark(struct world *w, struct branch_state *b) {
    int full = goal(w, b->job) / BLOCK, rest = goal(w, b->job) % BLOCK;
    ck_assert_int_eq(w->prompt_done[b->job], goal(w, b->job));
    if (rest) {
        if (w->used == w->n_blocks) return;
        take(w, 1);
    }
    b->blocks = full + (rest > 0);
    b->cached = goal(w, b->job);
    b->parked = false;
}

static void park(struct world *w, struct branch_state *b) {
    take(w, -own_blocks(w, b));
    b->blocks = b->cached = 0;
    b->parked = true;
}

static void turn(struct world *w, const struct scheduler_budget *base) {
    static struct scheduler_branch view_b[MAX_BRANCHES];
    static int index[MAX_BRANCHES];
    struct scheduler_budget budget = *base;
    w->turn++;
    int n = view(w, view_b, index);
    budget.free_blocks = w->n_blocks - w->used;
    scheduler_admit(w->jobs, w->n_jobs, view_b, n, &budget);
    for (int i = 0; i < n; i++)
        if (view_b[i].unpark) unpark(w, &w->b[index[i]]);
    for (int j = 0; j < w->n_jobs; j++) {
        ck_assert_int_le(w->jobs[j].start, w->waiting[j]);
        for (int k = 0; k < w->jobs[j].start; k++) {
            ck_assert_int_lt(w->n_b, MAX_BRANCHES);
            struct branch_state *b = &w->b[w->n_b++];
            *b = (struct branch_state){.job = j, .parked = true, .live = true, .age = w->age++};
            w->waiting[j]--;
            w->started[j]++;
            w->in_flight[j]++;
            unpark(w, b);
        }
    }
    for (int j = 0, together = 0; j < w->n_jobs; j++) {
        together += w->in_flight[j];
        if (w->mate[j]) continue;
        ck_assert_int_le(together, budget.auto_width);
        together = 0;
    }
    n = view(w, view_b, index);
    budget.free_blocks = w->n_blocks - w->used;
    scheduler_rows(w->jobs, w->n_jobs, view_b, n, &budget);
    int rows = 0, decoding = 0;
    for (int i = 0; i < n; i++) {
        ck_assert(!view_b[i].park || !view_b[i].rows);
        if (view_b[i].park) park(w, &w->b[index[i]]);
        rows += view_b[i].rows;
        decoding += view_b[i].rows > 0;
    }
    for (int j = 0; j < w->n_jobs; j++) {
        if (w->jobs[j].drop_prompt) {
            take(w, -w->prompt_blocks[j]);
            w->prompt_blocks[j] = w->prompt_done[j] = 0;
        }
    }
    for (int j = 0; j < w->n_jobs; j++) {
        if (!w->jobs[j].rows) continue;
        ck_assert(!w->jobs[j].held);
        w->begun[j] = true;
        rows += w->jobs[j].rows;
        w->prompt_done[j] += w->jobs[j].rows;
        ck_assert_int_le(w->prompt_done[j], goal(w, j));
        int need = ceil_div(w->prompt_done[j], BLOCK) - w->prompt_blocks[j];
        if (need > 0) {
            take(w, need);
            w->prompt_blocks[j] += need;
        }
    }
    ck_assert_int_le(rows, budget.max_rows + budget.prefill_chunk);
    ck_assert_int_le(decoding, budget.max_rows);
    for (int i = 0; i < n; i++) {
        struct branch_state *b = &w->b[index[i]];
        if (!view_b[i].rows) continue;
        int length = w->n_prompt[b->job] + b->tokens;
        b->cached += view_b[i].rows;
        ck_assert_int_le(b->cached, length);
        int need = ceil_div(b->cached, BLOCK) - b->blocks;
        if (need > 0) {
            take(w, need);
            b->blocks += need;
        }
        b->served = w->turn;
        if (b->cached < length || ++b->tokens < w->n_tokens[b->job]) continue;
        park(w, b);
        b->live = false;
        w->in_flight[b->job]--;
        w->finished++;
    }
    for (int j = 0; j < w->n_jobs; j++)
        if (!w->waiting[j] && !w->in_flight[j] && w->prompt_blocks[j]) {
            take(w, -w->prompt_blocks[j]);
            w->prompt_blocks[j] = 0;
        }
}

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

START_TEST(every_candidate_ends_on_any_pool) {
    static struct world w;
    for (uint32_t seed = 1; seed <= 80; seed++) {
        uint32_t state = seed * 2654435761u;
        memset(&w, 0, sizeof w);
        w.n_jobs = 1 + (int)(next_random(&state) % MAX_JOBS);
        int all = 0, largest = 0;
        for (int j = 0; j < w.n_jobs; j++) {
            w.n_prompt[j] = 1 + (int)(next_random(&state) % 120);
            w.n_tokens[j] = 1 + (int)(next_random(&state) % 60);
            w.waiting[j] = 1 + (int)(next_random(&state) % 40);
            all += w.waiting[j];
            int need = ceil_div(w.n_prompt[j] + w.n_tokens[j], BLOCK) +
                       1; /* what engine_submit asks of the pool */
            if (need > largest) largest = need;
        }
        pair_up(&w, seed % 2 ? next_random(&state) : UINT32_MAX);
        w.n_blocks = largest + (int)(next_random(&state) % 40) * (int)(seed % 3);
        struct scheduler_budget budget =
            budget_of(1 + (int)(next_random(&state) % 20), 1 + (int)(next_random(&state) % 64), 0);
        budget.auto_width = 1 + (int)(next_random(&state) % 20);
        int turns = 0;
        for (; w.finished < all && turns < 200000; turns++)
            turn(&w, &budget);
        ck_assert_msg(w.finished == all, "seed %u: %d of %d candidates ended, %d of %d blocks used",
                      seed, w.finished, all, w.used, w.n_blocks);
        ck_assert_int_eq(w.used, 0);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("scheduler");
    TCase *t = tcase_create("scheduler");
    tcase_set_timeout(t, 0); /* ctest has one */
    tcase_add_test(t, starts_up_to_the_width);
    tcase_add_test(t, waits_for_the_prompt);
    tcase_add_test(t, a_newcomer_gets_its_share_at_once);
    tcase_add_test(t, prompts_share_the_chunk);
    tcase_add_test(t, parks_the_youngest_for_the_oldest);
    tcase_add_test(t, more_branches_than_rows_take_turns);
    tcase_add_test(t, mates_start_in_the_order_of_their_numbers);
    tcase_add_test(t, a_held_prompt_gets_no_rows);
    tcase_add_test(t, mates_without_room_for_each_other_get_on);
    tcase_add_test(t, every_candidate_ends_on_any_pool);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
