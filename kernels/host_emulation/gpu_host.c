/* kernels/cuda/gpu.h over the host's own memory.
 *
 * Work is queued and done at the last moment that the real device would allow: when somebody waits.
 * Then a copy from pinned memory finds what lies there by then, so whoever writes it too early, or
 * reads a result before waiting, is found out.  gpu_host_eager() does everything at once instead,
 * the other thing that a device may do.  Fresh memory is NaN. */
#include "kernels/cuda/gpu.h"

#include "kernels/host_emulation/gpu_host.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One piece of queued work: a launch, a copy (to), a graph's run (graph), or a mark. */
struct node {
    struct node *next; /* owned */
    const char *name;
    struct emulate_dim grid, block;
    size_t shared_bytes;
    void (*body)(void *arg);
    void *arg; /* owned */
    void (*drop)(void *arg);
    void *to;
    const void *from; /* borrowed, or `copied` */
    void *copied;     /* owned: what was read at once */
    size_t bytes;
    const struct gpu_graph *graph; /* borrowed */
    uint64_t mark;                 /* from 1 on; 0: none */
    uint64_t after;                /* a mark of the other stream, likewise */
};

enum { WORK, ASIDE, STREAMS };

struct queue {
    struct node *first, **end; /* owned list */
};

struct gpu_graph {
    struct queue nodes;
};

/* Memory that was given out. */
struct piece {
    struct piece *next; /* owned */
    uint8_t *at;        /* owned */
    size_t bytes;
};

struct gpu {
    struct queue stream[STREAMS];
    struct gpu_graph *recording;   /* owned; NULL: work goes to the stream */
    struct piece *pieces, *pinned; /* owned */
    size_t taken;
    uint64_t n_marks; /* of both streams: mark m is of stream m % STREAMS */
    uint64_t reached[STREAMS];
    int allocations;
    bool failed;
};

static size_t memory_bytes = (size_t)1 << 30;
static int capability_major = 9, capability_minor = 0;
static bool eager, sealed;
static size_t most_taken;
static atomic_int waiting;    /* nodes that compute, on streams */
static const char *fail_when; /* borrowed; NULL: never */

void gpu_host_memory(size_t bytes) { memory_bytes = bytes; }

void gpu_host_capability(int major, int minor) {
    capability_major = major;
    capability_minor = minor;
}

void gpu_host_seal(bool seal) { sealed = seal; }

size_t gpu_host_most_taken(void) { return most_taken; }

void gpu_host_eager(bool at_once) { eager = at_once; }

void gpu_host_fail_when(const char *path) { fail_when = path; }

bool gpu_open(struct gpu **out, struct gpu_info *info, struct err *e) {
    (void)e;
    *info = (struct gpu_info){.major = capability_major,
                              .minor = capability_minor,
                              .n_processors = 132,
                              .shared_bytes = 227 * 1024};
    snprintf(info->name, sizeof info->name, "emulated on the host");
    struct gpu *g = err_alloc(1, sizeof *g);
    for (int i = 0; i < STREAMS; i++)
        g->stream[i].end = &g->stream[i].first;
    *out = g;
    return true;
}

/* ---- memory ---- */

static void *take(struct piece **list, size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, 256, bytes ? bytes : 1)) return NULL;
    memset(p, 0xff, bytes);
    struct piece *piece = err_alloc(1, sizeof *piece);
    *piece = (struct piece){*list, p, bytes};
    *list = piece;
    return p;
}

/* Bytes that were given back. */
static size_t give_back(struct piece **at, const void *p) {
    while (*at && (*at)->at != p)
        at = &(*at)->next;
    BUG_ON(!*at); /* no memory of this device */
    struct piece *piece = *at;
    size_t bytes = piece->bytes;
    *at = piece->next;
    free(piece->at);
    free(piece);
    return bytes;
}

