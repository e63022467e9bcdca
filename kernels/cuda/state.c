#include "kernels/cuda/state.h"

#include "config/limits.h"
#include "kernels/cuda/items.h"

#include <stdlib.h>
#include <string.h>

enum {
    MIN_SPLIT = 256, /* positions: shorter ones cost more in states than they give in speed */
    ALIGN = 256,     /* bytes, of each array in an area */
    MOST_GROUP = LAUNCH_WARP_ROWS,
    MIN_CHANGES = 1 << 19, /* entries of penalties and biases in one launch of sample() */
};

_Static_assert((int)STATE_DRAWS == (int)LIMIT_CANDIDATES, "one candidate, one draw");
_Static_assert((int)KERNELS_BLOCK == (int)LAUNCH_BLOCK && (int)KERNELS_TOP == (int)LAUNCH_TOP,
               "launch.h is C alone");
_Static_assert(sizeof(struct kernels_drawn) == sizeof(struct launch_drawn), "copied as they are");

void state_fail(struct kernels_device *dev, const struct err *e) {
    if (dev->error.kind == ERR_NONE) dev->error = *e;
}

static bool is_well(const struct kernels_device *dev, struct err *e) {
    if (dev->error.kind == ERR_NONE) return true;
    if (e) *e = dev->error;
    return false;
}

bool state_wait(struct kernels_device *dev, struct err *e) {
    bool ok = gpu_wait(dev->gpu, e);
    /* Block copies that nobody has queued yet stay. */
    int waiting = dev->n_pairs - dev->n_copied;
    if (waiting) memmove(dev->pairs, dev->pairs + 2 * dev->n_copied, (size_t)waiting * 8);
    dev->n_pairs = waiting;
    dev->n_copied = 0;
    for (int i = 0; i < STATE_IMAGES; i++)
        dev->images[i].waits = false;
    return ok && is_well(dev, e);
}

bool state_reach(struct kernels_device *dev, uint64_t mark, struct err *e) {
    return gpu_reach(dev->gpu, mark, e) && is_well(dev, e);
}

bool state_next_image(struct kernels_device *dev, struct err *e) {
    dev->image = (dev->image + 1) % STATE_IMAGES;
    struct state_image *i = &dev->images[dev->image];
    /* The host's side is free when it is copied, the device's when it is read. */
    bool ok = i->waits ? state_reach(dev, i->copied, e) : is_well(dev, e);
    if (i->waits) gpu_follow_aside(dev->gpu, i->read);
    i->waits = false;
    i->used = 0;
    return ok;
}

void state_count(struct kernels_device *dev, enum kernels_op op, double bytes, double macs) {
    dev->profile.op[op].bytes += bytes;
    dev->profile.op[op].macs += macs;
    dev->profile.op[op].calls++;
}

/* ---- areas ---- */

/* The next array of an area; with device == NULL only its room is counted. */
static void *place(struct state_area *a, size_t n, size_t size) {
    void *p = a->device ? a->device + a->used : NULL;
    a->used += (n * size + ALIGN - 1) / ALIGN * ALIGN;
    BUG_ON(a->device && a->used > a->bytes);
    return p;
}

static void lay_out_step(struct kernels_device *dev, struct state_area *a) {
    size_t rows = (size_t)dev->reserved.n_rows;
    struct launch_live *l = &dev->live;
    l->counts = place(a, 1, sizeof *l->counts);
    l->tokens = place(a, rows, sizeof *l->tokens);
    l->positions = place(a, rows, sizeof *l->positions);
    l->table_of_row = place(a, rows, sizeof *l->table_of_row);
    l->logit_rows = place(a, rows, sizeof *l->logit_rows);
    l->tiles = place(a, (size_t)dev->max_tiles, sizeof *l->tiles);
    l->warps = place(a, (size_t)dev->max_warps, sizeof *l->warps);
    l->tables = place(a, (size_t)dev->max_tables, sizeof *l->tables);
    dev->batch = (struct launch_batch){.counts = l->counts,
                                       .tokens = l->tokens,
                                       .positions = l->positions,
                                       .tables = l->tables,
                                       .table_of_row = l->table_of_row,
                                       .logit_rows = l->logit_rows,
                                       .tiles = l->tiles,
                                       .warps = l->warps};
}

static void lay_out_work(struct kernels_device *dev, struct state_area *a) {
    const struct kernels_step_shape *s = &dev->reserved;
    size_t rows = (size_t)s->n_rows, d = (size_t)s->head_dim;
    size_t slots = rows * (size_t)s->n_heads * (size_t)dev->n_splits;
    dev->states = place(a, slots * d, sizeof(float));
    dev->stats = place(a, 2 * slots, sizeof(float));
    dev->turns = place(a, rows * d, sizeof(float));
    dev->sums = place(a, rows, sizeof(float));
    dev->scales = place(a, rows, sizeof(float));
    dev->inv_freq = place(a, d, sizeof(float));
    int32_t **rows_of[] = {&dev->token, &dev->founder, &dev->before, &dev->founders, &dev->places};
    for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++)
        *rows_of[i] = place(a, rows + 1, sizeof(int32_t));
    dev->forks = place(a, 2 * rows, sizeof(int32_t));
    dev->n_forks = place(a, 1, sizeof(int32_t));
}

static size_t draws_bytes(const struct kernels_device *dev) {
    /* The changes twice: as they are uploaded, and the logits that they stood for. */
    return STATE_DRAWS * (sizeof(struct launch_row) + sizeof(struct launch_job) +
                          sizeof(struct launch_draw)) +
           (size_t)dev->max_changes * (sizeof(struct launch_change) + sizeof(float)) + 8 * ALIGN;
}

