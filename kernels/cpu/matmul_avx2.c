/* Matrix products with AVX2.
 *
 * vpmaddubsw multiplies unsigned codes by signed activations and adds neighbours in 16 bits; a pair
 * can't saturate (63 * 127 * 2 < 32768), and further additions wrap modulo 2^16, so it is enough
 * that the final sum fits: the sums start at -offset * (activations of those columns), which bounds
 * the block's total by 16 * 127 * 16 = 32512 with codes of 5 bits and 32 * 127 * 8 with half blocks
 * of 6.  Codes of 5 bits without an offset are summed by halves.  8-bit codes saturate as unsigned
 * ones, hence |w| times the activation with w's sign.
 *
 * GCC 12 reassociates and spills the integer sums when written with intrinsics; the two
 * instructions of a step are therefore an asm statement (70–80 -> 119–123 GMAC/s a Zen 3 core). */
#include "kernels/cpu/matmul.h"

#include "kernels/cpu/lanes.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

enum { TILE_ROWS = MATMUL_ROWS_AVX2, READS_BYTES = 1 };

#include "kernels/cpu/matmul.inc"

#define AVX2_INLINE static inline __attribute__((always_inline))

/* ---- decoding ---- */

AVX2_INLINE __m256i load(const uint8_t *from) {
    return _mm256_loadu_si256((const __m256i_u *)(const void *)from);
}

/* Bit `bit` of each byte as 16 or 0. */
AVX2_INLINE __m256i bit_as_16(__m256i bytes, int bit) {
    __m256i mask = _mm256_set1_epi8((char)(1 << bit));
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, mask), mask);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

/* Bits 2 v and 2 v + 1 of each byte, times 16. */
AVX2_INLINE __m256i pair_times_16(__m256i bytes, int v) {
    __m256i pair = _mm256_and_si256(_mm256_srli_epi16(bytes, 2 * v), _mm256_set1_epi8(3));
    return _mm256_slli_epi16(pair, 4);
}

AVX2_INLINE void decode_codes(int bits, const uint8_t *from, uint8_t *to) {
    __m256i low = _mm256_set1_epi8(15);
    for (int half = 0; half < PACK_STEP; half += 32)
        for (int v = 0; v < 4; v++) {
            __m256i packed = load(from + v * PACK_STEP + half);
            __m256i even = _mm256_and_si256(packed, low);
            __m256i odd = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
            if (bits == 5) {
                __m256i high = load(from + 4 * PACK_STEP + half);
                even = _mm256_or_si256(even, bit_as_16(high, v));
                odd = _mm256_or_si256(odd, bit_as_16(high, v + 4));
            }
            if (bits == 6) {
                even = _mm256_or_si256(even, pair_times_16(load(from + 4 * PACK_STEP + half), v));
                odd = _mm256_or_si256(odd, pair_times_16(load(from + 5 * PACK_STEP + half), v));
            }
            _mm256_store_si256((__m256i *)(void *)(to + v * PACK_STEP + half), even);
            _mm256_store_si256((__m256i *)(void *)(to + (4 + v) * PACK_STEP + half), odd);
        }
}

AVX2_INLINE __m256 load_f16(const uint8_t *from) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)(const void *)from));
}

AVX2_INLINE __m256i load_8(bool is_signed, const uint8_t *from) {
    __m128i bytes = _mm_loadl_epi64((const __m128i_u *)(const void *)from);
    return is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
}

AVX2_INLINE __m256 load_u8(const uint8_t *from) { return _mm256_cvtepi32_ps(load_8(false, from)); }

AVX2_INLINE __m256 negative(__m256 a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }

/* A sub-scale twice in each 32-bit lane: what vpmaddwd multiplies a half's two 16-bit sums by. */
AVX2_INLINE __m256 doubled(__m256i scale) {
    __m256i low = _mm256_and_si256(scale, _mm256_set1_epi32(0xffff));
    return _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_slli_epi32(scale, 16)));
}

/* Vectors of a block's scales: d, then by form m; or doubled s of both halves, then m and t of both
 * halves. */
