#include "engine/hf_config.h"

#include "config/limits.h"
#include "engine/hf_json.h"
#include "engine/yarn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES = 4 << 20, ENDS_MAX = 64, HEAD_DIM_MAX = 1024, BLOCK_MAX = 1 << 16 };
enum { QWEN3_HEAD_DIM = 128 }; /* where config.json doesn't say it */

/* What is read so far: the file, and where its values go. */
struct reader {
    struct hf_json json;
    struct hf_config *config;
    struct metadata *out;
    int context;   /* positions at most */
    bool windowed; /* some layers see no more */
    struct err *e;
};

static bool integer(const struct reader *r, const char *key, int64_t most, int64_t fallback,
                    int *out) {
    int64_t value = 0;
    bool ok = hf_json_int(&r->json, r->json.root, key, 1, most, fallback, &value, r->e);
    *out = (int)value;
    return ok;
}

static void put_u32(const struct reader *r, const char *key, int value) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", r->config->architecture, key);
    metadata_u32(r->out, full, (uint32_t)value);
}

static void put_f32(const struct reader *r, const char *key, double value) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", r->config->architecture, key);
    metadata_f32(r->out, full, (float)value);
}

/* ---- which model ---- */

static bool read_architecture(struct reader *r) {
    static const char *const known[] = {"llama", "qwen2", "qwen3"};
    const char *type = NULL, *activation = NULL;
    if (!hf_json_text(&r->json, r->json.root, "model_type", &type, r->e) ||
        !hf_json_text(&r->json, r->json.root, "hidden_act", &activation, r->e))
        return false;
    for (size_t i = 0; type && i < sizeof known / sizeof *known; i++)
        if (!strcmp(type, known[i]))
            snprintf(r->config->architecture, sizeof r->config->architecture, "%s", type);
    if (!*r->config->architecture)
        return err_set(r->e, ERR_INPUT,
                       "%s: model_type \"%.40s\" isn't supported; supported: llama, qwen2, qwen3",
                       r->json.path, type ? type : "");
    if (activation && strcmp(activation, "silu") != 0)
        return err_set(r->e, ERR_INPUT, "%s: hidden_act \"%.40s\" isn't supported; silu is",
                       r->json.path, activation);
    const char *architecture = r->config->architecture;
    metadata_text(r->out, "general.architecture", architecture);
    r->config->biases = !strcmp(architecture, "qwen2");
    r->config->head_norms = !strcmp(architecture, "qwen3");
    return hf_json_bool(&r->json, r->json.root, "attention_bias", r->config->biases,
                        &r->config->biases, r->e) &&
           hf_json_bool(&r->json, r->json.root, "tie_word_embeddings", false, &r->config->tied,
                        r->e);
}

/* ---- context ---- */

/* Whether some layer has a window: all from max_window_layers on, or those that layer_types says.
 */
static bool has_window(const struct reader *r, int n_layers, bool *out) {
    const json_t *types = hf_json_get(r->json.root, "layer_types");
    bool used = false;
    int64_t first = n_layers;
    if (!hf_json_bool(&r->json, r->json.root, "use_sliding_window", false, &used, r->e) ||
        !hf_json_int(&r->json, r->json.root, "max_window_layers", 0, INT32_MAX, n_layers, &first,
                     r->e))
        return false;
    *out = used && first < n_layers;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool sliding = type && !strcmp(type, "sliding_attention");
        if (!sliding && (!type || strcmp(type, "full_attention") != 0))
            return err_set(r->e, ERR_INPUT,
                           "%s: layer_types has \"%.40s\"; full_attention and "
                           "sliding_attention are supported",
                           r->json.path, type ? type : "");
        *out = *out || sliding;
    }
    return true;
}

static bool read_context(struct reader *r, int n_layers, int *out) {
    int64_t window = 0;
    if (!integer(r, "max_position_embeddings", 1 << 30, 0, out) ||
        !has_window(r, n_layers, &r->windowed) ||
        !hf_json_int(&r->json, r->json.root, "sliding_window", 0, INT32_MAX, 0, &window, r->e))
        return false;
    r->windowed = r->windowed && window > 0;
    if (r->windowed && window < *out) *out = (int)window;
    return true;
}

