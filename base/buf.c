#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *b, size_t max) { *b = (struct buf){.max = max}; }

void buf_clear(struct buf *b) {
    free(b->data);
    buf_init(b, b->max);
}

void buf_reset(struct buf *b) {
    b->len = 0;
    b->overflowed = false;
    if (b->data) b->data[0] = 0;
}

static bool reserve(struct buf *b, size_t more) {
    if (b->overflowed || more > b->max - b->len) {
        b->overflowed = true;
        return false;
    }
    size_t need = b->len + more + 1;
    if (need <= b->capacity) return true;
    size_t capacity = b->capacity ? b->capacity : 64;
    while (capacity < need)
        capacity *= 2;
    b->data = err_realloc(b->data, capacity, 1);
    b->capacity = capacity;
    return true;
}

bool buf_append(struct buf *b, const void *data, size_t len) {
    if (!reserve(b, len)) return false;
    if (len) memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = 0;
    return true;
}

bool buf_puts(struct buf *b, const char *s) { return buf_append(b, s, strlen(s)); }

bool buf_printf(struct buf *b, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    bool ok = len >= 0 && reserve(b, (size_t)len);
    if (ok) {
        vsnprintf(b->data + b->len, (size_t)len + 1, fmt, again);
        b->len += (size_t)len;
    }
    va_end(again);
    return ok;
}

void buf_consume(struct buf *b, size_t n) {
    BUG_ON(n > b->len);
    if (!n) return;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = 0;
}

const char *buf_text(const struct buf *b) { return b->data ? b->data : ""; }

char *buf_take(struct buf *b, size_t *len) {
    if (!b->data) reserve(b, 0);
    char *data = b->data ? b->data : err_alloc(1, 1);
    data[b->len] = 0;
    if (len) *len = b->len;
    b->data = NULL;
    buf_init(b, b->max);
    return data;
}
