/* The whole engine on a small random model: results that don't depend on company, memory or
 * threads; events that add up; nothing left behind. */
#include "engine/engine.h"
#include "tests/engine/tiny_model.h"

#include <check.h>
#include <math.h>
#include <time.h>

static struct tiny_model model = {.architecture = "qwen2",
                                  .n_layers = 2,
                                  .n_embd = 128,
                                  .n_heads = 4,
                                  .n_kv_heads = 2,
                                  .n_ff = 256,
                                  .context = 1024,
                                  .seed = 7};

static void no_wake(void *arg) { (void)arg; }

static struct engine *open_engine(struct engine_options o) {
    struct err e = {0};
    o.model_path = model.path;
    if (!o.memory_bytes) o.memory_bytes = (uint64_t)512 << 20;
    if (!o.context) o.context = 512;
    struct engine *g = engine_open(&o, &e);
    ck_assert_msg(g != NULL, "%s", e.message);
    ck_assert_msg(engine_start(g, no_wake, NULL, &e), "%s", e.message);
    return g;
}

/* ---- one job, all its events ---- */

enum { MAX_CANDIDATES = 10000 };

struct outcome {
    int n, started, ended, cancelled, cached_tokens;
    bool prefilled, job_ended;
    struct err error;
    struct {
        bool started, ended;
        enum engine_reason reason;
        int32_t *tokens;
        int n_tokens;
        char *text, *streamed;
        double sum_logprob;
    } c[MAX_CANDIDATES];
};

static struct outcome *outcome_new(int n) {
    struct outcome *o = err_alloc(1, sizeof *o);
    o->n = n;
    return o;
}

static void outcome_free(struct outcome *o) {
    for (int i = 0; i < o->n; i++) {
        free(o->c[i].tokens);
        free(o->c[i].text);
        free(o->c[i].streamed);
    }
    free(o);
}

static void note(struct outcome *o, const struct engine_event *ev) {
    ck_assert(!o->job_ended);
    int i = ev->index;
    switch (ev->type) {
    case ENGINE_PREFILLED:
        ck_assert(!o->prefilled);
        o->prefilled = true;
        o->cached_tokens = ev->cached_tokens;
        break;
    case ENGINE_STARTED:
        ck_assert(o->prefilled && i >= 0 && i < o->n && !o->c[i].started);
        o->c[i].started = true;
        o->started++;
        break;
    case ENGINE_TEXT: {
        ck_assert(o->c[i].started && !o->c[i].ended);
        size_t old = o->c[i].streamed ? strlen(o->c[i].streamed) : 0;
        o->c[i].streamed = err_realloc(o->c[i].streamed, old + ev->text_len + 1, 1);
        memcpy(o->c[i].streamed + old, ev->text, ev->text_len);
        o->c[i].streamed[old + ev->text_len] = 0;
        break;
    }
    case ENGINE_ENDED:
        ck_assert(o->c[i].started && !o->c[i].ended);
        o->c[i].ended = true;
        o->c[i].reason = ev->reason;
        o->c[i].n_tokens = ev->n_tokens;
        o->c[i].tokens = err_alloc((size_t)ev->n_tokens + 1, sizeof(int32_t));
        memcpy(o->c[i].tokens, ev->tokens, (size_t)ev->n_tokens * sizeof(int32_t));
        o->c[i].text = err_strndup(ev->text, ev->text_len);
        o->c[i].sum_logprob = ev->sum_logprob;
        o->ended++;
        o->cancelled += ev->reason == ENGINE_CANCELLED;
        break;
    case ENGINE_JOB_ENDED:
        ck_assert_int_eq(o->started, o->ended);
        o->job_ended = true;
        o->error = ev->error;
        break;
    }
}

static void nap(void) {
    struct timespec t = {0, 200000};
    nanosleep(&t, NULL);
}

/* Takes events until `done(o)`; NULL: until the job has ended. */
static void wait_for(struct engine *g, struct outcome *o, bool (*done)(const struct outcome *)) {
    for (int i = 0; i < 3000000; i++) {
        struct engine_event *ev = engine_poll(g);
        if (!ev) {
            nap();
            continue;
        }
        note(o, ev);
        engine_event_free(ev);
        if (done ? done(o) : o->job_ended) return;
    }
    ck_abort_msg("the engine didn't get on: %d started, %d ended", o->started, o->ended);
}

static int32_t prompt[300];

