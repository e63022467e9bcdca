/* kernels/cuda/gemm.h without cuBLASLt: sums in f32 in ascending order, after the bias, as where
 * the library has no bias epilogue. */
#include "kernels/cuda/gemm.h"

#include "kernels/cuda/launch.h"
#include "kernels/host_emulation/gpu_host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct gemm {
    struct gpu *gpu; /* borrowed */
};

struct gemm *gemm_open(struct gpu *gpu, const struct gemm_options *o, struct err *e) {
    (void)o; /* invariant always, fp8 too */
    (void)e;
    struct gemm *g = err_alloc(1, sizeof *g);
    g->gpu = gpu;
    return g;
}

void gemm_close(struct gemm *g) { free(g); }

const char *gemm_name(const struct gemm *g) {
    (void)g;
    return "reference products";
}

size_t gemm_workspace_bytes(const struct gemm *g) {
    (void)g;
    return 0;
}

static float bf16(uint16_t b) {
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static float fp8(uint8_t b) {
    int exponent = b >> 3 & 15, mantissa = b & 7;
    float f = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    if ((b & 0x7f) == 0x7f) f = NAN;
    return b & 0x80 ? -f : f;
}

static void decode(const void *from, bool is_fp8, size_t at, int n, float *out) {
    const uint8_t *bytes = from;
    for (int i = 0; i < n; i++) {
        uint16_t b;
        memcpy(&b, bytes + (is_fp8 ? 0 : 2 * (at + (size_t)i)), 2);
        out[i] = is_fp8 ? fp8(bytes[at + (size_t)i]) : bf16(b);
    }
}

/* As one kernel of one block, so that it can be part of a graph; the first thread does it. */
static void run(void *arg) {
    const struct gemm_call *c = arg;
    if (emulate_position()->thread.x) return;
    float *w = err_alloc((size_t)c->n_in, sizeof *w);
    float *x = err_alloc((size_t)c->n_in * (size_t)c->n_rows, sizeof *x);
    bool is_fp8 = c->w_scales != NULL;
    for (int r = 0; r < c->n_rows; r++)
        decode(c->x, is_fp8, (size_t)r * (size_t)c->x_stride, c->n_in,
               x + (size_t)r * (size_t)c->n_in);
    for (int m = 0; m < c->n_out; m++) {
        decode(c->w, is_fp8, (size_t)m * (size_t)c->n_in, c->n_in, w);
        for (int r = 0; r < c->n_rows; r++) {
            const float *row = x + (size_t)r * (size_t)c->n_in;
            float sums[8] = {0};
            int k = 0;
            for (; k + 8 <= c->n_in; k += 8)
                for (int i = 0; i < 8; i++)
                    sums[i] += w[k + i] * row[k + i];
            for (; k < c->n_in; k++)
                sums[0] += w[k] * row[k];
            float sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                        ((sums[4] + sums[5]) + (sums[6] + sums[7]));
            if (is_fp8) sum *= c->w_scales[m] * c->x_scales[r];
            float *y = c->y + (size_t)r * (size_t)c->y_stride + m;
            *y = c->add ? *y + sum : sum;
        }
    }
    free(w);
    free(x);
}

bool gemm_run(struct gemm *g, const struct gemm_call *c, struct err *e) {
    (void)e;
    struct gemm_call *copy = err_alloc(1, sizeof *copy);
    *copy = *c;
    if (c->bias) {
        struct launch_bias b = {c->bias, c->y, c->n_out, c->y_stride, c->n_rows, c->add};
        launch_bias(gpu_stream(g->gpu), &b);
        copy->add = true;
    }
    gpu_host_launch(gpu_stream(g->gpu), "reference product", (struct emulate_dim){1, 1, 1},
                    (struct emulate_dim){EMULATE_WARP, 1, 1}, 0, run, copy, free);
    return true;
}
