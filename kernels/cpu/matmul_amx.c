/* Matrix products with AMX.
 *
 * TDPBSSD multiplies a tile of up to 16 rows of activations by 16 outputs in 16 cycles, however few
 * columns there are; a block has 32 of the 64 that fit, since its scales end there.  The sums cross
 * to the vector registers through memory, and these turn them to f32 and scale them.
 *
 * THEORY.  What limits it (measured on Sapphire Rapids, kernels/LOG.md): while tiles are in use,
 * 512-bit multiplications, fused ones and conversions have port 0 only; additions have port 5 as
 * well.  So every other row's integers become floats by two additions instead of a conversion:
 * 2^23 + 2^22 + i is a float whose lowest bits are i, |i| < 2^22, exactly.  And instructions bind
 * to ports as they are issued, so that the tiles' work has to be spread over the rows': while a
 * block is scaled, the sums of the next one, computed a block ago, go to memory, and the tiles of
 * the one after that are loaded and multiplied.  The volatile statements below keep that order.
 *
 * The blocks of a tile's panels are one stream, so that it runs dry once a tile.  Its last block is
 * multiplied up to three times, since there is no body for the end.
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
#include "kernels/cpu/tiles.h"

#define AMX_INLINE static inline __attribute__((always_inline))

/* Rows one by one, so that their sums can be registers. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

static void decode(const struct pack *w, const uint8_t *panel, int first, int n, uint8_t *codes,
                   float *scales) {
    decode512(w, panel, first, n, true, codes, scales);
}

/* Palette 1: tiles 0 and 1 are sums of even and odd blocks, 2 activations, 3 codes. */
static void configure(int rows) {
    struct tiles c = {0};
    for (int i = 0; i < 4; i++) {
        c.row_bytes[i] = i == 2 ? PACK_COLUMNS : PACK_STEP;
        c.rows[i] = (uint8_t)(i == 3 ? PACK_STEPS : rows);
    }
    tiles_configure(&c);
}

/* A place in the stream. */
struct place {
    const uint8_t *codes;
    const int8_t *q;
    int panel, block;
};

/* To the next block; the last one of panel end-1 stays. */
AMX_INLINE void step(struct place *at, int rows, int end, const struct tile *t) {
    if (++at->block < t->n_blocks) {
        at->codes += PACK_CODES;
        at->q += PACK_COLUMNS * rows;
    } else if (at->panel + 1 < end) {
        *at = (struct place){t->codes[at->panel + 1], t->q, at->panel + 1, 0};
    }
}

AMX_INLINE void load_activations(const struct place *at) { _tile_loadd(2, at->q, PACK_COLUMNS); }

AMX_INLINE void load_codes(const struct place *at) { _tile_loadd(3, at->codes, PACK_STEP); }

/* Tiles are numbers in the instruction: here each has its own. */
AMX_INLINE void multiply(int odd) {
    if (odd) {
        _tile_zero(1);
        _tile_dpbssd(1, 2, 3);
    } else {
        _tile_zero(0);
        _tile_dpbssd(0, 2, 3);
    }
}

AMX_INLINE void store_dots(int odd, int32_t (*const dots)[TILE_ROWS][PACK_OUTPUTS]) {
    if (odd)
        _tile_stored(1, dots[1], PACK_STEP);
    else
        _tile_stored(0, dots[0], PACK_STEP);
}

/* The tiles' work that belongs before row r of a block: of the one after the next, `ahead`, which
 * is odd as this one is, and of the next, which isn't. */
AMX_INLINE void tile_work(int odd, int r, int rows, const struct place *ahead,
                          int32_t (*const dots)[TILE_ROWS][PACK_OUTPUTS]) {
    if (r == 0) load_activations(ahead);
    if (r == rows / 4) load_codes(ahead);
    if (r == rows / 2) multiply(odd);
    if (r == rows * 3 / 4) store_dots(1 - odd, dots);
}

/* "t = the integers in memory i as floats"; k is 2^23 + 2^22 in each lane. */
#define CONVERT "vcvtdq2ps %[i], %[t]\n\t"
#define ADD_TWICE "vpaddd %[i], %[k], %[t]\n\tvsubps %[k], %[t], %[t]\n\t"
/* y = fma(t, u, y) */
#define SCALE "vfmadd231ps %[u], %[t], %[y]\n\t"

