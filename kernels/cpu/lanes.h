/* 16 floats at once, in three forms with equal results: AVX-512, AVX2 with FMA, plain C.
 *
 * Every operation here is one IEEE operation a lane, or a fixed tree of them; so code written with
 * these gives bitwise the same numbers whichever form it is compiled to.  The including file's
 * compiler flags choose (kernels/cpu/isa.cmake).  Only for kernels/cpu/vector.inc and matmul_*.c:
 * it is code, inlined, internal to one object file. */
#ifndef KERNELS_CPU_LANES_H
#define KERNELS_CPU_LANES_H

#include "kernels/quant.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))
#include <immintrin.h>
#endif

enum { LANES = 16 };
/* In plain C the compiler may call them: inlined by force, sanitizers make it take minutes. */
#if defined(__AVX2__)
#define LANES_INLINE static inline __attribute__((always_inline, unused))
#else
#define LANES_INLINE static inline __attribute__((unused))
#endif

#if defined(__AVX512F__)
/* ---- AVX-512 ---- */
enum { LANES_QUERIES = 4 }; /* queries that attention keeps in registers */

struct lanes {
    __m512 v;
};
LANES_INLINE struct lanes lanes_set(float x) { return (struct lanes){_mm512_set1_ps(x)}; }
LANES_INLINE struct lanes lanes_load(const float *p) { return (struct lanes){_mm512_loadu_ps(p)}; }
LANES_INLINE void lanes_store(float *p, struct lanes a) { _mm512_storeu_ps(p, a.v); }
LANES_INLINE struct lanes lanes_load_f16(const uint16_t *p) {
    return (struct lanes){_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)p))};
}
LANES_INLINE void lanes_store_f16(uint16_t *p, struct lanes a) {
    _mm256_storeu_si256((__m256i_u *)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
LANES_INLINE struct lanes lanes_load_bf16(const uint16_t *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)p));
    return (struct lanes){_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
LANES_INLINE struct lanes lanes_add(struct lanes a, struct lanes b) {
    return (struct lanes){_mm512_add_ps(a.v, b.v)};
}
LANES_INLINE struct lanes lanes_sub(struct lanes a, struct lanes b) {
    return (struct lanes){_mm512_sub_ps(a.v, b.v)};
}
LANES_INLINE struct lanes lanes_mul(struct lanes a, struct lanes b) {
    return (struct lanes){_mm512_mul_ps(a.v, b.v)};
}
LANES_INLINE struct lanes lanes_div(struct lanes a, struct lanes b) {
    return (struct lanes){_mm512_div_ps(a.v, b.v)};
}
LANES_INLINE struct lanes lanes_fma(struct lanes a, struct lanes b, struct lanes c) {
    return (struct lanes){_mm512_fmadd_ps(a.v, b.v, c.v)};
}
/* The second operand where either is NaN, as the instructions have it. */
LANES_INLINE struct lanes lanes_max(struct lanes a, struct lanes b) {
    return (struct lanes){_mm512_max_ps(a.v, b.v)};
}
LANES_INLINE struct lanes lanes_min(struct lanes a, struct lanes b) {
    return (struct lanes){_mm512_min_ps(a.v, b.v)};
}
LANES_INLINE struct lanes lanes_abs(struct lanes a) { return (struct lanes){_mm512_abs_ps(a.v)}; }
/* Bit i: a[i] > b[i]. */
LANES_INLINE uint32_t lanes_greater(struct lanes a, struct lanes b) {
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ);
}
/* y where a > b, else 0. */
LANES_INLINE struct lanes lanes_where_greater(struct lanes a, struct lanes b, struct lanes y) {
    return (struct lanes){_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), y.v)};
}
/* a * 2^n for integers n in lanes, -126 … 127; a near 1. */
LANES_INLINE struct lanes lanes_scale(struct lanes a, struct lanes n) {
    __m512i bits = _mm512_slli_epi32(_mm512_cvtps_epi32(n.v), 23);
    return (struct lanes){_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), bits))};
}
/* The lanes whose bit is set, one after the other; their indices, counted from `first`.  Room for
 * 16 is needed: what follows them may be overwritten. */
LANES_INLINE void lanes_pack(float *to, struct lanes a, uint32_t bits) {
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps((__mmask16)bits, a.v));
}
LANES_INLINE void lanes_pack_indices(int32_t *to, int32_t first, uint32_t bits) {
    __m512i each = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    each = _mm512_add_epi32(each, _mm512_set1_epi32(first));
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32((__mmask16)bits, each));
}
/* 32 signed bytes: nearest integers of lanes within -127 … 127. */
LANES_INLINE __m256i lanes_bytes(struct lanes a, struct lanes b) {
    __m128i low = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v));
    __m128i high = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(b.v));
    return _mm256_set_m128i(high, low);
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
/* ---- AVX2 ---- */
enum { LANES_QUERIES = 2 };

