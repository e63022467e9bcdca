/* YaRN (arXiv 2309.00071): rotary frequencies for a context longer than a model was trained for.
 *
 * Dimensions that turn beta_fast times and more within the trained context keep their frequency,
 * those that turn beta_slow times and fewer get it divided by `factor`, between them (by the number
 * of the pair, rounded outwards, as published models are made with) a blend.  Scores are multiplied
 * by yarn_size() squared, which is 1 / t of the paper.  Pure. */
#ifndef ENGINE_YARN_H
#define ENGINE_YARN_H

struct yarn {
    double factor;  /* >= 1: of the context */
    double trained; /* positions */
    double beta_fast, beta_slow;
};

/* inv_freq[n_rot / 2] of `base`, in place. */
void yarn_frequencies(const struct yarn *, double base, int n_rot, float *inv_freq);
/* What queries and keys are multiplied by. */
double yarn_size(double factor);

#endif