/* What one block adds to one row's sums y: the integers i times u. */
AMX_INLINE void add_block(bool twice, const int32_t *i, __m512 u, __m512 *y) {
    __m512 t, k = _mm512_set1_ps(12582912.0F);
    const __m512i *from = (const __m512i *)(const void *)i;
    if (twice)
        __asm__ volatile(ADD_TWICE SCALE
                         : [y] "+v"(*y), [t] "=&v"(t)
                         : [i] "m"(*from), [u] "v"(u), [k] "v"(k));
    else
        __asm__ volatile(CONVERT SCALE : [y] "+v"(*y), [t] "=&v"(t) : [i] "m"(*from), [u] "v"(u));
}

/* Scales a block, which is odd or not; v are its scales, as decode_scales() lays them out. */
AMX_INLINE void take_block(enum pack_form form, int odd, int rows, const float *v,
                           const struct matmul_record *a, const struct place *ahead,
                           int32_t (*const dots)[TILE_ROWS][PACK_OUTPUTS], __m512 sums[TILE_ROWS]) {
    __m512 d = _mm512_load_ps(v), m = _mm512_load_ps(v + PACK_OUTPUTS);
    UNROLL
    for (int r = 0; r < rows; r++) {
        tile_work(odd, r, rows, ahead, dots);
        __asm__ volatile("" : "+r"(a)); /* no multiplication is to be moved up either */
        add_block(r % 2, dots[odd][r], _mm512_mul_ps(d, _mm512_set1_ps(a[r].scale)), &sums[r]);
        if (form == PACK_SCALE_MIN)
            sums[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(a[r].scale_sum), sums[r]);
    }
}

AMX_INLINE void load_sums(int rows, int panel, const struct tile *t, __m512 sums[TILE_ROWS]) {
    UNROLL
    for (int r = 0; r < rows; r++)
        sums[r] = t->first ? _mm512_setzero_ps()
                           : _mm512_load_ps(t->sums + (r * MATMUL_PANELS + panel) * PACK_OUTPUTS);
}

AMX_INLINE void keep_sums(int rows, int panel, const struct tile *t, const __m512 sums[TILE_ROWS]) {
    UNROLL
    for (int r = 0; r < rows; r++)
        _mm512_store_ps(t->sums + (r * MATMUL_PANELS + panel) * PACK_OUTPUTS, sums[r]);
}

/* The blocks of panels first … end-1. */
AMX_INLINE void stream(enum pack_form form, int rows, int first, int end, const struct tile *t) {
    enum { N = MATMUL_SCALES * PACK_OUTPUTS };
    struct place ahead = {t->codes[first], t->q, first, 0};
    for (int odd = 0; odd < 2; odd++) {
        load_activations(&ahead);
        load_codes(&ahead);
        multiply(odd);
        if (!odd) store_dots(0, t->dots);
        step(&ahead, rows, end, t);
    }
    for (int p = first; p < end; p++) {
        const float *v = t->scales[p];
        const struct matmul_record *a = t->records;
        __m512 sums[TILE_ROWS];
        load_sums(rows, p, t, sums);
        for (int b = 0; b + 1 < t->n_blocks; b += 2) {
            if (!p) prefetch_next(t, t->n_panels, b);
            take_block(form, 0, rows, v, a, &ahead, t->dots, sums);
            step(&ahead, rows, end, t);
            if (!p) prefetch_next(t, t->n_panels, b + 1);
            take_block(form, 1, rows, v + N, a + rows, &ahead, t->dots, sums);
            step(&ahead, rows, end, t);
            v += 2 * (size_t)N;
            a += 2 * (size_t)rows;
        }
        if (t->n_blocks % 2) {
            if (!p) prefetch_next(t, t->n_panels, t->n_blocks - 1);
            take_block(form, 0, rows, v, a, &ahead, t->dots, sums);
        }
        keep_sums(rows, p, t, sums);
    }
}

/* Each panel begins with an even block: of an odd number, each is a stream of its own. */
AMX_INLINE void tile_panels(enum pack_form form, int rows, const struct tile *t) {
    int together = t->n_blocks % 2 ? 1 : t->n_panels;
    for (int p = 0; p < t->n_panels; p += together)
        stream(form, rows, p, p + together, t);
}

/* One body for each number of rows, so that all sums are registers: 12 rows at least are cut into
 * near equal tiles of at most 16, so that one has 8 or more. */
AMX_INLINE void tile_form(enum pack_form form, int rows, const struct tile *t) {
    switch (rows) {
#define ROWS(n)                                                                                    \
    case n:                                                                                        \
        tile_panels(form, n, t);                                                                   \
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
