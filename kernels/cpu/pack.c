#include "kernels/cpu/pack.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* What a type's block says of 32 columns of one row. */
struct block {
    uint8_t codes[PACK_COLUMNS];
    uint16_t d, m;              /* f16 */
    uint8_t scales[2], mins[2]; /* [1] only where sub-blocks have 16 columns; scales are signed
                                   bytes of PACK_SUB */
};

struct form_info {
    enum quant_type type;
    enum pack_form form;
    int code_bits, offset;
};

static const struct form_info forms[] = {
    {QUANT_F32, PACK_DENSE, 32, 0},     {QUANT_F16, PACK_DENSE, 16, 0},
    {QUANT_BF16, PACK_DENSE, 16, 0},    {QUANT_Q4_0, PACK_SCALE, 4, 8},
    {QUANT_Q4_1, PACK_SCALE_MIN, 4, 0}, {QUANT_Q5_0, PACK_SCALE, 5, 16},
    {QUANT_Q5_1, PACK_SCALE_MIN, 5, 0}, {QUANT_Q8_0, PACK_SCALE, 8, 0},
    {QUANT_Q2_K, PACK_SUB_MIN, 4, 0},   {QUANT_Q3_K, PACK_SUB, 4, 4},
    {QUANT_Q4_K, PACK_SUPER_MIN, 4, 0}, {QUANT_Q5_K, PACK_SUPER_MIN, 5, 0},
    {QUANT_Q6_K, PACK_SUB, 6, 32},
};

/* Bytes of scales by form: a block's, a superblock's. */
static const size_t scale_sizes[][2] = {
    [PACK_SCALE] = {32, 0}, [PACK_SCALE_MIN] = {64, 0}, [PACK_SUPER_MIN] = {32, 64},
    [PACK_SUB] = {32, 32},  [PACK_SUB_MIN] = {64, 64},  [PACK_DENSE] = {0, 0},
};

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

void pack_init(struct pack *p, enum quant_type type, int n_rows, int n_cols, bool unsigned8) {
    const struct form_info *info = forms;
    while (info->type != type)
        info++;
    *p = (struct pack){
        .type = type,
        .form = info->form,
        .code_bits = info->code_bits,
        .offset = info->code_bits == 8 && unsigned8 ? 128 : info->offset,
        .source_blocks = quant_block_elements(type) / PACK_COLUMNS,
        .source_bytes = quant_block_bytes(type),
        .n_rows = n_rows,
        .n_cols = n_cols,
        .n_panels = (n_rows + PACK_OUTPUTS - 1) / PACK_OUTPUTS,
    };
    if (p->form == PACK_DENSE) {
        size_t bytes = (size_t)n_cols * PACK_OUTPUTS * (size_t)p->code_bits / 8;
        p->panel_bytes = round_up(bytes, 64);
        return;
    }
    BUG_ON(n_cols % quant_block_elements(type));
    p->n_blocks = n_cols / PACK_COLUMNS;
    size_t n = (size_t)p->n_blocks;
    p->code_bytes = (size_t)p->code_bits * PACK_CODES / 8;
    p->scale_bytes = scale_sizes[p->form][0];
    p->super_bytes = scale_sizes[p->form][1];
    p->scale_at = n * p->code_bytes;
    p->super_at = p->scale_at + n * p->scale_bytes;
    p->panel_bytes = round_up(p->super_at + n / PACK_SUPER_BLOCKS * p->super_bytes, 64);
}

size_t pack_bytes(const struct pack *p) { return (size_t)p->n_panels * p->panel_bytes; }

