#include "kernels/cpu/device.h"

#include "config/limits.h"

#include <stdlib.h>
#include <string.h>

/* 64-byte aligned, for vectors and so that threads share no cache line. */
static void *aligned(size_t n, size_t size) {
    size_t bytes;
    BUG_ON(__builtin_mul_overflow(n, size, &bytes));
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    BUG_ON(!p);
    return p;
}

static size_t padded(int head_dim) { return ((size_t)head_dim + 15) / 16 * 16; }

/* Bytes of one thread's scratch, part by part. */
static size_t thread_bytes(const struct kernels_step_shape *s) {
    size_t queries = (size_t)VECTOR_UNIT_ROWS * (size_t)s->n_heads, d = padded(s->head_dim);
    return sizeof(struct matmul_scratch) +
           (size_t)s->n_rows * MATMUL_PANELS * PACK_OUTPUTS * sizeof(float) +
           2 * KERNELS_BLOCK * d * sizeof(float) + queries * (d + 2) * sizeof(float) +
           (size_t)s->max_cols * sizeof(float) + LIMIT_CONTEXT * sizeof(double) +
           sample_bytes(s->n_vocab) + 8 * 128;
}

size_t device_scratch_bytes(const struct kernels_device *dev, const struct kernels_step_shape *s) {
    size_t rows = (size_t)s->n_rows, cols = (size_t)s->max_cols;
    size_t shared = rows * cols + rows * (cols / 32 + 1) * sizeof(struct matmul_record) +
                    rows * sizeof(struct vector_unit) + rows * padded(s->head_dim) * sizeof(float) +
                    LIMIT_CANDIDATES * (2 * sizeof(struct kernels_drawn) + sizeof(int32_t)) +
                    (rows + 1) * sizeof(int32_t) + 8 * 128;
    return shared + (size_t)threads_count(dev->threads) * thread_bytes(s);
}

static void reserve_thread(struct device_scratch *s, const struct kernels_step_shape *shape) {
    size_t queries = (size_t)VECTOR_UNIT_ROWS * (size_t)shape->n_heads, d = padded(shape->head_dim);
    s->matmul = aligned(1, sizeof *s->matmul);
    s->matmul->sums = aligned((size_t)shape->n_rows * MATMUL_PANELS * PACK_OUTPUTS, sizeof(float));
    s->attention = (struct vector_attention_scratch){
        .keys = aligned(KERNELS_BLOCK * d, sizeof(float)),
        .values = aligned(KERNELS_BLOCK * d, sizeof(float)),
        .sums = aligned(queries * d, sizeof(float)),
        .max = aligned(queries, sizeof(float)),
        .total = aligned(queries, sizeof(float)),
    };
    s->row = aligned((size_t)shape->max_cols, sizeof(float));
    s->scores = aligned(LIMIT_CONTEXT, sizeof(double));
    s->sample = sample_new(shape->n_vocab);
}

void device_free_scratch(struct kernels_device *dev) {
    for (int i = 0; dev->scratch && i < threads_count(dev->threads); i++) {
        struct device_scratch *s = &dev->scratch[i];
        free(s->matmul->sums);
        free(s->matmul);
        free(s->attention.keys);
        free(s->attention.values);
        free(s->attention.sums);
        free(s->attention.max);
        free(s->attention.total);
        free(s->row);
        free(s->scores);
        sample_free(s->sample);
    }
    free(dev->scratch);
    free(dev->q);
    free(dev->records);
    free(dev->units);
    free(dev->turns);
    for (int i = 0; i < 2; i++)
        free(dev->draws[i].drawn);
    free(dev->tokens);
    free(dev->order);
    free(dev->starts);
    dev->scratch = NULL;
    dev->q = NULL;
    dev->records = NULL;
    dev->units = NULL;
    dev->turns = NULL;
    memset(dev->draws, 0, sizeof dev->draws);
    dev->order = dev->starts = dev->tokens = NULL;
    dev->max_rows = dev->max_cols = dev->max_order = dev->max_logit_rows = 0;
}

void device_reserve_draws(struct kernels_device *dev, int n_draws, int n_rows) {
    struct device_draws *newest = &dev->draws[dev->newest];
    if (n_draws > newest->capacity) {
        newest->drawn = err_realloc(newest->drawn, (size_t)n_draws, sizeof *newest->drawn);
        newest->capacity = n_draws;
    }
    if (n_draws > dev->max_order) {
        dev->order = err_realloc(dev->order, (size_t)n_draws, sizeof *dev->order);
        dev->max_order = n_draws;
    }
    if (n_rows > dev->max_logit_rows) {
        dev->starts = err_realloc(dev->starts, (size_t)n_rows + 1, sizeof *dev->starts);
        dev->max_logit_rows = n_rows;
    }
}

void device_reserve(struct kernels_device *dev, const struct kernels_step_shape *s) {
    device_free_scratch(dev);
    int n = threads_count(dev->threads), n_rows = s->n_rows, max_cols = s->max_cols;
    dev->scratch = err_alloc((size_t)n, sizeof *dev->scratch);
    for (int i = 0; i < n; i++)
        reserve_thread(&dev->scratch[i], s);
    dev->q = aligned((size_t)n_rows, (size_t)max_cols);
    dev->records = aligned((size_t)n_rows * ((size_t)max_cols / 32 + 1), sizeof *dev->records);
    dev->units = aligned((size_t)n_rows, sizeof *dev->units);
    dev->turns = aligned((size_t)n_rows * padded(s->head_dim) / 2, sizeof *dev->turns);
    dev->max_rows = n_rows;
    dev->max_cols = max_cols;
    dev->max_head_dim = s->head_dim;
    dev->tokens = aligned((size_t)n_rows, sizeof *dev->tokens);
    for (dev->newest = 0; dev->newest < 2; dev->newest++)
        device_reserve_draws(dev, LIMIT_CANDIDATES, n_rows);
    dev->newest = dev->n_waiting = 0;
}

void device_copy_block(struct kernels_device *dev, int to, int from) {
    BUG_ON(to < 0 || to >= dev->kv_shape.n_blocks || from < 0 || from >= dev->kv_shape.n_blocks);
    size_t bytes = (size_t)dev->kv.n_kv_heads * dev->kv.head_bytes;
    for (int l = 0; l < dev->kv_shape.n_layers && to != from; l++) {
        uint8_t *layer = dev->kv.data + (size_t)l * dev->kv_layer_bytes;
        memcpy(layer + (size_t)to * bytes, layer + (size_t)from * bytes, bytes);
    }
}
