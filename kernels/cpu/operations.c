#include "kernels/cpu/operations.h"

#include "base/clock.h"
#include "kernels/check.h"
#include "kernels/cpu/reference.h"

#include <math.h>
#include <string.h>

static void count(struct kernels_device *dev, enum kernels_op op, double since, double bytes,
                  double macs) {
    dev->profile.op[op].seconds += clock_seconds() - since;
    dev->profile.op[op].bytes += bytes;
    dev->profile.op[op].macs += macs;
    dev->profile.op[op].calls++;
}

/* Chunks small enough to even out the threads' pace, large enough to be worth taking. */
static int grain(const struct kernels_device *dev, int n) {
    int g = n / (threads_count(dev->threads) * 8);
    return g < 1 ? 1 : g > 16 ? 16 : g;
}

/* ---- the batch ---- */

static void add_units(struct kernels_device *dev, int first, int n, int n_shared) {
    for (int i = 0; i < n; i += VECTOR_UNIT_ROWS) {
        int some = n - i < VECTOR_UNIT_ROWS ? n - i : VECTOR_UNIT_ROWS;
        dev->units[dev->n_units++] =
            (struct vector_unit){.first_row = first + i, .n_rows = some, .n_shared = n_shared};
    }
}

static void make_units(struct kernels_device *dev, const struct kernels_batch *b) {
    dev->n_units = 0;
    for (int row = 0, group = 0; row < b->n_rows;) {
        struct check_unit u = check_unit_at(b, row, &group);
        add_units(dev, u.first_row, u.n_rows, u.n_shared);
        row += u.n_rows;
    }
}

/* Each row of a family is computed for itself: the definition, since equal rows give equal results.
 */
static void take_tokens(struct kernels_device *dev, const struct kernels_batch *b) {
    const struct device_draws *last = &dev->draws[dev->newest];
    memcpy(dev->tokens, b->tokens, (size_t)b->n_rows * sizeof *b->tokens);
    for (int i = 0; i < b->n_families; i++) {
        struct kernels_family f = b->families[i];
        for (int r = f.first_row; r < f.first_row + f.n_rows; r++) {
            int position = b->positions[r], block = position / KERNELS_BLOCK;
            BUG_ON(b->draws[r] >= last->n);
            dev->tokens[r] = last->drawn[b->draws[r]].token;
            if (r == f.first_row || position % KERNELS_BLOCK == 0) continue;
            const int32_t *to = b->tables + b->table_starts[b->table_of_row[r]],
                          *from = b->tables + b->table_starts[b->table_of_row[f.first_row]];
            device_copy_block(dev, to[block], from[block]);
        }
    }
}

bool operations_batch_begin(struct kernels_device *dev, const struct kernels_batch *b,
                            struct err *e) {
    BUG_ON(dev->batch);
    if (!dev->kv.data) return err_set(e, ERR_SYSTEM, "no KV cache is open");
    if (!check_batch(b, dev->max_rows, dev->kv_shape.n_blocks, e)) return false;
    dev->batch = b;
    take_tokens(dev, b);
    dev->turns_made = NULL;
    make_units(dev, b);
    return true;
}

void operations_batch_end(struct kernels_device *dev) { dev->batch = NULL; }

/* ---- embed ---- */

struct embed_job {
    const struct kernels_weight *w;
    const int32_t *tokens;
    float *out;
};

static void embed_rows(void *arg, int thread, int begin, int end) {
    struct embed_job *j = arg;
    const struct pack *p = &j->w->pack;
    (void)thread;
    for (int r = begin; r < end; r++) {
        float *out = j->out + (size_t)r * (size_t)p->n_cols;
        int token = j->tokens[r];
        BUG_ON(token < 0 || token >= p->n_rows);
        size_t row_bytes = quant_row_bytes(p->type, (size_t)p->n_cols);
        if (j->w->source)
            quant_decode(p->type, (const uint8_t *)j->w->source + (size_t)token * row_bytes,
                         (size_t)p->n_cols, out);
        else
            pack_decode_row(p, token, out);
    }
}

void operations_embed(struct kernels_device *dev, const struct kernels_weight *w,
                      struct kernels_view out) {
    double since = clock_seconds();
    struct embed_job j = {.w = w, .tokens = dev->tokens, .out = device_floats(out)};
    threads_run(dev->threads, embed_rows, &j, dev->batch->n_rows, 4);
    double n = dev->batch->n_rows;
    count(
        dev, KERNELS_OP_EMBED, since,
        n * ((double)quant_row_bytes(w->pack.type, (size_t)w->pack.n_cols) + 4.0 * w->pack.n_cols),
        0);
}

