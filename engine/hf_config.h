/* config.json and generation_config.json of a Hugging Face directory, written as a GGUF file's
 * metadata, and what the tensors need to know beside it.
 *
 * Read are model_type llama, qwen2 and qwen3.  What would change the result and isn't supported is
 * refused by name: other activations, rope scalings but linear, llama3 and yarn, other
 * quantisations than fp8.  A sliding window cuts the context instead: inside it attention is full.
 *
 * Embedded: read / clear.  Any thread; owned by its holder. */
#ifndef ENGINE_HF_CONFIG_H
#define ENGINE_HF_CONFIG_H

#include "engine/metadata.h"

#include <stdbool.h>
#include <stdint.h>

struct hf_config {
    char architecture[16]; /* "llama", "qwen2", "qwen3" */
    int n_layers;
    bool tied;           /* the output layer is the embedding table */
    bool biases;         /* q, k and v have them for certain */
    bool head_norms;     /* q and k have norms */
    int block[2];        /* of fp8 weights with a scale a block: its rows and columns; else 0 */
    float *rope_factors; /* owned: divisors of the rope's frequencies, or NULL */
    int n_rope_factors;
    int32_t *ends; /* owned: tokens that end generation */
    int n_ends;
};

/* Reads them from `dir` and writes the hyperparameters into the metadata. */
bool hf_config_read(struct hf_config *, const char *dir, struct metadata *out,
                    struct err *e) MUST_CHECK;
void hf_config_clear(struct hf_config *);

#endif
