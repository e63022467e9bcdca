#include "kernels/cpu/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEVELS =
        3, /* of the radix select: 12, 9 and 9 bits of a weight in 0 … 1, whose upper two are 0 */
    BINS = 4096,  /* of the first level */
    NARROW = 512, /* candidates that the radix select is left with, where they can be told apart */
};

struct sample {
    int room;        /* tokens there is memory for */
    int n_vocab;     /* of the present row */
    float *logits;   /* owned; the row with penalties and bias */
    float *weights;  /* owned; e^((logit - max) / temperature) */
    int32_t *tokens; /* owned; candidates in ascending order */
    float *values;   /* owned; their weights */
    float *part;     /* owned; the weights among which a threshold lies */
    float *sums;     /* owned; of chunks of what is drawn from */
    double *mass;    /* owned; of bins */
    int32_t *count;  /* owned; of bins */
};

static size_t chunks(int n) { return ((size_t)n + VECTOR_CHUNK - 1) / VECTOR_CHUNK; }

size_t sample_bytes(int n_vocab) {
    return (size_t)n_vocab * (4 * sizeof(float) + sizeof(int32_t)) +
           chunks(n_vocab) * sizeof(float) + BINS * (sizeof(double) + sizeof(int32_t));
}

struct sample *sample_new(int n_vocab) {
    struct sample *s = err_alloc(1, sizeof *s);
    size_t n = (size_t)n_vocab;
    *s = (struct sample){
        .room = n_vocab,
        .logits = err_alloc(n, sizeof(float)),
        .weights = err_alloc(n, sizeof(float)),
        .tokens = err_alloc(n, sizeof(int32_t)),
        .values = err_alloc(n, sizeof(float)),
        .part = err_alloc(n, sizeof(float)),
        .sums = err_alloc(chunks(n_vocab), sizeof(float)),
        .mass = err_alloc(BINS, sizeof(double)),
        .count = err_alloc(BINS, sizeof(int32_t)),
    };
    return s;
}

void sample_free(struct sample *s) {
    if (!s) return;
    free(s->logits);
    free(s->weights);
    free(s->tokens);
    free(s->values);
    free(s->part);
    free(s->sums);
    free(s->mass);
    free(s->count);
    free(s);
}

/* ---- penalties ---- */

static bool changes_logits(const struct kernels_draw *d) {
    bool penalties = d->n_seen && (d->repetition != 1 || d->presence != 0 || d->frequency != 0);
    return penalties || d->n_bias || d->n_forbidden;
}

static void change_logits(const struct kernels_draws *all, const struct kernels_draw *d,
                          float *logits, int n_vocab) {
    for (int i = 0; i < d->n_seen; i++) {
        struct kernels_seen seen = all->seen[d->first_seen + i];
        BUG_ON(seen.token < 0 || seen.token >= n_vocab);
        float *l = &logits[seen.token];
        if (d->repetition != 1) *l = *l > 0 ? *l / d->repetition : *l * d->repetition;
        if (seen.count > 0) *l -= d->presence + d->frequency * (float)seen.count;
    }
    for (int i = 0; i < d->n_bias; i++) {
        struct kernels_bias bias = all->bias[d->first_bias + i];
        BUG_ON(bias.token < 0 || bias.token >= n_vocab);
        logits[bias.token] += bias.bias;
    }
    for (int i = 0; i < d->n_forbidden; i++) {
        int32_t token = all->forbidden[d->first_forbidden + i];
        BUG_ON(token < 0 || token >= n_vocab);
        logits[token] = -INFINITY;
    }
}

/* ---- the threshold ---- */

/* A prefix of the candidates in descending order: those whose weight is above `weight`, and the
 * first `ties` of the `equals` that have it. */
struct threshold {
    float weight;
    int ties, equals;
};

/* Where the end of a prefix is looked for: among the n weights above `low` and up to `high`; what
 * is heavier is in the prefix. */
