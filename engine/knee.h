/* The roofline knee: how many candidates of a race decode at once where nobody says otherwise.
 *
 * Below the knee another row is nearly free, since the weights are read anyway; above it a step
 * takes longer in proportion, and a wider race only delays its first candidate.  Measured once, on
 * the real model, before the engine starts. */
#ifndef ENGINE_KNEE_H
#define ENGINE_KNEE_H

#include "engine/decode.h"

enum { KNEE_MEASURES = 12 };

struct knee {
    int width;                     /* the answer */
    int n;                         /* measures made */
    int rows[KNEE_MEASURES];       /* 1, 2, 4, … */
    double seconds[KNEE_MEASURES]; /* of one step with so many rows, logits and draws included */
};

/* Decodes throw-away candidates through `d`, which must have no jobs and whose events must be
 * dropped meanwhile. */
bool knee_measure(struct knee *, struct decode *d, int max_rows, struct err *e);

#endif
