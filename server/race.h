/* The race: candidates out, verdicts in, the first pass answered, siblings cancelled.
 *
 * THEORY.  One race is one engine job for each of its prompts, mostly one, and, with tests, one
 * verifier_tests object.  It is the only place that knows both engine and verifier.  Events of
 * either come in any order, routed here by (race, index); each candidate walks its own states
 *
 *   WAITING → DECODING → VERIFYING → DECIDED          (tests)
 *   WAITING → DECODING → DECIDED                      (no tests)
 *   any but DECIDED → CANCELLED
 *
 * and the race PREPARING → RUNNING → SETTLED → ENDED.  PREPARING lasts while the tests compile; the
 * engine reads the prompt meanwhile, and candidates that end that early wait as VERIFYING.  SETTLED
 * when the answer is known: everything is cancelled, then on_done is called, once.  ENDED when
 * engine and verifier have both let go of it; only then it is freed.
 *
 * Counts always add up: started = decoding + cancelled while decoding + finished, and
 * finished = verifying + cancelled while verifying + verified + broken.
 *
 * Memory grows with the candidates started, not with those allowed.  A loser's text is dropped as
 * soon as it is decided, unless it may still be the answer or the request wants to see it.
 *
 * LOOP thread.  Engine and verifier are reached through two small tables, so that tests script
 * them. */
#ifndef SERVER_RACE_H
#define SERVER_RACE_H

#include "base/err.h"
#include "engine/engine.h"
#include "verifier/verifier.h"

/* The calls of engine.h (submit: of a group) and verifier.h that a race makes; `self` is the engine
 * or the verifier. None of them calls back before it returns.  tests_close is never called from
 * within a callback.
 */
struct race_engine {
    void *self;
    bool (*submit)(void *self, const struct engine_job *, int n, uint64_t *ids, struct err *e);
    void (*cancel)(void *self, uint64_t id);
    void (*cancel_candidate)(void *self, uint64_t id, int index);
    void (*set_width)(void *self, uint64_t id, int width);
    int64_t (*tokens)(void *self, uint64_t id); /* drawn so far for a job that hasn't ended */
    int64_t (*rows)(void *self, uint64_t id);   /* computed for them */
};
struct race_verifier {
    void *self;
    bool (*tests_open)(void *self, const struct verifier_spec *,
                       void (*ready)(void *arg, struct verifier_tests *, const struct err *),
                       void *arg, struct err *e);
    void (*tests_close)(struct verifier_tests *);
    uint64_t (*submit)(struct verifier_tests *, int index, const char *text, size_t len,
                       bool cut_by_length,
                       void (*done)(void *arg, int index, const struct verdict *), void *arg);
    void (*cancel)(struct verifier_tests *, uint64_t id);
};

enum race_entry_state {
    RACE_ENTRY_WAITING,
    RACE_ENTRY_DECODING,
    RACE_ENTRY_VERIFYING,
    RACE_ENTRY_DECIDED,
    RACE_ENTRY_CANCELLED,
};

/* What is answered, with tests.
 *   first         the first n_passes passes in time; fewer where no more are to be had
 *   lowest_index  the pass of lowest index: reproducible for a seed; waits for all lower ones
 *   best          all candidates run; passes before others, then as server/race_rank.h orders them
 *   all           all candidates run and all are choices: passes first, each kind in order of index
 */
enum race_return { RACE_FIRST, RACE_LOWEST_INDEX, RACE_BEST, RACE_ALL };
/* Where none passed: the best of those judged, unverified; or ERR_NONE_PASSED. */
enum race_on_fail { RACE_FAIL_BEST, RACE_FAIL_ERROR };
enum race_detail { RACE_CANDIDATES_NONE, RACE_CANDIDATES_VERDICTS, RACE_CANDIDATES_FULL };

struct race_prompt {
    const int32_t *tokens;
    int n_tokens;
    const char *lead; /* as in engine_job */
    size_t lead_len;
};

/* Borrowed until race_start() returns. */
struct race_request {
    struct engine_job job; /* n_candidates included; without prompt */
    /* Candidate i continues prompts[(job.first_index + i) mod n_prompts]. */
    const struct race_prompt *prompts;
    int n_prompts;                     /* 1 … LIMIT_PROMPT_VARIANTS */
    const struct verifier_spec *tests; /* NULL: plain parallel sampling */
    /* Without tests: answers wanted, 1 … job.n_candidates; fewer = the best by mean
     * log-probability. */
    int n_choices;
    enum race_return returns;
    int n_passes; /* RACE_FIRST: passes wanted; 0 is 1 */
    enum race_on_fail on_fail;
    enum race_detail detail;
    double deadline_s; /* 0: none */
};

/* One candidate as the answer shows it; memory of the race, borrowed until the callback returns.
 * Text, tokens, code and output are there for choices, and for all where detail is FULL. */