struct bracket {
    const float *values;
    int n;
    float low, high;
    int64_t count; /* of the heavier ones */
    double mass;   /* of the heavier ones */
};

static uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* Cuts the bracket into five by bits, which is by logarithm, and keeps the fifth in which the
 * prefix ends.  False where it is too narrow for that. */
static bool narrow(struct sample *s, const struct vector_ops *v, int64_t max_count, double mass,
                   struct bracket *b) {
    uint32_t low = bits_of(b->low), width = bits_of(b->high) - low;
    if (width <= VECTOR_FLOORS) return false;
    float floors[VECTOR_FLOORS];
    double masses[VECTOR_FLOORS];
    int counts[VECTOR_FLOORS], k = 0;
    for (uint32_t i = 0; i < VECTOR_FLOORS; i++)
        floors[i] = float_of(low + width / (VECTOR_FLOORS + 1) * (VECTOR_FLOORS - i));
    v->masses(b->values, b->n, floors, masses, counts);
    while (k < VECTOR_FLOORS && b->count + counts[k] < max_count && b->mass + masses[k] < mass)
        k++;
    if (k < VECTOR_FLOORS) b->low = floors[k];
    if (k > 0) {
        b->high = floors[k - 1];
        b->count += counts[k - 1];
        b->mass += masses[k - 1];
    }
    b->n = v->between(b->values, b->n, b->low, b->high, NULL, s->part, s->room);
    b->values = s->part;
    return true;
}

/* The end of the prefix by a radix select: level by level, the bin in which it ends is found and
 * looked at alone. */
static struct threshold select_in(struct sample *s, const struct bracket *b, int64_t max_count,
                                  double mass) {
    static const int shifts[LEVELS] = {18, 9, 0}, widths[LEVELS] = {12, 9, 9};
    uint32_t prefix = 0;
    int64_t count = b->count;
    double sum = b->mass;
    struct threshold t = {.ties = 0};
    for (int level = 0; level < LEVELS; level++) {
        int bins = 1 << widths[level], above = shifts[level] + widths[level];
        memset(s->mass, 0, (size_t)bins * sizeof *s->mass);
        memset(s->count, 0, (size_t)bins * sizeof *s->count);
        for (int i = 0; i < b->n; i++) {
            uint32_t bits = bits_of(b->values[i]);
            if (level && bits >> above != prefix) continue;
            uint32_t bin = bits >> shifts[level] & ((uint32_t)bins - 1);
            s->mass[bin] += (double)b->values[i];
            s->count[bin]++;
        }
        int bin = bins - 1, lowest = 0;
        while (!s->count[lowest])
            lowest++;
        for (; bin > lowest; bin--) {
            if (count + s->count[bin] >= max_count || sum + s->mass[bin] >= mass) break;
            count += s->count[bin];
            sum += s->mass[bin];
        }
        prefix = prefix << widths[level] | (uint32_t)bin;
        t.equals = s->count[bin];
    }
    t.weight = float_of(prefix);
    while (t.ties < t.equals && count + t.ties < max_count && sum < mass) {
        sum += (double)t.weight;
        t.ties++;
    }
    return t;
}

/* ---- one draw ---- */

/* What draws with equal settings of one row share: they draw from the values above `floor`, whose
 * sums are in s->sums. */
struct prepared {
    const float *logits;   /* the row, or the changed copy */
    const int32_t *tokens; /* of the values; NULL: their index */
    const float *values;
    int n;
    float floor;
    bool was_cut; /* values at the floor or below are among them */
    double total;
};

/* Cuts the candidates above p->floor to the shortest prefix, in descending order of weight, of
 * `max_count` > 0 tokens or a mass of at least `mass` > 0. */
