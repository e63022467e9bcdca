#include "server/race_internal.h"

#include "base/clock.h"
#include "base/divide.h"
#include "config/limits.h"

#include <stdlib.h>

/* Verdicts that may wait in one race before it decodes fewer at once, and when it widens again.  A
 * worker judges a candidate in milliseconds, so this many waiting means that it can't keep up. */
enum { VERDICTS_HIGH = 64, VERDICTS_LOW = 16 };

/* ---- states ---- */

void race_move(struct race *r, enum race_state to) {
    static const unsigned legal[] = {
        [RACE_PREPARING] = 1u << RACE_RUNNING | 1u << RACE_SETTLED,
        [RACE_RUNNING] = 1u << RACE_SETTLED,
        [RACE_SETTLED] = 1u << RACE_ENDED,
        [RACE_ENDED] = 0,
    };
    BUG_ON(!(legal[r->state] & 1u << to));
    r->state = to;
}

static bool settled(const struct race *r) { return r->state >= RACE_SETTLED; }

static void count_verifying(struct race *r, int change) {
    bool waited = r->n_verifying > 0;
    r->n_verifying += change;
    r->set->n_waiting += (r->n_verifying > 0) - waited;
}

static void tell(struct race *r, const struct race_entry *c) {
    if (r->callbacks.on_candidate && !settled(r) && !r->abandoned)
        r->callbacks.on_candidate(r->arg, &c->view, c->state);
}

/* The one place where a candidate changes state, so that the counts can't drift from the states. */
static void move(struct race *r, struct race_entry *c, enum race_entry_state to) {
    bool finished = c->state == RACE_ENTRY_VERIFYING; /* of those that may still be cancelled */
    if (c->state == RACE_ENTRY_DECODING) r->n_decoding--;
    if (finished) count_verifying(r, -1);
    race_entry_move(c, to);
    struct race_set_stats *stats = &r->set->stats;
    switch (to) {
    case RACE_ENTRY_WAITING:
    case RACE_ENTRY_DECIDED:
        break;
    case RACE_ENTRY_DECODING:
        r->n_decoding++;
        break;
    case RACE_ENTRY_VERIFYING:
        count_verifying(r, 1);
        break;
    case RACE_ENTRY_CANCELLED:
        r->counts.cancelled++;
        stats->candidates_cancelled++;
        stats->candidates_stopped += !finished;
        race_entry_drop(c);
        break;
    }
    race_set_dirty(r->set, r);
    /* A verdict isn't copied yet when a candidate moves to DECIDED. */
    if (to != RACE_ENTRY_DECIDED) tell(r, c);
}

void race_enter(struct race *r) { r->busy++; }

void race_leave(struct race *r) {
    if (--r->busy) return;
    bool let_go = !r->n_jobs_live && !r->tests && !r->tests_pending;
    if (r->state != RACE_SETTLED || !let_go) return;
    race_move(r, RACE_ENDED);
    race_set_remove(r->set, r);
    race_free(r);
}

void race_free(struct race *r) {
    for (int i = 0; i < r->n_entries; i++)
        race_entry_free(r->entries[i]);
    free(r->entries);
    free(r->jobs);
    free(r->prompt_logprobs);
    race_rank_clear(&r->rank);
    free(r);
}

static void cancel_jobs(const struct race *r) {
    const struct race_engine *engine = &r->set->engine;
    for (int i = 0; i < r->n_jobs; i++)
        if (!r->jobs[i].ended) engine->cancel(engine->self, r->jobs[i].id);
}

void race_stop(struct race *r) {
    struct race_set *set = r->set;
    cancel_jobs(r);
    for (int i = 0; i < r->n_entries; i++) {
        struct race_entry *c = r->entries[i];
        if (c && (c->state == RACE_ENTRY_DECODING || c->state == RACE_ENTRY_VERIFYING))
            move(r, c, RACE_ENTRY_CANCELLED);
    }
    race_set_timer_stop(r);
    r->settled_at = clock_seconds();
    race_move(r, RACE_SETTLED);
    list_remove(&r->waiting);
    if (r->tests) race_set_closing(set, r);
}

void race_close_tests(struct race *r) {
    race_enter(r);
    r->set->verifier.tests_close(r->tests);
    r->tests = NULL;
    race_leave(r);
}

