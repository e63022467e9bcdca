/* Guesses of the tokens that a branch draws next, from what it has read and written so far and from
 * what its siblings have written.
 *
 * Answers about code repeat much of the question: its imports, the signature, the docstring; and
 * candidates of one prompt repeat each other. Where the last tokens have stood before, what
 * followed them there is likely to follow again.  Such tokens are computed as further rows of the
 * same step, which cost little while a step is bound by reading the weights; each row's draws count
 * only if those before it were the guessed tokens.  Draws depend on (seed, candidate, position) and
 * the history alone, so that the answer is the same with and without guesses: only steps are saved.
 *
 * Sources: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023),
 * whose acceptance is exact here since the draw itself is compared; Yang et al., "Inference with
 * Reference" (2023), for guesses copied from the text at hand.
 *
 * Pure functions; any thread. */
#ifndef ENGINE_GUESS_H
#define ENGINE_GUESS_H

#include <stdint.h>

enum {
    GUESS_MOST = 16, /* guesses of one branch at a time */
    /* Tokens looked at, from the end: bounds the time of a search. */
    GUESS_HISTORY = 8192,
    GUESS_SIBLINGS = 2048,
};

struct guess_texts {
    const int32_t *prompt, *text; /* the history: one after the other */
    int n_prompt, n_text;
    const int32_t *siblings; /* texts of siblings, one after the other */
    int n_siblings;
};

/* Up to `most` guesses of what follows the history: as many as its end has in common with the place
 * they are copied from, since a long match is a better reason than a short one.  Returns how many.
 */
int guess_next(const struct guess_texts *, int most, int32_t *out);

#endif
