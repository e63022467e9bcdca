#include "engine/model.h"

#include "config/limits.h"
#include "engine/yarn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the file ---- */

static bool open_file(struct model *m, struct err *e) {
    if (hf_is_directory(m->path)) {
        m->hf = hf_open(m->path, e);
        m->gguf = m->hf ? hf_gguf(m->hf) : NULL;
        return m->hf != NULL;
    }
    if (!map_open(&m->map, m->path, "model file", e)) return false;
    m->gguf = m->file = gguf_parse(m->map.bytes, m->map.len, m->path, e);
    return m->file != NULL;
}

static uint64_t hash_header(const struct model *m) {
    const unsigned char *p = m->map.bytes;
    uint64_t h = UINT64_C(0xCBF29CE484222325);
    uint64_t n = gguf_header_bytes(m->gguf);
    for (uint64_t i = 0; i < n; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001B3);
    return h ^ m->map.len;
}

static void fingerprint(struct model *m) {
    uint64_t h = m->hf ? hf_hash(m->hf) : hash_header(m);
    snprintf(m->fingerprint, sizeof m->fingerprint, "fp_%016llx", (unsigned long long)h);
}

/* ---- hyperparameters ---- */

/* An integer of the architecture's own keys, checked against 1 … max. */
static bool arch_int(const struct model *m, const char *key, int max, int *out, struct err *e) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", m->architecture, key);
    uint32_t value;
    if (!gguf_u32(m->gguf, full, &value, e)) return false;
    if (value < 1 || value > (uint32_t)max)
        return err_set(e, ERR_INPUT, "%s: %s is %u; firstpass reads 1 to %d", m->path, full, value,
                       max);
    *out = (int)value;
    return true;
}

static bool arch_has(const struct model *m, const char *key) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", m->architecture, key);
    return gguf_has(m->gguf, full);
}

static bool arch_int_or(const struct model *m, const char *key, int max, int fallback, int *out,
                        struct err *e) {
    *out = fallback;
    return !arch_has(m, key) || arch_int(m, key, max, out, e);
}

static bool arch_f32(const struct model *m, const char *key, float *out, struct err *e) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", m->architecture, key);
    if (!gguf_f32(m->gguf, full, out, e)) return false;
    if (!isfinite(*out) || *out <= 0)
        return err_set(e, ERR_INPUT, "%s: %s is %g; it must be above 0", m->path, full,
                       (double)*out);
    return true;
}

static bool read_architecture(struct model *m, struct err *e) {
    struct gguf_string s;
    if (!gguf_str(m->gguf, "general.architecture", &s, e)) return false;
    snprintf(m->architecture, sizeof m->architecture, "%.*s", (int)(s.len < 31 ? s.len : 31),
             s.data);
    if (!strcmp(m->architecture, "llama")) {
        m->rope.interleaved = true;
    } else if (!strcmp(m->architecture, "qwen2") || !strcmp(m->architecture, "qwen3")) {
        m->rope.interleaved = false;
    } else {
        return err_set(e, ERR_INPUT,
                       "%s: architecture \"%s\" isn't supported; supported: llama, qwen2, qwen3",
                       m->path, m->architecture);
    }
    m->head_norms = !strcmp(m->architecture, "qwen3");
    char key[64];
    snprintf(key, sizeof key, "%s.rope.half_split", m->architecture);
    bool half_split = false;
    if (gguf_has(m->gguf, key) && !gguf_bool(m->gguf, key, &half_split, e)) return false;
    if (half_split) m->rope.interleaved = false;
    return true;
}