static void measure(struct kernels_device *dev, const struct kernels_step_shape *s) {
    dev->reserved = *s;
    int context = s->context > LAUNCH_BLOCK ? s->context : LAUNCH_BLOCK;
    int split = (context + LAUNCH_SPLITS - 1) / LAUNCH_SPLITS;
    dev->split =
        split > MIN_SPLIT ? (split + LAUNCH_BLOCK - 1) / LAUNCH_BLOCK * LAUNCH_BLOCK : MIN_SPLIT;
    dev->n_splits = (context + dev->split - 1) / dev->split;
    items_most(s->n_rows, MOST_GROUP, dev->n_splits, &dev->max_tiles, &dev->max_warps);
    dev->max_tables = s->n_rows * ((context + LAUNCH_BLOCK - 1) / LAUNCH_BLOCK);
    dev->max_changes = 3 * s->n_vocab > MIN_CHANGES ? 3 * s->n_vocab : MIN_CHANGES;
    dev->step = dev->work = (struct state_area){0};
    memset(dev->sets, 0, sizeof dev->sets);
    lay_out_step(dev, &dev->step);
    lay_out_work(dev, &dev->work);
    dev->step.bytes = dev->step.used;
    dev->work.bytes = dev->work.used;
    /* What isn't there of a row that lives: which family and draw it is of. */
    dev->image_bytes = dev->step.bytes + 2 * ((size_t)s->n_rows * sizeof(int32_t) + ALIGN);
    for (int i = 0; i < 2; i++) {
        dev->sets[i].draws.bytes = draws_bytes(dev);
        dev->sets[i].results.bytes = STATE_DRAWS * sizeof(struct launch_drawn);
    }
    dev->step.used = dev->work.used = 0;
}

size_t state_scratch_bytes(const struct kernels_device *dev, const struct kernels_step_shape *s) {
    struct kernels_device *d = err_alloc(1, sizeof *d);
    measure(d, s);
    size_t bytes = d->step.bytes + d->work.bytes + STATE_IMAGES * d->image_bytes +
                   2 * (d->sets[0].draws.bytes + d->sets[0].results.bytes) +
                   (dev->gemm ? gemm_workspace_bytes(dev->gemm) : 0) +
                   STATE_PAIRS * 2 * sizeof(int32_t);
    free(d);
    return bytes;
}

static bool take(struct kernels_device *dev, struct state_area *a, bool pinned, const char *what,
                 struct err *e) {
    if (!(a->device = gpu_alloc(dev->gpu, a->bytes, what, e))) return false;
    return !pinned || (a->host = gpu_alloc_pinned(dev->gpu, a->bytes, what, e)) != NULL;
}

static void drop(struct kernels_device *dev, struct state_area *a) {
    gpu_release(dev->gpu, a->device);
    gpu_release_pinned(dev->gpu, a->host);
    *a = (struct state_area){0};
}

void state_free_scratch(struct kernels_device *dev) {
    for (int i = 0; i < dev->n_graphs; i++)
        gpu_graph_free(dev->gpu, dev->graph[i].graph);
    dev->n_graphs = 0;
    drop(dev, &dev->step);
    for (int i = 0; i < STATE_IMAGES; i++) {
        gpu_release_pinned(dev->gpu, dev->images[i].host);
        gpu_release(dev->gpu, dev->images[i].device);
    }
    memset(dev->images, 0, sizeof dev->images);
    drop(dev, &dev->work);
    for (int i = 0; i < 2; i++) {
        drop(dev, &dev->sets[i].draws);
        drop(dev, &dev->sets[i].results);
    }
    gpu_release(dev->gpu, dev->pairs_device);
    gpu_release_pinned(dev->gpu, dev->pairs);
    free(dev->drawn);
    free(dev->families);
    dev->pairs = dev->pairs_device = dev->families = NULL;
    dev->drawn = NULL;
    dev->max_drawn = dev->newest = dev->n_waiting = 0;
    dev->has_families = false;
    dev->rope_loaded = NULL;
    dev->reserved = (struct kernels_step_shape){0};
}

bool state_reserve(struct kernels_device *dev, const struct kernels_step_shape *s, struct err *e) {
    state_free_scratch(dev);
    measure(dev, s);
    size_t most = dev->info.shared_bytes;
    if (!launch_prepare_tile(most) || !launch_prepare_warp(most) ||
        !launch_prepare_norm(most, s->max_cols) ||
        !launch_prepare_merge(most, s->n_heads * s->head_dim))
        return err_set(e, ERR_INPUT,
                       "cuda: %s gives a block %zu KiB of shared memory: too little for this model",
                       dev->info.name, most / 1024);
    size_t pairs = STATE_PAIRS * 2 * sizeof(int32_t);
    bool ok = take(dev, &dev->step, false, "a step's tables", e);
    for (int i = 0; ok && i < STATE_IMAGES; i++) {
        struct state_area a = {.bytes = dev->image_bytes};
        ok = take(dev, &a, true, "a step's tables", e);
        dev->images[i] = (struct state_image){.host = a.host, .device = a.device};
    }
    for (int i = 0; ok && i < 2; i++)
        ok = take(dev, &dev->sets[i].draws, true, "draws", e) &&
             take(dev, &dev->sets[i].results, true, "results of draws", e);
    if (!ok || !take(dev, &dev->work, false, "attention's states", e) ||
        !(dev->pairs_device = gpu_alloc(dev->gpu, pairs, "block copies", e)) ||
        !(dev->pairs = gpu_alloc_pinned(dev->gpu, pairs, "block copies", e))) {
        state_free_scratch(dev);
        return false;
    }
    lay_out_step(dev, &dev->step);
    lay_out_work(dev, &dev->work);
    dev->families = err_alloc((size_t)s->n_rows, sizeof *dev->families);
    return true;
}
