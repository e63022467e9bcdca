#include "server/race_internal.h"

#include <stdlib.h>

/* ---- handing the answer over ---- */

/* Texts aren't needed once the answer is out, and the engine may take a step to let go. */
static void drop_texts(struct race *r) {
    for (int i = 0; i < r->n_entries; i++)
        if (r->entries[i]) race_entry_drop(r->entries[i]);
}

static void count_tokens(struct race *r, const struct race_result *result) {
    r->counts.tokens_winner = 0;
    for (int i = 0; i < result->n_choices; i++)
        r->counts.tokens_winner += result->choices[i]->n_tokens;
    r->counts.tokens_losers = race_tokens(r) - r->counts.tokens_winner;
}

static void count_outcome(struct race *r, const struct race_result *result) {
    struct race_set_stats *stats = &r->set->stats;
    bool failed = result->error.kind != ERR_NONE && result->error.kind != ERR_NONE_PASSED;
    if (failed)
        stats->failed++;
    else if (!r->has_tests)
        stats->plain++;
    else if (result->verified)
        stats->verified++;
    else
        stats->unverified++;
}

/* Everything is cancelled before the answer goes out, so that siblings stop while it is written. */
static void finish(struct race *r, struct race_result *result) {
    const struct race_candidate **candidates = NULL;
    race_stop(r);
    count_tokens(r, result);
    count_outcome(r, result);
    bool failed = result->error.kind == ERR_NONE_PASSED || result->error.kind == ERR_DEADLINE;
    if (r->has_tests && (failed || r->detail != RACE_CANDIDATES_NONE)) {
        candidates = err_alloc((size_t)r->counts.started, sizeof(struct race_candidate *));
        for (int i = 0; i < r->n_entries; i++)
            if (r->entries[i]) candidates[result->n_candidates++] = &r->entries[i]->view;
    }
    result->candidates = candidates;
    result->seed = r->seed;
    race_counts(r, &result->counts);
    r->callbacks.on_done(r->arg, result);
    free(candidates);
    drop_texts(r);
}

static void answer(struct race *r, const struct race_candidate *const *choices, int n,
                   bool deadline) {
    BUG_ON(n < 1);
    struct race_result result = {
        .verified = choices[0]->decided && choices[0]->verdict == VERDICT_PASSED,
        .deadline = deadline,
        .choices = choices,
        .n_choices = n,
    };
    finish(r, &result);
}

static void answer_one(struct race *r, const struct race_entry *c, bool deadline) {
    const struct race_candidate *choice = &c->view;
    answer(r, &choice, 1, deadline);
}

void race_settle_error(struct race *r, const struct err *error) {
    struct race_result result = {.error = *error, .deadline = error->kind == ERR_DEADLINE};
    finish(r, &result);
}

/* ---- without tests ---- */

/* Higher mean log-probability first, then lower index. */
static int by_logprob(const void *left, const void *right) {
    const struct race_candidate *a = *(const struct race_candidate *const *)left;
    const struct race_candidate *b = *(const struct race_candidate *const *)right;
    int order = (a->mean_logprob < b->mean_logprob) - (a->mean_logprob > b->mean_logprob);
    return order ? order : (a->index > b->index) - (a->index < b->index);
}

static void settle_plain(struct race *r, bool deadline) {
    int n = 0;
    const struct race_candidate **all =
        err_alloc((size_t)r->counts.finished, sizeof(struct race_candidate *));
    for (int i = 0; i < r->n_entries; i++)
        if (r->entries[i] && r->entries[i]->state == RACE_ENTRY_DECIDED)
            all[n++] = &r->entries[i]->view;
    if (r->n_choices < r->counts.max_candidates)
        qsort(all, (size_t)n, sizeof(struct race_candidate *), by_logprob);
    answer(r, all, r->n_choices, deadline);
    free(all);
}

/* ---- with tests ---- */

