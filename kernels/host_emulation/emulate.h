/* Runs CUDA kernels on the host, thread by thread: what kernels/host_emulation/device.h turns the
 * `.cu` files' words into.  For tests only.
 *
 * THEORY.  A block's threads are fibers; blocks run one after the other.  A thread runs until it
 * must wait for others: at a barrier, or at an operation of its warp (shuffle, vote, ldmatrix, mma,
 * __syncwarp), which is a meeting of all 32 lanes.  In which order the runnable threads get their
 * turn is chosen by emulate_order(): forward, reverse, or shuffled anew for each round; each warp
 * runs as far ahead of the others as barriers let it.  Code that lacks a barrier reads stale data
 * in at least one of them.
 *
 * Made to find mistakes:
 * - shared memory and fresh device memory are filled with NaN (0xff);
 * - what cp.async copies arrives when its wait returns, not before; in reverse order at once, since
 * a device may do either; ldmatrix of it by another thread without a barrier since aborts;
 * - lanes that meet at different operations, threads that end or wait while others wait for them,
 *   addresses that ldmatrix and cp.async can't take, abort with a message;
 * - with the address sanitizer, shared and device memory end where they end.
 * Not shown: memory ordering without barriers, bank conflicts, the rounding inside of mma.
 *
 * Owner: one thread of the system at a time. */
#ifndef KERNELS_HOST_EMULATION_EMULATE_H
#define KERNELS_HOST_EMULATION_EMULATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EMULATE_WARP = 32, EMULATE_THREADS = 1024, EMULATE_BARRIERS = 16 };

struct emulate_dim {
    unsigned x, y, z;
};
struct emulate_position {
    struct emulate_dim thread, block, block_dim, grid_dim;
};

enum emulate_order { EMULATE_FORWARD, EMULATE_REVERSE, EMULATE_SHUFFLED };
void emulate_order(enum emulate_order, uint32_t seed);

/* Runs body(arg) as every thread of every block; `name` is for messages. */
void emulate_launch(const char *name, struct emulate_dim grid, struct emulate_dim block,
                    size_t shared_bytes, void (*body)(void *arg), void *arg);
/* Blocks run since the program began, and whether some were of this kernel: shows that tests reach
 * it. */
uint64_t emulate_blocks(void);
bool emulate_has_run(const char *name);

/* ---- inside a kernel ---- */

const struct emulate_position *emulate_position(void);
void *emulate_shared(void);
/* The block's static array of this key, made when first asked for. */
void *emulate_shared_static(const void *key, size_t bytes);

/* Barrier `id`, 0 … EMULATE_BARRIERS - 1, of n_threads threads; 0: all of the block. */
void emulate_barrier(int id, int n_threads);

/* ---- operations of a whole warp; every one is a meeting of its 32 lanes ---- */

void emulate_warp_sync(void);
/* The value that lane `source` (0 … 31) came with. */
uint64_t emulate_shuffle(uint64_t value, int source);
uint32_t emulate_ballot(bool predicate);
/* ldmatrix.x4: `row` is this lane's row of 8 bf16, lanes 8 j … 8 j + 7 those of matrix j. */
void emulate_ldmatrix(uint32_t out[4], const void *row, bool transposed);
/* mma.m16n8k16, bf16 in, f32 out: c += a b, each in the fragment layout of the PTX manual. */
void emulate_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2]);

/* ---- cp.async ---- */

/* 16 bytes to shared memory; where !valid zeros. */
void emulate_copy_async(void *to, const void *from, bool valid);
void emulate_copy_commit(void);
/* Lands all but the last `pending` groups committed. */
void emulate_copy_wait(int pending);

#ifdef __cplusplus
}
#endif
#endif
