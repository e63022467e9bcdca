/* The host emulation itself: what it does as a device would, and the mistakes that it must catch.
 */
#include "kernels/cuda/gpu.h"
#include "kernels/host_emulation/gpu_host.h"

#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void run(const char *name, int grid, int threads, size_t shared, void (*body)(void *),
                void *arg) {
    emulate_launch(name, (struct emulate_dim){(unsigned)grid, 1, 1},
                   (struct emulate_dim){(unsigned)threads, 1, 1}, shared, body, arg);
}

static int self(void) { return (int)emulate_position()->thread.x; }

/* ---- threads, barriers ---- */

struct order_log {
    int first[64], n;
};

static void note_first(void *arg) {
    struct order_log *log = arg;
    log->first[log->n++] = self();
}

START_TEST(orders) {
    struct order_log forward = {0}, reverse = {0}, shuffled = {0};
    emulate_order(EMULATE_FORWARD, 0);
    run("note", 1, 64, 0, note_first, &forward);
    emulate_order(EMULATE_REVERSE, 0);
    run("note", 1, 64, 0, note_first, &reverse);
    emulate_order(EMULATE_SHUFFLED, 5);
    run("note", 1, 64, 0, note_first, &shuffled);
    bool seen[64] = {0};
    for (int i = 0; i < 64; i++) {
        ck_assert_int_eq(forward.first[i], i);
        ck_assert_int_eq(reverse.first[i], 63 - i);
        ck_assert(!seen[shuffled.first[i]]);
        seen[shuffled.first[i]] = true;
    }
    ck_assert(memcmp(shuffled.first, forward.first, sizeof forward.first) != 0);
    emulate_order(EMULATE_FORWARD, 0);
}
END_TEST

struct neighbours {
    int out[128];
    bool barrier;
};

/* Each thread reads what its neighbour wrote: right only with a barrier between. */
static void read_neighbour(void *arg) {
    struct neighbours *n = arg;
    int *shared = emulate_shared(), i = self();
    shared[i] = 100 + i;
    if (n->barrier) emulate_barrier(0, 0);
    n->out[i] = shared[(i + 1) % 128];
}

static int wrong_neighbours(bool barrier, enum emulate_order order) {
    struct neighbours n = {.barrier = barrier};
    emulate_order(order, 3);
    run("neighbours", 1, 128, 128 * sizeof(int), read_neighbour, &n);
    emulate_order(EMULATE_FORWARD, 0);
    int wrong = 0;
    for (int i = 0; i < 128; i++)
        wrong += n.out[i] != 100 + (i + 1) % 128;
    return wrong;
}

START_TEST(missing_barrier_shows) {
    for (int order = EMULATE_FORWARD; order <= EMULATE_SHUFFLED; order++) {
        ck_assert_int_eq(wrong_neighbours(true, (enum emulate_order)order), 0);
        ck_assert_int_gt(wrong_neighbours(false, (enum emulate_order)order), 0);
    }
}
END_TEST

static void named_halves(void *arg) {
    int *out = arg, *shared = emulate_shared(), i = self(), half = i / 64;
    shared[i] = i;
    emulate_barrier(1 + half, 64);
    out[i] = shared[half * 64 + (i + 5) % 64];
}

START_TEST(named_barriers) {
    int out[128];
    run("named", 1, 128, sizeof out, named_halves, out);
    for (int i = 0; i < 128; i++)
        ck_assert_int_eq(out[i], i / 64 * 64 + (i + 5) % 64);
}
END_TEST

static void leave_early(void *arg) {
    (void)arg;
    if (self() == 7) return;
    emulate_barrier(0, 0);
}

START_TEST(a_thread_misses_the_barrier) { run("early", 1, 64, 0, leave_early, NULL); }
END_TEST

static void wait_twice(void *arg) {
    (void)arg;
    emulate_barrier(0, 0);
    if (self() < 32) emulate_barrier(0, 0);
}

START_TEST(some_wait_once_more) { run("twice", 1, 64, 0, wait_twice, NULL); }
END_TEST

static void read_shared(void *arg) { memcpy(arg, emulate_shared(), 16); }

START_TEST(fresh_memory_is_nan) {
    float four[4];
    run("read", 2, 32, 16, read_shared, four);
    for (int i = 0; i < 4; i++)
        ck_assert(isnan(four[i]));
}
END_TEST

/* ---- warps ---- */

static void butterfly(void *arg) {
    uint64_t *out = arg, v = (uint64_t)self();
    for (int i = 16; i; i /= 2)
        v += emulate_shuffle(v, self() % 32 ^ i);
    out[self()] = v;
}

