/* Rotary position embedding, and K and V on their way into the paged cache. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

static constexpr int THREADS = 256;

/* what      turns[r][i] = cos, sin of position[r] inv_freq[i]: once a step, for all layers and
 * heads layout    f32 [n][half][2] tile      one block a row, 64 threads bytes     8 n half flops:
 * an angle of 100,000 has an error of 0.01 in f32, so the whole rounds are taken off in f64 order
 * none */
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

static __global__ void __launch_bounds__(THREADS) rope(struct launch_rope a) {
    int r = static_cast<int>(blockIdx.x), d = a.kv.head_dim;
    if (r >= a.batch.counts->n_rows) return;
    size_t at = static_cast<size_t>(r) * static_cast<size_t>(a.stride);
    const float *turn = a.turns + static_cast<size_t>(r) * static_cast<size_t>(a.half) * 2;
    int position = a.batch.positions[r];
    int block = a.batch.tables[a.batch.table_of_row[r] + position / LAUNCH_BLOCK];
    int thread = static_cast<int>(threadIdx.x), first, second;

    float *q = a.q + at;
    for (int i = thread; i < a.n_heads * a.half; i += THREADS) {
        int pair = i % a.half;
        float *head = q + i / a.half * d;
        pair_of(a, pair, &first, &second);
        float c = turn[2 * pair], s = turn[2 * pair + 1], x = head[first], y = head[second];
        head[first] = x * c - y * s;
        head[second] = x * s + y * c;
    }
    const float *k = a.k + at, *v = a.v + at;
    size_t page = static_cast<size_t>(LAUNCH_BLOCK) * static_cast<size_t>(d);
    uint16_t *base = a.kv.data +
                     static_cast<size_t>(block) * static_cast<size_t>(a.kv.n_kv_heads) * 2 * page +
                     static_cast<size_t>(position % LAUNCH_BLOCK * d);
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

void launch_rope(void *stream, const struct launch_rope *a) {
    LAUNCH(rope, dim3(static_cast<unsigned>(a->rows)), dim3(THREADS), 0, stream, *a);
}
