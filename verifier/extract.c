#include "verifier/extract.h"

#include "base/buf.h"
#include "config/limits.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BLOCKS = 256 };

/* A piece of somebody's text. */
struct span {
    const char *at;
    size_t len;
};

static struct span span(const char *at, size_t len) { return (struct span){at, len}; }

static const char *find(struct span s, const char *word) {
    return s.len ? memmem(s.at, s.len, word, strlen(word)) : NULL;
}

/* Takes the first line, without its end, off `rest`. */
static bool next_line(struct span *rest, struct span *line) {
    if (!rest->len) return false;
    const char *end = memchr(rest->at, '\n', rest->len);
    size_t len = end ? (size_t)(end - rest->at) : rest->len;
    *line = span(rest->at, len);
    size_t used = end ? len + 1 : len;
    rest->at += used;
    rest->len -= used;
    if (line->len && line->at[line->len - 1] == '\r') line->len--;
    return true;
}

static bool is_blank(struct span s) {
    for (size_t i = 0; i < s.len; i++)
        if (!isspace((unsigned char)s.at[i])) return false;
    return true;
}

static struct span trim_end(struct span s) {
    while (s.len && isspace((unsigned char)s.at[s.len - 1]))
        s.len--;
    return s;
}

static bool starts_with(struct span s, const char *word) {
    size_t n = strlen(word);
    return s.len >= n && !memcmp(s.at, word, n);
}

static bool is_name_char(char c) {
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

/* ---- thinking ---- */

static struct span drop_thinking(struct span text) {
    for (const char *end; (end = find(text, "</think>"));) {
        size_t used = (size_t)(end - text.at) + strlen("</think>");
        text = span(text.at + used, text.len - used);
    }
    const char *open = find(text, "<think>");
    return open ? span(text.at, (size_t)(open - text.at)) : text;
}

/* ---- fences ---- */

struct block {
    struct span body;
    size_t indent; /* of its opening fence: as much is taken off its lines */
};

struct fence {
    char mark;
    size_t count, indent;
    struct span tag;
};

static bool parse_fence(struct span line, struct fence *out) {
    size_t i = 0;
    while (i < line.len && (line.at[i] == ' ' || line.at[i] == '\t'))
        i++;
    out->indent = i;
    if (i == line.len || (line.at[i] != '`' && line.at[i] != '~')) return false;
    out->mark = line.at[i];
    size_t start = i;
    while (i < line.len && line.at[i] == out->mark)
        i++;
    out->count = i - start;
    if (out->count < 3) return false;
    struct span tag = trim_end(span(line.at + i, line.len - i));
    while (tag.len && isspace((unsigned char)tag.at[0]))
        tag = span(tag.at + 1, tag.len - 1);
    /* CommonMark: a backtick fence has no backtick after it; `x = ```f``` ` is no fence. */
    if (out->mark == '`' && memchr(tag.at, '`', tag.len)) return false;
    out->tag = tag;
    return true;
}

/* The first word of the tag, in braces or not, in any case. */
static bool is_python(struct span tag) {
    static const char *const names[] = {"python", "py", "python3", "py3"};
    if (tag.len && tag.at[0] == '{') tag = span(tag.at + 1, tag.len - 1);
    if (tag.len && tag.at[0] == '.') tag = span(tag.at + 1, tag.len - 1);
    size_t n = 0;
    while (n < tag.len &&
           (isalnum((unsigned char)tag.at[n]) || tag.at[n] == '+' || tag.at[n] == '#'))
        n++;
    if (n == 0) return tag.len == 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == n && !strncasecmp(names[i], tag.at, n)) return true;
    return false;
}

/* Blocks of Python, in order; *any tells whether there was a fence of any kind. */
static int find_blocks(struct span text, struct block blocks[MAX_BLOCKS], bool *any) {
    int n = 0;
    struct fence open = {0}, fence;
    struct span line;
    const char *body = NULL;
    *any = false;
    while (next_line(&text, &line)) {
        bool is_fence = parse_fence(line, &fence);
        if (!body) {
            if (!is_fence) continue;
            *any = true;
            open = fence;
            body = text.at;
        } else if (is_fence && fence.mark == open.mark && fence.count >= open.count &&
                   !fence.tag.len) {
            if (is_python(open.tag) && n < MAX_BLOCKS)
                blocks[n++] = (struct block){span(body, (size_t)(line.at - body)), open.indent};
            body = NULL;
        }
    }
    if (body && is_python(open.tag) && n < MAX_BLOCKS)
        blocks[n++] = (struct block){span(body, (size_t)(text.at + text.len - body)), open.indent};
    return n;
}

