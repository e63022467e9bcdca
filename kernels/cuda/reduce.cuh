/* Sums and maxima over a block, and rows of operands: shared by the row kernels. */
#ifndef KERNELS_CUDA_REDUCE_CUH
#define KERNELS_CUDA_REDUCE_CUH

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

/* Over all threads of a block of `warps` warps, in every thread, always in the same order: lanes
 * pairwise, then warps from the first to the last.  `scratch` holds one value a warp. */
template <int warps> static __device__ __forceinline__ float block_sum(float v, float *scratch) {
    v = warp_sum(v);
    __syncthreads();
    if (lane_id() == 0) scratch[warp_id()] = v;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < warps; i++)
        sum += scratch[i];
    return sum;
}
template <int warps> static __device__ __forceinline__ float block_max(float v, float *scratch) {
    v = warp_max(v);
    __syncthreads();
    if (lane_id() == 0) scratch[warp_id()] = v;
    __syncthreads();
    float top = scratch[0];
    for (int i = 1; i < warps; i++)
        top = fmaxf(top, scratch[i]);
    return top;
}

static __device__ __forceinline__ uint16_t *operand_row(const struct launch_operand &o, int row) {
    return reinterpret_cast<uint16_t *>(o.data + static_cast<size_t>(row) * 4 *
                                                     static_cast<size_t>(o.width));
}

/* Writes row `row` from value(0) … value(width - 1): bf16 and, where wanted, fp8 with the scale
 * that makes the largest magnitude the largest fp8.  value(i) is asked for up to three times. */
template <int warps, class F>
static __device__ __forceinline__ void operand_store(const struct launch_operand &o, int row,
                                                     float *scratch, F value) {
    uint16_t *to = operand_row(o, row);
    int step = warps * WARP;
    float top = 0;
    for (int i = static_cast<int>(threadIdx.x); i < o.width; i += step) {
        float v = value(i);
        to[i] = bf16_from_f32(v);
        top = fmaxf(top, fabsf(v));
    }
    if (!o.scales) return;
    top = block_max<warps>(top, scratch);
    float scale = top > 0 ? top / FP8_MAX : 1.0f, inverse = 1.0f / scale;
    uint8_t *bytes = reinterpret_cast<uint8_t *>(to) + 2 * static_cast<size_t>(o.width);
    for (int i = static_cast<int>(threadIdx.x); i < o.width; i += step)
        bytes[i] = fp8_from_f32(value(i) * inverse);
    if (threadIdx.x == 0) o.scales[row] = scale;
}

#endif
