/* Matrix products with AMX.
 *
 * TDPBSSD multiplies a tile of up to 16 rows of activations by 16 outputs in 16 cycles, however few
 * columns there are; a block has 32 of the 64 that fit, since its scales end there.  That is still
 * four times what vpdpbusd does, so that the vector units, which turn each block's integers to
 * f32 and scale them (three instructions for a row and 16 outputs), are the limit: 24 cycles a
 * block of 16 rows.  The two kinds of units talk through memory; the tile of the next block is
 * begun before the integers of this one are used, so that neither waits.
 *
 * Codes are decoded to signed bytes, so sums start at zero.  A product of few rows doesn't fill a
 * tile, and with sub-scales for 16 columns twice the integers would have to cross: these go by
 * matmul_avx512vnni.c (isa_way).
 *
 * Instructions: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2; speeds:
 * Intel's Optimization Reference Manual, chapter on AMX. */
#include "kernels/cpu/matmul.h"

#include "kernels/cpu/lanes.h"

#if defined(__AMX_INT8__) || defined(__AMXINT8__) /* GCC; clang 14 */

enum { TILE_ROWS = MATMUL_ROWS_AMX, READS_BYTES = 0 };

#include "kernels/cpu/matmul.inc"

#include "kernels/cpu/decode512.inc"

#define AMX_INLINE static inline __attribute__((always_inline))

static void decode(const struct pack *w, const uint8_t *panel, int first, int n, uint8_t *codes,
                   float *scales) {
    decode512(w, panel, first, n, true, codes, scales);
}

/* Palette 1: tiles 0 and 1 are sums, 2 and 3 activations, 4 and 5 codes. */
static void configure(int rows) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    for (int i = 0; i < 6; i++) {
        c.row_bytes[i] = i == 2 || i == 3 ? PACK_COLUMNS : PACK_STEP;
        c.rows[i] = (uint8_t)(i < 4 ? rows : PACK_STEPS);
    }
    _tile_loadconfig(&c);
}

/* The integers of one block to dots, by the tiles of that number (which must be written as
 * numbers). */
#define BEGIN_BLOCK(sum, activations, weights, codes, q, dots)                                     \
    do {                                                                                           \
        _tile_zero(sum);                                                                           \
        _tile_loadd(activations, q, PACK_COLUMNS);                                                 \
        _tile_loadd(weights, codes, PACK_STEP);                                                    \
        _tile_dpbssd(sum, activations, weights);                                                   \
        _tile_stored(sum, dots, PACK_STEP);                                                        \
    } while (0)
#define BEGIN_EVEN(codes, q, dots) BEGIN_BLOCK(0, 2, 4, codes, q, dots)
#define BEGIN_ODD(codes, q, dots) BEGIN_BLOCK(1, 3, 5, codes, q, dots)

/* What the block adds to the sums; `v` are its scales, as decode_scales() lays them out. */
AMX_INLINE void end_block(enum pack_form form, int rows, const float *v,
                          const struct matmul_record *a, const int32_t (*dots)[PACK_OUTPUTS],
                          __m512 sums[TILE_ROWS]) {
    __m512 d = _mm512_load_ps(v), m = _mm512_load_ps(v + PACK_OUTPUTS);
    for (int r = 0; r < rows; r++, a++) {
        __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots[r]));
        sums[r] = _mm512_fmadd_ps(dot, _mm512_mul_ps(d, _mm512_set1_ps(a->scale)), sums[r]);
        if (form == PACK_SCALE_MIN)
            sums[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(a->scale_sum), sums[r]);
    }
}

AMX_INLINE void tile_panel(enum pack_form form, int rows, int panel, const struct tile *t) {
    enum { N = PACK_OUTPUTS };
    float *at = t->sums + panel * N;
    __m512 sums[TILE_ROWS];
    for (int r = 0; r < rows; r++)
        sums[r] = t->first ? _mm512_setzero_ps() : _mm512_load_ps(at + r * MATMUL_PANELS * N);
    const uint8_t *codes = t->codes[panel];
    const float *v = t->scales[panel];
    const int8_t *q = t->q;
    const struct matmul_record *record = t->records;
    int32_t(*even)[N] = t->dots, (*odd)[N] = t->dots + MATMUL_DOTS / 2;
    BEGIN_EVEN(codes, q, even);
    for (int b = 0; b < t->n_blocks; b += 2) {
        bool more = b + 1 < t->n_blocks;
        if (!panel) prefetch_next(t, t->n_panels, b);
        if (more) BEGIN_ODD(codes + PACK_CODES, q + PACK_COLUMNS * rows, odd);
        end_block(form, rows, v, record, (const int32_t(*)[N])even, sums);
        codes += 2 * PACK_CODES;
        q += 2 * PACK_COLUMNS * rows;
        if (!more) break;
        if (!panel) prefetch_next(t, t->n_panels, b + 1);
        if (b + 2 < t->n_blocks) BEGIN_EVEN(codes, q, even);
        end_block(form, rows, v + MATMUL_SCALES * N, record + rows, (const int32_t(*)[N])odd, sums);
        v += 2 * MATMUL_SCALES * N;
        record += 2 * rows;
    }
    for (int r = 0; r < rows; r++)
        _mm512_store_ps(at + r * MATMUL_PANELS * N, sums[r]);
}

/* One body for each number of rows, so that all sums are registers: 12 rows at least are cut into
 * near equal tiles of at most 16, so that one has 8 or more. */
AMX_INLINE void tile_form(enum pack_form form, int rows, const struct tile *t) {
    for (int p = 0; p < t->n_panels; p++)
        switch (rows) {
#define ROWS(n)                                                                                    \
    case n:                                                                                        \
        tile_panel(form, n, p, t);                                                                 \
        break;
            ROWS(8)
            ROWS(9)
            ROWS(10)
            ROWS(11)
            ROWS(12)
            ROWS(13)
            ROWS(14)
            ROWS(15)
            ROWS(16)
#undef ROWS
        default:
            BUG_ON(true);
        }
}

static void tile_scale(int rows, const struct tile *t) { tile_form(PACK_SCALE, rows, t); }
static void tile_min(int rows, const struct tile *t) { tile_form(PACK_SCALE_MIN, rows, t); }

static void run_tile(enum pack_form form, int code_bits, int rows, const struct tile *t) {
    (void)code_bits;
    if (*t->configured != rows) {
        configure(rows);
        *t->configured = rows;
    }
    (form == PACK_SCALE ? tile_scale : tile_min)(rows, t);
}

void matmul_amx(const struct matmul_job *j, struct matmul_scratch *s, int begin, int end) {
    s->configured = 0;
    run_pairs(j, s, begin, end);
    if (s->configured) _tile_release(); /* nothing to save at a switch of threads */
}

#endif
