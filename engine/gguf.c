#include "engine/gguf.h"

#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MIN = 8, /* the format's own rule */
    ALIGNMENT_MAX = 65536,
    /* The least that one entry takes in the file: what a count is held against before it is
       believed. */
    KEY_BYTES_MIN = 8 + 1 + 4 + 1, /* length, a character, type, value */
    TENSOR_BYTES_MIN =
        8 + 1 + 4 + 8 + 4 + 8, /* length, a character, n_dims, a dimension, type, offset */
    STRING_BYTES_MIN = 8,
};

struct key {
    struct gguf_string name;
    enum gguf_type type;
    enum gguf_type element;     /* of an array; else equal to type */
    uint64_t n;                 /* elements of an array; bytes of a string; 1 */
    const unsigned char *value; /* borrowed from the file: first element, first byte */
};

/* An entry of a sorted list of names: where the named thing is in the file's order. */
struct named {
    struct gguf_string name;
    uint64_t at;
};

struct gguf {
    const unsigned char *bytes; /* borrowed */
    uint64_t len;
    char *label; /* owned */
    uint64_t n_keys, n_tensors;
    struct key *keys;              /* owned, in file order */
    struct gguf_tensor *tensors;   /* owned, in file order */
    struct named *keys_by_name;    /* owned, sorted */
    struct named *tensors_by_name; /* owned, sorted */
    uint64_t header_bytes;
};

/* ---- messages ---- */