/* ---- norm, swiglu ---- */

struct norm_job {
    const struct kernels_device *dev;
    const float *x, *weight;
    float eps, *out;
    int d;
};

static void norm_rows(void *arg, int thread, int begin, int end) {
    struct norm_job *j = arg;
    (void)thread;
    for (int r = begin; r < end; r++) {
        size_t at = (size_t)r * (size_t)j->d;
        if (j->dev->isa.is_reference)
            reference_rms_norm(j->x + at, j->weight, j->eps, j->d, j->out + at);
        else
            j->dev->isa.vector->rms_norm(j->x + at, j->weight, j->eps, j->d, j->out + at);
    }
}

void operations_rms_norm(struct kernels_device *dev, struct kernels_view x,
                         struct kernels_view weight, float eps, int n_rows, int d,
                         struct kernels_view out) {
    double since = clock_seconds();
    struct norm_job j = {.dev = dev,
                         .x = device_floats(x),
                         .weight = device_floats(weight),
                         .eps = eps,
                         .out = device_floats(out),
                         .d = d};
    threads_run(dev->threads, norm_rows, &j, n_rows, 16);
    count(dev, KERNELS_OP_NORM, since, 8.0 * n_rows * d, 2.0 * n_rows * d);
}

struct head_norm_job {
    const struct kernels_device *dev;
    const struct kernels_head_norms *norms;
};

static void head_norm_rows(void *arg, int thread, int begin, int end) {
    struct head_norm_job *j = arg;
    const struct kernels_head_norms *n = j->norms;
    const float *q = device_floats(n->q_weight), *k = device_floats(n->k_weight);
    (void)thread;
    for (int r = begin; r < end; r++)
        for (int h = 0; h < n->n_heads + n->n_kv_heads; h++) {
            float *x = device_floats(n->heads) + (size_t)r * (size_t)n->stride + h * n->head_dim;
            const float *weight = h < n->n_heads ? q : k;
            if (j->dev->isa.is_reference)
                reference_rms_norm(x, weight, n->eps, n->head_dim, x);
            else
                j->dev->isa.vector->rms_norm(x, weight, n->eps, n->head_dim, x);
        }
}

void operations_head_norms(struct kernels_device *dev, const struct kernels_head_norms *n) {
    double since = clock_seconds();
    BUG_ON((n->n_heads + n->n_kv_heads) * n->head_dim > n->stride);
    struct head_norm_job j = {dev, n};
    threads_run(dev->threads, head_norm_rows, &j, n->n_rows, 16);
    double values = (double)n->n_rows * (n->n_heads + n->n_kv_heads) * n->head_dim;
    count(dev, KERNELS_OP_NORM, since, 8 * values, 2 * values);
}

struct swiglu_job {
    const struct kernels_device *dev;
    const float *gate_up;
    float *out;
    int d;
};

static void swiglu_rows(void *arg, int thread, int begin, int end) {
    struct swiglu_job *j = arg;
    (void)thread;
    for (int r = begin; r < end; r++) {
        const float *gate = j->gate_up + 2 * (size_t)r * (size_t)j->d, *up = gate + j->d;
        float *out = j->out + (size_t)r * (size_t)j->d;
        if (j->dev->isa.is_reference)
            reference_swiglu(gate, up, j->d, out);
        else
            j->dev->isa.vector->swiglu(gate, up, j->d, out);
    }
}

void operations_swiglu(struct kernels_device *dev, struct kernels_view gate_up, int n_rows, int d,
                       struct kernels_view out) {
    double since = clock_seconds();
    struct swiglu_job j = {
        .dev = dev, .gate_up = device_floats(gate_up), .out = device_floats(out), .d = d};
    threads_run(dev->threads, swiglu_rows, &j, n_rows, 2);
    count(dev, KERNELS_OP_SWIGLU, since, 12.0 * n_rows * d, (double)n_rows * d);
}

/* ---- matrix products ---- */

struct matmul_run {
    struct kernels_device *dev;
    const struct matmul_way *way;
    struct matmul_job job;
    struct reference_matmul reference;
};