static struct engine_job job_of(int n_prompt, int n, int max_tokens) {
    for (int i = 0; i < 300; i++)
        prompt[i] = (i * 37 + 11) % 250;
    return (struct engine_job){
        .prompt = prompt,
        .n_prompt = n_prompt,
        .n_candidates = n,
        .seed = 99,
        .sampling = {.temperature = 0.9f, .top_p = 0.95f, .repetition_penalty = 1},
        .max_tokens = max_tokens};
}

static struct outcome *run(struct engine *g, const struct engine_job *job) {
    struct err e = {0};
    uint64_t id;
    ck_assert_msg(engine_submit(g, job, &id, &e), "%s", e.message);
    struct outcome *o = outcome_new(job->n_candidates);
    wait_for(g, o, NULL);
    ck_assert_int_eq(o->error.kind, ERR_NONE);
    ck_assert_int_eq(o->ended, job->n_candidates);
    return o;
}

static void all_free(struct engine *g) {
    struct engine_stats s;
    for (int i = 0; i < 1000; i++) {
        engine_stats(g, &s);
        if (s.blocks_free == s.blocks_total && !s.candidates_running) return;
        nap();
    }
    ck_abort_msg("%d of %d blocks are free, %d candidates run", s.blocks_free, s.blocks_total,
                 s.candidates_running);
}

static void same(const struct outcome *a, const struct outcome *b, int n) {
    for (int i = 0; i < n; i++) {
        ck_assert_msg(
            a->c[i].n_tokens == b->c[i].n_tokens &&
                !memcmp(a->c[i].tokens, b->c[i].tokens, (size_t)a->c[i].n_tokens * sizeof(int32_t)),
            "candidate %d has other tokens (%d and %d)", i, a->c[i].n_tokens, b->c[i].n_tokens);
        ck_assert_str_eq(a->c[i].text, b->c[i].text);
        ck_assert(a->c[i].sum_logprob == b->c[i].sum_logprob);
        ck_assert_int_eq(a->c[i].reason, b->c[i].reason);
    }
}

/* ---- the invariant: tokens depend on seed, index and model only ---- */

START_TEST(results_do_not_depend_on_company) {
    const int lengths[] = {1, 2, 15, 16, 17, 33, 150};
    struct engine *g = open_engine((struct engine_options){.threads = 1, .max_rows = 64});
    struct engine *other = open_engine((struct engine_options){
        .threads = 2, .max_rows = 5, .prefill_chunk = 7, .no_sharing = true, .kv_blocks = 40});
    struct engine *careful = open_engine((struct engine_options){.no_guessing = true});
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        struct engine_job job = job_of(lengths[k], 40, 30);
        struct outcome *together = run(g, &job);
        /* Another machine: two threads, few rows, odd chunks, no sharing, a pool so small that
         * branches are parked. */
        struct outcome *apart = run(other, &job);
        same(together, apart, 40);
        struct outcome *unguessed = run(careful, &job);
        same(together, unguessed, 40);
        outcome_free(unguessed);
        job.n_candidates = 1;
        job.width = 1;
        struct outcome *alone = run(other, &job);
        same(together, alone, 1);
        outcome_free(together);
        outcome_free(apart);
        outcome_free(alone);
    }
    all_free(g);
    all_free(other);
    all_free(careful);
    engine_close(g);
    engine_close(other);
    engine_close(careful);
}
END_TEST

/* A repeated prompt and greedy draws of one candidate beside hot ones: some guesses are right for
 * all members, some for a few, most for none.  Small pools leave no blocks for them. */
START_TEST(guesses_change_no_draw) {
    struct engine *plain = open_engine((struct engine_options){.no_guessing = true});
    const int pools[] = {0, 24, 12};
    for (int p = 0; p < 3; p++) {
        struct engine *g = open_engine((struct engine_options){.kv_blocks = pools[p]});
        uint64_t right = 0;
        for (int temperature = 0; temperature < 4; temperature++) {
            struct engine_job job = job_of(30, 6, 60);
            job.sampling.temperature = 0.2f * (float)temperature;
            job.sampling.greedy_first = true;
            job.ignore_eos = true;
            job.logprobs = true;
            struct outcome *a = run(plain, &job), *b = run(g, &job);
            same(a, b, 6);
            outcome_free(a);
            outcome_free(b);
            struct engine_stats s;
            engine_stats(g, &s);
            ck_assert_uint_le(s.guessed_right, s.guessed_rows);
            right = s.guessed_right;
        }
        if (!p) ck_assert_uint_gt(right, 0);
        all_free(g);
        engine_close(g);
    }
    struct engine_stats s;
    engine_stats(plain, &s);
    ck_assert_uint_eq(s.guessed_rows, 0);
    engine_close(plain);
}
END_TEST

