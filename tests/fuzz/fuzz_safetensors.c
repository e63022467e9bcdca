/* Any bytes as a safetensors file: parsed, every tensor found by its name and read to its end. */
#include "engine/safetensors.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err e;
    struct safetensors *s = safetensors_parse(data, size, "fuzz", &e);
    if (!s) {
        BUG_ON(e.kind != ERR_INPUT || !e.message[0]);
        return 0;
    }
    uint64_t bytes = 0;
    volatile uint8_t sum = 0;
    for (uint64_t i = 0; i < safetensors_n(s); i++) {
        const struct safetensors_tensor *t = safetensors_at(s, i);
        const uint8_t *at = t->data;
        BUG_ON(safetensors_find(s, t->name) != t);
        BUG_ON(at < data || at > data + size || t->bytes > (uint64_t)(data + size - at));
        for (uint64_t k = 0; k < t->bytes; k++)
            sum = (uint8_t)(sum + at[k]);
        bytes += t->bytes;
    }
    BUG_ON(bytes > size);
    safetensors_free(s);
    return 0;
}
