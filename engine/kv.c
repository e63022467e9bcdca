#include "engine/kv.h"

#include "base/list.h"

#include <stdlib.h>
#include <string.h>

/* An identity is unique for the pool's life: a serial number for blocks, a salt's hash with the top
 * bit set for roots. */
#define ROOT_BIT (UINT64_C(1) << 63)

struct block {
    struct list idle; /* in pool->unused or pool->cached while refs is 0 */
    int refs;
    int chain_next;    /* next block in its hash bucket, -1 ends */
    uint64_t identity; /* 0: not published */
    uint64_t before;
    int32_t tokens[KERNELS_BLOCK];
};

struct kv_pool {
    int n_blocks, n_unused, n_cached;
    int n_buckets; /* power of two */
    int *buckets;  /* owned; first block of each, -1 none */
    uint64_t next_serial;
    struct list unused, cached; /* cached: least recently used first */
    struct block blocks[];
};

struct kv_pool *kv_pool_new(int n_blocks) {
    BUG_ON(n_blocks < 1);
    struct kv_pool *p = err_alloc(1, sizeof *p + (size_t)n_blocks * sizeof(struct block));
    p->n_blocks = p->n_unused = n_blocks;
    p->next_serial = 1;
    p->n_buckets = 1;
    while (p->n_buckets < n_blocks)
        p->n_buckets *= 2;
    p->buckets = err_alloc((size_t)p->n_buckets, sizeof *p->buckets);
    for (int i = 0; i < p->n_buckets; i++)
        p->buckets[i] = -1;
    list_init(&p->unused);
    list_init(&p->cached);
    for (int i = 0; i < n_blocks; i++)
        list_append(&p->unused, &p->blocks[i].idle);
    return p;
}

void kv_pool_free(struct kv_pool *p) {
    if (!p) return;
    free(p->buckets);
    free(p);
}

int kv_total(const struct kv_pool *p) { return p->n_blocks; }
int kv_free(const struct kv_pool *p) { return p->n_unused + p->n_cached; }
int kv_cached(const struct kv_pool *p) { return p->n_cached; }

static int number_of(const struct kv_pool *p, const struct block *b) {
    return (int)(b - p->blocks);
}

static struct block *block_at(struct kv_pool *p, int block) {
    BUG_ON(block < 0 || block >= p->n_blocks);
    return &p->blocks[block];
}

static int *bucket_of(struct kv_pool *p, uint64_t before, const int32_t *tokens) {
    uint64_t h = before ^ UINT64_C(0x9E3779B97F4A7C15);
    for (int i = 0; i < KERNELS_BLOCK; i++) {
        h ^= (uint32_t)tokens[i];
        h *= UINT64_C(0xFF51AFD7ED558CCD);
        h ^= h >> 32;
    }
    return &p->buckets[h & (uint64_t)(p->n_buckets - 1)];
}

static void unpublish(struct kv_pool *p, struct block *b) {
    if (!b->identity) return;
    int *at = bucket_of(p, b->before, b->tokens);
    while (*at != number_of(p, b))
        at = &p->blocks[*at].chain_next;
    *at = b->chain_next;
    b->identity = 0;
}

int kv_alloc(struct kv_pool *p) {
    struct block *b;
    if (p->n_unused) {
        b = LIST_ITEM(p->unused.next, struct block, idle);
        p->n_unused--;
    } else if (p->n_cached) {
        b = LIST_ITEM(p->cached.next, struct block, idle);
        p->n_cached--;
        unpublish(p, b);
    } else {
        return -1;
    }
    list_remove(&b->idle);
    b->refs = 1;
    return number_of(p, b);
}

void kv_ref(struct kv_pool *p, int block) {
    struct block *b = block_at(p, block);
    if (b->refs++) return;
    BUG_ON(!b->identity); /* only a published block may be taken up again */
    p->n_cached--;
    list_remove(&b->idle);
}

void kv_unref(struct kv_pool *p, int block) {
    struct block *b = block_at(p, block);
    BUG_ON(b->refs <= 0);
    if (--b->refs) return;
    if (b->identity) {
        list_append(&p->cached, &b->idle);
        p->n_cached++;
    } else {
        /* Most recently used first: its memory is the likeliest to be in a cache. */
        list_prepend(&p->unused, &b->idle);
        p->n_unused++;
    }
}

int kv_refs(const struct kv_pool *p, int block) {
    BUG_ON(block < 0 || block >= p->n_blocks);
    return p->blocks[block].refs;
}

uint64_t kv_root(const char *salt) {
    uint64_t h = UINT64_C(0xCBF29CE484222325);
    for (const char *s = salt ? salt : ""; *s; s++)
        h = (h ^ (unsigned char)*s) * UINT64_C(0x100000001B3);
    return h | ROOT_BIT;
}

uint64_t kv_identity(const struct kv_pool *p, int block) {
    BUG_ON(block < 0 || block >= p->n_blocks);
    return p->blocks[block].identity;
}

static int find(struct kv_pool *p, uint64_t before, const int32_t *tokens) {
    for (int i = *bucket_of(p, before, tokens); i >= 0; i = p->blocks[i].chain_next) {
        const struct block *b = &p->blocks[i];
        if (b->before == before && !memcmp(b->tokens, tokens, sizeof b->tokens)) return i;
    }
    return -1;
}

int kv_lookup(struct kv_pool *p, uint64_t before, const int32_t *tokens) {
    int block = find(p, before, tokens);
    if (block >= 0) kv_ref(p, block);
    return block;
}

uint64_t kv_publish(struct kv_pool *p, int block, uint64_t before, const int32_t *tokens) {
    struct block *b = block_at(p, block);
    BUG_ON(b->refs <= 0);
    if (b->identity) return b->identity;
    int equal = find(p, before, tokens);
    if (equal >= 0) return p->blocks[equal].identity;
    b->before = before;
    memcpy(b->tokens, tokens, sizeof b->tokens);
    int *bucket = bucket_of(p, before, tokens);
    b->chain_next = *bucket;
    *bucket = block;
    b->identity = p->next_serial++;
    return b->identity;
}
