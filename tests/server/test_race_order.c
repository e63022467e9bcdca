/* The race under every order of events.  A run is a sequence of choices among what engine, verifier
 * and client may do next; all sequences of small races are run, and seeded random ones of large
 * races. After each step an oracle, which knows only the facts told to the race, says whether it
 * must have answered and with what. */
#include "race_script.h"

#include "server/race_internal.h"

/* ---- choices ---- */

enum { MAX_CHOICES = 64 };

struct choices {
    bool random;
    uint64_t state; /* random: of a xorshift generator */
    int at, depth;  /* exhaustive */
    int taken[MAX_CHOICES], options[MAX_CHOICES];
};

static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

static int choose(struct choices *c, int n) {
    if (c->random) return (int)(next_random(&c->state) % (uint64_t)n);
    if (n == 1) return 0;
    ck_assert_int_lt(c->at, MAX_CHOICES);
    if (c->at == c->depth) {
        c->taken[c->depth] = 0;
        c->options[c->depth++] = n;
    }
    ck_assert_int_eq(c->options[c->at], n);
    return c->taken[c->at++];
}

/* The next sequence in order; false where all were run. */
static bool advance(struct choices *c) {
    while (c->depth && c->taken[c->depth - 1] + 1 == c->options[c->depth - 1])
        c->depth--;
    if (!c->depth) return false;
    c->taken[c->depth - 1]++;
    c->at = 0;
    return true;
}

/* ---- the world's rules ---- */

struct rules {
    int n;
    bool with_tests;
    enum race_return returns;
    enum race_on_fail on_fail;
    enum race_detail detail;
    bool abandon, deadline, device_fails, tests_fail, broken;
    int n_choices; /* without tests; 0: n */
    int window;    /* candidates decoding at once at most; 0: all */
};

enum act {
    READY,
    BAD_TESTS,
    START,
    END,
    END_CANCELLED,
    VERDICT,
    JOB_END,
    DEVICE,
    TURN,
    ABANDON,
    DEADLINE,
    FAIL
};
struct action {
    enum act act;
    int index;
    enum verdict_kind kind;
};

/* What the oracle knows beyond struct script. */
struct facts {
    struct script *s;
    const struct rules *rules;
    bool bad_tests, device_failed, deadline, failed;
    bool over; /* answered or abandoned */
    int n_pass, n_judged, n_broken, n_finished;
    bool interrupted; /* abandon, deadline or fail was used */
};

static bool decoding(const struct script_candidate *c) { return c->started && !c->ended; }

static void add(struct action *list, int *n, enum act act, int index, enum verdict_kind kind) {
    list[(*n)++] = (struct action){act, index, kind};
}

/* All that may happen next. */
static int enabled(const struct facts *f, struct action *list) {
    const struct script *s = f->s;
    const struct rules *rules = f->rules;
    int n = 0, running = 0, next = -1;
    for (int i = 0; i < s->n; i++) {
        running += decoding(&s->c[i]);
        if (next < 0 && !s->c[i].started) next = i;
    }
    if (s->ready) {
        add(list, &n, READY, 0, 0);
        if (rules->tests_fail) add(list, &n, BAD_TESTS, 0, 0);
    }
    if (!s->job_ended) {
        bool room = !rules->window || running < rules->window;
        /* One more may start after a cancel: its event was in the queue. */
        if (next >= 0 && room && (!s->cancelled || next == 1)) add(list, &n, START, next, 0);
        for (int i = 0; i < s->n; i++) {
            if (!decoding(&s->c[i])) continue;
            add(list, &n, END, i, 0);
            if (s->cancelled || s->c[i].cancel_asked) add(list, &n, END_CANCELLED, i, 0);
        }
        bool rest = next < 0 || s->cancelled || s->c[next].cancel_asked;
        if (!running && rest) add(list, &n, JOB_END, 0, 0);
        if (rules->device_fails && !s->cancelled) add(list, &n, DEVICE, 0, 0);
    }
    for (int i = 0; i < s->n; i++) {
        const struct script_candidate *c = &s->c[i];
        if (!c->submitted || c->judged || s->closed) continue;
        if (c->verify_cancelled && s->n > 2) continue;
        add(list, &n, VERDICT, i, VERDICT_PASSED);
        add(list, &n, VERDICT, i, VERDICT_FAILED);
        if (rules->broken) add(list, &n, VERDICT, i, VERDICT_BROKEN);
    }
    if (f->over && s->was_ready && !s->closed) add(list, &n, TURN, 0, 0);
    if (!f->over && !f->interrupted) {
        if (rules->abandon) add(list, &n, ABANDON, 0, 0);
        if (rules->abandon) add(list, &n, FAIL, 0, 0);
        if (rules->deadline) add(list, &n, DEADLINE, 0, 0);
    }
    return n;
}