static void cut(struct sample *s, const struct vector_ops *v, struct prepared *p, int64_t max_count,
                double mass) {
    struct bracket b = {.values = p->values, .n = p->n, .low = p->floor, .high = 1};
    if (p->was_cut) {
        b.n = v->between(p->values, p->n, p->floor, 1, NULL, s->part, s->room);
        b.values = s->part;
    }
    if (!b.n) return;
    p->was_cut = true;
    while (b.n > NARROW && narrow(s, v, max_count, mass, &b)) {
    }
    if (!b.n) { /* rounding: what is heavier is the whole prefix */
        p->floor = b.high;
        return;
    }
    struct threshold t = select_in(s, &b, max_count, mass);
    /* Equals beyond the prefix leave the candidates, so that the rest is told by a floor. */
    for (int i = 0, ties = 0; i < p->n && t.ties < t.equals; i++)
        if (s->values[i] == t.weight && ties++ >= t.ties) s->values[i] = 0;
    p->floor = nextafterf(t.weight, 0);
}

/* All tokens that the filters can keep, and as few others as is easy.  A filter keeps the heaviest
 * tokens, so those above any floor will do if they are enough: as many as top-k wants, or of the
 * mass that top-p wants of `all`. */
static void find_candidates(struct sample *s, const struct vector_ops *v,
                            const struct kernels_draw *d, double all, struct prepared *p) {
    static const float floors[] = {3.4e-4f, 1.1e-7f}; /* e^-8, e^-16 */
    float least = 0;
    /* The least weight of min-p may cut first where nothing after it needs the mass of the others.
     */
    if (d->min_p > 0 && (d->top_k <= 0 || d->top_p >= 1)) least = nextafterf(d->min_p, 0);
    p->tokens = s->tokens;
    p->values = s->values;
    for (int i = 0; i < 2 && (d->top_k > 0 || d->top_p < 1) && floors[i] > least; i++) {
        p->floor = floors[i];
        p->n = v->between(s->weights, s->n_vocab, p->floor, 1, s->tokens, s->values, s->room);
        if (d->top_k > 0 ? p->n >= d->top_k
                         : v->sums(p->values, p->n, 0, s->sums) >= (double)d->top_p * all)
            return;
    }
    p->floor = least;
    p->n = v->between(s->weights, s->n_vocab, p->floor, 1, s->tokens, s->values, s->room);
}

/* `all` is the mass of the whole vocabulary. */
static void filter(struct sample *s, const struct vector_ops *v, const struct kernels_draw *d,
                   double all, struct prepared *p) {
    find_candidates(s, v, d, all, p);
    if (d->top_k > 0) {
        if (d->top_k < p->n) cut(s, v, p, d->top_k, INFINITY);
        all = v->sums(p->values, p->n, p->floor, s->sums);
    }
    /* Never nothing: the most likely token at least. */
    if (d->top_p < 1) cut(s, v, p, INT32_MAX, fmax((double)d->top_p * all, DBL_MIN));
    if (d->min_p > 0) p->floor = fmaxf(p->floor, nextafterf(d->min_p, 0));
    p->total = v->sums(p->values, p->n, p->floor, s->sums);
}

/* `max` is the row's. */
static void prepare(struct sample *s, const struct vector_ops *v, const struct kernels_draws *all,
                    const struct kernels_draw *d, const float *row, float max, struct prepared *p) {
    *p = (struct prepared){.logits = row, .values = s->weights, .n = s->n_vocab};
    if (changes_logits(d)) {
        memcpy(s->logits, row, (size_t)s->n_vocab * sizeof *row);
        change_logits(all, d, s->logits, s->n_vocab);
        p->logits = s->logits;
    }
    if (d->temperature <= 0) return;
    if (p->logits != row) max = v->max(p->logits, s->n_vocab);
    p->total = v->weights(p->logits, s->n_vocab, max, fminf(1 / d->temperature, 1e30f), s->weights,
                          s->sums);
    if (d->top_k > 0 || d->top_p < 1 || d->min_p > 0) filter(s, v, d, p->total, p);
}

