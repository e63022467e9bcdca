/* The race, one behaviour a test; every order of events is test_race_order.c's affair. */
#include "race_script.h"

#include "server/race_internal.h"

static uv_loop_t loop;
static struct script_set set;

static void setup(void) {
    script_loop_open(&loop);
    script_set_open(&set, &loop);
}

static void teardown(void) {
    script_set_turn(&set);
    script_set_close(&set);
    script_loop_close(&loop);
}

static struct script *start(const struct race_request *q) {
    struct err e = {0};
    struct script *s = script_start(&set, q, true, &e);
    ck_assert_msg(s != NULL, "%s", e.message);
    return s;
}

/* Ends candidates from … to-1, which must be started. */
static void end_all(struct script *s, int from, int to) {
    for (int i = from; i < to; i++)
        script_ended(s, i, ENGINE_STOP);
}

static void start_all(struct script *s, int from, int to) {
    for (int i = from; i < to; i++)
        script_started(s, i);
}

/* The engine obeys a cancel. */
static void wind_up(struct script *s) {
    for (int i = 0; i < s->n; i++)
        if (s->c[i].started && !s->c[i].ended) script_ended(s, i, ENGINE_CANCELLED);
    script_job_ended(s, NULL);
}

/* ---- the answer ---- */

START_TEST(first_pass_answers_and_stops_siblings) {
    struct race_request q = script_request(100, &script_tests);
    struct script *s = start(&q);
    script_ready(s, NULL);
    start_all(s, 0, 8);
    end_all(s, 3, 5);
    script_verdict(s, 4, VERDICT_PASSED);
    ck_assert_int_eq(s->n_done, 1);
    ck_assert(s->verified && s->cancelled);
    ck_assert_int_eq(s->choices[0], 4);
    ck_assert_str_eq(s->text, "text of 4");
    ck_assert_int_eq(s->counts.started, 8);
    ck_assert_int_eq(s->counts.finished, 2);
    ck_assert_int_eq(s->counts.verified, 1);
    ck_assert_int_eq(s->counts.passed, 1);
    ck_assert_int_eq(s->counts.cancelled, 7);
    ck_assert_int_eq((int)s->counts.tokens_winner, 2);
    ck_assert_int_eq((int)s->counts.tokens_losers, 2);
    ck_assert(s->counts.first_pass_s >= 0);
    ck_assert(!s->closed); /* not from within the verdict's callback */
    script_set_turn(&set);
    ck_assert(s->closed);
    ck_assert_int_eq(script_set_live(&set), 1);
    wind_up(s);
    ck_assert_int_eq(script_set_live(&set), 0);
    struct race_set_stats stats;
    race_set_stats(set.races, &stats);
    ck_assert_int_eq((int)stats.tokens_winner, 2);
    ck_assert_int_eq((int)stats.tokens_losers, 14);
    ck_assert_int_eq((int)stats.candidates_passed, 1);
}
END_TEST

START_TEST(candidates_wait_for_the_tests) {
    struct race_request q = script_request(2, &script_tests);
    struct script *s = start(&q);
    start_all(s, 0, 2);
    end_all(s, 0, 2);
    script_job_ended(s, NULL);
    ck_assert(!s->c[0].submitted && !s->n_done);
    script_ready(s, NULL);
    ck_assert(s->c[0].submitted && s->c[1].submitted);
    script_verdict(s, 1, VERDICT_PASSED);
    ck_assert_int_eq(s->choices[0], 1);
}
END_TEST

START_TEST(tests_that_fail_to_open_decide_the_error) {
    const enum err_kind kinds[] = {ERR_INPUT, ERR_SYSTEM};
    for (int i = 0; i < 2; i++) {
        struct race_request q = script_request(2, &script_tests);
        struct script *s = start(&q);
        script_started(s, 0);
        struct err e = {0};
        err_set(&e, kinds[i], "why");
        script_ready(s, &e);
        ck_assert_int_eq(s->n_done, 1);
        ck_assert_int_eq(s->error.kind, kinds[i]);
        ck_assert_str_eq(s->error.message, "why");
        ck_assert(s->cancelled);
        wind_up(s);
    }
}
END_TEST

