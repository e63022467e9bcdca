/* Draws of the CUDA backend, emulated: distributions by chi-square and token by token against the
 * CPU backend, for every filter; penalties, ties, log-probabilities; a draw is the same in any
 * slot. */
#include "tests/cuda/cuda_test.h"
#include "tests/kernels/sorted_filter.h"

enum { N_VOCAB = 1003, CALL = 10000, CALLS = 10 };

static const struct kernels_draw plain = {.temperature = 1, .top_p = 1, .repetition = 1};

static struct side open_side(const char *backend, int n_vocab) {
    struct side s = side_open(backend, "auto", false);
    side_reserve(&s, (struct kernels_step_shape){40, 64, 2, 64, n_vocab, 512});
    return s;
}

static void draw_on(const struct side *s, const float *logits, int n_rows, int n_vocab,
                    const struct kernels_draws *draws, struct kernels_drawn *out) {
    struct err e = {0};
    size_t bytes = (size_t)n_rows * (size_t)n_vocab * 4;
    struct kernels_view v = side_new(s, logits, bytes);
    s->k->sample(s->dev, v, n_vocab, draws, 0, n_rows);
    ck_assert_msg(s->k->drawn(s->dev, out, draws->n_draws, &e), "%s", e.message);
    if (s->bf16) {
        /* The row is as it was: penalties are undone. */
        float *after = malloc(bytes);
        side_read(s, v, after, bytes);
        ck_assert(!memcmp(after, logits, bytes));
        free(after);
    }
    s->k->buffer_free(s->dev, v.buffer);
}

/* Chi-square of counts against probabilities, tokens expected less than ten times put together; the
 * bound is the 99.9 % quantile by Wilson and Hilferty. */
static void check_chi_square(const int *counts, const double *p, int n, int total) {
    double chi = 0, rest_expected = 0, rest_seen = 0;
    int bins = 0;
    for (int i = 0; i < n; i++) {
        double expected = p[i] * total;
        ck_assert_msg(p[i] > 0 || !counts[i], "token %d can't be drawn, but was", i);
        if (expected < 10) {
            rest_expected += expected;
            rest_seen += counts[i];
            continue;
        }
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
        bins++;
    }
    if (rest_expected >= 10) {
        chi += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
        bins++;
    }
    double k = bins > 1 ? bins - 1 : 1, c = 1 - 2 / (9 * k) + 3.0902 * sqrt(2 / (9 * k));
    ck_assert_msg(chi <= k * c * c * c, "chi-square %.1f of %d bins; %.1f is the bound", chi, bins,
                  k * c * c * c);
}

static const struct kernels_draw filters[] = {
    {.temperature = 1, .top_p = 1, .repetition = 1},
    {.temperature = 0.7f, .top_p = 1, .repetition = 1},
    {.temperature = 2, .top_k = 5, .top_p = 1, .repetition = 1},
    {.temperature = 1, .top_k = 50, .top_p = 1, .repetition = 1},
    {.temperature = 1, .top_p = 0.9f, .repetition = 1},
    {.temperature = 1.5f, .top_p = 0.3f, .repetition = 1},
    {.temperature = 1, .top_p = 1, .min_p = 0.05f, .repetition = 1},
    {.temperature = 1, .top_k = 40, .top_p = 0.8f, .repetition = 1},
    {.temperature = 1.3f, .top_k = 40, .top_p = 0.95f, .min_p = 0.02f, .repetition = 1},
    {.temperature = 0.02f, .top_p = 1, .repetition = 1},
    {.temperature = 1, .top_k = 1, .top_p = 1, .repetition = 1},
    {.temperature = 1, .top_p = 0, .repetition = 1},
};
enum { N_FILTERS = sizeof filters / sizeof *filters };

START_TEST(distributions) {
    struct kernels_draw f = filters[_i];
    struct side cuda = open_side("cuda", N_VOCAB), cpu = open_side("cpu", N_VOCAB);
    float logits[N_VOCAB];
    random_logits(31, 3, logits, N_VOCAB);
    static struct kernels_draw draws[CALL];
    static struct kernels_drawn got[CALL], want[CALL];
    int *counts = calloc(N_VOCAB, sizeof *counts), differ = 0;
    double *p = calloc(N_VOCAB, sizeof *p);
    use_order(_i % N_ORDERS);
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < CALL; i++) {
            draws[i] = f;
            draws[i].seed = (uint64_t)call << 40 | 4242;
            draws[i].candidate = (uint32_t)i;
            draws[i].position = (uint32_t)call * 3;
        }
        struct kernels_draws all = {.draws = draws, .n_draws = CALL};
        draw_on(&cuda, logits, 1, N_VOCAB, &all, got);
        draw_on(&cpu, logits, 1, N_VOCAB, &all, want);
        for (int i = 0; i < CALL; i++) {
            counts[got[i].token]++;
            differ += got[i].token != want[i].token;
            if (got[i].token == want[i].token)
                ck_assert(fabsf(got[i].logprob - want[i].logprob) < 1e-4f);
        }
    }
    sorted_filter(logits, N_VOCAB, &f, p);
    check_chi_square(counts, p, N_VOCAB, CALL * CALLS);
    /* Where a draw falls within rounding of a boundary, the backends may differ. */
    ck_assert_msg(differ <= CALL * CALLS / 1000, "%d of %d draws differ from the cpu's", differ,
                  CALL * CALLS);
    free(counts);
    free(p);
    cuda.k->device_close(cuda.dev);
    cpu.k->device_close(cpu.dev);
}
END_TEST

