#include "kernels/cpu/threads.h"
#include "tests/kernels/kernels_test.h"

#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { N = 5000 };

struct job {
    _Atomic int visits[N];
    _Atomic int by_thread[8];
    double sums[N];
    int base;
};

static void visit(void *arg, int thread, int begin, int end) {
    struct job *j = arg;
    for (int i = begin; i < end; i++) {
        atomic_fetch_add(&j->visits[i], 1);
        j->sums[i] += j->base + i; /* plain memory: the pool orders the runs */
    }
    atomic_fetch_add(&j->by_thread[thread], 1);
}

START_TEST(every_index_once) {
    static const int sizes[] = {0, 1, 2, 7, 64, 999, N}, grains[] = {1, 3, 64, 10000};
    for (int threads = 1; threads <= 5; threads++) {
        struct err e = {0};
        struct threads *t = threads_new(threads, &e);
        ck_assert(t && threads_count(t) == threads);
        for (int s = 0; s < 7; s++)
            for (int g = 0; g < 4; g++) {
                struct job *j = calloc(1, sizeof *j);
                for (int round = 0; round < 3; round++) {
                    j->base = round;
                    threads_run(t, visit, j, sizes[s], grains[g]);
                }
                for (int i = 0; i < N; i++) {
                    ck_assert_int_eq(j->visits[i], i < sizes[s] ? 3 : 0);
                    ck_assert(j->sums[i] == (i < sizes[s] ? 3.0 * i + 3 : 0));
                }
                for (int i = threads; i < 8; i++)
                    ck_assert_int_eq(j->by_thread[i], 0);
                free(j);
            }
        threads_free(t);
    }
}
END_TEST

/* Sleeping workers wake up, whenever the job comes. */
START_TEST(wakes_after_sleep) {
    struct err e = {0};
    struct threads *t = threads_new(4, &e);
    struct job *j = calloc(1, sizeof *j);
    for (int i = 0; i < 40; i++) {
        struct timespec pause = {.tv_nsec = i % 4 * 1000000};
        nanosleep(&pause, NULL);
        threads_run(t, visit, j, N, 16);
    }
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(j->visits[i], 40);
    free(j);
    threads_free(t);
}
END_TEST

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* An idle pool takes no processor time: a spinning worker would take all of the half second. */
START_TEST(idle_costs_nothing) {
    struct err e = {0};
    struct threads *t = threads_new(4, &e);
    struct job *j = calloc(1, sizeof *j);
    threads_run(t, visit, j, N, 16);
    double before = cpu_seconds();
    usleep(500000);
    ck_assert_double_lt(cpu_seconds() - before, 0.1);
    free(j);
    threads_free(t);
}
END_TEST

START_TEST(processors) {
    ck_assert_int_ge(threads_processors(), 1);
    ck_assert_int_le(threads_processors(), 100000);
}
END_TEST

/* ---- the device's options ---- */

START_TEST(options_are_checked) {
    const struct kernels *k = kernels_backend("cpu");
    struct kernels_device *dev = NULL;
    struct err e = {0};
    ck_assert(!k->device_open(&(struct kernels_options){.n_threads = 1, .isa = "sse9"}, &dev, &e));
    ck_assert(e.kind == ERR_INPUT && strstr(e.message, "sse9") && strstr(e.message, "generic"));
    ck_assert(!k->device_open(&(struct kernels_options){.n_threads = -1, .isa = "auto"}, &dev, &e));
    ck_assert(
        !k->device_open(&(struct kernels_options){.n_threads = 100000, .isa = "auto"}, &dev, &e));
    ck_assert(
        k->device_open(&(struct kernels_options){.n_threads = 3, .isa = "generic"}, &dev, &e));
    ck_assert_str_eq(k->describe(dev), "generic, 3 threads");
    ck_assert(k->memory_free(dev) > 1 << 20);
    k->device_close(dev);
    ck_assert(kernels_backend("abacus") == NULL);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("threads");
    tcase_add_test(t, every_index_once);
    tcase_add_test(t, wakes_after_sleep);
    tcase_add_test(t, idle_costs_nothing);
    tcase_add_test(t, processors);
    tcase_add_test(t, options_are_checked);
    return run_tests(&t, 1, "threads");
}
