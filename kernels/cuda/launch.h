/* The kernels of this backend as C functions: one args struct a kernel, passed by value to the
 * device; every pointer is device memory.  Each launch is queued on `stream` and returns at once;
 * shapes have been checked by the caller (kernels/cuda/forward.c).
 *
 * Grids are as large as the caller says (a row bucket, so that a graph fits many steps); what is
 * live is counted in device memory, and blocks beyond return at once.
 *
 * Owner: ENGINE. */
#ifndef KERNELS_CUDA_LAUNCH_H
#define KERNELS_CUDA_LAUNCH_H

#include "kernels/quant.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LAUNCH_BLOCK = 16,     /* positions of a KV block */
    LAUNCH_TILE_ROWS = 64, /* queries of one block of the tile kernel */
    LAUNCH_WARP_ROWS = 16, /* queries of one warp of the warp kernel */
    LAUNCH_SPLITS = 16,    /* parts that a sequence's positions are cut into, at most */
    LAUNCH_TOP = 20,
};

/* Rows that products read: bf16 at strides of 4 `width` bytes and, where scales isn't NULL, the
 * same row as fp8 E4M3 2 `width` bytes behind it, times scales[row]. */
struct launch_operand {
    uint8_t *data;
    float *scales;
    int width;
};

/* What is live in this step; in device memory. */
struct launch_counts {
    int32_t n_rows, n_logits, n_tiles, n_warps;
};

/* Queries: the query heads of one KV head of rows first_row … first_row + n_rows - 1, row by row,
 * from number first_query on, as many as the kernel takes; against the keys begin … end - 1, where
 * begin is a multiple of 16 and both lie in one split.  A query sees the keys up to its row's
 * position.  The rows' tables are equal up to `end`. */
struct launch_item {
    int32_t first_row, n_rows, first_query, begin, end;
};

struct launch_batch {
    const struct launch_counts *counts;
    const int32_t *tokens, *positions;    /* [n_rows] */
    const int32_t *tables, *table_of_row; /* row r: tables + table_of_row[r] */
    const int32_t *logit_rows;            /* [n_logits] */
    const struct launch_item *tiles, *warps;
};

/* ---- weights ---- */

/* Rows of a file to bf16 or, where there are scales, to fp8 E4M3 times scales[row]; fewer than 2^31
 * elements. */
struct launch_dequantize {
    const uint8_t *blocks; /* rows of row_bytes, one behind the other */
    enum quant_type type;
    int n_rows, n_cols; /* n_cols: whole blocks */
    size_t row_bytes;   /* of fp8 alone */
    uint8_t *out;       /* [n_rows][n_cols] */
    float *scales;      /* [n_rows]; NULL: bf16 */
};
void launch_dequantize(void *stream, const struct launch_dequantize *);

/* ---- the batch ---- */

/* Where the live rows of a step lie: what struct launch_batch points to. */
struct launch_live {
    struct launch_counts *counts;
    int32_t *tokens, *positions, *table_of_row, *tables, *logit_rows;
    struct launch_item *tiles, *warps;
};
/* From the rows that a step may have to those that it has. */
struct launch_split {
    int n_rows, n_logits, n_tiles, n_warps, n_tables;
    int group; /* query heads of a KV head */
    const int32_t *tokens, *positions, *table_of_row, *tables, *logit_rows;
    const struct launch_item *tiles, *warps;
    const int32_t *families;          /* NULL: no row waits for its token; or [n_rows]: the first
                                         row of the family of a row that does, -1: it doesn't */
    const int32_t *draws;             /* [n_rows] of those that do: which draw is their token */
    const struct launch_drawn *drawn; /* of the step before */
    struct launch_live live;
    int32_t *token, *founder, *before; /* [n_rows], [n_rows], [n_rows + 1]: between */
    int32_t *founders; /* [n_logits] out: the logits, of those that may be, to draw from */
    int32_t *places;   /* [n_logits] out: of those that live, which of the live ones they are */
    int32_t *pairs, *n_pairs; /* out: blocks to copy, from and to */
};
void launch_split(void *stream, const struct launch_split *);