START_TEST(refused_starts_leave_nothing) {
    struct race_request q = script_request(2, &script_tests);
    struct err e = {0};
    set.engine_refuses = true;
    ck_assert(!script_start(&set, &q, false, &e));
    ck_assert_int_eq(e.kind, ERR_BUSY);
    set.engine_refuses = false;
    set.verifier_refuses = true;
    ck_assert(!script_start(&set, &q, false, &e));
    ck_assert_int_eq(e.kind, ERR_SYSTEM);
    ck_assert_int_eq(script_set_live(&set), 0);
    /* The job that was taken and cancelled still sends its events. */
    race_set_event(set.races, &(struct engine_event){.type = ENGINE_STARTED, .job = set.next_id});
    race_set_event(set.races, &(struct engine_event){.type = ENGINE_JOB_ENDED, .job = set.next_id});
}
END_TEST

START_TEST(lowest_index_waits_and_cancels_above) {
    struct race_request q = script_request(1000, &script_tests);
    q.returns = RACE_LOWEST_INDEX;
    struct script *s = start(&q);
    script_ready(s, NULL);
    start_all(s, 0, 6);
    end_all(s, 2, 5);
    script_verdict(s, 3, VERDICT_PASSED);
    ck_assert_int_eq(s->n_done, 0);
    ck_assert(!s->c[0].cancel_asked && !s->c[1].cancel_asked);
    ck_assert(s->c[4].verify_cancelled && s->c[5].cancel_asked && !s->c[2].verify_cancelled);
    ck_assert(s->c[6].cancel_asked && s->c[999].cancel_asked); /* not started */
    ck_assert_int_eq(s->width, -1);
    script_ended(s, 5, ENGINE_CANCELLED);
    script_started(s, 6); /* the cancel came too late */
    script_ended(s, 0, ENGINE_STOP);
    script_verdict(s, 0, VERDICT_FAILED);
    script_verdict(s, 2, VERDICT_BROKEN);
    ck_assert_int_eq(s->n_done, 0);
    script_ended(s, 1, ENGINE_STOP);
    script_verdict(s, 1, VERDICT_PASSED);
    ck_assert_int_eq(s->n_done, 1);
    ck_assert_int_eq(s->choices[0], 1);
    ck_assert_int_eq(s->counts.passed, 2);
    wind_up(s);
}
END_TEST

/* Three prompts: candidate i of the race is candidate i / 3 of job i mod 3. */
START_TEST(candidates_are_dealt_over_the_prompts) {
    struct race_request q = script_request(11, &script_tests);
    q.returns = RACE_LOWEST_INDEX;
    q.n_prompts = 3;
    q.job.first_index = 4; /* a later part of a larger race: its first has the second prompt */
    struct script *s = start(&q);
    ck_assert_int_eq(s->n_jobs, 3);
    for (int i = 0; i < 3; i++)
        script_send(
            s, &(struct engine_event){.type = ENGINE_PREFILLED, .index = i, .cached_tokens = i});
    script_ready(s, NULL);
    start_all(s, 0, 7);
    race_set_width(s->race, 2);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(s->job_width[i], 2);
    end_all(s, 1, 5);
    script_verdict(s, 3, VERDICT_PASSED);
    ck_assert(s->c[4].verify_cancelled && s->c[5].cancel_asked && s->c[10].cancel_asked);
    ck_assert(!s->c[0].cancel_asked);
    script_verdict(s, 1, VERDICT_FAILED);
    script_verdict(s, 2, VERDICT_FAILED);
    ck_assert_int_eq(s->n_done, 0);
    script_ended(s, 0, ENGINE_STOP);
    script_verdict(s, 0, VERDICT_FAILED);
    ck_assert_int_eq(s->n_done, 1);
    ck_assert_int_eq(s->choices[0], 3);
    ck_assert_int_eq(s->counts.started, 7);
    ck_assert_int_eq(s->counts.rows, 7);
    ck_assert_int_eq(s->counts.prompt_tokens, 3 + 2 + 1);
    ck_assert_int_eq(s->counts.cached_tokens, 0 + 1 + 2);
    for (int i = 0; i < 3; i++)
        ck_assert(s->job_cancelled[i]);
    wind_up(s);
}
END_TEST

START_TEST(no_more_prompts_than_candidates) {
    struct race_request q = script_request(2, NULL);
    q.n_prompts = 3;
    q.job.first_index = 2;
    struct script *s = start(&q);
    ck_assert_int_eq(s->n_jobs, 2);
    start_all(s, 0, 2);
    end_all(s, 0, 2);
    script_job_ended(s, NULL);
    ck_assert_int_eq(s->n_choices, 2);
    ck_assert_int_eq(s->counts.prompt_tokens, 1 + 3);
}
END_TEST