/* Steps that follow others before their draws are known change nothing, whatever ends or is parked
 * meanwhile: rows shared or not, pools small and roomy, candidates started late, stop strings, ends
 * of text and of the length, log-probabilities, penalties, several temperatures. */
START_TEST(overlap_changes_no_draw) {
    struct engine *plain =
        open_engine((struct engine_options){.no_guessing = true, .no_overlap = true});
    static const char *const stops[] = {"e", "12", "w2"};
    static const size_t lens[] = {1, 2, 2};
    static const float ladder[] = {0.3f, 1.2f, 0};
    const struct engine_options kinds[] = {
        {.no_guessing = true},
        {0},
        {.no_guessing = true, .no_sharing = true, .max_rows = 5},
        {.no_guessing = true, .kv_blocks = 40, .max_rows = 20, .prefill_chunk = 7},
        {.kv_blocks = 14, .max_rows = 8},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct engine_options o = kinds[k];
        o.always_overlap = true;
        struct engine *g = open_engine(o);
        for (int variant = 0; variant < 8; variant++) {
            struct engine_job job = job_of(30 + variant, 24, 40);
            job.width = variant & 1 ? 7 : 24;
            job.seed = (uint64_t)variant;
            job.sampling.temperature = variant & 2 ? 0.4f : 1.2f;
            job.stops = stops;
            job.stop_lens = lens;
            job.n_stops = variant & 4 ? 3 : 0;
            job.logprobs = variant & 1;
            job.n_top_logprobs = 3;
            job.min_tokens = variant;
            if (variant == 6) job.sampling.repetition_penalty = 1.2f;
            if (variant == 7) {
                job.sampling.temperatures = ladder;
                job.sampling.n_temperatures = 3;
            }
            struct outcome *a = run(plain, &job), *b = run(g, &job);
            same(a, b, 24);
            outcome_free(a);
            outcome_free(b);
        }
        struct engine_stats s;
        engine_stats(g, &s);
        ck_assert_uint_gt(s.steps_ahead, s.steps / 20);
        if (!k) ck_assert_uint_gt(s.steps_ahead, s.steps / 2);
        if (!k) ck_assert_uint_gt(s.surplus_rows, 0);
        ck_assert_uint_lt(s.surplus_rows, s.rows / 2);
        all_free(g);
        engine_close(g);
    }
    struct engine_stats s;
    engine_stats(plain, &s);
    ck_assert_uint_eq(s.steps_ahead, 0);
    engine_close(plain);
}
END_TEST

START_TEST(candidates_differ_and_seeds_matter) {
    struct engine *g = open_engine((struct engine_options){0});
    struct engine_job job = job_of(20, 50, 20);
    struct outcome *a = run(g, &job);
    int distinct = 0;
    for (int i = 0; i < 50; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen |=
                a->c[i].n_tokens == a->c[k].n_tokens &&
                !memcmp(a->c[i].tokens, a->c[k].tokens, (size_t)a->c[i].n_tokens * sizeof(int32_t));
        distinct += !seen;
    }
    ck_assert_int_gt(distinct, 30);
    job.seed++;
    struct outcome *b = run(g, &job);
    int differing = 0;
    for (int i = 0; i < 50; i++)
        differing +=
            a->c[i].n_tokens != b->c[i].n_tokens ||
            memcmp(a->c[i].tokens, b->c[i].tokens, (size_t)a->c[i].n_tokens * sizeof(int32_t));
    ck_assert_int_gt(differing, 30);
    outcome_free(a);
    outcome_free(b);
    engine_close(g);
}
END_TEST

START_TEST(sharing_saves_rows) {
    struct engine *g = open_engine((struct engine_options){.max_rows = 64});
    struct engine_job job = job_of(30, 32, 16);
    job.width = 32;
    job.sampling.temperature = 0; /* all equal: one row a step */
    struct outcome *o = run(g, &job);
    struct engine_stats s;
    engine_stats(g, &s);
    ck_assert_uint_le(s.rows, 29 + 16);
    ck_assert_uint_eq(s.generated_tokens, (uint64_t)o->c[0].n_tokens * 32);
    outcome_free(o);
    engine_close(g);
}
END_TEST

