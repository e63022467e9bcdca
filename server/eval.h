/* An evaluation: all tasks of a file against one model, N candidates each, and what came of it.
 *
 * THEORY.  A task's candidates are known by (seed, index): index 0 … n-1, of which each is made
 * once, in whatever race.  A race takes a run of indices that aren't judged yet; so a journal that
 * was cut off anywhere (eval_journal.h) says what is left to do.  Races of several tasks are live
 * at once, so that steps are full: as many as bring the candidates in flight to the backend's wish.
 *
 *   pass@k   all n candidates of each task are judged
 *   first    a task is over with its first pass
 *
 * What a task's tokens and seconds are: of all its candidates, those cut off too; seconds while a
 * race of it was live, which other tasks share.
 *
 * One thread, that of its backend. */
#ifndef SERVER_EVAL_H
#define SERVER_EVAL_H

#include "config/limits.h"
#include "server/eval_backend.h"
#include "server/eval_journal.h"
#include "server/eval_tasks.h"

enum eval_mode { EVAL_PASS_AT_K, EVAL_FIRST };

enum { EVAL_KS = 32 };

struct eval_options {
    enum eval_mode mode;
    int n;
    uint64_t seed;
    double temperature, top_p, min_p;
    int top_k, max_tokens;
    double timeout_s;
    int memory_mb;
    bool completion;             /* prompts are continued; else asked as a chat */
    bool greedy_first;           /* candidate 0 at temperature 0 */
    int in_flight;               /* candidates at once, over all tasks; 0: as the backend likes */
    int first_task, step, limit; /* which tasks: every step-th from first_task on; limit 0: all */
    int ks[EVAL_KS], n_ks;
    /* Diversity, as the API has it.  n 0: the one temperature; NULL: the question as it is. */
    double temperatures[LIMIT_TEMPERATURES];
    int n_temperatures;
    json_t *prompts; /* borrowed */
};

struct eval_result {
    const struct eval_task *task; /* borrowed */
    uint64_t seed;
    unsigned char *made; /* owned [n]: bit 0: judged, bit 1: the sandbox failed in this run */
    int judged, passed, broken;
    int first_pass;         /* lowest index that passed; -1: none */
    int judged_to_pass;     /* candidates judged up to the pass that came first in time */
    int64_t tokens;         /* all that were drawn */
    int64_t tokens_to_pass; /* of those judged up to the first pass in time */
    double seconds;         /* while it was in work */
    double first_pass_s;    /* < 0: none passed */
    char *error;            /* owned; why it can't be run, or NULL */
    struct eval_race *live; /* or NULL */
};

struct eval {
    const struct eval_options *options; /* borrowed */
    const struct eval_tasks *tasks;     /* borrowed */
    struct eval_result *results;        /* owned [n]: of the tasks chosen */
    int n;
    struct eval_backend backend; /* owned while open */
    struct eval_journal journal; /* owned */
    json_t *record;              /* owned: the options that results depend on */
    const char *dir;             /* borrowed */
    double seconds;              /* of this run and those before it */
    int64_t tokens;
    int judged, solved, over; /* candidates; tasks with a pass; tasks with nothing left to do */
    int judged_before, over_before; /* of these, in earlier runs */
    int64_t tokens_before;
    /* of this run */
    double began, seconds_before;
    int n_live;
    struct err error; /* what ended it; ERR_NONE */
};

/* Callbacks of the backend, `arg` the struct eval. */
struct eval_events eval_events(struct eval *);
/* `backend` becomes its own.  Reads what DIR's journal has; options.in_flight 0 becomes the
 * backend's wish.  eval_close() in any case. */
bool eval_open(struct eval *, const struct eval_options *, const struct eval_tasks *,
               const struct eval_backend *backend, const char *dir, struct err *e) MUST_CHECK;
/* Runs to the end.  `progress` is called after each turn and when a task is over (then named). */
bool eval_run(struct eval *, void (*progress)(void *arg, const struct eval_result *over), void *arg,
              struct err *e) MUST_CHECK;
void eval_close(struct eval *);
/* That of the task of that id; NULL where id is NULL or no task chosen has it. */
struct eval_result *eval_result_of(const struct eval *, const char *id);

/* The request for candidates first … first+n-1 of a task as the API's JSON; free() it. */
char *eval_body(const struct eval_options *, const char *model, const struct eval_task *,
                uint64_t seed, int first, int n, int width);

#endif
