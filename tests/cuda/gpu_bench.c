/* Decode steps at the shapes of real models with random weights, timed: what tests/gpu.sh compares
 * with the roofline.  Built twice, for the emulated device and the real one; see --help.
 *
 * All matrices of a shape are made from the same random numbers, but each has its own memory, so
 * that nothing stays in a cache that wouldn't with a real model.  One sequence is computed; the
 * rows of a step share its full blocks as their prompt and have copies of its last ones, as
 * candidates of one race would.  Prints one JSON object. */
#include "base/clock.h"
#include "engine/step.h"
#include "kernels/cuda/state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    const char *name;
    struct model_shape s;
    bool tied;
};
static const struct shape shapes[] = {
    {"tiny", {2, 128, 2, 1, 64, 256, 320, 512, 1e-6f, 0.125f}, true},
    {"0.5b", {24, 896, 14, 2, 64, 4864, 151936, 32768, 1e-6f, 0.125f}, true},
    {"1.5b", {28, 1536, 12, 2, 128, 8960, 151936, 32768, 1e-6f, 0.0883883476f}, true},
    {"8b", {32, 4096, 32, 8, 128, 14336, 128256, 131072, 1e-5f, 0.0883883476f}, false},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, MAX_COUNTS = 16, CHUNK = 256 };

struct bench {
    const struct shape *shape;
    const char *weights, *kv_type, *isa;
    enum quant_type file; /* of the matrices, before the device makes of them what it wants */
    bool graphs, overlap;
    int counts[MAX_COUNTS], n_counts; /* rows of a step */
    int prompt, own, steps; /* positions shared, positions of each row's own, timed steps */
    double fill;            /* share of the memory that is free to take; 0: what is needed */

    struct model model;
    struct step *step;
    struct kernels_kv_shape kv;
    int max_rows;
    double load_seconds;
    size_t load_bytes; /* of matrices, as they are sent */
    size_t free_before, free_after, planned;

    int32_t *tokens, *positions, *tables, *starts, *rows; /* owned, of a step */
    struct kernels_draw *draws;
    struct kernels_drawn *drawn;
    struct kernels_family *families;
};

static _Noreturn void fail(const char *what, const struct err *e) {
    fprintf(stderr, "error: %s%s%s\n", what, e ? ": " : "", e ? e->message : "");
    exit(1);
}

/* ---- the model ---- */

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

/* Random elements in about ±2 / sqrt(cols): bf16, or Q4_0 blocks. */
static uint8_t *random_matrix(enum quant_type type, size_t n, int cols) {
    size_t step = quant_block_bytes(type), bytes = quant_row_bytes(type, n);
    uint8_t *data = err_alloc(bytes, 1);
    uint32_t state = 7;
    float most = 2.0f / sqrtf((float)cols);
    uint16_t scale = quant_f32_to_f16(most / 8);
    for (uint8_t *b = data; b < data + bytes; b += step) {
        float f = ((float)(next_random(&state) >> 8) / 8388608.0f - 1.0f) * most;
        if (type == QUANT_BF16) {
            memcpy(b, (const uint8_t *)&f + 2, 2);
            continue;
        }
        memcpy(b, &scale, sizeof scale);
        for (size_t i = sizeof scale; i < step; i++)
            b[i] = (uint8_t)(next_random(&state) >> 16);
    }
    return data;
}

static struct kernels_weight *matrix(struct bench *b, const uint8_t *data, int rows, int cols) {
    struct err e = {0};
    struct kernels_weight *w =
        b->model.kernels->weight_new(b->model.device, b->file, rows, cols, data, &e);
    if (!w) fail("weights", &e);
    b->load_bytes += (size_t)rows * quant_row_bytes(b->file, (size_t)cols);
    return w;
}