AVX2_INLINE void decode_scales(enum pack_form form, const uint8_t *scale, const uint8_t *super,
                               float *to) {
    enum { N = PACK_OUTPUTS };
    for (int o = 0; o < N; o += 8, to += 8) {
        const uint8_t *d = super + 2 * o;
        if (form == PACK_SCALE || form == PACK_SCALE_MIN)
            _mm256_store_ps(to, load_f16(scale + 2 * o));
        if (form == PACK_SCALE_MIN) _mm256_store_ps(to + N, load_f16(scale + 32 + 2 * o));
        if (form == PACK_SUPER_MIN) {
            _mm256_store_ps(to, _mm256_mul_ps(load_f16(d), load_u8(scale + o)));
            __m256 m = _mm256_mul_ps(negative(load_f16(d + 32)), load_u8(scale + 16 + o));
            _mm256_store_ps(to + N, m);
        }
        if (form == PACK_SUB || form == PACK_SUB_MIN) {
            _mm256_store_ps(to, load_f16(d));
            _mm256_store_ps(to + N, doubled(load_8(form == PACK_SUB, scale + o)));
            _mm256_store_ps(to + 2 * N, doubled(load_8(form == PACK_SUB, scale + 16 + o)));
        }
        if (form == PACK_SUB_MIN) {
            _mm256_store_ps(to + 3 * N, negative(load_f16(d + 32)));
            _mm256_store_ps(to + 4 * N, load_u8(scale + 32 + o));
            _mm256_store_ps(to + 5 * N, load_u8(scale + 48 + o));
        }
    }
}

AVX2_INLINE void decode_form(enum pack_form form, int bits, const struct pack *w,
                             const uint8_t *panel, int first, int n, uint8_t *codes,
                             float *scales) {
    const uint8_t *from = panel + (size_t)first * w->code_bytes;
    const uint8_t *scale = panel + w->scale_at + (size_t)first * w->scale_bytes;
    for (int b = first; b < first + n; b++) {
        if (bits != 8) {
            decode_codes(bits, from, codes);
            from += w->code_bytes;
            codes += PACK_CODES;
        }
        decode_scales(form, scale,
                      panel + w->super_at + (size_t)(b / PACK_SUPER_BLOCKS) * w->super_bytes,
                      scales);
        scale += w->scale_bytes;
        scales += MATMUL_SCALES * PACK_OUTPUTS;
    }
}

static void decode(const struct pack *w, const uint8_t *panel, int first, int n, uint8_t *codes,
                   float *scales) {
    switch (w->form) {
    case PACK_SCALE:
        if (w->code_bits == 4) decode_form(PACK_SCALE, 4, w, panel, first, n, codes, scales);
        if (w->code_bits == 5) decode_form(PACK_SCALE, 5, w, panel, first, n, codes, scales);
        if (w->code_bits == 8) decode_form(PACK_SCALE, 8, w, panel, first, n, codes, scales);
        return;
    case PACK_SCALE_MIN:
        if (w->code_bits == 4) decode_form(PACK_SCALE_MIN, 4, w, panel, first, n, codes, scales);
        if (w->code_bits == 5) decode_form(PACK_SCALE_MIN, 5, w, panel, first, n, codes, scales);
        return;
    case PACK_SUPER_MIN:
        if (w->code_bits == 4) decode_form(PACK_SUPER_MIN, 4, w, panel, first, n, codes, scales);
        if (w->code_bits == 5) decode_form(PACK_SUPER_MIN, 5, w, panel, first, n, codes, scales);
        return;
    case PACK_SUB:
        if (w->code_bits == 4) decode_form(PACK_SUB, 4, w, panel, first, n, codes, scales);
        if (w->code_bits == 6) decode_form(PACK_SUB, 6, w, panel, first, n, codes, scales);
        return;
    case PACK_SUB_MIN:
        decode_form(PACK_SUB_MIN, 4, w, panel, first, n, codes, scales);
        return;
    case PACK_DENSE:
        break;
    }
    BUG_ON(true);
}

/* ---- sums ---- */

