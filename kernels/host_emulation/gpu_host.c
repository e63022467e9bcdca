/* kernels/cuda/gpu.h over the host's own memory: launches run at once, fresh memory is NaN. */
#include "kernels/cuda/gpu.h"

#include "kernels/host_emulation/gpu_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node {
    struct node *next; /* owned */
    const char *name;
    struct emulate_dim grid, block;
    size_t shared_bytes;
    void (*body)(void *arg);
    void *arg; /* owned */
    void (*drop)(void *arg);
};

struct gpu_graph {
    struct node *first, **end; /* owned list */
};

/* Device memory that was given out. */
struct piece {
    struct piece *next; /* owned */
    void *at;           /* owned */
    size_t bytes;
};

struct gpu {
    struct gpu_graph *recording; /* owned; NULL: launches run */
    struct piece *pieces;        /* owned */
    size_t taken;
    int allocations;
    bool failed;
};

static size_t memory_bytes = (size_t)1 << 30;
static int capability_major = 9, capability_minor = 0;

void gpu_host_memory(size_t bytes) { memory_bytes = bytes; }

void gpu_host_capability(int major, int minor) {
    capability_major = major;
    capability_minor = minor;
}

bool gpu_open(struct gpu **out, struct gpu_info *info, struct err *e) {
    (void)e;
    *info = (struct gpu_info){.major = capability_major,
                              .minor = capability_minor,
                              .n_processors = 132,
                              .shared_bytes = 227 * 1024};
    snprintf(info->name, sizeof info->name, "emulated on the host");
    *out = err_alloc(1, sizeof **out);
    return true;
}

void gpu_close(struct gpu *g) {
    if (!g) return;
    BUG_ON(g->pieces != NULL); /* memory that nobody released */
    free(g);
}

size_t gpu_free_bytes(const struct gpu *g) { return memory_bytes - g->taken; }

int gpu_allocations(const struct gpu *g) { return g->allocations; }

static void *alloc_poisoned(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, 256, bytes ? bytes : 1)) return NULL;
    memset(p, 0xff, bytes);
    return p;
}

void *gpu_alloc(struct gpu *g, size_t bytes, const char *what, struct err *e) {
    void *p = NULL;
    g->allocations++;
    if (bytes > memory_bytes - g->taken || !(p = alloc_poisoned(bytes))) {
        err_set(e, ERR_SYSTEM, "cuda: no device memory for %zu bytes of %s", bytes, what);
        return NULL;
    }
    struct piece *piece = err_alloc(1, sizeof *piece);
    *piece = (struct piece){g->pieces, p, bytes};
    g->pieces = piece;
    g->taken += bytes;
    return p;
}

void gpu_release(struct gpu *g, void *p) {
    if (!p) return;
    struct piece **at = &g->pieces;
    while (*at && (*at)->at != p)
        at = &(*at)->next;
    BUG_ON(!*at); /* no memory of this device */
    struct piece *piece = *at;
    *at = piece->next;
    g->taken -= piece->bytes;
    free(piece->at);
    free(piece);
}

void *gpu_alloc_pinned(struct gpu *g, size_t bytes, const char *what, struct err *e) {
    void *p = alloc_poisoned(bytes);
    g->allocations++;
    if (!p) err_set(e, ERR_SYSTEM, "cuda: no pinned memory for %zu bytes of %s", bytes, what);
    return p;
}

void gpu_release_pinned(struct gpu *g, void *p) {
    (void)g;
    free(p);
}

void gpu_put(struct gpu *g, void *to, const void *from, size_t bytes) {
    BUG_ON(g->recording != NULL);
    if (bytes) memcpy(to, from, bytes);
}

void gpu_get(struct gpu *g, void *to, const void *from, size_t bytes) {
    BUG_ON(g->recording != NULL);
    if (bytes) memcpy(to, from, bytes);
}

void gpu_host_fail(void *stream) { ((struct gpu *)stream)->failed = true; }

bool gpu_wait(struct gpu *g, struct err *e) {
    BUG_ON(g->recording != NULL);
    return !g->failed || err_set(e, ERR_SYSTEM, "cuda: the device has failed: as the test wanted");
}

void *gpu_stream(struct gpu *g) { return g; }

void gpu_capture(struct gpu *g) {
    BUG_ON(g->recording != NULL);
    g->recording = err_alloc(1, sizeof *g->recording);
    g->recording->end = &g->recording->first;
}

struct gpu_graph *gpu_captured(struct gpu *g, struct err *e) {
    (void)e;
    struct gpu_graph *graph = g->recording;
    g->recording = NULL;
    return graph;
}

void gpu_graph_run(struct gpu *g, struct gpu_graph *graph) {
    BUG_ON(g->recording != NULL);
    for (struct node *n = graph->first; n; n = n->next)
        emulate_launch(n->name, n->grid, n->block, n->shared_bytes, n->body, n->arg);
}

void gpu_graph_free(struct gpu *g, struct gpu_graph *graph) {
    (void)g;
    for (struct node *n = graph ? graph->first : NULL; n;) {
        struct node *next = n->next;
        n->drop(n->arg);
        free(n);
        n = next;
    }
    free(graph);
}

void gpu_host_launch(void *stream, const char *name, struct emulate_dim grid,
                     struct emulate_dim block, size_t shared_bytes, void (*body)(void *arg),
                     void *arg, void (*drop)(void *arg)) {
    struct gpu *g = stream;
    if (!g->recording) {
        emulate_launch(name, grid, block, shared_bytes, body, arg);
        drop(arg);
        return;
    }
    struct node *n = err_alloc(1, sizeof *n);
    *n = (struct node){NULL, name, grid, block, shared_bytes, body, arg, drop};
    *g->recording->end = n;
    g->recording->end = &n->next;
}
