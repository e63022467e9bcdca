/* Every operation of a forward pass, behind one table for each backend.
 *
 * What the caller must believe:
 * - Memory of a backend is opaque: a `struct kernels_buffer`.  Nothing here takes or gives a host
 *   pointer into it but `upload` and `download`.
 * - Operations are queued in the order of the calls and see each other's results in that order;
 * they may run later.  `download` waits for all queued before it; `sync` waits for all. An
 * operation that fails later reports it at the next `download` or `sync` (a device error is sticky:
 * every later call fails too).
 * - Each output row is computed by a sequence of floating-point operations that depends only on
 * that row's own input, never on how many rows there are, which rows share a prompt, the number of
 * threads, or (cpu backend, isa other than reference) the instruction set: the CPU backend is
 * bitwise batch-invariant.  See kernels/cpu/README.md for the order of sums.
 * - `reference` of the cpu backend is the definition: weights dequantised to f32, activations f32,
 * sums in double.  All others are compared with it.
 *
 * Shapes are written row-major, outermost first: x[n][k] is n rows of k contiguous elements.  f32
 * unless said otherwise.  An "operand" is what rms_norm, attention and swiglu give and matmul and
 * output take: n rows of k elements at strides of 4 k bytes, in the backend's own element type
 * (cpu: f32), so that only these operations read one.  "view" is a buffer (64-byte aligned) and a
 * byte offset, a multiple of 4.
 *
 * Owner: one thread (ENGINE) calls all of this; a backend's own worker threads are its own affair.
 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "base/err.h"
#include "kernels/quant.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kernels_device;
struct kernels_buffer;
struct kernels_weight;

enum { KERNELS_BLOCK = 16 }; /* positions of one KV block */

struct kernels_view {
    struct kernels_buffer *buffer; /* borrowed */
    size_t offset;                 /* bytes */
};

struct kernels_options {
    int n_threads;   /* compute threads, the calling one included; 0: one for each core */
    const char *isa; /* "auto", or one of `isas`; asking for one this machine lacks is an error */
    bool no_graphs;  /* cuda: queue each operation of each step, for tests and measures */
    const char *weights; /* NULL or "auto", or, for cuda alone, "bf16" or "fp8": what the layers'
                            matrices become; asking for what a device lacks is an error */
    bool file_fp8;       /* the file's are fp8: "auto" takes fp8 where the device has it */
    const char *kv;      /* NULL or "auto", or, for cuda alone, "bf16" or "fp8": keys and values */
    int n_vocab; /* rows of the embedding table and the output layer, which stay bf16 where the
                    others are fp8; 0: there are none */
};

/* The KV cache of all layers: for each layer, K and V of n_blocks blocks.
 * Element type and inner layout are the backend's own; only `kv_bytes_per_block` is public. */
struct kernels_kv_shape {
    int n_layers, n_kv_heads, head_dim;
    int n_blocks;
};

/* The largest step: what a backend takes its scratch for. */
struct kernels_step_shape {
    int n_rows;
    int max_cols; /* the widest input of a product */
    int n_heads, head_dim, n_vocab;
    int context; /* positions of one sequence at most */
};

/* One rotation of rotary position embedding (arXiv 2104.09864). */
struct kernels_rope {
    int n_rot;        /* dimensions rotated in each head, from the first on; even */
    bool interleaved; /* true: pairs (2i, 2i+1), as `llama` GGUF files have them; false: (i, i +
                         n_rot/2) */
    const float *inv_freq; /* [n_rot/2] host, borrowed while the device lives: angle = position *
                              inv_freq[i] */
};

/* Norms of the single heads of q and k, before they are rotated: in place, for each row r and head
 * h, x = heads + r stride + h head_dim:  x[i] = x[i] / sqrt(mean_i x[i]^2 + eps) * weight[i], with
 * q_weight for the first n_heads heads and k_weight for the n_kv_heads after them. */
struct kernels_head_norms {
    struct kernels_view heads;
    int stride; /* elements */
    int n_rows, n_heads, n_kv_heads, head_dim;
    struct kernels_view q_weight, k_weight; /* f32 [head_dim] */
    float eps;
};