static void make_layers(struct bench *b, const uint8_t *data) {
    struct model *m = &b->model;
    const struct model_shape *s = &m->shape;
    int heads = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    for (int i = 0; i < s->n_layers; i++) {
        struct model_layer *l = &m->layers[i];
        l->q = matrix(b, data, heads, s->n_embd);
        l->k = matrix(b, data, kv, s->n_embd);
        l->v = matrix(b, data, kv, s->n_embd);
        l->o = matrix(b, data, s->n_embd, heads);
        l->gate = matrix(b, data, s->n_ff, s->n_embd);
        l->up = matrix(b, data, s->n_ff, s->n_embd);
        l->down = matrix(b, data, s->n_embd, s->n_ff);
        l->attention_norm = l->ffn_norm = m->output_norm;
    }
}

static void make_model(struct bench *b) {
    struct model *m = &b->model;
    struct err e = {0};
    const struct model_shape *s = &b->shape->s;
    struct kernels_options o = {.isa = b->isa,
                                .no_graphs = !b->graphs,
                                .weights = b->weights,
                                .kv = b->kv_type,
                                .n_vocab = s->n_vocab};
    m->shape = *s;
    m->kernels = kernels_backend("cuda");
    if (!m->kernels) fail("this build has no cuda backend", NULL);
    if (!m->kernels->device_open(&o, &m->device, &e)) {
        printf("skipped: %s\n", e.message);
        exit(77);
    }
    b->free_before = m->kernels->memory_free(m->device);
    size_t most = (size_t)s->n_vocab * (size_t)s->n_embd, ff = (size_t)s->n_ff * (size_t)s->n_embd;
    uint8_t *data = random_matrix(b->file, most > ff ? most : ff, s->n_embd);
    float *ones = err_alloc((size_t)s->n_embd, sizeof *ones), *freq = err_alloc(64, sizeof *freq);
    for (int i = 0; i < s->n_embd; i++)
        ones[i] = 1;
    for (int i = 0; i < s->head_dim / 2; i++)
        freq[i] = powf(1e6f, -2.0f * (float)i / (float)s->head_dim);
    m->rope = (struct kernels_rope){.n_rot = s->head_dim, .inv_freq = freq};
    m->vectors = m->kernels->buffer_new(m->device, (size_t)s->n_embd * sizeof *ones, &e);
    if (!m->vectors) fail("norms", &e);
    m->output_norm = (struct kernels_view){m->vectors, 0};
    m->kernels->upload(m->device, m->output_norm, ones, (size_t)s->n_embd * sizeof *ones);
    m->layers = err_alloc((size_t)s->n_layers, sizeof *m->layers);
    double begun = clock_seconds();
    make_layers(b, data);
    m->embedding = m->output = matrix(b, data, s->n_vocab, s->n_embd);
    if (!b->shape->tied) m->output = matrix(b, data, s->n_vocab, s->n_embd);
    if (!m->kernels->sync(m->device, &e)) fail("weights", &e);
    b->load_seconds = clock_seconds() - begun;
    free(data);
    free(ones);
}

/* ---- memory ---- */

static int blocks_of(int positions) { return (positions + KERNELS_BLOCK - 1) / KERNELS_BLOCK; }

/* Blocks that a row has for itself, those of the timed steps included. */
static int own_blocks(const struct bench *b) { return blocks_of(b->own + b->steps + 4) + 1; }

/* All that steps of so many rows take; the plan, before anything of it is taken. */
static size_t planned_bytes(const struct bench *b, int rows, int n_blocks) {
    const struct model *m = &b->model;
    struct kernels_step_shape shape = {rows + CHUNK,     b->shape->s.n_ff,
                                       m->shape.n_heads, m->shape.head_dim,
                                       m->shape.n_vocab, b->prompt + b->own + b->steps + 64};
    return step_bytes(m->kernels, &m->shape, rows + CHUNK, rows + CHUNK) +
           m->kernels->scratch_bytes(m->device, &shape) +
           (size_t)n_blocks * (size_t)m->shape.n_layers *
               m->kernels->kv_bytes_per_block(m->device, m->shape.n_kv_heads, m->shape.head_dim);
}

