#include "kernels/cpu/cpu.h"

#include "config/limits.h"
#include "kernels/check.h"
#include "kernels/cpu/ceiling.h"
#include "kernels/cpu/operations.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- device ---- */

static void device_close(struct kernels_device *dev) {
    if (!dev) return;
    if (dev->scratch) device_free_scratch(dev);
    BUG_ON(dev->kv.data);
    threads_free(dev->threads);
    free(dev);
}

static bool device_open(const struct kernels_options *o, struct kernels_device **out,
                        struct err *e) {
    struct isa isa;
    if (!isa_choose(o->isa, &isa, e)) return false;
    if (o->weights && strcmp(o->weights, "auto"))
        return err_param(e, "engine.weights",
                         "engine.weights is \"%s\", but the cpu backend packs weights as the file "
                         "has them: use auto, or --backend cuda",
                         o->weights);
    if (o->kv && strcmp(o->kv, "auto"))
        return err_param(e, "engine.kv",
                         "engine.kv is \"%s\", but the cpu backend keeps keys and values in a type "
                         "of its own: use auto, or --backend cuda",
                         o->kv);
    if (o->n_threads < 0 || o->n_threads > LIMIT_THREADS)
        return err_set(e, ERR_INPUT, "%d compute threads; 0 (one for each core) to %d can be had",
                       o->n_threads, LIMIT_THREADS);
    int n = o->n_threads ? o->n_threads : threads_processors();
    struct kernels_device *dev = err_alloc(1, sizeof *dev);
    dev->isa = isa;
    dev->threads = threads_new(n < LIMIT_THREADS ? n : LIMIT_THREADS, e);
    if (!dev->threads) {
        free(dev);
        return false;
    }
    n = threads_count(dev->threads);
    snprintf(dev->description, sizeof dev->description, "%s, %d thread%s", isa.name, n,
             n == 1 ? "" : "s");
    *out = dev;
    return true;
}

static const char *describe(const struct kernels_device *dev) { return dev->description; }

/* MemAvailable of /proc/meminfo: what can be had without swapping. */
static size_t memory_free(const struct kernels_device *dev) {
    (void)dev;
    unsigned long long kib = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "MemAvailable:", 13)) kib = strtoull(line + 13, NULL, 10);
    if (f) fclose(f);
    if (kib) return (size_t)kib * 1024;
    long pages = sysconf(_SC_AVPHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (size_t)pages * (size_t)size : 0;
}

static void profile(const struct kernels_device *dev, struct kernels_profile *out) {
    *out = dev->profile;
}

/* ---- memory ---- */

static void *map(size_t bytes, const char *what, struct err *e) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED) {
        madvise(p, bytes, MADV_HUGEPAGE); /* advice: the kernel may lack it */
        return p;
    }
    err_errno(e, errno, "no memory for %zu bytes of %s", bytes, what);
    return NULL;
}

static struct kernels_buffer *buffer_new(struct kernels_device *dev, size_t bytes, struct err *e) {
    (void)dev;
    uint8_t *data = map(bytes ? bytes : 1, "a buffer", e);
    if (!data) return NULL;
    struct kernels_buffer *b = err_alloc(1, sizeof *b);
    *b = (struct kernels_buffer){.data = data, .bytes = bytes ? bytes : 1};
    return b;
}

static void buffer_free(struct kernels_device *dev, struct kernels_buffer *b) {
    (void)dev;
    if (!b) return;
    munmap(b->data, b->bytes);
    free(b);
}

static void check_view(struct kernels_view v, size_t bytes) {
    BUG_ON(v.offset > v.buffer->bytes || bytes > v.buffer->bytes - v.offset);
}

static void upload(struct kernels_device *dev, struct kernels_view to, const void *from,
                   size_t bytes) {
    (void)dev;
    check_view(to, bytes);
    if (bytes) memcpy(to.buffer->data + to.offset, from, bytes);
}

static bool download(struct kernels_device *dev, void *to, struct kernels_view from, size_t bytes,
                     struct err *e) {
    (void)dev;
    (void)e;
    check_view(from, bytes);
    if (bytes) memcpy(to, from.buffer->data + from.offset, bytes);
    return true;
}

static bool sync_all(struct kernels_device *dev, struct err *e) {
    (void)dev;
    (void)e;
    return true;
}

/* ---- weights ---- */

struct pack_job {
    struct pack *pack;
    const void *source;
};

static void pack_some(void *arg, int thread, int begin, int end) {
    struct pack_job *j = arg;
    (void)thread;
    pack_panels(j->pack, j->source, begin, end);
}

static void weight_free(struct kernels_device *dev, struct kernels_weight *w) {
    (void)dev;
    if (!w) return;
    pack_clear(&w->pack);
    free(w);
}

static struct kernels_weight *weight_new(struct kernels_device *dev, enum quant_type type,
                                         int n_rows, int n_cols, const void *data, struct err *e) {
    if (!check_weight(type, n_rows, n_cols, e)) return NULL;
    struct kernels_weight *w = err_alloc(1, sizeof *w);
    pack_init(&w->pack, type, n_rows, n_cols, dev->isa.unsigned8);
    if (dev->isa.is_reference) {
        w->source = data;
        return w;
    }
    if (!pack_alloc(&w->pack, e)) {
        free(w);
        return NULL;
    }
    struct pack_job j = {.pack = &w->pack, .source = data};
    threads_run(dev->threads, pack_some, &j, w->pack.n_panels, 4);
    return w;
}

