/* The real models that tests/model reads: in models/ or $FIRSTPASS_MODELS. */
#ifndef TESTS_MODEL_MODELS_H
#define TESTS_MODEL_MODELS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODELS_SMOLLM2 "smollm2-135m-instruct-q4_1"
#define MODELS_QWEN "qwen2.5-coder-0.5b-instruct-q4_k_m"

static inline void models_path(char *out, size_t size, const char *name) {
    const char *dir = getenv("FIRSTPASS_MODELS");
    snprintf(out, size, "%s/%s.gguf", dir && *dir ? dir : "models", name);
}

/* Says so where it is missing. */
static inline bool models_have(const char *name) {
    char path[512];
    models_path(path, sizeof path, name);
    if (!access(path, R_OK)) return true;
    printf("skipped: %s is not there; run config/fetch-model %s\n", path, name);
    return false;
}

/* Whether their absence is a failure. */
static inline bool models_must(void) {
    const char *list = getenv("FIRSTPASS_MUST");
    return list && strstr(list, "model");
}

#endif
