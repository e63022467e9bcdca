/* The two roofs of the roofline, measured: how fast this machine multiplies int8 and reads memory.
 *
 * Products: each instruction set's own int8 dot-product instruction on registers alone, no loads
 * and no scales, so nothing that computes with that instruction can be faster.  Memory: sums over
 * CEILING_READ_BYTES, more than most caches hold.  Both with all threads of the device at once, for
 * half a second after the clock of wide multiplications has settled, the best of spells of 50 ms:
 * what the machine sustains. */
#ifndef KERNELS_CPU_CEILING_H
#define KERNELS_CPU_CEILING_H

#include "kernels/kernels.h"

/* One thread's products of `rounds` rounds; returns how many multiply-accumulates that was. */
typedef uint64_t ceiling_fn(int rounds);

enum { CEILING_READ_BYTES = 256 << 20 };

uint64_t ceiling_generic(int rounds);    /* what the compiler makes of a C loop, data in L1 */
uint64_t ceiling_avx2(int rounds);       /* vpmaddubsw + vpaddw, 256 bits: int16 sums */
uint64_t ceiling_avx512vnni(int rounds); /* vpdpbusd, 512 bits: int32 sums */
uint64_t ceiling_amx(int rounds);        /* tdpbssd on whole tiles, 16 x 16 x 64 */

/* struct kernels.ceiling */
bool ceiling_measure(struct kernels_device *, struct kernels_ceiling *out, struct err *e);

#endif
