#include "kernels/cuda/weights.h"

#include "kernels/check.h"
#include "kernels/cuda/state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE_BYTES = 8 << 20, /* rows are rounded and sent in pieces of about this size */
    ALIGN = 256,           /* of the scales behind the elements */
};

static const float FP8_MAX = 448.0f;

/* ---- rounding, to nearest, ties to even ---- */

static uint16_t bf16_from_f32(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (f != f) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* |f| <= 448, no NaN.  From 2^-6 on the upper bits of an f32 with 3 bits of mantissa; below, where
 * steps are 2^-9, the last bits after adding 2^14.  No branches: compilers make vectors of it. */
static uint8_t fp8_from_f32(float f) {
    uint32_t bits, small, sign;
    memcpy(&bits, &f, sizeof bits);
    sign = bits >> 24 & 0x80;
    bits &= 0x7fffffff;
    float shifted;
    memcpy(&shifted, &bits, sizeof shifted);
    shifted += 16384.0f;
    memcpy(&small, &shifted, sizeof small);
    uint32_t large = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120u << 3);
    return (uint8_t)(sign | (bits < 0x3c800000u ? small & 0xf : large));
}

/* The scale of a row, and its elements divided by it.  A scale of 1 where the row is nothing; what
 * isn't finite, which no sound file has, becomes the largest. */
static float round_to_fp8(const float *row, size_t n, uint8_t *out) {
    float top = 0;
    for (size_t i = 0; i < n; i++) {
        float size = fabsf(row[i]);
        top = size > top ? size : top;
    }
    float scale = top > 0 && isfinite(top) ? top / FP8_MAX : 1.0f, inverse = 1.0f / scale;
    for (size_t i = 0; i < n; i++) {
        float v = row[i] * inverse;
        v = v > FP8_MAX ? FP8_MAX : v;
        out[i] = fp8_from_f32(v >= -FP8_MAX ? v : -FP8_MAX);
    }
    return scale;
}

/* ---- sizes ---- */

static bool is_fp8(const struct kernels_device *dev, int n_rows, int n_cols) {
    return dev->fp8 && n_rows != dev->n_vocab && n_rows % WEIGHTS_FP8_MULTIPLE == 0 &&
           n_cols % WEIGHTS_FP8_MULTIPLE == 0;
}

static size_t elements_bytes(int n_rows, int n_cols, bool fp8) {
    size_t n = (size_t)n_rows * (size_t)n_cols;
    return fp8 ? (n + ALIGN - 1) / ALIGN * ALIGN : n * sizeof(uint16_t);
}

static size_t all_bytes(int n_rows, int n_cols, bool fp8) {
    return elements_bytes(n_rows, n_cols, fp8) + (fp8 ? (size_t)n_rows * sizeof(float) : 0);
}

size_t weights_bytes(const struct kernels_weight *w) {
    return all_bytes(w->n_rows, w->n_cols, w->scales != NULL);
}

size_t weights_bytes_needed(const struct kernels_device *dev, enum quant_type type, int n_rows,
                            int n_cols) {
    (void)type;
    return all_bytes(n_rows, n_cols, is_fp8(dev, n_rows, n_cols));
}

bool weights_keeps_data(const struct kernels_device *dev, enum quant_type type) {
    (void)dev;
    (void)type;
    return false;
}

/* ---- matrices ---- */

/* What of a file needs no rounding is sent as it lies there. */
static bool send_as_it_is(struct kernels_device *dev, const struct kernels_weight *w,
                          const uint8_t *from, struct err *e) {
    gpu_put(dev->gpu, w->data, from, elements_bytes(w->n_rows, w->n_cols, false));
    return state_wait(dev, e);
}

static void round_row(const struct kernels_weight *w, const float *row, uint8_t *out,
                      float *scale) {
    size_t cols = (size_t)w->n_cols;
    if (w->scales) {
        *scale = round_to_fp8(row, cols, out);
        return;
    }
    for (size_t i = 0; i < cols; i++) {
        uint16_t element = bf16_from_f32(row[i]);
        memcpy(out + i * sizeof element, &element, sizeof element);
    }
}

static bool send_rows(struct kernels_device *dev, const struct kernels_weight *w,
                      enum quant_type type, const uint8_t *from, struct err *e) {
    size_t row_bytes = quant_row_bytes(type, (size_t)w->n_cols), cols = (size_t)w->n_cols;
    size_t out_bytes = cols * (w->scales ? 1 : sizeof(uint16_t));
    int piece = (int)(PIECE_BYTES / out_bytes) + 1;
    if (piece > w->n_rows) piece = w->n_rows;
    float *row = err_alloc(cols, sizeof *row), *scales = err_alloc((size_t)piece, sizeof *scales);
    uint8_t *rows = err_alloc((size_t)piece, out_bytes);
    for (int first = 0; first < w->n_rows; first += piece) {
        int n = w->n_rows - first < piece ? w->n_rows - first : piece;
        for (int r = 0; r < n; r++) {
            quant_decode(type, from + (size_t)(first + r) * row_bytes, cols, row);
            round_row(w, row, rows + (size_t)r * out_bytes, &scales[r]);
        }
        gpu_put(dev->gpu, w->data + (size_t)first * out_bytes, rows, (size_t)n * out_bytes);
        if (w->scales) gpu_put(dev->gpu, w->scales + first, scales, (size_t)n * sizeof *scales);
    }
    bool ok = state_wait(dev, e);
    free(row);
    free(scales);
    free(rows);
    return ok;
}

struct kernels_weight *weights_new(struct kernels_device *dev, enum quant_type type, int n_rows,
                                   int n_cols, const void *data, struct err *e) {
    if (!check_weight(type, n_rows, n_cols, e)) return NULL;
    bool fp8 = is_fp8(dev, n_rows, n_cols);
    struct kernels_weight *w = err_alloc(1, sizeof *w);
    *w = (struct kernels_weight){.n_rows = n_rows, .n_cols = n_cols};
    w->data = gpu_alloc(dev->gpu, all_bytes(n_rows, n_cols, fp8), "weights", e);
    if (fp8 && w->data)
        w->scales = (float *)(void *)(w->data + elements_bytes(n_rows, n_cols, true));
    bool as_it_is = type == QUANT_BF16 && !fp8;
    if (w->data && (as_it_is ? send_as_it_is(dev, w, data, e) : send_rows(dev, w, type, data, e)))
        return w;
    weights_free(dev, w);
    return NULL;
}

void weights_free(struct kernels_device *dev, struct kernels_weight *w) {
    if (!w) return;
    gpu_release(dev->gpu, w->data);
    free(w);
}