static void put_block(struct buf *b, const struct block *block) {
    struct span rest = block->body, line;
    while (next_line(&rest, &line)) {
        size_t off = 0;
        while (off < block->indent && off < line.len &&
               (line.at[off] == ' ' || line.at[off] == '\t'))
            off++;
        buf_append(b, line.at + off, line.len - off);
        buf_puts(b, "\n");
    }
}

/* ---- Python, as far as lines tell ---- */

static bool is_word(struct span line, const char *word) {
    size_t n = strlen(word);
    return starts_with(line, word) && (line.len == n || !is_name_char(line.at[n]));
}

static struct span trim_start(struct span line) {
    while (line.len && (line.at[0] == ' ' || line.at[0] == '\t'))
        line = span(line.at + 1, line.len - 1);
    return line;
}

static struct span after_word(struct span line, const char *word) {
    size_t n = strlen(word);
    return trim_start(span(line.at + n, line.len - n));
}

/* NAME of "def NAME", "async def NAME", "class NAME", "NAME =" or "NAME:" at the start of the line;
 * empty: it defines nothing. */
static struct span defined_name(struct span line) {
    bool keyword = false;
    if (is_word(line, "async")) line = after_word(line, "async");
    if (is_word(line, "def"))
        line = after_word(line, "def"), keyword = true;
    else if (is_word(line, "class"))
        line = after_word(line, "class"), keyword = true;
    size_t n = 0;
    while (n < line.len && is_name_char(line.at[n]))
        n++;
    struct span name = span(line.at, n), rest = trim_start(span(line.at + n, line.len - n));
    if (keyword || (rest.len && rest.at[0] == ':')) return name;
    bool assigned = rest.len && rest.at[0] == '=' && !(rest.len > 1 && rest.at[1] == '=');
    return assigned ? name : span("", 0);
}

static int compare_name(const void *key, const void *item) {
    const struct span *name = key;
    const char *other = *(const char *const *)item;
    int order = strncmp(name->at, other, name->len);
    return order ? order : other[name->len] ? -1 : 0;
}

/* True where the line defines an entry point. */
static bool defines(struct span line, const struct extract_input *in) {
    struct span name = defined_name(line);
    return name.len && in->n_names &&
           bsearch(&name, in->names, (size_t)in->n_names, sizeof in->names[0], compare_name);
}

static bool text_defines(struct span text, const struct extract_input *in) {
    struct span line;
    while (next_line(&text, &line))
        if (defines(line, in)) return true;
    return false;
}

/* Top-level lines that belong to a module of functions. */
static bool is_definition(struct span line) {
    static const char *const words[] = {"def", "class", "async", "import", "from"};
    if (line.len &&
        (line.at[0] == '@' || line.at[0] == ')' || line.at[0] == ']' || line.at[0] == '}'))
        return true;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (is_word(line, words[i])) return true;
    size_t n = 0; /* NAME = … */
    while (n < line.len && is_name_char(line.at[n]))
        n++;
    if (!n || isdigit((unsigned char)line.at[0])) return false;
    struct span rest = span(line.at + n, line.len - n);
    while (rest.len && rest.at[0] == ' ')
        rest = span(rest.at + 1, rest.len - 1);
    return rest.len > 1 && rest.at[0] == '=' && rest.at[1] != '=';
}

/* ---- the prompt ---- */

/* The start of the last line that defines one of the names, or the last function. */
static size_t signature_at(struct span prompt, const struct extract_input *in) {
    struct span rest = prompt, line;
    size_t at = prompt.len, last_function = prompt.len;
    while (next_line(&rest, &line)) {
        if (defines(line, in)) at = (size_t)(line.at - prompt.at);
        if (is_word(line, "def") || is_word(line, "async"))
            last_function = (size_t)(line.at - prompt.at);
    }
    return at < prompt.len ? at : last_function;
}