static bool read_shape(struct model *m, struct err *e) {
    struct model_shape *s = &m->shape;
    if (!arch_int(m, "block_count", LIMIT_LAYERS, &s->n_layers, e)) return false;
    if (!arch_int(m, "embedding_length", LIMIT_WIDTH, &s->n_embd, e)) return false;
    if (!arch_int(m, "feed_forward_length", LIMIT_WIDTH, &s->n_ff, e)) return false;
    if (!arch_int(m, "attention.head_count", LIMIT_HEADS, &s->n_heads, e)) return false;
    if (!arch_int_or(m, "attention.head_count_kv", LIMIT_HEADS, s->n_heads, &s->n_kv_heads, e))
        return false;
    if (!arch_int(m, "context_length", 1 << 30, &s->context, e)) return false;
    if (!arch_f32(m, "attention.layer_norm_rms_epsilon", &s->rms_eps, e)) return false;
    if (s->n_heads % s->n_kv_heads)
        return err_set(e, ERR_INPUT, "%s: %d heads can't share %d key/value heads evenly", m->path,
                       s->n_heads, s->n_kv_heads);
    if (!arch_has(m, "attention.key_length") && s->n_embd % s->n_heads)
        return err_set(e, ERR_INPUT, "%s: embedding length %d isn't a multiple of %d heads",
                       m->path, s->n_embd, s->n_heads);
    if (!arch_int_or(m, "attention.key_length", 1024, s->n_embd / s->n_heads, &s->head_dim, e))
        return false;
    int value_dim;
    if (!arch_int_or(m, "attention.value_length", 1024, s->head_dim, &value_dim, e)) return false;
    if (value_dim != s->head_dim || s->head_dim % 2)
        return err_set(
            e, ERR_INPUT,
            "%s: heads of %d keys and %d values aren't supported: they must be equal and even",
            m->path, s->head_dim, value_dim);
    uint32_t experts = 0; /* files of dense models may say 0 */
    char key[96];
    snprintf(key, sizeof key, "%s.expert_count", m->architecture);
    if (gguf_has(m->gguf, key) && !gguf_u32(m->gguf, key, &experts, e)) return false;
    if (experts)
        return err_set(e, ERR_INPUT,
                       "%s: it is a mixture of %u experts, which firstpass doesn't support",
                       m->path, experts);
    s->attention_scale = 1.0f / sqrtf((float)s->head_dim);
    return true;
}

static bool arch_f32_or(const struct model *m, const char *key, float fallback, float *out,
                        struct err *e) {
    *out = fallback;
    return !arch_has(m, key) || arch_f32(m, key, out, e);
}

/* Which way the rotary frequencies are scaled; NULL and an error where it isn't known. */
static const char *scaling_type(const struct model *m, struct err *e) {
    static const char *const known[] = {"none", "linear", "yarn"};
    if (!arch_has(m, "rope.scaling.type")) return "none";
    char key[96];
    struct gguf_string type;
    snprintf(key, sizeof key, "%s.rope.scaling.type", m->architecture);
    if (!gguf_str(m->gguf, key, &type, e)) return NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (type.len == strlen(known[i]) && !memcmp(type.data, known[i], type.len)) return known[i];
    err_set(e, ERR_INPUT,
            "%s: rope scaling \"%.*s\" isn't supported; supported: none, linear, yarn, and the "
            "rope_freqs tensor of Llama 3.1",
            m->path, (int)(type.len < 40 ? type.len : 40), type.data);
    return NULL;
}

/* attn_factor is what remains beside the size that follows from the factor. */
static bool read_yarn(struct model *m, double base, float *inv_freq, struct err *e) {
    float factor, fast, slow, attention;
    int trained;
    if (!arch_f32(m, "rope.scaling.factor", &factor, e) ||
        !arch_int_or(m, "rope.scaling.original_context_length", 1 << 30, m->shape.context, &trained,
                     e) ||
        !arch_f32_or(m, "rope.scaling.yarn_beta_fast", 32, &fast, e) ||
        !arch_f32_or(m, "rope.scaling.yarn_beta_slow", 1, &slow, e) ||
        !arch_f32_or(m, "rope.scaling.attn_factor", 1, &attention, e))
        return false;
    if (factor < 1 || base <= 1 || fast <= slow || arch_has(m, "rope.scaling.yarn_log_multiplier"))
        return err_set(e, ERR_INPUT,
                       "%s: yarn with a factor of %g, betas of %g and %g, a base of %g or a "
                       "yarn_log_multiplier isn't supported",
                       m->path, (double)factor, (double)fast, (double)slow, base);
    if (m->rope.n_rot != m->shape.head_dim)
        return err_set(e, ERR_INPUT,
                       "%s: yarn is supported where whole heads are rotated, not %d of %d "
                       "dimensions",
                       m->path, m->rope.n_rot, m->shape.head_dim);
    struct yarn y = {(double)factor, trained, (double)fast, (double)slow};
    yarn_frequencies(&y, base, m->rope.n_rot, inv_freq);
    double size = (double)attention * yarn_size(y.factor);
    m->shape.attention_scale *= (float)(size * size);
    return true;
}

