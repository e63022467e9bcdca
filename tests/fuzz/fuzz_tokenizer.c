/* Any bytes as text: decode(encode(x)) == x, guarded text is read as plain text, and what the stop
 * rules show piece by piece adds up to the text, however it is cut. */
#include "base/utf8.h"
#include "engine/engine.h"
#include "engine/stop.h"
#include "engine/tokenizer.h"
#include "tests/engine/gguf_builder.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TEXT_MAX = 1 << 24 };

/* ---- a vocabulary: all bytes, some merges, control and user-defined tokens ---- */

static const struct {
    const char *text;
    uint32_t kind;
} extras[] = {
    {"ab", 1},          {"abc", 1}, {"aa", 1},     {"aaaa", 1},       {"Ġa", 1},
    {"ĠĠ", 1},          {"ĊĊ", 1},  {"Ã©", 1},     {"<|im_end|>", 3}, {"<|im_start|>", 3},
    {"<|im_end|>b", 3}, {"aXa", 3}, {"<tool>", 4}, {"é日", 4},        {"<|endoftext|>", 3},
};
static const char *const merges[] = {"a b", "ab c", "a a", "aa aa", "Ġ a", "Ġ Ġ", "Ċ Ċ", "Ã ©"};
enum { N_EXTRAS = sizeof extras / sizeof *extras, N_MERGES = sizeof merges / sizeof *merges };

static void put_byte_token(struct buf *b, int byte, int *hidden) {
    int c = byte;
    if (!((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174))
        c = 256 + (*hidden)++;
    char text[4];
    put_string(b, text, (size_t)utf8_encode((uint32_t)c, text));
}

static struct tokenizer *make(const char *pre) {
    struct buf b;
    struct err e;
    int hidden = 0;
    buf_init(&b, TEXT_MAX);
    put_header(&b, 0, 6);
    put_key_string(&b, "tokenizer.ggml.model", "gpt2");
    put_key_string(&b, "tokenizer.ggml.pre", pre);
    put_key_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, 256 + N_EXTRAS);
    for (int i = 0; i < 256; i++)
        put_byte_token(&b, i, &hidden);
    for (int i = 0; i < N_EXTRAS; i++)
        put_string(&b, extras[i].text, strlen(extras[i].text));
    put_key_array(&b, "tokenizer.ggml.token_type", GGUF_U32, 256 + N_EXTRAS);
    for (int i = 0; i < 256; i++)
        put_u32(&b, 1);
    for (int i = 0; i < N_EXTRAS; i++)
        put_u32(&b, extras[i].kind);
    put_key_array(&b, "tokenizer.ggml.merges", GGUF_STRING, N_MERGES);
    for (int i = 0; i < N_MERGES; i++)
        put_string(&b, merges[i], strlen(merges[i]));
    put_key_u32(&b, "tokenizer.ggml.eos_token_id", 256 + 8);
    struct gguf *g = gguf_parse(b.data, b.len, "fuzz", &e);
    BUG_ON(!g);
    struct tokenizer *t = tokenizer_new(g, &e);
    BUG_ON(!t);
    gguf_free(g);
    buf_clear(&b);
    return t;
}

/* Made once, kept until the process ends. */
static const struct tokenizer *shared(int i) {
    static const char *const names[] = {"qwen2", "llama-bpe", "smollm", "gpt-2"};
    static struct tokenizer *tokenizers[4];
    if (!tokenizers[i]) tokenizers[i] = make(names[i]);
    return tokenizers[i];
}

/* ---- properties ---- */

static int32_t *encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                       size_t *n) {
    int32_t *tokens;
    struct err e;
    BUG_ON(!tokenizer_encode(t, text, len, flags, &tokens, n, &e));
    return tokens;
}

