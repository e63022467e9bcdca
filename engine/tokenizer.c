#include "engine/tokenizer.h"

#include "base/utf8.h"
#include "config/limits.h"
#include "engine/bpe.h"
#include "engine/engine.h"
#include "engine/pretokenizer.h"
#include "engine/vocab.h"

#include <stdlib.h>
#include <string.h>

/* Tokens that are cut out of text as a whole, in the order of their bytes. */
struct added {
    int32_t *tokens; /* owned */
    size_t n;
    bool first[256]; /* bytes that one of them begins with */
};

struct tokenizer {
    struct vocab vocab;
    struct pretokenizer *pre; /* owned */
    bool adds_bos, ignores_merges;
    struct added control, user, both;
};

/* ---- added tokens ---- */

struct sort_item {
    const char *bytes;
    size_t len;
    int32_t token;
};

static int compare_items(const void *a, const void *b) {
    const struct sort_item *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);
    if (order) return order;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

/* Whether a token of this kind may be cut out of text: it is text, and if it is a control token a
 * mark fits inside. */
static bool can_be_cut(const char *bytes, size_t len, enum vocab_kind kind) {
    uint32_t c;
    if (!len || !utf8_valid(bytes, len)) return false;
    return kind == VOCAB_USER_DEFINED || (size_t)utf8_decode(bytes, len, &c) < len;
}

static void added_fill(struct added *a, const struct vocab *v, bool control, bool user) {
    struct sort_item *items = err_alloc((size_t)v->n, sizeof *items);
    for (int32_t t = 0; t < v->n; t++) {
        enum vocab_kind kind = (enum vocab_kind)v->kind[t];
        if (!(kind == VOCAB_CONTROL && control) && !(kind == VOCAB_USER_DEFINED && user)) continue;
        size_t len;
        const char *bytes = vocab_bytes(v, t, &len);
        if (can_be_cut(bytes, len, kind)) items[a->n++] = (struct sort_item){bytes, len, t};
    }
    if (a->n) qsort(items, a->n, sizeof *items, compare_items);
    a->tokens = err_alloc(a->n, sizeof *a->tokens);
    for (size_t i = 0; i < a->n; i++) {
        a->tokens[i] = items[i].token;
        a->first[(unsigned char)items[i].bytes[0]] = true;
    }
    free(items);
}

static unsigned char byte_at(const struct vocab *v, int32_t token, size_t depth) {
    size_t len;
    return (unsigned char)vocab_bytes(v, token, &len)[depth];
}