bool pack_alloc(struct pack *p, struct err *e) {
    void *data =
        mmap(NULL, pack_bytes(p), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return err_errno(e, errno, "no memory for %zu bytes of weights", pack_bytes(p));
    madvise(data, pack_bytes(p), MADV_HUGEPAGE); /* advice: the kernel may lack it */
    p->data = data;
    return true;
}

void pack_clear(struct pack *p) {
    if (p->data) munmap(p->data, pack_bytes(p));
    p->data = NULL;
}

/* ---- blocks of the file ---- */

static uint16_t u16_at(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static void read_nibbles(const uint8_t *from, uint8_t codes[PACK_COLUMNS]) {
    for (int i = 0; i < 16; i++) {
        codes[i] = from[i] & 15;
        codes[i + 16] = from[i] >> 4;
    }
}

static void read_fifth_bits(const uint8_t *from, uint8_t codes[PACK_COLUMNS]) {
    for (int i = 0; i < 32; i++)
        codes[i] = (uint8_t)(codes[i] | (from[i / 8] >> (i % 8) & 1) << 4);
}

/* Block j (0 … 7) of a Q2_K superblock. */
static void read_q2_k(const uint8_t *s, int j, struct block *b) {
    for (int i = 0; i < 32; i++)
        b->codes[i] = s[16 + j / 4 * 32 + i] >> (j % 4 * 2) & 3;
    for (int h = 0; h < 2; h++) {
        b->scales[h] = s[2 * j + h] & 15;
        b->mins[h] = s[2 * j + h] >> 4;
    }
    b->d = u16_at(s + 80);
    b->m = u16_at(s + 82);
}

static void read_q3_k(const uint8_t *s, int j, struct block *b) {
    int8_t scales[16];
    quant_q3_k_scales(s + 96, scales);
    for (int i = 0; i < 32; i++) {
        int low = s[32 + j / 4 * 32 + i] >> (j % 4 * 2) & 3;
        b->codes[i] = (uint8_t)(low | (s[i] >> j & 1) << 2);
    }
    for (int h = 0; h < 2; h++)
        b->scales[h] = (uint8_t)scales[2 * j + h];
    b->d = u16_at(s + 108);
}

static void read_q45_k(const uint8_t *s, const uint8_t *high, const uint8_t *low, int j,
                       struct block *b) {
    for (int i = 0; i < 32; i++) {
        int code = low[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
        if (high) code |= (high[i] >> j & 1) << 4;
        b->codes[i] = (uint8_t)code;
    }
    quant_k_scale_min(s + 4, j, &b->scales[0], &b->mins[0]);
    b->d = u16_at(s);
    b->m = u16_at(s + 2);
}

static void read_q6_k(const uint8_t *s, int j, struct block *b) {
    const uint8_t *low = s + j / 4 * 64 + j % 2 * 32, *high = s + 128 + j / 4 * 32;
    for (int i = 0; i < 32; i++)
        b->codes[i] =
            (uint8_t)((low[i] >> (j % 4 / 2 * 4) & 15) | (high[i] >> (j % 4 * 2) & 3) << 4);
    for (int h = 0; h < 2; h++)
        b->scales[h] = s[192 + 2 * j + h];
    b->d = u16_at(s + 208);
}

/* Columns 32 index … 32 index + 31 of one row. */
static void read_block(const struct pack *p, const uint8_t *row, int index, struct block *b) {
    const uint8_t *s = row + (size_t)(index / p->source_blocks) * p->source_bytes;
    int j = index % p->source_blocks;
    switch (p->type) {
    case QUANT_Q4_0:
        b->d = u16_at(s);
        read_nibbles(s + 2, b->codes);
        return;
    case QUANT_Q4_1:
        b->d = u16_at(s);
        b->m = u16_at(s + 2);
        read_nibbles(s + 4, b->codes);
        return;
    case QUANT_Q5_0:
        b->d = u16_at(s);
        read_nibbles(s + 6, b->codes);
        read_fifth_bits(s + 2, b->codes);
        return;
    case QUANT_Q5_1:
        b->d = u16_at(s);
        b->m = u16_at(s + 2);
        read_nibbles(s + 8, b->codes);
        read_fifth_bits(s + 4, b->codes);
        return;
    case QUANT_Q8_0:
        b->d = u16_at(s);
        for (int i = 0; i < 32; i++)
            b->codes[i] = (uint8_t)(s[2 + i] + p->offset);
        return;
    case QUANT_Q2_K:
        read_q2_k(s, j, b);
        return;
    case QUANT_Q3_K:
        read_q3_k(s, j, b);
        return;
    case QUANT_Q4_K:
        read_q45_k(s, NULL, s + 16, j, b);
        return;
    case QUANT_Q5_K:
        read_q45_k(s, s + 16, s + 48, j, b);
        return;
    case QUANT_Q6_K:
        read_q6_k(s, j, b);
        return;
    case QUANT_F32:
    case QUANT_F16:
    case QUANT_BF16:
        break;
    }
    BUG_ON(true);
}

/* ---- writing ---- */

static uint32_t four_codes(const uint8_t *codes) {
    uint32_t four;
    memcpy(&four, codes, 4);
    return four;
}

/* Codes of output o: step s, column c of 4 is code 4 s + c; four columns at a time, since they stay
 * neighbours (no shift moves a bit out of its byte). */
static void write_codes(const struct pack *p, const uint8_t codes[PACK_COLUMNS], int o,
                        uint8_t *to) {
    to += o * 4;
    if (p->code_bits == 8) {
        for (int s = 0; s < PACK_STEPS; s++)
            memcpy(to + s * PACK_STEP, codes + 4 * s, 4);
        return;
    }
    uint32_t high[2] = {0, 0};
    for (int s = 0; s < PACK_STEPS; s++) {
        uint32_t upper = four_codes(codes + 4 * s) >> 4;
        if (p->code_bits == 5) high[0] |= (upper & 0x01010101) << s;
        if (p->code_bits == 6) high[s / 4] |= (upper & 0x03030303) << (s % 4 * 2);
    }
    for (int s = 0; s < 4; s++) {
        uint32_t low = four_codes(codes + 4 * s) & 0x0f0f0f0f;
        low |= (four_codes(codes + 16 + 4 * s) & 0x0f0f0f0f) << 4;
        memcpy(to + s * PACK_STEP, &low, 4);
    }
    if (p->code_bits >= 5) memcpy(to + 4 * PACK_STEP, &high[0], 4);
    if (p->code_bits == 6) memcpy(to + 5 * PACK_STEP, &high[1], 4);
}

static void put_u16(uint8_t *to, int o, uint16_t v) { memcpy(to + 2 * o, &v, 2); }

static void write_scales(const struct pack *p, const struct block *b, int o, int index,
                         uint8_t *panel) {
    uint8_t *scale = panel + p->scale_at + (size_t)index * p->scale_bytes;
    uint8_t *super = panel + p->super_at + (size_t)(index / PACK_SUPER_BLOCKS) * p->super_bytes;
    switch (p->form) {
    case PACK_SCALE:
    case PACK_SCALE_MIN:
        put_u16(scale, o, b->d);
        if (p->form == PACK_SCALE_MIN) put_u16(scale + 32, o, b->m);
        return;
    case PACK_SUPER_MIN:
        scale[o] = b->scales[0];
        scale[16 + o] = b->mins[0];
        break;
    case PACK_SUB:
    case PACK_SUB_MIN:
        for (int h = 0; h < 2; h++) {
            scale[16 * h + o] = b->scales[h];
            if (p->form == PACK_SUB_MIN) scale[32 + 16 * h + o] = b->mins[h];
        }
        break;
    case PACK_DENSE:
        BUG_ON(true);
    }
    put_u16(super, o, b->d);
    if (p->form != PACK_SUB) put_u16(super + 32, o, b->m);
}

static void write_dense_row(const struct pack *p, const uint8_t *row, int o, uint8_t *panel) {
    size_t size = (size_t)p->code_bits / 8;
    for (int k = 0; k < p->n_cols; k++)
        memcpy(panel + ((size_t)k * PACK_OUTPUTS + (size_t)o) * size, row + (size_t)k * size, size);
}

void pack_panels(struct pack *p, const void *source, int begin, int end) {
    size_t row_bytes = quant_row_bytes(p->type, (size_t)p->n_cols);
    for (int panel = begin; panel < end; panel++) {
        uint8_t *to = p->data + (size_t)panel * p->panel_bytes;
        for (int o = 0; o < PACK_OUTPUTS && panel * PACK_OUTPUTS + o < p->n_rows; o++) {
            size_t r = (size_t)(panel * PACK_OUTPUTS + o);
            const uint8_t *row = (const uint8_t *)source + r * row_bytes;
            if (p->form == PACK_DENSE) write_dense_row(p, row, o, to);
            for (int i = 0; i < p->n_blocks; i++) {
                struct block b = {.d = 0};
                read_block(p, row, i, &b);
                write_codes(p, b.codes, o, to + (size_t)i * p->code_bytes);
                write_scales(p, &b, o, i, to);
            }
        }
    }
}

/* ---- reading back ---- */

static int code_at(const struct pack *p, const uint8_t *codes, int o, int k) {
    if (p->code_bits == 8) {
        uint8_t code = codes[k / 4 * PACK_STEP + o * 4 + k % 4];
        return p->offset ? code - p->offset : (int8_t)code;
    }
    int code = codes[k % 16 / 4 * PACK_STEP + o * 4 + k % 4] >> (k / 16 * 4) & 15;
    const uint8_t *high = codes + 4 * PACK_STEP + o * 4 + k % 4;
    int s = k / 4;
    if (p->code_bits == 5) code |= (high[0] >> s & 1) << 4;
    if (p->code_bits == 6) code |= (high[s / 4 * PACK_STEP] >> (s % 4 * 2) & 3) << 4;
    return code - p->offset;
}

static float f16_of(const uint8_t *from, int o) { return quant_f16_to_f32(u16_at(from + 2 * o)); }

static void decode_block(const struct pack *p, const uint8_t *panel, int o, int index, float *out) {
    const uint8_t *codes = panel + (size_t)index * p->code_bytes;
    const uint8_t *scale = panel + p->scale_at + (size_t)index * p->scale_bytes;
    const uint8_t *super =
        panel + p->super_at + (size_t)(index / PACK_SUPER_BLOCKS) * p->super_bytes;
    bool small = p->form == PACK_SCALE || p->form == PACK_SCALE_MIN;
    float d = f16_of(small ? scale : super, o);
    float m = p->form == PACK_SCALE_MIN                              ? f16_of(scale + 32, o)
              : p->form == PACK_SUPER_MIN || p->form == PACK_SUB_MIN ? f16_of(super + 32, o)
                                                                     : 0;
    for (int k = 0; k < PACK_COLUMNS; k++) {
        float q = (float)code_at(p, codes, o, k);
        int h = k / 16;
        if (small)
            out[k] = d * q + m;
        else if (p->form == PACK_SUPER_MIN)
            out[k] = d * (float)scale[o] * q - m * (float)scale[16 + o];
        else if (p->form == PACK_SUB)
            out[k] = d * (float)(int8_t)scale[16 * h + o] * q;
        else
            out[k] = d * (float)scale[16 * h + o] * q - m * (float)scale[32 + 16 * h + o];
    }
}

void pack_decode_row(const struct pack *p, int row, float *out) {
    const uint8_t *panel = p->data + (size_t)(row / PACK_OUTPUTS) * p->panel_bytes;
    int o = row % PACK_OUTPUTS;
    if (p->form == PACK_DENSE) {
        size_t size = (size_t)p->code_bits / 8;
        for (int k = 0; k < p->n_cols; k++)
            quant_decode(p->type, panel + ((size_t)k * PACK_OUTPUTS + (size_t)o) * size, 1,
                         out + k);
    }
    for (int i = 0; i < p->n_blocks; i++)
        decode_block(p, panel, o, i, out + (size_t)i * PACK_COLUMNS);
}