struct lanes {
    __m256 v[2];
};
#define LANES_TWICE(expression0, expression1)                                                      \
    (struct lanes) {                                                                               \
        { expression0, expression1 }                                                               \
    }
LANES_INLINE struct lanes lanes_set(float x) {
    return LANES_TWICE(_mm256_set1_ps(x), _mm256_set1_ps(x));
}
LANES_INLINE struct lanes lanes_load(const float *p) {
    return LANES_TWICE(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
LANES_INLINE void lanes_store(float *p, struct lanes a) {
    _mm256_storeu_ps(p, a.v[0]);
    _mm256_storeu_ps(p + 8, a.v[1]);
}
LANES_INLINE struct lanes lanes_load_f16(const uint16_t *p) {
    return LANES_TWICE(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)p)),
                       _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)(p + 8))));
}
LANES_INLINE void lanes_store_f16(uint16_t *p, struct lanes a) {
    _mm_storeu_si128((__m128i_u *)p, _mm256_cvtps_ph(a.v[0], _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i_u *)(p + 8), _mm256_cvtps_ph(a.v[1], _MM_FROUND_TO_NEAREST_INT));
}
LANES_INLINE __m256 lanes_half_bf16(const uint16_t *p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i_u *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
LANES_INLINE struct lanes lanes_load_bf16(const uint16_t *p) {
    return LANES_TWICE(lanes_half_bf16(p), lanes_half_bf16(p + 8));
}
LANES_INLINE struct lanes lanes_add(struct lanes a, struct lanes b) {
    return LANES_TWICE(_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1]));
}
LANES_INLINE struct lanes lanes_sub(struct lanes a, struct lanes b) {
    return LANES_TWICE(_mm256_sub_ps(a.v[0], b.v[0]), _mm256_sub_ps(a.v[1], b.v[1]));
}
LANES_INLINE struct lanes lanes_mul(struct lanes a, struct lanes b) {
    return LANES_TWICE(_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1]));
}
LANES_INLINE struct lanes lanes_div(struct lanes a, struct lanes b) {
    return LANES_TWICE(_mm256_div_ps(a.v[0], b.v[0]), _mm256_div_ps(a.v[1], b.v[1]));
}
LANES_INLINE struct lanes lanes_fma(struct lanes a, struct lanes b, struct lanes c) {
    return LANES_TWICE(_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]),
                       _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1]));
}
LANES_INLINE struct lanes lanes_max(struct lanes a, struct lanes b) {
    return LANES_TWICE(_mm256_max_ps(a.v[0], b.v[0]), _mm256_max_ps(a.v[1], b.v[1]));
}
LANES_INLINE struct lanes lanes_min(struct lanes a, struct lanes b) {
    return LANES_TWICE(_mm256_min_ps(a.v[0], b.v[0]), _mm256_min_ps(a.v[1], b.v[1]));
}
LANES_INLINE struct lanes lanes_abs(struct lanes a) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return LANES_TWICE(_mm256_andnot_ps(sign, a.v[0]), _mm256_andnot_ps(sign, a.v[1]));
}
LANES_INLINE uint32_t lanes_greater(struct lanes a, struct lanes b) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.v[0], b.v[0], _CMP_GT_OQ)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.v[1], b.v[1], _CMP_GT_OQ)) << 8;
}
LANES_INLINE struct lanes lanes_where_greater(struct lanes a, struct lanes b, struct lanes y) {
    return LANES_TWICE(_mm256_and_ps(_mm256_cmp_ps(a.v[0], b.v[0], _CMP_GT_OQ), y.v[0]),
                       _mm256_and_ps(_mm256_cmp_ps(a.v[1], b.v[1], _CMP_GT_OQ), y.v[1]));
}
LANES_INLINE __m256 lanes_half_scale(__m256 a, __m256 n) {
    __m256i bits = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), bits));
}
LANES_INLINE struct lanes lanes_scale(struct lanes a, struct lanes n) {
    return LANES_TWICE(lanes_half_scale(a.v[0], n.v[0]), lanes_half_scale(a.v[1], n.v[1]));
}
LANES_INLINE __m256i lanes_bytes(struct lanes a, struct lanes b) {
    __m256i low = _mm256_packs_epi32(_mm256_cvtps_epi32(a.v[0]), _mm256_cvtps_epi32(a.v[1]));
    __m256i high = _mm256_packs_epi32(_mm256_cvtps_epi32(b.v[0]), _mm256_cvtps_epi32(b.v[1]));
    __m256i bytes = _mm256_packs_epi16(low, high);
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

#else
/* ---- plain C ---- */
enum { LANES_QUERIES = 1 };

struct lanes {
    float v[LANES];
};
#define LANES_EACH(expression)                                                                     \
    struct lanes r;                                                                                \
    for (int i = 0; i < LANES; i++)                                                                \
        r.v[i] = (expression);                                                                     \
    return r
LANES_INLINE struct lanes lanes_set(float x) { LANES_EACH(x); }
LANES_INLINE struct lanes lanes_load(const float *p) { LANES_EACH(p[i]); }
LANES_INLINE void lanes_store(float *p, struct lanes a) { memcpy(p, a.v, sizeof a.v); }
LANES_INLINE struct lanes lanes_load_f16(const uint16_t *p) { LANES_EACH(quant_f16_to_f32(p[i])); }
LANES_INLINE void lanes_store_f16(uint16_t *p, struct lanes a) {
    for (int i = 0; i < LANES; i++)
        p[i] = quant_f32_to_f16(a.v[i]);
}
LANES_INLINE struct lanes lanes_load_bf16(const uint16_t *p) {
    struct lanes r;
    for (int i = 0; i < LANES; i++) {
        uint32_t bits = (uint32_t)p[i] << 16;
        memcpy(&r.v[i], &bits, 4);
    }
    return r;
}
LANES_INLINE struct lanes lanes_add(struct lanes a, struct lanes b) { LANES_EACH(a.v[i] + b.v[i]); }
LANES_INLINE struct lanes lanes_sub(struct lanes a, struct lanes b) { LANES_EACH(a.v[i] - b.v[i]); }
LANES_INLINE struct lanes lanes_mul(struct lanes a, struct lanes b) { LANES_EACH(a.v[i] * b.v[i]); }
LANES_INLINE struct lanes lanes_div(struct lanes a, struct lanes b) { LANES_EACH(a.v[i] / b.v[i]); }
LANES_INLINE struct lanes lanes_fma(struct lanes a, struct lanes b, struct lanes c) {
    LANES_EACH(fmaf(a.v[i], b.v[i], c.v[i]));
}
LANES_INLINE struct lanes lanes_max(struct lanes a, struct lanes b) {
    LANES_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]);
}
LANES_INLINE struct lanes lanes_min(struct lanes a, struct lanes b) {
    LANES_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]);
}
LANES_INLINE struct lanes lanes_abs(struct lanes a) { LANES_EACH(fabsf(a.v[i])); }
LANES_INLINE uint32_t lanes_greater(struct lanes a, struct lanes b) {
    uint32_t r = 0;
    for (int i = 0; i < LANES; i++)
        r |= (uint32_t)(a.v[i] > b.v[i]) << i;
    return r;
}
LANES_INLINE struct lanes lanes_where_greater(struct lanes a, struct lanes b, struct lanes y) {
    LANES_EACH(a.v[i] > b.v[i] ? y.v[i] : 0);
}
/* Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even, as the
 * instructions do. */
