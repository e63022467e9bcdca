/* The built-in attacks (attacks.txt, embedded) and their honest twins, run on a verifier.
 *
 * What the text's directives mean is said at its head.  For the tests and for verifier_attack();
 * LOOP thread. */
#ifndef VERIFIER_ATTACK_H
#define VERIFIER_ATTACK_H

#include "verifier/verifier.h"

struct attack {
    char name[100];            /* "41 the own process group" */
    char *code, *twin, *tests; /* owned; tests NULL: the usual ones */
    unsigned expect;           /* bits of enum verdict_kind */
    unsigned open, open_user;  /* bits of levels at which it is known to work; without a uid */
    unsigned twin_levels;      /* bits of levels at which the twin must pass */
    unsigned needs;            /* bits of enum verifier_without: layers it is not run without */
};
struct attack_list {
    struct attack *items; /* owned */
    int n;
};
/* A malformed text is a bug. */
void attack_load(struct attack_list *);
void attack_unload(struct attack_list *);

struct attack_outcome {
    bool ran, twin_ran;
    enum verdict_kind kind, twin_kind;
    char said[200], twin_said[200]; /* the verdict's error and limit */
};

enum attack_result {
    ATTACK_SKIPPED,
    ATTACK_STOPPED, /* with a verdict that the text expects, and its twin passed */
    ATTACK_OPEN,    /* it worked, as is known of this level */
    ATTACK_THROUGH, /* it worked and must not */
    ATTACK_WRONG,   /* an unexpected verdict, or its twin did not pass */
};
/* What the outcome means at `level`. */
enum attack_result attack_judge(const struct attack *, const struct attack_outcome *, int level,
                                bool own_uid);

/* Runs all attacks that may be run `without` these layers, and, `with_twins`, their twins; codes of
 * one tests text are judged together, so that they also disturb each other if they can.
 * `progress(arg, done, total)` may be NULL.  Runs `loop`. */
bool attack_run(struct verifier *, uv_loop_t *loop, const struct attack_list *, unsigned without,
                bool with_twins, struct attack_outcome *out,
                void (*progress)(void *arg, int done, int total), void *arg,
                struct err *e) MUST_CHECK;

#endif
