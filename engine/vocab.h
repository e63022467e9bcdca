/* A model's tokens and merges, loaded from a GGUF file and checked: bytes of each token, its kind,
 * which ones end generation, and the two look-ups that encoding needs (bytes to token, pair of
 * tokens to merge).
 *
 * Control tokens are in neither look-up, so no text can be merged into one.
 *
 * Embedded: load / clear.  Immutable after vocab_load: any thread. */
#ifndef ENGINE_VOCAB_H
#define ENGINE_VOCAB_H

#include "engine/gguf.h"

#include <stdint.h>

/* As stored in tokenizer.ggml.token_type. */
enum vocab_kind {
    VOCAB_NORMAL = 1,
    VOCAB_UNKNOWN = 2,
    VOCAB_CONTROL = 3,
    VOCAB_USER_DEFINED = 4,
    VOCAB_UNUSED = 5,
    VOCAB_BYTE = 6,
};

/* White space that an added token takes with it; in tokenizer.ggml.token_strip, which only Hugging
 * Face directories have. */
enum vocab_strip { VOCAB_STRIP_LEFT = 1, VOCAB_STRIP_RIGHT = 2 };

struct vocab_merge {
    int32_t left, right;
    int32_t rank;  /* lower ones are merged first */
    int32_t token; /* what the two become */
};

struct vocab {
    int32_t n;
    char *bytes;          /* owned; all tokens' bytes, one behind the other */
    uint32_t *start;      /* owned; [n + 1] into bytes */
    unsigned char *kind;  /* owned; enum vocab_kind */
    unsigned char *strip; /* owned; enum vocab_strip; NULL: none */
    bool *ends;           /* owned; ends generation */
    int32_t *end_list;    /* owned; those tokens in order */
    int n_ends;
    int32_t bos, eos; /* -1: none */
    /* Open addressing; slots are powers of two, -1 and left = -1 are empty ones. */
    int32_t *words; /* owned */
    uint32_t words_mask;
    struct vocab_merge *merges; /* owned */
    uint32_t merges_mask;
};

bool vocab_load(struct vocab *, const struct gguf *, struct err *e);
void vocab_clear(struct vocab *);

static inline const char *vocab_bytes(const struct vocab *v, int32_t token, size_t *len) {
    *len = v->start[token + 1] - v->start[token];
    return v->bytes + v->start[token];
}
/* The token of these bytes, control ones left aside; -1: none. */
int32_t vocab_word(const struct vocab *, const char *bytes, size_t len);
/* What two neighbours merge to, or NULL. */
const struct vocab_merge *vocab_merge(const struct vocab *, int32_t left, int32_t right);

#endif