LANES_INLINE int32_t lanes_nearest(float x) { return (int32_t)(x + 0x1.8p23f - 0x1.8p23f); }
LANES_INLINE struct lanes lanes_scale(struct lanes a, struct lanes n) {
    struct lanes r;
    for (int i = 0; i < LANES; i++) {
        uint32_t bits;
        memcpy(&bits, &a.v[i], 4);
        bits += (uint32_t)lanes_nearest(n.v[i]) << 23;
        memcpy(&r.v[i], &bits, 4);
    }
    return r;
}
#endif

/* ---- for all forms ---- */

/* Nearest integers of 32 lanes within -127 … 127 as bytes, and their sums in four parts: sums[2 h +
 * p] is that of the bytes i of half h (16 each) with i / 2 % 2 = p. */
LANES_INLINE void lanes_to_bytes(struct lanes a, struct lanes b, int8_t bytes[32],
                                 int32_t sums[4]) {
#if defined(__AVX2__)
    __m256i v = lanes_bytes(a, b);
    _mm256_storeu_si256((__m256i_u *)(void *)bytes, v);
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), v);
    pairs = _mm256_add_epi16(pairs, _mm256_srli_si256(pairs, 8));
    pairs = _mm256_add_epi16(pairs, _mm256_srli_si256(pairs, 4));
    int32_t low = _mm256_extract_epi32(pairs, 0), high = _mm256_extract_epi32(pairs, 4);
    sums[0] = (int16_t)low;
    sums[1] = low >> 16;
    sums[2] = (int16_t)high;
    sums[3] = high >> 16;
