/* A model of a few hundred kilobytes with random weights, written as a GGUF file: real enough for
 * the whole engine, small enough for thousands of steps in a test.  Byte-level vocabulary, Q8_0
 * matrices, F32 vectors. */
#ifndef TESTS_ENGINE_TINY_MODEL_H
#define TESTS_ENGINE_TINY_MODEL_H

#include "kernels/quant.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tiny_model {
    const char *architecture; /* "llama", "qwen2" or "qwen3" */
    int n_layers, n_embd, n_heads, n_kv_heads, n_ff, context;
    int head_dim; /* 0: n_embd / n_heads */
    uint32_t seed;
    char path[64]; /* out */
};

enum { TINY_VOCAB = 320, TINY_END = 256, TINY_CONTROL = 257 };

struct tiny_writer {
    FILE *out;
    uint32_t random;
};

static inline void tiny_bytes(struct tiny_writer *w, const void *p, size_t n) {
    if (fwrite(p, 1, n, w->out) != n) abort();
}
static inline void tiny_u32(struct tiny_writer *w, uint32_t v) { tiny_bytes(w, &v, sizeof v); }
static inline void tiny_u64(struct tiny_writer *w, uint64_t v) { tiny_bytes(w, &v, sizeof v); }
static inline void tiny_string(struct tiny_writer *w, const char *s) {
    tiny_u64(w, strlen(s));
    tiny_bytes(w, s, strlen(s));
}
static inline void tiny_key_string(struct tiny_writer *w, const char *key, const char *value) {
    tiny_string(w, key);
    tiny_u32(w, 8);
    tiny_string(w, value);
}
static inline void tiny_key_u32(struct tiny_writer *w, const char *prefix, const char *key,
                                uint32_t value) {
    char full[96];
    snprintf(full, sizeof full, "%s%s", prefix, key);
    tiny_string(w, full);
    tiny_u32(w, 4);
    tiny_u32(w, value);
}

/* Uniform in [-1, 1). */
static inline float tiny_random(struct tiny_writer *w) {
    w->random = w->random * 1664525u + 1013904223u;
    return (float)(w->random >> 8) / 8388608.0f - 1.0f;
}