static const struct race_entry *choose(const struct race *r) {
    if (r->returns == RACE_LOWEST_INDEX && r->lowest_pass >= 0) return r->entries[r->lowest_pass];
    return race_rank_best(&r->rank);
}

/* Passes first; where there are none, the best first. */
static void settle_all(struct race *r, bool deadline) {
    int n = 0;
    const struct race_candidate **all =
        err_alloc((size_t)r->counts.finished, sizeof(struct race_candidate *));
    const struct race_entry *first = r->counts.passed ? NULL : race_rank_best(&r->rank);
    if (first) all[n++] = &first->view;
    for (int passes = 1; passes >= 0; passes--)
        for (int i = 0; i < r->n_entries; i++) {
            const struct race_entry *c = r->entries[i];
            if (!c || c == first || c->state != RACE_ENTRY_DECIDED) continue;
            if ((c->view.verdict == VERDICT_PASSED) == (passes == 1)) all[n++] = &c->view;
        }
    answer(r, all, n, deadline);
    free(all);
}

/* All passes, in order of index. */
static void settle_passes(struct race *r, bool deadline) {
    int n = 0;
    const struct race_candidate **all =
        err_alloc((size_t)r->counts.passed, sizeof(struct race_candidate *));
    for (int i = 0; i < r->n_entries; i++) {
        const struct race_entry *c = r->entries[i];
        if (c && c->state == RACE_ENTRY_DECIDED && c->view.verdict == VERDICT_PASSED)
            all[n++] = &c->view;
    }
    answer(r, all, n, deadline);
    free(all);
}

static void settle_judged(struct race *r, bool deadline) {
    if (r->returns == RACE_ALL)
        settle_all(r, deadline);
    else if (r->n_passes > 1 && r->counts.passed)
        settle_passes(r, deadline);
    else
        answer_one(r, choose(r), deadline);
}

void race_settle_pass(struct race *r) {
    if (r->n_passes > 1)
        settle_passes(r, false);
    else
        answer_one(r, r->entries[r->lowest_pass], false);
}

static void none_judged(struct race *r) {
    struct err error = {0};
    if (r->counts.broken)
        err_set(&error, ERR_SYSTEM,
                "no candidate could be judged: the sandbox failed for all %d that finished; see "
                "`firstpass doctor`",
                r->counts.finished);
    else
        err_set(&error, ERR_SYSTEM, "no candidate finished (%d started)", r->counts.started);
    race_settle_error(r, &error);
}

void race_settle_exhausted(struct race *r) {
    struct err error = {0};
    if (r->job_error.kind != ERR_NONE) {
        race_settle_error(r, &r->job_error);
    } else if (!r->has_tests) {
        if (r->counts.finished >= r->n_choices)
            settle_plain(r, false);
        else
            none_judged(r);
    } else if (!r->counts.verified) {
        none_judged(r);
    } else if (r->counts.passed || r->on_fail == RACE_FAIL_BEST) {
        settle_judged(r, false);
    } else {
        err_set(&error, ERR_NONE_PASSED, "none of %d candidates passed the tests",
                r->counts.verified);
        err_code(&error, "none_passed");
        race_settle_error(r, &error);
    }
}

void race_settle_deadline(struct race *r) {
    struct err error = {0};
    bool enough = r->has_tests
                      ? r->counts.passed || (r->counts.verified && r->on_fail == RACE_FAIL_BEST)
                      : r->counts.finished >= r->n_choices;
    if (!enough) {
        err_set(&error, ERR_DEADLINE,
                "the time limit of %.10g s passed (%d candidates started, %d finished%s); allow "
                "more time, fewer tokens or fewer candidates",
                r->deadline_s, r->counts.started, r->counts.finished,
                r->has_tests ? ", none passed" : "");
        err_code(&error, "deadline_exceeded");
        race_settle_error(r, &error);
    } else if (r->has_tests) {
        settle_judged(r, true);
    } else {
        settle_plain(r, true);
    }
}