/* acc += neighbouring products of unsigned w and signed a, in 16 bits. */
AVX2_INLINE void multiply_add(__m256i *acc, __m256i w, __m256i a) {
    __m256i product;
    __asm__ volatile("vpmaddubsw %3, %2, %1\n\t"
                     "vpaddw %1, %0, %0"
                     : "+x"(*acc), "=&x"(product)
                     : "x"(w), "x"(a));
}

AVX2_INLINE __m256i broadcast4(const int8_t *q) {
    int32_t four;
    memcpy(&four, q, 4);
    return _mm256_set1_epi32(four);
}

/* Four steps in 16-bit sums of [row][8 outputs]. */
AVX2_INLINE void dot_steps(int rows, int first_step, const uint8_t *codes, const int8_t *q,
                           __m256i acc[TILE_ROWS][2]) {
    for (int s = first_step; s < first_step + 4; s++) {
        __m256i w0 = load(codes + s * PACK_STEP), w1 = load(codes + s * PACK_STEP + 32);
        for (int r = 0; r < rows; r++) {
            __m256i a = broadcast4(q + 4 * (s * rows + r));
            multiply_add(&acc[r][0], w0, a);
            multiply_add(&acc[r][1], w1, a);
        }
    }
}

/* Eight steps of 8-bit codes in 32-bit sums. */
AVX2_INLINE void dot_bytes(int rows, const uint8_t *codes, const int8_t *q,
                           __m256i acc[TILE_ROWS][2]) {
    __m256i one = _mm256_set1_epi16(1);
    for (int s = 0; s < PACK_STEPS; s++)
        for (int i = 0; i < 2; i++) {
            __m256i w = load(codes + s * PACK_STEP + 32 * i), magnitude = _mm256_abs_epi8(w);
            for (int r = 0; r < rows; r++) {
                __m256i a = _mm256_sign_epi8(broadcast4(q + 4 * (s * rows + r)), w);
                __m256i pairs = _mm256_maddubs_epi16(magnitude, a);
                acc[r][i] = _mm256_add_epi32(acc[r][i], _mm256_madd_epi16(pairs, one));
            }
        }
}

AVX2_INLINE void start(enum pack_form form, int rows, const struct matmul_record *record, int half,
                       __m256i acc[TILE_ROWS][2]) {
    for (int r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = form == PACK_SCALE || form == PACK_SUB
                                    ? _mm256_set1_epi32(record[r].init[half])
                                    : _mm256_setzero_si256();
}

/* The block's integers I of all rows: of sub-scaled forms, already times s. */
AVX2_INLINE void dot_block(enum pack_form form, int bits, int rows, const uint8_t *codes,
                           const float *v, const int8_t *q, const struct matmul_record *record,
                           __m256i dot[TILE_ROWS][2]) {
    enum { N = PACK_OUTPUTS };
    bool sub = form == PACK_SUB || form == PACK_SUB_MIN;
    bool by_halves = sub || (bits == 5 && form == PACK_SCALE_MIN);
    __m256i acc[TILE_ROWS][2];
    if (bits == 8) {
        for (int r = 0; r < rows; r++)
            dot[r][0] = dot[r][1] = _mm256_setzero_si256();
        dot_bytes(rows, codes, q, dot);
        return;
    }
    start(form, rows, record, 0, acc);
    for (int h = 0; h < 2; h++) {
        if (h && by_halves) start(form, rows, record, 1, acc);
        dot_steps(rows, 4 * h, codes, q, acc);
        if (!h && !by_halves) continue;
        for (int i = 0; i < 2; i++) {
            __m256i scale = _mm256_set1_epi16(1);
            if (sub) scale = _mm256_castps_si256(_mm256_load_ps(v + (1 + h) * N + 8 * i));
            for (int r = 0; r < rows; r++) {
                __m256i wide = _mm256_madd_epi16(acc[r][i], scale);
                dot[r][i] = h && by_halves ? _mm256_add_epi32(dot[r][i], wide) : wide;
            }
        }
    }
}

/* Adds the block to 16 sums of one row, which stay in memory: a tile's do not fit beside the
 * integers, and held over the loop the compiler would spill them and store them as well. */
AVX2_INLINE void add_block(enum pack_form form, const __m256i dot[2], const float *v,
                           const struct matmul_record *a, float *sums) {
    enum { N = PACK_OUTPUTS };
    __m256 scale = _mm256_broadcast_ss(&a->scale);
    for (int i = 0; i < 2; i++, v += 8, sums += 8) {
        __m256 d = _mm256_mul_ps(_mm256_load_ps(v), scale);
        __m256 sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[i]), d, _mm256_load_ps(sums));
        if (form == PACK_SCALE_MIN)
            sum = _mm256_fmadd_ps(_mm256_load_ps(v + N), _mm256_broadcast_ss(&a->scale_sum), sum);
        if (form == PACK_SUB_MIN) {
            __m256 m = _mm256_mul_ps(_mm256_set1_ps((float)a->init[0]), _mm256_load_ps(v + 4 * N));
            m = _mm256_fmadd_ps(_mm256_set1_ps((float)a->init[1]), _mm256_load_ps(v + 5 * N), m);
            sum = _mm256_fmadd_ps(m, _mm256_mul_ps(_mm256_load_ps(v + 3 * N), scale), sum);
        }
        _mm256_store_ps(sums, sum);
    }
}