static void device_fails(struct script *s) {
    struct err error = {0};
    err_set(&error, ERR_SYSTEM, "device lost");
    for (int i = 0; i < s->n; i++)
        if (decoding(&s->c[i])) script_ended(s, i, ENGINE_FAILED);
    script_job_ended(s, &error);
}

static void act(struct facts *f, const struct action *a) {
    struct script *s = f->s;
    struct err error = {0};
    switch (a->act) {
    case READY:
        script_ready(s, NULL);
        break;
    case BAD_TESTS:
        f->bad_tests = true;
        err_set(&error, ERR_INPUT, "tests don't compile");
        script_ready(s, &error);
        break;
    case START:
        script_started(s, a->index);
        break;
    case END:
        if (!f->over && !s->c[a->index].cancel_asked) f->n_finished++;
        script_ended(s, a->index, a->index == 1 ? ENGINE_LENGTH : ENGINE_STOP);
        break;
    case END_CANCELLED:
        script_ended(s, a->index, ENGINE_CANCELLED);
        break;
    case VERDICT: {
        bool counts = !f->over && !s->c[a->index].verify_cancelled;
        if (counts) {
            f->n_pass += a->kind == VERDICT_PASSED;
            f->n_broken += a->kind == VERDICT_BROKEN;
            f->n_judged += a->kind != VERDICT_BROKEN;
        }
        script_verdict(s, a->index, a->kind);
        break;
    }
    case JOB_END:
        script_job_ended(s, NULL);
        break;
    case DEVICE:
        f->device_failed = true;
        device_fails(s);
        break;
    case TURN:
        script_set_turn(s->set);
        break;
    case ABANDON:
        f->interrupted = true;
        s->abandoned = true;
        race_abandon(s->race);
        break;
    case DEADLINE:
        f->interrupted = f->deadline = true;
        race_deadline(s->race);
        break;
    case FAIL:
        f->interrupted = f->failed = true;
        err_set(&error, ERR_UNAVAILABLE, "draining");
        race_fail(s->race, &error);
        break;
    }
}

/* ---- the oracle ---- */

static bool passed(const struct script_candidate *c) {
    return c->judged && c->verdict == VERDICT_PASSED && !c->verify_cancelled;
}

static int lowest_pass(const struct script *s) {
    for (int i = 0; i < s->n; i++)
        if (passed(&s->c[i])) return i;
    return -1;
}

static bool judged_below(const struct script *s, int index) {
    for (int i = 0; i < index; i++)
        if (!s->c[i].judged) return false;
    return true;
}

static bool exhausted(const struct script *s) {
    if (!s->job_ended) return false;
    for (int i = 0; s->with_tests && i < s->n; i++) {
        const struct script_candidate *c = &s->c[i];
        bool whole = c->ended && (c->reason == ENGINE_STOP || c->reason == ENGINE_LENGTH);
        if (whole && !c->cancel_asked && !c->verify_cancelled && !c->judged) return false;
    }
    return true;
}

static bool must_be_over(const struct facts *f) {
    const struct script *s = f->s;
    int pass = s->with_tests ? lowest_pass(s) : -1;
    if (s->abandoned || f->deadline || f->failed || f->bad_tests) return true;
    if (pass >= 0 && f->rules->returns == RACE_FIRST) return true;
    if (pass >= 0 && f->rules->returns == RACE_LOWEST_INDEX && judged_below(s, pass)) return true;
    return exhausted(s);
}

static void check_choice(const struct facts *f) {
    const struct script *s = f->s;
    const struct rules *rules = f->rules;
    if (!s->with_tests) {
        ck_assert_int_eq(s->n_choices, rules->n_choices ? rules->n_choices : rules->n);
        ck_assert(!s->verified);
        return;
    }
    ck_assert_int_eq(s->verified, f->n_pass > 0);
    int first = s->choices[0];
    ck_assert_int_eq(passed(&s->c[first]), f->n_pass > 0);
    ck_assert(s->c[first].verdict != VERDICT_BROKEN || rules->returns == RACE_ALL);
    if (rules->returns == RACE_LOWEST_INDEX && f->n_pass) ck_assert_int_eq(first, lowest_pass(s));
    if (rules->returns == RACE_ALL)
        ck_assert_int_eq(s->n_choices, f->n_judged + f->n_broken);
    else
        ck_assert_int_eq(s->n_choices, 1);
}