void race_progress(struct race *r) {
    race_enter(r);
    struct race_counts counts;
    race_counts(r, &counts);
    r->callbacks.on_progress(r->arg, &counts);
    race_leave(r);
}

/* ---- width ---- */

/* Narrows a race whose verdicts pile up; gives the width back when the pile is gone.  The verifier
 * serves the races in turn, so that of those that wait each has a part of it: a verdict waits for
 * its own race's others as many times as there are such races, however many one of them has. */
static void update_width(struct race *r) {
    if (settled(r) || !r->n_jobs_live) return;
    int64_t backlog = (int64_t)r->n_verifying * r->set->n_waiting;
    if (backlog >= r->narrow_at) {
        r->narrow_width = r->n_decoding > 1 ? r->n_decoding / 2 : 1;
        r->narrow_at = backlog + VERDICTS_HIGH / 2;
    } else if (backlog <= VERDICTS_LOW) {
        r->narrow_width = 0;
        r->narrow_at = VERDICTS_HIGH;
    }
    int width = r->narrow_width ? r->narrow_width : r->job_width;
    if (width == r->width) return;
    r->width = width;
    for (int i = 0; i < r->n_jobs; i++)
        if (!r->jobs[i].ended) r->set->engine.set_width(r->set->engine.self, r->jobs[i].id, width);
}

/* ---- verdicts ---- */

/* Whether a candidate just judged may still be (part of) the answer; drops the texts that can't be.
 */
static void keep_or_drop(struct race *r, struct race_entry *c) {
    bool all = r->detail == RACE_CANDIDATES_FULL || r->returns == RACE_ALL;
    bool broken = c->view.verdict == VERDICT_BROKEN;
    bool passed = c->view.verdict == VERDICT_PASSED;
    if (broken || (!passed && r->on_fail == RACE_FAIL_ERROR)) {
        if (!all) race_entry_drop(c);
        return;
    }
    struct race_entry *spare = race_rank_add(&r->rank, c);
    int order = r->leading ? race_rank_compare(&c->view, &r->leading->view) : 1;
    if (all) {
        if (order > 0) r->leading = c;
        return;
    }
    list_append(&r->kept, &c->kept);
    if (order < 0) {
        race_entry_drop(c);
    } else if (order > 0) {
        r->leading = c;
        LIST_EACH_SAFE(it, &r->kept) {
            struct race_entry *other = LIST_ITEM(it, struct race_entry, kept);
            if (other != c) race_entry_drop(other);
        }
    } else if (spare && !(passed && r->n_passes > 1)) {
        /* Same code, same outcome: one of them will do, and `leading` must be one that is kept. */
        if (r->leading == spare) r->leading = c;
        race_entry_drop(spare);
    }
}

/* lowest_index: above a pass nothing matters any more, started or not. */
static void cancel_above(struct race *r, int index) {
    struct race_set *set = r->set;
    for (int i = index + 1; i < r->cancelled_from; i++) {
        struct race_entry *c = i < r->n_entries ? r->entries[i] : NULL;
        const struct race_job *job = &r->jobs[i % r->n_jobs];
        if (!job->ended && (!c || c->state == RACE_ENTRY_DECODING))
            set->engine.cancel_candidate(set->engine.self, job->id, i / r->n_jobs);
        if (!c || c->state == RACE_ENTRY_DECIDED || c->state == RACE_ENTRY_CANCELLED) continue;
        if (c->state == RACE_ENTRY_VERIFYING) set->verifier.cancel(r->tests, c->verify_id);
        move(r, c, RACE_ENTRY_CANCELLED);
    }
    r->cancelled_from = index + 1;
}

static bool decided_below(const struct race *r, int index) {
    for (int i = 0; i < index; i++) {
        const struct race_entry *c = i < r->n_entries ? r->entries[i] : NULL;
        if (!c || c->state != RACE_ENTRY_DECIDED) return false;
    }
    return true;
}

/* Settles where what is known by now suffices. */
static void judge(struct race *r) {
    if (settled(r)) return;
    bool passed = r->lowest_pass >= 0;
    if (r->returns == RACE_FIRST && r->counts.passed >= r->n_passes) {
        race_settle_pass(r);
    } else if (passed && r->returns == RACE_LOWEST_INDEX && decided_below(r, r->lowest_pass)) {
        race_settle_pass(r);
    } else if (!r->n_jobs_live && !r->n_decoding && !r->n_verifying) {
        race_settle_exhausted(r);
    } else {
        update_width(r);
    }
}

