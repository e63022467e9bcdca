#include "kernels/host_emulation/emulate.h"

#include "base/err.h"
#include "kernels/host_emulation/fiber.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STACK_BYTES = 256 * 1024,
    MAX_WARPS = EMULATE_THREADS / EMULATE_WARP,
    MAX_STATICS = 32,
    MAX_NAMES = 64,
    MAX_COPIES = 256, /* cp.async of one thread not yet waited for */
    POISON = 0xff,
};

enum meeting { NONE, SYNC, SHUFFLE, BALLOT, LDMATRIX, MMA };
static const char *const meeting_names[] = {"nothing", "__syncwarp", "a shuffle",
                                            "a vote",  "ldmatrix",   "mma"};

/* What the lanes bring to a meeting.  Two sets, taken in turn: a lane that is already at the next
 * meeting doesn't overwrite what others have yet to read of the last. */
struct table {
    uint64_t value[EMULATE_WARP];
    const void *a[EMULATE_WARP], *b[EMULATE_WARP];
    void *out[EMULATE_WARP];
};
struct warp {
    unsigned generation; /* meetings held */
    int arrived;
    enum meeting kind;
    struct table tables[2];
};

struct barrier {
    unsigned generation;
    int arrived, expected;
};

struct copy {
    void *to;
    const void *from;
    bool valid;
    int group;
};

struct thread {
    struct fiber *fiber; /* owned */
    struct emulate_position at;
    struct warp *warp;
    int lane;
    bool live;
    const unsigned *gate; /* waits while *gate == seen; NULL: runs */
    unsigned seen;
    const char *waits_for;
    struct copy copies[MAX_COPIES];
    int n_copies, n_groups;
    int fresh[MAX_COPIES]; /* pieces of shared memory that its copies wrote since its last barrier
                            */
    int n_fresh;
};

struct machine {
    enum emulate_order order;
    uint32_t random;
    uint64_t blocks;
    const char *names[MAX_NAMES]; /* borrowed: of kernels that have run */
    int n_names;
    const char *kernel; /* running; NULL: none */
    void (*body)(void *arg);
    void *arg;
    int n_threads;
    struct thread *threads; /* owned */
    struct thread *self;
    struct warp warps[MAX_WARPS];
    struct barrier barriers[EMULATE_BARRIERS];
    uint8_t *shared; /* owned */
    size_t shared_bytes;
    /* Of each 16 bytes of it: which thread's copy has landed there without a barrier since, from 1
     * on; 0: none.  Other threads can't count on seeing it. */
    uint16_t *landed; /* owned */
    struct {
        const void *key;
        void *data; /* owned */
    } statics[MAX_STATICS];
    int n_statics;
};

/* CUDA's own names (threadIdx …) have no handle to pass a context by. */
static struct machine m = {.random = 1};

static _Noreturn void misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
static _Noreturn void misuse(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "emulated kernel %s", m.kernel ? m.kernel : "(none)");
    if (m.self) {
        const struct emulate_position *p = &m.self->at;
        fprintf(stderr, ", block (%u,%u,%u), thread %u", p->block.x, p->block.y, p->block.z,
                p->thread.x);
    }
    fprintf(stderr, ": ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    abort();
}

void emulate_order(enum emulate_order order, uint32_t seed) {
    m.order = order;
    m.random = seed * 2 + 1;
}

uint64_t emulate_blocks(void) { return m.blocks; }

bool emulate_has_run(const char *name) {
    for (int i = 0; i < m.n_names; i++)
        if (!strcmp(m.names[i], name)) return true;
    return false;
}

/* ---- threads ---- */

static void thread_main(void *arg) {
    struct thread *t = arg;
    m.body(m.arg);
    t->live = false;
}

static void wait_at(const unsigned *gate, const char *what) {
    struct thread *t = m.self;
    t->gate = gate;
    t->seen = *gate;
    t->waits_for = what;
    while (*gate == t->seen)
        fiber_yield(t->fiber);
    t->gate = NULL;
}

/* The i-th of n whose turn it is; n is a power of two or `step` has no divisor in common with it.
 */
static int turn(int i, int n, int step, int offset) {
    switch (m.order) {
    case EMULATE_FORWARD:
        return i;
    case EMULATE_REVERSE:
        return n - 1 - i;
    case EMULATE_SHUFFLED:
        return (int)(((int64_t)i * step + offset) % n);
    }
    return i;
}

