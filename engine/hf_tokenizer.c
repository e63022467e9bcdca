#include "engine/hf_tokenizer.h"

#include "base/map.h"
#include "config/limits.h"
#include "engine/hf_json.h"
#include "engine/vocab.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 128 << 20 };

struct reader {
    const char *dir;
    struct hf_json json, config; /* tokenizer.json, tokenizer_config.json */
    int32_t n;                   /* tokens */
    const char **texts;          /* owned [n]; borrowed from `json`; NULL: no such token */
    int32_t *kinds, *strips;     /* owned [n]; enum vocab_kind, enum vocab_strip */
    bool strips_any;
    struct metadata *out;
    struct err *e;
};

static bool refuse(const struct reader *r, const char *what, const char *name) {
    return err_set(r->e, ERR_INPUT, "%s: %s \"%.160s\" isn't supported%s", r->json.path, what,
                   name ? name : "(none)",
                   strcmp(what, "the tokenizer model") != 0 ? "" : "; byte-level BPE is");
}

static const char *type_of(const json_t *part) {
    const char *type = json_string_value(hf_json_get(part, "type"));
    return type ? type : "";
}

static bool is_type(const json_t *part, const char *type) { return !strcmp(type_of(part), type); }

/* ---- the pre-tokenizer ---- */

#define WORDS(digits)                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                           \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* The patterns as tokenizer.json files have them, and what GGUF files call them.  "digits" stands
 * for the type Digits, which cuts each digit out, "" for what ByteLevel itself cuts by. */
static const struct {
    const char *split, *name;
} pretokenizers[] = {
    {WORDS("\\p{N}{1,3}"), "llama-bpe"},
    {WORDS("\\p{N}"), "qwen2"},
    {GPT2, "gpt-2"},
};

/* Split or Digits, as a pattern; NULL where it is neither. */
static const char *split_pattern(const json_t *part) {
    const json_t *invert = hf_json_get(part, "invert");
    const char *behavior = json_string_value(hf_json_get(part, "behavior"));
    if (is_type(part, "Digits"))
        return json_is_true(hf_json_get(part, "individual_digits")) ? "\\p{N}" : NULL;
    if (!is_type(part, "Split") || json_is_true(invert) || !behavior ||
        strcmp(behavior, "Isolated") != 0)
        return NULL;
    return json_string_value(hf_json_get(hf_json_get(part, "pattern"), "Regex"));
}

/* The parts are at most one pattern and then ByteLevel, which cuts by GPT-2's pattern unless told
 * not to. */
static const char *pretokenizer_name(const struct reader *r, const json_t *const parts[2], int n) {
    const json_t *last = parts[n - 1];
    bool prefix = false, regex = true;
    if (!is_type(last, "ByteLevel") ||
        !hf_json_bool(&r->json, last, "add_prefix_space", true, &prefix, r->e) ||
        !hf_json_bool(&r->json, last, "use_regex", true, &regex, r->e) || prefix)
        return NULL;
    if (n == 1) return regex ? "gpt-2" : NULL;
    const char *pattern = split_pattern(parts[0]);
    if (!pattern) return NULL;
    if (regex) return !strcmp(pattern, "\\p{N}") ? "smollm" : NULL;
    for (size_t i = 0; i < sizeof pretokenizers / sizeof *pretokenizers; i++)
        if (!strcmp(pattern, pretokenizers[i].split)) return pretokenizers[i].name;
    return NULL;
}

