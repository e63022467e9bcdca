/* Safetensors files, as Hugging Face directories hold them: a pure parser over bytes.
 *
 * The file is 8 bytes of length (little-endian), a JSON header of that length, and the tensors'
 * bytes.  Checked at parse: the header's length and JSON, unique printable names, known dtypes,
 * shapes and their products, every tensor's bytes against its shape, all of them inside the file,
 * none overlapping and no gap between, as the format demands.  (github.com/huggingface/safetensors,
 * README, "Format".)
 *
 * The parsed file borrows the bytes, which must outlive it.  Any thread; immutable after
 * safetensors_parse. */
#ifndef ENGINE_SAFETENSORS_H
#define ENGINE_SAFETENSORS_H

#include "base/err.h"

#include <stdint.h>

/* Far above any real file; they bound what a hostile one makes us allocate. */
enum {
    SAFETENSORS_MAX_HEADER = 32 << 20, /* bytes */
    SAFETENSORS_MAX_TENSORS = 1 << 16,
    SAFETENSORS_MAX_NAME = 1 << 10,
    SAFETENSORS_MAX_DIMS = 8,
};

enum safetensors_dtype {
    SAFETENSORS_BOOL,
    SAFETENSORS_U8,
    SAFETENSORS_I8,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_F8_E8M0,
    SAFETENSORS_I16,
    SAFETENSORS_U16,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I32,
    SAFETENSORS_U32,
    SAFETENSORS_F32,
    SAFETENSORS_F64,
    SAFETENSORS_I64,
    SAFETENSORS_U64,
};
const char *safetensors_dtype_name(enum safetensors_dtype); /* as stored: "BF16" */

struct safetensors_tensor {
    const char *name; /* borrowed from the parsed file */
    enum safetensors_dtype dtype;
    int n_dims;                          /* 0: one number */
    uint64_t dims[SAFETENSORS_MAX_DIMS]; /* the last one is the inner, contiguous one */
    const void *data;                    /* borrowed from the bytes; not aligned */
    uint64_t bytes;
};

struct safetensors; /* owned by the caller of safetensors_parse */

/* `label` names the file in messages. */
struct safetensors *safetensors_parse(const void *bytes, uint64_t len, const char *label,
                                      struct err *e);
void safetensors_free(struct safetensors *);
const char *safetensors_label(const struct safetensors *);

/* In the order of their bytes. */
uint64_t safetensors_n(const struct safetensors *);
const struct safetensors_tensor *safetensors_at(const struct safetensors *, uint64_t i);
/* NULL where the file has none of the name. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *, const char *name);

#endif
