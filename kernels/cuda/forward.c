#include "kernels/cuda/forward.h"

#include "kernels/check.h"
#include "kernels/cuda/items.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/weights.h"

#include <string.h>

/* ---- graphs ---- */

/* Row counts that grids are made for: few enough for a graph each, close enough to waste little. */
static int bucket(int n, int most) {
    int b = 1;
    while (b < n)
        b = b < 256 ? 2 * b : b < 1024 ? b + 128 : b + 512;
    return b < most ? b : most;
}

/* Work items are cheap to have too many of: an idle block ends at once. */
static int item_bucket(int n, int most) {
    if (!n) return 0;
    int b = 8;
    while (b < n)
        b = b + b / 4;
    return b < most ? b : most;
}

static bool same_shape(struct state_shape a, struct state_shape b) {
    return a.rows == b.rows && a.logits == b.logits && a.tiles == b.tiles && a.warps == b.warps;
}

/* Steps that only decode repeat their shape; prompts don't.  The first of a shape runs as it comes
 * (libraries load then what they need), the second is recorded, the others run what was recorded.
 */
static void choose_graph(struct kernels_device *dev, struct state_shape exact) {
    dev->grid = exact;
    dev->recording = NULL;
    dev->replays = false;
    if (!dev->graphs || exact.logits != exact.rows) return;
    struct state_shape s = {.rows = bucket(exact.rows, dev->reserved.n_rows),
                            .logits = bucket(exact.logits, dev->reserved.n_rows),
                            .tiles = item_bucket(exact.tiles, dev->max_tiles),
                            .warps = item_bucket(exact.warps, dev->max_warps)};
    for (int i = 0; i < dev->n_graphs; i++) {
        struct state_graph *g = &dev->graph[i];
        if (!same_shape(g->shape, s)) continue;
        dev->grid = s;
        dev->recording = g;
        dev->replays = g->graph != NULL;
        if (!dev->replays) gpu_capture(dev->gpu);
        return;
    }
    if (dev->n_graphs == STATE_GRAPHS) return;
    dev->grid = s;
    dev->graph[dev->n_graphs++] = (struct state_graph){.shape = s};
}

/* Notes an operation; true where it is to be queued, false where the graph has it. */
static bool runs(struct kernels_device *dev, enum kernels_op op, const void *a, const void *b,
                 int n) {
    uint64_t parts[] = {(uint64_t)op, (uint64_t)(uintptr_t)a, (uint64_t)(uintptr_t)b, (uint64_t)n};
    for (int i = 0; i < 4; i++)
        dev->calls = (dev->calls ^ parts[i]) * UINT64_C(0x100000001B3);
    return !dev->replays;
}

void forward_batch_end(struct kernels_device *dev) {
    struct state_graph *g = dev->recording;
    dev->now = NULL;
    dev->recording = NULL;
    if (!g) return;
    if (!dev->replays) {
        struct err e = {0};
        g->graph = gpu_captured(dev->gpu, &e);
        g->calls = dev->calls;
        if (!g->graph) {
            state_fail(dev, &e);
            return;
        }
    }
    /* A graph stands for the operations it was recorded from, no others. */
    BUG_ON(g->calls != dev->calls);
    dev->replays = false;
    gpu_graph_run(dev->gpu, g->graph);
}

/* ---- KV blocks ---- */

static void queue_copies(struct kernels_device *dev) {
    int n = dev->n_pairs - dev->n_copied;
    if (!n) return;
    const int32_t *from = dev->pairs + 2 * dev->n_copied;
    int32_t *to = dev->pairs_device + 2 * dev->n_copied;
    gpu_put(dev->gpu, to, from, (size_t)n * 2 * sizeof *to);
    struct launch_copy c = {.data = dev->kv,
                            .layer_bytes = dev->kv_layer_bytes,
                            .block_bytes = dev->kv_block_bytes,
                            .n_layers = dev->kv_shape.n_layers,
                            .n_pairs = n,
                            .pairs = to};
    launch_copy(gpu_stream(dev->gpu), &c);
    dev->n_copied = dev->n_pairs;
}

/* Whole blocks: what lies beyond n_positions is never read.  Copies are kept until the next step
 * and queued as one launch, unless one touches what another has written or reads what is to be
 * overwritten. */
