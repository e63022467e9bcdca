#include "kernels/cuda/draws.h"

#include "kernels/cuda/state.h"

#include <string.h>

static void begin_part(const struct kernels_device *dev, const struct state_set *set,
                       struct state_part *p) {
    size_t at = STATE_DRAWS * sizeof(struct launch_row);
    *p = (struct state_part){.jobs_at = at};
    p->draws_at = at += STATE_DRAWS * sizeof(struct launch_job);
    p->changes_at = at += STATE_DRAWS * sizeof(struct launch_draw);
    p->saved_at = at + (size_t)dev->max_changes * sizeof(struct launch_change);
    uint8_t *host = set->draws.host;
    p->rows = (struct launch_row *)(void *)host;
    p->jobs = (struct launch_job *)(void *)(host + p->jobs_at);
    p->draws = (struct launch_draw *)(void *)(host + p->draws_at);
    p->changes = (struct launch_change *)(void *)(host + p->changes_at);
}

static int n_changes(const struct kernels_draw *d) {
    return d->n_seen + d->n_bias + d->n_forbidden;
}

/* Draws with equal settings, the lists that they name included, share a job. */
static bool same_settings(const struct kernels_draws *all, const struct kernels_draw *a,
                          const struct kernels_draw *b) {
    if (a->temperature != b->temperature || a->top_k != b->top_k || a->top_p != b->top_p ||
        a->min_p != b->min_p || a->n_seen != b->n_seen || a->n_bias != b->n_bias ||
        a->n_forbidden != b->n_forbidden)
        return false;
    if (a->n_seen && (a->repetition != b->repetition || a->presence != b->presence ||
                      a->frequency != b->frequency))
        return false;
    return (a->first_seen == b->first_seen || !a->n_seen ||
            !memcmp(all->seen + a->first_seen, all->seen + b->first_seen,
                    (size_t)a->n_seen * sizeof *all->seen)) &&
           (a->first_bias == b->first_bias || !a->n_bias ||
            !memcmp(all->bias + a->first_bias, all->bias + b->first_bias,
                    (size_t)a->n_bias * sizeof *all->bias)) &&
           (a->first_forbidden == b->first_forbidden || !a->n_forbidden ||
            !memcmp(all->forbidden + a->first_forbidden, all->forbidden + b->first_forbidden,
                    (size_t)a->n_forbidden * sizeof *all->forbidden));
}

static void add_changes(struct state_part *p, const struct kernels_draws *all,
                        const struct kernels_draw *d, int n_vocab) {
    for (int i = 0; i < d->n_seen; i++) {
        struct kernels_seen s = all->seen[d->first_seen + i];
        p->changes[p->n_changes++] = (struct launch_change){s.token, s.count};
    }
    for (int i = 0; i < d->n_bias; i++) {
        struct kernels_bias b = all->bias[d->first_bias + i];
        struct launch_change c = {.token = b.token};
        memcpy(&c.count, &b.bias, sizeof b.bias);
        p->changes[p->n_changes++] = c;
    }
    for (int i = 0; i < d->n_forbidden; i++)
        p->changes[p->n_changes++] =
            (struct launch_change){.token = all->forbidden[d->first_forbidden + i]};
    for (int i = p->n_changes - n_changes(d); i < p->n_changes; i++)
        BUG_ON(p->changes[i].token < 0 || p->changes[i].token >= n_vocab);
}

/* Whether the draw's row of logits may turn out to be that of the one before. */
static bool same_family(const struct kernels_device *dev, int row, int before) {
    return dev->has_families && dev->families[row] == dev->families[before];
}

/* Adds the draw to the part's last job where it is one of its kind, else to a new one.  Rows of a
 * family have the jobs of all of them. */
