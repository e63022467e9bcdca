#include "kernels/cpu/ceiling.h"

#include <immintrin.h>

enum { SUMS = 16, PRODUCTS = 64 }; /* independent sums, so that no product waits for another */

uint64_t ceiling_avx512vnni(int rounds) {
    __m512i sum[SUMS] = {0}, w = _mm512_set1_epi8(15), a = _mm512_set1_epi8(-127);
    for (int r = 0; r < rounds; r++)
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++)
            /* asm, so that the loop is these instructions and nothing else */
            __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum[i]) : "v"(w), "v"(a));
#pragma GCC unroll 16
    for (int i = 0; i < SUMS; i++)
        __asm__ volatile("" ::"v"(sum[i]));
    return (uint64_t)rounds * SUMS * PRODUCTS;
}