static void count_verdict(struct race *r, const struct race_entry *c) {
    struct race_set_stats *stats = &r->set->stats;
    r->counts.verify_s += c->view.verify_s;
    if (c->view.duplicate) {
        r->counts.duplicates++;
        stats->duplicates++;
    }
    if (c->view.verdict == VERDICT_BROKEN) {
        r->counts.broken++;
        stats->candidates_broken++;
        return;
    }
    r->counts.verified++;
    if (c->view.verdict != VERDICT_PASSED) return;
    if (!r->counts.passed) r->counts.first_pass_s = clock_seconds() - r->started_at;
    r->counts.passed++;
    stats->candidates_passed++;
    if (r->lowest_pass < 0 || c->view.index < r->lowest_pass) r->lowest_pass = c->view.index;
}

static void on_verdict(void *arg, int index, const struct verdict *v) {
    struct race *r = arg;
    BUG_ON(index < 0 || index >= r->n_entries || !r->entries[index]);
    struct race_entry *c = r->entries[index];
    if (c->state == RACE_ENTRY_CANCELLED) return; /* the verdict was on its way */
    race_enter(r);
    move(r, c, RACE_ENTRY_DECIDED);
    race_entry_set_verdict(c, v);
    count_verdict(r, c);
    if (r->callbacks.on_verdict && !r->abandoned) r->callbacks.on_verdict(r->arg, &c->view);
    tell(r, c);
    keep_or_drop(r, c);
    if (r->returns == RACE_LOWEST_INDEX && r->lowest_pass == index) cancel_above(r, index);
    judge(r);
    race_leave(r);
}

static void verify(struct race *r, struct race_entry *c) {
    const struct race_candidate *view = &c->view;
    c->verify_id = r->set->verifier.submit(r->tests, view->index, view->text, view->text_len,
                                           view->reason == ENGINE_LENGTH, on_verdict, r);
}

static void on_tests_ready(void *arg, struct verifier_tests *tests, const struct err *error) {
    struct race *r = arg;
    race_enter(r);
    r->tests_pending = false;
    r->tests = tests;
    if (settled(r)) {
        if (tests) race_set_closing(r->set, r);
    } else if (error) {
        race_settle_error(r, error);
    } else {
        race_move(r, RACE_RUNNING);
        for (int i = 0; i < r->n_entries; i++)
            if (r->entries[i] && r->entries[i]->state == RACE_ENTRY_VERIFYING)
                verify(r, r->entries[i]);
        judge(r);
    }
    race_leave(r);
}

/* ---- engine events ---- */

static struct race_entry *entry_at(struct race *r, int index) {
    BUG_ON(index < 0 || index >= r->counts.max_candidates);
    if (index >= r->n_entries) {
        int n = r->n_entries ? r->n_entries : 16;
        while (n <= index)
            n *= 2;
        r->entries = err_realloc(r->entries, (size_t)n, sizeof(struct race_entry *));
        for (int i = r->n_entries; i < n; i++)
            r->entries[i] = NULL;
        r->n_entries = n;
    }
    return r->entries[index];
}

static void candidate_started(struct race *r, int index) {
    BUG_ON(entry_at(r, index));
    struct race_entry *c = r->entries[index] = race_entry_new(index);
    r->counts.started++;
    r->set->stats.candidates_started++;
    bool cancelled = settled(r) || index >= r->cancelled_from;
    /* Cancelled: it started before that reached the engine. */
    move(r, c, cancelled ? RACE_ENTRY_CANCELLED : RACE_ENTRY_DECODING);
}

/* The engine forgets them with the job, whose last event comes after the last candidate's end. */
static void read_rows(struct race_job *job) {
    const struct race_engine *engine = &job->race->set->engine;
    if (!job->ended) job->rows = engine->rows(engine->self, job->id);
}

static void candidate_drew(struct race *r, int index, const struct engine_event *event) {
    struct race_entry *c = entry_at(r, index);
    if (!c || c->state != RACE_ENTRY_DECODING) return;
    c->view.n_tokens += event->n_tokens;
    tell(r, c);
    race_set_dirty(r->set, r);
}

