#include "kernels/cpu/ceiling.h"

#include <immintrin.h>

enum { SUMS = 8, PRODUCTS = 32 }; /* independent sums, so that no product waits for another */

uint64_t ceiling_avx2(int rounds) {
    __m256i sum[SUMS] = {0}, w = _mm256_set1_epi8(15), a = _mm256_set1_epi8(-127);
    for (int r = 0; r < rounds; r++)
#pragma GCC unroll 8
        for (int i = 0; i < SUMS; i++) {
            __asm__("" : "+x"(w)); /* might be another w: no product is taken out of the loop */
            sum[i] = _mm256_add_epi16(sum[i], _mm256_maddubs_epi16(w, a));
        }
    for (int i = 0; i < SUMS; i++)
        __asm__ volatile("" ::"x"(sum[i]));
    return (uint64_t)rounds * SUMS * PRODUCTS;
}