/* The rows of one step, uploaded once by batch_begin and read by every layer's operations.
 * Rows of one sequence in one step (prefill) are consecutive with ascending positions.
 * A row attends to the positions 0…position of its own block table; K and V of all rows of the step
 * are appended before any row attends.
 * Groups: rows first_row … first_row+n_rows-1 have the first n_prefix_blocks entries of their
 * tables in common, all full and all before any position of these rows; a backend may read such a
 * prefix once for all.  Groups are ascending and don't overlap; rows outside any group are alone.
 */
struct kernels_group {
    int first_row, n_rows, n_prefix_blocks;
};
/* Families: the rows first_row … first_row+n_rows-1 have the same history, each the draw that
 * another candidate made from it: tokens that the host needn't know yet.  They have one position,
 * all want logits, and each has a table of its own, equal up to the block of that position.  Where
 * it isn't that block's first, what the first row's table has in that block belongs to each row's
 * history and is copied to it.  Of rows with equal tokens a backend may compute the first alone:
 * the draws from the others are then made from its logits, and the others' blocks stay as they
 * are.  Families are ascending and don't overlap; their rows lie in one group or in none. */
struct kernels_family {
    int first_row, n_rows;
};
struct kernels_batch {
    int n_rows;
    const int32_t *tokens;       /* [n_rows] of rows of no family */
    const int32_t *positions;    /* [n_rows] */
    const int32_t *tables;       /* block numbers of all sequences, one table after the other */
    const int32_t *table_starts; /* [n_tables + 1] sequence s has tables[table_starts[s]] …
                                    [table_starts[s+1]-1] */
    const int32_t *table_of_row; /* [n_rows] which table: rows of one sequence share it */
    int n_tables;
    const struct kernels_group *groups;
    int n_groups;
    const int32_t *logit_rows; /* [n_logits] rows whose logits are wanted, ascending */
    int n_logits;
    const struct kernels_family *families;
    int n_families;
    const int32_t *draws; /* [n_rows] of rows of a family: the draw of the last sample() whose token
                             the row computes */
};

/* One draw from a row of logits.  Several draws may name one row (siblings with equal history).
 * Filters in this order: penalties and bias on the logits; then, greedy if temperature is 0, else
 * temperature, top-k, top-p, min-p, then one draw by inverse CDF in token order over the kept
 * tokens. Randomness: Philox4x32-10, key = seed (low word first), counter = (position, candidate,
 * 0, 0); the upper 24 bits of the first word / 2^24, so that it is below 1 as a float too. Filtered
 * tokens are those of a descending order by weight, ties by id; a nucleus is the shortest prefix of
 * it with a mass of at least top_p of what top-k left, one token at least. */
struct kernels_draw {
    int logit_row; /* index into the step's logits, 0 … n_logits-1 */
    uint64_t seed;
    uint32_t candidate;
    uint32_t position; /* of the token drawn, in the candidate's own output: 0 … */
    float temperature; /* 0: the most likely token, lowest id on a tie */
    int32_t top_k;     /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    float repetition; /* 1: off; as CTRL (arXiv 1909.05858): l>0 ? l/r : l*r for tokens in `seen` */
    float presence;   /* 0: off; subtracted once for tokens with count > 0 in `seen` */
    float frequency;  /* 0: off; subtracted count times */
    int32_t n_seen;   /* token ids with how often the candidate has produced them, and the prompt's
                         with count 0 (those only the repetition penalty sees) */
    int32_t first_seen;         /* index of the first in struct kernels_draws.seen */
    int32_t n_bias, first_bias; /* logit_bias entries in struct kernels_draws.bias */
    int32_t n_forbidden,
        first_forbidden; /* ids in .forbidden that can't be drawn (min_tokens, ignore_eos) */
    int32_t n_top;       /* how many top log-probabilities to report: 0 … KERNELS_TOP */
};
enum { KERNELS_TOP = 20 };
struct kernels_seen {
    int32_t token, count;
};
struct kernels_bias {
    int32_t token;
    float bias;
};
struct kernels_draws {
    const struct kernels_draw *draws;
    int n_draws;
    const struct kernels_seen *seen;
    const struct kernels_bias *bias;
    const int32_t *forbidden;
};
/* The result of one draw.  Log-probabilities are of the unprocessed distribution (softmax of the
 * raw logits). */
