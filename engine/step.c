#include "engine/step.h"

#include <stdlib.h>

struct step {
    const struct model *model;     /* borrowed */
    int n_rows, n_logits;          /* capacities */
    int n_logit_rows;              /* of the last forward pass */
    struct kernels_buffer *memory; /* owned */
    /* f32, one row a row of the batch */
    struct kernels_view x;       /* [n_embd] the residual stream */
    struct kernels_view h;       /* [n_embd] normed */
    struct kernels_view qkv;     /* [(n_heads + 2 n_kv_heads) head_dim] */
    struct kernels_view heads;   /* [n_heads head_dim] */
    struct kernels_view gate_up; /* [2 n_ff] */
    struct kernels_view ffn;     /* [n_ff] */
    struct kernels_view last;    /* [n_logits][n_embd] */
    struct kernels_view logits;  /* [kernels.logit_rows or fewer][n_vocab] */
};

static size_t aligned(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

static size_t rows_bytes(int n_rows, int n_cols) {
    return aligned((size_t)n_rows * (size_t)n_cols * sizeof(float));
}

static int qkv_width(const struct model_shape *s) {
    return (s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
}

static int logits_at_once(const struct kernels *k, int n_logits) {
    return n_logits < k->logit_rows ? n_logits : k->logit_rows;
}

size_t step_bytes(const struct kernels *k, const struct model_shape *s, int n_rows, int n_logits) {
    return 2 * rows_bytes(n_rows, s->n_embd) + rows_bytes(n_rows, qkv_width(s)) +
           rows_bytes(n_rows, s->n_heads * s->head_dim) + rows_bytes(n_rows, 2 * s->n_ff) +
           rows_bytes(n_rows, s->n_ff) + rows_bytes(n_logits, s->n_embd) +
           rows_bytes(logits_at_once(k, n_logits), s->n_vocab);
}

static struct kernels_view place(const struct step *st, size_t *at, size_t bytes) {
    struct kernels_view v = {st->memory, *at};
    *at += bytes;
    return v;
}

struct step *step_new(const struct model *m, int n_rows, int n_logits, struct err *e) {
    const struct model_shape *s = &m->shape;
    struct step *st = err_alloc(1, sizeof *st);
    st->model = m;
    st->n_rows = n_rows;
    st->n_logits = n_logits;
    if (!(st->memory =
              m->kernels->buffer_new(m->device, step_bytes(m->kernels, s, n_rows, n_logits), e))) {
        step_free(st);
        return NULL;
    }
    size_t at = 0;
    st->x = place(st, &at, rows_bytes(n_rows, s->n_embd));
    st->h = place(st, &at, rows_bytes(n_rows, s->n_embd));
    st->qkv = place(st, &at, rows_bytes(n_rows, qkv_width(s)));
    st->heads = place(st, &at, rows_bytes(n_rows, s->n_heads * s->head_dim));
    st->gate_up = place(st, &at, rows_bytes(n_rows, 2 * s->n_ff));
    st->ffn = place(st, &at, rows_bytes(n_rows, s->n_ff));
    st->last = place(st, &at, rows_bytes(n_logits, s->n_embd));
    st->logits = place(st, &at, rows_bytes(logits_at_once(m->kernels, n_logits), s->n_vocab));
    return st;
}

void step_free(struct step *st) {
    if (!st) return;
    if (st->memory) st->model->kernels->buffer_free(st->model->device, st->memory);
    free(st);
}

/* The view of column `col` of an f32 matrix. */
static struct kernels_view column(struct kernels_view v, int col) {
    v.offset += (size_t)col * sizeof(float);
    return v;
}

static void attention_half(struct step *st, int layer, int n) {
    const struct model *m = st->model;
    const struct model_shape *s = &m->shape;
    const struct model_layer *l = &m->layers[layer];
    const struct kernels *k = m->kernels;
    int width = qkv_width(s);
    struct kernels_view none = {0};
    struct kernels_view key = column(st->qkv, s->n_heads * s->head_dim);
    struct kernels_view value = column(key, s->n_kv_heads * s->head_dim);
    k->rms_norm(m->device, st->x, l->attention_norm, s->rms_eps, n, s->n_embd, st->h);
    k->matmul(m->device, l->q, st->h, n, l->q_bias, false, st->qkv, width);
    k->matmul(m->device, l->k, st->h, n, l->k_bias, false, key, width);
    k->matmul(m->device, l->v, st->h, n, l->v_bias, false, value, width);
    if (l->q_norm.buffer) {
        struct kernels_head_norms norms = {.heads = st->qkv,
                                           .stride = width,
                                           .n_rows = n,
                                           .n_heads = s->n_heads,
                                           .n_kv_heads = s->n_kv_heads,
                                           .head_dim = s->head_dim,
                                           .q_weight = l->q_norm,
                                           .k_weight = l->k_norm,
                                           .eps = s->rms_eps};
        k->head_norms(m->device, &norms);
    }
    k->rope_append(m->device, layer, &m->rope, st->qkv, key, value, width, s->n_heads);
    k->attention(m->device, layer, st->qkv, width, s->n_heads, s->attention_scale, st->heads);
    k->matmul(m->device, l->o, st->heads, n, none, true, st->x, s->n_embd);
}

static void ffn_half(struct step *st, int layer, int n) {
    const struct model *m = st->model;
    const struct model_shape *s = &m->shape;
    const struct model_layer *l = &m->layers[layer];
    const struct kernels *k = m->kernels;
    struct kernels_view none = {0};
    k->rms_norm(m->device, st->x, l->ffn_norm, s->rms_eps, n, s->n_embd, st->h);
    k->matmul(m->device, l->gate, st->h, n, none, false, st->gate_up, 2 * s->n_ff);
    k->matmul(m->device, l->up, st->h, n, none, false, column(st->gate_up, s->n_ff), 2 * s->n_ff);
    k->swiglu(m->device, st->gate_up, n, s->n_ff, st->ffn);
    k->matmul(m->device, l->down, st->ffn, n, none, true, st->x, s->n_embd);
}

bool step_forward(struct step *st, const struct kernels_batch *batch, struct err *e) {
    const struct model *m = st->model;
    const struct model_shape *s = &m->shape;
    const struct kernels *k = m->kernels;
    BUG_ON(batch->n_rows < 1 || batch->n_rows > st->n_rows || batch->n_logits > st->n_logits);
    if (!k->batch_begin(m->device, batch, e)) return false;
    k->embed(m->device, m->embedding, st->x);
    for (int layer = 0; layer < s->n_layers; layer++) {
        attention_half(st, layer, batch->n_rows);
        ffn_half(st, layer, batch->n_rows);
    }
    st->n_logit_rows = batch->n_logits;
    if (batch->n_logits) {
        k->gather_logit_rows(m->device, st->x, s->n_embd, st->last);
        k->rms_norm(m->device, st->last, m->output_norm, s->rms_eps, batch->n_logits, s->n_embd,
                    st->last);
    }
    k->batch_end(m->device);
    return true;
}

/* Logits of rows first … first+n-1 into st->logits. */
static void compute_logits(struct step *st, int first, int n) {
    const struct model *m = st->model;
    struct kernels_view from = st->last;
    from.offset += (size_t)first * (size_t)m->shape.n_embd * sizeof(float);
    m->kernels->output(m->device, m->output, from, n, st->logits);
}

void step_draw(struct step *st, const struct kernels_draws *draws) {
    const struct model *m = st->model;
    const struct kernels *k = m->kernels;
    for (int first = 0; first < st->n_logit_rows; first += k->logit_rows) {
        int rows = logits_at_once(k, st->n_logit_rows - first);
        compute_logits(st, first, rows);
        k->sample(m->device, st->logits, m->shape.n_vocab, draws, first, rows);
    }
}

bool step_collect(struct step *st, struct kernels_drawn *out, int n_draws, struct err *e) {
    return st->model->kernels->drawn(st->model->device, out, n_draws, e);
}

bool step_logits(struct step *st, int logit_row, float *out, struct err *e) {
    const struct model *m = st->model;
    BUG_ON(logit_row < 0 || logit_row >= st->n_logit_rows);
    compute_logits(st, logit_row, 1);
    return m->kernels->download(m->device, out, st->logits, (size_t)m->shape.n_vocab * sizeof *out,
                                e);
}