/* Rows of a job are told apart from its prompt's and from those of others. */
START_TEST(rows_of_one_job) {
    struct engine *g = open_engine((struct engine_options){.max_rows = 64});
    struct engine_job job = job_of(30, 32, 16);
    job.width = 32;
    job.sampling.temperature = 0;
    struct err e = {0};
    uint64_t ids[2];
    for (int i = 0; i < 2; i++)
        ck_assert(engine_submit(g, &job, &ids[i], &e));
    ck_assert_int_eq(engine_job_rows(g, ids[1] + 1), 0);
    int64_t rows[2] = {0}, tokens[2] = {0};
    for (int ended = 0; ended < 2;) {
        struct engine_event *event = engine_poll(g);
        if (!event) {
            nap();
            continue;
        }
        int i = event->job == ids[1];
        if (event->type == ENGINE_ENDED) {
            rows[i] = engine_job_rows(g, ids[i]);
            tokens[i] += event->n_tokens;
        }
        ended += event->type == ENGINE_JOB_ENDED;
        engine_event_free(event);
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(rows[i] * 32, tokens[i]);
        ck_assert_int_eq(engine_job_rows(g, ids[i]), 0);
    }
    engine_close(g);
}
END_TEST

START_TEST(greedy_first_is_candidate_zero_only) {
    struct engine *g = open_engine((struct engine_options){0});
    struct engine_job job = job_of(20, 4, 20);
    struct outcome *plain = run(g, &job);
    job.sampling.greedy_first = true;
    struct outcome *first = run(g, &job);
    job.sampling.greedy_first = false;
    job.sampling.temperature = 0;
    struct outcome *greedy = run(g, &job);
    same(first, greedy, 1);
    for (int i = 1; i < 4; i++)
        ck_assert_str_eq(first->c[i].text, plain->c[i].text);
    outcome_free(plain);
    outcome_free(first);
    outcome_free(greedy);
    engine_close(g);
}
END_TEST

/* ---- many candidates, little memory ---- */

START_TEST(ten_thousand_candidates_in_a_tiny_pool) {
    struct engine *g = open_engine((struct engine_options){.kv_blocks = 12, .max_rows = 16});
    struct engine_job job = job_of(40, 10000, 3);
    struct outcome *o = run(g, &job);
    all_free(g);
    outcome_free(o);
    engine_close(g);
}
END_TEST

START_TEST(many_jobs_share_a_small_pool) {
    enum { JOBS = 12 };
    struct engine *g =
        open_engine((struct engine_options){.kv_blocks = 30, .max_rows = 8, .prefill_chunk = 16});
    struct outcome *o[JOBS];
    uint64_t id[JOBS];
    struct err e = {0};
    for (int k = 0; k < JOBS; k++) {
        struct engine_job job = job_of(100 + k, 7, 40);
        job.prompt = prompt + k; /* no common prefix */
        job.n_prompt = 100;
        ck_assert(engine_submit(g, &job, &id[k], &e));
        o[k] = outcome_new(7);
    }
    for (int left = JOBS; left;) {
        struct engine_event *ev = engine_poll(g);
        if (!ev) {
            nap();
            continue;
        }
        for (int k = 0; k < JOBS; k++)
            if (id[k] == ev->job) {
                note(o[k], ev);
                left -= ev->type == ENGINE_JOB_ENDED;
            }
        engine_event_free(ev);
    }
    struct engine *roomy = open_engine((struct engine_options){0});
    for (int k = 0; k < JOBS; k++) {
        ck_assert_int_eq(o[k]->ended, 7);
        struct engine_job job = job_of(100, 7, 40);
        job.prompt = prompt + k;
        struct outcome *alone = run(roomy, &job);
        same(o[k], alone, 7);
        outcome_free(alone);
        outcome_free(o[k]);
    }
    all_free(g);
    engine_close(g);
    engine_close(roomy);
}
END_TEST

/* The prompts of one race: what they have in common is computed once, candidates start in the order
 * of their numbers, and each is what it is alone. */