static bool refuse(const struct gguf *g, struct err *e, const char *fmt, ...) PRINTF_LIKE(3, 4);
static bool refuse(const struct gguf *g, struct err *e, const char *fmt, ...) {
    char message[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return err_set(e, ERR_INPUT, "%s: %s", g->label, message);
}

/* A name for "%.*s": cut so that a message stays one line.  Names hold no control characters. */
static int shown(const struct gguf_string *s) { return s->len > 80 ? 80 : (int)s->len; }

static const char *type_name(enum gguf_type type) {
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return names[type];
}

static size_t type_bytes(enum gguf_type type) {
    static const unsigned char sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return sizes[type];
}

static bool type_is_integer(enum gguf_type type) {
    return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64;
}

/* ---- the cursor: every read is checked against what is left ---- */

struct cursor {
    const unsigned char *at, *end;
};

static uint64_t left(const struct cursor *c) { return (uint64_t)(c->end - c->at); }

static bool take(struct cursor *c, void *out, size_t n) {
    if (left(c) < n) return false;
    memcpy(out, c->at, n);
    c->at += n;
    return true;
}

static bool take_string(struct cursor *c, struct gguf_string *out) {
    uint64_t len;
    if (!take(c, &len, sizeof len) || len > left(c)) return false;
    *out = (struct gguf_string){(const char *)c->at, len};
    c->at += len;
    return true;
}

/* Names end up in messages and listings, so nothing that could steer a terminal gets through. */
static bool take_name(struct cursor *c, struct gguf_string *out) {
    if (!take_string(c, out) || !out->len || out->len > GGUF_MAX_NAME) return false;
    for (uint64_t i = 0; i < out->len; i++)
        if ((unsigned char)out->data[i] < 0x20 || out->data[i] == 0x7F) return false;
    return utf8_valid(out->data, out->len);
}

/* ---- metadata ---- */

static bool parse_array(const struct gguf *g, struct cursor *c, struct key *k, struct err *e) {
    uint32_t element;
    if (!take(c, &element, sizeof element) || !take(c, &k->n, sizeof k->n))
        return refuse(g, e, "the file ends inside the array %.*s", shown(&k->name), k->name.data);
    if (element > GGUF_F64 || element == GGUF_ARRAY)
        return refuse(g, e, "the array %.*s has elements of type %u, which is not supported",
                      shown(&k->name), k->name.data, element);
    k->element = (enum gguf_type)element;
    k->value = c->at;
    size_t size = k->element == GGUF_STRING ? STRING_BYTES_MIN : type_bytes(k->element);
    if (k->n > left(c) / size)
        return refuse(g, e, "the array %.*s claims %llu elements, more than the file holds",
                      shown(&k->name), k->name.data, (unsigned long long)k->n);
    if (k->element != GGUF_STRING) {
        c->at += k->n * size;
        return true;
    }
    for (uint64_t i = 0; i < k->n; i++) {
        struct gguf_string s;
        if (!take_string(c, &s))
            return refuse(g, e, "string %llu of the array %.*s runs past the end of the file",
                          (unsigned long long)i, shown(&k->name), k->name.data);
    }
    return true;
}

static bool parse_key(const struct gguf *g, struct cursor *c, struct key *k, uint64_t i,
                      struct err *e) {
    uint32_t type;
    if (!take_name(c, &k->name))
        return refuse(g, e, "metadata key %llu is cut off, empty, too long or not printable text",
                      (unsigned long long)i);
    if (!take(c, &type, sizeof type))
        return refuse(g, e, "the file ends inside metadata key %.*s", shown(&k->name),
                      k->name.data);
    if (type > GGUF_F64)
        return refuse(g, e, "metadata key %.*s has the unknown value type %u", shown(&k->name),
                      k->name.data, type);
    k->type = k->element = (enum gguf_type)type;
    if (k->type == GGUF_ARRAY) return parse_array(g, c, k, e);
    if (k->type == GGUF_STRING) {
        struct gguf_string s;
        if (!take_string(c, &s))
            return refuse(g, e, "the string %.*s runs past the end of the file", shown(&k->name),
                          k->name.data);
        k->n = s.len;
        k->value = (const unsigned char *)s.data;
        return true;
    }
    size_t size = type_bytes(k->type);
    if (left(c) < size)
        return refuse(g, e, "the file ends inside metadata key %.*s", shown(&k->name),
                      k->name.data);
    k->n = 1;
    k->value = c->at;
    c->at += size;
    return true;
}

/* ---- names, sorted: unique, and found in O(log n) whatever an attacker picks ---- */

static int compare_names(const void *x, const void *y) {
    const struct gguf_string *a = &((const struct named *)x)->name;
    const struct gguf_string *b = &((const struct named *)y)->name;
    int order = memcmp(a->data, b->data, a->len < b->len ? a->len : b->len);
    return order ? order : (a->len > b->len) - (a->len < b->len);
}

/* Sorts; `what` names the kind of thing in the message. */
static bool sort_names(const struct gguf *g, struct named *names, uint64_t n, const char *what,
                       struct err *e) {
    qsort(names, n, sizeof *names, compare_names);
    for (uint64_t i = 1; i < n; i++)
        if (!compare_names(&names[i - 1], &names[i]))
            return refuse(g, e, "%s %.*s is there twice", what, shown(&names[i].name),
                          names[i].name.data);
    return true;
}

/* NULL where there is none. */
static const struct named *find_name(const struct named *names, uint64_t n, const char *name) {
    struct named wanted = {.name = {name, strlen(name)}};
    return bsearch(&wanted, names, n, sizeof *names, compare_names);
}

static const struct key *find_key(const struct gguf *g, const char *name) {
    const struct named *found = find_name(g->keys_by_name, g->n_keys, name);
    return found ? &g->keys[found->at] : NULL;
}

static bool parse_keys(struct gguf *g, struct cursor *c, struct err *e) {
    g->keys = err_alloc(g->n_keys, sizeof *g->keys);
    g->keys_by_name = err_alloc(g->n_keys, sizeof *g->keys_by_name);
    for (uint64_t i = 0; i < g->n_keys; i++) {
        if (!parse_key(g, c, &g->keys[i], i, e)) return false;
        g->keys_by_name[i] = (struct named){g->keys[i].name, i};
    }
    return sort_names(g, g->keys_by_name, g->n_keys, "metadata key", e);
}

static bool read_alignment(const struct gguf *g, uint64_t *alignment, struct err *e) {
    *alignment = ALIGNMENT_DEFAULT;
    const struct key *k = find_key(g, "general.alignment");
    if (!k) return true;
    uint32_t value;
    if (k->type != GGUF_U32) return refuse(g, e, "general.alignment is not a u32");
    memcpy(&value, k->value, sizeof value);
    if (value < ALIGNMENT_MIN || value > ALIGNMENT_MAX || (value & (value - 1)))
        return refuse(g, e, "general.alignment is %u; it must be a power of two from %d to %d",
                      value, ALIGNMENT_MIN, ALIGNMENT_MAX);
    *alignment = value;
    return true;
}

/* ---- tensors ---- */

/* Elements into *n; false where the product leaves 63 bits. */
static bool count_elements(const struct gguf_tensor *t, uint64_t *n) {
    *n = 1;
    for (int d = 0; d < t->n_dims; d++)
        if (__builtin_mul_overflow(*n, t->dims[d], n) || *n > INT64_MAX) return false;
    return true;
}

static bool parse_tensor(const struct gguf *g, struct cursor *c, struct gguf_tensor *t,
                         uint64_t *offset, uint64_t index, struct err *e) {
    uint32_t n_dims;
    if (!take_name(c, &t->name))
        return refuse(g, e, "tensor name %llu is cut off, empty, too long or not printable text",
                      (unsigned long long)index);
    int cut = shown(&t->name);
    const char *name = t->name.data;
    if (!take(c, &n_dims, sizeof n_dims))
        return refuse(g, e, "the file ends inside the description of tensor %.*s", cut, name);
    if (n_dims < 1 || n_dims > 4)
        return refuse(g, e, "tensor %.*s has %u dimensions; 1 to 4 are possible", cut, name,
                      n_dims);
    t->n_dims = (int)n_dims;
    for (int d = 0; d < 4; d++)
        t->dims[d] = 1;
    if (!take(c, t->dims, n_dims * sizeof t->dims[0]) || !take(c, &t->type, sizeof t->type) ||
        !take(c, offset, sizeof *offset))
        return refuse(g, e, "the file ends inside the description of tensor %.*s", cut, name);
    for (uint32_t d = 0; d < n_dims; d++)
        if (!t->dims[d]) return refuse(g, e, "tensor %.*s has an empty dimension", cut, name);
    uint64_t n;
    if (!count_elements(t, &n))
        return refuse(g, e, "the dimensions of tensor %.*s are too large", cut, name);
    if (!quant_supported(t->type)) return true; /* listed, refused at use */
    enum quant_type type = (enum quant_type)t->type;
    uint64_t block = (uint64_t)quant_block_elements(type);
    if (t->dims[0] % block)
        return refuse(g, e, "tensor %.*s has rows of %llu, which is no multiple of %s's block %llu",
                      cut, name, (unsigned long long)t->dims[0], quant_name(t->type),
                      (unsigned long long)block);
    if (__builtin_mul_overflow(n / block, (uint64_t)quant_block_bytes(type), &t->bytes))
        return refuse(g, e, "the dimensions of tensor %.*s are too large", cut, name);
    return true;
}

struct placed {
    uint64_t offset;
    const struct gguf_tensor *tensor;
};

static int compare_offsets(const void *a, const void *b) {
    uint64_t x = ((const struct placed *)a)->offset, y = ((const struct placed *)b)->offset;
    return (x > y) - (x < y);
}

/* Sets each tensor's data.  places[i] belongs to tensors[i]; sorted on the way out. */
static bool place_tensors(struct gguf *g, struct placed *places, uint64_t alignment,
                          uint64_t data_bytes, struct err *e) {
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        uint64_t offset = places[i].offset, end;
        if (offset % alignment)
            return refuse(g, e, "tensor %.*s starts at %llu, which is not aligned to %llu",
                          shown(&t->name), t->name.data, (unsigned long long)offset,
                          (unsigned long long)alignment);
        if (__builtin_add_overflow(offset, t->bytes, &end) || end > data_bytes)
            return refuse(g, e,
                          "tensor %.*s lies outside the file; it is cut off or damaged: fetch it "
                          "again",
                          shown(&t->name), t->name.data);
        t->data = g->bytes + g->header_bytes + offset;
    }
    qsort(places, g->n_tensors, sizeof *places, compare_offsets);
    uint64_t end = 0;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = places[i].tensor;
        if (places[i].offset < end)
            return refuse(g, e, "tensor %.*s overlaps another one", shown(&t->name), t->name.data);
        end = places[i].offset + t->bytes;
    }
    return true;
}

