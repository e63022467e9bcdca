#include "base/map.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "server/command.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { KEY_TEXT_BYTES = 256 };

static const char usage[] =
    "usage: firstpass inspect [MODEL] [SETTING]…\n"
    "\n"
    "Metadata and tensors of a GGUF file or a Hugging Face directory, by path or by name in\n"
    "model.dir;\n"
    "default: the model that the settings name.\n";

/* A name out of the file, fit for a terminal. */
static void print_name(const struct gguf_string *s) {
    for (uint64_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->data[i];
        if (c < 0x20 || c == 0x7F)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
}

static void print_tensors(const struct gguf *g) {
    uint64_t bytes = 0;
    double parameters = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        double elements = 1;
        printf("  ");
        print_name(&t->name);
        printf("  %s [", quant_name(t->type));
        for (int d = 0; d < t->n_dims; d++) {
            printf("%s%" PRIu64, d ? ", " : "", t->dims[d]);
            elements *= (double)t->dims[d];
        }
        printf("]  %" PRIu64 " bytes%s\n", t->bytes,
               quant_supported(t->type) ? "" : "  (type not supported)");
        bytes += t->bytes;
        parameters += elements;
    }
    printf("%" PRIu64 " tensors, %.1f million parameters, %.1f MiB\n", gguf_n_tensors(g),
           parameters / 1e6, (double)bytes / (1 << 20));
}

static void print_keys(const struct gguf *g) {
    printf("%s\n\n%" PRIu64 " keys:\n", gguf_label(g), gguf_n_keys(g));
    for (uint64_t i = 0; i < gguf_n_keys(g); i++) {
        char text[KEY_TEXT_BYTES];
        gguf_key_text(g, i, text, sizeof text);
        printf("  %s\n", text);
    }
}

static bool inspect_file(const char *path, struct err *e) {
    struct map m;
    if (!map_open(&m, path, "model file", e)) return false;
    struct gguf *g = gguf_parse(m.bytes, m.len, path, e);
    if (g) {
        print_keys(g);
        printf("\ntensors (the inner dimension first):\n");
        print_tensors(g);
    }
    gguf_free(g);
    map_close(&m);
    return g != NULL;
}

static void print_stored(const struct safetensors *s) {
    printf("\n%s (the inner dimension last):\n", safetensors_label(s));
    for (uint64_t i = 0; i < safetensors_n(s); i++) {
        const struct safetensors_tensor *t = safetensors_at(s, i);
        printf("  %s  %s [", t->name, safetensors_dtype_name(t->dtype));
        for (int d = 0; d < t->n_dims; d++)
            printf("%s%" PRIu64, d ? ", " : "", t->dims[d]);
        printf("]  %" PRIu64 " bytes\n", t->bytes);
    }
}

/* What its JSON files say in the words of a GGUF file, and the tensors as they are stored. */
static bool inspect_directory(const char *path, struct err *e) {
    struct hf *h = hf_open(path, e);
    if (!h) return false;
    double parameters = 0;
    const struct gguf *g = hf_gguf(h);
    print_keys(g);
    for (int i = 0; i < hf_n_files(h); i++)
        print_stored(hf_file(h, i));
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        parameters += (double)t->dims[0] * (double)t->dims[1];
    }
    printf("%d file%s, %.1f million parameters, %.1f MiB\n", hf_n_files(h),
           hf_n_files(h) == 1 ? "" : "s", parameters / 1e6, (double)hf_bytes(h) / (1 << 20));
    hf_free(h);
    return true;
}

int command_inspect(int argc, char **argv, const struct config *config) {
    struct err e = {0};
    struct config named = *config; /* borrows its strings */
    char model[4096];
    struct command_args a;
    command_args_init(&a, argc, argv, &e);
    int n_names = 0;
    while (command_args_next(&a)) {
        if (command_args_flag(&a, "help")) {
            fputs(usage, stdout);
            return COMMAND_PASSED;
        }
        const char *name = command_args_name(&a);
        if (!name || n_names++) {
            command_args_unknown(&a);
        } else {
            snprintf(model, sizeof model, "%s", name);
            named.model.path = model;
        }
    }
    if (a.failed) return command_failed("inspect", &e);
    char *path = config_model_path(&named);
    bool ok = hf_is_directory(path) ? inspect_directory(path, &e) : inspect_file(path, &e);
    free(path);
    if (ok) return COMMAND_PASSED;
    command_failed("inspect", &e);
    return COMMAND_USAGE;
}
