#include "engine/metadata.h"

#include "engine/gguf.h"

#include <string.h>

enum { VERSION = 3, N_KEYS_AT = 16 };

static void put(struct metadata *m, const void *bytes, size_t n) {
    buf_append(&m->bytes, bytes, n);
}

static void put_u32(struct metadata *m, uint32_t v) { put(m, &v, sizeof v); }

static void put_u64(struct metadata *m, uint64_t v) { put(m, &v, sizeof v); }

static void put_text(struct metadata *m, const char *s) {
    size_t len = strlen(s);
    put_u64(m, len);
    put(m, s, len);
}

static void put_key(struct metadata *m, const char *key, enum gguf_type type) {
    put_text(m, key);
    put_u32(m, (uint32_t)type);
    m->n++;
}

void metadata_init(struct metadata *m, size_t max) {
    m->n = 0;
    buf_init(&m->bytes, max);
    put(m, "GGUF", 4);
    put_u32(m, VERSION);
    put_u64(m, 0); /* tensors */
    put_u64(m, 0); /* keys: metadata_finish() counts them */
}

void metadata_clear(struct metadata *m) { buf_clear(&m->bytes); }

void metadata_u32(struct metadata *m, const char *key, uint32_t value) {
    put_key(m, key, GGUF_U32);
    put_u32(m, value);
}

void metadata_f32(struct metadata *m, const char *key, float value) {
    put_key(m, key, GGUF_F32);
    put(m, &value, sizeof value);
}

void metadata_bool(struct metadata *m, const char *key, bool value) {
    put_key(m, key, GGUF_BOOL);
    put(m, &(unsigned char){value}, 1);
}

void metadata_text(struct metadata *m, const char *key, const char *value) {
    put_key(m, key, GGUF_STRING);
    put_text(m, value);
}

static void put_array(struct metadata *m, const char *key, enum gguf_type element, uint64_t n) {
    put_key(m, key, GGUF_ARRAY);
    put_u32(m, (uint32_t)element);
    put_u64(m, n);
}

void metadata_texts(struct metadata *m, const char *key, uint64_t n) {
    put_array(m, key, GGUF_STRING, n);
}

void metadata_item(struct metadata *m, const char *text) { put_text(m, text); }

void metadata_i32s(struct metadata *m, const char *key, const int32_t *values, uint64_t n) {
    put_array(m, key, GGUF_I32, n);
    put(m, values, (size_t)n * sizeof *values);
}

bool metadata_finish(struct metadata *m, const void **bytes, uint64_t *len) {
    if (m->bytes.overflowed) return false;
    memcpy(m->bytes.data + N_KEYS_AT, &m->n, sizeof m->n);
    *bytes = m->bytes.data;
    *len = m->bytes.len;
    return true;
}
