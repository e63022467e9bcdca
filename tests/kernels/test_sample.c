/* Sampling: filters against a sorted reference, frequencies by chi-square, ties, penalties,
 * log-probabilities. */
#include "tests/kernels/sorted_filter.h"

enum { N_VOCAB = 1003 };

static const struct kernels_draw plain = {.temperature = 1, .top_p = 1, .repetition = 1};

struct fixture {
    struct kernels_device *dev;
    struct kernels_view logits;
    int n_vocab;
};

static struct fixture make(const char *isa, const float *logits, int n_rows, int n_vocab) {
    const struct kernels *k = kernels_backend("cpu");
    struct fixture f = {.dev = open_device(isa, 2), .n_vocab = n_vocab};
    struct err e = {0};
    ck_assert(k->reserve_rows(f.dev, &(struct kernels_step_shape){8, 64, 1, 2, n_vocab, 512}, &e));
    f.logits = new_view(f.dev, logits, (size_t)n_rows * (size_t)n_vocab * sizeof(float));
    return f;
}

static void done(struct fixture *f) {
    kernels_backend("cpu")->buffer_free(f->dev, f->logits.buffer);
    kernels_backend("cpu")->device_close(f->dev);
}

static void draw_all(struct fixture *f, const struct kernels_draws *draws,
                     struct kernels_drawn *out) {
    const struct kernels *k = kernels_backend("cpu");
    struct err e = {0};
    int n_rows = draws->draws[draws->n_draws - 1].logit_row + 1;
    k->sample(f->dev, f->logits, f->n_vocab, draws, 0, n_rows);
    ck_assert_msg(k->drawn(f->dev, out, draws->n_draws, &e), "%s", e.message);
}

static struct kernels_drawn draw_one(struct fixture *f, struct kernels_draw d) {
    struct kernels_draws all = {.draws = &d, .n_draws = 1};
    struct kernels_drawn out;
    draw_all(f, &all, &out);
    return out;
}

/* Every token of the reference's set is drawn at some time if it's likely enough, and none outside
 * it. */
static void check_filter(const float *logits, int n, struct kernels_draw d) {
    static const char *const isas[] = {"generic", "avx2", "avx512vnni"};
    enum { N = 20000 };
    double *kept = calloc((size_t)n, sizeof *kept);
    bool *seen = calloc((size_t)n, sizeof *seen);
    struct kernels_draw *draws = calloc(N, sizeof *draws);
    struct kernels_drawn *out = calloc(N, sizeof *out), *first = calloc(N, sizeof *first);
    sorted_filter(logits, n, &d, kept);
    for (int i = 0; i < N; i++) {
        draws[i] = d;
        draws[i].seed = 77;
        draws[i].candidate = (uint32_t)i;
    }
    for (int k = 0; k < 3; k++) {
        if (!can_run(isas[k])) continue;
        struct fixture f = make(isas[k], logits, 1, n);
        struct kernels_draws all = {.draws = draws, .n_draws = N};
        draw_all(&f, &all, out);
        done(&f);
        if (k == 0) memcpy(first, out, N * sizeof *out);
        for (int i = 0; i < N; i++) {
            ck_assert_int_eq(out[i].token, first[i].token);
            ck_assert_msg(kept[out[i].token] > 0,
                          "token %d was drawn, top-k %d top-p %g min-p %g leave it out",
                          out[i].token, d.top_k, (double)d.top_p, (double)d.min_p);
            seen[out[i].token] = true;
        }
    }
    for (int i = 0; i < n; i++)
        ck_assert_msg(seen[i] || kept[i] * N < 30, "token %d, expected %g times, was never drawn",
                      i, kept[i] * N);
    free(kept);
    free(seen);
    free(draws);
    free(out);
    free(first);
}

