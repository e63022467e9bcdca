/* The pool of compute threads of the CPU backend.
 *
 * THEORY.  One owner thread calls threads_run(); it and the n-1 workers take chunks of an index
 * range from one shared counter until it is used up, and threads_run() returns when all chunks are
 * done.  Which thread takes which chunk is chance, so what a chunk computes must depend on its
 * indices only. Between two runs a worker spins for some microseconds, since a step is some hundred
 * runs in a row, then sleeps on a futex: an idle pool takes no processor time.  The owner waits for
 * the last worker likewise. A worker touches the job's data only between its wake-up and its
 * count-down; the owner reads results after the count-down (release/acquire on `running`). */
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