/* The first of tokens[low … high) whose byte at `depth` is at least `byte`. */
static size_t lower_bound(const struct added *a, const struct vocab *v, size_t low, size_t high,
                          size_t depth, unsigned byte) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (byte_at(v, a->tokens[middle], depth) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest added token that the text begins with, or -1: narrows the sorted list byte by byte.
 */
static int32_t added_match(const struct added *a, const struct vocab *v, const char *text,
                           size_t len, size_t *n_bytes) {
    int32_t best = -1;
    *n_bytes = 0;
    if (!len || !a->first[(unsigned char)text[0]]) return best;
    size_t low = 0, high = a->n, depth = 0;
    while (low < high) {
        size_t token_len;
        vocab_bytes(v, a->tokens[low], &token_len);
        if (token_len == depth) { /* the shortest sorts first; of equal ones the lowest id counts */
            if (*n_bytes < depth) best = a->tokens[low];
            *n_bytes = depth;
            low++;
            continue;
        }
        if (depth == len) break;
        unsigned byte = (unsigned char)text[depth];
        low = lower_bound(a, v, low, high, depth, byte);
        high = lower_bound(a, v, low, high, depth, byte + 1);
        depth++;
    }
    return best;
}

/* ---- life ---- */

static bool load_pretokenizer(struct tokenizer *t, const struct gguf *g, struct err *e) {
    struct gguf_string model, pre;
    if (!gguf_str(g, "tokenizer.ggml.model", &model, e)) return false;
    if (model.len != 4 || memcmp(model.data, "gpt2", 4))
        return err_set(
            e, ERR_INPUT,
            "%s: the tokenizer model \"%.*s\" is not supported; byte-level BPE (\"gpt2\") "
            "is",
            gguf_label(g), model.len > 40 ? 40 : (int)model.len, model.data);
    if (!gguf_str(g, "tokenizer.ggml.pre", &pre, e)) return false;
    t->pre = pretokenizer_new(pre.data, pre.len, gguf_label(g), e);
    return t->pre != NULL;
}

struct tokenizer *tokenizer_new(const struct gguf *g, struct err *e) {
    struct tokenizer *t = err_alloc(1, sizeof *t);
    if (!load_pretokenizer(t, g, e) || !vocab_load(&t->vocab, g, e)) goto failed;
    t->adds_bos = pretokenizer_adds_bos(t->pre);
    if (gguf_has(g, "tokenizer.ggml.add_bos_token") &&
        !gguf_bool(g, "tokenizer.ggml.add_bos_token", &t->adds_bos, e))
        goto failed;
    if (t->vocab.bos < 0) t->adds_bos = false;
    t->ignores_merges = pretokenizer_ignores_merges(t->pre);
    if (gguf_has(g, "tokenizer.ggml.ignore_merges") &&
        !gguf_bool(g, "tokenizer.ggml.ignore_merges", &t->ignores_merges, e))
        goto failed;
    added_fill(&t->control, &t->vocab, true, false);
    added_fill(&t->user, &t->vocab, false, true);
    added_fill(&t->both, &t->vocab, true, true);
    return t;
failed:
    tokenizer_free(t);
    return NULL;
}

void tokenizer_free(struct tokenizer *t) {
    if (!t) return;
    free(t->control.tokens);
    free(t->user.tokens);
    free(t->both.tokens);
    pretokenizer_free(t->pre);
    vocab_clear(&t->vocab);
    free(t);
}

/* ---- the vocabulary ---- */

int tokenizer_n_vocab(const struct tokenizer *t) { return t->vocab.n; }

int32_t tokenizer_bos(const struct tokenizer *t) { return t->vocab.bos; }

int32_t tokenizer_eos(const struct tokenizer *t) { return t->vocab.eos; }

bool tokenizer_adds_bos(const struct tokenizer *t) { return t->adds_bos; }

static bool in_range(const struct tokenizer *t, int32_t token) {
    return token >= 0 && token < t->vocab.n;
}

bool tokenizer_ends_generation(const struct tokenizer *t, int32_t token) {
    return in_range(t, token) && t->vocab.ends[token];
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t token) {
    return in_range(t, token) && t->vocab.kind[token] == VOCAB_CONTROL;
}

const int32_t *tokenizer_ends(const struct tokenizer *t, int *n) {
    *n = t->vocab.n_ends;
    return t->vocab.end_list;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len) {
    size_t n_bytes;
    int32_t token = added_match(&t->both, &t->vocab, text, len, &n_bytes);
    return token >= 0 && n_bytes == len ? token : vocab_word(&t->vocab, text, len);
}

const char *tokenizer_bytes(const struct tokenizer *t, int32_t token, size_t *len) {
    *len = 0;
    return in_range(t, token) ? vocab_bytes(&t->vocab, token, len) : "";
}

bool tokenizer_decode(const struct tokenizer *t, const int32_t *tokens, size_t n, bool special,
                      struct buf *out) {
    for (size_t i = 0; i < n; i++) {
        if (tokenizer_is_control(t, tokens[i]) && !special) continue;
        size_t len;
        const char *bytes = tokenizer_bytes(t, tokens[i], &len);
        if (!buf_append(out, bytes, len)) return false;
    }
    return true;
}

/* ---- marks ----
 * INTRO BREAK stands for nothing and INTRO LITERAL for INTRO itself, so that every text can be
 * guarded and comes back as it was.  All three are noncharacters, which no text needs. */

enum { MARK_BYTES = 3, MARKS_BYTES = 6 }; /* one of them; a pair */
#define INTRO "\xEF\xB7\x90"              /* U+FDD0 */
#define BREAK "\xEF\xB7\x91"              /* U+FDD1 */
#define LITERAL "\xEF\xB7\x92"            /* U+FDD2 */

static bool starts_with(const char *text, size_t len, const char *mark) {
    return len >= MARK_BYTES && !memcmp(text, mark, MARK_BYTES);
}

/* Takes marks out; INTRO before anything else stays, it is the template's own. */
static void unguard(const char *text, size_t len, struct buf *out) {
    size_t from = 0;
    for (size_t i = 0; i + MARKS_BYTES <= len;) {
        const char *second = text + i + MARK_BYTES;
        bool is_break = !memcmp(second, BREAK, MARK_BYTES);
        if (!starts_with(text + i, len - i, INTRO) ||
            (!is_break && memcmp(second, LITERAL, MARK_BYTES) != 0)) {
            i++;
            continue;
        }
        buf_append(out, text + from, i - from + (is_break ? 0 : MARK_BYTES));
        i += MARKS_BYTES;
        from = i;
    }
    buf_append(out, text + from, len - from);
}

/* ---- encoding ---- */

struct encoder {
    const struct tokenizer *tokenizer;
    struct bpe bpe;
    struct err *e;
};

static void encode_piece(void *arg, const char *text, size_t len) {
    struct encoder *c = arg;
    int32_t token = -1;
    if (c->tokenizer->ignores_merges) token = vocab_word(&c->tokenizer->vocab, text, len);
    if (token >= 0)
        bpe_token(&c->bpe, token);
    else
        bpe_piece(&c->bpe, text, len);
}

static bool encode_words(struct encoder *c, const char *text, size_t len) {
    return pretokenizer_split(c->tokenizer->pre, text, len, encode_piece, c, c->e);
}

/* Unicode's White_Space, as the reference strips it around added tokens. */
static bool is_white(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static bool is_continuation(char byte) { return ((unsigned char)byte & 0xC0) == 0x80; }

static size_t white_after(const char *text, size_t len) {
    size_t at = 0;
    uint32_t c;
    for (int n; at < len && (n = utf8_decode(text + at, len - at, &c)) > 0 && is_white(c);)
        at += (size_t)n;
    return at;
}

static size_t white_before(const char *text, size_t len) {
    size_t at = len;
    while (at) {
        size_t last = at - 1;
        uint32_t c;
        while (last && is_continuation(text[last]))
            last--;
        if (utf8_decode(text + last, at - last, &c) <= 0 || !is_white(c)) break;
        at = last;
    }
    return len - at;
}

/* Cuts the text at the tokens of `a`; what lies between goes to `rest`. */
static bool cut(struct encoder *c, const struct added *a, const char *text, size_t len,
                bool (*rest)(struct encoder *, const char *, size_t)) {
    size_t from = 0;
    for (size_t i = 0; i < len;) {
        size_t n_bytes;
        int32_t token = added_match(a, &c->tokenizer->vocab, text + i, len - i, &n_bytes);
        if (token < 0) {
            i++;
            continue;
        }
        unsigned strip = c->tokenizer->vocab.strip ? c->tokenizer->vocab.strip[token] : 0;
        size_t end = i;
        if (strip & VOCAB_STRIP_LEFT) end -= white_before(text + from, i - from);
        if (end > from && !rest(c, text + from, end - from)) return false;
        bpe_token(&c->bpe, token);
        i += n_bytes;
        if (strip & VOCAB_STRIP_RIGHT) i += white_after(text + i, len - i);
        from = i;
    }
    return from == len || rest(c, text + from, len - from);
}

/* Text in which control tokens have been looked for already. */
static bool encode_plain(struct encoder *c, const char *text, size_t len) {
    return cut(c, &c->tokenizer->user, text, len, encode_words);
}

static bool encode_guarded(struct encoder *c, const char *text, size_t len) {
    struct buf clean;
    buf_init(&clean, len);
    unguard(text, len, &clean);
    bool done = encode_plain(c, buf_text(&clean), clean.len);
    buf_clear(&clean);
    return done;
}

static bool encode(struct encoder *c, const char *text, size_t len, unsigned flags) {
    const struct tokenizer *t = c->tokenizer;
    if (flags & ENGINE_TOKENIZE_GUARDED) {
        if (flags & ENGINE_TOKENIZE_SPECIAL) return cut(c, &t->control, text, len, encode_guarded);
        return encode_guarded(c, text, len);
    }
    if (flags & ENGINE_TOKENIZE_SPECIAL) return cut(c, &t->both, text, len, encode_words);
    return encode_plain(c, text, len);
}

bool tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                      int32_t **out, size_t *n, struct err *e) {
    if (len > LIMIT_BODY_BYTES_MAX)
        return err_set(e, ERR_TOO_LARGE, "the text has %zu bytes; at most %d can be tokenized", len,
                       LIMIT_BODY_BYTES_MAX);
    if (!utf8_valid(text, len)) return err_set(e, ERR_INPUT, "the text is not valid UTF-8");
    struct encoder c = {.tokenizer = t, .e = e};
    bpe_init(&c.bpe, &t->vocab);
    bool bos = flags & ENGINE_TOKENIZE_BOS && t->adds_bos;
    if (bos) bpe_token(&c.bpe, t->vocab.bos);
    bool done = encode(&c, text, len, flags);
    if (done) {
        bool twice = bos && c.bpe.n_tokens > 1 && c.bpe.tokens[1] == t->vocab.bos;
        *n = c.bpe.n_tokens - twice;
        *out = err_alloc(*n, sizeof **out);
        if (*n) memcpy(*out, c.bpe.tokens + twice, *n * sizeof **out);
    }
    bpe_clear(&c.bpe);
    return done;
}

/* ---- guarding ---- */

/* What Python's str.strip() takes off, since templates trim with it. */
static bool is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

/* The length of a prefix that both share, at most the shorter one. */
static bool agree(const char *a, size_t a_len, const char *b, size_t b_len) {
    return !memcmp(a, b, a_len < b_len ? a_len : b_len);
}

/* Whether text before could make a control token of the beginning of this: it begins with a token's
 * proper suffix, or is all of it the inside of one. */
static bool continues_token(const struct tokenizer *t, const char *text, size_t len) {
    for (size_t i = 0; i < t->control.n; i++) {
        size_t n;
        const char *token = vocab_bytes(&t->vocab, t->control.tokens[i], &n);
        for (size_t k = 1; k < n && len; k++)
            if (!is_continuation(token[k]) && agree(token + k, n - k, text, len)) return true;
    }
    return false;
}

/* The same for the end of this and text behind it. */
static bool begins_token(const struct tokenizer *t, const char *text, size_t len) {
    for (size_t i = 0; i < t->control.n; i++) {
        size_t n;
        const char *token = vocab_bytes(&t->vocab, t->control.tokens[i], &n);
        for (size_t k = 1; k < n && len; k++) {
            if (is_continuation(token[k])) continue;
            size_t m = k < len ? k : len;
            if (!memcmp(token + k - m, text + len - m, m)) return true;
        }
    }
    return false;
}

/* Where the text without white space at its ends starts and stops. */
static void trimmed(const char *text, size_t len, size_t *start, size_t *end) {
    uint32_t c;
    size_t at = 0;
    while (at < len) {
        int n = utf8_decode(text + at, len - at, &c);
        if (n <= 0 || !is_space(c)) break;
        at += (size_t)n;
    }
    *start = at;
    while (len > at) {
        size_t last = len - 1;
        while (last > at && is_continuation(text[last]))
            last--;
        if (utf8_decode(text + last, len - last, &c) <= 0 || !is_space(c)) break;
        len = last;
    }
    *end = len;
}

char *tokenizer_guard(const struct tokenizer *t, const char *text, size_t len, size_t *len_out) {
    size_t start, end, token_len;
    trimmed(text, len, &start, &end);
    bool at_0 = continues_token(t, text, len);
    bool at_start = continues_token(t, text + start, len - start) ||
                    continues_token(t, text + start, end - start);
    bool at_end = begins_token(t, text, end) || begins_token(t, text + start, end - start);
    bool at_len = begins_token(t, text, len);

    struct buf out;
    buf_init(&out, SIZE_MAX / 2);
    size_t break_at = SIZE_MAX; /* behind the first character of a control token */
    for (size_t i = 0; i <= len; i++) {
        if (i == break_at || (i == 0 && at_0) || (i == start && at_start) || (i == end && at_end) ||
            (i == len && at_len))
            buf_puts(&out, INTRO BREAK);
        if (i == len) break;
        if (added_match(&t->control, &t->vocab, text + i, len - i, &token_len) >= 0) {
            break_at = i + 1;
            while (break_at < len && is_continuation(text[break_at]))
                break_at++;
        }
        if (starts_with(text + i, len - i, INTRO)) {
            buf_puts(&out, INTRO LITERAL);
            i += MARK_BYTES - 1;
        } else {
            buf_append(&out, text + i, 1);
        }
    }
    return buf_take(&out, len_out);
}
