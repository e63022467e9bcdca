/* The tensors of a Hugging Face directory under the names of GGUF files.
 *
 * Embedded: bind / clear.  Immutable after hf_weights_bind: any thread. */
#ifndef ENGINE_HF_WEIGHTS_H
#define ENGINE_HF_WEIGHTS_H

#include "engine/gguf.h"
#include "engine/hf_config.h"
#include "engine/hf_files.h"

/* Where a tensor's values come from. */
struct hf_weights_source {
    const struct safetensors_tensor *weight; /* NULL: made here */
    const struct safetensors_tensor *scale;  /* NULL but of fp8 */
    int block[2];                            /* rows and columns that have one scale */
};

struct hf_weights {
    uint64_t n;
    struct gguf_tensor *tensors;       /* owned [n]; data NULL where it is to be decoded */
    struct hf_weights_source *sources; /* owned [n] */
    char **names;                      /* owned [n] */
};

/* Every tensor must be known, and every one that the architecture needs must be there. */
bool hf_weights_bind(struct hf_weights *, const char *dir, const struct hf_config *,
                     const struct hf_files *, struct err *e) MUST_CHECK;
void hf_weights_clear(struct hf_weights *);

/* Rows first … first + n - 1 of an fp8 weight, as F16. */
void hf_weights_decode(const struct hf_weights_source *, int first, int n, uint16_t *out);

#endif