static void quantise_rows(void *arg, int thread, int begin, int end) {
    struct matmul_run *run = arg;
    const struct pack *w = run->job.w;
    const struct kernels_device *dev = run->dev;
    (void)thread;
    for (int r = begin; r < end; r++) {
        struct matmul_tile t = matmul_tile(run->job.n_rows, run->way->tile_rows, r);
        size_t first = (size_t)t.first, in = (size_t)(r - t.first);
        dev->isa.vector->quantise(run->job.x + (size_t)r * (size_t)w->n_cols, w->n_cols, w,
                                  dev->isa.init, t.rows, run->way->together,
                                  dev->q + first * (size_t)w->n_cols +
                                      (size_t)run->way->together * in,
                                  dev->records + first * (size_t)w->n_blocks + in);
    }
}

static void matmul_pairs(void *arg, int thread, int begin, int end) {
    struct matmul_run *run = arg;
    run->way->run(&run->job, run->dev->scratch[thread].matmul, begin, end);
}

static void reference_outputs(void *arg, int thread, int begin, int end) {
    struct matmul_run *run = arg;
    reference_matmul(&run->reference, run->dev->scratch[thread].row, begin, end);
}

/* Panel pairs a chunk: of a large product about 20 us of work, so that the threads end together. */
static int pair_grain(const struct kernels_device *dev, const struct pack *w, int n_rows,
                      int n_pairs) {
    enum { CHUNK_MACS = 4 << 20 };
    int64_t macs = (int64_t)n_rows * w->n_cols * MATMUL_PANELS * PACK_OUTPUTS;
    int most = macs < CHUNK_MACS ? (int)(CHUNK_MACS / macs) : 1, even = grain(dev, n_pairs);
    return even < most ? even : most;
}

/* The run writes through y. */
static void multiply(struct kernels_device *dev, const struct kernels_weight *w, const float *x,
                     int n_rows, const float *bias, bool add,
                     float *y /* NOLINT(readability-non-const-parameter) */, int y_stride) {
    const struct pack *p = &w->pack;
    BUG_ON(n_rows > dev->max_rows || p->n_cols > dev->max_cols || y_stride < p->n_rows);
    struct matmul_run run = {
        .dev = dev,
        .way = isa_way(&dev->isa, p->form, n_rows),
        .job = {.w = p,
                .q = dev->q,
                .records = dev->records,
                .x = x,
                .n_rows = n_rows,
                .bias = bias,
                .add = add,
                .y = y,
                .y_stride = y_stride},
        .reference = {.type = p->type,
                      .data = w->source,
                      .n_cols = p->n_cols,
                      .x = x,
                      .n_rows = n_rows,
                      .bias = bias,
                      .add = add,
                      .y = y,
                      .y_stride = y_stride},
    };
    if (dev->isa.is_reference) {
        threads_run(dev->threads, reference_outputs, &run, p->n_rows, grain(dev, p->n_rows));
        return;
    }
    /* Quantising a row takes about a microsecond for 4,000 columns: not worth a second thread below
     * that. */
    if (p->form != PACK_DENSE)
        threads_run(dev->threads, quantise_rows, &run, n_rows, p->n_cols >= 4096 ? 2 : 8);
    int pairs = (p->n_panels + MATMUL_PANELS - 1) / MATMUL_PANELS;
    threads_run(dev->threads, matmul_pairs, &run, pairs, pair_grain(dev, p, n_rows, pairs));
}

static void count_matmul(struct kernels_device *dev, enum kernels_op op, double since,
                         const struct kernels_weight *w, double n) {
    double bytes = (double)pack_bytes(&w->pack) + 4 * n * ((double)w->pack.n_cols + w->pack.n_rows);
    count(dev, op, since, bytes, n * (double)w->pack.n_rows * w->pack.n_cols);
}

void operations_matmul(struct kernels_device *dev, const struct kernels_weight *w,
                       struct kernels_view x, int n_rows, struct kernels_view bias, bool add,
                       struct kernels_view y, int y_stride) {
    double since = clock_seconds();
    multiply(dev, w, device_floats(x), n_rows, bias.buffer ? device_floats(bias) : NULL, add,
             device_floats(y), y_stride);
    count_matmul(dev, KERNELS_OP_MATMUL, since, w, n_rows);
}

void operations_output(struct kernels_device *dev, const struct kernels_weight *w,
                       struct kernels_view x, int n, struct kernels_view logits) {
    double since = clock_seconds();
    multiply(dev, w, device_floats(x), n, NULL, false, device_floats(logits), w->pack.n_rows);
    count_matmul(dev, KERNELS_OP_OUTPUT, since, w, n);
}

/* ---- rope, attention ---- */