static int common_divisor(int a, int b) { return b ? common_divisor(b, a % b) : a; }

static _Noreturn void stuck(void) {
    for (int i = 0; i < m.n_threads; i++)
        if (m.threads[i].live && m.threads[i].gate) {
            int ended = 0;
            for (int k = 0; k < m.n_threads; k++)
                ended += !m.threads[k].live;
            m.self = &m.threads[i];
            misuse("waits for ever at %s; %d of %d threads have ended", m.threads[i].waits_for,
                   ended, m.n_threads);
        }
    misuse("no thread can run");
}

static uint32_t next_random(void) { return (m.random = m.random * 1664525u + 1013904223u) >> 8; }

/* Runs a warp's lanes until all of them wait for other warps or are over; returns how many times
 * one ran. */
static int run_warp(int first, int *live) {
    int all = 0, ran;
    do {
        ran = 0;
        int step = (int)(next_random() % EMULATE_WARP) | 1, offset = (int)(next_random() % 32);
        for (int i = 0; i < EMULATE_WARP; i++) {
            struct thread *t = &m.threads[first + turn(i, EMULATE_WARP, step, offset)];
            if (!t->live || (t->gate && *t->gate == t->seen)) continue;
            m.self = t;
            ran++;
            if (!fiber_resume(t->fiber)) --*live;
        }
        all += ran;
    } while (ran);
    return all;
}

/* Rounds over all warps until no thread lives.  Each warp runs as far ahead of the others as
 * barriers let it, as one may on a device. */
static void run_threads(void) {
    int n_warps = m.n_threads / EMULATE_WARP;
    for (int live = m.n_threads; live;) {
        int step = (int)(next_random() % (unsigned)n_warps) | 1, ran = 0;
        int offset = (int)(next_random() % (unsigned)n_warps);
        while (common_divisor(step, n_warps) != 1)
            step += 2;
        for (int i = 0; i < n_warps; i++)
            ran += run_warp(turn(i, n_warps, step, offset) * EMULATE_WARP, &live);
        m.self = NULL;
        if (live && !ran) stuck();
    }
}

static void begin_block(struct emulate_dim grid, struct emulate_dim block, struct emulate_dim at) {
    memset(m.warps, 0, sizeof m.warps);
    memset(m.barriers, 0, sizeof m.barriers);
    memset(m.shared, POISON, m.shared_bytes);
    memset(m.landed, 0, (m.shared_bytes / 16 + 1) * sizeof *m.landed);
    for (int i = 0; i < m.n_statics; i++)
        free(m.statics[i].data);
    m.n_statics = 0;
    for (int i = 0; i < m.n_threads; i++) {
        struct thread *t = &m.threads[i];
        unsigned n = (unsigned)i;
        t->at = (struct emulate_position){
            .thread = {n % block.x, n / block.x % block.y, n / block.x / block.y},
            .block = at,
            .block_dim = block,
            .grid_dim = grid};
        t->warp = &m.warps[i / EMULATE_WARP];
        t->lane = i % EMULATE_WARP;
        t->live = true;
        t->gate = NULL;
        t->n_copies = t->n_groups = t->n_fresh = 0;
        if (!t->fiber) t->fiber = fiber_new(STACK_BYTES);
        fiber_start(t->fiber, thread_main, t);
    }
    m.blocks++;
}

void emulate_launch(const char *name, struct emulate_dim grid, struct emulate_dim block,
                    size_t shared_bytes, void (*body)(void *arg), void *arg) {
    size_t n = (size_t)block.x * block.y * block.z;
    if (!emulate_has_run(name) && m.n_names < MAX_NAMES) m.names[m.n_names++] = name;
    m.kernel = name;
    if (n < 1 || n > EMULATE_THREADS || n % EMULATE_WARP)
        misuse("blocks of %zu threads: whole warps are wanted, %d threads at most", n,
               EMULATE_THREADS);
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535)
        misuse("a grid of (%u,%u,%u) blocks can't be launched", grid.x, grid.y, grid.z);
    if (!m.threads) m.threads = err_alloc(EMULATE_THREADS, sizeof *m.threads);
    m.n_threads = (int)n;
    m.body = body;
    m.arg = arg;
    void *shared = NULL;
    if (posix_memalign(&shared, 128, shared_bytes ? shared_bytes : 1)) misuse("out of memory");
    m.shared = shared;
    m.shared_bytes = shared_bytes;
    m.landed = err_alloc(shared_bytes / 16 + 1, sizeof *m.landed);
    struct emulate_dim at;
    for (at.z = 0; at.z < grid.z; at.z++)
        for (at.y = 0; at.y < grid.y; at.y++)
            for (at.x = 0; at.x < grid.x; at.x++) {
                begin_block(grid, block, at);
                run_threads();
            }
    for (int i = 0; i < m.n_statics; i++)
        free(m.statics[i].data);
    m.n_statics = 0;
    free(m.shared);
    free(m.landed);
    m.shared = NULL;
    m.landed = NULL;
    m.kernel = NULL;
}