static enum err_kind expected_error(const struct facts *f) {
    const struct script *s = f->s;
    const struct rules *rules = f->rules;
    if (f->bad_tests) return ERR_INPUT;
    if (f->failed) return ERR_UNAVAILABLE;
    bool best = rules->on_fail == RACE_FAIL_BEST;
    int wanted = rules->n_choices ? rules->n_choices : rules->n;
    bool some = s->with_tests ? f->n_pass || (f->n_judged && best) : f->n_finished >= wanted;
    if (f->deadline) return some ? ERR_NONE : ERR_DEADLINE;
    bool first_passed = f->n_pass && s->with_tests &&
                        (rules->returns == RACE_FIRST ||
                         (rules->returns == RACE_LOWEST_INDEX && judged_below(s, lowest_pass(s))));
    if (first_passed) return ERR_NONE;
    if (f->device_failed) return ERR_SYSTEM;
    if (some) return ERR_NONE;
    return s->with_tests && f->n_judged ? ERR_NONE_PASSED : ERR_SYSTEM;
}

static void check_counts(const struct facts *f, const struct race_counts *counts) {
    ck_assert_int_eq(counts->finished, f->n_finished);
    ck_assert_int_eq(counts->passed, f->n_pass);
    ck_assert_int_eq(counts->broken, f->n_broken);
    ck_assert_int_eq(counts->verified, f->s->with_tests ? f->n_judged : 0);
}

/* After each step. */
static void check_step(struct facts *f) {
    struct script *s = f->s;
    bool over = s->abandoned || s->n_done;
    if (!f->over) ck_assert_int_eq(over, must_be_over(f));
    if (over && !f->over) {
        ck_assert(s->cancelled || s->job_ended);
        if (s->n_done) {
            ck_assert_int_eq(s->error.kind, expected_error(f));
            check_counts(f, &s->counts);
            ck_assert_int_eq(s->counts.started, s->n_started);
            /* Decided, or cancelled at once: nothing is in between when the answer is out. */
            int decided = s->with_tests ? f->n_judged + f->n_broken : f->n_finished;
            ck_assert_int_eq(s->counts.cancelled, s->n_started - decided);
            if (s->error.kind == ERR_NONE) check_choice(f);
        }
    }
    f->over = over;
}

/* ---- runs ---- */

static void check_end(const struct facts *f) {
    const struct script *s = f->s;
    struct race_set_stats stats;
    race_set_stats(s->set->races, &stats);
    ck_assert_int_eq(stats.live, 0);
    ck_assert(f->over && s->job_ended && s->n_started == s->n_ended);
    ck_assert_int_eq(s->was_ready, s->closed);
    ck_assert_int_eq((int)stats.candidates_started, s->n_started);
    ck_assert_int_eq((int)stats.candidates_finished, f->n_finished);
    int decided = s->with_tests ? f->n_judged + f->n_broken : f->n_finished;
    ck_assert_int_eq((int)stats.candidates_cancelled, s->n_started - decided);
    ck_assert_uint_eq(stats.tokens_winner + stats.tokens_losers, 2 * (uint64_t)s->n_started);
    ck_assert_int_eq(
        (int)(stats.verified + stats.unverified + stats.plain + stats.failed + stats.abandoned), 1);
}

static void run_once(uv_loop_t *loop, struct choices *choices, const struct rules *rules) {
    struct script_set set;
    script_set_open(&set, loop);
    struct race_request q = script_request(rules->n, rules->with_tests ? &script_tests : NULL);
    q.returns = rules->returns;
    q.on_fail = rules->on_fail;
    q.detail = rules->detail;
    if (rules->n_choices) q.n_choices = rules->n_choices;
    struct err e = {0};
    struct facts f = {.rules = rules};
    f.s = script_start(&set, &q, false, &e);
    ck_assert(f.s);
    struct action list[64];
    int steps = 0;
    for (int n; (n = enabled(&f, list));) {
        ck_assert_int_lt(n, 64);
        ck_assert_int_lt(steps++, 200); /* else something is owed for ever */
        act(&f, &list[choose(choices, n)]);
        check_step(&f);
    }
    script_set_turn(&set);
    check_end(&f);
    script_set_close(&set);
}

static long run_all(const struct rules *rules) {
    struct choices choices = {0};
    long runs = 0;
    uv_loop_t loop;
    script_loop_open(&loop);
    do {
        run_once(&loop, &choices, rules);
        runs++;
    } while (advance(&choices));
    script_loop_close(&loop);
    return runs;
}

