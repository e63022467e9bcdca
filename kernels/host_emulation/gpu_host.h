/* What the emulated device has beyond kernels/cuda/gpu.h.  Launches run on a `stream`, which is the
 * struct gpu itself. */
#ifndef KERNELS_HOST_EMULATION_GPU_HOST_H
#define KERNELS_HOST_EMULATION_GPU_HOST_H

#include "kernels/host_emulation/emulate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queues body(arg), to be run as every thread of the grid; drop(arg) when it is done with. */
void gpu_host_launch(void *stream, const char *name, struct emulate_dim grid,
                     struct emulate_dim block, size_t shared_bytes, void (*body)(void *arg),
                     void *arg, void (*drop)(void *arg));
/* Bytes of memory that devices have from now on. */
void gpu_host_memory(size_t bytes);
/* Compute capability of devices from now on; 9.0 until then. */
void gpu_host_capability(int major, int minor);
/* While sealed, taking memory aborts: nobody may while serving. */
void gpu_host_seal(bool seal);
/* The most device memory that one device has had out since the program began. */
size_t gpu_host_most_taken(void);
/* Whether work is done at once, or when somebody waits: the default, which shows who doesn't. */
void gpu_host_eager(bool at_once);
/* Launches and runs of graphs that devices have queued and not done. */
int gpu_host_waiting(void);
/* The device fails, as after an illegal access. */
void gpu_host_fail(void *stream);
/* Every device fails at the first work after a file of this name is there; borrowed. */
void gpu_host_fail_when(const char *path);

#ifdef __cplusplus
}
#endif
#endif