void forward_kv_copy_block(struct kernels_device *dev, int to, int from, int n_positions) {
    BUG_ON(to < 0 || to >= dev->kv_shape.n_blocks || from < 0 || from >= dev->kv_shape.n_blocks);
    BUG_ON(n_positions < 0 || n_positions > KERNELS_BLOCK || dev->now || !dev->pairs);
    if (to == from) return;
    if (dev->n_pairs == STATE_PAIRS) {
        queue_copies(dev);
        struct err e = {0};
        if (!state_wait(dev, &e)) state_fail(dev, &e);
    }
    for (int i = dev->n_copied; i < dev->n_pairs; i++) {
        const int32_t *p = dev->pairs + 2 * i;
        if (p[1] != from && p[1] != to && p[0] != to) continue;
        queue_copies(dev);
        break;
    }
    dev->pairs[2 * dev->n_pairs] = from;
    dev->pairs[2 * dev->n_pairs + 1] = to;
    dev->n_pairs++;
}

/* ---- the batch ---- */

/* Room for an array in the step's image; *device is where it will be. */
static void *image(struct kernels_device *dev, size_t n, size_t size, const void *device) {
    struct state_image *i = &dev->images[dev->image];
    size_t at = i->used;
    const uint8_t *there = i->device + at;
    memcpy((void *)(uintptr_t)device, &there, sizeof there);
    i->used = at + (n * size + 15) / 16 * 16;
    BUG_ON(i->used > dev->image_bytes);
    return i->host + at;
}

static void put_rows(struct kernels_device *dev, const int32_t *from, int n, const int32_t **to) {
    void *host = image(dev, (size_t)n, sizeof *from, to);
    if (n) memcpy(host, from, (size_t)n * sizeof *from);
}

static void put_tables(struct kernels_device *dev, const struct kernels_batch *b,
                       struct launch_split *s) {
    int32_t *starts = image(dev, (size_t)b->n_rows, sizeof *starts, &s->table_of_row);
    for (int r = 0; r < b->n_rows; r++)
        starts[r] = b->table_starts[b->table_of_row[r]];
    s->n_tables = b->table_starts[b->n_tables];
    put_rows(dev, b->tables, s->n_tables, &s->tables);
}

/* Each row's family, and on the host that of each row of logits. */
static void put_families(struct kernels_device *dev, const struct kernels_batch *b,
                         struct launch_split *s) {
    dev->has_families = b->n_families > 0;
    if (!b->n_families) return;
    const struct state_set *last = &dev->sets[dev->newest];
    BUG_ON(!last->whole);
    int32_t *families = image(dev, (size_t)b->n_rows, sizeof *families, &s->families),
            *draws = image(dev, (size_t)b->n_rows, sizeof *draws, &s->draws);
    for (int r = 0; r < b->n_rows; r++)
        families[r] = draws[r] = -1;
    for (int i = 0; i < b->n_families; i++)
        for (int k = 0; k < b->families[i].n_rows; k++) {
            int r = b->families[i].first_row + k;
            BUG_ON(b->draws[r] >= last->n);
            families[r] = b->families[i].first_row;
            draws[r] = b->draws[r];
        }
    for (int l = 0; l < b->n_logits; l++) {
        int r = b->logit_rows[l];
        dev->families[l] = families[r] < 0 ? l : l - (r - families[r]);
    }
    s->drawn = (const struct launch_drawn *)(void *)last->results.device;
}

static void put_items(struct kernels_device *dev, const struct kernels_batch *b,
                      struct launch_split *s) {
    struct state_image *i = &dev->images[dev->image];
    struct items items = {.tiles = (struct launch_item *)(void *)(i->host + i->used),
                          .warps =
                              (struct launch_item *)(void *)(i->host + i->used) + dev->max_tiles};
    s->group = dev->reserved.n_heads / dev->kv_shape.n_kv_heads;
    items_make(b, s->group, dev->split, &items);
    BUG_ON(items.n_tiles > dev->max_tiles || items.n_warps > dev->max_warps);
    s->n_tiles = items.n_tiles;
    s->n_warps = items.n_warps;
    image(dev, (size_t)items.n_tiles, sizeof *items.tiles, &s->tiles);
    struct launch_item *warps = image(dev, (size_t)items.n_warps, sizeof *warps, &s->warps);
    memmove(warps, items.warps, (size_t)items.n_warps * sizeof *warps);
}

