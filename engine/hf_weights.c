#include "engine/hf_weights.h"

#include "config/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F16_MAX 65504.0f

/* ---- names ---- */

struct name {
    const char *hf, *gguf;
};
enum layer_part {
    NORM_1,
    NORM_2,
    Q,
    K,
    V,
    O,
    GATE,
    UP,
    DOWN,
    Q_BIAS,
    K_BIAS,
    V_BIAS,
    Q_NORM,
    K_NORM,
    N_PARTS
};

static const struct name parts[N_PARTS] = {
    [NORM_1] = {"input_layernorm.weight", "attn_norm.weight"},
    [NORM_2] = {"post_attention_layernorm.weight", "ffn_norm.weight"},
    [Q] = {"self_attn.q_proj.weight", "attn_q.weight"},
    [K] = {"self_attn.k_proj.weight", "attn_k.weight"},
    [V] = {"self_attn.v_proj.weight", "attn_v.weight"},
    [O] = {"self_attn.o_proj.weight", "attn_output.weight"},
    [GATE] = {"mlp.gate_proj.weight", "ffn_gate.weight"},
    [UP] = {"mlp.up_proj.weight", "ffn_up.weight"},
    [DOWN] = {"mlp.down_proj.weight", "ffn_down.weight"},
    [Q_BIAS] = {"self_attn.q_proj.bias", "attn_q.bias"},
    [K_BIAS] = {"self_attn.k_proj.bias", "attn_k.bias"},
    [V_BIAS] = {"self_attn.v_proj.bias", "attn_v.bias"},
    [Q_NORM] = {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    [K_NORM] = {"self_attn.k_norm.weight", "attn_k_norm.weight"},
};
enum { N_ROOTS = 3, LM_HEAD = 2 };
static const struct name roots[N_ROOTS] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    [LM_HEAD] = {"lm_head.weight", "output.weight"},
};

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* Belongs to a weight, or can be computed, or is for activations and caches of 8 bits, which ours
 * are not. */
static bool of_no_use(const char *name) {
    static const char *const ends[] = {".weight_scale",  ".weight_scale_inv", ".input_scale",
                                       ".output_scale",  ".k_scale",          ".v_scale",
                                       ".q_scale",       ".inv_freq",         ".activation_scale",
                                       ".input_scale_ub"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i])) return true;
    return false;
}

/* The GGUF name of a tensor, or "" for one to leave out; false where it isn't known. */
static bool translate(const struct hf_config *c, const char *name, char *out, size_t size) {
    *out = 0;
    if (of_no_use(name)) return true;
    for (int i = 0; i < N_ROOTS; i++) {
        if (strcmp(name, roots[i].hf) != 0) continue;
        if (i != LM_HEAD || !c->tied) snprintf(out, size, "%s", roots[i].gguf);
        return true;
    }
    static const char prefix[] = "model.layers.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return false;
    char *end;
    unsigned long layer = strtoul(name + sizeof prefix - 1, &end, 10);
    if (*end != '.' || layer >= (unsigned long)c->n_layers) return false;
    for (int i = 0; i < N_PARTS; i++) {
        if (strcmp(end + 1, parts[i].hf) != 0) continue;
        snprintf(out, size, "blk.%lu.%s", layer, parts[i].gguf);
        return true;
    }
    return false;
}

/* ---- fp8 ---- */

/* The scale of an fp8 weight, and how many rows and columns have one in common. */
static bool find_scale(struct hf_weights_source *s, const char *label, const struct hf_config *c,
                       const struct hf_files *files, struct err *e) {
    const struct safetensors_tensor *w = s->weight;
    char name[SAFETENSORS_MAX_NAME + 16];
    snprintf(name, sizeof name, "%s_scale", w->name);
    s->scale = hf_files_find(files, name);
    if (!s->scale) {
        snprintf(name, sizeof name, "%s_scale_inv", w->name);
        s->scale = hf_files_find(files, name);
    }
    if (!s->scale)
        return err_set(e, ERR_INPUT, "%s: tensor %.80s is fp8, but %.80s is missing", label,
                       w->name, name);
    enum safetensors_dtype type = s->scale->dtype;
    if (type != SAFETENSORS_F32 && type != SAFETENSORS_BF16 && type != SAFETENSORS_F16)
        return err_set(e, ERR_INPUT, "%s: tensor %.80s has dtype %s; F32, BF16 and F16 are read",
                       label, s->scale->name, safetensors_dtype_name(type));
    uint64_t rows = w->dims[0], cols = w->dims[1], n = 1;
    for (int i = 0; i < s->scale->n_dims; i++)
        n *= s->scale->dims[i];
    uint64_t block_rows = (uint64_t)c->block[0], block_cols = (uint64_t)c->block[1];
    bool blocks = block_rows && s->scale->n_dims == 2 &&
                  s->scale->dims[0] == (rows + block_rows - 1) / block_rows &&
                  s->scale->dims[1] == (cols + block_cols - 1) / block_cols;
    if (blocks)
        memcpy(s->block, c->block, sizeof s->block);
    else if (n == 1)
        s->block[0] = (int)rows, s->block[1] = (int)cols;
    else if (n == rows && s->scale->dims[0] == rows)
        s->block[0] = 1, s->block[1] = (int)cols;
    else
        return err_set(e, ERR_INPUT, "%s: %.80s fits neither the tensor, its rows nor its blocks",
                       label, s->scale->name);
    return true;
}