/* ---- rope ---- */

/* Divisors of the frequencies as Llama 3.1 stretches its context: none for short waves, `factor`
 * for waves longer than the context that it was first trained for, between them a blend.
 * (transformers, modeling_rope_utils.py, _compute_llama3_parameters.) */
static bool llama3_factors(struct reader *r, const json_t *scaling, double base, int n_rot) {
    double factor, low, high, trained;
    if (!hf_json_number(&r->json, scaling, "factor", 0, &factor, r->e) ||
        !hf_json_number(&r->json, scaling, "low_freq_factor", 1, &low, r->e) ||
        !hf_json_number(&r->json, scaling, "high_freq_factor", 4, &high, r->e) ||
        !hf_json_number(&r->json, scaling, "original_max_position_embeddings", 8192, &trained,
                        r->e))
        return false;
    if (!(high > low))
        return err_set(r->e, ERR_INPUT, "%s: high_freq_factor must be above low_freq_factor",
                       r->json.path);
    r->config->n_rope_factors = n_rot / 2;
    r->config->rope_factors = err_alloc((size_t)n_rot / 2, sizeof(float));
    for (int i = 0; i < n_rot / 2; i++) {
        double wave = 2 * M_PI * pow(base, 2.0 * i / n_rot);
        double blend = (trained / wave - low) / (high - low);
        if (blend > 1) blend = 1;
        if (blend < 0) blend = 0;
        r->config->rope_factors[i] = (float)(1 / ((1 - blend) / factor + blend));
    }
    return true;
}

/* As a GGUF file has it: what sizes queries and keys beside the factor's own size. */
static bool read_yarn(struct reader *r, const json_t *scaling) {
    double factor, trained, fast, slow, attention, numerator, denominator;
    bool truncate = true;
    const struct hf_json *j = &r->json;
    if (!hf_json_number(j, scaling, "factor", 0, &factor, r->e) ||
        !hf_json_number(j, scaling, "original_max_position_embeddings", r->context, &trained,
                        r->e) ||
        !hf_json_number(j, scaling, "beta_fast", 32, &fast, r->e) ||
        !hf_json_number(j, scaling, "beta_slow", 1, &slow, r->e) ||
        !hf_json_number(j, scaling, "mscale", 1, &numerator, r->e) ||
        !hf_json_number(j, scaling, "mscale_all_dim", 1, &denominator, r->e) ||
        !hf_json_bool(j, scaling, "truncate", true, &truncate, r->e))
        return false;
    if (!truncate)
        return err_set(r->e, ERR_INPUT, "%s: yarn with \"truncate\": false isn't supported",
                       j->path);
    double size = yarn_size(factor);
    attention = size;
    if (hf_json_get(scaling, "mscale") && hf_json_get(scaling, "mscale_all_dim"))
        attention = (numerator * (size - 1) + 1) / (denominator * (size - 1) + 1);
    if (!hf_json_number(j, scaling, "attention_factor", attention, &attention, r->e)) return false;
    char key[64];
    snprintf(key, sizeof key, "%s.rope.scaling.type", r->config->architecture);
    metadata_text(r->out, key, "yarn");
    put_f32(r, "rope.scaling.factor", factor);
    put_u32(r, "rope.scaling.original_context_length", (int)fmin(trained, 1 << 30));
    put_f32(r, "rope.scaling.yarn_beta_fast", fast);
    put_f32(r, "rope.scaling.yarn_beta_slow", slow);
    put_f32(r, "rope.scaling.attn_factor", attention / size);
    /* Some configurations have the trained context as the maximum. */
    if (!r->windowed && factor * trained > r->context)
        r->context = (int)fmin(factor * trained, 1 << 30);
    return true;
}

