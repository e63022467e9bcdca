/* How the tiles of AMX are set up: palette 1 of LDTILECFG (Intel 64 and IA-32 Architectures
 * Software Developer's Manual, volume 2).  Included where AMX's instructions are compiled. */
#ifndef KERNELS_CPU_TILES_H
#define KERNELS_CPU_TILES_H

#include <immintrin.h>
#include <stdint.h>

struct tiles {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static inline void tiles_configure(struct tiles *t) {
    t->palette = 1;
    /* GCC 12's intrinsic names the first 8 bytes alone as read: without this it may drop the rest.
     */
    __asm__ volatile("" : : "r"(t) : "memory");
    _tile_loadconfig(t);
}

#endif
