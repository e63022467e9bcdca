/* Matrices of every GGUF type on their way to the device: what its kernels make of the blocks, bit
 * by bit against the CPU's decoding, rounded by definition; pieces, and the memory of a load. */
#include "kernels/cuda/state.h"
#include "kernels/cuda/weights.h"
#include "tests/cuda/cuda_test.h"

static struct side open_as(const char *weights) {
    return side_open_as(
        "cuda", &(struct kernels_options){.isa = "auto", .no_graphs = true, .weights = weights});
}

/* ---- a matrix and what should become of it ---- */

struct file {
    enum quant_type type;
    int rows, cols;
    size_t row_bytes;
    uint8_t *data; /* owned */
};

/* Ordinary weights; or any bytes at all: scales of nothing, tiny ones, infinity, NaN. */
static struct file file_new(enum quant_type type, int rows, int cols, bool any, uint64_t seed) {
    struct file f = {type, rows, cols, quant_row_bytes(type, (size_t)cols), NULL};
    struct random r = {seed};
    f.data = malloc((size_t)rows * f.row_bytes);
    for (int i = 0; i < rows; i++) {
        uint8_t *row = f.data + (size_t)i * f.row_bytes;
        random_row(&r, type, cols, row);
        for (size_t k = 0; any && k < f.row_bytes; k++)
            row[k] = (uint8_t)random_u64(&r);
        if (i == 1) memset(row, 0, f.row_bytes);
    }
    return f;
}

static void check_bf16(const struct file *f, const uint16_t *got, int step) {
    float *row = malloc((size_t)f->cols * sizeof *row);
    for (int r = 0; r < f->rows; r++) {
        quant_decode(f->type, f->data + (size_t)r * f->row_bytes, (size_t)f->cols, row);
        for (int i = r % step; i < f->cols; i += step) {
            uint16_t is = got[(size_t)r * (size_t)f->cols + (size_t)i];
            uint32_t want, bits = (uint32_t)is << 16;
            float rounded = round_bf16(row[i]), as_f32;
            memcpy(&want, &rounded, sizeof want);
            memcpy(&as_f32, &bits, sizeof as_f32);
            ck_assert_msg(isnan(row[i]) ? isnan(as_f32) : bits == want,
                          "%s %d x %d: element %d of row %d is %04x, %.9g; not %04x, %.9g",
                          quant_name(f->type), f->rows, f->cols, i, r, is, (double)as_f32,
                          want >> 16, (double)row[i]);
        }
    }
    free(row);
}

/* The nearest code to each element over the scale; what isn't finite is the largest. */
static void check_fp8(const struct file *f, const uint8_t *got, const float *scales, int step) {
    float *row = malloc((size_t)f->cols * sizeof *row);
    for (int r = 0; r < f->rows; r++) {
        quant_decode(f->type, f->data + (size_t)r * f->row_bytes, (size_t)f->cols, row);
        float top = 0;
        for (int i = 0; i < f->cols; i++)
            top = fabsf(row[i]) > top ? fabsf(row[i]) : top;
        float scale = top > 0 && isfinite(top) ? top / 448.0f : 1.0f, inverse = 1.0f / scale;
        ck_assert_msg(!memcmp(&scale, &scales[r], sizeof scale), "%s: scale of row %d: %.9g, %.9g",
                      quant_name(f->type), r, (double)scales[r], (double)scale);
        for (int i = r % step; i < f->cols; i += step) {
            float v = row[i] * inverse;
            v = isnan(v) || v < -448 ? -448 : v > 448 ? 448 : v;
            uint8_t is = got[(size_t)r * (size_t)f->cols + (size_t)i];
            ck_assert_msg(is == fp8_nearest((double)v), "%s %d x %d: element %d of row %d is %02x",
                          quant_name(f->type), f->rows, f->cols, i, r, is);
        }
    }
    free(row);
}

