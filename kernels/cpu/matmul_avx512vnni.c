/* Matrix products with AVX-512 VNNI.
 *
 * vpdpbusd adds 4 products of unsigned codes and signed activations to each of 16 outputs' 32-bit
 * sums, with no saturation: a step of 64 bytes is one instruction for 16 outputs and one row.  The
 * sums start at -offset * (sum of the activations), so the codes' offset costs nothing.  A tile of
 * 6 rows x 32 outputs keeps 12 integer and 12 float sums in registers, and each broadcast of 4
 * activations serves two instructions. */
#include "kernels/cpu/matmul.h"

#include "kernels/cpu/lanes.h"

#if defined(__AVX512VNNI__)

enum { TILE_ROWS = MATMUL_ROWS_AVX512VNNI, READS_BYTES = 1 };

#include "kernels/cpu/matmul.inc"

#include "kernels/cpu/decode512.inc"

static void decode(const struct pack *w, const uint8_t *panel, int first, int n, uint8_t *codes,
                   float *scales) {
    decode512(w, panel, first, n, false, codes, scales);
}

static inline __attribute__((always_inline)) __m512i broadcast4(const int8_t *q) {
    int32_t four;
    memcpy(&four, q, 4);
    return _mm512_set1_epi32(four);
}

/* acc += products of unsigned w and signed a, four in each of 16 sums.  As an asm statement, since
 * GCC 12 loads the weights anew for each row when it is written as an intrinsic: then loads are the
 * limit. */
static inline __attribute__((always_inline)) void multiply_add(__m512i *acc, __m512i w, __m512i a) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*acc) : "v"(w), "v"(a));
}

/* Integer sums of `steps` steps for all rows and panels of a tile. */
static inline __attribute__((always_inline)) void dot_steps(int rows, int panels, int first_step,
                                                            int steps, const uint8_t *const codes[],
                                                            const int8_t *q,
                                                            __m512i acc[TILE_ROWS][MATMUL_PANELS]) {
    for (int s = first_step; s < first_step + steps; s++) {
        __m512i w[MATMUL_PANELS];
        for (int p = 0; p < panels; p++)
            w[p] = _mm512_load_si512(codes[p] + s * PACK_STEP);
        for (int r = 0; r < rows; r++) {
            __m512i a = broadcast4(q + 4 * (s * rows + r));
            for (int p = 0; p < panels; p++)
                multiply_add(&acc[r][p], w[p], a);
        }
    }
}

/* The block's integers as floats: of sub-scaled forms, already times s. */
static inline __attribute__((always_inline)) void
dot_block(enum pack_form form, int rows, int panels, const uint8_t *const codes[],
          const float *const v[], const int8_t *q, const struct matmul_record *record,
          __m512 dot[TILE_ROWS][MATMUL_PANELS]) {
    bool halves = form == PACK_SUB || form == PACK_SUB_MIN;
    for (int h = 0; h < (halves ? 2 : 1); h++) {
        __m512i acc[TILE_ROWS][MATMUL_PANELS];
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < panels; p++)
                acc[r][p] = form == PACK_SCALE || form == PACK_SUB
                                ? _mm512_set1_epi32(record[r].init[h])
                                : _mm512_setzero_si512();
        dot_steps(rows, panels, 4 * h, halves ? 4 : 8, codes, q, acc);
        for (int p = 0; p < panels; p++) {
            __m512 s = _mm512_load_ps(v[p] + (halves ? 1 + h : 0) * PACK_OUTPUTS);
            for (int r = 0; r < rows; r++) {
                __m512 i = _mm512_cvtepi32_ps(acc[r][p]);
                dot[r][p] = !halves ? i
                            : h     ? _mm512_fmadd_ps(i, s, dot[r][p])
                                    : _mm512_mul_ps(i, s);
            }
        }
    }
}

static inline __attribute__((always_inline)) __m512 add_block(enum pack_form form, __m512 dot,
                                                              const float *v,
                                                              const struct matmul_record *a,
                                                              __m512 sum) {
    enum { N = PACK_OUTPUTS };
    __m512 scale = _mm512_set1_ps(a->scale);
    sum = _mm512_fmadd_ps(dot, _mm512_mul_ps(_mm512_load_ps(v), scale), sum);
    if (form == PACK_SCALE_MIN)
        sum = _mm512_fmadd_ps(_mm512_load_ps(v + N), _mm512_set1_ps(a->scale_sum), sum);
    if (form == PACK_SUB_MIN) {
        __m512 m = _mm512_mul_ps(_mm512_set1_ps((float)a->init[0]), _mm512_load_ps(v + 4 * N));
        m = _mm512_fmadd_ps(_mm512_set1_ps((float)a->init[1]), _mm512_load_ps(v + 5 * N), m);
        sum = _mm512_fmadd_ps(m, _mm512_mul_ps(_mm512_load_ps(v + 3 * N), scale), sum);
    }
    return sum;
}

