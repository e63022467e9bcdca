/* vector.inc with AVX2, FMA and F16C. */
#include "kernels/cpu/vector.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "kernels/cpu/vector.inc"

const struct vector_ops *vector_avx2(void) { return &ops; }

#endif
