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

/* Of this lane: queries g and g + 8 of the warp's 16 (g = lane / 4).
 *
 * Which dimensions a lane (t = lane % 4) has of each 16: with bf16 keys those of the fragments, 2t,
 * 2t + 1 and 8 more.  With fp8 keys 4t … 4t + 3, since a row of 16-bit elements, as ldmatrix brings
 * it, is one of pairs of codes; sums over dimensions don't mind, as long as queries and keys agree.
 * Of the output, fragment 2n has the even ones of these four and 2n + 1 the odd ones. */
template <int D> struct attention_state {
    uint32_t q[D / 16][4];
    float out[D / 8][4];
    float top[2], sum[2]; /* of scores times log2 e */
    int limit[2];         /* keys below it are seen; 0: there is no such query */
};

/* The first dimension of pair i (0, 1) of the 16 from 16 k on. */
template <bool fp8> static __device__ __forceinline__ int query_dimension(int k, int i) {
    int t = lane_id() % 4;
    return 16 * k + (fp8 ? 4 * t + 2 * i : 2 * t + 8 * i);
}
/* Row h of two output fragments, of 16 dimensions from `at` on, from and to memory. */
template <bool fp8>
static __device__ __forceinline__ void read_pairs(const float *at, int h, float a[4], float b[4]) {
    int t = lane_id() % 4;
    if constexpr (fp8) {
        float4 v = *reinterpret_cast<const float4 *>(at + 4 * t);
        a[2 * h] = v.x, b[2 * h] = v.y, a[2 * h + 1] = v.z, b[2 * h + 1] = v.w;
    } else {
        float2 u = *reinterpret_cast<const float2 *>(at + 2 * t);
        float2 v = *reinterpret_cast<const float2 *>(at + 8 + 2 * t);
        a[2 * h] = u.x, a[2 * h + 1] = u.y, b[2 * h] = v.x, b[2 * h + 1] = v.y;
    }
}
template <bool fp8>
static __device__ __forceinline__ void write_pairs(float *at, int h, const float a[4],
                                                   const float b[4]) {
    int t = lane_id() % 4;
    if constexpr (fp8) {
        *reinterpret_cast<float4 *>(at + 4 * t) =
            make_float4(a[2 * h], b[2 * h], a[2 * h + 1], b[2 * h + 1]);
    } else {
        *reinterpret_cast<float2 *>(at + 2 * t) = make_float2(a[2 * h], a[2 * h + 1]);
        *reinterpret_cast<float2 *>(at + 8 + 2 * t) = make_float2(b[2 * h], b[2 * h + 1]);
    }
}

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
template <int D, bool fp8>
static __device__ __forceinline__ void attention_begin(const struct launch_attention &a,
                                                       const struct launch_item &item, int kv_head,
                                                       int first, attention_state<D> &s) {
    int g = lane_id() / 4, slot = item.begin / a.split;
    bool resumes = item.begin % a.split != 0;
    for (int h = 0; h < 2; h++) {
        attention_query q = query_at(a, item, kv_head, first + g + 8 * h);
        s.limit[h] = q.there ? min(a.batch.positions[q.row] + 1, item.end) : 0;
        const float *from =
            a.q + static_cast<size_t>(q.row) * static_cast<size_t>(a.stride) + q.head * D;
        for (int k = 0; k < D / 16; k++)
            for (int i = 0; i < 2; i++) {
                const float *pair = from + query_dimension<fp8>(k, i);
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
        for (int n = 0; n < D / 8; n += 2)
            read_pairs<fp8>(a.states + at * D + 8 * n, h, s.out[n], s.out[n + 1]);
    }
}

/* Leaves the state of queries that saw a key of the item. */
template <int D, bool fp8>
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
        for (int n = 0; n < D / 8; n += 2)
            write_pairs<fp8>(a.states + at * D + 8 * n, h, s.out[n], s.out[n + 1]);
    }
}

/* A page in shared memory: 16 rows of keys, 16 of values, each of D elements; fp8: and the scales.
 * Rows are chunks of 16 bytes, which lie so that those of the eight rows of an ldmatrix are in
 * different banks.  The byte where chunk `chunk` of row `row` begins: */
template <int D, bool fp8>
static constexpr int PAGE_BYTES = 2 * LAUNCH_BLOCK *(fp8 ? D + 4 : 2 * D);
template <int D, bool fp8> static __device__ __forceinline__ int page_at(int row, int chunk) {
    constexpr int row_bytes = fp8 ? D : 2 * D;
    int turn = row_bytes == 64 ? row >> 1 & 3 : row & 7;
    return row * row_bytes + (chunk ^ turn) * 16;
}

/* Starts copying the page of the block that holds keys first_key … + 15, of which those from `end`
 * on are zeros, so that garbage there, were it NaN, can't reach the sums.  (Scales of such keys
 * aren't looked at.) */