static bool read_pretokenizer(struct reader *r) {
    const json_t *pre = hf_json_get(r->json.root, "pre_tokenizer"), *parts[2] = {pre, NULL};
    const json_t *list = hf_json_get(pre, "pretokenizers");
    int n = 1;
    if (is_type(pre, "Sequence")) {
        n = (int)json_array_size(list);
        for (int i = 0; i < n && i < 2; i++)
            parts[i] = json_array_get(list, (size_t)i);
    }
    const char *name = n == 1 || n == 2 ? pretokenizer_name(r, parts, n) : NULL;
    if (name) {
        metadata_text(r->out, "tokenizer.ggml.model", "gpt2");
        metadata_text(r->out, "tokenizer.ggml.pre", name);
        return true;
    }
    char *text = pre ? json_dumps(pre, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    refuse(r, "the pre-tokenizer", text);
    free(text);
    return false;
}

static bool check_normalizer(const struct reader *r, const json_t *normalizer) {
    const json_t *list = hf_json_get(normalizer, "normalizers");
    if (!normalizer || is_type(normalizer, "NFC")) return true;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!is_type(json_array_get(list, i), "NFC"))
            return refuse(r, "the normalizer", type_of(json_array_get(list, i)));
    return is_type(normalizer, "Sequence") || refuse(r, "the normalizer", type_of(normalizer));
}

/* ---- tokens ---- */

static bool empty_text(const json_t *value) {
    return !value || (json_is_string(value) && !json_string_length(value));
}

static bool check_model(const struct reader *r, const json_t *model) {
    bool fallback = false;
    const json_t *dropout = hf_json_get(model, "dropout");
    /* Files of before 2020 name no type. */
    if (!is_type(model, "BPE") && (*type_of(model) || !hf_json_get(model, "merges")))
        return refuse(r, "the tokenizer model", type_of(model));
    if (!hf_json_bool(&r->json, model, "byte_fallback", false, &fallback, r->e)) return false;
    if (fallback) return refuse(r, "the tokenizer model", "BPE with byte_fallback");
    if (!empty_text(hf_json_get(model, "continuing_subword_prefix")) ||
        !empty_text(hf_json_get(model, "end_of_word_suffix")))
        return refuse(r, "the tokenizer model", "BPE with marks at words' ends");
    if (dropout && json_number_value(dropout) > 0)
        return refuse(r, "the tokenizer model", "BPE with dropout");
    return true;
}

static bool token_id(const struct reader *r, const char *text, const json_t *id, int32_t *out) {
    json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 0 || value >= LIMIT_VOCAB)
        return err_set(r->e, ERR_INPUT, "%s: token \"%.80s\" has no id from 0 to %d", r->json.path,
                       text, LIMIT_VOCAB - 1);
    *out = (int32_t)value;
    return true;
}

/* The highest id decides how many there are. */
static bool count_tokens(struct reader *r, const json_t *words, const json_t *added) {
    const char *text;
    json_t *id;
    int32_t token = 0;
    json_object_foreach((json_t *)(uintptr_t)words, text, id) {
        if (!token_id(r, text, id, &token)) return false;
        if (token >= r->n) r->n = token + 1;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *entry = json_array_get(added, i);
        text = json_string_value(hf_json_get(entry, "content"));
        if (!text)
            return err_set(r->e, ERR_INPUT, "%s: added_tokens holds one without text",
                           r->json.path);
        if (!token_id(r, text, hf_json_get(entry, "id"), &token)) return false;
        if (token >= r->n) r->n = token + 1;
    }
    return r->n > 0 || err_set(r->e, ERR_INPUT, "%s: it has no tokens", r->json.path);
}

static bool add_words(struct reader *r, const json_t *words) {
    const char *text;
    json_t *id;
    json_object_foreach((json_t *)(uintptr_t)words, text, id) {
        int32_t token = (int32_t)json_integer_value(id);
        if (r->texts[token])
            return err_set(r->e, ERR_INPUT, "%s: tokens \"%.80s\" and \"%.80s\" both have id %d",
                           r->json.path, r->texts[token], text, token);
        r->texts[token] = text;
        r->kinds[token] = VOCAB_NORMAL;
    }
    return true;
}

