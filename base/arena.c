#include "base/arena.h"

#include "base/err.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_CHUNK_BYTES = 8192, ARENA_ALIGN = 16 };

struct arena_chunk {
    struct arena_chunk *next; /* owned; older */
    size_t capacity;
    _Alignas(ARENA_ALIGN) unsigned char data[];
};

void arena_init(struct arena *a) { *a = (struct arena){0}; }

void arena_clear(struct arena *a) {
    struct arena_chunk *chunk = a->chunk;
    while (chunk) {
        struct arena_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
    arena_init(a);
}

void *arena_alloc(struct arena *a, size_t n, size_t size) {
    size_t bytes;
    BUG_ON(__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 2);
    bytes = (bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    if (!a->chunk || a->chunk->capacity - a->used < bytes) {
        size_t capacity = bytes > ARENA_CHUNK_BYTES ? bytes : ARENA_CHUNK_BYTES;
        struct arena_chunk *chunk = err_alloc(1, sizeof *chunk + capacity);
        chunk->capacity = capacity;
        chunk->next = a->chunk;
        a->chunk = chunk;
        a->used = 0;
    }
    void *p = a->chunk->data + a->used;
    a->used += bytes;
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t len) {
    char *copy = arena_alloc(a, len + 1, 1);
    memcpy(copy, s, len);
    return copy;
}

char *arena_strdup(struct arena *a, const char *s) { return arena_strndup(a, s, strlen(s)); }