static void take_memory(struct bench *b) {
    struct model *m = &b->model;
    const struct model_shape *s = &m->shape;
    struct err e = {0};
    size_t available = m->kernels->memory_free(m->device);
    size_t block =
        (size_t)s->n_layers * m->kernels->kv_bytes_per_block(m->device, s->n_kv_heads, s->head_dim);
    int n_blocks = 0;
    while (b->n_counts) {
        b->max_rows = b->counts[b->n_counts - 1];
        n_blocks = blocks_of(b->prompt) + (b->max_rows + 1) * own_blocks(b);
        if (planned_bytes(b, b->max_rows, n_blocks) < available / 100 * 97) break;
        b->n_counts--; /* so many rows' keys and values don't fit */
    }
    if (!b->n_counts) fail("not even the fewest rows fit", NULL);
    if (b->fill > 0) {
        size_t rest = planned_bytes(b, b->max_rows, 0);
        size_t most = (size_t)(b->fill * (double)available);
        if (most > rest) n_blocks = (int)((most - rest) / block);
    }
    b->planned = planned_bytes(b, b->max_rows, n_blocks);
    b->kv = (struct kernels_kv_shape){s->n_layers, s->n_kv_heads, s->head_dim, n_blocks};
    struct kernels_step_shape shape = {b->max_rows + CHUNK, s->n_ff,
                                       s->n_heads,          s->head_dim,
                                       s->n_vocab,          b->prompt + b->own + b->steps + 64};
    if (!m->kernels->kv_open(m->device, &b->kv, &e) ||
        !m->kernels->reserve_rows(m->device, &shape, &e) ||
        !(b->step = step_new(m, b->max_rows + CHUNK, b->max_rows + CHUNK, &e)))
        fail("memory", &e);
    size_t rows = (size_t)(b->max_rows > CHUNK ? b->max_rows : CHUNK);
    size_t entries = (rows + 1) * (size_t)(blocks_of(b->prompt) + own_blocks(b));
    b->tokens = err_alloc(rows, sizeof *b->tokens);
    b->positions = err_alloc(rows, sizeof *b->positions);
    b->starts = err_alloc(rows + 1, sizeof *b->starts);
    b->rows = err_alloc(rows, sizeof *b->rows);
    b->tables = err_alloc(entries, sizeof *b->tables);
    b->draws = err_alloc(rows, sizeof *b->draws);
    b->drawn = err_alloc(rows, sizeof *b->drawn);
    b->families = err_alloc(rows, sizeof *b->families);
}

/* ---- steps ---- */

/* The table of sequence i: the prompt's blocks, then its own; -1 is the one that was computed. */
static int put_table(struct bench *b, int i, int at) {
    int shared = b->prompt / KERNELS_BLOCK, own = own_blocks(b);
    for (int k = 0; k < shared; k++)
        b->tables[at++] = k;
    for (int k = 0; k < own; k++)
        b->tables[at++] = shared + (i + 1) * own + k;
    return at;
}

static void forward(struct bench *b, const struct kernels_batch *batch) {
    struct err e = {0};
    if (!step_forward(b->step, batch, &e)) fail("a step", &e);
}

static void prefill(struct bench *b) {
    int end = b->prompt + b->own;
    b->starts[0] = 0;
    b->starts[1] = put_table(b, -1, 0);
    for (int at = 0; at < end; at += CHUNK) {
        int n = end - at < CHUNK ? end - at : CHUNK;
        for (int i = 0; i < n; i++) {
            b->tokens[i] = (at + i) * 131 % b->model.shape.n_vocab;
            b->positions[i] = at + i;
            b->rows[i] = 0;
        }
        struct kernels_batch batch = {.n_rows = n,
                                      .tokens = b->tokens,
                                      .positions = b->positions,
                                      .tables = b->tables,
                                      .table_starts = b->starts,
                                      .table_of_row = b->rows,
                                      .n_tables = 1};
        forward(b, &batch);
    }
    /* What the rows have for themselves is what that sequence has there. */
    int shared = b->prompt / KERNELS_BLOCK, own = own_blocks(b);
    for (int i = 0; i < b->max_rows; i++)
        for (int k = 0; k < blocks_of(end) - shared; k++)
            b->model.kernels->kv_copy_block(b->model.device, shared + (i + 1) * own + k, shared + k,
                                            KERNELS_BLOCK);
}

