/* Shared by the tests of kernels/: a small random generator, random weights of every type, devices.
 */
#ifndef TESTS_KERNELS_KERNELS_TEST_H
#define TESTS_KERNELS_KERNELS_TEST_H

#include "kernels/kernels.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct random {
    uint64_t state;
};

/* splitmix64 */
static inline uint64_t random_u64(struct random *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
/* -1 … 1 */
static inline float random_float(struct random *r) {
    return (float)(random_u64(r) >> 40) * 0x1p-23f - 1.0f;
}
static inline int random_int(struct random *r, int n) { return (int)(random_u64(r) % (uint64_t)n); }

static const enum quant_type all_types[] = {
    QUANT_F32,  QUANT_F16,  QUANT_BF16, QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0, QUANT_Q5_1,
    QUANT_Q8_0, QUANT_Q2_K, QUANT_Q3_K, QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K,
};
enum { N_ALL_TYPES = sizeof all_types / sizeof *all_types };

static inline void put_f16(uint8_t *to, float f) {
    uint16_t h = quant_f32_to_f16(f);
    memcpy(to, &h, 2);
}

/* Random bytes for a row, with scales that make weights of ordinary size; every code occurs. */
static inline void random_row(struct random *r, enum quant_type type, int n, uint8_t *row) {
    size_t bytes = quant_row_bytes(type, (size_t)n), block = quant_block_bytes(type);
    for (size_t i = 0; i < bytes; i++)
        row[i] = (uint8_t)random_u64(r);
    for (uint8_t *b = row; b < row + bytes; b += block) {
        float d = 0.02f * (1.5f + random_float(r)), m = 0.02f * random_float(r);
        switch (type) {
        case QUANT_F32: {
            float f = random_float(r);
            memcpy(b, &f, 4);
            break;
        }
        case QUANT_F16:
            put_f16(b, random_float(r));
            break;
        case QUANT_BF16: {
            float f = random_float(r);
            memcpy(b, (uint8_t *)&f + 2, 2);
            break;
        }
        case QUANT_Q4_0:
        case QUANT_Q5_0:
        case QUANT_Q8_0:
            put_f16(b, d);
            break;
        case QUANT_Q4_1:
        case QUANT_Q5_1:
            put_f16(b, d);
            put_f16(b + 2, m);
            break;
        case QUANT_Q2_K:
            put_f16(b + 80, d);
            put_f16(b + 82, m);
            break;
        case QUANT_Q3_K:
            put_f16(b + 108, d * 0.1f);
            break;
        case QUANT_Q4_K:
        case QUANT_Q5_K:
            put_f16(b, d * 0.1f);
            put_f16(b + 2, m);
            break;
        case QUANT_Q6_K:
            put_f16(b + 208, d * 0.02f);
            break;
        }
    }
}

static inline struct kernels_device *open_device(const char *isa, int n_threads) {
    const struct kernels *k = kernels_backend("cpu");
    struct kernels_device *dev = NULL;
    struct err e = {0};
    struct kernels_options o = {.n_threads = n_threads, .isa = isa};
    ck_assert_msg(k->device_open(&o, &dev, &e), "%s", e.message);
    return dev;
}

/* False, with a line on standard output, where this machine can't run it. */
static inline bool can_run(const char *isa) {
    const struct kernels *k = kernels_backend("cpu");
    struct kernels_device *dev = NULL;
    struct kernels_options o = {.n_threads = 1, .isa = isa};
    if (!k->device_open(&o, &dev, NULL)) return false;
    k->device_close(dev);
    return true;
}

static inline struct kernels_view new_view(struct kernels_device *dev, const void *data,
                                           size_t bytes) {
    const struct kernels *k = kernels_backend("cpu");
    struct err e = {0};
    struct kernels_view v = {.buffer = k->buffer_new(dev, bytes, &e)};
    ck_assert_msg(v.buffer != NULL, "%s", e.message);
    if (data) k->upload(dev, v, data, bytes);
    return v;
}

static inline void read_view(struct kernels_device *dev, struct kernels_view v, void *to,
                             size_t bytes) {
    struct err e = {0};
    ck_assert_msg(kernels_backend("cpu")->download(dev, to, v, bytes, &e), "%s", e.message);
}

static inline int run_tests(TCase *tests[], int n, const char *name) {
    Suite *s = suite_create(name);
    for (int i = 0; i < n; i++) {
        tcase_set_timeout(tests[i], 600);
        suite_add_tcase(s, tests[i]);
    }
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