START_TEST(shuffles_and_votes) {
    uint64_t sums[96];
    for (int order = EMULATE_FORWARD; order <= EMULATE_SHUFFLED; order++) {
        emulate_order((enum emulate_order)order, 1);
        run("butterfly", 1, 96, 0, butterfly, sums);
        for (int i = 0; i < 96; i++)
            ck_assert_uint_eq(sums[i], (uint64_t)(i / 32 * 32 * 32 + 31 * 16));
    }
    emulate_order(EMULATE_FORWARD, 0);
}
END_TEST

static void vote(void *arg) { ((uint32_t *)arg)[self()] = emulate_ballot(self() % 3 == 0); }

START_TEST(ballots) {
    uint32_t masks[64];
    run("vote", 1, 64, 0, vote, masks);
    for (int i = 0; i < 64; i++)
        for (int k = 0; k < 32; k++)
            ck_assert_int_eq(masks[i] >> k & 1, (i / 32 * 32 + k) % 3 == 0);
}
END_TEST

static void part_ways(void *arg) {
    (void)arg;
    if (self() < 16)
        emulate_shuffle(1, 0);
    else
        emulate_ballot(true);
}

START_TEST(lanes_at_different_operations) { run("part", 1, 32, 0, part_ways, NULL); }
END_TEST

static void half_a_warp(void *arg) {
    (void)arg;
    if (self() < 16) emulate_shuffle(1, 0);
}

START_TEST(half_a_warp_meets) { run("half", 1, 32, 0, half_a_warp, NULL); }
END_TEST

/* ---- cp.async ---- */

struct copied {
    const float *from;
    float before, after, later, zero;
};

static void copy(void *arg) {
    struct copied *c = arg;
    if (self()) return;
    float *shared = emulate_shared();
    emulate_copy_async(shared, c->from, true);
    emulate_copy_commit();
    emulate_copy_async(shared + 4, c->from + 4, true);
    emulate_copy_async(shared + 8, NULL, false);
    emulate_copy_commit();
    c->before = shared[0];
    emulate_copy_wait(1);
    c->after = shared[0];
    c->later = shared[4];
    emulate_copy_wait(0);
    c->zero = shared[8];
    ck_assert(shared[4] == 5 && c->zero == 0);
}

START_TEST(copies_land_at_their_wait) {
    _Alignas(16) float from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct copied c = {.from = from};
    run("copy", 1, 32, 48, copy, &c);
    ck_assert(isnan(c.before) && c.after == 1 && isnan(c.later));
}
END_TEST

static void copy_outside(void *arg) {
    if (!self()) emulate_copy_async((float *)emulate_shared() + 4, arg, true);
}

START_TEST(copy_outside_of_shared_memory) {
    _Alignas(16) float from[4] = {0};
    run("outside", 1, 32, 16, copy_outside, from);
}
END_TEST

static void copy_crooked(void *arg) {
    if (!self()) emulate_copy_async(emulate_shared(), (char *)arg + 4, true);
}

START_TEST(copy_from_a_crooked_address) {
    _Alignas(16) float from[8] = {0};
    run("crooked", 1, 32, 16, copy_crooked, from);
}
END_TEST

/* ---- tensor cores, against the layouts written out from the PTX manual ---- */

static uint16_t to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (uint16_t)(bits >> 16);
}
static uint32_t pair(float a, float b) { return (uint32_t)to_bf16(b) << 16 | to_bf16(a); }

struct product {
    float a[16][16], b[16][8], c[16][8];
    bool wrong_fragment;
};

static void product(void *arg) {
    struct product *p = arg;
    int g = self() / 4, t = self() % 4;
    uint32_t a[4], b[2];
    for (int i = 0; i < 4; i++) {
        int row = g + (i % 2) * 8, col = 2 * t + (i / 2) * 8;
        if (p->wrong_fragment) row = g + (i / 2) * 8, col = 2 * t + (i % 2) * 8;
        a[i] = pair(p->a[row][col], p->a[row][col + 1]);
    }
    for (int i = 0; i < 2; i++)
        b[i] = pair(p->b[2 * t + 8 * i][g], p->b[2 * t + 8 * i + 1][g]);
    float c[4] = {1, 1, 1, 1};
    emulate_mma_bf16(c, a, b);
    p->c[g][2 * t] = c[0];
    p->c[g][2 * t + 1] = c[1];
    p->c[g + 8][2 * t] = c[2];
    p->c[g + 8][2 * t + 1] = c[3];
}

