/* The safetensors files of a Hugging Face directory: those that model.safetensors.index.json names,
 * or model.safetensors alone.
 *
 * Embedded: open / close.  Immutable after hf_files_open: any thread. */
#ifndef ENGINE_HF_FILES_H
#define ENGINE_HF_FILES_H

#include "base/map.h"
#include "engine/safetensors.h"

enum { HF_FILES_MAX = 1024 };

struct hf_files {
    int n;
    struct map *maps;           /* owned [n] */
    struct safetensors **files; /* owned [n] */
};

/* Checks that each file has what the index says of it, and that no two have the same tensor. */
bool hf_files_open(struct hf_files *, const char *dir, struct err *e) MUST_CHECK;
void hf_files_close(struct hf_files *);
/* NULL where there is none of the name. */
const struct safetensors_tensor *hf_files_find(const struct hf_files *, const char *name);

#endif