/* What stands before the signature: the imports and helpers of the prompt. */
struct prelude {
    struct span prompt; /* all of it, for a block that holds the inside of the function only */
    struct span text;
    struct span *lines; /* owned; those that aren't blank, sorted, each once */
    bool *seen;         /* owned; by line */
    size_t n;
};

static int compare_span(const void *x, const void *y) {
    const struct span *a = x, *b = y;
    if (a->len != b->len) return a->len < b->len ? -1 : 1;
    return memcmp(a->at, b->at, a->len);
}

static void prelude_open(struct prelude *p, const struct extract_input *in) {
    *p = (struct prelude){.text = span("", 0), .prompt = span("", 0)};
    if (!in->prompt) return;
    struct span prompt = span(in->prompt, in->prompt_len), rest, line;
    p->prompt = prompt;
    size_t at = signature_at(prompt, in), n = 0;
    if (at == prompt.len || at == 0) return;
    rest = p->text = span(prompt.at, at);
    while (next_line(&rest, &line))
        n += !is_blank(line);
    if (!n) return;
    p->lines = err_alloc(n, sizeof *p->lines);
    p->seen = err_alloc(n, sizeof *p->seen);
    for (rest = p->text; next_line(&rest, &line);)
        if (!is_blank(line)) p->lines[p->n++] = line;
    qsort(p->lines, p->n, sizeof *p->lines, compare_span);
    n = 1;
    for (size_t i = 1; i < p->n; i++)
        if (compare_span(&p->lines[i], &p->lines[n - 1])) p->lines[n++] = p->lines[i];
    p->n = n;
}

static void prelude_close(struct prelude *p) {
    free(p->lines);
    free(p->seen);
}

/* True where every line of the prelude stands in the code too. */
static bool has_prelude(struct span code, struct prelude *p) {
    struct span line;
    size_t n_seen = 0;
    if (!p->n) return true;
    memset(p->seen, 0, p->n * sizeof *p->seen);
    while (n_seen < p->n && next_line(&code, &line)) {
        struct span *found = bsearch(&line, p->lines, p->n, sizeof *p->lines, compare_span);
        if (!found || p->seen[found - p->lines]) continue;
        p->seen[found - p->lines] = true;
        n_seen++;
    }
    return n_seen == p->n;
}

/* ---- results ---- */

static bool looks_like_body(struct span text) {
    struct span line;
    while (next_line(&text, &line))
        if (!is_blank(line)) return line.at[0] == ' ' || line.at[0] == '\t';
    return false;
}

static void add(struct extract_result *out, struct buf *b, const char *method) {
    struct span code = span(buf_text(b), b->len);
    bool known = is_blank(code) || b->overflowed || out->n == EXTRACT_TRIES;
    for (int i = 0; i < out->n && !known; i++)
        known = out->tries[i].len == code.len && !memcmp(out->tries[i].code, code.at, code.len);
    if (!known) {
        struct extract_try *t = &out->tries[out->n++];
        t->code = buf_take(b, &t->len);
        t->method = method;
    }
    buf_reset(b);
}

static void add_module(struct extract_result *out, struct prelude *prelude, struct span code,
                       struct buf *b, const char *method) {
    if (prelude->prompt.len && looks_like_body(code))
        buf_append(b, prelude->prompt.at, prelude->prompt.len);
    else if (!find(code, "from __future__") && !has_prelude(code, prelude))
        buf_append(b, prelude->text.at, prelude->text.len);
    buf_append(b, code.at, code.len);
    add(out, b, method);
}

static void add_blocks(struct extract_result *out, const struct extract_input *in,
                       struct prelude *prelude, const struct block *blocks, int n, struct buf *b) {
    struct buf body;
    buf_init(&body, b->max);
    int chosen = -1;
    for (int i = 0; i < n; i++)
        if (text_defines(blocks[i].body, in) || find(blocks[i].body, "class Solution")) chosen = i;
    int order[2] = {chosen, n - 1};
    for (int i = 0; i < 2; i++) {
        if (order[i] < 0) continue;
        buf_reset(&body);
        put_block(&body, &blocks[order[i]]);
        add_module(out, prelude, span(buf_text(&body), body.len), b, "fenced");
    }
    buf_reset(&body);
    for (int i = 0; i < n; i++)
        put_block(&body, &blocks[i]);
    if (n) add_module(out, prelude, span(buf_text(&body), body.len), b, "fenced");
    buf_clear(&body);
}