struct rope_job {
    struct kernels_device *dev;
    const struct kernels_rope *rope;
    struct vector_kv kv;
    float *q, *k, *v;
    int stride, n_heads;
    bool make_turns;
};

static struct vector_kv layer_kv(const struct kernels_device *dev, int layer) {
    BUG_ON(layer < 0 || layer >= dev->kv_shape.n_layers);
    struct vector_kv kv = dev->kv;
    kv.data += (size_t)layer * dev->kv_layer_bytes;
    return kv;
}

static void rope_rows(void *arg, int thread, int begin, int end) {
    struct rope_job *j = arg;
    const struct kernels_batch *b = j->dev->batch;
    const struct vector_ops *ops = j->dev->isa.vector;
    int half = j->rope->n_rot / 2, d = j->kv.head_dim;
    (void)thread;
    for (int r = begin; r < end; r++) {
        float(*turns)[2] = j->dev->turns + (size_t)r * (size_t)half;
        for (int i = 0; i < half && j->make_turns; i++) {
            double angle = (double)b->positions[r] * (double)j->rope->inv_freq[i];
            turns[i][0] = (float)cos(angle);
            turns[i][1] = (float)sin(angle);
        }
        size_t at = (size_t)r * (size_t)j->stride;
        const float(*turn)[2] = (const float(*)[2])turns;
        for (int h = 0; h < j->n_heads; h++)
            ops->rope(j->q + at + h * d, turn, j->rope->n_rot, j->rope->interleaved);
        int position = b->positions[r];
        int block = b->tables[b->table_starts[b->table_of_row[r]] + position / KERNELS_BLOCK];
        for (int h = 0; h < j->kv.n_kv_heads; h++) {
            float *k = j->k + at + h * d;
            ops->rope(k, turn, j->rope->n_rot, j->rope->interleaved);
            ops->store_kv(&j->kv, block, h, position % KERNELS_BLOCK, k, j->v + at + h * d);
        }
    }
}

void operations_rope_append(struct kernels_device *dev, int layer, const struct kernels_rope *rope,
                            struct kernels_view q, struct kernels_view k, struct kernels_view v,
                            int stride, int n_heads) {
    double since = clock_seconds();
    BUG_ON(rope->n_rot > dev->kv.head_dim || rope->n_rot % 2 ||
           dev->kv.head_dim > dev->max_head_dim);
    struct rope_job j = {.dev = dev,
                         .rope = rope,
                         .kv = layer_kv(dev, layer),
                         .q = device_floats(q),
                         .k = device_floats(k),
                         .v = device_floats(v),
                         .stride = stride,
                         .n_heads = n_heads,
                         .make_turns = dev->turns_made != rope};
    threads_run(dev->threads, rope_rows, &j, dev->batch->n_rows, 4);
    dev->turns_made = rope;
    double n = dev->batch->n_rows,
           elements = (double)(n_heads + 2 * j.kv.n_kv_heads) * j.kv.head_dim;
    count(dev, KERNELS_OP_ROPE, since, n * elements * 8, n * elements * 2);
}

struct attention_job {
    struct kernels_device *dev;
    struct vector_attention a;
};

/* Item i: unit i / n_kv_heads, KV head i % n_kv_heads. */
static void attention_items(void *arg, int thread, int begin, int end) {
    struct attention_job *j = arg;
    int n = j->a.kv.n_kv_heads;
    for (int i = begin; i < end; i++)
        j->dev->isa.vector->attention(&j->a, &j->dev->scratch[thread].attention,
                                      &j->dev->units[i / n], i % n);
}

static void attention_reference(void *arg, int thread, int begin, int end) {
    struct attention_job *j = arg;
    for (int i = begin; i < end; i++)
        reference_attention(&j->a, i / j->a.n_heads, i % j->a.n_heads,
                            j->dev->scratch[thread].scores);
}

static void count_attention(struct kernels_device *dev, double since,
                            const struct vector_attention *a) {
    const struct kernels_batch *b = a->batch;
    double macs = 0, blocks = 0;
    for (int i = 0; i < dev->n_units; i++) {
        const struct vector_unit *u = &dev->units[i];
        blocks += u->n_shared;
        for (int r = u->first_row; r < u->first_row + u->n_rows; r++) {
            int n = b->positions[r] / KERNELS_BLOCK + 1;
            blocks += n > u->n_shared ? n - u->n_shared : 0;
            macs += 2.0 * (b->positions[r] + 1) * a->n_heads * a->kv.head_dim;
        }
    }
    double rows = 8.0 * b->n_rows * a->n_heads * a->kv.head_dim;
    count(dev, KERNELS_OP_ATTENTION, since,
          blocks * a->kv.n_kv_heads * (double)a->kv.head_bytes + rows, macs);
}

