/* A growing run of bytes with a maximum, always NUL-terminated one past its length.
 *
 * Embedded: init / clear.  Appending past `max` appends nothing more and sets `overflowed`, so that
 * a writer checks once at its end.  Any thread; owned by its holder. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include "base/err.h"

#include <stdarg.h>
#include <stddef.h>

struct buf {
    char *data; /* owned; NULL until the first append */
    size_t len; /* bytes used, without the NUL */
    size_t capacity;
    size_t max; /* len never exceeds this */
    bool overflowed;
};

void buf_init(struct buf *b, size_t max);
void buf_clear(struct buf *b); /* frees; may be init'ed or used again with the same max */
void buf_reset(struct buf *b); /* length 0, keeps the memory */
bool buf_append(struct buf *b, const void *data, size_t len);
bool buf_puts(struct buf *b, const char *s);
bool buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Removes the first n bytes. */
void buf_consume(struct buf *b, size_t n);
/* The text, never NULL; borrowed until the next call. */
const char *buf_text(const struct buf *b);
/* Moves the memory out (free() it) and leaves the buffer empty; never NULL. */
char *buf_take(struct buf *b, size_t *len);

#endif