static void add_draw(const struct kernels_device *dev, struct state_part *p,
                     const struct kernels_draws *all, int index,
                     const struct kernels_draw **before) {
    BUG_ON(!p->rows); /* reserve_rows() comes first */
    const struct kernels_draw *d = &all->draws[index];
    int n_vocab = dev->reserved.n_vocab;
    struct launch_row *row = p->n_rows ? &p->rows[p->n_rows - 1] : NULL;
    bool new_row = !row || row->logit_row != d->logit_row;
    bool related = new_row && row && same_family(dev, d->logit_row, row->logit_row);
    if (new_row) {
        p->rows[p->n_rows] = (struct launch_row){.logit_row = d->logit_row,
                                                 .first_job = related ? row->first_job : p->n_jobs,
                                                 .n_jobs = related ? row->n_jobs : 0,
                                                 .n_top = related ? row->n_top : 0};
        row = &p->rows[p->n_rows++];
    }
    if ((new_row && !related) || !same_settings(all, *before, d)) {
        row->n_jobs++;
        p->jobs[p->n_jobs++] = (struct launch_job){.first_draw = p->n_draws,
                                                   .temperature = d->temperature,
                                                   .top_k = d->top_k,
                                                   .top_p = d->top_p,
                                                   .min_p = d->min_p,
                                                   .repetition = d->repetition,
                                                   .presence = d->presence,
                                                   .frequency = d->frequency,
                                                   .first_change = p->n_changes,
                                                   .n_seen = d->n_seen,
                                                   .n_bias = d->n_bias,
                                                   .n_forbidden = d->n_forbidden};
        add_changes(p, all, d, n_vocab);
    }
    *before = d;
    p->jobs[p->n_jobs - 1].n_draws++;
    int n_top = d->n_top < n_vocab ? d->n_top : n_vocab;
    if (n_top > row->n_top) row->n_top = n_top;
    p->draws[p->n_draws] = (struct launch_draw){.seed = d->seed,
                                                .candidate = d->candidate,
                                                .position = d->position,
                                                .index = p->n_draws,
                                                .n_top = n_top,
                                                .logit_row = d->logit_row};
    p->n_draws++;
}

/* Earlier rows of a family learn of the jobs of the later ones. */
static void relate_rows(const struct kernels_device *dev, struct state_part *p) {
    for (int i = p->n_rows - 2; i >= 0; i--) {
        struct launch_row *row = &p->rows[i];
        if (!same_family(dev, row->logit_row, row[1].logit_row)) continue;
        row->n_jobs = row[1].n_jobs;
        row->n_top = row[1].n_top;
    }
}

static void put_array(struct kernels_device *dev, const struct state_set *set, size_t at,
                      size_t bytes) {
    gpu_put_aside(dev->gpu, set->draws.device + at, set->draws.host + at, bytes);
}

/* Uploads the part beside the work. */
static void put_part(struct kernels_device *dev, const struct state_set *set,
                     struct state_part *p) {
    relate_rows(dev, p);
    put_array(dev, set, 0, (size_t)p->n_rows * sizeof *p->rows);
    put_array(dev, set, p->jobs_at, (size_t)p->n_jobs * sizeof *p->jobs);
    put_array(dev, set, p->draws_at, (size_t)p->n_draws * sizeof *p->draws);
    put_array(dev, set, p->changes_at, (size_t)p->n_changes * sizeof *p->changes);
    gpu_follow(dev->gpu, gpu_mark_aside(dev->gpu));
}

/* Draws of the part from the logits of rows first_row … first_row+n_rows-1. */
static void launch_part(struct kernels_device *dev, const struct state_set *set,
                        const struct state_part *p, struct kernels_view logits, int first_row,
                        int n_rows) {
    uint8_t *area = set->draws.device;
    struct launch_sample a = {.logits = state_pointer(logits),
                              .sums = dev->sums,
                              .n_vocab = dev->reserved.n_vocab,
                              .rows = p->n_rows,
                              .first = first_row,
                              .n_logits = n_rows,
                              .founders = dev->has_families ? dev->founders : NULL,
                              .places = dev->has_families ? dev->places : NULL,
                              .row = (const struct launch_row *)(void *)area,
                              .jobs = (const struct launch_job *)(void *)(area + p->jobs_at),
                              .draws = (const struct launch_draw *)(void *)(area + p->draws_at),
                              .changes =
                                  (const struct launch_change *)(void *)(area + p->changes_at),
                              .saved = (float *)(void *)(area + p->saved_at),
                              .out = (struct launch_drawn *)(void *)set->results.device};
    launch_sample(gpu_stream(dev->gpu), &a);
}

/* Brings n results back, beside whatever is queued next. */
static void get_results(struct kernels_device *dev, struct state_set *set, int n) {
    gpu_follow_aside(dev->gpu, gpu_mark(dev->gpu));
    gpu_get_aside(dev->gpu, set->results.host, set->results.device,
                  (size_t)n * sizeof(struct launch_drawn));
    set->mark = gpu_mark_aside(dev->gpu);
}

/* ---- all at once ---- */

static bool fits(const struct kernels_device *dev, const struct kernels_draws *all) {
    int64_t changes = 0;
    for (int i = 0; i < all->n_draws; i++)
        changes += n_changes(&all->draws[i]);
    return all->n_draws <= STATE_DRAWS && changes <= dev->max_changes;
}

