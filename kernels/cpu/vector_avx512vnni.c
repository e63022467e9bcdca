/* vector.inc with AVX-512. */
#include "kernels/cpu/vector.h"

#if defined(__AVX512F__)

#include "kernels/cpu/vector.inc"

const struct vector_ops *vector_avx512vnni(void) { return &ops; }

#endif
