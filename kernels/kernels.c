#include "kernels/kernels.h"

#include "kernels/cpu/cpu.h"
#ifdef KERNELS_CUDA
#include "kernels/cuda/cuda.h"
#endif

#include <string.h>

const struct kernels *kernels_backend(const char *name) {
#ifdef KERNELS_CUDA
    if (!strcmp(name, "cuda")) return cuda_kernels();
#endif
    return !strcmp(name, "cpu") ? cpu_kernels() : NULL;
}

/* Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). */
static uint32_t philox_first_word(uint64_t seed, uint32_t c0, uint32_t c1) {
    uint32_t c[4] = {c0, c1, 0, 0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53 * c[0], p1 = (uint64_t)0xcd9e8d57 * c[2];
        uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1,
                            (uint32_t)(p0 >> 32) ^ c[3] ^ k1, (uint32_t)p0};
        memcpy(c, next, sizeof c);
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
    return c[0];
}

float kernels_uniform(uint64_t seed, uint32_t candidate, uint32_t position) {
    return (float)(philox_first_word(seed, position, candidate) >> 8) * 0x1p-24f;
}