START_TEST(best_waits_for_all_and_takes_the_majority) {
    struct race_request q = script_request(5, &script_tests);
    q.returns = RACE_BEST;
    q.detail = RACE_CANDIDATES_VERDICTS;
    struct script *s = start(&q);
    script_ready(s, NULL);
    start_all(s, 0, 5);
    /* Code 0 passes once, code 1 twice: more often is more likely right. */
    const char *codes[] = {"a", "b", "c", "b", "d"};
    const enum verdict_kind kinds[] = {VERDICT_PASSED, VERDICT_PASSED, VERDICT_FAILED,
                                       VERDICT_PASSED, VERDICT_TIMEOUT};
    for (int i = 4; i >= 0; i--) {
        script_ended_with(s, i, ENGINE_STOP, i == 0 ? -0.1 : -5);
        ck_assert_int_eq(s->n_done, 0);
        script_verdict_with(s, i,
                            &(struct verdict){.kind = kinds[i],
                                              .duplicate = i == 1,
                                              .code = codes[i],
                                              .code_len = 1,
                                              .error = "",
                                              .tests_total = 3});
    }
    script_job_ended(s, NULL);
    ck_assert_int_eq(s->n_done, 1);
    ck_assert(s->verified);
    ck_assert_int_eq(s->choices[0], 1);
    ck_assert_int_eq(s->counts.duplicates, 1);
    ck_assert_int_eq(s->n_candidates, 5);
    ck_assert_int_eq(s->n_texts_shown, 2); /* one of each code that passed */
}
END_TEST

START_TEST(all_gives_passes_first) {
    struct race_request q = script_request(4, &script_tests);
    q.returns = RACE_ALL;
    struct script *s = start(&q);
    script_ready(s, NULL);
    start_all(s, 0, 4);
    end_all(s, 0, 4);
    script_verdict(s, 3, VERDICT_PASSED);
    script_verdict(s, 0, VERDICT_FAILED);
    script_verdict(s, 1, VERDICT_PASSED);
    script_verdict(s, 2, VERDICT_CRASHED);
    script_job_ended(s, NULL);
    ck_assert_int_eq(s->n_choices, 4);
    const int order[] = {1, 3, 0, 2};
    ck_assert_mem_eq(s->choices, order, sizeof order);
}
END_TEST

START_TEST(first_waits_for_the_passes_asked_for) {
    for (int enough = 0; enough < 2; enough++) {
        struct race_request q = script_request(5, &script_tests);
        q.n_passes = 2;
        struct script *s = start(&q);
        script_ready(s, NULL);
        start_all(s, 0, 5);
        end_all(s, 0, 4);
        script_verdict(s, 3, VERDICT_PASSED);
        script_verdict(s, 0, VERDICT_FAILED);
        ck_assert_int_eq(s->n_done, 0);
        if (enough) {
            script_verdict(s, 1, VERDICT_PASSED); /* the same code as the other: both are given */
            ck_assert_int_eq(s->n_choices, 2);
            ck_assert_int_eq(s->choices[0], 1);
            ck_assert_int_eq(s->choices[1], 3);
            ck_assert(s->cancelled);
        } else {
            script_verdict(s, 1, VERDICT_FAILED);
            script_verdict(s, 2, VERDICT_FAILED);
            script_ended(s, 4, ENGINE_STOP);
            script_verdict(s, 4, VERDICT_TIMEOUT);
            script_job_ended(s, NULL);
            ck_assert_int_eq(s->n_choices, 1);
            ck_assert_int_eq(s->choices[0], 3);
        }
        ck_assert_int_eq(s->n_done, 1);
        if (enough) wind_up(s);
    }
}
END_TEST