static size_t weight_bytes(const struct kernels_weight *w) {
    return w->source ? 0 : pack_bytes(&w->pack);
}

static size_t weight_bytes_needed(const struct kernels_device *dev, enum quant_type type,
                                  int n_rows, int n_cols) {
    struct pack p;
    pack_init(&p, type, n_rows, n_cols, dev->isa.unsigned8);
    return dev->isa.is_reference ? 0 : pack_bytes(&p);
}

static bool keeps_data(const struct kernels_device *dev, enum quant_type type) {
    (void)type;
    return dev->isa.is_reference;
}

/* ---- KV cache ---- */

static struct vector_kv kv_layout(int n_kv_heads, int head_dim) {
    int stride = (head_dim + 15) / 16 * 16;
    size_t head_bytes = (size_t)KERNELS_BLOCK * (size_t)(head_dim + stride) * sizeof(uint16_t);
    return (struct vector_kv){.n_kv_heads = n_kv_heads,
                              .head_dim = head_dim,
                              .value_stride = stride,
                              .head_bytes = (head_bytes + 63) / 64 * 64};
}

static size_t kv_bytes_per_block(const struct kernels_device *dev, int n_kv_heads, int head_dim) {
    (void)dev;
    return (size_t)n_kv_heads * kv_layout(n_kv_heads, head_dim).head_bytes;
}

static bool kv_open(struct kernels_device *dev, const struct kernels_kv_shape *s, struct err *e) {
    BUG_ON(dev->kv.data);
    if (s->n_layers < 1 || s->n_kv_heads < 1 || s->n_blocks < 1 || s->head_dim < 2 ||
        s->head_dim % 2 || s->head_dim > 512)
        return err_set(e, ERR_INPUT,
                       "a KV cache of %d layers, %d heads of %d and %d blocks can't be had",
                       s->n_layers, s->n_kv_heads, s->head_dim, s->n_blocks);
    struct vector_kv kv = kv_layout(s->n_kv_heads, s->head_dim);
    size_t layer = (size_t)s->n_blocks * kv_bytes_per_block(dev, s->n_kv_heads, s->head_dim);
    kv.data = map(layer * (size_t)s->n_layers, "the KV cache", e);
    if (!kv.data) return false;
    dev->kv = kv;
    dev->kv_shape = *s;
    dev->kv_layer_bytes = layer;
    return true;
}

static void kv_close(struct kernels_device *dev) {
    if (dev->kv.data) munmap(dev->kv.data, dev->kv_layer_bytes * (size_t)dev->kv_shape.n_layers);
    dev->kv.data = NULL;
}

/* Whole blocks: what lies beyond n_positions is never read. */
static void kv_copy_block(struct kernels_device *dev, int to, int from, int n_positions) {
    BUG_ON(n_positions < 0 || n_positions > KERNELS_BLOCK);
    device_copy_block(dev, to, from);
}

/* ---- scratch ---- */

static bool reserve_rows(struct kernels_device *dev, const struct kernels_step_shape *s,
                         struct err *e) {
    if (s->n_rows < 1 || s->n_rows > LIMIT_ROWS || s->max_cols < 1 || s->n_heads < 1 ||
        s->head_dim < 2 || s->n_vocab < 1)
        return err_set(e, ERR_INPUT, "steps of %d rows can't be had; 1 to %d can", s->n_rows,
                       LIMIT_ROWS);
    device_reserve(dev, s);
    return true;
}

static const struct kernels table = {
    .name = "cpu",
    .logit_rows = 128,
    .isas = isa_names,
    .device_open = device_open,
    .device_close = device_close,
    .describe = describe,
    .memory_free = memory_free,
    .profile = profile,
    .ceiling = ceiling_measure,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .upload = upload,
    .download = download,
    .sync = sync_all,
    .weight_new = weight_new,
    .weight_free = weight_free,
    .weight_bytes = weight_bytes,
    .weight_bytes_needed = weight_bytes_needed,
    .keeps_data = keeps_data,
    .kv_bytes_per_block = kv_bytes_per_block,
    .kv_open = kv_open,
    .kv_close = kv_close,
    .kv_copy_block = kv_copy_block,
    .batch_begin = operations_batch_begin,
    .batch_end = operations_batch_end,
    .scratch_bytes = device_scratch_bytes,
    .reserve_rows = reserve_rows,
    .embed = operations_embed,
    .rms_norm = operations_rms_norm,
    .matmul = operations_matmul,
    .head_norms = operations_head_norms,
    .rope_append = operations_rope_append,
    .attention = operations_attention,
    .swiglu = operations_swiglu,
    .gather_logit_rows = operations_gather_logit_rows,
    .output = operations_output,
    .sample = operations_sample,
    .drawn = operations_drawn,
    .can_follow = operations_can_follow,
};

const struct kernels *cpu_kernels(void) { return &table; }
