/* The race: candidates out, verdicts in, the first pass answered, siblings cancelled.
 *
 * THEORY.  One race is one engine job and, with tests, one verifier_tests object.  It is the only place that knows both engine
 * and verifier.  Events of either come in any order, routed here by (race, index); each candidate walks its own states
 *
 *   WAITING → DECODING → VERIFYING → DECIDED          (tests)
 *   WAITING → DECODING → DECIDED                      (no tests)
 *   any but DECIDED → CANCELLED
 *
 * and the race PREPARING → RUNNING → SETTLED → ENDED: SETTLED when the answer is known (on_done is called then, once), ENDED when
 * engine and verifier have both let go of it; only then it is freed.  Counts always add up: started = finished + cancelled while
 * decoding; finished = verified + verifying or cancelled before a verdict.
 *
 * LOOP thread.  Engine and verifier are reached through two small tables, so that tests script them. */
#ifndef SERVER_RACE_H
#define SERVER_RACE_H

#include "base/err.h"
#include "engine/engine.h"
#include "verifier/verifier.h"

/* The calls of engine.h and verifier.h that a race makes; `self` is the engine or the verifier. */
struct race_engine {
    void *self;
    bool (*submit)(void *self, const struct engine_job *, uint64_t *id, struct err *e);
    void (*cancel)(void *self, uint64_t id);
    void (*cancel_candidate)(void *self, uint64_t id, int index);
    void (*set_width)(void *self, uint64_t id, int width);
};
struct race_verifier {
    void *self;
    bool (*tests_open)(void *self, const struct verifier_spec *,
                       void (*ready)(void *arg, struct verifier_tests *, const struct err *), void *arg, struct err *e);
    void (*tests_close)(struct verifier_tests *);
    uint64_t (*submit)(struct verifier_tests *, int index, const char *text, size_t len, bool cut_by_length,
                       void (*done)(void *arg, int index, const struct verdict *), void *arg);
};

enum race_return { RACE_FIRST, RACE_LOWEST_INDEX, RACE_BEST, RACE_ALL };
enum race_on_fail { RACE_FAIL_BEST, RACE_FAIL_ERROR };
enum race_detail { RACE_CANDIDATES_NONE, RACE_CANDIDATES_VERDICTS, RACE_CANDIDATES_FULL };

/* Borrowed until race_start() returns. */
struct race_request {
    struct engine_job job;             /* n_candidates included */
    const struct verifier_spec *tests; /* NULL: plain parallel sampling of `n_choices` out of job.n_candidates */
    int n_choices;                     /* without tests: answers wanted; fewer than candidates = the best by mean log-probability */
    enum race_return returns;
    enum race_on_fail on_fail;
    enum race_detail detail;
    double deadline_s;                 /* 0: none */
};

/* One candidate as the answer shows it; memory of the race, borrowed until on_done returns. */
struct race_candidate {
    int index;
    const char *text;
    size_t text_len;
    const int32_t *tokens;
    int n_tokens;
    const struct engine_logprob *logprobs; /* or NULL */
    enum engine_reason reason;
    double mean_logprob;
    /* with tests */
    bool decided; /* a verdict came */
    enum verdict_kind verdict;
    bool duplicate;
    int tests_passed, tests_total;
    double verify_s; /* wall */
    const char *code, *error, *method, *output;
    size_t code_len, output_len;
};

struct race_counts {
    int max_candidates, started, finished, verified, passed, cancelled, duplicates, broken;
    int64_t tokens_winner, tokens_losers; /* generated */
    int prompt_tokens, cached_tokens;
    double queued_s, prefill_s, first_pass_s, verify_s, total_s; /* first_pass_s < 0: none passed */
};

struct race_result {
    struct err error;   /* kind ERR_NONE: there is an answer; ERR_NONE_PASSED: on_fail error; ERR_DEADLINE, ERR_BUSY, … */
    bool verified;      /* the first choice passed its tests */
    const struct race_candidate *const *choices; /* the winner first; without tests in order of index */
    int n_choices;
    const struct race_candidate *const *candidates; /* those started, in order of index, where detail asks; for ERR_NONE_PASSED too */
    int n_candidates;
    struct race_counts counts;
    uint64_t seed;
};

struct race_callbacks {
    /* Exactly once, never from within race_start(), unless race_abandon() was called before.  Deadline and errors come here too. */
    void (*on_done)(void *arg, const struct race_result *);
    /* Without tests and with job.stream: text of choice `index` as it is decoded, then its end.  May be NULL. */
    void (*on_text)(void *arg, int index, const char *text, size_t len, const struct engine_event *event);
    void (*on_end)(void *arg, const struct race_candidate *);
    /* When a count changed, at most once a loop turn.  May be NULL. */
    void (*on_progress)(void *arg, const struct race_counts *);
};

struct race;
struct race_set; /* all races of one server; embeds the routing of engine events */

struct race_set *race_set_new(uv_loop_t *, struct race_engine, struct race_verifier);
/* All races must have ended. */
void race_set_free(struct race_set *);
/* Routes one engine event to its race. */
void race_set_event(struct race_set *, const struct engine_event *);

bool race_start(struct race_set *, const struct race_request *, const struct race_callbacks *, void *arg, struct race **out,
                struct err *e);
/* Nobody waits any more (the client left): everything is cancelled, no callback comes after this; `race` is gone for the caller. */
void race_abandon(struct race *);
/* Cancels everything and answers on_done with this error. */
void race_fail(struct race *, const struct err *);
/* The counts as they are now. */
void race_counts(const struct race *, struct race_counts *out);

struct race_set_stats {
    int live; /* not ENDED */
    uint64_t races, verified, unverified, failed, abandoned;
    uint64_t candidates_started, candidates_finished, candidates_cancelled, candidates_passed;
    uint64_t tokens_winner, tokens_losers;
};
void race_set_stats(const struct race_set *, struct race_set_stats *out);

#endif