static bool read_rope(struct model *m, struct err *e) {
    struct model_shape *s = &m->shape;
    if (!arch_int_or(m, "rope.dimension_count", s->head_dim, s->head_dim, &m->rope.n_rot, e))
        return false;
    if (m->rope.n_rot % 2)
        return err_set(e, ERR_INPUT, "%s: rope.dimension_count is %d; it must be even", m->path,
                       m->rope.n_rot);
    float base = 10000.0f, factor = 1.0f;
    if (arch_has(m, "rope.freq_base") && !arch_f32(m, "rope.freq_base", &base, e)) return false;
    const char *scaling = scaling_type(m, e);
    if (!scaling || (!strcmp(scaling, "linear") && !arch_f32(m, "rope.scaling.factor", &factor, e)))
        return false;
    int half = m->rope.n_rot / 2;
    float *inv_freq = err_alloc((size_t)half, sizeof *inv_freq);
    m->rope.inv_freq = inv_freq;
    for (int i = 0; i < half; i++)
        inv_freq[i] = (float)(pow((double)base, -2.0 * i / m->rope.n_rot) / (double)factor);
    if (!strcmp(scaling, "yarn") && !read_yarn(m, (double)base, inv_freq, e)) return false;
    if (gguf_find(m->gguf, "rope_freqs.weight")) {
        const struct gguf_tensor *t =
            gguf_tensor(m->gguf, "rope_freqs.weight", (uint64_t)half, 1, e);
        if (!t) return false;
        if (t->type != QUANT_F32)
            return err_set(e, ERR_INPUT, "%s: rope_freqs.weight has type %s; it must be F32",
                           m->path, quant_name(t->type));
        for (int i = 0; i < half; i++) {
            float divisor;
            memcpy(&divisor, (const char *)t->data + sizeof divisor * (size_t)i, sizeof divisor);
            if (!(divisor > 0))
                return err_set(e, ERR_INPUT, "%s: rope_freqs.weight holds %g", m->path,
                               (double)divisor);
            inv_freq[i] /= divisor;
        }
    }
    return true;
}

/* ---- tensors: one table says what a layer has, used to check, to count and to load ---- */

enum layer_matrix { M_Q, M_K, M_V, M_O, M_GATE, M_UP, M_DOWN, N_MATRICES };
enum layer_vector {
    V_ATTENTION_NORM,
    V_FFN_NORM,
    V_Q_BIAS,
    V_K_BIAS,
    V_V_BIAS,
    V_Q_NORM,
    V_K_NORM,
    N_VECTORS
};

struct matrix_spec {
    const char *name;
    int rows, cols;
};

static struct matrix_spec matrix_spec(const struct model_shape *s, enum layer_matrix which) {
    int q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    switch (which) {
    case M_Q:
        return (struct matrix_spec){"attn_q", q, s->n_embd};
    case M_K:
        return (struct matrix_spec){"attn_k", kv, s->n_embd};
    case M_V:
        return (struct matrix_spec){"attn_v", kv, s->n_embd};
    case M_O:
        return (struct matrix_spec){"attn_output", s->n_embd, q};
    case M_GATE:
        return (struct matrix_spec){"ffn_gate", s->n_ff, s->n_embd};
    case M_UP:
        return (struct matrix_spec){"ffn_up", s->n_ff, s->n_embd};
    case M_DOWN:
        return (struct matrix_spec){"ffn_down", s->n_embd, s->n_ff};
    case N_MATRICES:
        break;
    }
    BUG_ON(true);
}

