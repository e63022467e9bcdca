/* Shared by the tests of the CUDA backend: the device, emulated or real, the CPU definition beside
 * it, and rows in either's element type.  The same sources are built twice: test_* with the
 * emulated device, gpu_* with the real one. */
#ifndef TESTS_CUDA_CUDA_TEST_H
#define TESTS_CUDA_CUDA_TEST_H

#ifdef KERNELS_HOST_EMULATION
#include "kernels/host_emulation/emulate.h"
#include "kernels/host_emulation/gpu_host.h"
#endif
#include "tests/kernels/kernels_test.h"

#include <stdio.h>

struct side {
    const struct kernels *k; /* "cuda" emulated, or "cpu" */
    struct kernels_device *dev;
    bool bf16;
};

static inline struct side side_open_as(const char *backend, const struct kernels_options *o) {
    struct side s = {.k = kernels_backend(backend), .bf16 = !strcmp(backend, "cuda")};
    struct err e = {0};
    ck_assert(s.k != NULL);
    ck_assert_msg(s.k->device_open(o, &s.dev, &e), "%s", e.message);
    return s;
}
static inline struct side side_open(const char *backend, const char *isa, bool graphs) {
    return side_open_as(
        backend, &(struct kernels_options){.n_threads = 1, .isa = isa, .no_graphs = !graphs});
}
static inline struct side side_cuda(void) { return side_open("cuda", "auto", false); }
static inline struct side side_reference(void) { return side_open("cpu", "reference", false); }

static inline void side_reserve(const struct side *s, struct kernels_step_shape shape) {
    struct err e = {0};
    ck_assert_msg(s->k->reserve_rows(s->dev, &shape, &e), "%s", e.message);
}

static inline float round_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &bits, 4);
    return f;
}

/* fp8 E4M3 is the format's own words (OCP 8-bit floating point, rev. 1.0), and the nearest code is
 * looked for among all. */
static inline double fp8_value(unsigned code) {
    unsigned exponent = code >> 3 & 15, mantissa = code & 7;
    double size = exponent ? ldexp(1 + mantissa / 8.0, (int)exponent - 7) : ldexp(mantissa, -9);
    return code & 0x80 ? -size : size;
}

/* The nearest; the even one of two that are as near. */
static inline unsigned fp8_nearest(double v) {
    unsigned best = signbit(v) ? 0x80 : 0;
    for (unsigned size = 0; size < 0x7f; size++) {
        unsigned code = size | (signbit(v) ? 0x80u : 0);
        double here = fabs(fp8_value(code) - v), there = fabs(fp8_value(best) - v);
        if (here < there || (here <= there && code % 2 == 0)) best = code;
    }
    return best;
}

static inline struct kernels_view side_new(const struct side *s, const void *data, size_t bytes) {
    struct err e = {0};
    struct kernels_view v = {.buffer = s->k->buffer_new(s->dev, bytes, &e)};
    ck_assert_msg(v.buffer != NULL, "%s", e.message);
    if (data) s->k->upload(s->dev, v, data, bytes);
    return v;
}
static inline void side_read(const struct side *s, struct kernels_view v, void *to, size_t bytes) {
    struct err e = {0};
    ck_assert_msg(s->k->download(s->dev, to, v, bytes, &e), "%s", e.message);
}

/* An operand of n rows: what products read.  Rounded to bf16 on either side. */
static inline struct kernels_view side_operand(const struct side *s, const float *rows, int n,
                                               int width) {
    size_t bytes = (size_t)n * (size_t)width * 4;
    uint8_t *image = calloc(1, bytes);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < width; i++) {
            size_t row = (size_t)r * (size_t)width;
            float f = round_bf16(rows[row + (size_t)i]);
            if (s->bf16)
                memcpy(image + row * 4 + (size_t)i * 2, (uint8_t *)&f + 2, 2);
            else
                memcpy(image + (row + (size_t)i) * 4, &f, 4);
        }
    struct kernels_view v = side_new(s, image, bytes);
    free(image);
    return v;
}
static inline void side_read_operand(const struct side *s, struct kernels_view v, float *rows,
                                     int n, int width) {
    size_t bytes = (size_t)n * (size_t)width * 4;
    if (!s->bf16) {
        side_read(s, v, rows, bytes);
        return;
    }
    uint8_t *image = malloc(bytes);
    side_read(s, v, image, bytes);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < width; i++) {
            size_t row = (size_t)r * (size_t)width;
            uint32_t bits = 0;
            memcpy((uint8_t *)&bits + 2, image + row * 4 + (size_t)i * 2, 2);
            memcpy(&rows[row + (size_t)i], &bits, 4);
        }
    free(image);
}

static inline void fill(struct random *r, float scale, float *out, size_t n) {
    for (size_t i = 0; i < n; i++)
        out[i] = scale * random_float(r);
}

/* |got - want| <= absolute + relative |want|, everywhere. */
static inline void check_close(const char *what, const float *got, const float *want, size_t n,
                               double absolute, double relative) {
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(fabs((double)got[i] - (double)want[i]) <=
                          absolute + relative * fabs((double)want[i]),
                      "%s: element %zu is %g, not %g", what, i, (double)got[i], (double)want[i]);
}

/* In which order threads run; a real device has its own. */
enum { N_ORDERS = 3 };
static inline void use_order(int i) {
#ifdef KERNELS_HOST_EMULATION
    emulate_order((enum emulate_order)i, (uint32_t)(1000 + i));
#else
    (void)i;
#endif
}

/* False, with a line that says why, where there is no device; FIRSTPASS_MUST=gpu is up to the
 * caller (tests/gpu.sh). */
static inline bool cuda_test_can_run(void) {
    const struct kernels *k = kernels_backend("cuda");
    struct kernels_device *dev = NULL;
    struct kernels_options o = {.isa = "auto"};
    struct err e = {0};
    if (k && k->device_open(&o, &dev, &e)) {
        k->device_close(dev);
        return true;
    }
    printf("skipped: %s\n", k ? e.message : "this build has no cuda backend");
    return false;
}

#endif
