#include "kernels/cuda/draws.h"

#include "kernels/cuda/state.h"

#include <string.h>

/* What one launch takes: the host's side of the area `draws`, and how full it is. */
struct part {
    struct launch_row *rows;
    struct launch_job *jobs;
    struct launch_draw *draws;
    struct launch_change *changes;
    int n_rows, n_jobs, n_draws, n_changes;
    size_t jobs_at, draws_at, changes_at, saved_at; /* bytes in the area */
};

static void begin_part(const struct kernels_device *dev, struct part *p) {
    size_t at = STATE_DRAWS * sizeof(struct launch_row);
    *p = (struct part){.jobs_at = at};
    p->draws_at = at += STATE_DRAWS * sizeof(struct launch_job);
    p->changes_at = at += STATE_DRAWS * sizeof(struct launch_draw);
    p->saved_at = at + (size_t)dev->max_changes * sizeof(struct launch_change);
    uint8_t *host = dev->draws.host;
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

static void add_changes(struct part *p, const struct kernels_draws *all,
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

/* Adds the draw to the part's last job where it is one of its kind, else to a new one. */
static void add_draw(struct part *p, const struct kernels_draws *all, int index,
                     const struct kernels_draw **before, int n_vocab) {
    const struct kernels_draw *d = &all->draws[index];
    bool new_row = !p->n_rows || p->rows[p->n_rows - 1].logit_row != d->logit_row;
    if (new_row)
        p->rows[p->n_rows++] =
            (struct launch_row){.logit_row = d->logit_row, .first_job = p->n_jobs};
    struct launch_row *row = &p->rows[p->n_rows - 1];
    if (new_row || !same_settings(all, *before, d)) {
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
        *before = d;
    }
    p->jobs[p->n_jobs - 1].n_draws++;
    int n_top = d->n_top < n_vocab ? d->n_top : n_vocab;
    if (n_top > row->n_top) row->n_top = n_top;
    p->draws[p->n_draws] = (struct launch_draw){.seed = d->seed,
                                                .candidate = d->candidate,
                                                .position = d->position,
                                                .index = p->n_draws,
                                                .n_top = n_top};
    p->n_draws++;
}

static void put_array(struct kernels_device *dev, size_t at, size_t bytes) {
    gpu_put(dev->gpu, dev->draws.device + at, dev->draws.host + at, bytes);
}

static void launch_part(struct kernels_device *dev, const struct part *p,
                        struct kernels_view logits, int n_vocab) {
    put_array(dev, 0, (size_t)p->n_rows * sizeof *p->rows);
    put_array(dev, p->jobs_at, (size_t)p->n_jobs * sizeof *p->jobs);
    put_array(dev, p->draws_at, (size_t)p->n_draws * sizeof *p->draws);
    put_array(dev, p->changes_at, (size_t)p->n_changes * sizeof *p->changes);
    uint8_t *area = dev->draws.device;
    struct launch_sample a = {.logits = state_pointer(logits),
                              .sums = dev->sums,
                              .n_vocab = n_vocab,
                              .rows = p->n_rows,
                              .row = (const struct launch_row *)(void *)area,
                              .jobs = (const struct launch_job *)(void *)(area + p->jobs_at),
                              .draws = (const struct launch_draw *)(void *)(area + p->draws_at),
                              .changes =
                                  (const struct launch_change *)(void *)(area + p->changes_at),
                              .saved = (float *)(void *)(area + p->saved_at),
                              .out = (struct launch_drawn *)(void *)dev->results.device};
    launch_sample(gpu_stream(dev->gpu), &a);
    gpu_get(dev->gpu, dev->results.host, dev->results.device,
            (size_t)p->n_draws * sizeof(struct launch_drawn));
    dev->draws_in_flight = true;
    dev->draws_mark = gpu_mark(dev->gpu);
}

/* Waits for the part in flight and keeps its results. */
static bool fetch(struct kernels_device *dev, struct err *e) {
    int n = dev->n_drawn - dev->n_fetched;
    if (dev->draws_in_flight && !state_reach(dev, dev->draws_mark, e)) return false;
    dev->draws_in_flight = false;
    memcpy(dev->drawn + dev->n_fetched, dev->results.host, (size_t)n * sizeof *dev->drawn);
    dev->n_fetched = dev->n_drawn;
    return true;
}

void draws_sample(struct kernels_device *dev, struct kernels_view logits, int n_vocab,
                  const struct kernels_draws *all) {
    BUG_ON(n_vocab != dev->reserved.n_vocab || dev->draws_in_flight);
    int n_rows = 0;
    for (int i = 0; i < all->n_draws; i++) {
        int row = all->draws[i].logit_row;
        BUG_ON(row < 0 || row >= dev->reserved.n_rows);
        if (row >= n_rows) n_rows = row + 1;
    }
    dev->n_drawn = dev->n_fetched = 0;
    if (all->n_draws > dev->max_drawn) {
        dev->drawn = err_realloc(dev->drawn, (size_t)all->n_draws, sizeof *dev->drawn);
        dev->max_drawn = all->n_draws;
    }
    if (!n_rows) return;
    struct launch_logsumexp l = {
        .logits = state_pointer(logits), .sums = dev->sums, .n_vocab = n_vocab, .rows = n_rows};
    launch_logsumexp(gpu_stream(dev->gpu), &l);
    state_count(dev, KERNELS_OP_SAMPLE, 8.0 * n_rows * n_vocab, 0);
    struct part p;
    const struct kernels_draw *before = NULL;
    begin_part(dev, &p);
    for (int i = 0; i < all->n_draws; i++) {
        if (p.n_draws == STATE_DRAWS ||
            p.n_changes + n_changes(&all->draws[i]) > dev->max_changes) {
            struct err e = {0};
            launch_part(dev, &p, logits, n_vocab);
            dev->n_drawn += p.n_draws;
            if (!fetch(dev, &e)) {
                state_fail(dev, &e);
                return;
            }
            begin_part(dev, &p);
        }
        add_draw(&p, all, i, &before, n_vocab);
    }
    launch_part(dev, &p, logits, n_vocab);
    dev->n_drawn += p.n_draws;
}

bool draws_drawn(struct kernels_device *dev, struct kernels_drawn *out, int n_draws,
                 struct err *e) {
    if (!fetch(dev, e)) return false;
    if (n_draws != dev->n_drawn)
        return err_set(e, ERR_SYSTEM, "%d draws are asked for, but %d were made", n_draws,
                       dev->n_drawn);
    memcpy(out, dev->drawn, (size_t)n_draws * sizeof *out);
    return true;
}