static float product_error(bool wrong_fragment) {
    struct product p = {.wrong_fragment = wrong_fragment};
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            p.a[i][k] = (float)((i * 5 + k * 3) % 17 - 8);
    for (int k = 0; k < 16; k++)
        for (int j = 0; j < 8; j++)
            p.b[k][j] = (float)((k * 7 + j * 11) % 13 - 6);
    run("product", 1, 32, 0, product, &p);
    float worst = 0;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            float want = 1;
            for (int k = 0; k < 16; k++)
                want += p.a[i][k] * p.b[k][j];
            worst = fmaxf(worst, fabsf(want - p.c[i][j]));
        }
    return worst;
}

START_TEST(products) {
    ck_assert(product_error(false) == 0);
    ck_assert(product_error(true) > 1);
}
END_TEST

struct matrices {
    uint16_t got[2][4][8][8];
};

static void load(void *arg) {
    struct matrices *m = arg;
    uint16_t *shared = emulate_shared();
    int lane = self(), g = lane / 4, t = lane % 4;
    for (int i = lane; i < 256; i += 32)
        shared[i] = (uint16_t)i; /* matrix i / 64, row i / 8 % 8, column i % 8 */
    emulate_warp_sync();
    for (int turned = 0; turned < 2; turned++) {
        uint32_t r[4];
        emulate_ldmatrix(r, shared + lane * 8, turned);
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < 2; i++)
                m->got[turned][j][g][2 * t + i] = (uint16_t)(r[j] >> (16 * i));
    }
}

START_TEST(matrices) {
    struct matrices m;
    run("load", 1, 32, 512, load, &m);
    for (int j = 0; j < 4; j++)
        for (int row = 0; row < 8; row++)
            for (int col = 0; col < 8; col++) {
                ck_assert_int_eq(m.got[0][j][row][col], j * 64 + row * 8 + col);
                ck_assert_int_eq(m.got[1][j][row][col], j * 64 + col * 8 + row);
            }
}
END_TEST

static void load_crooked(void *arg) {
    uint32_t r[4];
    (void)arg;
    emulate_ldmatrix(r, (char *)emulate_shared() + 8, false);
}

START_TEST(matrix_at_a_crooked_address) { run("crooked", 1, 32, 512, load_crooked, NULL); }
END_TEST

START_TEST(no_whole_warps) { run("odd", 1, 33, 0, note_first, NULL); }
END_TEST

START_TEST(no_blocks) {
    emulate_launch("none", (struct emulate_dim){0, 1, 1}, (struct emulate_dim){32, 1, 1}, 0,
                   note_first, NULL);
}
END_TEST

/* ---- grids ---- */

static void count_blocks(void *arg) {
    const struct emulate_position *p = emulate_position();
    ck_assert(p->grid_dim.x == 3 && p->grid_dim.y == 4 && p->grid_dim.z == 5);
    if (!p->thread.x) ((int(*)[4][3])arg)[p->block.z][p->block.y][p->block.x]++;
}

START_TEST(every_block_once) {
    int seen[5][4][3] = {0};
    uint64_t before = emulate_blocks();
    emulate_launch("count", (struct emulate_dim){3, 4, 5}, (struct emulate_dim){32, 1, 1}, 0,
                   count_blocks, seen);
    for (int i = 0; i < 60; i++)
        ck_assert_int_eq((&seen[0][0][0])[i], 1);
    ck_assert_uint_eq(emulate_blocks() - before, 60);
}
END_TEST

/* Each thread waits for its own copy, but nobody for the others'. */
static void read_others_copies(void *arg) {
    uint16_t *shared = emulate_shared();
    uint32_t out[4];
    emulate_copy_async(shared + 8 * self(), (uint8_t *)arg + 16 * self(), true);
    emulate_copy_commit();
    emulate_copy_wait(0);
    emulate_ldmatrix(out, shared + 8 * (self() ^ 1), false);
}

START_TEST(copies_of_others_without_a_barrier) {
    static _Alignas(16) uint8_t data[32 * 16];
    run("hasty", 1, 32, sizeof data, read_others_copies, data);
}
END_TEST

/* ---- the stream ---- */

static void add_one(void *arg) {
    if (!self()) ++**(int **)arg;
}

static void queue_add(struct gpu *g, int *p) {
    int **arg = malloc(sizeof(int *));
    *arg = p;
    gpu_host_launch(gpu_stream(g), "add", (struct emulate_dim){1, 1, 1},
                    (struct emulate_dim){32, 1, 1}, 0, add_one, arg, free);
}