void operations_attention(struct kernels_device *dev, int layer, struct kernels_view q, int stride,
                          int n_heads, float scale, struct kernels_view out) {
    double since = clock_seconds();
    struct attention_job j = {.dev = dev,
                              .a = {.kv = layer_kv(dev, layer),
                                    .batch = dev->batch,
                                    .q = device_floats(q),
                                    .q_stride = stride,
                                    .n_heads = n_heads,
                                    .scale = scale,
                                    .out = device_floats(out)}};
    BUG_ON(n_heads % j.a.kv.n_kv_heads);
    if (dev->isa.is_reference)
        threads_run(dev->threads, attention_reference, &j, dev->batch->n_rows * n_heads, 1);
    else
        threads_run(dev->threads, attention_items, &j, dev->n_units * j.a.kv.n_kv_heads, 1);
    count_attention(dev, since, &j.a);
}

/* ---- output and sampling ---- */

void operations_gather_logit_rows(struct kernels_device *dev, struct kernels_view x, int d,
                                  struct kernels_view out) {
    const struct kernels_batch *b = dev->batch;
    for (int i = 0; i < b->n_logits; i++)
        memcpy(device_floats(out) + (size_t)i * (size_t)d,
               device_floats(x) + (size_t)b->logit_rows[i] * (size_t)d, (size_t)d * sizeof(float));
}

struct sample_job {
    struct kernels_device *dev;
    const float *logits; /* of the first row */
    int n_vocab;
    const struct kernels_draws *draws;
};

static void sample_rows(void *arg, int thread, int begin, int end) {
    struct sample_job *j = arg;
    struct kernels_device *dev = j->dev;
    for (int r = begin; r < end; r++) {
        int first = dev->starts[r], n = dev->starts[r + 1] - first;
        if (n)
            sample_row(dev->scratch[thread].sample, dev->isa.vector,
                       j->logits + (size_t)r * (size_t)j->n_vocab, j->n_vocab, j->draws,
                       dev->order + first, n, dev->draws[dev->newest].drawn);
    }
}

void operations_sample(struct kernels_device *dev, struct kernels_view logits, int n_vocab,
                       const struct kernels_draws *draws, int first_row, int n_rows) {
    double since = clock_seconds();
    if (!first_row) {
        BUG_ON(dev->n_waiting == 2);
        dev->n_waiting++;
        dev->newest = 1 - dev->newest;
        dev->draws[dev->newest].n = draws->n_draws;
    }
    device_reserve_draws(dev, draws->n_draws, n_rows);
    int begin = 0, end;
    while (begin < draws->n_draws && draws->draws[begin].logit_row < first_row)
        begin++;
    /* A counting sort by row: a row's draws share its work and so stay with one thread. */
    memset(dev->starts, 0, ((size_t)n_rows + 1) * sizeof *dev->starts);
    for (end = begin; end < draws->n_draws && draws->draws[end].logit_row < first_row + n_rows;
         end++)
        dev->starts[draws->draws[end].logit_row - first_row]++;
    for (int r = 1; r <= n_rows; r++)
        dev->starts[r] += dev->starts[r - 1];
    for (int i = end - 1; i >= begin; i--)
        dev->order[--dev->starts[draws->draws[i].logit_row - first_row]] = i;
    struct sample_job j = {
        .dev = dev, .logits = device_floats(logits), .n_vocab = n_vocab, .draws = draws};
    threads_run(dev->threads, sample_rows, &j, n_rows, 1);
    count(dev, KERNELS_OP_SAMPLE, since, 4.0 * n_rows * n_vocab, 0);
}

bool operations_drawn(struct kernels_device *dev, struct kernels_drawn *out, int n_draws,
                      struct err *e) {
    BUG_ON(!dev->n_waiting);
    const struct device_draws *oldest =
        &dev->draws[dev->n_waiting == 2 ? 1 - dev->newest : dev->newest];
    dev->n_waiting--;
    if (n_draws != oldest->n)
        return err_set(e, ERR_SYSTEM, "%d draws are asked for, but %d were made", n_draws,
                       oldest->n);
    memcpy(out, oldest->drawn, (size_t)n_draws * sizeof *out);
    return true;
}

bool operations_can_follow(const struct kernels_device *dev) {
    (void)dev;
    return true;
}