static bool parse_tensors(struct gguf *g, struct cursor *c, uint64_t alignment, struct err *e) {
    bool done = false;
    struct placed *places = err_alloc(g->n_tensors, sizeof *places);
    g->tensors = err_alloc(g->n_tensors, sizeof *g->tensors);
    g->tensors_by_name = err_alloc(g->n_tensors, sizeof *g->tensors_by_name);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        if (!parse_tensor(g, c, &g->tensors[i], &places[i].offset, i, e)) goto done;
        places[i].tensor = &g->tensors[i];
        g->tensors_by_name[i] = (struct named){g->tensors[i].name, i};
    }
    if (!sort_names(g, g->tensors_by_name, g->n_tensors, "tensor", e)) goto done;
    /* The data start at the next multiple of the alignment; a file without tensors may end before
     * it. */
    uint64_t header = (uint64_t)(c->at - g->bytes);
    uint64_t start = (header + alignment - 1) & ~(alignment - 1);
    g->header_bytes = start < g->len ? start : g->len;
    done = place_tensors(g, places, alignment, g->len - g->header_bytes, e);
done:
    free(places);
    return done;
}

/* ---- the file ---- */

static bool parse(struct gguf *g, struct err *e) {
    struct cursor c = {g->bytes, g->bytes + g->len};
    char magic[4];
    uint32_t version;
    if (!take(&c, magic, sizeof magic) || memcmp(magic, "GGUF", 4))
        return refuse(g, e, "not a GGUF file (it doesn't begin with \"GGUF\")");
    if (!take(&c, &version, sizeof version)) return refuse(g, e, "the file ends after its magic");
    if (version == 0x02000000 || version == 0x03000000)
        return refuse(g, e, "a big-endian GGUF file; only little-endian ones are read");
    if (version != 2 && version != 3)
        return refuse(g, e, "GGUF version %u; versions 2 and 3 are read", version);
    if (!take(&c, &g->n_tensors, 8) || !take(&c, &g->n_keys, 8)) {
        g->n_tensors = g->n_keys = 0;
        return refuse(g, e, "the file ends inside its header");
    }
    uint64_t alignment;
    if (g->n_keys > GGUF_MAX_KEYS || g->n_keys > left(&c) / KEY_BYTES_MIN)
        return refuse(g, e, "the header claims %llu metadata keys, more than the file can hold",
                      (unsigned long long)g->n_keys);
    if (g->n_tensors > GGUF_MAX_TENSORS || g->n_tensors > left(&c) / TENSOR_BYTES_MIN)
        return refuse(g, e, "the header claims %llu tensors, more than the file can hold",
                      (unsigned long long)g->n_tensors);
    return parse_keys(g, &c, e) && read_alignment(g, &alignment, e) &&
           parse_tensors(g, &c, alignment, e);
}