START_TEST(none_passes) {
    for (int error = 0; error < 2; error++) {
        struct race_request q = script_request(4, &script_tests);
        q.on_fail = error ? RACE_FAIL_ERROR : RACE_FAIL_BEST;
        struct script *s = start(&q);
        script_ready(s, NULL);
        start_all(s, 0, 4);
        end_all(s, 0, 4);
        script_verdict(s, 0, VERDICT_FAILED);
        script_verdict(s, 1, VERDICT_TIMEOUT);
        script_verdict(s, 2, VERDICT_FAILED); /* 2 of 4 tests: the most */
        script_verdict(s, 3, VERDICT_BROKEN);
        ck_assert_int_eq(s->n_done, 0);
        script_job_ended(s, NULL);
        ck_assert(!s->verified);
        if (error) {
            ck_assert_int_eq(s->error.kind, ERR_NONE_PASSED);
            ck_assert_int_eq(s->n_candidates, 4);
        } else {
            ck_assert_int_eq(s->error.kind, ERR_NONE);
            ck_assert_int_eq(s->choices[0], 2);
        }
        ck_assert_int_eq(s->counts.verified, 3);
        ck_assert_int_eq(s->counts.broken, 1);
    }
    struct race_set_stats stats;
    race_set_stats(set.races, &stats);
    ck_assert_int_eq((int)stats.unverified, 2);
}
END_TEST

START_TEST(broken_sandbox_is_an_error_of_ours) {
    struct race_request q = script_request(2, &script_tests);
    q.on_fail = _i ? RACE_FAIL_ERROR : RACE_FAIL_BEST;
    struct script *s = start(&q);
    script_ready(s, NULL);
    start_all(s, 0, 2);
    end_all(s, 0, 2);
    script_verdict(s, 0, VERDICT_BROKEN);
    script_verdict(s, 1, VERDICT_BROKEN);
    script_job_ended(s, NULL);
    ck_assert_int_eq(s->error.kind, ERR_SYSTEM);
    ck_assert_ptr_nonnull(strstr(s->error.message, "sandbox"));
}
END_TEST

START_TEST(a_pass_still_counts_after_the_device_failed) {
    struct race_request q = script_request(3, &script_tests);
    struct script *s = start(&q);
    script_ready(s, NULL);
    start_all(s, 0, 2);
    end_all(s, 0, 1);
    script_ended(s, 1, ENGINE_FAILED);
    struct err e = {0};
    err_set(&e, ERR_SYSTEM, "device lost");
    script_job_ended(s, &e);
    ck_assert_int_eq(s->n_done, 0);
    script_verdict(s, 0, _i ? VERDICT_PASSED : VERDICT_FAILED);
    ck_assert_int_eq(s->n_done, 1);
    ck_assert_int_eq(s->verified, _i);
    if (!_i) ck_assert_str_eq(s->error.message, "device lost");
}
END_TEST

/* ---- without tests ---- */

START_TEST(plain_choices_in_order_and_streamed) {
    struct race_request q = script_request(3, NULL);
    q.job.stream = true;
    struct script *s = start(&q);
    start_all(s, 0, 3);
    script_send(
        s, &(struct engine_event){.type = ENGINE_TEXT, .index = 1, .text = "te", .text_len = 2});
    ck_assert_int_eq(s->n_text, 1);
    end_all(s, 2, 3);
    end_all(s, 0, 2);
    ck_assert_int_eq(s->n_end, 3);
    ck_assert_int_eq(s->n_done, 0);
    script_job_ended(s, NULL);
    ck_assert_int_eq(s->n_done, 1);
    const int order[] = {0, 1, 2};
    ck_assert_int_eq(s->n_choices, 3);
    ck_assert_mem_eq(s->choices, order, sizeof order);
    ck_assert(!s->verified);
    struct race_set_stats stats;
    race_set_stats(set.races, &stats);
    ck_assert_int_eq((int)stats.plain, 1);
}
END_TEST

START_TEST(best_of_by_mean_logprob) {
    struct race_request q = script_request(4, NULL);
    q.n_choices = 2;
    struct script *s = start(&q);
    start_all(s, 0, 4);
    const double sums[] = {-3, -1, -2, -1};
    for (int i = 0; i < 4; i++)
        script_ended_with(s, i, ENGINE_STOP, sums[i]);
    script_job_ended(s, NULL);
    ck_assert_int_eq(s->n_choices, 2);
    ck_assert_int_eq(s->choices[0], 1);
    ck_assert_int_eq(s->choices[1], 3);
    ck_assert_int_eq((int)s->counts.tokens_winner, 4);
    ck_assert_int_eq((int)s->counts.tokens_losers, 4);
}
END_TEST

static void leave(struct script *s) {
    s->abandoned = true;
    race_abandon(s->race);
}