static inline __attribute__((always_inline)) void tile_rows(enum pack_form form, int rows,
                                                            int panels, const struct tile *t) {
    enum { N = PACK_OUTPUTS };
    __m512 sums[TILE_ROWS][MATMUL_PANELS];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < panels; p++)
            sums[r][p] = t->first ? _mm512_setzero_ps()
                                  : _mm512_load_ps(t->sums + (r * MATMUL_PANELS + p) * N);
    const uint8_t *codes[MATMUL_PANELS];
    const float *v[MATMUL_PANELS];
    for (int p = 0; p < panels; p++) {
        codes[p] = t->codes[p];
        v[p] = t->scales[p];
    }
    const int8_t *q = t->q;
    const struct matmul_record *record = t->records;
    for (int b = 0; b < t->n_blocks; b++) {
        __m512 dot[TILE_ROWS][MATMUL_PANELS];
        prefetch_next(t, panels, b);
        dot_block(form, rows, panels, codes, v, q, record, dot);
        for (int p = 0; p < panels; p++)
            for (int r = 0; r < rows; r++)
                sums[r][p] = add_block(form, dot[r][p], v[p], &record[r], sums[r][p]);
        for (int p = 0; p < panels; p++) {
            codes[p] += PACK_CODES;
            v[p] += MATMUL_SCALES * N;
        }
        q += PACK_COLUMNS * rows;
        record += rows;
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < panels; p++)
            _mm512_store_ps(t->sums + (r * MATMUL_PANELS + p) * N, sums[r][p]);
}

/* One function for each number of rows, so that all sums are registers. */
static inline __attribute__((always_inline)) void tile_panels(enum pack_form form, int panels,
                                                              int rows, const struct tile *t) {
    if (rows == 1)
        tile_rows(form, 1, panels, t);
    else if (rows == 2)
        tile_rows(form, 2, panels, t);
    else if (rows == 3)
        tile_rows(form, 3, panels, t);
    else if (rows == 4)
        tile_rows(form, 4, panels, t);
    else if (rows == 5)
        tile_rows(form, 5, panels, t);
    else
        tile_rows(form, 6, panels, t);
}

static void tile_scale(int rows, const struct tile *t) { tile_panels(PACK_SCALE, 2, rows, t); }
static void tile_scale_1(int rows, const struct tile *t) { tile_panels(PACK_SCALE, 1, rows, t); }
static void tile_min(int rows, const struct tile *t) { tile_panels(PACK_SCALE_MIN, 2, rows, t); }
static void tile_min_1(int rows, const struct tile *t) { tile_panels(PACK_SCALE_MIN, 1, rows, t); }
static void tile_sub(int rows, const struct tile *t) { tile_panels(PACK_SUB, 2, rows, t); }
static void tile_sub_1(int rows, const struct tile *t) { tile_panels(PACK_SUB, 1, rows, t); }
static void tile_sub_min(int rows, const struct tile *t) { tile_panels(PACK_SUB_MIN, 2, rows, t); }
static void tile_sub_min_1(int rows, const struct tile *t) {
    tile_panels(PACK_SUB_MIN, 1, rows, t);
}

static void run_tile(enum pack_form form, int code_bits, int rows, const struct tile *t) {
    bool one = t->n_panels == 1; /* the last of an odd number */
    (void)code_bits;
    if (form == PACK_SCALE)
        (one ? tile_scale_1 : tile_scale)(rows, t);
    else if (form == PACK_SCALE_MIN || form == PACK_SUPER_MIN)
        (one ? tile_min_1 : tile_min)(rows, t);
    else if (form == PACK_SUB)
        (one ? tile_sub_1 : tile_sub)(rows, t);
    else
        (one ? tile_sub_min_1 : tile_sub_min)(rows, t);
}

void matmul_avx512vnni(const struct matmul_job *j, struct matmul_scratch *s, int begin, int end) {
    run_pairs(j, s, begin, end);
}

#endif
