#include "engine/gguf.h"
#include "server/command.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY_TEXT_BYTES = 256 };

static const char usage[] =
    "usage: firstpass inspect [MODEL] [SETTING]…\n"
    "\n"
    "Metadata and tensors of a GGUF file, by path or by name in model.dir;\n"
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

static void print_file(const struct gguf *g) {
    printf("%s\n\n%" PRIu64 " keys:\n", gguf_label(g), gguf_n_keys(g));
    for (uint64_t i = 0; i < gguf_n_keys(g); i++) {
        char text[KEY_TEXT_BYTES];
        gguf_key_text(g, i, text, sizeof text);
        printf("  %s\n", text);
    }
    printf("\ntensors (the inner dimension first):\n");
    print_tensors(g);
}

static bool inspect(const char *path, struct err *e) {
    struct stat status;
    struct gguf *g = NULL;
    void *bytes = MAP_FAILED;
    size_t len = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status)) {
        err_errno(e, errno, "%s", path);
        goto done;
    }
    if (!S_ISREG(status.st_mode) || status.st_size <= 0) {
        err_set(e, ERR_INPUT, "%s is no GGUF file", path);
        goto done;
    }
    len = (size_t)status.st_size;
    bytes = mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
        err_errno(e, errno, "%s can't be mapped", path);
        goto done;
    }
    g = gguf_parse(bytes, len, path, e);
    if (g) print_file(g);
done:
    gguf_free(g);
    if (bytes != MAP_FAILED) munmap(bytes, len);
    if (fd >= 0) close(fd);
    return g != NULL;
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
    bool ok = inspect(path, &e);
    free(path);
    if (ok) return COMMAND_PASSED;
    command_failed("inspect", &e);
    return COMMAND_USAGE;
}