/* rope_scaling of old files, rope_parameters of new ones, which hold rope_theta too. */
static bool read_rope(struct reader *r, int head_dim) {
    const json_t *scaling = hf_json_get(r->json.root, "rope_scaling");
    const json_t *parameters = hf_json_get(r->json.root, "rope_parameters");
    if (!scaling) scaling = parameters;
    double base, share, factor;
    const char *type = NULL;
    if (!hf_json_number(&r->json, r->json.root, "rope_theta", 10000, &base, r->e) ||
        !hf_json_number(&r->json, parameters, "rope_theta", base, &base, r->e) ||
        !hf_json_number(&r->json, r->json.root, "partial_rotary_factor", 1, &share, r->e) ||
        !hf_json_number(&r->json, parameters, "partial_rotary_factor", share, &share, r->e) ||
        !hf_json_text(&r->json, scaling, "type", &type, r->e))
        return false;
    if (!type && !hf_json_text(&r->json, scaling, "rope_type", &type, r->e)) return false;
    int n_rot = (int)((double)head_dim * (share < 1 ? share : 1));
    if (n_rot < 2 || n_rot % 2)
        return err_set(r->e, ERR_INPUT,
                       "%s: %d of %d dimensions of a head would be rotated; the number must be "
                       "even and above 0",
                       r->json.path, n_rot, head_dim);
    put_u32(r, "rope.dimension_count", n_rot);
    put_f32(r, "rope.freq_base", base);
    char key[64];
    snprintf(key, sizeof key, "%s.rope.half_split", r->config->architecture);
    metadata_bool(r->out, key, true);
    if (!type || !strcmp(type, "default")) return true;
    if (!strcmp(type, "llama3")) return llama3_factors(r, scaling, base, n_rot);
    if (!strcmp(type, "yarn")) return read_yarn(r, scaling);
    if (strcmp(type, "linear") != 0)
        return err_set(r->e, ERR_INPUT,
                       "%s: rope scaling \"%.40s\" isn't supported; supported: default, linear, "
                       "llama3, yarn",
                       r->json.path, type);
    if (!hf_json_number(&r->json, scaling, "factor", 0, &factor, r->e)) return false;
    snprintf(key, sizeof key, "%s.rope.scaling.type", r->config->architecture);
    metadata_text(r->out, key, "linear");
    put_f32(r, "rope.scaling.factor", factor);
    return true;
}

/* ---- sizes ---- */

static bool read_shape(struct reader *r) {
    struct hf_config *c = r->config;
    int n_embd, n_ff, n_heads, n_kv_heads, head_dim;
    double eps;
    if (!integer(r, "num_hidden_layers", LIMIT_LAYERS, 0, &c->n_layers) ||
        !integer(r, "hidden_size", LIMIT_WIDTH, 0, &n_embd) ||
        !integer(r, "intermediate_size", LIMIT_WIDTH, 0, &n_ff) ||
        !integer(r, "num_attention_heads", LIMIT_HEADS, 0, &n_heads) ||
        !integer(r, "num_key_value_heads", LIMIT_HEADS, n_heads, &n_kv_heads) ||
        !integer(r, "head_dim", HEAD_DIM_MAX, c->head_norms ? QWEN3_HEAD_DIM : n_embd / n_heads,
                 &head_dim) ||
        !hf_json_number(&r->json, r->json.root, "rms_norm_eps", 1e-6, &eps, r->e) ||
        !read_context(r, c->n_layers, &r->context))
        return false;
    put_u32(r, "block_count", c->n_layers);
    put_u32(r, "embedding_length", n_embd);
    put_u32(r, "feed_forward_length", n_ff);
    put_u32(r, "attention.head_count", n_heads);
    put_u32(r, "attention.head_count_kv", n_kv_heads);
    put_u32(r, "attention.key_length", head_dim);
    put_u32(r, "attention.value_length", head_dim);
    put_f32(r, "attention.layer_norm_rms_epsilon", eps);
    if (!read_rope(r, head_dim)) return false;
    put_u32(r, "context_length", r->context);
    return true;
}

/* ---- quantisation ---- */

static bool unsupported(const struct reader *r, const char *what, const char *name) {
    return err_set(r->e, ERR_INPUT,
                   "%s: %s \"%.40s\" isn't supported; supported are fp8 (E4M3) weights with scales "
                   "for tensors, rows or blocks, and models that aren't quantised",
                   r->json.path, what, name ? name : "");
}