START_TEST(client_leaves_within_its_callback) {
    struct race_request q = script_request(2, NULL);
    q.job.stream = true;
    struct script *s = start(&q);
    s->in_text = leave;
    start_all(s, 0, 2);
    script_send(
        s, &(struct engine_event){.type = ENGINE_TEXT, .index = 0, .text = "t", .text_len = 1});
    ck_assert(s->cancelled);
    script_send(
        s, &(struct engine_event){.type = ENGINE_TEXT, .index = 1, .text = "t", .text_len = 1});
    ck_assert_int_eq(s->n_text, 1);
    wind_up(s);
    ck_assert_int_eq(s->n_end, 0);
    struct race_set_stats stats;
    race_set_stats(set.races, &stats);
    ck_assert_int_eq((int)stats.abandoned, 1);
}
END_TEST

/* ---- limits of time and memory ---- */

START_TEST(time_limit_by_the_loop) {
    struct race_request q = script_request(4, &script_tests);
    q.deadline_s = 0.02;
    q.on_fail = _i ? RACE_FAIL_ERROR : RACE_FAIL_BEST;
    struct script *s = start(&q);
    script_ready(s, NULL);
    start_all(s, 0, 3);
    end_all(s, 0, 1);
    script_verdict(s, 0, VERDICT_FAILED);
    while (!s->n_done)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert(s->cancelled && s->deadline && !s->verified);
    ck_assert_int_eq(s->error.kind, _i ? ERR_DEADLINE : ERR_NONE);
    if (_i) ck_assert_int_eq(s->n_candidates, 3);
    wind_up(s);
}
END_TEST

START_TEST(memory_grows_with_started_candidates) {
    struct race_request q = script_request(10000, &script_tests);
    q.on_fail = RACE_FAIL_ERROR;
    struct script *s = start(&q);
    script_ready(s, NULL);
    ck_assert_int_eq(s->race->n_entries, 0);
    start_all(s, 0, 3);
    ck_assert_int_le(s->race->n_entries, 16);
    end_all(s, 0, 2);
    script_verdict(s, 0, VERDICT_FAILED);
    ck_assert_ptr_null(s->race->entries[0]->text); /* a loser that can't be the answer */
    ck_assert_ptr_nonnull(s->race->entries[1]->text);
    leave(s);
    ck_assert_ptr_null(s->race->entries[1]->text);
    wind_up(s);
}
END_TEST

START_TEST(worse_losers_are_dropped) {
    struct race_request q = script_request(8, &script_tests);
    struct script *s = start(&q);
    script_ready(s, NULL);
    start_all(s, 0, 8);
    end_all(s, 0, 8);
    script_verdict(s, 1, VERDICT_FAILED); /* tests passed: index mod 4 */
    script_verdict(s, 0, VERDICT_FAILED);
    struct race_entry **c = s->race->entries;
    ck_assert(c[1]->text && !c[0]->text);
    script_verdict(s, 3, VERDICT_FAILED);
    ck_assert(c[3]->text && !c[1]->text);
    script_verdict(s, 7, VERDICT_FAILED); /* as good, other code */
    ck_assert(c[3]->text && c[7]->text);
    script_verdict(s, 6, VERDICT_BROKEN);
    ck_assert(!c[6]->text);
    leave(s);
    wind_up(s);
}
END_TEST

START_TEST(waiting_verdicts_narrow_the_race) {
    struct race_request q = script_request(400, &script_tests);
    struct script *s = start(&q);
    script_ready(s, NULL);
    start_all(s, 0, 163);
    end_all(s, 0, 63);
    ck_assert_int_eq(s->width, -1);
    script_ended(s, 63, ENGINE_STOP);
    ck_assert_int_eq(s->width, 49); /* half of the 99 that decode */
    end_all(s, 64, 96);
    ck_assert_int_eq(s->width, 33);
    for (int i = 0; i < 79; i++)
        script_verdict(s, i, VERDICT_FAILED);
    ck_assert_int_eq(s->width, 33);
    script_verdict(s, 79, VERDICT_FAILED);
    ck_assert_int_eq(s->width, 0); /* as the request had it */
    race_set_width(s->race, 5);
    ck_assert_int_eq(s->width, 5);
    leave(s);
    wind_up(s);
}
END_TEST

static struct script *start_waiting(int n, int n_started, int n_waiting) {
    struct race_request q = script_request(n, &script_tests);
    struct script *s = start(&q);
    script_ready(s, NULL);
    start_all(s, 0, n_started);
    end_all(s, 0, n_waiting);
    return s;
}