template <int D, bool fp8>
static __device__ __forceinline__ void
page_load(const struct launch_attention &a, const int32_t *table, int kv_head, int first_key,
          int end, uint8_t *page, int thread, int n_threads) {
    constexpr int bytes = PAGE_BYTES<D, fp8>, chunks = fp8 ? D / 16 : D / 8;
    int block = table[first_key / LAUNCH_BLOCK];
    const uint8_t *from =
        a.kv.data + (static_cast<size_t>(block) * static_cast<size_t>(a.kv.n_kv_heads) +
                     static_cast<size_t>(kv_head)) *
                        bytes;
    for (int i = thread; i < bytes / 16; i += n_threads) {
        int row = i / chunks, chunk = i % chunks;
        if (row < 2 * LAUNCH_BLOCK)
            copy_async(page + page_at<D, fp8>(row, chunk), from + i * 16,
                       first_key + row % LAUNCH_BLOCK < end);
        else
            copy_async(page + i * 16, from + i * 16, true);
    }
}

/* Of fp8 pages: the scale of key 8 n + 2 t + i, or of its value. */
template <int D>
static __device__ __forceinline__ float scale_at(const uint8_t *page, bool value, int n, int i) {
    const float *scales = reinterpret_cast<const float *>(page + 2 * LAUNCH_BLOCK * D);
    return scales[(value ? LAUNCH_BLOCK : 0) + 8 * n + 2 * (lane_id() % 4) + i];
}

/* Scores of this lane's queries g (h = 0) and g + 8 (h = 1) to weights, in place; the sums follow.
 * fp8: a value's scale goes into its weight, behind the sum. */
template <int D, bool fp8>
static __device__ __forceinline__ void soften(attention_state<D> &s, float score[2][4], int h,
                                              const uint8_t *page, int first_key, float scale) {
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
            bool seen = first_key + 8 * n + 2 * t + i < s.limit[h];
            score[n][2 * h + i] = !fp8 ? w : seen ? w * scale_at<D>(page, true, n, i) : 0.0f;
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

/* score[n] = the queries times keys 8 n … 8 n + 7 of the page. */
template <int D, bool fp8>
static __device__ __forceinline__ void score_keys(const attention_state<D> &s, const uint8_t *page,
                                                  float score[2][4]) {
    int lane = lane_id(), row = (lane >> 4) * 8 + (lane & 7), half = lane >> 3 & 1;
    uint32_t b[4];
    /* Matrices: keys 0 … 7 in two chunks, then keys 8 … 15. */
    if constexpr (fp8) {
        for (int k = 0; k < D / 32; k++) {
            load_matrices(b, page + page_at<D, fp8>(row, 2 * k + half));
            for (int i = 0; i < 4; i++) {
                uint32_t pairs[2] = {fp8_first_pair(b[i]), fp8_second_pair(b[i])};
                multiply_add(score[i / 2], s.q[2 * k + i % 2], pairs);
            }
        }
        for (int n = 0; n < 2; n++)
            for (int i = 0; i < 2; i++) {
                float scale = scale_at<D>(page, false, n, i);
                score[n][i] *= scale;
                score[n][i + 2] *= scale;
            }
    } else {
        for (int k = 0; k < D / 16; k++) {
            load_matrices(b, page + page_at<D, fp8>(row, 2 * k + half));
            multiply_add(score[0], s.q[k], b);
            multiply_add(score[1], s.q[k], b + 2);
        }
    }
}

/* Adds the values of the page, times their weights. */
template <int D, bool fp8>
static __device__ __forceinline__ void add_values(attention_state<D> &s, const uint8_t *page,
                                                  const uint32_t weights[4]) {
    int lane = lane_id(), row = LAUNCH_BLOCK + (lane >> 3 & 1) * 8 + (lane & 7), half = lane >> 4;
    uint32_t b[4];
    /* Matrices: a chunk of keys 0 … 7 and 8 … 15, then the next chunk. */
    if constexpr (fp8) {
        for (int n = 0; n < D / 32; n++) {
            load_matrices_transposed(b, page + page_at<D, fp8>(row, 2 * n + half));
            for (int i = 0; i < 2; i++) {
                uint32_t even[2] = {fp8_even_pair(b[2 * i]), fp8_even_pair(b[2 * i + 1])};
                uint32_t odd[2] = {fp8_odd_pair(b[2 * i]), fp8_odd_pair(b[2 * i + 1])};
                multiply_add(s.out[4 * n + 2 * i], weights, even);
                multiply_add(s.out[4 * n + 2 * i + 1], weights, odd);
            }
        }
    } else {
        for (int n = 0; n < D / 16; n++) {
            load_matrices_transposed(b, page + page_at<D, fp8>(row, 2 * n + half));
            multiply_add(s.out[2 * n], weights, b);
            multiply_add(s.out[2 * n + 1], weights, b + 2);
        }
    }
}

/* The page of keys first_key … first_key + 15. */
template <int D, bool fp8>
static __device__ __forceinline__ void attend(attention_state<D> &s, const uint8_t *page,
                                              int first_key, float scale) {
    float score[2][4] = {};
    score_keys<D, fp8>(s, page, score);
    soften<D, fp8>(s, score, 0, page, first_key, scale);
    soften<D, fp8>(s, score, 1, page, first_key, scale);
    uint32_t weights[4] = {bf16_pair(score[0][0], score[0][1]), bf16_pair(score[0][2], score[0][3]),
                           bf16_pair(score[1][0], score[1][1]),
                           bf16_pair(score[1][2], score[1][3])};
    add_values<D, fp8>(s, page, weights);
}

#endif