/* Every `step`th element of a row is compared. */
static void check(const struct side *s, const struct file *f, int step) {
    struct err e = {0};
    struct kernels_weight *w = s->k->weight_new(s->dev, f->type, f->rows, f->cols, f->data, &e);
    ck_assert_msg(w != NULL, "%s", e.message);
    size_t n = (size_t)f->rows * (size_t)f->cols, element = w->scales ? 1 : sizeof(uint16_t);
    uint8_t *got = malloc(n * element);
    float *scales = malloc((size_t)f->rows * sizeof *scales);
    gpu_get(s->dev->gpu, got, w->data, n * element);
    if (w->scales) gpu_get(s->dev->gpu, scales, w->scales, (size_t)f->rows * sizeof *scales);
    ck_assert_msg(s->k->sync(s->dev, &e), "%s", e.message);
    if (w->scales)
        check_fp8(f, got, scales, step);
    else
        check_bf16(f, (const uint16_t *)(const void *)got, step);
    free(got);
    free(scales);
    s->k->weight_free(s->dev, w);
}

/* ---- every type ---- */

/* Blocks in a row, for types of one element elements; rows. */
static const int bf16_shapes[][2] = {{1, 1}, {3, 7}, {33, 2}, {257, 5}};

START_TEST(any_type_becomes_bf16) {
    enum quant_type type = all_types[_i];
    struct side s = open_as("bf16");
    for (int i = 0; i < 4; i++)
        for (int any = 0; any < 2; any++) {
            int blocks = bf16_shapes[i][0], rows = bf16_shapes[i][1];
            if (quant_block_elements(type) > 1 && blocks > 33) blocks = 5;
            use_order(i % N_ORDERS);
            struct file f = file_new(type, rows, blocks * quant_block_elements(type), any,
                                     (uint64_t)(100 * _i + 2 * i + any));
            check(&s, &f, 1);
            free(f.data);
        }
    s.k->device_close(s.dev);
}
END_TEST

START_TEST(any_type_becomes_fp8) {
    enum quant_type type = all_types[_i];
    static const int shapes[][2] = {{16, 16}, {48, 32}, {1008, 16}}; /* columns, rows */
    struct side s = open_as("fp8");
    for (int i = 0; i < 3; i++)
        for (int any = 0; any < 2; any++) {
            int cols = shapes[i][0], rows = shapes[i][1], block = quant_block_elements(type);
            cols = (cols + block - 1) / block * block;
            use_order(i);
            struct file f = file_new(type, rows, cols, any, (uint64_t)(100 * _i + 2 * i + any));
            check(&s, &f, 1);
            free(f.data);
        }
    s.k->device_close(s.dev);
}
END_TEST

/* ---- pieces ---- */

/* Three pieces and a bit: each half of the pinned memory is written twice.  The first of another
 * matrix comes behind the last of this one. */
START_TEST(matrices_come_in_pieces) {
    static const struct {
        const char *weights;
        enum quant_type type;
        int rows, cols;
    } cases[] = {{"bf16", QUANT_F32, 3301, 1023},
                 {"bf16", QUANT_BF16, 6599, 1023},
                 {"fp8", QUANT_F32, 1616, 2048},
                 {"fp8", QUANT_Q8_0, 208, 64}};
    for (int i = 0; i < 4; i++) {
        struct side s = open_as(cases[i].weights);
        struct file f = file_new(cases[i].type, cases[i].rows, cases[i].cols, false, 7),
                    small = file_new(QUANT_Q4_K, 3, 256, false, 8);
        struct err e = {0};
        struct kernels_weight *before =
            s.k->weight_new(s.dev, small.type, small.rows, small.cols, small.data, &e);
        ck_assert_msg(before != NULL, "%s", e.message);
        check(&s, &f, 61);
        check(&s, &small, 1);
        s.k->weight_free(s.dev, before);
        free(f.data);
        free(small.data);
        s.k->device_close(s.dev);
    }
}
END_TEST

/* A row whose scale no piece could tell has none. */
START_TEST(rows_longer_than_a_piece_stay_bf16) {
    struct side s = open_as("fp8");
    for (int more = 0; more < 2; more++) {
        int cols = WEIGHTS_FP8_COLS + 32 * more;
        size_t n = 16 * (size_t)cols;
        ck_assert_uint_eq(s.k->weight_bytes_needed(s.dev, QUANT_Q4_0, 16, cols),
                          more ? 2 * n : n + 16 * sizeof(float));
    }
    s.k->device_close(s.dev);
}
END_TEST