struct gguf *gguf_parse(const void *bytes, uint64_t len, const char *label, struct err *e) {
    struct gguf *g = err_alloc(1, sizeof *g);
    g->bytes = bytes;
    g->len = len;
    g->label = err_strdup(label);
    if (parse(g, e)) return g;
    gguf_free(g);
    return NULL;
}

bool gguf_add_tensors(struct gguf *g, const struct gguf_tensor *tensors, uint64_t n,
                      struct err *e) {
    BUG_ON(g->n_tensors);
    if (n > GGUF_MAX_TENSORS)
        return refuse(g, e, "%llu tensors; up to %d are read", (unsigned long long)n,
                      GGUF_MAX_TENSORS);
    g->tensors = err_realloc(g->tensors, n, sizeof *g->tensors);
    g->tensors_by_name = err_realloc(g->tensors_by_name, n, sizeof *g->tensors_by_name);
    for (uint64_t i = 0; i < n; i++) {
        g->tensors[i] = tensors[i];
        g->tensors_by_name[i] = (struct named){tensors[i].name, i};
    }
    g->n_tensors = n;
    return sort_names(g, g->tensors_by_name, n, "tensor", e);
}

void gguf_free(struct gguf *g) {
    if (!g) return;
    free(g->tensors_by_name);
    free(g->tensors);
    free(g->keys_by_name);
    free(g->keys);
    free(g->label);
    free(g);
}

