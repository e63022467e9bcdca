#include "kernels/cpu/ceiling.h"

#include <immintrin.h>

enum { SUMS = 8, PRODUCTS = 32 }; /* independent sums, so that no product waits for another */

uint64_t ceiling_avx2(int rounds) {
    __m256i sum[SUMS] = {0}, w = _mm256_set1_epi8(15), a = _mm256_set1_epi8(-127);
    for (int r = 0; r < rounds; r++)
#pragma GCC unroll 8
        for (int i = 0; i < SUMS; i++) {
            __m256i products;
            /* asm, so that the loop is these instructions and nothing else */
            __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
                             : "+x"(sum[i]), "=&x"(products)
                             : "x"(w), "x"(a));
        }
#pragma GCC unroll 8
    for (int i = 0; i < SUMS; i++)
        __asm__ volatile("" ::"x"(sum[i]));
    return (uint64_t)rounds * SUMS * PRODUCTS;
}
