/* A scripted engine and verifier for tests of the race: they record what the race asked of them and
 * say what the test tells them to, under the rules of engine.h and verifier.h. */
#ifndef TESTS_SERVER_RACE_SCRIPT_H
#define TESTS_SERVER_RACE_SCRIPT_H

#include "config/limits.h"
#include "server/race.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct script_candidate {
    bool started, ended, cancel_asked, submitted, verify_cancelled, judged, told;
    enum race_entry_state seen; /* as on_candidate told it last */
    int n_tokens;
    enum engine_reason reason;
    enum verdict_kind verdict;
    void (*done)(void *arg, int index, const struct verdict *);
    void *done_arg;
};

/* One race as engine and verifier see it, and what its callbacks said. */
struct script {
    struct script_set *set;
    struct race *race;
    uint64_t ids[LIMIT_PROMPT_VARIANTS]; /* one job for each prompt */
    int job_width[LIMIT_PROMPT_VARIANTS], job_started[LIMIT_PROMPT_VARIANTS];
    bool job_cancelled[LIMIT_PROMPT_VARIANTS];
    int n_jobs;
    int n;
    bool with_tests, stream;
    struct script_candidate *c;
    int n_started, n_ended, n_events;
    int width; /* as last set; -1: never */
    bool cancelled, job_ended;
    /* tests */
    void (*ready)(void *, struct verifier_tests *, const struct err *);
    void *ready_arg;
    bool opened, was_ready, closed;
    /* callbacks */
    int n_done, n_text, n_end, n_progress, n_told;
    bool abandoned;
    struct err error;
    bool verified, deadline;
    int n_choices, choices[16], n_candidates, n_texts_shown;
    char text[64]; /* of the first choice */
    struct race_counts counts;
    void (*in_done)(struct script *); /* NULL, or called from within on_done */
    void (*in_text)(struct script *);
};

struct script_set {
    uv_loop_t *loop; /* borrowed */
    struct race_set *races;
    uint64_t next_id;
    struct script *starting; /* the race whose race_start is on the stack */
    struct script **by_id;   /* owned [n_by_id]: whose job has the id, less one; or NULL */
    uint64_t n_by_id;
    struct script **all; /* owned */
    int n_all;
    bool engine_refuses, verifier_refuses;
};

/* And in *job which of its jobs that is. */
static struct script *script_of(struct script_set *set, uint64_t id, int *job) {
    if (id > set->n_by_id) return NULL; /* its race_start failed, or hasn't returned */
    struct script *s = set->by_id[id - 1];
    *job = s ? (int)(id - s->ids[0]) : -1;
    return s;
}

/* ---- the engine's calls ---- */

static bool script_submit(void *self, const struct engine_job *jobs, int n, uint64_t *ids,
                          struct err *e) {
    struct script_set *set = self;
    if (set->engine_refuses) return err_set(e, ERR_BUSY, "full");
    struct script *s = set->starting;
    ck_assert(!s->n_jobs);
    int n_candidates = 0;
    for (int i = 0; i < n; i++) {
        ids[i] = s->ids[s->n_jobs++] = ++set->next_id;
        ck_assert_int_eq(jobs[i].prompt[0], jobs[i].first_index % jobs[i].index_step + 1);
        n_candidates += jobs[i].n_candidates;
    }
    ck_assert_int_eq(n_candidates, s->n);
    return true;
}

static void script_cancel(void *self, uint64_t id) {
    int job;
    struct script *s = script_of(self, id, &job);
    if (!s) return; /* its race_start failed */
    ck_assert(!s->job_cancelled[job] && !s->job_ended);
    s->cancelled = s->job_cancelled[job] = true;
}

static void script_cancel_candidate(void *self, uint64_t id, int index) {
    int job;
    struct script *s = script_of(self, id, &job);
    ck_assert(s && index >= 0 && !s->cancelled);
    index = job + index * s->n_jobs;
    ck_assert_int_lt(index, s->n);
    ck_assert(!s->c[index].cancel_asked);
    s->c[index].cancel_asked = true;
}

/* Behind the events: the race's own count is the larger one. */
static int64_t script_tokens(void *self, uint64_t id) {
    (void)self;
    (void)id;
    return 0;
}