static void check_round_trip(const struct tokenizer *t, const char *text, size_t len,
                             unsigned flags) {
    size_t n;
    int32_t *tokens = encode(t, text, len, flags, &n);
    struct buf back;
    buf_init(&back, TEXT_MAX);
    BUG_ON(!tokenizer_decode(t, tokens, n, true, &back));
    BUG_ON(back.len != len || memcmp(buf_text(&back), text, len) != 0);
    for (size_t i = 0; i < n; i++)
        BUG_ON(!(flags & ENGINE_TOKENIZE_SPECIAL) && tokenizer_is_control(t, tokens[i]));
    buf_clear(&back);
    free(tokens);
}

/* The text in two parts, guarded one by one, as two messages that a template puts side by side. */
static void check_guard(const struct tokenizer *t, const char *text, size_t len) {
    size_t cut = len / 2, n, n_guarded, len_a, len_b;
    while (cut < len && ((unsigned char)text[cut] & 0xC0) == 0x80)
        cut++;
    char *a = tokenizer_guard(t, text, cut, &len_a);
    char *b = tokenizer_guard(t, text + cut, len - cut, &len_b);
    struct buf both;
    buf_init(&both, TEXT_MAX);
    buf_append(&both, a, len_a);
    buf_append(&both, b, len_b);
    int32_t *plain = encode(t, text, len, 0, &n);
    int32_t *guarded = encode(t, buf_text(&both), both.len,
                              ENGINE_TOKENIZE_SPECIAL | ENGINE_TOKENIZE_GUARDED, &n_guarded);
    BUG_ON(n != n_guarded || memcmp(plain, guarded, n * sizeof *plain) != 0);
    free(guarded);
    free(plain);
    buf_clear(&both);
    free(b);
    free(a);
}

/* The bytes in pieces of `step`; the outcome must not depend on it. */
static void run_stop(const struct stop_rules *rules, const char *bytes, size_t len, size_t step,
                     struct buf *out) {
    struct stop s;
    stop_init(&s, rules);
    buf_reset(out);
    size_t n;
    bool over = false;
    for (size_t i = 0; i < len && !over; i += step) {
        over = stop_feed(&s, bytes + i, len - i < step ? len - i : step);
        const char *text = stop_show(&s, &n);
        buf_append(out, text, n);
        BUG_ON(!utf8_valid(text, n));
    }
    stop_finish(&s);
    const char *text = stop_show(&s, &n);
    buf_append(out, text, n);
    BUG_ON(out->len != s.text.len || memcmp(buf_text(out), buf_text(&s.text), out->len) != 0);
    BUG_ON(!utf8_valid(buf_text(out), out->len));
    stop_clear(&s);
}

static void check_stop(const char *bytes, size_t len, bool code_end) {
    static const char *const strings[] = {"END", "\n\n\n", "é"};
    static const size_t lens[] = {3, 3, 2};
    struct stop_rules rules = {.strings = strings, .lens = lens, .n = 3, .code_end = code_end};
    struct buf whole, parts;
    buf_init(&whole, TEXT_MAX);
    buf_init(&parts, TEXT_MAX);
    run_stop(&rules, bytes, len, len + 1, &whole);
    for (size_t step = 1; step < 4; step++) {
        run_stop(&rules, bytes, len, step, &parts);
        BUG_ON(whole.len != parts.len ||
               memcmp(buf_text(&whole), buf_text(&parts), whole.len) != 0);
    }
    buf_clear(&parts);
    buf_clear(&whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size || size > 1 << 16) return 0;
    /* The first byte chooses. */
    const struct tokenizer *t = shared(data[0] & 3);
    const char *text = (const char *)data + 1;
    size_t len = size - 1;
    check_stop(text, len, data[0] & 4);
    if (!utf8_valid(text, len)) {
        int32_t *tokens;
        size_t n;
        struct err e;
        BUG_ON(tokenizer_encode(t, text, len, 0, &tokens, &n, &e) || e.kind != ERR_INPUT);
        return 0;
    }
    check_round_trip(t, text, len, 0);
    check_round_trip(t, text, len, ENGINE_TOKENIZE_SPECIAL);
    check_guard(t, text, len);
    return 0;
}
