/* Rotary position embedding, and K and V on their way into the paged cache. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

static constexpr int THREADS = 256;

/* what      turns[r][i] = cos, sin of position[r] inv_freq[i]: once a step, for all layers and
 * heads layout    f32 [n][half][2] tile      one block a row, 64 threads bytes     8 n half flops
 * an angle of 100,000 has an error of 0.01 in f32: the whole rounds are taken off in f64 order none
 */
static constexpr int TURN_THREADS = 64;
static __global__ void __launch_bounds__(TURN_THREADS) turns(struct launch_turns a) {
    int r = static_cast<int>(blockIdx.x);
    if (r >= *a.n_rows) return;
    constexpr double circle = 6.283185307179586476925286766559;
    for (int i = static_cast<int>(threadIdx.x); i < a.half; i += TURN_THREADS) {
        double rounds =
            static_cast<double>(a.positions[r]) * static_cast<double>(a.inv_freq[i]) / circle;
        float halves = static_cast<float>(2 * (rounds - floor(rounds + 0.5)));
        float *to =
            a.turns +
            (static_cast<size_t>(r) * static_cast<size_t>(a.half) + static_cast<size_t>(i)) * 2;
        to[0] = cospif(halves);
        to[1] = sinpif(halves);
    }
}

void launch_turns(void *stream, const struct launch_turns *a) {
    LAUNCH(turns, dim3(static_cast<unsigned>(a->rows)), dim3(TURN_THREADS), 0, stream, *a);
}

/* what      q[r][h] and k[r][h] rotated by position[r] (arXiv 2104.09864), pairs (2i, 2i+1) or
 *           (i, i + n_rot/2); k and v rounded to bf16 into block tables[r][position / 16]
 * layout    q, k, v f32, rows at `stride`; the cache as struct launch_kv has it
 * tile      one block a row, 256 threads, one pair a thread and turn
 * bytes     n (8 q + (4 + 2) (k + v)) elements, turns from L2   bound: memory
 * order     none */
static __device__ __forceinline__ void pair_of(const struct launch_rope &a, int i, int *first,
                                               int *second) {
    *first = a.interleaved ? 2 * i : i;
    *second = a.interleaved ? 2 * i + 1 : i + a.half;
}

/* Where row r's turns begin, and the pages of its position's block. */
static __device__ __forceinline__ const float *turns_of(const struct launch_rope &a, int r) {
    return a.turns + static_cast<size_t>(r) * static_cast<size_t>(a.half) * 2;
}
static __device__ __forceinline__ uint8_t *pages_of(const struct launch_rope &a, int r) {
    int table = a.batch.table_of_row[r] + a.batch.positions[r] / LAUNCH_BLOCK;
    return a.kv.data + static_cast<size_t>(a.batch.tables[table]) *
                           static_cast<size_t>(a.kv.n_kv_heads) * a.kv.page_bytes;
}

static __device__ __forceinline__ void rotate_queries(const struct launch_rope &a, int r) {
    int thread = static_cast<int>(threadIdx.x), first, second;
    float *q = a.q + static_cast<size_t>(r) * static_cast<size_t>(a.stride);
    const float *turn = turns_of(a, r);
    for (int i = thread; i < a.n_heads * a.half; i += THREADS) {
        int pair = i % a.half;
        float *head = q + i / a.half * a.kv.head_dim;
        pair_of(a, pair, &first, &second);
        float c = turn[2 * pair], s = turn[2 * pair + 1], x = head[first], y = head[second];
        head[first] = x * c - y * s;
        head[second] = x * s + y * c;
    }
}