#else
    for (int i = 0; i < 16; i++) {
        bytes[i] = (int8_t)lanes_nearest(a.v[i]);
        bytes[i + 16] = (int8_t)lanes_nearest(b.v[i]);
    }
    for (int part = 0; part < 4; part++) {
        sums[part] = 0;
        for (int i = 0; i < 16; i++)
            if (i / 2 % 2 == part % 2) sums[part] += bytes[part / 2 * 16 + i];
    }
#endif
}

#if !defined(__AVX512F__)
LANES_INLINE void lanes_pack(float *to, struct lanes a, uint32_t bits) {
    float v[LANES];
    lanes_store(v, a);
    for (; bits; bits &= bits - 1)
        *to++ = v[__builtin_ctz(bits)];
}
LANES_INLINE void lanes_pack_indices(int32_t *to, int32_t first, uint32_t bits) {
    for (; bits; bits &= bits - 1)
        *to++ = first + __builtin_ctz(bits);
}
#endif
/* The first n of 16; zeros after them. */
LANES_INLINE struct lanes lanes_load_some(const float *p, int n) {
    if (n >= LANES) return lanes_load(p);
    float all[LANES] = {0};
    memcpy(all, p, (size_t)n * sizeof *p);
    return lanes_load(all);
}
LANES_INLINE void lanes_store_some(float *p, struct lanes a, int n) {
    if (n >= LANES) {
        lanes_store(p, a);
        return;
    }
    float all[LANES];
    lanes_store(all, a);
    memcpy(p, all, (size_t)n * sizeof *p);
}

/* Sum of all lanes: halves added, four times; and the same with the larger of two. */
#if defined(__AVX2__)
LANES_INLINE void lanes_halves(struct lanes a, __m256 *low, __m256 *high) {
#if defined(__AVX512F__)
    *low = _mm512_castps512_ps256(a.v);
    *high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
#else
    *low = a.v[0];
    *high = a.v[1];
#endif
}
LANES_INLINE float lanes_sum(struct lanes a) {
    __m256 low, high;
    lanes_halves(a, &low, &high);
    __m256 eight = _mm256_add_ps(low, high);
    __m128 v = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}
LANES_INLINE float lanes_max_of(struct lanes a) {
    __m256 low, high;
    lanes_halves(a, &low, &high);
    __m256 eight = _mm256_max_ps(low, high);
    __m128 v = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)));
}
#else
LANES_INLINE float lanes_sum(struct lanes a) {
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            a.v[i] += a.v[i + half];
    return a.v[0];
}
LANES_INLINE float lanes_max_of(struct lanes a) {
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    return a.v[0];
}
#endif

/* e^x with a relative error below 3e-7; 0 up to -87 and for NaN, and x above 88 gives e^88.
 * Cody-Waite reduction by ln 2, then the Taylor polynomial of degree 6 on ±ln(2)/2. */
LANES_INLINE struct lanes lanes_exp(struct lanes x) {
    struct lanes c = lanes_min(lanes_max(x, lanes_set(-87.0f)), lanes_set(88.0f));
    struct lanes magic = lanes_set(0x1.8p23f);
    struct lanes n =
        lanes_sub(lanes_fma(c, lanes_set(0x1.715476p0f), magic), magic); /* round(x / ln 2) */
    struct lanes r = lanes_fma(n, lanes_set(-0x1.62e4p-1f), c);
    r = lanes_fma(n, lanes_set(-0x1.7f7d1cp-20f), r);
    struct lanes p = lanes_set(0x1.6c16c2p-10f); /* 1/720 */
    p = lanes_fma(p, r, lanes_set(0x1.111112p-7f));
    p = lanes_fma(p, r, lanes_set(0x1.555556p-5f));
    p = lanes_fma(p, r, lanes_set(0x1.555556p-3f));
    p = lanes_fma(p, r, lanes_set(0.5f));
    p = lanes_fma(p, r, lanes_set(1.0f));
    p = lanes_fma(p, r, lanes_set(1.0f));
    return lanes_where_greater(x, lanes_set(-87.0f), lanes_scale(p, n));
}

#endif