START_TEST(prompts_of_one_race) {
    enum { PROMPTS = 3, ALL = 16, COMMON = 64 };
    static const float ladder[] = {0.2f, 1.1f};
    struct engine *g = open_engine((struct engine_options){.max_rows = 16});
    int32_t prompts[PROMPTS][100];
    struct engine_job jobs[PROMPTS];
    struct outcome *o[PROMPTS];
    uint64_t id[PROMPTS];
    struct err e = {0};
    for (int k = 0; k < PROMPTS; k++) {
        jobs[k] = job_of(COMMON + 9 + k, (ALL - k + PROMPTS - 1) / PROMPTS, 30);
        memcpy(prompts[k], prompt, sizeof prompts[k]);
        prompts[k][COMMON + 1] = 5 + k;
        jobs[k].prompt = prompts[k];
        jobs[k].first_index = k;
        jobs[k].index_step = PROMPTS;
        jobs[k].width = 4;
        jobs[k].lead = "Well:\n";
        jobs[k].lead_len = k == 1 ? 6 : 0;
        jobs[k].sampling.greedy_first = true;
        jobs[k].sampling.temperatures = ladder;
        jobs[k].sampling.n_temperatures = 2;
        o[k] = outcome_new(jobs[k].n_candidates);
    }
    ck_assert_msg(engine_submit_group(g, jobs, PROMPTS, id, &e), "%s", e.message);
    bool started[ALL] = {0};
    int lowest = 0, in_flight = 0;
    for (int left = PROMPTS; left;) {
        struct engine_event *ev = engine_poll(g);
        if (!ev) {
            nap();
            continue;
        }
        int k = ev->job == id[0] ? 0 : ev->job == id[1] ? 1 : 2;
        note(o[k], ev);
        if (ev->type == ENGINE_STARTED) {
            int number = k + ev->index * PROMPTS;
            started[number] = true;
            in_flight++;
            /* Those of one turn are told prompt by prompt. */
            ck_assert_int_lt(number, lowest + 4);
            while (lowest < ALL && started[lowest])
                lowest++;
        }
        in_flight -= ev->type == ENGINE_ENDED;
        ck_assert_int_le(in_flight, 4);
        left -= ev->type == ENGINE_JOB_ENDED;
        engine_event_free(ev);
    }
    ck_assert_int_eq(lowest, ALL);
    ck_assert_int_eq(o[0]->cached_tokens, 0);
    ck_assert_int_eq(o[1]->cached_tokens, COMMON);
    ck_assert_int_eq(o[2]->cached_tokens, COMMON);
    for (int number = 0; number < ALL; number++) {
        int k = number % PROMPTS, i = number / PROMPTS;
        struct engine_job job = jobs[k];
        job.n_candidates = 1;
        job.first_index = number;
        struct outcome *alone = run(g, &job);
        ck_assert_int_eq(alone->c[0].n_tokens, o[k]->c[i].n_tokens);
        ck_assert_str_eq(alone->c[0].text, o[k]->c[i].text);
        ck_assert(alone->c[0].sum_logprob == o[k]->c[i].sum_logprob);
        ck_assert_int_eq(!strncmp(alone->c[0].text, "Well:\n", 6), k == 1);
        outcome_free(alone);
    }
    for (int k = 0; k < PROMPTS; k++)
        outcome_free(o[k]);
    all_free(g);
    engine_close(g);
}
END_TEST

START_TEST(the_ladder_of_temperatures) {
    static const float ladder[] = {0.5f, 1, 1.5f};
    struct engine_sampling s = {.temperature = 0.8f};
    ck_assert_float_eq(engine_temperature(&s, 7, 1), 0.8f);
    s.temperatures = ladder;
    s.n_temperatures = 3;
    ck_assert_float_eq(engine_temperature(&s, 0, 1), 0.5f);
    ck_assert_float_eq(engine_temperature(&s, 5, 1), 1.5f);
    /* Two prompts: each goes through it. */
    ck_assert_float_eq(engine_temperature(&s, 2, 2), 1);
    ck_assert_float_eq(engine_temperature(&s, 3, 2), 1);
    ck_assert_float_eq(engine_temperature(&s, 7, 2), 0.5f);
    s.greedy_first = true;
    ck_assert_float_eq(engine_temperature(&s, 0, 2), 0);
    ck_assert_float_eq(engine_temperature(&s, 1, 2), 0.5f);
}
END_TEST

static bool ten_started(const struct outcome *o) { return o->started >= 10; }

/* Two requests of one prompt hold the same blocks: dropping one of them frees nothing, and must not
 * be counted on. */
START_TEST(equal_prompts_under_pressure) {
    enum { JOBS = 5 };
    struct engine *g =
        open_engine((struct engine_options){.kv_blocks = 40, .max_rows = 16, .prefill_chunk = 64});
    struct outcome *o[JOBS];
    uint64_t id[JOBS];
    struct err e = {0};
    for (int k = 0; k < JOBS; k++) {
        struct engine_job job = k ? job_of(257, 3, 250) : job_of(17, 1, 480);
        job.ignore_eos = true;
        job.seed = (uint64_t)k;
        ck_assert_msg(engine_submit(g, &job, &id[k], &e), "%s", e.message);
        o[k] = outcome_new(3);
        if (!k)
            for (int i = 0; i < 20; i++)
                nap();
    }
    for (int left = JOBS; left;) {
        struct engine_event *ev = engine_poll(g);
        if (!ev) {
            nap();
            continue;
        }
        for (int k = 0; k < JOBS; k++)
            if (id[k] == ev->job) {
                note(o[k], ev);
                left -= ev->type == ENGINE_JOB_ENDED;
            }
        engine_event_free(ev);
    }
    for (int k = 0; k < JOBS; k++) {
        ck_assert_msg(o[k]->error.kind == ERR_NONE, "job %d: %s", k, o[k]->error.message);
        ck_assert_int_eq(o[k]->ended, k ? 3 : 1);
        outcome_free(o[k]);
    }
    all_free(g);
    engine_close(g);
}
END_TEST

