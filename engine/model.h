/* A model and its weights, bound by name with every shape checked: a GGUF file, or a Hugging Face
 * directory (engine/hf.h).
 *
 * Architectures `llama` (interleaved rotary pairs in GGUF files, half-split ones in directories),
 * `qwen2` (half-split pairs, biases on q, k, v) and `qwen3` (half-split pairs, norms on each head
 * of q and k).  An unknown architecture, rope scaling or tensor type is refused by name.  Files are
 * mapped; after model_load the mapping stays for the vocabulary and for weights that the backend
 * reads in place.
 *
 * ENGINE thread after model_open; immutable after model_load. */
#ifndef ENGINE_MODEL_H
#define ENGINE_MODEL_H

#include "base/map.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "kernels/kernels.h"

struct model_layer {
    struct kernels_weight *q, *k, *v, *o, *gate, *up, *down; /* owned */
    struct kernels_view q_bias, k_bias, v_bias;              /* buffer NULL: none */
    struct kernels_view attention_norm, ffn_norm;
    struct kernels_view q_norm, k_norm; /* of each head; buffer NULL: none */
};

struct model_shape {
    int n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
    int context; /* positions it was trained for */
    float rms_eps, attention_scale;
};

struct model {
    char *path;              /* owned */
    struct map map;          /* of the file */
    struct gguf *file;       /* owned; NULL of a directory */
    struct hf *hf;           /* owned; NULL of a file */
    const struct gguf *gguf; /* borrowed from one of them */
    char architecture[32];
    struct model_shape shape;
    struct kernels_rope rope; /* inv_freq owned */
    int64_t parameters;
    uint64_t file_bytes;  /* of the file, or of the directory's safetensors files */
    char fingerprint[20]; /* "fp_" and 16 hex digits of the header's hash */
    bool head_norms;      /* q and k have norms */
    bool tied;            /* the output layer is the embedding table */

    const struct kernels *kernels;             /* set by model_load */
    struct kernels_device *device;             /* borrowed */
    struct kernels_buffer *vectors;            /* owned: norms and biases, f32 */
    struct kernels_weight *embedding, *output; /* owned; output == embedding where tied */
    struct kernels_view output_norm;
    struct model_layer *layers; /* owned [n_layers] */
    void **decoded;             /* owned [n_decoded], each owned: what the backend reads in place */
    int n_decoded;
};

/* Maps and parses the file, reads the hyperparameters, checks that every tensor is there with its
 * shape and a known type. */
struct model *model_open(const char *path, struct err *e);
/* Upper bound of the bytes that the weights take on the device. */
size_t model_weight_bytes(const struct model *, const struct kernels *,
                          const struct kernels_device *);
/* Makes the weights on the device; `progress(arg, share)` while it goes. */
bool model_load(struct model *, const struct kernels *, struct kernels_device *,
                void (*progress)(void *arg, double share), void *arg, struct err *e);
void model_free(struct model *);

#endif
