#include "engine/memory_plan.h"

#include "base/divide.h"
#include "config/limits.h"

enum {
    DEFAULT_ROWS = 64,
    DEFAULT_CHUNK = 128,
    /* Positions each row is given in the default pool, where memory allows: a prompt's share and a
       long answer. */
    POSITIONS_PER_ROW = 2048,
    RUNTIME_BYTES_PER_TOKEN = 200, /* vocabulary: text, merges, hash tables */
};
static const size_t MIB = (size_t)1 << 20;

static size_t runtime_bytes(const struct model *m) {
    return 48 * MIB + (size_t)m->shape.n_vocab * RUNTIME_BYTES_PER_TOKEN;
}

/* The context asked for, or the model's own. */
static bool choose_context(struct memory_plan *p, const struct engine_options *o,
                           const struct model *m, struct err *e) {
    int most = m->shape.context < LIMIT_CONTEXT ? m->shape.context : LIMIT_CONTEXT;
    if (o->context > most)
        return err_param(e, "engine.context",
                         "engine.context is %d, but %s was trained for %d positions", o->context,
                         m->path, most);
    p->context = o->context > 0 ? o->context : most;
    return true;
}

static bool choose_blocks(struct memory_plan *p, const struct engine_options *o, struct err *e) {
    struct engine_memory *b = &p->bytes;
    size_t fixed = b->weights + b->activations + b->runtime + b->reserve;
    size_t left = p->available > fixed ? p->available - fixed : 0;
    size_t fit = left / p->block_bytes;
    if (o->kv_blocks > 0) {
        p->n_blocks = o->kv_blocks;
        if ((size_t)o->kv_blocks > fit)
            return err_param(e, "engine.kv_blocks",
                             "engine.kv_blocks is %d (%zu MiB), but after weights (%zu MiB), "
                             "activations (%zu MiB), runtime"
                             " (%zu MiB) and reserve (%zu MiB) there is room for %zu of %zu MiB in "
                             "all; lower engine.kv_blocks"
                             " or engine.max_rows, or raise engine.memory_mb",
                             o->kv_blocks, (size_t)o->kv_blocks * p->block_bytes / MIB,
                             b->weights / MIB, b->activations / MIB, b->runtime / MIB,
                             b->reserve / MIB, fit, p->available / MIB);
    } else {
        /* More blocks than the rows of a step can fill with full-length candidates serve nobody. */
        int64_t useful = (int64_t)divide_up(POSITIONS_PER_ROW, KERNELS_BLOCK) * p->max_rows;
        int64_t one = divide_up(p->context, KERNELS_BLOCK) + 1;
        if (useful < one) useful = one;
        p->n_blocks = fit < (size_t)useful ? (int)fit : (int)useful;
    }
    if (p->n_blocks < 4)
        return err_param(e, "engine.memory_mb",
                         "the model doesn't fit: weights take %zu MiB, activations %zu MiB, "
                         "runtime %zu MiB and the reserve %zu MiB"
                         " of %zu MiB, which leaves no room for keys and values; raise "
                         "engine.memory_mb, lower engine.max_rows,"
                         " or take a smaller model",
                         b->weights / MIB, b->activations / MIB, b->runtime / MIB, b->reserve / MIB,
                         p->available / MIB);
    b->kv = (size_t)p->n_blocks * p->block_bytes;
    /* One sequence must fit in the pool, with the copy of the prompt's last block. */
    int fits = (p->n_blocks - 1) * KERNELS_BLOCK;
    if (p->context > fits) p->context = fits;
    return true;
}

struct kernels_step_shape memory_plan_step(const struct memory_plan *p,
                                           const struct model_shape *s) {
    int heads = s->n_heads * s->head_dim, widest = s->n_ff > s->n_embd ? s->n_ff : s->n_embd;
    return (struct kernels_step_shape){.n_rows = p->max_rows + p->prefill_chunk,
                                       .max_cols = heads > widest ? heads : widest,
                                       .n_heads = s->n_heads,
                                       .head_dim = s->head_dim,
                                       .n_vocab = s->n_vocab,
                                       .context = p->context};
}

bool memory_plan_make(struct memory_plan *p, const struct engine_options *o, const struct model *m,
                      const struct kernels *k, const struct kernels_device *d, struct err *e) {
    const struct model_shape *s = &m->shape;
    *p = (struct memory_plan){0};
    p->max_rows = o->max_rows > 0 ? o->max_rows : DEFAULT_ROWS;
    p->prefill_chunk = o->prefill_chunk > 0 ? o->prefill_chunk : DEFAULT_CHUNK;
    if (!choose_context(p, o, m, e)) return false;
    p->available = o->memory_bytes ? (size_t)o->memory_bytes : k->memory_free(d);
    p->block_bytes = (size_t)s->n_layers * k->kv_bytes_per_block(d, s->n_kv_heads, s->head_dim);
    struct kernels_step_shape shape = memory_plan_step(p, s);
    p->bytes.weights = model_weight_bytes(m, k, d);
    p->bytes.activations =
        step_bytes(k, s, shape.n_rows, shape.n_rows) + k->scratch_bytes(d, &shape);
    p->bytes.runtime = runtime_bytes(m);
    p->bytes.reserve = p->available / 20;
    return choose_blocks(p, o, e);
}

void memory_plan_print(const struct memory_plan *p, FILE *out) {
    const struct engine_memory *b = &p->bytes;
    size_t sum = b->weights + b->kv + b->activations + b->runtime + b->reserve;
    fprintf(out, "memory plan (of %zu MiB):\n", p->available / MIB);
    fprintf(out, "  weights      %8zu MiB\n", b->weights / MIB);
    fprintf(out, "  kv           %8zu MiB   %d blocks of %d positions, %zu KiB each\n", b->kv / MIB,
            p->n_blocks, KERNELS_BLOCK, p->block_bytes / 1024);
    fprintf(out, "  activations  %8zu MiB   %d decode rows and %d prompt rows a step\n",
            b->activations / MIB, p->max_rows, p->prefill_chunk);
    fprintf(out, "  runtime      %8zu MiB\n", b->runtime / MIB);
    fprintf(out, "  reserve      %8zu MiB\n", b->reserve / MIB);
    fprintf(out, "  sum          %8zu MiB   context %d positions\n", sum / MIB, p->context);
}
