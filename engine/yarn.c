#include "engine/yarn.h"

#include <math.h>

/* The pair, as a real number, that turns n times within the trained context. */
static double pair_of(const struct yarn *y, double n, double base, int n_rot) {
    return n_rot * log(y->trained / (n * 2 * M_PI)) / (2 * log(base));
}

void yarn_frequencies(const struct yarn *y, double base, int n_rot, float *inv_freq) {
    double first = fmax(floor(pair_of(y, y->beta_fast, base, n_rot)), 0);
    double last = fmin(ceil(pair_of(y, y->beta_slow, base, n_rot)), n_rot - 1);
    double width = fmax(last - first, 0.001);
    for (int i = 0; i < n_rot / 2; i++) {
        double blend = fmin(fmax((i - first) / width, 0), 1);
        inv_freq[i] = (float)((double)inv_freq[i] * (1 - blend + blend / y->factor));
    }
}

double yarn_size(double factor) { return factor > 1 ? 0.1 * log(factor) + 1 : 1; }
