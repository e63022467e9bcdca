#include "kernels/cpu/threads.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 4000 }; /* pauses before a thread sleeps: 30–200 us, by processor */

struct worker {
    struct threads *pool; /* borrowed */
    pthread_t id;
    int index;
};

struct threads {
    int n;
    struct worker *workers; /* owned; n - 1 */
    _Atomic bool quit;
    /* The job; written by the owner before the ticket. */
    threads_fn *fn;
    void *arg;
    int n_items, grain;
    _Alignas(64) _Atomic uint64_t ticket; /* job number << 32 | chunks not taken */
    _Alignas(64) _Atomic uint32_t
        generation;                        /* goes up with each job: what idle workers wait for */
    _Atomic int sleepers;                  /* workers asleep on `generation` */
    _Alignas(64) _Atomic uint32_t pending; /* chunks not computed */
    _Atomic int owner_sleeps;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *at, uint32_t while_value) {
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, while_value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *at, int n) {
    syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Takes one chunk and computes it; false where none is left. */
static bool take_chunk(struct threads *t, int index) {
    uint64_t now = atomic_load_explicit(&t->ticket, memory_order_relaxed);
    do {
        if (!(uint32_t)now) return false;
    } while (!atomic_compare_exchange_weak_explicit(&t->ticket, &now, now - 1, memory_order_acquire,
                                                    memory_order_relaxed));
    int chunk = (t->n_items - 1) / t->grain + 1 - (int)(uint32_t)now, begin = chunk * t->grain;
    int end = t->n_items - begin < t->grain ? t->n_items : begin + t->grain;
    t->fn(t->arg, index, begin, end);
    if (atomic_fetch_sub(&t->pending, 1) == 1 && atomic_load(&t->owner_sleeps))
        futex_wake(&t->pending, 1);
    return true;
}

/* Returns when the generation differs from `seen`.  Sequentially consistent order of `sleepers` and
 * `generation` on both sides keeps the wake-up from getting lost; the kernel compares once more. */
static void wait_for_job(struct threads *t, uint32_t seen) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&t->generation, memory_order_acquire) != seen) return;
        relax();
    }
    atomic_fetch_add(&t->sleepers, 1);
    while (atomic_load(&t->generation) == seen)
        futex_wait(&t->generation, seen);
    atomic_fetch_sub(&t->sleepers, 1);
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct threads *t = w->pool;
    while (!atomic_load(&t->quit)) {
        uint32_t seen = atomic_load_explicit(&t->generation, memory_order_acquire);
        while (take_chunk(t, w->index)) {
        }
        if (!atomic_load(&t->quit)) wait_for_job(t, seen);
    }
    return NULL;
}

static void wake_workers(struct threads *t) {
    atomic_fetch_add(&t->generation, 1);
    if (atomic_load(&t->sleepers)) futex_wake(&t->generation, INT_MAX);
}

static void wait_for_chunks(struct threads *t) {
    for (int i = 0; i < SPINS; i++) {
        if (!atomic_load_explicit(&t->pending, memory_order_acquire)) return;
        relax();
    }
    atomic_store(&t->owner_sleeps, 1);
    uint32_t left;
    while ((left = atomic_load(&t->pending)) != 0)
        futex_wait(&t->pending, left);
    atomic_store(&t->owner_sleeps, 0);
}

void threads_run(struct threads *t, threads_fn *fn, void *arg, int n, int grain) {
    if (n <= 0) return;
    if (t->n == 1 || n <= grain) {
        fn(arg, 0, 0, n);
        return;
    }
    uint32_t chunks = (uint32_t)((n - 1) / grain + 1);
    t->fn = fn;
    t->arg = arg;
    t->n_items = n;
    t->grain = grain;
    atomic_store_explicit(&t->pending, chunks, memory_order_relaxed);
    uint64_t job = (atomic_load_explicit(&t->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store_explicit(&t->ticket, job << 32 | chunks, memory_order_release);
    wake_workers(t);
    while (take_chunk(t, 0)) {
    }
    wait_for_chunks(t);
}

int threads_count(const struct threads *t) { return t->n; }

int threads_processors(void) {
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN); /* more processors than a cpu_set_t holds */
    return n > 0 ? (int)n : 1;
}

/* Signals are the business of the thread that made the pool, never of a worker. */
static int start_worker(struct worker *w) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&w->id, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error;
}

static void stop_workers(struct threads *t, int n) {
    atomic_store(&t->quit, true);
    wake_workers(t);
    for (int i = 0; i < n; i++)
        pthread_join(t->workers[i].id, NULL);
}

struct threads *threads_new(int n_threads, struct err *e) {
    BUG_ON(n_threads < 1);
    struct threads *t = aligned_alloc(64, sizeof *t);
    BUG_ON(!t);
    *t = (struct threads){.n = n_threads};
    t->workers = err_alloc((size_t)n_threads, sizeof *t->workers);
    for (int i = 0; i < n_threads - 1; i++) {
        struct worker *w = &t->workers[i];
        *w = (struct worker){.pool = t, .index = i + 1};
        int error = start_worker(w);
        if (error) {
            err_errno(e, error, "can't start compute thread %d of %d; ask for fewer threads", i + 1,
                      n_threads);
            stop_workers(t, i);
            free(t->workers);
            free(t);
            return NULL;
        }
    }
    return t;
}

void threads_free(struct threads *t) {
    if (!t) return;
    stop_workers(t, t->n - 1);
    free(t->workers);
    free(t);
}
