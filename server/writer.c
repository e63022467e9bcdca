#include "server/writer.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void writer_init(struct writer *w, struct buf *out) { *w = (struct writer){.out = out}; }

static void value(struct writer *w) {
    if (w->comma) buf_append(w->out, ",", 1);
    w->comma = true;
}

void writer_object(struct writer *w) {
    value(w);
    buf_append(w->out, "{", 1);
    w->comma = false;
}

void writer_object_end(struct writer *w) {
    buf_append(w->out, "}", 1);
    w->comma = true;
}

void writer_array(struct writer *w) {
    value(w);
    buf_append(w->out, "[", 1);
    w->comma = false;
}

void writer_array_end(struct writer *w) {
    buf_append(w->out, "]", 1);
    w->comma = true;
}

static void escape(struct buf *out, unsigned char c) {
    static const char names[] = "btn.fr";
    if (c == '"' || c == '\\')
        buf_printf(out, "\\%c", c);
    else if (c >= 8 && c <= 13 && c != 11)
        buf_printf(out, "\\%c", names[c - 8]);
    else
        buf_printf(out, "\\u%04x", c);
}

static void quoted(struct buf *out, const char *s, size_t len) {
    buf_append(out, "\"", 1);
    size_t plain = 0; /* start of what needs no change */
    for (size_t i = 0; i < len;) {
        uint32_t c;
        int n = utf8_decode(s + i, len - i, &c);
        if (n > 0 && c >= 0x20 && c != '"' && c != '\\') {
            i += (size_t)n;
            continue;
        }
        buf_append(out, s + plain, i - plain);
        if (n > 0)
            escape(out, (unsigned char)c);
        else
            buf_append(out, "\xEF\xBF\xBD", 3);
        i++;
        plain = i;
    }
    buf_append(out, s + plain, len - plain);
    buf_append(out, "\"", 1);
}

void writer_key_bytes(struct writer *w, const char *key, size_t len) {
    value(w);
    quoted(w->out, key, len);
    buf_append(w->out, ":", 1);
    w->comma = false;
}

void writer_key(struct writer *w, const char *key) { writer_key_bytes(w, key, strlen(key)); }

void writer_string(struct writer *w, const char *s, size_t len) {
    value(w);
    quoted(w->out, s, len);
}

void writer_text(struct writer *w, const char *s) {
    if (s)
        writer_string(w, s, strlen(s));
    else
        writer_null(w);
}

void writer_int(struct writer *w, int64_t v) {
    value(w);
    buf_printf(w->out, "%" PRId64, v);
}

void writer_uint(struct writer *w, uint64_t v) {
    value(w);
    buf_printf(w->out, "%" PRIu64, v);
}

void writer_number(struct writer *w, double v) {
    value(w);
    if (isfinite(v))
        buf_printf(w->out, "%.9g", v);
    else
        buf_puts(w->out, "null");
}

void writer_float(struct writer *w, float v) {
    char text[32] = "null";
    value(w);
    for (int digits = 6; isfinite(v) && digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v) break;
    }
    buf_puts(w->out, text);
}

void writer_bool(struct writer *w, bool v) {
    value(w);
    buf_puts(w->out, v ? "true" : "false");
}

void writer_null(struct writer *w) {
    value(w);
    buf_puts(w->out, "null");
}

void writer_raw(struct writer *w, const char *json, size_t len) {
    if (!len) return;
    value(w);
    buf_append(w->out, json, len);
}

void writer_key_int(struct writer *w, const char *key, int64_t v) {
    writer_key(w, key);
    writer_int(w, v);
}

void writer_key_number(struct writer *w, const char *key, double v) {
    writer_key(w, key);
    writer_number(w, v);
}
