/* Matrix products with packed weights: one implementation for each instruction set, equal results.
 *
 * y[r][m] = sum over blocks b of 32 columns, ascending, of
 *     fma(I, d s, y) and, with minimums, fma(m, s S, y)
 * where I is the exact integer dot product of the block's codes and the row's int8 activations, d
 * the weight's scale, s the activations' scale of the block, and S the sum of its activations.  I
 * is an integer below 2^24, so every way to compute it gives the same float; the float operations
 * are the same and in the same order everywhere. kernels/cpu/README.md has the forms with
 * sub-scales.
 *
 * Any thread, on disjoint panels. */
#ifndef KERNELS_CPU_MATMUL_H
#define KERNELS_CPU_MATMUL_H

#include "kernels/cpu/pack.h"

/* One row's activations of one block of 32 columns. */
struct matmul_record {
    float scale;     /* activation = scale * int8 */
    float scale_sum; /* scale * sum of the int8 */
    /* What the integer sums of the two halves (16 columns) start from, as the instruction set wants
     * it: MATMUL_INIT_SUMS: 32-bit; MATMUL_INIT_PAIRS: two 16-bit values, of columns with k / 2 % 2
     * = 0 and 1. Forms with 32-column scales add both halves up and use init[0]. Of PACK_SUB_MIN:
     * the sums of the halves' int8, 32-bit. */
    int32_t init[2];
};

enum matmul_init { MATMUL_INIT_SUMS, MATMUL_INIT_PAIRS };

struct matmul_job {
    const struct pack *w;
    /* Rows are computed in tiles of R rows (matmul_tile), which lie one after the other and are
     * interleaved inside, so that a tile is read from front to back: */
    const int8_t *q; /* of a tile [n_cols / T][R][T], T of the way; -127 … 127 */
    const struct matmul_record *records; /* of a tile [n_blocks][R] */
    const float *x; /* [n_rows][n_cols], of PACK_DENSE instead of q and records */
    int n_rows;
    const float *bias; /* [w.n_rows] or NULL */
    bool add;          /* add to what y holds */
    float *y;
    int y_stride; /* elements */
};

enum {
    MATMUL_CHUNK = 16, /* most blocks decoded at a time */
    MATMUL_PANELS = 2, /* panels at a time */
    MATMUL_SCALES = 6, /* vectors of 16 scales that a block may need */
};

/* Memory of one thread: decoded codes and scales of MATMUL_PANELS x MATMUL_CHUNK blocks, which stay
 * in the L1 cache, and the sums of all rows between chunks. */
struct matmul_scratch {
    _Alignas(64) uint8_t codes[MATMUL_PANELS][MATMUL_CHUNK][PACK_CODES];
    _Alignas(64) float scales[MATMUL_PANELS][MATMUL_CHUNK][MATMUL_SCALES][PACK_OUTPUTS];
    /* Of matmul_amx.c: integers of even and odd blocks on their way to the vector registers. */
    _Alignas(64) int32_t dots[2][16][PACK_OUTPUTS];
    int configured; /* rows that its tiles are set up for */
    float *sums; /* owned by the device; [n_rows][MATMUL_PANELS * PACK_OUTPUTS], 64-byte aligned */
};

/* The tile that a row is in, of n_rows cut into the fewest tiles of at most tile_rows, near equal:
 * its first row and how many it has. */
struct matmul_tile {
    int first, rows;
};
struct matmul_tile matmul_tile(int n_rows, int tile_rows, int row);

/* Computes the outputs of panel pairs begin … end-1 (pair i: panels 2 i and 2 i + 1). */
typedef void matmul_fn(const struct matmul_job *, struct matmul_scratch *, int begin, int end);

/* How an instruction set multiplies. */
struct matmul_way {
    matmul_fn *run;
    int tile_rows; /* most rows of a tile */
    int together;  /* columns of a row that are neighbours in a tile: 4 or 32 */
};

/* Most rows of a tile: as many as registers hold. */
enum {
    MATMUL_ROWS_GENERIC = 4,
    MATMUL_ROWS_AVX2 = 4,
    MATMUL_ROWS_AVX512VNNI = 6,
    MATMUL_ROWS_AMX = 16,
};

void matmul_generic(const struct matmul_job *, struct matmul_scratch *, int begin, int end);
void matmul_avx2(const struct matmul_job *, struct matmul_scratch *, int begin, int end);
void matmul_avx512vnni(const struct matmul_job *, struct matmul_scratch *, int begin, int end);
void matmul_amx(const struct matmul_job *, struct matmul_scratch *, int begin, int end);

#endif
