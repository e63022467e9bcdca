/* Weights as the matrix products read them: panels of 16 outputs, interleaved, codes exact.
 *
 * A panel holds 16 rows of the matrix (missing ones are zero), cut into blocks of 32 columns.  For
 * a block, 512 codes as 8 steps of [16 outputs][4 columns] bytes, packed to 4, 5, 6 or 8 bits; then
 * the panel's scales.  kernels/cpu/README.md has the bytes.  What a code means:
 *
 * PACK_SCALE: w = d (q - offset); d of 32 columns.  Q4_0 Q5_0 Q8_0
 *
 * PACK_SCALE_MIN: w = d q + m; d, m of 32 columns.  Q4_1 Q5_1
 *
 * PACK_SUPER_MIN: w = d s q - m t; d, m of 256, integers s, t of 32 columns.  Q4_K Q5_K
 *
 * PACK_SUB: w = d s (q - offset); d of 256, integer s of 16 columns.  Q6_K Q3_K
 *
 * PACK_SUB_MIN: w = d s q - m t; d, m of 256, integers s, t of 16 columns.  Q2_K
 *
 * PACK_DENSE: w: f32, f16 or bf16 as in the file, [column][16 outputs]
 *
 * Immutable once packed: any thread. */
#ifndef KERNELS_CPU_PACK_H
#define KERNELS_CPU_PACK_H

#include "base/err.h"
#include "kernels/quant.h"

enum {
    PACK_OUTPUTS = 16,
    PACK_COLUMNS = 32,                        /* of a block */
    PACK_STEPS = 8,                           /* of 4 columns */
    PACK_STEP = PACK_OUTPUTS * 4,             /* bytes of a step, one code a byte */
    PACK_CODES = PACK_OUTPUTS * PACK_COLUMNS, /* codes of a block */
    PACK_SUPER_BLOCKS = 8,                    /* blocks that share d and m in the _K types */
};

enum pack_form {
    PACK_SCALE,
    PACK_SCALE_MIN,
    PACK_SUPER_MIN,
    PACK_SUB,
    PACK_SUB_MIN,
    PACK_DENSE,
};

struct pack {
    enum quant_type type;
    enum pack_form form;
    int code_bits; /* 4, 5, 6 or 8; of PACK_DENSE 16 or 32 */
    int offset;    /* q - offset is the signed code; 128 where 8-bit codes are stored unsigned */
    int source_blocks;         /* blocks of 32 columns in a block of the file */
    size_t source_bytes;       /* of a block of the file */
    int n_rows, n_cols;        /* of the matrix */
    int n_panels, n_blocks;    /* n_blocks: of a panel; 0 of PACK_DENSE */
    size_t code_bytes;         /* of a block */
    size_t scale_bytes;        /* of a block */
    size_t super_bytes;        /* of PACK_SUPER_BLOCKS blocks */
    size_t scale_at, super_at; /* offsets in a panel; the codes are at 0 */
    size_t panel_bytes;        /* a multiple of 64 */
    uint8_t *data;             /* owned; n_panels panels, aligned to a page */
};

/* Sizes of the layout alone; n_cols must be whole blocks of the type.  `unsigned8`: 8-bit codes are
 * stored plus 128, for instructions that multiply unsigned by signed bytes. */
void pack_init(struct pack *p, enum quant_type type, int n_rows, int n_cols, bool unsigned8);
size_t pack_bytes(const struct pack *p);
bool pack_alloc(struct pack *p, struct err *e) MUST_CHECK;
void pack_clear(struct pack *p);
/* Fills panels begin … end-1 from rows as GGUF files hold them. */
void pack_panels(struct pack *p, const void *source, int begin, int end);
/* One row back as f32, exactly as quant_decode gives it. */
void pack_decode_row(const struct pack *p, int row, float *out);

#endif
