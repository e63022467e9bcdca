/* What the files of the CUDA backend share: the device and its memory.  Owner: ENGINE. */
#ifndef KERNELS_CUDA_STATE_H
#define KERNELS_CUDA_STATE_H

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/kernels.h"

struct kernels_buffer {
    uint8_t *data; /* owned device memory */
    size_t bytes;
};

struct kernels_weight {
    uint8_t *data; /* owned device memory: [n_rows][n_cols] bf16, or fp8 E4M3 where scales */
    float *scales; /* in the same memory: [n_rows]; NULL: bf16 */
    int n_rows, n_cols;
};

/* A region of device memory and, where pinned, its image on the host. */
struct state_area {
    uint8_t *device, *host; /* owned */
    size_t bytes, used;
};

/* What steps upload, taken in turn: while the device still reads one, the host fills the other, and
 * it is copied beside the work.  launch_split() brings what lives of it to where the step's kernels
 * read it. */
enum { STATE_IMAGES = 2 };
struct state_image {
    uint8_t *host, *device; /* owned; host: pinned */
    size_t used;            /* bytes */
    uint64_t copied, read;  /* marks: behind the copy, and behind the launch that reads it */
    bool waits;             /* for these, since it was last known to be free */
};

/* What the rows of a file go through on their way to the device, while a model is loaded. */
enum { STATE_PIECES = 2 };
struct state_stage {
    uint8_t *host[STATE_PIECES];   /* owned, pinned: one is filled while the other is copied */
    uint8_t *device;               /* owned: a piece as it lies in the file; NULL: no load */
    uint64_t copied[STATE_PIECES]; /* marks behind the copies from host[] */
    bool waits[STATE_PIECES];      /* for these, since it was last known to be free */
    int next;
};

/* What one launch of draws takes: the host's side of a set's `draws`, and how full it is. */
struct state_part {
    struct launch_row *rows;
    struct launch_job *jobs;
    struct launch_draw *draws;
    struct launch_change *changes;
    int n_rows, n_jobs, n_draws, n_changes;
    size_t jobs_at, draws_at, changes_at, saved_at; /* bytes in the area */
};

/* The draws of a step, until they are taken. */
struct state_set {
    struct state_area draws;   /* what they are */
    struct state_area results; /* and what came of them */
    bool whole;                /* all were uploaded at once, and their results are on the device */
    int n;
    uint64_t mark; /* behind what brings the results back */
};

/* Steps that a graph serves: grids as large as these. */
struct state_shape {
    int rows, logits, tiles, warps;
};
enum { STATE_GRAPHS = 64, STATE_PAIRS = 4096, STATE_DRAWS = 10000 };
struct state_graph {
    struct state_shape shape;
    struct gpu_graph *graph; /* owned; NULL: this shape has been seen once */
    uint64_t calls;          /* a hash of the operations that it holds */
};

struct kernels_device {
    struct gpu *gpu;   /* owned */
    struct gemm *gemm; /* owned */
    struct gpu_info info;
    char description[256];
    bool fp8;    /* matrices that can be are fp8, and operands have an fp8 side */
    int n_vocab; /* rows of those that stay bf16 */
    bool kv_fp8; /* keys and values are */
    struct state_stage stage;
    struct kernels_profile profile;
    struct err error; /* of the backend itself, sticky; kind ERR_NONE while all is well */

    struct kernels_kv_shape kv_shape;
    uint8_t *kv; /* owned; [layer][block][KV head] K and V, see struct launch_kv */
    size_t kv_layer_bytes, kv_block_bytes;
    int32_t *pairs; /* owned, pinned: blocks to copy, those from n_copied on not yet queued */
    int32_t *pairs_device; /* owned */
    int n_pairs, n_copied;

    /* Set by reserve_rows(). */
    struct kernels_step_shape reserved;
    int split, n_splits;
    struct state_area step; /* what lives of a step's batch */
    struct state_image images[STATE_IMAGES];
    size_t image_bytes;
    int image;                 /* of the step that is being filled, or was last */
    struct state_area work;    /* states of attention, turns, sums, what launch_split() finds */
    struct launch_batch batch; /* pointers into `step` */
    struct launch_live live;   /* the same */
    int32_t *token, *founder, *before, *founders, *places, *forks, *n_forks; /* of launch_split() */
    float *stats, *states, *turns, *sums, *inv_freq;
    float *scales;         /* of the operand last written, a row each; used where fp8 */
    const uint8_t *scaled; /* that operand's first row */
    const struct kernels_rope *rope_loaded; /* whose inv_freq is on the device */
    int max_tiles, max_warps, max_tables, max_changes;

    /* The step between batch_begin and batch_end. */
    const struct kernels_batch *now; /* borrowed; NULL outside a step */
    struct state_shape grid;
    bool turns_made, replays;
    bool has_families; /* also until its draws have been queued */
    int32_t *families; /* owned: of each row of its logits, the first of its family; or itself */
    uint64_t calls;
    struct state_graph *recording; /* the graph that this step becomes, or is; NULL: none */
    bool graphs;                   /* are to be used */
    struct state_graph graph[STATE_GRAPHS];
    int n_graphs;

    /* Of sample(), until drawn(): of the last two steps. */
    struct state_set sets[2];
    int newest, n_waiting;       /* sets that haven't been taken */
    struct state_part part;      /* of the newest set, where it is whole */
    struct kernels_drawn *drawn; /* owned; results of the set that isn't whole */
    int max_drawn;
};

/* A row of an operand, or of f32, has 4 bytes an element. */
static inline void *state_pointer(struct kernels_view v) { return v.buffer->data + v.offset; }

/* Keeps the first error, for the next call that can tell it. */
void state_fail(struct kernels_device *, const struct err *);
/* Waits for the device; what is pinned may be written again. */
bool state_wait(struct kernels_device *, struct err *e);
/* Waits for what lies before the mark alone. */
bool state_reach(struct kernels_device *, uint64_t mark, struct err *e);
/* The next image for a step, free to be written. */
bool state_next_image(struct kernels_device *, struct err *e);
/* Adds to the work counted. */
void state_count(struct kernels_device *, enum kernels_op, double bytes, double macs);

/* Bytes of each area for a step of this shape, and the numbers behind them. */
size_t state_scratch_bytes(const struct kernels_device *, const struct kernels_step_shape *);
bool state_reserve(struct kernels_device *, const struct kernels_step_shape *, struct err *e);
void state_free_scratch(struct kernels_device *);

#endif
