#include "kernels/cuda/cuda.h"

#include "config/limits.h"
#include "kernels/cuda/draws.h"
#include "kernels/cuda/forward.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const isa_names[] = {"bf16", "invariant", NULL};

/* ---- device ---- */

static bool knows(const char *isa) {
    for (const char *const *name = isa_names; *name; name++)
        if (!strcmp(*name, isa)) return true;
    return !strcmp(isa, "auto");
}

static void device_close(struct kernels_device *dev) {
    if (!dev) return;
    BUG_ON(dev->kv);
    if (dev->gpu) {
        (void)weights_end_load(dev, NULL);
        state_free_scratch(dev);
    }
    gemm_close(dev->gemm);
    gpu_close(dev->gpu);
    free(dev);
}

/* fp8 products are there from compute capability 8.9 on. */
static bool choose_weights(struct kernels_device *dev, const struct kernels_options *o,
                           struct err *e) {
    const char *wanted = o->weights ? o->weights : "auto";
    const struct gpu_info *i = &dev->info;
    dev->n_vocab = o->n_vocab;
    bool can = 10 * i->major + i->minor >= 89;
    dev->fp8 = !strcmp(wanted, "fp8") || (!strcmp(wanted, "auto") && o->file_fp8 && can);
    if (!dev->fp8 && strcmp(wanted, "bf16") && strcmp(wanted, "auto"))
        return err_param(e, "engine.weights",
                         "the cuda backend has no weights \"%s\"; it has: auto, bf16, fp8", wanted);
    if (dev->fp8 && !can)
        return err_param(e, "engine.weights",
                         "engine.weights is fp8, which wants compute capability 8.9 (Ada, Hopper) "
                         "or later; %s has %d.%d: use bf16",
                         i->name, i->major, i->minor);
    return true;
}

/* fp8 keys and values are codes for the kernels, which need no instructions of their own. */
static bool choose_kv(struct kernels_device *dev, const struct kernels_options *o, struct err *e) {
    const char *wanted = o->kv ? o->kv : "auto";
    dev->kv_fp8 = !strcmp(wanted, "fp8");
    return dev->kv_fp8 || !strcmp(wanted, "bf16") || !strcmp(wanted, "auto") ||
           err_param(e, "engine.kv",
                     "the cuda backend has no keys and values in \"%s\"; it has: auto, bf16, fp8",
                     wanted);
}

static bool device_open(const struct kernels_options *o, struct kernels_device **out,
                        struct err *e) {
    if (!knows(o->isa))
        return err_param(e, "engine.isa",
                         "the cuda backend has no isa \"%s\"; it has: auto, bf16, invariant",
                         o->isa);
    struct kernels_device *dev = err_alloc(1, sizeof *dev);
    struct gemm_options products = {.invariant = !strcmp(o->isa, "invariant")};
    bool ok =
        gpu_open(&dev->gpu, &dev->info, e) && choose_weights(dev, o, e) && choose_kv(dev, o, e);
    products.fp8 = dev->fp8;
    if (!ok || !(dev->gemm = gemm_open(dev->gpu, &products, e))) {
        device_close(dev);
        return false;
    }
    dev->graphs = !o->no_graphs;
    snprintf(dev->description, sizeof dev->description,
             "%s (compute capability %d.%d), %s%s%s, products by %s%s", dev->info.name,
             dev->info.major, dev->info.minor, dev->fp8 ? "fp8 layers, the rest bf16" : "bf16",
             dev->kv_fp8 ? ", keys and values fp8" : "", products.invariant ? ", invariant" : "",
             gemm_name(dev->gemm), dev->graphs ? "" : ", no graphs");
    *out = dev;
    return true;
}

static const char *describe(const struct kernels_device *dev) { return dev->description; }

static size_t memory_free(const struct kernels_device *dev) { return gpu_free_bytes(dev->gpu); }

static void profile(const struct kernels_device *dev, struct kernels_profile *out) {
    *out = dev->profile;
}

/* ---- memory ---- */

static struct kernels_buffer *buffer_new(struct kernels_device *dev, size_t bytes, struct err *e) {
    uint8_t *data = gpu_alloc(dev->gpu, bytes, "a buffer", e);
    if (!data) return NULL;
    struct kernels_buffer *b = err_alloc(1, sizeof *b);
    *b = (struct kernels_buffer){.data = data, .bytes = bytes};
    return b;
}

static void buffer_free(struct kernels_device *dev, struct kernels_buffer *b) {
    if (!b) return;
    gpu_release(dev->gpu, b->data);
    free(b);
}