struct race_candidate {
    int index;
    const char *text; /* NULL where it was dropped or never finished */
    size_t text_len;
    const int32_t *tokens; /* NULL where text is */
    int n_tokens;
    const struct engine_logprob *logprobs; /* [n_tokens], or NULL */
    enum engine_reason reason;             /* ENGINE_CANCELLED where it didn't finish */
    const char *stop;                      /* the stop string that ended it, or NULL */
    double mean_logprob;
    /* with tests */
    bool decided; /* a verdict came */
    enum verdict_kind verdict;
    bool duplicate;
    int tests_passed, tests_total;
    double verify_s, cpu_s; /* wall and CPU */
    int max_rss_mb;
    const char *code, *error, *method, *output, *limit,
        *trust; /* never NULL when decided, but limit */
    size_t code_len, output_len;
    const char *tests_json; /* what came of each test, as JSON; NULL: not asked for */
    size_t tests_len;
};

struct race_counts {
    int max_candidates, started, finished;
    int verified; /* verdicts on candidates, whatever they say */
    int broken;   /* the sandbox failed: no verdict */
    int passed, cancelled, duplicates;
    /* Generated.  Candidates cut off while decoding are added when the engine reports their end, so
     * an answer counts those that had ended by then. */
    int64_t tokens_winner, tokens_losers;
    int64_t rows;                     /* computed for the candidates, see engine_job_rows() */
    int prompt_tokens, cached_tokens; /* of all its prompts, each once */
    double prompt_s; /* until the first prompt was in the cache, waiting included; < 0: not yet */
    double first_pass_s; /* < 0: none passed */
    double verify_s;     /* wall time of all verdicts together */
    double total_s;      /* until settled, or now */
};

struct race_result {
    struct err error; /* ERR_NONE: there is an answer; ERR_NONE_PASSED: on_fail error; others */
    bool verified;    /* the first choice passed its tests */
    bool deadline;    /* the time limit ended it; an answer is the best by then */
    const struct race_candidate *const *choices; /* the winner first; without tests in order */
    int n_choices;
    /* Those started, in order of index, where detail asks or none passed. */
    const struct race_candidate *const *candidates;
    int n_candidates;
    struct race_counts counts;
    uint64_t seed;
};

struct race_callbacks {
    /* Exactly once, never from within race_start(), unless race_abandon() was called before.
     * Deadline and errors come here too.  The race is gone for the caller when it returns. */
    void (*on_done)(void *arg, const struct race_result *);
    /* Without tests and with job.stream: text of candidate `index` as it is decoded, then its end.
     * May be NULL.  race_abandon() may be called from within. */
    void (*on_text)(void *arg, int index, const char *text, size_t len,
                    const struct engine_event *event);
    void (*on_end)(void *arg, const struct race_candidate *);
    /* Where the job asks for the prompt's log-probabilities: [job.n_prompt], as ENGINE_PREFILLED
     * tells them; they live until on_done has returned, or race_abandon() was called. */
    void (*on_prompt)(void *arg, const struct engine_logprob *);
    /* With tests: a candidate as its verdict comes, text and code included, in any order.  The race
     * must be left alone until it returns.  May be NULL. */
    void (*on_verdict)(void *arg, const struct race_candidate *);
    /* When a count changed, at most once a loop turn, never after on_done.  May be NULL. */
    void (*on_progress)(void *arg, const struct race_counts *);
    /* With tests: a candidate has come to another state, or, with job.stream, drawn more tokens
     * (n_tokens).  One that was just decided still has its texts, whatever `detail` says.  Never
     * after on_done.  May be NULL; mustn't call back into the race. */
    void (*on_candidate)(void *arg, const struct race_candidate *, enum race_entry_state);
};

struct race;
struct race_set; /* all races of one server; embeds the routing of engine events */

struct race_set *race_set_new(uv_loop_t *, struct race_engine, struct race_verifier);
/* All races must have ended (stats: live 0).  The loop must turn once more for its handles to
 * close. */
void race_set_free(struct race_set *);
/* Routes one engine event to its race. */
void race_set_event(struct race_set *, const struct engine_event *);
/* race_fail() for every live race. */
void race_set_fail(struct race_set *, const struct err *);

/* False where the engine or the verifier refuses at once: then no callback comes. */
bool race_start(struct race_set *, const struct race_request *, const struct race_callbacks *,
                void *arg, struct race **out, struct err *e) MUST_CHECK;
/* Nobody waits any more (the client left): everything is cancelled, no callback comes after this;
 * `race` is gone for the caller. */
void race_abandon(struct race *);
/* Changes how many candidates may be in flight (0: as the engine sees fit). */
void race_set_width(struct race *, int width);
/* Cancels everything and answers on_done with this error. */
void race_fail(struct race *, const struct err *);
/* The counts as they are now. */
void race_counts(const struct race *, struct race_counts *out);

struct race_set_stats {
    int live; /* not ENDED */
    /* Counters.  Each race that started ends up in one of verified, unverified (with tests, none
     * passed), plain (answered, without tests), failed, abandoned. */
    uint64_t races, verified, unverified, plain, failed, abandoned;
    uint64_t candidates_started, candidates_finished, candidates_cancelled, candidates_passed;
    uint64_t candidates_stopped; /* cancelled before their end: started = finished + stopped where
                                    nothing is live */
    uint64_t candidates_broken, duplicates;
    /* From the answer, or the client's leaving, until the engine had let go of all its candidates.
     */
    uint64_t cancels;
    double cancel_s, cancel_longest_s;
    uint64_t tokens_winner, tokens_losers; /* added when a race has ended */
};
void race_set_stats(const struct race_set *, struct race_set_stats *out);

#endif