static __global__ void __launch_bounds__(THREADS) rope(struct launch_rope a) {
    int r = static_cast<int>(blockIdx.x), d = a.kv.head_dim;
    if (r >= a.batch.counts->n_rows) return;
    rotate_queries(a, r);
    size_t at = static_cast<size_t>(r) * static_cast<size_t>(a.stride);
    const float *turn = turns_of(a, r);
    int thread = static_cast<int>(threadIdx.x), first, second;
    const float *k = a.k + at, *v = a.v + at;
    size_t page = static_cast<size_t>(LAUNCH_BLOCK) * static_cast<size_t>(d);
    uint16_t *base = reinterpret_cast<uint16_t *>(pages_of(a, r)) +
                     static_cast<size_t>(a.batch.positions[r] % LAUNCH_BLOCK * d);
    for (int i = thread; i < a.kv.n_kv_heads * a.half; i += THREADS) {
        int pair = i % a.half, h = i / a.half;
        const float *head = k + h * d;
        uint16_t *to = base + static_cast<size_t>(h) * 2 * page;
        pair_of(a, pair, &first, &second);
        float c = turn[2 * pair], s = turn[2 * pair + 1], x = head[first], y = head[second];
        to[first] = bf16_from_f32(x * c - y * s);
        to[second] = bf16_from_f32(x * s + y * c);
    }
    for (int i = thread; i < a.kv.n_kv_heads * d; i += THREADS) {
        int h = i / d, c = i % d;
        uint16_t *to = base + static_cast<size_t>(h) * 2 * page;
        if (c >= 2 * a.half) to[c] = bf16_from_f32(k[i]);
        to[page + static_cast<size_t>(c)] = bf16_from_f32(v[i]);
    }
}

/* Element i of a head of k, rotated. */
static __device__ __forceinline__ float rotated(const struct launch_rope &a, const float *turn,
                                                const float *head, int i) {
    if (i >= 2 * a.half) return head[i];
    int first, second, pair = a.interleaved ? i / 2 : i % a.half;
    pair_of(a, pair, &first, &second);
    float c = turn[2 * pair], s = turn[2 * pair + 1], x = head[first], y = head[second];
    return i == first ? x * c - y * s : x * s + y * c;
}

/* what      the same with k and v rounded to fp8 E4M3: code = x / scale, scale = max |x| / 448 over
 *           the head; what isn't finite makes its row's scale NaN or infinite
 * tile      one block a row, 256 threads, a warp a head of k or of v and turn
 * bytes     n (8 q + (4 + 1) (k + v)) elements   bound: memory
 * order     none */
static __global__ void __launch_bounds__(THREADS) rope_fp8(struct launch_rope a) {
    int r = static_cast<int>(blockIdx.x), d = a.kv.head_dim;
    if (r >= a.batch.counts->n_rows) return;
    rotate_queries(a, r);
    size_t at = static_cast<size_t>(r) * static_cast<size_t>(a.stride);
    const float *turn = turns_of(a, r);
    int position = a.batch.positions[r] % LAUNCH_BLOCK;
    uint8_t *pages = pages_of(a, r);
    for (int i = warp_id(); i < 2 * a.kv.n_kv_heads; i += THREADS / WARP) {
        int h = i / 2, value = i % 2;
        const float *head = (value ? a.v : a.k) + at + h * d;
        uint8_t *page = pages + static_cast<size_t>(h) * a.kv.page_bytes;
        uint8_t *codes = page + static_cast<size_t>((value * LAUNCH_BLOCK + position) * d);
        /* The largest by its bits, which are in the order of magnitudes, NaN behind all. */
        unsigned top = 0;
        for (int c = lane_id(); c < d; c += WARP) {
            float x = value ? head[c] : rotated(a, turn, head, c);
            top = max(top, __float_as_uint(x) & 0x7fffffffu);
        }
        for (int lane = WARP / 2; lane; lane /= 2)
            top = max(top, __shfl_xor_sync(ALL_LANES, top, lane));
        float scale = top ? __uint_as_float(top) / FP8_MAX : 1.0f, inverse = 1.0f / scale;
        for (int c = lane_id(); c < d; c += WARP)
            codes[c] = fp8_from_f32((value ? head[c] : rotated(a, turn, head, c)) * inverse);
        if (lane_id() == 0)
            reinterpret_cast<float *>(page + 2 * LAUNCH_BLOCK *
                                                 d)[value * LAUNCH_BLOCK + position] = scale;
    }
}

void launch_rope(void *stream, const struct launch_rope *a) {
    if (a->kv.fp8)
        LAUNCH(rope_fp8, dim3(static_cast<unsigned>(a->rows)), dim3(THREADS), 0, stream, *a);
    else
        LAUNCH(rope, dim3(static_cast<unsigned>(a->rows)), dim3(THREADS), 0, stream, *a);
}
