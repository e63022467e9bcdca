#include "engine/bpe.h"

#include <stdlib.h>

enum { NONE = -1 };

struct bpe_symbol {
    int32_t token; /* NONE: merged into the one before */
    int32_t prev, next;
};

/* Room for one more item. */
static void *grow(void *items, size_t n, size_t *capacity, size_t size) {
    if (n < *capacity) return items;
    *capacity = *capacity ? 2 * *capacity : 256;
    return err_realloc(items, *capacity, size);
}

void bpe_init(struct bpe *b, const struct vocab *v) { *b = (struct bpe){.vocab = v}; }

void bpe_clear(struct bpe *b) {
    free(b->tokens);
    free(b->symbols);
    free(b->heap);
    *b = (struct bpe){0};
}

void bpe_token(struct bpe *b, int32_t token) {
    b->tokens = grow(b->tokens, b->n_tokens, &b->token_capacity, sizeof *b->tokens);
    b->tokens[b->n_tokens++] = token;
}

/* ---- the heap: lowest rank on top, then the leftmost ----
 * A pair that may merge is its rank above the number of its left symbol, one integer.  It is stale
 * when its symbols have changed since; that is seen when it comes up.  Eight children to a node: a
 * word of megabytes is bound by cache misses, and takes 1.7 times as long with two. */

enum { CHILDREN = 8 };

static void push(struct bpe *b, uint64_t pair) {
    b->heap = grow(b->heap, b->n_heap, &b->heap_capacity, sizeof *b->heap);
    size_t i = b->n_heap++;
    while (i && pair < b->heap[(i - 1) / CHILDREN]) {
        b->heap[i] = b->heap[(i - 1) / CHILDREN];
        i = (i - 1) / CHILDREN;
    }
    b->heap[i] = pair;
}

static uint64_t pop(struct bpe *b) {
    uint64_t top = b->heap[0], last = b->heap[--b->n_heap];
    size_t i = 0;
    for (;;) {
        size_t first = CHILDREN * i + 1, least = first;
        if (first >= b->n_heap) break;
        size_t end = first + CHILDREN < b->n_heap ? first + CHILDREN : b->n_heap;
        for (size_t k = first + 1; k < end; k++)
            if (b->heap[k] < b->heap[least]) least = k;
        if (last <= b->heap[least]) break;
        b->heap[i] = b->heap[least];
        i = least;
    }
    if (b->n_heap) b->heap[i] = last;
    return top;
}

/* ---- merging ---- */

/* What the symbol and its right neighbour merge to, or NULL. */
static const struct vocab_merge *merge_at(const struct bpe *b, int32_t left) {
    int32_t right = left == NONE ? NONE : b->symbols[left].next;
    if (right == NONE || b->symbols[left].token == NONE) return NULL;
    return vocab_merge(b->vocab, b->symbols[left].token, b->symbols[right].token);
}

static void consider(struct bpe *b, int32_t left) {
    const struct vocab_merge *m = merge_at(b, left);
    if (m) push(b, (uint64_t)m->rank << 32 | (uint32_t)left);
}

static void load_bytes(struct bpe *b, const char *bytes, size_t len) {
    b->n_symbols = 0;
    for (size_t i = 0; i < len; i++) {
        int32_t token = vocab_word(b->vocab, bytes + i, 1);
        if (token < 0) continue;
        b->symbols = grow(b->symbols, b->n_symbols, &b->symbol_capacity, sizeof *b->symbols);
        int32_t at = (int32_t)b->n_symbols++;
        b->symbols[at] = (struct bpe_symbol){token, at - 1, at + 1};
    }
    if (b->n_symbols) b->symbols[b->n_symbols - 1].next = NONE;
}

void bpe_piece(struct bpe *b, const char *bytes, size_t len) {
    BUG_ON(len > INT32_MAX);
    load_bytes(b, bytes, len);
    if (!b->n_symbols) return;
    b->n_heap = 0;
    for (size_t i = 0; i + 1 < b->n_symbols; i++)
        consider(b, (int32_t)i);
    while (b->n_heap) {
        uint64_t pair = pop(b);
        int32_t at = (int32_t)(uint32_t)pair;
        const struct vocab_merge *m = merge_at(b, at);
        if (!m || (uint64_t)m->rank != pair >> 32) continue;
        struct bpe_symbol *left = &b->symbols[at], *right = &b->symbols[left->next];
        left->token = m->token;
        left->next = right->next;
        right->token = NONE;
        if (left->next != NONE) b->symbols[left->next].prev = at;
        consider(b, left->prev);
        consider(b, at);
    }
    for (int32_t i = 0; i != NONE; i = b->symbols[i].next)
        bpe_token(b, b->symbols[i].token);
}
