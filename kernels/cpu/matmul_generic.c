/* Matrix products in plain C: for machines without the other instruction sets, and what they are
 * tested with. */
#include "kernels/cpu/matmul.h"

#include "kernels/cpu/lanes.h"

enum { TILE_ROWS = MATMUL_ROWS_GENERIC, READS_BYTES = 1 };

#include "kernels/cpu/matmul.inc"

static float f16_of(const uint8_t *from, int o) {
    uint16_t bits;
    memcpy(&bits, from + 2 * o, 2);
    return quant_f16_to_f32(bits);
}

static void decode_codes(const struct pack *w, const uint8_t *from, uint8_t *to) {
    const uint8_t *high = from + 4 * PACK_STEP;
    for (int i = 0; i < 4 * PACK_STEP; i++) {
        to[i] = from[i] & 15;
        to[4 * PACK_STEP + i] = from[i] >> 4;
    }
    for (int s = 0; s < PACK_STEPS && w->code_bits > 4; s++)
        for (int i = 0; i < PACK_STEP; i++) {
            int bits = w->code_bits == 5 ? high[i] >> s & 1
                                         : high[s / 4 * PACK_STEP + i] >> (s % 4 * 2) & 3;
            to[s * PACK_STEP + i] = (uint8_t)(to[s * PACK_STEP + i] | bits << 4);
        }
}

/* Vectors of a block's scales: d, then by form m; or s of both halves, then m and t of both halves.
 */
static void decode_scales(const struct pack *w, const uint8_t *scale, const uint8_t *super,
                          float to[MATMUL_SCALES][PACK_OUTPUTS]) {
    for (int o = 0; o < PACK_OUTPUTS; o++) {
        switch (w->form) {
        case PACK_SCALE:
            to[0][o] = f16_of(scale, o);
            break;
        case PACK_SCALE_MIN:
            to[0][o] = f16_of(scale, o);
            to[1][o] = f16_of(scale + 32, o);
            break;
        case PACK_SUPER_MIN:
            to[0][o] = f16_of(super, o) * (float)scale[o];
            to[1][o] = -f16_of(super + 32, o) * (float)scale[16 + o];
            break;
        case PACK_SUB:
            to[0][o] = f16_of(super, o);
            to[1][o] = (float)(int8_t)scale[o];
            to[2][o] = (float)(int8_t)scale[16 + o];
            break;
        case PACK_SUB_MIN:
            to[0][o] = f16_of(super, o);
            to[1][o] = (float)scale[o];
            to[2][o] = (float)scale[16 + o];
            to[3][o] = -f16_of(super + 32, o);
            to[4][o] = (float)scale[32 + o];
            to[5][o] = (float)scale[48 + o];
            break;
        case PACK_DENSE:
            BUG_ON(true);
        }
    }
}

static void decode(const struct pack *w, const uint8_t *panel, int first, int n, uint8_t *codes,
                   float *scales) {
    for (int b = first; b < first + n; b++) {
        if (codes) {
            decode_codes(w, panel + (size_t)b * w->code_bytes, codes);
            codes += PACK_CODES;
        }
        const uint8_t *super =
            panel + w->super_at + (size_t)(b / PACK_SUPER_BLOCKS) * w->super_bytes;
        decode_scales(w, panel + w->scale_at + (size_t)b * w->scale_bytes, super,
                      (float(*)[PACK_OUTPUTS])(void *)scales);
        scales += MATMUL_SCALES * PACK_OUTPUTS;
    }
}

/* `stride`: bytes from one step's activations to the next's. */
static void dot_steps(const uint8_t *codes, const int8_t *q, int stride, int steps,
                      int32_t acc[PACK_OUTPUTS]) {
    for (int s = 0; s < steps; s++, codes += PACK_STEP, q += stride)
        for (int o = 0; o < PACK_OUTPUTS; o++)
            acc[o] += codes[4 * o] * q[0] + codes[4 * o + 1] * q[1] + codes[4 * o + 2] * q[2] +
                      codes[4 * o + 3] * q[3];
}

static void add_block(enum pack_form form, const uint8_t *codes, const float *scales,
                      const int8_t *q, int stride, const struct matmul_record *r, float *sums) {
    int32_t acc[2][PACK_OUTPUTS];
    bool halves = form == PACK_SUB || form == PACK_SUB_MIN;
    for (int o = 0; o < PACK_OUTPUTS; o++) {
        acc[0][o] = form == PACK_SUB_MIN ? 0 : r->init[0];
        acc[1][o] = form == PACK_SUB_MIN ? 0 : r->init[1];
    }
    dot_steps(codes, q, stride, halves ? 4 : 8, acc[0]);
    if (halves) dot_steps(codes + 4 * PACK_STEP, q + 4 * stride, stride, 4, acc[1]);
    for (int o = 0; o < PACK_OUTPUTS; o++) {
        const float *v = scales + o;
        float i = (float)acc[0][o];
        /* Products and sums of small integers: exact. */
        if (halves)
            i = (float)acc[0][o] * v[1 * PACK_OUTPUTS] + (float)acc[1][o] * v[2 * PACK_OUTPUTS];
        sums[o] = fmaf(i, v[0] * r->scale, sums[o]);
        if (form == PACK_SCALE_MIN || form == PACK_SUPER_MIN)
            sums[o] = fmaf(v[1 * PACK_OUTPUTS], r->scale_sum, sums[o]);
        if (form == PACK_SUB_MIN) {
            float t =
                (float)r->init[0] * v[4 * PACK_OUTPUTS] + (float)r->init[1] * v[5 * PACK_OUTPUTS];
            sums[o] = fmaf(t, v[3 * PACK_OUTPUTS] * r->scale, sums[o]);
        }
    }
}

static void run_tile(enum pack_form form, int code_bits, int rows, const struct tile *t) {
    (void)code_bits;
    for (int b = 0; b < t->n_blocks; b++)
        prefetch_next(t, t->n_panels, b);
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < t->n_panels; p++) {
            float *sums = t->sums + (size_t)(r * MATMUL_PANELS + p) * PACK_OUTPUTS;
            if (t->first) memset(sums, 0, PACK_OUTPUTS * sizeof *sums);
            for (int b = 0; b < t->n_blocks; b++)
                add_block(form, t->codes[p] + b * PACK_CODES,
                          t->scales[p] + b * MATMUL_SCALES * PACK_OUTPUTS,
                          t->q + b * PACK_COLUMNS * rows + 4 * r, 4 * rows,
                          t->records + b * rows + r, sums);
        }
}

void matmul_generic(const struct matmul_job *j, struct matmul_scratch *s, int begin, int end) {
    run_pairs(j, s, begin, end);
}
