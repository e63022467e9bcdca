#include "engine/vocab.h"

#include "base/utf8.h"
#include "config/limits.h"

#include <stdlib.h>
#include <string.h>

enum {
    MERGES_MAX = 4 * LIMIT_VOCAB,
    BYTES_MAX = 1 << 28, /* of all tokens together */
    TOKEN_BYTES_MAX = 1 << 16,
    MERGE_BYTES_MAX = 1 << 17,
};

/* Texts by which models call the end of a turn, of a text or of a file.  Many files name only one
 * of theirs in eos_token_id. */
static const char *const end_texts[] = {
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<EOT>",
    "</s>",
    "<eos>",
    "<end_of_utterance>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<fim_pad>",
    "<repo_name>",
    "<reponame>",
    "<file_sep>",
    "<｜end▁of▁sentence｜>",
};
enum { N_END_TEXTS = sizeof end_texts / sizeof *end_texts };

/* ---- the alphabet ----
 * Byte-level vocabularies write each byte as a printable character: those that print stand for
 * themselves, the others take the characters from U+0100 on, in order. */

enum { ALPHABET_END = 256 + 68 };

static bool prints(int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* byte_of[character] is the byte or -1. */
static void fill_alphabet(int16_t byte_of[ALPHABET_END]) {
    for (int c = 0; c < ALPHABET_END; c++)
        byte_of[c] = -1;
    int next = 256;
    for (int b = 0; b < 256; b++)
        byte_of[prints(b) ? b : next++] = (int16_t)b;
}

/* The bytes that `text` stands for into out (room for len); false where it holds anything else. */
static bool decode_text(const int16_t byte_of[ALPHABET_END], const char *text, size_t len,
                        char *out, size_t *n_out) {
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        uint32_t c;
        int used = utf8_decode(text + i, len - i, &c);
        if (used <= 0 || c >= ALPHABET_END || byte_of[c] < 0) return false;
        out[n++] = (char)byte_of[c];
        i += (size_t)used;
    }
    *n_out = n;
    return true;
}

/* ---- look-ups ---- */

static uint32_t hash_bytes(const char *bytes, size_t len) {
    uint32_t h = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)bytes[i]) * 16777619u;
    return h ^ (h >> 15);
}

static uint32_t hash_pair(int32_t left, int32_t right) {
    uint64_t x = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(x >> 32);
}

static uint32_t mask_for(uint64_t n) {
    uint32_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size - 1;
}

int32_t vocab_word(const struct vocab *v, const char *bytes, size_t len) {
    for (uint32_t i = hash_bytes(bytes, len) & v->words_mask;; i = (i + 1) & v->words_mask) {
        int32_t token = v->words[i];
        if (token < 0) return -1;
        size_t other_len;
        const char *other = vocab_bytes(v, token, &other_len);
        if (other_len == len && !memcmp(other, bytes, len)) return token;
    }
}

const struct vocab_merge *vocab_merge(const struct vocab *v, int32_t left, int32_t right) {
    for (uint32_t i = hash_pair(left, right) & v->merges_mask;; i = (i + 1) & v->merges_mask) {
        const struct vocab_merge *m = &v->merges[i];
        if (m->left == left && m->right == right) return m;
        if (m->left < 0) return NULL;
    }
}

/* ---- loading ---- */

static bool refuse(const struct gguf *g, struct err *e, const char *what, uint64_t i) {
    return err_set(e, ERR_INPUT, "%s: %s %llu", gguf_label(g), what, (unsigned long long)i);
}