START_TEST(filters) {
    static const struct {
        int top_k;
        float top_p, min_p, temperature, spread;
    } cases[] = {
        {0, 0.9f, 0, 1, 3},        {0, 0.5f, 0, 1, 3},      {5, 1, 0, 1, 1},
        {1, 1, 0, 1, 2},           {40, 0.95f, 0, 0.8f, 2}, {0, 1, 0.1f, 1, 2},
        {10, 0.8f, 0.2f, 1.5f, 2}, {0, 0.99999f, 0, 1, 4},  {2000, 0.7f, 0, 1, 3},
        {0, 0.9f, 0.3f, 1, 2},     {3, 0.0001f, 0, 1, 1},   {0, 0, 0, 1, 1},
        {30, 1, 0, 0.05f, 5},      {0, 0.9f, 0, 1, 0.001f}, {50, 0.5f, 0.001f, 1, 0},
        {0, 0.5f, 0, 2, 8},
    };
    float logits[N_VOCAB];
    random_logits((uint64_t)_i + 1, cases[_i].spread, logits, N_VOCAB);
    struct kernels_draw d = plain;
    d.top_k = cases[_i].top_k;
    d.top_p = cases[_i].top_p;
    d.min_p = cases[_i].min_p;
    d.temperature = cases[_i].temperature;
    check_filter(logits, N_VOCAB, d);
}
END_TEST

/* Equal logits: the filters keep the lower ids. */
START_TEST(filters_with_ties) {
    float logits[N_VOCAB];
    for (int i = 0; i < N_VOCAB; i++)
        logits[i] = (float)(i % 7);
    struct kernels_draw d = plain;
    d.top_k = 20;
    check_filter(logits, N_VOCAB, d);
    d.top_k = 0;
    d.top_p = 0.1f;
    check_filter(logits, N_VOCAB, d);
}
END_TEST

/* ---- frequencies ---- */

/* Chi-square of draws against the probabilities; limit: mean + 5 standard deviations. */
static void check_frequencies(struct kernels_draw d, const float *logits, int n) {
    enum { N = 200000, MAX = 64 };
    double kept[MAX];
    sorted_filter(logits, n, &d, kept);
    int counts[MAX] = {0};
    struct fixture f = make("auto", logits, 1, n);
    struct kernels_draw *draws = calloc(N, sizeof *draws);
    struct kernels_drawn *out = calloc(N, sizeof *out);
    for (int i = 0; i < N; i++) {
        draws[i] = d;
        draws[i].seed = 5;
        draws[i].candidate = (uint32_t)(i % 1000);
        draws[i].position = (uint32_t)(i / 1000);
    }
    struct kernels_draws all = {.draws = draws, .n_draws = N};
    draw_all(&f, &all, out);
    for (int i = 0; i < N; i++)
        counts[out[i].token]++;
    double chi = 0;
    int degrees = -1;
    for (int i = 0; i < n; i++) {
        double want = kept[i] * N;
        if (want == 0) {
            ck_assert_int_eq(counts[i], 0);
            continue;
        }
        chi += (counts[i] - want) * (counts[i] - want) / want;
        degrees++;
    }
    ck_assert_msg(chi < degrees + 5 * sqrt(2.0 * degrees) + 1e-9,
                  "chi-square is %g with %d degrees", chi, degrees);
    free(draws);
    free(out);
    done(&f);
}

START_TEST(frequencies) {
    float logits[40];
    random_logits(4, 1, logits, 40);
    struct kernels_draw d = plain;
    check_frequencies(d, logits, 40);
    d.temperature = 0.7f;
    check_frequencies(d, logits, 40);
    d.top_k = 10;
    check_frequencies(d, logits, 40);
    d.top_p = 0.9f;
    d.min_p = 0.02f;
    check_frequencies(d, logits, 40);
}
END_TEST

/* ---- greedy, penalties, bias ---- */

START_TEST(greedy_takes_the_lowest_of_equals) {
    float logits[N_VOCAB];
    random_logits(3, 1, logits, N_VOCAB);
    logits[500] = logits[321] = logits[999] = 9;
    struct fixture f = make("auto", logits, 1, N_VOCAB);
    struct kernels_draw d = plain;
    d.temperature = 0;
    d.top_k = 3;
    ck_assert_int_eq(draw_one(&f, d).token, 321);
    done(&f);
}
END_TEST

