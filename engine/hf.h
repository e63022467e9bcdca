/* A Hugging Face directory as the engine reads models: config.json and tokenizer.json as a GGUF
 * file's metadata, the safetensors files' tensors under the names that GGUF files have.
 *
 * So there is one way to bind, check and load a model, whatever it came from; what a directory has
 * that a GGUF file hasn't is here.  Rows of q and k stay as they are, for rotary pairs (i, i +
 * n_rot/2): the key ARCH.rope.half_split says so.
 *
 * Files are mapped, not read.  Tensors of BF16, F16 and F32 are borrowed from the mapping; fp8
 * (E4M3) ones have no data of their own and become F16 by hf_decode(), times their scales: one
 * for the tensor, for each row, or for each block of rows and columns.
 *
 * Immutable after hf_open: any thread. */
#ifndef ENGINE_HF_H
#define ENGINE_HF_H

#include "engine/gguf.h"
#include "engine/safetensors.h"

struct hf; /* owned by the caller of hf_open */

struct hf *hf_open(const char *dir, struct err *e);
void hf_free(struct hf *);

/* Whether a path is a directory, to be opened as one. */
bool hf_is_directory(const char *path);

const struct gguf *hf_gguf(const struct hf *); /* borrowed */
/* What names the files' contents: hyperparameters, tokens, the names and places of tensors. */
uint64_t hf_hash(const struct hf *);

/* The values of a tensor of hf_gguf() that has no data: t->bytes of F16 into `out`. */
void hf_decode(const struct hf *, const struct gguf_tensor *t, void *out);

/* Whether weights are fp8. */
bool hf_is_fp8(const struct hf *);
uint64_t hf_bytes(const struct hf *); /* of the safetensors files together */

/* The files, for `inspect`. */
int hf_n_files(const struct hf *);
const struct safetensors *hf_file(const struct hf *, int i);

#endif