/* LOOP cancels candidates one by one while the engine starts them one by one. */
START_TEST(candidates_cancelled_as_they_start) {
    struct engine *g = open_engine((struct engine_options){0});
    for (int round = 0; round < 5; round++) {
        struct err e = {0};
        uint64_t id;
        struct engine_job job = job_of(3, 10000, 1);
        job.width = 2;
        ck_assert(engine_submit(g, &job, &id, &e));
        struct outcome *o = outcome_new(10000);
        wait_for(g, o, ten_started);
        for (int i = 0; i < 10000; i++)
            engine_cancel_candidate(g, id, i);
        wait_for(g, o, NULL);
        ck_assert_int_eq(o->started, o->ended);
        outcome_free(o);
    }
    all_free(g);
    engine_close(g);
}
END_TEST

START_TEST(what_can_never_fit_is_refused) {
    struct engine *g = open_engine((struct engine_options){.kv_blocks = 10});
    struct err e = {0};
    uint64_t id;
    int context = engine_model(g)->context;
    ck_assert_int_eq(context, 144); /* all blocks but the one for a copy */
    struct engine_job job = job_of(100, 1, context - 100);
    struct outcome *o = run(g, &job);
    outcome_free(o);
    job.max_tokens++;
    ck_assert(!engine_submit(g, &job, &id, &e));
    ck_assert_int_eq(e.kind, ERR_INPUT);
    ck_assert_str_eq(e.code, "context_length_exceeded");
    job = job_of(10, 1, 1);
    prompt[3] = TINY_VOCAB;
    ck_assert(!engine_submit(g, &job, &id, &e));
    job.n_prompt = 0;
    ck_assert(!engine_submit(g, &job, &id, &e));
    engine_close(g);
}
END_TEST

START_TEST(a_plan_that_does_not_fit_names_the_number) {
    struct err e = {0};
    struct engine_options o = {.model_path = model.path, .memory_bytes = 1 << 20};
    ck_assert(engine_open(&o, &e) == NULL);
    ck_assert(strstr(e.message, "engine.memory_mb") != NULL);
    o = (struct engine_options){
        .model_path = model.path, .memory_bytes = (uint64_t)512 << 20, .kv_blocks = 1 << 22};
    ck_assert(engine_open(&o, &e) == NULL);
    ck_assert(strstr(e.message, "engine.kv_blocks") != NULL);
    o = (struct engine_options){.model_path = model.path, .context = 100000};
    ck_assert(engine_open(&o, &e) == NULL);
    ck_assert(strstr(e.message, "engine.context") != NULL);
    o = (struct engine_options){.model_path = model.path, .backend = "cuda"};
    ck_assert(engine_open(&o, &e) == NULL);
    o = (struct engine_options){.model_path = "/nowhere/x.gguf"};
    ck_assert(engine_open(&o, &e) == NULL);
    ck_assert_int_eq(e.kind, ERR_INPUT);
}
END_TEST

/* ---- cancelling ---- */

START_TEST(cancel_ends_all_and_frees_all) {
    struct engine *g = open_engine((struct engine_options){0});
    struct err e = {0};
    uint64_t id;
    struct engine_job job = job_of(50, 5000, 400);
    job.ignore_eos = true;
    ck_assert(engine_submit(g, &job, &id, &e));
    struct outcome *o = outcome_new(5000);
    wait_for(g, o, ten_started);
    engine_cancel(g, id);
    wait_for(g, o, NULL);
    ck_assert_int_eq(o->error.kind, ERR_NONE);
    ck_assert_int_lt(o->started, 100);
    ck_assert_int_eq(o->started, o->ended);
    all_free(g);
    engine_cancel(g, id); /* ended: ignored */
    engine_cancel(g, 12345);
    outcome_free(o);
    engine_close(g);
}
END_TEST