static void candidate_ended(struct race_job *job, int index, const struct engine_event *event) {
    struct race *r = job->race;
    struct race_entry *c = entry_at(r, index);
    BUG_ON(!c || c->ended);
    c->ended = true;
    job->tokens += event->n_tokens;
    read_rows(job);
    c->view.n_tokens = event->n_tokens;
    if (c->state == RACE_ENTRY_CANCELLED) return;
    bool whole = event->reason != ENGINE_CANCELLED && event->reason != ENGINE_FAILED;
    if (!whole) {
        c->view.reason = event->reason;
        move(r, c, RACE_ENTRY_CANCELLED);
        return;
    }
    r->counts.finished++;
    r->set->stats.candidates_finished++;
    race_entry_set_output(c, event);
    if (r->has_tests) {
        move(r, c, RACE_ENTRY_VERIFYING);
        if (r->tests) verify(r, c);
    } else {
        move(r, c, RACE_ENTRY_DECIDED);
        if (r->stream && r->callbacks.on_end && !r->abandoned)
            r->callbacks.on_end(r->arg, &c->view);
    }
}

static void count_cancel(struct race *r) {
    struct race_set_stats *stats = &r->set->stats;
    double took = clock_seconds() - r->settled_at;
    stats->cancels++;
    stats->cancel_s += took;
    if (took > stats->cancel_longest_s) stats->cancel_longest_s = took;
}

static void job_ended(struct race_job *job, const struct err *error) {
    struct race *r = job->race;
    BUG_ON(job->ended);
    job->ended = true;
    r->n_jobs_live--;
    BUG_ON(!r->n_jobs_live && r->n_decoding);
    if (r->job_error.kind == ERR_NONE) r->job_error = *error;
    if (settled(r) && !r->n_jobs_live) count_cancel(r);
}

static void take_event(struct race_job *job, const struct engine_event *event) {
    struct race *r = job->race;
    int index = job->first + event->index * r->n_jobs;
    switch (event->type) {
    case ENGINE_PREFILLED:
        r->counts.cached_tokens += event->cached_tokens;
        if (r->counts.prompt_s < 0) r->counts.prompt_s = clock_seconds() - r->started_at;
        race_set_dirty(r->set, r);
        if (!event->logprobs || settled(r) || !r->callbacks.on_prompt) break;
        r->prompt_logprobs = race_entry_copy_logprobs(event);
        r->callbacks.on_prompt(r->arg, r->prompt_logprobs);
        break;
    case ENGINE_STARTED:
        candidate_started(r, index);
        break;
    case ENGINE_TEXT:
        if (r->has_tests)
            candidate_drew(r, index, event);
        else if (!settled(r) && r->stream && r->callbacks.on_text)
            r->callbacks.on_text(r->arg, index, event->text, event->text_len, event);
        break;
    case ENGINE_ENDED:
        candidate_ended(job, index, event);
        break;
    case ENGINE_JOB_ENDED:
        job_ended(job, &event->error);
        break;
    }
}

void race_set_event(struct race_set *set, const struct engine_event *event) {
    struct race_job *job = race_set_find(set, event->job);
    if (!job) return; /* one whose race_start failed */
    struct race *r = job->race;
    race_enter(r);
    take_event(job, event);
    judge(r);
    race_leave(r);
}

/* ---- from the caller ---- */

static struct race *race_new(struct race_set *set, const struct race_request *q,
                             const struct race_callbacks *callbacks, void *arg) {
    struct race *r = err_alloc(1, sizeof *r);
    r->set = set;
    list_init(&r->link);
    list_init(&r->waiting);
    list_init(&r->kept);
    r->state = RACE_PREPARING;
    r->callbacks = *callbacks;
    r->arg = arg;
    r->has_tests = q->tests != NULL;
    r->stream = q->job.stream;
    r->n_choices = q->n_choices;
    r->returns = q->returns;
    r->n_passes = q->n_passes > 1 ? q->n_passes : 1;
    r->on_fail = q->on_fail;
    r->detail = q->detail;
    r->job_width = r->width = q->job.width;
    r->narrow_at = VERDICTS_HIGH;
    r->seed = q->job.seed;
    r->deadline_s = q->deadline_s;
    r->lowest_pass = -1;
    r->cancelled_from = q->job.n_candidates;
    race_rank_init(&r->rank);
    r->counts.max_candidates = q->job.n_candidates;
    r->counts.prompt_s = r->counts.first_pass_s = -1;
    r->started_at = clock_seconds();
    return r;
}

