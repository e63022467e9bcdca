#include "kernels/cpu/ceiling.h"

#include "base/clock.h"
#include "kernels/cpu/device.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum {
    REPEATS = 6,       /* the best counts: others use the machine, too */
    CHUNKS = 32,       /* of each thread: small, so that none waits long for the last */
    ROUNDS = 1 << 14,  /* of one chunk: some tenth of a millisecond */
    PART = 256 * 1024, /* bytes of memory read in one chunk */
};

struct products {
    ceiling_fn *fn;
    _Atomic uint64_t macs;
};

static void multiply(void *arg, int thread, int begin, int end) {
    struct products *p = arg;
    (void)thread;
    for (int i = begin; i < end; i++)
        p->macs += p->fn(ROUNDS);
}

static double macs_per_second(struct kernels_device *dev) {
    double best = 0;
    for (int i = 0; i < REPEATS; i++) {
        struct products p = {.fn = dev->isa.ceiling};
        double begun = clock_seconds();
        threads_run(dev->threads, multiply, &p, CHUNKS * threads_count(dev->threads), 1);
        double rate = (double)p.macs / (clock_seconds() - begun);
        if (rate > best) best = rate;
    }
    return best;
}

struct memory {
    uint64_t *words;
    _Atomic uint64_t sum; /* so that the reads have a use */
};

static void fill(void *arg, int thread, int begin, int end) {
    const struct memory *m = arg;
    (void)thread;
    memset((uint8_t *)m->words + (size_t)begin * PART, 1, (size_t)(end - begin) * PART);
}

static void read_part(void *arg, int thread, int begin, int end) {
    struct memory *m = arg;
    (void)thread;
    uint64_t sum[16] = {0};
    size_t step = PART / sizeof *m->words;
    for (size_t i = (size_t)begin * step; i < (size_t)end * step; i += 16)
        for (int k = 0; k < 16; k++)
            sum[k] += m->words[i + (size_t)k];
    for (int k = 0; k < 16; k++)
        m->sum += sum[k];
}

static bool bytes_per_second(struct kernels_device *dev, double *out, struct err *e) {
    void *p =
        mmap(NULL, CEILING_READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return err_errno(e, errno, "no memory for %d bytes to measure the bandwidth with",
                         CEILING_READ_BYTES);
    madvise(p, CEILING_READ_BYTES, MADV_HUGEPAGE); /* advice, as for the weights */
    struct memory m = {.words = p};
    threads_run(dev->threads, fill, &m, CEILING_READ_BYTES / PART, 1);
    *out = 0;
    for (int i = 0; i < REPEATS; i++) {
        double begun = clock_seconds();
        threads_run(dev->threads, read_part, &m, CEILING_READ_BYTES / PART, 1);
        double rate = CEILING_READ_BYTES / (clock_seconds() - begun);
        if (rate > *out) *out = rate;
    }
    munmap(p, CEILING_READ_BYTES);
    return true;
}

bool ceiling_measure(struct kernels_device *dev, struct kernels_ceiling *out, struct err *e) {
    *out = (struct kernels_ceiling){.isa = dev->isa.name, .n_threads = threads_count(dev->threads)};
    if (dev->isa.ceiling) out->macs_per_s = macs_per_second(dev);
    return bytes_per_second(dev, &out->bytes_per_s, e);
}
