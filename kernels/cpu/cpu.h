/* The CPU backend: the table behind kernels_backend("cpu").
 *
 * Operations run at once, on the calling (ENGINE) thread and a pool (kernels/cpu/threads.h). */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/kernels.h"

const struct kernels *cpu_kernels(void);

#endif