static const struct gguf_tensor *layer_matrix(const struct model *m, int layer,
                                              enum layer_matrix which, struct err *e) {
    struct matrix_spec spec = matrix_spec(&m->shape, which);
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, spec.name);
    return gguf_tensor(m->gguf, name, (uint64_t)spec.cols, (uint64_t)spec.rows, e);
}

static int vector_length(const struct model_shape *s, enum layer_vector which) {
    switch (which) {
    case V_ATTENTION_NORM:
    case V_FFN_NORM:
        return s->n_embd;
    case V_Q_BIAS:
        return s->n_heads * s->head_dim;
    case V_K_BIAS:
    case V_V_BIAS:
        return s->n_kv_heads * s->head_dim;
    case V_Q_NORM:
    case V_K_NORM:
        return s->head_dim;
    case N_VECTORS:
        break;
    }
    BUG_ON(true);
}

static void vector_name(char *out, size_t size, int layer, enum layer_vector which) {
    static const char *const names[] = {
        "attn_norm.weight", "ffn_norm.weight",    "attn_q.bias",       "attn_k.bias",
        "attn_v.bias",      "attn_q_norm.weight", "attn_k_norm.weight"};
    snprintf(out, size, "blk.%d.%s", layer, names[which]);
}

/* Whether a layer's tensor has to be there. */
static bool vector_optional(const struct model *m, enum layer_vector which) {
    if (which == V_Q_NORM || which == V_K_NORM) return !m->head_norms;
    return which == V_Q_BIAS || which == V_K_BIAS || which == V_V_BIAS;
}

/* Whether a layer is bound to have none, and what the file holds belongs to another kind. */
static bool vector_strange(const struct model *m, enum layer_vector which) {
    return (which == V_Q_NORM || which == V_K_NORM) && !m->head_norms;
}

/* Tensors that would change the result and that no known architecture of ours has. */
static bool stranger(const struct model *m, const char *name, struct err *e) {
    return err_set(e, ERR_INPUT,
                   "%s: tensor %s isn't known for architecture %s: this is another kind of model",
                   m->path, name, m->architecture);
}

static bool check_no_strangers(const struct model *m, struct err *e) {
    static const char *const strangers[] = {"attn_output.bias", "ffn_gate.bias", "ffn_up.bias",
                                            "ffn_down.bias", "post_attention_norm.weight"};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.0.%s", strangers[i]);
        if (gguf_find(m->gguf, name)) return stranger(m, name, e);
    }
    for (int i = 0; i < N_VECTORS; i++) {
        char name[64];
        vector_name(name, sizeof name, 0, (enum layer_vector)i);
        if (vector_strange(m, (enum layer_vector)i) && gguf_find(m->gguf, name))
            return stranger(m, name, e);
    }
    return true;
}