/* compressed-tensors: the weights' arguments in each group of layers. */
static bool check_groups(const struct reader *r, const json_t *quantization) {
    const char *format = NULL, *name;
    json_t *groups = json_object_get(quantization, "config_groups"), *group;
    if (!hf_json_text(&r->json, quantization, "format", &format, r->e)) return false;
    if (!format || strcmp(format, "float-quantized") != 0)
        return unsupported(r, "the format", format);
    json_object_foreach(groups, name, group) {
        const json_t *weights = hf_json_get(group, "weights");
        const char *type = json_string_value(hf_json_get(weights, "type"));
        if (!type || strcmp(type, "float") != 0 ||
            json_integer_value(hf_json_get(weights, "num_bits")) != 8)
            return unsupported(r, "the weights' type", type);
    }
    return true;
}

/* Rows and columns that share a scale, where a block has one. */
static bool read_block(const struct reader *r, const json_t *block) {
    if (!block) return true;
    for (size_t i = 0; i < 2; i++) {
        const json_t *n = json_array_get(block, i);
        json_int_t value = json_integer_value(n);
        if (json_array_size(block) != 2 || !json_is_integer(n) || value < 1 || value > BLOCK_MAX)
            return err_set(r->e, ERR_INPUT, "%s: weight_block_size must be two integers from 1",
                           r->json.path);
        r->config->block[i] = (int)value;
    }
    return true;
}

static bool read_quantization(struct reader *r) {
    const json_t *q = hf_json_get(r->json.root, "quantization_config");
    const char *method = NULL, *format = NULL;
    if (!q) q = hf_json_get(r->json.root, "compression_config");
    if (!q) return true;
    if (!hf_json_text(&r->json, q, "quant_method", &method, r->e)) return false;
    if (method && !strcmp(method, "compressed-tensors")) return check_groups(r, q);
    if (!method || (strcmp(method, "fp8") != 0 && strcmp(method, "fbgemm_fp8") != 0))
        return unsupported(r, "quant_method", method);
    if (!hf_json_text(&r->json, q, "fmt", &format, r->e)) return false;
    if (format && strcmp(format, "e4m3") != 0) return unsupported(r, "fmt", format);
    return read_block(r, hf_json_get(q, "weight_block_size"));
}

/* ---- ends ---- */

static bool add_end(struct reader *r, const json_t *id) {
    struct hf_config *c = r->config;
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= LIMIT_VOCAB || c->n_ends == ENDS_MAX)
        return err_set(r->e, ERR_INPUT, "%s: eos_token_id must be a token or a list of up to %d",
                       r->json.path, ENDS_MAX);
    int32_t token = (int32_t)json_integer_value(id);
    for (int i = 0; i < c->n_ends; i++)
        if (c->ends[i] == token) return true;
    c->ends = err_realloc(c->ends, (size_t)c->n_ends + 1, sizeof *c->ends);
    c->ends[c->n_ends++] = token;
    return true;
}

static bool read_ends(struct reader *r) {
    const json_t *eos = hf_json_get(r->json.root, "eos_token_id");
    for (size_t i = 0; i < json_array_size(eos); i++)
        if (!add_end(r, json_array_get(eos, i))) return false;
    return !eos || json_is_array(eos) || add_end(r, eos);
}

bool hf_config_read(struct hf_config *c, const char *dir, struct metadata *out, struct err *e) {
    *c = (struct hf_config){0};
    struct reader r = {.config = c, .out = out, .e = e};
    bool ok = hf_json_open(&r.json, dir, "config.json", FILE_BYTES, true, e) &&
              read_architecture(&r) && read_shape(&r) && read_quantization(&r) && read_ends(&r);
    hf_json_close(&r.json);
    if (!ok) return false;
    ok = hf_json_open(&r.json, dir, "generation_config.json", FILE_BYTES, false, e) &&
         (!r.json.root || read_ends(&r));
    hf_json_close(&r.json);
    return ok;
}

void hf_config_clear(struct hf_config *c) {
    free(c->rope_factors);
    free(c->ends);
    *c = (struct hf_config){0};
}