AVX2_INLINE void tile_rows(enum pack_form form, int bits, int rows, int panel,
                           const struct tile *t) {
    enum { N = PACK_OUTPUTS };
    float *sums = t->sums + panel * N;
    for (int r = 0; r < rows && t->first; r++)
        memset(sums + r * MATMUL_PANELS * N, 0, N * sizeof *sums);
    const uint8_t *codes = t->codes[panel];
    const float *v = t->scales[panel];
    const int8_t *q = t->q;
    const struct matmul_record *record = t->records;
    for (int b = 0; b < t->n_blocks; b++) {
        __m256i dot[TILE_ROWS][2];
        if (!panel) prefetch_next(t, t->n_panels, b);
        dot_block(form, bits, rows, codes, v, q, record, dot);
        for (int r = 0; r < rows; r++)
            add_block(form, dot[r], v, record + r, sums + r * MATMUL_PANELS * N);
        codes += PACK_CODES;
        v += MATMUL_SCALES * N;
        q += PACK_COLUMNS * rows;
        record += rows;
        __asm__ volatile("" ::: "memory");
    }
}

/* One function for each number of rows, so that all sums are registers. */
AVX2_INLINE void tile_form(enum pack_form form, int bits, int rows, const struct tile *t) {
    for (int p = 0; p < t->n_panels; p++) {
        if (rows == 1)
            tile_rows(form, bits, 1, p, t);
        else if (rows == 2)
            tile_rows(form, bits, 2, p, t);
        else if (rows == 3)
            tile_rows(form, bits, 3, p, t);
        else
            tile_rows(form, bits, 4, p, t);
    }
}

/* Codes of 4 and 6 bits go the way of 5 where that is the same. */
static void tile_scale(int rows, const struct tile *t) { tile_form(PACK_SCALE, 5, rows, t); }
static void tile_scale8(int rows, const struct tile *t) { tile_form(PACK_SCALE, 8, rows, t); }
static void tile_min4(int rows, const struct tile *t) { tile_form(PACK_SCALE_MIN, 4, rows, t); }
static void tile_min5(int rows, const struct tile *t) { tile_form(PACK_SCALE_MIN, 5, rows, t); }
static void tile_sub(int rows, const struct tile *t) { tile_form(PACK_SUB, 6, rows, t); }
static void tile_sub_min(int rows, const struct tile *t) { tile_form(PACK_SUB_MIN, 4, rows, t); }

static void run_tile(enum pack_form form, int code_bits, int rows, const struct tile *t) {
    if (form == PACK_SCALE && code_bits == 8)
        tile_scale8(rows, t);
    else if (form == PACK_SCALE)
        tile_scale(rows, t);
    else if (form == PACK_SUB)
        tile_sub(rows, t);
    else if (form == PACK_SUB_MIN)
        tile_sub_min(rows, t);
    else if (code_bits == 5)
        tile_min5(rows, t);
    else
        tile_min4(rows, t);
}

void matmul_avx2(const struct matmul_job *j, struct matmul_scratch *s, int begin, int end) {
    run_pairs(j, s, begin, end);
}

#endif