/* Each verdict of a race waits for one of each other race, too. */
START_TEST(races_that_wait_together_are_narrowed_sooner) {
    enum { RACES = 8, EACH = 64 / RACES };
    struct script *all[RACES];
    for (int i = 0; i < RACES; i++)
        all[i] = start_waiting(100, 20, EACH - 1);
    for (int i = 0; i < RACES; i++)
        ck_assert_int_eq(all[i]->width, -1); /* 56 wait */
    for (int i = 0; i < RACES; i++) {
        script_ended(all[i], EACH - 1, ENGINE_STOP);
        ck_assert_int_eq(all[i]->width, (20 - EACH) / 2);
    }
    /* Those that have their verdicts, or went, leave more of the verifier to the others. */
    for (int i = 1; i < RACES; i++) {
        for (int k = 0; i % 2 && k < EACH; k++)
            script_verdict(all[i], k, VERDICT_FAILED);
        ck_assert_int_eq(all[i]->width, i % 2 ? 0 : (20 - EACH) / 2);
        leave(all[i]);
        wind_up(all[i]);
    }
    script_verdict(all[0], 0, VERDICT_FAILED);
    ck_assert_int_eq(all[0]->width, 0); /* alone now, with seven */
    leave(all[0]);
    wind_up(all[0]);
}
END_TEST

START_TEST(a_flood_narrows_itself_only) {
    struct script *flood = start_waiting(1000, 600, 500);
    ck_assert_int_lt(flood->width, 100);
    struct script *other = start_waiting(100, 40, 10);
    ck_assert_int_eq(other->width, -1);
    script_verdict(other, 0, VERDICT_FAILED);
    ck_assert_int_eq(other->width, -1);
    leave(other);
    wind_up(other);
    leave(flood);
    wind_up(flood);
}
END_TEST

/* ---- routing ---- */

START_TEST(results_reach_their_own_race) {
    enum { N = 50 };
    struct script *s[N];
    for (int i = 0; i < N; i++) {
        struct race_request q = script_request(3, &script_tests);
        s[i] = start(&q);
    }
    for (int i = N - 1; i >= 0; i--) {
        script_ready(s[i], NULL);
        start_all(s[i], 0, 3);
    }
    for (int i = 0; i < N; i++)
        end_all(s[i], 0, 3);
    for (int i = 0; i < N; i++)
        script_verdict(s[(i * 7) % N], i % 3, VERDICT_PASSED);
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(s[(i * 7) % N]->choices[0], i % 3);
        wind_up(s[i]);
    }
}
END_TEST

static void abandon_next(struct script *s) {
    for (int i = 0; i < set.n_all; i++)
        if (!set.all[i]->n_done && !set.all[i]->abandoned) {
            leave(set.all[i]);
            return;
        }
    (void)s;
}

START_TEST(fail_all_while_callbacks_abandon_others) {
    struct script *s[6];
    for (int i = 0; i < 6; i++) {
        struct race_request q = script_request(2, NULL);
        s[i] = start(&q);
        s[i]->in_done = abandon_next;
    }
    struct err e = {0};
    err_set(&e, ERR_SYSTEM, "device lost");
    race_set_fail(set.races, &e);
    int failed = 0, abandoned = 0;
    for (int i = 0; i < 6; i++) {
        failed += s[i]->n_done;
        abandoned += s[i]->abandoned;
        wind_up(s[i]);
    }
    ck_assert_int_eq(failed, 3);
    ck_assert_int_eq(abandoned, 3);
}
END_TEST

START_TEST(progress_once_a_turn) {
    struct race_request q = script_request(6, &script_tests);
    struct script *s = start(&q);
    script_ready(s, NULL);
    start_all(s, 0, 6);
    end_all(s, 0, 3);
    ck_assert_int_eq(s->n_progress, 0);
    script_set_turn(&set);
    ck_assert_int_eq(s->n_progress, 1);
    script_set_turn(&set);
    ck_assert_int_eq(s->n_progress, 1);
    script_verdict(s, 0, VERDICT_FAILED);
    script_set_turn(&set);
    ck_assert_int_eq(s->n_progress, 2);
    leave(s);
    script_set_turn(&set);
    wind_up(s);
}
END_TEST