/* Copies of the blocks in which forks begin; how many there are, the device knows. */
static void copy_forks(struct kernels_device *dev, const struct kernels_batch *b) {
    struct launch_copy c = {.data = dev->kv,
                            .layer_bytes = dev->kv_layer_bytes,
                            .block_bytes = dev->kv_block_bytes,
                            .n_layers = dev->kv_shape.n_layers,
                            .pairs = dev->forks,
                            .n_live = dev->n_forks};
    for (int i = 0; i < b->n_families; i++)
        if (b->positions[b->families[i].first_row] % KERNELS_BLOCK)
            c.n_pairs += b->families[i].n_rows - 1;
    if (c.n_pairs) launch_copy(gpu_stream(dev->gpu), &c);
}

/* Uploads the batch beside the work, and queues what makes a step's rows of it. */
static struct state_shape put_batch(struct kernels_device *dev, const struct kernels_batch *b) {
    struct launch_split s = {.n_rows = b->n_rows,
                             .n_logits = b->n_logits,
                             .live = dev->live,
                             .token = dev->token,
                             .founder = dev->founder,
                             .before = dev->before,
                             .founders = dev->founders,
                             .places = dev->places,
                             .pairs = dev->forks,
                             .n_pairs = dev->n_forks};
    put_rows(dev, b->tokens, b->n_rows, &s.tokens);
    put_rows(dev, b->positions, b->n_rows, &s.positions);
    put_rows(dev, b->logit_rows, b->n_logits, &s.logit_rows);
    put_tables(dev, b, &s);
    put_families(dev, b, &s);
    put_items(dev, b, &s);
    struct state_image *i = &dev->images[dev->image];
    gpu_put_aside(dev->gpu, i->device, i->host, i->used);
    i->copied = gpu_mark_aside(dev->gpu);
    gpu_follow(dev->gpu, i->copied);
    launch_split(gpu_stream(dev->gpu), &s);
    copy_forks(dev, b);
    i->read = gpu_mark(dev->gpu);
    i->waits = true;
    return (struct state_shape){b->n_rows, b->n_logits, s.n_tiles, s.n_warps};
}

bool forward_batch_begin(struct kernels_device *dev, const struct kernels_batch *b, struct err *e) {
    BUG_ON(dev->now);
    if (!dev->kv) return err_set(e, ERR_SYSTEM, "no KV cache is open");
    if (!check_batch(b, dev->reserved.n_rows, dev->kv_shape.n_blocks, e)) return false;
    if (b->table_starts[b->n_tables] > dev->max_tables)
        return err_set(e, ERR_SYSTEM, "tables of %d blocks in one step; room was reserved for %d",
                       b->table_starts[b->n_tables], dev->max_tables);
    for (int r = 0; r < b->n_rows; r++)
        if (b->positions[r] / dev->split >= dev->n_splits)
            return err_set(e, ERR_SYSTEM, "row %d is at position %d; room was reserved for %d", r,
                           b->positions[r], dev->reserved.context);
    if (!state_next_image(dev, e)) return false;
    queue_copies(dev);
    struct state_shape shape = put_batch(dev, b);
    dev->now = b;
    dev->turns_made = false;
    dev->calls = UINT64_C(0xCBF29CE484222325);
    choose_graph(dev, shape);
    return true;
}

/* ---- rows ---- */

static void check_rows(struct kernels_view v, int n_rows, int width) {
    BUG_ON(v.offset > v.buffer->bytes ||
           (size_t)n_rows * (size_t)width * sizeof(float) > v.buffer->bytes - v.offset);
}

/* An operand that is to be written.  Its rows' fp8 scales lie in dev->scales until the next one is:
 * a step's products read each operand before the next is made. */
static struct launch_operand operand(struct kernels_device *dev, struct kernels_view v, int n_rows,
                                     int width) {
    check_rows(v, n_rows, width);
    bool fp8 = dev->fp8 && width % WEIGHTS_FP8_MULTIPLE == 0;
    BUG_ON(fp8 && n_rows > dev->reserved.n_rows);
    dev->scaled = fp8 ? state_pointer(v) : NULL;
    return (struct launch_operand){
        .data = state_pointer(v), .scales = fp8 ? dev->scales : NULL, .width = width};
}

/* The rows that a product reads, on the side of the operand that its weights are of. */
static void read_operand(const struct kernels_device *dev, const struct kernels_weight *w,
                         struct kernels_view v, struct gemm_call *c) {
    const uint8_t *x = state_pointer(v);
    size_t row = 4 * (size_t)w->n_cols;
    c->w = w->data;
    c->w_scales = w->scales;
    c->x = x;
    c->x_stride = 2 * w->n_cols;
    if (!w->scales) return;
    BUG_ON(!dev->scaled || x < dev->scaled || (size_t)(x - dev->scaled) % row);
    c->x = x + 2 * (size_t)w->n_cols;
    c->x_stride = 4 * w->n_cols;
    c->x_scales = dev->scales + (size_t)(x - dev->scaled) / row;
}

