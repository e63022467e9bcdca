/* Kernels that read a row and write a row, and no arithmetic worth naming between. */
#include "kernels/cuda/reduce.cuh"

static constexpr int THREADS = 256;

static __device__ __forceinline__ bool beyond(const int32_t *n_rows, int row) {
    return n_rows && row >= *n_rows;
}

/* what      out[r][i] = table[tokens[r]][i]
 * layout    table bf16 [n_vocab][d], out f32 [n_rows][d]
 * tile      one block a row, 256 threads
 * bytes     n (2 d + 4 d)   bound: memory
 * order     none */
static __global__ void __launch_bounds__(THREADS) embed(struct launch_embed a) {
    int row = static_cast<int>(blockIdx.x);
    if (beyond(a.n_rows, row)) return;
    size_t d = static_cast<size_t>(a.d);
    const uint16_t *from = a.table + static_cast<size_t>(a.tokens[row]) * d;
    float *to = a.out + static_cast<size_t>(row) * d;
    for (int i = static_cast<int>(threadIdx.x); i < a.d; i += THREADS)
        to[i] = bf16_to_f32(from[i]);
}

void launch_embed(void *stream, const struct launch_embed *a) {
    LAUNCH(embed, dim3(static_cast<unsigned>(a->rows)), dim3(THREADS), 0, stream, *a);
}

/* what      out[i] = x[logit_rows[i]]
 * layout    f32 [*][d]
 * tile      one block a row, 256 threads
 * bytes     8 n d   bound: memory
 * order     none */
static __global__ void __launch_bounds__(THREADS) gather(struct launch_gather a) {
    int row = static_cast<int>(blockIdx.x);
    if (beyond(a.n_logits, row)) return;
    size_t d = static_cast<size_t>(a.d);
    const float *from = a.x + static_cast<size_t>(a.logit_rows[row]) * d;
    float *to = a.out + static_cast<size_t>(row) * d;
    for (int i = static_cast<int>(threadIdx.x); i < a.d; i += THREADS)
        to[i] = from[i];
}

void launch_gather(void *stream, const struct launch_gather *a) {
    LAUNCH(gather, dim3(static_cast<unsigned>(a->rows)), dim3(THREADS), 0, stream, *a);
}

/* what      y[r][m] = bias[m], or y[r][m] += bias[m]
 * layout    f32, rows of y at y_stride
 * tile      one block a row, 256 threads
 * bytes     n (4 or 8) m   bound: memory; where cuBLASLt has the bias in its epilogue it isn't used
 * order     none */
static __global__ void __launch_bounds__(THREADS) bias(struct launch_bias a) {
    float *y = a.y + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.y_stride);
    for (int i = static_cast<int>(threadIdx.x); i < a.n; i += THREADS)
        y[i] = a.bias[i] + (a.add ? y[i] : 0.0f);
}

void launch_bias(void *stream, const struct launch_bias *a) {
    LAUNCH(bias, dim3(static_cast<unsigned>(a->rows)), dim3(THREADS), 0, stream, *a);
}

/* what      y[r][m] = raw[r][m] ws[m] xs[r] + bias[m] (+ y[r][m])
 * layout    f32, rows of raw and y at their strides
 * tile      one block a row, 256 threads
 * bytes     n (8 or 12) m   bound: memory; only where cuBLASLt has no scales of rows (before and
 *           after Hopper)
 * order     none */
static __global__ void __launch_bounds__(THREADS) scale(struct launch_scale a) {
    const float *raw = a.raw + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.raw_stride);
    float *y = a.y + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.y_stride);
    float x = a.x_scales[blockIdx.x];
    for (int i = static_cast<int>(threadIdx.x); i < a.n; i += THREADS) {
        float v = raw[i] * (a.w_scales[i] * x) + (a.bias ? a.bias[i] : 0.0f);
        y[i] = a.add ? y[i] + v : v;
    }
}

void launch_scale(void *stream, const struct launch_scale *a) {
    LAUNCH(scale, dim3(static_cast<unsigned>(a->rows)), dim3(THREADS), 0, stream, *a);
}

/* what      block pairs[2 i] of the KV cache to block pairs[2 i + 1], all layers
 * layout    a block of a layer is block_bytes in one piece
 * tile      grid (pairs, layers), 256 threads, 16 bytes a thread and turn
 * bytes     2 pairs layers block_bytes   bound: memory
 * order     none */
static __global__ void __launch_bounds__(THREADS) copy_blocks(struct launch_copy a) {
    if (beyond(a.n_live, static_cast<int>(blockIdx.x))) return;
    uint8_t *layer = a.data + blockIdx.y * a.layer_bytes;
    const uint4 *from = reinterpret_cast<const uint4 *>(
        layer + static_cast<size_t>(a.pairs[2 * blockIdx.x]) * a.block_bytes);
    uint4 *to = reinterpret_cast<uint4 *>(layer + static_cast<size_t>(a.pairs[2 * blockIdx.x + 1]) *
                                                      a.block_bytes);
    for (size_t i = threadIdx.x; i < a.block_bytes / 16; i += THREADS)
        to[i] = from[i];
}

void launch_copy(void *stream, const struct launch_copy *a) {
    LAUNCH(copy_blocks, dim3(static_cast<unsigned>(a->n_pairs), static_cast<unsigned>(a->n_layers)),
           dim3(THREADS), 0, stream, *a);
}