const char *gguf_label(const struct gguf *g) { return g->label; }

uint64_t gguf_header_bytes(const struct gguf *g) { return g->header_bytes; }

/* ---- metadata at use ---- */

static const struct key *need(const struct gguf *g, const char *key, struct err *e) {
    const struct key *k = find_key(g, key);
    if (!k) refuse(g, e, "metadata key %s is missing", key);
    return k;
}

static bool wrong_type(const struct gguf *g, const struct key *k, const char *wanted,
                       struct err *e) {
    bool array = k->type == GGUF_ARRAY;
    return refuse(g, e, "metadata key %.*s is %s%s, not %s", shown(&k->name), k->name.data,
                  array ? "an array of " : "", type_name(k->element), wanted);
}

/* The stored bytes of element i, zero-extended. */
static uint64_t bits_at(const struct key *k, uint64_t i) {
    uint64_t bits = 0;
    size_t size = type_bytes(k->element);
    memcpy(&bits, k->value + i * size, size);
    return bits;
}

/* An integer of any stored type; false where it is none, or above INT64_MAX. */
static bool integer_at(const struct key *k, uint64_t i, int64_t *out) {
    if (!type_is_integer(k->element)) return false;
    uint64_t bits = bits_at(k, i);
    bool is_signed = k->element == GGUF_I8 || k->element == GGUF_I16 || k->element == GGUF_I32 ||
                     k->element == GGUF_I64;
    unsigned unused = 64 - 8 * (unsigned)type_bytes(k->element);
    *out = is_signed ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
    return is_signed || bits <= INT64_MAX;
}

static double float_at(const struct key *k, uint64_t i) {
    if (k->element == GGUF_F32) {
        float f;
        memcpy(&f, k->value + i * sizeof f, sizeof f);
        return (double)f;
    }
    double d;
    memcpy(&d, k->value + i * sizeof d, sizeof d);
    return d;
}

/* A finite double must not become an infinite float. */
static bool narrow(double d, float *out) {
    *out = (float)d;
    return !isfinite(d) || isfinite(*out);
}

bool gguf_has(const struct gguf *g, const char *key) { return find_key(g, key) != NULL; }

bool gguf_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e) {
    const struct key *k = need(g, key, e);
    if (!k) return false;
    if (!type_is_integer(k->element)) return wrong_type(g, k, "an integer", e);
    if (!k->n) return refuse(g, e, "metadata key %s is an empty array, not an integer", key);
    int64_t value, other;
    if (!integer_at(k, 0, &value) || value < 0 || value > UINT32_MAX)
        return refuse(g, e, "metadata key %s is out of range", key);
    for (uint64_t i = 1; i < k->n; i++)
        if (!integer_at(k, i, &other) || other != value)
            return refuse(
                g, e, "metadata key %s differs from layer to layer, which is not supported", key);
    *out = (uint32_t)value;
    return true;
}

bool gguf_f32(const struct gguf *g, const char *key, float *out, struct err *e) {
    const struct key *k = need(g, key, e);
    if (!k) return false;
    if (k->type != GGUF_F32 && k->type != GGUF_F64) return wrong_type(g, k, "a float", e);
    if (!narrow(float_at(k, 0), out))
        return refuse(g, e, "metadata key %s is too large for a float", key);
    return true;
}

bool gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *e) {
    const struct key *k = need(g, key, e);
    if (!k) return false;
    if (k->type != GGUF_BOOL) return wrong_type(g, k, "a bool", e);
    if (k->value[0] > 1) return refuse(g, e, "metadata key %s is neither true nor false", key);
    *out = k->value[0];
    return true;
}

