#include "engine/safetensors.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dtype_info {
    const char *name;
    unsigned char bytes;
};

static const struct dtype_info dtypes[] = {
    [SAFETENSORS_BOOL] = {"BOOL", 1},       [SAFETENSORS_U8] = {"U8", 1},
    [SAFETENSORS_I8] = {"I8", 1},           [SAFETENSORS_F8_E5M2] = {"F8_E5M2", 1},
    [SAFETENSORS_F8_E4M3] = {"F8_E4M3", 1}, [SAFETENSORS_F8_E8M0] = {"F8_E8M0", 1},
    [SAFETENSORS_I16] = {"I16", 2},         [SAFETENSORS_U16] = {"U16", 2},
    [SAFETENSORS_F16] = {"F16", 2},         [SAFETENSORS_BF16] = {"BF16", 2},
    [SAFETENSORS_I32] = {"I32", 4},         [SAFETENSORS_U32] = {"U32", 4},
    [SAFETENSORS_F32] = {"F32", 4},         [SAFETENSORS_F64] = {"F64", 8},
    [SAFETENSORS_I64] = {"I64", 8},         [SAFETENSORS_U64] = {"U64", 8},
};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes, LENGTH_BYTES = 8 };

struct safetensors {
    const unsigned char *bytes; /* borrowed */
    uint64_t len;
    char *label;                               /* owned */
    json_t *header;                            /* owned: the names */
    struct safetensors_tensor *tensors;        /* owned, by offset */
    const struct safetensors_tensor **by_name; /* owned, sorted */
    uint64_t n;
};

const char *safetensors_dtype_name(enum safetensors_dtype dtype) { return dtypes[dtype].name; }

static bool refuse(const struct safetensors *s, struct err *e, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
static bool refuse(const struct safetensors *s, struct err *e, const char *fmt, ...) {
    char message[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return err_set(e, ERR_INPUT, "%s: %s", s->label, message);
}

/* ---- the header ---- */

static bool read_header(struct safetensors *s, uint64_t *data_at, struct err *e) {
    uint64_t n;
    if (s->len < LENGTH_BYTES)
        return refuse(s, e, "too short to be a safetensors file (%llu bytes)",
                      (unsigned long long)s->len);
    memcpy(&n, s->bytes, sizeof n);
    if (n > SAFETENSORS_MAX_HEADER)
        return refuse(s, e,
                      "not a safetensors file, or its header claims %llu bytes; up to %d are read",
                      (unsigned long long)n, SAFETENSORS_MAX_HEADER);
    if (n > s->len - LENGTH_BYTES)
        return refuse(s, e,
                      "the header claims %llu bytes, more than the file has; it is cut off or "
                      "damaged: fetch it again",
                      (unsigned long long)n);
    const char *text = (const char *)s->bytes + LENGTH_BYTES;
    if (!n || *text != '{')
        return refuse(s, e, "not a safetensors file (its header doesn't begin with \"{\")");
    json_error_t why;
    s->header = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &why);
    if (!s->header) return refuse(s, e, "the header is not the JSON it should be: %s", why.text);
    *data_at = LENGTH_BYTES + n;
    return true;
}

/* Names end up in messages and listings, so nothing that could steer a terminal gets through. */
static bool printable(const char *name) {
    size_t len = strlen(name);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F) return false;
    return len > 0 && len <= SAFETENSORS_MAX_NAME;
}

static bool read_dtype(const struct safetensors *s, struct safetensors_tensor *t,
                       const json_t *value, struct err *e) {
    const char *text = json_string_value(value);
    for (int i = 0; text && i < N_DTYPES; i++) {
        if (strcmp(text, dtypes[i].name) != 0) continue;
        t->dtype = (enum safetensors_dtype)i;
        return true;
    }
    return refuse(s, e, "tensor %.80s has the dtype %.40s, which isn't known", t->name,
                  text ? text : "(none)");
}

static bool natural(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

/* The shape, and into *bytes how many it takes. */
static bool read_shape(const struct safetensors *s, struct safetensors_tensor *t,
                       const json_t *shape, uint64_t *bytes, struct err *e) {
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > SAFETENSORS_MAX_DIMS)
        return refuse(s, e, "tensor %.80s has no shape of at most %d dimensions", t->name,
                      SAFETENSORS_MAX_DIMS);
    t->n_dims = (int)n;
    *bytes = dtypes[t->dtype].bytes;
    for (size_t i = 0; i < n; i++) {
        if (!natural(json_array_get(shape, i), &t->dims[i]))
            return refuse(s, e, "tensor %.80s has a dimension that is no count", t->name);
        if (__builtin_mul_overflow(*bytes, t->dims[i], bytes))
            return refuse(s, e, "the dimensions of tensor %.80s are too large", t->name);
    }
    return true;
}