/* Where the continuation of a function ends: at a line at column 0 that is no part of it. `strict`:
 * at any such line. */
static size_t continuation_end(struct span text, bool strict) {
    struct span rest = text, line;
    struct fence fence;
    bool first = true;
    while (next_line(&rest, &line)) {
        bool outside = line.len && !isspace((unsigned char)line.at[0]);
        /* The first line may go on in the middle of the prompt's last one. */
        if (!first && outside && line.at[0] != '#' && (strict || !is_definition(line)) &&
            line.at[0] != ')')
            return (size_t)(line.at - text.at);
        if (parse_fence(line, &fence)) return (size_t)(line.at - text.at);
        first = false;
    }
    return text.len;
}

static void add_continuations(struct extract_result *out, const struct extract_input *in,
                              struct prelude *prelude, struct span text, struct buf *b) {
    bool repeats = text_defines(text, in);
    for (int strict = 0; strict < 2; strict++) {
        struct span code = span(text.at, continuation_end(text, strict));
        if (is_blank(code) && !is_blank(text))
            continue; /* nothing at all: the prompt stands alone */
        if (repeats && !strict) {
            add_module(out, prelude, code, b, "continuation");
            continue;
        }
        if (in->prompt) buf_append(b, in->prompt, in->prompt_len);
        buf_append(b, code.at, code.len);
        add(out, b, "continuation");
    }
}

/* Without the last top-level statement, or without the last line where that is all there is. */
static void add_shortened(struct extract_result *out, struct buf *b) {
    if (!out->n) return;
    struct span code = trim_end(span(out->tries[0].code, out->tries[0].len)), rest = code, line;
    size_t statement = 0, last_line = 0;
    while (next_line(&rest, &line)) {
        if (is_blank(line)) continue;
        last_line = (size_t)(line.at - code.at);
        if (!isspace((unsigned char)line.at[0]) && line.at[0] != '#') statement = last_line;
    }
    if (out->n == EXTRACT_TRIES) free(out->tries[--out->n].code);
    buf_append(b, code.at, statement ? statement : last_line);
    add(out, b, out->tries[0].method);
}

/* ---- choosing ---- */

void extract_code(const struct extract_input *in, struct extract_result *out) {
    *out = (struct extract_result){0};
    struct span text = drop_thinking(span(in->text, in->text_len));
    struct block *blocks = err_alloc(MAX_BLOCKS, sizeof *blocks);
    struct buf b;
    buf_init(&b, 2 * (size_t)LIMIT_CODE_BYTES + in->prompt_len);
    struct prelude prelude;
    prelude_open(&prelude, in);
    bool any_fence;
    int n = find_blocks(text, blocks, &any_fence);
    enum verifier_extract how = in->how;
    if (how == VERIFIER_EXTRACT_AUTO && in->prompt && looks_like_body(text)) {
        struct span line, rest = text;
        struct fence fence;
        while (next_line(&rest, &line) && is_blank(line))
            continue;
        if (!parse_fence(line, &fence)) how = VERIFIER_EXTRACT_CONTINUATION;
    }
    switch (how) {
    case VERIFIER_EXTRACT_AUTO:
        if (any_fence) {
            add_blocks(out, in, &prelude, blocks, n, &b);
        } else {
            if (!in->prompt || text_defines(text, in)) add_module(out, &prelude, text, &b, "raw");
            if (in->prompt) add_continuations(out, in, &prelude, text, &b);
        }
        break;
    case VERIFIER_EXTRACT_FENCED:
        add_blocks(out, in, &prelude, blocks, n, &b);
        break;
    case VERIFIER_EXTRACT_RAW:
        buf_append(&b, in->text, in->text_len);
        add(out, &b, "raw");
        break;
    case VERIFIER_EXTRACT_CONTINUATION:
        add_continuations(out, in, &prelude, text, &b);
        if (!out->n && any_fence) add_blocks(out, in, &prelude, blocks, n, &b);
        break;
    }
    if (in->cut_by_length) add_shortened(out, &b);
    buf_clear(&b);
    prelude_close(&prelude);
    free(blocks);
}

void extract_clear(struct extract_result *r) {
    for (int i = 0; i < r->n; i++)
        free(r->tries[i].code);
    *r = (struct extract_result){0};
}
