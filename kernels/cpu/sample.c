#include "kernels/cpu/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEVELS =
        3, /* of the radix select: 12, 9 and 9 bits of a weight in 0 … 1, whose upper two are 0 */
    BINS = 4096, /* of the first level */
};

struct sample {
    int room;       /* tokens there is memory for */
    int n_vocab;    /* of the present row */
    float *logits;  /* owned; the row with penalties and bias */
    float *weights; /* owned; e^((logit - max) / temperature) */
    float *sums;    /* owned; of chunks of weights */
    int32_t *kept;  /* owned; candidates in ascending order */
    double *mass;   /* owned; of bins */
    int32_t *count; /* owned; of bins */
};

static size_t chunks(int n_vocab) { return ((size_t)n_vocab + VECTOR_CHUNK - 1) / VECTOR_CHUNK; }

size_t sample_bytes(int n_vocab) {
    return (size_t)n_vocab * (2 * sizeof(float) + sizeof(int32_t)) +
           chunks(n_vocab) * sizeof(float) + BINS * (sizeof(double) + sizeof(int32_t));
}

struct sample *sample_new(int n_vocab) {
    struct sample *s = err_alloc(1, sizeof *s);
    size_t n = (size_t)n_vocab;
    *s = (struct sample){
        .room = n_vocab,
        .logits = err_alloc(n, sizeof(float)),
        .weights = err_alloc(n, sizeof(float)),
        .sums = err_alloc(chunks(n_vocab), sizeof(float)),
        .kept = err_alloc(n, sizeof(int32_t)),
        .mass = err_alloc(BINS, sizeof(double)),
        .count = err_alloc(BINS, sizeof(int32_t)),
    };
    return s;
}