static bool read_tensor(const struct safetensors *s, struct safetensors_tensor *t, const char *name,
                        const json_t *entry, uint64_t data_at, struct err *e) {
    uint64_t begin = 0, end = 0, bytes = 0, left = s->len - data_at;
    t->name = name;
    if (!printable(name))
        return refuse(s, e, "a tensor's name is empty, too long or not printable text");
    if (!json_is_object(entry)) return refuse(s, e, "tensor %.80s is not described", name);
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!read_dtype(s, t, json_object_get(entry, "dtype"), e) ||
        !read_shape(s, t, json_object_get(entry, "shape"), &bytes, e))
        return false;
    if (json_array_size(offsets) != 2 || !natural(json_array_get(offsets, 0), &begin) ||
        !natural(json_array_get(offsets, 1), &end) || begin > end)
        return refuse(s, e, "tensor %.80s has no data_offsets", name);
    if (end > left)
        return refuse(
            s, e, "tensor %.80s lies outside the file; it is cut off or damaged: fetch it again",
            name);
    if (end - begin != bytes)
        return refuse(s, e, "tensor %.80s has %llu bytes, but its shape and dtype take %llu", name,
                      (unsigned long long)(end - begin), (unsigned long long)bytes);
    t->data = s->bytes + data_at + begin;
    t->bytes = bytes;
    return true;
}

/* ---- order ---- */

/* By place; empty ones before what begins where they are. */
static int compare_places(const void *a, const void *b) {
    const struct safetensors_tensor *x = a, *y = b;
    uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
    if (p != q) return p < q ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_names(const void *a, const void *b) {
    const struct safetensors_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static bool check_places(const struct safetensors *s, uint64_t data_at, struct err *e) {
    uint64_t at = data_at;
    for (uint64_t i = 0; i < s->n; i++) {
        const struct safetensors_tensor *t = &s->tensors[i];
        uint64_t begin = (uint64_t)((const unsigned char *)t->data - s->bytes);
        if (begin < at) return refuse(s, e, "tensor %.80s overlaps another one", t->name);
        if (begin > at)
            return refuse(s, e, "%llu bytes before tensor %.80s belong to no tensor",
                          (unsigned long long)(begin - at), t->name);
        at = begin + t->bytes;
    }
    if (at != s->len)
        return refuse(s, e, "%llu bytes at the end belong to no tensor",
                      (unsigned long long)(s->len - at));
    return true;
}

static bool parse(struct safetensors *s, struct err *e) {
    uint64_t data_at = 0;
    if (!read_header(s, &data_at, e)) return false;
    size_t most = json_object_size(s->header);
    if (most > SAFETENSORS_MAX_TENSORS)
        return refuse(s, e, "%zu tensors; up to %d are read", most, SAFETENSORS_MAX_TENSORS);
    s->tensors = err_alloc(most, sizeof *s->tensors);
    s->by_name = err_alloc(most, sizeof(struct safetensors_tensor *));
    const char *name;
    json_t *entry;
    json_object_foreach(s->header, name, entry) {
        if (!strcmp(name, "__metadata__")) continue;
        if (!read_tensor(s, &s->tensors[s->n], name, entry, data_at, e)) return false;
        s->n++;
    }
    qsort(s->tensors, s->n, sizeof *s->tensors, compare_places);
    for (uint64_t i = 0; i < s->n; i++)
        s->by_name[i] = &s->tensors[i];
    qsort(s->by_name, s->n, sizeof(struct safetensors_tensor *), compare_names);
    return check_places(s, data_at, e);
}

struct safetensors *safetensors_parse(const void *bytes, uint64_t len, const char *label,
                                      struct err *e) {
    struct safetensors *s = err_alloc(1, sizeof *s);
    s->bytes = bytes;
    s->len = len;
    s->label = err_strdup(label);
    if (parse(s, e)) return s;
    safetensors_free(s);
    return NULL;
}

void safetensors_free(struct safetensors *s) {
    if (!s) return;
    json_decref(s->header);
    free(s->tensors);
    free(s->by_name);
    free(s->label);
    free(s);
}

const char *safetensors_label(const struct safetensors *s) { return s->label; }

uint64_t safetensors_n(const struct safetensors *s) { return s->n; }

const struct safetensors_tensor *safetensors_at(const struct safetensors *s, uint64_t i) {
    return &s->tensors[i];
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name) {
    const struct safetensors_tensor wanted = {.name = name}, *key = &wanted;
    const struct safetensors_tensor **found =
        bsearch(&key, s->by_name, s->n, sizeof(struct safetensors_tensor *), compare_names);
    return found ? *found : NULL;
}