/* ---- rows ---- */

/* out[r][i] = table[tokens[r]][i] */
struct launch_embed {
    const uint16_t *table; /* bf16 [n_vocab][d] */
    float *out;            /* [n_rows][d] */
    int d, rows;           /* rows: of the grid */
    const int32_t *n_rows, *tokens;
};
void launch_embed(void *stream, const struct launch_embed *);

/* out = x / rms(x) * weight; x may be where out is. */
struct launch_norm {
    const float *x, *weight; /* [n_rows][d], [d] */
    float eps;
    int rows;
    const int32_t *n_rows; /* NULL: all of the grid */
    struct launch_operand out;
};
void launch_norm(void *stream, const struct launch_norm *);

/* Each head of head_dim values of q and, behind them, k, in place; see kernels.h. */
struct launch_head_norm {
    float *heads;
    const float *q_weight, *k_weight; /* [head_dim] */
    float eps;
    int stride, n_heads, n_kv_heads, head_dim;
    int rows;
    const int32_t *n_rows; /* NULL: all of the grid */
};
void launch_head_norm(void *stream, const struct launch_head_norm *);

/* out[r][i] = silu(g[r][i]) g[r][d + i] */
struct launch_swiglu {
    const float *gate_up; /* [n_rows][2 d] */
    int rows;
    const int32_t *n_rows;
    struct launch_operand out;
};
void launch_swiglu(void *stream, const struct launch_swiglu *);

/* out[i] = x[logit_rows[i]] */
struct launch_gather {
    const float *x;
    float *out;
    int d, rows;
    const int32_t *n_logits, *logit_rows;
};
void launch_gather(void *stream, const struct launch_gather *);

/* y[r][m] = bias[m], what a product then adds to; or y[r][m] += bias[m]. */
struct launch_bias {
    const float *bias;
    float *y;
    int n, y_stride, rows;
    bool add;
};
void launch_bias(void *stream, const struct launch_bias *);

/* y[r][m] = raw[r][m] w_scales[m] x_scales[r] + bias[m] (+ y[r][m] where add): what an fp8 product
 * lacks where the library has no scales of rows.  raw may be y where !add. */
struct launch_scale {
    const float *raw, *w_scales, *x_scales, *bias; /* bias: NULL: none */
    float *y;
    int n, raw_stride, y_stride, rows;
    bool add;
};
void launch_scale(void *stream, const struct launch_scale *);

/* ---- rope and the KV cache ---- */

/* A page, K and V of a (block, KV head).  bf16: K [16][d], then V [16][d].  fp8: the same as E4M3
 * codes, then f32 scales of the 16 keys and of the 16 values: an element is its code times the
 * scale of its row, which makes the row's largest magnitude the largest fp8. */
struct launch_kv {
    uint8_t *data; /* of one layer: [block][KV head] pages */
    int n_kv_heads, head_dim;
    bool fp8;
    size_t page_bytes; /* launch_page_bytes() */
};
static inline size_t launch_page_bytes(int head_dim, bool fp8) {
    size_t n = 2 * LAUNCH_BLOCK;
    return n * (fp8 ? (size_t)head_dim + sizeof(float) : (size_t)head_dim * sizeof(uint16_t));
}
/* turns[r][i] = cos, sin of position r times inv_freq[i] */
struct launch_turns {
    const float *inv_freq;
    float *turns; /* [n_rows][half][2] */
    int half, rows;
    const int32_t *n_rows, *positions;
};
void launch_turns(void *stream, const struct launch_turns *);
/* Rotates q in place and k on its way to the cache, v goes there as it is. */
struct launch_rope {
    float *q;
    const float *k, *v;
    const float *turns;
    int stride, n_heads, half, rows;
    bool interleaved;
    struct launch_kv kv;
    struct launch_batch batch;
};
void launch_rope(void *stream, const struct launch_rope *);
/* Copies blocks in every layer: pairs[2 i] to pairs[2 i + 1]. */
struct launch_copy {
    uint8_t *data;
    size_t layer_bytes, block_bytes; /* multiples of 16 */
    int n_layers, n_pairs;           /* n_pairs: of the grid */
    const int32_t *pairs;
    const int32_t *n_live; /* NULL: all of the grid */
};
void launch_copy(void *stream, const struct launch_copy *);

