/* Writes GGUF bytes piece by piece, whole ones and broken ones, for the tests of what reads them.
 */
#ifndef TESTS_ENGINE_GGUF_BUILDER_H
#define TESTS_ENGINE_GGUF_BUILDER_H

#include "base/buf.h"
#include "engine/gguf.h"

#include <stdint.h>
#include <string.h>

static inline void put_u32(struct buf *b, uint32_t v) { buf_append(b, &v, sizeof v); }
static inline void put_u64(struct buf *b, uint64_t v) { buf_append(b, &v, sizeof v); }
static inline void put_f32(struct buf *b, float v) { buf_append(b, &v, sizeof v); }
static inline void put_string(struct buf *b, const char *s, size_t len) {
    put_u64(b, len);
    buf_append(b, s, len);
}
static inline void put_header(struct buf *b, uint64_t n_tensors, uint64_t n_keys) {
    buf_puts(b, "GGUF");
    put_u32(b, 3);
    put_u64(b, n_tensors);
    put_u64(b, n_keys);
}
static inline void put_key(struct buf *b, const char *key, uint32_t type) {
    put_string(b, key, strlen(key));
    put_u32(b, type);
}
static inline void put_key_u32(struct buf *b, const char *key, uint32_t v) {
    put_key(b, key, GGUF_U32);
    put_u32(b, v);
}
static inline void put_key_string(struct buf *b, const char *key, const char *v) {
    put_key(b, key, GGUF_STRING);
    put_string(b, v, strlen(v));
}
static inline void put_key_array(struct buf *b, const char *key, uint32_t element, uint64_t n) {
    put_key(b, key, GGUF_ARRAY);
    put_u32(b, element);
    put_u64(b, n);
}
static inline void put_tensor(struct buf *b, const char *name, uint32_t n_dims,
                              const uint64_t *dims, uint32_t type, uint64_t offset) {
    put_string(b, name, strlen(name));
    put_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        put_u64(b, dims[i]);
    put_u32(b, type);
    put_u64(b, offset);
}
static inline void put_zeros(struct buf *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        buf_append(b, "", 1);
}
static inline void put_padding(struct buf *b, size_t alignment) {
    put_zeros(b, (alignment - b->len % alignment) % alignment);
}

#endif
