/* Packages that take long to load, loaded once for the candidates that import them.
 *
 * THEORY.  A candidate that imports numpy would load it anew, which costs more than all the rest of
 * its verdict.  So a worker may have, beside its zygote, a process N for a package: forked from the
 * zygote, with the package loaded, it forks candidates in the zygote's place.  It is made when the
 * first candidate asks for it, and nobody waits for it: until it is there the zygote does.  N holds
 * no tests and no code, and its candidates have the limits that all have, so that their verdicts
 * are the same either way. LOOP thread. */
#ifndef VERIFIER_FLAVOUR_H
#define VERIFIER_FLAVOUR_H

#include "verifier/holder.h"

enum flavour { FLAVOUR_STANDARD, FLAVOUR_NUMPY, FLAVOUR_SCIPY, FLAVOUR_PANDAS, FLAVOURS };

/* What its lines that begin with `import` or `from` ask for; of several the last of the list above,
 * which loads the others too. */
enum flavour flavour_of(const char *code, size_t len);

/* Embedded in a worker; zero it. */
struct flavour_set {
    struct flavour_place {
        struct holder *holder; /* owned; NULL: not there */
        bool loaded;           /* it was READY once */
        bool useless;          /* it doesn't load here */
    } places[FLAVOURS];
};

/* Where its candidates are forked; NULL: by the zygote, for now.  `memory` as of holder_input. */
struct forker *flavour_forker(struct flavour_set *, struct watch_set *, struct forker *zygote,
                              enum flavour, uint64_t memory);
/* The worker has gone, or goes. */
void flavour_clear(struct flavour_set *);

#endif