static bool load_tokens(struct vocab *v, const struct gguf *g, const int16_t *byte_of,
                        struct err *e) {
    bool done = false;
    struct gguf_string *texts = NULL;
    int32_t *kinds = NULL;
    uint64_t n, n_kinds, total = 0;
    if (!gguf_strings(g, "tokenizer.ggml.tokens", &texts, &n, e)) goto done;
    if (n < 1 || n > LIMIT_VOCAB) {
        refuse(g, e, "the vocabulary can't be used: its number of tokens is", n);
        goto done;
    }
    v->n = (int32_t)n;
    if (gguf_has(g, "tokenizer.ggml.token_type")) {
        if (!gguf_i32s(g, "tokenizer.ggml.token_type", &kinds, &n_kinds, e)) goto done;
        if (n_kinds != n) {
            refuse(g, e, "tokenizer.ggml.token_type doesn't fit the tokens: its length is",
                   n_kinds);
            goto done;
        }
    }
    for (uint64_t i = 0; i < n; i++) {
        if (texts[i].len > TOKEN_BYTES_MAX || (total += texts[i].len) > BYTES_MAX) {
            refuse(g, e, "the vocabulary is too long at token", i);
            goto done;
        }
    }
    v->bytes = err_alloc(total, 1);
    v->start = err_alloc(n + 1, sizeof *v->start);
    v->kind = err_alloc(n, 1);
    for (uint64_t i = 0; i < n; i++) {
        int32_t kind = kinds ? kinds[i] : VOCAB_NORMAL;
        if (kind < VOCAB_NORMAL || kind > VOCAB_BYTE) {
            refuse(g, e, "tokenizer.ggml.token_type holds an unknown value at token", i);
            goto done;
        }
        v->kind[i] = (unsigned char)kind;
        char *at = v->bytes + v->start[i];
        size_t len = texts[i].len;
        /* Added tokens stand as plain text; so do words with characters outside the alphabet. */
        bool plain = kind != VOCAB_NORMAL && kind != VOCAB_BYTE;
        if (plain || !decode_text(byte_of, texts[i].data, texts[i].len, at, &len)) {
            len = texts[i].len;
            memcpy(at, texts[i].data, len);
        }
        v->start[i + 1] = v->start[i] + (uint32_t)len;
    }
    done = true;
done:
    free(kinds);
    free(texts);
    return done;
}

/* Integers of `key`, one a token; *out NULL where the file has none of the key. */
static bool load_flags(const struct vocab *v, const struct gguf *g, const char *key,
                       unsigned char **out, struct err *e) {
    int32_t *values;
    uint64_t n;
    *out = NULL;
    if (!gguf_has(g, key)) return true;
    if (!gguf_i32s(g, key, &values, &n, e)) return false;
    bool ok = n == (uint64_t)v->n;
    if (!ok) err_set(e, ERR_INPUT, "%s: %s doesn't fit the tokens", gguf_label(g), key);
    if (ok) *out = err_alloc(n, 1);
    for (uint64_t i = 0; ok && i < n; i++)
        (*out)[i] = (unsigned char)(values[i] & (VOCAB_STRIP_LEFT | VOCAB_STRIP_RIGHT));
    free(values);
    return ok;
}

static bool read_id(const struct vocab *v, const struct gguf *g, const char *key, int32_t *out,
                    struct err *e) {
    uint32_t id;
    *out = -1;
    if (!gguf_has(g, key)) return true;
    if (!gguf_u32(g, key, &id, e)) return false;
    if (id >= (uint32_t)v->n)
        return err_set(e, ERR_INPUT, "%s: %s is %u, but there are only %d tokens", gguf_label(g),
                       key, id, v->n);
    *out = (int32_t)id;
    return true;
}

static bool is_end_text(const struct vocab *v, int32_t token) {
    if (v->kind[token] != VOCAB_CONTROL && v->kind[token] != VOCAB_USER_DEFINED) return false;
    size_t len;
    const char *text = vocab_bytes(v, token, &len);
    for (int i = 0; i < N_END_TEXTS; i++)
        if (strlen(end_texts[i]) == len && !memcmp(end_texts[i], text, len)) return true;
    return false;
}

/* More ends than the keys of single ones name: of Hugging Face directories. */
static bool load_end_list(struct vocab *v, const struct gguf *g, struct err *e) {
    static const char key[] = "tokenizer.ggml.eog_token_ids";
    int32_t *ids;
    uint64_t n;
    if (!gguf_has(g, key)) return true;
    if (!gguf_i32s(g, key, &ids, &n, e)) return false;
    bool ok = true;
    for (uint64_t i = 0; ok && i < n; i++) {
        ok = ids[i] >= 0 && ids[i] < v->n;
        if (ok)
            v->ends[ids[i]] = true;
        else
            err_set(e, ERR_INPUT, "%s: %s holds %d, but there are only %d tokens", gguf_label(g),
                    key, ids[i], v->n);
    }
    free(ids);
    return ok;
}

/* What ends generation counts as a control token whatever the file says of it: nobody's text may
 * hold one. */
static bool load_ends(struct vocab *v, const struct gguf *g, struct err *e) {
    int32_t ids[3];
    if (!read_id(v, g, "tokenizer.ggml.bos_token_id", &v->bos, e) ||
        !read_id(v, g, "tokenizer.ggml.eos_token_id", &ids[0], e) ||
        !read_id(v, g, "tokenizer.ggml.eot_token_id", &ids[1], e) ||
        !read_id(v, g, "tokenizer.ggml.eom_token_id", &ids[2], e))
        return false;
    v->eos = ids[0];
    v->ends = err_alloc((size_t)v->n, sizeof *v->ends);
    for (int i = 0; i < 3; i++)
        if (ids[i] >= 0) v->ends[ids[i]] = true;
    if (!load_end_list(v, g, e)) return false;
    for (int32_t t = 0; t < v->n; t++) {
        v->ends[t] = v->ends[t] || is_end_text(v, t);
        v->n_ends += v->ends[t];
    }
    v->end_list = err_alloc((size_t)v->n_ends, sizeof *v->end_list);
    int n = 0;
    for (int32_t t = 0; t < v->n; t++) {
        if (!v->ends[t]) continue;
        v->kind[t] = VOCAB_CONTROL;
        v->end_list[n++] = t;
    }
    return true;
}

