#include "kernels/cpu/isa.h"

#include "base/buf.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Fastest first. */
const char *const isa_names[] = {
#if defined(__x86_64__)
    "amx",     "avx512vnni", "avx2",
#endif
    "generic", "reference",  NULL,
};

#if defined(__x86_64__)
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

/* __builtin_cpu_supports also asks whether the system saves the registers. */
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512vnni(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

/* The tile registers: of the processor (CPUID leaf 7, EDX bits 24 and 25), and leave of the kernel,
 * which saves their 8 KB for this process from then on (Linux: Documentation/arch/x86/xstate.rst).
 */
static bool has_amx(void) {
    enum { TILES = 1 << 24, INT8 = 1 << 25, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    if (!has_avx512vnni() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if (!(d & TILES) || !(d & INT8)) return false;
    return !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}
#endif

bool isa_available(const char *name) {
#if defined(__x86_64__)
    if (!strcmp(name, "amx")) return has_amx();
    if (!strcmp(name, "avx512vnni")) return has_avx512vnni();
    if (!strcmp(name, "avx2")) return has_avx2();
#endif
    return !strcmp(name, "generic") || !strcmp(name, "reference");
}

static struct isa describe(const char *name) {
#if defined(__x86_64__)
    if (!strcmp(name, "amx"))
        return (struct isa){.name = name,
                            .unsigned8 = true,
                            .init = MATMUL_INIT_SUMS,
                            .way = {matmul_avx512vnni, MATMUL_ROWS_AVX512VNNI, 4},
                            .tiles = {matmul_amx, MATMUL_ROWS_AMX, 32},
                            .tiles_from = 12,
                            .vector = vector_avx512vnni()};
    if (!strcmp(name, "avx512vnni"))
        return (struct isa){.name = name,
                            .unsigned8 = true,
                            .init = MATMUL_INIT_SUMS,
                            .way = {matmul_avx512vnni, MATMUL_ROWS_AVX512VNNI, 4},
                            .vector = vector_avx512vnni()};
    if (!strcmp(name, "avx2"))
        return (struct isa){.name = name,
                            .init = MATMUL_INIT_PAIRS,
                            .way = {matmul_avx2, MATMUL_ROWS_AVX2, 4},
                            .vector = vector_avx2()};
#endif
    return (struct isa){.name = name,
                        .is_reference = !strcmp(name, "reference"),
                        .unsigned8 = true,
                        .init = MATMUL_INIT_SUMS,
                        .way = {matmul_generic, MATMUL_ROWS_GENERIC, 4},
                        .vector = vector_generic()};
}

static ceiling_fn *ceiling_of(const char *name) {
#if defined(__x86_64__)
    if (!strcmp(name, "amx")) return ceiling_amx;
    if (!strcmp(name, "avx512vnni")) return ceiling_avx512vnni;
    if (!strcmp(name, "avx2")) return ceiling_avx2;
#endif
    return strcmp(name, "reference") ? ceiling_generic : NULL;
}

static const char *available_names(struct buf *b) {
    for (int i = 0; isa_names[i]; i++)
        if (isa_available(isa_names[i])) buf_printf(b, "%s%s", b->len ? ", " : "", isa_names[i]);
    return buf_text(b);
}

bool isa_choose(const char *name, struct isa *out, struct err *e) {
    bool best = !name || !strcmp(name, "auto");
    for (int i = 0; isa_names[i]; i++) {
        if (best ? !isa_available(isa_names[i]) : strcmp(name, isa_names[i]) != 0) continue;
        if (!isa_available(isa_names[i])) break;
        *out = describe(isa_names[i]);
        out->ceiling = ceiling_of(isa_names[i]);
        return true;
    }
    struct buf b;
    buf_init(&b, 128);
    err_set(e, ERR_INPUT, "instruction set \"%s\" can't be used: this machine has %s, or say auto",
            name, available_names(&b));
    buf_clear(&b);
    return false;
}

const struct matmul_way *isa_way(const struct isa *isa, enum pack_form form, int n_rows) {
    bool fits = form == PACK_SCALE || form == PACK_SCALE_MIN || form == PACK_SUPER_MIN;
    return isa->tiles_from && n_rows >= isa->tiles_from && fits ? &isa->tiles : &isa->way;
}
