/* JSON out: values appended to a struct buf as they come, nothing built in memory first.
 *
 * Text that isn't UTF-8 becomes U+FFFD, numbers that JSON hasn't (NaN, infinities) become null, so
 * that the output is valid JSON whatever a model or a candidate wrote.  Keys and values alternate
 * as the caller says them; commas are the writer's.  Embedded; any thread. */
#ifndef SERVER_WRITER_H
#define SERVER_WRITER_H

#include "base/buf.h"

#include <stdint.h>

struct writer {
    struct buf *out; /* borrowed */
    bool comma;      /* a value was written at this level */
};

void writer_init(struct writer *w, struct buf *out);
void writer_object(struct writer *w);
void writer_object_end(struct writer *w);
void writer_array(struct writer *w);
void writer_array_end(struct writer *w);
void writer_key(struct writer *w, const char *key);
void writer_key_bytes(struct writer *w, const char *key, size_t len);
void writer_string(struct writer *w, const char *s, size_t len);
void writer_text(struct writer *w, const char *s); /* NULL: null */
void writer_int(struct writer *w, int64_t v);
void writer_uint(struct writer *w, uint64_t v);
void writer_number(struct writer *w, double v);
/* In as few digits as tell it from other floats. */
void writer_float(struct writer *w, float v);
void writer_bool(struct writer *w, bool v);
void writer_null(struct writer *w);
/* A member of an object: key and value. */
void writer_key_int(struct writer *w, const char *key, int64_t v);
void writer_key_number(struct writer *w, const char *key, double v);
/* Values already written as JSON, commas between them included; nothing where len is 0. */
void writer_raw(struct writer *w, const char *json, size_t len);

#endif