static void put_all(struct kernels_device *dev, struct state_set *set,
                    const struct kernels_draws *all) {
    const struct kernels_draw *before = NULL;
    begin_part(dev, set, &dev->part);
    for (int i = 0; i < all->n_draws; i++)
        add_draw(dev, &dev->part, all, i, &before);
    put_part(dev, set, &dev->part);
}

/* ---- part by part ---- */

/* Results of draws first … first+n-1, waited for. */
static bool take_part(struct kernels_device *dev, struct state_set *set, int first, int n,
                      struct err *e) {
    get_results(dev, set, n);
    if (!state_reach(dev, set->mark, e)) return false;
    memcpy(dev->drawn + first, set->results.host, (size_t)n * sizeof *dev->drawn);
    return true;
}

static bool sample_parts(struct kernels_device *dev, struct state_set *set,
                         struct kernels_view logits, const struct kernels_draws *all, int first_row,
                         int n_rows, struct err *e) {
    BUG_ON(dev->has_families);
    int at = 0;
    while (at < all->n_draws && all->draws[at].logit_row < first_row)
        at++;
    while (at < all->n_draws && all->draws[at].logit_row < first_row + n_rows) {
        struct state_part p;
        const struct kernels_draw *before = NULL;
        begin_part(dev, set, &p);
        while (at < all->n_draws && all->draws[at].logit_row < first_row + n_rows &&
               p.n_draws < STATE_DRAWS &&
               p.n_changes + n_changes(&all->draws[at]) <= dev->max_changes)
            add_draw(dev, &p, all, at++, &before);
        put_part(dev, set, &p);
        launch_part(dev, set, &p, logits, first_row, n_rows);
        if (!take_part(dev, set, at - p.n_draws, p.n_draws, e)) return false;
    }
    return true;
}

static struct state_set *begin_set(struct kernels_device *dev, const struct kernels_draws *all) {
    BUG_ON(dev->n_waiting == 2);
    dev->newest = 1 - dev->newest;
    dev->n_waiting++;
    struct state_set *set = &dev->sets[dev->newest];
    set->n = all->n_draws;
    set->whole = fits(dev, all);
    if (set->whole) {
        put_all(dev, set, all);
    } else if (all->n_draws > dev->max_drawn) {
        dev->drawn = err_realloc(dev->drawn, (size_t)all->n_draws, sizeof *dev->drawn);
        dev->max_drawn = all->n_draws;
    }
    return set;
}

void draws_sample(struct kernels_device *dev, struct kernels_view logits, int n_vocab,
                  const struct kernels_draws *all, int first_row, int n_rows) {
    BUG_ON(n_vocab != dev->reserved.n_vocab || all->n_draws < 1);
    BUG_ON(first_row < 0 || first_row + n_rows > dev->reserved.n_rows);
    struct state_set *set = first_row ? &dev->sets[dev->newest] : begin_set(dev, all);
    struct launch_logsumexp l = {.logits = state_pointer(logits),
                                 .sums = dev->sums,
                                 .n_vocab = n_vocab,
                                 .rows = n_rows,
                                 .n_logits =
                                     dev->has_families ? &dev->batch.counts->n_logits : NULL,
                                 .first = first_row};
    launch_logsumexp(gpu_stream(dev->gpu), &l);
    state_count(dev, KERNELS_OP_SAMPLE, 8.0 * n_rows * n_vocab, 0);
    struct err e = {0};
    if (!set->whole) {
        if (!sample_parts(dev, set, logits, all, first_row, n_rows, &e)) state_fail(dev, &e);
        return;
    }
    launch_part(dev, set, &dev->part, logits, first_row, n_rows);
    if (all->draws[all->n_draws - 1].logit_row < first_row + n_rows)
        get_results(dev, set, all->n_draws);
}

bool draws_drawn(struct kernels_device *dev, struct kernels_drawn *out, int n_draws,
                 struct err *e) {
    BUG_ON(!dev->n_waiting);
    const struct state_set *set = &dev->sets[dev->n_waiting == 2 ? 1 - dev->newest : dev->newest];
    dev->n_waiting--;
    if (!state_reach(dev, set->mark, e)) return false;
    if (n_draws != set->n)
        return err_set(e, ERR_SYSTEM, "%d draws are asked for, but %d were made", n_draws, set->n);
    if (set->whole)
        memcpy(out, set->results.host, (size_t)n_draws * sizeof *out);
    else
        memcpy(out, dev->drawn, (size_t)n_draws * sizeof *out);
    return true;
}

bool draws_can_follow(const struct kernels_device *dev) {
    const struct state_set *newest = &dev->sets[dev->newest];
    return dev->n_waiting && newest->whole;
}