static void collect(struct bench *b, int n) {
    struct err e = {0};
    if (!step_collect(b->step, b->drawn, n, &e)) fail("draws", &e);
}

/* The last draws of `decode` with these rows. */
static void decode_end(struct bench *b, int n) {
    if (b->overlap) collect(b, n);
}

static void decode(struct bench *b, int n, int turn) {
    static const struct kernels_draw draw = {
        .seed = 5, .temperature = 1, .top_p = 0.95f, .repetition = 1};
    bool follows = turn && b->overlap;
    int at = 0;
    for (int i = 0; i < n; i++) {
        b->families[i] = (struct kernels_family){i, 1};
        b->starts[i] = at;
        at = put_table(b, i, at);
        b->rows[i] = i;
        b->positions[i] = b->prompt + b->own + turn;
        b->draws[i] = draw;
        b->draws[i].logit_row = i;
        b->draws[i].candidate = (uint32_t)i;
        b->draws[i].position = (uint32_t)turn;
        b->tokens[i] = follows ? 0 : turn ? b->drawn[i].token : i % b->model.shape.n_vocab;
    }
    b->starts[n] = at;
    int32_t *logit_rows = b->rows; /* row i has table i and logits i */
    struct kernels_group group = {0, n, b->prompt / KERNELS_BLOCK};
    struct kernels_batch batch = {.n_rows = n,
                                  .tokens = b->tokens,
                                  .positions = b->positions,
                                  .tables = b->tables,
                                  .table_starts = b->starts,
                                  .table_of_row = b->rows,
                                  .n_tables = n,
                                  .groups = &group,
                                  .n_groups = n > 1 && group.n_prefix_blocks,
                                  .logit_rows = logit_rows,
                                  .n_logits = n,
                                  .families = b->families,
                                  .n_families = follows ? n : 0,
                                  .draws = b->rows};
    forward(b, &batch);
    struct kernels_draws draws = {.draws = b->draws, .n_draws = n};
    step_draw(b->step, &draws);
    /* As the engine does it: a step is queued before the draws of the one before are fetched. */
    if (turn || !b->overlap) collect(b, n);
}

/* ---- what the device can do ---- */

/* Bytes a second that a copy within the device moves, read and written. */
static double copy_speed(const struct bench *b) {
    struct gpu *gpu = b->model.device->gpu;
    struct err e = {0};
    /* The KV pool is the largest memory there is: its first half to its second. */
    int pairs = b->kv.n_blocks / 2, turns = 5;
    if (pairs > STATE_PAIRS) pairs = STATE_PAIRS;
    int32_t *list = err_alloc((size_t)pairs * 2, sizeof *list);
    for (int i = 0; i < pairs; i++) {
        list[2 * i] = i;
        list[2 * i + 1] = b->kv.n_blocks - 1 - i;
    }
    gpu_put(gpu, b->model.device->pairs_device, list, (size_t)pairs * 2 * sizeof *list);
    struct launch_copy c = {.data = b->model.device->kv,
                            .layer_bytes = b->model.device->kv_layer_bytes,
                            .block_bytes = b->model.device->kv_block_bytes,
                            .n_layers = b->kv.n_layers,
                            .n_pairs = pairs,
                            .pairs = b->model.device->pairs_device};
    launch_copy(gpu_stream(gpu), &c);
    if (!gpu_wait(gpu, &e)) fail("copies", &e);
    double begun = clock_seconds();
    for (int i = 0; i < turns; i++)
        launch_copy(gpu_stream(gpu), &c);
    if (!gpu_wait(gpu, &e)) fail("copies", &e);
    free(list);
    return 2.0 * turns * pairs * (double)c.block_bytes * c.n_layers / (clock_seconds() - begun);
}

/* Multiply-accumulates a second of the largest product of a layer.  Its rows are those of another
 * matrix: random as well, and long enough. */
