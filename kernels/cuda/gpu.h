/* A device, its memory, one stream of work and one of copies beside it: the few things of the CUDA
 * runtime that the backend uses.  kernels/cuda/gpu.c is the real one,
 * kernels/host_emulation/gpu_host.c the one of the tests.
 *
 * Work on the stream is done in the order in which it was queued.  An error of queued work is kept
 * and reported by the next gpu_wait() and by all after it: a failed device stays failed.
 *
 * Owner: ENGINE. */
#ifndef KERNELS_CUDA_GPU_H
#define KERNELS_CUDA_GPU_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu;
struct gpu_graph;

struct gpu_info {
    char name[128];
    int major, minor;    /* compute capability */
    int n_processors;    /* streaming multiprocessors */
    size_t shared_bytes; /* the most that one block can have */
};

/* The first device there is.  Where there is none, says so and why. */
bool gpu_open(struct gpu **out, struct gpu_info *info, struct err *e);
void gpu_close(struct gpu *);
/* Bytes of device memory not taken by anyone. */
size_t gpu_free_bytes(const struct gpu *);
/* How often device memory was taken since gpu_open(): serving must not add to it. */
int gpu_allocations(const struct gpu *);

/* Device memory, aligned to 256 bytes, not filled. */
void *gpu_alloc(struct gpu *, size_t bytes, const char *what, struct err *e);
void gpu_release(struct gpu *, void *);
/* Host memory that copies run from and to while the host goes on. */
void *gpu_alloc_pinned(struct gpu *, size_t bytes, const char *what, struct err *e);
void gpu_release_pinned(struct gpu *, void *);

/* Queued copies.  Pinned memory must stay as it is until they are done; other memory is read at
 * once.
 */
void gpu_put(struct gpu *, void *to, const void *from, size_t bytes);
void gpu_get(struct gpu *, void *to, const void *from, size_t bytes);
/* The same beside the work, in the order of copies: from and to pinned memory alone. */
void gpu_put_aside(struct gpu *, void *to, const void *from, size_t bytes);
void gpu_get_aside(struct gpu *, void *to, const void *from, size_t bytes);
/* Waits for all that is queued. */
bool gpu_wait(struct gpu *, struct err *e);
/* A mark behind the work that is queued so far, or the copies beside it. */
uint64_t gpu_mark(struct gpu *);
uint64_t gpu_mark_aside(struct gpu *);
/* Waits for what lies before a mark alone, whatever was queued later. */
bool gpu_reach(struct gpu *, uint64_t mark, struct err *e);
/* Work that is queued from here on begins when that mark, of copies, is reached; or copies beside
 * it when one of work is. */
void gpu_follow(struct gpu *, uint64_t mark);
void gpu_follow_aside(struct gpu *, uint64_t mark);

/* The stream as launch.h wants it. */
void *gpu_stream(struct gpu *);

/* From gpu_capture() to gpu_captured() work is recorded instead of done; NULL: it couldn't be, and
 * nothing was done. */
void gpu_capture(struct gpu *);
struct gpu_graph *gpu_captured(struct gpu *, struct err *e);
void gpu_graph_run(struct gpu *, struct gpu_graph *);
void gpu_graph_free(struct gpu *, struct gpu_graph *);

#endif