static int64_t script_rows(void *self, uint64_t id) {
    int job;
    const struct script *s = script_of(self, id, &job);
    ck_assert(s && !s->job_ended);
    return s ? s->job_started[job] : 0;
}

static void script_set_width(void *self, uint64_t id, int width) {
    int job;
    struct script *s = script_of(self, id, &job);
    ck_assert(s && width >= 0 && width != s->job_width[job]);
    s->width = s->job_width[job] = width;
}

/* ---- the verifier's calls: the tests object is the script itself ---- */

static bool script_tests_open(void *self, const struct verifier_spec *spec,
                              void (*ready)(void *, struct verifier_tests *, const struct err *),
                              void *arg, struct err *e) {
    struct script_set *set = self;
    (void)spec;
    if (set->verifier_refuses) return err_set(e, ERR_SYSTEM, "no worker");
    set->starting->opened = true;
    set->starting->ready = ready;
    set->starting->ready_arg = arg;
    return true;
}

static void script_tests_close(struct verifier_tests *tests) {
    struct script *s = (struct script *)(void *)tests;
    ck_assert(s->was_ready && !s->closed);
    s->closed = true;
}

static void script_text(int index, char *out, size_t size) {
    snprintf(out, size, "text of %d", index);
}

static uint64_t script_verify(struct verifier_tests *tests, int index, const char *text, size_t len,
                              bool cut_by_length, void (*done)(void *, int, const struct verdict *),
                              void *arg) {
    struct script *s = (struct script *)(void *)tests;
    struct script_candidate *c = &s->c[index];
    char expected[64];
    script_text(index, expected, sizeof expected);
    ck_assert(s->was_ready && !s->closed && !s->abandoned && !s->n_done);
    ck_assert(c->ended && !c->submitted);
    ck_assert(strlen(expected) == len && !memcmp(expected, text, len));
    ck_assert_int_eq(cut_by_length, c->reason == ENGINE_LENGTH);
    c->submitted = true;
    c->done = done;
    c->done_arg = arg;
    return (uint64_t)index + 1;
}

static void script_verify_cancel(struct verifier_tests *tests, uint64_t id) {
    struct script *s = (struct script *)(void *)tests;
    struct script_candidate *c = &s->c[id - 1];
    ck_assert(c->submitted && !c->judged && !c->verify_cancelled);
    c->verify_cancelled = true;
}

/* ---- what the race tells its caller ---- */

/* Each candidate once, with all that is known of it. */
static void script_on_verdict(void *arg, const struct race_candidate *c) {
    struct script *s = arg;
    char expected[64];
    ck_assert(!s->abandoned && !s->n_done && c->decided && !s->c[c->index].told);
    script_text(c->index, expected, sizeof expected);
    ck_assert_str_eq(c->text, expected);
    ck_assert_int_eq(c->verdict, s->c[c->index].verdict);
    s->c[c->index].told = true;
    s->n_told++;
}

static void script_on_done(void *arg, const struct race_result *result) {
    struct script *s = arg;
    ck_assert(!s->abandoned && !s->n_done);
    s->n_done++;
    ck_assert_int_eq(s->n_told, result->counts.verified + result->counts.broken);
    s->error = result->error;
    s->verified = result->verified;
    s->deadline = result->deadline;
    s->n_choices = result->n_choices;
    s->n_candidates = result->n_candidates;
    s->counts = result->counts;
    ck_assert_int_eq(result->error.kind == ERR_NONE, result->n_choices > 0);
    for (int i = 0; i < result->n_choices; i++) {
        const struct race_candidate *c = result->choices[i];
        char expected[64];
        script_text(c->index, expected, sizeof expected);
        ck_assert_str_eq(c->text, expected);
        ck_assert_int_eq(c->n_tokens, 2);
        ck_assert_int_eq(c->tokens[1], c->index);
        if (i < 16) s->choices[i] = c->index;
        if (i == 0) snprintf(s->text, sizeof s->text, "%s", c->text);
    }
    for (int i = 0; i < result->n_candidates; i++) {
        const struct race_candidate *c = result->candidates[i];
        ck_assert(!i || c->index > result->candidates[i - 1]->index);
        if (c->text) s->n_texts_shown++;
        if (c->decided) ck_assert_int_eq(c->verdict, s->c[c->index].verdict);
    }
    if (s->in_done) s->in_done(s);
}