static bool check_tensors(struct model *m, struct err *e) {
    const struct model_shape *s = &m->shape;
    for (int layer = 0; layer < s->n_layers; layer++) {
        for (int i = 0; i < N_MATRICES; i++)
            if (!layer_matrix(m, layer, (enum layer_matrix)i, e)) return false;
        for (int i = 0; i < N_VECTORS; i++) {
            char name[64];
            vector_name(name, sizeof name, layer, (enum layer_vector)i);
            if (vector_optional(m, (enum layer_vector)i) && !gguf_find(m->gguf, name)) continue;
            if (!gguf_tensor(m->gguf, name, (uint64_t)vector_length(s, (enum layer_vector)i), 1, e))
                return false;
        }
    }
    m->tied = !gguf_find(m->gguf, "output.weight");
    for (uint64_t i = 0; i < gguf_n_tensors(m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        int64_t n = 1;
        for (int d = 0; d < t->n_dims; d++)
            n *= (int64_t)t->dims[d];
        m->parameters += n;
    }
    return check_no_strangers(m, e) &&
           gguf_tensor(m->gguf, "output_norm.weight", (uint64_t)s->n_embd, 1, e) &&
           (m->tied ||
            gguf_tensor(m->gguf, "output.weight", (uint64_t)s->n_embd, (uint64_t)s->n_vocab, e));
}

static bool read_vocabulary_size(struct model *m, struct err *e) {
    const struct gguf_tensor *t = gguf_find(m->gguf, "token_embd.weight");
    if (!t || t->n_dims != 2)
        return err_set(e, ERR_INPUT, "%s: tensor token_embd.weight is missing", m->path);
    if (t->dims[1] < 1 || t->dims[1] > LIMIT_VOCAB)
        return err_set(e, ERR_INPUT, "%s: %llu tokens; firstpass reads up to %d", m->path,
                       (unsigned long long)t->dims[1], LIMIT_VOCAB);
    m->shape.n_vocab = (int)t->dims[1];
    return gguf_tensor(m->gguf, "token_embd.weight", (uint64_t)m->shape.n_embd, t->dims[1], e) !=
           NULL;
}

struct model *model_open(const char *path, struct err *e) {
    struct model *m = err_alloc(1, sizeof *m);
    m->path = err_strdup(path);
    if (open_file(m, e) && read_architecture(m, e) && read_shape(m, e) && read_rope(m, e) &&
        read_vocabulary_size(m, e) && check_tensors(m, e)) {
        fingerprint(m);
        m->file_bytes = m->hf ? hf_bytes(m->hf) : m->map.len;
        return m;
    }
    model_free(m);
    return NULL;
}

/* ---- weights ---- */

size_t model_weight_bytes(const struct model *m, const struct kernels *k,
                          const struct kernels_device *d) {
    size_t sum = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        if (!quant_supported(t->type)) continue;
        int rows = t->n_dims > 1 ? (int)t->dims[1] : 1;
        sum += k->weight_bytes_needed(d, (enum quant_type)t->type, rows, (int)t->dims[0]);
    }
    return sum;
}

/* Places the f32 vectors one after the other, each at a multiple of 64 bytes. */
struct vector_writer {
    struct model *m;
    size_t at, end; /* bytes */
};

static bool put_vector(struct vector_writer *w, const char *name, int n, struct kernels_view *out,
                       struct err *e) {
    const struct gguf_tensor *t = gguf_tensor(w->m->gguf, name, (uint64_t)n, 1, e);
    if (!t) return false;
    if (!t->data)
        return err_set(e, ERR_INPUT, "%s: tensor %s is fp8; vectors of F32, F16 and BF16 are read",
                       w->m->path, name);
    float *values = err_alloc((size_t)n, sizeof *values);
    quant_decode((enum quant_type)t->type, t->data, (size_t)n, values);
    *out = (struct kernels_view){w->m->vectors, w->at};
    size_t bytes = (size_t)n * sizeof *values;
    w->m->kernels->upload(w->m->device, *out, values, bytes);
    w->at += (bytes + 63) & ~(size_t)63;
    BUG_ON(w->at > w->end);
    free(values);
    return true;
}

static bool load_vectors(struct model *m, struct err *e) {
    const struct model_shape *s = &m->shape;
    size_t widest = 0;
    for (int i = 0; i < N_VECTORS; i++) {
        size_t bytes =
            ((size_t)vector_length(s, (enum layer_vector)i) * sizeof(float) + 63) & ~(size_t)63;
        if (bytes > widest) widest = bytes;
    }
    struct vector_writer w = {m, 0, widest * ((size_t)s->n_layers * N_VECTORS + 1)};
    if (!(m->vectors = m->kernels->buffer_new(m->device, w.end, e))) return false;
    for (int layer = 0; layer < s->n_layers; layer++) {
        struct model_layer *l = &m->layers[layer];
        struct kernels_view *const views[] = {&l->attention_norm, &l->ffn_norm, &l->q_bias,
                                              &l->k_bias,         &l->v_bias,   &l->q_norm,
                                              &l->k_norm};
        for (int i = 0; i < N_VECTORS; i++) {
            char name[64];
            vector_name(name, sizeof name, layer, (enum layer_vector)i);
            if (vector_optional(m, (enum layer_vector)i) && !gguf_find(m->gguf, name)) continue;
            if (!put_vector(&w, name, vector_length(s, (enum layer_vector)i), views[i], e))
                return false;
        }
    }
    return put_vector(&w, "output_norm.weight", s->n_embd, &m->output_norm, e);
}