/* How many rows the grid of an operation over n_rows has, and where the device counts them; NULL:
 * all are live. */
static int rows_of(const struct kernels_device *dev, int n_rows, const int32_t **live) {
    *live = NULL;
    if (!dev->now) return n_rows;
    if (n_rows == dev->now->n_rows) {
        *live = &dev->batch.counts->n_rows;
        return dev->grid.rows;
    }
    if (n_rows == dev->now->n_logits) {
        *live = &dev->batch.counts->n_logits;
        return dev->grid.logits;
    }
    BUG_ON(dev->recording);
    return n_rows;
}

void forward_embed(struct kernels_device *dev, const struct kernels_weight *table,
                   struct kernels_view out) {
    const struct kernels_batch *b = dev->now;
    for (int r = 0; r < b->n_rows; r++)
        BUG_ON(b->tokens[r] < 0 || b->tokens[r] >= table->n_rows);
    BUG_ON(table->scales != NULL);
    check_rows(out, dev->grid.rows, table->n_cols);
    state_count(dev, KERNELS_OP_EMBED, 6.0 * b->n_rows * table->n_cols, 0);
    if (!runs(dev, KERNELS_OP_EMBED, table, state_pointer(out), table->n_cols)) return;
    struct launch_embed a = {.table = (const uint16_t *)(const void *)table->data,
                             .out = state_pointer(out),
                             .d = table->n_cols,
                             .rows = dev->grid.rows,
                             .n_rows = &dev->batch.counts->n_rows,
                             .tokens = dev->batch.tokens};
    launch_embed(gpu_stream(dev->gpu), &a);
}

void forward_rms_norm(struct kernels_device *dev, struct kernels_view x, struct kernels_view weight,
                      float eps, int n_rows, int d, struct kernels_view out) {
    const int32_t *live;
    int rows = rows_of(dev, n_rows, &live);
    check_rows(x, rows, d);
    check_rows(weight, 1, d);
    state_count(dev, KERNELS_OP_NORM, 6.0 * n_rows * d, 2.0 * n_rows * d);
    struct launch_operand to = operand(dev, out, rows, d);
    if (!runs(dev, KERNELS_OP_NORM, state_pointer(x), state_pointer(out), d)) return;
    struct launch_norm a = {.x = state_pointer(x),
                            .weight = state_pointer(weight),
                            .eps = eps,
                            .rows = rows,
                            .n_rows = live,
                            .out = to};
    launch_norm(gpu_stream(dev->gpu), &a);
}

void forward_head_norms(struct kernels_device *dev, const struct kernels_head_norms *n) {
    const int32_t *live;
    int rows = rows_of(dev, n->n_rows, &live), heads = n->n_heads + n->n_kv_heads;
    BUG_ON(heads * n->head_dim > n->stride);
    size_t last = n->heads.offset + (size_t)(rows - 1) * (size_t)n->stride * sizeof(float);
    check_rows((struct kernels_view){n->heads.buffer, last}, 1, heads * n->head_dim);
    check_rows(n->q_weight, 1, n->head_dim);
    check_rows(n->k_weight, 1, n->head_dim);
    double values = (double)n->n_rows * heads * n->head_dim;
    state_count(dev, KERNELS_OP_NORM, 8 * values, 2 * values);
    if (!runs(dev, KERNELS_OP_NORM, state_pointer(n->heads), state_pointer(n->q_weight), heads))
        return;
    struct launch_head_norm a = {.heads = state_pointer(n->heads),
                                 .q_weight = state_pointer(n->q_weight),
                                 .k_weight = state_pointer(n->k_weight),
                                 .eps = n->eps,
                                 .stride = n->stride,
                                 .n_heads = n->n_heads,
                                 .n_kv_heads = n->n_kv_heads,
                                 .head_dim = n->head_dim,
                                 .rows = rows,
                                 .n_rows = live};
    launch_head_norm(gpu_stream(dev->gpu), &a);
}

