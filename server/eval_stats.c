#include "server/eval_stats.h"

#include "base/ascending.h"
#include "base/err.h"
#include "server/api_response.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

enum { RESAMPLES = 2000 };
static const double Z_95 = 1.959963984540054;

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

struct eval_estimate eval_stats_pass_at(const struct eval_count *counts, int n_tasks, int k) {
    struct eval_estimate out = {(double)NAN, (double)NAN, (double)NAN};
    if (n_tasks < 1) return out;
    double *each = err_alloc((size_t)n_tasks, sizeof *each);
    double *means = err_alloc(RESAMPLES, sizeof *means);
    double sum = 0;
    for (int i = 0; i < n_tasks; i++)
        sum += each[i] = api_response_pass_at(counts[i].n, counts[i].passed, k);
    if (!isnan(sum)) {
        uint64_t state = 0;
        for (int r = 0; r < RESAMPLES; r++) {
            double s = 0;
            for (int i = 0; i < n_tasks; i++)
                s += each[(next(&state) >> 32) * (uint64_t)n_tasks >> 32];
            means[r] = s / n_tasks;
        }
        qsort(means, RESAMPLES, sizeof *means, ascending_doubles);
        out = (struct eval_estimate){sum / n_tasks, means[RESAMPLES / 40],
                                     means[RESAMPLES - 1 - RESAMPLES / 40]};
    }
    free(each);
    free(means);
    return out;
}

struct eval_estimate eval_stats_share(int solved, int n) {
    if (n < 1) return (struct eval_estimate){(double)NAN, (double)NAN, (double)NAN};
    double p = (double)solved / n, z2 = Z_95 * Z_95 / n;
    double middle = (p + z2 / 2) / (1 + z2);
    double half = Z_95 / (1 + z2) * sqrt(p * (1 - p) / n + z2 / (4.0 * n));
    double low = middle - half, high = middle + half;
    return (struct eval_estimate){p, solved ? low : 0, solved < n ? high : 1};
}
