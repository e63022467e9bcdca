/* What each kind of candidate gave in an evaluation: a kind is a prompt variant at a temperature.
 *
 * In the mode `first` a task's race ends with its first pass, so the kinds whose turn comes early
 * are asked more of the easy tasks: `hard`, the passes of tasks whose first pass took more than
 * EVAL_KINDS_HARD candidates, is what compares them there. */
#ifndef SERVER_EVAL_KINDS_H
#define SERVER_EVAL_KINDS_H

#include "server/eval.h"

enum { EVAL_KINDS_HARD = 8 };

struct eval_kind {
    int prompt; /* of diversity's prompts; 0 where there are none */
    double temperature;
    int judged, passed, hard;
    int64_t tokens;
};

struct eval_kinds {
    struct eval_kind *kinds; /* owned [n]: by prompt, then temperature */
    int n;
};

/* Reads the journal; candidates whose sandbox failed don't count.  eval_kinds_clear() in any case.
 */
bool eval_kinds_read(struct eval_kinds *, const struct eval *, struct err *e) MUST_CHECK;
void eval_kinds_clear(struct eval_kinds *);

#endif