START_TEST(one_candidate_is_cancelled_alone) {
    struct engine *g = open_engine((struct engine_options){0});
    struct err e = {0};
    uint64_t id;
    struct engine_job job = job_of(50, 30, 200);
    job.ignore_eos = true;
    job.width = 12;
    ck_assert(engine_submit(g, &job, &id, &e));
    engine_cancel_candidate(g, id, 25); /* not started yet: never starts */
    struct outcome *o = outcome_new(30);
    wait_for(g, o, ten_started);
    engine_cancel_candidate(g, id, 3);
    engine_cancel_candidate(g, id, -1);
    engine_cancel_candidate(g, id, 30);
    wait_for(g, o, NULL);
    ck_assert_int_eq(o->started, 29);
    ck_assert(!o->c[25].started);
    ck_assert_int_eq(o->c[3].reason, ENGINE_CANCELLED);
    ck_assert_int_eq(o->cancelled, 1);
    all_free(g);
    outcome_free(o);
    engine_close(g);
}
END_TEST

START_TEST(closing_with_jobs_alive) {
    struct engine *g = open_engine((struct engine_options){0});
    struct err e = {0};
    uint64_t id;
    struct engine_job job = job_of(50, 1000, 400);
    job.stream = true;
    for (int i = 0; i < 5; i++)
        ck_assert(engine_submit(g, &job, &id, &e));
    for (int i = 0; i < 20; i++)
        nap();
    engine_close(g);
}
END_TEST

/* ---- texts ---- */

START_TEST(streamed_text_is_the_text) {
    struct engine *g = open_engine((struct engine_options){0});
    struct engine_job job = job_of(20, 20, 60);
    const char *stop = "e";
    size_t len = 1;
    for (int round = 0; round < 2; round++) {
        job.stream = true;
        struct outcome *o = run(g, &job);
        for (int i = 0; i < 20; i++) {
            ck_assert_str_eq(o->c[i].streamed ? o->c[i].streamed : "", o->c[i].text);
            if (round) ck_assert(strchr(o->c[i].text, 'e') == NULL);
        }
        outcome_free(o);
        job.stops = &stop;
        job.stop_lens = &len;
        job.n_stops = 1;
    }
    engine_close(g);
}
END_TEST

START_TEST(min_tokens_and_ignore_eos) {
    struct engine *g = open_engine((struct engine_options){0});
    struct engine_bias bias = {TINY_END, 100};
    struct engine_job job = job_of(20, 3, 30);
    job.sampling.bias = &bias;
    job.sampling.n_bias = 1;
    struct outcome *o = run(g, &job);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(o->c[i].n_tokens, 1);
        ck_assert_int_eq(o->c[i].reason, ENGINE_STOP);
        ck_assert_str_eq(o->c[i].text, "");
    }
    outcome_free(o);
    job.min_tokens = 7;
    o = run(g, &job);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(o->c[i].n_tokens, 8);
    outcome_free(o);
    job.ignore_eos = true;
    o = run(g, &job);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(o->c[i].n_tokens, 30);
        ck_assert_int_eq(o->c[i].reason, ENGINE_LENGTH);
    }
    outcome_free(o);
    engine_close(g);
}
END_TEST

/* ---- the prompt cache ---- */

/* Runs one candidate and keeps the log-probabilities that its PREFILLED or its ENDED event tells.
 */
static int logprobs_of(struct engine *g, const struct engine_job *job, enum engine_event_type which,
                       int32_t *tokens, struct engine_logprob *out, int32_t (*top)[3],
                       float (*top_logprob)[3]) {
    struct err e = {0};
    uint64_t id;
    ck_assert_msg(engine_submit(g, job, &id, &e), "%s", e.message);
    int n = -1;
    for (bool over = false; !over;) {
        struct engine_event *ev = engine_poll(g);
        if (!ev) {
            nap();
            continue;
        }
        if (ev->type == which) {
            ck_assert_ptr_nonnull(ev->logprobs);
            ck_assert_int_le(ev->n_tokens, 300);
            n = ev->n_tokens;
            memcpy(tokens, ev->tokens, (size_t)n * sizeof *tokens);
            memcpy(out, ev->logprobs, (size_t)n * sizeof *out);
            for (int i = 0; i < n; i++)
                for (int k = 0; k < out[i].n_top; k++) {
                    top[i][k] = out[i].top_token[k];
                    top_logprob[i][k] = out[i].top_logprob[k];
                }
        }
        over = ev->type == ENGINE_JOB_ENDED;
        engine_event_free(ev);
    }
    ck_assert_int_gt(n, 0);
    return n;
}

/* What a candidate drew with some log-probability has the very same one as part of a prompt, in
 * whatever chunks the prompt is read, and though the cache holds it already. */
