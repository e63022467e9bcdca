#include "engine/hf.h"

#include "engine/hf_tokenizer.h"
#include "engine/hf_weights.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { METADATA_BYTES = 256 << 20, DECODERS_MAX = 16, ROWS_PER_DECODER = 256 };

struct hf {
    struct metadata metadata;
    struct hf_config config;
    struct hf_files files;
    struct hf_weights weights;
    struct gguf *gguf; /* owned; borrows all of the above */
    uint64_t hash;
};

bool hf_is_directory(const char *path) {
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

/* ---- opening ---- */

static uint64_t hash_bytes(uint64_t h, const void *bytes, uint64_t n) {
    const unsigned char *p = bytes;
    for (uint64_t i = 0; i < n; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001B3); /* FNV-1a */
    return h;
}

/* The metadata and the files' headers; the weights themselves would take too long. */
static uint64_t hash(const struct hf *h, const void *bytes, uint64_t len) {
    uint64_t sum = hash_bytes(UINT64_C(0xCBF29CE484222325), bytes, len);
    for (int i = 0; i < h->files.n; i++) {
        const struct map *m = &h->files.maps[i];
        uint64_t header;
        memcpy(&header, m->bytes, sizeof header);
        sum = hash_bytes(sum, m->bytes, sizeof header + header) ^ m->len;
    }
    return sum;
}

static bool open_all(struct hf *h, const char *dir, struct err *e) {
    const void *bytes;
    uint64_t len;
    if (!hf_config_read(&h->config, dir, &h->metadata, e) ||
        !hf_tokenizer_read(dir, &h->config, &h->metadata, e) || !hf_files_open(&h->files, dir, e) ||
        !hf_weights_bind(&h->weights, dir, &h->config, &h->files, e))
        return false;
    if (!metadata_finish(&h->metadata, &bytes, &len))
        return err_set(e, ERR_INPUT, "%s: its JSON files hold more than %d bytes", dir,
                       METADATA_BYTES);
    h->gguf = gguf_parse(bytes, len, dir, e);
    if (!h->gguf || !gguf_add_tensors(h->gguf, h->weights.tensors, h->weights.n, e)) return false;
    h->hash = hash(h, bytes, len);
    return true;
}

struct hf *hf_open(const char *dir, struct err *e) {
    struct hf *h = err_alloc(1, sizeof *h);
    metadata_init(&h->metadata, METADATA_BYTES);
    if (open_all(h, dir, e)) return h;
    hf_free(h);
    return NULL;
}

void hf_free(struct hf *h) {
    if (!h) return;
    gguf_free(h->gguf);
    hf_weights_clear(&h->weights);
    hf_files_close(&h->files);
    hf_config_clear(&h->config);
    metadata_clear(&h->metadata);
    free(h);
}

const struct gguf *hf_gguf(const struct hf *h) { return h->gguf; }

uint64_t hf_hash(const struct hf *h) { return h->hash; }

bool hf_is_fp8(const struct hf *h) {
    for (uint64_t i = 0; i < h->weights.n; i++)
        if (h->weights.sources[i].scale) return true;
    return false;
}

uint64_t hf_bytes(const struct hf *h) {
    uint64_t sum = 0;
    for (int i = 0; i < h->files.n; i++)
        sum += h->files.maps[i].len;
    return sum;
}

int hf_n_files(const struct hf *h) { return h->files.n; }

const struct safetensors *hf_file(const struct hf *h, int i) { return h->files.files[i]; }

/* ---- decoding ---- */

struct decoder {
    pthread_t thread;
    bool started;
    const struct hf_weights_source *source;
    int first, n;
    uint16_t *out;
};

static void *decode_rows(void *arg) {
    const struct decoder *d = arg;
    hf_weights_decode(d->source, d->first, d->n, d->out);
    return NULL;
}

/* Rows shared out to a thread a core; where none can be had, the caller's own does their part. */
void hf_decode(const struct hf *h, const struct gguf_tensor *t, void *out) {
    const struct hf_weights_source *s = &h->weights.sources[t - gguf_tensor_at(h->gguf, 0)];
    BUG_ON(t->data || !s->scale);
    int rows = (int)t->dims[1], n = rows / ROWS_PER_DECODER + 1;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (n > cores) n = cores > 0 ? (int)cores : 1;
    if (n > DECODERS_MAX) n = DECODERS_MAX;
    struct decoder decoders[DECODERS_MAX];
    for (int i = 0; i < n; i++) {
        struct decoder *d = &decoders[i];
        int first = (int)((int64_t)rows * i / n), end = (int)((int64_t)rows * (i + 1) / n);
        *d = (struct decoder){.source = s,
                              .first = first,
                              .n = end - first,
                              .out = (uint16_t *)out + (size_t)first * (size_t)t->dims[0]};
        d->started = i + 1 < n && !pthread_create(&d->thread, NULL, decode_rows, d);
        if (!d->started) decode_rows(d);
    }
    for (int i = 0; i < n; i++)
        if (decoders[i].started) pthread_join(decoders[i].thread, NULL);
}