START_TEST(each_candidate_is_told) {
    struct race_request q = script_request(6, &script_tests);
    q.job.stream = true;
    q.detail = RACE_CANDIDATES_NONE;
    struct script *s = start(&q);
    script_ready(s, NULL);
    start_all(s, 0, 5);
    const int32_t token = 3;
    script_send(s,
                &(struct engine_event){
                    .type = ENGINE_TEXT, .index = 4, .text = "", .tokens = &token, .n_tokens = 1});
    ck_assert_int_eq(s->c[4].n_tokens, 1);
    end_all(s, 0, 3);
    script_verdict(s, 1, VERDICT_FAILED);
    static const enum race_entry_state middle[] = {RACE_ENTRY_VERIFYING, RACE_ENTRY_DECIDED,
                                                   RACE_ENTRY_VERIFYING, RACE_ENTRY_DECODING,
                                                   RACE_ENTRY_DECODING,  RACE_ENTRY_WAITING};
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(s->c[i].seen, middle[i]);
    /* The pass stops the others, and that is told before the answer. */
    script_verdict(s, 0, VERDICT_PASSED);
    static const enum race_entry_state last[] = {RACE_ENTRY_DECIDED,   RACE_ENTRY_DECIDED,
                                                 RACE_ENTRY_CANCELLED, RACE_ENTRY_CANCELLED,
                                                 RACE_ENTRY_CANCELLED, RACE_ENTRY_WAITING};
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(s->c[i].seen, last[i]);
    ck_assert_int_eq(s->n_done, 1);
    ck_assert_int_eq((int)s->counts.rows, 5);
    wind_up(s);
}
END_TEST

START_TEST(counts_while_it_runs) {
    struct race_request q = script_request(6, &script_tests);
    struct script *s = start(&q);
    struct race_counts counts;
    race_counts(s->race, &counts);
    ck_assert(counts.prompt_s < 0);
    script_send(s, &(struct engine_event){.type = ENGINE_PREFILLED, .cached_tokens = 2});
    start_all(s, 0, 4);
    end_all(s, 0, 2);
    race_counts(s->race, &counts);
    ck_assert(counts.prompt_s >= 0 && counts.first_pass_s < 0);
    ck_assert_int_eq(counts.cached_tokens, 2);
    ck_assert_int_eq(counts.prompt_tokens, 3);
    ck_assert_int_eq(counts.max_candidates, 6);
    ck_assert_int_eq(counts.started, 4);
    ck_assert_int_eq(counts.finished, 2);
    ck_assert_int_eq((int)counts.tokens_losers, 4);
    leave(s);
    script_ready(s, NULL); /* after it was abandoned: closed in the next turn */
    script_set_turn(&set);
    ck_assert(s->closed);
    wind_up(s);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("race");
    TCase *t = tcase_create("race");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 0);
    tcase_add_test(t, first_pass_answers_and_stops_siblings);
    tcase_add_test(t, candidates_wait_for_the_tests);
    tcase_add_test(t, tests_that_fail_to_open_decide_the_error);
    tcase_add_test(t, refused_starts_leave_nothing);
    tcase_add_test(t, lowest_index_waits_and_cancels_above);
    tcase_add_test(t, candidates_are_dealt_over_the_prompts);
    tcase_add_test(t, no_more_prompts_than_candidates);
    tcase_add_test(t, best_waits_for_all_and_takes_the_majority);
    tcase_add_test(t, all_gives_passes_first);
    tcase_add_test(t, first_waits_for_the_passes_asked_for);
    tcase_add_test(t, none_passes);
    tcase_add_loop_test(t, broken_sandbox_is_an_error_of_ours, 0, 2);
    tcase_add_loop_test(t, a_pass_still_counts_after_the_device_failed, 0, 2);
    tcase_add_test(t, plain_choices_in_order_and_streamed);
    tcase_add_test(t, best_of_by_mean_logprob);
    tcase_add_test(t, client_leaves_within_its_callback);
    tcase_add_loop_test(t, time_limit_by_the_loop, 0, 2);
    tcase_add_test(t, memory_grows_with_started_candidates);
    tcase_add_test(t, worse_losers_are_dropped);
    tcase_add_test(t, waiting_verdicts_narrow_the_race);
    tcase_add_test(t, races_that_wait_together_are_narrowed_sooner);
    tcase_add_test(t, a_flood_narrows_itself_only);
    tcase_add_test(t, results_reach_their_own_race);
    tcase_add_test(t, fail_all_while_callbacks_abandon_others);
    tcase_add_test(t, progress_once_a_turn);
    tcase_add_test(t, each_candidate_is_told);
    tcase_add_test(t, counts_while_it_runs);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