const struct emulate_position *emulate_position(void) { return &m.self->at; }

/* ---- shared memory, barriers ---- */

void *emulate_shared(void) { return m.shared; }

void *emulate_shared_static(const void *key, size_t bytes) {
    for (int i = 0; i < m.n_statics; i++)
        if (m.statics[i].key == key) return m.statics[i].data;
    if (m.n_statics == MAX_STATICS) misuse("more than %d static arrays", MAX_STATICS);
    void *data = NULL;
    if (posix_memalign(&data, 128, bytes)) misuse("out of memory");
    memset(data, POISON, bytes);
    m.statics[m.n_statics].key = key;
    m.statics[m.n_statics++].data = data;
    return data;
}

/* What this thread's copies brought is seen by whoever meets it at a barrier, or at __syncwarp. */
static void show_copies(void) {
    struct thread *t = m.self;
    for (int i = 0; i < t->n_fresh; i++)
        m.landed[t->fresh[i]] = 0;
    t->n_fresh = 0;
}

void emulate_barrier(int id, int n_threads) {
    if (id < 0 || id >= EMULATE_BARRIERS) misuse("there is no barrier %d", id);
    struct barrier *b = &m.barriers[id];
    int n = n_threads ? n_threads : m.n_threads;
    if (n % EMULATE_WARP || n > m.n_threads)
        misuse("barrier %d of %d threads: whole warps of the block are wanted", id, n);
    if (b->arrived && b->expected != n)
        misuse("barrier %d is waited at for %d threads and for %d", id, b->expected, n);
    b->expected = n;
    show_copies();
    if (++b->arrived == n) {
        b->arrived = 0;
        b->generation++;
        return;
    }
    wait_at(&b->generation, "a barrier");
}

/* ---- meetings of a warp ---- */

/* Brings this lane to the meeting; the lane that completes it runs `complete`.  Returns the table
 * that the lanes filled. */
static struct table *meet(enum meeting kind, void (*complete)(struct table *)) {
    struct thread *t = m.self;
    struct warp *w = t->warp;
    struct table *table = &w->tables[w->generation & 1];
    if (w->arrived && w->kind != kind)
        misuse("is at %s while other lanes of its warp are at %s", meeting_names[kind],
               meeting_names[w->kind]);
    w->kind = kind;
    if (++w->arrived < EMULATE_WARP) {
        wait_at(&w->generation, meeting_names[kind]);
        return table;
    }
    if (complete) complete(table);
    w->arrived = 0;
    w->generation++;
    return table;
}

static struct table *my_table(void) { return &m.self->warp->tables[m.self->warp->generation & 1]; }

void emulate_warp_sync(void) {
    show_copies();
    meet(SYNC, NULL);
}

uint64_t emulate_shuffle(uint64_t value, int source) {
    if (source < 0 || source >= EMULATE_WARP) misuse("there is no lane %d to shuffle from", source);
    my_table()->value[m.self->lane] = value;
    return meet(SHUFFLE, NULL)->value[source];
}

uint32_t emulate_ballot(bool predicate) {
    my_table()->value[m.self->lane] = predicate;
    const struct table *t = meet(BALLOT, NULL);
    uint32_t mask = 0;
    for (int i = 0; i < EMULATE_WARP; i++)
        mask |= (uint32_t)t->value[i] << i;
    return mask;
}

static void check_shared(const void *p, size_t bytes, const char *what) {
    uintptr_t at = (uintptr_t)p, begin = (uintptr_t)m.shared;
    if (at % 16) misuse("%s at an address that is no multiple of 16", what);
    if (at < begin || at + bytes > begin + m.shared_bytes)
        misuse("%s outside of dynamic shared memory, at byte %td of %zu", what,
               (const uint8_t *)p - m.shared, m.shared_bytes);
}

