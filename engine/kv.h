/* The blocks of the KV cache: who holds which, and which hold a prompt worth keeping.
 *
 * A block is KERNELS_BLOCK positions of keys and values in every layer; only its number lives here,
 * the memory is the backend's. Blocks are reference-counted.  A full block may be published under
 * what it holds: (the block before it, its 16 tokens); a published block that nobody refers to
 * stays findable until its memory is wanted, least recently used first. The chain is exact: a
 * lookup compares tokens and the identity of the block before, not hashes alone.
 *
 * ENGINE thread; no allocation after kv_pool_new. */
#ifndef ENGINE_KV_H
#define ENGINE_KV_H

#include "kernels/kernels.h"

#include <stdint.h>

struct kv_pool;

struct kv_pool *kv_pool_new(int n_blocks);
void kv_pool_free(struct kv_pool *);

int kv_total(const struct kv_pool *);
/* Blocks that kv_alloc can give: unused ones and published ones without a holder. */
int kv_free(const struct kv_pool *);
int kv_cached(const struct kv_pool *); /* published ones without a holder, part of kv_free */

/* A block with one reference, or -1 where none is free. */
int kv_alloc(struct kv_pool *);
void kv_ref(struct kv_pool *, int block);
void kv_unref(struct kv_pool *, int block);
int kv_refs(const struct kv_pool *, int block);

/* The identity a chain starts from, for a salt: chains of different salts never meet. */
uint64_t kv_root(const char *salt);
/* The identity of a published block. */
uint64_t kv_identity(const struct kv_pool *, int block);
/* Finds the block that holds these KERNELS_BLOCK tokens after `before` (kv_root or kv_identity) and
 * takes a reference; -1: none. */
int kv_lookup(struct kv_pool *, uint64_t before, const int32_t *tokens);
/* Publishes a full block that the caller holds; does nothing where an equal one is published
 * already.  Returns the identity of the published one, to be `before` of the next. */
uint64_t kv_publish(struct kv_pool *, int block, uint64_t before, const int32_t *tokens);

#endif