static const enum race_return all_returns[] = {RACE_FIRST, RACE_LOWEST_INDEX, RACE_BEST, RACE_ALL};

START_TEST(every_order_of_two) {
    long runs = 0;
    for (int fail = 0; fail < 2; fail++) {
        const struct rules rules = {.n = 2,
                                    .with_tests = true,
                                    .returns = all_returns[_i],
                                    .on_fail = fail ? RACE_FAIL_ERROR : RACE_FAIL_BEST,
                                    .detail = fail ? RACE_CANDIDATES_FULL : RACE_CANDIDATES_NONE,
                                    .broken = true,
                                    .tests_fail = true};
        runs += run_all(&rules);
    }
    printf("# return %d: %ld orders of two candidates\n", _i, runs);
    ck_assert_int_gt(runs, 1000);
}
END_TEST

START_TEST(every_order_of_two_broken_off) {
    const struct rules rules = {.n = 2,
                                .with_tests = true,
                                .returns = all_returns[_i],
                                .on_fail = RACE_FAIL_BEST,
                                .abandon = true,
                                .deadline = true};
    long runs = run_all(&rules);
    printf("# return %d: %ld orders of two candidates, broken off at every point\n", _i, runs);
    ck_assert_int_gt(runs, 1000);
}
END_TEST

START_TEST(every_order_of_two_device_fails) {
    const struct rules rules = {.n = 2,
                                .with_tests = true,
                                .returns = all_returns[_i],
                                .on_fail = RACE_FAIL_ERROR,
                                .deadline = true,
                                .device_fails = true};
    long runs = run_all(&rules);
    printf("# return %d: %ld orders of two candidates with a failing device\n", _i, runs);
    ck_assert_int_gt(runs, 1000);
}
END_TEST

START_TEST(every_order_of_three) {
    /* Two at once, to bound the number of orders. */
    const struct rules rules = {.n = 3,
                                .with_tests = true,
                                .returns = all_returns[_i],
                                .on_fail = RACE_FAIL_ERROR,
                                .window = 2};
    long runs = run_all(&rules);
    printf("# return %d: %ld orders of three candidates\n", _i, runs);
    ck_assert_int_gt(runs, 1000);
}
END_TEST

START_TEST(every_order_without_tests) {
    long runs = 0;
    for (int n_choices = 1; n_choices <= 3; n_choices++) {
        const struct rules rules = {.n = 3,
                                    .n_choices = n_choices,
                                    .abandon = true,
                                    .deadline = true,
                                    .device_fails = true};
        runs += run_all(&rules);
    }
    printf("# %ld orders without tests\n", runs);
    ck_assert_int_gt(runs, 1000);
}
END_TEST

START_TEST(random_orders) {
    struct choices choices = {.random = true, .state = 0x9e3779b97f4a7c15u + (uint64_t)_i};
    uv_loop_t loop;
    script_loop_open(&loop);
    for (int run = 0; run < 2000; run++) {
        const struct rules rules = {.n = 1 + choose(&choices, 9),
                                    .with_tests = choose(&choices, 5) > 0,
                                    .returns = all_returns[choose(&choices, 4)],
                                    .on_fail =
                                        choose(&choices, 2) ? RACE_FAIL_ERROR : RACE_FAIL_BEST,
                                    .detail = (enum race_detail)choose(&choices, 3),
                                    .abandon = choose(&choices, 4) == 0,
                                    .deadline = choose(&choices, 4) == 0,
                                    .device_fails = choose(&choices, 8) == 0,
                                    .tests_fail = choose(&choices, 8) == 0,
                                    .broken = choose(&choices, 2),
                                    .window = choose(&choices, 4)};
        run_once(&loop, &choices, &rules);
    }
    script_loop_close(&loop);
}
END_TEST

/* ---- many races at once ---- */

enum { SOAK_RACES = 60 };