void sample_free(struct sample *s) {
    if (!s) return;
    free(s->logits);
    free(s->weights);
    free(s->sums);
    free(s->kept);
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

/* Tokens are kept whose weight is above `weight`, and the first `ties` of those equal to it. */
struct threshold {
    float weight;
    int ties;
};

static uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

/* The shortest prefix of the n > 0 candidates in descending order of weight with `max_count` > 0
 * tokens or a mass of at least `mass` > 0.  Level by level, the bin in which it ends is found and
 * looked at alone: 12, then 9, then 9 bits of the weight's 30. */
static struct threshold select_prefix(struct sample *s, int n, int64_t max_count, double mass) {
    static const int shifts[LEVELS] = {18, 9, 0}, widths[LEVELS] = {12, 9, 9};
    uint32_t prefix = 0;
    int64_t count = 0;
    double sum = 0;
    int last_count = 0;
    for (int level = 0; level < LEVELS; level++) {
        int bins = 1 << widths[level], above = shifts[level] + widths[level];
        memset(s->mass, 0, (size_t)bins * sizeof *s->mass);
        memset(s->count, 0, (size_t)bins * sizeof *s->count);
        for (int i = 0; i < n; i++) {
            float w = s->weights[s->kept[i]];
            uint32_t bits = bits_of(w);
            if (level && bits >> above != prefix) continue;
            uint32_t bin = bits >> shifts[level] & ((uint32_t)bins - 1);
            s->mass[bin] += (double)w;
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
        last_count = s->count[bin];
    }
    struct threshold t = {.ties = 0};
    memcpy(&t.weight, &prefix, 4);
    while (t.ties < last_count && count + t.ties < max_count && sum < mass) {
        sum += (double)t.weight;
        t.ties++;
    }
    return t;
}

static bool keeps(const struct threshold *t, float weight, int *ties) {
    if (weight > t->weight) return true;
    return weight == t->weight && (*ties)++ < t->ties;
}

/* ---- one draw ---- */

/* What draws with equal settings of one row share. */
struct prepared {
    const float *logits; /* the row, or the changed copy */
    bool unfiltered;
    int n_kept;
    double total; /* mass of what can be drawn */
};

static double candidate_mass(const struct sample *s, int n) {
    double mass = 0;
    for (int i = 0; i < n; i++)
        mass += (double)s->weights[s->kept[i]];
    return mass;
}

/* Leaves the candidates in s->kept: all tokens that the filters can keep, and as few others as is
 * easy.  A filter keeps the heaviest tokens, so those above any floor will do if they are enough:
 * as many as top-k wants, or of the mass that top-p wants of `all`. */
static int find_candidates(struct sample *s, const struct vector_ops *v,
                           const struct kernels_draw *d, double all) {
    static const float floors[] = {3.4e-4f, 1.1e-7f}; /* e^-8, e^-16 */
    float least = 0;
    /* The least weight of min-p may cut first where nothing after it needs the mass of the others.
     */
    if (d->min_p > 0 && (d->top_k <= 0 || d->top_p >= 1)) least = nextafterf(d->min_p, 0);
    for (int i = 0; i < 2 && (d->top_k > 0 || d->top_p < 1) && floors[i] > least; i++) {
        int n = v->above(s->weights, s->n_vocab, floors[i], s->kept, s->n_vocab);
        if (d->top_k > 0 ? n >= d->top_k : candidate_mass(s, n) >= (double)d->top_p * all) return n;
    }
    return v->above(s->weights, s->n_vocab, least, s->kept, s->n_vocab);
}

/* Keeps of n candidates those within the threshold, in order; returns how many, and their mass. */
static int cut(struct sample *s, int n, const struct threshold *t, double *mass) {
    int kept = 0, ties = 0;
    *mass = 0;
    for (int i = 0; i < n; i++) {
        float w = s->weights[s->kept[i]];
        if (!keeps(t, w, &ties)) continue;
        s->kept[kept++] = s->kept[i];
        *mass += (double)w;
    }
    return kept;
}

/* `all` is the mass of the whole vocabulary. */
static void find_kept(struct sample *s, const struct vector_ops *v, const struct kernels_draw *d,
                      double all, struct prepared *p) {
    int n = find_candidates(s, v, d, all);
    p->total = all;
    if (d->top_k > 0 && d->top_k < n) {
        struct threshold t = select_prefix(s, n, d->top_k, INFINITY);
        n = cut(s, n, &t, &p->total);
    }
    if (d->top_p < 1 && n > 0) {
        /* Never nothing: the most likely token at least. */
        double mass = fmax((double)d->top_p * p->total, DBL_MIN);
        struct threshold t = select_prefix(s, n, INT32_MAX, mass);
        n = cut(s, n, &t, &p->total);
    }
    struct threshold t = {.weight = d->min_p, .ties = INT32_MAX};
    if (d->min_p > 0) n = cut(s, n, &t, &p->total);
    p->n_kept = n;
}

static void prepare(struct sample *s, const struct vector_ops *v, const struct kernels_draws *all,
                    const struct kernels_draw *d, const float *row, struct prepared *p) {
    *p = (struct prepared){.logits = row};
    if (changes_logits(d)) {
        memcpy(s->logits, row, (size_t)s->n_vocab * sizeof *row);
        change_logits(all, d, s->logits, s->n_vocab);
        p->logits = s->logits;
    }
    if (d->temperature <= 0) return;
    float max = v->max(p->logits, s->n_vocab);
    p->total = v->weights(p->logits, s->n_vocab, max, fminf(1 / d->temperature, 1e30f), s->weights,
                          s->sums);
    p->unfiltered = d->top_k <= 0 && d->top_p >= 1 && d->min_p <= 0;
    if (!p->unfiltered) find_kept(s, v, d, p->total, p);
}

static bool same_settings(const struct kernels_draw *a, const struct kernels_draw *b) {
    return a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p &&
           a->min_p == b->min_p && !changes_logits(a) && !changes_logits(b);
}

/* The lowest id of the largest; 0 where all are NaN. */
static int32_t most_likely(const struct vector_ops *v, const float *logits, int n) {
    int32_t first = 0;
    v->above(logits, n, nextafterf(v->max(logits, n), -INFINITY), &first, 1);
    return first;
}

/* The first token, in order of ids, at which the sum of weights passes `target`; sums of chunks
 * lead there. */
static int32_t draw_from_all(const struct sample *s, double target) {
    int n_chunks = (int)chunks(s->n_vocab), c = 0;
    double sum = 0;
    int32_t last = 0;
    while (c < n_chunks - 1 && sum + (double)s->sums[c] <= target)
        sum += (double)s->sums[c++];
    int end = (c + 1) * VECTOR_CHUNK < s->n_vocab ? (c + 1) * VECTOR_CHUNK : s->n_vocab;
    for (int i = c * VECTOR_CHUNK; i < end; i++) {
        if (s->weights[i] > 0) last = i;
        sum += (double)s->weights[i];
        if (sum > target) return i;
    }
    return last; /* rounding of the chunk's sum */
}

static int32_t draw(const struct sample *s, const struct vector_ops *v,
                    const struct kernels_draw *d, const struct prepared *p) {
    if (d->temperature <= 0) return most_likely(v, p->logits, s->n_vocab);
    double target = (double)kernels_uniform(d->seed, d->candidate, d->position) * p->total;
    if (p->unfiltered) return draw_from_all(s, target);
    double sum = 0;
    for (int i = 0; i < p->n_kept; i++) {
        sum += (double)s->weights[s->kept[i]];
        if (sum > target) return s->kept[i];
    }
    return p->n_kept ? s->kept[p->n_kept - 1] : most_likely(v, p->logits, s->n_vocab);
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
    struct prepared p;
    const struct kernels_draw *before = NULL;
    for (int i = 0; i < n; i++) {
        const struct kernels_draw *d = &draws->draws[order[i]];
        if (!before || !same_settings(before, d)) prepare(s, v, draws, d, logits, &p);
        before = d;
        struct kernels_drawn *o = &out[order[i]];
        o->token = draw(s, v, d, &p);
        o->logprob = (float)((double)logits[o->token] - log_total);
        o->n_top = 0;
        int n_top = d->n_top < n_vocab ? d->n_top : n_vocab;
        if (n_top > 0) find_top(v, logits, n_vocab, log_total, n_top, o);
    }
}
