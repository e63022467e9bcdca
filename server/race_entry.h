/* One candidate inside a race: its state, and copies of what engine and verifier said of it.
 *
 * Owned by its race; LOOP thread.  `view` is what the answer shows and borrows from the owned
 * blocks. */
#ifndef SERVER_RACE_ENTRY_H
#define SERVER_RACE_ENTRY_H

#include "base/list.h"
#include "server/race.h"

struct race_entry {
    struct race_candidate view;
    enum race_entry_state state;
    bool ended;         /* the engine's last event of it came */
    uint64_t verify_id; /* 0: not with the verifier */
    struct list kept;   /* in struct race.kept while its text is */
    /* owned; NULL where absent */
    char *text; /* the text, and the stop string behind it */
    int32_t *tokens;
    void *logprobs;
    char *code;   /* the code, and the output behind it */
    char *reason; /* error, method, limit and trust */
    char *tests_json;
};

struct race_entry *race_entry_new(int index);
void race_entry_free(struct race_entry *);
/* The legal moves are those in race.h; any other is a bug. */
void race_entry_move(struct race_entry *, enum race_entry_state to);
/* Copies an ENGINE_ENDED event. */
void race_entry_set_output(struct race_entry *, const struct engine_event *);
/* The event's log-probabilities in one block of memory; free(). */
struct engine_logprob *race_entry_copy_logprobs(const struct engine_event *);
/* Copies a verdict. */
void race_entry_set_verdict(struct race_entry *, const struct verdict *);
/* Forgets text, tokens, code and output; what the verdict said stays. */
void race_entry_drop(struct race_entry *);

#endif
