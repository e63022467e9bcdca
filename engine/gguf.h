/* GGUF files (version 2 and 3, little-endian): a pure parser over bytes.
 *
 * Nothing is allocated from an unchecked count, nothing is read outside the bytes, no recursion.
 * Checked at parse: magic, version, counts against the bytes that are left, unique keys and tensor
 * names (UTF-8 without control characters), value types, array element types (no arrays of arrays),
 * 1…4 dimensions, each >= 1, their product, the row against the block of its type, alignment a
 * power of two from 8 to 65,536, every tensor inside the file, aligned, none overlapping.  A tensor
 * type that firstpass doesn't read is refused by name at gguf_tensor() and not before, so that
 * `inspect` can show any file.
 *
 * The parsed file borrows the bytes, which must outlive it.  Any thread; immutable after
 * gguf_parse. */
#ifndef ENGINE_GGUF_H
#define ENGINE_GGUF_H

#include "base/err.h"
#include "kernels/quant.h"

#include <stdint.h>

/* Value types as stored. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

/* Far above any real file; they bound what a hostile one makes us allocate. */
enum { GGUF_MAX_KEYS = 1 << 16, GGUF_MAX_TENSORS = 1 << 16, GGUF_MAX_NAME = 1 << 12 };

struct gguf_string {
    const char *data; /* borrowed from the file; may hold NULs; UTF-8 isn't promised */
    uint64_t len;
};

struct gguf_tensor {
    struct gguf_string name;
    uint32_t type; /* GGUF number; see quant_supported() */
    int n_dims;
    uint64_t dims[4]; /* dims[0] is the inner, contiguous one (n_cols of a weight) */
    const void *data; /* borrowed from the file; NULL where hf_decode() makes it */
    uint64_t bytes;   /* 0 where the type is unknown */
};

struct gguf; /* owned by the caller of gguf_parse */

/* `label` names the file in messages. */
struct gguf *gguf_parse(const void *bytes, uint64_t len, const char *label, struct err *e);
void gguf_free(struct gguf *);
/* Gives a file without tensors these, which lie elsewhere (engine/hf.h); names and data are
 * borrowed as long as it lives.  Once, right after gguf_parse. */
bool gguf_add_tensors(struct gguf *, const struct gguf_tensor *tensors, uint64_t n, struct err *e);
const char *gguf_label(const struct gguf *);

/* ---- metadata: each fails, naming key and file, where the key is missing or has another type ----
 */
bool gguf_has(const struct gguf *, const char *key);
/* Any integer type in range.  An array of equal integers also counts: some files give one number a
 * layer (head_count_kv). */
bool gguf_u32(const struct gguf *, const char *key, uint32_t *out, struct err *e);
bool gguf_f32(const struct gguf *, const char *key, float *out, struct err *e); /* f32 or f64 */
bool gguf_bool(const struct gguf *, const char *key, bool *out, struct err *e);
bool gguf_str(const struct gguf *, const char *key, struct gguf_string *out, struct err *e);
/* Arrays. */
bool gguf_array_len(const struct gguf *, const char *key, enum gguf_type *element, uint64_t *n,
                    struct err *e);
bool gguf_strings(const struct gguf *, const char *key, struct gguf_string **out, uint64_t *n,
                  struct err *e); /* free(*out) */
bool gguf_i32s(const struct gguf *, const char *key, int32_t **out, uint64_t *n,
               struct err *e); /* any integer element in range */
bool gguf_f32s(const struct gguf *, const char *key, float **out, uint64_t *n, struct err *e);

/* ---- tensors ---- */
uint64_t gguf_n_tensors(const struct gguf *);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *, uint64_t i);
/* NULL without error where the file has none of the name; use for optional tensors. */
const struct gguf_tensor *gguf_find(const struct gguf *, const char *name);
/* The tensor with exactly this shape (dims[0] = n_cols, dims[1] = n_rows; n_rows 1 also for 1-D)
 * and a type that is supported. */
const struct gguf_tensor *gguf_tensor(const struct gguf *, const char *name, uint64_t n_cols,
                                      uint64_t n_rows, struct err *e);
/* Number of metadata keys, and one's key, type and printable value (cut), for `inspect`. */
uint64_t gguf_n_keys(const struct gguf *);
void gguf_key_text(const struct gguf *, uint64_t i, char *out, size_t size);
/* Bytes before the tensor data: the header that fingerprints hash. */
uint64_t gguf_header_bytes(const struct gguf *);

#endif
