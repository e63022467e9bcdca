#include "kernels/cuda/weights.h"

#include "kernels/check.h"
#include "kernels/cuda/state.h"

#include <stdlib.h>
#include <string.h>

enum {
    PIECE_BYTES = 4 << 20, /* the first copy is soon under way, and each one lasts */
    ALIGN = 256,           /* of the scales behind the elements */
};

_Static_assert((size_t)WEIGHTS_FP8_COLS * sizeof(float) <= PIECE_BYTES, "a row is in one piece");

/* ---- sizes ---- */

static bool is_fp8(const struct kernels_device *dev, int n_rows, int n_cols) {
    return dev->fp8 && n_rows != dev->n_vocab && n_rows % WEIGHTS_FP8_MULTIPLE == 0 &&
           n_cols % WEIGHTS_FP8_MULTIPLE == 0 && n_cols <= WEIGHTS_FP8_COLS;
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

/* ---- the way of a file's rows ---- */

static bool stage_take(struct kernels_device *dev, struct err *e) {
    struct state_stage *s = &dev->stage;
    if (s->device) return true;
    for (int i = 0; i < STATE_PIECES; i++)
        if (!s->host[i] && !(s->host[i] = gpu_alloc_pinned(dev->gpu, PIECE_BYTES, "a load", e)))
            return false;
    return (s->device = gpu_alloc(dev->gpu, PIECE_BYTES, "a load", e)) != NULL;
}

/* Where the host may write the next piece. */
static uint8_t *stage_next(struct kernels_device *dev, struct err *e) {
    struct state_stage *s = &dev->stage;
    if (!stage_take(dev, e)) return NULL;
    s->next = (s->next + 1) % STATE_PIECES;
    if (s->waits[s->next] && !state_reach(dev, s->copied[s->next], e)) return NULL;
    s->waits[s->next] = false;
    return s->host[s->next];
}

static void stage_copy(struct kernels_device *dev, uint8_t *to, size_t bytes) {
    struct state_stage *s = &dev->stage;
    gpu_put(dev->gpu, to, s->host[s->next], bytes);
    s->copied[s->next] = gpu_mark(dev->gpu);
    s->waits[s->next] = true;
}

bool weights_end_load(struct kernels_device *dev, struct err *e) {
    struct state_stage *s = &dev->stage;
    bool ok = state_wait(dev, e);
    gpu_release(dev->gpu, s->device);
    for (int i = 0; i < STATE_PIECES; i++)
        gpu_release_pinned(dev->gpu, s->host[i]);
    *s = (struct state_stage){0};
    return ok;
}

/* ---- matrices ---- */

static void dequantize(struct kernels_device *dev, const struct kernels_weight *w,
                       enum quant_type type, size_t first, size_t n) {
    bool fp8 = w->scales != NULL;
    size_t cols = (size_t)w->n_cols, unit = (size_t)quant_block_elements(type);
    struct launch_dequantize d = {.blocks = dev->stage.device,
                                  .type = type,
                                  .n_rows = fp8 ? (int)n : 1,
                                  .n_cols = (int)(fp8 ? cols : n * unit),
                                  .row_bytes = quant_row_bytes(type, cols),
                                  .out = w->data + first * (fp8 ? cols : unit * sizeof(uint16_t)),
                                  .scales = fp8 ? w->scales + first : NULL};
    launch_dequantize(gpu_stream(dev->gpu), &d);
}

/* By pieces: of whole rows where those have scales, of blocks where it is all one.  A piece is
 * copied by the host to pinned memory while the one before is on its way to the device, where what
 * bf16 is already stays as it comes. */
static bool send(struct kernels_device *dev, const struct kernels_weight *w, enum quant_type type,
                 const uint8_t *from, struct err *e) {
    size_t rows = (size_t)w->n_rows, cols = (size_t)w->n_cols;
    size_t unit = w->scales ? quant_row_bytes(type, cols) : quant_block_bytes(type);
    size_t n_units = w->scales ? rows : rows * cols / (size_t)quant_block_elements(type);
    bool as_it_is = type == QUANT_BF16 && !w->scales;
    for (size_t first = 0, n; first < n_units; first += n) {
        n = PIECE_BYTES / unit;
        if (n > n_units - first) n = n_units - first;
        uint8_t *piece = stage_next(dev, e);
        if (!piece) return false;
        memcpy(piece, from + first * unit, n * unit);
        stage_copy(dev, as_it_is ? w->data + first * unit : dev->stage.device, n * unit);
        if (!as_it_is) dequantize(dev, w, type, first, n);
    }
    return true;
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
    if (w->data && send(dev, w, type, data, e)) return w;
    weights_free(dev, w);
    return NULL;
}

void weights_free(struct kernels_device *dev, struct kernels_weight *w) {
    if (!w) return;
    gpu_release(dev->gpu, w->data);
    free(w);
}