static bool is_pinned(const struct gpu *g, const void *p) {
    for (const struct piece *it = g->pinned; it; it = it->next)
        if ((uintptr_t)p - (uintptr_t)it->at < it->bytes) return true;
    return false;
}

size_t gpu_free_bytes(const struct gpu *g) { return memory_bytes - g->taken; }

int gpu_allocations(const struct gpu *g) { return g->allocations; }

void *gpu_alloc(struct gpu *g, size_t bytes, const char *what, struct err *e) {
    BUG_ON(sealed); /* memory is taken while serving */
    void *p = bytes > memory_bytes - g->taken ? NULL : take(&g->pieces, bytes);
    g->allocations++;
    g->taken += p ? bytes : 0;
    if (g->taken > most_taken) most_taken = g->taken;
    if (!p) err_set(e, ERR_SYSTEM, "cuda: no device memory for %zu bytes of %s", bytes, what);
    return p;
}

/* As on the device, what is queued is done first: it may use the memory. */
void gpu_release(struct gpu *g, void *p) {
    if (!p) return;
    gpu_wait(g, NULL);
    g->taken -= give_back(&g->pieces, p);
}

void *gpu_alloc_pinned(struct gpu *g, size_t bytes, const char *what, struct err *e) {
    BUG_ON(sealed);
    void *p = take(&g->pinned, bytes);
    g->allocations++;
    if (!p) err_set(e, ERR_SYSTEM, "cuda: no pinned memory for %zu bytes of %s", bytes, what);
    return p;
}

void gpu_release_pinned(struct gpu *g, void *p) {
    if (!p) return;
    gpu_wait(g, NULL);
    give_back(&g->pinned, p);
}

/* ---- the stream ---- */

static void do_node(const struct node *n) {
    if (n->graph)
        for (const struct node *it = n->graph->nodes.first; it; it = it->next)
            do_node(it);
    else if (n->mark || n->after)
        return;
    else if (n->to)
        memcpy(n->to, n->from, n->bytes);
    else
        emulate_launch(n->name, n->grid, n->block, n->shared_bytes, n->body, n->arg);
}

static void drop_node(struct node *n) {
    if (n->drop) n->drop(n->arg);
    free(n->copied);
    free(n);
}

static bool computes(const struct node *n) { return n->body || n->graph; }

/* Does what is queued, up to the mark, and of the other stream what that has to wait for: no more.
 * A failed device does nothing. */
static void drain(struct gpu *g, int s, uint64_t mark) {
    struct queue *q = &g->stream[s];
    while (q->first && g->reached[s] < mark) {
        struct node *n = q->first;
        if (n->after) drain(g, (int)(n->after % STREAMS), n->after);
        if (fail_when && !access(fail_when, F_OK)) g->failed = true;
        if (!g->failed) do_node(n);
        if (n->mark) g->reached[s] = n->mark;
        waiting -= computes(n);
        q->first = n->next;
        if (!n->next) q->end = &q->first;
        drop_node(n);
    }
}

static void queue_on(struct gpu *g, int s, struct node node) {
    struct queue *q = g->recording ? &g->recording->nodes : &g->stream[s];
    struct node *n = err_alloc(1, sizeof *n);
    *n = node;
    *q->end = n;
    q->end = &n->next;
    if (!g->recording) waiting += computes(n);
    if (eager && !g->recording) drain(g, s, UINT64_MAX);
}

static void queue(struct gpu *g, struct node node) { queue_on(g, WORK, node); }

int gpu_host_waiting(void) { return waiting; }

void gpu_put(struct gpu *g, void *to, const void *from, size_t bytes) {
    BUG_ON(g->recording != NULL);
    if (!bytes) return;
    struct node n = {.to = to, .from = from, .bytes = bytes};
    if (!is_pinned(g, from)) {
        n.from = n.copied = err_alloc(1, bytes);
        memcpy(n.copied, from, bytes);
    }
    queue(g, n);
}