static struct kernels_weight *load_weight(struct model *m, const struct gguf_tensor *t,
                                          struct err *e) {
    void *decoded = NULL;
    if (!t->data) {
        decoded = err_alloc(t->bytes, 1);
        hf_decode(m->hf, t, decoded);
    }
    struct kernels_weight *w =
        m->kernels->weight_new(m->device, (enum quant_type)t->type, (int)t->dims[1],
                               (int)t->dims[0], decoded ? decoded : t->data, e);
    bool kept = w && m->kernels->keeps_data(m->device, (enum quant_type)t->type);
    if (!w) err_prefix(e, "%s: tensor %.*s", m->path, (int)t->name.len, t->name.data);
    if (decoded && kept) {
        m->decoded = err_realloc(m->decoded, (size_t)m->n_decoded + 1, sizeof *m->decoded);
        m->decoded[m->n_decoded++] = decoded;
    } else if (decoded) {
        free(decoded);
    } else if (!kept) {
        map_forget(t->data, t->bytes); /* keeps its pages out of the resident set */
    }
    return w;
}

bool model_load(struct model *m, const struct kernels *kernels, struct kernels_device *device,
                void (*progress)(void *arg, double share), void *arg, struct err *e) {
    const struct model_shape *s = &m->shape;
    m->kernels = kernels;
    m->device = device;
    m->layers = err_alloc((size_t)s->n_layers, sizeof *m->layers);
    if (!load_vectors(m, e)) return false;
    const struct gguf_tensor *t = gguf_find(m->gguf, "token_embd.weight");
    if (!(m->embedding = load_weight(m, t, e))) return false;
    m->output = m->embedding;
    if (!m->tied && !(m->output = load_weight(m, gguf_find(m->gguf, "output.weight"), e)))
        return false;
    for (int layer = 0; layer < s->n_layers; layer++) {
        struct model_layer *l = &m->layers[layer];
        struct kernels_weight **const weights[] = {&l->q,    &l->k,  &l->v,   &l->o,
                                                   &l->gate, &l->up, &l->down};
        if (progress) progress(arg, (double)layer / s->n_layers);
        for (int i = 0; i < N_MATRICES; i++) {
            t = layer_matrix(m, layer, (enum layer_matrix)i, e);
            if (!t || !(*weights[i] = load_weight(m, t, e))) return false;
        }
    }
    if (progress) progress(arg, 1.0);
    return kernels->sync(device, e);
}

static void free_weight(struct model *m, struct kernels_weight *w) {
    if (w) m->kernels->weight_free(m->device, w);
}

void model_free(struct model *m) {
    if (!m) return;
    for (int layer = 0; m->layers && layer < m->shape.n_layers; layer++) {
        struct model_layer *l = &m->layers[layer];
        struct kernels_weight *const weights[] = {l->q, l->k, l->v, l->o, l->gate, l->up, l->down};
        for (int i = 0; i < N_MATRICES; i++)
            free_weight(m, weights[i]);
    }
    if (m->output != m->embedding) free_weight(m, m->output);
    free_weight(m, m->embedding);
    if (m->vectors) m->kernels->buffer_free(m->device, m->vectors);
    free(m->layers);
    gguf_free(m->file);
    map_close(&m->map);
    hf_free(m->hf);
    for (int i = 0; i < m->n_decoded; i++)
        free(m->decoded[i]);
    free(m->decoded);
    float *inv_freq = (float *)(uintptr_t)m->rope.inv_freq;
    free(inv_freq);
    free(m->path);
    free(m);
}
