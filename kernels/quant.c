#include "kernels/quant.h"

#include "base/err.h"

#include <string.h>

enum { SUPER = 256 }; /* elements of a block of the _K types */

struct type_info {
    uint32_t type;
    const char *name;
    int elements; /* of a block; 0: a type that firstpass doesn't read */
    size_t bytes;
};

static const struct type_info types[] = {
    {QUANT_F32, "F32", 1, 4},
    {QUANT_F16, "F16", 1, 2},
    {QUANT_Q4_0, "Q4_0", 32, 18},
    {QUANT_Q4_1, "Q4_1", 32, 20},
    {4, "Q4_2", 0, 0},
    {5, "Q4_3", 0, 0},
    {QUANT_Q5_0, "Q5_0", 32, 22},
    {QUANT_Q5_1, "Q5_1", 32, 24},
    {QUANT_Q8_0, "Q8_0", 32, 34},
    {9, "Q8_1", 0, 0},
    {QUANT_Q2_K, "Q2_K", SUPER, 84},
    {QUANT_Q3_K, "Q3_K", SUPER, 110},
    {QUANT_Q4_K, "Q4_K", SUPER, 144},
    {QUANT_Q5_K, "Q5_K", SUPER, 176},
    {QUANT_Q6_K, "Q6_K", SUPER, 210},
    {15, "Q8_K", 0, 0},
    {16, "IQ2_XXS", 0, 0},
    {17, "IQ2_XS", 0, 0},
    {18, "IQ3_XXS", 0, 0},
    {19, "IQ1_S", 0, 0},
    {20, "IQ4_NL", 0, 0},
    {21, "IQ3_S", 0, 0},
    {22, "IQ2_S", 0, 0},
    {23, "IQ4_XS", 0, 0},
    {24, "I8", 0, 0},
    {25, "I16", 0, 0},
    {26, "I32", 0, 0},
    {27, "I64", 0, 0},
    {28, "F64", 0, 0},
    {29, "IQ1_M", 0, 0},
    {QUANT_BF16, "BF16", 1, 2},
    {34, "TQ1_0", 0, 0},
    {35, "TQ2_0", 0, 0},
    {39, "MXFP4", 0, 0},
};
enum { N_TYPES = sizeof types / sizeof *types };

static const struct type_info *find(uint32_t type) {
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].type == type) return &types[i];
    return NULL;
}

static const struct type_info *supported(uint32_t type) {
    const struct type_info *t = find(type);
    BUG_ON(!t || !t->elements);
    return t;
}

bool quant_supported(uint32_t gguf_type) {
    const struct type_info *t = find(gguf_type);
    return t && t->elements;
}

const char *quant_name(uint32_t gguf_type) {
    const struct type_info *t = find(gguf_type);
    return t ? t->name : "an unknown type";
}

const char *quant_supported_names(void) {
    return "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K";
}

int quant_block_elements(enum quant_type type) { return supported(type)->elements; }

size_t quant_block_bytes(enum quant_type type) { return supported(type)->bytes; }

size_t quant_row_bytes(enum quant_type type, size_t n) {
    const struct type_info *t = supported(type);
    BUG_ON(n % (size_t)t->elements);
    return n / (size_t)t->elements * t->bytes;
}

/* ---- half precision ---- */

float quant_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t rest = (uint32_t)(h & 0x7fff) << 13;
    uint32_t bits;
    float f;
    if (rest >= 0x0f800000) { /* infinity and NaN */
        bits = rest + 0x70000000;
    } else if (rest >= 0x00800000) {
        bits = rest + 0x38000000;
    } else { /* subnormal: an integer times 2^-24 */
        f = (float)(h & 0x7fff) * 0x1p-24f;
        memcpy(&bits, &f, 4);
    }
    if (rest > 0x0f800000) bits |= 0x00400000; /* quiet, as F16C does */
    bits |= sign;
    memcpy(&f, &bits, 4);
    return f;
}

uint16_t quant_f32_to_f16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 0x3ff)); /* NaN */
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds to infinity */
    if (bits < 0x38800000) { /* subnormal: adding 0.5 rounds to a multiple of 2^-24 */
        float magnitude;
        memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, 4);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    uint32_t odd = bits >> 13 & 1;
    return (uint16_t)(sign | ((bits - 0x38000000 + 0xfff + odd) >> 13));
}

/* ---- decoding ----
 * Each function decodes one block.  Byte offsets are those of the format; f16 scales. */

static float f16_at(const uint8_t *p) { return quant_f16_to_f32((uint16_t)(p[0] | p[1] << 8)); }

static void decode_q4(const uint8_t *codes, float d, float m, int offset, float *out) {
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((codes[i] & 15) - offset) + m;
        out[i + 16] = d * (float)((codes[i] >> 4) - offset) + m;
    }
}

static void decode_q5(const uint8_t *high, const uint8_t *codes, float d, float m, int offset,
                      float *out) {
    for (int i = 0; i < 16; i++) {
        int h0 = high[i / 8] >> (i % 8) & 1, h1 = high[2 + i / 8] >> (i % 8) & 1;
        out[i] = d * (float)(((codes[i] & 15) | h0 << 4) - offset) + m;
        out[i + 16] = d * (float)(((codes[i] >> 4) | h1 << 4) - offset) + m;
    }
}