void gpu_get(struct gpu *g, void *to, const void *from, size_t bytes) {
    BUG_ON(g->recording != NULL);
    if (bytes) queue(g, (struct node){.to = to, .from = from, .bytes = bytes});
}

void gpu_put_aside(struct gpu *g, void *to, const void *from, size_t bytes) {
    BUG_ON(g->recording || !is_pinned(g, from));
    if (bytes) queue_on(g, ASIDE, (struct node){.to = to, .from = from, .bytes = bytes});
}

void gpu_get_aside(struct gpu *g, void *to, const void *from, size_t bytes) {
    BUG_ON(g->recording || !is_pinned(g, to));
    if (bytes) queue_on(g, ASIDE, (struct node){.to = to, .from = from, .bytes = bytes});
}

void gpu_host_fail(void *stream) { ((struct gpu *)stream)->failed = true; }

static bool done(const struct gpu *g, struct err *e) {
    return !g->failed || err_set(e, ERR_SYSTEM, "cuda: the device has failed: as the test wanted");
}

bool gpu_wait(struct gpu *g, struct err *e) {
    BUG_ON(g->recording != NULL);
    for (int s = 0; s < STREAMS; s++)
        drain(g, s, UINT64_MAX);
    return done(g, e);
}

static uint64_t set_mark(struct gpu *g, int s) {
    BUG_ON(g->recording != NULL);
    uint64_t mark = ++g->n_marks * STREAMS + (uint64_t)s;
    queue_on(g, s, (struct node){.mark = mark});
    return mark;
}

uint64_t gpu_mark(struct gpu *g) { return set_mark(g, WORK); }

uint64_t gpu_mark_aside(struct gpu *g) { return set_mark(g, ASIDE); }

static void follow(struct gpu *g, int s, uint64_t mark) {
    BUG_ON(g->recording || (int)(mark % STREAMS) == s || mark / STREAMS > g->n_marks);
    queue_on(g, s, (struct node){.after = mark});
}

void gpu_follow(struct gpu *g, uint64_t mark) { follow(g, WORK, mark); }

void gpu_follow_aside(struct gpu *g, uint64_t mark) { follow(g, ASIDE, mark); }

bool gpu_reach(struct gpu *g, uint64_t mark, struct err *e) {
    BUG_ON(g->recording != NULL || mark / STREAMS > g->n_marks);
    drain(g, (int)(mark % STREAMS), mark);
    return done(g, e);
}

void gpu_close(struct gpu *g) {
    if (!g) return;
    gpu_wait(g, NULL);
    BUG_ON(g->pieces || g->pinned); /* memory that nobody released */
    free(g);
}

void *gpu_stream(struct gpu *g) { return g; }

void gpu_capture(struct gpu *g) {
    BUG_ON(g->recording != NULL);
    g->recording = err_alloc(1, sizeof *g->recording);
    g->recording->nodes.end = &g->recording->nodes.first;
}

struct gpu_graph *gpu_captured(struct gpu *g, struct err *e) {
    (void)e;
    struct gpu_graph *graph = g->recording;
    g->recording = NULL;
    return graph;
}

void gpu_graph_run(struct gpu *g, struct gpu_graph *graph) {
    BUG_ON(g->recording != NULL);
    queue(g, (struct node){.graph = graph});
}

void gpu_graph_free(struct gpu *g, struct gpu_graph *graph) {
    if (!graph) return;
    gpu_wait(g, NULL);
    for (struct node *n = graph->nodes.first; n;) {
        struct node *next = n->next;
        drop_node(n);
        n = next;
    }
    free(graph);
}

void gpu_host_launch(void *stream, const char *name, struct emulate_dim grid,
                     struct emulate_dim block, size_t shared_bytes, void (*body)(void *arg),
                     void *arg, void (*drop)(void *arg)) {
    queue(stream, (struct node){.name = name,
                                .grid = grid,
                                .block = block,
                                .shared_bytes = shared_bytes,
                                .body = body,
                                .arg = arg,
                                .drop = drop});
}