struct kernels_drawn {
    int32_t token;
    float logprob;
    int32_t n_top; /* 0 unless asked for */
    int32_t top_token[KERNELS_TOP];
    float top_logprob[KERNELS_TOP]; /* descending */
};

/* Work counted since the device was opened, by kind, for the roofline. */
enum kernels_op {
    KERNELS_OP_EMBED,
    KERNELS_OP_NORM,
    KERNELS_OP_MATMUL,
    KERNELS_OP_OUTPUT, /* the product with the output layer */
    KERNELS_OP_ROPE,
    KERNELS_OP_ATTENTION,
    KERNELS_OP_SWIGLU,
    KERNELS_OP_SAMPLE,
    KERNELS_N_OPS,
};
struct kernels_profile {
    struct {
        double seconds, bytes, macs;
        uint64_t calls;
    } op[KERNELS_N_OPS];
};

/* What a device can do at most, measured: the two roofs of the roofline. */
struct kernels_ceiling {
    const char *isa; /* static: whose int8 dot-product instruction was measured */
    int n_threads;
    double macs_per_s;  /* multiply-accumulates; 0: unknown */
    double bytes_per_s; /* of memory read */
};

struct kernels {
    const char *name;        /* "cpu", "cuda" */
    int logit_rows;          /* rows whose logits should exist at once, at most */
    bool overlaps;           /* a step runs while the host goes on: families are worth having */
    const char *const *isas; /* NULL-ended: those this build has; the machine may lack some */

    bool (*device_open)(const struct kernels_options *, struct kernels_device **out, struct err *e);
    void (*device_close)(struct kernels_device *);
    /* What was chosen: "avx2, 2 threads"; borrowed while the device lives. */
    const char *(*describe)(const struct kernels_device *);
    /* Bytes of memory that this device could still give, for the memory plan. */
    size_t (*memory_free)(const struct kernels_device *);
    void (*profile)(const struct kernels_device *, struct kernels_profile *out);
    /* Measures with all of the device for about a second, outside of a step.  NULL: this
     * backend can't. */
    bool (*ceiling)(struct kernels_device *, struct kernels_ceiling *out, struct err *e);

    /* ---- memory ---- */
    struct kernels_buffer *(*buffer_new)(struct kernels_device *, size_t bytes, struct err *e);
    void (*buffer_free)(struct kernels_device *, struct kernels_buffer *);
    void (*upload)(struct kernels_device *, struct kernels_view to, const void *from, size_t bytes);
    bool (*download)(struct kernels_device *, void *to, struct kernels_view from, size_t bytes,
                     struct err *e);
    bool (*sync)(struct kernels_device *, struct err *e);

    /* ---- weights ---- */
    /* w[n_rows][n_cols] of a GGUF type, n_cols contiguous (ne[0] of the file); data is borrowed
     * until return unless keeps_data says otherwise.  `data` is not aligned and has
     * quant_row_bytes(type, n_cols) a row. */
    struct kernels_weight *(*weight_new)(struct kernels_device *, enum quant_type type, int n_rows,
                                         int n_cols, const void *data, struct err *e);
    void (*weight_free)(struct kernels_device *, struct kernels_weight *);
    size_t (*weight_bytes)(const struct kernels_weight *); /* memory it takes on the device */
    /* Upper bound of weight_bytes before it is made: the memory plan. */
    size_t (*weight_bytes_needed)(const struct kernels_device *, enum quant_type type, int n_rows,
                                  int n_cols);
    /* True where weight_new reads `data` as long as the weight lives (the file stays mapped). */
    bool (*keeps_data)(const struct kernels_device *, enum quant_type type);

    /* ---- KV cache ---- */
    size_t (*kv_bytes_per_block)(const struct kernels_device *, int n_kv_heads,
                                 int head_dim); /* of one layer, K and V */
    bool (*kv_open)(struct kernels_device *, const struct kernels_kv_shape *, struct err *e);
    void (*kv_close)(struct kernels_device *);
    /* Copies the first n_positions positions of block `from` to block `to`, all layers. */
    void (*kv_copy_block)(struct kernels_device *, int to, int from, int n_positions);

