/* The memory plan: five buckets, made once at start, printed, and held.
 *
 *   weights      the model's matrices as the backend packs them
 *   kv           blocks of keys and values: what is left, up to what can be used
 *   activations  a step's buffers and the backend's scratch for the largest step
 *   runtime      vocabulary, queues, texts of candidates, the program itself
 *   reserve      left free for the system
 *
 * A plan that doesn't fit says which number to change.  Pure. */
#ifndef ENGINE_MEMORY_PLAN_H
#define ENGINE_MEMORY_PLAN_H

#include "engine/engine.h"
#include "engine/model.h"
#include "engine/step.h"

struct memory_plan {
    struct engine_memory bytes;
    size_t available;   /* what was to be divided */
    size_t block_bytes; /* of one block, all layers */
    int n_blocks;
    int context; /* positions of one sequence */
    int max_rows, prefill_chunk;
};

/* `available` 0: what the device has free. */
bool memory_plan_make(struct memory_plan *, const struct engine_options *, const struct model *,
                      const struct kernels *, const struct kernels_device *, struct err *e);
/* The largest step of the plan. */
struct kernels_step_shape memory_plan_step(const struct memory_plan *, const struct model_shape *);
void memory_plan_print(const struct memory_plan *, FILE *out);

#endif