static void check_view(struct kernels_view v, size_t bytes) {
    BUG_ON(v.offset > v.buffer->bytes || bytes > v.buffer->bytes - v.offset);
}

static void upload(struct kernels_device *dev, struct kernels_view to, const void *from,
                   size_t bytes) {
    check_view(to, bytes);
    gpu_put(dev->gpu, state_pointer(to), from, bytes);
}

static bool download(struct kernels_device *dev, void *to, struct kernels_view from, size_t bytes,
                     struct err *e) {
    check_view(from, bytes);
    gpu_get(dev->gpu, to, state_pointer(from), bytes);
    return state_wait(dev, e);
}

/* ---- KV cache ---- */

static size_t kv_bytes_per_block(const struct kernels_device *dev, int n_kv_heads, int head_dim) {
    return (size_t)n_kv_heads * launch_page_bytes(head_dim, dev->kv_fp8);
}

static bool kv_open(struct kernels_device *dev, const struct kernels_kv_shape *s, struct err *e) {
    BUG_ON(dev->kv);
    if (s->n_layers < 1 || s->n_kv_heads < 1 || s->n_blocks < 1)
        return err_set(e, ERR_INPUT, "a KV cache of %d layers, %d heads and %d blocks can't be had",
                       s->n_layers, s->n_kv_heads, s->n_blocks);
    if (!launch_has_head_dim(s->head_dim))
        return err_set(e, ERR_INPUT,
                       "the model's heads have %d dimensions; the cuda backend has kernels for 64 "
                       "and 128: use --backend cpu",
                       s->head_dim);
    if (!weights_end_load(dev, e)) return false; /* the cache takes what is left */
    dev->kv_block_bytes = kv_bytes_per_block(dev, s->n_kv_heads, s->head_dim);
    dev->kv_layer_bytes = (size_t)s->n_blocks * dev->kv_block_bytes;
    dev->kv = gpu_alloc(dev->gpu, dev->kv_layer_bytes * (size_t)s->n_layers, "the KV cache", e);
    dev->kv_shape = *s;
    return dev->kv != NULL;
}

static void kv_close(struct kernels_device *dev) {
    if (dev->kv) gpu_wait(dev->gpu, NULL);
    gpu_release(dev->gpu, dev->kv);
    dev->kv = NULL;
}

static bool reserve_rows(struct kernels_device *dev, const struct kernels_step_shape *s,
                         struct err *e) {
    if (s->n_rows < 1 || s->n_rows > LIMIT_ROWS || s->max_cols < 1 || s->n_heads < 1 ||
        s->head_dim < 2 || s->n_vocab < 1)
        return err_set(e, ERR_INPUT, "steps of %d rows can't be had; 1 to %d can", s->n_rows,
                       LIMIT_ROWS);
    int kv = dev->kv_shape.n_kv_heads;
    if (dev->kv && (s->n_heads % kv || s->n_heads / kv > LAUNCH_WARP_ROWS))
        return err_set(e, ERR_INPUT,
                       "the model has %d query heads for %d KV heads; the cuda backend takes up to "
                       "%d for one: use --backend cpu",
                       s->n_heads, kv, LAUNCH_WARP_ROWS);
    return state_reserve(dev, s, e);
}

static const struct kernels table = {
    .name = "cuda",
    .logit_rows = 1024,
    .overlaps = true,
    .isas = isa_names,
    .device_open = device_open,
    .device_close = device_close,
    .describe = describe,
    .memory_free = memory_free,
    .profile = profile,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .upload = upload,
    .download = download,
    .sync = state_wait,
    .weight_new = weights_new,
    .weight_free = weights_free,
    .weight_bytes = weights_bytes,
    .weight_bytes_needed = weights_bytes_needed,
    .keeps_data = weights_keeps_data,
    .kv_bytes_per_block = kv_bytes_per_block,
    .kv_open = kv_open,
    .kv_close = kv_close,
    .kv_copy_block = forward_kv_copy_block,
    .batch_begin = forward_batch_begin,
    .batch_end = forward_batch_end,
    .scratch_bytes = state_scratch_bytes,
    .reserve_rows = reserve_rows,
    .embed = forward_embed,
    .rms_norm = forward_rms_norm,
    .matmul = forward_matmul,
    .head_norms = forward_head_norms,
    .rope_append = forward_rope_append,
    .attention = forward_attention,
    .swiglu = forward_swiglu,
    .gather_logit_rows = forward_gather_logit_rows,
    .output = forward_output,
    .sample = draws_sample,
    .drawn = draws_drawn,
    .can_follow = draws_can_follow,
};

const struct kernels *cuda_kernels(void) { return &table; }
