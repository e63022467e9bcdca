/* The pool of compute threads of the CPU backend.
 *
 * THEORY.  One owner thread calls threads_run(), which cuts an index range into chunks.  `ticket`
 * holds the job's number and how many of its chunks nobody has taken; the owner and the n-1 workers
 * take them from there by compare-and-swap, and threads_run() returns when all chunks are computed.
 * A worker that comes late (asleep, or not scheduled on a busy machine) finds no chunk and is not
 * waited for.  Which thread takes which chunk is chance, so what a chunk computes must depend on
 * its indices only.
 *
 * Memory: the owner writes the job, then the ticket (release); who takes a chunk (acquire) sees the
 * job, and the job can't change before that chunk is counted down in `pending` (release), which the
 * owner waits for (acquire).
 *
 * Between two runs a worker spins for some microseconds, since a step is some hundred runs in a
 * row, then sleeps on a futex: an idle pool takes no processor time.  The owner waits for the last
 * chunk likewise. */
#ifndef KERNELS_CPU_THREADS_H
#define KERNELS_CPU_THREADS_H

#include "base/err.h"

struct threads;

/* Computes the indices begin … end-1; `thread` is 0 … n_threads-1, for scratch memory. */
typedef void threads_fn(void *arg, int thread, int begin, int end);

struct threads *threads_new(int n_threads, struct err *e);
void threads_free(struct threads *);
int threads_count(const struct threads *);
/* fn over 0 … n-1 in chunks of `grain`. */
void threads_run(struct threads *, threads_fn *fn, void *arg, int n, int grain);
/* Processors that this process may run on. */
int threads_processors(void);

#endif