START_TEST(penalties_and_bias) {
    float logits[] = {2.0f, 1.9f, -1.0f, 0.5f};
    struct fixture f = make("auto", logits, 1, 4);
    struct kernels_seen seen[] = {{0, 0}, {0, 2}, {1, 1}};
    struct kernels_bias bias[] = {{3, 5.0f}, {2, 100.0f}};
    int32_t forbidden[] = {0, 2};
    struct kernels_draw d = plain;
    struct kernels_draws all = {
        .draws = &d, .n_draws = 1, .seen = seen, .bias = bias, .forbidden = forbidden};
    struct kernels_drawn out;
    d.temperature = 0;
    d.n_seen = 1;
    d.repetition = 1.2f; /* 2.0 / 1.2 < 1.9: a token of the prompt */
    draw_all(&f, &all, &out);
    ck_assert_int_eq(out.token, 1);
    /* Log-probabilities are those of the unchanged logits. */
    double total = exp(2) + exp((double)1.9f) + exp(-1) + exp(0.5);
    ck_assert_double_eq_tol((double)out.logprob, (double)1.9f - log(total), 1e-5);
    d.repetition = 1;
    d.presence = 0.2f; /* count 0: presence doesn't see it */
    draw_all(&f, &all, &out);
    ck_assert_int_eq(out.token, 0);
    d.first_seen = 1;
    draw_all(&f, &all, &out);
    ck_assert_int_eq(out.token, 1);
    d.presence = 0;
    d.frequency = 0.04f; /* 2.0 - 2 * 0.04 > 1.9 */
    draw_all(&f, &all, &out);
    ck_assert_int_eq(out.token, 0);
    d.frequency = 0.06f;
    draw_all(&f, &all, &out);
    ck_assert_int_eq(out.token, 1);
    d.n_seen = 2;
    draw_all(&f, &all, &out); /* 2.0 - 0.12 = 1.88, 1.9 - 0.06 = 1.84 */
    ck_assert_int_eq(out.token, 0);
    d.n_seen = 0;
    d.n_bias = 1;
    draw_all(&f, &all, &out);
    ck_assert_int_eq(out.token, 3);
    d.n_bias = 2;
    draw_all(&f, &all, &out);
    ck_assert_int_eq(out.token, 2);
    d.n_forbidden = 2;
    draw_all(&f, &all, &out);
    ck_assert_int_eq(out.token, 3);
    d.n_bias = 0;
    d.temperature = 1;
    d.top_k = 4; /* forbidden tokens aren't drawn, even where a filter has room for them */
    for (uint32_t i = 0; i < 2000; i++) {
        d.candidate = i;
        draw_all(&f, &all, &out);
        ck_assert(out.token == 1 || out.token == 3);
    }
    done(&f);
}
END_TEST

/* A draw with changed logits doesn't disturb its neighbours on the same row. */
START_TEST(draws_of_one_row_are_independent) {
    float logits[2 * N_VOCAB];
    random_logits(6, 2, logits, 2 * N_VOCAB);
    struct fixture f = make("auto", logits, 2, N_VOCAB);
    struct kernels_bias bias[] = {{7, 50}};
    struct kernels_draw d[6];
    for (int i = 0; i < 6; i++) {
        d[i] = plain;
        d[i].logit_row = i % 2;
        d[i].candidate = (uint32_t)i;
        d[i].top_p = 0.95f;
        d[i].n_bias = i == 2;
    }
    struct kernels_draws all = {.draws = d, .n_draws = 6, .bias = bias};
    struct kernels_drawn out[6];
    draw_all(&f, &all, out);
    ck_assert_int_eq(out[2].token, 7);
    for (int i = 0; i < 6; i++) {
        struct kernels_draws one = {.draws = &d[i], .n_draws = 1, .bias = bias};
        struct kernels_drawn alone;
        draw_all(&f, &one, &alone);
        ck_assert_int_eq(alone.token, out[i].token);
        ck_assert(alone.logprob == out[i].logprob);
    }
    done(&f);
}
END_TEST

/* ---- log-probabilities ---- */

