/* Any bytes as a GGUF file: parsed, listed, every value and tensor read in every way, and its
 * tokenizer loaded. */
#include "engine/gguf.h"
#include "engine/tokenizer.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const keys[] = {
    "general.alignment",     "general.architecture",
    "llama.block_count",     "llama.attention.head_count_kv",
    "llama.rope.freq_base",  "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
    "tokenizer.ggml.scores",
};

static void read_key(const struct gguf *g, const char *key) {
    uint32_t u;
    float f;
    bool flag;
    uint64_t n;
    enum gguf_type type;
    struct gguf_string s, *strings;
    int32_t *ints;
    float *floats;
    (void)!gguf_u32(g, key, &u, NULL);
    (void)!gguf_f32(g, key, &f, NULL);
    (void)!gguf_bool(g, key, &flag, NULL);
    (void)!gguf_str(g, key, &s, NULL);
    (void)!gguf_array_len(g, key, &type, &n, NULL);
    if (gguf_strings(g, key, &strings, &n, NULL)) {
        for (uint64_t i = 0; i < n; i++)
            BUG_ON(strings[i].data + strings[i].len < strings[i].data);
        free(strings);
    }
    if (gguf_i32s(g, key, &ints, &n, NULL)) free(ints);
    if (gguf_f32s(g, key, &floats, &n, NULL)) free(floats);
}

static void read_tensor(const struct gguf_tensor *t, const uint8_t *data, size_t size) {
    const uint8_t *at = t->data;
    BUG_ON(at < data || at > data + size || t->bytes > (uint64_t)(data + size - at));
    BUG_ON(t->n_dims < 1 || t->n_dims > 4);
    for (int d = 0; d < 4; d++)
        BUG_ON(!t->dims[d]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err e;
    struct gguf *g = gguf_parse(data, size, "fuzz", &e);
    if (!g) {
        BUG_ON(e.kind != ERR_INPUT || !e.message[0]);
        return 0;
    }
    char text[120];
    for (uint64_t i = 0; i < gguf_n_keys(g); i++)
        gguf_key_text(g, i, text, sizeof text);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        read_key(g, keys[i]);
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++)
        read_tensor(gguf_tensor_at(g, i), data, size);
    (void)!gguf_tensor(g, "output.weight", 32, 2, NULL);
    struct tokenizer *t = tokenizer_new(g, &e);
    if (t) {
        int32_t *tokens;
        size_t n;
        if (tokenizer_encode(t, "def f(x):\n  return x<|im_end|>", 30, 1, &tokens, &n, &e))
            free(tokens);
        tokenizer_free(t);
    }
    gguf_free(g);
    return 0;
}