static void script_on_text(void *arg, int index, const char *text, size_t len,
                           const struct engine_event *event) {
    struct script *s = arg;
    ck_assert(!s->abandoned && !s->n_done);
    ck_assert(event->index == index && event->text == text && event->text_len == len);
    s->n_text++;
    if (s->in_text) s->in_text(s);
}

static void script_on_end(void *arg, const struct race_candidate *c) {
    struct script *s = arg;
    ck_assert(!s->abandoned && !s->n_done && c->text);
    s->n_end++;
}

static void script_on_progress(void *arg, const struct race_counts *counts) {
    struct script *s = arg;
    ck_assert(!s->abandoned && !s->n_done);
    ck_assert_int_le(counts->finished, counts->started);
    s->n_progress++;
}

static void script_on_candidate(void *arg, const struct race_candidate *view,
                                enum race_entry_state state) {
    struct script *s = arg;
    struct script_candidate *c = &s->c[view->index];
    ck_assert(!s->abandoned && !s->n_done);
    ck_assert(state > c->seen || (state == RACE_ENTRY_DECODING && c->seen == state));
    ck_assert(c->seen != RACE_ENTRY_DECIDED && view->n_tokens >= c->n_tokens);
    if (state == RACE_ENTRY_DECIDED) ck_assert(view->decided && view->text && view->code);
    c->seen = state;
    c->n_tokens = view->n_tokens;
}

/* ---- life ---- */

static void script_loop_open(uv_loop_t *loop) { ck_assert_int_eq(uv_loop_init(loop), 0); }

static void script_loop_close(uv_loop_t *loop) {
    uv_run(loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(loop), 0);
}

static void script_set_open(struct script_set *set, uv_loop_t *loop) {
    memset(set, 0, sizeof *set);
    set->loop = loop;
    const struct race_engine engine = {
        set,           script_submit, script_cancel, script_cancel_candidate, script_set_width,
        script_tokens, script_rows};
    const struct race_verifier verifier = {set, script_tests_open, script_tests_close,
                                           script_verify, script_verify_cancel};
    set->races = race_set_new(set->loop, engine, verifier);
}

static void script_set_turn(struct script_set *set) { uv_run(set->loop, UV_RUN_NOWAIT); }

static int script_set_live(struct script_set *set) {
    struct race_set_stats stats;
    race_set_stats(set->races, &stats);
    return stats.live;
}

static void script_set_close(struct script_set *set) {
    ck_assert_int_eq(script_set_live(set), 0);
    race_set_free(set->races);
    script_set_turn(set);
    for (int i = 0; i < set->n_all; i++) {
        free(set->all[i]->c);
        free(set->all[i]);
    }
    free(set->all);
    free(set->by_id);
}

/* A request of n candidates, with tests or without; n_choices is n. */
static struct race_request script_request(int n, const struct verifier_spec *tests) {
    static const int32_t tokens[] = {1, 2, 3};
    static const struct race_prompt prompts[] = {{.tokens = tokens, .n_tokens = 3},
                                                 {.tokens = tokens + 1, .n_tokens = 2},
                                                 {.tokens = tokens + 2, .n_tokens = 1}};
    return (struct race_request){
        .job = {.n_candidates = n, .max_tokens = 10, .seed = 7},
        .prompts = prompts,
        .n_prompts = 1,
        .tests = tests,
        .n_choices = n,
    };
}

static const struct verifier_spec script_tests = {.tests = "assert f()", .tests_len = 10};

static struct script *script_start(struct script_set *set, const struct race_request *q,
                                   bool progress, struct err *e) {
    struct script *s = err_alloc(1, sizeof *s);
    s->set = set;
    s->n = q->job.n_candidates;
    s->with_tests = q->tests != NULL;
    s->stream = q->job.stream;
    s->width = -1;
    for (int i = 0; i < LIMIT_PROMPT_VARIANTS; i++)
        s->job_width[i] = -1;
    s->c = err_alloc((size_t)s->n, sizeof *s->c);
    const struct race_callbacks callbacks = {.on_done = script_on_done,
                                             .on_text = script_on_text,
                                             .on_end = script_on_end,
                                             .on_verdict = script_on_verdict,
                                             .on_progress = progress ? script_on_progress : NULL,
                                             .on_candidate = progress ? script_on_candidate : NULL};
    set->starting = s;
    bool ok = race_start(set->races, q, &callbacks, s, &s->race, e);
    set->starting = NULL;
    ck_assert(!s->n_done);
    if (!ok) {
        free(s->c);
        free(s);
        return NULL;
    }
    set->all = err_realloc(set->all, (size_t)set->n_all + 1, sizeof(struct script *));
    set->all[set->n_all++] = s;
    set->by_id = err_realloc(set->by_id, (size_t)set->next_id, sizeof(struct script *));
    for (; set->n_by_id < set->next_id; set->n_by_id++)
        set->by_id[set->n_by_id] = set->n_by_id + 1 >= s->ids[0] ? s : NULL;
    return s;
}