START_TEST(top_logprobs) {
    float logits[N_VOCAB];
    random_logits(8, 3, logits, N_VOCAB);
    logits[10] = logits[20] = logits[900] = 12;
    double total = 0;
    for (int i = 0; i < N_VOCAB; i++)
        total += exp((double)logits[i]);
    static const char *const isas[] = {"generic", "avx2", "avx512vnni"};
    for (int k = 0; k < 3; k++) {
        if (!can_run(isas[k])) continue;
        struct fixture f = make(isas[k], logits, 1, N_VOCAB);
        struct kernels_draw d = plain;
        d.n_top = KERNELS_TOP;
        d.temperature = 0.5f;
        struct kernels_drawn out = draw_one(&f, d);
        ck_assert_int_eq(out.n_top, KERNELS_TOP);
        ck_assert_int_eq(out.top_token[0], 10);
        ck_assert_int_eq(out.top_token[1], 20);
        ck_assert_int_eq(out.top_token[2], 900);
        for (int i = 0; i < KERNELS_TOP; i++) {
            int better = 0;
            for (int t = 0; t < N_VOCAB; t++)
                better += logits[t] > logits[out.top_token[i]];
            ck_assert_int_le(better, i);
            ck_assert_double_eq_tol((double)out.top_logprob[i],
                                    (double)logits[out.top_token[i]] - log(total), 1e-4);
        }
        ck_assert_double_eq_tol((double)out.logprob, (double)logits[out.token] - log(total), 1e-4);
        done(&f);
    }
}
END_TEST

START_TEST(fewer_tokens_than_asked_for) {
    float logits[] = {1, 3, 2};
    struct fixture f = make("auto", logits, 1, 3);
    struct kernels_draw d = plain;
    d.n_top = 5;
    struct kernels_drawn out = draw_one(&f, d);
    ck_assert_int_eq(out.n_top, 3);
    ck_assert_int_eq(out.top_token[0], 1);
    ck_assert_int_eq(out.top_token[2], 0);
    done(&f);
}
END_TEST

/* ---- randomness ---- */

/* Known answers of Philox4x32-10, from the Random123 distribution's kat_vectors: key and counter
 * all zero give 6627e8d5 first; counter 243f6a88 85a308d3 13198a2e 03707344 isn't of our form. */
START_TEST(philox_known_answer) {
    ck_assert(kernels_uniform(0, 0, 0) == (float)(0x6627e8d5 >> 8) * 0x1p-24f);
}
END_TEST

START_TEST(uniform_is_uniform) {
    enum { N = 100000, BINS = 64 };
    int counts[BINS] = {0};
    for (uint32_t i = 0; i < N; i++) {
        float u = kernels_uniform(0x123456789abcdefu, i / 100, i % 100);
        ck_assert(u >= 0 && u < 1);
        counts[(int)(u * BINS)]++;
    }
    double chi = 0, want = (double)N / BINS;
    for (int i = 0; i < BINS; i++)
        chi += (counts[i] - want) * (counts[i] - want) / want;
    ck_assert_double_lt(chi, 63 + 5 * sqrt(126));
    ck_assert(kernels_uniform(1, 0, 0) != kernels_uniform(2, 0, 0));
    ck_assert(kernels_uniform((uint64_t)1 << 32, 0, 0) != kernels_uniform(0, 0, 0));
    ck_assert(kernels_uniform(1, 2, 3) != kernels_uniform(1, 3, 2));
}
END_TEST

int main(void) {
    TCase *t = tcase_create("sample");
    tcase_add_loop_test(t, filters, 0, 16);
    tcase_add_test(t, filters_with_ties);
    tcase_add_test(t, frequencies);
    tcase_add_test(t, greedy_takes_the_lowest_of_equals);
    tcase_add_test(t, penalties_and_bias);
    tcase_add_test(t, draws_of_one_row_are_independent);
    tcase_add_test(t, top_logprobs);
    tcase_add_test(t, fewer_tokens_than_asked_for);
    tcase_add_test(t, philox_known_answer);
    tcase_add_test(t, uniform_is_uniform);
    return run_tests(&t, 1, "sample");
}
