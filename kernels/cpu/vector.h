/* Everything but the matrix products that is worth vector instructions: one source (vector.inc,
 * attention.inc), compiled once for each instruction set, with bitwise equal results.
 *
 * Any thread, on disjoint outputs. */
#ifndef KERNELS_CPU_VECTOR_H
#define KERNELS_CPU_VECTOR_H

#include "kernels/cpu/matmul.h"
#include "kernels/kernels.h"

/* ---- attention ---- */

/* KV of one layer: for block b and KV head h, at ((b * n_kv_heads + h) * head_bytes): keys f16
 * [head_dim][16 positions], then values f16 [16 positions][value_stride].  Keys are turned so that
 * one vector holds the same dimension of 16 positions: scores need no sums across a vector. */
struct vector_kv {
    uint8_t *data; /* borrowed */
    int n_kv_heads, head_dim;
    int value_stride; /* head_dim up to a multiple of 16 */
    size_t head_bytes;
};

/* Rows that may be computed together: they have the first n_shared blocks of their tables in
 * common. */
struct vector_unit {
    int first_row, n_rows, n_shared;
};
enum { VECTOR_UNIT_ROWS = 16 };

struct vector_attention {
    struct vector_kv kv;
    const struct kernels_batch *batch;
    const float *q; /* [n_rows][n_heads * head_dim], row stride q_stride */
    int q_stride, n_heads;
    float scale;
    float *out; /* [n_rows][n_heads * head_dim] */
};

/* Memory of one thread. */
struct vector_attention_scratch {
    float *keys;        /* [head_dim][16] */
    float *values;      /* [16][value_stride] */
    float *sums;        /* [VECTOR_UNIT_ROWS * heads of a group][value_stride] */
    float *max, *total; /* [VECTOR_UNIT_ROWS * heads of a group] */
};

/* ---- the table ---- */

enum {
    VECTOR_CHUNK = 256, /* tokens that are summed up at a time */
    VECTOR_FLOORS = 4,
};

struct vector_ops {
    /* f32 -> int8 with one scale for each 32: scale = max|x| / 127, nearest.  n is a multiple
     * of 32.  `together` columns at a time go to q, q + together * tile_rows, …; records to
     * records, records + tile_rows, …: the layout of struct matmul_job. */
    void (*quantise)(const float *x, int n, const struct pack *w, enum matmul_init init,
                     int tile_rows, int together, int8_t *q, struct matmul_record *records);
    void (*rms_norm)(const float *x, const float *weight, float eps, int d, float *out);
    void (*swiglu)(const float *gate, const float *up, int d, float *out);
    /* Rotates one head; turns[n_rot / 2] = {cos, sin}. */
    void (*rope)(float *head, const float (*turns)[2], int n_rot, bool interleaved);
    void (*store_kv)(const struct vector_kv *, int block, int head, int slot, const float *k,
                     const float *v);
    void (*attention)(const struct vector_attention *, const struct vector_attention_scratch *,
                      const struct vector_unit *, int kv_head);
    float (*max)(const float *x, int n);
    /* out[i] = e^((x[i] - max) / temperature); sums[c] is the sum over chunk c of VECTOR_CHUNK; out
     * may be NULL. Returns the sum of all. */
    double (*weights)(const float *x, int n, float max, float inverse_temperature, float *out,
                      float *sums);
    /* The i with floor < x[i] <= ceiling, ascending, and their x: at most `room`, to where the
     * pointer isn't NULL.  Returns how many there are. */
    int (*between)(const float *x, int n, float floor, float ceiling, int32_t *indices,
                   float *values, int room);
    /* sums[c]: of the x[i] > floor >= 0 in chunk c of VECTOR_CHUNK.  Returns the sum of all. */
    double (*sums)(const float *x, int n, float floor, float *sums);
    /* Mass and number of the x[i] > floors[k] >= 0, for each k. */
    void (*masses)(const float *x, int n, const float floors[VECTOR_FLOORS],
                   double masses[VECTOR_FLOORS], int counts[VECTOR_FLOORS]);
};

const struct vector_ops *vector_generic(void);
const struct vector_ops *vector_avx2(void);
const struct vector_ops *vector_avx512vnni(void);

#endif
