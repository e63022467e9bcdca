/* vector.inc in plain C. */
#include "kernels/cpu/vector.h"

#include "kernels/cpu/vector.inc"

const struct vector_ops *vector_generic(void) { return &ops; }
