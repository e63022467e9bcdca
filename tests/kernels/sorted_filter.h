/* What the filters of a draw keep, by sorting the whole vocabulary in double: the reference of
 * every backend's sampler; and logits to try it on. */
#ifndef TESTS_KERNELS_SORTED_FILTER_H
#define TESTS_KERNELS_SORTED_FILTER_H

#include "tests/kernels/kernels_test.h"

static inline void random_logits(uint64_t seed, float spread, float *out, int n) {
    struct random r = {seed};
    for (int i = 0; i < n; i++)
        out[i] = spread * (random_float(&r) + random_float(&r) + random_float(&r));
}

struct filter_entry {
    int token;
    double weight;
};

static inline int filter_heavier(const void *a, const void *b) {
    const struct filter_entry *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? 1 : -1;
    return x->token - y->token;
}

/* Probabilities of the tokens after the filters; 0: can't be drawn. */
static inline void sorted_filter(const float *logits, int n, const struct kernels_draw *d,
                                 double *kept) {
    struct filter_entry *all = calloc((size_t)n, sizeof *all);
    double max = -INFINITY, total = 0, sum = 0;
    for (int i = 0; i < n; i++)
        max = fmax(max, (double)logits[i]);
    for (int i = 0; i < n; i++) {
        all[i] = (struct filter_entry){i, exp(((double)logits[i] - max) / (double)d->temperature)};
        kept[i] = 0;
    }
    qsort(all, (size_t)n, sizeof *all, filter_heavier);
    int limit = d->top_k > 0 && d->top_k < n ? d->top_k : n;
    for (int i = 0; i < limit; i++)
        total += all[i].weight;
    for (int i = 0; i < limit; i++) {
        if (d->top_p < 1 && i && sum >= (double)d->top_p * total) break;
        if (all[i].weight < (double)d->min_p) break;
        kept[all[i].token] = all[i].weight;
        sum += all[i].weight;
    }
    for (int i = 0; i < n; i++)
        kept[i] /= sum;
    free(all);
}

#endif