/* The value of each code: sign, 4 bits of exponent (bias 7), 3 of fraction; no infinities.
 * (arXiv 2209.05433, table 1.) */
static void fill_e4m3(float values[256]) {
    for (int code = 0; code < 256; code++) {
        int exponent = code >> 3 & 15, fraction = code & 7;
        float v = exponent ? (float)(8 + fraction) / 8 : (float)fraction / 8;
        for (int i = exponent ? exponent : 1; i < 7; i++)
            v /= 2;
        for (int i = 7; i < exponent; i++)
            v *= 2;
        values[code] = code & 0x80 ? -v : v;
        if ((code & 0x7F) == 0x7F) values[code] = 0; /* NaN: no trained weight */
    }
}

static float scale_at(const struct safetensors_tensor *t, uint64_t i) {
    float f;
    uint16_t half;
    if (t->dtype == SAFETENSORS_F32) {
        memcpy(&f, (const char *)t->data + i * sizeof f, sizeof f);
        return f;
    }
    memcpy(&half, (const char *)t->data + i * sizeof half, sizeof half);
    quant_decode(t->dtype == SAFETENSORS_F16 ? QUANT_F16 : QUANT_BF16, &half, 1, &f);
    return f;
}

/* What each code stands for under one scale.  f16 holds the 4 bits of a code times a scale better
 * than bf16; what is beyond its range no weight is. */
static void fill_table(const float codes[256], float scale, uint16_t table[256]) {
    for (int i = 0; i < 256; i++) {
        float v = codes[i] * scale;
        v = v > F16_MAX ? F16_MAX : v < -F16_MAX ? -F16_MAX : v;
        table[i] = quant_f32_to_f16(v);
    }
}

/* Down each column of blocks, so that a block's table is made once. */
void hf_weights_decode(const struct hf_weights_source *s, int first, int n, uint16_t *out) {
    float codes[256];
    uint16_t table[256];
    fill_e4m3(codes);
    size_t cols = (size_t)s->weight->dims[1], width = (size_t)s->block[1];
    size_t height = (size_t)s->block[0], across = (cols + width - 1) / width;
    for (size_t b = 0; b < across; b++) {
        size_t begin = b * width, end = begin + width < cols ? begin + width : cols;
        for (size_t r = (size_t)first; r < (size_t)first + (size_t)n; r++) {
            if (r == (size_t)first || r % height == 0)
                fill_table(codes, scale_at(s->scale, r / height * across + b), table);
            const uint8_t *from = (const uint8_t *)s->weight->data + r * cols;
            uint16_t *to = out + (r - (size_t)first) * cols;
            for (size_t i = begin; i < end; i++)
                to[i] = table[from[i]];
        }
    }
}

/* ---- binding ---- */

static bool type_of(const struct safetensors_tensor *w, uint32_t *type) {
    switch (w->dtype) {
    case SAFETENSORS_F32:
        *type = QUANT_F32;
        return true;
    case SAFETENSORS_F16:
    case SAFETENSORS_F8_E4M3: /* decoded */
        *type = QUANT_F16;
        return true;
    case SAFETENSORS_BF16:
        *type = QUANT_BF16;
        return true;
    case SAFETENSORS_BOOL:
    case SAFETENSORS_U8:
    case SAFETENSORS_I8:
    case SAFETENSORS_F8_E5M2:
    case SAFETENSORS_F8_E8M0:
    case SAFETENSORS_I16:
    case SAFETENSORS_U16:
    case SAFETENSORS_I32:
    case SAFETENSORS_U32:
    case SAFETENSORS_F64:
    case SAFETENSORS_I64:
    case SAFETENSORS_U64:
        break;
    }
    return false;
}

