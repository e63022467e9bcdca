/* The states of a row's splits put together. */
#include "kernels/cuda/reduce.cuh"

static constexpr int THREADS = 256, WARPS = THREADS / WARP;

/* what      out[r][h] = sum_s 2^(top_s - top) o_s / sum_s 2^(top_s - top) l_s over the splits s
 * that position r reaches layout    stats f32 [n][heads][splits][2], states f32
 * [n][heads][splits][d]; out an operand of width heads d tile      one block a row, 256 threads,
 * one warp a head and turn; the row in shared memory, 4 heads d bytes bytes     n heads (splits (4
 * d + 8) + 2 d)   bound: memory order     splits in ascending order; independent of n */
static __global__ void __launch_bounds__(THREADS) merge(struct launch_merge a) {
    SHARED_DYNAMIC(float, row);
    SHARED(float, scratch, WARPS);
    int r = static_cast<int>(blockIdx.x), d = a.head_dim;
    if (r >= *a.n_rows) return;
    int n = a.positions[r] / a.split + 1;
    for (int h = warp_id(); h < a.n_heads; h += WARPS) {
        size_t at =
            (static_cast<size_t>(r) * static_cast<size_t>(a.n_heads) + static_cast<size_t>(h)) *
            static_cast<size_t>(a.n_splits);
        const float *stats = a.stats + 2 * at, *states = a.states + at * static_cast<size_t>(d);
        float top = stats[0], total = 0;
        for (int s = 1; s < n; s++)
            top = fmaxf(top, stats[2 * s]);
        for (int s = 0; s < n; s++)
            total += exp2_fast(stats[2 * s] - top) * stats[2 * s + 1];
        for (int i = lane_id(); i < d; i += WARP) {
            float sum = 0;
            for (int s = 0; s < n; s++)
                sum += exp2_fast(stats[2 * s] - top) * states[s * d + i];
            row[h * d + i] = sum / total;
        }
    }
    __syncthreads();
    operand_store<WARPS>(a.out, r, scratch, [=](int i) { return row[i]; });
}

bool launch_prepare_merge(size_t most, int width) {
    return allow_shared(merge, static_cast<size_t>(width) * sizeof(float), most);
}

void launch_merge(void *stream, const struct launch_merge *a) {
    LAUNCH(merge, dim3(static_cast<unsigned>(a->rows)), dim3(THREADS),
           static_cast<size_t>(a->out.width) * sizeof(float), stream, *a);
}