/* ---- attention ---- */

/* The state of a query over one split: sum of weights relative to 2^max, and the weighted sum of
 * values; [row][head][LAUNCH_SPLITS or fewer]. */
struct launch_attention {
    const float *q;
    int stride, n_heads;
    float scale; /* of scores, times log2 e */
    struct launch_kv kv;
    struct launch_batch batch;
    int items;     /* of the grid */
    int split;     /* positions of one split */
    int n_splits;  /* slots of one (row, head) */
    float *stats;  /* [row][head][n_splits][2]: max, sum */
    float *states; /* [row][head][n_splits][head_dim] */
};
void launch_attention_tile(void *stream, const struct launch_attention *);
void launch_attention_warp(void *stream, const struct launch_attention *);
/* out = the states of a row's splits put together, in order. */
struct launch_merge {
    const float *stats, *states;
    int n_heads, head_dim, split, n_splits, rows;
    const int32_t *n_rows, *positions;
    struct launch_operand out;
};
void launch_merge(void *stream, const struct launch_merge *);
/* Head sizes that the attention kernels are compiled for: 64 and 128. */
bool launch_has_head_dim(int head_dim);

/* ---- sampling ---- */

/* sums[r] = log(sum_i e^logits[r][i]) */
struct launch_logsumexp {
    const float *logits;
    float *sums;
    int n_vocab, rows;
    const int32_t
        *n_logits; /* NULL: all rows of the grid are live; or how many of the step's are */
    int first;     /* the first row's number among the step's */
};
void launch_logsumexp(void *stream, const struct launch_logsumexp *);

/* One draw of a job; its results go to `out` of struct launch_sample. */
struct launch_draw {
    uint64_t seed;
    uint32_t candidate, position;
    int32_t index; /* where its result goes */
    int32_t n_top;
    int32_t logit_row, unused;
};
struct launch_change {
    int32_t token, count; /* count: of `seen`; a bias as the bits of an f32 */
};
/* Draws from one row with equal settings. */
struct launch_job {
    int32_t first_draw, n_draws;
    float temperature;
    int32_t top_k;
    float top_p, min_p, repetition, presence, frequency;
    int32_t first_change, n_seen, n_bias, n_forbidden; /* changes: one list behind the other */
};
struct launch_drawn {
    int32_t token;
    float logprob;
    int32_t n_top;
    int32_t top_token[LAUNCH_TOP];
    float top_logprob[LAUNCH_TOP];
};
struct launch_row {
    int32_t logit_row, first_job, n_jobs, n_top; /* n_top: the most that one of its draws wants */
};
struct launch_sample {
    float *logits; /* [n_logits][n_vocab]; changed while the kernel runs, then as before */
    const float *sums;
    int n_vocab, rows;
    int first, n_logits; /* which of the step's live rows of logits there are */
    /* Both NULL, or as launch_split() has made them: then rows of a family have the jobs of all of
     * its draws in common, and each makes those that are its own. */
    const int32_t *founders, *places;
    const struct launch_row *row;
    const struct launch_job *jobs;
    const struct launch_draw *draws;
    const struct launch_change *changes;
    float *saved; /* [changes] */
    struct launch_drawn *out;
};
void launch_sample(void *stream, const struct launch_sample *);

/* ---- shared memory ---- */

/* Each lets a kernel have more of it than 48 KiB; false where the device, with `most` bytes for one
 * block, hasn't so much.  Norm and merge keep a row of `width` f32 there. */
bool launch_prepare_tile(size_t most);
bool launch_prepare_warp(size_t most);
bool launch_prepare_norm(size_t most, int width);
bool launch_prepare_merge(size_t most, int width);

#ifdef __cplusplus
}
#endif
#endif
