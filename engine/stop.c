#include "engine/stop.h"

#include "base/utf8.h"

#include <string.h>
#include <strings.h>

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

enum { FENCE_INDENT_MAX = 3, FENCE_LEN_MIN = 3 };

void stop_init(struct stop *s, const struct stop_rules *rules) {
    *s = (struct stop){.rules = rules};
    buf_init(&s->text, SIZE_MAX / 2);
}

void stop_clear(struct stop *s) { buf_clear(&s->text); }

/* ---- text ---- */

static void cut_text(struct buf *b, size_t len) {
    b->len = len;
    if (b->data) b->data[len] = 0;
}

/* How many bytes one U+FFFD stands for: the longest beginning of some sequence, at least one. */
static size_t invalid_len(const char *s, size_t len) {
    uint32_t c;
    size_t n = 1;
    while (n < 3 && n < len && utf8_decode(s, n + 1, &c) == -1)
        n++;
    return n;
}

/* Appends, with what isn't UTF-8 replaced; an incomplete tail stays as it is, for what comes may
 * complete it. */
static void append(struct stop *s, const char *bytes, size_t len) {
    size_t from = s->text.len - utf8_incomplete_tail(buf_text(&s->text), s->text.len);
    buf_append(&s->text, bytes, len);
    if (utf8_valid(s->text.data + from, s->text.len - from)) return;
    struct buf raw;
    buf_init(&raw, s->text.len);
    buf_append(&raw, s->text.data + from, s->text.len - from);
    cut_text(&s->text, from);
    for (size_t i = 0; i < raw.len;) {
        uint32_t c;
        int n = utf8_decode(raw.data + i, raw.len - i, &c);
        if (n > 0) {
            buf_append(&s->text, raw.data + i, (size_t)n);
            i += (size_t)n;
        } else if (n < 0) {
            buf_append(&s->text, raw.data + i, raw.len - i);
            break;
        } else {
            buf_puts(&s->text, REPLACEMENT);
            i += invalid_len(raw.data + i, raw.len - i);
        }
    }
    buf_clear(&raw);
}

/* ---- fences ---- */

/* The run of fence characters that a line begins with: its end in *end and how long it is; 0 where
 * the line is no fence. */
static size_t fence_run(const char *line, size_t len, size_t *end) {
    size_t i = 0;
    while (i < len && i < FENCE_INDENT_MAX && line[i] == ' ')
        i++;
    size_t start = i;
    if (i == len || (line[i] != '`' && line[i] != '~')) return 0;
    while (i < len && line[i] == line[start])
        i++;
    *end = i;
    return i - start >= FENCE_LEN_MIN ? i - start : 0;
}

static bool is_blank(const char *s, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (!strchr(" \t\r\f\v", s[i]) || !s[i]) return false;
    return true;
}

/* Whether the line, as far as it is there, closes the open block; *end is behind the fence. */
static bool closes(const struct stop *s, const char *line, size_t len, size_t *end) {
    size_t run = fence_run(line, len, end);
    return run && run >= s->code.fence_len && line[*end - 1] == s->code.fence &&
           is_blank(line + *end, len - *end);
}

static bool is_python(const char *info, size_t len) {
    static const char *const names[] = {"python", "py", "python3", "py3"};
    size_t from = 0;
    while (from < len && is_blank(info + from, 1))
        from++;
    size_t to = from;
    while (to < len && !is_blank(info + to, 1))
        to++;
    if (from == to) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == to - from && !strncasecmp(names[i], info + from, to - from))
            return true;
    return false;
}

static void open_block(struct stop *s, const char *line, size_t len) {
    size_t end, run = fence_run(line, len, &end);
    if (!run) return;
    /* ```like this``` is code within a line. */
    if (line[end - 1] == '`' && memchr(line + end, '`', len - end)) return;
    s->code.fence = line[end - 1];
    s->code.fence_len = run;
    s->code.python = is_python(line + end, len - end);
    s->code.has_code = false;
}

/* Takes the whole line [code.line, end) into account.  True where it closes the code; *cut is
 * behind the fence. */
