#include "engine/hf_files.h"

#include "base/buf.h"
#include "engine/hf_json.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INDEX_BYTES = 64 << 20, FILE_NAME_MAX = 255 };

static bool add_file(struct hf_files *f, const char *dir, const char *name, struct err *e) {
    struct buf path;
    buf_init(&path, 1 << 16);
    buf_printf(&path, "%s/%s", dir, name);
    f->maps = err_realloc(f->maps, (size_t)f->n + 1, sizeof *f->maps);
    f->files = err_realloc(f->files, (size_t)f->n + 1, sizeof(struct safetensors *));
    bool ok = map_open(&f->maps[f->n], buf_text(&path), "safetensors file", e);
    if (ok) {
        const struct map *m = &f->maps[f->n];
        f->files[f->n] = safetensors_parse(m->bytes, m->len, buf_text(&path), e);
        ok = f->files[f->n++] != NULL;
    }
    buf_clear(&path);
    return ok;
}

/* What to do where there is nothing to read. */
static bool no_weights(const char *dir, struct err *e) {
    const char *other = "";
    DIR *d = opendir(dir);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        size_t len = strlen(entry->d_name);
        if (len > 4 && !strcmp(entry->d_name + len - 4, ".bin"))
            other = "; pickled weights (.bin) are not read, since they can hold any program: "
                    "save them as safetensors";
        if (len > 5 && !strcmp(entry->d_name + len - 5, ".gguf"))
            other = "; there are GGUF files in it: name one of them as the model";
    }
    if (d) closedir(d);
    return err_set(e, ERR_INPUT,
                   "%s has neither model.safetensors nor model.safetensors.index.json%s", dir,
                   other);
}

/* A file of the directory itself: the index of a stranger must not lead elsewhere. */
static bool plain_name(const char *name) {
    return name && *name && *name != '.' && !strchr(name, '/') && strlen(name) <= FILE_NAME_MAX;
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Each file once, in the order of their names. */
static bool add_indexed(struct hf_files *f, const char *dir, const struct hf_json *index,
                        struct err *e) {
    const json_t *map = hf_json_get(index->root, "weight_map");
    size_t n = json_object_size(map), at = 0;
    if (!n) return err_set(e, ERR_INPUT, "%s: weight_map is missing or empty", index->path);
    const char **names = err_alloc(n, sizeof *names), *tensor;
    json_t *value;
    bool ok = true;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value) {
        names[at] = json_string_value(value);
        if (ok && !plain_name(names[at]))
            ok = err_set(e, ERR_INPUT, "%s: tensor %.80s is said to be in no file beside it",
                         index->path, tensor);
        at++;
    }
    if (ok) qsort(names, n, sizeof *names, compare_texts);
    for (size_t i = 0; ok && i < n; i++) {
        if (i && !strcmp(names[i], names[i - 1])) continue;
        ok = f->n < HF_FILES_MAX ? add_file(f, dir, names[i], e)
                                 : err_set(e, ERR_INPUT, "%s: it names more than %d files",
                                           index->path, HF_FILES_MAX);
    }
    free(names);
    return ok;
}

static bool check_indexed(const struct hf_files *f, const struct hf_json *index, struct err *e) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)hf_json_get(index->root, "weight_map"), name, value) {
        bool there = false;
        for (int i = 0; i < f->n && !there; i++) {
            const char *slash = strrchr(safetensors_label(f->files[i]), '/');
            there = slash && !strcmp(slash + 1, json_string_value(value)) &&
                    safetensors_find(f->files[i], name);
        }
        if (!there)
            return err_set(e, ERR_INPUT,
                           "%s: tensor %.80s is not in %.80s, where it should be: fetch both again",
                           index->path, name, json_string_value(value));
    }
    return true;
}

static bool check_twice(const struct hf_files *f, struct err *e) {
    for (int i = 1; i < f->n; i++)
        for (uint64_t t = 0; t < safetensors_n(f->files[i]); t++)
            for (int k = 0; k < i; k++) {
                const char *name = safetensors_at(f->files[i], t)->name;
                if (safetensors_find(f->files[k], name))
                    return err_set(e, ERR_INPUT, "tensor %.80s is in %s and in %s", name,
                                   safetensors_label(f->files[k]), safetensors_label(f->files[i]));
            }
    return true;
}

bool hf_files_open(struct hf_files *f, const char *dir, struct err *e) {
    static const char single[] = "model.safetensors";
    *f = (struct hf_files){0};
    struct hf_json index;
    struct buf path;
    buf_init(&path, 1 << 16);
    buf_printf(&path, "%s/%s", dir, single);
    bool ok = hf_json_open(&index, dir, "model.safetensors.index.json", INDEX_BYTES, false, e);
    if (ok && index.root)
        ok = add_indexed(f, dir, &index, e) && check_indexed(f, &index, e) && check_twice(f, e);
    else if (ok)
        ok = access(buf_text(&path), F_OK) ? no_weights(dir, e) : add_file(f, dir, single, e);
    hf_json_close(&index);
    buf_clear(&path);
    return ok;
}

void hf_files_close(struct hf_files *f) {
    for (int i = 0; i < f->n; i++) {
        safetensors_free(f->files[i]);
        map_close(&f->maps[i]);
    }
    free(f->files);
    free(f->maps);
    *f = (struct hf_files){0};
}

const struct safetensors_tensor *hf_files_find(const struct hf_files *f, const char *name) {
    for (int i = 0; i < f->n; i++) {
        const struct safetensors_tensor *t = safetensors_find(f->files[i], name);
        if (t) return t;
    }
    return NULL;
}