/* The text of byte token b in GPT-2's printable alphabet. */
static inline void tiny_byte_text(int b, char out[4]) {
    int c = b;
    bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    if (!printable) {
        c = 256;
        for (int i = 0; i < b; i++)
            c += !((i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174);
    }
    memset(out, 0, 4);
    if (c < 128) {
        out[0] = (char)c;
    } else {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
    }
}

static inline void tiny_vocabulary(struct tiny_writer *w) {
    tiny_key_string(w, "tokenizer.ggml.model", "gpt2");
    tiny_key_string(w, "tokenizer.ggml.pre", "qwen2");
    tiny_string(w, "tokenizer.ggml.tokens");
    tiny_u32(w, 9);
    tiny_u32(w, 8);
    tiny_u64(w, TINY_VOCAB);
    for (int i = 0; i < TINY_VOCAB; i++) {
        char text[16];
        if (i < 256)
            tiny_byte_text(i, text);
        else if (i == TINY_END)
            snprintf(text, sizeof text, "<|im_end|>");
        else if (i == TINY_CONTROL)
            snprintf(text, sizeof text, "<|im_start|>");
        else
            snprintf(text, sizeof text, "w%d", i);
        tiny_string(w, text);
    }
    tiny_string(w, "tokenizer.ggml.token_type");
    tiny_u32(w, 9);
    tiny_u32(w, 5);
    tiny_u64(w, TINY_VOCAB);
    for (int i = 0; i < TINY_VOCAB; i++)
        tiny_u32(w, i == TINY_END || i == TINY_CONTROL ? 3 : 1);
    tiny_string(w, "tokenizer.ggml.merges");
    tiny_u32(w, 9);
    tiny_u32(w, 8);
    tiny_u64(w, 0);
    tiny_key_u32(w, "tokenizer.ggml.", "eos_token_id", TINY_END);
}

struct tiny_tensor {
    char name[48];
    int cols, rows; /* rows 0: a vector, F32 */
};

static inline size_t tiny_tensor_bytes(const struct tiny_tensor *t) {
    return t->rows ? (size_t)t->rows * (size_t)t->cols / 32 * 34 : (size_t)t->cols * 4;
}

static inline int tiny_tensors(const struct tiny_model *m, struct tiny_tensor *t) {
    int n = 0, head = m->head_dim ? m->head_dim : m->n_embd / m->n_heads;
    int q = m->n_heads * head, kv = m->n_kv_heads * head;
    bool head_norms = !strcmp(m->architecture, "qwen3");
    t[n++] = (struct tiny_tensor){"token_embd.weight", m->n_embd, TINY_VOCAB};
    t[n++] = (struct tiny_tensor){"output_norm.weight", m->n_embd, 0};
    for (int layer = 0; layer < m->n_layers; layer++) {
        const struct tiny_tensor parts[] = {
            {"attn_norm.weight", m->n_embd, 0},      {"ffn_norm.weight", m->n_embd, 0},
            {"attn_q.weight", m->n_embd, q},         {"attn_k.weight", m->n_embd, kv},
            {"attn_v.weight", m->n_embd, kv},        {"attn_output.weight", q, m->n_embd},
            {"ffn_gate.weight", m->n_embd, m->n_ff}, {"ffn_up.weight", m->n_embd, m->n_ff},
            {"ffn_down.weight", m->n_ff, m->n_embd}, {"attn_q_norm.weight", head, 0},
            {"attn_k_norm.weight", head, 0},
        };
        size_t n_parts = sizeof parts / sizeof *parts - (head_norms ? 0 : 2);
        for (size_t i = 0; i < n_parts; i++) {
            t[n] = parts[i];
            snprintf(t[n++].name, sizeof t->name, "blk.%d.%.30s", layer, parts[i].name);
        }
    }
    return n;
}

static inline void tiny_data(struct tiny_writer *w, const struct tiny_tensor *t) {
    if (!t->rows) {
        for (int i = 0; i < t->cols; i++) {
            float v = 1.0f + 0.2f * tiny_random(w);
            tiny_bytes(w, &v, sizeof v);
        }
        return;
    }
    /* Embeddings large enough that the output isn't flat. */
    float scale = !strncmp(t->name, "token_embd", 10) ? 0.6f : 2.0f / sqrtf((float)t->cols);
    for (int i = 0; i < t->rows * t->cols / 32; i++) {
        uint16_t d = quant_f32_to_f16(scale / 127.0f);
        tiny_bytes(w, &d, sizeof d);
        for (int k = 0; k < 32; k++) {
            int8_t q = (int8_t)(127.0f * tiny_random(w));
            tiny_bytes(w, &q, 1);
        }
    }
}

static inline void tiny_pad(struct tiny_writer *w) {
    static const char zeros[32];
    long at = ftell(w->out);
    tiny_bytes(w, zeros, (size_t)(-at & 31));
}

/* Writes the file; unlink(m->path) afterwards. */
static inline void tiny_model_write(struct tiny_model *m) {
    snprintf(m->path, sizeof m->path, "/tmp/firstpass-tiny-XXXXXX");
    int fd = mkstemp(m->path);
    struct tiny_writer w = {fd >= 0 ? fdopen(fd, "wb") : NULL, m->seed};
    if (!w.out) abort();
    struct tiny_tensor tensors[128];
    int n = tiny_tensors(m, tensors);
    char prefix[32];
    snprintf(prefix, sizeof prefix, "%s.", m->architecture);
    tiny_bytes(&w, "GGUF", 4);
    tiny_u32(&w, 3);
    tiny_u64(&w, (uint64_t)n);
    tiny_u64(&w, m->head_dim ? 15 : 14);
    tiny_key_string(&w, "general.architecture", m->architecture);
    tiny_key_u32(&w, prefix, "block_count", (uint32_t)m->n_layers);
    tiny_key_u32(&w, prefix, "embedding_length", (uint32_t)m->n_embd);
    tiny_key_u32(&w, prefix, "feed_forward_length", (uint32_t)m->n_ff);
    tiny_key_u32(&w, prefix, "attention.head_count", (uint32_t)m->n_heads);
    tiny_key_u32(&w, prefix, "attention.head_count_kv", (uint32_t)m->n_kv_heads);
    tiny_key_u32(&w, prefix, "context_length", (uint32_t)m->context);
    if (m->head_dim) tiny_key_u32(&w, prefix, "attention.key_length", (uint32_t)m->head_dim);
    char key[64];
    snprintf(key, sizeof key, "%sattention.layer_norm_rms_epsilon", prefix);
    tiny_string(&w, key);
    tiny_u32(&w, 6);
    float eps = 1e-5f;
    tiny_bytes(&w, &eps, sizeof eps);
    tiny_vocabulary(&w);
    uint64_t offset = 0;
    for (int i = 0; i < n; i++) {
        tiny_string(&w, tensors[i].name);
        tiny_u32(&w, tensors[i].rows ? 2 : 1);
        tiny_u64(&w, (uint64_t)tensors[i].cols);
        if (tensors[i].rows) tiny_u64(&w, (uint64_t)tensors[i].rows);
        tiny_u32(&w, tensors[i].rows ? QUANT_Q8_0 : QUANT_F32);
        tiny_u64(&w, offset);
        offset += (tiny_tensor_bytes(&tensors[i]) + 31) & ~(uint64_t)31;
    }
    for (int i = 0; i < n; i++) {
        tiny_pad(&w);
        tiny_data(&w, &tensors[i]);
    }
    tiny_pad(&w);
    if (fclose(w.out)) abort();
}

#endif