/* Rows, settings, penalties, biases and forbidden tokens mixed, as a step has them. */
enum { N_ROWS = 7, N_MIXED = 200 };
static const struct kernels_seen seen[] = {{3, 0}, {5, 2}, {700, 1}, {1002, 9}, {17, 0}, {3, 1}};
static const struct kernels_bias bias[] = {{9, 5}, {10, -100}, {9, 1.5f}, {1002, 3}};
static const int32_t forbidden[] = {0, 512, 9, 3};

static void mix(struct kernels_draw *draws, int n) {
    struct random r = {99};
    for (int i = 0; i < n; i++) {
        draws[i] = filters[random_int(&r, N_FILTERS)];
        draws[i].logit_row = i * N_ROWS / n;
        draws[i].seed = random_u64(&r);
        draws[i].candidate = (uint32_t)random_int(&r, 10000);
        draws[i].position = (uint32_t)random_int(&r, 500);
        if (i % 4 == 1) draws[i].temperature = 0;
        if (i % 3 == 0) {
            draws[i].repetition = 1.3f;
            draws[i].presence = 0.4f;
            draws[i].frequency = 0.2f;
            draws[i].n_seen = 1 + i % 5;
        }
        if (i % 5 == 0) {
            draws[i].first_bias = i % 2;
            draws[i].n_bias = 3;
        }
        if (i % 7 == 0) draws[i].n_forbidden = 1 + i % 4;
        if (i % 6 == 0) draws[i].n_top = i % 21;
    }
}

static const struct kernels_draws mixed_lists = {
    .seen = seen, .bias = bias, .forbidden = forbidden};

START_TEST(mixed_like_the_cpu) {
    struct side cuda = open_side("cuda", N_VOCAB), cpu = open_side("cpu", N_VOCAB);
    static float logits[N_ROWS * N_VOCAB];
    for (int i = 0; i < N_ROWS; i++)
        random_logits((uint64_t)i + 1, 2, logits + i * N_VOCAB, N_VOCAB);
    struct kernels_draw draws[N_MIXED];
    static struct kernels_drawn got[N_MIXED], want[N_MIXED];
    mix(draws, N_MIXED);
    struct kernels_draws all = mixed_lists;
    all.draws = draws;
    all.n_draws = N_MIXED;
    use_order(_i);
    draw_on(&cuda, logits, N_ROWS, N_VOCAB, &all, got);
    draw_on(&cpu, logits, N_ROWS, N_VOCAB, &all, want);
    int differ = 0;
    for (int i = 0; i < N_MIXED; i++) {
        differ += got[i].token != want[i].token;
        if (draws[i].temperature <= 0) ck_assert_int_eq(got[i].token, want[i].token);
        ck_assert_int_eq(got[i].n_top, want[i].n_top);
        for (int k = 0; k < got[i].n_top; k++) {
            ck_assert_int_eq(got[i].top_token[k], want[i].top_token[k]);
            ck_assert(fabsf(got[i].top_logprob[k] - want[i].top_logprob[k]) < 1e-4f);
        }
    }
    ck_assert_int_le(differ, 1);
    cuda.k->device_close(cuda.dev);
    cpu.k->device_close(cpu.dev);
}
END_TEST

/* The same (row, settings, seed, candidate, position) alone, among others, in any order of threads.
 */
START_TEST(any_slot) {
    struct side s = open_side("cuda", N_VOCAB);
    static float logits[N_ROWS * N_VOCAB];
    for (int i = 0; i < N_ROWS; i++)
        random_logits((uint64_t)i + 50, 2, logits + i * N_VOCAB, N_VOCAB);
    struct kernels_draw draws[N_MIXED];
    static struct kernels_drawn first[N_MIXED], again;
    mix(draws, N_MIXED);
    struct kernels_draws all = mixed_lists;
    all.draws = draws;
    all.n_draws = N_MIXED;
    draw_on(&s, logits, N_ROWS, N_VOCAB, &all, first);
    for (int i = 0; i < N_MIXED; i += 9) {
        struct kernels_draw one = draws[i];
        one.logit_row = 0;
        struct kernels_draws alone = mixed_lists;
        alone.draws = &one;
        alone.n_draws = 1;
        use_order(i % N_ORDERS);
        draw_on(&s, logits + draws[i].logit_row * N_VOCAB, 1, N_VOCAB, &alone, &again);
        ck_assert_int_eq(again.token, first[i].token);
        ck_assert(!memcmp(&again.logprob, &first[i].logprob, sizeof again.logprob));
    }
    s.k->device_close(s.dev);
}
END_TEST

