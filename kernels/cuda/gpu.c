#include "kernels/cuda/gpu.h"

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>

enum {
    WORK,
    ASIDE,
    STREAMS,
    MARKS = 16, /* a wait for an older one waits for a newer one of the same stream */
};

struct gpu {
    cudaStream_t stream, aside;
    cudaEvent_t marks[STREAMS][MARKS]; /* owned; the nth mark of stream s, 2 n + s, is
                                          marks[s][n % MARKS] */
    uint64_t n_marks[STREAMS];
    cudaError_t failed; /* the first error; sticky */
    int allocations;
};

struct gpu_graph {
    cudaGraphExec_t exec;
};

static void note(struct gpu *g, cudaError_t error) {
    if (error != cudaSuccess && g->failed == cudaSuccess) g->failed = error;
}

static bool fail(struct err *e, const char *what, cudaError_t error) {
    return err_set(e, ERR_SYSTEM, "cuda: %s: %s (%s)", what, cudaGetErrorString(error),
                   cudaGetErrorName(error));
}

static bool read_info(struct gpu_info *info, struct err *e) {
    struct cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, 0);
    if (error != cudaSuccess) return fail(e, "can't read the device's properties", error);
    *info = (struct gpu_info){.major = p.major,
                              .minor = p.minor,
                              .n_processors = p.multiProcessorCount,
                              .shared_bytes = p.sharedMemPerBlockOptin};
    snprintf(info->name, sizeof info->name, "%.127s", p.name);
    if (p.major < 8)
        return err_set(e, ERR_SYSTEM,
                       "cuda: %s has compute capability %d.%d; 8.0 (Ampere) is the least", p.name,
                       p.major, p.minor);
    return true;
}

bool gpu_open(struct gpu **out, struct gpu_info *info, struct err *e) {
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaErrorInsufficientDriver)
        return err_set(e, ERR_SYSTEM,
                       "cuda: there is no NVIDIA driver here, or one too old for CUDA %d.%d",
                       CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (error == cudaErrorNoDevice || (error == cudaSuccess && n < 1))
        return err_set(e, ERR_SYSTEM, "cuda: there is no device here");
    if (error != cudaSuccess) return fail(e, "no device can be used", error);
    if (!read_info(info, e)) return false;
    if ((error = cudaSetDevice(0)) != cudaSuccess) return fail(e, "device 0", error);
    struct gpu *g = err_alloc(1, sizeof *g);
    g->failed = cudaSuccess;
    error = cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&g->aside, cudaStreamNonBlocking);
    for (int i = 0; i < STREAMS * MARKS && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&g->marks[i / MARKS][i % MARKS], cudaEventDisableTiming);
    if (error != cudaSuccess) {
        gpu_close(g);
        return fail(e, "can't make a stream", error);
    }
    *out = g;
    return true;
}

void gpu_close(struct gpu *g) {
    if (!g) return;
    for (int i = 0; i < STREAMS * MARKS; i++)
        if (g->marks[i / MARKS][i % MARKS]) cudaEventDestroy(g->marks[i / MARKS][i % MARKS]);
    if (g->stream) cudaStreamDestroy(g->stream);
    if (g->aside) cudaStreamDestroy(g->aside);
    free(g);
}

size_t gpu_free_bytes(const struct gpu *g) {
    (void)g;
    size_t available = 0, total = 0;
    return cudaMemGetInfo(&available, &total) == cudaSuccess ? available : 0;
}

int gpu_allocations(const struct gpu *g) { return g->allocations; }

void *gpu_alloc(struct gpu *g, size_t bytes, const char *what, struct err *e) {
    void *p = NULL;
    cudaError_t error = cudaMalloc(&p, bytes ? bytes : 1);
    g->allocations++;
    if (error == cudaSuccess) return p;
    err_set(e, ERR_SYSTEM, "cuda: no device memory for %zu bytes of %s: %s", bytes, what,
            cudaGetErrorString(error));
    return NULL;
}

void gpu_release(struct gpu *g, void *p) {
    if (p) note(g, cudaFree(p));
}

void *gpu_alloc_pinned(struct gpu *g, size_t bytes, const char *what, struct err *e) {
    void *p = NULL;
    cudaError_t error = cudaMallocHost(&p, bytes ? bytes : 1);
    g->allocations++;
    if (error == cudaSuccess) return p;
    err_set(e, ERR_SYSTEM, "cuda: no pinned memory for %zu bytes of %s: %s", bytes, what,
            cudaGetErrorString(error));
    return NULL;
}

void gpu_release_pinned(struct gpu *g, void *p) {
    if (p) note(g, cudaFreeHost(p));
}

void gpu_put(struct gpu *g, void *to, const void *from, size_t bytes) {
    if (bytes) note(g, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, g->stream));
}

void gpu_get(struct gpu *g, void *to, const void *from, size_t bytes) {
    if (bytes) note(g, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, g->stream));
}

void gpu_put_aside(struct gpu *g, void *to, const void *from, size_t bytes) {
    if (bytes) note(g, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, g->aside));
}

void gpu_get_aside(struct gpu *g, void *to, const void *from, size_t bytes) {
    if (bytes) note(g, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, g->aside));
}

bool gpu_wait(struct gpu *g, struct err *e) {
    note(g, cudaGetLastError()); /* of launches */
    note(g, cudaStreamSynchronize(g->stream));
    note(g, cudaStreamSynchronize(g->aside));
    return g->failed == cudaSuccess || fail(e, "the device has failed", g->failed);
}

static uint64_t set_mark(struct gpu *g, int s, cudaStream_t stream) {
    uint64_t n = g->n_marks[s]++;
    note(g, cudaEventRecord(g->marks[s][n % MARKS], stream));
    return STREAMS * n + (uint64_t)s;
}

uint64_t gpu_mark(struct gpu *g) { return set_mark(g, WORK, g->stream); }

uint64_t gpu_mark_aside(struct gpu *g) { return set_mark(g, ASIDE, g->aside); }

static cudaEvent_t event_of(const struct gpu *g, uint64_t mark) {
    return g->marks[mark % STREAMS][mark / STREAMS % MARKS];
}

void gpu_follow(struct gpu *g, uint64_t mark) {
    note(g, cudaStreamWaitEvent(g->stream, event_of(g, mark), 0));
}

void gpu_follow_aside(struct gpu *g, uint64_t mark) {
    note(g, cudaStreamWaitEvent(g->aside, event_of(g, mark), 0));
}

bool gpu_reach(struct gpu *g, uint64_t mark, struct err *e) {
    note(g, cudaGetLastError()); /* of launches */
    note(g, cudaEventSynchronize(event_of(g, mark)));
    return g->failed == cudaSuccess || fail(e, "the device has failed", g->failed);
}

void *gpu_stream(struct gpu *g) { return g->stream; }

void gpu_capture(struct gpu *g) {
    note(g, cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal));
}

struct gpu_graph *gpu_captured(struct gpu *g, struct err *e) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t error = cudaStreamEndCapture(g->stream, &graph);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (error != cudaSuccess) {
        note(g, error);
        fail(e, "can't record a graph", error);
        return NULL;
    }
    struct gpu_graph *out = err_alloc(1, sizeof *out);
    out->exec = exec;
    return out;
}

void gpu_graph_run(struct gpu *g, struct gpu_graph *graph) {
    note(g, cudaGraphLaunch(graph->exec, g->stream));
}

void gpu_graph_free(struct gpu *g, struct gpu_graph *graph) {
    if (!graph) return;
    note(g, cudaGraphExecDestroy(graph->exec));
    free(graph);
}