static void index_words(struct vocab *v) {
    v->words_mask = mask_for((uint64_t)v->n);
    v->words = err_alloc((size_t)v->words_mask + 1, sizeof *v->words);
    memset(v->words, 0xFF, ((size_t)v->words_mask + 1) * sizeof *v->words);
    for (int32_t t = 0; t < v->n; t++) {
        bool word = v->kind[t] == VOCAB_NORMAL || v->kind[t] == VOCAB_BYTE ||
                    v->kind[t] == VOCAB_USER_DEFINED;
        size_t len;
        const char *bytes = vocab_bytes(v, t, &len);
        if (!word || !len || vocab_word(v, bytes, len) >= 0) continue;
        uint32_t i = hash_bytes(bytes, len) & v->words_mask;
        while (v->words[i] >= 0)
            i = (i + 1) & v->words_mask;
        v->words[i] = t;
    }
}

/* "left right" in the alphabet; `joined` has room for it. */
static bool parse_merge(const struct vocab *v, const int16_t *byte_of,
                        const struct gguf_string *text, char *joined, struct vocab_merge *m) {
    const char *space = text->len ? memchr(text->data, ' ', text->len) : NULL;
    if (!space) return false;
    size_t n_left, n_right, left_len = (size_t)(space - text->data);
    if (!decode_text(byte_of, text->data, left_len, joined, &n_left) ||
        !decode_text(byte_of, space + 1, text->len - left_len - 1, joined + n_left, &n_right))
        return false;
    m->left = vocab_word(v, joined, n_left);
    m->right = vocab_word(v, joined + n_left, n_right);
    m->token = vocab_word(v, joined, n_left + n_right);
    return m->left >= 0 && m->right >= 0 && m->token >= 0;
}

static bool load_merges(struct vocab *v, const struct gguf *g, const int16_t *byte_of,
                        struct err *e) {
    bool done = false;
    struct gguf_string *texts = NULL;
    char *joined = err_alloc(MERGE_BYTES_MAX, 1);
    uint64_t n;
    if (!gguf_strings(g, "tokenizer.ggml.merges", &texts, &n, e)) goto done;
    if (n > MERGES_MAX) {
        refuse(g, e, "too many merges:", n);
        goto done;
    }
    v->merges_mask = mask_for(n);
    v->merges = err_alloc((size_t)v->merges_mask + 1, sizeof *v->merges);
    for (uint64_t i = 0; i <= v->merges_mask; i++)
        v->merges[i].left = -1;
    for (uint64_t i = 0; i < n; i++) {
        struct vocab_merge m = {.rank = (int32_t)i};
        if (texts[i].len > MERGE_BYTES_MAX || !parse_merge(v, byte_of, &texts[i], joined, &m)) {
            refuse(g, e,
                   "tokenizer.ggml.merges is not two tokens that make a third, none of them a "
                   "control token, at merge",
                   i);
            goto done;
        }
        if (vocab_merge(v, m.left, m.right)) continue;
        uint32_t slot = hash_pair(m.left, m.right) & v->merges_mask;
        while (v->merges[slot].left >= 0)
            slot = (slot + 1) & v->merges_mask;
        v->merges[slot] = m;
    }
    done = true;
done:
    free(texts);
    free(joined);
    return done;
}

bool vocab_load(struct vocab *v, const struct gguf *g, struct err *e) {
    *v = (struct vocab){.bos = -1, .eos = -1};
    int16_t byte_of[ALPHABET_END];
    fill_alphabet(byte_of);
    if (!load_tokens(v, g, byte_of, e) ||
        !load_flags(v, g, "tokenizer.ggml.token_strip", &v->strip, e) || !load_ends(v, g, e))
        return false;
    index_words(v);
    return load_merges(v, g, byte_of, e);
}

void vocab_clear(struct vocab *v) {
    free(v->bytes);
    free(v->start);
    free(v->kind);
    free(v->strip);
    free(v->ends);
    free(v->end_list);
    free(v->words);
    free(v->merges);
    *v = (struct vocab){0};
}
