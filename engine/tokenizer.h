/* Byte-level BPE as GPT-2 introduced it and Llama 3, Qwen2 and SmolLM use it, from a GGUF file's
 * vocabulary.
 *
 * Text is cut first at added tokens (types control and user-defined), longest match first; the rest
 * goes through the pre-tokenizer's patterns (engine/pretokenizer.h) and is merged by rank.  An
 * unknown tokenizer.ggml.model or tokenizer.ggml.pre is refused by name.  Encoding is O(n log n),
 * even of one long word.
 *
 * Immutable after tokenizer_new: any thread. */
#ifndef ENGINE_TOKENIZER_H
#define ENGINE_TOKENIZER_H

#include "base/buf.h"
#include "base/err.h"
#include "engine/gguf.h"

#include <stdint.h>

struct tokenizer;

struct tokenizer *tokenizer_new(const struct gguf *, struct err *e);
void tokenizer_free(struct tokenizer *);

int tokenizer_n_vocab(const struct tokenizer *);
int32_t tokenizer_bos(const struct tokenizer *); /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *);
bool tokenizer_adds_bos(const struct tokenizer *);
/* Whether the token ends generation: eos, eot, eom and the control tokens known by text
 * (<|im_end|>, <|endoftext|>, <|eot_id|>,
 * <|eom_id|>, <|end_of_text|>, …). */
bool tokenizer_ends_generation(const struct tokenizer *, int32_t token);
bool tokenizer_is_control(const struct tokenizer *, int32_t token);
/* All end-of-generation tokens; borrowed. */
const int32_t *tokenizer_ends(const struct tokenizer *, int *n);
/* The id of the token whose whole text this is, or -1. */
int32_t tokenizer_find(const struct tokenizer *, const char *text, size_t len);

/* Raw bytes of a token (control tokens: their text); borrowed. */
const char *tokenizer_bytes(const struct tokenizer *, int32_t token, size_t *len);

/* ENGINE_TOKENIZE_* flags.  Text that isn't UTF-8 is an ERR_INPUT.  *out: free().
 * ENGINE_TOKENIZE_BOS puts no second one before text that begins with it already (and is read with
 * ENGINE_TOKENIZE_SPECIAL). */
bool tokenizer_encode(const struct tokenizer *, const char *text, size_t len, unsigned flags,
                      int32_t **out, size_t *n, struct err *e);
/* Appends the text of the tokens; control tokens only where `special`.  False where `out` is full.
 */
bool tokenizer_decode(const struct tokenizer *, const int32_t *tokens, size_t n, bool special,
                      struct buf *out);

/* A copy of user text in which no control token can be read, neither inside nor where a template
 * joins it with other text (also after white space at its ends was trimmed).  Marks of
 * noncharacters break the text where one could; whatever the text holds, encoding a template's
 * output with ENGINE_TOKENIZE_SPECIAL | ENGINE_TOKENIZE_GUARDED takes exactly the marks out again,
 * after control tokens have been cut out, so that the user's part gets the tokens of plain text.
 * Control tokens of a single character can't be broken and are therefore never read from text.
 * free() it. */
char *tokenizer_guard(const struct tokenizer *, const char *text, size_t len, size_t *len_out);

#endif