/* One random thing that this race's engine or verifier may say; false where there is none. */
static bool soak_step(struct script *s, uint64_t *random) {
    int n = s->n, from = (int)(next_random(random) % (uint64_t)n);
    if (s->ready && next_random(random) % 4 == 0) {
        script_ready(s, NULL);
        return true;
    }
    if (s->job_ended) {
        for (int k = 0; k < n && !s->closed; k++) {
            int i = (from + k) % n;
            if (s->c[i].submitted && !s->c[i].judged && !s->c[i].verify_cancelled) {
                script_verdict(s, i, next_random(random) % 50 ? VERDICT_FAILED : VERDICT_PASSED);
                return true;
            }
        }
        if (!s->ready) return false;
        script_ready(s, NULL);
        return true;
    }
    int running = s->n_started - s->n_ended;
    bool rest = s->n_started == n || s->cancelled || s->c[s->n_started].cancel_asked;
    if (running < 24 && !rest && next_random(random) % 2) {
        script_started(s, s->n_started);
        return true;
    }
    for (int k = 0; k < s->n_started; k++) {
        int i = (from + k) % s->n_started;
        struct script_candidate *c = &s->c[i];
        if (decoding(c)) {
            bool cancel = s->cancelled || c->cancel_asked;
            script_ended(s, i, cancel && next_random(random) % 2 ? ENGINE_CANCELLED : ENGINE_STOP);
            return true;
        }
        if (c->submitted && !c->judged && !c->verify_cancelled && !s->closed) {
            script_verdict(s, i, next_random(random) % 200 ? VERDICT_FAILED : VERDICT_PASSED);
            return true;
        }
    }
    if (rest)
        script_job_ended(s, NULL);
    else
        script_started(s, s->n_started);
    return true;
}

START_TEST(soak) {
    uv_loop_t loop;
    script_loop_open(&loop);
    struct script_set set;
    script_set_open(&set, &loop);
    uint64_t random = 0xf00dfeed12345u + (uint64_t)_i;
    struct script *live[SOAK_RACES];
    int n_live = 0;
    for (int i = 0; i < SOAK_RACES; i++) {
        int n = 1 + (int)(next_random(&random) % (i % 10 ? 200 : 3000));
        struct race_request q = script_request(n, &script_tests);
        q.returns = all_returns[next_random(&random) % 4];
        q.n_prompts = 1 + (int)(next_random(&random) % 3);
        q.job.first_index = (int)(next_random(&random) % 5);
        q.on_fail = next_random(&random) % 2 ? RACE_FAIL_ERROR : RACE_FAIL_BEST;
        struct err e = {0};
        live[n_live] = script_start(&set, &q, true, &e);
        ck_assert(live[n_live]);
        n_live++;
    }
    long steps = 0;
    while (n_live) {
        int at = (int)(next_random(&random) % (uint64_t)n_live);
        struct script *s = live[at];
        if (!s->n_done && !s->abandoned && next_random(&random) % 5000 == 0) {
            s->abandoned = true;
            race_abandon(s->race);
        }
        if (!soak_step(s, &random)) {
            ck_assert(s->n_done || s->abandoned);
            live[at] = live[--n_live];
        }
        if (++steps % 16 == 0) script_set_turn(&set);
    }
    script_set_turn(&set);
    struct race_set_stats stats;
    race_set_stats(set.races, &stats);
    ck_assert_int_eq(stats.live, 0);
    ck_assert_int_eq((int)stats.races, SOAK_RACES);
    uint64_t started = 0;
    for (int i = 0; i < set.n_all; i++) {
        const struct script *s = set.all[i];
        started += (uint64_t)s->n_started;
        if (!s->n_done) continue;
        ck_assert(s->error.kind == ERR_NONE || s->error.kind == ERR_NONE_PASSED);
        if (s->verified) ck_assert(passed(&s->c[s->choices[0]]));
    }
    ck_assert_uint_eq(stats.candidates_started, started);
    ck_assert_uint_eq(stats.candidates_started,
                      stats.candidates_finished + stats.candidates_stopped);
    ck_assert_uint_eq(stats.tokens_winner + stats.tokens_losers, 2 * started);
    printf("# soak %d: %llu candidates, %llu verified, %llu unverified, %llu abandoned\n", _i,
           (unsigned long long)started, (unsigned long long)stats.verified,
           (unsigned long long)stats.unverified, (unsigned long long)stats.abandoned);
    script_set_close(&set);
    script_loop_close(&loop);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("race_order");
    TCase *t = tcase_create("orders");
    tcase_set_timeout(t, 0);
    tcase_add_loop_test(t, every_order_of_two, 0, 4);
    tcase_add_loop_test(t, every_order_of_two_broken_off, 0, 4);
    tcase_add_loop_test(t, every_order_of_two_device_fails, 0, 4);
    tcase_add_loop_test(t, every_order_of_three, 0, 4);
    tcase_add_test(t, every_order_without_tests);
    tcase_add_loop_test(t, random_orders, 0, 4);
    tcase_add_loop_test(t, soak, 0, 3);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