/* Work is done in its order when somebody waits, not before; whoever changes pinned memory or reads
 * a result too early is found out.  Other memory is read at once. */
START_TEST(work_waits_for_the_wait) {
    struct gpu *g;
    struct gpu_info info;
    struct err e = {0};
    ck_assert(gpu_open(&g, &info, &e));
    int *on_device = gpu_alloc(g, sizeof(int), "a test", &e), out = -7, plain = 10;
    int *pinned = gpu_alloc_pinned(g, sizeof(int), "a test", &e);
    gpu_put(g, on_device, &plain, sizeof plain);
    plain = 99;
    queue_add(g, on_device);
    gpu_get(g, &out, on_device, sizeof out);
    ck_assert_int_eq(out, -7);
    ck_assert(gpu_wait(g, &e));
    ck_assert_int_eq(out, 11);

    *pinned = 20;
    gpu_put(g, on_device, pinned, sizeof *pinned);
    *pinned = 30; /* too early */
    queue_add(g, on_device);
    gpu_get(g, &out, on_device, sizeof out);
    ck_assert(gpu_wait(g, &e));
    ck_assert_int_eq(out, 31);

    gpu_host_eager(true);
    *pinned = 40;
    gpu_put(g, on_device, pinned, sizeof *pinned);
    *pinned = 50;
    queue_add(g, on_device);
    gpu_get(g, &out, on_device, sizeof out);
    ck_assert_int_eq(out, 41);
    gpu_host_eager(false);

    gpu_host_fail(gpu_stream(g)); /* a failed device does nothing any more */
    queue_add(g, on_device);
    gpu_get(g, &out, on_device, sizeof out);
    ck_assert(!gpu_wait(g, &e));
    ck_assert_int_eq(out, 41);
    gpu_release(g, on_device);
    gpu_release_pinned(g, pinned);
    gpu_close(g);
}
END_TEST

/* A graph holds what was queued while it was recorded, and runs in the stream's order. */
START_TEST(graphs_run_in_order) {
    struct gpu *g;
    struct gpu_info info;
    struct err e = {0};
    ck_assert(gpu_open(&g, &info, &e));
    int *p = gpu_alloc(g, sizeof(int), "a test", &e), out = 0, start = 100;
    ck_assert_uint_eq(gpu_free_bytes(g), ((size_t)1 << 30) - sizeof(int));
    gpu_capture(g);
    queue_add(g, p);
    queue_add(g, p);
    struct gpu_graph *graph = gpu_captured(g, &e);
    gpu_put(g, p, &start, sizeof start);
    for (int i = 0; i < 3; i++)
        gpu_graph_run(g, graph);
    queue_add(g, p);
    gpu_get(g, &out, p, sizeof out);
    ck_assert(gpu_wait(g, &e));
    ck_assert_int_eq(out, 107);
    gpu_graph_free(g, graph);
    gpu_release(g, p);
    ck_assert_int_eq(gpu_allocations(g), 1);
    gpu_close(g);
}
END_TEST

int main(void) {
    Suite *s = suite_create("emulate");
    TCase *t = tcase_create("emulate");
    tcase_add_test(t, orders);
    tcase_add_test(t, missing_barrier_shows);
    tcase_add_test(t, named_barriers);
    tcase_add_test(t, fresh_memory_is_nan);
    tcase_add_test(t, shuffles_and_votes);
    tcase_add_test(t, ballots);
    tcase_add_test(t, copies_land_at_their_wait);
    tcase_add_test(t, products);
    tcase_add_test(t, matrices);
    tcase_add_test(t, every_block_once);
    tcase_add_test(t, work_waits_for_the_wait);
    tcase_add_test(t, graphs_run_in_order);
    tcase_add_test_raise_signal(t, a_thread_misses_the_barrier, SIGABRT);
    tcase_add_test_raise_signal(t, some_wait_once_more, SIGABRT);
    tcase_add_test_raise_signal(t, lanes_at_different_operations, SIGABRT);
    tcase_add_test_raise_signal(t, half_a_warp_meets, SIGABRT);
    tcase_add_test_raise_signal(t, copy_outside_of_shared_memory, SIGABRT);
    tcase_add_test_raise_signal(t, copies_of_others_without_a_barrier, SIGABRT);
    tcase_add_test_raise_signal(t, copy_from_a_crooked_address, SIGABRT);
    tcase_add_test_raise_signal(t, matrix_at_a_crooked_address, SIGABRT);
    tcase_add_test_raise_signal(t, no_whole_warps, SIGABRT);
    tcase_add_test_raise_signal(t, no_blocks, SIGABRT);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
