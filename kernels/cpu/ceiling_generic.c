#include "kernels/cpu/ceiling.h"

enum { CODES = 2048 };

uint64_t ceiling_generic(int rounds) {
    uint8_t w[CODES];
    int8_t a[CODES];
    for (int i = 0; i < CODES; i++) {
        w[i] = (uint8_t)(i % 32);
        a[i] = (int8_t)(i % 255 - 127);
    }
    int times = rounds / 128 + 1; /* a round of the others is some hundred products */
    for (int r = 0; r < times; r++) {
        int32_t sum = 0;
        __asm__ volatile("" ::: "memory"); /* w and a may have changed: all is computed again */
        for (int i = 0; i < CODES; i++)
            sum += w[i] * a[i];
        __asm__ volatile("" ::"r"(sum), "r"(w), "r"(a));
    }
    return (uint64_t)times * CODES;
}