static bool add_added(struct reader *r, const json_t *entry) {
    bool special = false, left = false, right = false, single = false;
    const char *text = json_string_value(hf_json_get(entry, "content"));
    int32_t token = (int32_t)json_integer_value(hf_json_get(entry, "id"));
    if (!hf_json_bool(&r->json, entry, "special", false, &special, r->e) ||
        !hf_json_bool(&r->json, entry, "lstrip", false, &left, r->e) ||
        !hf_json_bool(&r->json, entry, "rstrip", false, &right, r->e) ||
        !hf_json_bool(&r->json, entry, "single_word", false, &single, r->e))
        return false;
    if (single) return refuse(r, "single_word of the added token", text);
    r->texts[token] = text;
    r->kinds[token] = special ? VOCAB_CONTROL : VOCAB_USER_DEFINED;
    r->strips[token] = (left ? VOCAB_STRIP_LEFT : 0) | (right ? VOCAB_STRIP_RIGHT : 0);
    r->strips_any = r->strips_any || left || right;
    return true;
}

static void put_tokens(struct reader *r) {
    metadata_texts(r->out, "tokenizer.ggml.tokens", (uint64_t)r->n);
    for (int32_t i = 0; i < r->n; i++) {
        char unused[32];
        snprintf(unused, sizeof unused, "[unused %d]", i);
        metadata_item(r->out, r->texts[i] ? r->texts[i] : unused);
    }
    metadata_i32s(r->out, "tokenizer.ggml.token_type", r->kinds, (uint64_t)r->n);
    if (r->strips_any)
        metadata_i32s(r->out, "tokenizer.ggml.token_strip", r->strips, (uint64_t)r->n);
}

static bool read_tokens(struct reader *r, const json_t *model) {
    const json_t *words = hf_json_get(model, "vocab"),
                 *added = hf_json_get(r->json.root, "added_tokens");
    if (!json_is_object(words) || (added && !json_is_array(added)))
        return err_set(r->e, ERR_INPUT, "%s: model.vocab or added_tokens has the wrong type",
                       r->json.path);
    if (!count_tokens(r, words, added)) return false;
    r->texts = err_alloc((size_t)r->n, sizeof *r->texts);
    r->kinds = err_alloc((size_t)r->n, sizeof *r->kinds);
    r->strips = err_alloc((size_t)r->n, sizeof *r->strips);
    for (int32_t i = 0; i < r->n; i++)
        r->kinds[i] = VOCAB_UNUSED;
    if (!add_words(r, words)) return false;
    for (size_t i = 0; i < json_array_size(added); i++)
        if (!add_added(r, json_array_get(added, i))) return false;
    put_tokens(r);
    return true;
}

/* "left right" in old files, ["left", "right"] in new ones; GGUF files have the former. */
static bool read_merges(struct reader *r, const json_t *model) {
    const json_t *merges = hf_json_get(model, "merges");
    bool whole = false;
    if (!json_is_array(merges))
        return err_set(r->e, ERR_INPUT, "%s: model.merges is no list", r->json.path);
    metadata_texts(r->out, "tokenizer.ggml.merges", json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *left = json_string_value(json_array_get(merge, 0)),
                   *right = json_string_value(json_array_get(merge, 1));
        bool pair = json_array_size(merge) == 2 && left && right && !strchr(left, ' ') &&
                    !strchr(right, ' ');
        if (!pair && !json_is_string(merge))
            return err_set(r->e, ERR_INPUT, "%s: merge %zu is not two tokens", r->json.path, i);
        if (pair) {
            struct buf joined;
            buf_init(&joined, SIZE_MAX / 2);
            buf_printf(&joined, "%s %s", left, right);
            metadata_item(r->out, buf_text(&joined));
            buf_clear(&joined);
        } else {
            metadata_item(r->out, json_string_value(merge));
        }
    }
    if (!hf_json_bool(&r->json, model, "ignore_merges", false, &whole, r->e)) return false;
    metadata_bool(r->out, "tokenizer.ggml.ignore_merges", whole);
    return true;
}

/* ---- beginning and end ---- */

static int32_t find(const struct reader *r, const char *text) {
    for (int32_t i = 0; text && i < r->n; i++)
        if (r->texts[i] && !strcmp(r->texts[i], text)) return i;
    return -1;
}

/* A token that tokenizer_config.json names: as text, or as an object with its text. */
static int32_t named_token(const struct reader *r, const char *key) {
    const json_t *value = hf_json_get(r->config.root, key);
    if (json_is_object(value)) value = hf_json_get(value, "content");
    return find(r, json_string_value(value));
}