bool gguf_str(const struct gguf *g, const char *key, struct gguf_string *out, struct err *e) {
    const struct key *k = need(g, key, e);
    if (!k) return false;
    if (k->type != GGUF_STRING) return wrong_type(g, k, "a string", e);
    *out = (struct gguf_string){(const char *)k->value, k->n};
    return true;
}

static const struct key *need_array(const struct gguf *g, const char *key, struct err *e) {
    const struct key *k = need(g, key, e);
    if (k && k->type != GGUF_ARRAY) {
        wrong_type(g, k, "an array", e);
        return NULL;
    }
    return k;
}

bool gguf_array_len(const struct gguf *g, const char *key, enum gguf_type *element, uint64_t *n,
                    struct err *e) {
    const struct key *k = need_array(g, key, e);
    if (!k) return false;
    *element = k->element;
    *n = k->n;
    return true;
}

/* The strings lie one behind the other; parse_array() has walked them once. */
static struct cursor strings_cursor(const struct gguf *g, const struct key *k) {
    return (struct cursor){k->value, g->bytes + g->len};
}

bool gguf_strings(const struct gguf *g, const char *key, struct gguf_string **out, uint64_t *n,
                  struct err *e) {
    const struct key *k = need_array(g, key, e);
    if (!k) return false;
    if (k->element != GGUF_STRING) return wrong_type(g, k, "an array of strings", e);
    struct gguf_string *strings = err_alloc(k->n, sizeof *strings);
    struct cursor c = strings_cursor(g, k);
    for (uint64_t i = 0; i < k->n; i++)
        BUG_ON(!take_string(&c, &strings[i]));
    *out = strings;
    *n = k->n;
    return true;
}

bool gguf_i32s(const struct gguf *g, const char *key, int32_t **out, uint64_t *n, struct err *e) {
    const struct key *k = need_array(g, key, e);
    if (!k) return false;
    if (!type_is_integer(k->element)) return wrong_type(g, k, "an array of integers", e);
    int32_t *values = err_alloc(k->n, sizeof *values);
    for (uint64_t i = 0; i < k->n; i++) {
        int64_t v;
        if (!integer_at(k, i, &v) || v < INT32_MIN || v > INT32_MAX) {
            free(values);
            return refuse(g, e, "element %llu of metadata key %s is out of range",
                          (unsigned long long)i, key);
        }
        values[i] = (int32_t)v;
    }
    *out = values;
    *n = k->n;
    return true;
}

bool gguf_f32s(const struct gguf *g, const char *key, float **out, uint64_t *n, struct err *e) {
    const struct key *k = need_array(g, key, e);
    if (!k) return false;
    if (k->element != GGUF_F32 && k->element != GGUF_F64)
        return wrong_type(g, k, "an array of floats", e);
    float *values = err_alloc(k->n, sizeof *values);
    for (uint64_t i = 0; i < k->n; i++) {
        if (!narrow(float_at(k, i), &values[i])) {
            free(values);
            return refuse(g, e, "element %llu of metadata key %s is too large for a float",
                          (unsigned long long)i, key);
        }
    }
    *out = values;
    *n = k->n;
    return true;
}

/* ---- tensors at use ---- */

uint64_t gguf_n_tensors(const struct gguf *g) { return g->n_tensors; }

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i) {
    BUG_ON(i >= g->n_tensors);
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name) {
    const struct named *found = find_name(g->tensors_by_name, g->n_tensors, name);
    return found ? &g->tensors[found->at] : NULL;
}

