/* Cuts text into the pieces inside which byte pairs may merge, as a model's training did: by
 * regular expressions that a GGUF file names in tokenizer.ggml.pre.  An unknown name is refused:
 * with the wrong pattern a model still talks, but worse.
 *
 * PCRE2, UTF and Unicode properties on, JIT-compiled where the machine allows.  White space is
 * spelled out in the patterns, because PCRE2's \s holds U+180E, which the reference's (Oniguruma's)
 * doesn't.  Letters and numbers are those of PCRE2's Unicode version (14 in 10.42), so that
 * characters assigned later may be cut otherwise than by a newer reference.
 *
 * Text is cut as it is.  Qwen2's reference composes it first (NFC); GGUF files don't say so, and
 * composing would make decode(encode(x)) differ from x, so that only text with decomposed
 * characters gets other tokens than there.
 *
 * Immutable after pretokenizer_new: any thread. */
#ifndef ENGINE_PRETOKENIZER_H
#define ENGINE_PRETOKENIZER_H

#include "base/err.h"

#include <stddef.h>

struct pretokenizer;

/* `name` as stored in the file; `label` names the file in messages. */
struct pretokenizer *pretokenizer_new(const char *name, size_t len, const char *label,
                                      struct err *e);
void pretokenizer_free(struct pretokenizer *);
/* What the models of this name share besides the pattern. */
bool pretokenizer_ignores_merges(
    const struct pretokenizer *); /* a piece that is a token as a whole is that token */
bool pretokenizer_adds_bos(const struct pretokenizer *); /* where the file says nothing */

/* Calls piece() for each piece in order; together they are the text.  `text` must be valid UTF-8.
 * Fails (ERR_INPUT) only where a pattern needs more work than is linear in the text. */
bool pretokenizer_split(const struct pretokenizer *, const char *text, size_t len,
                        void (*piece)(void *arg, const char *text, size_t len), void *arg,
                        struct err *e);

#endif