/* ---- the memory of a load ---- */

#ifdef KERNELS_HOST_EMULATION
START_TEST(a_load_gives_its_memory_back) {
    struct side s = open_as("bf16");
    struct err e = {0};
    struct kernels_kv_shape kv = {1, 1, 64, 4};
    struct file f = file_new(QUANT_Q6_K, 9, 512, false, 3);
    size_t begun = s.k->memory_free(s.dev);
    struct kernels_weight *w = s.k->weight_new(s.dev, f.type, f.rows, f.cols, f.data, &e);
    ck_assert_msg(w != NULL, "%s", e.message);
    ck_assert_uint_lt(s.k->memory_free(s.dev), begun - s.k->weight_bytes(w));
    ck_assert_msg(s.k->kv_open(s.dev, &kv, &e), "%s", e.message);
    ck_assert_uint_eq(s.k->memory_free(s.dev),
                      begun - s.k->weight_bytes(w) - 4 * s.k->kv_bytes_per_block(s.dev, 1, 64));
    check(&s, &f, 1); /* another load */
    s.k->kv_close(s.dev);
    s.k->weight_free(s.dev, w);
    s.k->device_close(s.dev);
    free(f.data);
}
END_TEST

/* At the latest when the load ends. */
START_TEST(a_device_that_fails_while_loading_is_told) {
    struct side s = open_as("bf16");
    struct err e = {0};
    struct kernels_kv_shape kv = {1, 1, 64, 4};
    struct file f = file_new(QUANT_F16, 2051, 1023, false, 3); /* a piece and a bit */
    gpu_host_fail(gpu_stream(s.dev->gpu));
    struct kernels_weight *w = s.k->weight_new(s.dev, f.type, f.rows, f.cols, f.data, &e),
                          *second = s.k->weight_new(s.dev, f.type, f.rows, f.cols, f.data, &e);
    ck_assert(!second);
    ck_assert_msg(strstr(e.message, "the device has failed") != NULL, "%s", e.message);
    e = (struct err){0};
    ck_assert(!s.k->kv_open(s.dev, &kv, &e));
    ck_assert_msg(strstr(e.message, "the device has failed") != NULL, "%s", e.message);
    s.k->weight_free(s.dev, w);
    s.k->device_close(s.dev);
    free(f.data);
}
END_TEST

/* Without room for a piece there is an error, not a crash; what was taken is given back. */
START_TEST(no_memory_for_a_load) {
    struct err e = {0};
    struct file f = file_new(QUANT_Q4_0, 3, 32, false, 3);
    gpu_host_memory(1 << 20);
    struct side s = open_as("bf16");
    ck_assert(!s.k->weight_new(s.dev, f.type, f.rows, f.cols, f.data, &e));
    ck_assert_msg(strstr(e.message, "no device memory for 4194304 bytes of a load") != NULL, "%s",
                  e.message);
    ck_assert_uint_eq(s.k->memory_free(s.dev), 1 << 20);
    s.k->device_close(s.dev);
    free(f.data);
}
END_TEST
#endif

int main(void) {
    if (!cuda_test_can_run()) return 77;
    TCase *t = tcase_create("cuda weights");
    tcase_add_loop_test(t, any_type_becomes_bf16, 0, N_ALL_TYPES);
    tcase_add_loop_test(t, any_type_becomes_fp8, 0, N_ALL_TYPES);
    tcase_add_test(t, matrices_come_in_pieces);
    tcase_add_test(t, rows_longer_than_a_piece_stay_bf16);
#ifdef KERNELS_HOST_EMULATION
    tcase_add_test(t, a_load_gives_its_memory_back);
    tcase_add_test(t, a_device_that_fails_while_loading_is_told);
    tcase_add_test(t, no_memory_for_a_load);
#endif
    return run_tests(&t, 1, "cuda weights");
}