/* 16 sub-blocks of 16: low nibble of scales[j] is the scale, high the minimum. */
static void decode_q2_k(const uint8_t *b, float *out) {
    const uint8_t *scales = b, *codes = b + 16;
    float d = f16_at(b + 80), dmin = f16_at(b + 82);
    for (int i = 0; i < SUPER; i++) {
        int scale = scales[i / 16];
        int code = codes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        out[i] = d * (float)(scale & 15) * (float)code - dmin * (float)(scale >> 4);
    }
}

void quant_q3_k_scales(const uint8_t packed[12], int8_t out[16]) {
    for (int j = 0; j < 16; j++) {
        int low = packed[j % 8] >> (j / 8 * 4) & 15;
        int high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
        out[j] = (int8_t)((low | high << 4) - 32);
    }
}

static void decode_q3_k(const uint8_t *b, float *out) {
    const uint8_t *high = b, *codes = b + 32;
    int8_t scales[16];
    quant_q3_k_scales(b + 96, scales);
    float d = f16_at(b + 108);
    for (int i = 0; i < SUPER; i++) {
        int code = codes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        if (high[i % 32] >> (i / 32) & 1) code += 4;
        int8_t scale = scales[i / 16];
        out[i] = d * (float)scale * (float)(code - 4);
    }
}

void quant_k_scale_min(const uint8_t packed[12], int j, uint8_t *scale, uint8_t *min) {
    if (j < 4) {
        *scale = packed[j] & 63;
        *min = packed[j + 4] & 63;
    } else {
        *scale = (uint8_t)((packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4);
        /* cppcheck-suppress arrayIndexOutOfBoundsCond ; j is at most 7 */
        *min = (uint8_t)((packed[j + 4] >> 4) | (packed[j] >> 6) << 4);
    }
}

/* 8 sub-blocks of 32; `high` is NULL for Q4_K. */
static void decode_q45_k(const uint8_t *b, const uint8_t *high, const uint8_t *codes, float *out) {
    float d = f16_at(b), dmin = f16_at(b + 2);
    for (int j = 0; j < 8; j++) {
        uint8_t scale, min;
        quant_k_scale_min(b + 4, j, &scale, &min);
        float ds = d * (float)scale, dm = dmin * (float)min;
        for (int i = 0; i < 32; i++) {
            int code = codes[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
            if (high && high[i] >> j & 1) code += 16;
            out[j * 32 + i] = ds * (float)code - dm;
        }
    }
}

static void decode_q6_k(const uint8_t *b, float *out) {
    const uint8_t *low = b, *high = b + 128;
    float d = f16_at(b + 208);
    for (int i = 0; i < SUPER; i++) {
        int part = i / 128, in = i % 128;
        int nibble = low[part * 64 + in % 64] >> (in / 64 * 4) & 15;
        int pair = high[part * 32 + in % 32] >> (in / 32 * 2) & 3;
        int8_t scale = (int8_t)b[192 + i / 16];
        out[i] = d * (float)scale * (float)((nibble | pair << 4) - 32);
    }
}

static void decode_block(enum quant_type type, const uint8_t *b, float *out) {
    uint32_t bits;
    switch (type) {
    case QUANT_F32:
        memcpy(out, b, 4);
        return;
    case QUANT_F16:
        *out = f16_at(b);
        return;
    case QUANT_BF16:
        bits = (uint32_t)b[0] << 16 | (uint32_t)b[1] << 24;
        memcpy(out, &bits, 4);
        return;
    case QUANT_Q4_0:
        decode_q4(b + 2, f16_at(b), 0, 8, out);
        return;
    case QUANT_Q4_1:
        decode_q4(b + 4, f16_at(b), f16_at(b + 2), 0, out);
        return;
    case QUANT_Q5_0:
        decode_q5(b + 2, b + 6, f16_at(b), 0, 16, out);
        return;
    case QUANT_Q5_1:
        decode_q5(b + 4, b + 8, f16_at(b), f16_at(b + 2), 0, out);
        return;
    case QUANT_Q8_0:
        for (int i = 0; i < 32; i++)
            out[i] = f16_at(b) * (float)(int8_t)b[2 + i];
        return;
    case QUANT_Q2_K:
        decode_q2_k(b, out);
        return;
    case QUANT_Q3_K:
        decode_q3_k(b, out);
        return;
    case QUANT_Q4_K:
        decode_q45_k(b, NULL, b + 16, out);
        return;
    case QUANT_Q5_K:
        decode_q45_k(b, b + 16, b + 48, out);
        return;
    case QUANT_Q6_K:
        decode_q6_k(b, out);
        return;
    }
    BUG_ON(true);
}

void quant_decode(enum quant_type type, const void *blocks, size_t n, float *out) {
    const struct type_info *t = supported(type);
    BUG_ON(n % (size_t)t->elements);
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += (size_t)t->elements, b += t->bytes)
        decode_block(type, b, out + i);
}