START_TEST(prompt_logprobs_equal_those_of_the_draws) {
    static int32_t drawn[300], read[300], top[300][3], read_top[300][3];
    static float top_logprob[300][3], read_top_logprob[300][3];
    static struct engine_logprob of_draws[300], of_prompt[300];
    struct engine *g = open_engine((struct engine_options){.threads = 1});
    struct engine *small = open_engine(
        (struct engine_options){.threads = 2, .max_rows = 3, .prefill_chunk = 7, .kv_blocks = 16});
    struct engine_job job = job_of(40, 1, 60);
    job.logprobs = job.ignore_eos = true;
    job.n_top_logprobs = 3;
    int n = logprobs_of(g, &job, ENGINE_ENDED, drawn, of_draws, top, top_logprob);
    ck_assert_int_eq(n, 60);
    memcpy(prompt + 40, drawn, (size_t)n * sizeof *drawn);
    job.n_prompt = 100;
    job.max_tokens = 1;
    job.prompt_logprobs = true;
    job.n_prompt_top = 3;
    for (int round = 0; round < 4; round++) {
        int m = logprobs_of(round % 2 ? small : g, &job, ENGINE_PREFILLED, read, of_prompt,
                            read_top, read_top_logprob);
        ck_assert_int_eq(m, 100);
        ck_assert_mem_eq(read, prompt, 100 * sizeof *read);
        ck_assert(isnan(of_prompt[0].logprob) && !of_prompt[0].n_top);
        for (int i = 0; i < 60; i++) {
            const struct engine_logprob *p = &of_prompt[40 + i];
            ck_assert(p->token == drawn[i] && p->logprob == of_draws[i].logprob && p->n_top == 3);
            ck_assert_mem_eq(read_top[40 + i], top[i], sizeof top[i]);
            ck_assert_mem_eq(read_top_logprob[40 + i], top_logprob[i], sizeof top_logprob[i]);
        }
    }
    job.n_prompt = 1;
    ck_assert_int_eq(
        logprobs_of(g, &job, ENGINE_PREFILLED, read, of_prompt, read_top, read_top_logprob), 1);
    ck_assert(isnan(of_prompt[0].logprob));
    all_free(g);
    all_free(small);
    engine_close(g);
    engine_close(small);
}
END_TEST

START_TEST(prompts_are_reused_within_a_salt) {
    struct engine *g = open_engine((struct engine_options){0});
    struct engine_job job = job_of(100, 3, 20);
    struct outcome *first = run(g, &job);
    ck_assert_int_eq(first->cached_tokens, 0);
    struct outcome *again = run(g, &job);
    ck_assert_int_eq(again->cached_tokens, 96);
    same(first, again, 3);
    job.cache_salt = "another tenant";
    struct outcome *apart = run(g, &job);
    ck_assert_int_eq(apart->cached_tokens, 0);
    same(first, apart, 3);
    outcome_free(first);
    outcome_free(again);
    outcome_free(apart);
    all_free(g);
    engine_close(g);
}
END_TEST

int main(void) {
    tiny_model_write(&model);
    Suite *s = suite_create("engine");
    TCase *t = tcase_create("engine");
    tcase_set_timeout(t, 0); /* ctest has one */
    tcase_add_test(t, results_do_not_depend_on_company);
    tcase_add_test(t, guesses_change_no_draw);
    tcase_add_test(t, overlap_changes_no_draw);
    tcase_add_test(t, candidates_differ_and_seeds_matter);
    tcase_add_test(t, sharing_saves_rows);
    tcase_add_test(t, rows_of_one_job);
    tcase_add_test(t, greedy_first_is_candidate_zero_only);
    tcase_add_test(t, ten_thousand_candidates_in_a_tiny_pool);
    tcase_add_test(t, many_jobs_share_a_small_pool);
    tcase_add_test(t, equal_prompts_under_pressure);
    tcase_add_test(t, prompts_of_one_race);
    tcase_add_test(t, the_ladder_of_temperatures);
    tcase_add_test(t, candidates_cancelled_as_they_start);
    tcase_add_test(t, what_can_never_fit_is_refused);
    tcase_add_test(t, a_plan_that_does_not_fit_names_the_number);
    tcase_add_test(t, cancel_ends_all_and_frees_all);
    tcase_add_test(t, one_candidate_is_cancelled_alone);
    tcase_add_test(t, closing_with_jobs_alive);
    tcase_add_test(t, streamed_text_is_the_text);
    tcase_add_test(t, min_tokens_and_ignore_eos);
    tcase_add_test(t, prompt_logprobs_equal_those_of_the_draws);
    tcase_add_test(t, prompts_are_reused_within_a_salt);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    unlink(model.path);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