/* The token that the post-processor puts before a text; -1: none. */
static int32_t first_token(const struct reader *r) {
    const json_t *post = hf_json_get(r->json.root, "post_processor");
    const json_t *list = hf_json_get(post, "processors");
    size_t n = is_type(post, "Sequence") ? json_array_size(list) : post ? 1 : 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *part = is_type(post, "Sequence") ? json_array_get(list, i) : post;
        const json_t *single = hf_json_get(part, "single");
        if (!is_type(part, "TemplateProcessing")) continue;
        const json_t *special = hf_json_get(json_array_get(single, 0), "SpecialToken");
        return find(r, json_string_value(hf_json_get(special, "id")));
    }
    return -1;
}

static bool read_ends(struct reader *r, const struct hf_config *c) {
    int32_t first = first_token(r), bos = named_token(r, "bos_token"),
            eos = named_token(r, "eos_token");
    if (bos < 0) bos = first;
    if (bos >= 0) metadata_u32(r->out, "tokenizer.ggml.bos_token_id", (uint32_t)bos);
    metadata_bool(r->out, "tokenizer.ggml.add_bos_token", first >= 0 && first == bos);
    for (int i = 0; i < c->n_ends; i++)
        if (c->ends[i] >= r->n)
            return err_set(r->e, ERR_INPUT,
                           "%s/config.json: eos_token_id %d, but tokenizer.json has %d tokens",
                           r->dir, c->ends[i], r->n);
    if (eos < 0 && c->n_ends) eos = c->ends[0];
    if (eos >= 0) metadata_u32(r->out, "tokenizer.ggml.eos_token_id", (uint32_t)eos);
    if (c->n_ends)
        metadata_i32s(r->out, "tokenizer.ggml.eog_token_ids", c->ends, (uint64_t)c->n_ends);
    return true;
}

/* ---- the chat template ---- */

/* A file of its own counts before tokenizer_config.json; of several there, the one named default.
 */
static bool read_template(struct reader *r) {
    struct buf path;
    buf_init(&path, 1 << 16);
    buf_printf(&path, "%s/chat_template.jinja", r->dir);
    struct map m = {0};
    bool there = !access(buf_text(&path), F_OK) || errno != ENOENT;
    bool ok = !there || map_open(&m, buf_text(&path), "chat template", r->e);
    if (ok && m.bytes) {
        char *text = err_strndup(m.bytes, (size_t)m.len);
        metadata_text(r->out, "tokenizer.chat_template", text);
        free(text);
    }
    map_close(&m);
    buf_clear(&path);
    if (!ok || there) return ok;
    const json_t *value = hf_json_get(r->config.root, "chat_template"), *list = value;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *name = json_string_value(hf_json_get(entry, "name"));
        if (name && !strcmp(name, "default")) value = hf_json_get(entry, "template");
    }
    const char *text = json_string_value(value);
    if (text) metadata_text(r->out, "tokenizer.chat_template", text);
    return true;
}

static bool read_all(struct reader *r, const struct hf_config *c) {
    if (!hf_json_open(&r->json, r->dir, "tokenizer.json", FILE_BYTES, true, r->e) ||
        !hf_json_open(&r->config, r->dir, "tokenizer_config.json", FILE_BYTES, false, r->e))
        return false;
    const json_t *model = hf_json_get(r->json.root, "model");
    return check_model(r, model) && check_normalizer(r, hf_json_get(r->json.root, "normalizer")) &&
           read_pretokenizer(r) && read_tokens(r, model) && read_merges(r, model) &&
           read_ends(r, c) && read_template(r);
}

bool hf_tokenizer_read(const char *dir, const struct hf_config *c, struct metadata *out,
                       struct err *e) {
    struct reader r = {.dir = dir, .out = out, .e = e};
    bool ok = read_all(&r, c);
    free(r.texts);
    free(r.kinds);
    free(r.strips);
    hf_json_close(&r.json);
    hf_json_close(&r.config);
    return ok;
}
