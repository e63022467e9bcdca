/* The instruction sets of this build, and which of them this machine runs.  Pure; any thread. */
#ifndef KERNELS_CPU_ISA_H
#define KERNELS_CPU_ISA_H

#include "base/err.h"
#include "kernels/cpu/ceiling.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/vector.h"

struct isa {
    const char *name;
    bool is_reference; /* computes with kernels/cpu/reference.h instead */
    bool unsigned8;    /* wants 8-bit codes plus 128 */
    enum matmul_init init;
    struct matmul_way way;
    /* AMX: products of at least tiles_from rows with scales for whole blocks go by `tiles`. */
    struct matmul_way tiles;
    int tiles_from; /* 0: never */
    const struct vector_ops *vector;
    ceiling_fn *ceiling; /* NULL: it has no products of int8 */
};

/* Names of all in this build, NULL-ended. */
extern const char *const isa_names[];
/* The instruction set of that name; "auto" or NULL: the fastest that the machine has.  False where
 * it isn't in the build or the machine lacks it. */
bool isa_choose(const char *name, struct isa *out, struct err *e) MUST_CHECK;
bool isa_available(const char *name);
/* How this instruction set multiplies n_rows rows with such weights. */
const struct matmul_way *isa_way(const struct isa *, enum pack_form form, int n_rows);

#endif
