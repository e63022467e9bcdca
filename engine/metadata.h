/* Writes metadata as GGUF files hold it: what engine/hf.c makes of a directory's JSON files, so
 * that model, vocabulary and tokenizer have one source to read.
 *
 * Embedded: init / clear.  Any thread; owned by its holder. */
#ifndef ENGINE_METADATA_H
#define ENGINE_METADATA_H

#include "base/buf.h"

#include <stdint.h>

struct metadata {
    struct buf bytes;
    uint64_t n; /* keys so far */
};

void metadata_init(struct metadata *, size_t max);
void metadata_clear(struct metadata *);

void metadata_u32(struct metadata *, const char *key, uint32_t value);
void metadata_f32(struct metadata *, const char *key, float value);
void metadata_bool(struct metadata *, const char *key, bool value);
void metadata_text(struct metadata *, const char *key, const char *value);
/* Arrays: n metadata_item() must follow metadata_texts(). */
void metadata_texts(struct metadata *, const char *key, uint64_t n);
void metadata_item(struct metadata *, const char *text);
void metadata_i32s(struct metadata *, const char *key, const int32_t *values, uint64_t n);

/* The bytes of a GGUF file without tensors; borrowed until the next call.  False where they were
 * more than `max`. */
bool metadata_finish(struct metadata *, const void **bytes, uint64_t *len) MUST_CHECK;

#endif
