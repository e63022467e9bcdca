#include "engine/bpe.h"

#include <stdlib.h>

enum { NONE = -1 };

struct bpe_symbol {
    int32_t token; /* NONE: merged into the one before */
    int32_t prev, next;
};

/* A pair that may merge.  It is stale when its symbols have changed since; that is seen when it
 * comes up. */
struct bpe_pair {
    int32_t rank;
    int32_t left;                    /* symbol */
    const struct vocab_merge *merge; /* borrowed */
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

/* ---- the heap: lowest rank on top, then the leftmost ---- */

static bool before(const struct bpe_pair *a, const struct bpe_pair *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static void push(struct bpe *b, struct bpe_pair pair) {
    b->heap = grow(b->heap, b->n_heap, &b->heap_capacity, sizeof *b->heap);
    size_t i = b->n_heap++;
    while (i && before(&pair, &b->heap[(i - 1) / 2])) {
        b->heap[i] = b->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    b->heap[i] = pair;
}

static struct bpe_pair pop(struct bpe *b) {
    struct bpe_pair top = b->heap[0], last = b->heap[--b->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= b->n_heap) break;
        if (child + 1 < b->n_heap && before(&b->heap[child + 1], &b->heap[child])) child++;
        if (!before(&b->heap[child], &last)) break;
        b->heap[i] = b->heap[child];
        i = child;
    }
    if (b->n_heap) b->heap[i] = last;
    return top;
}

/* ---- merging ---- */

static void consider(struct bpe *b, int32_t left) {
    if (left == NONE) return;
    int32_t right = b->symbols[left].next;
    if (right == NONE) return;
    const struct vocab_merge *m =
        vocab_merge(b->vocab, b->symbols[left].token, b->symbols[right].token);
    if (m) push(b, (struct bpe_pair){m->rank, left, m});
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
        struct bpe_pair pair = pop(b);
        struct bpe_symbol *left = &b->symbols[pair.left];
        if (left->token != pair.merge->left || left->next == NONE) continue;
        struct bpe_symbol *right = &b->symbols[left->next];
        if (right->token != pair.merge->right) continue;
        left->token = pair.merge->token;
        left->next = right->next;
        right->token = NONE;
        if (left->next != NONE) b->symbols[left->next].prev = pair.left;
        consider(b, left->prev);
        consider(b, pair.left);
    }
    for (int32_t i = 0; i != NONE; i = b->symbols[i].next)
        bpe_token(b, b->symbols[i].token);
}
