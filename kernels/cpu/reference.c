#include "kernels/cpu/reference.h"

#include <math.h>
#include <string.h>

enum { LANES = 16, TERMS = 8 };

static double dot(const float *a, const float *b, int n) {
    double total[LANES] = {0};
    int i = 0;
    for (; i + LANES * TERMS <= n; i += LANES * TERMS) {
        float sums[LANES] = {0};
        for (int t = 0; t < TERMS; t++)
            for (int l = 0; l < LANES; l++)
                sums[l] += a[i + t * LANES + l] * b[i + t * LANES + l];
        for (int l = 0; l < LANES; l++)
            total[l] += (double)sums[l];
    }
    for (; i < n; i++)
        total[0] += (double)a[i] * (double)b[i];
    for (int l = 1; l < LANES; l++)
        total[0] += total[l];
    return total[0];
}

void reference_matmul(const struct reference_matmul *j, float *row, int begin, int end) {
    size_t bytes = quant_row_bytes(j->type, (size_t)j->n_cols);
    for (int m = begin; m < end; m++) {
        quant_decode(j->type, (const uint8_t *)j->data + (size_t)m * bytes, (size_t)j->n_cols, row);
        for (int r = 0; r < j->n_rows; r++) {
            double sum = dot(row, j->x + (size_t)r * (size_t)j->n_cols, j->n_cols);
            float *y = j->y + (size_t)r * (size_t)j->y_stride + m;
            if (j->bias) sum += (double)j->bias[m];
            if (j->add) sum += (double)*y;
            *y = (float)sum;
        }
    }
}

void reference_rms_norm(const float *x, const float *weight, float eps, int d, float *out) {
    double squares = 0;
    for (int i = 0; i < d; i++)
        squares += (double)x[i] * (double)x[i];
    double scale = 1 / sqrt(squares / d + (double)eps);
    for (int i = 0; i < d; i++)
        out[i] = (float)((double)x[i] * scale * (double)weight[i]);
}

void reference_swiglu(const float *gate, const float *up, int d, float *out) {
    for (int i = 0; i < d; i++) {
        double g = (double)gate[i];
        out[i] = (float)(g / (1 + exp(-g)) * (double)up[i]);
    }
}

void reference_attention(const struct vector_attention *a, int row, int head, double *scores) {
    const struct vector_kv *kv = &a->kv;
    const struct kernels_batch *b = a->batch;
    const int32_t *table = b->tables + b->table_starts[b->table_of_row[row]];
    int d = kv->head_dim, n = b->positions[row] + 1;
    int kv_head = head / (a->n_heads / kv->n_kv_heads);
    const float *q = a->q + (size_t)row * (size_t)a->q_stride + head * d;
    double most = -INFINITY, total = 0;
    for (int p = 0; p < n; p++) {
        size_t at = (size_t)table[p / KERNELS_BLOCK] * (size_t)kv->n_kv_heads + (size_t)kv_head;
        const uint16_t *keys = (const uint16_t *)(const void *)(kv->data + at * kv->head_bytes);
        double sum = 0;
        for (int i = 0; i < d; i++)
            sum += (double)q[i] *
                   (double)quant_f16_to_f32(keys[i * KERNELS_BLOCK + p % KERNELS_BLOCK]);
        scores[p] = sum * (double)a->scale;
        if (scores[p] > most) most = scores[p];
    }
    double out[512];
    BUG_ON(d > 512);
    memset(out, 0, (size_t)d * sizeof *out);
    for (int p = 0; p < n; p++) {
        size_t at = (size_t)table[p / KERNELS_BLOCK] * (size_t)kv->n_kv_heads + (size_t)kv_head;
        const uint16_t *keys = (const uint16_t *)(const void *)(kv->data + at * kv->head_bytes);
        const uint16_t *values = keys + d * KERNELS_BLOCK + p % KERNELS_BLOCK * kv->value_stride;
        double w = exp(scores[p] - most);
        total += w;
        for (int i = 0; i < d; i++)
            out[i] += w * (double)quant_f16_to_f32(values[i]);
    }
    float *to = a->out + ((size_t)row * (size_t)a->n_heads + (size_t)head) * (size_t)d;
    for (int i = 0; i < d; i++)
        to[i] = (float)(out[i] / total);
}