/* Equal logits: top-k and top-p keep the lowest ids, greedy takes the lowest. */
START_TEST(ties) {
    struct side s = open_side("cuda", 500);
    float logits[500];
    for (int i = 0; i < 500; i++)
        logits[i] = i % 2 ? 1 : -1;
    struct kernels_draw draws[3 * 300];
    static struct kernels_drawn out[3 * 300];
    for (int i = 0; i < 900; i++) {
        draws[i] = plain;
        draws[i].candidate = (uint32_t)i;
        if (i < 300)
            draws[i].top_k = 7;
        else if (i < 600)
            draws[i].top_p = 0.02f; /* of a mass of 250 e + 250 / e: six of them */
        else
            draws[i].temperature = 0;
    }
    struct kernels_draws all = {.draws = draws, .n_draws = 900};
    use_order(_i);
    draw_on(&s, logits, 1, 500, &all, out);
    bool drawn[500] = {0};
    for (int i = 0; i < 300; i++) {
        ck_assert(out[i].token % 2 && out[i].token < 14);
        drawn[out[i].token] = true;
        ck_assert(out[300 + i].token % 2 && out[300 + i].token < 12);
        ck_assert_int_eq(out[600 + i].token, 1);
    }
    for (int i = 1; i < 14; i += 2)
        ck_assert(drawn[i]);
    s.k->device_close(s.dev);
}
END_TEST

/* Vocabularies that aren't round, and rows with -inf. */
START_TEST(odd_vocabularies) {
    static const int sizes[] = {1, 2, 31, 33, 1024, 1025, 4099};
    for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        int n = sizes[c];
        struct side cuda = open_side("cuda", n), cpu = open_side("cpu", n);
        float *logits = malloc((size_t)n * 4);
        random_logits((uint64_t)n, 2, logits, n);
        for (int i = 1; i < n; i += 5)
            logits[i] = -INFINITY;
        struct kernels_draw draws[N_FILTERS * 3];
        struct kernels_drawn got[N_FILTERS * 3], want[N_FILTERS * 3];
        for (int i = 0; i < N_FILTERS * 3; i++) {
            draws[i] = filters[i % N_FILTERS];
            draws[i].candidate = (uint32_t)i;
            draws[i].n_top = 20;
        }
        struct kernels_draws all = {.draws = draws, .n_draws = N_FILTERS * 3};
        draw_on(&cuda, logits, 1, n, &all, got);
        draw_on(&cpu, logits, 1, n, &all, want);
        int differ = 0;
        for (int i = 0; i < N_FILTERS * 3; i++) {
            ck_assert(got[i].token >= 0 && got[i].token < n && logits[got[i].token] > -INFINITY);
            differ += got[i].token != want[i].token;
        }
        ck_assert_int_le(differ, 1);
        free(logits);
        cuda.k->device_close(cuda.dev);
        cpu.k->device_close(cpu.dev);
    }
}
END_TEST

/* More draws, and more changes, than one launch takes. */
START_TEST(many_parts) {
    enum { N = 25000 };
    struct side s = open_side("cuda", 64);
    float logits[2 * 64];
    random_logits(5, 2, logits, 128);
    struct kernels_draw *draws = calloc(N, sizeof *draws);
    struct kernels_drawn *out = calloc(N, sizeof *out), one;
    for (int i = 0; i < N; i++) {
        draws[i] = plain;
        draws[i].logit_row = i >= N / 2;
        draws[i].candidate = (uint32_t)i;
    }
    struct kernels_draws all = {.draws = draws, .n_draws = N};
    draw_on(&s, logits, 2, 64, &all, out);
    for (int i = 0; i < N; i += 4999) {
        struct kernels_draws alone = {.draws = &draws[i], .n_draws = 1};
        draw_on(&s, logits, 2, 64, &alone, &one);
        ck_assert_int_eq(one.token, out[i].token);
    }
    free(draws);
    free(out);
    s.k->device_close(s.dev);
}
END_TEST

int main(void) {
    if (!cuda_test_can_run()) return 77;
    TCase *t = tcase_create("cuda sample");
    tcase_add_loop_test(t, distributions, 0, N_FILTERS);
    tcase_add_loop_test(t, mixed_like_the_cpu, 0, N_ORDERS);
    tcase_add_test(t, any_slot);
    tcase_add_loop_test(t, ties, 0, N_ORDERS);
    tcase_add_test(t, odd_vocabularies);
    tcase_add_test(t, many_parts);
    return run_tests(&t, 1, "cuda sample");
}