void forward_swiglu(struct kernels_device *dev, struct kernels_view gate_up, int n_rows, int d,
                    struct kernels_view out) {
    const int32_t *live;
    int rows = rows_of(dev, n_rows, &live);
    check_rows(gate_up, rows, 2 * d);
    state_count(dev, KERNELS_OP_SWIGLU, 10.0 * n_rows * d, (double)n_rows * d);
    struct launch_operand to = operand(dev, out, rows, d);
    if (!runs(dev, KERNELS_OP_SWIGLU, state_pointer(gate_up), state_pointer(out), d)) return;
    struct launch_swiglu a = {
        .gate_up = state_pointer(gate_up), .rows = rows, .n_rows = live, .out = to};
    launch_swiglu(gpu_stream(dev->gpu), &a);
}

void forward_gather_logit_rows(struct kernels_device *dev, struct kernels_view x, int d,
                               struct kernels_view out) {
    check_rows(out, dev->grid.logits, d);
    if (!runs(dev, KERNELS_N_OPS, state_pointer(x), state_pointer(out), d)) return;
    struct launch_gather a = {.x = state_pointer(x),
                              .out = state_pointer(out),
                              .d = d,
                              .rows = dev->grid.logits,
                              .n_logits = &dev->batch.counts->n_logits,
                              .logit_rows = dev->batch.logit_rows};
    if (a.rows) launch_gather(gpu_stream(dev->gpu), &a);
}

/* ---- products ---- */

static void multiply(struct kernels_device *dev, const struct gemm_call *c) {
    struct err e = {0};
    if (!gemm_run(dev->gemm, c, &e)) state_fail(dev, &e);
}

static void count_product(struct kernels_device *dev, enum kernels_op op,
                          const struct kernels_weight *w, double n) {
    double weights = (double)w->n_rows * w->n_cols, size = w->scales ? 1 : 2;
    state_count(dev, op, size * weights + n * (size * w->n_cols + 4.0 * w->n_rows), n * weights);
}

void forward_matmul(struct kernels_device *dev, const struct kernels_weight *w,
                    struct kernels_view x, int n_rows, struct kernels_view bias, bool add,
                    struct kernels_view y, int y_stride) {
    const int32_t *live;
    int rows = rows_of(dev, n_rows, &live);
    BUG_ON(y_stride < w->n_rows);
    check_rows(x, rows, w->n_cols);
    BUG_ON(rows < 1);
    check_rows(
        (struct kernels_view){y.buffer, y.offset + (size_t)(rows - 1) * (size_t)y_stride * 4}, 1,
        w->n_rows);
    count_product(dev, KERNELS_OP_MATMUL, w, n_rows);
    if (!runs(dev, KERNELS_OP_MATMUL, w, state_pointer(y), y_stride)) return;
    struct gemm_call c = {.n_out = w->n_rows,
                          .n_in = w->n_cols,
                          .n_rows = rows,
                          .bias = bias.buffer ? state_pointer(bias) : NULL,
                          .add = add,
                          .y = state_pointer(y),
                          .y_stride = y_stride};
    read_operand(dev, w, x, &c);
    multiply(dev, &c);
}

void forward_output(struct kernels_device *dev, const struct kernels_weight *w,
                    struct kernels_view x, int n, struct kernels_view logits) {
    BUG_ON(dev->recording || n < 1);
    check_rows(x, n, w->n_cols);
    check_rows(logits, n, w->n_rows);
    count_product(dev, KERNELS_OP_OUTPUT, w, n);
    struct gemm_call c = {.n_out = w->n_rows,
                          .n_in = w->n_cols,
                          .n_rows = n,
                          .y = state_pointer(logits),
                          .y_stride = w->n_rows};
    read_operand(dev, w, x, &c);
    multiply(dev, &c);
}

/* ---- rope, attention ---- */

static struct launch_kv layer_kv(const struct kernels_device *dev, int layer) {
    BUG_ON(layer < 0 || layer >= dev->kv_shape.n_layers);
    return (struct launch_kv){.data = dev->kv + (size_t)layer * dev->kv_layer_bytes,
                              .n_kv_heads = dev->kv_shape.n_kv_heads,
                              .head_dim = dev->kv_shape.head_dim,
                              .fp8 = dev->kv_fp8,
                              .page_bytes = launch_page_bytes(dev->kv_shape.head_dim, dev->kv_fp8)};
}

