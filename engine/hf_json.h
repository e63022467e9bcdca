/* A JSON file of a Hugging Face directory: read with a size cap, values checked where they are
 * taken.  Messages name file and key.
 *
 * Embedded: open / close.  Any thread; owned by its holder. */
#ifndef ENGINE_HF_JSON_H
#define ENGINE_HF_JSON_H

#include "base/err.h"

#include <jansson.h>
#include <stdint.h>

struct hf_json {
    char *path;   /* owned */
    json_t *root; /* owned object; NULL: the file isn't there */
};

/* DIR/NAME, whose top must be an object.  Where there is no such file: done, root NULL, unless
 * `required`. */
bool hf_json_open(struct hf_json *, const char *dir, const char *name, size_t max_bytes,
                  bool required, struct err *e) MUST_CHECK;
void hf_json_close(struct hf_json *);

/* The value of a key of `object` (NULL where it is missing or null); keys of nested objects are
 * looked up in those. */
const json_t *hf_json_get(const json_t *object, const char *key);
/* Integers from `least` to `most`; `fallback` where the key is missing or null (below `least`: it
 * must be there). */
bool hf_json_int(const struct hf_json *, const json_t *object, const char *key, int64_t least,
                 int64_t most, int64_t fallback, int64_t *out, struct err *e) MUST_CHECK;
/* A number above 0; `fallback` 0: it must be there. */
bool hf_json_number(const struct hf_json *, const json_t *object, const char *key, double fallback,
                    double *out, struct err *e) MUST_CHECK;
bool hf_json_bool(const struct hf_json *, const json_t *object, const char *key, bool fallback,
                  bool *out, struct err *e) MUST_CHECK;
/* NULL where missing or null; borrowed. */
bool hf_json_text(const struct hf_json *, const json_t *object, const char *key, const char **out,
                  struct err *e) MUST_CHECK;

#endif