static bool end_line(struct stop *s, size_t end, size_t *cut) {
    const char *line = s->text.data + s->code.line;
    size_t len = end - s->code.line, behind;
    if (!s->code.fence) {
        open_block(s, line, len);
    } else if (closes(s, line, len, &behind)) {
        if (s->code.python && s->code.has_code) {
            *cut = s->code.line + behind;
            return true;
        }
        s->code.fence = 0;
    } else if (!is_blank(line, len)) {
        s->code.has_code = true;
    }
    s->code.line = end + 1;
    return false;
}

/* ---- stops ---- */

/* The longest stop string that ends at `end`, or -1. */
static int stop_at(const struct stop *s, size_t end) {
    const struct stop_rules *r = s->rules;
    int best = -1;
    for (int i = 0; i < r->n; i++) {
        if (r->lens[i] > end - s->lead || (best >= 0 && r->lens[i] <= r->lens[best])) continue;
        if (!memcmp(s->text.data + end - r->lens[i], r->strings[i], r->lens[i])) best = i;
    }
    return best;
}

static bool ended(struct stop *s, enum stop_why why, size_t cut) {
    s->why = why;
    cut_text(&s->text, cut);
    return true;
}

void stop_lead(struct stop *s, const char *text, size_t len) {
    size_t cut;
    BUG_ON(s->text.len);
    buf_append(&s->text, text, len);
    for (; s->scanned < len; s->scanned++)
        if (s->rules->code_end && text[s->scanned] == '\n' && end_line(s, s->scanned, &cut)) {
            s->code.fence = 0;
            s->code.line = s->scanned + 1;
        }
    s->lead = len;
}

bool stop_feed(struct stop *s, const char *bytes, size_t len) {
    BUG_ON(s->why != STOP_NOT || s->finished);
    append(s, bytes, len);
    size_t whole = s->text.len - utf8_incomplete_tail(buf_text(&s->text), s->text.len);
    for (; s->scanned < whole; s->scanned++) {
        size_t at = s->scanned, cut;
        if (s->rules->code_end && s->text.data[at] == '\n' && end_line(s, at, &cut))
            return ended(s, STOP_CODE_END, cut);
        int which = stop_at(s, at + 1);
        if (which < 0) continue;
        s->which = which;
        return ended(s, STOP_STRING, at + 1 - (s->rules->include ? 0 : s->rules->lens[which]));
    }
    return false;
}

void stop_finish(struct stop *s) {
    if (s->finished) return;
    s->finished = true;
    size_t tail = utf8_incomplete_tail(buf_text(&s->text), s->text.len), cut;
    if (tail) {
        cut_text(&s->text, s->text.len - tail);
        buf_puts(&s->text, REPLACEMENT);
    }
    if (s->why == STOP_NOT && s->rules->code_end && s->text.len > s->code.line &&
        end_line(s, s->text.len, &cut))
        ended(s, STOP_CODE_END, cut);
}

/* ---- showing ---- */

/* Bytes at the end of text[0 … end) that a stop string begins with. */
static size_t stop_begun(const struct stop *s, size_t end) {
    size_t most = 0;
    for (int i = 0; i < s->rules->n; i++) {
        size_t n = s->rules->lens[i] - 1;
        if (n > end - s->lead) n = end - s->lead;
        for (; n > most; n--)
            if (!memcmp(s->text.data + end - n, s->rules->strings[i], n)) most = n;
    }
    return most;
}

static size_t showable(const struct stop *s) {
    size_t end = s->text.len, behind;
    if (s->finished || s->why != STOP_NOT || !end) return end;
    end -= utf8_incomplete_tail(s->text.data, end);
    size_t whole = end;
    if (!s->rules->include) end -= stop_begun(s, whole);
    if (s->rules->code_end && s->code.fence && s->code.python && s->code.has_code &&
        closes(s, s->text.data + s->code.line, whole - s->code.line, &behind) &&
        s->code.line + behind < end)
        end = s->code.line + behind;
    return end;
}

const char *stop_show(struct stop *s, size_t *len) {
    size_t from = s->shown, to = showable(s);
    /* What has been shown once may be a longer stop string's beginning only after more text came.
     */
    if (to < from) to = from;
    s->shown = to;
    *len = to - from;
    return buf_text(&s->text) + from;
}
