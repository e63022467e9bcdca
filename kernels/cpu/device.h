/* What the files of the CPU backend share: the device and its memory.
 *
 * Owner: ENGINE; the pool's threads read it during a run and write their own scratch only. */
#ifndef KERNELS_CPU_DEVICE_H
#define KERNELS_CPU_DEVICE_H

#include "kernels/cpu/isa.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/threads.h"
#include "kernels/kernels.h"

struct kernels_buffer {
    uint8_t *data; /* owned; aligned to a page */
    size_t bytes;
};

struct kernels_weight {
    struct pack pack;   /* of `reference` only the sizes */
    const void *source; /* borrowed while the weight lives, of `reference`; else NULL */
};

/* Results of a step's draws. */
struct device_draws {
    struct kernels_drawn *drawn; /* owned */
    int n, capacity;
};

/* Scratch of one compute thread. */
struct device_scratch {
    struct matmul_scratch *matmul;             /* owned */
    struct vector_attention_scratch attention; /* owned */
    float *row;                                /* owned; max_cols, of `reference` */
    double *scores;                            /* owned; positions of a sequence, of `reference` */
    struct sample *sample;                     /* owned */
};

struct kernels_device {
    struct isa isa;
    struct threads *threads; /* owned */
    char description[96];
    struct kernels_profile profile;

    /* Set by device_reserve(). */
    int max_rows, max_cols, max_head_dim;
    struct device_scratch *scratch; /* owned; one a thread */
    int8_t *q;                      /* owned; activations as int8 */
    struct matmul_record *records;  /* owned */
    struct vector_unit *units;      /* owned; max_rows */
    float (*turns)[2];              /* owned; {cos, sin} of [row][n_rot / 2] */

    struct kernels_kv_shape kv_shape;
    struct vector_kv kv; /* sizes, and all layers' data; owned */
    size_t kv_layer_bytes;

    /* The step between batch_begin and batch_end. */
    const struct kernels_batch *batch; /* borrowed; NULL outside a step */
    int n_units;
    const struct kernels_rope *turns_made; /* whose turns are in `turns`; NULL: none */

    /* Of sample(), until drawn(). */
    struct device_draws draws[2]; /* of the last two steps */
    int newest, n_waiting;        /* steps whose draws haven't been taken */
    int32_t *order, *starts;      /* owned; draws by row: order[starts[r] … starts[r + 1] - 1] */
    int max_order, max_logit_rows;
    int32_t *tokens; /* owned; max_rows: those of the batch, families' among them */
};

/* Bytes that device_reserve() takes. */
size_t device_scratch_bytes(const struct kernels_device *, const struct kernels_step_shape *);
void device_reserve(struct kernels_device *, const struct kernels_step_shape *);
void device_free_scratch(struct kernels_device *);
/* Room for the results of that many draws of the newest step. */
void device_reserve_draws(struct kernels_device *, int n_draws, int n_rows);

/* Block `from` of the KV cache to block `to`, all layers. */
void device_copy_block(struct kernels_device *, int to, int from);

static inline float *device_floats(struct kernels_view v) {
    return (float *)(void *)(v.buffer->data + v.offset);
}

#endif
