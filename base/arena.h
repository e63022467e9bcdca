/* Memory that is freed all at once: a request's strings and arrays live in one arena.
 *
 * Embedded: init / clear.  Pointers stay valid until arena_clear().  One owner at a time; ownership
 * moves with the struct that embeds it. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

struct arena_chunk;
struct arena {
    struct arena_chunk *chunk; /* owned; newest first */
    size_t used;               /* bytes used in the newest chunk */
};

void arena_init(struct arena *a);
void arena_clear(struct arena *a);
/* Zeroed, aligned to 16 bytes, never NULL. */
void *arena_alloc(struct arena *a, size_t n, size_t size);
char *arena_strndup(struct arena *a, const char *s, size_t len);
char *arena_strdup(struct arena *a, const char *s);

#endif