static bool same_settings(const struct kernels_draw *a, const struct kernels_draw *b) {
    return a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p &&
           a->min_p == b->min_p && !changes_logits(a) && !changes_logits(b);
}

/* The lowest id of the largest; 0 where all are NaN. */
static int32_t most_likely(const struct vector_ops *v, const float *logits, int n) {
    int32_t first = 0;
    float most = v->max(logits, n);
    v->between(logits, n, nextafterf(most, -INFINITY), most, &first, NULL, 1);
    return first;
}

/* The first token, in order of ids, at which the sum of weights passes the random part of the
 * total; sums of chunks lead there. */
static int32_t draw(const struct sample *s, const struct vector_ops *v,
                    const struct kernels_draw *d, const struct prepared *p) {
    if (d->temperature <= 0) return most_likely(v, p->logits, s->n_vocab);
    double target = (double)kernels_uniform(d->seed, d->candidate, d->position) * p->total, sum = 0;
    int c = 0, at = p->n - 1;
    for (; (c + 1) * VECTOR_CHUNK < p->n && sum + (double)s->sums[c] <= target; c++)
        sum += (double)s->sums[c];
    for (int i = c * VECTOR_CHUNK; i < p->n; i++) {
        if (p->values[i] > p->floor) sum += (double)p->values[i];
        if (sum > target) {
            at = i;
            break;
        }
    }
    while (at >= 0 && !(p->values[at] > p->floor)) /* rounding: the last one */
        at--;
    if (at < 0) return most_likely(v, p->logits, s->n_vocab);
    return p->tokens ? p->tokens[at] : at;
}

/* ---- log-probabilities ---- */

/* Insertion into the best n_top, descending; equal ones stay in order of ids. */
static void find_top(const struct vector_ops *v, const float *logits, int n_vocab, double log_total,
                     int n_top, struct kernels_drawn *out) {
    int found = 0;
    for (int begin = 0; begin < n_vocab; begin += VECTOR_CHUNK) {
        int end = begin + VECTOR_CHUNK < n_vocab ? begin + VECTOR_CHUNK : n_vocab;
        if (found == n_top && v->max(logits + begin, end - begin) <= out->top_logprob[n_top - 1])
            continue;
        for (int i = begin; i < end; i++) {
            int at = found;
            while (at > 0 && logits[i] > out->top_logprob[at - 1])
                at--;
            if (at >= n_top) continue;
            if (found < n_top) found++;
            for (int k = found - 1; k > at; k--) {
                out->top_logprob[k] = out->top_logprob[k - 1];
                out->top_token[k] = out->top_token[k - 1];
            }
            out->top_logprob[at] = logits[i];
            out->top_token[at] = i;
        }
    }
    for (int i = 0; i < found; i++)
        out->top_logprob[i] = (float)((double)out->top_logprob[i] - log_total);
    out->n_top = found;
}

void sample_row(struct sample *s, const struct vector_ops *v, const float *logits, int n_vocab,
                const struct kernels_draws *draws, const int32_t *order, int n,
                struct kernels_drawn *out) {
    BUG_ON(n_vocab > s->room || n_vocab < 1);
    s->n_vocab = n_vocab;
    float max = v->max(logits, n_vocab);
    double log_total = (double)max + log(v->weights(logits, n_vocab, max, 1, NULL, NULL));
    struct prepared p = {.n = 0};
    const struct kernels_draw *before = NULL;
    for (int i = 0; i < n; i++) {
        const struct kernels_draw *d = &draws->draws[order[i]];
        if (!before || !same_settings(before, d)) prepare(s, v, draws, d, logits, max, &p);
        before = d;
        struct kernels_drawn *o = &out[order[i]];
        o->token = draw(s, v, d, &p);
        o->logprob = (float)((double)logits[o->token] - log_total);
        o->n_top = 0;
        int n_top = d->n_top < n_vocab ? d->n_top : n_vocab;
        if (n_top > 0) find_top(v, logits, n_vocab, log_total, n_top, o);
    }
}