/* Cosines and sines of the step's positions, by the first layer that needs them. */
static void make_turns(struct kernels_device *dev, const struct kernels_rope *rope) {
    int half = rope->n_rot / 2;
    if (dev->rope_loaded != rope) {
        BUG_ON(dev->recording || half > dev->reserved.head_dim);
        gpu_put(dev->gpu, dev->inv_freq, rope->inv_freq, (size_t)half * sizeof(float));
        dev->rope_loaded = rope;
    }
    if (!runs(dev, KERNELS_OP_ROPE, rope, NULL, half)) return;
    struct launch_turns a = {.inv_freq = dev->inv_freq,
                             .turns = dev->turns,
                             .half = half,
                             .rows = dev->grid.rows,
                             .n_rows = &dev->batch.counts->n_rows,
                             .positions = dev->batch.positions};
    launch_turns(gpu_stream(dev->gpu), &a);
}

void forward_rope_append(struct kernels_device *dev, int layer, const struct kernels_rope *rope,
                         struct kernels_view q, struct kernels_view k, struct kernels_view v,
                         int stride, int n_heads) {
    BUG_ON(rope->n_rot > dev->kv_shape.head_dim || rope->n_rot % 2);
    double n = dev->now->n_rows, kv = (double)dev->kv_shape.n_kv_heads * dev->kv_shape.head_dim,
           heads = (double)n_heads * dev->kv_shape.head_dim;
    state_count(dev, KERNELS_OP_ROPE, n * (8 * heads + 12 * kv), n * 2 * (heads + kv));
    if (!dev->turns_made) make_turns(dev, rope);
    dev->turns_made = true;
    if (!runs(dev, KERNELS_OP_ROPE, state_pointer(q), NULL, layer)) return;
    struct launch_rope a = {.q = state_pointer(q),
                            .k = state_pointer(k),
                            .v = state_pointer(v),
                            .turns = dev->turns,
                            .stride = stride,
                            .n_heads = n_heads,
                            .half = rope->n_rot / 2,
                            .rows = dev->grid.rows,
                            .interleaved = rope->interleaved,
                            .kv = layer_kv(dev, layer),
                            .batch = dev->batch};
    launch_rope(gpu_stream(dev->gpu), &a);
}

/* Keys read once for each item, queries and states. */
static void count_attention(struct kernels_device *dev, int n_heads) {
    const struct kernels_batch *b = dev->now;
    double d = dev->kv_shape.head_dim, macs = 0, keys = 0;
    for (int r = 0; r < b->n_rows; r++) {
        macs += 2.0 * (b->positions[r] + 1) * n_heads * d;
        keys += b->positions[r] + 1;
    }
    for (int i = 0; i < b->n_groups; i++)
        keys -= (double)(b->groups[i].n_rows - 1) * b->groups[i].n_prefix_blocks * KERNELS_BLOCK;
    double key = (double)launch_page_bytes(dev->kv_shape.head_dim, dev->kv_fp8) / LAUNCH_BLOCK;
    state_count(dev, KERNELS_OP_ATTENTION,
                keys * key * dev->kv_shape.n_kv_heads + (double)b->n_rows * n_heads * 14 * d, macs);
}

void forward_attention(struct kernels_device *dev, int layer, struct kernels_view q, int stride,
                       int n_heads, float scale, struct kernels_view out) {
    BUG_ON(n_heads != dev->reserved.n_heads);
    count_attention(dev, n_heads);
    struct launch_operand to = operand(dev, out, dev->grid.rows, n_heads * dev->kv_shape.head_dim);
    if (!runs(dev, KERNELS_OP_ATTENTION, state_pointer(q), state_pointer(out), layer)) return;
    void *stream = gpu_stream(dev->gpu);
    struct launch_attention a = {.q = state_pointer(q),
                                 .stride = stride,
                                 .n_heads = n_heads,
                                 .scale = scale * 1.44269504f, /* log2 e */
                                 .kv = layer_kv(dev, layer),
                                 .batch = dev->batch,
                                 .split = dev->split,
                                 .n_splits = dev->n_splits,
                                 .stats = dev->stats,
                                 .states = dev->states};
    a.items = dev->grid.tiles;
    if (a.items) launch_attention_tile(stream, &a);
    a.items = dev->grid.warps;
    if (a.items) launch_attention_warp(stream, &a);
    struct launch_merge m = {.stats = dev->stats,
                             .states = dev->states,
                             .n_heads = n_heads,
                             .head_dim = dev->kv_shape.head_dim,
                             .split = dev->split,
                             .n_splits = dev->n_splits,
                             .rows = dev->grid.rows,
                             .n_rows = &dev->batch.counts->n_rows,
                             .positions = dev->batch.positions,
                             .out = to};
    launch_merge(stream, &m);
}
