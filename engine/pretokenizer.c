#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/pretokenizer.h"

#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- patterns ----
 * Written from the published tokenizers of the models.  Each list is applied in turn to the pieces
 * that the one before left; what a pattern doesn't match is a piece too. */

/* Unicode's White_Space, to stand inside brackets. */
#define SPACE                                                                                      \
    "\\t-\\r\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"          \
    "\\x{205F}\\x{3000}"

/* White space before a word keeps its last character for that word. */
#define SPACES "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" SPACES

/* Llama 3's and Qwen2's differ in how many digits make a piece. */
#define WORDS(digits)                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" SPACE             \
    "\\p{L}\\p{N}]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+|" SPACES

enum { PATTERNS_MAX = 2 };

struct family {
    const char *patterns[PATTERNS_MAX]; /* NULL after the last */
    bool ignores_merges, adds_bos;
    const char *names[12]; /* NULL after the last */
};

static const struct family families[] = {
    {{WORDS("\\p{N}{1,3}")},
     true,
     true,
     {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}},
    {{WORDS("\\p{N}{1,3}")}, false, false, {"smaug-bpe", "dbrx"}},
    {{WORDS("\\p{N}")},
     false,
     false,
     {"qwen2", "deepseek-r1-qwen", "stablelm2", "kormo", "megrez", "hunyuan"}},
    {{"\\p{N}", GPT2},
     false,
     false,
     {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}},
    {{GPT2}, false, false, {"gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "mellum"}},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

static const struct family *find_family(const char *name, size_t len) {
    for (int i = 0; i < N_FAMILIES; i++)
        for (int j = 0; families[i].names[j]; j++)
            if (strlen(families[i].names[j]) == len && !memcmp(families[i].names[j], name, len))
                return &families[i];
    return NULL;
}

/* ---- compiled ---- */

struct pretokenizer {
    const struct family *family;
    int n;
    pcre2_code *codes[PATTERNS_MAX]; /* owned */
};

struct pretokenizer *pretokenizer_new(const char *name, size_t len, const char *label,
                                      struct err *e) {
    const struct family *family = find_family(name, len);
    if (!family) {
        err_set(e, ERR_INPUT,
                "%s: the pre-tokenizer \"%.*s\" is not known; supported are llama-bpe, qwen2, "
                "smollm, gpt-2 and others with the same patterns",
                label, len > 80 ? 80 : (int)len, name);
        return NULL;
    }
    struct pretokenizer *p = err_alloc(1, sizeof *p);
    p->family = family;
    for (int i = 0; i < PATTERNS_MAX && family->patterns[i]; i++) {
        int code;
        PCRE2_SIZE at;
        p->codes[i] =
            pcre2_compile((PCRE2_SPTR)family->patterns[i], PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
        if (!p->codes[i]) {
            err_set(e, ERR_SYSTEM, "%s: PCRE2 refuses a pattern of %s: error %d at %zu", label,
                    family->names[0], code, (size_t)at);
            pretokenizer_free(p);
            return NULL;
        }
        /* Where the system forbids writable code pages this fails and the interpreter matches the
         * same. */
        (void)pcre2_jit_compile(p->codes[i], PCRE2_JIT_COMPLETE);
        p->n = i + 1;
    }
    return p;
}

void pretokenizer_free(struct pretokenizer *p) {
    if (!p) return;
    for (int i = 0; i < PATTERNS_MAX; i++)
        pcre2_code_free(p->codes[i]);
    free(p);
}

bool pretokenizer_ignores_merges(const struct pretokenizer *p) { return p->family->ignores_merges; }

bool pretokenizer_adds_bos(const struct pretokenizer *p) { return p->family->adds_bos; }

/* ---- splitting ---- */

struct splitter {
    const struct pretokenizer *pre;
    pcre2_match_context *context; /* owned */
    pcre2_match_data
        *data[PATTERNS_MAX]; /* owned; one a level, since a level's loop outlives the next one's */
    void (*piece)(void *arg, const char *text, size_t len);
    void *arg;
    struct err *e;
};

/* Splits one piece by pattern `level` and what comes out by the next; at most PATTERNS_MAX deep.  A
 * piece is matched alone, so that a look-ahead ends where it ends. */
static bool split(const struct splitter *s, int level, const char *text, size_t len) {
    if (!len) return true;
    if (level == s->pre->n) {
        s->piece(s->arg, text, len);
        return true;
    }
    size_t at = 0;
    while (at < len) {
        int rc = pcre2_match(s->pre->codes[level], (PCRE2_SPTR)text, len, at,
                             PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, s->data[level], s->context);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0)
            return err_set(s->e, ERR_INPUT, "the text is too much for the pre-tokenizer (PCRE2 %d)",
                           rc);
        const PCRE2_SIZE *ovector = pcre2_get_ovector_pointer(s->data[level]);
        size_t start = ovector[0], end = ovector[1];
        if (!split(s, level + 1, text + at, start - at)) return false;
        if (!split(s, level + 1, text + start, end - start)) return false;
        at = end;
    }
    return split(s, level + 1, text + at, len - at);
}

bool pretokenizer_split(const struct pretokenizer *p, const char *text, size_t len,
                        void (*piece)(void *arg, const char *text, size_t len), void *arg,
                        struct err *e) {
    struct splitter s = {.pre = p, .piece = piece, .arg = arg, .e = e};
    s.context = pcre2_match_context_create(NULL);
    BUG_ON(!s.context);
    /* A match gives back at most what it took, so steps linear in the text are enough; the limits
     * turn a pattern's mistake into an error instead of an endless loop. */
    uint64_t limit = 10000 + 16 * (uint64_t)len;
    pcre2_set_match_limit(s.context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    pcre2_set_depth_limit(s.context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    for (int i = 0; i < p->n; i++) {
        s.data[i] = pcre2_match_data_create(1, NULL);
        BUG_ON(!s.data[i]);
    }
    bool done = split(&s, 0, text, len);
    for (int i = 0; i < p->n; i++)
        pcre2_match_data_free(s.data[i]);
    pcre2_match_context_free(s.context);
    return done;
}
