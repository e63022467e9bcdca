/* Byte pair encoding of one piece: starts from single bytes and always merges the pair of lowest
 * rank, the leftmost among equals (Sennrich et al. 2016, on bytes as in GPT-2).  A heap of
 * candidate pairs over a linked list of symbols makes it O(n log n).
 *
 * Embedded: init / clear.  One thread at a time; the memory is kept from piece to piece. */
#ifndef ENGINE_BPE_H
#define ENGINE_BPE_H

#include "engine/vocab.h"

#include <stddef.h>
#include <stdint.h>

struct bpe_symbol;

struct bpe {
    const struct vocab *vocab; /* borrowed */
    int32_t *tokens;           /* owned; what came out so far */
    size_t n_tokens, token_capacity;
    struct bpe_symbol *symbols; /* owned */
    size_t n_symbols, symbol_capacity;
    uint64_t *heap; /* owned */
    size_t n_heap, heap_capacity;
};

void bpe_init(struct bpe *, const struct vocab *);
void bpe_clear(struct bpe *);
/* Appends one token. */
void bpe_token(struct bpe *, int32_t token);
/* Appends the tokens of a piece of less than 2^31 bytes.  A byte for which the vocabulary has no
 * token is left out, as the reference does. */
void bpe_piece(struct bpe *, const char *bytes, size_t len);

#endif