static double product_speed(const struct bench *b) {
    const struct kernels_weight *w = b->model.layers[0].gate, *x = b->model.layers[0].up;
    struct gpu *gpu = b->model.device->gpu;
    struct err e = {0};
    int rows = b->max_rows < x->n_rows ? b->max_rows : x->n_rows, turns = 10;
    float *y = gpu_alloc(gpu, (size_t)rows * 4 * (size_t)w->n_rows, "a measure", &e);
    if (!y) fail("a measure", &e);
    struct gemm_call c = {.w = w->data,
                          .w_scales = w->scales,
                          .n_out = w->n_rows,
                          .n_in = w->n_cols,
                          .x = x->data,
                          .x_scales = x->scales,
                          .n_rows = rows,
                          .x_stride = w->n_cols,
                          .y = y,
                          .y_stride = w->n_rows};
    bool ok = gemm_run(b->model.device->gemm, &c, &e) && gpu_wait(gpu, &e);
    double begun = clock_seconds();
    for (int i = 0; ok && i < turns; i++)
        ok = gemm_run(b->model.device->gemm, &c, &e);
    if (!ok || !gpu_wait(gpu, &e)) fail("a product", &e);
    double took = clock_seconds() - begun;
    gpu_release(gpu, y);
    return (double)turns * rows * w->n_rows * w->n_cols / took;
}

/* Seconds that a step would take if each kind of work ran at the limit that it meets first. */
static double ideal_seconds(const struct kernels_profile *before,
                            const struct kernels_profile *after, int steps, double bytes_per_s,
                            double macs_per_s) {
    double sum = 0;
    for (int i = 0; i < KERNELS_N_OPS; i++) {
        double bytes = (after->op[i].bytes - before->op[i].bytes) / steps / bytes_per_s,
               macs = (after->op[i].macs - before->op[i].macs) / steps / macs_per_s;
        sum += fmax(bytes, macs);
    }
    return sum;
}

/* ---- the report ---- */

static void measure(struct bench *b, int n, double bytes_per_s, double macs_per_s, bool last) {
    const struct kernels *k = b->model.kernels;
    struct kernels_profile before = {0}, after;
    double sum = 0, best = INFINITY;
    int warm = 3; /* libraries load, a graph is recorded */
    for (int turn = 0; turn < b->steps + warm; turn++) {
        if (turn == warm) k->profile(b->model.device, &before);
        double begun = clock_seconds();
        decode(b, n, turn);
        double took = clock_seconds() - begun;
        if (turn < warm) continue;
        sum += took;
        best = fmin(best, took);
    }
    decode_end(b, n);
    k->profile(b->model.device, &after);
    double ideal = ideal_seconds(&before, &after, b->steps, bytes_per_s, macs_per_s);
    printf("  {\"rows\": %d, \"ms\": %.4f, \"best_ms\": %.4f, \"tokens_per_s\": %.1f, "
           "\"roofline_ms\": %.4f, \"share\": %.4f}%s\n",
           n, 1e3 * sum / b->steps, 1e3 * best, n * b->steps / sum, 1e3 * ideal,
           ideal * b->steps / sum, last ? "" : ",");
}

static void run(struct bench *b) {
    make_model(b);
    const struct kernels *k = b->model.kernels;
    size_t free_loaded = k->memory_free(b->model.device);
    take_memory(b);
    prefill(b);
    double macs = product_speed(b), bytes = copy_speed(b);
    decode(b, b->counts[0], 0);
    decode_end(b, b->counts[0]); /* libraries take what they take at their first use */
    int allocations = gpu_allocations(b->model.device->gpu);
    size_t free_begun = k->memory_free(b->model.device);
    printf("{\"model\": \"%s\", \"device\": \"%s\", \"graphs\": %s, \"overlap\": %s, \"prompt\": "
           "%d, \"own\": %d,\n"
           " \"load_s\": %.3f, \"load_bytes\": %zu, \"bytes_per_s\": %.4g, \"macs_per_s\": %.4g, "
           "\"steps\": [\n",
           b->shape->name, k->describe(b->model.device), b->graphs ? "true" : "false",
           b->overlap ? "true" : "false", b->prompt, b->own, b->load_seconds, b->load_bytes, bytes,
           macs);
    for (int i = 0; i < b->n_counts; i++)
        measure(b, b->counts[i], bytes, macs, i + 1 == b->n_counts);
    size_t free_ended = k->memory_free(b->model.device);
    printf(" ], \"memory\": {\"free\": %zu, \"loaded\": %zu, \"planned\": %zu, \"begun\": %zu, "
           "\"ended\": %zu, \"allocations\": %d}}\n",
           b->free_before, free_loaded, b->planned, free_begun, free_ended,
           gpu_allocations(b->model.device->gpu) - allocations);
}

