/* Guesses of the tokens that a branch draws next, from what it has read and written so far.
 *
 * Answers about code repeat much of the question: its imports, the signature, the docstring.  Where
 * the last tokens have stood before, in the prompt or in the answer, what followed them there is
 * likely to follow again.  Such tokens are computed as further rows of the same step, which cost
 * little while a step is bound by reading the weights; each row's draws count only if those before
 * it were the guessed tokens.  Draws depend on (seed, candidate, position) and the history alone,
 * so that the answer is the same with and without guesses: only steps are saved.
 *
 * Sources: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023),
 * whose acceptance is exact here since the draw itself is compared; Yang et al., "Inference with
 * Reference" (2023), for guesses copied from the text at hand.
 *
 * Pure functions; ENGINE thread. */
#ifndef ENGINE_GUESS_H
#define ENGINE_GUESS_H

#include <stdint.h>

enum { GUESS_MOST = 16 }; /* guesses of one branch at a time */

/* Up to `most` guesses of what follows `n` tokens, of which the first n_prompt lie in `prompt` and
 * the others in `text`: as many as the end of the tokens has in common with the earlier place,
 * since a long match is a better reason than a short one.  Returns how many. */
int guess_next(const int32_t *prompt, int n_prompt, const int32_t *text, int n_text, int most,
               int32_t *out);

#endif
