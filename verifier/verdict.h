/* The names of verdicts, formats and extractions; the enums are in verifier.h. */
#ifndef VERIFIER_VERDICT_H
#define VERIFIER_VERDICT_H

#include "verifier/feedback.h"
#include "verifier/verifier.h"

/* A verdict that owns its strings, for keeping.  Zero it before the first use. */
struct verdict_kept {
    struct verdict verdict;      /* pointers into the strings below */
    char *code, *error, *output; /* owned */
    struct feedback feedback;
};
void verdict_keep(struct verdict_kept *, const struct verdict *);
void verdict_clear(struct verdict_kept *);

#endif