/* One job for each prompt that has a candidate. */
static bool submit(struct race *r, const struct race_request *q, struct err *e) {
    const struct race_engine *engine = &r->set->engine;
    uint64_t ids[LIMIT_PROMPT_VARIANTS];
    int n = q->job.n_candidates < q->n_prompts ? q->job.n_candidates : q->n_prompts;
    struct engine_job *specs = err_alloc((size_t)n, sizeof *specs);
    for (int i = 0; i < n; i++) {
        const struct race_prompt *p = &q->prompts[(q->job.first_index + i) % q->n_prompts];
        specs[i] = q->job;
        specs[i].prompt = p->tokens;
        specs[i].n_prompt = p->n_tokens;
        specs[i].lead = p->lead;
        specs[i].lead_len = p->lead_len;
        specs[i].n_candidates = divide_up(q->job.n_candidates - i, n);
        specs[i].first_index = q->job.first_index + i;
        specs[i].index_step = q->n_prompts;
        r->counts.prompt_tokens += p->n_tokens;
    }
    bool ok = engine->submit(engine->self, specs, n, ids, e);
    free(specs);
    if (!ok) return false;
    r->jobs = err_alloc((size_t)n, sizeof *r->jobs);
    r->n_jobs = r->n_jobs_live = n;
    for (int i = 0; i < n; i++) {
        r->jobs[i] = (struct race_job){.race = r, .id = ids[i], .first = i};
        list_init(&r->jobs[i].routed);
    }
    return true;
}

bool race_start(struct race_set *set, const struct race_request *q,
                const struct race_callbacks *callbacks, void *arg, struct race **out,
                struct err *e) {
    BUG_ON(!callbacks->on_done || q->job.n_candidates < 1);
    BUG_ON(q->n_prompts < 1 || q->n_prompts > LIMIT_PROMPT_VARIANTS);
    BUG_ON(!q->tests && (q->n_choices < 1 || q->n_choices > q->job.n_candidates));
    struct race *r = race_new(set, q, callbacks, arg);
    if (!submit(r, q, e)) {
        race_free(r);
        return false;
    }
    if (q->tests && !set->verifier.tests_open(set->verifier.self, q->tests, on_tests_ready, r, e)) {
        cancel_jobs(r);
        race_free(r);
        return false;
    }
    r->tests_pending = q->tests != NULL;
    race_set_add(set, r);
    if (!r->tests_pending) race_move(r, RACE_RUNNING);
    if (r->deadline_s > 0) race_set_timer_start(r);
    *out = r;
    return true;
}

void race_abandon(struct race *r) {
    race_enter(r);
    r->abandoned = true;
    if (!settled(r)) {
        race_stop(r);
        r->set->stats.abandoned++;
    }
    race_leave(r);
}

void race_set_width(struct race *r, int width) {
    r->job_width = width;
    update_width(r);
}

void race_fail(struct race *r, const struct err *error) {
    race_enter(r);
    if (!settled(r)) race_settle_error(r, error);
    race_leave(r);
}

void race_deadline(struct race *r) {
    race_enter(r);
    if (!settled(r)) race_settle_deadline(r);
    race_leave(r);
}

int64_t race_tokens(const struct race *r) {
    const struct race_engine *engine = &r->set->engine;
    int64_t sum = 0;
    for (int i = 0; i < r->n_jobs; i++) {
        const struct race_job *job = &r->jobs[i];
        /* Events on their way are ahead of the engine's count, or behind it. */
        int64_t drawn = job->ended ? 0 : engine->tokens(engine->self, job->id);
        sum += drawn > job->tokens ? drawn : job->tokens;
    }
    return sum;
}

static int64_t rows(const struct race *r) {
    const struct race_engine *engine = &r->set->engine;
    int64_t sum = 0;
    for (int i = 0; i < r->n_jobs; i++) {
        const struct race_job *job = &r->jobs[i];
        sum += job->ended ? job->rows : engine->rows(engine->self, job->id);
    }
    return sum;
}

void race_counts(const struct race *r, struct race_counts *out) {
    *out = r->counts;
    out->rows = rows(r);
    out->total_s = (settled(r) ? r->settled_at : clock_seconds()) - r->started_at;
    if (!settled(r)) out->tokens_losers = race_tokens(r);
}
