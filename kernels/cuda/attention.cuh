/* One warp's part of attention: 16 queries against one KV block of 16 keys, on tensor cores, with
 * the running maximum and sum of online softmax (arXiv 1805.02867, 2205.14135).
 *
 * Every kernel takes the keys of a query 16 at a time in ascending order, from where a split
 * begins; splits lie at fixed positions.  So a query's numbers go through the same operations
 * whichever kernel took them, whoever shares its prompt and however many rows there are: a state
 * that one kernel has stored in the middle of a split is what another would have in its registers
 * there.  A block whose keys a query must not see leaves its state as it was, bit for bit. */
#ifndef KERNELS_CUDA_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

/* Of this lane: queries g and g + 8 of the warp's 16 (g = lane / 4). */
template <int D> struct attention_state {
    uint32_t q[D / 16][4];
    float out[D / 8][4];
    float top[2], sum[2]; /* of scores times log2 e */
    int limit[2];         /* keys below it are seen; 0: there is no such query */
};

/* Row (of the batch) and head of the item's query number m; false where it has none. */
struct attention_query {
    int row, head;
    bool there;
};
static __device__ __forceinline__ attention_query query_at(const struct launch_attention &a,
                                                           const struct launch_item &item,
                                                           int kv_head, int m) {
    int group = a.n_heads / a.kv.n_kv_heads;
    attention_query q;
    q.there = m < item.n_rows * group;
    q.row = item.first_row + (q.there ? m / group : 0);
    q.head = kv_head * group + m % group;
    return q;
}

static __device__ __forceinline__ size_t state_index(const struct launch_attention &a, int row,
                                                     int head, int slot) {
    return (static_cast<size_t>(row) * static_cast<size_t>(a.n_heads) + static_cast<size_t>(head)) *
               static_cast<size_t>(a.n_splits) +
           static_cast<size_t>(slot);
}

/* Queries first … first + 15 of the item, and their state at item.begin. */
template <int D>
static __device__ __forceinline__ void attention_begin(const struct launch_attention &a,
                                                       const struct launch_item &item, int kv_head,
                                                       int first, attention_state<D> &s) {
    int g = lane_id() / 4, t = lane_id() % 4, slot = item.begin / a.split;
    bool resumes = item.begin % a.split != 0;
    for (int h = 0; h < 2; h++) {
        attention_query q = query_at(a, item, kv_head, first + g + 8 * h);
        s.limit[h] = q.there ? min(a.batch.positions[q.row] + 1, item.end) : 0;
        const float *from =
            a.q + static_cast<size_t>(q.row) * static_cast<size_t>(a.stride) + q.head * D + 2 * t;
        for (int k = 0; k < D / 16; k++)
            for (int i = 0; i < 2; i++) {
                const float *pair = from + 16 * k + 8 * i;
                s.q[k][h + 2 * i] = q.there ? bf16_pair(pair[0], pair[1]) : 0;
            }
        s.top[h] = -INFINITY;
        s.sum[h] = 0;
        for (int n = 0; n < D / 8; n++)
            s.out[n][2 * h] = s.out[n][2 * h + 1] = 0;
        if (!resumes || s.limit[h] <= item.begin) continue;
        size_t at = state_index(a, q.row, q.head, slot);
        s.top[h] = a.stats[2 * at];
        s.sum[h] = a.stats[2 * at + 1];
        const float *state = a.states + at * D + 2 * t;
        for (int n = 0; n < D / 8; n++) {
            s.out[n][2 * h] = state[8 * n];
            s.out[n][2 * h + 1] = state[8 * n + 1];
        }
    }
}

/* Leaves the state of queries that saw a key of the item. */
template <int D>
static __device__ __forceinline__ void attention_end(const struct launch_attention &a,
                                                     const struct launch_item &item, int kv_head,
                                                     int first, const attention_state<D> &s) {
    int g = lane_id() / 4, t = lane_id() % 4, slot = item.begin / a.split;
    for (int h = 0; h < 2; h++) {
        if (s.limit[h] <= item.begin) continue;
        attention_query q = query_at(a, item, kv_head, first + g + 8 * h);
        size_t at = state_index(a, q.row, q.head, slot);
        if (t == 0) {
            a.stats[2 * at] = s.top[h];
            a.stats[2 * at + 1] = s.sum[h];
        }
        float *state = a.states + at * D + 2 * t;
        for (int n = 0; n < D / 8; n++)
            *reinterpret_cast<float2 *>(state + 8 * n) =
                make_float2(s.out[n][2 * h], s.out[n][2 * h + 1]);
    }
}