    /* ---- a step ---- */
    /* Checks and uploads the batch; the arrays are borrowed until batch_end.  Fails on a shape that
     * can't be. */
    bool (*batch_begin)(struct kernels_device *, const struct kernels_batch *, struct err *e);
    void (*batch_end)(struct kernels_device *);
    /* Bytes of scratch a step of this shape may need inside the backend, taken by reserve_rows at
     * start. */
    size_t (*scratch_bytes)(const struct kernels_device *, const struct kernels_step_shape *);
    bool (*reserve_rows)(struct kernels_device *, const struct kernels_step_shape *, struct err *e);

    /* out[n_rows][d] = table[tokens[r]] for the batch's rows; a token outside the table is a bug.
     */
    void (*embed)(struct kernels_device *, const struct kernels_weight *table,
                  struct kernels_view out);
    /* out[r][i] = x[r][i] / sqrt(mean_i x[r][i]^2 + eps) * weight[i], an operand; weight: f32 [d]
     * in a buffer. out may be x. */
    void (*rms_norm)(struct kernels_device *, struct kernels_view x, struct kernels_view weight,
                     float eps, int n_rows, int d, struct kernels_view out);
    /* x is an operand. y[r][m] = sum_k w[m][k] x[r][k]  (+ bias[m] where bias.buffer)  (+ y[r][m]
     * where add) ; row stride of y is y_stride elements (>= w's n_rows) so that products may write
     * side by side. */
    void (*matmul)(struct kernels_device *, const struct kernels_weight *w, struct kernels_view x,
                   int n_rows, struct kernels_view bias, bool add, struct kernels_view y,
                   int y_stride);
    void (*head_norms)(struct kernels_device *, const struct kernels_head_norms *);
    /* For the batch's rows: rotates q (in place) and k by position, then stores k and v in the
     * layer's KV blocks. q[n_rows][n_heads*head_dim], k and v[n_rows][n_kv_heads*head_dim], each
     * with row stride `stride` elements. */
    void (*rope_append)(struct kernels_device *, int layer, const struct kernels_rope *,
                        struct kernels_view q, struct kernels_view k, struct kernels_view v,
                        int stride, int n_heads);
    /* out[n_rows][n_heads*head_dim], an operand, = softmax(q K^T * scale) V over positions
     * 0…position of each row; query head h reads KV head h / (n_heads / n_kv_heads). */
    void (*attention)(struct kernels_device *, int layer, struct kernels_view q, int stride,
                      int n_heads, float scale, struct kernels_view out);
    /* out, an operand: out[r][i] = silu(gate_up[r][i]) * gate_up[r][d + i]; gate_up[n_rows][2 d].
     */
    void (*swiglu)(struct kernels_device *, struct kernels_view gate_up, int n_rows, int d,
                   struct kernels_view out);
    /* out[n_logits][d] = rows batch.logit_rows of x[n_rows][d]. */
    void (*gather_logit_rows)(struct kernels_device *, struct kernels_view x, int d,
                              struct kernels_view out);
    /* logits[n][n_vocab] = x[n][d] w^T, x an operand: matmul under its own name, since it is a
     * third of a small model's step. */
    void (*output)(struct kernels_device *, const struct kernels_weight *w, struct kernels_view x,
                   int n, struct kernels_view logits);
    /* Those of the step's draws, which ascend by logit row, that are from the rows first_row …
     * first_row+n_rows-1: `logits` has these rows [n_rows][n_vocab], or those that are computed of
     * them.  Called for all logit rows of the step, from 0 on; the draws are borrowed until the
     * call returns, and the same each time. */
    void (*sample)(struct kernels_device *, struct kernels_view logits, int n_vocab,
                   const struct kernels_draws *, int first_row, int n_rows);
    /* Waits for the draws of the oldest step whose draws haven't been taken, and gives them in
     * their order.  Two steps may have such draws. */
    bool (*drawn)(struct kernels_device *, struct kernels_drawn *out, int n_draws, struct err *e);
    /* Whether the next step's families can name draws of the last sample(). */
    bool (*can_follow)(const struct kernels_device *);
};

/* The table of a backend by name ("cpu", "cuda"); NULL where this build hasn't it. */
const struct kernels *kernels_backend(const char *name);

/* The random number in [0, 1) of one draw, as written at struct kernels_draw. */
float kernels_uniform(uint64_t seed, uint32_t candidate, uint32_t position);

#endif