static void missing_tensor(const struct gguf *g, const char *name, struct err *e) {
    uint32_t parts;
    if (gguf_has(g, "split.count") && gguf_u32(g, "split.count", &parts, NULL) && parts > 1)
        refuse(g, e,
               "tensor %s is missing; the file is one of %u parts: merge them into one file first",
               name, parts);
    else
        refuse(g, e, "tensor %s is missing", name);
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name, uint64_t n_cols,
                                      uint64_t n_rows, struct err *e) {
    const struct gguf_tensor *t = gguf_find(g, name);
    if (!t) {
        missing_tensor(g, name, e);
        return NULL;
    }
    if (t->dims[0] != n_cols || t->dims[1] != n_rows || t->dims[2] != 1 || t->dims[3] != 1) {
        refuse(g, e, "tensor %s has shape %llu x %llu x %llu x %llu; %llu x %llu is expected", name,
               (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
               (unsigned long long)t->dims[2], (unsigned long long)t->dims[3],
               (unsigned long long)n_cols, (unsigned long long)n_rows);
        return NULL;
    }
    if (!quant_supported(t->type)) {
        refuse(g, e, "tensor %s has the type %s (%u); supported are %s", name, quant_name(t->type),
               t->type, quant_supported_names());
        return NULL;
    }
    return t;
}

/* ---- one line a key, for `inspect` ---- */

uint64_t gguf_n_keys(const struct gguf *g) { return g->n_keys; }

struct writer {
    char *at;
    size_t room; /* with the NUL */
};

static void put(struct writer *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void put(struct writer *w, const char *fmt, ...) {
    if (w->room <= 1) return;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(w->at, w->room, fmt, args);
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n < w->room ? (size_t)n : w->room - 1;
    w->at += used;
    w->room -= used;
}

/* Quoted, cut at 60 bytes, everything that isn't printable text as \xNN. */
static void put_string(struct writer *w, const struct gguf_string *s) {
    put(w, "\"");
    uint64_t n = s->len > 60 ? 60 : s->len;
    for (uint64_t i = 0; i < n;) {
        uint32_t c;
        int bytes = utf8_decode(s->data + i, s->len - i, &c);
        if (bytes > 0 && c >= 0x20 && (c < 0x7F || c >= 0xA0)) {
            put(w, "%s%.*s", c == '"' || c == '\\' ? "\\" : "", bytes, s->data + i);
            i += (uint64_t)bytes;
        } else if (s->data[i] == '\n') {
            put(w, "\\n");
            i++;
        } else {
            put(w, "\\x%02x", (unsigned char)s->data[i]);
            i++;
        }
    }
    put(w, s->len > n ? "…\"" : "\"");
}

static void put_element(struct writer *w, const struct key *k, uint64_t i) {
    int64_t v;
    if (k->element == GGUF_U64)
        put(w, "%llu", (unsigned long long)bits_at(k, i));
    else if (k->element == GGUF_BOOL)
        put(w, "%s", k->value[i] ? "true" : "false");
    else if (k->element == GGUF_F32 || k->element == GGUF_F64)
        put(w, "%g", float_at(k, i));
    else if (integer_at(k, i, &v))
        put(w, "%lld", (long long)v);
}

void gguf_key_text(const struct gguf *g, uint64_t i, char *out, size_t size) {
    BUG_ON(i >= g->n_keys);
    BUG_ON(!size);
    const struct key *k = &g->keys[i];
    struct writer w = {out, size};
    out[0] = 0;
    put(&w, "%.*s  %s", shown(&k->name), k->name.data, type_name(k->element));
    if (k->type == GGUF_STRING) {
        put(&w, "  ");
        put_string(&w, &(struct gguf_string){(const char *)k->value, k->n});
    } else if (k->type == GGUF_ARRAY) {
        enum { SHOWN_ELEMENTS = 6 };
        put(&w, "[%llu]  ", (unsigned long long)k->n);
        struct cursor c = strings_cursor(g, k);
        for (uint64_t j = 0; j < k->n && j < SHOWN_ELEMENTS; j++) {
            struct gguf_string s;
            if (j) put(&w, ", ");
            if (k->element != GGUF_STRING)
                put_element(&w, k, j);
            else if (take_string(&c, &s))
                put_string(&w, &s);
        }
        if (k->n > SHOWN_ELEMENTS) put(&w, ", …");
    } else {
        put(&w, "  ");
        put_element(&w, k, 0);
    }
    size_t len = strlen(out);
    out[len - utf8_incomplete_tail(out, len)] = 0; /* no cut character at the end */
}