/* A KV block in shared memory: 16 rows of keys, 16 of values, D bf16 each; chunk c of 8 elements of
 * row r lies at c ^ (r % 8), so that the eight rows of an ldmatrix lie in different banks. */
template <int D> static __device__ __forceinline__ int tile_at(int row, int chunk) {
    return row * D + (chunk ^ (row & 7)) * 8;
}

/* Starts copying the block that holds keys first_key … + 15, of which those from `end` on are
 * zeros, so that garbage there, were it NaN, can't reach the sums. */
template <int D>
static __device__ __forceinline__ void
tile_load(const struct launch_attention &a, const int32_t *table, int kv_head, int first_key,
          int end, uint16_t *tile, int thread, int n_threads) {
    int block = table[first_key / LAUNCH_BLOCK];
    const uint16_t *from =
        a.kv.data + (static_cast<size_t>(block) * static_cast<size_t>(a.kv.n_kv_heads) +
                     static_cast<size_t>(kv_head)) *
                        2 * LAUNCH_BLOCK * D;
    for (int i = thread; i < 2 * LAUNCH_BLOCK * D / 8; i += n_threads) {
        int row = i / (D / 8), chunk = i % (D / 8);
        copy_async(tile + tile_at<D>(row, chunk), from + i * 8,
                   first_key + row % LAUNCH_BLOCK < end);
    }
}

/* Scores of this lane's queries g (h = 0) and g + 8 (h = 1) to weights, in place; the sums follow.
 */
template <int D>
static __device__ __forceinline__ void soften(attention_state<D> &s, float score[2][4], int h,
                                              int first_key, float scale) {
    int t = lane_id() % 4;
    float top = s.top[h];
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 2; i++) {
            int key = first_key + 8 * n + 2 * t + i;
            float v = key < s.limit[h] ? score[n][2 * h + i] * scale : -INFINITY;
            score[n][2 * h + i] = v;
            top = fmaxf(top, v);
        }
    top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
    top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
    float base = top == -INFINITY ? 0.0f : top;
    float shrink = s.top[h] == top ? 1.0f : exp2_fast(s.top[h] - base);
    float sum = 0;
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 2; i++) {
            float w = exp2_fast(score[n][2 * h + i] - base);
            score[n][2 * h + i] = w;
            sum += w;
        }
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    s.top[h] = top;
    s.sum[h] = s.sum[h] * shrink + sum;
    if (shrink == 1.0f) return;
    for (int n = 0; n < D / 8; n++) {
        s.out[n][2 * h] *= shrink;
        s.out[n][2 * h + 1] *= shrink;
    }
}

/* The block of keys first_key … first_key + 15 that lies in `tile`. */
template <int D>
static __device__ __forceinline__ void attend(attention_state<D> &s, const uint16_t *tile,
                                              int first_key, float scale) {
    int lane = lane_id(), row = lane & 7;
    float score[2][4] = {};
    uint32_t b[4];
    for (int k = 0; k < D / 16; k++) {
        /* Matrices: keys 0 … 7 in two halves of 16 dimensions, then keys 8 … 15. */
        load_matrices(b, tile + tile_at<D>((lane >> 4) * 8 + row, 2 * k + (lane >> 3 & 1)));
        multiply_add(score[0], s.q[k], b);
        multiply_add(score[1], s.q[k], b + 2);
    }
    soften(s, score, 0, first_key, scale);
    soften(s, score, 1, first_key, scale);
    uint32_t weights[4] = {bf16_pair(score[0][0], score[0][1]), bf16_pair(score[0][2], score[0][3]),
                           bf16_pair(score[1][0], score[1][1]),
                           bf16_pair(score[1][2], score[1][3])};
    const uint16_t *values = tile + LAUNCH_BLOCK * D;
    for (int n = 0; n < D / 16; n++) {
        /* Matrices: 8 dimensions of keys 0 … 7 and 8 … 15, then the next 8 dimensions. */
        load_matrices_transposed(b, values +
                                        tile_at<D>((lane >> 3 & 1) * 8 + row, 2 * n + (lane >> 4)));
        multiply_add(s.out[2 * n], weights, b);
        multiply_add(s.out[2 * n + 1], weights, b + 2);
    }
}

#endif
