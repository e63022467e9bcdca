/* Typed, range-checked fields out of a JSON object.
 *
 * The first failure is kept in the caller's err, with the field's name as its param; after it every
 * call returns its preset, so that a parser reads all its fields and looks at `failed` once.  A
 * field that is null counts as absent.  Strings go to the arena.  Embedded; any thread. */
#ifndef SERVER_READER_H
#define SERVER_READER_H

#include "base/arena.h"
#include "base/err.h"
#include "base/json_shape.h"

#include <jansson.h>
#include <stdint.h>

struct reader {
    json_t *object;      /* borrowed */
    const char *where;   /* put before field names in errors: "" or "firstpass." */
    struct arena *arena; /* borrowed: strings live there */
    struct err *e;       /* borrowed */
    bool failed;
    struct json_shape
        spent; /* what the request has cost so far, JSON within its strings included */
};

/* Parses one JSON value: depth at most LIMIT_JSON_DEPTH, no duplicate keys, UTF-8, numbers that
 * fit, no more containers and strings than a request may have in all. json_decref() it. */
json_t *reader_parse(const char *text, size_t len, struct json_shape *spent, struct err *e);

/* NULL where absent or null. */
json_t *reader_get(struct reader *, const char *key);
/* Records a failure of the field, returns false. */
bool reader_fail(struct reader *, const char *key, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Whether the object has no fields but the `known` (NULL-ended); `what` names it in the message. */
bool reader_only(struct reader *, const char *const *known, const char *what);
/* A whole number, also where it is written as 3.0. */
int64_t reader_int(struct reader *, const char *key, int64_t low, int64_t high, int64_t preset);
double reader_number(struct reader *, const char *key, double low, double high, double preset);
bool reader_bool(struct reader *, const char *key, bool preset);
/* At most `max` bytes; may hold NULs only where `len` is asked for, else these are refused. */
const char *reader_string(struct reader *, const char *key, size_t max, size_t *len);
/* The position of the string in `names` (NULL-ended), the preset where absent. */
int reader_choice(struct reader *, const char *key, const char *const *names, int preset);
/* One word for a JSON value's type, for messages. */
const char *reader_type(const json_t *);

#endif
