#include "kernels/cpu/ceiling.h"

#include "base/clock.h"
#include "kernels/cpu/device.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum {
    CHUNKS = 128,      /* of each thread: small, so that none waits long for the last */
    ROUNDS = 1 << 14,  /* of one chunk: some tenth of a millisecond */
    PART = 256 * 1024, /* bytes of memory read in one chunk */
};

/* Wide multiplications lower a core's clock, which takes some milliseconds to settle: what counts
 * is what it goes on doing.  Others use the machine, too: the best of some spells counts. */
enum { SPELLS = 8 };
static const double SETTLE_S = 0.1, SPELL_S = 0.05;

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

/* Calls work(arg), which returns how much it did, for this long: how much it does a second. */
static double rate_of(double (*work)(struct kernels_device *, void *), struct kernels_device *dev,
                      void *arg, double seconds) {
    double begun = clock_seconds(), now, done = 0;
    do {
        done += work(dev, arg);
        now = clock_seconds();
    } while (now - begun < seconds);
    return done / (now - begun);
}

static double sustained(double (*work)(struct kernels_device *, void *), struct kernels_device *dev,
                        void *arg) {
    double best = 0;
    rate_of(work, dev, arg, SETTLE_S);
    for (int i = 0; i < SPELLS; i++) {
        double rate = rate_of(work, dev, arg, SPELL_S);
        if (rate > best) best = rate;
    }
    return best;
}

static double multiply_all(struct kernels_device *dev, void *arg) {
    struct products *p = arg;
    p->macs = 0;
    threads_run(dev->threads, multiply, p, CHUNKS * threads_count(dev->threads), 1);
    return (double)p->macs;
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

static double read_all(struct kernels_device *dev, void *arg) {
    threads_run(dev->threads, read_part, arg, CEILING_READ_BYTES / PART, 1);
    return CEILING_READ_BYTES;
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
    *out = sustained(read_all, dev, &m);
    munmap(p, CEILING_READ_BYTES);
    return true;
}

bool ceiling_measure(struct kernels_device *dev, struct kernels_ceiling *out, struct err *e) {
    *out = (struct kernels_ceiling){.isa = dev->isa.name, .n_threads = threads_count(dev->threads)};
    struct products p = {.fn = dev->isa.ceiling};
    if (p.fn) out->macs_per_s = sustained(multiply_all, dev, &p);
    return bytes_per_second(dev, &out->bytes_per_s, e);
}
