#include "server/reader.h"

#include "base/buf.h"
#include "config/limits.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    /* Arrays and objects in one document: each costs about 200 bytes once parsed, so that a body of
     * "[[],[],…" would else grow fifty-fold. */
    CONTAINERS_MAX = 200000,
    /* Strings: each that a chat template is to see is searched for control tokens. */
    STRINGS_MAX = 200000,
};

static bool check_shape(const char *text, size_t len, struct json_shape *spent, struct err *e) {
    json_shape_add(spent, text, len);
    if (spent->depth > LIMIT_JSON_DEPTH)
        return err_set(e, ERR_INPUT, "the body's JSON is nested deeper than %d levels",
                       LIMIT_JSON_DEPTH);
    if (spent->containers > CONTAINERS_MAX)
        return err_set(e, ERR_INPUT, "the body's JSON has more than %d arrays and objects",
                       CONTAINERS_MAX);
    if (spent->strings > STRINGS_MAX)
        return err_set(e, ERR_INPUT, "the body's JSON has more than %d strings", STRINGS_MAX);
    return true;
}

json_t *reader_parse(const char *text, size_t len, struct json_shape *spent, struct err *e) {
    if (!len) {
        err_set(e, ERR_INPUT, "the request has no body; send a JSON object");
        return NULL;
    }
    if (!check_shape(text, len, spent, e)) return NULL;
    json_error_t error;
    json_t *value =
        json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    if (!value) {
        err_set(e, ERR_INPUT, "the body isn't valid JSON: line %d, column %d: %s", error.line,
                error.column, error.text);
        err_code(e, "invalid_json");
    }
    return value;
}

const char *reader_type(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "unknown";
}

json_t *reader_get(struct reader *r, const char *key) {
    if (r->failed) return NULL;
    json_t *v = json_object_get(r->object, key);
    return json_is_null(v) ? NULL : v;
}

bool reader_fail(struct reader *r, const char *key, const char *fmt, ...) {
    if (r->failed) return false;
    r->failed = true;
    char text[400], param[64];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    snprintf(param, sizeof param, "%s%s", r->where, key);
    return err_param(r->e, param, "%s: %s", param, text);
}

int64_t reader_int(struct reader *r, const char *key, int64_t low, int64_t high, int64_t preset) {
    json_t *v = reader_get(r, key);
    if (!v) return preset;
    int64_t n;
    if (json_is_integer(v)) {
        n = json_integer_value(v);
    } else if (json_is_real(v) && fabs(json_real_value(v)) < 9e15 &&
               fmod(json_real_value(v), 1) == 0) {
        n = (int64_t)json_real_value(v);
    } else {
        reader_fail(r, key, "must be a whole number, not %s",
                    json_is_real(v) ? "a fraction" : reader_type(v));
        return preset;
    }
    if (n < low || n > high) {
        reader_fail(r, key, "must be between %" PRId64 " and %" PRId64 ", not %" PRId64, low, high,
                    n);
        return preset;
    }
    return n;
}

double reader_number(struct reader *r, const char *key, double low, double high, double preset) {
    json_t *v = reader_get(r, key);
    if (!v) return preset;
    if (!json_is_number(v)) {
        reader_fail(r, key, "must be a number, not %s", reader_type(v));
        return preset;
    }
    double n = json_number_value(v);
    if (!(n >= low && n <= high)) {
        reader_fail(r, key, "must be between %g and %g, not %g", low, high, n);
        return preset;
    }
    return n;
}

bool reader_bool(struct reader *r, const char *key, bool preset) {
    json_t *v = reader_get(r, key);
    if (!v) return preset;
    if (!json_is_boolean(v)) {
        reader_fail(r, key, "must be true or false, not %s", reader_type(v));
        return preset;
    }
    return json_is_true(v);
}

const char *reader_string(struct reader *r, const char *key, size_t max, size_t *len) {
    if (len) *len = 0;
    json_t *v = reader_get(r, key);
    if (!v) return NULL;
    if (!json_is_string(v)) {
        reader_fail(r, key, "must be a string, not %s", reader_type(v));
        return NULL;
    }
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    if (n > max) {
        reader_fail(r, key, "has %zu bytes; the limit is %zu", n, max);
        return NULL;
    }
    if (!len && strlen(s) != n) {
        reader_fail(r, key, "must not hold a NUL character");
        return NULL;
    }
    if (len) *len = n;
    return arena_strndup(r->arena, s, n);
}

int reader_choice(struct reader *r, const char *key, const char *const *names, int preset) {
    json_t *v = reader_get(r, key);
    if (!v) return preset;
    struct buf list;
    buf_init(&list, 300);
    int found = -1;
    for (int i = 0; names[i]; i++) {
        if (json_is_string(v) && !strcmp(json_string_value(v), names[i])) found = i;
        buf_printf(&list, "%s\"%s\"", i ? ", " : "", names[i]);
    }
    if (found < 0) reader_fail(r, key, "must be one of %s", buf_text(&list));
    buf_clear(&list);
    return found < 0 ? preset : found;
}

bool reader_only(struct reader *r, const char *const *known, const char *what) {
    const char *key;
    json_t *value;
    json_object_foreach(r->object, key, value) {
        const char *const *name = known;
        while (*name && strcmp(*name, key) != 0)
            name++;
        if (*name) continue;
        char shown[41];
        snprintf(shown, sizeof shown, "%s", key);
        return reader_fail(r, shown, "is no field of %s", what);
    }
    return true;
}