static bool bind_tensor(struct hf_weights *h, const struct hf_config *c,
                        const struct hf_files *files, const struct safetensors *file,
                        const struct safetensors_tensor *w, struct err *e) {
    const char *label = safetensors_label(file);
    char name[64];
    if (!translate(c, w->name, name, sizeof name))
        return err_set(e, ERR_INPUT,
                       "%s: tensor %.80s isn't known for architecture %s with %d layers: this is "
                       "another kind of model",
                       label, w->name, c->architecture, c->n_layers);
    if (!*name) return true;
    struct gguf_tensor *t = &h->tensors[h->n];
    struct hf_weights_source *s = &h->sources[h->n];
    *t = (struct gguf_tensor){.n_dims = w->n_dims, .dims = {1, 1, 1, 1}, .data = w->data};
    if (w->n_dims < 1 || w->n_dims > 2)
        return err_set(e, ERR_INPUT, "%s: tensor %.80s has %d dimensions; 1 or 2 are expected",
                       label, w->name, w->n_dims);
    for (int i = 0; i < w->n_dims; i++) {
        t->dims[i] = w->dims[w->n_dims - 1 - i];
        if (t->dims[i] < 1 || t->dims[i] > INT32_MAX)
            return err_set(e, ERR_INPUT, "%s: tensor %.80s has a dimension of %llu", label, w->name,
                           (unsigned long long)t->dims[i]);
    }
    if (!type_of(w, &t->type))
        return err_set(e, ERR_INPUT,
                       "%s: tensor %.80s has the dtype %s; F32, F16, BF16 and F8_E4M3 are read",
                       label, w->name, safetensors_dtype_name(w->dtype));
    s->weight = w;
    if (w->dtype == SAFETENSORS_F8_E4M3) {
        if (w->n_dims != 2)
            return err_set(e, ERR_INPUT, "%s: tensor %.80s is fp8 and no matrix", label, w->name);
        if (!find_scale(s, label, c, files, e)) return false;
        t->data = NULL;
    }
    t->bytes = quant_row_bytes((enum quant_type)t->type, (size_t)t->dims[0]) * t->dims[1];
    h->names[h->n] = err_strdup(name);
    t->name = (struct gguf_string){h->names[h->n], strlen(name)};
    h->n++;
    return true;
}

/* What the rope's frequencies are divided by, as GGUF files hold it. */
static void add_rope_factors(struct hf_weights *h, const struct hf_config *c) {
    if (!c->rope_factors) return;
    h->names[h->n] = err_strdup("rope_freqs.weight");
    h->tensors[h->n] =
        (struct gguf_tensor){.name = {h->names[h->n], strlen(h->names[h->n])},
                             .type = QUANT_F32,
                             .n_dims = 1,
                             .dims = {(uint64_t)c->n_rope_factors, 1, 1, 1},
                             .data = c->rope_factors,
                             .bytes = (uint64_t)c->n_rope_factors * sizeof *c->rope_factors};
    h->n++;
}

static bool need(const char *dir, const struct hf_files *files, const char *name, struct err *e) {
    return hf_files_find(files, name) ||
           err_set(e, ERR_INPUT, "%s: tensor %s is missing", dir, name);
}

static bool check_all(const char *dir, const struct hf_config *c, const struct hf_files *files,
                      struct err *e) {
    for (int i = 0; i < N_ROOTS; i++)
        if (!(i == LM_HEAD && c->tied) && !need(dir, files, roots[i].hf, e)) return false;
    for (int layer = 0; layer < c->n_layers; layer++)
        for (int i = 0; i < N_PARTS; i++) {
            char name[96];
            if ((i >= Q_BIAS && i <= V_BIAS && !c->biases) || (i >= Q_NORM && !c->head_norms))
                continue;
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, parts[i].hf);
            if (!need(dir, files, name, e)) return false;
        }
    return true;
}

bool hf_weights_bind(struct hf_weights *h, const char *dir, const struct hf_config *c,
                     const struct hf_files *files, struct err *e) {
    *h = (struct hf_weights){0};
    uint64_t most = 1; /* the rope's factors */
    for (int i = 0; i < files->n; i++)
        most += safetensors_n(files->files[i]);
    h->tensors = err_alloc(most, sizeof *h->tensors);
    h->sources = err_alloc(most, sizeof *h->sources);
    h->names = err_alloc(most, sizeof *h->names);
    for (int i = 0; i < files->n; i++)
        for (uint64_t k = 0; k < safetensors_n(files->files[i]); k++)
            if (!bind_tensor(h, c, files, files->files[i], safetensors_at(files->files[i], k), e))
                return false;
    add_rope_factors(h, c);
    return check_all(dir, c, files, e);
}

void hf_weights_clear(struct hf_weights *h) {
    for (uint64_t i = 0; i < h->n; i++)
        free(h->names[i]);
    free(h->names);
    free(h->sources);
    free(h->tensors);
    *h = (struct hf_weights){0};
}