static void close_all(struct bench *b) {
    struct model *m = &b->model;
    step_free(b->step);
    m->kernels->kv_close(m->device);
    for (int i = 0; i < m->shape.n_layers; i++) {
        struct model_layer *l = &m->layers[i];
        struct kernels_weight *all[] = {l->q, l->k, l->v, l->o, l->gate, l->up, l->down};
        for (int w = 0; w < 7; w++)
            m->kernels->weight_free(m->device, all[w]);
    }
    if (m->output != m->embedding) m->kernels->weight_free(m->device, m->output);
    m->kernels->weight_free(m->device, m->embedding);
    m->kernels->buffer_free(m->device, m->vectors);
    m->kernels->device_close(m->device);
    void *lists[] = {
        b->tokens, b->positions, b->starts,   b->rows,   b->tables,
        b->draws,  b->drawn,     b->families, m->layers, (void *)(uintptr_t)m->rope.inv_freq};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        free(lists[i]);
}

/* ---- arguments ---- */

static int number(const char *text) {
    char *end;
    long n = strtol(text, &end, 10);
    if (*end || n < 1 || n > 1 << 20) fail("a number from 1 on is wanted", NULL);
    return (int)n;
}

static void parse(struct bench *b, const char *name, const char *value) {
    if (!strcmp(name, "--model")) {
        for (int i = 0; i < N_SHAPES; i++)
            if (!strcmp(shapes[i].name, value)) b->shape = &shapes[i];
        if (strcmp(b->shape->name, value)) fail("--model is one of tiny, 0.5b, 1.5b, 8b", NULL);
    } else if (!strcmp(name, "--weights")) {
        b->weights = value;
    } else if (!strcmp(name, "--file")) {
        b->file = !strcmp(value, "q4_0") ? QUANT_Q4_0 : QUANT_BF16;
        if (b->file == QUANT_BF16 && strcmp(value, "bf16")) fail("--file is bf16 or q4_0", NULL);
    } else if (!strcmp(name, "--kv")) {
        b->kv_type = value;
    } else if (!strcmp(name, "--isa")) {
        b->isa = value;
    } else if (!strcmp(name, "--rows")) {
        char *copy = err_strdup(value), *rest = copy;
        b->n_counts = 0;
        for (char *item; (item = strsep(&rest, ",")) && b->n_counts < MAX_COUNTS;)
            b->counts[b->n_counts++] = number(item);
        free(copy);
    } else if (!strcmp(name, "--prompt")) {
        b->prompt = number(value);
    } else if (!strcmp(name, "--own")) {
        b->own = number(value);
    } else if (!strcmp(name, "--steps")) {
        b->steps = number(value);
    } else if (!strcmp(name, "--graphs")) {
        b->graphs = strcmp(value, "off") != 0;
    } else if (!strcmp(name, "--overlap")) {
        b->overlap = strcmp(value, "off") != 0;
    } else if (!strcmp(name, "--fill-percent")) {
        b->fill = number(value) / 100.0;
    } else {
        fail("--model --file --weights --kv --isa --rows --prompt --own --steps --graphs --overlap "
             "--fill-percent, each "
             "with a value",
             NULL);
    }
}

int main(int argc, char **argv) {
    struct bench b = {.shape = &shapes[0],
                      .file = QUANT_BF16,
                      .weights = "bf16",
                      .kv_type = "bf16",
                      .isa = "auto",
                      .graphs = true,
                      .overlap = true,
                      .counts = {1, 4},
                      .n_counts = 2,
                      .prompt = 200,
                      .own = 256,
                      .steps = 10};
    for (int i = 1; i < argc; i += 2)
        parse(&b, argv[i], i + 1 < argc ? argv[i + 1] : "");
    run(&b);
    close_all(&b);
    return 0;
}