/* ---- what engine and verifier say ---- */

/* The event's index is the race's; the engine knows it as that of the job. */
static void script_send(struct script *s, struct engine_event *event) {
    event->job = s->ids[event->index % s->n_jobs];
    event->index /= s->n_jobs;
    s->n_events++;
    race_set_event(s->set->races, event);
}

static void script_started(struct script *s, int index) {
    ck_assert(!s->c[index].started && !s->job_ended);
    s->c[index].started = true;
    s->n_started++;
    s->job_started[index % s->n_jobs]++;
    script_send(s, &(struct engine_event){.type = ENGINE_STARTED, .index = index});
}

static void script_ended_with(struct script *s, int index, enum engine_reason reason,
                              double sum_logprob) {
    struct script_candidate *c = &s->c[index];
    ck_assert(c->started && !c->ended && !s->job_ended);
    c->ended = true;
    c->reason = reason;
    s->n_ended++;
    char text[64];
    script_text(index, text, sizeof text);
    /* On the heap and freed at once: ASan sees whoever keeps a pointer into an event. */
    char *copy = strdup(text);
    int32_t *tokens = err_alloc(2, sizeof *tokens);
    tokens[1] = index;
    script_send(s, &(struct engine_event){.type = ENGINE_ENDED,
                                          .index = index,
                                          .text = copy,
                                          .text_len = strlen(copy),
                                          .tokens = tokens,
                                          .n_tokens = 2,
                                          .reason = reason,
                                          .sum_logprob = sum_logprob});
    free(copy);
    free(tokens);
}

static void script_ended(struct script *s, int index, enum engine_reason reason) {
    script_ended_with(s, index, reason, -1);
}

static void script_job_ended(struct script *s, const struct err *error) {
    ck_assert(!s->job_ended && s->n_started == s->n_ended);
    s->job_ended = true;
    for (int i = s->n_jobs - 1; i >= 0; i--) {
        struct engine_event event = {.type = ENGINE_JOB_ENDED, .index = i};
        if (error) event.error = *error;
        script_send(s, &event);
    }
}

static void script_ready(struct script *s, const struct err *error) {
    ck_assert(s->ready && !s->was_ready);
    void (*ready)(void *, struct verifier_tests *, const struct err *) = s->ready;
    s->ready = NULL;
    s->was_ready = !error;
    ready(s->ready_arg, error ? NULL : (struct verifier_tests *)(void *)s, error);
}

static void script_verdict_with(struct script *s, int index, const struct verdict *verdict) {
    struct script_candidate *c = &s->c[index];
    ck_assert(c->submitted && !c->judged && !s->closed);
    c->judged = true;
    c->verdict = verdict->kind;
    struct verdict copy = *verdict;
    char *code = strdup(verdict->code), *error = strdup(verdict->error);
    copy.code = code;
    copy.error = error;
    c->done(c->done_arg, index, &copy);
    free(code);
    free(error);
}

static void script_verdict(struct script *s, int index, enum verdict_kind kind) {
    char code[32];
    snprintf(code, sizeof code, "code %d", index / 2);
    bool passed = kind == VERDICT_PASSED;
    script_verdict_with(s, index,
                        &(struct verdict){.kind = kind,
                                          .tests_passed = passed ? 4 : index % 4,
                                          .tests_total = 4,
                                          .code = code,
                                          .code_len = strlen(code),
                                          .method = "fenced",
                                          .error = passed ? "" : "AssertionError: no",
                                          .output = "",
                                          .trust = "split"});
}

#endif