static void load_matrices(struct table *t) {
    for (int lane = 0; lane < EMULATE_WARP; lane++) {
        uint32_t *out = t->out[lane];
        bool transposed = t->value[lane];
        for (int j = 0; j < 4; j++) {
            uint16_t pair[2];
            for (int i = 0; i < 2; i++) {
                int row = lane / 4, col = lane % 4 * 2 + i;
                const uint16_t *from = t->a[8 * j + (transposed ? col : row)];
                pair[i] = from[transposed ? row : col];
            }
            out[j] = (uint32_t)pair[1] << 16 | pair[0];
        }
    }
}

void emulate_ldmatrix(uint32_t out[4], const void *row, bool transposed) {
    check_shared(row, 16, "ldmatrix");
    int by = m.landed[((const uint8_t *)row - m.shared) / 16];
    if (by && by != (int)(m.self - m.threads) + 1)
        misuse("ldmatrix reads what the cp.async of thread %d brought, without a barrier since",
               by - 1);
    struct table *t = my_table();
    int lane = m.self->lane;
    t->a[lane] = row;
    t->out[lane] = out;
    t->value[lane] = transposed;
    meet(LDMATRIX, load_matrices);
}

static float bf16_value(uint32_t pair, int i) {
    uint32_t bits = i ? pair & 0xffff0000u : pair << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* Fragments of mma.m16n8k16, with g = lane / 4 and t = lane % 4:
 *   a[0] (g, 2t), (g, 2t+1)   a[1] row g+8   a[2] columns + 8   a[3] both
 *   b[0] (2t, g), (2t+1, g)   b[1] rows + 8
 *   c[0], c[1] (g, 2t), (g, 2t+1)   c[2], c[3] row g+8 */
static void multiply(struct table *t) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < EMULATE_WARP; lane++) {
        const uint32_t *fa = t->a[lane], *fb = t->b[lane];
        int g = lane / 4, c = lane % 4 * 2;
        for (int i = 0; i < 2; i++) {
            a[g][c + i] = bf16_value(fa[0], i);
            a[g + 8][c + i] = bf16_value(fa[1], i);
            a[g][c + 8 + i] = bf16_value(fa[2], i);
            a[g + 8][c + 8 + i] = bf16_value(fa[3], i);
            b[c + i][g] = bf16_value(fb[0], i);
            b[c + 8 + i][g] = bf16_value(fb[1], i);
        }
    }
    for (int lane = 0; lane < EMULATE_WARP; lane++) {
        float *out = t->out[lane];
        for (int i = 0; i < 4; i++) {
            int row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += a[row][k] * b[k][col];
            out[i] += sum;
        }
    }
}

void emulate_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    struct table *t = my_table();
    int lane = m.self->lane;
    t->a[lane] = a;
    t->b[lane] = b;
    t->out[lane] = c;
    meet(MMA, multiply);
}

/* ---- cp.async ---- */

static void land(void *to, const void *from, bool valid) {
    struct thread *t = m.self;
    if (valid)
        memcpy(to, from, 16);
    else
        memset(to, 0, 16);
    if (t->n_fresh == MAX_COPIES) misuse("more than %d copies without a barrier", MAX_COPIES);
    int piece = (int)(((uint8_t *)to - m.shared) / 16);
    m.landed[piece] = (uint16_t)(t - m.threads + 1);
    t->fresh[t->n_fresh++] = piece;
}

void emulate_copy_async(void *to, const void *from, bool valid) {
    struct thread *t = m.self;
    check_shared(to, 16, "cp.async");
    if (valid && (uintptr_t)from % 16) misuse("cp.async from an address that is no multiple of 16");
    if (m.order == EMULATE_REVERSE) {
        land(to, from, valid);
        return;
    }
    if (t->n_copies == MAX_COPIES) misuse("more than %d copies in flight", MAX_COPIES);
    t->copies[t->n_copies++] =
        (struct copy){.to = to, .from = from, .valid = valid, .group = t->n_groups};
}

void emulate_copy_commit(void) { m.self->n_groups++; }

void emulate_copy_wait(int pending) {
    struct thread *t = m.self;
    int kept = 0;
    for (int i = 0; i < t->n_copies; i++) {
        struct copy c = t->copies[i];
        if (c.group >= t->n_groups - pending) {
            t->copies[kept++] = c;
        } else {
            land(c.to, c.from, c.valid);
        }
    }
    t->n_copies = kept;
}
